//! Short reads on the caller's thread, because switching to another thread and back takes longer
//! than the read.

#![allow(clippy::disallowed_methods, reason = "the age of a snapshot is measured in real time")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use windlass_kernel::Error;

use crate::schema;

/// How many threads can read at once.
const CONNECTIONS: usize = 4;

/// Maximum age of a cached snapshot. Writes of other processes (a SQL prompt) become visible within
/// this time.
const SNAPSHOT_MAX: Duration = Duration::from_millis(50);

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // The connection that a thread tries first. If a connection moved between cores, its cached
    // pages would move with it.
    static FIRST_CONNECTION: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// Connections for short reads.
#[derive(Clone)]
pub(crate) struct LocalReader {
    connections: Arc<[Mutex<Option<ReadConnection>>; CONNECTIONS]>,
    commits: Arc<AtomicU64>,
}

impl LocalReader {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let connections = [const { Mutex::new(None) }; CONNECTIONS];
        for connection in &connections {
            let conn = schema::open_reader(path, Duration::ZERO)?;
            *lock(connection) =
                Some(ReadConnection { conn, commits_seen: 0, snapshot_since: None });
        }
        Ok(Self { connections: Arc::new(connections), commits: Arc::new(AtomicU64::new(1)) })
    }

    /// Runs a short read. Returns `None` if no connection is free, if `work` finds that the read is
    /// not short, or if it fails. The caller then asks a reader thread.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<Option<T>, Error>,
    ) -> Option<T> {
        self.with_connection(ReadConnection::end_snapshot, work)
    }

    /// Like [`LocalReader::read`], from a snapshot that has every acknowledged commit of this
    /// process but may lack recent writes of others.
    pub(crate) fn cached_read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<Option<T>, Error>,
    ) -> Option<T> {
        self.with_connection(|conn| conn.refresh(self.commits.load(Ordering::Acquire)), work)
    }

    fn with_connection<T>(
        &self,
        prepare: impl FnOnce(&mut ReadConnection) -> rusqlite::Result<()>,
        work: impl FnOnce(&Connection) -> Result<Option<T>, Error>,
    ) -> Option<T> {
        let first = FIRST_CONNECTION.with(|first| *first);
        let mut connections =
            (0..CONNECTIONS).map(|n| &self.connections[(first + n) % CONNECTIONS]);
        let mut free = connections.find_map(|connection| connection.try_lock().ok())?;
        let connection = free.as_mut()?;
        prepare(connection).ok()?;
        let read = work(&connection.conn);
        if read.is_err() {
            connection.end_snapshot().ok()?;
        }
        read.ok().flatten()
    }

    /// Records a commit, which makes older snapshots out of date. The writer calls it before it
    /// acknowledges the commit, so that a caller reads its own writes.
    pub(crate) fn note_commit(&self) {
        self.commits.fetch_add(1, Ordering::Release);
    }

    /// Ends all snapshots, so that a checkpoint can copy the whole log and restart it.
    pub(crate) fn end_snapshots(&self) {
        for connection in &*self.connections {
            if let Some(connection) = &mut *lock(connection)
                && let Err(error) = connection.end_snapshot()
            {
                tracing::warn!(%error, "cannot end a read snapshot; the write-ahead log keeps growing");
            }
        }
    }

    pub(crate) fn close(&self) {
        for connection in &*self.connections {
            lock(connection).take();
        }
    }
}

fn lock(connection: &Mutex<Option<ReadConnection>>) -> MutexGuard<'_, Option<ReadConnection>> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ReadConnection {
    conn: Connection,
    // The number of commits at the last cached read.
    commits_seen: u64,
    // When the current snapshot began.
    snapshot_since: Option<Instant>,
}

impl ReadConnection {
    /// A single read takes and releases file locks, which cost a third of it. Cached reads share a
    /// snapshot instead as long as nothing is written. The first read after a commit opens none,
    /// because another commit may come before the next read.
    fn refresh(&mut self, commits: u64) -> rusqlite::Result<()> {
        let is_same = std::mem::replace(&mut self.commits_seen, commits) == commits;
        match self.snapshot_since {
            Some(since) if !is_same || since.elapsed() > SNAPSHOT_MAX => self.end_snapshot(),
            None if is_same => {
                self.conn.prepare_cached("BEGIN")?.execute([])?;
                self.snapshot_since = Some(Instant::now());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end_snapshot(&mut self) -> rusqlite::Result<()> {
        if self.snapshot_since.take().is_some() {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
        }
        Ok(())
    }
}
