//! Cancelling: a run that nobody has ends at once, any other when what is being done is over.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use serde_json::json;
use windlass_kernel::{Actor, Body, CommitError, Draft, Error, Loaded, RunKey, RunStatus};

use crate::control::{ATTEMPTS_MAX, busy, with_actor};
use crate::engine::{Engine, Inner};
use crate::turn::refusal;

/// How often somebody who waits for a cancelled run looks whether it is still being worked on.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Engine {
    /// Cancels a run. If nobody has its turn, it ends in this call's own commit; else whoever has it
    /// is told, finishes or gives up what it is doing, and ends the run. Either way this returns when
    /// the run has ended: `true` if it was terminated, `false` if it is unknown, or ended otherwise.
    pub async fn cancel(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<Actor>,
    ) -> Result<bool, Error> {
        let inner = &self.inner;
        for _ in 0..ATTEMPTS_MAX {
            let loaded = inner.store.load(vec![run_key]).await?.into_iter().next();
            let Some(loaded) = loaded else { return Ok(false) };
            if loaded.run.status.is_ended() {
                return Ok(false);
            }
            if loaded.run.turn.worker.is_none() {
                match inner.cancel_free(loaded, reason, actor.as_ref()).await? {
                    true => return Ok(true),
                    false => continue,
                }
            }
            let mut body = with_actor(actor.as_ref());
            if let Some(reason) = reason {
                body["reason"] = shortened(reason).into();
            }
            match self.control(run_key, "cancel", body).await {
                Ok(()) => return self.until_cancelled(run_key, reason, actor.as_ref()).await,
                Err(error) if matches!(error.code(), "RUN_TERMINAL" | "RUN_NOT_FOUND") => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Err(busy(&self.current(run_key).await?))
    }

    // Whoever was told may die before it has obeyed, and nobody else need serve the workflow: then the
    // run is free, and ended from here.
    async fn until_cancelled(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let inner = &self.inner;
        let mut ended = std::pin::pin!(self.wait(run_key));
        loop {
            let look = inner.env.sleep(LOOK_EVERY);
            if let Either::Left((ended, _)) = select(ended.as_mut(), look).await {
                return Ok(ended?.status == RunStatus::Terminated);
            }
            let loaded = inner.store.load(vec![run_key]).await?.into_iter().next();
            let Some(loaded) = loaded else { return Ok(false) };
            let free = !loaded.run.status.is_ended() && loaded.run.turn.worker.is_none();
            if free && inner.cancel_free(loaded, reason, actor).await? {
                return Ok(true);
            }
        }
    }
}

impl Inner {
    // Ends a run whose turn nobody has; `false` if somebody has it by now, or it has moved on.
    async fn cancel_free(
        self: &Arc<Self>,
        loaded: Loaded,
        reason: Option<&str>,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let stamp = self.stamp_after(loaded.run.updated_at);
        let draft = Draft::free(&loaded.run, self.worker, stamp.at);
        let (draft, _) = self.draft_end_of(loaded, draft, stamp, (reason, actor, "cancel")).await?;
        match Arc::clone(self).commit_until_known(draft.finish()).await {
            Ok(_) => Ok(true),
            Err(CommitError::Conflict(_) | CommitError::Refused(_)) => Ok(false),
            Err(error) => Err(refusal(&error)),
        }
    }
}

/// How much of a reason the ledger shows.
pub(crate) fn shortened(reason: &str) -> String {
    reason.chars().take(1_000).collect()
}

/// What a run that somebody ends has as its error.
pub(crate) fn terminated_with(reason: Option<&str>) -> Result<Option<Body>, Error> {
    let error = |reason: &str| Body::of(&json!({ "name": "Terminated", "message": reason }));
    reason.map(error).transpose()
}
