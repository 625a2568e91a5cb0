//! The rows: what a store keeps of runs, steps, messages, tasks, workers and logs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::body::Body;
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorKind};
use crate::ids::{
    EventId, LimitKey, LogId, MessageId, MessageName, ModelName, Namespace, QueueName, RouteName,
    RunId, RunKey, StepKey, TaskId, WorkerKey, WorkflowName,
};
use crate::ledger::{CausalRef, Head};
use crate::limits::{Limits, check_max, check_text};
use crate::time::Timestamp;

macro_rules! words {
    ($(#[$doc:meta])* $type:ident, $what:literal, $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$vdoc])* $variant,)+
        }

        impl $type {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The word that stands in the column.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }

            /// Reads the word that stands in the column.
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

words!(
    /// Where a run is.
    RunStatus, "run status",
    /// It has a turn to take, or one is being taken.
    Active = "active",
    /// It waits for a time or a message.
    Waiting = "waiting",
    /// An operator stopped it; its timers go on.
    Paused = "paused",
    /// It ended with an output. Final.
    Complete = "complete",
    /// It ended with an error. Only a new generation can follow.
    Errored = "errored",
    /// Somebody ended it. Final.
    Terminated = "terminated",
);

impl RunStatus {
    /// Whether the run has ended.
    pub const fn is_ended(self) -> bool {
        matches!(self, RunStatus::Complete | RunStatus::Errored | RunStatus::Terminated)
    }
}

words!(
    /// Where a step is.
    StepStatus, "step status",
    /// It is to be done.
    Pending = "pending",
    /// Somebody is doing it.
    Running = "running",
    /// It waits for a time or a message.
    Waiting = "waiting",
    /// Its result is recorded.
    Completed = "completed",
    /// Its error is recorded.
    Errored = "errored",
    /// It was not needed.
    Skipped = "skipped",
    /// It was called off.
    Cancelled = "cancelled",
);

impl StepStatus {
    /// Whether the step has its one result and never changes again.
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

words!(
    /// What kind of thing was sent to a run.
    MessageKind, "message kind",
    /// An event that a wait may consume.
    Event = "event",
    /// A signal to a state machine.
    Signal = "signal",
    /// Pause, resume, terminate, restart: read before anything else.
    Control = "control",
    /// The outcome of an activity.
    ActivityResult = "activity_result",
    /// The outcome of a child run.
    ChildResult = "child_result",
    /// A decision about an approval.
    Decision = "decision",
);

words!(
    /// How much a log line matters.
    LogLevel, "log level",
    /// For whoever hunts a bug.
    Debug = "debug",
    /// Worth reading once.
    Info = "info",
    /// Worth a look.
    Warn = "warn",
    /// Something failed.
    Error = "error",
);

words!(
    /// Whether a circuit breaker lets calls through.
    BreakerStatus, "breaker status",
    /// It does.
    Closed = "closed",
    /// It does not.
    Open = "open",
    /// It lets one through at a time, to see.
    HalfOpen = "half_open",
);

words!(
    /// What a worker says of itself. It fences nothing: only the lease does.
    WorkerStatus, "worker status",
    /// Takes work.
    Active = "active",
    /// Finishes what it holds and takes nothing new.
    Draining = "draining",
    /// Has released what it held and gone.
    Stopped = "stopped",
);

/// Who holds a turn or a task. `claim_no` is the fence: it rises at every claim, release,
/// revocation and reaping, so a holder that lost its hold can never match again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The holder.
    pub worker: WorkerKey,
    /// The number of the claim under which it holds.
    pub claim_no: u64,
}

/// When an unheld turn or task becomes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// At once.
    Now,
    /// When the store's clock shows this time.
    At(Timestamp),
    /// When a message arrives, and not before.
    OnMessage,
}

/// The turn of a run: the task that is part of the run's own row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The queue it is claimed from.
    pub queue: QueueName,
    /// Higher first.
    pub priority: i16,
    /// Whether it can be claimed.
    pub ready: bool,
    /// When it is or was due; the age of a ready turn.
    pub due_at: Option<Timestamp>,
    /// Who holds it.
    pub worker: Option<WorkerKey>,
    /// The fence; see [`Hold`].
    pub claim_no: u64,
    /// When it was claimed.
    pub claimed_at: Option<Timestamp>,
    /// How often it was reaped since its last commit.
    pub reclaims: u32,
    /// The key under which its holder counts against a limit.
    pub limit_key: Option<LimitKey>,
    /// Who gave it back last, and may still have the run in memory.
    pub last: Option<WorkerKey>,
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
            last: None,
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

    /// Who holds it, if anybody.
    pub fn hold(&self) -> Option<Hold> {
        self.worker.map(|worker| Hold { worker, claim_no: self.claim_no })
    }
}

/// A run: where one execution of a workflow is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Names this generation.
    pub run_key: RunKey,
    /// The tenant.
    pub namespace: Namespace,
    /// The program.
    pub workflow: WorkflowName,
    /// The model that runs it.
    pub model: ModelName,
    /// The user's name for the run.
    pub id: RunId,
    /// Rises on restart, retry and continue-as-new; the first is 0.
    pub generation: u32,
    /// Where it is.
    pub status: RunStatus,
    /// What it was started with.
    pub input: Body,
    /// The digest of the input's raw bytes.
    pub input_hash: Sha256Digest,
    /// What it ended with.
    pub output: Option<Body>,
    /// Why it failed.
    pub error: Option<Body>,
    /// A model's snapshot.
    pub state: Option<Body>,
    /// The end of its ledger.
    pub head: Head,
    /// Its last event: the cause of its next automatic one.
    pub cursor: EventId,
    /// The run at the top of its tree; itself if it is at the top.
    pub root: RunKey,
    /// The run that started it as a child.
    pub parent: Option<RunKey>,
    /// The branch of its parent's fork that it is.
    pub fork: Option<Arc<str>>,
    /// Small strings to find it by.
    pub labels: BTreeMap<String, String>,
    /// The W3C trace context it was started in.
    pub trace: Option<Arc<str>>,
    /// What came beside the input, a JSON object of strings. Every generation of the run has it.
    pub headers: Option<Arc<str>>,
    /// What the commit that ends it enqueues; see [`crate::OnEnd`]. Every generation of the run has it.
    pub on_end: Option<Arc<str>>,
    /// When it must have ended.
    pub deadline_at: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When its first turn was committed. A turn of a run without it is a first turn.
    pub started_at: Option<Timestamp>,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Retention does not delete it before this time, whatever its policy says.
    pub retention_until: Option<Timestamp>,
    /// Its turn.
    pub turn: Turn,
    /// How many messages it accepted: the sequence number of the last one.
    pub accepted: u64,
    /// How many of them the last released turn had read.
    pub seen: u64,
}

/// A step: a keyed unit of work with at most one recorded result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The run it belongs to.
    pub run_key: RunKey,
    /// Its key in the run.
    pub step_key: StepKey,
    /// What people call it.
    pub name: Arc<str>,
    /// What it is: `do`, `sleep`, `event`, `child`, `activity`, …; a word of the model.
    pub kind: Arc<str>,
    /// Where it is.
    pub status: StepStatus,
    /// The ledger's next ordinal when it was first recorded: the order in which steps list.
    pub position: u64,
    /// How often it was tried.
    pub attempt: u32,
    /// How often it may be tried; no bound if there is none.
    pub attempts_max: Option<u32>,
    /// What it was given.
    pub input: Option<Body>,
    /// What it gave.
    pub result: Option<Body>,
    /// Why it failed, or failed last.
    pub error: Option<Body>,
    /// How long an attempt may take.
    pub timeout: Option<Duration>,
    /// When it is tried again, wakes, or gives up waiting.
    pub due_at: Option<Timestamp>,
    /// The name of the message it waits for.
    pub wait_for: Option<Arc<str>>,
    /// When it was first recorded.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

/// A message that a run accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The run it was sent to.
    pub run_key: RunKey,
    /// Its place in the run's mailbox, from 1, without gaps.
    pub seq: u64,
    /// The sender's id for it.
    pub message_id: MessageId,
    /// What it is.
    pub kind: MessageKind,
    /// Its name.
    pub name: MessageName,
    /// What it carries.
    pub body: Option<Body>,
    /// What caused it to be sent.
    pub caused_by: Option<CausalRef>,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// When it was consumed, and by what.
    pub consumed: Option<Consumed>,
}

/// Who consumed a message, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// The step that did, or a word of the model.
    pub by: StepKey,
    /// When it did.
    pub at: Timestamp,
}

/// A task: work that is due at a time and that one worker may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Names it.
    pub task_id: TaskId,
    /// The tenant.
    pub namespace: Namespace,
    /// The run it works for.
    pub run_key: Option<RunKey>,
    /// The step it works for.
    pub step_key: Option<StepKey>,
    /// What it is: `activity`, `effect`, …; a word of the engine.
    pub kind: Arc<str>,
    /// The queue it is claimed from.
    pub queue: QueueName,
    /// What is to be run.
    pub name: RouteName,
    /// Higher first.
    pub priority: i16,
    /// Whether it can be claimed.
    pub ready: bool,
    /// When it is or was due; the age of a ready task.
    pub due_at: Option<Timestamp>,
    /// Who holds it.
    pub worker: Option<WorkerKey>,
    /// The fence; see [`Hold`].
    pub claim_no: u64,
    /// When it was claimed.
    pub claimed_at: Option<Timestamp>,
    /// How often it failed.
    pub attempt: u32,
    /// How often it was reaped since it last made progress.
    pub reclaims: u32,
    /// What it carries.
    pub body: Option<Body>,
    /// The errors of its failed attempts.
    pub errors: Option<Body>,
    /// When an attempt last said that it is alive.
    pub beat_at: Option<Timestamp>,
    /// What an attempt last said of its progress, for the next one to read.
    pub beat: Option<Body>,
    /// The key under which its holder counts against a limit.
    pub limit_key: Option<LimitKey>,
    /// The W3C trace context it was enqueued in.
    pub trace: Option<Arc<str>>,
    /// When it was enqueued.
    pub created_at: Timestamp,
}

impl Task {
    /// A task that is ready and works for no run.
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
            beat_at: None,
            beat: None,
            limit_key: None,
            trace: None,
            created_at,
        }
    }

    /// The same task for a run, in its trace.
    pub fn of_run(self, run: &Run) -> Self {
        Self { run_key: Some(run.run_key), trace: run.trace.clone(), ..self }
    }

    /// Who holds it, if anybody.
    pub fn hold(&self) -> Option<Hold> {
        self.worker.map(|worker| Hold { worker, claim_no: self.claim_no })
    }
}

/// A task that was given up, with the history of its errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The task that died.
    pub task_id: TaskId,
    /// The tenant.
    pub namespace: Namespace,
    /// The run it worked for.
    pub run_key: Option<RunKey>,
    /// The step it worked for.
    pub step_key: Option<StepKey>,
    /// What it was.
    pub kind: Arc<str>,
    /// The queue it was claimed from.
    pub queue: QueueName,
    /// What was to be run.
    pub name: RouteName,
    /// How often it failed.
    pub attempt: u32,
    /// What it carried.
    pub body: Option<Body>,
    /// The errors of all attempts.
    pub errors: Option<Body>,
    /// Why it was given up: a short text for people.
    pub reason: Arc<str>,
    /// When it was given up.
    pub dead_at: Timestamp,
    /// How often it was requeued.
    pub requeues: u32,
    /// When it was requeued, if nothing has been given up since.
    pub requeued_at: Option<Timestamp>,
}

/// A durable log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Names it; lines list in this order.
    pub log_id: LogId,
    /// The run that wrote it.
    pub run_key: RunKey,
    /// The step that wrote it.
    pub step_key: Option<StepKey>,
    /// The attempt that wrote it.
    pub attempt: Option<u32>,
    /// How much it matters.
    pub level: LogLevel,
    /// The author's category; `system` is the engine's.
    pub category: Arc<str>,
    /// The text.
    pub message: Arc<str>,
    /// Data beside the text.
    pub data: Option<Body>,
    /// Whether it was written during replay.
    pub replay: bool,
    /// When it was written.
    pub created_at: Timestamp,
}

/// What is claimed: a queue, and on it a workflow's name (turns) or a task's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The queue.
    pub queue: QueueName,
    /// The workflow, activity or effect.
    pub name: RouteName,
}

/// What a worker says of itself when it renews.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Names this life of the process.
    pub worker: WorkerKey,
    /// What people call it: host and process id, or what was configured.
    pub name: Arc<str>,
    /// The build that it runs.
    pub version: Arc<str>,
    /// What it says of itself.
    pub status: WorkerStatus,
    /// How long it lives without renewing.
    pub lease: Duration,
    /// The workflows whose turns it takes.
    pub turns: Vec<Route>,
    /// The tasks it takes.
    pub tasks: Vec<Route>,
    /// How many turns and tasks it holds at most.
    pub slots: u32,
    /// Why it takes nothing new, if so.
    pub note: Option<Arc<str>>,
    /// How many turns and tasks it holds.
    pub load: u32,
    /// How many of its slots are for tasks.
    pub task_slots: u32,
    /// How many tasks it holds.
    pub task_load: u32,
    /// Whether it takes something new.
    pub accepting: bool,
    /// The group of workers that it belongs to, for people.
    pub group: Arc<str>,
    /// The machine that it runs on, if it is known.
    pub host: Arc<str>,
    /// Attempts at tasks that succeeded here since it began.
    pub tasks_completed: u64,
    /// Attempts at tasks that failed here since it began.
    pub tasks_failed: u64,
    /// How long all those attempts together took.
    pub tasks_took: Duration,
}

/// What a setting is called: its kind says who reads it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SettingName {
    /// What it is for, such as `retention`.
    pub kind: Arc<str>,
    /// Which of that kind.
    pub name: Arc<str>,
}

impl SettingName {
    /// A setting's name; `kind` and `name` must not be empty.
    pub fn new(kind: &str, name: &str) -> Self {
        Self { kind: kind.into(), name: name.into() }
    }

    /// Refuses a name or a value that is empty or too large.
    pub fn validate(&self, value: Option<&Body>, limits: &Limits) -> Result<(), Error> {
        for (what, text) in [("the kind", &self.kind), ("the name", &self.name)] {
            if text.is_empty() {
                let message = format!("{what} of a setting is empty");
                return Err(Error::new(ErrorKind::Invalid, "INVALID_SETTING", message));
            }
            check_text(&format!("{what} of a setting"), text, limits.setting_name_chars_max)?;
        }
        let bytes = value.map_or(0, |value| value.bytes.len());
        check_max("the value of a setting", "bytes", bytes, limits.setting_bytes_max)
    }
}

/// A small value that all processes on a store share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// What it is called.
    pub name: SettingName,
    /// What it is.
    pub value: Body,
    /// When it was set, by the store's clock.
    pub updated_at: Timestamp,
}

/// A worker as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// What it said of itself.
    pub info: WorkerInfo,
    /// When it first renewed.
    pub started_at: Timestamp,
    /// When it last renewed.
    pub renewed_at: Timestamp,
    /// Since when it has renewed without a gap.
    pub steady_since: Timestamp,
    /// Whether somebody asked it to finish what it holds and to take nothing new.
    pub drain: bool,
}

impl Worker {
    /// Whether it still holds what it claimed.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.info.status != WorkerStatus::Stopped && now <= self.renewed_at.plus(self.info.lease)
    }

    /// Whether it may free what others hold: it has been live for a whole lease, so an outage
    /// cannot make the first worker that comes back kill all the others.
    pub fn may_reap(&self, now: Timestamp) -> bool {
        self.is_live(now) && now >= self.steady_since.plus(self.info.lease)
    }
}
