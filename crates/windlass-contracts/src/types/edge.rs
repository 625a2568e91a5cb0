//! Edges between nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ExpressionText;

/// A directed connection between two nodes.
///
/// A node that decides by conditions takes the first edge whose condition holds, by priority and
/// then by id. A node with outcomes (approval, event, rule, join) takes the edge whose label is the
/// outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edge {
    /// The id, unique in the definition.
    pub id: String,
    /// The node at which the edge begins.
    pub source: String,
    /// The node at which the edge ends.
    pub target: String,
    /// The outcome that selects this edge, or a label for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The edge is taken only if this expression is true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ExpressionText>,
    /// Lower priorities are tried first. [default: 0]
    #[serde(default)]
    pub priority: i32,
}

/// The outcome labels that have a fixed meaning.
pub mod labels {
    /// An approval was granted.
    pub const APPROVED: &str = "approved";
    /// An approval was rejected.
    pub const REJECTED: &str = "rejected";
    /// An approval was not decided in time, or an event did not arrive in time.
    pub const TIMEOUT: &str = "timeout";
    /// No branch of an ANY join was accepted.
    pub const EXHAUSTED: &str = "exhausted";
    /// The return edge of a gate.
    pub const REJECT: &str = "reject";
    /// The return edge of a stable region whose document changed.
    pub const DRIFT: &str = "drift";
    /// The edge from a state to the cancel gate.
    pub const CANCEL: &str = "cancel";
}
