//! Control requests in the mailbox of a run: consumed and applied before anything else.

use serde_json::json;
use windlass_kernel::{Draft, End, Message, MessageKind, RunStatus, StepKey, Timestamp, Wake};

use super::Turn;
use crate::cancel::terminated_with;
use crate::control::Control;
use crate::events;
use crate::model::TurnError;

/// Consumes the control requests and applies them. Returns `true` if the turn is over.
pub(super) async fn apply(turn: &mut Turn) -> Result<bool, TurnError> {
    let mut paused = turn.run.status == RunStatus::Paused;
    let mut draft = turn.draft();
    draft.keep_unstarted();
    let mut controls: Vec<Message> = Vec::new();
    turn.mailbox.retain(|_, message| {
        let control = message.kind == MessageKind::Control;
        if control {
            controls.push(message.clone());
        }
        !control
    });
    let by = StepKey::from_stored("windlass");
    let mut cancelled = None;
    for message in &controls {
        let stamp = turn.stamp();
        let event = match Control::of(message) {
            Control::Pause => {
                paused = true;
                events::WORKFLOW_PAUSED
            }
            Control::Resume => {
                paused = false;
                events::WORKFLOW_RESUMED
            }
            Control::Cancel => {
                cancelled.get_or_insert(message);
                events::MESSAGE_RECEIVED
            }
            Control::Wake | Control::Unknown => events::MESSAGE_RECEIVED,
        };
        let payload = control_payload(message);
        draft.consume(event, &payload, message, by.clone(), stamp).map_err(TurnError::Blocked)?;
    }
    if let Some(message) = cancelled {
        end_cancelled(turn, &mut draft, message).await?;
        turn.commit(draft).await?;
        return Ok(true);
    }
    if paused {
        draft.status(RunStatus::Paused);
        let start = turn.run.delayed_until(turn.now());
        draft.release(start.map_or(Wake::OnMessage, Wake::At), turn.inbox.read_to);
    } else if turn.run.status == RunStatus::Paused {
        // In the row too: the next turn finds no request any more.
        draft.status(RunStatus::Active);
    }
    turn.commit(draft).await?;
    Ok(paused)
}

/// Releases the turn of a run that must not start before this time.
pub(super) async fn postpone(turn: &mut Turn, start: Timestamp) -> Result<(), TurnError> {
    let mut draft = turn.draft();
    draft.keep_unstarted();
    draft.release(Wake::At(start), turn.inbox.read_to);
    turn.commit(draft).await?;
    Ok(())
}

/// Drafts the end of the run for a cancel request. The caller consumes the request.
pub(super) async fn end_cancelled(
    turn: &mut Turn,
    draft: &mut Draft,
    message: &Message,
) -> Result<(), TurnError> {
    let model = turn.description();
    if model.has_reach() {
        for op in turn.cancel_descendants().await? {
            draft.op(op);
        }
    }
    turn.cancel_open_steps(draft).await?;
    let mut payload = control_payload(message);
    payload["request"] = "cancel".into();
    let reason = cancel_reason(message);
    if let Some(reason) = &reason {
        payload["reason"] = reason.as_str().into();
    }
    let error = terminated_with(reason.as_deref()).map_err(TurnError::Blocked)?;
    turn.end(draft, events::WORKFLOW_TERMINATED, &payload, End::Terminated(error))
        .map_err(TurnError::Blocked)
}

fn cancel_reason(message: &Message) -> Option<String> {
    let body: serde_json::Value = message.body.as_ref()?.read().ok()?;
    body.get("reason")?.as_str().map(str::to_owned)
}

fn control_payload(message: &Message) -> serde_json::Value {
    let body: Option<serde_json::Value> = message.body.as_ref().and_then(|body| body.read().ok());
    let actor = body.as_ref().and_then(|body| body.get("actor")).cloned();
    match actor {
        Some(actor) => json!({ "message": message.seq, "actor": actor }),
        None => json!({ "message": message.seq }),
    }
}
