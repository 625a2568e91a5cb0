//! Activities: a step that waits, and a task that does the work.

use serde_json::json;
use windlass_engine::{Revived, Turn, events};
use windlass_kernel::{Body, Draft, Error, LimitKey, Route, Stamp, Step, StepStatus, Task, TaskId};

use super::ACTIVITY;

/// An activity that is to be scheduled.
#[derive(Debug)]
pub struct NewActivity {
    /// Its task. A retried step keeps the task that it had before.
    pub task_id: TaskId,
    /// The queue and type that workers serve.
    pub route: Route,
    /// The task's body; see [`windlass_engine::TaskBody`].
    pub body: Body,
    /// Higher first.
    pub priority: i16,
    /// The limit that it counts against.
    pub limit_key: Option<LimitKey>,
    /// Whether this worker may begin it at once, without the queue.
    pub eager: bool,
}

/// Schedules an activity in the commit that records its step. Returns the row as it is written.
pub fn schedule_activity(
    turn: &mut Turn,
    draft: &mut Draft,
    mut row: Step,
    activity: NewActivity,
    revived: Option<&Revived>,
    stamp: Stamp,
) -> Result<Step, Error> {
    let NewActivity { task_id, route, body, priority, limit_key, eager } = activity;
    row.status = StepStatus::Pending;
    row.wait_for = Some(ACTIVITY.as_str().into());
    let payload = json!({ "key": row.step_key, "activity": route.name, "queue": route.queue });
    draft.step(events::ACTIVITY_SCHEDULED, &payload, row.clone(), stamp)?;
    let namespace = turn.run.namespace.clone();
    let mut task = Task {
        step_key: Some(row.step_key.clone()),
        priority,
        limit_key,
        body: Some(body),
        ..Task::new(task_id, namespace, ACTIVITY.as_str(), route, stamp.at).of_run(&turn.run)
    };
    if let Some(revived) = revived {
        revived.revive(&mut task);
    }
    draft.enqueue(if eager { turn.may_hold(task) } else { task });
    Ok(row)
}
