//! Cancelling: a run that nobody has ends at once, any other when what is being done is over.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_kernel::{
    Actor, Body, CommitError, Draft, Error, Loaded, MessageKind, NewMessage, Op, RunKey, RunStatus,
};

use crate::control::{ATTEMPTS_MAX, busy, with_actor};
use crate::engine::{Engine, Inner};
use crate::tasks::CANCEL_LATE;
use crate::turn::refusal;

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
                Ok(()) => {
                    let ended = self.wait(run_key).await?;
                    return Ok(ended.status == RunStatus::Terminated);
                }
                Err(error) if matches!(error.code(), "RUN_TERMINAL" | "RUN_NOT_FOUND") => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Err(busy(&self.current(run_key).await?))
    }
}

/// What ends a run that was told to end and has not done so when its time is over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Late {
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actor: Option<Actor>,
}

/// The model whose runs are told to end with a message, and have some time to do so.
const TOLD: &str = "machines";
/// The name of that message.
const CANCEL: &str = "cancel";

impl Inner {
    /// What has to be enqueued with a message: if it tells a run to end, a task that ends it when its
    /// time is over. The run may be paused, blocked or served by nobody, so it cannot see to that itself.
    pub(crate) async fn beside_message(&self, message: &NewMessage) -> Result<Option<Op>, Error> {
        let told = matches!(message.kind, MessageKind::Signal | MessageKind::Event);
        if !told || message.name.as_str() != CANCEL {
            return Ok(None);
        }
        let loaded = self.store.load(vec![message.run_key]).await?.into_iter().next();
        let Some(Loaded { run, .. }) = loaded.filter(|loaded| loaded.run.model.as_str() == TOLD)
        else {
            return Ok(None);
        };
        // The first request counts: the machine hears of no other either.
        let tasks = self.tasks_of(&run).await?;
        if tasks.iter().any(|task| task.name.as_str() == CANCEL_LATE) {
            return Ok(None);
        }
        let said: serde_json::Value =
            message.body.as_ref().and_then(|body| body.read().ok()).unwrap_or_default();
        let late = Late {
            reason: said["reason"].as_str().map(shortened),
            actor: serde_json::from_value(said["actor"].clone()).ok(),
        };
        let mut task = self.internal_task(CANCEL_LATE, &run, message.sent_at)?;
        task.due_at = Some(message.sent_at.plus(self.options.cancel_grace));
        task.body = Some(Body::of(&late)?);
        Ok(Some(Op::Enqueue(Box::new(task))))
    }

    /// Ends a run that was told to end, if it has not done so.
    pub(crate) async fn cancel_late(
        self: &Arc<Self>,
        run_key: RunKey,
        late: &Late,
    ) -> Result<(), Error> {
        let order = Order {
            reason: Some(late.reason.as_deref().unwrap_or("it was cancelled")),
            actor: late.actor.as_ref(),
            request: CANCEL,
            error_name: "Cancelled",
        };
        self.terminate_as(run_key, order).await
    }

    // Ends a run whose turn nobody has; `false` if somebody has it by now, or it has moved on.
    async fn cancel_free(
        self: &Arc<Self>,
        loaded: Loaded,
        reason: Option<&str>,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let stamp = self.stamp_after(loaded.run.updated_at);
        let draft = Draft::free(&loaded.run, self.worker, stamp.at);
        let order = Order::new(CANCEL, reason, actor);
        let (draft, _) = self.draft_end_of(loaded, draft, stamp, order).await?;
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

/// What somebody who ends a run says of it.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) request: &'static str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) actor: Option<&'a Actor>,
    /// The name of the error that the run has then.
    pub(crate) error_name: &'static str,
}

impl<'a> Order<'a> {
    pub(crate) const fn new(
        request: &'static str,
        reason: Option<&'a str>,
        actor: Option<&'a Actor>,
    ) -> Self {
        Self { request, reason, actor, error_name: "Terminated" }
    }

    pub(crate) fn error(&self) -> Result<Option<Body>, Error> {
        let name = self.error_name;
        let error = |reason: &str| Body::of(&json!({ "name": name, "message": reason }));
        self.reason.map(error).transpose()
    }
}

/// What a run that somebody ends has as its error.
pub(crate) fn terminated_with(reason: Option<&str>) -> Result<Option<Body>, Error> {
    Order::new(CANCEL, reason, None).error()
}
