//! The admin API under `/durable`: runs of every model, tasks, dead letters, breakers and workers, with the
//! names and status words of durable-execution tools. Members are in snake_case here.

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
use windlass::kernel::{Loaded, Run, RunKey, RunStatus, TaskId};

use crate::app::is_internal;
use crate::auth::{Scope, Target};
use crate::error::ApiError;
use crate::extract::Call;
use crate::paging::sized;

/// Which page.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// Rows of the page: 1 to 100. Default 25.
    pub limit: Option<u32>,
    /// `cursor` of the page before.
    pub cursor: Option<String>,
}

impl PageParams {
    pub(crate) fn size(&self) -> Result<u32, ApiError> {
        sized("limit", self.limit)
    }
}

/// The word for where a run is.
pub(crate) fn status_word(run: &Run) -> &'static str {
    match run.status {
        RunStatus::Active if run.started_at.is_none() => "pending",
        RunStatus::Active | RunStatus::Waiting | RunStatus::Paused => "running",
        RunStatus::Complete => "completed",
        RunStatus::Errored => "failed",
        RunStatus::Terminated => "cancelled",
    }
}

/// The run that a path names by its key, if it is the caller's and the embedding program does not mind.
pub(crate) async fn find(
    call: &Call,
    key: &str,
    scope: Scope,
    action: &str,
) -> Result<Loaded, ApiError> {
    let not_found = || {
        let shown: String = key.chars().take(80).collect();
        ApiError::not_found("INSTANCE_NOT_FOUND", format!("there is no run with the key {shown:?}"))
    };
    let run_key: RunKey = key.parse().map_err(|_| not_found())?;
    let loaded = call.engine.store().load(vec![run_key]).await?.into_iter().next();
    // A key of another tenant is as unknown as one that was never made.
    let ours = |run: &Run| {
        run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str())
    };
    let loaded = loaded.filter(|loaded| ours(&loaded.run)).ok_or_else(not_found)?;
    ask(call, &loaded.run, scope, action).await?;
    Ok(loaded)
}

/// Asks the embedding program about a run: the path has only its key.
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

/// A sum of counts of which each stops at a bound, as the number that people read.
fn bounded(count: u64) -> u64 {
    count.min(windlass::kernel::Capped::MAX)
}
