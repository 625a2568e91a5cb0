//! The description of the model `steps`.

use std::time::Duration;

use windlass_engine::ModelDescription;
use windlass_engine::description::{EventDescription, EventMeaning, StepDescription, StepRole};
use windlass_kernel::{Body, Error, EventType, ModelName, RetryLimit, RetryPolicy, Run, StepKind};

use super::core::{Kind, Snapshot};
use crate::kit::{ACTIVITY, ACTIVITY_STEP, CHILD, CHILD_STEP, REQUEST, REQUEST_STEP};

/// The name of this model, as runs carry it.
pub(crate) const NAME: ModelName = ModelName::from_static("steps");

const DO: StepKind = StepKind::from_static("do");
const SLEEP: StepKind = StepKind::from_static("sleep");
const EVENT: StepKind = StepKind::from_static("event");

pub(crate) const STEP_COMPLETED: EventType = EventType::from_static("step.completed");
pub(crate) const STEP_RETRIED: EventType = EventType::from_static("step.retried");
pub(crate) const STEP_FAILED: EventType = EventType::from_static("step.failed");
pub(crate) const SLEEP_STARTED: EventType = EventType::from_static("sleep.started");
pub(crate) const SLEEP_ELAPSED: EventType = EventType::from_static("sleep.elapsed");
pub(crate) const EVENT_AWAITED: EventType = EventType::from_static("event.awaited");
pub(crate) const EVENT_CONSUMED: EventType = EventType::from_static("event.consumed");
pub(crate) const EVENT_TIMED_OUT: EventType = EventType::from_static("event.timed_out");

/// The retry policy of a step that names none: six attempts, 10 s doubling, neither cap nor jitter.
pub(crate) const RETRY: RetryPolicy =
    RetryPolicy::exponential_const(RetryLimit::Times(5), Duration::from_secs(10), None);

static STEP_RETRY: RetryPolicy = RETRY;

static STEPS: [StepDescription; 6] = [
    StepDescription::new(DO, StepRole::Work),
    StepDescription::new(SLEEP, StepRole::Sleep),
    StepDescription::new(EVENT, StepRole::Event),
    ACTIVITY_STEP,
    CHILD_STEP,
    REQUEST_STEP,
];

static EVENTS: [EventDescription; 8] = [
    EventDescription::new(STEP_COMPLETED, EventMeaning::ActivityCompleted),
    EventDescription::opening(STEP_RETRIED, EventMeaning::ActivityRetried),
    EventDescription::new(STEP_FAILED, EventMeaning::ActivityFailed),
    EventDescription::opening(SLEEP_STARTED, EventMeaning::TimerStarted),
    EventDescription::new(SLEEP_ELAPSED, EventMeaning::TimerFired),
    EventDescription::opening(EVENT_AWAITED, EventMeaning::Other),
    EventDescription::new(EVENT_CONSUMED, EventMeaning::SignalReceived),
    EventDescription::new(EVENT_TIMED_OUT, EventMeaning::Other),
];

/// The model `steps`.
pub static DESCRIPTION: ModelDescription = {
    let mut model = ModelDescription::new(NAME);
    model.steps = &STEPS;
    model.events = &EVENTS;
    model.retry = Some(&STEP_RETRY);
    model.retry_state = retry_state;
    model
};

// A retry carries over steps that used idempotency keys and random numbers, so it goes on with those of
// the first generation.
fn retry_state(run: &Run) -> Result<Option<Body>, Error> {
    let snapshot: Snapshot = run.state.as_ref().map(Body::read).transpose()?.unwrap_or_default();
    let origin = Some(snapshot.origin.unwrap_or(run.run_key));
    Ok(Some(Body::of(&Snapshot { custom_events: 0, origin })?))
}

impl Kind {
    /// The kind of a step's row.
    pub(crate) const fn step_kind(self) -> StepKind {
        match self {
            Self::Do => DO,
            Self::Sleep => SLEEP,
            Self::Event => EVENT,
            Self::Child => CHILD,
            Self::Activity => ACTIVITY,
            Self::Request => REQUEST,
        }
    }
}
