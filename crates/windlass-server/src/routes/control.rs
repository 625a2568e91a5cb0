//! Pause, resume, terminate, restart and retry a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::kernel::Run;
use windlass::{ErrorCode, RunStatus};

use super::durable::workflows::request_cancel;
use super::instances::find;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Incoming, MaybePayload};
use crate::json::Json;
use crate::view::InstanceStatus;

/// How long the response of `pause` waits for the status `paused`. The worker that holds the run's
/// turn applies the pause, usually within a moment.
const PAUSE_WAIT_MAX: Duration = Duration::from_millis(300);
const REASON_CHARS_MAX: usize = 1_000;

/// The result of an action on a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Done {
    /// Always true.
    pub ok: bool,
    /// The status of the run; output and error only if the caller may read them.
    pub details: InstanceStatus,
}

/// An action on runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Stop before the next turn.
    Pause,
    /// Continue a paused run.
    Resume,
    /// Terminate the run.
    Terminate,
    /// Retry an errored run from the failed step.
    Retry,
    /// Ask the run to end, so that its code can clean up.
    Cancel,
    /// Start an ended run again with the same input.
    Restart,
}

impl Action {
    /// The statuses in which a run accepts the action.
    pub(crate) fn accepted_statuses(self) -> &'static [RunStatus] {
        match self {
            Self::Pause => &[RunStatus::Active, RunStatus::Waiting],
            Self::Resume => &[RunStatus::Paused],
            Self::Terminate => &[RunStatus::Active, RunStatus::Waiting, RunStatus::Paused],
            Self::Retry => &[RunStatus::Errored],
            Self::Cancel => &[RunStatus::Active, RunStatus::Waiting, RunStatus::Paused],
            Self::Restart => &[RunStatus::Complete, RunStatus::Errored, RunStatus::Terminated],
        }
    }

    /// Applies the action to a run.
    pub(crate) async fn apply(
        self,
        call: &Call,
        run: &Run,
        reason: Option<&str>,
    ) -> Result<(), ApiError> {
        let actor = call.caller.actor.clone();
        match self {
            Self::Pause => call.engine.pause(run, actor).await?,
            Self::Resume => call.engine.resume(run, actor).await?,
            Self::Terminate => call.engine.terminate(run.run_key, reason, actor).await?,
            Self::Retry => drop(call.engine.retry(run.run_key, actor).await?),
            Self::Cancel => request_cancel(call, run, reason, Duration::ZERO).await?,
            Self::Restart => drop(call.engine.restart(run.run_key, actor).await?),
        }
        Ok(())
    }
}

// The response after the commit. If the run cannot be read, it has the status that the action gives
// to the run: the request has succeeded.
async fn done(call: &Call, at: &AtRun, status: RunStatus) -> ApiResult<Done> {
    let details = match find(call, at).await {
        Ok(run) => call.status_after_write(&run).await,
        Err(_) => InstanceStatus::new(status, None, None),
    };
    Ok(Json(Done { ok: true, details }))
}

/// Pauses a run before its next turn. Its timers continue.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/pause",
    tag = "instances", operation_id = "pauseInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn pause(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    Action::Pause.apply(&call, &run, None).await?;
    let mut waited = Duration::ZERO;
    let mut pause = Duration::from_millis(2);
    loop {
        let Ok(now) = find(&call, &at).await else { return done(&call, &at, run.status).await };
        if now.status == RunStatus::Paused || now.status.is_ended() || waited >= PAUSE_WAIT_MAX {
            return Ok(Json(Done { ok: true, details: call.status_after_write(&now).await }));
        }
        tokio::time::sleep(pause).await;
        waited += pause;
        pause *= 2;
    }
}

/// Resumes a paused run. Has no effect on a run that is not paused.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/resume",
    tag = "instances", operation_id = "resumeInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn resume(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    Action::Resume.apply(&call, &run, None).await?;
    let status = if run.status == RunStatus::Paused { RunStatus::Active } else { run.status };
    done(&call, &at, status).await
}

/// The reason for a termination.
#[derive(Default, Deserialize, ToSchema)]
pub(crate) struct Terminate {
    /// The reason, which the ledger records. At most 1,000 characters.
    reason: Option<String>,
}

impl Incoming for Terminate {}

/// Terminates a run immediately.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/terminate",
    tag = "instances", operation_id = "terminateInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run")),
    request_body = Option<Terminate>,
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn terminate(
    call: Call,
    at: AtRun,
    MaybePayload(body): MaybePayload<Terminate>,
) -> ApiResult<Done> {
    let reason = body.reason.as_deref().map(check_reason).transpose()?;
    let run = find(&call, &at).await?;
    Action::Terminate.apply(&call, &run, reason).await?;
    done(&call, &at, RunStatus::Terminated).await
}

pub(crate) fn check_reason(reason: &str) -> Result<&str, ApiError> {
    let chars = reason.chars().count();
    if chars > REASON_CHARS_MAX || reason.contains('\0') {
        let message = format!(
            "the reason has {chars} characters; at most {REASON_CHARS_MAX} are allowed, without NUL"
        );
        return Err(ApiError::invalid(ErrorCode::InvalidText, message));
    }
    Ok(reason)
}

/// Restarts a run with the same input, as a new generation. Earlier generations remain readable.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/restart",
    tag = "instances", operation_id = "restartInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn restart(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    call.engine.restart(run.run_key, call.caller.actor.clone()).await?;
    done(&call, &at, RunStatus::Active).await
}

/// Retries an errored run from the failed step, as a new generation.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/retry",
    tag = "instances", operation_id = "retryInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn retry(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    Action::Retry.apply(&call, &run, None).await?;
    done(&call, &at, RunStatus::Active).await
}
