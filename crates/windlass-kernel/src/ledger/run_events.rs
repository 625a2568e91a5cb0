//! The event types of runs of all models. The kernel writes or reads these events.

use super::EventType;

/// A run was created.
pub const WORKFLOW_ENQUEUED: EventType = EventType::from_static("workflow.enqueued");
/// A run ended with an output.
pub const WORKFLOW_COMPLETED: EventType = EventType::from_static("workflow.completed");
/// A run ended with an output before its program finished.
pub const WORKFLOW_HALTED: EventType = EventType::from_static("workflow.halted");
/// A run ended with an error.
pub const WORKFLOW_FAILED: EventType = EventType::from_static("workflow.failed");
/// An operator or a parent ended a run.
pub const WORKFLOW_TERMINATED: EventType = EventType::from_static("workflow.terminated");
/// A run was paused.
pub const WORKFLOW_PAUSED: EventType = EventType::from_static("workflow.paused");
/// A paused run was resumed.
pub const WORKFLOW_RESUMED: EventType = EventType::from_static("workflow.resumed");
/// A commit with no other event of the engine changed the state of a run.
pub const WORKFLOW_SAVED: EventType = EventType::from_static("workflow.saved");
/// The commit that ended a run enqueued its end task.
pub const HOOK_ENQUEUED: EventType = EventType::from_static("hook.enqueued");
/// The commit wrote a record.
pub const RECORD_WRITTEN: EventType = EventType::from_static("record.written");
/// The commit removed a record.
pub const RECORD_REMOVED: EventType = EventType::from_static("record.removed");
