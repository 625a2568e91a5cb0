//! Tasks: activities and effects, claimed from queues, run beside turns, settled in one commit.

mod attempt;
mod context;
mod internal;
mod runner;
mod table;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{Body, BoxFuture, QueueName, RetryPolicy};

use crate::breakers::TaskBreaker;

pub use self::context::TaskContext;
pub(crate) use self::internal::{
    AWAIT_KEY, CANCEL_LATE, CANCEL_RUN, CANCEL_TREE, CARRY_OVER, CARRY_STEPS, DELIVER_KEY,
    FORGET_KEY, FORGET_RECEIPT, FORGET_REQUEST, REQUEST_DUE, TIDY_KEY, WITHDRAW_REQUEST,
    internal_queue, internal_routes,
};
pub(crate) use self::runner::TaskRunner;
pub(crate) use self::table::{Claim, TaskReservation, Tasks};

/// The queue of effects: outside side effects, delivered at least once under a stable id. A model
/// enqueues an effect with the commit that needs it, so the effect exists if and only if that commit
/// succeeded.
pub const EFFECTS_QUEUE: &str = "effects";

/// Runs the attempts of a task.
pub trait TaskHandler: Send + Sync + 'static {
    /// Runs one attempt.
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult>;
}

/// The result of an attempt.
pub type TaskResult = Result<Body, TaskFailure>;

/// Why an attempt failed.
#[derive(Clone, Debug)]
pub struct TaskFailure {
    /// The error's name, which a retry policy can list.
    pub name: String,
    /// A message for people.
    pub message: String,
    /// Whether another attempt can help.
    pub retryable: bool,
    /// The least time before another attempt, if the callee named one.
    pub retry_after: Option<Duration>,
    /// The cause, which decides how the engine treats the failure. The name never does: user code
    /// chooses it.
    pub cause: FailureCause,
}

impl TaskFailure {
    /// A failure of user code.
    pub fn new(name: impl Into<String>, message: impl Into<String>, retryable: bool) -> Self {
        let (name, message) = (name.into(), message.into());
        Self { name, message, retryable, retry_after: None, cause: FailureCause::Error }
    }

    /// This process cannot run the task; it is left to others.
    pub fn not_here(message: impl Into<String>) -> Self {
        let (name, message, cause) = ("NotHere".into(), message.into(), FailureCause::NotHere);
        Self { name, message, retryable: true, retry_after: None, cause }
    }

    /// The callee asks to be called later. The attempt does not count.
    pub fn is_rate_limited(&self) -> bool {
        self.cause == FailureCause::RateLimited
    }
}

/// The cause of a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureCause {
    /// User code failed.
    #[default]
    Error,
    /// The callee asks to be called later. It does not count as an attempt.
    RateLimited,
    /// This process cannot run the task. The task is left to another process, or to this one after its
    /// next start, and no attempt is spent.
    NotHere,
    /// A time ran out.
    Timeout(TimeoutKind),
}

/// A timeout of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutKind {
    /// No worker began it in time.
    ScheduleToStart,
    /// An attempt took too long.
    StartToClose,
    /// An attempt went too long without a heartbeat.
    Heartbeat,
    /// All attempts together took too long.
    ScheduleToClose,
}

impl TimeoutKind {
    /// The name of the error.
    pub const fn error_name(self) -> &'static str {
        match self {
            Self::ScheduleToStart => "ScheduleToStartTimeout",
            Self::StartToClose => "Timeout",
            Self::Heartbeat => "HeartbeatTimeout",
            Self::ScheduleToClose => "ScheduleToCloseTimeout",
        }
    }
}

/// The stored body of a task: the input, and how to run it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskBody {
    /// The input.
    pub input: Box<RawValue>,
    /// The retry policy.
    pub retry: RetryPolicy,
    /// How long one attempt may take, in milliseconds.
    pub start_to_close_ms: Option<u64>,
    /// How long an attempt may go without a heartbeat, in milliseconds.
    pub heartbeat_ms: Option<u64>,
    /// The deadline of all attempts together, in microseconds since 1970 by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub close_by: Option<i64>,
    /// The circuit breaker in front of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<TaskBreaker>,
    /// Whether the commit that settles an effect writes a receipt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub receipt: bool,
    /// Whether the commit that settles a delivered effect wakes the run that enqueued it, with the message
    /// [`crate::EFFECT_DELIVERED`]. Its receipt says what became of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wakes_run: bool,
}

pub(crate) fn failure(name: &str, message: String, retryable: bool) -> TaskFailure {
    TaskFailure::new(name, message, retryable)
}

pub(crate) fn timed_out(kind: TimeoutKind, message: String) -> TaskFailure {
    let retryable = kind != TimeoutKind::ScheduleToClose;
    let cause = FailureCause::Timeout(kind);
    TaskFailure { cause, ..failure(kind.error_name(), message, retryable) }
}

pub(crate) fn effects_queue() -> QueueName {
    QueueName::from_stored(EFFECTS_QUEUE)
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}
