//! Checkpoints: copies the write-ahead log into the database while commits continue.
//!
//! A failed sync closes the store. A passive checkpoint beside commits marks pages as copied before
//! the database file is synced. If the sync that follows fails, the kernel may drop these pages, and
//! a second checkpoint would copy only the other pages, report success and restart the log over
//! commits that were acknowledged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, RecvError, Sender, select, unbounded};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ffi};
use windlass_kernel::Error;

use crate::error;
use crate::options::Fault;
use crate::schema;

use super::{BatchError, Batcher, Job};

/// The size of the write-ahead log.
pub(super) struct WalSize {
    pages: Arc<AtomicU64>,
    page_bytes: u64,
}

impl WalSize {
    pub(super) fn watch(conn: &mut Connection) -> Result<Self, Error> {
        // The page size of this file can differ from the default.
        let page_bytes: u32 =
            conn.pragma_query_value(None, "page_size", |row| row.get(0)).map_err(error::sql)?;
        let pages = Arc::new(AtomicU64::new(0));
        let seen = pages.clone();
        let hook = move |_: &mut rusqlite::hooks::Wal, count: std::ffi::c_int| {
            seen.store(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        };
        conn.wal_hook(Some(hook)).map_err(error::sql)?;
        Ok(Self { pages, page_bytes: page_bytes.into() })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) * self.page_bytes
    }

    // After this, the next commit writes to the beginning of the log.
    pub(super) fn reset(&self) {
        self.pages.store(0, Ordering::Relaxed);
    }
}

/// The thread that copies the log into the database.
pub(super) struct Checkpointer {
    requests: Option<Sender<()>>,
    done: Receiver<rusqlite::Result<()>>,
    // The result of a finished copy that the writer has not handled yet.
    result: Option<rusqlite::Result<()>>,
    is_requested: bool,
    thread: Option<JoinHandle<()>>,
}

/// The reason why the writer stopped waiting.
pub(super) enum Waited {
    Job(Result<Job, RecvError>),
    Checkpointed,
}

impl Checkpointer {
    pub(super) fn start(path: PathBuf, fault: Option<Fault>) -> Result<Self, Error> {
        let (requests, requested) = unbounded::<()>();
        let (finish, done) = unbounded();
        let work = move || {
            while requested.recv().is_ok() {
                let copy = AssertUnwindSafe(|| copy_log(&path, fault.as_ref()));
                let copied = catch_unwind(copy).unwrap_or_else(|_| {
                    tracing::error!("a checkpoint panicked; it is tried again");
                    Ok(())
                });
                let _ = finish.send(copied);
            }
        };
        let thread = Some(schema::spawn("windlass-checkpoint", work)?);
        Ok(Self { requests: Some(requests), done, result: None, is_requested: false, thread })
    }

    fn request(&mut self) {
        if let Some(requests) = &self.requests
            && !self.is_requested
        {
            self.is_requested = requests.send(()).is_ok();
        }
    }

    // Waits for the next job, and for the end of a copy that is under way: a failed sync must close
    // the store even if no call comes.
    pub(super) fn wait_for(&mut self, jobs: &Receiver<Job>) -> Waited {
        if !self.is_requested || self.result.is_some() {
            return Waited::Job(jobs.recv());
        }
        select! {
            recv(jobs) -> job => Waited::Job(job),
            recv(self.done) -> result => {
                self.result = Some(result.unwrap_or(Ok(())));
                Waited::Checkpointed
            }
        }
    }

    // The result of the copy, if one has ended.
    fn take_result(&mut self) -> Option<rusqlite::Result<()>> {
        let result = self.result.take().or_else(|| self.done.try_recv().ok());
        self.is_requested &= result.is_none();
        result
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Batcher<'_> {
    // Another thread copies the pages of the log into the database while commits continue. When it
    // is done, this copies the pages that were added since, so that the log can restart at its
    // beginning.
    pub(super) fn checkpoint(&mut self) -> Result<(), Error> {
        let result = self.checkpointer.take_result();
        let is_done = result.is_some();
        if let Some(Err(error)) = result {
            check_synced(error)?;
        }
        let size = self.log.bytes();
        if size < self.options.wal_bytes_soft {
            return Ok(());
        }
        self.local_reader.end_snapshots();
        if !is_done && size < self.options.wal_bytes_hard {
            self.checkpointer.request();
            return Ok(());
        }
        match copy(self.writer.conn, "PASSIVE", self.options.checkpoint_fault.as_ref()) {
            Ok(true) => {
                // A reader that still uses the log prevents its restart.
                self.local_reader.end_snapshots();
                self.log.reset();
            }
            // A reader still needs an old page. Try again later.
            Ok(false) => {}
            Err(error) => check_synced(error)?,
        }
        Ok(())
    }

    // Remembers whether the disk is full. Returns it.
    pub(super) fn note_full<T>(&mut self, written: &Result<T, BatchError>) -> bool {
        let is_full = matches!(written, Err(error) if error.is_full());
        if is_full && !self.is_full {
            tracing::error!(
                "the disk is full; the store refuses writes until there is room, and then goes on by itself"
            );
        }
        self.is_full = is_full;
        is_full
    }

    // Copies the log into the database and truncates it, so that a full disk gets the room of the
    // log back. While the disk is full this happens before each batch: room that somebody frees then
    // goes to the database, which needs it once, and not to a log that only grows.
    pub(super) fn make_room(&mut self) -> Result<bool, Error> {
        self.local_reader.end_snapshots();
        let conn = self.writer.conn;
        let copied = conn.busy_timeout(std::time::Duration::ZERO).and_then(|()| {
            let copied = copy(conn, "TRUNCATE", self.options.checkpoint_fault.as_ref());
            conn.busy_timeout(schema::BUSY_TIMEOUT)?;
            copied
        });
        match copied {
            Ok(true) => {
                self.log.reset();
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(error) => check_synced(error).map(|()| false),
        }
    }
}

// An error of a checkpoint. A failed sync closes the store; after any other error the log stays
// complete, so the checkpoint can be tried again.
fn check_synced(error: rusqlite::Error) -> Result<(), Error> {
    if error::is_unsynced(&error) {
        return Err(error::unsynced(error));
    }
    tracing::warn!(%error, "checkpoint failed; the write-ahead log keeps growing");
    Ok(())
}

// Whether all pages of the log were copied.
fn copy(conn: &Connection, mode: &str, fault: Option<&Fault>) -> rusqlite::Result<bool> {
    inject(fault)?;
    conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let (busy, all, copied): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(busy == 0 && all == copied)
    })
}

fn copy_log(path: &Path, fault: Option<&Fault>) -> rusqlite::Result<()> {
    let conn = schema::open_connection(path, false)?;
    // If this connection were the last one, closing it would checkpoint once more.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "wal_autocheckpoint", 0)?;
    copy(&conn, "PASSIVE", fault).map(|_| ())
}

/// Fails if a test asks for it.
pub(super) fn inject(fault: Option<&Fault>) -> rusqlite::Result<()> {
    match fault.and_then(|fault| fault()) {
        Some(code) => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)),
        None => Ok(()),
    }
}
