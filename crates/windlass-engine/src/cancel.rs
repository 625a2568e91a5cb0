//! Cancelling: a run whose turn nobody holds ends at once, any other when its current work is done.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_kernel::{
    Actor, Body, CommitError, Draft, Error, ErrorCode, Message, MessageKind, NewMessage, Op, Query,
    Run, RunKey, RunOverview, RunStatus, Stamp, Step, StepStatus,
};

use crate::commit::CommitClient;
use crate::control::{ATTEMPTS_MAX, Control, busy, send_control, with_actor};
use crate::core::{Core, after_write};
use crate::description::ModelDescription;
use crate::registry::Registry;
use crate::results::ResultWaiter;
use crate::tasks::CANCEL_LATE;
use crate::terminate::Terminator;
use crate::turn::refusal;

/// How often a caller that waits for a cancelled run checks whether a worker still holds it.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The body of the internal task that terminates a run which has not ended in time after a cancel
/// message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CancelDeadline {
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    actor: Option<Actor>,
}

/// The name of the request in the ledger.
const CANCEL: &str = "cancel";

/// Cancels runs, with a request to the worker that holds the turn or with its own commit.
pub(crate) struct Canceller {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) terminator: Arc<Terminator>,
    pub(crate) waiter: Arc<ResultWaiter>,
}

impl Canceller {
    /// Cancels a run. If nobody holds its turn, this call ends it with its own commit. Otherwise the
    /// worker that holds the turn gets a request, finishes or abandons its current work, and ends the run.
    /// This returns when the run has ended: `true` if it was terminated, `false` if it is unknown or
    /// ended in another way.
    pub(crate) async fn cancel(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let core = &self.core;
        let mut run_key = run_key;
        for _ in 0..ATTEMPTS_MAX {
            let Some(overview) = core.store.run_overview_by_key(run_key).await? else {
                return Ok(false);
            };
            if overview.run.status.is_ended() {
                // As terminate and pause do: the newest generation is meant.
                let newest = core.newest(&overview.run).await?;
                if newest.run_key == run_key || newest.status.is_ended() {
                    return Ok(false);
                }
                run_key = newest.run_key;
                continue;
            }
            if overview.run.turn.worker.is_none() {
                match self.cancel_free(overview, reason, actor).await? {
                    true => return Ok(true),
                    false => continue,
                }
            }
            let mut body = with_actor(actor);
            if let Some(reason) = reason {
                body["reason"] = shortened(reason).into();
            }
            match send_control(core, &self.commits, run_key, Control::Cancel, body).await {
                Ok(()) => {
                    let ended = self.until_cancelled(run_key, reason, actor).await;
                    return ended.map_err(after_write);
                }
                Err(error)
                    if matches!(error.code(), ErrorCode::RunTerminal | ErrorCode::RunNotFound) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Err(busy(&core.current(run_key).await?))
    }

    // The worker with the request may die before it has ended the run, and maybe no other worker serves
    // the workflow. Then nobody holds the turn, and this ends the run.
    async fn until_cancelled(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let core = &self.core;
        let mut ended = std::pin::pin!(self.waiter.wait(run_key));
        loop {
            let slept = core.env.sleep(CHECK_EVERY);
            if let Either::Left((ended, _)) = select(ended.as_mut(), slept).await {
                return Ok(ended?.status == RunStatus::Terminated);
            }
            let Some(overview) = core.store.run_overview_by_key(run_key).await? else {
                return Ok(false);
            };
            let free = !overview.run.status.is_ended() && overview.run.turn.worker.is_none();
            if free && self.cancel_free(overview, reason, actor).await? {
                return Ok(true);
            }
        }
    }

    /// The op that must go with a message: for a message that asks a run to end, a task that ends the run
    /// when its time is over. A paused, blocked or unserved run cannot do that by itself.
    pub(crate) async fn beside_message(&self, message: &NewMessage) -> Result<Option<Op>, Error> {
        let is_signal = matches!(message.kind, MessageKind::Signal | MessageKind::Event);
        if !is_signal || !self.registry.is_cancel_message(&message.name) {
            return Ok(None);
        }
        let overview = self.core.store.run_overview_by_key(message.run_key).await?;
        let ends = |overview: &RunOverview| {
            let model = self.registry.description(&overview.run);
            model.cancel.message.as_ref() == Some(&message.name)
        };
        let Some(RunOverview { run, .. }) = overview.filter(ends) else { return Ok(None) };
        // Only the first request counts.
        let tasks = self.terminator.tasks_of(&run).await?;
        if tasks.iter().any(|task| task.name.as_str() == CANCEL_LATE) {
            return Ok(None);
        }
        let body: serde_json::Value =
            message.body.as_ref().and_then(|body| body.read().ok()).unwrap_or_default();
        let late = CancelDeadline {
            reason: body["reason"].as_str().map(shortened),
            actor: serde_json::from_value(body["actor"].clone()).ok(),
        };
        let mut task = self.terminator.internal_task(CANCEL_LATE, &run, message.sent_at)?;
        task.due_at = Some(message.sent_at.plus(self.core.options.cancel_grace));
        task.body = Some(Body::of(&late)?);
        Ok(Some(Op::Enqueue(Box::new(task))))
    }

    /// Terminates a run that has not ended in time after a cancel message.
    pub(crate) async fn cancel_late(
        &self,
        run_key: RunKey,
        late: &CancelDeadline,
    ) -> Result<(), Error> {
        let request = TerminateRequest {
            reason: Some(late.reason.as_deref().unwrap_or("it was cancelled")),
            actor: late.actor.as_ref(),
            name: CANCEL,
            error_name: "Cancelled",
        };
        self.terminator.terminate_as(run_key, request).await
    }

    // Ends a run whose turn nobody holds; `false` if it is held by now, or the run has changed.
    async fn cancel_free(
        &self,
        overview: RunOverview,
        reason: Option<&str>,
        actor: Option<&Actor>,
    ) -> Result<bool, Error> {
        let at = self.core.stamp_after(overview.run.updated_at).at;
        let draft = Draft::free(&overview.run, self.core.worker, at);
        let request = TerminateRequest::new(CANCEL, reason, actor);
        let (draft, _) = self.terminator.draft_end_of(overview, draft, at, request).await?;
        match Arc::clone(&self.commits).commit(draft.finish()).await {
            Ok(_) => Ok(true),
            Err(CommitError::Conflict(_) | CommitError::Refused(_)) => Ok(false),
            Err(error) => Err(refusal(&error)),
        }
    }

    /// Whether a cancel request for a run is pending.
    pub(crate) async fn is_pending(&self, run: &Run) -> Result<bool, Error> {
        // A turn applies all requests that it has read before it is released, so only unread messages
        // count. A paused run may have many of them, but no cancel: that ends a paused run at once.
        let is_at_rest = run.status.is_ended() || run.status == RunStatus::Paused;
        if is_at_rest || run.accepted <= run.seen {
            return Ok(false);
        }
        let ends = self.registry.description(run).cancel.message.as_ref();
        let asks = |message: &Message| {
            message.consumed.is_none()
                && match message.kind {
                    MessageKind::Control => Control::of(message) == Control::Cancel,
                    MessageKind::Signal | MessageKind::Event => ends == Some(&message.name),
                    _ => false,
                }
        };
        let limit = self.core.options.limits.page_rows_max;
        let mut after = run.seen;
        loop {
            let query = Query::Messages { run_key: run.run_key, after, limit };
            let page = self.core.store.list(query).await?.messages()?;
            if page.iter().any(asks) {
                return Ok(true);
            }
            match page.last().filter(|_| page.len() == limit as usize) {
                Some(last) => after = last.seq,
                None => return Ok(false),
            }
        }
    }
}

/// Bounds of the steps that are cancelled in the commit that ends their run. Further steps stay as they
/// are: they have no effect any more, and the end of the run must not fail.
const CANCELLED_MAX: usize = 1_000;
const CANCELLED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Cancels the steps that are open when a run is ended from outside: an ended run has no open steps.
pub(crate) fn cancel_open_steps(
    draft: &mut Draft,
    open: Vec<Step>,
    model: &ModelDescription,
    mut stamp: impl FnMut() -> Stamp,
) -> Result<(), Error> {
    let mut bytes = 0;
    for mut step in open.into_iter().take(CANCELLED_MAX) {
        let bodies = [&step.input, &step.result, &step.error];
        bytes += bodies.into_iter().flatten().map(Body::len).sum::<usize>();
        if bytes > CANCELLED_BYTES_MAX {
            break;
        }
        // The same commit may have settled it.
        if draft.written_step(step.step_key.as_str()).is_some() {
            continue;
        }
        let stamp = stamp();
        let (event, payload) = model.step(&step.kind).cancelled_event(&step);
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

/// A reason, cut to the length that the ledger allows.
pub(crate) fn shortened(reason: &str) -> String {
    reason.chars().take(1_000).collect()
}

/// The author and the reason of a termination.
#[derive(Clone, Copy)]
pub(crate) struct TerminateRequest<'a> {
    pub(crate) name: &'static str,
    pub(crate) reason: Option<&'a str>,
    pub(crate) actor: Option<&'a Actor>,
    /// The name of the run's error.
    pub(crate) error_name: &'static str,
}

impl<'a> TerminateRequest<'a> {
    pub(crate) const fn new(
        name: &'static str,
        reason: Option<&'a str>,
        actor: Option<&'a Actor>,
    ) -> Self {
        Self { name, reason, actor, error_name: "Terminated" }
    }

    pub(crate) fn error(&self) -> Result<Option<Body>, Error> {
        let name = self.error_name;
        let error = |reason: &str| Body::of(&json!({ "name": name, "message": reason }));
        self.reason.map(error).transpose()
    }
}

/// The error of a run that was cancelled.
pub(crate) fn terminated_with(reason: Option<&str>) -> Result<Option<Body>, Error> {
    TerminateRequest::new(CANCEL, reason, None).error()
}
