//! Cancelling: a run that nobody has ends at once, any other when what is being done is over.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_kernel::{
    Actor, Body, CommitError, Draft, Error, Looked, MessageKind, NewMessage, Op, Run, RunKey,
    RunStatus, Stamp, Step, StepStatus,
};

use crate::control::{ATTEMPTS_MAX, busy, with_actor};
use crate::engine::{Engine, Inner};
use crate::model::{CalledOff, Manners};
use crate::tasks::CANCEL_LATE;
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
            let Some(looked) = inner.store.look_at(run_key).await? else { return Ok(false) };
            if looked.run.status.is_ended() {
                return Ok(false);
            }
            if looked.run.turn.worker.is_none() {
                match inner.cancel_free(looked, reason, actor.as_ref()).await? {
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
            let Some(looked) = inner.store.look_at(run_key).await? else { return Ok(false) };
            let free = !looked.run.status.is_ended() && looked.run.turn.worker.is_none();
            if free && inner.cancel_free(looked, reason, actor).await? {
                return Ok(true);
            }
        }
    }
}

/// What ends a run that was told to end and has not done so when its time is over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Late {
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actor: Option<Actor>,
}

/// What a run's ledger calls the request.
const CANCEL: &str = "cancel";

impl Inner {
    /// How a run is asked to end.
    pub(crate) fn manners(&self, run: &Run) -> Manners {
        let of_model = || {
            let known = self.options.manners.iter().find(|(model, _)| *model == run.model.as_str());
            known.map_or_else(Manners::default, |(_, manners)| *manners)
        };
        let served = self.registered(&run.workflow);
        served.map_or_else(of_model, |registered| registered.model.manners())
    }

    // Whether a message of this name asks runs of some model to end. Few are called so, and for the
    // others no run need be read.
    fn may_ask_to_end(&self, name: &str) -> bool {
        self.options.manners.iter().any(|(_, manners)| manners.cancel == Some(name))
            || self.models.read().values().any(|served| served.model.manners().cancel == Some(name))
    }

    /// What has to be enqueued with a message: if it tells a run to end, a task that ends it when its
    /// time is over. The run may be paused, blocked or served by nobody, so it cannot see to that itself.
    pub(crate) async fn beside_message(&self, message: &NewMessage) -> Result<Option<Op>, Error> {
        let told = matches!(message.kind, MessageKind::Signal | MessageKind::Event);
        if !told || !self.may_ask_to_end(message.name.as_str()) {
            return Ok(None);
        }
        let looked = self.store.look_at(message.run_key).await?;
        let ends =
            |looked: &Looked| self.manners(&looked.run).cancel == Some(message.name.as_str());
        let Some(Looked { run, .. }) = looked.filter(ends) else { return Ok(None) };
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
        looked: Looked,
        reason: Option<&str>,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let at = self.stamp_after(looked.run.updated_at).at;
        let draft = Draft::free(&looked.run, self.worker, at);
        let order = Order::new(CANCEL, reason, actor);
        let (draft, _) = self.draft_end_of(looked, draft, at, order).await?;
        match Arc::clone(self).commit_until_known(draft.finish()).await {
            Ok(_) => Ok(true),
            Err(CommitError::Conflict(_) | CommitError::Refused(_)) => Ok(false),
            Err(error) => Err(refusal(&error)),
        }
    }
}

/// So many steps, with so many bytes together, are called off in the commit that ends their run. A run
/// that has more keeps the rest as they are: nobody looks at them any more, and its end must not fail.
const CALLED_OFF_MAX: usize = 1_000;
const CALLED_OFF_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Calls off the steps that are open when somebody ends a run: what has ended has nothing open.
pub(crate) fn call_off(
    draft: &mut Draft,
    open: Vec<Step>,
    called_off: Option<CalledOff>,
    mut stamp: impl FnMut() -> Stamp,
) -> Result<(), Error> {
    let mut bytes = 0;
    for mut step in open.into_iter().take(CALLED_OFF_MAX) {
        let bodies = [&step.input, &step.result, &step.error];
        bytes += bodies.into_iter().flatten().map(Body::len).sum::<usize>();
        if bytes > CALLED_OFF_BYTES_MAX {
            break;
        }
        // Whoever ends it may have settled it in the same commit.
        if draft.written_step(step.step_key.as_str()).is_some() {
            continue;
        }
        let stamp = stamp();
        let key = step.step_key.as_str();
        let own = called_off.and_then(|called_off| called_off(&step));
        let (event, payload) = own.unwrap_or_else(|| match &*step.kind {
            "activity" => ("activity.cancelled", json!({ "key": key })),
            "child" => {
                let child = step.input.as_ref().and_then(|input| input.read::<Value>().ok());
                let run_key = child.map(|child| child["run_key"].clone());
                ("child.failed", json!({ "key": key, "run_key": run_key, "cancelled": true }))
            }
            _ => ("step.cancelled", json!({ "key": key })),
        });
        step.status = StepStatus::Cancelled;
        step.updated_at = stamp.at;
        if step.error.is_none() {
            let error = json!({ "name": "Cancelled", "message": "its run was ended" });
            step.error = Some(Body::of(&error)?);
        }
        draft.step(event, &payload, step, stamp)?;
    }
    Ok(())
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
