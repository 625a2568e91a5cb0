//! Roles beside the engine's: they read the rows of one namespace, through tables and views, and write nothing.

use tokio_postgres::Client;

use windlass_kernel::{Query, Store};
use windlass_postgres::PostgresStore;

use crate::support::{Schema, connect, dsn, options};

const RUNS: &str = "INSERT INTO runs (run_key, namespace, workflow, model, id, generation, status, input, \
    input_encoding, input_hash, head, next_ordinal, cursor, root, queue, created_at, updated_at, priority, \
    turn_ready, turn_claim_no, turn_reclaims, accepted, seen, turn_first) \
    SELECT k, n, 'w', 'steps', n, 0, 'active', '{}'::bytea, 'json', '\\x00'::bytea, '\\x00'::bytea, 1, k, k, \
    'q', 1, 1, 0, false, 0, 0, 0, 0, true \
    FROM (VALUES ('00000000-0000-7000-8000-000000000001'::uuid, 'a'), \
        ('00000000-0000-7000-8000-000000000002', 'b')) AS v (k, n)";

const ROWS: &str = "INSERT INTO records (namespace, collection, id, revision, write_id, created_at, updated_at, \
        body, body_encoding) \
    SELECT namespace, 'windlass.documents', 'invoice/i', 1, run_key, 1, 1, '\"x\"'::bytea, 'json' FROM runs; \
    INSERT INTO record_versions (namespace, collection, id, revision, digest, created_at, body, body_encoding) \
    SELECT namespace, collection, id, 1, '\\x00'::bytea, 1, body, 'json' FROM records; \
    INSERT INTO record_terms (namespace, collection, name, value, id) \
    SELECT namespace, collection, 'state', 'active', id FROM records; \
    INSERT INTO logs (run_key, log_id, level, category, message, replay, created_at) \
    SELECT run_key, run_key, 'info', 'c', 'm', false, 1 FROM runs; \
    INSERT INTO events (run_key, ordinal, event_id, event_type, version, caused_by, payload, created_at, hash) \
    SELECT run_key, 0, run_key, 'e', 1, '{}'::bytea, '{}'::bytea, 1, '\\x00'::bytea FROM runs";

/// The tables and views of a reader. Each has a row of both tenants, except those that are empty here.
const SHOWN: [&str; 7] =
    ["runs", "records", "record_versions", "record_terms", "logs", "events", "run_view"];
const VIEWS: [&str; 2] = ["event_view", "record_view"];

async fn count(client: &Client, table: &str) -> i64 {
    let row = client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await;
    row.unwrap_or_else(|error| panic!("{table}: {error:?}")).get(0)
}

async fn refused(client: &Client, statement: &str) {
    let error = client.batch_execute(statement).await.expect_err(statement);
    let code = error.code().map(|code| code.code().to_owned());
    let expected = ["42501", "WL002"];
    assert!(code.as_deref().is_some_and(|code| expected.contains(&code)), "{statement}: {error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_one_namespace_and_writes_nothing() {
    let schema = Schema::new();
    let store = schema.open(options(&schema.name)).await;
    let owner = connect().await;
    owner.batch_execute(&format!("SET search_path TO {}", schema.name)).await.unwrap();
    owner.batch_execute(&format!("{RUNS}; {ROWS}")).await.unwrap();
    let role = format!("{}_reader", schema.name);
    owner.batch_execute(&format!("CREATE ROLE {role}")).await.unwrap();
    let reader = connect().await;
    reader
        .batch_execute(&format!("SET search_path TO {}; SET ROLE {role}", schema.name))
        .await
        .unwrap();
    refused(&reader, &format!("SELECT count(*) FROM {}.runs", schema.name)).await;
    refused(&reader, &format!("SELECT {}.allow_reader('{role}')", schema.name)).await;
    owner.batch_execute(&format!("SELECT allow_reader('{role}')")).await.unwrap();
    // Without the setting there is nothing to see; with it, the rows of one namespace.
    let all = || SHOWN.iter().chain(&VIEWS);
    for table in all() {
        assert_eq!(count(&reader, table).await, 0, "{table} without a namespace");
        assert_eq!(count(&owner, table).await, 2, "{table} for the owner");
    }
    for namespace in ["a", "b", "c", ""] {
        reader.batch_execute(&format!("SET windlass.namespace = '{namespace}'")).await.unwrap();
        let expected = i64::from(["a", "b"].contains(&namespace));
        for table in all() {
            assert_eq!(count(&reader, table).await, expected, "{table} of {namespace:?}");
        }
        for table in ["steps", "messages", "tasks", "dead_letters", "step_view"] {
            assert_eq!(count(&reader, table).await, 0, "{table} of {namespace:?}");
        }
    }
    // Partitions, the other tables and the functions of the engine are closed, and nothing can be written.
    for table in ["events_default", "steps_default", "settings", "workers", "bodies", "labels"] {
        refused(&reader, &format!("SELECT count(*) FROM {table}")).await;
    }
    for statement in [
        "UPDATE records SET body = body",
        "DELETE FROM record_versions",
        "INSERT INTO logs SELECT * FROM logs",
        "TRUNCATE events",
        "SELECT promote(1)",
    ] {
        refused(&reader, statement).await;
    }
    owner.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
    drop(store);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_empties_or_changes_what_is_kept() {
    let schema = Schema::new();
    let store = schema.open(options(&schema.name)).await;
    let owner = connect().await;
    owner.batch_execute(&format!("SET search_path TO {}", schema.name)).await.unwrap();
    owner.batch_execute(&format!("{RUNS}; {ROWS}")).await.unwrap();
    for table in
        ["runs", "steps", "events", "events_default", "records", "record_versions", "bodies"]
    {
        refused(&owner, &format!("TRUNCATE {table} CASCADE")).await;
    }
    refused(&owner, "UPDATE record_versions SET body = 'x'").await;
    refused(&owner, "DELETE FROM record_versions").await;
    refused(&owner, "UPDATE events SET payload = 'x'").await;
    assert_eq!(count(&owner, "record_versions").await, 2);
    drop(store);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_has_a_role_that_owns_nothing_but_its_schema() {
    let schema = Schema::new();
    let owner = connect().await;
    let (engine, app) = (format!("{}_engine", schema.name), format!("{}_app", schema.name));
    owner
        .batch_execute(&format!(
            "CREATE ROLE {engine}; CREATE ROLE {app}; CREATE SCHEMA {} AUTHORIZATION {engine}",
            schema.name
        ))
        .await
        .unwrap();
    // Sessions have the role from their beginning, as if it had logged in.
    let dsn = dsn();
    let separator = if dsn.contains('?') { '&' } else { '?' };
    let dsn = format!("{dsn}{separator}options=-crole%3D{engine}");
    let store = PostgresStore::open(&dsn, options(&schema.name)).await.expect("open failed");
    owner.batch_execute(&format!("SET search_path TO {}; {RUNS}", schema.name)).await.unwrap();
    let query = Query::RunKeys { after: None, limit: 10 };
    assert_eq!(store.list(query).await.unwrap().run_keys().unwrap().len(), 2);
    let application = connect().await;
    application.batch_execute(&format!("SET ROLE {app}")).await.unwrap();
    refused(&application, &format!("SELECT count(*) FROM {}.runs", schema.name)).await;
    refused(&application, &format!("DELETE FROM {}.runs", schema.name)).await;
    drop(store);
    let clean = format!("DROP OWNED BY {engine} CASCADE; DROP ROLE {engine}; DROP ROLE {app}");
    owner.batch_execute(&clean).await.unwrap();
}
