//! The store: what the engine asks of a database.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::breaker::BreakerRow;
use crate::census::{Census, Tally};
use crate::commit::{Commit, CommitError, Committed};
use crate::error::Error;
use crate::ids::{LimitKey, Namespace, RunId, RunKey, TaskId, WorkerKey, WorkflowName};
use crate::ledger::Head;
use crate::limits::{Limits, check_max};
use crate::query::{Query, Rows};
use crate::rate::RateRow;
use crate::rows::{Hold, Message, Route, Run, RunStatus, SettingName, Step, Task, WorkerInfo};
use crate::time::Timestamp;

/// A boxed future: one allocation beside a database transaction is free.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What [`Store::commit`] answers: one result for each commit, in order.
pub type CommitResults = Vec<Result<Committed, CommitError>>;

/// Keeps runs, steps, events, messages and tasks, and decides who holds what and when it is due.
///
/// `commit` is the only write of what happened. The other writes change who holds a thing and
/// when it is due. All times are the store's own.
pub trait Store: Send + Sync + 'static {
    /// Writes commits in one transaction where it can; each holds or fails alone, and as if they
    /// had been written one after the other in the given order. An answer of `Ok` is durable.
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults>;

    /// The store's clock. Where the store has no server, it never runs behind its last commit.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>>;

    /// Takes ready turns and tasks, in order: priority, resumed before first turns, oldest first.
    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>>;

    /// Gives back holds without progress: what is still held under them becomes ready again.
    /// Answers how many were.
    fn release(&self, holds: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>>;

    /// Notes that attempts are alive, and what they say of their progress. Answers of each whether it
    /// is still held: whoever lost a task need not go on.
    fn beat(&self, beats: Vec<Beat>) -> BoxFuture<'_, Result<Vec<bool>, Error>>;

    /// Takes a turn from whoever holds it, for a commit that must not wait. The earlier holder's
    /// commits conflict from now on. `None` if there is no such run or it has ended.
    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>>;

    /// Readies what is due, at most `limit` turns and `limit` tasks, oldest first.
    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>>;

    /// Registers a worker, or renews its lease.
    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>>;

    /// Asks a worker to finish what it holds and to take nothing new: it learns so when it renews.
    /// `false` if there is none with this key, or it has stopped.
    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>>;

    /// Frees at most `limit` turns and `limit` tasks whose holder is not live, if `worker` may.
    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>>;

    /// Everything that a worker's key holds, so that it can adopt or release what it forgot.
    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>>;

    /// Runs with all their steps and unconsumed messages, each in one snapshot with its
    /// `accepted` counter. Runs that do not exist are left out; the others keep their order.
    fn load(&self, run_keys: Vec<RunKey>) -> BoxFuture<'_, Result<Vec<Loaded>, Error>>;

    /// The newest generation of a run.
    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>>;

    /// The newest generation of a run with its open steps. For people: it has every commit that was
    /// acknowledged before, but a step that is settled while this reads may be left out, and what
    /// somebody wrote around the store may be missing for a moment.
    fn look(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Looked>, Error>> {
        Box::pin(async move {
            let Some(run) = self.find(namespace, workflow, id).await? else { return Ok(None) };
            if run.status.is_ended() {
                return Ok(Some(Looked { run, open_steps: Vec::new() }));
            }
            let loaded = self.load(vec![run.run_key]).await?.into_iter().next();
            Ok(Some(loaded.map_or_else(
                || Looked { run, open_steps: Vec::new() },
                |mut loaded| {
                    loaded.steps.retain(|step| !step.status.is_settled());
                    Looked { run: loaded.run, open_steps: loaded.steps }
                },
            )))
        })
    }

    /// As [`Store::look`], at the generation that a key names.
    fn look_at(&self, run_key: RunKey) -> BoxFuture<'_, Result<Option<Looked>, Error>> {
        Box::pin(async move {
            let loaded = self.load(vec![run_key]).await?.into_iter().next();
            Ok(loaded.map(|mut loaded| {
                let ended = loaded.run.status.is_ended();
                loaded.steps.retain(|step| !ended && !step.status.is_settled());
                Looked { run: loaded.run, open_steps: loaded.steps }
            }))
        })
    }

    /// One page of a listing.
    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>>;

    /// Counts and ages, at a cost that does not grow with what has ended or sleeps.
    fn health(&self) -> BoxFuture<'_, Result<Health, Error>>;

    /// What a namespace has, at a cost that does not grow with what has ended or sleeps.
    fn census(&self, namespace: Namespace) -> BoxFuture<'_, Result<Census, Error>>;

    /// Adds to the figures of minutes, and forgets those of minutes that are no longer kept. An answer
    /// that is lost may mean either, and nothing depends on it.
    fn tally(&self, tallies: Vec<Tally>) -> BoxFuture<'_, Result<(), Error>>;

    /// The figures of a namespace over the minutes that are kept, by name and field; each with the
    /// minute in which it is asked.
    fn tallied(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<Tally>, Error>>;

    /// Sets how many may hold under a key at once; `None` lifts the limit.
    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// A circuit breaker as it is, if there is one, and the store's clock.
    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>>;

    /// Puts a breaker in the place of the one whose version is one less; one of version 1 is put if
    /// there is none. Answers whether it was. `updated_at` is the store's.
    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>>;

    /// The rate of a key as it is, if there is one, and the store's clock.
    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>>;

    /// Puts a rate in the place of the one whose version is one less; one of version 1 is put if there
    /// is none. Answers whether it was. With `tell`, all processes are woken to look at everything.
    fn swap_rate(&self, row: RateRow, tell: bool) -> BoxFuture<'_, Result<bool, Error>>;

    /// Keeps a small value that all processes on the store share; `None` forgets it.
    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// Deletes trees of runs, each whole or not at all: only if every run of it has been ended for
    /// long enough, no task works for any of them, and no earlier generation of its root is kept.
    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>>;

    /// Deletes dead letters of a namespace. Answers how many of them were there.
    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>>;

    /// Looks for damage below the rows, as far as the database can tell: one sentence a finding.
    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>>;

    /// What the database says of itself, for the people who look after it. Nothing where there is no
    /// database.
    fn facts(&self) -> BoxFuture<'_, Result<Vec<Fact>, Error>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Calls `sink` after commits that made something ready, here or in another process. A hint:
    /// it may come late, twice or not at all, and it must not block.
    fn listen(&self, sink: WakeSink);

    /// Stops taking calls, after those that were taken.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}

/// What is called with each wake-up.
pub type WakeSink = Arc<dyn Fn(Wakeup) + Send + Sync>;

/// Something became ready, or will.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wakeup {
    /// A turn of this route can be claimed.
    Turn(Route),
    /// A task of this route can be claimed.
    Task(Route),
    /// Something was scheduled for this time.
    Due(Timestamp),
    /// A control message came for this run: whoever holds its turn should read it.
    Control(RunKey),
    /// This worker was asked to drain.
    Drain(WorkerKey),
    /// Wake-ups may have been missed: look at everything.
    Missed,
}

/// What a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Who asks.
    pub worker: WorkerKey,
    /// The turns it takes.
    pub turns: Want,
    /// The tasks it takes.
    pub tasks: Want,
    /// What comes first.
    pub order: ClaimOrder,
    /// For how long a turn that became ready is left to the worker that gave it back last, which may
    /// have the run in memory.
    pub offer: Duration,
}

/// How many of what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Only these.
    pub routes: Vec<Route>,
    /// At most so many.
    pub max: u32,
}

/// What comes first in a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimOrder {
    /// Higher priority, then resumed turns, then the oldest.
    Priority,
    /// The oldest, whatever its priority, so that nothing starves.
    Oldest,
}

/// A run and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The run.
    pub run: Run,
    /// Its steps that have not been settled, in their order; none of an ended run.
    pub open_steps: Vec<Step>,
}

/// What a worker got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Turns, in the order of the claim.
    pub turns: Vec<ClaimedTurn>,
    /// Tasks, in the order of the claim.
    pub tasks: Vec<Task>,
    /// The store's clock.
    pub now: Timestamp,
}

/// A turn that a worker got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedTurn {
    /// The run.
    pub run_key: RunKey,
    /// The tenant.
    pub namespace: Namespace,
    /// The program.
    pub workflow: WorkflowName,
    /// The run's status.
    pub status: RunStatus,
    /// The hold.
    pub hold: Hold,
    /// The end of the ledger: a sticky run goes on only if it remembers this one.
    pub head: Head,
    /// The run's `accepted` counter.
    pub accepted: u64,
    /// How often it was reaped since its last commit.
    pub reclaims: u32,
}

/// Something that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HeldItem {
    /// A turn.
    Turn {
        /// The run.
        run_key: RunKey,
        /// The holder.
        worker: WorkerKey,
        /// The claim.
        claim_no: u64,
    },
    /// A task.
    Task {
        /// The task.
        task_id: TaskId,
        /// The holder.
        worker: WorkerKey,
        /// The claim.
        claim_no: u64,
    },
}

/// A sign of life of an attempt at a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// The task.
    pub task_id: TaskId,
    /// The hold under which it is being done.
    pub hold: Hold,
    /// What the next attempt may read; `None` leaves what was said before.
    pub details: Option<Body>,
}

impl Beat {
    /// Refuses details that are too large, in any of them.
    pub fn validate(beats: &[Self], limits: &Limits) -> Result<(), Error> {
        beats.iter().filter_map(|beat| beat.details.as_ref()).try_for_each(|details| {
            let max = limits.beat_bytes_max;
            check_max("what a heartbeat says", "bytes", details.len(), max)
        })
    }
}

/// What became ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// How many turns.
    pub turns: u32,
    /// How many tasks.
    pub tasks: u32,
    /// When the next turn or task is due that is not ready; earlier than `now` if the limit cut
    /// the promotion short.
    pub next_due: Option<Timestamp>,
    /// The store's clock.
    pub now: Timestamp,
}

/// What a worker learns when it renews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The store's clock.
    pub now: Timestamp,
    /// Whether its lease had run out before: what it held may be somebody else's.
    pub lapsed: bool,
    /// Whether it may reap.
    pub may_reap: bool,
    /// Runs whose turn it holds and that have unread control messages.
    pub control: Vec<RunKey>,
    /// Whether it was asked to drain.
    pub drain: bool,
}

/// What was freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Whether the worker may reap at all.
    pub permitted: bool,
    /// Runs whose turn was freed.
    pub turns: Vec<RunKey>,
    /// Tasks that were freed.
    pub tasks: Vec<TaskId>,
}

/// Which trees to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTrees {
    /// Their roots.
    pub roots: Vec<RunKey>,
    /// How long all their runs must have been ended, by the store's clock.
    pub ended_for: Duration,
    /// Whether their events stay: as the proof of what happened, without the bodies.
    pub keep_ledger: bool,
}

impl DeleteTrees {
    /// Refuses more trees at once than the limit.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        check_max("a deletion", "trees", self.roots.len(), limits.delete_trees_max)
    }
}

/// What was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The roots of the trees that are gone, in the order in which they were named.
    pub roots: Vec<RunKey>,
    /// How many runs they had.
    pub runs: u64,
}

/// A run with what a turn needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The run.
    pub run: Run,
    /// Its steps, by position and key.
    pub steps: Vec<Step>,
    /// Its messages that were not consumed, by sequence number.
    pub messages: Vec<Message>,
}

/// A count that stops at a bound, so that it costs no more than the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capped {
    /// The count, or the bound.
    pub count: u64,
    /// Whether there are more.
    pub more: bool,
}

impl Capped {
    /// The bound.
    pub const MAX: u64 = 10_000;

    /// From a count that was taken up to one more than the bound.
    pub fn new(count: u64) -> Self {
        Self { count: count.min(Self::MAX), more: count > Self::MAX }
    }
}

impl std::fmt::Display for Capped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.count, if self.more { "+" } else { "" })
    }
}

/// Counts and ages of turns, or of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueHealth {
    /// Those that can be claimed.
    pub ready: Capped,
    /// Since when the oldest of them has been due.
    pub ready_oldest: Option<Timestamp>,
    /// Those that are due later.
    pub scheduled: Capped,
    /// When the first of them is due.
    pub scheduled_next: Option<Timestamp>,
    /// Those that somebody holds.
    pub held: Capped,
}

/// Something that a database says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What it is about, in a word or two.
    pub name: &'static str,
    /// What it is.
    pub value: String,
    /// Why somebody should do something about it, and what.
    pub worry: Option<String>,
}

impl Fact {
    /// A fact that nobody needs to worry about.
    pub fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), worry: None }
    }

    /// The fact with what is wrong about it, if anything is.
    pub fn worry(mut self, worry: Option<String>) -> Self {
        self.worry = worry;
        self
    }
}

/// How many runs of a workflow are in a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunCount {
    /// The tenant.
    pub namespace: Namespace,
    /// The program.
    pub workflow: WorkflowName,
    /// The status.
    pub status: RunStatus,
    /// How many; never zero.
    pub count: u64,
}

/// How a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Runs by namespace, workflow and status, in that order.
    pub runs: Vec<RunCount>,
    /// Turns of all namespaces.
    pub turns: QueueHealth,
    /// Tasks of all namespaces.
    pub tasks: QueueHealth,
    /// Dead letters of all namespaces.
    pub dead_letters: Capped,
    /// Workers that are live.
    pub workers_live: u64,
    /// The store's clock.
    pub now: Timestamp,
}
