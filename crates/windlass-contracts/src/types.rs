//! The nouns of the language, as they are written in JSON.
//!
//! Keys are camelCase. Unknown keys and duplicate keys are refused, so that a typing error never
//! becomes a setting that has no effect.

pub mod compiled;
pub mod contract;
pub mod edge;
pub mod envelope;
pub mod node;
pub mod patch;
pub mod slot;
mod unique;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use compiled::{
    CompiledEdge, CompiledNode, CompiledWorkflow, GateIntegrity, JoinRequirement, PatchOrigin,
    Token, TokenState,
};
pub use contract::{
    GateSpec, GateTrigger, LifecycleContract, Need, Obligation, Schemas, StateSpec, Transition,
    Waiver,
};
pub use edge::Edge;
pub use envelope::Envelope;
pub use node::{
    ActionConfig, ApprovalConfig, ApproverSpec, AttachmentConfig, AttachmentSide, AwaitDelivery,
    Due, DueAction, Empty, GateConfig, JoinConfig, JoinMode, MutationSpecRef, Node, NodeConfig,
    NodeType, NotificationChannel, NotificationConfig, PolicyConfig, Quorum, RejectionRule,
    RolePick, RuleConfig, RunAs, ScriptConfig, StateConfig, TimerConfig, WaitEventConfig,
    WebhookConfig,
};
pub use patch::{BaseRef, EntryEdgeMode, ExitEdgeMode, OrgWorkflowDefinition, SlotGraphPatch};
pub use slot::{BodySlot, OnDrift};

/// The edits of the document that a caller may make while the run is at a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum EditWindow {
    /// Edits are allowed and the run continues.
    Editable,
    /// Edits are allowed, and each one sends the run to the amended state.
    AmendOnly,
    /// Edits are refused.
    Locked,
}

impl EditWindow {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Editable => "editable",
            Self::AmendOnly => "amend_only",
            Self::Locked => "locked",
        }
    }
}

impl fmt::Display for EditWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// The source text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_type! {
    /// The source of an expression, such as `entity.total > 10000`.
    ExpressionText
}

text_type! {
    /// The source of a template: text with `{path}` placeholders, such as `pod:{entity.shipment}`.
    TemplateText
}
