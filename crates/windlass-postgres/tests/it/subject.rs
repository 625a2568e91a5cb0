//! A PostgreSQL store in its own schema, for test suites of other crates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use windlass_kernel::{BoxFuture, Store};
use windlass_postgres::{Options, PostgresStore};
use windlass_testkit::memory::ManualClock;
use windlass_testkit::world::{Dialect, Subject};

struct PostgresSubject {
    store: Arc<PostgresStore>,
    client: Client,
}

/// The DSN of the test server. `cargo xtask test` starts one; without it the tests fail.
fn server() -> String {
    std::env::var("WINDLASS_TEST_PG").unwrap_or_else(|_| {
        panic!("WINDLASS_TEST_PG is not set; run the tests with `cargo xtask test`")
    })
}

/// Opens a new store with a manual clock.
pub(crate) async fn open() -> Box<dyn Subject> {
    static SCHEMAS: AtomicU64 = AtomicU64::new(0);
    let n = SCHEMAS.fetch_add(1, Ordering::Relaxed);
    let schema = format!("suite_{}_{n}", std::process::id());
    let options = Options { schema: schema.clone(), pool_size_max: 4, ..Options::default() };
    let store = PostgresStore::open(&server(), options).await.expect("open failed");
    let (client, connection) =
        tokio_postgres::connect(&server(), NoTls).await.expect("cannot connect");
    #[expect(clippy::disallowed_methods, reason = "a connection must be driven by a task")]
    tokio::spawn(connection);
    let start = ManualClock::new().now().as_micros();
    let sql = format!(
        "SET search_path = {schema};
         CREATE TABLE test_clock AS SELECT {start}::int8 AS now;
         CREATE OR REPLACE FUNCTION clock_us() RETURNS int8 LANGUAGE sql VOLATILE AS
         'SELECT now FROM {schema}.test_clock'"
    );
    client.batch_execute(&sql).await.expect("cannot freeze the clock");
    Box::new(PostgresSubject { store, client })
}

impl Subject for PostgresSubject {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn advance(&self, by: Duration) -> BoxFuture<'_, ()> {
        let sql = format!("UPDATE test_clock SET now = now + {}", by.as_micros());
        Box::pin(
            async move { self.client.batch_execute(&sql).await.expect("cannot move the clock") },
        )
    }

    fn dialect(&self) -> Option<Dialect> {
        Some(Dialect::Postgres)
    }

    fn raw_sql(&self, sql: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let answer = self.client.batch_execute(&sql).await;
            answer.map_err(|error| match error.as_db_error() {
                Some(error) => error.message().to_owned(),
                None => error.to_string(),
            })
        })
    }
}
