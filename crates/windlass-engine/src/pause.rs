//! Pausing and resuming runs.

use std::sync::Arc;

use windlass_kernel::{
    Actor, CommitError, Draft, Error, ErrorCode, LoadSteps, MessageKind, Run, RunKey, RunStatus,
    Wake,
};

use crate::commit::CommitClient;
use crate::control::{ATTEMPTS_MAX, Control, busy, refuse_ended, send_control, with_actor};
use crate::core::Core;
use crate::events;
use crate::options::EnqueuedReason;
use crate::turn::refusal;

/// Pauses and resumes runs, with a request to the worker that holds the turn or with its own commit.
pub(crate) struct Pauser {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
}

impl Pauser {
    /// Pauses a run before its next piece of user code. An ended run cannot be paused; a paused run
    /// stays paused.
    pub(crate) async fn pause(&self, run: &Run, actor: Option<&Actor>) -> Result<(), Error> {
        let mut run_key = run.run_key;
        for attempt in 0..ATTEMPTS_MAX {
            let (run, unread) = self.unread_control(run_key).await?;
            if run.status.is_ended() {
                // It may have been restarted since its key was read.
                let newest = self.core.newest(&run).await?;
                if newest.run_key == run_key {
                    return refuse_ended(&run, "paused");
                }
                run_key = newest.run_key;
                continue;
            }
            if !unread && run.status == RunStatus::Paused {
                return Ok(());
            }
            // Pause without a request if nobody holds the turn: maybe no worker serves the workflow. If
            // the run changes meanwhile, a worker serves it and reads the request.
            if attempt == 0 && !unread && run.turn.worker.is_none() {
                if self.pause_free(&run, actor).await? {
                    return Ok(());
                }
                continue;
            }
            match self.send(run_key, Control::Pause, with_actor(actor)).await {
                Err(error) if error.code() == ErrorCode::RunTerminal => {}
                sent => return sent,
            }
        }
        Err(busy(run))
    }

    /// Resumes a paused run. Any other run stays as it is.
    pub(crate) async fn resume(&self, run: &Run, actor: Option<&Actor>) -> Result<(), Error> {
        for _ in 0..ATTEMPTS_MAX {
            let (run, unread) = self.unread_control(run.run_key).await?;
            if run.status.is_ended() {
                return Ok(());
            }
            if unread {
                // A pause request may be unread. This request follows it, and a paused run gets a turn to
                // read it.
                return match self.send(run.run_key, Control::Resume, with_actor(actor)).await {
                    Err(error) if error.code() == ErrorCode::RunTerminal => Ok(()),
                    sent => sent,
                };
            }
            if run.status != RunStatus::Paused || self.unpause(&run, actor).await? {
                return Ok(());
            }
        }
        Err(busy(run))
    }

    // A run's row, and whether it has unread control requests, in one read.
    async fn unread_control(&self, run_key: RunKey) -> Result<(Run, bool), Error> {
        let loaded =
            self.core.store.load_with(vec![run_key], LoadSteps::Open).await?.into_iter().next();
        let Some(loaded) = loaded else { return Ok((self.core.current(run_key).await?, false)) };
        let unread = loaded.messages.iter().any(|message| message.kind == MessageKind::Control);
        Ok((loaded.run, unread))
    }

    // Pauses a run whose turn nobody holds; `false` if the run has changed since it was read.
    async fn pause_free(&self, run: &Run, actor: Option<&Actor>) -> Result<bool, Error> {
        let stamp = self.core.stamp_after(run.updated_at);
        let mut draft = Draft::free(run, self.core.worker, stamp.at);
        draft.keep_unstarted();
        draft.event(events::WORKFLOW_PAUSED, &with_actor(actor), stamp)?;
        draft.status(RunStatus::Paused);
        let start = run.delayed_until(stamp.at);
        draft.release(start.map_or(Wake::OnMessage, Wake::At), run.seen);
        self.commit_unless_moved(draft).await
    }

    /// Resumes a paused run; `false` if the run has changed since it was read.
    async fn unpause(&self, run: &Run, actor: Option<&Actor>) -> Result<bool, Error> {
        let stamp = self.core.stamp_after(run.updated_at);
        let mut draft = Draft::free(run, self.core.worker, stamp.at);
        draft.keep_unstarted();
        draft.event(events::WORKFLOW_RESUMED, &with_actor(actor), stamp)?;
        draft.status(RunStatus::Active);
        let start = run.delayed_until(stamp.at);
        draft.release(start.map_or(Wake::Now, Wake::At), run.seen);
        let moved = self.commit_unless_moved(draft).await?;
        if moved {
            self.core.run_enqueued(run, EnqueuedReason::Resume);
        }
        Ok(moved)
    }

    async fn commit_unless_moved(&self, draft: Draft) -> Result<bool, Error> {
        match Arc::clone(&self.commits).commit_for_caller(draft.finish()).await {
            Ok(_) => Ok(true),
            Err(CommitError::Conflict(_) | CommitError::Refused(_)) => Ok(false),
            Err(error) => Err(refusal(&error)),
        }
    }

    async fn send(
        &self,
        run_key: RunKey,
        control: Control,
        body: serde_json::Value,
    ) -> Result<(), Error> {
        send_control(&self.core, &self.commits, run_key, control, body).await
    }
}
