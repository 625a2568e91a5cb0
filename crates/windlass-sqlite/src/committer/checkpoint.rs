//! Checkpoints: copies the write-ahead log into the database while commits continue.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use rusqlite::Connection;
use windlass_kernel::Error;

use crate::error;
use crate::schema;

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
    done: Receiver<()>,
    is_requested: bool,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn start(path: PathBuf) -> Result<Self, Error> {
        let (requests, requested) = unbounded::<()>();
        let (finish, done) = unbounded();
        let work = move || {
            while requested.recv().is_ok() {
                if let Err(error) = copy_log(&path) {
                    tracing::warn!(%error, "checkpoint failed; the write-ahead log keeps growing");
                }
                let _ = finish.send(());
            }
        };
        let thread = Some(schema::spawn("windlass-checkpoint", work)?);
        Ok(Self { requests: Some(requests), done, is_requested: false, thread })
    }

    pub(super) fn request(&mut self) {
        if let Some(requests) = &self.requests
            && !self.is_requested
        {
            self.is_requested = requests.send(()).is_ok();
        }
    }

    pub(super) fn is_done(&mut self) -> bool {
        let done = self.done.try_recv().is_ok();
        self.is_requested &= !done;
        done
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

fn copy_log(path: &Path) -> Result<(), Error> {
    let conn = schema::connect(path, false)?;
    let copy = || -> rusqlite::Result<()> {
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "wal_autocheckpoint", 0)?;
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
    };
    copy().map_err(error::sql)
}
