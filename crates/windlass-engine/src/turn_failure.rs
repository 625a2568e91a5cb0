//! Turns that fail: the turn is released, its run is blocked, or its run ends.

use std::sync::Arc;

use serde_json::json;
use windlass_kernel::{
    Body, ClaimedTurn, End, Error, ErrorCode, ErrorKind, Hold, Loaded, LogLevel, LogLine, Query,
    RunKey, RunOverview, RunStatus, Sha256Digest, Wake,
};

use crate::env::ThreadPool;
use crate::events;
use crate::held_run::HeldRun;
use crate::model::{GivenUp, Model, TurnError};
use crate::turn::Turn;
use crate::turn_runner::{TurnRunner, held};

/// The category of the log line that says why a run is blocked.
pub(crate) const BLOCKED_CATEGORY: &str = "system";
/// How many characters of a reason are in the ledger.
const REASON_CHARS_MAX: usize = 1_000;
/// How many characters of an error are in the log of the run.
const LOG_CHARS_MAX: usize = 2_000;

// Releases a turn that failed, or blocks its run. In every case the turn is released in the end.
pub(crate) async fn fail(runner: &Arc<TurnRunner>, mut turn: Turn, error: TurnError) {
    let run_key = turn.run.run_key;
    let error = match error {
        TurnError::Lost => {
            runner.core.metrics.turns_lost.add(1);
            // If the store says that this worker still holds it, nobody else would release it. If
            // not, this has no effect, because the claim number differs.
            return release(runner, run_key, turn.hold).await;
        }
        TurnError::Store(error) if is_temporary(&error) => {
            tracing::debug!(
                %run_key, %error,
                "releasing a turn because the store failed or the engine stops"
            );
            return release(runner, run_key, turn.hold).await;
        }
        TurnError::Store(error) | TurnError::Blocked(error) => error,
    };
    // Another worker may have taken the turn and created the run that exists.
    if error.code() == ErrorCode::RunExists && matches!(turn.refresh().await, Err(TurnError::Lost))
    {
        return release(runner, run_key, turn.hold).await;
    }
    log_blocked(runner, run_key, turn.run.workflow.as_str(), &error);
    match block(runner, &mut turn, &error).await {
        Ok(()) => {}
        Err(TurnError::Lost) => release(runner, run_key, turn.hold).await,
        Err(TurnError::Store(source)) if is_temporary(&source) => {
            tracing::warn!(%run_key, %source, "failed to record why a run is blocked; retrying");
            release(runner, run_key, turn.hold).await;
        }
        Err(TurnError::Store(source) | TurnError::Blocked(source)) => {
            tracing::error!(
                %run_key, %source,
                "failed to record why a run is blocked; trying the run again later"
            );
            release_later(runner, run_key, turn.hold);
        }
    }
}

/// Whether the same call may succeed at once, or nobody can call the store any more.
pub(crate) fn is_temporary(error: &Error) -> bool {
    error.is_retryable() || error.kind() == ErrorKind::Closed
}

fn log_blocked(runner: &TurnRunner, run_key: RunKey, workflow: &str, error: &Error) {
    runner.core.metrics.turns_blocked.add(1);
    tracing::error!(
        %run_key, workflow, %error,
        "a run is blocked; deploy a build that can continue it, or terminate it"
    );
}

async fn release(runner: &TurnRunner, run_key: RunKey, hold: Hold) {
    if let Err(error) = runner.core.store.release(vec![held(run_key, hold)]).await {
        tracing::warn!(%run_key, %error, "failed to release a turn; the next scan releases it");
        runner.scan_later();
    }
}

// Keeps the hold for the time after which a blocked run is retried, then releases it. The run is
// marked as held here meanwhile, so that the scan does not release it.
fn release_later(runner: &Arc<TurnRunner>, run_key: RunKey, hold: Hold) {
    let held_run = runner.runs.hold(run_key);
    let (env, runner) = (Arc::clone(&runner.core.env), Arc::clone(runner));
    let later = async move {
        let core = &runner.core;
        core.lifecycle.until_stopped(core.env.sleep(core.options.blocked_retry)).await;
        release(&runner, run_key, hold).await;
        runner.runs.unhold(run_key, &held_run);
    };
    env.spawn(ThreadPool::Service, Box::pin(later));
}

/// Blocks a run that was claimed and cannot be loaded. If not even its row can be read, its turn is
/// held back, because nothing can be written to the run.
pub(crate) async fn unreadable(
    runner: &Arc<TurnRunner>,
    claimed: &ClaimedTurn,
    held_run: &Arc<HeldRun>,
    error: Error,
) {
    let run_key = claimed.run_key;
    match runner.core.store.run_overview_by_key(run_key).await {
        Ok(Some(RunOverview { run, open_steps })) => {
            let (run, held_run) = (Box::new(run), Arc::clone(held_run));
            let mut turn = Turn::new(Arc::clone(runner), run, claimed.hold, held_run);
            let last = open_steps.iter().map(|step| step.updated_at).max();
            turn.stamp_after(last.unwrap_or(turn.run.updated_at));
            fail(runner, turn, TurnError::Store(error)).await;
        }
        Ok(None) => {}
        Err(source) if is_temporary(&source) => release(runner, run_key, claimed.hold).await,
        Err(_) => {
            log_blocked(runner, run_key, claimed.workflow.as_str(), &error);
            release_later(runner, run_key, claimed.hold);
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
    let error = Error::new(ErrorKind::Invalid, ErrorCode::WorkflowPanicked, "the turn panicked");
    let error = error.with_source(panic);
    let overview = match runner.core.store.run_overview_by_key(run_key).await {
        Ok(overview) => overview,
        Err(source) => {
            tracing::error!(
                %run_key, %error, %source,
                "failed to read a run whose turn panicked; the next scan releases its turn"
            );
            runner.scan_later();
            None
        }
    };
    let Some(RunOverview { run, open_steps }) = overview else { return };
    let Some(hold) = run.turn.hold().filter(|hold| hold.worker == runner.core.worker) else {
        return;
    };
    let mut turn = Turn::new(Arc::clone(runner), Box::new(run), hold, Arc::clone(held_run));
    let last = open_steps.iter().map(|step| step.updated_at).max();
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
        release_later(runner, turn.run.run_key, turn.hold);
    }
}

// Ends a run whose code asked for something that no later attempt can do. A blocked run would do its
// last step again and again.
async fn fail_run(turn: &mut Turn, name: &str, message: &str) -> Result<(), TurnError> {
    let mut draft = turn.draft();
    for op in turn.cancel_descendants().await? {
        draft.op(op);
    }
    turn.cancel_open_steps(&mut draft).await?;
    let message = trimmed(message, REASON_CHARS_MAX);
    let body = Body::of(&json!({ "name": name, "message": message }));
    let payload = json!({ "error": { "name": name } });
    body.and_then(|body| {
        turn.end(&mut draft, events::WORKFLOW_FAILED, &payload, End::Errored(body))
    })
    .map_err(TurnError::Blocked)?;
    turn.commit(draft).await.map(|_| ())
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
    match error.code() {
        ErrorCode::CauseNotFound => {
            return fail_run(turn, "CauseNotFound", error.message()).await;
        }
        // The name of a child is taken, and stays taken.
        ErrorCode::RunExists => return fail_run(turn, "RunExists", error.message()).await,
        _ => {}
    }
    // Without the source: it can quote bodies, and the ledger keeps none. The log has all of it.
    let text = error.to_string();
    let reason = json!({
        "code": error.code(),
        "text": { "bytes": text.len(), "digest": Sha256Digest::of(text.as_bytes()) },
        "reason": format!("{} [{}]", trimmed(error.message(), REASON_CHARS_MAX), error.code()),
        "build": runner.core.options.version,
    });
    let mut draft = turn.draft();
    if !blocked_before(runner, turn, &reason).await {
        let stamp = turn.stamp();
        draft.event(events::WORKFLOW_BLOCKED, &reason, stamp).map_err(TurnError::Blocked)?;
        draft.log(LogLine {
            log_id: turn.new_log_id(stamp.at),
            run_key: turn.run.run_key,
            step_key: None,
            attempt: None,
            level: LogLevel::Error,
            category: BLOCKED_CATEGORY.into(),
            message: trimmed(&text, LOG_CHARS_MAX).into(),
            data: None,
            replay: false,
            created_at: stamp.at,
        });
    }
    let now = turn.now();
    let retry_at = match turn.run.delayed_until(now) {
        // It must not start earlier because it was blocked: it may not have all its steps yet.
        Some(start) => {
            draft.keep_unstarted();
            start
        }
        None => {
            if turn.run.status == RunStatus::Active {
                draft.status(RunStatus::Waiting);
            }
            now.plus(runner.core.options.blocked_retry)
        }
    };
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

// At most `chars_max` characters, without NUL, which PostgreSQL cannot store.
fn trimmed(text: &str, chars_max: usize) -> String {
    let clean = |c: char| if c == '\0' { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(chars_max).map(clean).collect();
    if text.chars().nth(chars_max).is_some() {
        short.push('…');
    }
    short
}
