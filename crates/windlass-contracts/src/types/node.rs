//! Nodes: one type and one configuration for each kind of work.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{EditWindow, ExpressionText, TemplateText};

/// A node of an envelope or of a patch, written `{"id", "type", "config"}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The id: `sys:…` in an envelope, `usr:<slot id>:<name>` in a patch.
    pub id: String,
    /// A name for people.
    pub label: Option<String>,
    /// The edit window of a system node. Nodes of a patch take the window of their slot.
    pub edit_window: Option<EditWindow>,
    /// The type and its configuration.
    pub config: NodeConfig,
}

impl Node {
    /// A node without a label.
    pub fn new(id: impl Into<String>, config: NodeConfig) -> Self {
        Self { id: id.into(), label: None, edit_window: None, config }
    }

    /// The type.
    pub fn node_type(&self) -> NodeType {
        self.config.node_type()
    }
}

macro_rules! node_types {
    ($($(#[$doc:meta])* $name:ident($config:ty) = $text:literal, $system:literal;)*) => {
        /// The type of a node.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            JsonSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum NodeType { $($(#[$doc])* $name,)* }

        impl NodeType {
            /// All types.
            pub const ALL: &[NodeType] = &[$(NodeType::$name),*];

            /// The name in JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Whether only the compiler creates nodes of this type.
            pub fn is_system(self) -> bool {
                match self { $(Self::$name => $system,)* }
            }
        }

        /// The configuration of a node.
        #[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
        #[serde(tag = "type", content = "config", rename_all = "snake_case")]
        pub enum NodeConfig { $($(#[$doc])* $name($config),)* }

        impl NodeConfig {
            /// The type.
            pub fn node_type(&self) -> NodeType {
                match self { $(Self::$name(_) => NodeType::$name,)* }
            }

            fn read(node_type: NodeType, config: Value) -> Result<Self, serde_json::Error> {
                match node_type { $(NodeType::$name => <$config>::deserialize(config).map(Self::$name),)* }
            }

            fn value(&self) -> Result<Value, serde_json::Error> {
                match self { $(Self::$name(config) => serde_json::to_value(config),)* }
            }
        }
    };
}

node_types! {
    /// The start of a run.
    Start(Empty) = "start", true;
    /// The end of a run.
    End(Empty) = "end", true;
    /// A lifecycle state.
    State(StateConfig) = "state", true;
    /// A lifecycle gate.
    LifecycleGate(GateConfig) = "lifecycle_gate", true;
    /// The policy check before an action.
    PolicyGate(PolicyConfig) = "policy_gate", true;
    /// The begin or the end of a slot.
    Attachment(AttachmentConfig) = "attachment", true;
    /// A mutation of a document.
    Action(ActionConfig) = "action", false;
    /// A decision by people.
    Approval(ApprovalConfig) = "approval", false;
    /// A choice between edges by their conditions.
    Condition(Empty) = "condition", false;
    /// The begin of parallel branches.
    ParallelSplit(Empty) = "parallel_split", false;
    /// The end of parallel branches.
    ParallelJoin(JoinConfig) = "parallel_join", false;
    /// A wait for a time.
    WaitTimer(TimerConfig) = "wait_timer", false;
    /// A wait for an event from outside.
    WaitEvent(WaitEventConfig) = "wait_event", false;
    /// An HTTP request to another system.
    WebhookOut(WebhookConfig) = "webhook_out", false;
    /// A message to people.
    Notification(NotificationConfig) = "notification", false;
    /// Assignments to context variables.
    Script(ScriptConfig) = "script", false;
    /// A choice between edges by a decision table.
    Rule(RuleConfig) = "rule", false;
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A configuration without settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// The configuration of a lifecycle state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StateConfig {
    /// The name of the state.
    pub state: String,
    /// Whether the run ends in this state.
    #[serde(rename = "final")]
    pub is_final: bool,
}

/// The configuration of a lifecycle gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateConfig {
    /// The name of the gate.
    pub gate: String,
    /// The condition that opens the gate.
    pub trigger: super::GateTrigger,
}

/// The configuration of a policy check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyConfig {
    /// The action node behind the check.
    pub guards: String,
    /// The type of the action.
    pub action_type: String,
    /// The identity that the action runs as.
    pub run_as: RunAs,
}

/// The configuration of an attachment point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachmentConfig {
    /// The slot.
    pub slot: String,
    /// The side of the slot.
    pub side: AttachmentSide,
}

/// The side of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentSide {
    /// The begin.
    In,
    /// The end.
    Out,
}

/// A mutation that an action node requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MutationSpecRef {
    /// The type of the action, such as `invoice.post`.
    pub action_type: String,
    /// The payload: field names and the expressions that give their values.
    #[serde(default)]
    pub payload_template: BTreeMap<String, ExpressionText>,
    /// The identity that the action runs as. [default: actor]
    #[serde(default)]
    pub run_as: RunAs,
}

/// The identity that a node runs as.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum RunAs {
    /// The person who caused the step.
    #[default]
    Actor,
    /// The engine.
    System,
    /// The service account of the tenant.
    ServiceAccount,
}

/// The configuration of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionConfig {
    /// The mutation.
    pub mutation: MutationSpecRef,
    /// Context variables that receive fields of the result: variable name to result path. If there
    /// are any, the run waits for the result.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub writes: BTreeMap<String, String>,
    /// The mutation that undoes this one if its branch is cancelled later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensate: Option<MutationSpecRef>,
}

/// The configuration of an approval. It has either `approvers` or `chain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApprovalConfig {
    /// The people who are asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvers: Option<ApproverSpec>,
    /// The name of an approval chain of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<String>,
    /// How many of them must approve. [default: any]
    #[serde(default)]
    pub quorum: Quorum,
    /// When rejections end the request. [default: first]
    #[serde(default)]
    pub rejection: RejectionRule,
    /// The reaction to a request that nobody decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Due>,
}

impl ApprovalConfig {
    /// The role that every approver has; nothing if somebody without it could approve, also after
    /// an escalation.
    pub fn role(&self) -> Option<&str> {
        fn of(approvers: &ApproverSpec) -> Option<&str> {
            match approvers {
                ApproverSpec::Role { role, .. } => Some(role),
                _ => None,
            }
        }
        let role = of(self.approvers.as_ref()?)?;
        match self.due.as_ref().map(|due| &due.then) {
            Some(DueAction::Escalate(to)) if of(to) != Some(role) => None,
            _ => Some(role),
        }
    }

    /// The least number of people who approve before the step is approved.
    pub fn people_min(&self) -> u32 {
        match (&self.quorum, self.due.as_ref().map(|due| &due.then)) {
            (_, Some(DueAction::Approve)) => 0,
            (Quorum::Count { count }, _) => *count,
            _ => 1,
        }
    }
}

/// The people who are asked for an approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "strategy", rename_all = "snake_case", deny_unknown_fields)]
pub enum ApproverSpec {
    /// These people.
    Direct {
        /// Ids of people.
        users: Vec<String>,
    },
    /// People who have a role.
    Role {
        /// The role.
        role: String,
        /// Which of them. [default: all]
        #[serde(default)]
        pick: RolePick,
    },
    /// The manager of a person.
    OrgChart {
        /// An expression that gives the id of the person. [default: the requester]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<ExpressionText>,
        /// The number of levels above that person. [default: 1]
        #[serde(default = "one_level")]
        levels: u32,
    },
    /// The people that a decision table names: its outcome is the id of a person, or `role:<name>`.
    Rule {
        /// The name of the decision table.
        rule: String,
    },
    /// The people that an expression names: an id or a list of ids.
    Expression {
        /// The expression, such as `entity.budget_owner`.
        expression: ExpressionText,
    },
}

fn one_level() -> u32 {
    1
}

/// Which people of a role are asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolePick {
    /// All of them.
    #[default]
    All,
    /// One of them, in turn.
    RoundRobin,
    /// The first one who is available.
    FirstAvailable,
}

/// How many approvals grant a request.
// A unit variant of a tagged enum reads any other field, so that `{"kind": "any", "count": 2}` would mean one
// approval. A variant with braces refuses the field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Quorum {
    /// One.
    Any {},
    /// All who are asked.
    All {},
    /// A number.
    Count {
        /// At least this many.
        count: u32,
    },
    /// A share of those who are asked.
    Percent {
        /// From 1 to 100, rounded up to whole people.
        percent: u32,
    },
    /// A sum of weights.
    Weighted {
        /// The weight of each person. Others weigh 1.
        weights: BTreeMap<String, u32>,
        /// The sum that grants the request.
        needed: u32,
    },
}

impl Default for Quorum {
    fn default() -> Self {
        Self::Any {}
    }
}

/// When rejections end a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RejectionRule {
    /// The first rejection.
    #[default]
    First,
    /// As soon as the quorum cannot be reached any more.
    WhenImpossible,
}

/// The reaction to a request that nobody decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Due {
    /// A duration, such as `3 days`.
    pub after: String,
    /// The reaction.
    pub then: DueAction,
}

/// The reaction to a due date.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DueAction {
    /// Continue as if the request were granted. It does not count for an obligation.
    Approve,
    /// Continue as if the request were rejected.
    Reject,
    /// Take the edge labelled `timeout`.
    Timeout,
    /// Ask these people as well.
    Escalate(ApproverSpec),
}

/// The configuration of a join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JoinConfig {
    /// How many branches must arrive.
    pub mode: JoinMode,
    /// For ANY: only a branch for which this is true wins. If no branch wins, the join takes the
    /// edge labelled `exhausted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<ExpressionText>,
}

/// How many branches a join needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JoinMode {
    /// All of them.
    All,
    /// The first one. The others are cancelled.
    Any,
}

/// The configuration of a timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimerConfig {
    /// A duration, such as `24 hours`.
    For(String),
    /// An expression that gives a time.
    Until(ExpressionText),
    /// The next time of a cron expression, in UTC.
    Cron(String),
}

/// The configuration of a wait for an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitEventConfig {
    /// The key of the event, such as `delivery:pod:{entity.shipment_id}`.
    pub event_key: TemplateText,
    /// After this duration the run takes the edge labelled `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Context variables that receive fields of the event: variable name to payload path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub writes: BTreeMap<String, String>,
}

/// The configuration of an HTTP request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhookConfig {
    /// The URL. It is fixed text, so that no document chooses the receiver.
    pub url: String,
    /// The body: field names and the expressions that give their values.
    #[serde(default)]
    pub payload_template: BTreeMap<String, ExpressionText>,
    /// Whether the run waits for the delivery. [default: no]
    #[serde(default, rename = "await", skip_serializing_if = "Option::is_none")]
    pub await_delivery: Option<AwaitDelivery>,
}

/// The event that an effect waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AwaitDelivery {
    /// The receiver accepted the request.
    Delivered,
}

/// The configuration of a message to people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NotificationConfig {
    /// The channel.
    pub channel: NotificationChannel,
    /// The receivers.
    pub to: ApproverSpec,
    /// The subject.
    pub subject: TemplateText,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<TemplateText>,
}

/// The channel of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotificationChannel {
    /// Electronic mail.
    Email,
    /// A text message.
    Sms,
    /// A message in the application.
    InApp,
}

/// The configuration of a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScriptConfig {
    /// Context variables and the expressions that give their values. All expressions read the
    /// values from before the script.
    pub writes: BTreeMap<String, ExpressionText>,
}

/// The configuration of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleConfig {
    /// The name of a decision table. The node takes the edge whose label is the table's outcome.
    pub rule: String,
}

// `deny_unknown_fields` does not work with `flatten`, so the object is read in two steps.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawNode {
    id: String,
    #[serde(rename = "type")]
    node_type: NodeType,
    #[serde(default)]
    label: Option<String>,
    #[serde(default)]
    edit_window: Option<EditWindow>,
    #[serde(default)]
    config: Option<Value>,
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawNode::deserialize(deserializer)?;
        let given = raw.config.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        let config = NodeConfig::read(raw.node_type, given).map_err(|error| {
            D::Error::custom(format_args!(
                "the config of node {:?} ({}) is wrong: {error}",
                raw.id, raw.node_type
            ))
        })?;
        Ok(Self { id: raw.id, label: raw.label, edit_window: raw.edit_window, config })
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Written<'a> {
            id: &'a str,
            #[serde(rename = "type")]
            node_type: NodeType,
            #[serde(skip_serializing_if = "Option::is_none")]
            label: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            edit_window: Option<EditWindow>,
            config: Value,
        }
        Written {
            id: &self.id,
            node_type: self.node_type(),
            label: self.label.as_deref(),
            edit_window: self.edit_window,
            config: self.config.value().map_err(serde::ser::Error::custom)?,
        }
        .serialize(serializer)
    }
}

impl JsonSchema for Node {
    fn schema_name() -> Cow<'static, str> {
        "Node".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        #[derive(JsonSchema)]
        #[schemars(rename_all = "camelCase", deny_unknown_fields)]
        #[expect(dead_code, reason = "only its schema is used")]
        struct NodeFields {
            /// The id: `sys:…` in an envelope, `usr:<slot id>:<name>` in a patch.
            id: String,
            /// A name for people.
            #[schemars(default)]
            label: Option<String>,
            /// The edit window of a system node.
            #[schemars(default)]
            edit_window: Option<EditWindow>,
            #[schemars(flatten)]
            config: NodeConfig,
        }
        let mut schema = NodeFields::json_schema(generator);
        // A type without required settings may leave `config` out.
        let may_lack_config = |kind: &Value| {
            let empty = Value::Object(serde_json::Map::new());
            NodeType::deserialize(kind).is_ok_and(|kind| NodeConfig::read(kind, empty).is_ok())
        };
        let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut);
        for variant in variants.into_iter().flatten() {
            if may_lack_config(&variant["properties"]["type"]["const"])
                && let Some(required) = variant["required"].as_array_mut()
            {
                required.retain(|field| field != "config");
            }
        }
        schema
    }
}
