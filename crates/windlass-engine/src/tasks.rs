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
    CANCEL_LATE, CANCEL_RUN, CANCEL_TREE, CARRY_OVER, internal_queue, internal_routes,
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
}

pub(crate) fn failure(name: &str, message: String, retryable: bool) -> TaskFailure {
    TaskFailure { name: name.into(), message, retryable, retry_after: None }
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
