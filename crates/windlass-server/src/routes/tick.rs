//! Driving the engine from outside, for hosts that have no background.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, MaybePayload};
use crate::json::Json;

const RUNS: u32 = 100;

/// How far to go.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tick {
    /// How many runs get a turn: 1 to 1,000. Default 100.
    max_instances: Option<u32>,
    /// How many steps are begun in them; no bound if there is none.
    max_steps: Option<u32>,
}

impl Incoming for Tick {}

/// What was done.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ticked {
    /// How many turns and tasks were taken.
    pub processed: u32,
}

/// Takes what is ready, and answers when it has been given back.
#[utoipa::path(post, path = "/_runner/tick", tag = "server", operation_id = "tick",
    request_body = Option<Tick>,
    responses((status = 200, body = Ticked), (status = "default", body = Failure)))]
pub(crate) async fn tick(call: Call, MaybePayload(tick): MaybePayload<Tick>) -> ApiResult<Ticked> {
    let runs = tick.max_instances.unwrap_or(RUNS);
    let max = call.engine.options().claim_max;
    if runs == 0 || runs > max {
        let message = format!("maxInstances is {runs}; use 1 to {max}");
        return Err(ApiError::invalid("INVALID_SIZE", message));
    }
    let processed = call.engine.tick(runs, tick.max_steps).await?;
    Ok(Json(Ticked { processed }))
}
