//! Lost answers: the connection is closed after a commit was sent and before its answer came.

use std::sync::Arc;

use serde_json::json;
use windlass_kernel::{Commit, Delivery, OnExisting, Op, Statement, Turn};
use windlass_postgres::PostgresStore;
use windlass_testkit::events;
use windlass_testkit::world::World;

use crate::proxy::Proxy;
use crate::support::{Schema, TestStore, options};

async fn world_behind(proxy: &Proxy) -> World {
    let schema = Schema::new();
    let mut options = options(&schema.name);
    options.committers = 1;
    let store = PostgresStore::open(&proxy.dsn(&schema), options).await.expect("open failed");
    World::new(Box::new(TestStore { store: Arc::clone(&store), schema })).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_create_and_step_are_detected() {
    let proxy = Proxy::start().await;
    let world = world_behind(&proxy).await;
    let worker = world.worker();
    let new = world.new_run("a", Turn::held_by(worker));
    let run_key = new.run_key;
    let commit = world.create_commit(new, OnExisting::Refuse);
    proxy.cut_commits(1);
    let committed = world.ok(commit).await;
    assert_eq!(proxy.cut_so_far(), 1, "the answer was lost");
    assert!(committed.repeated, "the second call must find the first");
    assert_eq!(committed.hold.map(|hold| hold.worker), Some(worker));
    let run = world.run(run_key).await;
    let hold = run.turn.hold().unwrap();

    proxy.cut(3);
    let committed = world.ok(world.step_commit(&run, hold, "charge", "1")).await;
    assert!(committed.repeated);
    assert_eq!(committed.hold, Some(hold));
    let loaded = world.load(run_key).await;
    assert_eq!(loaded.steps.len(), 1);
    assert_eq!(world.events(run_key).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_tasks_and_ends_are_written_once() {
    let proxy = Proxy::start().await;
    let world = world_behind(&proxy).await;
    let (run, hold) = world.create_held("a").await;

    proxy.cut_commits(1);
    let committed = world.ok(world.send_commit(world.message(run.run_key, "m-1"))).await;
    assert_eq!(committed.messages, [Delivery::Duplicate { seq: 1 }]);
    assert_eq!(world.messages(run.run_key).await.len(), 1);

    // This commit has no guard; the duplicate key of the second call shows that it was written.
    let task = world.task(None);
    proxy.cut_commits(1);
    let committed =
        world.ok(Commit::new(None, None, vec![Op::Enqueue(Box::new(task.clone()))])).await;
    assert!(committed.repeated);
    let claimed = world.claim_tasks(hold.worker, 10).await;
    assert_eq!(claimed.len(), 1);
    proxy.cut_commits(1);
    let committed = world.ok(world.complete_commit(&run, hold)).await;
    assert!(committed.repeated);
    assert_eq!(committed.hold, None);
    assert_eq!(world.events(run.run_key).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_batch_is_sent_again() {
    let proxy = Proxy::start().await;
    let world = world_behind(&proxy).await;
    let mut commits = Vec::new();
    let mut runs = Vec::new();
    for n in 0..20 {
        let (run, hold) = world.create_held(&format!("run-{n}")).await;
        commits.push(world.step_commit(&run, hold, "charge", "1"));
        runs.push(run);
    }
    // One of them was written before, and one creates a run.
    let repeated_commit = commits[3].clone();
    commits.push(world.create_commit(world.new_run("new", Turn::ready()), OnExisting::Refuse));
    world.ok(repeated_commit).await;
    proxy.cut_commits(1);
    let results = world.store.commit(commits).await;
    let repeated = |result: &&Result<_, _>| {
        matches!(result, Ok(windlass_kernel::Committed { repeated: true, .. }))
    };
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    // The committer decides how many of them were in the lost batch.
    assert!(results.iter().filter(repeated).count() >= 1, "{results:?}");
    assert!(repeated(&&results[3]));
    for run in &runs {
        assert_eq!(world.events(run.run_key).await.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn user_sql_is_executed_once() {
    let proxy = Proxy::start().await;
    let world = world_behind(&proxy).await;
    world
        .subject
        .raw_sql("CREATE TABLE accounts (id int PRIMARY KEY, n int NOT NULL)".to_owned())
        .await
        .unwrap();
    // Each point where an answer can be lost: the first checks, the statements, the batch.
    for cuts in 0..6 {
        let (run, hold) = world.create_held(&format!("run-{cuts}")).await;
        let mut draft = world.draft(&run, hold);
        draft.event(events::STEP_COMPLETED, &json!({}), world.stamp()).unwrap();
        draft.user_sql(vec![Statement {
            sql: format!("INSERT INTO accounts VALUES ({cuts}, 1)").as_str().into(),
            params: Vec::new(),
        }]);
        let commit = draft.finish();
        proxy.cut(cuts);
        match world.commit(commit.clone()).await {
            Ok(_) => {}
            // A check without an answer wrote nothing, and may report that.
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                proxy.cut(0);
                world.ok(commit).await;
            }
        }
        proxy.cut(0);
        assert_eq!(world.events(run.run_key).await.len(), 2, "with {cuts} cuts");
    }
    let count = "DO $$ BEGIN ASSERT (SELECT count(*) FROM accounts) = 6; END $$";
    world.subject.raw_sql(count.to_owned()).await.expect("a statement was executed twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_unknown_only_if_a_commit_was_sent() {
    let proxy = Proxy::start().await;
    let schema = Schema::new();
    let mut options = options(&schema.name);
    options.reconnect_for = std::time::Duration::from_millis(300);
    let store = PostgresStore::open(&proxy.dsn(&schema), options).await.expect("open failed");
    let world = World::new(Box::new(TestStore { store, schema })).await;
    let (run, hold) = world.create_held("a").await;
    let commit = world.step_commit(&run, hold, "charge", "1");

    proxy.refuse(true);
    proxy.cut_commits(1);
    assert_eq!(world.commit(commit.clone()).await.unwrap_err().code(), "STORE_UNKNOWN");
    // Now the connection is gone before anything can be sent.
    assert_eq!(world.commit(commit.clone()).await.unwrap_err().code(), "STORE_UNAVAILABLE");
    proxy.refuse(false);
    let committed = world.ok(commit).await;
    assert!(committed.repeated, "the first call wrote it");
    assert_eq!(world.events(run.run_key).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_committer_gives_up_on_answers_that_are_always_lost() {
    let proxy = Proxy::start().await;
    let world = world_behind(&proxy).await;
    let mut commits = Vec::new();
    for n in 0..3 {
        let (run, hold) = world.create_held(&format!("run-{n}")).await;
        commits.push(world.step_commit(&run, hold, "charge", "1"));
    }
    proxy.cut_commits(usize::MAX);
    for result in world.store.commit(commits.clone()).await {
        assert_eq!(result.unwrap_err().code(), "STORE_UNKNOWN");
    }
    assert!(proxy.cut_so_far() >= 4, "the batch was sent again");
    proxy.cut(0);
    for commit in commits {
        assert!(world.ok(commit).await.repeated, "the first call wrote it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_a_single_caller_is_one_statement_and_one_round_trip() {
    let proxy = Proxy::start().await;
    let schema = Schema::new();
    let mut options = options(&schema.name);
    (options.committers, options.notify) = (1, false);
    let store = PostgresStore::open(&proxy.dsn(&schema), options).await.expect("open failed");
    let world = World::new(Box::new(TestStore { store, schema })).await;
    let (run, hold) = world.create_held("a").await;
    let create = world.create_commit(world.new_run("b", Turn::ready()), OnExisting::Refuse);
    let step = world.step_commit(&run, hold, "charge", "1");
    let message = world.send_commit(world.message(run.run_key, "m-1"));
    let task = Commit::new(None, None, vec![Op::Enqueue(Box::new(world.task(None)))]);
    for commit in [create, step, message, task] {
        proxy.take_sent();
        world.ok(commit).await;
        // Bind, Execute and Sync only: no Parse, no separate BEGIN or COMMIT.
        let sent: Vec<(char, usize)> =
            proxy.take_sent().into_iter().map(|(kind, count)| (kind as char, count)).collect();
        assert_eq!(sent, [('B', 1), ('E', 1), ('S', 1)]);
    }
}
