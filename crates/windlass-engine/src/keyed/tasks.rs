//! The internal tasks of keys. Each of them changes the record of its key and settles itself in one commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{
    Commit, CommitError, Conflict, Error, ErrorCode, Hold, Op, Refusal, Reschedule, RunKey, Task,
    TaskGuard, Timestamp, Wake,
};

use super::state::{Deliveries, KeyState, Waiter};
use super::{KeyTask, KeyedEvents};
use crate::record_change::conflict_delay;
use crate::tasks::{AWAIT_KEY, DELIVER_KEY, FORGET_KEY};

/// How long a wait that finds no space among the waiters of its key stays unregistered before the next try.
const NO_SPACE_DELAY: Duration = Duration::from_secs(5);
/// The number in `attempt` of a task whose wait is registered. Its next run removes the registration.
const REGISTERED: u32 = 1;

/// The change that a task makes, and what becomes of the task.
struct Step {
    changed: bool,
    deliveries: Deliveries,
    tidy_not_before: Timestamp,
    end: End,
}

enum End {
    Settle,
    /// The task runs again at a time, with this number in `attempt`.
    Again(Timestamp, u32),
}

impl KeyedEvents {
    /// Runs a task of a key. Another worker that takes the task over, and the end of the run that settles
    /// it, are no errors.
    pub(crate) async fn run_task(&self, task: &Task, hold: Hold) -> Result<(), Error> {
        let core = &self.core;
        let Some(body) = &task.body else { return Ok(()) };
        let body: KeyTask = body.read()?;
        let guard = TaskGuard::Held { task_id: task.task_id, hold };
        let mut ended: BTreeSet<RunKey> = BTreeSet::new();
        let mut losses = 0;
        loop {
            let now = core.clock.now();
            let mut key = self.read(&task.namespace, &body.address).await?;
            key.state.remove_runs(&ended);
            let step = self.decide(task, &body, &mut key.state, &ended, now);
            let mut ops = vec![match step.end {
                End::Settle => Op::Settle { task_id: task.task_id },
                End::Again(at, attempt) => again(task, at, attempt),
            }];
            if step.changed || !ended.is_empty() {
                let (deliveries, not_before) = (step.deliveries, step.tidy_not_before);
                ops.extend(self.ops(&body.address, key, deliveries, not_before)?);
            }
            let commit = Commit::new(None, Some(guard), ops);
            match Arc::clone(&self.commits).commit(commit.clone()).await {
                Ok(_) => {
                    self.announce(&commit).await;
                    return Ok(());
                }
                Err(CommitError::Refused(
                    Refusal::RunEnded { run_key, .. } | Refusal::RunMissing { run_key },
                )) if ended.insert(run_key) => continue,
                Err(CommitError::Conflict(Conflict::Record { .. })) => {}
                // If it was written, the next commit finds that the task is no longer held.
                Err(error) if error.code() == ErrorCode::OutcomeUnknown => {}
                Err(CommitError::Conflict(conflict)) => {
                    tracing::debug!(task_id = %task.task_id, %conflict, "a task of a key was taken over");
                    return Ok(());
                }
                Err(error) => return Err(crate::turn::refusal(&error)),
            }
            losses += 1;
            core.env.sleep(conflict_delay(core.env.random(), losses)).await;
        }
    }

    /// The commit that tries a task again after an error.
    pub(crate) fn retry(task: &Task, hold: Hold, at: Timestamp) -> Commit {
        let guard = TaskGuard::Held { task_id: task.task_id, hold };
        Commit::new(None, Some(guard), vec![again(task, at, task.attempt)])
    }

    fn decide(
        &self,
        task: &Task,
        body: &KeyTask,
        state: &mut KeyState,
        ended: &BTreeSet<RunKey>,
        now: Timestamp,
    ) -> Step {
        let none = || Deliveries { list: Vec::new(), has_more: false };
        let at = Timestamp::from_micros(body.at.unwrap_or(0));
        let mut step =
            Step { changed: true, deliveries: none(), tidy_not_before: now, end: End::Settle };
        match task.name.as_str() {
            AWAIT_KEY if task.attempt >= REGISTERED => {
                step.changed = state.is_waiting(task.task_id);
                state.remove_waiter(task.task_id);
            }
            AWAIT_KEY => return self.register(task, body, state, ended, now),
            FORGET_KEY => {
                let waiter = body.waiter.unwrap_or(task.task_id);
                step.changed = state.is_waiting(waiter);
                state.remove_waiter(waiter);
            }
            DELIVER_KEY => {
                state.prune(now);
                // If there is more, the commit enqueues the next task.
                step.deliveries = state.deliver();
                step.changed = !step.deliveries.list.is_empty();
            }
            _ => {
                step.changed = state.begin_tidy(at);
                state.prune(now);
                step.tidy_not_before = KeyState::next_tidy(now);
            }
        }
        step
    }

    fn register(
        &self,
        task: &Task,
        body: &KeyTask,
        state: &mut KeyState,
        ended: &BTreeSet<RunKey>,
        now: Timestamp,
    ) -> Step {
        let until = Timestamp::from_micros(body.at.unwrap_or(0));
        let mut step = Step {
            changed: false,
            deliveries: Deliveries { list: Vec::new(), has_more: false },
            tidy_not_before: now,
            end: End::Settle,
        };
        let run_key = task.run_key.filter(|run_key| !ended.contains(run_key));
        let (Some(run_key), Some(receiver)) = (run_key, body.receiver.clone()) else { return step };
        if until <= now {
            return step;
        }
        state.prune(now);
        let waiter = Waiter { task_id: task.task_id, run_key, receiver, until: until.as_micros() };
        if !state.add_waiter(waiter, &self.core.options.limits) {
            let next = now.plus(NO_SPACE_DELAY);
            tracing::debug!(task_id = %task.task_id, "no space among the waiters of a key");
            return Step { end: End::Again(next, task.attempt), ..step };
        }
        step.changed = true;
        step.deliveries = state.deliver();
        if state.is_waiting(task.task_id) {
            step.end = End::Again(until, REGISTERED);
        }
        step
    }
}

fn again(task: &Task, at: Timestamp, attempt: u32) -> Op {
    Op::Reschedule(Box::new(Reschedule {
        task_id: task.task_id,
        wake: Wake::At(at),
        attempt,
        errors: None,
        untried: false,
    }))
}
