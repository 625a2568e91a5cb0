//! Activities: work that may fail and is tried again, done by whatever worker serves its type.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;
use windlass_engine::{Engine, FailureCause, TaskContext, TaskFailure, TaskHandler, TaskResult};
use windlass_kernel::{
    Body, BoxFuture, Error, IntoDuration, Limits, QueueName, Route, RouteName, RunKey,
};

use crate::any_error::AnyError;
use crate::run::check_body;

/// A unit of work with an effect. An attempt that fails is tried again as the schedule's policy says,
/// so it must bear being done twice: [`ActivityContext::idempotency_key`] is the same for all attempts.
///
/// ```
/// use windlass::machines::{Activity, ActivityContext, ActivityError};
///
/// struct Parse;
///
/// impl Activity for Parse {
///     const TYPE: &'static str = "parse";
///     type Input = String;
///     type Output = u32;
///
///     async fn execute(&self, _: &ActivityContext, text: String) -> Result<u32, ActivityError> {
///         Ok(text.parse()?)
///     }
/// }
/// ```
pub trait Activity: Send + Sync + 'static {
    /// The type under which machines schedule it.
    const TYPE: &'static str;
    /// Its input.
    type Input: Serialize + DeserializeOwned + Send;
    /// Its output.
    type Output: Serialize + DeserializeOwned + Send;

    /// Does the work of one attempt.
    ///
    /// # Errors
    ///
    /// An [`ActivityError`] says whether another attempt can help.
    fn execute(
        &self,
        ctx: &ActivityContext,
        input: Self::Input,
    ) -> impl Future<Output = Result<Self::Output, ActivityError>> + Send;
}

/// The context of an attempt.
#[derive(Clone)]
pub struct ActivityContext {
    /// Names this attempt.
    pub attempt_id: Uuid,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// How many attempts there may be; `u32::MAX` if there is no end.
    pub max_attempts: u32,
    /// The run that it works for.
    pub workflow_id: Option<RunKey>,
    /// The id that the machine gave it.
    pub activity_id: String,
    /// The W3C trace context of the run.
    pub span_context: Option<Arc<str>>,
    task: TaskContext,
}

impl ActivityContext {
    fn new(task: TaskContext) -> Self {
        let step_key = task.step_key.as_ref().map_or("", |key| key.as_str());
        Self {
            attempt_id: task.attempt_id,
            attempt: task.attempt,
            max_attempts: task.attempts_max.unwrap_or(u32::MAX),
            workflow_id: task.run_key,
            activity_id: super::pending::id_of(step_key).to_owned(),
            span_context: task.trace.clone(),
            task,
        }
    }

    /// A key that is the same for every attempt: hand it to services that deduplicate.
    ///
    /// ```
    /// # use windlass::machines::{ActivityContext, ActivityError};
    /// # async fn example(ctx: &ActivityContext) -> Result<(), ActivityError> {
    /// println!("{}", ctx.idempotency_key());
    /// # Ok(()) }
    /// ```
    pub fn idempotency_key(&self) -> String {
        self.task.idempotency_key()
    }

    /// Reports that the attempt is alive, with optional details. The engine writes heartbeats in batches;
    /// the next attempt reads the last details.
    ///
    /// ```
    /// # use windlass::machines::{ActivityContext, ActivityError};
    /// # async fn example(ctx: &ActivityContext) -> Result<(), ActivityError> {
    /// ctx.heartbeat(Some(serde_json::json!({ "line": 10 }))).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`HeartbeatError`] if the task was taken away, or the details are too large.
    pub async fn heartbeat(&self, details: Option<Value>) -> Result<(), HeartbeatError> {
        if self.is_cancelled() {
            return Err(HeartbeatError::Cancelled);
        }
        match details {
            Some(details) => self.task.heartbeat_with(&details).map_err(HeartbeatError::Refused),
            None => {
                self.task.heartbeat();
                Ok(())
            }
        }
    }

    /// The details of the last heartbeat of an earlier attempt.
    ///
    /// ```
    /// # use windlass::machines::{ActivityContext, ActivityError};
    /// # async fn example(ctx: &ActivityContext) -> Result<(), ActivityError> {
    /// let from = ctx.last_heartbeat();
    /// # drop(from);
    /// # Ok(()) }
    /// ```
    pub fn last_heartbeat(&self) -> Option<Value> {
        self.task.last_heartbeat()
    }

    /// Whether nobody wants the result any more.
    ///
    /// ```
    /// # use windlass::machines::{ActivityContext, ActivityError};
    /// # async fn example(ctx: &ActivityContext) -> Result<(), ActivityError> {
    /// if ctx.is_cancelled() {
    ///     return Err(ActivityError::new("cancelled"));
    /// }
    /// # Ok(()) }
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.task.is_cancelled()
    }

    /// Ends when nobody wants the result any more.
    ///
    /// ```
    /// # use windlass::machines::{ActivityContext, ActivityError};
    /// # async fn example(ctx: &ActivityContext) -> Result<(), ActivityError> {
    /// ctx.cancelled().await;
    /// # Ok(()) }
    /// ```
    pub async fn cancelled(&self) {
        self.task.cancelled().await;
    }
}

/// Why a heartbeat was not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum HeartbeatError {
    /// Nobody wants the result any more.
    Cancelled,
    /// Its details are too large, or cannot be written.
    Refused(Error),
}

impl fmt::Display for HeartbeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("nobody wants the result any more"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HeartbeatError {}

pub use windlass_engine::TimeoutKind as TimeoutType;

/// Why an activity failed. Any error becomes one with `?`, and is worth another attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivityError {
    /// The error's name, which a policy can list as not retryable.
    pub name: String,
    /// The message.
    pub message: String,
    /// Whether another attempt could help.
    #[serde(default)]
    pub retryable: bool,
    /// The least time before another attempt.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
    /// The time that ran out, if that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeoutType>,
    // The callee asks to be called later. The name does not say it: errors of users have any name.
    #[serde(skip)]
    pub(crate) rate_limited: bool,
}

impl ActivityError {
    /// A failure that another attempt may not meet.
    ///
    /// ```
    /// # use windlass::machines::ActivityError;
    /// let error = ActivityError::new("no connection");
    /// assert!(error.retryable);
    /// ```
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            name: "ActivityError".into(),
            message: message.into(),
            retryable: true,
            retry_after: None,
            timeout: None,
            rate_limited: false,
        }
    }

    /// A failure that no further attempt can help.
    ///
    /// ```
    /// # use windlass::machines::ActivityError;
    /// let error = ActivityError::non_retryable("no such card");
    /// assert!(!error.retryable);
    /// ```
    pub fn non_retryable(message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::new(message) }
    }

    /// The callee asked for a pause. The failure does not count as an attempt.
    ///
    /// A text that is no duration gives a failure with the name `InvalidDuration` that is not tried again.
    ///
    /// ```
    /// # use windlass::machines::ActivityError;
    /// let error = ActivityError::rate_limited("5 seconds");
    /// assert!(error.retryable);
    /// ```
    pub fn rate_limited(retry_after: impl IntoDuration) -> Self {
        let error =
            Self::new("the callee asks for a pause").named("RateLimited").retry_after(retry_after);
        match error.retry_after {
            Some(delay) => {
                let delay = windlass_kernel::format_duration(delay);
                let message = format!("the callee asks to come back after {delay}");
                Self { message, rate_limited: true, ..error }
            }
            None => error,
        }
    }

    /// The same failure under a name of its own.
    ///
    /// ```
    /// # use windlass::machines::ActivityError;
    /// let error = ActivityError::new("no money").named("Declined");
    /// assert_eq!(error.name, "Declined");
    /// ```
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same failure, not to be tried again before this time has passed.
    ///
    /// A text that is no duration gives a failure with the name `InvalidDuration` that is not tried again.
    ///
    /// ```
    /// # use windlass::machines::ActivityError;
    /// let error = ActivityError::new("busy").retry_after("5 seconds");
    /// assert_eq!(error.retry_after, Some(std::time::Duration::from_secs(5)));
    /// ```
    pub fn retry_after(mut self, delay: impl IntoDuration) -> Self {
        match delay.into_duration() {
            Ok(delay) => {
                self.retry_after = Some(delay);
                self
            }
            Err(error) => {
                let message = format!("retry_after: {error}; the failure was: {}", self.message);
                Self::non_retryable(message).named("InvalidDuration")
            }
        }
    }
}

impl ActivityError {
    fn into_failure(self) -> TaskFailure {
        let cause = match self.rate_limited {
            true => FailureCause::RateLimited,
            false => FailureCause::Error,
        };
        let failure = TaskFailure::new(self.name, self.message, self.retryable);
        TaskFailure { retry_after: self.retry_after, cause, ..failure }
    }
}

impl fmt::Display for ActivityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

// No `Error` of its own, so that every error can become one.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for ActivityError {
    fn from(error: E) -> Self {
        let error = AnyError::new(error);
        Self::new(error.to_string()).named(error.name())
    }
}

struct Serving<A> {
    activity: Arc<A>,
    limits: Limits,
}

impl<A: Activity> TaskHandler for Serving<A> {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let activity = Arc::clone(&self.activity);
        let (bytes, depth) = (self.limits.step_bytes_max / 2, self.limits.json_depth_max);
        Box::pin(async move {
            let input: A::Input =
                input.read().map_err(|error| refused("InputUnreadable", error.to_string()))?;
            let context = ActivityContext::new(context);
            match activity.execute(&context, input).await {
                Ok(output) => Body::of(&output)
                    .and_then(|body| check_body("the result", body, bytes, depth))
                    .map_err(|error| refused("ResultTooLarge", error.to_string())),
                Err(error) => Err(error.into_failure()),
            }
        })
    }
}

fn refused(name: &str, message: String) -> TaskFailure {
    TaskFailure::new(name, message, false)
}

/// Serves an activity's type on a queue.
///
/// ```
/// # use windlass::machines::{Activity, ActivityContext, ActivityError};
/// # struct Charge;
/// # impl Activity for Charge {
/// #     const TYPE: &'static str = "charge_card";
/// #     type Input = u32;
/// #     type Output = u32;
/// #     async fn execute(&self, _: &ActivityContext, cents: u32) -> Result<u32, ActivityError> {
/// #         Ok(cents)
/// #     }
/// # }
/// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
/// windlass::machines::serve(engine.core(), "default", Charge)?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorCode::ActivityExists`](windlass_kernel::ErrorCode::ActivityExists) if this process serves the type on the
/// queue, [`ErrorCode::InvalidName`](windlass_kernel::ErrorCode::InvalidName) if a name
/// is not valid.
pub fn serve<A: Activity>(
    engine: &Engine,
    queue: impl AsRef<str>,
    activity: A,
) -> Result<(), Error> {
    let limits = engine.options().limits.clone();
    let route = Route {
        queue: QueueName::with_limits(queue, &limits)?,
        name: RouteName::with_limits(A::TYPE, &limits)?,
    };
    engine.serve_tasks(route, Arc::new(Serving { activity: Arc::new(activity), limits }))
}

/// An activity's error as a run records it.
pub(crate) fn recorded(body: Option<&Body>) -> ActivityError {
    let read = body.and_then(|body| body.read().ok());
    read.unwrap_or_else(|| ActivityError::non_retryable("no reason was recorded"))
}

/// An activity's result as a run records it.
pub(crate) fn result(body: Option<&Body>) -> Value {
    body.and_then(|body| body.read().ok()).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_delay_ends_the_activity_and_is_named() {
        let after = |error: ActivityError| (error.name, error.retryable, error.retry_after);
        let limited = "RateLimited".to_owned();
        let second = Some(Duration::from_secs(1));
        assert_eq!(after(ActivityError::rate_limited("1 second")), (limited, true, second));
        for error in [
            ActivityError::rate_limited("soon"),
            ActivityError::new("busy").named("Busy").retry_after("soon"),
        ] {
            assert!(error.message.contains("retry_after: \"soon\" is not a duration"), "{error}");
            assert_eq!(after(error), ("InvalidDuration".to_owned(), false, None));
        }
        let error = ActivityError::new("busy").retry_after("soon");
        assert!(error.message.ends_with("the failure was: busy"), "{error}");
    }
}
