//! Checkpoints the write-ahead log of the calibration on another thread, like the store does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

/// Checkpoints the log concurrently with the writer when it is long enough.
pub(super) struct Checkpointer {
    pages: Arc<AtomicU64>,
    pages_max: u64,
    request: Option<Sender<()>>,
    done: Receiver<()>,
    is_requested: bool,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Watches the log of the writer's connection.
    pub(super) fn watch(
        connection: &mut Connection,
        path: &Path,
        pages_max: u64,
    ) -> anyhow::Result<Self> {
        let pages = Arc::new(AtomicU64::new(0));
        let seen = pages.clone();
        connection.wal_hook(Some(
            move |_: &mut rusqlite::hooks::Wal, count: std::ffi::c_int| {
                seen.store(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
                Ok(())
            },
        ))?;
        let (request, requests) = channel();
        let (finish, done) = channel();
        let path = path.to_owned();
        let work = move || {
            while requests.recv().is_ok() {
                // The writer requests a failed checkpoint again.
                let _ = Connection::open(&path).and_then(|connection| {
                    connection.execute_batch("PRAGMA wal_autocheckpoint = 0")?;
                    checkpoint(&connection)
                });
                let _ = finish.send(());
            }
        };
        let thread = std::thread::Builder::new().name("calibration-log".to_owned()).spawn(work)?;
        Ok(Self {
            pages,
            pages_max,
            request: Some(request),
            done,
            is_requested: false,
            thread: Some(thread),
        })
    }

    /// Must be called after each commit. Requests a checkpoint of a long log. After that
    /// checkpoint, copies the rest itself, so that the log restarts from the beginning.
    pub(super) fn checkpoint_if_needed(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.pages.load(Ordering::Relaxed) < self.pages_max {
            return Ok(());
        }
        if self.done.try_recv().is_ok() {
            self.is_requested = false;
            if checkpoint(connection)? {
                self.pages.store(0, Ordering::Relaxed);
            }
        } else if !self.is_requested {
            self.is_requested =
                self.request.as_ref().is_some_and(|request| request.send(()).is_ok());
        }
        Ok(())
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.request = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// Returns whether the whole log was copied.
fn checkpoint(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?)
    })
}
