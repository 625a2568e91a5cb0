//! The runner of steps, and its outcomes.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use windlass_kernel::IntoDuration;
use windlass_kernel::request::Request;
use windlass_kernel::retry::NON_RETRYABLE_NAME_BYTES_MAX;

use super::step::RelayStep;
use crate::any_error::AnyError;

/// Runs the steps of a relay.
///
/// A step runs at least once: it may run again if the process ends before its outcome is committed.
/// So it must be idempotent for the same [`RelayStep::run_key`] and [`RelayStep::step_number`], which are what to
/// give to services that deduplicate: a `run_id` is unique only within its tenant and its relay. What it
/// must not do twice goes into [`RelayStep::memo`].
///
/// ```
/// use windlass::relays::{RelayError, RelayStep, StepOutcome, StepRunner};
///
/// struct Report;
///
/// impl StepRunner for Report {
///     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
///         let text = std::str::from_utf8(&step.payload)?;
///         match step.step_number {
///             0 => Ok(StepOutcome::next(format!("{text}, gathered"))),
///             _ => Ok(StepOutcome::done(format!("{text}, written"))),
///         }
///     }
/// }
/// ```
pub trait StepRunner: Send + Sync + 'static {
    /// Runs one step.
    ///
    /// # Errors
    ///
    /// A transient error is tried again; a permanent one fails the run and becomes a dead letter.
    fn run_step(
        &self,
        step: &RelayStep,
    ) -> impl Future<Output = Result<StepOutcome, RelayError>> + Send;
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The next step runs at once.
    Continue {
        /// Its payload.
        payload: Bytes,
    },
    /// The next step runs after a delay.
    ContinueAfter {
        /// Its payload.
        payload: Bytes,
        /// How long it waits, at least.
        delay: Duration,
    },
    /// The next step runs when a signal comes, or when none came for too long: it finds in
    /// [`RelayStep::signal`] which of both. A signal that came before is not lost.
    ContinueOnSignal {
        /// Its payload.
        payload: Bytes,
        /// The signal's name.
        signal: String,
        /// How long it waits at most; for ever if there is none.
        timeout: Option<Duration>,
    },
    /// The next step runs when a request to people has ended, in any way: it finds the outcome in
    /// [`RelayStep::request`]. A request that cannot be opened is a permanent error of this step.
    ContinueOnRequest {
        /// Its payload.
        payload: Bytes,
        /// The question.
        request: Box<Request>,
    },
    /// The run goes on as its next generation, whose first step gets the payload: for relays that need
    /// more steps than one run may have. Signals that were not consumed, headers and labels go along;
    /// a parent and the hook get the end of the last generation.
    ContinueAsNew {
        /// The payload of the first step of the next generation.
        payload: Bytes,
    },
    /// The run ends with a result.
    Succeed {
        /// The result.
        result: Bytes,
    },
    /// The run ends as failed: the runner's verdict, which leaves no dead letter.
    Fail {
        /// Why.
        reason: String,
    },
    /// The run ends as cancelled: the runner's verdict, which leaves no dead letter.
    Cancel {
        /// Why.
        reason: String,
    },
}

impl StepOutcome {
    /// The next step runs at once with this payload.
    ///
    /// ```
    /// # use windlass::relays::StepOutcome;
    /// let outcome = StepOutcome::next("gathered");
    /// # drop(outcome);
    /// ```
    pub fn next(payload: impl Into<Bytes>) -> Self {
        Self::Continue { payload: payload.into() }
    }

    /// The next step runs with this payload after a delay: a text such as `"5 minutes"`, a [`Duration`], or
    /// milliseconds.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, StepOutcome};
    /// fn outcome() -> Result<StepOutcome, RelayError> {
    ///     StepOutcome::after("gathered", "5 minutes")
    /// }
    /// # assert!(outcome().is_ok());
    /// ```
    ///
    /// # Errors
    ///
    /// A permanent error with the name `InvalidDuration` if the text is no duration.
    pub fn after(payload: impl Into<Bytes>, delay: impl IntoDuration) -> Result<Self, RelayError> {
        let delay = duration_of("the delay of the next step", delay)?;
        Ok(Self::ContinueAfter { payload: payload.into(), delay })
    }

    /// The next step runs with this payload when a signal comes.
    ///
    /// ```
    /// # use windlass::relays::StepOutcome;
    /// let outcome = StepOutcome::on_signal("ordered", "paid");
    /// # drop(outcome);
    /// ```
    pub fn on_signal(payload: impl Into<Bytes>, signal: impl Into<String>) -> Self {
        Self::ContinueOnSignal { payload: payload.into(), signal: signal.into(), timeout: None }
    }

    /// As [`StepOutcome::on_signal`], and the next step runs without the signal if it does not come in time.
    ///
    /// ```
    /// # use windlass::relays::{RelayError, StepOutcome};
    /// fn outcome() -> Result<StepOutcome, RelayError> {
    ///     StepOutcome::on_signal_for("ordered", "paid", "2 days")
    /// }
    /// # assert!(outcome().is_ok());
    /// ```
    ///
    /// # Errors
    ///
    /// A permanent error with the name `InvalidDuration` if the text is no duration.
    pub fn on_signal_for(
        payload: impl Into<Bytes>,
        signal: impl Into<String>,
        timeout: impl IntoDuration,
    ) -> Result<Self, RelayError> {
        let timeout = Some(duration_of("the timeout of a signal", timeout)?);
        Ok(Self::ContinueOnSignal { payload: payload.into(), signal: signal.into(), timeout })
    }

    /// The next step runs with this payload when people have decided.
    ///
    /// ```
    /// # use windlass::relays::StepOutcome;
    /// use windlass::requests::Request;
    ///
    /// let outcome = StepOutcome::on_request("invoice i-7", Request::to("role:cfo").quorum(2));
    /// # drop(outcome);
    /// ```
    pub fn on_request(payload: impl Into<Bytes>, request: Request) -> Self {
        Self::ContinueOnRequest { payload: payload.into(), request: Box::new(request) }
    }

    /// The run goes on as its next generation with this payload.
    ///
    /// ```
    /// # use windlass::relays::StepOutcome;
    /// let outcome = StepOutcome::continue_as_new("page 1001");
    /// # drop(outcome);
    /// ```
    pub fn continue_as_new(payload: impl Into<Bytes>) -> Self {
        Self::ContinueAsNew { payload: payload.into() }
    }

    /// The run ends with this result.
    ///
    /// ```
    /// # use windlass::relays::StepOutcome;
    /// let outcome = StepOutcome::done("written");
    /// # drop(outcome);
    /// ```
    pub fn done(result: impl Into<Bytes>) -> Self {
        Self::Succeed { result: result.into() }
    }
}

pub(super) fn duration_of(name: &str, span: impl IntoDuration) -> Result<Duration, RelayError> {
    span.into_duration()
        .map_err(|error| RelayError::permanent(format!("{name}: {error}")).named("InvalidDuration"))
}

/// Why a step could not be run. `?` converts any error into one that is tried again and has the name of the
/// error's type. Unlike [`StepOutcome::Fail`] it is no verdict of the runner: it is
/// tried again, or left to operators as a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayError {
    message: String,
    name: Option<String>,
    permanent: bool,
    retry_after: Option<Duration>,
}

impl RelayError {
    /// Another attempt can help: there is one, as the relay's policy says.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// let error = RelayError::transient("no connection");
    /// assert!(!error.is_permanent());
    /// ```
    pub fn transient(error: impl fmt::Display) -> Self {
        Self { message: error.to_string(), name: None, permanent: false, retry_after: None }
    }

    /// No further attempt can help: the run fails, and the step is a dead letter.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// let error = RelayError::permanent("no such file");
    /// assert!(error.is_permanent());
    /// ```
    pub fn permanent(error: impl fmt::Display) -> Self {
        Self { permanent: true, ..Self::transient(error) }
    }

    /// The name of the error, which a policy's `non_retryable` lists and operators read. Without
    /// one it is `Transient` or `Permanent`. At most 256 bytes are kept.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// let error = RelayError::transient("busy").named("Busy");
    /// assert_eq!(error.name(), Some("Busy"));
    /// ```
    pub fn named(mut self, name: impl Into<String>) -> Self {
        let mut name = name.into().replace(char::is_control, "\u{fffd}");
        name.truncate(name.floor_char_boundary(NON_RETRYABLE_NAME_BYTES_MAX));
        self.name = Some(name).filter(|name| !name.is_empty());
        self
    }

    /// The least time before another attempt, if the callee asked for one.
    ///
    /// A text that is no duration gives a permanent error with the name `InvalidDuration`.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// let error = RelayError::transient("busy").retry_after("5 seconds");
    /// assert_eq!(error.delay_min(), Some(std::time::Duration::from_secs(5)));
    /// ```
    pub fn retry_after(mut self, delay: impl IntoDuration) -> Self {
        match delay.into_duration() {
            Ok(delay) => {
                self.retry_after = Some(delay);
                self
            }
            Err(error) => {
                let message = format!("retry_after: {error}; the failure was: {}", self.message);
                Self::permanent(message).named("InvalidDuration")
            }
        }
    }

    /// The message.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// assert_eq!(RelayError::transient("busy").message(), "busy");
    /// ```
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The name of the error, if it has one.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// assert_eq!(RelayError::transient("busy").name(), None);
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether no further attempt can help.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// assert!(RelayError::permanent("no such file").is_permanent());
    /// ```
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// The least time before another attempt.
    ///
    /// ```
    /// # use windlass::relays::RelayError;
    /// assert_eq!(RelayError::transient("busy").delay_min(), None);
    /// ```
    pub fn delay_min(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// Not an `Error` itself, so that `?` converts every error into it.
impl<E: std::error::Error + Send + Sync + 'static> From<E> for RelayError {
    fn from(error: E) -> Self {
        let error = AnyError::new(error);
        Self::transient(&error).named(error.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_delay_is_a_permanent_error() {
        let error = RelayError::transient("busy").retry_after("soon");
        assert_eq!((error.name(), error.is_permanent()), (Some("InvalidDuration"), true));
        assert!(error.message().contains("\"soon\" is not a duration"), "{error}");
        assert!(error.message().ends_with("the failure was: busy"), "{error}");
        for outcome in [StepOutcome::after("", "soon"), StepOutcome::on_signal_for("", "s", "soon")]
        {
            let error = outcome.unwrap_err();
            assert_eq!((error.name(), error.is_permanent()), (Some("InvalidDuration"), true));
        }
    }

    #[test]
    fn delays_are_texts_or_durations() {
        let minute = Duration::from_secs(60);
        let after = StepOutcome::ContinueAfter { payload: Bytes::new(), delay: minute };
        assert_eq!(StepOutcome::after("", "1 minute").unwrap(), after);
        assert_eq!(StepOutcome::after("", minute).unwrap(), after);
        let timeout = |outcome: StepOutcome| match outcome {
            StepOutcome::ContinueOnSignal { timeout, .. } => timeout,
            _ => None,
        };
        assert_eq!(timeout(StepOutcome::on_signal_for("", "s", 60_000).unwrap()), Some(minute));
        assert_eq!(timeout(StepOutcome::on_signal("", "s")), None);
    }
}
