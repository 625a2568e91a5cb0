//! The rows that a store keeps: runs, steps, messages, tasks, workers and logs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{
    EventId, LimitKey, LogId, MessageId, MessageName, ModelName, Namespace, QueueName, RouteName,
    RunId, RunKey, StepKey, StepKind, TaskId, WorkerKey, WorkflowName,
};
use crate::ledger::{CausalRef, Head};
use crate::limits::{Limits, check_max, check_text};
use crate::time::Timestamp;

macro_rules! string_enum {
    ($(#[$doc:meta])* $type:ident, $what:literal, $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$vdoc])* $variant,)+
        }

        impl $type {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The value in the column.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }

            /// Parses the value of the column.
            ///
            /// # Errors
            ///
            /// [`ErrorCode::StoreCorrupt`](crate::ErrorCode::StoreCorrupt) if the text is no value of the column.
            pub fn parse(text: &str) -> Result<Self, Error> {
                match text {
                    $($word => Ok($type::$variant),)+
                    other => Err(Error::corrupt(format!("{other:?} is not a {}", $what))),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

string_enum!(
    /// The status of a run.
    RunStatus, "run status",
    /// Its turn is ready or held.
    Active = "active",
    /// It waits for a time or a message.
    Waiting = "waiting",
    /// An operator paused it. Its timers continue.
    Paused = "paused",
    /// It ended with an output. Final.
    Complete = "complete",
    /// It ended with an error. A retry starts a new generation.
    Errored = "errored",
    /// An operator or a parent ended it. Final.
    Terminated = "terminated",
);

impl RunStatus {
    /// Whether the run has ended.
    pub const fn is_ended(self) -> bool {
        matches!(self, RunStatus::Complete | RunStatus::Errored | RunStatus::Terminated)
    }
}

string_enum!(
    /// The status of a step.
    StepStatus, "step status",
    /// It has not started.
    Pending = "pending",
    /// An attempt is running.
    Running = "running",
    /// It waits for a time or a message.
    Waiting = "waiting",
    /// It has a result.
    Completed = "completed",
    /// It has an error.
    Errored = "errored",
    /// It is not needed.
    Skipped = "skipped",
    /// It was cancelled.
    Cancelled = "cancelled",
);

impl StepStatus {
    /// Whether the outcome of the step is recorded and never changes again.
    pub const fn is_settled(self) -> bool {
        matches!(
            self,
            StepStatus::Completed
                | StepStatus::Errored
                | StepStatus::Skipped
                | StepStatus::Cancelled
        )
    }
}

string_enum!(
    /// The kind of a message.
    MessageKind, "message kind",
    /// An event that a wait may consume.
    Event = "event",
    /// A signal to a state machine.
    Signal = "signal",
    /// Pause, resume, terminate, restart. The holder handles these before all other messages.
    Control = "control",
    /// The outcome of an activity.
    ActivityResult = "activity_result",
    /// The outcome of a child run.
    ChildResult = "child_result",
    /// A request to people has ended.
    Decision = "decision",
    /// An event that was sent to a key instead of a run. Each wait for the key gets at most one.
    KeyedEvent = "keyed_event",
);

string_enum!(
    /// The level of a log line.
    LogLevel, "log level",
    /// For debugging.
    Debug = "debug",
    /// Normal operation.
    Info = "info",
    /// Possibly wrong.
    Warn = "warn",
    /// A failure.
    Error = "error",
);

string_enum!(
    /// The status of a circuit breaker.
    BreakerStatus, "breaker status",
    /// It allows all calls.
    Closed = "closed",
    /// It allows no calls.
    Open = "open",
    /// It allows one probe at a time.
    HalfOpen = "half_open",
);

string_enum!(
    /// The status that a worker reports. It does not fence the worker; only the lease does.
    WorkerStatus, "worker status",
    /// It claims turns and tasks.
    Active = "active",
    /// It finishes what it holds and claims nothing new.
    Draining = "draining",
    /// It has released everything and exited.
    Stopped = "stopped",
);

/// The holder of a turn or a task. `claim_no` is a fencing token: it rises with every claim,
/// release, revocation and reaping, so the hold of a worker that lost it never matches again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The holder.
    pub worker: WorkerKey,
    /// The number of the claim.
    pub claim_no: u64,
}

/// When an unheld turn or task becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// At once.
    Now,
    /// At this time of the store's clock.
    At(Timestamp),
    /// When a message arrives.
    OnMessage,
}

/// The turn of a run: the schedulable part of the run's row. Its holder may commit to the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The queue it is claimed from.
    pub queue: QueueName,
    /// The priority; higher is first.
    pub priority: i16,
    /// Whether a worker can claim it.
    pub ready: bool,
    /// When it is or was due. A claim takes the oldest first.
    pub due_at: Option<Timestamp>,
    /// The holder.
    pub worker: Option<WorkerKey>,
    /// The fencing token; see [`Hold`].
    pub claim_no: u64,
    /// When it was claimed.
    pub claimed_at: Option<Timestamp>,
    /// How often it was reaped since the last commit.
    pub reclaims: u32,
    /// The key of the concurrency limit that it counts against.
    pub limit_key: Option<LimitKey>,
    /// The worker that released it last, which may have the run in its cache.
    pub last_worker: Option<WorkerKey>,
}

impl Turn {
    /// A turn that is ready at once, on the default queue, with priority 0.
    pub fn ready() -> Self {
        Self {
            queue: QueueName::default_queue(),
            priority: 0,
            ready: true,
            due_at: None,
            worker: None,
            claim_no: 0,
            claimed_at: None,
            reclaims: 0,
            limit_key: None,
            last_worker: None,
        }
    }

    /// A turn that its creator already holds.
    pub fn held_by(worker: WorkerKey) -> Self {
        Self { ready: false, worker: Some(worker), claim_no: 1, ..Self::ready() }
    }

    /// A turn that becomes ready at a time.
    pub fn due_at(due_at: Timestamp) -> Self {
        Self { ready: false, due_at: Some(due_at), ..Self::ready() }
    }

    /// The current hold.
    pub fn hold(&self) -> Option<Hold> {
        self.worker.map(|worker| Hold { worker, claim_no: self.claim_no })
    }
}

/// A run: one instance of a workflow and its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Identifies this generation.
    pub run_key: RunKey,
    /// The namespace.
    pub namespace: Namespace,
    /// The workflow.
    pub workflow: WorkflowName,
    /// The model that runs it.
    pub model: ModelName,
    /// The user's id of the run.
    pub id: RunId,
    /// The generation. It rises with restart, retry and continue-as-new; the first is 0.
    pub generation: u32,
    /// The status.
    pub status: RunStatus,
    /// The input.
    pub input: Body,
    /// The digest of the input's raw bytes.
    pub input_hash: Sha256Digest,
    /// The output.
    pub output: Option<Body>,
    /// The error.
    pub error: Option<Body>,
    /// The model's snapshot.
    pub state: Option<Body>,
    /// The end of the ledger.
    pub head: Head,
    /// The last event, which causes the next automatic one.
    pub cursor: EventId,
    /// The root run of its tree; the run itself if it is the root.
    pub root: RunKey,
    /// The parent run.
    pub parent: Option<RunKey>,
    /// The fork branch of the parent that the run executes.
    pub fork: Option<Arc<str>>,
    /// Labels to find the run by.
    pub labels: BTreeMap<String, String>,
    /// The W3C trace context of the start.
    pub trace: Option<Arc<str>>,
    /// Headers besides the input: a JSON object of strings. All generations of the run have them.
    pub headers: Option<Arc<str>>,
    /// The task that the commit which ends the run enqueues; see [`crate::OnEnd`]. All generations
    /// of the run have it.
    pub on_end: Option<Arc<str>>,
    /// The time by which it must end.
    pub deadline_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When the first turn was committed. While this is `None`, the next turn is a first turn.
    pub started_at: Option<Timestamp>,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Retention does not delete the run before this time, regardless of its policy.
    pub retention_until: Option<Timestamp>,
    /// The turn.
    pub turn: Turn,
    /// How many messages it has accepted, which is the sequence number of the last one.
    pub accepted: u64,
    /// How many of them had been read when the turn was released last.
    pub seen: u64,
}

/// A step: a keyed unit of work with at most one recorded outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The run.
    pub run_key: RunKey,
    /// The key in the run.
    pub step_key: StepKey,
    /// The name for people.
    pub name: Arc<str>,
    /// The kind. The model defines it.
    pub kind: StepKind,
    /// The status.
    pub status: StepStatus,
    /// The ledger's next ordinal when the step was first recorded. Steps list in this order.
    pub position: u64,
    /// How many attempts were made.
    pub attempt: u32,
    /// The most attempts; `None` if there is no limit.
    pub attempts_max: Option<u32>,
    /// The input.
    pub input: Option<Body>,
    /// The result.
    pub result: Option<Body>,
    /// The error of the last failed attempt.
    pub error: Option<Body>,
    /// The longest that an attempt may take.
    pub timeout: Option<Duration>,
    /// When it is retried, wakes, or times out.
    pub due_at: Option<Timestamp>,
    /// The name of the message that it waits for.
    pub wait_for: Option<Arc<str>>,
    /// When it was first recorded.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// A message in a run's mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The receiving run.
    pub run_key: RunKey,
    /// The position in the mailbox, from 1, without gaps.
    pub seq: u64,
    /// The sender's id of the message.
    pub message_id: MessageId,
    /// The kind.
    pub kind: MessageKind,
    /// The name.
    pub name: MessageName,
    /// The body.
    pub body: Option<Body>,
    /// The cause.
    pub caused_by: Option<CausalRef>,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// When and by which step it was consumed.
    pub consumed: Option<Consumed>,
}

/// The consumption of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// The step that consumed it, or a name that the model defines.
    pub by: StepKey,
    /// When it was consumed.
    pub at: Timestamp,
}

/// A task: work that is due at a time and that at most one worker holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The unique id.
    pub task_id: TaskId,
    /// The namespace.
    pub namespace: Namespace,
    /// The run that it belongs to.
    pub run_key: Option<RunKey>,
    /// The step that it belongs to.
    pub step_key: Option<StepKey>,
    /// The kind: `activity`, `effect`, … The engine defines it.
    pub kind: Arc<str>,
    /// The queue it is claimed from.
    pub queue: QueueName,
    /// The activity or effect type.
    pub name: RouteName,
    /// The priority; higher is first.
    pub priority: i16,
    /// Whether a worker can claim it.
    pub ready: bool,
    /// When it is or was due. A claim takes the oldest first.
    pub due_at: Option<Timestamp>,
    /// The holder.
    pub worker: Option<WorkerKey>,
    /// The fencing token; see [`Hold`].
    pub claim_no: u64,
    /// When it was claimed.
    pub claimed_at: Option<Timestamp>,
    /// How many attempts have failed.
    pub attempt: u32,
    /// How often it was reaped since a holder last committed.
    pub reclaims: u32,
    /// The body.
    pub body: Option<Body>,
    /// The errors of its failed attempts.
    pub errors: Option<Body>,
    /// The time of the last heartbeat.
    pub heartbeat_at: Option<Timestamp>,
    /// The details of the last heartbeat, for the next attempt to read.
    pub heartbeat: Option<Body>,
    /// The key of the concurrency limit that it counts against.
    pub limit_key: Option<LimitKey>,
    /// The W3C trace context of the commit that enqueued it.
    pub trace: Option<Arc<str>>,
    /// When it was enqueued.
    pub created_at: Timestamp,
}

impl Task {
    /// A ready task that belongs to no run.
    pub fn new(
        task_id: TaskId,
        namespace: Namespace,
        kind: &str,
        route: Route,
        created_at: Timestamp,
    ) -> Self {
        Self {
            task_id,
            namespace,
            run_key: None,
            step_key: None,
            kind: kind.into(),
            queue: route.queue,
            name: route.name,
            priority: 0,
            ready: true,
            due_at: None,
            worker: None,
            claim_no: 0,
            claimed_at: None,
            attempt: 0,
            reclaims: 0,
            body: None,
            errors: None,
            heartbeat_at: None,
            heartbeat: None,
            limit_key: None,
            trace: None,
            created_at,
        }
    }

    /// Assigns the task to a run and its trace.
    pub fn of_run(self, run: &Run) -> Self {
        Self { run_key: Some(run.run_key), trace: run.trace.clone(), ..self }
    }

    /// The current hold.
    pub fn hold(&self) -> Option<Hold> {
        self.worker.map(|worker| Hold { worker, claim_no: self.claim_no })
    }
}

/// A task that was given up, with the errors of its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The task.
    pub task_id: TaskId,
    /// The namespace.
    pub namespace: Namespace,
    /// The run that it belonged to.
    pub run_key: Option<RunKey>,
    /// The step that it belonged to.
    pub step_key: Option<StepKey>,
    /// The kind of the task.
    pub kind: Arc<str>,
    /// The queue.
    pub queue: QueueName,
    /// The activity or effect type.
    pub name: RouteName,
    /// How many attempts have failed.
    pub attempt: u32,
    /// The body.
    pub body: Option<Body>,
    /// The errors of all attempts.
    pub errors: Option<Body>,
    /// Why it was given up, as a short text for people.
    pub reason: Arc<str>,
    /// When it was given up.
    pub dead_at: Timestamp,
    /// How often it was requeued.
    pub requeues: u32,
    /// When it was requeued; `None` again if it was given up once more.
    pub requeued_at: Option<Timestamp>,
}

/// A durable log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The unique id. Lines list in this order.
    pub log_id: LogId,
    /// The run.
    pub run_key: RunKey,
    /// The step.
    pub step_key: Option<StepKey>,
    /// The attempt.
    pub attempt: Option<u32>,
    /// The level.
    pub level: LogLevel,
    /// The author's category; the engine uses `system`.
    pub category: Arc<str>,
    /// The text.
    pub message: Arc<str>,
    /// Structured data.
    pub data: Option<Body>,
    /// Whether it was written during replay.
    pub replay: bool,
    /// When it was written.
    pub created_at: Timestamp,
}

/// A queue and the name of the code to run: a workflow for turns, an activity or effect for tasks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The queue.
    pub queue: QueueName,
    /// The workflow, activity or effect.
    pub name: RouteName,
}

/// The data that a worker reports when it renews its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Identifies this process.
    pub worker: WorkerKey,
    /// The name for people: the configured one, or host and process id.
    pub name: Arc<str>,
    /// The build.
    pub version: Arc<str>,
    /// The status.
    pub status: WorkerStatus,
    /// How long the worker counts as live after a renewal.
    pub lease: Duration,
    /// The workflows whose turns it claims.
    pub turns: Vec<Route>,
    /// The tasks that it claims.
    pub tasks: Vec<Route>,
    /// The most turns and tasks that it holds at once.
    pub slots: u32,
    /// Why it claims nothing new, if so.
    pub note: Option<Arc<str>>,
    /// How many turns and tasks it holds.
    pub load: u32,
    /// The most tasks that it holds at once.
    pub task_slots: u32,
    /// How many tasks it holds.
    pub task_load: u32,
    /// Whether it claims new turns and tasks.
    pub accepting: bool,
    /// The group of workers that it belongs to, for people.
    pub group: Arc<str>,
    /// The host name; empty if unknown.
    pub host: Arc<str>,
    /// Successful attempts of tasks since the process started.
    pub tasks_completed: u64,
    /// Failed attempts of tasks since the process started.
    pub tasks_failed: u64,
    /// The total duration of those attempts.
    pub tasks_took: Duration,
}

/// The name of a setting. Its kind says which component reads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SettingName {
    /// The kind, such as `retention`.
    pub kind: Arc<str>,
    /// The name within the kind.
    pub name: Arc<str>,
}

impl SettingName {
    /// A setting's name. `kind` and `name` must not be empty.
    pub fn new(kind: &str, name: &str) -> Self {
        Self { kind: kind.into(), name: name.into() }
    }

    /// Refuses a name or a value that is empty or too large.
    pub fn validate(&self, value: Option<&Body>, limits: &Limits) -> Result<(), Error> {
        for (what, text) in [("the kind", &self.kind), ("the name", &self.name)] {
            if text.is_empty() {
                let message = format!("{what} of a setting is empty");
                return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidSetting, message));
            }
            check_text(&format!("{what} of a setting"), text, limits.setting_name_chars_max)?;
        }
        let bytes = value.map_or(0, |value| value.bytes.len());
        check_max("the value of a setting", "bytes", bytes, limits.setting_bytes_max)
    }
}

/// A small value that all processes of a store share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name.
    pub name: SettingName,
    /// The value.
    pub value: Body,
    /// When it was set, by the store's clock.
    pub updated_at: Timestamp,
}

/// A registered worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The data of its last renewal.
    pub info: WorkerInfo,
    /// The time of the first renewal.
    pub started_at: Timestamp,
    /// The time of the last renewal.
    pub renewed_at: Timestamp,
    /// The start of the current unbroken series of renewals, those of other workers included.
    pub steady_since: Timestamp,
    /// Whether an operator asked it to drain.
    pub drain: bool,
}

impl Worker {
    /// Whether its holds are still valid.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.info.status != WorkerStatus::Stopped && now <= self.renewed_at.plus(self.info.lease)
    }

    /// Continues the series of renewals of other workers. They show that the store could be reached,
    /// so a worker that did not renew meanwhile is dead, and not kept from the store by an outage. In
    /// a fleet whose members crash all the time nobody else would live long enough to reap. A pause of
    /// half a lease without any renewal ends the series, and so leaves live workers time to renew.
    pub fn steady_with<'a>(&self, others: impl IntoIterator<Item = &'a Worker>) -> Timestamp {
        let continues = |other: &&Worker| {
            let pause = self.info.lease.min(other.info.lease) / 2;
            other.info.worker != self.info.worker
                && other.info.status != WorkerStatus::Stopped
                && other.renewed_at.plus(pause) >= self.steady_since
        };
        let since = others.into_iter().filter(continues).map(|other| other.steady_since);
        since.min().map_or(self.steady_since, |since| since.min(self.steady_since))
    }

    /// Whether it may reap holds of other workers. It must have been live for a whole lease, or
    /// continue a series of renewals that is as old ([`Worker::steady_with`]); otherwise the first
    /// worker that comes back after an outage would reap all the others.
    pub fn may_reap(&self, now: Timestamp) -> bool {
        self.is_live(now) && now >= self.steady_since.plus(self.info.lease)
    }
}
