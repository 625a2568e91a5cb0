//! Turns that fail: the turn is released, its run is blocked, or its run ends.

use std::sync::Arc;

use serde_json::json;
use windlass_kernel::{
    Body, ClaimedTurn, End, Error, ErrorCode, ErrorKind, LoadSteps, Loaded, LogLevel, LogLine,
    Query, RunKey, RunStatus, Wake,
};

use crate::events;
use crate::held_run::HeldRun;
use crate::model::{GivenUp, Model, TurnError};
use crate::turn::Turn;
use crate::turn_runner::{TurnRunner, held};

// Releases a turn that failed, or blocks its run.
pub(crate) async fn fail(runner: &Arc<TurnRunner>, mut turn: Turn, error: TurnError) {
    match error {
        TurnError::Lost => {
            runner.core.metrics.turns_lost.add(1);
            // If the store says that this worker still holds it, nobody else would release it. If
            // not, this has no effect, because the claim number differs.
            let item = held(turn.run.run_key, turn.hold);
            if let Err(error) = runner.core.store.release(vec![item]).await {
                tracing::warn!(%error, "failed to release a lost turn");
            }
        }
        TurnError::Store(error) => {
            tracing::debug!(
                run_key = %turn.run.run_key, %error,
                "releasing a turn because the store failed or the engine stops"
            );
            let item = held(turn.run.run_key, turn.hold);
            if let Err(error) = runner.core.store.release(vec![item]).await {
                tracing::warn!(%error, "failed to release a turn; the next scan releases it");
            }
        }
        TurnError::Blocked(error) => {
            runner.core.metrics.turns_blocked.add(1);
            tracing::error!(
                run_key = %turn.run.run_key, workflow = %turn.run.workflow, %error,
                "a run is blocked; deploy a build that can continue it, or terminate it"
            );
            if let Err(error) = block(runner, &mut turn, &error).await {
                tracing::warn!(?error, "failed to record why a run is blocked");
            }
        }
    }
}

// Blocks the run: nobody takes a turn from a worker that is alive.
pub(crate) async fn panicked(
    runner: &Arc<TurnRunner>,
    run_key: RunKey,
    held_run: &Arc<HeldRun>,
    panic: String,
) {
    let message = format!("the turn panicked: {panic}");
    let error = Error::new(ErrorKind::Invalid, ErrorCode::WorkflowPanicked, message);
    let loaded = match runner.core.store.load_with(vec![run_key], LoadSteps::Open).await {
        Ok(loaded) => loaded.into_iter().next(),
        Err(source) => {
            tracing::error!(
                %run_key, %error, %source,
                "failed to load a run whose turn panicked; the run stays held"
            );
            None
        }
    };
    let Some(Loaded { run, steps, .. }) = loaded else { return };
    let Some(hold) = run.turn.hold().filter(|hold| hold.worker == runner.core.worker) else {
        return;
    };
    let mut turn = Turn::new(Arc::clone(runner), Box::new(run), hold, Arc::clone(held_run));
    let last = steps.iter().map(|step| step.updated_at).max();
    turn.stamp_after(last.unwrap_or(turn.run.updated_at));
    fail(runner, turn, TurnError::Blocked(error)).await;
}

// Fails a run whose turn has killed several workers: it would kill the next one too.
pub(crate) async fn no_progress(
    runner: &Arc<TurnRunner>,
    loaded: Loaded,
    claimed: ClaimedTurn,
    model: Option<Arc<dyn Model>>,
) {
    let message = format!(
        "the turn was taken from {} workers that died or stalled, and none of them made \
         progress",
        claimed.reclaims
    );
    let held_run = Arc::new(HeldRun::default());
    let run = Box::new(loaded.run.clone());
    let mut turn = Turn::new(Arc::clone(runner), run, claimed.hold, held_run);
    let last = loaded.steps.iter().map(|step| step.updated_at).max();
    turn.stamp_after(last.unwrap_or(turn.run.updated_at));
    let mut draft = turn.draft();
    let (name, message) = ("NoProgress", message.as_str());
    let given_up = GivenUp { loaded: &loaded, turn: &mut turn, draft: &mut draft, name, message };
    let ended = model.map_or(Ok(false), |model| model.give_up(given_up));
    let ended = ended.unwrap_or_else(|error| {
        tracing::warn!(run_key = %turn.run.run_key, %error, "failed to write a dead letter for a failed run");
        draft = turn.draft();
        false
    });
    let ended = match ended {
        true => Ok(()),
        false => Body::of(&json!({ "name": name, "message": message })).and_then(|body| {
            let payload = json!({ "error": { "name": name } });
            turn.end(&mut draft, events::WORKFLOW_FAILED, &payload, End::Errored(body))
        }),
    };
    let ended = match ended {
        Ok(()) => turn.commit(draft).await.map(|_| ()),
        Err(error) => Err(TurnError::Blocked(error)),
    };
    if let Err(error) = ended {
        tracing::warn!(run_key = %turn.run.run_key, ?error, "failed to end a run that makes no progress");
    }
}

// Records the reason in the ledger and the log, once, and releases the turn until the next retry.
async fn block(runner: &Arc<TurnRunner>, turn: &mut Turn, error: &Error) -> Result<(), TurnError> {
    turn.refresh().await?;
    if turn.row.released {
        return Ok(());
    }
    // A program that cannot be opened reads no control requests, so they are applied here.
    if turn.has_unread() {
        turn.read_messages().await?;
    }
    let paused = turn.run.status == RunStatus::Paused;
    if paused || turn.control().is_some() {
        match turn.apply_control().await {
            Ok(false) => {}
            // A request that fails must not prevent the release of the turn.
            Err(TurnError::Blocked(_)) => turn.refresh().await?,
            applied => return applied.map(|_| ()),
        }
    }
    let reason = json!({
        "code": error.code(),
        "reason": error.to_string(),
        "build": runner.core.options.version,
    });
    let mut draft = turn.draft();
    if !blocked_before(runner, turn, &reason).await {
        let stamp = turn.stamp();
        draft.event(events::WORKFLOW_BLOCKED, &reason, stamp).map_err(TurnError::Blocked)?;
        // Messages of users may contain NUL, which PostgreSQL cannot store.
        let message = error.to_string().replace('\0', "\u{fffd}");
        draft.log(LogLine {
            log_id: turn.new_log_id(stamp.at),
            run_key: turn.run.run_key,
            step_key: None,
            attempt: None,
            level: LogLevel::Error,
            category: "system".into(),
            message: message.chars().take(2_000).collect::<String>().into(),
            data: None,
            replay: false,
            created_at: stamp.at,
        });
    }
    if turn.run.status == RunStatus::Active {
        draft.status(RunStatus::Waiting);
    }
    let retry_at = turn.now().plus(runner.core.options.blocked_retry);
    draft.release(Wake::At(retry_at), turn.inbox.read_to);
    turn.commit(draft).await.map(|_| ())
}

async fn blocked_before(runner: &Arc<TurnRunner>, turn: &Turn, reason: &serde_json::Value) -> bool {
    let query = Query::Event { event_id: turn.run.cursor };
    let rows = runner.core.store.list(query).await.and_then(|rows| rows.events());
    let last = rows.ok().and_then(|events| events.into_iter().next());
    last.is_some_and(|event| {
        event.event_type == events::WORKFLOW_BLOCKED
            && event.payload_json().is_ok_and(|payload| payload == *reason)
    })
}
