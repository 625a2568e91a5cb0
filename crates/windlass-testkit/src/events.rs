//! Event types of the commits that tests write; stores treat them as any other text.

use windlass_kernel::EventType;
pub use windlass_kernel::ledger::run_events::*;

/// `activity.cancelled`.
pub const ACTIVITY_CANCELLED: EventType = EventType::from_static("activity.cancelled");
/// `activity.completed`.
pub const ACTIVITY_COMPLETED: EventType = EventType::from_static("activity.completed");
/// `activity.scheduled`.
pub const ACTIVITY_SCHEDULED: EventType = EventType::from_static("activity.scheduled");
/// `activity.started`.
pub const ACTIVITY_STARTED: EventType = EventType::from_static("activity.started");
/// `child.started`.
pub const CHILD_STARTED: EventType = EventType::from_static("child.started");
/// `event.awaited`.
pub const EVENT_AWAITED: EventType = EventType::from_static("event.awaited");
/// `event.consumed`.
pub const EVENT_CONSUMED: EventType = EventType::from_static("event.consumed");
/// `fork_join.started`.
pub const FORK_JOIN_STARTED: EventType = EventType::from_static("fork_join.started");
/// `message.consumed`.
pub const MESSAGE_CONSUMED: EventType = EventType::from_static("message.consumed");
/// `message.received`.
pub const MESSAGE_RECEIVED: EventType = EventType::from_static("message.received");
/// `sleep.started`.
pub const SLEEP_STARTED: EventType = EventType::from_static("sleep.started");
/// `step.completed`.
pub const STEP_COMPLETED: EventType = EventType::from_static("step.completed");
/// `step.errored`.
pub const STEP_ERRORED: EventType = EventType::from_static("step.errored");
/// `step.failed`.
pub const STEP_FAILED: EventType = EventType::from_static("step.failed");
/// `step.retried`.
pub const STEP_RETRIED: EventType = EventType::from_static("step.retried");
/// `timer.fired`.
pub const TIMER_FIRED: EventType = EventType::from_static("timer.fired");
/// `timer.started`.
pub const TIMER_STARTED: EventType = EventType::from_static("timer.started");
