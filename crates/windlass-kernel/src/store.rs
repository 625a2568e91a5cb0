//! The store trait: the operations that the engine needs from a database.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::bodies::{self, BodyKey};
use crate::body::Body;
use crate::breaker::BreakerRow;
use crate::commit::{Commit, CommitError, Committed};
use crate::error::{Error, ErrorCode};
use crate::ids::{LimitKey, Namespace, RunId, RunKey, StepKind, TaskId, WorkerKey, WorkflowName};
use crate::ledger::Head;
use crate::limits::{Limits, check_max};
use crate::namespace_stats::{NamespaceStats, TaskStat};
use crate::query::{Query, Rows};
use crate::rate::RateRow;
use crate::record::{Record, RecordKey};
use crate::rows::{Hold, Message, Route, Run, RunStatus, SettingName, Step, Task, WorkerInfo};
use crate::time::Timestamp;

// A record that is written all the time is read at most so often again.
const REREADS_MAX: u32 = 8;

/// A boxed future. One allocation costs nothing next to a database transaction.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The results of [`Store::commit`]: one for each commit, in order.
pub type CommitResults = Vec<Result<Committed, CommitError>>;

/// Stores runs, steps, events, messages and tasks, and decides which worker holds which of them.
///
/// Only `commit` writes what happened to a run. The other writes change holds and due times. All
/// times come from the store's clock.
///
/// # Errors
///
/// Every call can fail because the database cannot be reached or is damaged.
/// [`ErrorKind`](crate::ErrorKind) says whether the call may have had an effect.
pub trait Store: Send + Sync + 'static {
    /// Writes commits, in one transaction if possible. Each succeeds or fails separately, with the
    /// same result as if they were written one after the other in the given order. `Ok` means that
    /// the commit is durable.
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults>;

    /// The store's clock. In a store without a server, it is never before the last commit.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>>;

    /// Claims ready turns and tasks. The order is: priority, resumed turns before first turns,
    /// oldest first.
    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>>;

    /// Releases holds without progress: the rows that are still held under them become ready again.
    /// Returns how many were still held.
    fn release(&self, holds: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>>;

    /// Records heartbeats and their details. Returns for each whether the task is still held; a
    /// worker can stop an attempt whose task it lost.
    fn heartbeat(&self, heartbeats: Vec<Heartbeat>) -> BoxFuture<'_, Result<Vec<bool>, Error>>;

    /// Takes a turn away from its holder, for a commit that must not wait. Later commits of the old
    /// holder conflict. `None` if the run does not exist or has ended.
    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>>;

    /// Makes due turns and tasks ready, at most `limit` of each, oldest first.
    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>>;

    /// Registers a worker, or renews its lease.
    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>>;

    /// Asks a worker to drain: to finish what it holds and claim nothing new. The worker learns it
    /// at its next renewal. `false` if there is no such worker, or it has stopped.
    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>>;

    /// Releases at most `limit` turns and `limit` tasks whose holder is not live, if `worker` may
    /// reap. Also deletes old rows of workers, breakers and rates.
    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>>;

    /// Everything that a worker holds, so that it can resume or release holds that it does not know
    /// of.
    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>>;

    /// Loads runs with all their steps and with large bodies; see [`Store::load_rows`].
    fn load(&self, run_keys: Vec<RunKey>) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        self.load_with(run_keys, LoadSteps::All)
    }

    /// Like [`Store::load_rows`], with the data of the large bodies.
    fn load_with(
        &self,
        run_keys: Vec<RunKey>,
        steps: LoadSteps,
    ) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        Box::pin(async move {
            let mut loaded = self.load_rows(run_keys, steps).await?;
            bodies::fill(self, bodies::of_loaded(&mut loaded)).await?;
            Ok(loaded)
        })
    }

    /// Loads runs with the selected steps and all unconsumed messages. Each run is read in one
    /// snapshot with its `accepted` counter. Runs that do not exist are left out; the others keep
    /// their order. Bodies of other steps are not read, so the cost grows with the number of steps
    /// but not with their size. Large bodies are references.
    fn load_rows(
        &self,
        run_keys: Vec<RunKey>,
        steps: LoadSteps,
    ) -> BoxFuture<'_, Result<Vec<Loaded>, Error>>;

    /// Reads large bodies, one result for each key in order. At most
    /// [`BODIES_MAX`](crate::bodies::BODIES_MAX) keys.
    fn bodies(&self, keys: Vec<BodyKey>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Error>>;

    /// Finds the newest generation of a run. Large bodies are references.
    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>>;

    /// The newest generation of a run and its open steps, for display. It includes every commit
    /// that was acknowledged before the call. A step that is settled during the call may be
    /// missing, and so may recent writes that bypassed the store. Large bodies are references.
    fn run_overview(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<RunOverview>, Error>> {
        Box::pin(async move {
            let Some(run) = self.find(namespace, workflow, id).await? else { return Ok(None) };
            if run.status.is_ended() {
                return Ok(Some(RunOverview { run, open_steps: Vec::new() }));
            }
            let overview = self.run_overview_by_key(run.run_key).await?;
            Ok(Some(overview.unwrap_or(RunOverview { run, open_steps: Vec::new() })))
        })
    }

    /// One generation of a run and its open steps, in one snapshot. This is enough to end a run or
    /// to report its state, and its cost does not grow with the settled steps. Large bodies are
    /// references.
    fn run_overview_by_key(
        &self,
        run_key: RunKey,
    ) -> BoxFuture<'_, Result<Option<RunOverview>, Error>> {
        Box::pin(async move {
            let loaded = self.load_rows(vec![run_key], LoadSteps::Open).await?.into_iter().next();
            Ok(loaded.map(|Loaded { run, mut steps, .. }| {
                steps.retain(|_| !run.status.is_ended());
                RunOverview { run, open_steps: steps }
            }))
        })
    }

    /// Like [`Store::record_rows`], with the data of the large bodies. If a record is written between
    /// the two reads, it is read again.
    fn records(&self, keys: Vec<RecordKey>) -> BoxFuture<'_, Result<Vec<Option<Record>>, Error>> {
        Box::pin(async move {
            let mut attempts = 0;
            loop {
                let mut found = self.record_rows(keys.clone()).await?;
                let places = bodies::of_records(found.iter_mut().flatten());
                match bodies::fill(self, places).await {
                    // A write deletes the body of the revision before, if no version keeps it.
                    Err(error)
                        if error.code() == ErrorCode::StoreCorrupt && attempts < REREADS_MAX =>
                    {
                        attempts += 1;
                    }
                    filled => return filled.map(|()| found),
                }
            }
        })
    }

    /// Reads records in one snapshot, one result for each key in order: the row, also of a removed
    /// record, or `None` if it never existed. At most `records_per_commit_max` keys. Large bodies are
    /// references.
    fn record_rows(
        &self,
        keys: Vec<RecordKey>,
    ) -> BoxFuture<'_, Result<Vec<Option<Record>>, Error>>;

    /// Reads one page of a listing. Large bodies are references.
    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>>;

    /// Counts and ages. The cost does not grow with ended or sleeping runs.
    fn health(&self) -> BoxFuture<'_, Result<Health, Error>>;

    /// Counts of a namespace. The cost does not grow with ended or sleeping runs.
    fn namespace_stats(&self, namespace: Namespace)
    -> BoxFuture<'_, Result<NamespaceStats, Error>>;

    /// Adds figures to their minutes and deletes minutes that are no longer kept. If the answer is
    /// lost, the figures may or may not have been added; nothing depends on it.
    fn add_task_stats(&self, stats: Vec<TaskStat>) -> BoxFuture<'_, Result<(), Error>>;

    /// The figures of a namespace over the kept minutes, summed by name and field. Their minute is
    /// the current one.
    fn task_stats(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<TaskStat>, Error>>;

    /// Sets how many turns and tasks with a key may be held at once. `None` removes the limit.
    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// Reads a circuit breaker and the store's clock.
    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>>;

    /// Replaces the breaker whose version is one less; version 1 is inserted if there is none.
    /// Returns whether it was replaced. The store sets `updated_at`.
    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>>;

    /// Reads the rate of a key and the store's clock.
    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>>;

    /// Replaces the rate whose version is one less; version 1 is inserted if there is none. Returns
    /// whether it was replaced. With `notify`, the store sends [`Wakeup::Missed`] to all processes.
    fn swap_rate(&self, row: RateRow, notify: bool) -> BoxFuture<'_, Result<bool, Error>>;

    /// Stores a small value that all processes of the store share. `None` deletes it.
    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>>;

    /// Deletes trees of runs. A tree is deleted as a whole, and only if all its runs ended long
    /// enough ago, no task belongs to any of them, and no earlier generation of its root exists.
    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>>;

    /// Deletes the rows of records that were removed long enough ago and have no kept version. Looks at
    /// one page of removed records, in the order of collection, namespace and id.
    fn delete_removed_records(
        &self,
        request: DeleteRemovedRecords,
    ) -> BoxFuture<'_, Result<DeletedRecords, Error>>;

    /// Deletes dead letters of a namespace. Returns how many existed.
    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>>;

    /// Looks for damage below the level of rows, as far as the database can detect it. Returns one
    /// sentence for each finding.
    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>>;

    /// Properties of the database for operators. Empty for a store without a database.
    fn facts(&self) -> BoxFuture<'_, Result<Vec<Fact>, Error>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// How many turns and how many tasks are ready, each counted up to `max`: unlike [`Store::health`]
    /// beyond the bound of [`Capped`].
    fn ready_counts(&self, max: u64) -> BoxFuture<'_, Result<(u64, u64), Error>> {
        Box::pin(async move {
            let Health { turns, tasks, .. } = self.health().await?;
            Ok((turns.ready.count.min(max), tasks.ready.count.min(max)))
        })
    }

    /// How many different rows listings have left out since the store was opened, because they could not
    /// be read; see [`Query`]. The store logs each of them.
    fn unreadable_rows(&self) -> u64 {
        0
    }

    /// The limits with which the store was opened, if it has some: an engine refuses to start with
    /// higher ones.
    fn limits(&self) -> Option<&Limits> {
        None
    }

    /// Calls `sink` after commits that made something ready, in this process or another. It is a
    /// hint: it may come late, twice or not at all. `sink` must not block.
    fn listen(&self, sink: WakeSink);

    /// Resolves with the reason when the store has closed itself after a failure from which it
    /// cannot recover, for example a failed fsync. Every later call fails with `Closed`, so the
    /// process should end with a non-zero exit code and open the store again. Never resolves
    /// otherwise, [`Store::close`] included.
    fn closed(&self) -> BoxFuture<'_, Error> {
        Box::pin(std::future::pending())
    }

    /// Refuses new calls and waits for the accepted ones.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>>;
}

/// A callback that receives wake-ups.
pub type WakeSink = Arc<dyn Fn(Wakeup) + Send + Sync>;

/// A hint that something became ready or was scheduled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wakeup {
    /// A turn of this route can be claimed.
    Turn(Route),
    /// A task of this route can be claimed.
    Task(Route),
    /// Something is due at this time.
    Due(Timestamp),
    /// A control message arrived for this run. The holder of its turn should read it.
    Control(RunKey),
    /// This worker was asked to drain.
    Drain(WorkerKey),
    /// Wake-ups may have been lost: check everything.
    Missed,
}

/// A request of a worker to claim turns and tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// The worker.
    pub worker: WorkerKey,
    /// The turns that it wants.
    pub turns: ClaimFilter,
    /// The tasks that it wants.
    pub tasks: ClaimFilter,
    /// The order.
    pub order: ClaimOrder,
    /// How long a ready turn is reserved for the worker that released it last, which may have the
    /// run in its cache.
    pub offer: Duration,
}

/// A filter and a maximum for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimFilter {
    /// Only these routes.
    pub routes: Vec<Route>,
    /// The most rows.
    pub max: u32,
    /// The namespace that was served last: the claim begins with the next one. Without it, it begins
    /// with the first.
    pub after: Option<Namespace>,
}

/// The order in which a claim takes the rows of one namespace. Namespaces take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimOrder {
    /// Higher priority, then resumed turns, then the oldest.
    Priority,
    /// The oldest first, regardless of priority, so that nothing starves.
    Oldest,
}

/// A run and its open steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOverview {
    /// The run.
    pub run: Run,
    /// Its steps that are not settled, in their order; empty if the run has ended.
    pub open_steps: Vec<Step>,
}

/// The result of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// Turns, in the order of the claim.
    pub turns: Vec<ClaimedTurn>,
    /// Tasks, in the order of the claim.
    pub tasks: Vec<Task>,
    /// Whether ready turns may be left that the claim passed over, because another transaction had
    /// locked them or they are reserved for another worker. No wake-up comes for them, so the worker
    /// claims again soon.
    pub passed_over: bool,
    /// The store's clock.
    pub now: Timestamp,
}

/// A claimed turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedTurn {
    /// The run.
    pub run_key: RunKey,
    /// The namespace.
    pub namespace: Namespace,
    /// The workflow.
    pub workflow: WorkflowName,
    /// The run's status.
    pub status: RunStatus,
    /// The hold.
    pub hold: Hold,
    /// The end of the ledger. A cached run may continue only if its own head equals this one.
    pub head: Head,
    /// The run's `accepted` counter.
    pub accepted: u64,
    /// How often it was reaped since its last commit.
    pub reclaims: u32,
}

/// A turn or a task that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HeldItem {
    /// A turn.
    Turn {
        /// The run.
        run_key: RunKey,
        /// The holder.
        worker: WorkerKey,
        /// The claim number.
        claim_no: u64,
    },
    /// A task.
    Task {
        /// The task.
        task_id: TaskId,
        /// The holder.
        worker: WorkerKey,
        /// The claim number.
        claim_no: u64,
    },
}

/// A heartbeat of an attempt of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The task.
    pub task_id: TaskId,
    /// The hold of the worker.
    pub hold: Hold,
    /// Details for the next attempt to read; `None` keeps the previous ones.
    pub details: Option<Body>,
}

impl Heartbeat {
    /// Refuses details that are too large.
    pub fn validate(heartbeats: &[Self], limits: &Limits) -> Result<(), Error> {
        heartbeats.iter().filter_map(|heartbeat| heartbeat.details.as_ref()).try_for_each(
            |details| {
                let max = limits.heartbeat_bytes_max;
                check_max("the details of a heartbeat", "bytes", details.len(), max)
            },
        )
    }
}

/// The result of a promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promoted {
    /// How many turns became ready.
    pub turns: u32,
    /// How many tasks became ready.
    pub tasks: u32,
    /// The due time of the next turn or task that is not ready. It is before `now` if the limit
    /// stopped the promotion.
    pub next_due: Option<Timestamp>,
    /// The store's clock.
    pub now: Timestamp,
}

/// The result of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The store's clock.
    pub now: Timestamp,
    /// Whether the lease had expired. Other workers may have reaped its holds.
    pub lapsed: bool,
    /// Whether it may reap.
    pub may_reap: bool,
    /// Runs whose turn it holds and that have unread control messages.
    pub control: Vec<RunKey>,
    /// Whether it was asked to drain.
    pub drain: bool,
    /// When the first lease of another live worker ends, unless that worker renews it.
    pub next_lapse: Option<Timestamp>,
}

/// The result of a reaping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Whether the worker may reap.
    pub permitted: bool,
    /// Runs whose turn was released.
    pub turns: Vec<RunKey>,
    /// Tasks that were released.
    pub tasks: Vec<TaskId>,
}

/// A request to delete trees of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTrees {
    /// The roots of the trees.
    pub roots: Vec<RunKey>,
    /// How long ago all their runs must have ended, by the store's clock.
    pub ended_for: Duration,
    /// Whether to keep the events, which prove what happened without the bodies.
    pub keep_ledger: bool,
    /// Whether a tree stays as long as a newer generation of its root, with its tree, is not over itself:
    /// a retry of some models reads the rows of the generations before.
    pub keep_for_newer: bool,
}

impl DeleteTrees {
    /// Refuses more trees at once than the limit.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        check_max("a deletion", "trees", self.roots.len(), limits.delete_trees_max)
    }
}

/// The result of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// The roots of the deleted trees, in the order of the request.
    pub roots: Vec<RunKey>,
    /// How many runs were deleted.
    pub runs: u64,
}

/// A request to delete the rows of removed records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteRemovedRecords {
    /// Whether to look at the collections of the engine and its models, or at all others.
    pub reserved: bool,
    /// How long ago a record must have been removed, by the store's clock.
    pub removed_for: Duration,
    /// The last record that the request before looked at.
    pub after: Option<RecordKey>,
    /// At how many removed records to look.
    pub limit: u32,
}

impl DeleteRemovedRecords {
    /// Refuses a page that is empty or too large.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        crate::query::check_page(self.limit, limits)
    }
}

/// The result of a deletion of removed records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedRecords {
    /// How many rows were deleted.
    pub deleted: u64,
    /// How many removed records keep their row for now.
    pub left: u64,
    /// Where the next request goes on; none if this one looked at the last removed record.
    pub next: Option<RecordKey>,
}

/// The steps of a run to load. Bodies of other steps are not read.
///
/// "Last" means last in the order of steps, which is by position and key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoadSteps {
    /// All steps.
    #[default]
    All,
    /// Steps that are not settled.
    Open,
    /// Steps that are not settled, and the last settled step.
    OpenAndLastSettled,
    /// Steps that are not settled, and the settled steps whose position is not before the position of
    /// the last settled step of this kind. All steps if no step of this kind is settled.
    ///
    /// For a model whose steps of one kind record its progress and whose other steps belong to the
    /// next of them.
    OpenAndFromLast(StepKind),
}

impl LoadSteps {
    /// Removes steps that are not selected from all steps of a run, which are in order.
    pub fn retain(&self, steps: &mut Vec<Step>) {
        let settled = |step: &Step| step.status.is_settled();
        match self {
            Self::All => {}
            Self::Open => steps.retain(|step| !settled(step)),
            Self::OpenAndLastSettled => {
                let last = steps.iter().rev().find(|step| settled(step));
                let last = last.map(|step| step.step_key.clone());
                steps.retain(|step| !settled(step) || Some(&step.step_key) == last.as_ref());
            }
            Self::OpenAndFromLast(kind) => {
                let of_kind = |step: &&Step| settled(step) && step.kind == *kind;
                let from = steps.iter().rev().find(of_kind).map_or(0, |step| step.position);
                steps.retain(|step| !settled(step) || step.position >= from);
            }
        }
    }
}

/// A run with the rows that a turn needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The run.
    pub run: Run,
    /// The selected steps, by position and key.
    pub steps: Vec<Step>,
    /// Its unconsumed messages, by sequence number.
    pub messages: Vec<Message>,
}

/// A count up to a bound, so that counting never costs more than the bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capped {
    /// The count, or the bound.
    pub count: u64,
    /// Whether the real count is higher.
    pub more: bool,
}

impl Capped {
    /// The bound.
    pub const MAX: u64 = 10_000;

    /// Converts a count that was taken up to the bound plus one.
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
    /// Rows that can be claimed.
    pub ready: Capped,
    /// The due time of the oldest of them.
    pub ready_oldest: Option<Timestamp>,
    /// Rows that are due later.
    pub scheduled: Capped,
    /// The due time of the first of them.
    pub scheduled_next: Option<Timestamp>,
    /// Rows that a worker holds.
    pub held: Capped,
}

/// A property of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// A short name.
    pub name: &'static str,
    /// The value.
    pub value: String,
    /// The problem with the value, and how to fix it.
    pub warning: Option<String>,
}

impl Fact {
    /// A fact without a warning.
    pub fn new(name: &'static str, value: impl Into<String>) -> Self {
        Self { name, value: value.into(), warning: None }
    }

    /// Sets or clears the warning.
    pub fn warning(mut self, warning: Option<String>) -> Self {
        self.warning = warning;
        self
    }
}

/// The number of runs of a workflow with a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunCount {
    /// The namespace.
    pub namespace: Namespace,
    /// The workflow.
    pub workflow: WorkflowName,
    /// The status.
    pub status: RunStatus,
    /// The number of runs; never zero.
    pub count: u64,
}

/// Counts and ages of a whole store.
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
