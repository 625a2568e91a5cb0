//! Pausing runs and letting them go on.

use std::sync::Arc;

use windlass_kernel::{
    Actor, Body, Commit, CommitError, Draft, Error, MessageId, MessageKind, MessageName,
    NewMessage, Op, Run, RunKey, RunStatus, Wake,
};

use crate::control::{ATTEMPTS_MAX, busy, refuse_ended, with_actor};
use crate::engine::{Engine, Inner};
use crate::env::new_uuid;
use crate::options::EnqueuedReason;
use crate::turn::refusal;

impl Engine {
    /// Asks a run to stop before its next piece of user code. An ended run cannot be paused; one
    /// that is paused stays so.
    pub async fn pause(&self, run: &Run, actor: Option<Actor>) -> Result<(), Error> {
        let mut run_key = run.run_key;
        for attempt in 0..ATTEMPTS_MAX {
            let (run, unread) = self.unread_control(run_key).await?;
            if run.status.is_ended() {
                // It may have been restarted since its key was read.
                let newest = self.newest(&run).await?;
                if newest.run_key == run_key {
                    return refuse_ended(&run, "paused");
                }
                run_key = newest.run_key;
                continue;
            }
            if !unread && run.status == RunStatus::Paused {
                return Ok(());
            }
            // There may be nobody to read a request: a workflow that no worker serves. A run that moves on
            // meanwhile has somebody.
            if attempt == 0 && !unread && run.turn.worker.is_none() {
                if self.inner.pause_free(&run, actor.as_ref()).await? {
                    return Ok(());
                }
                continue;
            }
            match self.control(run_key, "pause", with_actor(actor.as_ref())).await {
                Err(error) if error.code() == "RUN_TERMINAL" => {}
                sent => return sent,
            }
        }
        Err(busy(run))
    }

    /// Lets a paused run go on. Any other run is left as it is.
    pub async fn resume(&self, run: &Run, actor: Option<Actor>) -> Result<(), Error> {
        for _ in 0..ATTEMPTS_MAX {
            let (run, unread) = self.unread_control(run.run_key).await?;
            if run.status.is_ended() {
                return Ok(());
            }
            if unread {
                // A pause may be on its way: this request follows it, and a paused run has a turn
                // to read it in.
                return match self.control(run.run_key, "resume", with_actor(actor.as_ref())).await {
                    Err(error) if error.code() == "RUN_TERMINAL" => Ok(()),
                    sent => sent,
                };
            }
            if run.status != RunStatus::Paused || self.inner.unpause(&run, actor.as_ref()).await? {
                return Ok(());
            }
        }
        Err(busy(run))
    }

    // A run's row, and whether it has control requests that nobody has read, at one moment.
    async fn unread_control(&self, run_key: RunKey) -> Result<(Run, bool), Error> {
        let loaded = self.inner.store.load(vec![run_key]).await?.into_iter().next();
        let Some(loaded) = loaded else { return Ok((self.current(run_key).await?, false)) };
        let unread = loaded.messages.iter().any(|message| message.kind == MessageKind::Control);
        Ok((loaded.run, unread))
    }

    pub(crate) async fn control(
        &self,
        run_key: RunKey,
        name: &str,
        body: serde_json::Value,
    ) -> Result<(), Error> {
        let message = self.inner.control_message(run_key, name, &body)?;
        let commit = Commit::new(None, None, vec![Op::PutMessage(Box::new(message))]);
        match Arc::clone(&self.inner).commit_asked(commit).await {
            Ok(_) => Ok(()),
            Err(error) => Err(refusal(&error)),
        }
    }
}

impl Inner {
    /// A request to a run, under an id of its own.
    pub(crate) fn control_message(
        &self,
        run_key: RunKey,
        name: &str,
        body: &serde_json::Value,
    ) -> Result<NewMessage, Error> {
        let now = self.clock.now();
        Ok(NewMessage {
            run_key,
            message_id: MessageId::new(format!("control:{}", new_uuid(&*self.env, now)))?,
            kind: MessageKind::Control,
            name: MessageName::new(name)?,
            body: Some(Body::of(body)?),
            caused_by: None,
            sent_at: now,
            required: true,
        })
    }

    // Pauses a run whose turn nobody holds; `false` if it has moved on since it was read.
    async fn pause_free(self: &Arc<Self>, run: &Run, actor: Option<&Actor>) -> Result<bool, Error> {
        let stamp = self.stamp_after(run.updated_at);
        let mut draft = Draft::free(run, self.worker, stamp.at);
        draft.event("workflow.paused", &with_actor(actor), stamp)?;
        draft.status(RunStatus::Paused);
        draft.release(Wake::OnMessage, run.seen);
        self.moved(draft).await
    }

    /// Lets a paused run go on; `false` if it has moved on since it was read.
    pub(crate) async fn unpause(
        self: &Arc<Self>,
        run: &Run,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let stamp = self.stamp_after(run.updated_at);
        let mut draft = Draft::free(run, self.worker, stamp.at);
        draft.event("workflow.resumed", &with_actor(actor), stamp)?;
        draft.status(RunStatus::Active);
        draft.release(Wake::Now, run.seen);
        let moved = self.moved(draft).await?;
        if moved {
            self.enqueued(run, EnqueuedReason::Resume);
        }
        Ok(moved)
    }

    async fn moved(self: &Arc<Self>, draft: Draft) -> Result<bool, Error> {
        match Arc::clone(self).commit_asked(draft.finish()).await {
            Ok(_) => Ok(true),
            Err(CommitError::Conflict(_) | CommitError::Refused(_)) => Ok(false),
            Err(error) => Err(refusal(&error)),
        }
    }
}
