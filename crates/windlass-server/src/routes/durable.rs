//! The admin API under `/durable`: runs of every model, tasks, dead letters, breakers and workers,
//! with the names and statuses of other durable-execution tools. Its JSON members are in
//! snake_case.

pub(crate) mod breakers;
pub(crate) mod dlq;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod stats;
pub(crate) mod tasks;
pub(crate) mod workers;
pub(crate) mod workflows;

use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::routes;
use windlass::kernel::{ErrorCode, Loaded, Run, RunKey, RunStatus, TaskId};

use crate::app::is_internal;
use crate::auth::{Scope, Target};
use crate::error::ApiError;
use crate::extract::Call;
use crate::options::Options;
use crate::paging::sized;
use crate::routes::{MANAGE, READ, SEND, scrape};
use crate::table::{Access, Routes};

pub(crate) fn routes(routes: Routes, options: &Options) -> Routes {
    routes
        .add(Access::Operator, routes!(workers::list))
        .add(Access::Operator, routes!(workers::get))
        .add(Access::Operator, routes!(workers::drain))
        .add(READ, routes!(workflows::list))
        .add(READ, routes!(workflows::get))
        .add(READ, routes!(events::events))
        .add(SEND, routes!(workflows::signal))
        .add(MANAGE, routes!(workflows::cancel))
        .add(READ, routes!(tasks::list))
        .add(READ, routes!(stats::stats))
        .add(READ, routes!(dlq::list))
        .add(MANAGE, routes!(dlq::requeue))
        .add(MANAGE, routes!(dlq::delete))
        .add(MANAGE, routes!(dlq::purge))
        .add(READ, routes!(breakers::list))
        .add(MANAGE, routes!(breakers::reset))
        .add(READ, routes!(health::health))
        .add(scrape(options), routes!(health::metrics_text))
}

/// The page of a listing.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// The number of rows: 1 to 100. Default 25.
    pub limit: Option<u32>,
    /// `cursor` of the previous page.
    pub cursor: Option<String>,
}

impl PageParams {
    pub(crate) fn size(&self) -> Result<u32, ApiError> {
        sized("limit", self.limit)
    }
}

/// The status of a run in the admin API.
pub(crate) fn status_word(run: &Run) -> &'static str {
    match run.status {
        RunStatus::Active if run.started_at.is_none() => "pending",
        RunStatus::Active | RunStatus::Waiting | RunStatus::Paused => "running",
        RunStatus::Complete => "completed",
        RunStatus::Errored => "failed",
        RunStatus::Terminated => "cancelled",
    }
}

/// The run in the path, by run key, if it is in the caller's namespace and the hook allows access.
pub(crate) async fn find(
    call: &Call,
    key: &str,
    scope: Scope,
    action: &str,
) -> Result<Loaded, ApiError> {
    let not_found = || {
        let shown: String = key.chars().take(80).collect();
        ApiError::not_found(ErrorCode::InstanceNotFound, format!("unknown run key {shown:?}"))
    };
    let run_key: RunKey = key.parse().map_err(|_| not_found())?;
    let loaded = call.engine.store().load(vec![run_key]).await?.into_iter().next();
    // Runs of other namespaces must be indistinguishable from runs that do not exist.
    let ours = |run: &Run| {
        run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str())
    };
    let loaded = loaded.filter(|loaded| ours(&loaded.run)).ok_or_else(not_found)?;
    ask(call, &loaded.run, scope, action).await?;
    Ok(loaded)
}

/// Calls the hook for a run, because the path contains only its key.
async fn ask(call: &Call, run: &Run, scope: Scope, action: &str) -> Result<(), ApiError> {
    let target = Target {
        workflow: Some(run.workflow.as_str()),
        id: Some(run.id.as_str()),
        action: Some(action),
    };
    call.app.guard.ask(&call.caller, scope, &target).await
}

fn task_id(key: &str) -> Option<TaskId> {
    key.parse().ok()
}

/// Limits a sum of capped counts to the same maximum.
fn bounded(count: u64) -> u64 {
    count.min(windlass::kernel::Capped::MAX)
}
