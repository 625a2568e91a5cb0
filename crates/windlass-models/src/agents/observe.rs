//! Records of a workflow for the ledger: events that wait for their commit, and summaries of steps.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use windlass_kernel::summary::{Change, MapDiff};
pub use windlass_kernel::{CausalRef, EventId};

/// The summary of a changed env key: shapes, sizes and digests, never values.
pub type EnvChangeSummary = Change;
/// The changes of an env: the first changed keys, complete counts, and the digests before and after.
pub type EnvChangeSetSummary = MapDiff;

/// The limits of what a program records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservabilityConfig {
    /// How many changed env keys an event lists. Default 64.
    pub max_env_changes: usize,
    /// How many bytes the payload of an event has at most. Default 32 KiB.
    pub max_event_payload_bytes: usize,
}

impl Default for ObservabilityConfig {
    fn default() -> Self {
        Self { max_env_changes: 64, max_event_payload_bytes: 32 * 1024 }
    }
}

/// The place of a workflow in the ledger, as an executor sets it before it runs the workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservabilityContext {
    /// The cause of the next automatic event.
    pub causal_cursor: CausalRef,
}

/// An event that a program recorded and no commit has written yet.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingWorkflowEvent {
    /// Its id.
    pub event_id: EventId,
    /// Its type.
    pub event_type: String,
    /// The version of its payload's shape.
    pub event_version: u16,
    /// Its cause.
    pub cause: PendingCause,
    /// Its payload.
    pub payload: Value,
}

/// The cause of a pending event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingCause {
    /// The event before it, as the commit orders them.
    Automatic,
    /// The cause that the program named; the commit checks that it exists.
    Explicit(CausalRef),
}

/// The place of a workflow: its step and how many steps are deferred.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowSummary {
    /// The step before.
    pub before: StepSummary,
    /// The step after.
    pub after: StepSummary,
    /// How many steps were deferred before.
    pub depth_before: usize,
    /// How many steps are deferred after.
    pub depth_after: usize,
}

/// A step without its bodies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepSummary {
    /// `halt`, `local_call`, `llm`, `human`, `tool_call` or `fork_join`.
    pub kind: &'static str,
    /// The function that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The provider that it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The env key that receives the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_key: Option<String>,
}

/// The next action of a workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkflowNext {
    /// It has ended.
    Halt,
    /// A function runs.
    LocalCall {
        /// Its name.
        function: String,
    },
    /// A language model is called.
    Llm {
        /// The provider.
        provider: String,
        /// The env key that receives the response.
        output_key: String,
    },
    /// A person is asked.
    Human {
        /// The env key that receives the answer.
        output_key: String,
    },
    /// Tools are called.
    ToolCall {
        /// Their names.
        tool_names: Vec<String>,
        /// The env key that receives the results.
        output_key: String,
    },
    /// Branches run.
    ForkJoin {
        /// The function of each branch, by name.
        branches: BTreeMap<String, String>,
        /// The function that runs after all of them.
        join_function: String,
    },
}
