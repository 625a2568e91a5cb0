//! Stores in a temporary directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use windlass_kernel::{BoxFuture, Store};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::memory::ManualClock;
use windlass_testkit::world::{Dialect, Subject, World};

/// A directory with a database, and a manual clock.
pub(crate) struct StoreDir {
    dir: TempDir,
    pub(crate) clock: ManualClock,
}

impl StoreDir {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir, clock: ManualClock::new() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("store.db")
    }

    pub(crate) fn options(&self) -> Options {
        Options { clock: self.clock.as_clock(), elapsed: None, ..Options::default() }
    }

    /// Opens the store with the given options.
    pub(crate) async fn open_with(&self, options: Options) -> World {
        let store = SqliteStore::open(self.path(), options).expect("open failed");
        let path = self.path();
        World::new(Box::new(OpenStore { store, path, clock: self.clock.clone() })).await
    }

    pub(crate) async fn open(&self) -> World {
        self.open_with(self.options()).await
    }

    /// The error of a failed opening.
    pub(crate) fn refusal(&self) -> windlass_kernel::Error {
        match SqliteStore::open(self.path(), self.options()) {
            Ok(_) => panic!("the store was opened"),
            Err(error) => error,
        }
    }

    /// A connection that bypasses the store.
    pub(crate) fn raw(&self) -> Connection {
        raw(&self.path())
    }
}

fn raw(path: &Path) -> Connection {
    let conn = Connection::open(path).expect("open failed");
    conn.busy_timeout(Duration::from_secs(10)).expect("cannot set the timeout");
    conn
}

struct OpenStore {
    store: Arc<SqliteStore>,
    path: PathBuf,
    clock: ManualClock,
}

impl Subject for OpenStore {
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
