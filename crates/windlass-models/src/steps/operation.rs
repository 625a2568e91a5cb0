//! The part that all operations of a workflow share. An operation claims its key at the first poll,
//! waits for its result, and releases the key when it is dropped.

use std::task::{Context, Poll};

use serde::de::DeserializeOwned;
use windlass_kernel::{Body, Error, ErrorCode, ErrorKind};

use super::core::{Found, Key, Kind, Outcome, Plan, Reads};
use super::ctx::Ctx;
use super::error::StepError;
use super::wake::{current_step, is_polling};

pub(crate) struct Operation {
    pub(crate) ctx: Ctx,
    key: Key,
    phase: Phase,
    refused: Option<StepError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    Live,
    Over,
}

impl Operation {
    pub(crate) fn new(ctx: Ctx, key: &str) -> Self {
        let (key, refused) = match ctx.check_key(key) {
            Ok(key) => (key, None),
            Err(refused) => (Key::from(""), Some(refused)),
        };
        Self { ctx, key, phase: Phase::New, refused }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn is_new(&self) -> bool {
        self.phase == Phase::New
    }

    /// Makes the first poll return an error. The first refusal wins.
    pub(crate) fn refuse(&mut self, error: &Error) {
        if self.refused.is_none() {
            self.refused = Some(StepError::refused(&self.key, error));
        }
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        reads: Reads,
        plan: impl FnOnce() -> Plan,
    ) -> Poll<Result<Found, StepError>> {
        let shared = &self.ctx.shared;
        if !is_polling(shared.waker.id()) {
            let mut core = shared.core.lock();
            core.fault = Some(foreign_task(&self.key));
            drop(core);
            super::wake::wake_operation(&std::task::Waker::from(shared.waker.clone()));
            return Poll::Pending;
        }
        let mut core = shared.core.lock();
        match self.phase {
            Phase::New => {
                if let Some(refused) = self.refused.take() {
                    self.phase = Phase::Over;
                    return Poll::Ready(Err(refused));
                }
                if current_step().is_some() {
                    self.phase = Phase::Over;
                    return Poll::Ready(Err(nested(&self.key)));
                }
                if let Err(refused) = core.claim(&self.key, plan(), reads, cx.waker()) {
                    self.phase = Phase::Over;
                    return Poll::Ready(Err(refused));
                }
                self.phase = Phase::Live;
                Poll::Pending
            }
            Phase::Live => match core.poll(&self.key, cx.waker()) {
                Found::Pending => Poll::Pending,
                Found::Ready(outcome) => {
                    self.phase = Phase::Over;
                    Poll::Ready(Ok(Found::Ready(outcome)))
                }
                start => Poll::Ready(Ok(start)),
            },
            Phase::Over => Poll::Pending,
        }
    }

    /// Reads a result as the type that the code asks for. An unreadable result blocks the run, so
    /// that it can go on with a build that reads it.
    pub(crate) fn read<T: DeserializeOwned>(
        &self,
        kind: Kind,
        outcome: Outcome,
    ) -> Poll<Result<T, StepError>> {
        match outcome {
            Ok(body) => match read_body::<T>(&body) {
                Ok(value) => Poll::Ready(Ok(value)),
                Err(source) => {
                    let message = format!(
                        "the recorded result of {} step {:?} does not read as {}",
                        kind.as_str(),
                        self.key,
                        std::any::type_name::<T>()
                    );
                    let fault =
                        Error::new(ErrorKind::Invalid, ErrorCode::ResultUnreadable, message)
                            .with_source(source);
                    self.ctx.shared.core.lock().fault = Some(fault);
                    Poll::Pending
                }
            },
            Err(failure) => {
                let core = self.ctx.shared.core.lock();
                let attempts = core.entry(&self.key).map_or(0, |entry| entry.attempt);
                drop(core);
                let unreadable = kind == Kind::Event && failure.name == EVENT_UNREADABLE;
                let code = match unreadable {
                    true => ErrorCode::ResultUnreadable,
                    false => kind.error_code(),
                };
                Poll::Ready(Err(StepError {
                    code,
                    key: self.key.to_string(),
                    name: failure.name,
                    message: failure.message,
                    attempts,
                }))
            }
        }
    }
}

/// The name of the error of a wait whose event does not read as the type that the code asks for.
pub(crate) const EVENT_UNREADABLE: &str = "EventUnreadable";

/// Whether a body reads as the type that the code asks for.
pub(crate) fn reads_as<T: DeserializeOwned>(body: &Body) -> Result<(), serde_json::Error> {
    read_body::<T>(body).map(|_| ())
}

fn read_body<T: DeserializeOwned>(body: &Body) -> Result<T, serde_json::Error> {
    serde_json::from_slice(&body.bytes)
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.phase == Phase::Live {
            self.ctx.shared.core.lock().drop_operation(&self.key);
        }
    }
}

// Once the outer step is recorded, its body never runs again, so a replay would not claim the inner
// one.
fn nested(key: &str) -> StepError {
    let message = "it is used inside the body of another step; use it beside that step".to_owned();
    StepError::new(ErrorCode::NestedStep, key, "NestedStep", message)
}

fn foreign_task(key: &str) -> Error {
    let message = format!(
        "step {key:?} is polled outside its workflow's own future: await it in the workflow, not \
         in a spawned task"
    );
    Error::new(ErrorKind::Invalid, ErrorCode::ForeignTask, message)
}
