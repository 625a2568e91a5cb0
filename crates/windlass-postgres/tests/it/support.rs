//! Each test has its own schema, which is dropped at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use windlass_kernel::{BoxFuture, Store};
use windlass_postgres::{Options, PostgresStore};
use windlass_testkit::world::{Dialect, Subject};

/// The DSN of the test server. A missing server is a failure, never a skipped test.
pub(crate) fn dsn() -> String {
    std::env::var("WINDLASS_TEST_PG").expect(
        "WINDLASS_TEST_PG must hold the DSN of a throw-away PostgreSQL, such as \
         postgres://postgres@127.0.0.1:5432/postgres; `cargo xtask test` starts one",
    )
}

/// A schema name that no other test uses, in this process or another.
pub(crate) fn schema_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("wl_test_{}_{n}", std::process::id())
}

/// Options with few connections, because many tests share the server.
pub(crate) fn options(schema: &str) -> Options {
    Options { schema: schema.to_owned(), pool_size_max: 6, ..Options::default() }
}

/// A plain connection that bypasses the store.
pub(crate) async fn connect() -> Client {
    connect_to(&dsn()).await
}

/// A plain connection to another server.
pub(crate) async fn connect_to(dsn: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(dsn, NoTls).await.expect("cannot connect to the test server");
    tokio::spawn(connection);
    client
}

/// A store in its own schema, which is dropped with it.
pub(crate) struct TestStore {
    pub(crate) store: Arc<PostgresStore>,
    pub(crate) schema: Schema,
}

/// A schema that is dropped at the end of a test, even if the test fails.
pub(crate) struct Schema {
    pub(crate) name: String,
}

impl Schema {
    pub(crate) fn new() -> Self {
        Self { name: schema_name() }
    }

    /// A DSN whose sessions find user tables in this schema. The store's own statements use
    /// qualified names.
    pub(crate) fn dsn(&self) -> String {
        let dsn = dsn();
        let separator = if dsn.contains('?') { '&' } else { '?' };
        format!("{dsn}{separator}options=-csearch_path%3D{}", self.name)
    }

    /// Opens a store in the schema.
    pub(crate) async fn open(&self, options: Options) -> Arc<PostgresStore> {
        PostgresStore::open(&self.dsn(), options).await.expect("open failed")
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let name = self.name.clone();
        // A destructor must not block the runtime that it may be running on.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("cannot start a runtime").block_on(async {
                let client = connect().await;
                let sql = format!(
                    "SET lock_timeout = '20s'; SET client_min_messages = error; \
                     DROP SCHEMA IF EXISTS \"{name}\" CASCADE"
                );
                if let Err(error) = client.batch_execute(&sql).await {
                    eprintln!("cannot drop schema {name}: {error}");
                }
            });
        });
        let _ = dropped.join();
    }
}

impl TestStore {
    pub(crate) async fn open() -> Self {
        let schema = Schema::new();
        let store = schema.open(options(&schema.name)).await;
        Self { store, schema }
    }
}

/// Opens a new store for the conformance suite.
pub(crate) async fn open() -> Box<dyn Subject> {
    Box::new(TestStore::open().await)
}

impl Subject for TestStore {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.store.advance_clock_for_tests(by).await.expect("cannot move the clock");
        })
    }

    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Postgres)
    }

    fn raw_sql(&self, sql: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let client = connect().await;
            let path = format!("SET search_path = \"{}\"", self.schema.name);
            client.batch_execute(&path).await.map_err(|error| error.to_string())?;
            client.batch_execute(&sql).await.map_err(|error| match error.as_db_error() {
                Some(db) => db.message().to_owned(),
                None => error.to_string(),
            })
        })
    }
}
