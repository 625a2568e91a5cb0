//! A store under test, and helpers for the operations of tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;
use windlass_kernel::{
    Body, BoxFuture, ClaimFilter, ClaimOrder, ClaimRequest, ClaimedTurn, Commit, CommitError,
    Committed, Draft, End, ErrorCode, Event, EventId, Hold, Loaded, Message, MessageId,
    MessageKind, MessageName, ModelName, Namespace, NewMessage, NewRun, OnExisting, Op, Query,
    QueueName, Route, RouteName, Run, RunId, RunKey, Stamp, Step, StepKey, StepKind, StepStatus,
    Store, Task, TaskId, Timestamp, Turn, Wake, WorkerInfo, WorkerKey, WorkerStatus, WorkflowName,
};

use crate::events;

/// A store that the suite is run against.
pub trait Subject: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Moves the store's clock forward.
    fn advance(&self, by: Duration) -> BoxFuture<'_, ()>;

    /// Its SQL dialect, if it has one.
    fn dialect(&self) -> Option<Dialect>;

    /// Runs SQL without the store, as an operator with a prompt does. `Err` is the database's message.
    fn raw_sql(&self, sql: String) -> BoxFuture<'_, Result<(), String>>;
}

/// The SQL dialect of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `?1`, BLOB literals `x'…'`.
    Sqlite,
    /// `$1`, uuid literals.
    Postgres,
}

impl Dialect {
    /// The n-th placeholder, from 1.
    pub fn placeholder(self, n: usize) -> String {
        match self {
            Dialect::Sqlite => format!("?{n}"),
            Dialect::Postgres => format!("${n}"),
        }
    }

    /// A key as a literal.
    pub fn key(self, key: Uuid) -> String {
        match self {
            Dialect::Sqlite => format!("x'{}'", key.simple()),
            Dialect::Postgres => format!("'{key}'::uuid"),
        }
    }
}

/// A store, a source of keys that sort by age, and helpers.
pub struct World {
    /// The store under test and its clock.
    pub subject: Box<dyn Subject>,
    /// Its store.
    pub store: Arc<dyn Store>,
    keys: AtomicU64,
    base: Timestamp,
}

impl World {
    /// A world around a store that was just opened.
    pub async fn new(subject: Box<dyn Subject>) -> Self {
        let store = subject.store();
        let base = store.now().await.expect("the store tells the time");
        Self { subject, store, keys: AtomicU64::new(0), base }
    }

    /// A new key; later ones are greater.
    pub fn key(&self) -> Uuid {
        let n = self.keys.fetch_add(1, Ordering::Relaxed);
        uuid7(self.base.as_millis() as u64 + n / 1_000, n)
    }

    /// The store's time.
    pub async fn now(&self) -> Timestamp {
        self.store.now().await.expect("the store tells the time")
    }

    /// Moves the store's clock.
    pub async fn advance_ms(&self, ms: u64) {
        self.subject.advance(Duration::from_millis(ms)).await;
    }

    /// A stamp for an event.
    pub fn stamp(&self) -> Stamp {
        Stamp { event_id: EventId(self.key()), at: self.base }
    }

    /// A new worker's key.
    pub fn worker(&self) -> WorkerKey {
        WorkerKey(self.key())
    }

    /// A run that is not created yet: workflow `w`, namespace `default`, input `{}`.
    pub fn new_run(&self, id: &str, turn: Turn) -> NewRun {
        NewRun {
            run_key: RunKey(self.key()),
            namespace: Namespace::default_namespace(),
            workflow: WorkflowName::new("w").unwrap(),
            model: ModelName::new("steps").unwrap(),
            id: RunId::new(id).unwrap(),
            generation: 0,
            input: Body::json("{}"),
            parent: None,
            fork: None,
            labels: BTreeMap::new(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn,
            caused_by: None,
        }
    }

    /// The commit that creates a run.
    pub fn create_commit(&self, new: NewRun, on_existing: OnExisting) -> Commit {
        Draft::create(new, on_existing, self.stamp()).unwrap().finish()
    }

    /// Creates a run and loads it.
    pub async fn create(&self, new: NewRun) -> Run {
        let run_key = new.run_key;
        self.ok(self.create_commit(new, OnExisting::Refuse)).await;
        self.run(run_key).await
    }

    /// Creates a run whose turn is held by a new worker.
    pub async fn create_held(&self, id: &str) -> (Run, Hold) {
        let worker = self.worker();
        let run = self.create(self.new_run(id, Turn::held_by(worker))).await;
        let hold = run.turn.hold().expect("the creator holds the turn");
        (run, hold)
    }

    /// One commit.
    pub async fn commit(&self, commit: Commit) -> Result<Committed, CommitError> {
        let mut results = self.store.commit(vec![commit]).await;
        assert_eq!(results.len(), 1, "one answer a commit");
        results.remove(0)
    }

    /// One commit that must hold.
    #[track_caller]
    pub fn ok(&self, commit: Commit) -> impl Future<Output = Committed> + Send {
        let at = std::panic::Location::caller();
        let answer = self.commit(commit);
        async move { answer.await.unwrap_or_else(|error| panic!("at {at}: {error}")) }
    }

    /// One commit that must fail, and the code of its error.
    #[track_caller]
    pub fn code(&self, commit: Commit) -> impl Future<Output = ErrorCode> + Send {
        let at = std::panic::Location::caller();
        let answer = self.commit(commit);
        async move {
            match answer.await {
                Ok(committed) => panic!("at {at}: the commit holds: {committed:?}"),
                Err(error) => error.code(),
            }
        }
    }

    /// A run with its steps and messages.
    pub async fn load(&self, run_key: RunKey) -> Loaded {
        let mut loaded = self.store.load(vec![run_key]).await.expect("load answers");
        assert_eq!(loaded.len(), 1, "run {run_key} exists");
        loaded.remove(0)
    }

    /// A run.
    pub async fn run(&self, run_key: RunKey) -> Run {
        self.load(run_key).await.run
    }

    /// The whole ledger of a run.
    pub async fn events(&self, run_key: RunKey) -> Vec<Event> {
        let query = Query::Events { run_key, from: 0, limit: 1_000 };
        self.store.list(query).await.unwrap().events().unwrap()
    }

    /// All messages of a run, consumed ones too.
    pub async fn messages(&self, run_key: RunKey) -> Vec<Message> {
        let query = Query::Messages { run_key, after: 0, limit: 1_000 };
        self.store.list(query).await.unwrap().messages().unwrap()
    }

    /// A draft under a hold.
    pub fn draft(&self, run: &Run, hold: Hold) -> Draft {
        Draft::held(run, hold, self.base)
    }

    /// A commit that completes a step and keeps the turn.
    pub fn step_commit(&self, run: &Run, hold: Hold, key: &str, result: &str) -> Commit {
        let mut draft = self.draft(run, hold);
        let step = self.step(run, key, StepStatus::Completed, Some(result));
        draft.step(events::STEP_COMPLETED, &json!({ "key": key }), step, self.stamp()).unwrap();
        draft.finish()
    }

    /// A commit that ends a run with an output.
    pub fn complete_commit(&self, run: &Run, hold: Hold) -> Commit {
        let mut draft = self.draft(run, hold);
        let end = End::Complete(Body::json("\"done\""));
        draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, self.stamp()).unwrap();
        draft.finish()
    }

    /// A commit that releases the turn, with an event.
    pub fn release_commit(&self, run: &Run, hold: Hold, wake: Wake, seen: u64) -> Commit {
        let mut draft = self.draft(run, hold);
        draft.event(events::SLEEP_STARTED, &json!({}), self.stamp()).unwrap();
        draft.release(wake, seen);
        draft.finish()
    }

    /// A step row.
    pub fn step(&self, run: &Run, key: &str, status: StepStatus, result: Option<&str>) -> Step {
        Step {
            run_key: run.run_key,
            step_key: StepKey::new(key).unwrap(),
            name: key.into(),
            kind: StepKind::from_static("do"),
            status,
            position: run.head.next_ordinal,
            attempt: 1,
            attempts_max: Some(6),
            input: None,
            result: result.map(|text| Body::json(text.to_owned())),
            error: None,
            timeout: Some(Duration::from_secs(600)),
            due_at: None,
            wait_for: None,
            created_at: self.base,
            updated_at: self.base,
        }
    }

    /// A task row on queue `q` with name `t`, ready at once.
    pub fn task(&self, run: Option<&Run>) -> Task {
        Task {
            run_key: run.map(|run| run.run_key),
            body: Some(Body::bytes("work")),
            ..Task::new(
                TaskId(self.key()),
                Namespace::default_namespace(),
                "activity",
                route("q", "t"),
                self.base,
            )
        }
    }

    /// Enqueues tasks of no run, in one commit.
    pub async fn enqueue(&self, tasks: Vec<Task>) {
        let ops = tasks.into_iter().map(|task| Op::Enqueue(Box::new(task))).collect();
        self.ok(Commit::new(None, None, ops)).await;
    }

    /// A message to a run, required, with its id as its name.
    pub fn message(&self, run_key: RunKey, id: &str) -> NewMessage {
        NewMessage {
            run_key,
            message_id: MessageId::new(id).unwrap(),
            kind: MessageKind::Event,
            name: MessageName::new("approved").unwrap(),
            body: Some(Body::json(format!("\"{id}\""))),
            caused_by: None,
            sent_at: self.base,
            required: true,
        }
    }

    /// A commit that only sends a message.
    pub fn send_commit(&self, message: NewMessage) -> Commit {
        Commit::new(None, None, vec![Op::PutMessage(Box::new(message))])
    }

    /// Claims turns of workflow `w` on the default queue.
    pub async fn claim_turns(&self, worker: WorkerKey, max: u32) -> Vec<ClaimedTurn> {
        let request = ClaimRequest {
            worker,
            turns: ClaimFilter { routes: vec![route("default", "w")], max, after: None },
            tasks: ClaimFilter::default(),
            order: ClaimOrder::Priority,
            offer: Duration::ZERO,
        };
        self.store.claim(request).await.expect("claim answers").turns
    }

    /// Claims tasks of name `t` on queue `q`.
    pub async fn claim_tasks(&self, worker: WorkerKey, max: u32) -> Vec<Task> {
        self.claim_tasks_of(worker, &[route("q", "t")], max, ClaimOrder::Priority).await
    }

    /// Claims tasks of the given routes.
    pub async fn claim_tasks_of(
        &self,
        worker: WorkerKey,
        routes: &[Route],
        max: u32,
        order: ClaimOrder,
    ) -> Vec<Task> {
        let tasks = ClaimFilter { routes: routes.to_vec(), max, after: None };
        let request = ClaimRequest {
            worker,
            turns: ClaimFilter::default(),
            tasks,
            order,
            offer: Duration::ZERO,
        };
        self.store.claim(request).await.expect("claim answers").tasks
    }

    /// Renews a worker with a lease of 30 seconds.
    pub async fn renew(&self, worker: WorkerKey) -> windlass_kernel::Renewed {
        self.store.renew(self.info(worker)).await.expect("renew answers")
    }

    /// The info that a worker renews with.
    pub fn info(&self, worker: WorkerKey) -> WorkerInfo {
        WorkerInfo {
            worker,
            name: "test-worker".into(),
            version: "0.0.0-test".into(),
            status: WorkerStatus::Active,
            lease: Duration::from_secs(30),
            turns: vec![route("default", "w")],
            tasks: vec![route("q", "t")],
            slots: 8,
            note: None,
            load: 0,
            task_slots: 0,
            task_load: 0,
            tasks_completed: 0,
            tasks_failed: 0,
            tasks_took: Duration::ZERO,
            accepting: true,
            group: "test".into(),
            host: "here".into(),
        }
    }

    /// A worker that has renewed for a whole lease and may reap.
    pub async fn steady_worker(&self) -> WorkerKey {
        let worker = self.worker();
        self.renew(worker).await;
        for _ in 0..3 {
            self.advance_ms(10_001).await;
            self.renew(worker).await;
        }
        worker
    }
}

/// A route.
pub fn route(queue: &str, name: &str) -> Route {
    Route { queue: QueueName::new(queue).unwrap(), name: RouteName::new(name).unwrap() }
}

/// A UUIDv7 from a time and a number; greater numbers at one time give greater keys.
pub fn uuid7(millis: u64, n: u64) -> Uuid {
    let time = u128::from(millis & 0xffff_ffff_ffff) << 80;
    let number = u128::from(n & 0x3fff_ffff_ffff_ffff);
    Uuid::from_u128(time | (0x7 << 76) | (0b10 << 62) | number)
}
