//! Batches: a bad row fails only its own commit, and concurrent committers do not deadlock.

use std::sync::Arc;

use windlass_kernel::{Commit, CommitError, Op, Store, Turn};
use windlass_postgres::PostgresStore;
use windlass_testkit::world::World;

use crate::support::{Schema, TestStore, connect, connect_to, dsn, options};

#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_row_fails_only_its_own_commit() {
    let test = TestStore::open().await;
    let schema = test.schema.name.clone();
    let world = World::new(Box::new(test)).await;
    let client = connect().await;
    let sql = format!(
        "CREATE FUNCTION {schema}.poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'poison'; END $$; \
         CREATE TRIGGER poison BEFORE INSERT ON {schema}.steps FOR EACH ROW \
         WHEN (NEW.step_key = 'poison') EXECUTE FUNCTION {schema}.poison()"
    );
    client.batch_execute(&sql).await.unwrap();
    let mut commits = Vec::new();
    let mut runs = Vec::new();
    for n in 0..30 {
        let (run, hold) = world.create_held(&format!("run-{n}")).await;
        let key = if n == 17 { "poison" } else { "charge" };
        commits.push(world.step_commit(&run, hold, key, "1"));
        runs.push(run);
    }
    let results = world.store.commit(commits).await;
    for (n, result) in results.iter().enumerate() {
        let events = world.events(runs[n].run_key).await.len();
        match result {
            Ok(_) if n != 17 => assert_eq!(events, 2),
            Err(CommitError::Invalid(error)) if n == 17 => {
                assert_eq!(error.code(), "STORE_CONSTRAINT");
                assert!(error.message().contains("poison"), "{error}");
                assert_eq!(events, 1, "nothing of the commit was written");
            }
            other => panic!("commit {n}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_partition_fails_only_its_commit() {
    let test = TestStore::open().await;
    let schema = test.schema.name.clone();
    let world = World::new(Box::new(test)).await;
    let (run, hold) = world.create_held("a").await;
    let client = connect().await;
    // An operator detaches the default partition.
    let sql = format!("ALTER TABLE {schema}.events DETACH PARTITION {schema}.events_default");
    client.batch_execute(&sql).await.unwrap();
    let findings = world.store.check().await.unwrap();
    assert!(
        findings.iter().any(|finding| finding.contains("no default partition")),
        "{findings:?}"
    );
    let mut old = world.new_run("old", Turn::ready());
    old.run_key = windlass_kernel::RunKey(windlass_testkit::world::uuid7(1_000, 1));
    let create = world.create_commit(old, windlass_kernel::OnExisting::Refuse);
    let step = world.step_commit(&run, hold, "charge", "1");
    let results = world.store.commit(vec![create, step]).await;
    assert_eq!(results[0].as_ref().unwrap_err().code(), "STORE_CONSTRAINT");
    assert!(results[1].is_ok(), "{:?}", results[1]);
}

// Two processes, each with two committers, send messages to the same runs in opposite orders, in
// commits that touch several runs at once. The test has its own database, whose statistics count
// deadlocks.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batchers_do_not_deadlock() {
    let schema = Schema::new();
    let database = format!("{}_db", schema.name);
    let admin = connect().await;
    admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let mut dsn: String = dsn();
    let query = dsn.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
    let base = dsn.split('?').next().unwrap().rsplit_once('/').unwrap().0.to_owned();
    dsn = format!("{base}/{database}{query}");
    let one = PostgresStore::open(&dsn, options("windlass")).await.unwrap();
    let two = PostgresStore::open(&dsn, options("windlass")).await.unwrap();
    let world = Arc::new(World::new(Box::new(TestStore { store: one.clone(), schema })).await);
    let mut runs = Vec::new();
    for n in 0..40 {
        let run = world.create(world.new_run(&format!("run-{n}"), Turn::ready())).await;
        runs.push(run.run_key);
    }
    let mut senders = Vec::new();
    for sender in 0..16 {
        let store: Arc<PostgresStore> = if sender % 2 == 0 { one.clone() } else { two.clone() };
        let (world, mut runs) = (world.clone(), runs.clone());
        if sender % 3 == 0 {
            runs.reverse();
        }
        senders.push(tokio::spawn(async move {
            for round in 0..10 {
                // One commit to many runs, in the sender's own order.
                let message = |run: &windlass_kernel::RunKey| {
                    let message = world.message(*run, &format!("m-{sender}-{round}"));
                    Op::PutMessage(Box::new(message))
                };
                let commit = Commit::new(None, None, runs.iter().map(message).collect());
                store.commit(vec![commit]).await.remove(0).expect("the commit failed");
            }
        }));
    }
    for sender in senders {
        sender.await.unwrap();
    }
    for run in &runs {
        assert_eq!(world.run(*run).await.accepted, 160);
    }
    one.close().await.unwrap();
    two.close().await.unwrap();
    let client = connect_to(&dsn).await;
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    let deadlocks: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    drop(client);
    drop(world);
    let drop = format!("DROP DATABASE {database} WITH (FORCE)");
    admin.batch_execute(&drop).await.unwrap();
    assert_eq!(deadlocks, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_is_sent_without_waiting() {
    let test = TestStore::open().await;
    let world = World::new(Box::new(test)).await;
    let (mut run, hold) = world.create_held("a").await;
    // Calls keep their order, so a holder need not wait for each answer.
    let mut answers = Vec::new();
    for n in 0..50 {
        let commit = world.step_commit(&run, hold, &format!("step-{n}"), "1");
        commit.run_change().unwrap().apply_to(&mut run);
        answers.push(world.store.commit(vec![commit]));
    }
    for answer in answers {
        let committed = answer.await.remove(0).expect("a commit of the chain failed");
        assert_eq!(committed.hold, Some(hold));
    }
    assert_eq!(world.events(run.run_key).await.len(), 51);
    assert_eq!(world.load(run.run_key).await.steps.len(), 50);
}
