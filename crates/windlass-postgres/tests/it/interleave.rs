//! Two conflicting transactions, interleaved at the point where one waits for the other.
//!
//! A commit is one call, so it can be stopped only where it waits for a row. A gate, a row lock of
//! a third session, stops both commits there. When it opens, they continue in the order in which
//! they came, each with a snapshot that is older than what the other one wrote. Claims, reaping and
//! promotion never wait for a row of a run or a task; there, one of the two is a transaction that
//! the gate's session has started and not yet ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::Client;
use windlass_kernel::{
    ClaimFilter, ClaimOrder, ClaimRequest, Commit, CommitError, Committed, Conflict, LimitKey,
    Namespace, Op, QueueName, Route, RouteName, RunKey, Statement, Store, Task, Turn, Wake,
    WorkerKey,
};
use windlass_postgres::PostgresStore;
use windlass_testkit::events;
use windlass_testkit::world::World;

use crate::proxy::Proxy;
use crate::support::{Schema, TestStore, connect, options};

type Answer = JoinHandle<Result<Committed, CommitError>>;

/// Two processes on one schema, and a third session that can stop them.
struct Two {
    world: World,
    one: Arc<PostgresStore>,
    two: Arc<PostgresStore>,
    gate: Client,
    schema: String,
}

impl Two {
    async fn open() -> Self {
        let test = TestStore::open().await;
        let schema = test.schema.name.clone();
        let (one, two) = (test.store.clone(), test.schema.open(options(&schema)).await);
        let world = World::new(Box::new(test)).await;
        // Open both connections before anything is interleaved.
        for store in [&one, &two] {
            let id = format!("warm-{}", world.key().simple());
            let commit = world.create_commit(
                world
                    .new_run(&id, Turn::due_at(world.now().await.plus(Duration::from_secs(9_999)))),
                windlass_kernel::OnExisting::Refuse,
            );
            store.commit(vec![commit]).await.remove(0).expect("the warm-up commit failed");
        }
        Self { world, one, two, gate: connect().await, schema }
    }

    async fn lock(&self, runs: &[RunKey]) {
        self.gate.batch_execute("BEGIN").await.unwrap();
        for run in runs {
            let sql = format!("SELECT FROM {}.runs WHERE run_key = $1 FOR UPDATE", self.schema);
            self.gate.query(&sql, &[&run.0]).await.unwrap();
        }
    }

    async fn unlock(&self) {
        self.gate.batch_execute("COMMIT").await.unwrap();
    }

    // Waits until this many sessions of the schema wait for a lock.
    async fn waiting(&self, count: i64) {
        let client = connect().await;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
            AND query LIKE '%' || $1 || '%' AND application_name = 'windlass'";
        for _ in 0..3_000 {
            let waiting: i64 = client.query_one(sql, &[&self.schema]).await.unwrap().get(0);
            if waiting >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("fewer than {count} sessions are waiting for the gate");
    }

    fn send(&self, store: &Arc<PostgresStore>, commit: Commit) -> Answer {
        let store = store.clone();
        tokio::spawn(async move { store.commit(vec![commit]).await.remove(0) })
    }

    // Sends both commits, in this order, behind the gate.
    async fn both(&self, runs: &[RunKey], first: Commit, second: Commit) -> [Answered; 2] {
        self.lock(runs).await;
        let first = self.send(&self.one, first);
        self.waiting(1).await;
        let second = self.send(&self.two, second);
        self.waiting(2).await;
        self.unlock().await;
        [first.await.unwrap(), second.await.unwrap()]
    }
}

type Answered = Result<Committed, CommitError>;

#[tokio::test(flavor = "multi_thread")]
async fn accept_and_release() {
    let two = Two::open().await;
    let world = &two.world;
    for accept_first in [true, false] {
        let (run, hold) = world.create_held(&format!("run-{accept_first}")).await;
        let accept = world.send_commit(world.message(run.run_key, "m-1"));
        // The holder has read no message, so the release must leave the turn ready.
        let release = world.release_commit(&run, hold, Wake::OnMessage, 0);
        let (first, second) = if accept_first { (accept, release) } else { (release, accept) };
        let answers = two.both(&[run.run_key], first, second).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let run = world.run(run.run_key).await;
        assert_eq!((run.accepted, run.seen), (1, 0));
        assert!(run.turn.ready, "the wake-up was lost (message first: {accept_first})");
        assert_eq!(run.turn.worker, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_and_commit_of_one_head() {
    let two = Two::open().await;
    let world = &two.world;
    let (run, hold) = world.create_held("a").await;
    let first = world.step_commit(&run, hold, "charge", "1");
    let second = world.step_commit(&run, hold, "charge", "2");
    let answers = two.both(&[run.run_key], first, second).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    match &answers[1] {
        Err(CommitError::Conflict(Conflict::RunHead { found, .. })) => {
            assert_eq!(found.next_ordinal, 2);
        }
        other => panic!("the second commit was decided from an old snapshot: {other:?}"),
    }
    let loaded = world.load(run.run_key).await;
    assert_eq!(
        loaded.steps[0].result.as_ref().map(|body| body.bytes.to_vec()),
        Some(b"1".to_vec())
    );
    assert_eq!(world.events(run.run_key).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_batches_in_opposite_orders() {
    let two = Two::open().await;
    let world = &two.world;
    let mut runs = Vec::new();
    for n in 0..6 {
        runs.push(world.create_held(&format!("run-{n}")).await);
    }
    let batch = |result: &str, reversed: bool| {
        let commit = |(run, hold): &(windlass_kernel::Run, windlass_kernel::Hold)| {
            world.step_commit(run, *hold, "charge", result)
        };
        let mut commits: Vec<Commit> = runs.iter().map(commit).collect();
        if reversed {
            commits.reverse();
        }
        commits
    };
    let keys: Vec<RunKey> = runs.iter().map(|(run, _)| run.run_key).collect();
    two.lock(&keys[3..4]).await;
    let (one, other) = (two.one.clone(), two.two.clone());
    let (first, second) = (batch("1", false), batch("2", true));
    let first = tokio::spawn(async move { one.commit(first).await });
    two.waiting(1).await;
    let second = tokio::spawn(async move { other.commit(second).await });
    two.waiting(2).await;
    two.unlock().await;
    let (first, mut second) = (first.await.unwrap(), second.await.unwrap());
    second.reverse();
    for (n, run_key) in keys.iter().enumerate() {
        let won = [first[n].is_ok(), second[n].is_ok()];
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "run {n}: {won:?}");
        let expect = if won[0] { b"1" } else { b"2" };
        let loaded = world.load(*run_key).await;
        let result = loaded.steps[0].result.as_ref().unwrap();
        assert_eq!(&result.bytes[..], expect);
        assert_eq!(world.events(*run_key).await.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_and_the_same_commit_lost() {
    // The connection of the first call is lost while the call waits at the gate. The call continues
    // without a client, and the second call queues up behind it.
    let proxy = Proxy::start().await;
    let schema = Schema::new();
    let store = PostgresStore::open(&proxy.dsn(&schema), options(&schema.name)).await.unwrap();
    let world = World::new(Box::new(TestStore { store: store.clone(), schema })).await;
    let name = {
        let row = connect().await;
        drop(row);
        store.statements_for_tests()[0].1.split('"').nth(1).unwrap().to_owned()
    };
    let (run, hold) = world.create_held("a").await;
    let two =
        Two { one: store.clone(), two: store.clone(), gate: connect().await, schema: name, world };
    let world = &two.world;
    for message in [false, true] {
        let run_now = world.run(run.run_key).await;
        let commit = match message {
            true => world.send_commit(world.message(run.run_key, "m-1")),
            false => world.step_commit(&run_now, hold, "charge", "1"),
        };
        two.lock(&[run.run_key]).await;
        proxy.cut_at_once(1);
        let answer = two.send(&store, commit);
        two.waiting(2).await;
        two.unlock().await;
        let committed = answer.await.unwrap().expect("the commit failed");
        assert_eq!(committed.repeated, !message);
        assert_eq!(world.events(run.run_key).await.len(), 2);
    }
    assert_eq!(world.messages(run.run_key).await.len(), 1);
    assert_eq!(world.run(run.run_key).await.accepted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_and_reap() {
    let two = Two::open().await;
    let world = &two.world;
    let reaper = world.steady_worker().await;
    let dead = world.worker();
    let run = world.create(world.new_run("a", Turn::held_by(dead))).await;
    let claim_no = run.turn.claim_no;
    let reap = format!("SELECT code FROM {}.reap($1, 10)", two.schema);

    // The reaping has not committed: nobody may claim the turn that it releases.
    two.gate.batch_execute("BEGIN").await.unwrap();
    assert_eq!(two.gate.query(&reap, &[&reaper.0]).await.unwrap().len(), 2);
    let worker = world.worker();
    assert!(world.claim_turns(worker, 10).await.is_empty());
    two.gate.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(world.run(run.run_key).await.turn.claim_no, claim_no);

    let reaped = world.store.reap(reaper, 10).await.unwrap();
    assert_eq!(reaped.turns, [run.run_key]);
    // The claim has not committed: a reaper finds nothing to release.
    let claim = format!(
        "SELECT run_key FROM {}.claim_turns($1, '{{default}}', '{{w}}', 10, false, 0, NULL)",
        two.schema
    );
    two.gate.batch_execute("BEGIN").await.unwrap();
    assert_eq!(two.gate.query(&claim, &[&worker.0]).await.unwrap().len(), 1);
    let reaped = world.store.reap(reaper, 10).await.unwrap();
    assert!(reaped.permitted && reaped.turns.is_empty());
    assert!(world.claim_turns(WorkerKey(world.key()), 10).await.is_empty(), "claimed twice");
    two.gate.batch_execute("COMMIT").await.unwrap();
    let turn = world.run(run.run_key).await.turn;
    assert_eq!((turn.worker, turn.claim_no), (Some(worker), claim_no + 2));
    assert_eq!(turn.reclaims, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn promote_and_message() {
    let two = Two::open().await;
    let world = &two.world;
    for promote_first in [true, false] {
        let due = world.now().await.plus(Duration::from_secs(60));
        let id = format!("run-{promote_first}");
        let run = world.create(world.new_run(&id, Turn::due_at(due))).await;
        world.advance_ms(61_000).await;
        let message = world.send_commit(world.message(run.run_key, "m-1"));
        let promote = format!("SELECT code FROM {}.promote(1000)", two.schema);
        if promote_first {
            // Promoted but not committed: the message waits, and then finds the turn ready.
            two.gate.batch_execute("BEGIN").await.unwrap();
            two.gate.query(&promote, &[]).await.unwrap();
            let answer = two.send(&two.one, message);
            two.waiting(1).await;
            two.unlock().await;
            answer.await.unwrap().expect("the message was not accepted");
        } else {
            // The message waits for the row lock: a promotion skips the row.
            two.lock(&[run.run_key]).await;
            let answer = two.send(&two.one, message);
            two.waiting(1).await;
            let promoted = world.store.promote(1_000).await.unwrap();
            assert_eq!(promoted.turns, 0);
            assert!(
                promoted.next_due.is_some_and(|due| due <= promoted.now),
                "the turn is still due"
            );
            two.unlock().await;
            answer.await.unwrap().expect("the message was not accepted");
        }
        let found = world.run(run.run_key).await;
        assert!(found.turn.ready);
        assert_eq!(found.accepted, 1);
        if promote_first {
            assert_eq!(found.turn.due_at, Some(due), "the turn was ready before the message");
        }
        let claimed = world.claim_turns(world.worker(), 10).await;
        assert_eq!(claimed.iter().filter(|turn| turn.run_key == run.run_key).count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_a_run_keep_their_order_behind_user_sql() {
    let schema = Schema::new();
    let mut options = options(&schema.name);
    options.committers = 1;
    let (store, name) = (schema.open(options).await, schema.name.clone());
    let world = World::new(Box::new(TestStore { store: store.clone(), schema })).await;
    let gate = connect().await;
    let two = Two { one: store.clone(), two: store.clone(), gate, schema: name, world };
    let world = &two.world;
    let user_sql = |run: &windlass_kernel::Run, hold, sql: &str| {
        let mut draft = world.draft(run, hold);
        draft.event(events::STEP_COMPLETED, &serde_json::json!({}), world.stamp()).unwrap();
        draft.user_sql(vec![Statement { sql: sql.into(), params: Vec::new() }]);
        draft.finish()
    };
    // Unrelated user SQL runs all the time.
    let (unrelated, its_hold) = world.create_held("unrelated").await;
    let own_gate = connect().await;
    own_gate.batch_execute("SELECT pg_advisory_lock(71002)").await.unwrap();
    let waits = format!("SELECT pg_advisory_xact_lock(71002), '{}'::text", two.schema);
    let slow = two.send(&store, user_sql(&unrelated, its_hold, &waits));
    two.waiting(1).await;
    // The committer waits at the gate, so it receives the next two commits together.
    let (other, other_hold) = world.create_held("other").await;
    let (mut run, hold) = world.create_held("chain").await;
    two.lock(&[other.run_key]).await;
    let stopped = two.send(&store, world.step_commit(&other, other_hold, "charge", "1"));
    two.waiting(2).await;
    let commit = world.step_commit(&run, hold, "first", "1");
    commit.run_change().unwrap().apply_to(&mut run);
    let first = store.commit(vec![commit]);
    let commit = user_sql(&run, hold, "SELECT pg_sleep(1)");
    commit.run_change().unwrap().apply_to(&mut run);
    let second = store.commit(vec![commit]);
    two.unlock().await;
    stopped.await.unwrap().expect("the stopped commit failed");
    first.await.remove(0).expect("the first commit failed");
    let third = store.commit(vec![world.step_commit(&run, hold, "third", "1")]);
    third.await.remove(0).expect("the third commit must come after the second");
    second.await.remove(0).expect("the second commit failed");
    assert!(!slow.is_finished(), "a commit waited for unrelated user SQL");
    own_gate.batch_execute("SELECT pg_advisory_unlock(71002)").await.unwrap();
    slow.await.unwrap().expect("the slow commit failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_holds_a_limit_skips_locked_limits() {
    let two = Two::open().await;
    let world = &two.world;
    let key = |text: &str| LimitKey::new(text).unwrap();
    for limit in ["a", "b"] {
        let namespace = Namespace::default_namespace();
        world.store.set_limit(namespace, key(limit), Some(1)).await.unwrap();
    }
    let turn = Turn { limit_key: Some(key("b")), ..Turn::ready() };
    world.create(world.new_run("limited", turn)).await;
    let task = Task { limit_key: Some(key("a")), ..world.task(None) };
    world.ok(Commit::new(None, None, vec![Op::Enqueue(Box::new(task))])).await;
    let route = |queue: &str, name: &str| Route {
        queue: QueueName::new(queue).unwrap(),
        name: RouteName::new(name).unwrap(),
    };
    // Another session has locked the limit of the task, and could be waiting for that of the turn.
    let lock = format!("SELECT FROM {}.limits WHERE limit_key = 'a' FOR UPDATE", two.schema);
    two.gate.batch_execute("BEGIN").await.unwrap();
    two.gate.query(&lock, &[]).await.unwrap();
    let request = ClaimRequest {
        worker: world.worker(),
        turns: ClaimFilter { routes: vec![route("default", "w")], max: 10, after: None },
        tasks: ClaimFilter { routes: vec![route("q", "t")], max: 10, after: None },
        order: ClaimOrder::Priority,
        offer: Duration::ZERO,
    };
    let claims = world.store.claim(request.clone()).await.unwrap();
    assert_eq!((claims.turns.len(), claims.tasks.len()), (1, 0), "a locked limit counts as full");
    two.unlock().await;
    let claims = world.store.claim(request).await.unwrap();
    assert_eq!((claims.turns.len(), claims.tasks.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_row_does_not_hide_others_from_a_claim() {
    let two = Two::open().await;
    let world = &two.world;
    let bad = world.create(world.new_run("bad", Turn::ready())).await;
    let good = world.create(world.new_run("good", Turn::ready())).await;
    let damage = format!(
        "SET session_replication_role = replica; \
         UPDATE {}.runs SET status = 'odd' WHERE run_key = '{}'",
        two.schema, bad.run_key
    );
    two.gate.batch_execute(&damage).await.unwrap();
    let claimed = world.claim_turns(world.worker(), 10).await;
    assert_eq!(claimed.iter().map(|turn| turn.run_key).collect::<Vec<_>>(), [good.run_key]);
}
