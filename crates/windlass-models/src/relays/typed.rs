//! Runners whose payloads are JSON of a type.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_kernel::IntoDuration;
use windlass_kernel::request::Request;

use super::outcome::{RelayError, StepOutcome, StepRunner, duration_of};
use super::step::RelayStep;

/// As [`StepRunner`], with payloads of a type, written as JSON. [`Typed`] makes a runner of it.
pub trait TypedRunner: Send + Sync + 'static {
    /// The payload of all steps, also of the first.
    type Payload: Serialize + DeserializeOwned + Send + Sync;
    /// The result of a run.
    type Output: Serialize + Send;

    /// Runs one step.
    ///
    /// # Errors
    ///
    /// As [`StepRunner::run_step`].
    fn run_step(
        &self,
        step: &RelayStep,
        payload: Self::Payload,
    ) -> impl Future<Output = Result<TypedOutcome<Self::Payload, Self::Output>, RelayError>> + Send;
}

/// As [`StepOutcome`], with payloads of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypedOutcome<P, O> {
    /// The next step runs at once.
    Continue(P),
    /// The next step runs after a delay.
    ContinueAfter(P, Duration),
    /// The next step runs when a signal comes, or when none came for too long.
    ContinueOnSignal {
        /// Its payload.
        payload: P,
        /// The signal's name.
        signal: String,
        /// How long it waits at most.
        timeout: Option<Duration>,
    },
    /// The next step runs when a request to people has ended.
    ContinueOnRequest(P, Box<Request>),
    /// The run goes on as its next generation.
    ContinueAsNew(P),
    /// The run ends with a result.
    Succeed(O),
    /// The run ends as failed, for this reason.
    Fail(String),
    /// The run ends as cancelled, for this reason.
    Cancel(String),
}

impl<P, O> TypedOutcome<P, O> {
    /// As [`StepOutcome::after`].
    ///
    /// ```
    /// # use windlass::relays::TypedOutcome;
    /// let outcome: TypedOutcome<u32, String> = TypedOutcome::after(7, "10 seconds")?;
    /// # drop(outcome);
    /// # Ok::<(), windlass::relays::RelayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A permanent error with the name `InvalidDuration` if the text is no duration.
    pub fn after(payload: P, delay: impl IntoDuration) -> Result<Self, RelayError> {
        let delay = duration_of("the delay of the next step", delay)?;
        Ok(Self::ContinueAfter(payload, delay))
    }

    /// As [`StepOutcome::on_signal`].
    ///
    /// ```
    /// # use windlass::relays::TypedOutcome;
    /// let outcome: TypedOutcome<u32, String> = TypedOutcome::on_signal(7, "approved");
    /// # drop(outcome);
    /// ```
    pub fn on_signal(payload: P, signal: impl Into<String>) -> Self {
        Self::ContinueOnSignal { payload, signal: signal.into(), timeout: None }
    }

    /// As [`StepOutcome::on_signal_for`].
    ///
    /// ```
    /// # use windlass::relays::TypedOutcome;
    /// let outcome: TypedOutcome<u32, String> = TypedOutcome::on_signal_for(7, "approved", "1 day")?;
    /// # drop(outcome);
    /// # Ok::<(), windlass::relays::RelayError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A permanent error with the name `InvalidDuration` if the text is no duration.
    pub fn on_signal_for(
        payload: P,
        signal: impl Into<String>,
        timeout: impl IntoDuration,
    ) -> Result<Self, RelayError> {
        let timeout = Some(duration_of("the timeout of a signal", timeout)?);
        Ok(Self::ContinueOnSignal { payload, signal: signal.into(), timeout })
    }
}

/// A [`StepRunner`] of a [`TypedRunner`]. A payload that does not read fails the step for good.
#[derive(Clone, Debug)]
pub struct Typed<R>(pub R);

impl<R: TypedRunner> StepRunner for Typed<R> {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let payload = serde_json::from_slice(&step.payload).map_err(|error| {
            let wanted = std::any::type_name::<R::Payload>();
            let number = step.step_number;
            RelayError::permanent(format!(
                "the payload of step {number} does not read as {wanted}: {error}"
            ))
        })?;
        Ok(match self.0.run_step(step, payload).await? {
            TypedOutcome::Continue(payload) => {
                StepOutcome::Continue { payload: written(&payload)? }
            }
            TypedOutcome::ContinueAfter(payload, delay) => {
                StepOutcome::ContinueAfter { payload: written(&payload)?, delay }
            }
            TypedOutcome::ContinueOnSignal { payload, signal, timeout } => {
                StepOutcome::ContinueOnSignal { payload: written(&payload)?, signal, timeout }
            }
            TypedOutcome::ContinueOnRequest(payload, request) => {
                StepOutcome::ContinueOnRequest { payload: written(&payload)?, request }
            }
            TypedOutcome::ContinueAsNew(payload) => {
                StepOutcome::ContinueAsNew { payload: written(&payload)? }
            }
            TypedOutcome::Succeed(output) => StepOutcome::Succeed { result: written(&output)? },
            TypedOutcome::Fail(reason) => StepOutcome::Fail { reason },
            TypedOutcome::Cancel(reason) => StepOutcome::Cancel { reason },
        })
    }
}

fn written<T: Serialize>(value: &T) -> Result<Bytes, RelayError> {
    let bytes = serde_json::to_vec(value)
        .map_err(|error| RelayError::permanent(format!("it cannot be written as JSON: {error}")))?;
    Ok(bytes.into())
}
