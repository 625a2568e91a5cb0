//! The trait that users implement, and the error that a run of it can end with.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_kernel::request::RequestOutcome;

use super::action::{WorkflowAction, WorkflowSignal};
use super::activity::ActivityError;

/// A deterministic state machine.
///
/// The actions of its callbacks must depend only on the input and on earlier callbacks: no clock,
/// no randomness, no I/O. If the actions differ from the record, the run is blocked until a build that
/// agrees with the record serves it.
///
/// ```
/// use serde_json::{Value, json};
/// use windlass::machines::{ActivityError, Workflow, WorkflowAction};
///
/// struct Order(String);
///
/// impl Workflow for Order {
///     const TYPE: &'static str = "order";
///     type Input = String;
///     type Output = Value;
///
///     fn new(item: String) -> Self {
///         Self(item)
///     }
///
///     fn on_start(&mut self) -> Vec<WorkflowAction> {
///         vec![WorkflowAction::activity("charge", "charge_card", json!(self.0))]
///     }
///
///     fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
///         vec![WorkflowAction::complete(result)]
///     }
///
///     fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
///         vec![WorkflowAction::fail(error)]
///     }
/// }
/// ```
pub trait Workflow: Send + Sized + 'static {
    /// The name of the workflow.
    const TYPE: &'static str;
    /// The input of a run.
    type Input: Serialize + DeserializeOwned + Send;
    /// The output of a run.
    type Output: Serialize + DeserializeOwned + Send;

    /// A machine at its beginning.
    fn new(input: Self::Input) -> Self;

    /// The run begins.
    fn on_start(&mut self) -> Vec<WorkflowAction>;

    /// An activity gave its result.
    fn on_activity_completed(&mut self, activity_id: &str, result: Value) -> Vec<WorkflowAction>;

    /// An activity failed for good: its attempts are spent, or no other can help, or it timed out.
    fn on_activity_failed(
        &mut self,
        activity_id: &str,
        error: &ActivityError,
    ) -> Vec<WorkflowAction>;

    /// A timer has fired. Answers nothing unless it is overridden.
    fn on_timer_fired(&mut self, timer_id: &str) -> Vec<WorkflowAction> {
        let _ = timer_id;
        Vec::new()
    }

    /// Somebody sent a signal. Answers nothing unless it is overridden.
    fn on_signal(&mut self, signal: &WorkflowSignal) -> Vec<WorkflowAction> {
        let _ = signal;
        Vec::new()
    }

    /// A child gave its result. Answers nothing unless it is overridden.
    fn on_child_completed(&mut self, workflow_id: &str, result: Value) -> Vec<WorkflowAction> {
        let _ = (workflow_id, result);
        Vec::new()
    }

    /// A child failed or was ended. Unless it is overridden, the run fails with the child's error.
    fn on_child_failed(&mut self, workflow_id: &str, error: &WorkflowError) -> Vec<WorkflowAction> {
        let _ = workflow_id;
        vec![WorkflowAction::FailWorkflow { error: error.clone() }]
    }

    /// A request to people has ended, in any way. Answers nothing unless it is overridden.
    fn on_request_closed(
        &mut self,
        request_id: &str,
        outcome: &RequestOutcome,
    ) -> Vec<WorkflowAction> {
        let _ = (request_id, outcome);
        Vec::new()
    }

    /// Records are written, each at the revision after the one that its change expected. Answers nothing unless
    /// it is overridden.
    fn on_records_written(&mut self, write_id: &str) -> Vec<WorkflowAction> {
        let _ = write_id;
        Vec::new()
    }

    /// Another writer was first, and nothing is written. The error has the name `RecordConflict`; its details
    /// are `collection`, `id` and `revision`, the one that the record has now (null if there is none). Unless it
    /// is overridden, the run fails with the error.
    fn on_records_refused(&mut self, write_id: &str, error: &WorkflowError) -> Vec<WorkflowAction> {
        let _ = write_id;
        vec![WorkflowAction::FailWorkflow { error: error.clone() }]
    }

    /// Whether the machine is at its end. Asked after each callback; a run can also end by an action.
    fn is_completed(&self) -> bool {
        false
    }

    /// The output, once [`Workflow::is_completed`] says so.
    ///
    /// # Errors
    ///
    /// The run fails with the error.
    fn result(&self) -> Option<Result<Self::Output, WorkflowError>> {
        None
    }

    /// The state of the machine. With a snapshot the engine restores the machine when it loads the run;
    /// without one (the default) it replays all callbacks.
    fn snapshot(&self) -> Option<Value> {
        None
    }

    /// Restores the machine from a snapshot. `None` (the default) if this build cannot read it: then the
    /// engine replays all callbacks.
    fn restore(input: Self::Input, snapshot: Value) -> Option<Self> {
        let _ = (input, snapshot);
        None
    }
}

/// The error of a failed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkflowError {
    /// The error's name.
    pub name: String,
    /// The message.
    pub message: String,
    /// Data beside the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl WorkflowError {
    /// An error with a text.
    ///
    /// ```
    /// # use windlass::machines::WorkflowError;
    /// assert_eq!(WorkflowError::new("out of stock").message, "out of stock");
    /// ```
    pub fn new(message: impl Into<String>) -> Self {
        Self { name: "WorkflowError".into(), message: message.into(), details: None }
    }

    /// The same error under a name of its own.
    ///
    /// ```
    /// # use windlass::machines::WorkflowError;
    /// let error = WorkflowError::new("out of stock").named("OutOfStock");
    /// assert_eq!(error.name, "OutOfStock");
    /// ```
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The same error with data beside its text.
    ///
    /// ```
    /// # use windlass::machines::WorkflowError;
    /// let error = WorkflowError::new("out of stock").details(serde_json::json!({ "left": 0 }));
    /// # drop(error);
    /// ```
    pub fn details(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }
}

impl From<&ActivityError> for WorkflowError {
    fn from(error: &ActivityError) -> Self {
        Self::new(error.message.clone()).named(error.name.clone())
    }
}

impl fmt::Display for WorkflowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

impl std::error::Error for WorkflowError {}
