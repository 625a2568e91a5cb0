//! The engine's own tasks. Every engine serves them.

use std::sync::Arc;

use windlass_kernel::{Error, Op, QueueName, Route, RouteName, Task};

use crate::control::RunControl;

/// Terminates the children of a run that has ended.
pub(crate) const CANCEL_TREE: &str = "cancel-tree";
/// Terminates a child that its parent no longer waits for.
pub(crate) const CANCEL_RUN: &str = "cancel-run";
/// Sends events that came too late for a generation to the next one.
pub(crate) const CARRY_OVER: &str = "carry-over";
/// Terminates a run that was asked to end and has not ended in time.
pub(crate) const CANCEL_LATE: &str = "cancel-late";
/// Copies the steps of an errored run to its next generation.
pub(crate) const CARRY_STEPS: &str = "carry-steps";
const NAMES: [&str; 5] = [CANCEL_TREE, CANCEL_RUN, CARRY_OVER, CANCEL_LATE, CARRY_STEPS];

/// How many of its own tasks an engine holds, beside `tasks_max`.
pub(super) const INTERNAL_MAX: usize = 16;

/// The queue of the engine's own tasks.
pub(crate) fn internal_queue() -> QueueName {
    QueueName::from_stored("windlass.internal")
}

pub(crate) fn internal_routes() -> [Route; 5] {
    NAMES.map(|name| Route { queue: internal_queue(), name: RouteName::from_stored(name) })
}

/// Runs an internal task. Returns the operations for the commit that settles it.
pub(super) async fn run(control: &Arc<RunControl>, task: &Task) -> Result<Vec<Op>, Error> {
    let (Some(run_key), body) = (task.run_key, task.body.as_ref()) else {
        return Ok(Vec::new());
    };
    match (task.name.as_str(), body) {
        (CANCEL_TREE, _) => control.terminator.terminate_children(run_key).await?,
        (CANCEL_RUN, Some(child)) => control.terminator.terminate_abandoned(child.read()?).await?,
        (CANCEL_LATE, Some(late)) => control.canceller.cancel_late(run_key, &late.read()?).await?,
        (CARRY_STEPS, Some(rest)) => control.generations.carry_rest(run_key, &rest.read()?).await?,
        (CARRY_OVER, Some(after)) => {
            return control.generations.carry_over(run_key, after.read()?).await;
        }
        _ => {}
    }
    Ok(Vec::new())
}
