//! The description of the model `relays`.

use std::time::Duration;

use crate::kit::REQUEST_STEP;
use serde_json::json;
use windlass_engine::ModelDescription;
use windlass_engine::description::{
    DeadLetterRoute, EventDescription, EventMeaning, StepDescription, StepRole,
};
use windlass_kernel::{EventType, LoadSteps, ModelName, RetryLimit, RetryPolicy, StepKind};

/// The name of this model, as runs carry it.
pub(crate) const NAME: ModelName = ModelName::from_static("relays");

/// A step of a relay.
pub(crate) const RELAY: StepKind = StepKind::from_static("relay");
/// A memo of a step.
pub(crate) const MEMO: StepKind = StepKind::from_static("memo");

pub(crate) const STEP_COMPLETED: EventType = EventType::from_static("relay.step_completed");
pub(crate) const STEP_RETRIED: EventType = EventType::from_static("relay.step_retried");
pub(crate) const STEP_FAILED: EventType = EventType::from_static("relay.step_failed");
pub(crate) const STEP_CANCELLED: EventType = EventType::from_static("relay.step_cancelled");
pub(crate) const MEMO_RECORDED: EventType = EventType::from_static("relay.memo_recorded");
pub(crate) const SIGNAL_TIMED_OUT: EventType = EventType::from_static("relay.signal_timed_out");

/// The retry policy of a relay that names none: three attempts, 1 s doubling up to 60 s, 10 % jitter.
pub(crate) const RETRY: RetryPolicy = RetryPolicy::exponential_const(
    RetryLimit::Times(2),
    Duration::from_secs(1),
    Some(Duration::from_secs(60)),
)
.with_jitter(0.1);

static STEP_RETRY: RetryPolicy = RETRY;

// The last payload and the memos of the next step, which are recorded after it.
static LOAD: LoadSteps = LoadSteps::OpenAndFromLast(RELAY);

static STEPS: [StepDescription; 3] = [
    StepDescription::new(RELAY, StepRole::Work).explained_by(super::request::explain).on_cancelled(
        |step| {
            let number: u32 = step.step_key.as_str().parse().ok()?;
            Some((STEP_CANCELLED, json!({ "step": number, "attempt": step.attempt })))
        },
    ),
    StepDescription::new(MEMO, StepRole::Record),
    REQUEST_STEP,
];

static EVENTS: [EventDescription; 6] = [
    EventDescription::new(STEP_COMPLETED, EventMeaning::ActivityCompleted),
    EventDescription::opening(STEP_RETRIED, EventMeaning::ActivityRetried),
    EventDescription::new(STEP_FAILED, EventMeaning::ActivityFailed),
    EventDescription::new(STEP_CANCELLED, EventMeaning::ActivityCancelled),
    EventDescription::new(MEMO_RECORDED, EventMeaning::Other),
    EventDescription::opening(SIGNAL_TIMED_OUT, EventMeaning::Other),
];

/// The model `relays`.
pub static DESCRIPTION: ModelDescription = {
    let mut model = ModelDescription::new(NAME);
    model.steps = &STEPS;
    model.events = &EVENTS;
    model.retry = Some(&STEP_RETRY);
    model.load = &LOAD;
    model.dead_letters = Some(DeadLetterRoute { kind: "step", queue: "relays" });
    model
};
