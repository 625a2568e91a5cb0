//! Activities at hand: where a run waits in this process's memory, the commit that settles its activity
//! is also its turn. The result goes into the run's rows, and no message carries it.
//!
//! The turn is taken by its first commit, which asks that nobody holds it and that the run is where it
//! was left. Whatever comes in between, the result is sent as a message instead, and the task's own
//! guard sees to it that only one of both is written.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::oneshot;
use windlass_kernel::{
    CommitError, Conflict, Draft, EFFECT, Encoding, MessageKind, Op, RunKey, RunStatus, StepKey,
    Task, TaskGuard, Timestamp, WorkerKey,
};

use crate::drive::Start;
use crate::engine::Inner;
use crate::settle::Over;
use crate::slot::Slot;
use crate::sticky::Parked;
use crate::tasks::TaskResult;

/// What a message says beside a result has room in this.
const MESSAGE_BYTES: usize = 4 * 1024;

/// The result of an activity, handed to the run that waits for it.
#[derive(Clone, Debug)]
pub struct AtHand {
    /// The step that the activity works for.
    pub step_key: StepKey,
    /// Which attempt gave it, from 1.
    pub attempt: u32,
    /// Who ran that attempt.
    pub worker: WorkerKey,
    /// When that attempt began.
    pub began_at: Timestamp,
    /// What it gave.
    pub result: TaskResult,
    guard: TaskGuard,
    ops: Vec<Op>,
}

impl AtHand {
    /// Settles the activity's task with the commit that records its result.
    pub fn settle(self, draft: &mut Draft) {
        draft.guard_task(self.guard);
        for op in self.ops {
            draft.op(op);
        }
    }
}

/// A turn that nobody holds until its first commit takes it.
pub(crate) struct Taking {
    // Until the program takes it.
    pub(crate) result: Option<AtHand>,
    guard: TaskGuard,
    // The commit on its way settles the task.
    settles: bool,
    tell: Option<oneshot::Sender<Told>>,
}

/// What became of a task whose result was handed to its run.
enum Told {
    Settled,
    /// Somebody else has the task, or it is gone: nobody wants the result.
    Unwanted,
}

impl Taking {
    pub(crate) fn is_of(&self, op: &Op) -> bool {
        matches!(op, Op::Settle { task_id } if *task_id == self.guard.task_id)
    }

    /// A commit is on its way.
    pub(crate) fn sent(&mut self, task: Option<TaskGuard>) {
        self.settles = task == Some(self.guard);
    }

    /// The commit holds.
    pub(crate) fn held(mut self) {
        if self.settles {
            self.tell(Told::Settled);
        }
    }

    /// The commit does not hold.
    pub(crate) fn refused(&mut self, error: &CommitError) {
        if let CommitError::Conflict(
            Conflict::TaskMissing { task_id } | Conflict::TaskHold { task_id, .. },
        ) = error
            && *task_id == self.guard.task_id
        {
            self.tell(Told::Unwanted);
        }
    }

    fn tell(&mut self, told: Told) {
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(told);
        }
    }
}

impl Inner {
    /// Settles a task together with the turn of its run, if the run is at hand. `false` if the result
    /// is to be sent as a message.
    pub(crate) async fn settle_at_hand(self: &Arc<Self>, task: &Task, over: &Over) -> bool {
        let (Some(run_key), Some(step_key)) = (task.run_key, &task.step_key) else { return false };
        if &*task.kind == EFFECT || !self.fits_at_hand(over) {
            return false;
        }
        // A quick activity is over before the turn that asked for it is put away.
        let live = self.live.lock().get(&run_key).cloned();
        if let Some(slot) = live {
            slot.until_away().await;
        }
        let Some((parked, slot)) = self.take_parked(run_key, step_key) else { return false };
        let (tell, told) = oneshot::channel();
        let result = AtHand {
            step_key: step_key.clone(),
            attempt: over.attempt,
            worker: over.guard.hold.worker,
            began_at: over.began_at,
            result: over.result.clone(),
            guard: over.guard,
            ops: over.ops.clone(),
        };
        let taking =
            Taking { result: Some(result), guard: over.guard, settles: false, tell: Some(tell) };
        // A task of its own: what the turn does beyond its first commit must not keep the room of an
        // activity that is over.
        self.spawn(Start::AtHand(Box::new(parked), taking), slot, None);
        match told.await {
            Ok(Told::Settled) => true,
            Ok(Told::Unwanted) => {
                tracing::debug!(task_id = %task.task_id, "a result is refused");
                true
            }
            // The turn came to nothing.
            Err(_) => false,
        }
    }

    // What a message would not carry is left to the message, so that it is refused everywhere alike.
    fn fits_at_hand(&self, over: &Over) -> bool {
        let Ok(output) = &over.result else { return true };
        output.encoding == Encoding::Json
            && output.len() + MESSAGE_BYTES <= self.options.limits.message_bytes_max
            && serde_json::from_slice::<&RawValue>(&output.bytes).is_ok()
    }

    // Takes a run out of memory and notes that its turn is being taken here. A run whose turn is being
    // taken already, or will be because there is something to read, gets a message: results that come
    // together are then read together, and nobody races the claimer for the turn.
    fn take_parked(&self, run_key: RunKey, step_key: &StepKey) -> Option<(Parked, Arc<Slot>)> {
        let (workflow, limit) = {
            let sticky = self.sticky.lock();
            let run = sticky.row(run_key)?;
            (run.workflow.clone(), run.turn.limit_key.clone())
        };
        if !self.takes_unclaimed(&workflow, limit.as_ref()) {
            return None;
        }
        let fits = |parked: &Parked| {
            let Parked { run, program, mailbox, unread, .. } = parked;
            run.status != RunStatus::Paused
                && !unread
                && !mailbox.values().any(|message| message.kind == MessageKind::Control)
                && program.takes_result(step_key)
        };
        let mut live = self.live.lock();
        if live.contains_key(&run_key) {
            return None;
        }
        let parked = self.sticky.lock().take_if(run_key, fits)?;
        let slot = Arc::new(Slot::default());
        live.insert(run_key, Arc::clone(&slot));
        Some((parked, slot))
    }
}
