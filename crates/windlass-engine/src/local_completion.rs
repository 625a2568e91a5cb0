//! Local completion: if a run waits in this process's cache, the commit that settles its activity also
//! takes the run's turn. The result goes into the run's rows, and no message carries it.
//!
//! The first commit of the turn claims it: its guard requires that nobody holds the turn and that the
//! run is at the head where it was cached. If that fails, the result is sent as a message instead. The
//! guard of the task ensures that only one of both is written.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::oneshot;
use windlass_kernel::{
    CommitError, Conflict, Draft, EFFECT, Encoding, MessageKind, Op, RunKey, RunStatus, StepKey,
    Task, TaskGuard, Timestamp, WorkerKey,
};

use crate::held_run::HeldRun;
use crate::result_message::{AttemptError, earlier_errors};
use crate::run_cache::CachedRun;
use crate::settle::Finished;
use crate::tasks::TaskResult;
use crate::turn_loop::Start;
use crate::turn_runner::TurnRunner;

/// Bytes reserved for the envelope around a result in a message.
const ENVELOPE_BYTES: usize = 4 * 1024;

/// The result of an activity, passed directly to the run that waits for it.
#[derive(Clone, Debug)]
pub struct LocalCompletion {
    /// The step that the activity works for.
    pub step_key: StepKey,
    /// The number of the attempt that produced it, from 1.
    pub attempt: u32,
    /// The worker that ran the attempt.
    pub worker: WorkerKey,
    /// When the attempt began.
    pub began_at: Timestamp,
    /// The result of the attempt.
    pub result: TaskResult,
    /// The errors of the attempts before, the last ones of them.
    pub earlier: Vec<AttemptError>,
    guard: TaskGuard,
    ops: Vec<Op>,
}

impl LocalCompletion {
    /// Adds the operations that settle the activity's task to the commit that records its result.
    pub fn settle(self, draft: &mut Draft) {
        draft.guard_task(self.guard);
        for op in self.ops {
            draft.op(op);
        }
    }
}

/// A turn that its first commit claims. Until then nobody holds it.
pub(crate) struct PendingClaim {
    // None after the program has taken it.
    pub(crate) result: Option<LocalCompletion>,
    guard: TaskGuard,
    // The commit that was sent settles the task.
    settles: bool,
    sender: Option<oneshot::Sender<Settled>>,
}

/// The fate of a task whose result was passed to its run.
enum Settled {
    ByTurn,
    /// Another worker holds the task, or it is gone: nobody needs the result.
    Obsolete,
}

impl PendingClaim {
    pub(crate) fn is_of(&self, op: &Op) -> bool {
        matches!(op, Op::Settle { task_id } if *task_id == self.guard.task_id())
    }

    /// Notes which task the commit that was just sent settles.
    pub(crate) fn sent(&mut self, task: Option<TaskGuard>) {
        self.settles = task == Some(self.guard);
    }

    /// The commit succeeded: the turn is held.
    pub(crate) fn held(mut self) {
        if self.settles {
            self.report(Settled::ByTurn);
        }
    }

    /// The commit failed.
    pub(crate) fn refused(&mut self, error: &CommitError) {
        if let CommitError::Conflict(
            Conflict::TaskMissing { task_id } | Conflict::TaskHold { task_id, .. },
        ) = error
            && *task_id == self.guard.task_id()
        {
            self.report(Settled::Obsolete);
        }
    }

    fn report(&mut self, settled: Settled) {
        if let Some(sender) = self.sender.take() {
            let _ = sender.send(settled);
        }
    }
}

/// Settles a task together with the turn of its run, if the run is cached. Returns whether the
/// turn settled it, or `None` if the result has to be sent as a message.
pub(crate) async fn complete(
    runner: &Arc<TurnRunner>,
    task: &Task,
    finished: &Finished,
) -> Option<bool> {
    let (Some(run_key), Some(step_key)) = (task.run_key, &task.step_key) else { return None };
    if &*task.kind == EFFECT || !fits(runner, finished) {
        return None;
    }
    // A quick activity may end before the turn that scheduled it has cached its run.
    if let Some(held_run) = runner.runs.held(run_key) {
        held_run.until_cached().await;
    }
    let (cached, held_run) = hold_cached(runner, run_key, step_key)?;
    let (sender, receiver) = oneshot::channel();
    let guard = TaskGuard::Held { task_id: task.task_id, hold: finished.hold };
    let result = LocalCompletion {
        step_key: step_key.clone(),
        attempt: finished.attempt,
        worker: finished.hold.worker,
        began_at: finished.began_at,
        result: finished.result.clone(),
        earlier: earlier_errors(task),
        guard,
        ops: finished.ops.clone(),
    };
    let pending_claim =
        PendingClaim { result: Some(result), guard, settles: false, sender: Some(sender) };
    // In a task of its own: the turn may go on after its first commit, and the activity must not use
    // capacity meanwhile.
    runner.spawn(Start::LocalCompletion(Box::new(cached), pending_claim), held_run, None);
    match receiver.await {
        Ok(Settled::ByTurn) => Some(true),
        Ok(Settled::Obsolete) => {
            tracing::debug!(task_id = %task.task_id, "the result of a task is obsolete");
            Some(false)
        }
        // The turn ended without a commit.
        Err(_) => None,
    }
}

// A result that no message can carry takes the way of a message, so that it is refused in the same
// way everywhere.
fn fits(runner: &TurnRunner, finished: &Finished) -> bool {
    let Ok(output) = &finished.result else { return true };
    output.encoding == Encoding::Json
        && output.len() + ENVELOPE_BYTES <= runner.core.options.limits.message_bytes_max
        && serde_json::from_slice::<&RawValue>(&output.bytes).is_ok()
}

// Takes a run out of the cache and marks it as held. If its turn is held already, or will be claimed
// because of unread messages, the result is sent as a message: results that come together are then
// read together, and this does not race the claimer for the turn.
fn hold_cached(
    runner: &Arc<TurnRunner>,
    run_key: RunKey,
    step_key: &StepKey,
) -> Option<(CachedRun, Arc<HeldRun>)> {
    let (workflow, limit) = runner.runs.cached_route(run_key)?;
    if !runner.capacity.accepts_unclaimed(&workflow, limit.as_ref()) {
        return None;
    }
    let fits = |cached: &CachedRun| {
        let CachedRun { run, program, mailbox, unread, .. } = cached;
        run.status != RunStatus::Paused
            && !unread
            && !mailbox.values().any(|message| message.kind == MessageKind::Control)
            && program.takes_result(step_key)
    };
    runner.runs.hold_cached(run_key, fits)
}
