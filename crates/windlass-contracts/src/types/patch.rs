//! The definition of one tenant: one graph for each slot that it fills.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Edge, EditWindow, Node};
use crate::rules::DecisionTable;

/// The workflow of a tenant for one document type: patches for slots of the envelope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OrgWorkflowDefinition {
    /// The envelope that the patches are made for.
    pub base_ref: BaseRef,
    /// Patches by slot id. A slot without a patch uses the default patch of the contract.
    #[serde(default, deserialize_with = "super::unique::deserialize")]
    #[schemars(with = "BTreeMap<String, SlotGraphPatch>")]
    pub slots: BTreeMap<String, SlotGraphPatch>,
    /// The tenant's own decision tables by name. A name of the contract cannot be reused.
    #[serde(
        default,
        deserialize_with = "super::unique::deserialize",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    #[schemars(with = "BTreeMap<String, DecisionTable>")]
    pub rules: BTreeMap<String, DecisionTable>,
}

/// A reference to one version of an envelope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BaseRef {
    /// The document type.
    pub entity_type: String,
    /// The version of the lifecycle contract.
    pub envelope_version: u32,
}

/// The graph that fills one slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SlotGraphPatch {
    /// The nodes. An id is `usr:<slot id>:<name>`.
    #[serde(default)]
    pub nodes: Vec<Node>,
    /// The edges. Both ends are nodes of this patch or the attachment points
    /// `sys:slot:<slot id>:in` and `sys:slot:<slot id>:out`.
    #[serde(default)]
    pub edges: Vec<Edge>,
    /// How the slot begins. [default: serial]
    #[serde(default)]
    pub entry_edge_mode: EntryEdgeMode,
    /// How the slot ends. [default: single]
    #[serde(default)]
    pub exit_edge_mode: ExitEdgeMode,
    /// A stricter edit window for the whole slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edit_window_override: Option<EditWindow>,
}

/// How a patch begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryEdgeMode {
    /// One node begins the slot. The compiler connects it.
    #[default]
    Serial,
    /// Edges from the attachment point `in` select one of several first nodes.
    Branch,
}

/// How a patch ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitEdgeMode {
    /// One node ends the slot. The compiler connects it.
    #[default]
    Single,
    /// Several nodes end the slot. The compiler connects each of them.
    Join,
}
