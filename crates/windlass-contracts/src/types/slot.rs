//! Slots: the regions of an envelope that a tenant may fill.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EditWindow;

/// A named region between two system nodes, in which custom nodes may stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BodySlot {
    /// The id, such as `submitted_to_approved`.
    pub slot_id: String,
    /// The system node before the slot, such as `sys:state:submitted`.
    pub entry: String,
    /// The system node after the slot, such as `sys:gate:approve`.
    pub exit: String,
    /// The edit window of all nodes in the slot. A patch can make it stricter.
    pub default_edit_window: EditWindow,
    /// Whether a change of the document while the run is in this slot counts as drift.
    #[serde(default)]
    pub stable_region: bool,
    /// The reaction to drift. [default: amend]
    #[serde(default)]
    pub on_drift: OnDrift,
}

/// The reaction to a document change in a stable region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDrift {
    /// The run goes to the amended state.
    #[default]
    Amend,
    /// The run fails with `WORKFLOW_VERSION_DRIFT`.
    Fail,
}
