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
/// Applies the due time of a request to people.
pub(crate) const REQUEST_DUE: &str = "request-due";
/// Withdraws a request that its run no longer waits for.
pub(crate) const WITHDRAW_REQUEST: &str = "withdraw-request";
/// Registers a wait for an event by key, and removes the registration when the wait is over.
pub(crate) const AWAIT_KEY: &str = "await-key";
/// Removes the registration of a wait that its run gave up.
pub(crate) const FORGET_KEY: &str = "forget-key";
/// Sends an event to the waiters of its key that did not fit into one commit.
pub(crate) const DELIVER_KEY: &str = "deliver-key";
/// Removes the expired events of a key.
pub(crate) const TIDY_KEY: &str = "tidy-key";
/// Deletes a receipt whose time is over.
pub(crate) const FORGET_RECEIPT: &str = "forget-receipt";
/// Deletes a request to people whose time is over.
pub(crate) const FORGET_REQUEST: &str = "forget-request";
const NAMES: [&str; 13] = [
    CANCEL_TREE,
    CANCEL_RUN,
    CARRY_OVER,
    CANCEL_LATE,
    CARRY_STEPS,
    AWAIT_KEY,
    FORGET_KEY,
    DELIVER_KEY,
    TIDY_KEY,
    REQUEST_DUE,
    WITHDRAW_REQUEST,
    FORGET_RECEIPT,
    FORGET_REQUEST,
];

/// How many of its own tasks an engine holds, beside `tasks_max`.
pub(super) const INTERNAL_MAX: usize = 16;

/// The queue of the engine's own tasks.
pub(crate) fn internal_queue() -> QueueName {
    QueueName::from_stored("windlass.internal")
}

pub(crate) fn internal_routes() -> [Route; 13] {
    NAMES.map(|name| Route { queue: internal_queue(), name: RouteName::from_stored(name) })
}

/// Whether a task belongs to a record of the engine. Such a task settles itself in the commit that
/// changes the record.
pub(super) fn is_of_record(task: &Task) -> bool {
    let names = [AWAIT_KEY, FORGET_KEY, DELIVER_KEY, TIDY_KEY, FORGET_RECEIPT];
    names.contains(&task.name.as_str())
}

/// Runs an internal task. Returns the operations for the commit that settles it.
pub(super) async fn run(control: &Arc<RunControl>, task: &Task) -> Result<Vec<Op>, Error> {
    // It has no run: it must not keep its run from being deleted.
    if task.name.as_str() == FORGET_REQUEST {
        let Some(id) = &task.body else { return Ok(Vec::new()) };
        return control.requests(&task.namespace).forget(&id.read::<String>()?).await;
    }
    let (Some(run_key), body) = (task.run_key, task.body.as_ref()) else {
        return Ok(Vec::new());
    };
    match (task.name.as_str(), body) {
        (CANCEL_TREE, _) => {
            control.terminator.terminate_children(run_key).await?;
            control.requests(&task.namespace).withdraw_all(run_key).await?;
        }
        (REQUEST_DUE, Some(id)) => {
            control.requests(&task.namespace).due(&id.read::<String>()?).await?;
        }
        (WITHDRAW_REQUEST, Some(id)) => {
            let (requests, id) = (control.requests(&task.namespace), id.read::<String>()?);
            requests.withdraw_abandoned(&id, "its run no longer waits for it").await?;
        }
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
