//! The description of the model `machines`.

use serde_json::{Value, json};
use windlass_engine::description::{
    ActivityArguments, EventDescription, EventMeaning, StepDescription, StepRole,
};
use windlass_engine::explain::StepContext;
use windlass_engine::{CancelPolicy, ModelDescription, Why};
use windlass_kernel::retry::Backoff;
use windlass_kernel::{EventType, MessageKind, MessageName, ModelName, RetryPolicy, StepKind};

use super::action::signal_types;
use super::pending::{Kind, id_of};
use crate::kit::{
    ACTIVITY, ACTIVITY_RETRY, ACTIVITY_STEP, CHILD, CHILD_STEP, REQUEST, REQUEST_STEP,
};

/// The name of this model, as runs carry it.
pub(crate) const NAME: ModelName = ModelName::from_static("machines");

const TIMER: StepKind = StepKind::from_static("timer");
const EFFECT: StepKind = StepKind::from_static("effect");
const RECORDS: StepKind = StepKind::from_static("records");

pub(crate) const TIMER_STARTED: EventType = EventType::from_static("timer.started");
pub(crate) const TIMER_FIRED: EventType = EventType::from_static("timer.fired");
pub(crate) const TIMER_CANCELLED: EventType = EventType::from_static("timer.cancelled");
pub(crate) const SIGNAL_RECEIVED: EventType = EventType::from_static("signal.received");
pub(crate) const RECORDS_TRIED: EventType = EventType::from_static("record.write_tried");
pub(crate) const RECORDS_WRITTEN: EventType = EventType::from_static("record.write_completed");
pub(crate) const RECORDS_REFUSED: EventType = EventType::from_static("record.write_refused");
pub(crate) const RECORDS_CANCELLED: EventType = EventType::from_static("record.write_cancelled");

static RETRY: RetryPolicy = ACTIVITY_RETRY;

// A machine is asked to end by a signal, and ends by itself.
static CANCEL: CancelPolicy = CancelPolicy {
    message: Some(MessageName::from_static(signal_types::CANCEL)),
    controls: &[
        MessageName::from_static(signal_types::CANCEL),
        MessageName::from_static(signal_types::SHUTDOWN),
    ],
};

static STEPS: [StepDescription; 6] = [
    ACTIVITY_STEP,
    CHILD_STEP,
    StepDescription::new(TIMER, StepRole::Sleep)
        .explained_by(explain_timer)
        .on_cancelled(|step| Some((TIMER_CANCELLED, json!({ "key": step.step_key.as_str() })))),
    StepDescription::new(EFFECT, StepRole::Record),
    REQUEST_STEP,
    StepDescription::new(RECORDS, StepRole::Work)
        .on_cancelled(|step| Some((RECORDS_CANCELLED, json!({ "key": step.step_key.as_str() })))),
];

static EVENTS: [EventDescription; 8] = [
    EventDescription::opening(TIMER_STARTED, EventMeaning::TimerStarted),
    EventDescription::new(TIMER_FIRED, EventMeaning::TimerFired),
    EventDescription::new(TIMER_CANCELLED, EventMeaning::TimerCancelled),
    EventDescription::new(SIGNAL_RECEIVED, EventMeaning::SignalReceived),
    EventDescription::opening(RECORDS_TRIED, EventMeaning::Other),
    EventDescription::new(RECORDS_WRITTEN, EventMeaning::Other),
    EventDescription::new(RECORDS_REFUSED, EventMeaning::Other),
    EventDescription::new(RECORDS_CANCELLED, EventMeaning::Other),
];

/// The model `machines`.
pub static DESCRIPTION: ModelDescription = {
    let mut model = ModelDescription::new(NAME);
    model.cancel = &CANCEL;
    model.signal_kind = MessageKind::Signal;
    model.steps = &STEPS;
    model.events = &EVENTS;
    model.retry = Some(&RETRY);
    model.step_id = id_of;
    model.activity_arguments = activity_arguments;
    model
};

impl Kind {
    /// The kind of a step's row.
    pub(crate) const fn step_kind(self) -> StepKind {
        match self {
            Self::Activity => ACTIVITY,
            Self::Timer => TIMER,
            Self::Child => CHILD,
            Self::Effect => EFFECT,
            Self::Request => REQUEST,
            Self::Records => RECORDS,
        }
    }
}

fn explain_timer(context: &StepContext<'_>) -> (Why, String) {
    (Why::Sleeping, format!("{:?} runs until {}", context.key(), context.due()))
}

// The admin API names the fields of a retry policy as other workflow engines do.
fn options_on_the_wire(mut options: Value) -> Value {
    let policy = options.get("retry_policy").cloned();
    let policy: Option<RetryPolicy> = policy.and_then(|policy| serde_json::from_value(policy).ok());
    if let Some(policy) = policy {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).ok();
        let coefficient = match policy.backoff {
            Backoff::Exponential { factor } => Some(factor),
            Backoff::Constant => Some(1.0),
            Backoff::Linear | Backoff::Listed(_) => None,
        };
        options["retry_policy"] = json!({
            "max_attempts": policy.attempts_max(),
            "initial_interval_ms": millis(policy.delay),
            "max_interval_ms": policy.max_delay.and_then(millis),
            "backoff_coefficient": coefficient,
            "jitter": policy.jitter,
            "non_retryable_errors": policy.non_retryable,
        });
    }
    options
}

// A machine stores the input and the options of an activity in one body.
fn activity_arguments(mut spec: Value) -> ActivityArguments {
    match spec.get("type").is_some() && spec.get("input").is_some() {
        true => ActivityArguments {
            input: spec["input"].take(),
            options: spec.get_mut("options").map(|options| options_on_the_wire(options.take())),
        },
        false => ActivityArguments { input: spec, options: None },
    }
}
