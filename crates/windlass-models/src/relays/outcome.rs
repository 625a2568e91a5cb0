//! What runs a step, and what comes of it.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use windlass_kernel::retry::NON_RETRYABLE_NAME_BYTES_MAX;

use super::step::Step;

/// Runs the steps of a relay.
///
/// A step runs at least once: it may run again if the process ends before its outcome is committed.
/// So it must be idempotent for the same [`Step::run_key`] and [`Step::step_number`], which are what to
/// give to services that deduplicate: a `run_id` is unique only within its tenant and its relay. What it
/// must not do twice goes into [`Step::memo`].
pub trait StepRunner: Send + Sync + 'static {
    /// Runs one step.
    fn run_step(&self, step: &Step) -> impl Future<Output = Result<StepOutcome, StepError>> + Send;
}

/// What a step decides about its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepOutcome {
    /// The next step runs at once.
    Continue {
        /// What it gets.
        payload: Bytes,
    },
    /// The next step runs after a delay.
    ContinueAfter {
        /// What it gets.
        payload: Bytes,
        /// How long it waits, at least.
        delay: Duration,
    },
    /// The next step runs when a signal comes, or when none came for too long: it finds in
    /// [`Step::signal`] which of both. A signal that came before is not lost.
    ContinueOnSignal {
        /// What it gets.
        payload: Bytes,
        /// The signal's name.
        signal: String,
        /// How long it waits at most; for ever if there is none.
        timeout: Option<Duration>,
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
    pub fn next(payload: impl Into<Bytes>) -> Self {
        Self::Continue { payload: payload.into() }
    }

    /// The run ends with this result.
    pub fn done(result: impl Into<Bytes>) -> Self {
        Self::Succeed { result: result.into() }
    }
}

/// Why a step could not be run. Unlike [`StepOutcome::Fail`] it is no verdict of the runner: it is
/// tried again, or left to operators as a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepError {
    message: String,
    name: Option<String>,
    permanent: bool,
    retry_after: Option<Duration>,
}

impl StepError {
    /// Another attempt can help: there is one, as the relay's policy says.
    pub fn transient(error: impl fmt::Display) -> Self {
        Self { message: error.to_string(), name: None, permanent: false, retry_after: None }
    }

    /// No further attempt can help: the run fails, and the step is a dead letter.
    pub fn permanent(error: impl fmt::Display) -> Self {
        Self { permanent: true, ..Self::transient(error) }
    }

    /// What kind of error it is: what a policy's `non_retryable` lists, and operators read. Without
    /// one it is `Transient` or `Permanent`. At most 256 bytes are kept.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        let mut name = name.into().replace(char::is_control, "\u{fffd}");
        name.truncate(name.floor_char_boundary(NON_RETRYABLE_NAME_BYTES_MAX));
        self.name = Some(name).filter(|name| !name.is_empty());
        self
    }

    /// The least time before another attempt, if the callee said so.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// What to tell people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What kind of error it is, if somebody said so.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether no further attempt can help.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// The least time before another attempt.
    pub fn delay_min(&self) -> Option<Duration> {
        self.retry_after
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StepError {}
