//! Drives the engine by request, for hosts without background processes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::routes;
use windlass::ErrorCode;

use crate::auth::Scope;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, MaybePayload};
use crate::json::Json;
use crate::options::Options;
use crate::table::{Access, Routes};

pub(crate) fn routes(routes: Routes, options: &Options) -> Routes {
    match options.tick {
        true => routes.add(Access::Scope(Scope::Tick), routes!(tick)),
        false => routes,
    }
}

const RUNS: u32 = 100;

/// The limits of a tick.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tick {
    /// The maximum number of runs that get a turn: 1 to 1,000. Default 100.
    max_instances: Option<u32>,
    /// The maximum number of steps that are started. Default: unlimited.
    max_steps: Option<u32>,
}

impl Incoming for Tick {}

/// The result of a tick.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ticked {
    /// The number of processed turns and tasks.
    pub processed: u32,
    /// How many of them the server still works on: they take longer than half the request timeout.
    pub in_progress: u32,
}

/// Processes ready turns and tasks, and responds when they are done, or after half the request timeout
/// with the number of those that go on.
#[utoipa::path(post, path = "/_runner/tick", tag = "server", operation_id = "tick",
    request_body = Option<Tick>,
    responses((status = 200, body = Ticked), (status = "default", body = Failure)))]
pub(crate) async fn tick(call: Call, MaybePayload(tick): MaybePayload<Tick>) -> ApiResult<Ticked> {
    let runs = tick.max_instances.unwrap_or(RUNS);
    let max = call.engine.options().claim_max;
    if runs == 0 || runs > max {
        let message = format!("maxInstances is {runs}; it must be between 1 and {max}");
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    // The response must come before the request times out; work that takes longer goes on.
    let wait_max = Some(call.app.options.request_timeout / 2);
    let tick = windlass::admin::Tick { runs_max: runs, steps_max: tick.max_steps, wait_max };
    let windlass::admin::Ticked { processed, in_progress, .. } = call.engine.tick(tick).await?;
    Ok(Json(Ticked { processed, in_progress }))
}
