//! Listings: paginated by key, each backed by an index and bounded by a limit.

use std::sync::Arc;
use std::time::Duration;

use crate::bodies::BodyOwner;
use crate::body::BodyRef;
use crate::breaker::BreakerRow;
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{
    Collection, EventId, LimitKey, LogId, Namespace, QueueName, RecordId, RouteName, RunId, RunKey,
    StepKey, TaskId, WorkerKey, WorkflowName,
};
use crate::ledger::Event;
use crate::limits::Limits;
use crate::rate::RateRow;
use crate::record::{Record, RecordKey, RecordVersion};
use crate::rows::{
    DeadLetter, LogLevel, LogLine, Message, Run, RunStatus, Setting, Step, Task, Worker,
};
use crate::store::{Capped, RunCount};
use crate::time::Timestamp;

/// A listing. `after` is the key of the last row of the previous page.
///
/// One damaged row must not hide the others: `Runs`, `Settings`, `Tasks` of a namespace, `DeadLetters` and
/// `Workers` leave out a row that cannot be read. The store logs and counts it
/// ([`Store::unreadable_rows`](crate::Store::unreadable_rows)), and reads on until the page is full. A listing
/// of the rows of one run, and of one tree, fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Runs of a namespace by run key, which is the order of creation.
    Runs(RunsQuery),
    /// The keys of all runs of all namespaces, oldest first. Verification and export use it because
    /// it also lists a run whose row is damaged.
    RunKeys {
        /// List rows after this one.
        after: Option<RunKey>,
        /// The most rows.
        limit: u32,
    },
    /// All generations of a run, newest first.
    Generations {
        /// The namespace.
        namespace: Namespace,
        /// The workflow.
        workflow: WorkflowName,
        /// The run.
        id: RunId,
        /// List generations before this one.
        before: Option<u32>,
        /// The most rows.
        limit: u32,
    },
    /// The runs of a tree, including the root, by run key.
    Tree {
        /// The root.
        root: RunKey,
        /// List rows after this one.
        after: Option<RunKey>,
        /// The most rows.
        limit: u32,
    },
    /// Steps of a run in the order in which they were first recorded.
    Steps {
        /// The run.
        run_key: RunKey,
        /// List rows after this position and key.
        after: Option<(u64, StepKey)>,
        /// The most rows.
        limit: u32,
    },
    /// Events of a run by ordinal.
    Events {
        /// The run.
        run_key: RunKey,
        /// List from this ordinal on.
        from: u64,
        /// The most rows.
        limit: u32,
    },
    /// Events of all runs of a tree by time, then id. The order is exact only within a run.
    RootEvents {
        /// The root.
        root: RunKey,
        /// List rows after this time and id.
        after: Option<(Timestamp, EventId)>,
        /// The most rows.
        limit: u32,
    },
    /// One event.
    Event {
        /// The event.
        event_id: EventId,
    },
    /// Messages of a run by sequence number.
    Messages {
        /// The run.
        run_key: RunKey,
        /// List rows after this one.
        after: u64,
        /// The most rows.
        limit: u32,
    },
    /// Tasks of a namespace by id.
    Tasks(TasksQuery),
    /// Log lines of a run by id.
    Logs {
        /// The run.
        run_key: RunKey,
        /// Only lines of this level or above.
        level_min: Option<LogLevel>,
        /// Only lines of this category.
        category: Option<Arc<str>>,
        /// List rows after this one.
        after: Option<LogId>,
        /// The most rows.
        limit: u32,
    },
    /// Workers by key.
    Workers {
        /// List rows after this one.
        after: Option<WorkerKey>,
        /// The most rows.
        limit: u32,
    },
    /// Dead letters of a namespace by task id.
    DeadLetters {
        /// The namespace.
        namespace: Namespace,
        /// Only dead letters of this queue.
        queue: Option<QueueName>,
        /// List rows after this one.
        after: Option<TaskId>,
        /// The most rows.
        limit: u32,
    },
    /// One dead letter.
    DeadLetter {
        /// The task that was given up.
        task_id: TaskId,
    },
    /// Dead letters of a run by task id.
    DeadLettersOfRun {
        /// The run.
        run_key: RunKey,
        /// The most rows.
        limit: u32,
    },
    /// The number of runs with a label, by workflow and status, counting only the newest generation
    /// of each run. It reads only runs with the label.
    LabelCounts {
        /// The namespace.
        namespace: Namespace,
        /// The label.
        label: (String, String),
        /// The most rows.
        limit: u32,
    },
    /// The keys of root runs of a workflow that ended long enough ago to be deleted. The deletion itself
    /// checks the other runs of the tree. Like `RunKeys`, it lists a run whose row is damaged.
    Expired {
        /// The namespace.
        namespace: Namespace,
        /// The workflow.
        workflow: WorkflowName,
        /// How long ago they must have ended, by the store's clock.
        ended_for: Duration,
        /// List rows after this one.
        after: Option<RunKey>,
        /// The most rows.
        limit: u32,
    },
    /// Settings of a kind by name.
    Settings {
        /// The kind.
        kind: Arc<str>,
        /// List rows after this name.
        after: Option<Arc<str>>,
        /// The most rows.
        limit: u32,
    },
    /// Circuit breakers of a namespace by key.
    Breakers {
        /// The namespace.
        namespace: Namespace,
        /// List rows after this one.
        after: Option<LimitKey>,
        /// The most rows.
        limit: u32,
    },
    /// Records of a collection by id, without removed ones.
    Records {
        /// The namespace.
        namespace: Namespace,
        /// The collection.
        collection: Collection,
        /// Only records with this term.
        term: Option<(Arc<str>, Arc<str>)>,
        /// List rows after this one.
        after: Option<RecordId>,
        /// The most rows.
        limit: u32,
    },
    /// The collections of a namespace by name. A collection whose records are all removed is listed until
    /// their rows are deleted.
    Collections {
        /// The namespace.
        namespace: Namespace,
        /// List rows after this one.
        after: Option<Collection>,
        /// The most rows.
        limit: u32,
    },
    /// All records of all namespaces by key, with removed ones, for export and verification.
    AllRecords {
        /// List rows after this one.
        after: Option<RecordKey>,
        /// The most rows.
        limit: u32,
    },
    /// Kept versions of a record, newest first.
    RecordVersions {
        /// The record.
        key: RecordKey,
        /// List versions before this revision.
        before: Option<u64>,
        /// The most rows.
        limit: u32,
    },
    /// Digests and sizes of the large bodies of an owner, by digest.
    Bodies {
        /// The owner.
        owner: BodyOwner,
        /// List rows after this one.
        after: Option<Sha256Digest>,
        /// The most rows.
        limit: u32,
    },
    /// Rates of a namespace by key.
    Rates {
        /// The namespace.
        namespace: Namespace,
        /// List rows after this one.
        after: Option<LimitKey>,
        /// The most rows.
        limit: u32,
    },
    /// Limits of a namespace by key, with their usage.
    Limits {
        /// The namespace.
        namespace: Namespace,
        /// List rows after this one.
        after: Option<LimitKey>,
        /// The most rows.
        limit: u32,
    },
}

/// The filter and the page of a listing of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsQuery {
    /// The namespace.
    pub namespace: Namespace,
    /// Only runs of this workflow.
    pub workflow: Option<WorkflowName>,
    /// Only runs of this status.
    pub status: Option<RunStatus>,
    /// Only runs with this label.
    pub label: Option<(String, String)>,
    /// Only runs whose key was generated at this time or later.
    pub created_from: Option<Timestamp>,
    /// Only runs whose key was generated before this time.
    pub created_before: Option<Timestamp>,
    /// The order.
    pub order: Order,
    /// List rows after this one, in the given order.
    pub after: Option<RunKey>,
    /// The most rows.
    pub limit: u32,
}

impl RunsQuery {
    /// All runs of a namespace, newest first.
    pub fn all(namespace: Namespace, limit: u32) -> Self {
        Self {
            namespace,
            workflow: None,
            status: None,
            label: None,
            created_from: None,
            created_before: None,
            order: Order::Descending,
            after: None,
            limit,
        }
    }

    /// The range of keys of the listed runs: (exclusive lower, exclusive upper). Times become keys,
    /// because a UUIDv7 begins with its creation time in milliseconds.
    pub fn key_range(&self) -> (Option<RunKey>, Option<RunKey>) {
        let floor = |at: Timestamp| {
            let millis = u128::try_from(at.as_millis().max(0)).unwrap_or(0) & 0xffff_ffff_ffff;
            uuid::Uuid::from_u128(millis << 80)
        };
        let below = |key: uuid::Uuid| uuid::Uuid::from_u128(key.as_u128().saturating_sub(1));
        let mut lower = self.created_from.map(|at| RunKey(below(floor(at))));
        let mut upper = self.created_before.map(|at| RunKey(floor(at)));
        match (self.order, self.after) {
            (Order::Ascending, Some(after)) => lower = lower.max(Some(after)),
            (Order::Descending, Some(after)) => {
                upper = Some(upper.map_or(after, |upper| upper.min(after)));
            }
            (_, None) => {}
        }
        (lower, upper)
    }
}

/// The filter and the page of a listing of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TasksQuery {
    /// The namespace.
    pub namespace: Namespace,
    /// Only tasks of this run.
    pub run_key: Option<RunKey>,
    /// Only tasks of this queue.
    pub queue: Option<QueueName>,
    /// Only tasks of this name.
    pub name: Option<RouteName>,
    /// Only tasks in this state.
    pub state: Option<TaskState>,
    /// List rows after this one.
    pub after: Option<TaskId>,
    /// The most rows.
    pub limit: u32,
}

impl TasksQuery {
    /// All tasks of a namespace.
    pub fn all(namespace: Namespace, limit: u32) -> Self {
        Self { namespace, run_key: None, queue: None, name: None, state: None, after: None, limit }
    }

    /// All tasks of a run.
    pub fn of_run(run: &Run, limit: u32) -> Self {
        Self { run_key: Some(run.run_key), ..Self::all(run.namespace.clone(), limit) }
    }
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// A worker can claim it.
    Ready,
    /// It is due later.
    Scheduled,
    /// A worker holds it.
    Held,
}

/// The order of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Oldest first.
    Ascending,
    /// Newest first.
    Descending,
}

impl Query {
    /// The requested number of rows; 1 for a query of one row.
    pub fn limit(&self) -> u32 {
        match self {
            Query::Runs(query) => query.limit,
            Query::Tasks(query) => query.limit,
            Query::Event { .. } | Query::DeadLetter { .. } => 1,
            Query::RunKeys { limit, .. }
            | Query::Generations { limit, .. }
            | Query::Tree { limit, .. }
            | Query::Steps { limit, .. }
            | Query::Events { limit, .. }
            | Query::RootEvents { limit, .. }
            | Query::Messages { limit, .. }
            | Query::Logs { limit, .. }
            | Query::Workers { limit, .. }
            | Query::DeadLetters { limit, .. }
            | Query::DeadLettersOfRun { limit, .. }
            | Query::LabelCounts { limit, .. }
            | Query::Expired { limit, .. }
            | Query::Settings { limit, .. }
            | Query::Breakers { limit, .. }
            | Query::Records { limit, .. }
            | Query::Collections { limit, .. }
            | Query::AllRecords { limit, .. }
            | Query::RecordVersions { limit, .. }
            | Query::Bodies { limit, .. }
            | Query::Rates { limit, .. }
            | Query::Limits { limit, .. } => *limit,
        }
    }

    /// Refuses a page that is empty or too large.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        check_page(self.limit(), limits)
    }
}

/// Refuses a page that is empty or too large.
pub(crate) fn check_page(limit: u32, limits: &Limits) -> Result<(), Error> {
    let max = limits.page_rows_max;
    if limit == 0 || limit > max {
        let message = format!("the page size is {limit}; use 1 to {max}");
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidPageSize, message));
    }
    Ok(())
}

/// The rows of one page. A page with fewer rows than requested is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The result of `Runs`, `Generations` and `Tree`.
    Runs(Vec<Run>),
    /// The result of `RunKeys` and `Expired`.
    RunKeys(Vec<RunKey>),
    /// The result of `Steps`.
    Steps(Vec<Step>),
    /// The result of `Events`, `RootEvents` and `Event`.
    Events(Vec<Event>),
    /// The result of `Messages`.
    Messages(Vec<Message>),
    /// The result of `Tasks`.
    Tasks(Vec<Task>),
    /// The result of `Logs`.
    Logs(Vec<LogLine>),
    /// The result of `Workers`.
    Workers(Vec<Worker>),
    /// The result of `DeadLetters`, `DeadLetter` and `DeadLettersOfRun`.
    DeadLetters(Vec<DeadLetter>),
    /// The result of `LabelCounts`.
    Counts(Vec<RunCount>),
    /// The result of `Breakers`.
    Breakers(Vec<BreakerRow>),
    /// The result of `Rates`.
    Rates(Vec<RateRow>),
    /// The result of `Limits`.
    Limits(Vec<LimitState>),
    /// The result of `Settings`.
    Settings(Vec<Setting>),
    /// The result of `Records` and `AllRecords`.
    Records(Vec<Record>),
    /// The result of `Collections`.
    Collections(Vec<Collection>),
    /// The result of `RecordVersions`.
    RecordVersions(Vec<RecordVersion>),
    /// The result of `Bodies`.
    Bodies(Vec<BodyRef>),
}

/// A concurrency limit and its usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// The key.
    pub key: LimitKey,
    /// How many turns and tasks with this key may be held at once.
    pub slots: u32,
    /// How many are held.
    pub held: u32,
    /// How many ready turns and tasks the limit holds back.
    pub waiting: Capped,
}

macro_rules! unwrap_rows {
    ($($method:ident -> $variant:ident($row:ty)),+ $(,)?) => {
        impl Rows {
            $(
                /// The rows if they have this type; an internal error otherwise.
                pub fn $method(self) -> Result<Vec<$row>, Error> {
                    match self {
                        Rows::$variant(rows) => Ok(rows),
                        _ => {
                            let message = concat!("expected rows of ", stringify!($method), ", found another type");
                            Err(Error::new(ErrorKind::Internal, ErrorCode::Internal, message))
                        }
                    }
                }
            )+
        }
    };
}

unwrap_rows!(
    runs -> Runs(Run),
    run_keys -> RunKeys(RunKey),
    steps -> Steps(Step),
    events -> Events(Event),
    messages -> Messages(Message),
    tasks -> Tasks(Task),
    logs -> Logs(LogLine),
    workers -> Workers(Worker),
    dead_letters -> DeadLetters(DeadLetter),
    counts -> Counts(RunCount),
    breakers -> Breakers(BreakerRow),
    rates -> Rates(RateRow),
    limits -> Limits(LimitState),
    settings -> Settings(Setting),
    records -> Records(Record),
    collections -> Collections(Collection),
    record_versions -> RecordVersions(RecordVersion),
    bodies -> Bodies(BodyRef),
);
