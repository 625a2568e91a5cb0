//! User SQL: types of parameters, forbidden statements, and independence of other commits.

use serde_json::json;
use windlass_kernel::{Commit, CommitError, SqlValue, Statement};
use windlass_testkit::events;
use windlass_testkit::world::World;

use crate::support::{TestStore, connect};

async fn world() -> World {
    let test = TestStore::open().await;
    let client = connect().await;
    let sql = format!(
        "CREATE TABLE {}.things (a int2, b int4, c int8, d numeric, e float8, f text, g jsonb, \
         h uuid, i timestamptz, j bytea, k bool)",
        test.schema.name
    );
    client.batch_execute(&sql).await.unwrap();
    World::new(Box::new(test)).await
}

async fn with(world: &World, id: &str, statements: Vec<Statement>) -> Commit {
    let (run, hold) = world.create_held(id).await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::STEP_COMPLETED, &json!({}), world.stamp()).unwrap();
    draft.user_sql(statements);
    draft.finish()
}

fn statement(sql: &str, params: Vec<SqlValue>) -> Statement {
    Statement { sql: sql.into(), params }
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_converted_to_the_expected_types() {
    let world = world().await;
    let text = |text: &str| SqlValue::Text(text.to_owned());
    let values = vec![
        SqlValue::Int(1),
        SqlValue::Int(2),
        SqlValue::Int(3),
        SqlValue::Int(4),
        SqlValue::Float(0.5),
        text("Größe"),
        text(r#"{"a": [1]}"#),
        text("01234567-89ab-7def-8123-456789abcdef"),
        text("2026-01-02T03:04:05Z"),
        SqlValue::Bytes(vec![0, 1, 2].into()),
        SqlValue::Bool(true),
    ];
    let insert = "INSERT INTO things VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let nulls = (0..11).map(|_| SqlValue::Null).collect();
    let both = vec![statement(insert, values), statement(insert, nulls)];
    world.ok(with(&world, "a", both).await).await;
    let check = "DO $$ BEGIN ASSERT (SELECT count(*) FROM things WHERE a = 1 AND b = 2 AND c = 3 \
        AND d = 4 AND e = 0.5 AND f = 'Größe' AND g->'a'->>0 = '1' AND j = '\\x000102' AND k \
        AND i = '2026-01-02 03:04:05+00') = 1; END $$";
    world.subject.raw_sql(check.to_owned()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_reason() {
    let world = world().await;
    let wrong = [
        ("COMMIT", vec![], "COMMIT is not allowed"),
        ("SELECT 1; COMMIT", vec![], "multiple commands"),
        ("SET search_path = x", vec![], "SET is not allowed"),
        ("INSERT INTO things (a) VALUES ($1)", vec![SqlValue::Int(70_000)], "out of range"),
        ("INSERT INTO things (a) VALUES ($1)", vec![], "1 placeholders and 0 parameters"),
        ("INSERT INTO things (h) VALUES ($1)", vec![SqlValue::Text("x".into())], "uuid"),
        ("INSERT INTO nothing VALUES (1)", vec![], "does not exist"),
        ("DO $$ BEGIN COMMIT; END $$", vec![], "invalid transaction termination"),
    ];
    for (n, (sql, params, expect)) in wrong.into_iter().enumerate() {
        let commit = with(&world, &format!("run-{n}"), vec![statement(sql, params)]).await;
        match world.commit(commit).await {
            Err(CommitError::UserSql { unique: false, message }) => {
                assert!(message.contains(expect), "{sql}: expected {expect:?} in {message:?}");
            }
            other => panic!("{sql}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_statement_does_not_delay_other_commits() {
    let world = world().await;
    let (run, hold) = world.create_held("waits").await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::STEP_COMPLETED, &json!({}), world.stamp()).unwrap();
    // The statement waits for a lock until everything else is done.
    let gate = connect().await;
    gate.batch_execute("SELECT pg_advisory_lock(71001)").await.unwrap();
    draft.user_sql(vec![statement("SELECT pg_advisory_xact_lock(71001)", Vec::new())]);
    let (store, commit) = (world.store.clone(), draft.finish());
    let slow = tokio::spawn(async move { store.commit(vec![commit]).await.remove(0) });
    // Other runs, and messages to the same run, do not wait.
    for n in 0..10 {
        world.create_held(&format!("other-{n}")).await;
    }
    world.ok(world.send_commit(world.message(run.run_key, "m-1"))).await;
    assert_eq!(world.run(run.run_key).await.accepted, 1);
    assert!(!slow.is_finished(), "a commit waited for the slow statement");
    gate.batch_execute("SELECT pg_advisory_unlock(71001)").await.unwrap();
    let committed = slow.await.unwrap().expect("the slow commit failed");
    assert_eq!(committed.accepted, 1);
}
