//! Actions that a machine returns, and signals that it receives.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_engine::{RecordChange, TaskBreaker};
use windlass_kernel::request::Request;
use windlass_kernel::{
    BreakerPolicy, Error, ErrorCode, IntoDuration, LimitKey, Limits, RetryLimit, RetryPolicy,
    Timestamp,
};

use super::workflow::WorkflowError;
use crate::kit::ACTIVITY_RETRY;
use crate::run::invalid;

/// An action that a callback returns. All actions of one callback are one commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "a callback answers a few; users write options plainly"
)]
pub enum WorkflowAction {
    /// Have an activity done. Its id is the machine's name for it; an id may be used again once the
    /// activity is over.
    ScheduleActivity {
        /// The machine's name for it.
        activity_id: String,
        /// The type of the activity.
        activity_type: String,
        /// Its input.
        input: Value,
        /// How it is run.
        options: ActivityOptions,
    },
    /// Start a timer. An id may be used again once the timer is over.
    StartTimer {
        /// The machine's name for it.
        timer_id: String,
        /// How long it runs.
        #[serde(with = "millis", rename = "duration_ms")]
        duration: Duration,
    },
    /// Stop a timer; one that is not running is left alone.
    CancelTimer {
        /// The machine's name for it.
        timer_id: String,
    },
    /// End the run with a result.
    CompleteWorkflow {
        /// The result.
        result: Value,
    },
    /// End the run with an error.
    FailWorkflow {
        /// The error.
        error: WorkflowError,
    },
    /// End this generation of the run and begin the next one with another input. Unread signals go along;
    /// activities, timers and children that are not over are cancelled. A run that was asked to end
    /// (`cancel`, `shutdown`) is terminated instead.
    ContinueAsNew {
        /// The input of the next generation.
        input: Value,
    },
    /// Start a child run, of any model. It ends with its parent.
    ScheduleChildWorkflow {
        /// The machine's name for it.
        workflow_id: String,
        /// The child's workflow.
        workflow_type: String,
        /// Its input.
        input: Value,
    },
    /// Call an activity off: no callback follows, and a result that still comes is refused. One that is
    /// over is left alone.
    CancelActivity {
        /// The machine's name for it.
        activity_id: String,
    },
    /// Have an effect delivered: an outside side effect whose handler, registered with
    /// `Engine::serve_effects` under this name, gets it at least once. Nobody tells the machine of
    /// it. It is enqueued once, also by a run that is read back or retried.
    EnqueueEffect {
        /// The handler's name.
        name: String,
        /// Its input.
        input: Value,
        /// The retry policy.
        retry_policy: RetryPolicy,
        /// Whether a record says later what became of the effect; `Engine::receipts` reads it.
        #[serde(default)]
        receipt: bool,
    },
    /// Ask people, and wait for their decision: `on_request_closed` gets the outcome. The request is opened in
    /// the commit of this callback. If it cannot be opened, the run is blocked and tries again.
    OpenRequest {
        /// The machine's name for it.
        request_id: String,
        /// The question.
        request: Request,
    },
    /// Withdraw a request: no callback follows. One that has ended is left alone.
    WithdrawRequest {
        /// The machine's name for it.
        request_id: String,
    },
    /// Write records, all of them in one commit or none. `on_records_written` or `on_records_refused` follows.
    WriteRecords {
        /// The machine's name for the write.
        write_id: String,
        /// The changes, with the revisions that they expect.
        changes: Vec<RecordChange>,
    },
    /// Nothing.
    None,
    // A callback cannot return an error, so an action that is not valid is refused with the callback's answer.
    #[doc(hidden)]
    #[serde(skip)]
    Invalid(String),
}

impl WorkflowAction {
    /// An activity with default options.
    ///
    /// ```
    /// # use windlass::machines::{ActivityOptions, WorkflowAction};
    /// # use windlass::RetryPolicy;
    /// # use serde_json::json;
    /// let charge = WorkflowAction::activity("charge", "charge_card", json!(4_200));
    /// # drop(charge);
    /// ```
    pub fn activity(id: impl Into<String>, activity_type: impl Into<String>, input: Value) -> Self {
        Self::activity_with(id, activity_type, input, ActivityOptions::default())
    }

    /// An activity.
    ///
    /// ```
    /// # use windlass::machines::{ActivityOptions, WorkflowAction};
    /// # use windlass::RetryPolicy;
    /// # use serde_json::json;
    /// let options = ActivityOptions { queue: "mail".into(), ..ActivityOptions::default() };
    /// let send = WorkflowAction::activity_with("send", "send_mail", json!("ann"), options);
    /// # drop(send);
    /// ```
    pub fn activity_with(
        id: impl Into<String>,
        activity_type: impl Into<String>,
        input: Value,
        options: ActivityOptions,
    ) -> Self {
        let (activity_id, activity_type) = (id.into(), activity_type.into());
        Self::ScheduleActivity { activity_id, activity_type, input, options }
    }

    /// A timer. The duration is a text such as `"1 hour"`, a [`Duration`], or milliseconds. The engine refuses
    /// the answer of a callback with a text that is no duration ([`ErrorCode::InvalidDuration`]).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass::machines::WorkflowAction;
    /// let remind = WorkflowAction::timer("remind", "1 hour");
    /// assert_eq!(remind, WorkflowAction::timer("remind", Duration::from_secs(3_600)));
    /// ```
    pub fn timer(id: impl Into<String>, duration: impl IntoDuration) -> Self {
        let timer_id = id.into();
        match duration.into_duration() {
            Ok(duration) => Self::StartTimer { timer_id, duration },
            Err(error) => Self::Invalid(format!("timer {timer_id:?}: {error}")),
        }
    }

    /// A child run.
    ///
    /// ```
    /// # use windlass::machines::{ActivityOptions, WorkflowAction};
    /// # use windlass::RetryPolicy;
    /// # use serde_json::json;
    /// let ship = WorkflowAction::child("ship", "shipment", json!("A-42"));
    /// # drop(ship);
    /// ```
    pub fn child(id: impl Into<String>, workflow_type: impl Into<String>, input: Value) -> Self {
        let (workflow_id, workflow_type) = (id.into(), workflow_type.into());
        Self::ScheduleChildWorkflow { workflow_id, workflow_type, input }
    }

    /// A request to people.
    ///
    /// ```
    /// # use windlass::machines::WorkflowAction;
    /// use windlass::requests::Request;
    ///
    /// let ask = WorkflowAction::request("approve", Request::to("role:cfo").quorum(2).due("3 days"));
    /// # drop(ask);
    /// ```
    pub fn request(id: impl Into<String>, request: Request) -> Self {
        Self::OpenRequest { request_id: id.into(), request }
    }

    /// A write of records.
    ///
    /// ```
    /// # fn main() -> windlass::Result<()> {
    /// use windlass::RecordChange;
    /// use windlass::machines::WorkflowAction;
    ///
    /// let taken = RecordChange::put("stock", "lamp", &6, 3)?;
    /// let write = WorkflowAction::write_records("take", [taken]);
    /// # drop(write);
    /// # Ok(()) }
    /// ```
    pub fn write_records(
        id: impl Into<String>,
        changes: impl IntoIterator<Item = RecordChange>,
    ) -> Self {
        Self::WriteRecords { write_id: id.into(), changes: changes.into_iter().collect() }
    }

    /// An effect.
    ///
    /// ```
    /// # use windlass::machines::{ActivityOptions, WorkflowAction};
    /// # use windlass::RetryPolicy;
    /// # use serde_json::json;
    /// let mail = WorkflowAction::effect("mail", json!("paid"), RetryPolicy::none());
    /// # drop(mail);
    /// ```
    pub fn effect(name: impl Into<String>, input: Value, retry_policy: RetryPolicy) -> Self {
        Self::EnqueueEffect { name: name.into(), input, retry_policy, receipt: false }
    }

    /// As [`WorkflowAction::effect`], with a receipt: when the effect is delivered or given up, the same commit writes
    /// a record that says so. `Engine::receipts` reads the receipts of a run.
    ///
    /// ```
    /// # use windlass::machines::WorkflowAction;
    /// # use windlass::RetryPolicy;
    /// # use serde_json::json;
    /// let mail = WorkflowAction::effect_with_receipt("mail", json!("paid"), RetryPolicy::none());
    /// # drop(mail);
    /// ```
    pub fn effect_with_receipt(
        name: impl Into<String>,
        input: Value,
        retry_policy: RetryPolicy,
    ) -> Self {
        Self::EnqueueEffect { name: name.into(), input, retry_policy, receipt: true }
    }

    /// The end, with a result.
    ///
    /// ```
    /// # use windlass::machines::{ActivityOptions, WorkflowAction};
    /// # use windlass::RetryPolicy;
    /// # use serde_json::json;
    /// let end = WorkflowAction::complete(json!("shipped"));
    /// # drop(end);
    /// ```
    pub fn complete(result: Value) -> Self {
        Self::CompleteWorkflow { result }
    }

    /// The end of this generation; the next one begins with another input. A run has at most 1,024
    /// activities, children and effects; a machine that needs more continues as new before that.
    ///
    /// ```
    /// # use windlass::machines::WorkflowAction;
    /// # use serde_json::json;
    /// let next = WorkflowAction::continue_as_new(json!({ "round": 2 }));
    /// # drop(next);
    /// ```
    pub fn continue_as_new(input: Value) -> Self {
        Self::ContinueAsNew { input }
    }

    /// The end, with an error.
    ///
    /// ```
    /// # use windlass::machines::{ActivityOptions, WorkflowAction};
    /// # use windlass::RetryPolicy;
    /// # use serde_json::json;
    /// let end = WorkflowAction::fail(windlass::machines::WorkflowError::new("out of stock"));
    /// # drop(end);
    /// ```
    pub fn fail(error: impl Into<WorkflowError>) -> Self {
        Self::FailWorkflow { error: error.into() }
    }
}

/// How an activity is run. As JSON, durations are whole milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityOptions {
    /// The retry policy. Default: five attempts, 1 s doubling up to a minute.
    pub retry_policy: RetryPolicy,
    /// How long it may wait for a worker before its first attempt; then it has failed for good.
    /// Default: as long as it takes.
    #[serde(with = "millis_maybe", rename = "schedule_to_start_timeout_ms")]
    pub schedule_to_start_timeout: Option<Duration>,
    /// How long one attempt may take. Default five minutes.
    #[serde(with = "millis_maybe", rename = "start_to_close_timeout_ms")]
    pub start_to_close_timeout: Option<Duration>,
    /// How long an attempt may go without a heartbeat. Default: as long as it likes.
    #[serde(with = "millis_maybe", rename = "heartbeat_timeout_ms")]
    pub heartbeat_timeout: Option<Duration>,
    /// How long all attempts together may take, waits included. Default: as long as they take.
    #[serde(with = "millis_maybe", rename = "schedule_to_close_timeout_ms")]
    pub schedule_to_close_timeout: Option<Duration>,
    /// A circuit breaker in front of it, shared by all processes. Default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_breaker: Option<CircuitBreakerConfig>,
    /// Higher first. Default 0.
    pub priority: i16,
    /// The queue whose workers take it. Default `default`.
    pub queue: String,
    /// A key under which its attempts count against a limit that `Admin::set_limit` sets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_key: Option<String>,
    // The first setting that is not valid. Public, because `..ActivityOptions::default()` needs every field.
    #[doc(hidden)]
    #[serde(skip)]
    pub invalid: Option<String>,
}

impl Default for ActivityOptions {
    fn default() -> Self {
        Self {
            retry_policy: ACTIVITY_RETRY,
            schedule_to_start_timeout: None,
            start_to_close_timeout: Some(Duration::from_secs(5 * 60)),
            heartbeat_timeout: None,
            schedule_to_close_timeout: None,
            circuit_breaker: None,
            priority: 0,
            queue: "default".into(),
            limit_key: None,
            invalid: None,
        }
    }
}

impl ActivityOptions {
    /// Defaults with another retry policy.
    ///
    /// ```
    /// # use windlass::RetryPolicy;
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::retrying(RetryPolicy::none());
    /// # drop(options);
    /// ```
    pub fn retrying(retry_policy: RetryPolicy) -> Self {
        Self { retry_policy, ..Self::default() }
    }

    /// How often it is tried again after its first attempt. Default 4.
    ///
    /// ```
    /// # use windlass::RetryLimit;
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().retries(2);
    /// assert_eq!(options.retry_policy.limit, RetryLimit::Times(2));
    /// ```
    pub fn retries(mut self, retries: impl Into<RetryLimit>) -> Self {
        self.retry_policy.limit = retries.into();
        self
    }

    /// How long after the first failure it is tried again. Default one second, doubling up to a minute.
    ///
    /// ```
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().retry_delay("5 seconds");
    /// # drop(options);
    /// ```
    pub fn retry_delay(self, delay: impl IntoDuration) -> Self {
        self.set("retry_delay", delay, |options, delay| options.retry_policy.delay = delay)
    }

    /// Names of errors that are not worth another attempt.
    ///
    /// ```
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().non_retryable(["Declined"]);
    /// # drop(options);
    /// ```
    pub fn non_retryable<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.retry_policy = self.retry_policy.with_non_retryable(names);
        self
    }

    /// How long it may wait for a worker before its first attempt.
    ///
    /// ```
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().schedule_to_start_timeout("1 hour");
    /// # drop(options);
    /// ```
    pub fn schedule_to_start_timeout(self, timeout: impl IntoDuration) -> Self {
        self.set("schedule_to_start_timeout", timeout, |options, timeout| {
            options.schedule_to_start_timeout = Some(timeout);
        })
    }

    /// How long one attempt may take.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().start_to_close_timeout("30 seconds");
    /// assert_eq!(options.start_to_close_timeout, Some(Duration::from_secs(30)));
    /// ```
    pub fn start_to_close_timeout(self, timeout: impl IntoDuration) -> Self {
        self.set("start_to_close_timeout", timeout, |options, timeout| {
            options.start_to_close_timeout = Some(timeout);
        })
    }

    /// How long an attempt may go without a heartbeat.
    ///
    /// ```
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().heartbeat_timeout("10 seconds");
    /// # drop(options);
    /// ```
    pub fn heartbeat_timeout(self, timeout: impl IntoDuration) -> Self {
        self.set("heartbeat_timeout", timeout, |options, timeout| {
            options.heartbeat_timeout = Some(timeout);
        })
    }

    /// How long all attempts together may take, waits included.
    ///
    /// ```
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().schedule_to_close_timeout("1 day");
    /// # drop(options);
    /// ```
    pub fn schedule_to_close_timeout(self, timeout: impl IntoDuration) -> Self {
        self.set("schedule_to_close_timeout", timeout, |options, timeout| {
            options.schedule_to_close_timeout = Some(timeout);
        })
    }

    /// The queue whose workers take it.
    ///
    /// ```
    /// # use windlass::machines::ActivityOptions;
    /// let options = ActivityOptions::default().queue("mail");
    /// assert_eq!(options.queue, "mail");
    /// ```
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// A circuit breaker in front of it.
    ///
    /// ```
    /// # use windlass::machines::{ActivityOptions, CircuitBreakerConfig};
    /// let breaker = CircuitBreakerConfig::default().reset_timeout("1 minute");
    /// let options = ActivityOptions::default().circuit_breaker(breaker);
    /// # drop(options);
    /// ```
    pub fn circuit_breaker(mut self, config: CircuitBreakerConfig) -> Self {
        self.circuit_breaker = Some(config);
        self
    }

    fn set(
        mut self,
        name: &str,
        duration: impl IntoDuration,
        set: impl FnOnce(&mut Self, Duration),
    ) -> Self {
        match duration.into_duration() {
            Ok(duration) => set(&mut self, duration),
            Err(error) => {
                self.invalid.get_or_insert_with(|| format!("{name}: {error}"));
            }
        }
        self
    }

    /// Refuses options that a builder method got an invalid value for.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let of_breaker = self.circuit_breaker.as_ref().and_then(|config| config.invalid.as_ref());
        if let Some(message) = self.invalid.as_ref().or(of_breaker) {
            return Err(invalid(ErrorCode::InvalidDuration, message.clone()));
        }
        let timeouts = [
            ("schedule_to_start_timeout", self.schedule_to_start_timeout),
            ("start_to_close_timeout", self.start_to_close_timeout),
            ("heartbeat_timeout", self.heartbeat_timeout),
            ("schedule_to_close_timeout", self.schedule_to_close_timeout),
        ];
        // Timeouts are stored as whole milliseconds.
        let too_short = |span: Duration| span < Duration::from_millis(1);
        match timeouts
            .iter()
            .find_map(|(name, span)| Some((name, span.filter(|span| too_short(*span))?)))
        {
            Some((name, span)) => {
                let message = format!("{name} is {span:?}; use at least 1 ms");
                Err(invalid(ErrorCode::InvalidDuration, message))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn breaker(
        &self,
        activity_type: &str,
        limits: &Limits,
    ) -> Result<Option<TaskBreaker>, Error> {
        let Some(config) = &self.circuit_breaker else { return Ok(None) };
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let policy = BreakerPolicy {
            failures_max: config.failure_threshold,
            window_ms: millis(config.window_size),
            reset_ms: millis(config.reset_timeout),
            successes_min: config.success_threshold,
        };
        policy.validate()?;
        let key = config.key.clone().unwrap_or_else(|| format!("activity:{activity_type}"));
        Ok(Some(TaskBreaker { key: LimitKey::with_limits(key, limits)?, policy }))
    }
}

/// When a circuit breaker opens and closes. While it is open, activities behind it are postponed; that
/// spends no attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CircuitBreakerConfig {
    /// So many failures within the window open it. Default 5. Failures that say that another attempt
    /// cannot help do not count.
    pub failure_threshold: u32,
    /// So many tried calls in a row must succeed to close it. Default 2.
    pub success_threshold: u32,
    /// How long it stays open before a call is tried. Default 30 s.
    #[serde(with = "millis", rename = "reset_timeout_ms")]
    pub reset_timeout: Duration,
    /// How long a failure counts. Default one minute.
    #[serde(with = "millis", rename = "window_size_ms")]
    pub window_size: Duration,
    /// The key of the breaker; activities with the same key share a breaker. Default `activity:` and the type.
    pub key: Option<String>,
    // As in `ActivityOptions`.
    #[doc(hidden)]
    #[serde(skip)]
    pub invalid: Option<String>,
}

impl CircuitBreakerConfig {
    /// How long it stays open before a call is tried.
    ///
    /// ```
    /// # use windlass::machines::CircuitBreakerConfig;
    /// let breaker = CircuitBreakerConfig::default().reset_timeout("1 minute");
    /// # drop(breaker);
    /// ```
    pub fn reset_timeout(self, timeout: impl IntoDuration) -> Self {
        self.set("reset_timeout", timeout, |config, timeout| config.reset_timeout = timeout)
    }

    /// How long a failure counts.
    ///
    /// ```
    /// # use windlass::machines::CircuitBreakerConfig;
    /// let breaker = CircuitBreakerConfig::default().window_size("5 minutes");
    /// # drop(breaker);
    /// ```
    pub fn window_size(self, size: impl IntoDuration) -> Self {
        self.set("window_size", size, |config, size| config.window_size = size)
    }

    fn set(
        mut self,
        name: &str,
        duration: impl IntoDuration,
        set: impl FnOnce(&mut Self, Duration),
    ) -> Self {
        match duration.into_duration() {
            Ok(duration) => set(&mut self, duration),
            Err(error) => {
                self.invalid.get_or_insert_with(|| format!("circuit breaker, {name}: {error}"));
            }
        }
        self
    }
}

impl Default for CircuitBreakerConfig {
    fn default() -> Self {
        Self {
            failure_threshold: 5,
            success_threshold: 2,
            reset_timeout: Duration::from_secs(30),
            window_size: Duration::from_secs(60),
            key: None,
            invalid: None,
        }
    }
}

/// Something sent to a run from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkflowSignal {
    /// Its type.
    pub signal_type: String,
    /// Its payload.
    pub payload: Value,
    /// When it was sent, by the store's clock as its sender knew it.
    pub sent_at: Timestamp,
}

/// Signals that mean the same to every machine.
pub mod signal_types {
    /// Asks the run to end. The machine gets this signal once. If it has not ended when the grace period
    /// is over (30 s by default), the engine terminates it.
    pub const CANCEL: &str = "cancel";
    /// Asks the run to finish its activities and children and to begin no new ones; then the engine
    /// terminates it.
    pub const SHUTDOWN: &str = "shutdown";
    /// A signal of the application's.
    pub const CUSTOM: &str = "custom";
}

mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        u64::try_from(span.as_millis()).unwrap_or(u64::MAX).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

mod millis_maybe {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}
