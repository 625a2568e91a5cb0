//! Opening: migrations run once, foreign and newer schemas are refused, partitions exist.

use std::time::Duration;

use windlass_kernel::{ErrorCode, ErrorKind, Store as _};
use windlass_postgres::{Options, PostgresStore};
use windlass_testkit::world::World;

use crate::support::{Schema, TestStore, connect, dsn, options};

#[tokio::test(flavor = "multi_thread")]
async fn twenty_openers_migrate_once() {
    let schema = Schema::new();
    let mut opening = Vec::new();
    for _ in 0..20 {
        let options =
            Options { pool_size_max: 1, committers: 1, threads: 1, ..options(&schema.name) };
        opening.push(tokio::spawn(async move { PostgresStore::open(&dsn(), options).await }));
    }
    for opened in opening {
        opened.await.unwrap().expect("open failed");
    }
    let client = connect().await;
    let sql =
        format!("SELECT version, count(*) FROM {}.refinery_schema_history GROUP BY 1", schema.name);
    let rows = client.query(&sql, &[]).await.unwrap();
    assert!(!rows.is_empty());
    assert!(rows.iter().all(|row| row.get::<_, i64>(1) == 1), "each migration ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_refused() {
    let schema = Schema::new();
    drop(schema.open(options(&schema.name)).await);
    let client = connect().await;
    let sql = format!(
        "INSERT INTO {}.refinery_schema_history VALUES (9999, 'future', '2030-01-01T00:00:00Z', '1')",
        schema.name
    );
    client.batch_execute(&sql).await.unwrap();
    let error = PostgresStore::open(&dsn(), options(&schema.name)).await.err().expect("refused");
    assert_eq!((error.kind(), error.code()), (ErrorKind::Closed, ErrorCode::StoreNewer));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_schema_is_refused() {
    let schema = Schema::new();
    let client = connect().await;
    let sql = format!("CREATE SCHEMA {0}; CREATE TABLE {0}.runs (id int)", schema.name);
    client.batch_execute(&sql).await.unwrap();
    let error = PostgresStore::open(&dsn(), options(&schema.name)).await.err().expect("refused");
    assert_eq!(error.code(), "STORE_FOREIGN");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_options_are_refused() {
    for schema in ["", "1st", "a\"b", "pg_mine", "with space", &"x".repeat(41)] {
        let error = PostgresStore::open(&dsn(), options(schema)).await.err().expect("refused");
        assert_eq!(error.code(), "INVALID_OPTION", "{schema}");
    }
    let zero = Options { committers: 0, ..Options::default() };
    let error = PostgresStore::open(&dsn(), zero).await.err().expect("refused");
    assert_eq!(error.code(), "INVALID_OPTION");
    let no_timeout = Options { lock_timeout: std::time::Duration::ZERO, ..Options::default() };
    let many_months = Options { partition_months: 121, ..Options::default() };
    for invalid in [no_timeout, many_months] {
        let error = PostgresStore::open(&dsn(), invalid).await.err().expect("refused");
        assert_eq!(error.code(), "INVALID_OPTION");
    }
    let dsn = "postgres://nobody@127.0.0.1:1/nothing?sslmode=verify-full&sslrootcert=/not/there";
    let error = PostgresStore::open(dsn, Options::default()).await.err().expect("refused");
    assert_eq!(error.code(), "INVALID_OPTION");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_unavailable() {
    let dsn = "postgres://nobody@127.0.0.1:1/nothing?sslmode=disable";
    let error = PostgresStore::open(dsn, Options::default()).await.err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_rows_go_to_the_partition_of_their_month() {
    let schema = Schema::new();
    let store = schema.open(options(&schema.name)).await;
    let test = crate::support::TestStore { store, schema };
    let name = test.schema.name.clone();
    let world = windlass_testkit::world::World::new(Box::new(test)).await;
    let (run, hold) = world.create_held("a").await;
    world.ok(world.step_commit(&run, hold, "charge", "1")).await;
    let client = connect().await;
    let sql = format!(
        "SELECT (SELECT count(*) FROM {name}.events_default) + (SELECT count(*) FROM \
         {name}.steps_default), (SELECT count(*) FROM {name}.events)"
    );
    let row = client.query_one(&sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (0, 2));
}

// A partition that could not be made, because the table was busy, is made a day later.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_was_skipped_is_made_the_next_day() {
    let schema = Schema::new();
    let name = schema.name.clone();
    schema.open(options(&name)).await.close().await.unwrap();
    let admin = connect().await;
    let last = "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                WHERE n.nspname = $1 AND c.relname LIKE 'events\\_2%' AND c.relkind = 'r' \
                ORDER BY 1 DESC LIMIT 1";
    let last: String = admin.query_one(last, &[&name]).await.unwrap().get(0);
    let exists = || async {
        let sql = format!("SELECT to_regclass('\"{name}\".{last}') IS NOT NULL");
        admin.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0)
    };
    admin.batch_execute(&format!("DROP TABLE \"{name}\".{last}")).await.unwrap();
    // Attaching a partition locks the default partition, which this reader keeps.
    let reader = connect().await;
    let lock = format!("BEGIN; LOCK TABLE \"{name}\".events IN ACCESS SHARE MODE");
    reader.batch_execute(&lock).await.unwrap();
    let store = schema.open(options(&name)).await;
    assert!(!exists().await, "the table was busy");
    reader.batch_execute("COMMIT").await.unwrap();
    let world = World::new(Box::new(TestStore { store: store.clone(), schema })).await;
    let worker = world.worker();
    world.renew(worker).await;
    assert!(!exists().await, "it is not tried at every renewal");
    store.advance_clock_for_tests(Duration::from_secs(25 * 60 * 60)).await.unwrap();
    world.renew(worker).await;
    assert!(exists().await);
}
