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

use std::collections::HashMap;

use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::routes;
use windlass::kernel::{ErrorCode, Run, RunKey, RunStatus, TaskId, bodies};

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
        .add(MANAGE, routes!(dlq::requeue_many))
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
) -> Result<Run, ApiError> {
    let not_found = || {
        let shown: String = key.chars().take(80).collect();
        ApiError::not_found(ErrorCode::InstanceNotFound, format!("unknown run key {shown:?}"))
    };
    let run_key: RunKey = key.parse().map_err(|_| not_found())?;
    // Not `load`: a run may have many megabytes of steps and unread messages.
    let overview = call.engine.store().run_overview_by_key(run_key).await?;
    // Runs of other namespaces must be indistinguishable from runs that do not exist.
    let ours = |run: &Run| {
        run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str())
    };
    let mut run = overview.map(|overview| overview.run).filter(ours).ok_or_else(not_found)?;
    ask(call, &run, scope, action).await?;
    bodies::fill(&**call.engine.store(), bodies::of_run(&mut run)).await?;
    Ok(run)
}

/// Asks the hook about the runs of tasks and dead letters, once for each run.
pub(crate) struct RunsAllowed<'a> {
    call: &'a Call,
    scope: Scope,
    action: &'static str,
    known: HashMap<RunKey, bool>,
}

impl<'a> RunsAllowed<'a> {
    pub(crate) fn new(call: &'a Call, scope: Scope, action: &'static str) -> Self {
        Self { call, scope, action, known: HashMap::new() }
    }

    /// Whether the hook allows access to a run. A run that no longer exists has no hook to ask.
    pub(crate) async fn allows(&mut self, run_key: Option<RunKey>) -> Result<bool, ApiError> {
        let Some(run_key) = run_key.filter(|_| self.call.app.guard.hooks.is_some()) else {
            return Ok(true);
        };
        if let Some(known) = self.known.get(&run_key) {
            return Ok(*known);
        }
        let allowed = match self.call.engine.store().run_overview_by_key(run_key).await? {
            None => true,
            Some(overview) => match ask(self.call, &overview.run, self.scope, self.action).await {
                Ok(()) => true,
                Err(error) if error.status().is_client_error() => false,
                Err(error) => return Err(error),
            },
        };
        self.known.insert(run_key, allowed);
        Ok(allowed)
    }
}

/// Calls the hook for a run, because the path contains only its key.
async fn ask(call: &Call, run: &Run, scope: Scope, action: &str) -> Result<(), ApiError> {
    let target = Target {
        workflow: Some(run.workflow.as_str()),
        id: Some(run.id.as_str()),
        action: Some(action),
        ..Target::default()
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
