//! The list of workflows.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use utoipa::ToSchema;
use windlass::kernel::WorkflowName;

use crate::app::is_internal;
use crate::error::{ApiResult, Failure};
use crate::extract::Call;
use crate::json::Json;

/// A workflow.
#[derive(Serialize, ToSchema)]
pub(crate) struct Workflow {
    /// The name.
    pub name: String,
    /// The model, if this process serves the workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether a live worker serves it.
    pub served: bool,
    /// The number of runs in each status.
    pub counts: BTreeMap<&'static str, u64>,
}

/// All workflows.
#[derive(Serialize, ToSchema)]
pub(crate) struct Workflows {
    /// The workflows, by name.
    pub workflows: Vec<Workflow>,
}

/// Lists the workflows that have runs or that a live worker serves.
#[utoipa::path(get, path = "/workflows", tag = "workflows", operation_id = "listWorkflows",
    responses((status = 200, body = Workflows), (status = "default", body = Failure)))]
pub(crate) async fn list(call: Call) -> ApiResult<Workflows> {
    let now = call.engine.clock().now();
    let workers = call.app.workers().await?;
    let live = workers.iter().filter(|worker| worker.is_live(now));
    let mut served: BTreeSet<String> =
        live.flat_map(|worker| &worker.info.turns).map(|route| route.name.to_string()).collect();
    served.extend(call.engine.workflows().iter().map(ToString::to_string));
    served.retain(|name| !is_internal(name));
    let mut counts: BTreeMap<String, BTreeMap<&'static str, u64>> =
        served.iter().map(|name| (name.clone(), BTreeMap::new())).collect();
    for row in call.engine.store().health().await?.runs {
        if row.namespace == *call.engine.namespace() && !is_internal(row.workflow.as_str()) {
            let counts = counts.entry(row.workflow.to_string()).or_default();
            counts.insert(row.status.as_str(), row.count);
        }
    }
    let workflows = counts.into_iter().map(|(name, counts)| {
        let model = call.engine.model_of(&WorkflowName::from_stored(name.as_str()));
        let served = served.contains(&name);
        Workflow { name, model: model.map(|model| model.to_string()), served, counts }
    });
    Ok(Json(Workflows { workflows: workflows.collect() }))
}
