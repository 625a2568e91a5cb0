//! Stores at a path of the test's choice.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use windlass_kernel::{BoxFuture, Store};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::memory::ManualClock;
use windlass_testkit::world::{Dialect, Subject, World};

/// A folder with a database in it, and a clock.
pub(crate) struct Home {
    folder: TempDir,
    pub(crate) clock: ManualClock,
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder, clock: ManualClock::new() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub(crate) fn options(&self) -> Options {
        Options { clock: self.clock.as_clock(), ..Options::default() }
    }

    /// Opens the store with other options than the usual ones.
    pub(crate) async fn open_with(&self, options: Options) -> World {
        let store = SqliteStore::open(self.path(), options).expect("it opens");
        World::new(Box::new(At { store, path: self.path(), clock: self.clock.clone() })).await
    }

    pub(crate) async fn open(&self) -> World {
        self.open_with(self.options()).await
    }

    /// The code of the error with which it does not open.
    pub(crate) fn refusal(&self) -> windlass_kernel::Error {
        match SqliteStore::open(self.path(), self.options()) {
            Ok(_) => panic!("the store opens"),
            Err(error) => error,
        }
    }

    /// A connection past the store.
    pub(crate) fn raw(&self) -> Connection {
        raw(&self.path())
    }
}

fn raw(path: &Path) -> Connection {
    let conn = Connection::open(path).expect("the file opens");
    conn.busy_timeout(Duration::from_secs(10)).expect("a timeout");
    conn
}

struct At {
    store: Arc<SqliteStore>,
    path: PathBuf,
    clock: ManualClock,
}

impl Subject for At {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        self.clock.advance(by);
        Box::pin(std::future::ready(()))
    }

    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Sqlite)
    }

    fn raw_sql(&self, sql: String) -> BoxFuture<'_, Result<(), String>> {
        let done = raw(&self.path).execute_batch(&sql).map_err(|error| error.to_string());
        Box::pin(std::future::ready(done))
    }
}
