//! The calibration's write-ahead log, kept short as the store keeps its own: by another thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

/// Copies the log into the file when it is long enough, beside the writer.
pub(super) struct Log {
    pages: Arc<AtomicU64>,
    pages_max: u64,
    ask: Option<Sender<()>>,
    done: Receiver<()>,
    is_asked: bool,
    thread: Option<JoinHandle<()>>,
}

impl Log {
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
        let (ask, asked) = channel();
        let (finish, done) = channel();
        let path = path.to_owned();
        let work = move || {
            while asked.recv().is_ok() {
                // A copy that fails is made again when the writer asks again.
                let _ = Connection::open(&path).and_then(|connection| {
                    connection.execute_batch("PRAGMA wal_autocheckpoint = 0")?;
                    copy(&connection)
                });
                let _ = finish.send(());
            }
        };
        let thread = std::thread::Builder::new().name("calibration-log".to_owned()).spawn(work)?;
        Ok(Self { pages, pages_max, ask: Some(ask), done, is_asked: false, thread: Some(thread) })
    }

    /// After each commit: asks for a copy of a long log; after the copy takes what came meanwhile,
    /// so that the log begins anew.
    pub(super) fn tend(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.pages.load(Ordering::Relaxed) < self.pages_max {
            return Ok(());
        }
        if self.done.try_recv().is_ok() {
            self.is_asked = false;
            if copy(connection)? {
                self.pages.store(0, Ordering::Relaxed);
            }
        } else if !self.is_asked {
            self.is_asked = self.ask.as_ref().is_some_and(|ask| ask.send(()).is_ok());
        }
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

// Whether all of the log was copied.
fn copy(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        Ok(row.get::<_, i64>(1)? == row.get::<_, i64>(2)?)
    })
}
