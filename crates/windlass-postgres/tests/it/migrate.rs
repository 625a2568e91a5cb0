//! Opening: migrations run once, foreign and newer schemas are refused, partitions exist.

use windlass_kernel::{ErrorCode, ErrorKind};
use windlass_postgres::{Options, PostgresStore};

use crate::support::{Schema, connect, dsn, options};

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
