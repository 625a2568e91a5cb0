//! The description of the model `contracts`.

use serde_json::Value;
use windlass_contracts::tokens::{StepRow, StepStatus as RowStatus};
use windlass_engine::description::{EventDescription, EventMeaning, StepDescription, StepRole};
use windlass_engine::explain::StepContext;
use windlass_engine::{ModelDescription, Why};
use windlass_kernel::{EventType, LoadSteps, MessageKind, ModelName, Step, StepKind, StepStatus};

pub(crate) const NAME: ModelName = ModelName::from_static("contracts");

/// A node that was visited.
pub(crate) const NODE: StepKind = StepKind::from_static("node");
/// A node that waits for people, an event or an action of a gate.
pub(crate) const WAIT: StepKind = StepKind::from_static("node_wait");
/// A later form of a settled node: its approval was applied, or it lost a join.
pub(crate) const LATER: StepKind = StepKind::from_static("node_later");

pub(crate) const NODE_WAITING: EventType = EventType::from_static("node.waiting");
pub(crate) const NODE_COMPLETED: EventType = EventType::from_static("node.completed");
pub(crate) const NODE_FAILED: EventType = EventType::from_static("node.failed");
pub(crate) const NODE_CANCELLED: EventType = EventType::from_static("node.cancelled");
pub(crate) const NODE_CHANGED: EventType = EventType::from_static("node.changed");
pub(crate) const DOCUMENT_MUTATED: EventType = EventType::from_static("document.mutated");

static STEPS: [StepDescription; 3] = [
    StepDescription::new(NODE, StepRole::Record),
    StepDescription::new(WAIT, StepRole::Event).explained_by(explain),
    StepDescription::new(LATER, StepRole::Record),
];

static EVENTS: [EventDescription; 6] = [
    EventDescription::opening(NODE_WAITING, EventMeaning::Other),
    EventDescription::new(NODE_COMPLETED, EventMeaning::Other),
    EventDescription::new(NODE_FAILED, EventMeaning::Other),
    EventDescription::new(NODE_CANCELLED, EventMeaning::Other),
    EventDescription::new(NODE_CHANGED, EventMeaning::Other),
    EventDescription::new(DOCUMENT_MUTATED, EventMeaning::SignalReceived),
];

/// The model `contracts`.
pub static DESCRIPTION: ModelDescription = {
    let mut model = ModelDescription::new(NAME);
    model.steps = &STEPS;
    model.events = &EVENTS;
    model.load = &LoadSteps::Open;
    model.retry_carries = |_, step| carries(step);
    // The snapshot has the rows that waited. A restart begins at the document's row instead.
    model.retry_state = |run| Ok(run.state.clone());
    // The records say everything else again; an event by key is delivered once.
    model.retry_forwards = |_, message| matches!(message.kind, MessageKind::KeyedEvent);
    model
};

/// Whether a retry carries a step over. A step that waited when its run ended is written again from the
/// snapshot.
fn carries(step: &Step) -> bool {
    let row: Option<StepRow> = step.result.as_ref().and_then(|body| body.read().ok());
    match step.status {
        StepStatus::Completed => true,
        StepStatus::Cancelled => row.is_some_and(|row| row.status == RowStatus::Cancelled),
        _ => false,
    }
}

fn explain(context: &StepContext<'_>) -> (Why, String) {
    let row: Option<Value> = context.step.result.as_ref().and_then(|body| body.read().ok());
    let node = row.as_ref().and_then(|row| row["node"].as_str()).unwrap_or(context.key());
    let kind = row.as_ref().and_then(|row| row["nodeType"].as_str()).unwrap_or("node");
    match context.step.due_at {
        Some(_) if kind == "wait_timer" => {
            (Why::Sleeping, format!("{node} waits until {}", context.due()))
        }
        due => {
            let until = due.map(|_| format!(", until {}", context.due())).unwrap_or_default();
            let what = match kind {
                "approval" => "waits for decisions of people",
                "lifecycle_gate" => "waits for the action of a person",
                "wait_event" => "waits for an event",
                "webhook_out" => "waits until its webhook is delivered",
                "parallel_join" => "waits for the other branches",
                _ => "waits",
            };
            (Why::AwaitingEvent, format!("{node} ({kind}) {what}{until}"))
        }
    }
}
