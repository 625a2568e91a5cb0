//! Why a run is where it is.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass_engine::{Child, Reason, Why};

use super::history::generation;
use crate::error::{ApiResult, Failure};
use crate::extract::{AtRun, Call, Params};
use crate::json::Json;
use crate::view::Time;

/// One reason.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasonView {
    /// A stable word, such as `sleeping` or `unserved`.
    #[schema(value_type = String)]
    pub code: Why,
    /// The same in a sentence.
    pub text: String,
    /// The step that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// When it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The child that is waited for; the reasons that follow, one deeper, are the child's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub child: Option<Child>,
    /// How many runs lie between the one that was asked about and the one that this is about.
    pub depth: usize,
}

impl From<Reason> for ReasonView {
    fn from(reason: Reason) -> Self {
        let Reason { code, text, step, until, child, depth } = reason;
        Self { code, text, step, until: until.map(Time), child, depth }
    }
}

/// Why a run is where it is.
#[derive(Serialize, ToSchema)]
pub(crate) struct WhyView {
    /// The run's id.
    pub id: String,
    /// Its status.
    pub status: &'static str,
    /// Whether it moves, or will without anybody doing anything.
    pub moving: bool,
    /// The reasons, outermost first.
    pub reasons: Vec<ReasonView>,
}

/// Of which generation.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct WhyParams {
    /// Which generation; the newest if not said.
    run_number: Option<u32>,
}

/// Tells why a run does not move: what it waits for, and what that waits for.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/why",
    tag = "instances", operation_id = "why",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id"), WhyParams),
    responses((status = 200, body = WhyView), (status = "default", body = Failure)))]
pub(crate) async fn why(
    call: Call,
    at: AtRun,
    Params(params): Params<WhyParams>,
) -> ApiResult<WhyView> {
    let run = generation(&call, &at, params.run_number).await?;
    let explained = call.engine.why(run.run_key).await?;
    Ok(Json(WhyView {
        id: explained.run.id.to_string(),
        status: explained.run.status.as_str(),
        moving: explained.moving,
        reasons: explained.reasons.into_iter().map(ReasonView::from).collect(),
    }))
}
