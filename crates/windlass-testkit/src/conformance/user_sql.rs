//! User SQL: with the step or not at all.

use serde_json::json;
use windlass_kernel::{Commit, CommitError, Hold, Run, SqlValue, Statement, StepStatus};

use crate::events;
use crate::world::{Dialect, World};

const TABLE: &str = "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT NOT NULL UNIQUE, \
                     balance DOUBLE PRECISION, open BOOLEAN)";

fn insert(dialect: Dialect, id: i64, owner: &str) -> Statement {
    let places: Vec<_> = (1..=4).map(|n| dialect.placeholder(n)).collect();
    Statement {
        sql: format!("INSERT INTO accounts VALUES ({})", places.join(", ")).into(),
        params: vec![
            SqlValue::Int(id),
            SqlValue::Text(owner.to_owned()),
            SqlValue::Float(1.5),
            SqlValue::Bool(true),
        ],
    }
}

fn with_sql(world: &World, run: &Run, hold: Hold, statements: Vec<Statement>) -> Commit {
    let mut draft = world.draft(run, hold);
    draft.user_sql(statements);
    let step = world.step(run, "pay", StepStatus::Completed, Some("1"));
    draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
    draft.finish()
}

async fn accounts(world: &World, expect: &[i64]) {
    // A statement that fails unless the table holds exactly the expected ids.
    let ids: Vec<_> = expect.iter().map(i64::to_string).collect();
    let list = if ids.is_empty() { "NULL".to_owned() } else { ids.join(", ") };
    let sql = format!(
        "INSERT INTO expectations SELECT CASE WHEN (SELECT count(*) FROM accounts) = {} AND \
         (SELECT count(*) FROM accounts WHERE id IN ({list})) = {} THEN 1 ELSE NULL END",
        expect.len(),
        expect.len(),
    );
    let answer = world.subject.raw_sql(sql).await;
    answer.unwrap_or_else(|error| panic!("accounts are not {expect:?}: {error}"));
}

async fn tables(world: &World) -> Dialect {
    let dialect = world.subject.dialect().expect("a SQL database");
    world.subject.raw_sql(TABLE.to_owned()).await.unwrap();
    let expectations = "CREATE TABLE expectations (ok INTEGER NOT NULL)".to_owned();
    world.subject.raw_sql(expectations).await.unwrap();
    dialect
}

/// The user's rows and the step are one commit.
pub async fn commits_with_the_step(world: World) {
    let (run, hold) = world.create_held("run").await;
    let dialect = tables(&world).await;
    let statements = vec![insert(dialect, 1, "ann"), insert(dialect, 2, "bob")];
    let commit = with_sql(&world, &run, hold, statements);
    world.ok(commit.clone()).await;
    accounts(&world, &[1, 2]).await;
    assert_eq!(world.load(run.run_key).await.steps.len(), 1);
    assert!(world.ok(commit).await.repeated, "sent again it runs no SQL again");
    accounts(&world, &[1, 2]).await;
}

/// A guard that fails leaves nothing of the user's rows.
pub async fn rolls_back_with_a_failed_guard(world: World) {
    let dialect = tables(&world).await;
    let (run, hold) = world.create_held("run").await;
    let stale = Hold { claim_no: hold.claim_no + 1, ..hold };
    let commit = with_sql(&world, &run, stale, vec![insert(dialect, 1, "ann")]);
    assert_eq!(world.code(commit).await, "RUN_HOLD_CONFLICT");
    // An engine row that breaks a key takes the user's rows with it.
    let task = world.task(None);
    world.enqueue(vec![task.clone()]).await;
    let mut draft = world.draft(&run, hold);
    draft.user_sql(vec![insert(dialect, 1, "ann")]).enqueue(task);
    draft.event(events::ACTIVITY_SCHEDULED, &json!({}), world.stamp()).unwrap();
    assert_eq!(world.code(draft.finish()).await, "STORE_CONSTRAINT");
    accounts(&world, &[]).await;
    assert_eq!(world.run(run.run_key).await, run);
}

/// A unique violation has an error of its own, and leaves nothing.
pub async fn unique_violations_are_named(world: World) {
    let dialect = tables(&world).await;
    let (run, hold) = world.create_held("run").await;
    let statements = vec![insert(dialect, 1, "ann"), insert(dialect, 2, "ann")];
    let answer = world.commit(with_sql(&world, &run, hold, statements)).await;
    let Err(CommitError::UserSql { unique: true, .. }) = &answer else { panic!("{answer:?}") };
    accounts(&world, &[]).await;
    assert_eq!(world.run(run.run_key).await, run);
    world.ok(with_sql(&world, &run, hold, vec![insert(dialect, 1, "ann")])).await;
    accounts(&world, &[1]).await;
}

/// Any other error fails the commit, and the store goes on.
pub async fn other_errors_fail_alone(world: World) {
    let dialect = tables(&world).await;
    let (run, hold) = world.create_held("run").await;
    let raw = |sql: &str| Statement { sql: sql.into(), params: Vec::new() };
    let bad = [
        raw("INSERT INTO nowhere VALUES (1)"),
        raw("this is no SQL"),
        raw("INSERT INTO accounts (id) VALUES (1)"),
        raw("COMMIT"),
        raw("ROLLBACK"),
        raw("INSERT INTO accounts VALUES (7, 'x', 0, NULL); DELETE FROM accounts"),
    ];
    for statement in bad {
        let sql = statement.sql.clone();
        let commit = with_sql(&world, &run, hold, vec![insert(dialect, 1, "ann"), statement]);
        let answer = world.commit(commit).await;
        let Err(CommitError::UserSql { unique: false, .. }) = &answer else {
            panic!("{sql}: {answer:?}")
        };
        accounts(&world, &[]).await;
    }
    assert_eq!(world.run(run.run_key).await, run);
    world.ok(with_sql(&world, &run, hold, vec![insert(dialect, 1, "ann")])).await;
}

/// In a batch, commits with SQL that fail take nobody with them.
pub async fn in_a_batch_with_others(world: World) {
    let dialect = tables(&world).await;
    let mut commits = Vec::new();
    let mut runs = Vec::new();
    for n in 0..6_i64 {
        let (run, hold) = world.create_held(&format!("r{n}")).await;
        commits.push(match n % 3 {
            0 => world.step_commit(&run, hold, "plain", "1"),
            1 => with_sql(&world, &run, hold, vec![insert(dialect, n, &format!("owner{n}"))]),
            _ => with_sql(&world, &run, hold, vec![insert(dialect, n, "owner1")]),
        });
        runs.push(run.run_key);
    }
    let answers = world.store.commit(commits).await;
    let good: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, true, false, true, true, false]);
    accounts(&world, &[1, 4]).await;
    for (n, run_key) in runs.into_iter().enumerate() {
        assert_eq!(world.load(run_key).await.steps.len(), usize::from(n % 3 != 2));
    }
}
