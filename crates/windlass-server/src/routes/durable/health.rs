//! The health of the system.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use windlass::kernel::{NamespaceStats, RunStatus};

use super::bounded;
use super::tasks::is_user_task;
use super::workers::{self, DurableWorker, WorkersSummary};
use super::workflows::{counted, counted_new};
use crate::app::App;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::Call;
use crate::json::Json;
use crate::routes::metrics;

/// The load in percent from which a system is degraded.
const LOAD_HIGH: f64 = 90.0;
/// The wait of a due task from which a system is degraded.
const WAIT_LONG: Duration = Duration::from_secs(60);

/// The health of the system: workers of all namespaces, everything else of the caller's namespace.
#[derive(Serialize, ToSchema)]
pub(crate) struct SystemHealth {
    /// `healthy`, `degraded` or `unhealthy`; `unhealthy` also if the store refuses writes.
    pub status: &'static str,
    /// Registered workers that have not stopped.
    pub total_workers: usize,
    /// Live workers that are not draining.
    pub active_workers: usize,
    /// Active workers that accept new tasks.
    pub workers_accepting: usize,
    /// The maximum number of concurrent tasks of all live workers.
    pub total_capacity: u64,
    /// The number of tasks that live workers hold.
    pub current_load: u64,
    /// The load in percent of the capacity, for tasks or for turns, whichever is higher.
    pub load_percentage: f64,
    /// Pending tasks, at most 10,000, like all counts below.
    pub pending_tasks: u64,
    /// Tasks that a worker holds.
    pub claimed_tasks: u64,
    /// Pending tasks by activity type.
    pub queue_depth_by_type: BTreeMap<String, u64>,
    /// Runs that have started and not ended.
    pub running_workflows: u64,
    /// Runs that have not started.
    pub pending_workflows: u64,
    /// Dead letters that were not requeued.
    pub dlq_size: u64,
    /// Keys of circuit breakers that are not closed.
    pub open_circuit_breakers: Vec<String>,
}

/// Returns the health of the system. The cost does not depend on the number of ended or sleeping
/// runs.
#[utoipa::path(get, path = "/durable/health", tag = "durable", operation_id = "durableHealth",
    responses((status = 200, body = SystemHealth), (status = "default", body = Failure)))]
pub(crate) async fn health(call: Call) -> ApiResult<SystemHealth> {
    let namespace_stats =
        call.engine.store().namespace_stats(call.engine.namespace().clone()).await?;
    let workers = workers::all(&call).await?;
    let writable = call.app.store_status.is_writable();
    Ok(Json(summed(&namespace_stats, &workers, writable)))
}

fn summed(
    namespace_stats: &NamespaceStats,
    workers: &[DurableWorker],
    store_writable: bool,
) -> SystemHealth {
    let summary = WorkersSummary::of(workers);
    let accepting = workers.iter().filter(|worker| worker.accepting_tasks).count();
    let load = summary.load_percentage();
    let mut depth: BTreeMap<String, u64> = BTreeMap::new();
    let (mut pending, mut claimed, mut oldest) = (0, 0, namespace_stats.now);
    for kind in namespace_stats.tasks.iter().filter(|kind| is_user_task(kind)) {
        let waiting = kind.ready + kind.scheduled;
        if waiting > 0 {
            *depth.entry(kind.name.to_string()).or_default() += waiting;
        }
        pending += waiting;
        claimed += kind.held;
        oldest = oldest.min(kind.ready_oldest.unwrap_or(oldest));
    }
    let new = counted_new(namespace_stats, None);
    let open = [RunStatus::Active, RunStatus::Waiting, RunStatus::Paused];
    let degraded = accepting == 0
        || load >= LOAD_HIGH
        || !namespace_stats.breakers_open.is_empty()
        || namespace_stats.now.since(oldest) > WAIT_LONG;
    let status = match (summary.active, degraded) {
        _ if !store_writable => "unhealthy",
        (0, _) => "unhealthy",
        (_, true) => "degraded",
        (_, false) => "healthy",
    };
    SystemHealth {
        status,
        total_workers: workers.len() - summary.stopped,
        active_workers: summary.active,
        workers_accepting: accepting,
        total_capacity: summary.total_capacity,
        current_load: summary.total_load,
        load_percentage: load,
        pending_tasks: bounded(pending),
        claimed_tasks: bounded(claimed),
        queue_depth_by_type: depth.into_iter().map(|(name, n)| (name, bounded(n))).collect(),
        running_workflows: counted(namespace_stats, &open, None).saturating_sub(new),
        pending_workflows: new,
        dlq_size: namespace_stats.letters_open.count,
        open_circuit_breakers: namespace_stats
            .breakers_open
            .iter()
            .map(ToString::to_string)
            .collect(),
    }
}

/// Returns the metrics of this process and of the store in the Prometheus format.
#[utoipa::path(get, path = "/durable/metrics", tag = "durable", operation_id = "durableMetrics",
    responses((status = 200, content_type = "text/plain", body = String),
        (status = "default", body = Failure)))]
pub(crate) async fn metrics_text(state: State<App>) -> Result<Response, ApiError> {
    metrics::metrics(state).await
}
