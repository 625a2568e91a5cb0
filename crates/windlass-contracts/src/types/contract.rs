//! The lifecycle contract of a document type, which the operator writes.

use std::collections::BTreeMap;

use crate::rules::DecisionTable;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BodySlot, EditWindow, SlotGraphPatch};

/// The lifecycle of a document type: states, gates between them, slots, and the obligations that
/// every workflow of this type must meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LifecycleContract {
    /// The document type, such as `invoice`.
    pub entity_type: String,
    /// The version of the contract, which is the version of its envelope. It begins at 1.
    pub version: u32,
    /// The state of a new document.
    pub initial: String,
    /// The state that drift leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amended: Option<String>,
    /// The states.
    pub states: Vec<StateSpec>,
    /// The gates.
    pub gates: Vec<GateSpec>,
    /// The transitions. Each one passes a gate.
    pub transitions: Vec<Transition>,
    /// The slots that a tenant may fill.
    #[serde(default)]
    pub slots: Vec<BodySlot>,
    /// The conditions that every path to a gate must meet.
    #[serde(default)]
    pub obligations: Vec<Obligation>,
    /// Decision tables by name, for nodes of the type `rule` and for waivers.
    #[serde(default, deserialize_with = "super::unique::deserialize")]
    #[schemars(with = "BTreeMap<String, DecisionTable>")]
    pub rules: BTreeMap<String, DecisionTable>,
    /// The patch of each slot that the tenant does not fill.
    #[serde(default, deserialize_with = "super::unique::deserialize")]
    #[schemars(with = "BTreeMap<String, SlotGraphPatch>")]
    pub defaults: BTreeMap<String, SlotGraphPatch>,
    /// Document fields whose change keeps approvals and causes no drift.
    #[serde(default)]
    pub immaterial_fields: Vec<String>,
    /// The types of the actions that change the document itself, such as `invoice.correct`. Patches
    /// can use them only where a gate still sees the change, and no other action may change the
    /// document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub document_actions: Vec<String>,
    /// JSON schemas of the values that expressions can read.
    pub schemas: Schemas,
}

/// A lifecycle state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StateSpec {
    /// The name, such as `draft`.
    pub name: String,
    /// The edit window in this state.
    pub edit_window: EditWindow,
    /// Whether the run ends in this state.
    #[serde(default, rename = "final")]
    pub is_final: bool,
}

/// A gate between states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateSpec {
    /// The name, such as `approve`.
    pub name: String,
    /// The edit window while the run stands at the gate.
    pub edit_window: EditWindow,
    /// The condition that opens the gate.
    pub trigger: GateTrigger,
}

/// The condition that opens a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GateTrigger {
    /// The run arrives at the gate.
    Arrival,
    /// The run arrives at the gate and a person calls the action that has the gate's name.
    Action,
    /// A person calls the action in one of the source states, wherever the run is. All other work
    /// of the run is cancelled.
    Cancel,
}

/// A transition from one state to another through a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transition {
    /// The state before the gate.
    pub from: String,
    /// The gate.
    pub gate: String,
    /// The state after the gate.
    pub to: String,
    /// The state that a rejection leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject: Option<String>,
}

/// A condition that every path to a gate must meet. The compiler proves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Obligation {
    /// The id, such as `four_eyes`.
    pub id: String,
    /// The gate that the obligation protects.
    pub gate: String,
    /// The need of each path.
    pub needs: Need,
    /// Paths on which this rule had this outcome are exempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unless: Option<Waiver>,
}

/// The demand of an obligation on a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Need {
    /// Granted approvals in the slots that end at the gate.
    Approvals {
        /// At least this many.
        count: u32,
        /// Count only approvals by this role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
    },
    /// A completed action in the slots that end at the gate.
    Action {
        /// The type of the action.
        #[serde(rename = "actionType")]
        action_type: String,
    },
}

/// An exemption from an obligation by a decision table of the contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Waiver {
    /// The name of the decision table in the contract.
    pub rule: String,
    /// The outcome that exempts a path.
    pub outcome: String,
}

/// JSON schemas of the values that expressions can read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Schemas {
    /// The document, read as `entity`.
    pub document: Value,
    /// The variables that the workflow itself writes, read as `context`.
    #[serde(default = "empty_object_schema")]
    pub context: Value,
    /// The settings of the tenant, read as `org`.
    #[serde(default = "empty_object_schema")]
    pub org: Value,
    /// The person or account that caused the step, read as `actor`.
    #[serde(default = "empty_object_schema")]
    pub actor: Value,
}

fn empty_object_schema() -> Value {
    serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false})
}
