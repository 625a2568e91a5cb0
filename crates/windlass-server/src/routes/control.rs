//! Pause, resume, terminate, restart and retry a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::RunStatus;
use windlass::kernel::Run;

use super::instances::find;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Incoming, MaybePayload};
use crate::json::Json;
use crate::view::InstanceStatus;

/// A pause is read by whoever has the run's turn. Usually that is a moment; this is how long the
/// answer waits to be able to say `paused`.
const PAUSE_SEEN_WITHIN: Duration = Duration::from_millis(300);
const REASON_CHARS_MAX: usize = 1_000;

/// That it was done.
#[derive(Serialize, ToSchema)]
pub(crate) struct Done {
    /// Always true.
    pub ok: bool,
    /// Where the run is now; what it ended with only for those who may read.
    pub details: InstanceStatus,
}

/// What is asked of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Action {
    /// Stop before the next piece of user code.
    Pause,
    /// Let a paused run go on.
    Resume,
    /// End it.
    Terminate,
    /// Carry an errored run on at the step that failed.
    Retry,
}

impl Action {
    /// The runs that it can be asked of.
    pub(crate) fn takes(self) -> &'static [RunStatus] {
        match self {
            Self::Pause => &[RunStatus::Active, RunStatus::Waiting],
            Self::Resume => &[RunStatus::Paused],
            Self::Terminate => &[RunStatus::Active, RunStatus::Waiting, RunStatus::Paused],
            Self::Retry => &[RunStatus::Errored],
        }
    }

    /// Does it to a run.
    pub(crate) async fn act(
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
        }
        Ok(())
    }
}

async fn done(call: &Call, at: &AtRun) -> ApiResult<Done> {
    let run = find(call, at).await?;
    Ok(Json(Done { ok: true, details: call.status_of(&run).await? }))
}

/// Stops a run before its next piece of user code. Its timers go on.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/pause",
    tag = "instances", operation_id = "pauseInstance",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn pause(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    Action::Pause.act(&call, &run, None).await?;
    let mut waited = Duration::ZERO;
    let mut pause = Duration::from_millis(2);
    loop {
        let run = find(&call, &at).await?;
        if run.status == RunStatus::Paused || run.status.is_ended() || waited >= PAUSE_SEEN_WITHIN {
            return Ok(Json(Done { ok: true, details: call.status_of(&run).await? }));
        }
        tokio::time::sleep(pause).await;
        waited += pause;
        pause *= 2;
    }
}

/// Lets a paused run go on; any other is left as it is.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/resume",
    tag = "instances", operation_id = "resumeInstance",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn resume(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    Action::Resume.act(&call, &run, None).await?;
    done(&call, &at).await
}

/// Why a run is ended.
#[derive(Default, Deserialize, ToSchema)]
pub(crate) struct Terminate {
    /// For those who look at it later. At most 1,000 characters.
    reason: Option<String>,
}

impl Incoming for Terminate {}

/// Ends a run, whatever it is doing.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/terminate",
    tag = "instances", operation_id = "terminateInstance",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id")),
    request_body = Option<Terminate>,
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn terminate(
    call: Call,
    at: AtRun,
    MaybePayload(body): MaybePayload<Terminate>,
) -> ApiResult<Done> {
    let reason = body.reason.as_deref().map(check_reason).transpose()?;
    let run = find(&call, &at).await?;
    Action::Terminate.act(&call, &run, reason).await?;
    done(&call, &at).await
}

pub(crate) fn check_reason(reason: &str) -> Result<&str, ApiError> {
    let chars = reason.chars().count();
    if chars > REASON_CHARS_MAX || reason.contains('\0') {
        let message = format!(
            "the reason has {chars} characters; at most {REASON_CHARS_MAX} are allowed, without NUL"
        );
        return Err(ApiError::invalid("INVALID_TEXT", message));
    }
    Ok(reason)
}

/// Begins a run anew with the same input. Earlier generations stay readable.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/restart",
    tag = "instances", operation_id = "restartInstance",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn restart(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    call.engine.restart(run.run_key, call.caller.actor.clone()).await?;
    done(&call, &at).await
}

/// Carries an errored run on at the step that failed.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/retry",
    tag = "instances", operation_id = "retryInstance",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id")),
    responses((status = 200, body = Done), (status = "default", body = Failure)))]
pub(crate) async fn retry(call: Call, at: AtRun) -> ApiResult<Done> {
    let run = find(&call, &at).await?;
    Action::Retry.act(&call, &run, None).await?;
    done(&call, &at).await
}
