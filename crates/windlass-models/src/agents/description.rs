//! The description of the model `agents`.

use serde_json::{Value, json};
use windlass_engine::ModelDescription;
use windlass_engine::description::{EventDescription, EventMeaning, StepDescription, StepRole};
use windlass_engine::explain::StepContext;
use windlass_kernel::ledger::run_events::WORKFLOW_HALTED;
use windlass_kernel::{EventType, LoadSteps, ModelName, RetryPolicy, Run, Step, StepKind};

use super::agent::RETRY;
use super::fork::waits_for;
use super::provider::EventFamily;
use super::state::retry_state;
use crate::kit::REQUEST_STEP;

/// The name of this model, as runs carry it.
pub(crate) const NAME: ModelName = ModelName::from_static("agents");

/// The kind of a step that calls a language model.
pub const LLM: StepKind = StepKind::from_static("llm");
/// A call of a durable tool.
pub(crate) const TOOL: StepKind = StepKind::from_static("tool");
/// The branches of a fork.
pub(crate) const FORK: StepKind = StepKind::from_static("fork");
/// Items of transcripts.
pub(crate) const ITEMS: StepKind = StepKind::from_static("items");
/// The response of a provider, which is also an item of its transcript.
pub(crate) const RESPONSE: StepKind = StepKind::from_static("response");
/// A compaction of a transcript.
pub(crate) const COMPACTION: StepKind = StepKind::from_static("compaction");
/// A large value.
pub(crate) const VALUE: StepKind = StepKind::from_static("value");

pub(crate) const CALL_STARTED: EventType = EventType::from_static("local_call.started");
pub(crate) const CALL_COMPLETED: EventType = EventType::from_static("local_call.completed");
pub(crate) const CALL_FAILED: EventType = EventType::from_static("local_call.failed");
pub(crate) const TOOL_STARTED: EventType = EventType::from_static("tool_call.started");
pub(crate) const TOOL_RECORDED: EventType = EventType::from_static("tool_call.recorded");
pub(crate) const TOOL_COMPLETED: EventType = EventType::from_static("tool_call.completed");
pub(crate) const TOOL_FAILED: EventType = EventType::from_static("tool_call.failed");
pub(crate) const FORK_STARTED: EventType = EventType::from_static("fork_join.started");
pub(crate) const FORK_COMPLETED: EventType = EventType::from_static("fork_join.completed");
pub(crate) const FORK_FAILED: EventType = EventType::from_static("fork_join.failed");
pub(crate) const HUMAN_BLOCKED: EventType = EventType::from_static("human.blocked");
pub(crate) const HUMAN_RESUMED: EventType = EventType::from_static("human.resumed");
pub(crate) const SAVED: EventType = EventType::from_static("continuation.saved");

/// The events of a provider call, by family.
pub(crate) struct LlmEvents {
    pub(crate) suspended: EventType,
    pub(crate) submitted: EventType,
    pub(crate) completed: EventType,
    pub(crate) resumed: EventType,
    pub(crate) failed: EventType,
    pub(crate) retried: EventType,
}

static ANTHROPIC: LlmEvents = LlmEvents {
    suspended: EventType::from_static("anthropic.suspended"),
    submitted: EventType::from_static("anthropic.submitted"),
    completed: EventType::from_static("anthropic.completed"),
    resumed: EventType::from_static("anthropic.resumed"),
    failed: EventType::from_static("anthropic.failed"),
    retried: EventType::from_static("anthropic.retried"),
};
static OPENAI: LlmEvents = LlmEvents {
    suspended: EventType::from_static("openai.blocked"),
    submitted: EventType::from_static("openai.submitted"),
    completed: EventType::from_static("openai.completed"),
    resumed: EventType::from_static("openai.resumed"),
    failed: EventType::from_static("openai.failed"),
    retried: EventType::from_static("openai.retried"),
};
static OTHER: LlmEvents = LlmEvents {
    suspended: EventType::from_static("llm.suspended"),
    submitted: EventType::from_static("llm.submitted"),
    completed: EventType::from_static("llm.completed"),
    resumed: EventType::from_static("llm.resumed"),
    failed: EventType::from_static("llm.failed"),
    retried: EventType::from_static("llm.retried"),
};

impl LlmEvents {
    pub(crate) fn of(family: EventFamily) -> &'static Self {
        match family {
            EventFamily::Anthropic => &ANTHROPIC,
            EventFamily::Openai => &OPENAI,
            EventFamily::Llm => &OTHER,
        }
    }
}

static CALL_RETRY: RetryPolicy = RETRY;

static STEPS: [StepDescription; 8] = [
    StepDescription::new(LLM, StepRole::Work),
    StepDescription::new(TOOL, StepRole::Work),
    REQUEST_STEP,
    StepDescription::new(FORK, StepRole::Child)
        .explained_by(explain_fork)
        .on_cancelled(cancelled_fork),
    StepDescription::new(ITEMS, StepRole::Record),
    StepDescription::new(RESPONSE, StepRole::Record),
    StepDescription::new(COMPACTION, StepRole::Record),
    StepDescription::new(VALUE, StepRole::Record),
];

fn explain_fork(context: &StepContext<'_>) -> (windlass_engine::Why, String) {
    let count = super::fork::ForkInput::of(context.step).map_or(0, |input| input.branches.len());
    let text = format!("{:?} waits for its {count} branches", context.key());
    (windlass_engine::Why::AwaitingChild, text)
}

fn cancelled_fork(step: &Step) -> Option<(EventType, Value)> {
    Some((FORK_FAILED, json!({ "continuation_id": step.step_key, "cancelled": true })))
}

static EVENTS: [EventDescription; 31] = [
    EventDescription::new(WORKFLOW_HALTED, EventMeaning::WorkflowCompleted),
    EventDescription::new(CALL_STARTED, EventMeaning::Other),
    EventDescription::new(CALL_COMPLETED, EventMeaning::Other),
    EventDescription::new(CALL_FAILED, EventMeaning::Other),
    EventDescription::opening(TOOL_STARTED, EventMeaning::ActivityScheduled),
    EventDescription::new(TOOL_RECORDED, EventMeaning::Other),
    EventDescription::new(TOOL_COMPLETED, EventMeaning::ActivityCompleted),
    EventDescription::new(TOOL_FAILED, EventMeaning::ActivityFailed),
    EventDescription::opening(FORK_STARTED, EventMeaning::ChildStarted),
    EventDescription::new(FORK_COMPLETED, EventMeaning::ChildCompleted),
    EventDescription::new(FORK_FAILED, EventMeaning::ChildFailed),
    EventDescription::opening(HUMAN_BLOCKED, EventMeaning::Other),
    EventDescription::new(HUMAN_RESUMED, EventMeaning::SignalReceived),
    EventDescription::opening(
        EventType::from_static("anthropic.suspended"),
        EventMeaning::ActivityScheduled,
    ),
    EventDescription::new(EventType::from_static("anthropic.submitted"), EventMeaning::Other),
    EventDescription::new(EventType::from_static("openai.submitted"), EventMeaning::Other),
    EventDescription::new(EventType::from_static("llm.submitted"), EventMeaning::Other),
    EventDescription::new(
        EventType::from_static("anthropic.completed"),
        EventMeaning::ActivityCompleted,
    ),
    EventDescription::new(EventType::from_static("anthropic.resumed"), EventMeaning::Other),
    EventDescription::new(EventType::from_static("anthropic.failed"), EventMeaning::ActivityFailed),
    EventDescription::opening(
        EventType::from_static("anthropic.retried"),
        EventMeaning::ActivityRetried,
    ),
    EventDescription::opening(
        EventType::from_static("openai.blocked"),
        EventMeaning::ActivityScheduled,
    ),
    EventDescription::new(
        EventType::from_static("openai.completed"),
        EventMeaning::ActivityCompleted,
    ),
    EventDescription::new(EventType::from_static("openai.resumed"), EventMeaning::Other),
    EventDescription::new(EventType::from_static("openai.failed"), EventMeaning::ActivityFailed),
    EventDescription::opening(
        EventType::from_static("openai.retried"),
        EventMeaning::ActivityRetried,
    ),
    EventDescription::opening(
        EventType::from_static("llm.suspended"),
        EventMeaning::ActivityScheduled,
    ),
    EventDescription::new(EventType::from_static("llm.completed"), EventMeaning::ActivityCompleted),
    EventDescription::new(EventType::from_static("llm.resumed"), EventMeaning::Other),
    EventDescription::new(EventType::from_static("llm.failed"), EventMeaning::ActivityFailed),
    EventDescription::opening(EventType::from_static("llm.retried"), EventMeaning::ActivityRetried),
];

/// The model `agents`.
pub static DESCRIPTION: ModelDescription = {
    let mut model = ModelDescription::new(NAME);
    model.steps = &STEPS;
    model.events = &EVENTS;
    model.retry = Some(&CALL_RETRY);
    model.load = &LoadSteps::Open;
    // The next generation reads the rows of this one, so nothing is copied.
    model.retry_carries = |_: &Run, _: &Step| false;
    model.reads_earlier_generations = true;
    model.waits_for_child = waits_for;
    model.retry_state = retry_state;
    model.routes = &["agents"];
    model
};
