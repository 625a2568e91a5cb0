//! Explains why a run makes no progress.

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
    /// A stable code, such as `sleeping` or `unserved`.
    #[schema(value_type = String)]
    pub code: Why,
    /// The reason as a sentence.
    pub text: String,
    /// The step, if the reason is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// When the reason ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The child that the run waits for. The following reasons with a higher `depth` are those of
    /// the child.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub child: Option<Child>,
    /// The number of levels between the requested run and the run of this reason.
    pub depth: usize,
}

impl From<Reason> for ReasonView {
    fn from(reason: Reason) -> Self {
        let Reason { code, text, step, until, child, depth } = reason;
        Self { code, text, step, until: until.map(Time), child, depth }
    }
}

/// Why a run makes no progress.
#[derive(Serialize, ToSchema)]
pub(crate) struct WhyView {
    /// The id of the run.
    pub id: String,
    /// The status of the run.
    pub status: &'static str,
    /// Whether the run is running, or will continue by itself.
    pub moving: bool,
    /// The reasons; those of children follow the reason that names the child.
    pub reasons: Vec<ReasonView>,
}

/// Selects the generation.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct WhyParams {
    /// The generation. Default: the newest.
    run_number: Option<u32>,
}

/// Explains why a run makes no progress: what it waits for, and what its children wait for.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/why",
    tag = "instances", operation_id = "why",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), WhyParams),
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
