//! The token engine: `advance(artefact, state, input, facts)` gives the next steps and effects.
//!
//! It is pure. It never sends or stores anything: a [`Decision`] has the step rows to write, the
//! effects to carry out, and the new state, and the caller commits all of them together. The state
//! can be rebuilt from the rows alone ([`project`](crate::project::project)).

mod flow;
mod gates;
mod handlers;
mod machine;
mod quorum;
mod restart;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::diagnostic::Diagnostic;
use crate::types::{
    ApprovalConfig, ApproverSpec, CompiledWorkflow, EditWindow, NodeType, NotificationChannel,
    RunAs,
};

pub(crate) use gates::{approvers, is_role, is_rule, leads_to};
pub use machine::{STEPS_PER_TURN_MAX, check_result};
pub use quorum::{Count, count};
pub use restart::restart;
pub use state::{State, Status};

/// Advances a run by one input.
///
/// An input that does not fit the position of the run changes nothing: the decision says why in
/// `ignored`. A step that cannot be carried out becomes a failed row, and the state says so.
///
/// # Errors
/// Fails if a turn needs more than [`STEPS_PER_TURN_MAX`] steps.
pub fn advance(
    artefact: &CompiledWorkflow,
    state: &State,
    input: &Input,
    facts: &Facts<'_>,
) -> Result<Decision, Diagnostic> {
    machine::Machine::new(artefact, state.clone(), facts).run(input)
}

/// An input of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "input", rename_all = "snake_case", deny_unknown_fields)]
pub enum Input {
    /// The run begins.
    Start,
    /// The run begins at a lifecycle state: the document has it from an earlier run. Every gate behind
    /// the state must be passed again.
    StartAt {
        /// The name of the state.
        state: String,
    },
    /// A person calls the action of a gate, such as `submit` or `cancel`.
    Action {
        /// The name of the gate.
        gate: String,
    },
    /// The decisions on a request for approval, as they stand now. The quorum of the node is counted
    /// over all of them, so that an input that comes twice does not count twice.
    Approval {
        /// The key of the waiting step.
        key: String,
        /// The people who are asked. Decisions of other people do not count.
        asked: BTreeSet<String>,
        /// The decisions by person.
        decisions: BTreeMap<String, Verdict>,
        /// The people whom delegates represent, by delegate. The weight of a decision is that of this person.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        givers: BTreeMap<String, String>,
    },
    /// A timer is due, or a wait or a request timed out.
    Timer {
        /// The key of the waiting step.
        key: String,
    },
    /// An event arrived.
    Event {
        /// The key of the waiting step.
        key: String,
        /// The payload.
        payload: Value,
    },
    /// An action that the run waits for has a result.
    ActionResult {
        /// The key of the waiting step.
        key: String,
        /// The result.
        result: Value,
    },
    /// A webhook that the run waits for was delivered.
    Delivered {
        /// The key of the waiting step.
        key: String,
    },
    /// The document changed.
    DocumentChanged,
    /// A person retries the failed steps.
    Retry,
}

/// The decision of one person on a request for approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The request was granted.
    Approved,
    /// The request was rejected.
    Rejected,
    /// The person leaves the decision to the others.
    Abstained,
}

/// The values that the run can read at the time of a turn.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The version of the document's content.
    pub version: u64,
    /// The version of the last change that was not limited to immaterial fields.
    pub material_version: u64,
    /// The version of the last such change that no action of this run made. It causes drift.
    pub drift_version: u64,
    /// The document.
    pub entity: &'a Value,
    /// The person or account that caused the input.
    pub actor: &'a Value,
    /// The settings of the tenant.
    pub org: &'a Value,
    /// The time.
    pub now: Timestamp,
    /// The policy of actions.
    pub policy: &'a dyn Policy,
}

/// Decides whether an action may run.
pub trait Policy {
    /// Returns the reason if the action is not allowed.
    ///
    /// # Errors
    /// The error is the reason.
    fn check(&self, action_type: &str, run_as: RunAs) -> Result<(), String>;
}

/// A policy that allows every action.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl Policy for AllowAll {
    fn check(&self, _: &str, _: RunAs) -> Result<(), String> {
        Ok(())
    }
}

/// The result of a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// New and changed step rows, in the order of their numbers.
    pub steps: Vec<StepRow>,
    /// The effects, in the order in which the steps declared them.
    pub effects: Vec<Effect>,
    /// The new state.
    pub state: State,
    /// Why the input changed nothing.
    pub ignored: Option<String>,
}

/// One step: one node, visited by one token.
///
/// The number, key, node, token, version and cycle never change. The rest changes once, when a
/// waiting step ends, and again when a failed step is retried or an approval is applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StepRow {
    /// The number of the step in the run.
    pub seq: u64,
    /// The key, `<node>|<token>|v<version>|<cycle>`, unique in the run.
    pub key: String,
    /// The node.
    pub node: String,
    /// The type of the node.
    pub node_type: NodeType,
    /// The token.
    pub token: String,
    /// The split that created the token; `sys:start` for the first one.
    pub spawned_from: String,
    /// The index of the token's branch.
    pub path_index: u32,
    /// The version of the document.
    pub version: u64,
    /// The number of return edges that the run passed before.
    pub cycle: u32,
    /// The status.
    pub status: StepStatus,
    /// The place in the order of completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// How often the step was tried.
    pub attempts: u32,
    /// The identity that the step runs as.
    pub run_as: RunAs,
    /// The outcome, if the node has outcomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The edges that the step took. Present on every completed step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen_edge_ids: Option<Vec<String>>,
    /// The evidence: expressions, variables, results, reasons.
    pub output: Value,
    /// Context variables that the step writes.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub writes: Map<String, Value>,
    /// Whether a gate consumed the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<bool>,
    /// Whether another branch won the join: the approval or the rule no longer counts at a gate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// The time at which a timer, a wait or a request is due, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_at: Option<i64>,
    /// The key of the event that the step waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for_event_key: Option<String>,
}

/// The status of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepStatus {
    /// The step waits for an input.
    Waiting,
    /// The token is at a join that has not fired.
    Arrived,
    /// The step ended.
    Completed,
    /// The step could not be carried out. A retry tries it again.
    Failed,
    /// The step was cancelled.
    Cancelled,
}

/// An effect that the caller carries out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub enum Effect {
    /// The document has a new lifecycle state.
    EnterState {
        /// The state.
        state: String,
        /// The edit window of the state.
        edit_window: EditWindow,
    },
    /// People are asked.
    RequestApproval {
        /// The key of the step.
        key: String,
        /// The node.
        node: String,
        /// The version of the document that they decide on.
        version: u64,
        /// The request.
        config: ApprovalConfig,
        /// The due time, in microseconds since 1970.
        due_at: Option<i64>,
    },
    /// More people are asked, because nobody decided in time.
    Escalate {
        /// The key of the step.
        key: String,
        /// The people.
        to: ApproverSpec,
    },
    /// A mutation of the document or of another one.
    Mutate {
        /// The key of the step.
        key: String,
        /// The type of the action.
        action_type: String,
        /// The payload.
        payload: Map<String, Value>,
        /// The identity.
        run_as: RunAs,
        /// Whether the run waits for the result.
        await_result: bool,
        /// Whether the contract allows the action to change the document. The caller refuses such a
        /// change by any other action, because the compiler has not checked its place.
        may_change_document: bool,
        /// The key of the action that this one undoes.
        compensates: Option<String>,
    },
    /// A timer.
    SetTimer {
        /// The key of the step.
        key: String,
        /// The due time, in microseconds since 1970.
        at: i64,
    },
    /// A wait for an event.
    AwaitEvent {
        /// The key of the step.
        key: String,
        /// The key of the event.
        event_key: String,
        /// The time of the timeout, in microseconds since 1970.
        timeout_at: Option<i64>,
    },
    /// An HTTP request.
    Webhook {
        /// The key of the step.
        key: String,
        /// The URL.
        url: String,
        /// The body.
        body: Map<String, Value>,
        /// Whether the run waits for the delivery.
        await_delivery: bool,
    },
    /// A message to people.
    Notify {
        /// The key of the step.
        key: String,
        /// The channel.
        channel: NotificationChannel,
        /// The receivers.
        to: ApproverSpec,
        /// The subject.
        subject: String,
        /// The text.
        body: Option<String>,
    },
    /// A gate consumed these approvals.
    ApplyApprovals {
        /// The keys of the approval steps.
        keys: Vec<String>,
    },
    /// A waiting step was cancelled: withdraw its request, timer, wait or delivery.
    Withdraw {
        /// The key of the step.
        key: String,
    },
}
