//! A SQLite store in its own directory, for the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use windlass_kernel::{BoxFuture, Limits, Store};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::memory::ManualClock;
use windlass_testkit::world::{Dialect, Subject};

struct SqliteSubject {
    store: Arc<SqliteStore>,
    clock: ManualClock,
    dir: TempDir,
}

/// Opens a new store with a manual clock.
pub(crate) async fn open() -> Box<dyn Subject> {
    open_with(Limits::DEFAULT).await
}

/// Opens a new store with other limits.
pub(crate) async fn open_with(limits: Limits) -> Box<dyn Subject> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let clock = ManualClock::new();
    let options = Options { clock: clock.as_clock(), elapsed: None, limits, ..Options::default() };
    let store = SqliteStore::open(dir.path().join("store.db"), options).expect("open failed");
    Box::new(SqliteSubject { store, clock, dir })
}

impl Subject for SqliteSubject {
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
        let path = self.dir.path().join("store.db");
        let run = move || {
            let connection = Connection::open(path)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            match sql.as_str() {
                "DROP TRIGGERS" => drop_triggers(&connection),
                sql => connection.execute_batch(sql),
            }
        };
        Box::pin(std::future::ready(run().map_err(|error: rusqlite::Error| error.to_string())))
    }
}

fn drop_triggers(connection: &Connection) -> rusqlite::Result<()> {
    let names: Vec<String> = connection
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'trigger'")?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for name in names {
        connection.execute_batch(&format!("DROP TRIGGER \"{name}\""))?;
    }
    Ok(())
}
