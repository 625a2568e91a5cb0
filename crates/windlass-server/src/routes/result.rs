//! Waits for the result of a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{ErrorCode, Run, RunId, WorkflowName};

use crate::app::App;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Params, run_not_found};
use crate::json::Json;
use crate::view::InstanceStatus;

/// The maximum time to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait(Duration);

impl Wait {
    pub(crate) fn new(app: &App, wait_ms: Option<u64>) -> Result<Option<Self>, ApiError> {
        let Some(wait_ms) = wait_ms else { return Ok(None) };
        let max = app.options.wait_max;
        let wait = Duration::from_millis(wait_ms);
        if wait > max {
            let message = format!("waitMs is {wait_ms}; the maximum is {}", max.as_millis());
            return Err(ApiError::invalid(ErrorCode::InvalidWait, message));
        }
        Ok(Some(Self(wait)))
    }
}

/// Waits until the run ends, or until the time limit. Follows restarts and retries into new
/// generations.
pub(crate) async fn wait_for_end(
    call: &Call,
    workflow: &WorkflowName,
    id: &RunId,
    wait: Wait,
) -> Result<Run, ApiError> {
    call.begin_waiting();
    let until = Instant::now() + wait.0;
    loop {
        let run = call.engine.find_run(workflow, id).await?;
        let run = run.ok_or_else(|| run_not_found(workflow.as_str(), id.as_str()))?;
        if run.status.is_ended() {
            return Ok(run);
        }
        let ended = tokio::select! {
            biased;
            ended = call.engine.wait(run.run_key) => Some(ended),
            () = tokio::time::sleep_until(until) => None,
            // The server is stopping: respond with the current status.
            () = call.stopped() => None,
        };
        match ended {
            Some(Ok(_)) => {}
            Some(Err(error)) if error.is_retryable() => return Ok(run),
            Some(Err(error)) => return Err(error.into()),
            None => {
                let now = call.engine.find_run(workflow, id).await?;
                return Ok(now.unwrap_or(run));
            }
        }
    }
}

/// Options of the wait.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct ResultParams {
    /// Respond when the run has ended, or after this time in milliseconds. At most 60,000. Default
    /// 0.
    wait_ms: Option<u64>,
}

/// The result of a run, if it has ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct Outcome {
    /// The id of the run.
    pub id: String,
    /// Whether it has ended.
    pub done: bool,
    /// The status.
    pub details: InstanceStatus,
}

/// Waits for a run to end, and returns its result.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/result",
    tag = "instances", operation_id = "getResult",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), ResultParams),
    responses((status = 200, body = Outcome), (status = "default", body = Failure)))]
pub(crate) async fn result(
    call: Call,
    at: AtRun,
    Params(params): Params<ResultParams>,
) -> ApiResult<Outcome> {
    let wait = Wait::new(&call.app, params.wait_ms)?.unwrap_or(Wait(Duration::ZERO));
    let run = wait_for_end(&call, &at.workflow, &at.id, wait).await?;
    Ok(Json(Outcome {
        id: run.id.to_string(),
        done: run.status.is_ended(),
        details: InstanceStatus::of(&run),
    }))
}
