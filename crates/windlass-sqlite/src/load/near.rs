//! Short reads on the caller's own thread: the way to another thread and back takes longer than they
//! do.

#![allow(clippy::disallowed_methods, reason = "how old a snapshot is, is real time")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use windlass_kernel::Error;

use crate::schema;

/// How many can read at once.
const PLACES: usize = 4;

/// How old a snapshot may get that no commit of this process made old: so long does it take to see what
/// somebody did at a SQL prompt.
const SNAPSHOT_MAX: Duration = Duration::from_millis(50);

static HOMES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // The place that a thread tries first: a connection that wanders between cores takes its pages
    // along.
    static HOME: usize = HOMES.fetch_add(1, Ordering::Relaxed);
}

/// Connections for short reads.
#[derive(Clone)]
pub(crate) struct Near {
    places: Arc<[Mutex<Option<Place>>; PLACES]>,
    written: Arc<AtomicU64>,
}

impl Near {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let places = [const { Mutex::new(None) }; PLACES];
        for place in &places {
            let conn = schema::open_reader(path, Duration::ZERO)?;
            *lock(place) = Some(Place { conn, seen: 0, since: None });
        }
        Ok(Self { places: Arc::new(places), written: Arc::new(AtomicU64::new(1)) })
    }

    /// Runs a short read. None if no connection is free, if `work` finds that it would not be short,
    /// or if it fails: then it is for a reader's thread to give the answer.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<Option<T>, Error>,
    ) -> Option<T> {
        self.at(Place::let_go, work)
    }

    /// As [`Near::read`], from a snapshot that has every acknowledged commit, but may not yet have
    /// what was written around the store.
    pub(crate) fn glance<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<Option<T>, Error>,
    ) -> Option<T> {
        self.at(|place| place.follow(self.written.load(Ordering::Acquire)), work)
    }

    fn at<T>(
        &self,
        prepare: impl FnOnce(&mut Place) -> rusqlite::Result<()>,
        work: impl FnOnce(&Connection) -> Result<Option<T>, Error>,
    ) -> Option<T> {
        let home = HOME.with(|home| *home);
        let mut places = (0..PLACES).map(|n| &self.places[(home + n) % PLACES]);
        let mut free = places.find_map(|place| place.try_lock().ok())?;
        let place = free.as_mut()?;
        prepare(place).ok()?;
        let read = work(&place.conn);
        if read.is_err() {
            place.let_go().ok()?;
        }
        read.ok().flatten()
    }

    /// Says that a commit was made. Called before the commit is acknowledged, so that whoever heard of
    /// it reads it.
    pub(crate) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::Release);
    }

    /// Gives up every snapshot, so that the log can be copied to its end and begin anew.
    pub(crate) fn let_go(&self) {
        for place in &*self.places {
            if let Some(place) = &mut *lock(place)
                && let Err(error) = place.let_go()
            {
                tracing::warn!(%error, "a snapshot could not be ended; the log grows");
            }
        }
    }

    pub(crate) fn close(&self) {
        for place in &*self.places {
            lock(place).take();
        }
    }
}

fn lock(place: &Mutex<Option<Place>>) -> MutexGuard<'_, Option<Place>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Place {
    conn: Connection,
    // The commits that there were at the last glance.
    seen: u64,
    // Since when it has a snapshot.
    since: Option<Instant>,
}

impl Place {
    /// A read by itself takes and gives back locks on the file, which cost a third of it. While nothing
    /// is written, glances share a snapshot instead. The first one after a commit has none, because
    /// the next one may come after another commit.
    fn follow(&mut self, written: u64) -> rusqlite::Result<()> {
        let is_same = std::mem::replace(&mut self.seen, written) == written;
        match self.since {
            Some(since) if !is_same || since.elapsed() > SNAPSHOT_MAX => self.let_go(),
            None if is_same => {
                self.conn.prepare_cached("BEGIN")?.execute([])?;
                self.since = Some(Instant::now());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn let_go(&mut self) -> rusqlite::Result<()> {
        if self.since.take().is_some() {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
        }
        Ok(())
    }
}
