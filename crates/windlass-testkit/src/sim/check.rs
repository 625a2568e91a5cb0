//! Invariants of every call. The checker reads the store at the moment a call takes effect, and trusts
//! neither the store's answer nor the engine.
//!
//! The numbers in the names of invariants are those of the project's list of invariants. The checks
//! that need the final state are in `audit`.

mod agents;
mod audit;
mod commits;
mod fleet;
mod idle;
pub(crate) mod relays;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt as _;
use uuid::Uuid;
use windlass_kernel::verify::Anchor;
use windlass_kernel::{
    ClaimRequest, ClaimedTurn, Claims, Commit, CommitKey, Deleted, EventId, HeldItem, Hold,
    LimitKey, Loaded, MemoryStore, MessageId, Namespace, Op, Order, Promoted, Query, Reaped, Run,
    RunId, RunKey, RunStatus, RunsQuery, Sha256Digest, StepKey, Store, Task, TaskId, TaskState,
    TasksQuery, Timestamp, WorkerInfo, WorkerKey, WorkerStatus,
};

use super::executor::{Handle, locked};
use super::store::short;

pub use idle::Rest;

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its name.
    pub invariant: &'static str,
    /// The rows or values that violate it.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Turn(RunKey),
    Task(TaskId),
}

// The row that identifies a commit that is sent again, in a form that sorts.
type Trace = (u8, Uuid, String);

fn trace_of(key: &CommitKey) -> Option<Trace> {
    Some(match key {
        CommitKey::Run(run_key) => (0, run_key.0, String::new()),
        CommitKey::Event { event_id, .. } => (1, event_id.0, String::new()),
        CommitKey::Message { run_key, message_id } => (2, run_key.0, message_id.to_string()),
        CommitKey::Record { write_id, .. } => (4, write_id.0, String::new()),
        CommitKey::Task(task_id) => (3, task_id.0, String::new()),
        CommitKey::Nothing => return None,
    })
}

struct Settled {
    claim_no: u64,
    digest: Sha256Digest,
}

// A worker's lease as its renewals set it. The worker's row is not trusted.
#[derive(Clone, Copy)]
struct Lease {
    span: Duration,
    renewed_at: Timestamp,
    steady_since: Timestamp,
    is_stopped: bool,
}

impl Lease {
    fn has_lapsed(&self, now: Timestamp) -> bool {
        now > self.renewed_at.plus(self.span)
    }

    fn is_live(&self, now: Timestamp) -> bool {
        !self.is_stopped && !self.has_lapsed(now)
    }

    fn may_reap(&self, now: Timestamp) -> bool {
        self.is_live(now) && now >= self.steady_since.plus(self.span)
    }
}

struct Enqueued {
    effect: bool,
    namespace: Namespace,
}

#[derive(Default)]
struct State {
    failure: Option<Violation>,
    now: Timestamp,
    // The claim number of each turn and task as it was last seen.
    fences: BTreeMap<Item, u64>,
    reaped: BTreeSet<(Item, Uuid, u64)>,
    written: BTreeSet<Trace>,
    refused: BTreeSet<Trace>,
    events: BTreeMap<EventId, (RunKey, u64)>,
    anchors: Vec<Anchor>,
    settled: BTreeMap<(RunKey, StepKey), Settled>,
    ended: BTreeMap<RunKey, Sha256Digest>,
    enqueued: BTreeMap<TaskId, Enqueued>,
    dead_letters: BTreeSet<TaskId>,
    limits: BTreeMap<(Namespace, LimitKey), u32>,
    leases: BTreeMap<WorkerKey, Lease>,
    accepted: BTreeMap<(RunKey, MessageId), u64>,
    effects: BTreeMap<TaskId, u64>,
    deleted: BTreeSet<RunKey>,
    closed_requests: BTreeSet<String>,
    timers_may_be_early: bool,
}

/// The rows that a commit names, as they were at one moment.
pub struct Snapshot {
    runs: BTreeMap<RunKey, Loaded>,
    tasks: BTreeMap<TaskId, Task>,
}

/// Watches one run of the simulation.
pub struct Checker {
    sim: Handle,
    namespaces: Vec<Namespace>,
    state: Mutex<State>,
}

impl Checker {
    /// A checker of a world with these namespaces.
    pub fn new(sim: Handle, namespaces: Vec<Namespace>) -> Self {
        Self { sim, namespaces, state: Mutex::new(State::default()) }
    }

    /// The first invariant that did not hold.
    pub fn failure(&self) -> Option<Violation> {
        self.state().failure.clone()
    }

    /// Records a violation and ends the simulation. The first one counts, because the others mostly
    /// follow from it.
    pub fn fail(&self, invariant: &'static str, detail: String) {
        self.sim.trace(format_args!("VIOLATION {invariant}: {detail}"));
        let mut state = self.state();
        if state.failure.is_none() {
            state.failure = Some(Violation { invariant, detail });
        }
        drop(state);
        self.sim.stop();
    }

    /// Stops judging timers, because the store's clock will be set back.
    pub fn let_timers_be_early(&self) {
        self.state().timers_may_be_early = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// The rows that a commit names.
    pub fn snapshot(&self, store: &MemoryStore, commit: &Commit) -> Snapshot {
        let mut keys: BTreeSet<RunKey> = commit.run_key().into_iter().collect();
        keys.extend(commit.messages().map(|message| message.run_key));
        let mut tasks = commit.task.is_some();
        for op in commit.ops.iter() {
            match op {
                Op::CreateRun(run) => {
                    keys.insert(run.run_key);
                }
                Op::Enqueue(_) | Op::Settle { .. } | Op::Reschedule(_) => tasks = true,
                _ => {}
            }
        }
        let rows = load(store, keys.into_iter().collect());
        let runs = rows.into_iter().map(|row| (row.run.run_key, row)).collect();
        let tasks = if tasks { self.tasks(store, None) } else { Vec::new() };
        Snapshot { runs, tasks: tasks.into_iter().map(|task| (task.task_id, task)).collect() }
    }

    /// The hold of a run's turn.
    pub fn holder(&self, store: &MemoryStore, run_key: RunKey) -> Option<Hold> {
        load(store, vec![run_key]).pop().and_then(|row| row.run.turn.hold())
    }

    /// All runs, by namespace and key.
    pub fn runs(&self, store: &MemoryStore) -> Vec<Run> {
        let page = |namespace: &Namespace| {
            let mut query = RunsQuery::all(namespace.clone(), 1_000);
            query.order = Order::Ascending;
            store.list(Query::Runs(query)).now_or_never()?.ok()?.runs().ok()
        };
        self.namespaces.iter().filter_map(page).flatten().collect()
    }

    /// All tasks, or those in one state.
    pub fn tasks(&self, store: &MemoryStore, state: Option<TaskState>) -> Vec<Task> {
        let page = |namespace: &Namespace| {
            let query = TasksQuery { state, ..TasksQuery::all(namespace.clone(), 1_000) };
            store.list(Query::Tasks(query)).now_or_never()?.ok()?.tasks().ok()
        };
        self.namespaces.iter().filter_map(page).flatten().collect()
    }

    /// The tasks that must be done before the world is at rest: not those that delete closed requests after
    /// months.
    pub(crate) fn open_tasks(&self, store: &MemoryStore) -> Vec<Task> {
        let mut tasks = self.tasks(store, None);
        tasks.retain(|task| task.name.as_str() != "forget-request");
        tasks
    }

    fn saw_time(&self, now: Timestamp) {
        let last = std::mem::replace(&mut self.state().now, now);
        if now < last {
            self.fail("14 the store's clock never runs backwards", format!("{last} then {now}"));
        }
    }

    /// A claim took effect.
    pub fn claim(&self, store: &MemoryStore, request: &ClaimRequest, claims: &Claims) {
        self.saw_time(claims.now);
        for turn in &claims.turns {
            self.grant(Item::Turn(turn.run_key), turn.hold, request.worker);
            let row = load(store, vec![turn.run_key]).pop();
            let unread = row.is_some_and(|row| row.run.accepted > row.run.seen);
            if turn.status.is_ended() || turn.status == RunStatus::Paused && !unread {
                let detail = format!("r{:x} is {}", short(turn.run_key.0), turn.status);
                let invariant =
                    "15 a run is not claimed that has ended, or is paused and has read all";
                self.fail(invariant, detail);
            }
            if turn.status == RunStatus::Paused {
                self.sim.sometimes("paused run had a turn to read what it was sent");
            }
        }
        for task in &claims.tasks {
            let hold = Hold { worker: request.worker, claim_no: task.claim_no };
            self.grant(Item::Task(task.task_id), hold, request.worker);
            if task.due_at.is_some_and(|due_at| due_at > claims.now) {
                let detail =
                    format!("task {:x} was claimed before it was due", short(task.task_id.0));
                self.fail("13 timers are never early on the store's clock", detail);
            }
        }
        self.check_limits(store, request, claims);
    }

    /// The runs of trees that are about to be deleted.
    pub fn trees(&self, store: &MemoryStore, roots: &[RunKey]) -> Vec<Run> {
        let wanted = |run: &Run| roots.contains(&run.root);
        self.runs(store).into_iter().filter(wanted).collect()
    }

    /// Trees were deleted; `before` is what they were.
    pub fn deleted(&self, before: &[Run], deleted: &Deleted) {
        let gone: Vec<&Run> =
            before.iter().filter(|run| deleted.roots.contains(&run.root)).collect();
        if let Some(live) = gone.iter().find(|run| !run.status.is_ended()) {
            let detail = format!("r{:x} was {}", short(live.run_key.0), live.status);
            self.fail("28 retention never touches live runs", detail);
        }
        if gone.len() as u64 != deleted.runs {
            let detail = format!("{} runs of {} were deleted", deleted.runs, gone.len());
            self.fail("28 a tree is deleted whole", detail);
        }
        self.sim.sometimes("a tree of runs was deleted");
        let mut state = self.state();
        for run in gone {
            state.deleted.insert(run.run_key);
            state.anchors.retain(|anchor| anchor.run_key != run.run_key);
        }
    }

    /// A client took a turn.
    pub fn revoked(&self, run_key: RunKey, worker: WorkerKey, turn: Option<&ClaimedTurn>) {
        if let Some(turn) = turn {
            self.grant(Item::Turn(run_key), turn.hold, worker);
        }
    }

    fn grant(&self, item: Item, hold: Hold, to: WorkerKey) {
        self.raise(item, hold.claim_no);
        if hold.worker != to {
            self.fail("3 one worker holds", format!("{item:?}: {to:?} was given {hold:?}"));
        }
    }

    // After this no earlier holder can match the claim number.
    fn raise(&self, item: Item, claim_no: u64) {
        let before = self.state().fences.insert(item, claim_no);
        if before.is_some_and(|before| claim_no <= before) {
            let detail = format!("{item:?}: {before:?} and then {claim_no}");
            self.fail("3 the claim number rises at every claim, release and reaping", detail);
        }
    }

    /// Holds were released. Those that were current are fenced now.
    pub fn released(&self, store: &MemoryStore, held: &[HeldItem], count: u32) {
        let mut freed = 0;
        for item in held {
            let (key, claim_no, found) = match *item {
                HeldItem::Turn { run_key, claim_no, .. } => {
                    let row = load(store, vec![run_key]).pop().map(|row| row.run.turn);
                    let row = row.filter(|turn| turn.worker.is_none());
                    (Item::Turn(run_key), claim_no, row.map(|turn| turn.claim_no))
                }
                HeldItem::Task { task_id, claim_no, .. } => {
                    let tasks = self.tasks(store, None);
                    let row = tasks.into_iter().find(|task| task.task_id == task_id);
                    let row = row.filter(|task| task.worker.is_none());
                    (Item::Task(task_id), claim_no, row.map(|task| task.claim_no))
                }
            };
            let current = self.state().fences.get(&key) == Some(&claim_no);
            if let Some(found) = found.filter(|_| current) {
                freed += 1;
                self.raise(key, found);
            }
        }
        if freed != count {
            let detail = format!("{count} of {held:?} were given back, {freed} were current");
            self.fail("4 only the holder gives back", detail);
        }
    }

    // Counts holders in the rows; the store's own counter is not trusted.
    fn check_limits(&self, store: &MemoryStore, request: &ClaimRequest, claims: &Claims) {
        let limits = self.state().limits.clone();
        if limits.is_empty() {
            return;
        }
        let mut held: BTreeMap<(Namespace, LimitKey), u32> = BTreeMap::new();
        let mut count = |namespace: Namespace, key: Option<LimitKey>, worker: Option<WorkerKey>| {
            if let (Some(key), Some(_)) = (key, worker) {
                *held.entry((namespace, key)).or_default() += 1;
            }
        };
        let (runs, tasks) = (self.runs(store), self.tasks(store, None));
        let blocked = tasks.iter().any(|task| task.ready && task.limit_key.is_some());
        if blocked && claims.tasks.len() < request.tasks.max as usize {
            self.sim.sometimes("claim was blocked by a limit");
        }
        for run in runs {
            count(run.namespace, run.turn.limit_key, run.turn.worker);
        }
        for task in tasks {
            count(task.namespace, task.limit_key, task.worker);
        }
        for (key, slots) in limits {
            let held = held.get(&key).copied().unwrap_or(0);
            if held > slots {
                let detail = format!("{key:?} has {slots} slots and {held} holders");
                self.fail("22 concurrency limits hold at every moment", detail);
            }
        }
    }

    /// A limit was set.
    pub fn limit_set(&self, namespace: &Namespace, key: &LimitKey, slots: Option<u32>) {
        let key = (namespace.clone(), key.clone());
        match slots {
            Some(slots) => self.state().limits.insert(key, slots),
            None => self.state().limits.remove(&key),
        };
    }

    /// A promotion took effect: nothing that is due is left behind it.
    pub fn promoted(&self, store: &MemoryStore, promoted: &Promoted) {
        self.saw_time(promoted.now);
        for run in self.runs(store) {
            self.check_idle(store, &run, promoted.now);
        }
    }

    /// A worker renewed its lease.
    pub fn renewed(&self, info: &WorkerInfo, now: Timestamp) {
        self.saw_time(now);
        let mut state = self.state();
        let (worker, span) = (info.worker, info.lease);
        // A delayed renewal may arrive after the one that says that the worker has stopped.
        let is_stopped = info.status == WorkerStatus::Stopped;
        let old = state.leases.get(&worker).filter(|old| !old.has_lapsed(now));
        let own = old.map_or(now, |old| old.steady_since);
        // A series of renewals that other workers began shows that the store could be reached.
        let others = state.leases.iter().filter(|(key, other)| {
            **key != worker
                && !other.is_stopped
                && other.renewed_at.plus(span.min(other.span) / 2) >= own
        });
        let steady_since = match is_stopped || now < own.plus(span) {
            true => others.map(|(_, other)| other.steady_since).min().map_or(own, |at| at.min(own)),
            false => own,
        };
        state.leases.insert(worker, Lease { span, renewed_at: now, steady_since, is_stopped });
    }

    /// The time and the holders before a pass of the reaper.
    pub fn before_reap(&self, store: &MemoryStore) -> (Timestamp, Snapshot) {
        let now = store.now().now_or_never().and_then(Result::ok).unwrap_or_default();
        let rows = self.runs(store).into_iter().filter(|run| run.turn.worker.is_some());
        let loaded = |run: Run| (run.run_key, Loaded { run, steps: vec![], messages: vec![] });
        let tasks = self.tasks(store, Some(TaskState::Held));
        let tasks = tasks.into_iter().map(|task| (task.task_id, task)).collect();
        (now, Snapshot { runs: rows.map(loaded).collect(), tasks })
    }

    /// A pass of the reaper took effect.
    pub fn reap(
        &self,
        store: &MemoryStore,
        worker: WorkerKey,
        (now, before): &(Timestamp, Snapshot),
        reaped: &Reaped,
    ) {
        let lease = |key: WorkerKey| self.state().leases.get(&key).copied();
        let may = lease(worker).is_some_and(|lease| lease.may_reap(*now));
        if !may {
            self.sim.sometimes("reap was refused to a worker without a steady lease");
            if !reaped.turns.is_empty() || !reaped.tasks.is_empty() {
                let detail = format!("worker {:x} may not reap and did", short(worker.0));
                self.fail("3 who reaps has been live for a whole lease", detail);
            }
        }
        let turns = reaped.turns.iter().map(|key| {
            (Item::Turn(*key), before.runs.get(key).and_then(|row| row.run.turn.hold()))
        });
        let tasks = reaped
            .tasks
            .iter()
            .map(|key| (Item::Task(*key), before.tasks.get(key).and_then(Task::hold)));
        for (item, hold) in turns.chain(tasks) {
            self.sim.sometimes(match item {
                Item::Turn(_) => "reaped a turn",
                Item::Task(_) => "reaped a task",
            });
            let live = |hold: Hold| lease(hold.worker).is_some_and(|lease| lease.is_live(*now));
            if hold.is_none_or(live) {
                let detail = format!("{item:?} was taken from {hold:?}, which is live");
                self.fail("3 only what a dead worker holds is reaped", detail);
            }
            self.check_freed(store, item);
            if let Some(hold) = hold {
                self.state().reaped.insert((item, hold.worker.0, hold.claim_no));
            }
        }
    }

    fn check_freed(&self, store: &MemoryStore, item: Item) {
        let (free, claim_no) = match item {
            Item::Turn(key) => match load(store, vec![key]).pop() {
                Some(row) => (row.run.turn.worker.is_none(), row.run.turn.claim_no),
                None => return,
            },
            Item::Task(key) => {
                let tasks = self.tasks(store, None);
                let Some(task) = tasks.iter().find(|task| task.task_id == key) else { return };
                (task.worker.is_none(), task.claim_no)
            }
        };
        if !free {
            self.fail("22 slots come back", format!("{item:?} was reaped and is held"));
        }
        self.raise(item, claim_no);
    }

    /// A run was looked up by name.
    pub fn found(&self, namespace: &Namespace, id: &RunId, run: Option<&Run>) {
        if let Some(run) = run
            && (run.namespace != *namespace || run.id != *id)
        {
            let detail = format!("asked for {id} of {namespace}, got one of {}", run.namespace);
            self.fail("27 nothing crosses namespaces", detail);
        }
    }

    /// An effect reaches the outside world.
    pub fn effect(&self, task_id: TaskId) {
        let mut state = self.state();
        let count = state.effects.entry(task_id).or_default();
        *count += 1;
        let (again, known) = (*count > 1, state.enqueued.contains_key(&task_id));
        drop(state);
        if again {
            self.sim.sometimes("stale effect ran again under its id");
        }
        if !known {
            let detail =
                format!("effect t{:x} was delivered and never committed", short(task_id.0));
            self.fail("24 an effect exists if and only if its commit did", detail);
        }
    }
}

/// Reads runs from the reference store, which answers at once.
pub(crate) fn load(store: &MemoryStore, keys: Vec<RunKey>) -> Vec<Loaded> {
    store.load(keys).now_or_never().and_then(Result::ok).unwrap_or_default()
}
