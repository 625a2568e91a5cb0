//! Two transactions that get in each other's way, interleaved where one waits for the other.
//!
//! Commits run as one call each, so they can be stopped only where they wait for a row. A gate, which
//! is a row lock of a third session, stops both there; when it opens, they go on in the order in
//! which they came, each with a snapshot that is older than what the other one wrote. Claims, reaping
//! and promotion never wait for a row of a run or a task: here one of the two is a transaction that
//! the gate's session has begun and not yet ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::Client;
use windlass_kernel::{
    ClaimOrder, ClaimRequest, Commit, CommitError, Committed, Conflict, LimitKey, Namespace, Op,
    QueueName, Route, RouteName, RunKey, Statement, Store, Task, Turn, Wake, Want, WorkerKey,
};
use windlass_postgres::PostgresStore;
use windlass_testkit::world::World;

use crate::proxy::Proxy;
use crate::support::{Schema, TestStore, connect, options};

type Answer = JoinHandle<Result<Committed, CommitError>>;

/// Two processes over one schema, and a third session that can stop them.
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
        // Both have their connections before anything is interleaved.
        for store in [&one, &two] {
            let id = format!("warm-{}", world.key().simple());
            let commit = world.create_commit(
                world
                    .new_run(&id, Turn::due_at(world.now().await.plus(Duration::from_secs(9_999)))),
                windlass_kernel::OnExisting::Refuse,
            );
            store.commit(vec![commit]).await.remove(0).expect("a warm-up");
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

    // Until so many sessions of the schema wait for a lock.
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
        panic!("fewer than {count} sessions wait for the gate");
    }

    fn send(&self, store: &Arc<PostgresStore>, commit: Commit) -> Answer {
        let store = store.clone();
        tokio::spawn(async move { store.commit(vec![commit]).await.remove(0) })
    }

    // Both in each order behind the gate.
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
        // The holder has read no message: a release may not leave the turn asleep.
        let release = world.release_commit(&run, hold, Wake::OnMessage, 0);
        let (first, second) = if accept_first { (accept, release) } else { (release, accept) };
        let answers = two.both(&[run.run_key], first, second).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        let run = world.run(run.run_key).await;
        assert_eq!((run.accepted, run.seen), (1, 0));
        assert!(run.turn.ready, "the wake-up is lost when the message comes first: {accept_first}");
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
    // The first sending waits at the gate when its connection is lost; it goes on without anybody
    // to hear of it, and the second sending queues up behind it.
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
        let committed = answer.await.unwrap().expect("it was written once");
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

    // The reaping is under way and not yet done: nobody may claim what it frees.
    two.gate.batch_execute("BEGIN").await.unwrap();
    assert_eq!(two.gate.query(&reap, &[&reaper.0]).await.unwrap().len(), 2);
    let worker = world.worker();
    assert!(world.claim_turns(worker, 10).await.is_empty());
    two.gate.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(world.run(run.run_key).await.turn.claim_no, claim_no);

    let reaped = world.store.reap(reaper, 10).await.unwrap();
    assert_eq!(reaped.turns, [run.run_key]);
    // The claim is under way: a reaper that comes now finds nothing to free.
    let claim = format!(
        "SELECT run_key FROM {}.claim_turns($1, '{{default}}', '{{w}}', 10, false, 0)",
        two.schema
    );
    two.gate.batch_execute("BEGIN").await.unwrap();
    assert_eq!(two.gate.query(&claim, &[&worker.0]).await.unwrap().len(), 1);
    let reaped = world.store.reap(reaper, 10).await.unwrap();
    assert!(reaped.permitted && reaped.turns.is_empty());
    assert!(world.claim_turns(WorkerKey(world.key()), 10).await.is_empty(), "claimed once");
    two.gate.batch_execute("COMMIT").await.unwrap();
    let turn = world.run(run.run_key).await.turn;
    assert_eq!((turn.worker, turn.claim_no), (Some(worker), claim_no + 2));
    assert_eq!(turn.reclaims, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn promote_and_poke() {
    let two = Two::open().await;
    let world = &two.world;
    for promote_first in [true, false] {
        let due = world.now().await.plus(Duration::from_secs(60));
        let id = format!("run-{promote_first}");
        let run = world.create(world.new_run(&id, Turn::due_at(due))).await;
        world.advance_ms(61_000).await;
        let poke = world.send_commit(world.message(run.run_key, "m-1"));
        let promote = format!("SELECT code FROM {}.promote(1000)", two.schema);
        if promote_first {
            // Promoted but not yet committed: the message waits, and finds the turn ready.
            two.gate.batch_execute("BEGIN").await.unwrap();
            two.gate.query(&promote, &[]).await.unwrap();
            let poke = two.send(&two.one, poke);
            two.waiting(1).await;
            two.unlock().await;
            poke.await.unwrap().expect("the message is accepted");
        } else {
            // The message waits with its lock queued: a promotion passes the row over.
            two.lock(&[run.run_key]).await;
            let poke = two.send(&two.one, poke);
            two.waiting(1).await;
            let promoted = world.store.promote(1_000).await.unwrap();
            assert_eq!(promoted.turns, 0);
            assert!(promoted.next_due.is_some_and(|due| due <= promoted.now), "it is still due");
            two.unlock().await;
            poke.await.unwrap().expect("the message is accepted");
        }
        let found = world.run(run.run_key).await;
        assert!(found.turn.ready);
        assert_eq!(found.accepted, 1);
        if promote_first {
            assert_eq!(found.turn.due_at, Some(due), "it was ready before the message came");
        }
        let claimed = world.claim_turns(world.worker(), 10).await;
        assert_eq!(claimed.iter().filter(|turn| turn.run_key == run.run_key).count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_commit_overtakes_one_of_its_run_that_waits() {
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
        draft.event("step.completed", &serde_json::json!({}), world.stamp()).unwrap();
        draft.user_sql(vec![Statement { sql: sql.into(), params: Vec::new() }]);
        draft.finish()
    };
    // Unrelated user SQL is under way all the time.
    let (unrelated, its_hold) = world.create_held("unrelated").await;
    let slow = two.send(&store, user_sql(&unrelated, its_hold, "SELECT pg_sleep(8)"));
    tokio::time::sleep(Duration::from_millis(500)).await;
    // The committer waits at the gate, so the next two commits come to it together.
    let (other, other_hold) = world.create_held("other").await;
    let (mut run, hold) = world.create_held("chain").await;
    two.lock(&[other.run_key]).await;
    let stopped = two.send(&store, world.step_commit(&other, other_hold, "charge", "1"));
    two.waiting(1).await;
    let commit = world.step_commit(&run, hold, "first", "1");
    commit.run_change().unwrap().apply_to(&mut run);
    let first = store.commit(vec![commit]);
    let commit = user_sql(&run, hold, "SELECT pg_sleep(1)");
    commit.run_change().unwrap().apply_to(&mut run);
    let second = store.commit(vec![commit]);
    two.unlock().await;
    stopped.await.unwrap().expect("it holds");
    first.await.remove(0).expect("the first holds");
    let third = store.commit(vec![world.step_commit(&run, hold, "third", "1")]);
    third.await.remove(0).expect("the third comes after the second");
    second.await.remove(0).expect("the second holds");
    assert!(!slow.is_finished(), "nobody waited for what is unrelated");
    slow.await.unwrap().expect("it holds");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_wait_for_limits_only_while_they_have_none() {
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
    // Somebody else has the limit of the task, and might wait for that of the turn.
    let lock = format!("SELECT FROM {}.limits WHERE limit_key = 'a' FOR UPDATE", two.schema);
    two.gate.batch_execute("BEGIN").await.unwrap();
    two.gate.query(&lock, &[]).await.unwrap();
    let request = ClaimRequest {
        worker: world.worker(),
        turns: Want { routes: vec![route("default", "w")], max: 10 },
        tasks: Want { routes: vec![route("q", "t")], max: 10 },
        order: ClaimOrder::Priority,
        offer: Duration::ZERO,
    };
    let claims = world.store.claim(request.clone()).await.unwrap();
    assert_eq!((claims.turns.len(), claims.tasks.len()), (1, 0), "a locked limit is full");
    two.unlock().await;
    let claims = world.store.claim(request).await.unwrap();
    assert_eq!((claims.turns.len(), claims.tasks.len()), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_does_not_read_hides_no_other_from_its_claim() {
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
