//! A machine without its type: what the driver calls.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use windlass_kernel::request::RequestOutcome;
use windlass_kernel::{Body, Error, ErrorCode, ErrorKind};

use super::action::{WorkflowAction, WorkflowSignal};
use super::activity::ActivityError;
use super::workflow::{Workflow, WorkflowError};

/// An input of a machine.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Start,
    ActivityCompleted { id: String, result: Value },
    ActivityFailed { id: String, error: ActivityError },
    TimerFired { id: String },
    Signal(WorkflowSignal),
    ChildCompleted { id: String, result: Value },
    ChildFailed { id: String, error: WorkflowError },
    RequestClosed { id: String, outcome: Box<RequestOutcome> },
    RecordsWritten { id: String },
    RecordsRefused { id: String, error: WorkflowError },
}

/// The answer of a machine.
pub(crate) struct Answer {
    pub(crate) actions: Vec<WorkflowAction>,
    /// How it has ended by itself.
    pub(crate) end: Option<Result<Body, WorkflowError>>,
    pub(crate) snapshot: Option<Value>,
}

pub(crate) trait Machine: Send {
    fn tell(&mut self, input: Input) -> Result<Answer, Error>;
    fn bytes(&self) -> usize;
}

/// Makes machines of one workflow.
pub(crate) trait Factory: Send + Sync {
    fn make(&self, input: &Body) -> Result<Box<dyn Machine>, Error>;
    fn restore(&self, input: &Body, snapshot: Value) -> Result<Option<Box<dyn Machine>>, Error>;
}

pub(crate) struct Typed<W>(std::marker::PhantomData<fn() -> W>);

impl<W> Default for Typed<W> {
    fn default() -> Self {
        Self(std::marker::PhantomData)
    }
}

struct Of<W>(W);

impl<W: Workflow> Factory for Typed<W> {
    fn make(&self, input: &Body) -> Result<Box<dyn Machine>, Error> {
        let input = read_input::<W>(input)?;
        Ok(Box::new(Of(guarded("new", || W::new(input))?)))
    }

    fn restore(&self, input: &Body, snapshot: Value) -> Result<Option<Box<dyn Machine>>, Error> {
        let input = read_input::<W>(input)?;
        let restored = guarded("restore", || W::restore(input, snapshot))?;
        Ok(restored.map(|workflow| Box::new(Of(workflow)) as Box<dyn Machine>))
    }
}

fn read_input<W: Workflow>(input: &Body) -> Result<W::Input, Error> {
    input.read().map_err(|source| {
        let wanted = std::any::type_name::<W::Input>();
        let message = format!("the run's input does not read as {wanted}");
        Error::new(ErrorKind::Invalid, ErrorCode::InputUnreadable, message).with_source(source)
    })
}

impl<W: Workflow> Machine for Of<W> {
    fn tell(&mut self, input: Input) -> Result<Answer, Error> {
        let callback = input.callback();
        let workflow = &mut self.0;
        guarded(callback, || {
            let actions = match input {
                Input::Start => workflow.on_start(),
                Input::ActivityCompleted { id, result } => {
                    workflow.on_activity_completed(&id, result)
                }
                Input::ActivityFailed { id, error } => workflow.on_activity_failed(&id, &error),
                Input::TimerFired { id } => workflow.on_timer_fired(&id),
                Input::Signal(signal) => workflow.on_signal(&signal),
                Input::ChildCompleted { id, result } => workflow.on_child_completed(&id, result),
                Input::ChildFailed { id, error } => workflow.on_child_failed(&id, &error),
                Input::RequestClosed { id, outcome } => workflow.on_request_closed(&id, &outcome),
                Input::RecordsWritten { id } => workflow.on_records_written(&id),
                Input::RecordsRefused { id, error } => workflow.on_records_refused(&id, &error),
            };
            let end = match workflow.is_completed() {
                true => Some(workflow.result().ok_or_else(no_result)?),
                false => None,
            };
            let end = match end {
                Some(Ok(output)) => Some(Ok(Body::of(&output)?)),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            };
            Ok(Answer { actions, end, snapshot: workflow.snapshot() })
        })?
    }

    fn bytes(&self) -> usize {
        size_of::<W>()
    }
}

impl Input {
    fn callback(&self) -> &'static str {
        match self {
            Self::Start => "on_start",
            Self::ActivityCompleted { .. } => "on_activity_completed",
            Self::ActivityFailed { .. } => "on_activity_failed",
            Self::TimerFired { .. } => "on_timer_fired",
            Self::Signal(_) => "on_signal",
            Self::ChildCompleted { .. } => "on_child_completed",
            Self::ChildFailed { .. } => "on_child_failed",
            Self::RequestClosed { .. } => "on_request_closed",
            Self::RecordsWritten { .. } => "on_records_written",
            Self::RecordsRefused { .. } => "on_records_refused",
        }
    }
}

fn guarded<T>(callback: &str, call: impl FnOnce() -> T) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = windlass_engine::panic_text(&*panic);
        let message = format!("the workflow panicked in {callback}");
        Error::new(ErrorKind::Invalid, ErrorCode::WorkflowPanicked, message).with_source(text)
    })
}

fn no_result() -> Error {
    let message = "is_completed says that the machine is at its end, and result has none; answer one, \
                   or end the run with CompleteWorkflow or FailWorkflow";
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidAction, message)
}
