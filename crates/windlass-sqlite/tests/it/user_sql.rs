//! Allowed and denied statements of user SQL.

use std::time::Duration;

use serde_json::json;
use windlass_kernel::{Commit, CommitError, Hold, Run, SqlValue, Statement, StepStatus};
use windlass_sqlite::Options;
use windlass_testkit::events;
use windlass_testkit::world::World;

use crate::support::StoreDir;

fn commit(world: &World, run: &Run, hold: Hold, key: &str, statements: Vec<Statement>) -> Commit {
    let mut draft = world.draft(run, hold);
    draft.user_sql(statements);
    let step = world.step(run, key, StepStatus::Completed, Some("1"));
    draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
    draft.finish()
}

fn raw(sql: &str) -> Statement {
    Statement { sql: sql.into(), params: Vec::new() }
}

async fn try_sql(world: &World, sql: &str) -> Result<(), String> {
    let (run, hold) = world.create_held(&format!("r{}", world.key().simple())).await;
    let answer = world.commit(commit(world, &run, hold, "pay", vec![raw(sql)])).await;
    let steps = world.load(run.run_key).await.steps.len();
    match answer {
        Ok(_) => {
            assert_eq!(steps, 1);
            Ok(())
        }
        Err(CommitError::UserSql { unique: false, message }) => {
            assert_eq!((steps, world.run(run.run_key).await), (0, run), "{sql}");
            Err(message)
        }
        Err(other) => panic!("{sql}: {other:?}"),
    }
}

#[tokio::test]
async fn the_sandbox_knows_every_table_of_the_schema() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') \
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'";
    let raw = dir.raw();
    let mut select = raw.prepare(sql).unwrap();
    let names: Vec<String> =
        select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert!(names.len() > 15 && names.contains(&"settings".to_owned()), "{names:?}");
    drop(select);
    for name in names {
        for sql in [format!("SELECT * FROM {name}"), format!("DELETE FROM {name}")] {
            try_sql(&world, &sql).await.expect_err(&sql);
        }
    }
}

#[tokio::test]
async fn the_sandbox_denies_access_to_the_stores_tables() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    world
        .subject
        .raw_sql("CREATE TABLE mine (id INTEGER PRIMARY KEY, t TEXT)".into())
        .await
        .unwrap();
    world.subject.raw_sql("CREATE VIEW peek AS SELECT * FROM runs".into()).await.unwrap();
    world.subject.raw_sql("CREATE TABLE events_archive (x)".into()).await.unwrap();
    let denied = [
        "SELECT count(*) FROM runs",
        "SELECT * FROM RUNS",
        "SELECT * FROM main.\"Runs\"",
        "INSERT INTO mine (t) SELECT id FROM runs",
        "INSERT INTO mine (t) VALUES ((SELECT max(id) FROM runs))",
        "SELECT * FROM peek",
        "SELECT * FROM run_view",
        "UPDATE runs SET status = 'complete'",
        "UPDATE mine SET t = 'x' FROM runs",
        "DELETE FROM events",
        "DELETE FROM tasks",
        "INSERT INTO limits VALUES ('default', 'x', 1)",
        "INSERT INTO meta VALUES ('x', 1)",
        "DROP TABLE steps",
        "DROP INDEX runs_ready",
        "DROP TRIGGER runs_ended",
        "DROP VIEW run_view",
        "ALTER TABLE runs ADD COLUMN x",
        "CREATE INDEX mine_on_runs ON runs (id)",
        "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM mine; END",
        "CREATE TEMP TABLE runs (x)",
        "CREATE TEMP TRIGGER t AFTER INSERT ON mine BEGIN SELECT 1; END",
        "CREATE TABLE schedules (x)",
        "CREATE VIRTUAL TABLE docs USING fts5 (body)",
        "ATTACH DATABASE ':memory:' AS other",
        "DETACH DATABASE main",
        "PRAGMA user_version = 7",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA foreign_keys = OFF",
        "SELECT * FROM pragma_table_info('runs')",
        "BEGIN",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT one",
        "RELEASE one",
        "ROLLBACK TO one",
        "ANALYZE",
        "REINDEX",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "SELECT load_extension('x')",
        "UPDATE sqlite_schema SET sql = ''",
        "DELETE FROM sqlite_schema",
        "SELECT 1; SELECT 2",
        "SELECT 1; nonsense",
        "",
        "-- nothing",
        "INSERT INTO mine VALUES (?1, 'one parameter too few')",
    ];
    for sql in denied {
        let answer = try_sql(&world, sql).await;
        assert!(answer.is_err(), "the sandbox allowed: {sql}");
    }
    let allowed = [
        "INSERT INTO mine (t) VALUES ('a') RETURNING id",
        "INSERT INTO mine (t) VALUES ('b');  -- a word at the end",
        "UPDATE mine SET t = upper(t) WHERE id IN (SELECT id FROM mine)",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5) \
         INSERT INTO mine (t) SELECT x FROM n",
        "CREATE TABLE more (x TEXT)",
        "CREATE INDEX more_x ON more (x)",
        "CREATE TRIGGER more_t AFTER INSERT ON mine BEGIN INSERT INTO more VALUES (NEW.t); END",
        "INSERT INTO mine (t) VALUES ('c')",
        "INSERT INTO events_archive VALUES (1)",
        "DROP TABLE more",
        "DELETE FROM mine",
        "SELECT name FROM sqlite_schema",
    ];
    for sql in allowed {
        // Drop the trigger before the table that it writes to is gone.
        if sql.starts_with("DELETE FROM mine") {
            assert_eq!(try_sql(&world, "DROP TRIGGER more_t").await, Ok(()));
        }
        assert_eq!(try_sql(&world, sql).await, Ok(()), "{sql}");
    }
    assert!(world.store.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_rollback_in_user_sql_fails_only_its_commit() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    world.subject.raw_sql("CREATE TABLE mine (id INTEGER PRIMARY KEY)".into()).await.unwrap();
    world.subject.raw_sql("INSERT INTO mine VALUES (1)".into()).await.unwrap();
    let mut runs = Vec::new();
    for n in 0..3 {
        runs.push(world.create_held(&format!("r{n}")).await);
    }
    let insert = |id| Statement {
        sql: "INSERT OR ROLLBACK INTO mine VALUES (?1)".into(),
        params: vec![SqlValue::Int(id)],
    };
    let sql = vec![insert(2), insert(1)];
    let commits = vec![
        world.step_commit(&runs[0].0, runs[0].1, "a", "1"),
        commit(&world, &runs[1].0, runs[1].1, "a", sql),
        world.step_commit(&runs[2].0, runs[2].1, "a", "1"),
    ];
    let answers = world.store.commit(commits).await;
    assert!(answers[0].is_ok() && answers[2].is_ok(), "{answers:?}");
    assert!(matches!(answers[1], Err(CommitError::UserSql { unique: true, .. })), "{answers:?}");
    for (n, (run, _)) in runs.iter().enumerate() {
        assert_eq!(world.load(run.run_key).await.steps.len(), usize::from(n != 1));
    }
    let again = commit(&world, &runs[1].0, runs[1].1, "a", vec![insert(2)]);
    world.ok(again).await;
}

#[tokio::test]
async fn a_deferred_constraint_fails_its_commit() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let tables = "CREATE TABLE parents (id INTEGER PRIMARY KEY); \
                  CREATE TABLE children (parent REFERENCES parents DEFERRABLE INITIALLY DEFERRED)";
    world.subject.raw_sql(tables.into()).await.unwrap();
    let message = try_sql(&world, "INSERT INTO children VALUES (7)").await.unwrap_err();
    assert!(message.contains("FOREIGN KEY"), "{message}");
    let (run, hold) = world.create_held("both").await;
    let both = vec![raw("INSERT INTO children VALUES (7)"), raw("INSERT INTO parents VALUES (7)")];
    world.ok(commit(&world, &run, hold, "pay", both)).await;
}

#[tokio::test]
async fn a_long_statement_is_interrupted() {
    let dir = StoreDir::new();
    let options = Options { user_sql_max: Duration::from_millis(50), ..dir.options() };
    let world = dir.open_with(options).await;
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) \
                   SELECT count(*) FROM n";
    let message = try_sql(&world, endless).await.unwrap_err();
    assert!(message.contains("longer than"), "{message}");
    world.create_held("afterwards").await;
}
