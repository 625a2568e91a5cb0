//! Listings: keyset-paginated, each backed by an index, each within a limit.

use std::sync::Arc;
use std::time::Duration;

use crate::breaker::BreakerRow;
use crate::error::{Error, ErrorKind};
use crate::ids::{
    EventId, LimitKey, LogId, Namespace, QueueName, RouteName, RunId, RunKey, StepKey, TaskId,
    WorkerKey, WorkflowName,
};
use crate::ledger::Event;
use crate::limits::Limits;
use crate::rows::{
    DeadLetter, LogLevel, LogLine, Message, Run, RunStatus, Setting, Step, Task, Worker,
};
use crate::store::{Capped, RunCount};
use crate::time::Timestamp;

/// What to list, and from where. `after` is the key of the last row of the page before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Runs of a namespace by run key, which is by creation.
    Runs(RunsQuery),
    /// The keys of all runs of all namespaces, oldest first: for verification and export, which
    /// must be able to name a run whose row does not read.
    RunKeys {
        /// List those after this one.
        after: Option<RunKey>,
        /// How many at most.
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
        /// List those before this generation.
        before: Option<u32>,
        /// How many at most.
        limit: u32,
    },
    /// The runs of a tree, the root among them, by run key.
    Tree {
        /// The root.
        root: RunKey,
        /// List those after this one.
        after: Option<RunKey>,
        /// How many at most.
        limit: u32,
    },
    /// Steps of a run by the order in which they were first recorded.
    Steps {
        /// The run.
        run_key: RunKey,
        /// List those after this position and key.
        after: Option<(u64, StepKey)>,
        /// How many at most.
        limit: u32,
    },
    /// Events of a run by ordinal.
    Events {
        /// The run.
        run_key: RunKey,
        /// List from this ordinal on.
        from: u64,
        /// How many at most.
        limit: u32,
    },
    /// Events of all runs of a tree by time, then id; exact order is only within a run.
    RootEvents {
        /// The root.
        root: RunKey,
        /// List those after this time and id.
        after: Option<(Timestamp, EventId)>,
        /// How many at most.
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
        /// List those after this one.
        after: u64,
        /// How many at most.
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
        /// List those after this one.
        after: Option<LogId>,
        /// How many at most.
        limit: u32,
    },
    /// Workers by key.
    Workers {
        /// List those after this one.
        after: Option<WorkerKey>,
        /// How many at most.
        limit: u32,
    },
    /// Dead letters of a namespace by task id.
    DeadLetters {
        /// The namespace.
        namespace: Namespace,
        /// Only those of this queue.
        queue: Option<QueueName>,
        /// List those after this one.
        after: Option<TaskId>,
        /// How many at most.
        limit: u32,
    },
    /// One dead letter.
    DeadLetter {
        /// The task that died.
        task_id: TaskId,
    },
    /// Dead letters of a run by task id.
    LettersOfRun {
        /// The run.
        run_key: RunKey,
        /// How many at most.
        limit: u32,
    },
    /// How many runs with a label are in which status, each run in its newest generation, by workflow
    /// and status. It looks at the runs with the label and at no others.
    LabelCounts {
        /// The namespace.
        namespace: Namespace,
        /// The label.
        label: (String, String),
        /// How many at most.
        limit: u32,
    },
    /// Roots of a workflow that have been ended for long enough to be deleted, by run key. Whether
    /// the rest of a tree has is for whoever deletes it.
    Expired {
        /// The namespace.
        namespace: Namespace,
        /// The workflow.
        workflow: WorkflowName,
        /// How long they must have been ended, by the store's clock.
        ended_for: Duration,
        /// List those after this one.
        after: Option<RunKey>,
        /// How many at most.
        limit: u32,
    },
    /// Settings of a kind by name.
    Settings {
        /// The kind.
        kind: Arc<str>,
        /// List those after this name.
        after: Option<Arc<str>>,
        /// How many at most.
        limit: u32,
    },
    /// Circuit breakers of a namespace by key.
    Breakers {
        /// The namespace.
        namespace: Namespace,
        /// List those after this one.
        after: Option<LimitKey>,
        /// How many at most.
        limit: u32,
    },
    /// Limits of a namespace by key, with their holders.
    Limits {
        /// The namespace.
        namespace: Namespace,
        /// List those after this one.
        after: Option<LimitKey>,
        /// How many at most.
        limit: u32,
    },
}

/// Which runs to list.
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
    /// Only runs whose key was made at this time or later.
    pub created_from: Option<Timestamp>,
    /// Only runs whose key was made before this time.
    pub created_before: Option<Timestamp>,
    /// Which end to begin at.
    pub order: Order,
    /// List those beyond this one, in the given order.
    pub after: Option<RunKey>,
    /// How many at most.
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

    /// The keys between which the listed runs lie: (exclusive lower, exclusive upper). Times
    /// become keys, because a UUIDv7 begins with the milliseconds at which it was made.
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

/// Which tasks to list.
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
    /// List those after this one.
    pub after: Option<TaskId>,
    /// How many at most.
    pub limit: u32,
}

impl TasksQuery {
    /// All tasks of a namespace.
    pub fn all(namespace: Namespace, limit: u32) -> Self {
        Self { namespace, run_key: None, queue: None, name: None, state: None, after: None, limit }
    }

    /// All tasks that work for a run.
    pub fn of_run(run: &Run, limit: u32) -> Self {
        Self { run_key: Some(run.run_key), ..Self::all(run.namespace.clone(), limit) }
    }
}

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskState {
    /// It can be claimed.
    Ready,
    /// It is due later.
    Scheduled,
    /// Somebody holds it.
    Held,
}

/// Which end a listing begins at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Oldest first.
    Ascending,
    /// Newest first.
    Descending,
}

impl Query {
    /// How many rows are asked for. A query for one row asks for one.
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
            | Query::LettersOfRun { limit, .. }
            | Query::LabelCounts { limit, .. }
            | Query::Expired { limit, .. }
            | Query::Settings { limit, .. }
            | Query::Breakers { limit, .. }
            | Query::Limits { limit, .. } => *limit,
        }
    }

    /// Refuses a page that is empty or too large.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        let (limit, max) = (self.limit(), limits.page_rows_max);
        if limit == 0 || limit > max {
            let message = format!("a page of {limit} rows is asked for; use 1 to {max}");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_PAGE_SIZE", message));
        }
        Ok(())
    }
}

/// The rows of one page. A page with fewer rows than asked for is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Answers `Runs`, `Generations`, `Tree` and `Expired`.
    Runs(Vec<Run>),
    /// Answers `RunKeys`.
    RunKeys(Vec<RunKey>),
    /// Answers `Steps`.
    Steps(Vec<Step>),
    /// Answers `Events`, `RootEvents` and `Event`.
    Events(Vec<Event>),
    /// Answers `Messages`.
    Messages(Vec<Message>),
    /// Answers `Tasks`.
    Tasks(Vec<Task>),
    /// Answers `Logs`.
    Logs(Vec<LogLine>),
    /// Answers `Workers`.
    Workers(Vec<Worker>),
    /// Answers `DeadLetters`, `DeadLetter` and `LettersOfRun`.
    DeadLetters(Vec<DeadLetter>),
    /// Answers `LabelCounts`.
    Counts(Vec<RunCount>),
    /// Answers `Breakers`.
    Breakers(Vec<BreakerRow>),
    /// Answers `Limits`.
    Limits(Vec<LimitState>),
    /// Answers `Settings`.
    Settings(Vec<Setting>),
}

/// A limit and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// The key.
    pub key: LimitKey,
    /// How many may hold at once.
    pub slots: u32,
    /// How many do.
    pub held: u32,
    /// How many turns and tasks are ready under the key: what the limit holds back.
    pub waiting: Capped,
}

macro_rules! unwrap_rows {
    ($($method:ident -> $variant:ident($row:ty)),+ $(,)?) => {
        impl Rows {
            $(
                /// The rows, if they are of this kind; an internal error otherwise.
                pub fn $method(self) -> Result<Vec<$row>, Error> {
                    match self {
                        Rows::$variant(rows) => Ok(rows),
                        _ => {
                            let message = concat!("a listing of ", stringify!($method), " gave other rows");
                            Err(Error::new(ErrorKind::Internal, "INTERNAL", message))
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
    limits -> Limits(LimitState),
    settings -> Settings(Setting),
);
