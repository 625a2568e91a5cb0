//! The envelope: the system nodes and edges that a lifecycle contract generates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BodySlot, Edge, Node};

/// The immutable skeleton of all workflows of one document type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Envelope {
    /// The document type.
    pub entity_type: String,
    /// The version of the lifecycle contract that generated the envelope.
    pub version: u32,
    /// The system nodes, sorted by id.
    pub nodes: Vec<Node>,
    /// The system edges of the forward graph, sorted by id.
    pub edges: Vec<Edge>,
    /// The edges that lead back: rejections and drift, sorted by id. They are not part of the
    /// order; each passage increases the cycle of the token.
    pub return_edges: Vec<Edge>,
    /// The slots, sorted by id.
    pub slots: Vec<BodySlot>,
}
