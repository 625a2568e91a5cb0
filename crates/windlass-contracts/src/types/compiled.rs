//! The compiled artefact, which is the only form that runs.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use windlass_kernel::Sha256Digest;

use super::{EditWindow, ExpressionText, JoinMode, Node, Obligation, OnDrift};
use crate::rules::DecisionTable;

/// An envelope and its patches, merged, checked and hashed.
///
/// The hash covers everything else in the artefact: a changed approver is another artefact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledWorkflow {
    /// The document type.
    pub entity_type: String,
    /// The version of the envelope.
    pub envelope_version: u32,
    /// The version of the compiler.
    pub compiler_version: String,
    /// The nodes by id.
    pub nodes: BTreeMap<String, CompiledNode>,
    /// The edges by id, with return edges.
    pub edges_by_id: BTreeMap<String, CompiledEdge>,
    /// The ids of the forward edges that leave a node, in the order of evaluation.
    pub adjacency: BTreeMap<String, Vec<String>>,
    /// The ids of the forward edges that enter a node, sorted.
    pub reverse_adjacency: BTreeMap<String, Vec<String>>,
    /// All nodes in topological order; the smaller id comes first.
    pub topological_order: Vec<String>,
    /// The joins by node id.
    pub join_requirements: BTreeMap<String, JoinRequirement>,
    /// The edit window of each node.
    pub edit_windows: BTreeMap<String, EditWindow>,
    /// The nodes in which a document change is drift.
    pub stable_region_nodes: BTreeSet<String>,
    /// The reaction to drift by slot id.
    pub on_drift: BTreeMap<String, OnDrift>,
    /// The owner of each node: a slot id, or `envelope`.
    pub slot_map: BTreeMap<String, String>,
    /// The authors of the patches, by slot.
    pub patch_origins: BTreeMap<String, PatchOrigin>,
    /// The decision tables that nodes use.
    pub rules: BTreeMap<String, DecisionTable>,
    /// The obligations, which hold on every path.
    pub obligations: Vec<Obligation>,
    /// Document fields whose change is no drift.
    pub immaterial_fields: BTreeSet<String>,
    /// The types of the actions that may change the document.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub document_actions: BTreeSet<String>,
    /// The schema of the context, if an event or an action writes into it: their values are checked when they
    /// arrive.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub context_schema: Value,
    /// The digest of the four schemas.
    #[schemars(with = "String")]
    pub schema_digest: Sha256Digest,
    /// The proof that the gates stand in the order of the envelope.
    pub system_gate_integrity: GateIntegrity,
    /// The SHA-256 digest of the canonical JSON of all other fields.
    #[schemars(with = "String")]
    pub hash: Sha256Digest,
}

/// The author of the patch of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatchOrigin {
    /// The contract: it is the default patch.
    Contract,
    /// The tenant.
    Definition,
}

/// A node of the artefact.
pub type CompiledNode = Node;

/// An edge of the artefact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledEdge {
    /// The id.
    pub id: String,
    /// The node at which the edge begins.
    pub source: String,
    /// The node at which the edge ends.
    pub target: String,
    /// Lower priorities are tried first.
    pub priority: i32,
    /// The outcome that selects this edge, or a label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The edge is taken only if this expression is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ExpressionText>,
    /// The origin: a slot id, or `envelope`.
    pub provenance: String,
    /// Whether the edge leads back. Such an edge is not part of the order.
    #[serde(default, rename = "return")]
    pub is_return: bool,
}

/// The requirements of a join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinRequirement {
    /// The split whose branches the join ends.
    pub split: String,
    /// The number of branches.
    pub required_token_count: u32,
    /// The mode.
    pub mode: JoinMode,
}

/// The proof that the gates stand in the order of the envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateIntegrity {
    /// The gates of the envelope, in topological order.
    pub required_gates: Vec<String>,
    /// The gates of the artefact, in topological order.
    pub present_gates: Vec<String>,
    /// The nearest system node that every path to a system node passes.
    pub dominators: BTreeMap<String, String>,
    /// Whether the order and the dominators are those of the envelope.
    pub valid: bool,
}

/// A thread of execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Token {
    /// The id. The first token is `0`, and the branch `i` of a split adds `.i`.
    pub token_id: String,
    /// The state.
    pub state: TokenState,
    /// The node at which the token is.
    pub node: String,
    /// The split that created the token; `sys:start` for the first one.
    pub spawned_from: String,
    /// The index of the branch in the split.
    pub path_index: u32,
    /// The number of return edges that the run passed before.
    pub cycle: u32,
}

/// The state of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// The token moves within a turn.
    Active,
    /// The token waits for an input, or for other tokens at a join.
    Waiting,
    /// The token reached the end, a split or a fired join.
    Completed,
    /// The token was cancelled.
    Cancelled,
}
