//! How the system is, in one answer.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use windlass::kernel::{Census, RunStatus};

use super::bounded;
use super::tasks::is_users;
use super::workers::{self, DurableWorker, WorkersSummary};
use super::workflows::{counted, counted_new};
use crate::app::App;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::Call;
use crate::json::Json;
use crate::routes::metrics;

/// Load from which on a system is degraded.
const LOAD_HIGH: f64 = 90.0;
/// How long a task may wait, once it is due, before a system is degraded.
const WAIT_LONG: Duration = Duration::from_secs(60);

/// How the system is: the workers of all, everything else of the caller's namespace.
#[derive(Serialize, ToSchema)]
pub(crate) struct SystemHealth {
    /// `healthy`, `degraded` or `unhealthy`.
    pub status: &'static str,
    /// Workers that the store knows and that have not stopped.
    pub total_workers: usize,
    /// Those that are live and do not drain.
    pub active_workers: usize,
    /// Those of them that take something new.
    pub workers_accepting: usize,
    /// How many tasks live workers hold at most.
    pub total_capacity: u64,
    /// How many they hold.
    pub current_load: u64,
    /// The one in percent of the other, or the same of turns if those are closer to their limit.
    pub load_percentage: f64,
    /// Tasks that wait; at most 10,000 are counted, here and below.
    pub pending_tasks: u64,
    /// Tasks that a worker has.
    pub claimed_tasks: u64,
    /// Tasks that wait, by activity type.
    pub queue_depth_by_type: BTreeMap<String, u64>,
    /// Runs that have begun and not ended.
    pub running_workflows: u64,
    /// Runs that nobody has begun.
    pub pending_workflows: u64,
    /// Dead letters that were not requeued.
    pub dlq_size: u64,
    /// Circuit breakers that are not closed.
    pub open_circuit_breakers: Vec<String>,
}

/// Tells how the system is. The answer costs the same whatever has ended or sleeps.
#[utoipa::path(get, path = "/durable/health", tag = "durable", operation_id = "durableHealth",
    responses((status = 200, body = SystemHealth), (status = "default", body = Failure)))]
pub(crate) async fn health(call: Call) -> ApiResult<SystemHealth> {
    let census = call.engine.store().census(call.engine.namespace().clone()).await?;
    let workers = workers::all(&call).await?;
    Ok(Json(summed(&census, &workers)))
}

fn summed(census: &Census, workers: &[DurableWorker]) -> SystemHealth {
    let summary = WorkersSummary::of(workers);
    let accepting = workers.iter().filter(|worker| worker.accepting_tasks).count();
    let load = summary.load_percentage();
    let mut depth: BTreeMap<String, u64> = BTreeMap::new();
    let (mut pending, mut claimed, mut oldest) = (0, 0, census.now);
    for kind in census.tasks.iter().filter(|kind| is_users(kind)) {
        let waiting = kind.ready + kind.scheduled;
        if waiting > 0 {
            *depth.entry(kind.name.to_string()).or_default() += waiting;
        }
        pending += waiting;
        claimed += kind.held;
        oldest = oldest.min(kind.ready_oldest.unwrap_or(oldest));
    }
    let new = counted_new(census, None);
    let open = [RunStatus::Active, RunStatus::Waiting, RunStatus::Paused];
    let worrying = accepting == 0
        || load >= LOAD_HIGH
        || !census.breakers_open.is_empty()
        || census.now.since(oldest) > WAIT_LONG;
    let status = match (summary.active, worrying) {
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
        running_workflows: counted(census, &open, None).saturating_sub(new),
        pending_workflows: new,
        dlq_size: census.letters_open.count,
        open_circuit_breakers: census.breakers_open.iter().map(ToString::to_string).collect(),
    }
}

/// Counters of this process, and how the store is, as Prometheus reads them.
#[utoipa::path(get, path = "/durable/metrics", tag = "durable", operation_id = "durableMetrics",
    responses((status = 200, content_type = "text/plain", body = String),
        (status = "default", body = Failure)))]
pub(crate) async fn metrics_text(state: State<App>) -> Result<Response, ApiError> {
    metrics::metrics(state).await
}
