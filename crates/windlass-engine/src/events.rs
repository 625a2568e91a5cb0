//! Event types that the engine writes, and those that all models share. The events of one model are in
//! that model.

use windlass_kernel::EventType;
pub use windlass_kernel::ledger::run_events::{
    HOOK_ENQUEUED, WORKFLOW_COMPLETED, WORKFLOW_ENQUEUED, WORKFLOW_FAILED, WORKFLOW_PAUSED,
    WORKFLOW_RESUMED, WORKFLOW_TERMINATED,
};

/// Somebody started a further generation of an ended run.
pub const WORKFLOW_RESTARTED: EventType = EventType::from_static("workflow.restarted");
/// No build so far can carry the run on.
pub const WORKFLOW_BLOCKED: EventType = EventType::from_static("workflow.blocked");
/// A message was consumed that has no event of its own.
pub const MESSAGE_RECEIVED: EventType = EventType::from_static("message.received");
/// A retried run has a step of the generation before.
pub const STEP_CARRIED: EventType = EventType::from_static("step.carried");
/// A step was open when somebody ended its run.
pub const STEP_CANCELLED: EventType = EventType::from_static("step.cancelled");

/// An activity was scheduled.
pub const ACTIVITY_SCHEDULED: EventType = EventType::from_static("activity.scheduled");
/// A worker began the attempt of an activity that settled it.
pub const ACTIVITY_STARTED: EventType = EventType::from_static("activity.started");
/// An activity gave its result.
pub const ACTIVITY_COMPLETED: EventType = EventType::from_static("activity.completed");
/// An attempt at an activity failed, and another one followed. Written with the end of the activity.
pub const ACTIVITY_RETRIED: EventType = EventType::from_static("activity.retried");
/// An activity failed for good.
pub const ACTIVITY_FAILED: EventType = EventType::from_static("activity.failed");
/// An activity took too long.
pub const ACTIVITY_TIMED_OUT: EventType = EventType::from_static("activity.timed_out");
/// An activity was cancelled.
pub const ACTIVITY_CANCELLED: EventType = EventType::from_static("activity.cancelled");

/// A child was started.
pub const CHILD_STARTED: EventType = EventType::from_static("child.started");
/// A child completed.
pub const CHILD_COMPLETED: EventType = EventType::from_static("child.completed");
/// A child failed, was ended, or was cancelled by its parent.
pub const CHILD_FAILED: EventType = EventType::from_static("child.failed");

/// A request to people was opened.
pub const REQUEST_OPENED: EventType = EventType::from_static("request.opened");
/// A person decided about a request. Written with its end.
pub const REQUEST_DECIDED: EventType = EventType::from_static("request.decided");
/// A request to people has ended.
pub const REQUEST_CLOSED: EventType = EventType::from_static("request.closed");

/// An effect was enqueued.
pub const EFFECT_ENQUEUED: EventType = EventType::from_static("effect.enqueued");
