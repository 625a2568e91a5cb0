//! Checkpoints: the write-ahead log is copied into the database beside the commits.

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
pub(super) struct Log {
    pages: Arc<AtomicU64>,
    page_bytes: u64,
}

impl Log {
    pub(super) fn watch(conn: &mut Connection) -> Result<Self, Error> {
        // The file's own, which need not be what a new one would get.
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

    // The next commit writes to the log's beginning.
    pub(super) fn restarts(&self) {
        self.pages.store(0, Ordering::Relaxed);
    }
}

/// The thread that copies the log into the database beside the commits.
pub(super) struct Checkpointer {
    ask: Option<Sender<()>>,
    done: Receiver<()>,
    is_asked: bool,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn start(path: PathBuf) -> Result<Self, Error> {
        let (ask, asked) = unbounded::<()>();
        let (finish, done) = unbounded();
        let work = move || {
            while asked.recv().is_ok() {
                if let Err(error) = copy_log(&path) {
                    tracing::warn!(%error, "a checkpoint failed; the log grows");
                }
                let _ = finish.send(());
            }
        };
        let thread = Some(schema::spawn("windlass-checkpoint", work)?);
        Ok(Self { ask: Some(ask), done, is_asked: false, thread })
    }

    pub(super) fn ask(&mut self) {
        if let Some(ask) = &self.ask
            && !self.is_asked
        {
            self.is_asked = ask.send(()).is_ok();
        }
    }

    pub(super) fn is_done(&mut self) -> bool {
        let done = self.done.try_recv().is_ok();
        self.is_asked &= !done;
        done
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.ask = None;
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
