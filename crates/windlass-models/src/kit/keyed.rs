//! Waits for events by key. A step that waits for a key names the key in its input.

use windlass_engine::{EventAddress, KeyedWait, Turn};
use windlass_kernel::{Body, Draft, Error, Step, Timestamp};

/// Begins a wait for an event by key in the commit that records its step: the step's input names the
/// key, and a task registers the wait. The step's `due_at` is the end of the wait.
///
/// # Errors
///
/// If the wait cannot be written as JSON.
pub fn begin_keyed_wait(
    turn: &Turn,
    draft: &mut Draft,
    row: &mut Step,
    address: EventAddress,
    due: Timestamp,
    at: Timestamp,
) -> Result<KeyedWait, Error> {
    let task = turn.await_key(&row.step_key, &address, due, at)?;
    let wait = KeyedWait { address, task_id: task.task_id };
    row.wait_for = Some(wait.address.event_type.as_str().into());
    row.due_at = Some(due);
    row.input = Some(Body::of(&wait)?);
    draft.enqueue(task);
    Ok(wait)
}

/// An event has ended the wait: the commit that consumes its message settles the task.
pub fn end_keyed_wait(draft: &mut Draft, wait: &KeyedWait) {
    draft.settle(wait.task_id);
}

/// The run gives up the wait: the commit removes its registration. A wait that has timed out needs no
/// such call, because its task removes the registration at that time.
///
/// # Errors
///
/// If the task cannot be written as JSON.
pub fn give_up_keyed_wait(
    turn: &Turn,
    draft: &mut Draft,
    wait: &KeyedWait,
    at: Timestamp,
) -> Result<(), Error> {
    end_keyed_wait(draft, wait);
    draft.enqueue(turn.forget_key(wait, at)?);
    Ok(())
}
