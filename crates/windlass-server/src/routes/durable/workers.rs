//! The workers of all namespaces. Each start of a process is a worker.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{ErrorCode, Query, Timestamp, Worker, WorkerKey, WorkerStatus};

use crate::app::is_internal;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Named, Params};
use crate::json::Json;
use crate::paging::sized;
use crate::view::Time;

/// The maximum number of workers that are read.
const WORKERS_MAX: usize = 10_000;

/// A worker.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableWorker {
    /// The id. Each start of a process has a new one.
    pub id: String,
    /// The worker group.
    pub worker_group: String,
    /// The activity types that it serves.
    pub activity_types: Vec<String>,
    /// The maximum number of concurrent tasks.
    pub max_concurrency: u32,
    /// The number of tasks that it holds.
    pub current_load: u32,
    /// The number of held turns, and its maximum.
    #[serde(skip)]
    pub turns: (u32, u32),
    /// `active`, `draining`, `stopped`, or `stale` if its lease has expired.
    pub status: &'static str,
    /// Whether it accepts new tasks.
    pub accepting_tasks: bool,
    /// Why it does not accept new tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backpressure_reason: Option<String>,
    /// When it first renewed its lease.
    pub started_at: Time,
    /// When it last renewed its lease.
    pub last_heartbeat_at: Time,
    /// The machine.
    pub hostname: Option<String>,
    /// The version of the program.
    pub version: Option<String>,
    /// Successful task attempts.
    pub tasks_completed: u64,
    /// Failed task attempts.
    pub tasks_failed: u64,
    /// The average duration of an attempt.
    pub avg_task_duration_ms: f64,
}

/// The status of a worker.
fn status_of(worker: &Worker, now: Timestamp) -> &'static str {
    match worker.info.status {
        WorkerStatus::Stopped => "stopped",
        _ if !worker.is_live(now) => "stale",
        _ if worker.drain => "draining",
        status => status.as_str(),
    }
}

fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl DurableWorker {
    fn of(worker: &Worker, now: Timestamp) -> Self {
        let info = &worker.info;
        let status = status_of(worker, now);
        let mut types: Vec<String> = (info.tasks.iter())
            .filter(|route| !is_internal(route.queue.as_str()))
            .map(|route| route.name.to_string())
            .collect();
        types.sort_unstable();
        types.dedup();
        let attempts = info.tasks_completed + info.tasks_failed;
        let total_ms = info.tasks_took.as_secs_f64() * 1_000.0;
        Self {
            id: info.worker.to_string(),
            worker_group: info.group.to_string(),
            activity_types: types,
            max_concurrency: info.task_slots,
            current_load: if status == "stopped" { 0 } else { info.task_load },
            turns: (
                info.load.saturating_sub(info.task_load),
                info.slots.saturating_sub(info.task_slots),
            ),
            status,
            accepting_tasks: status == "active" && info.accepting,
            backpressure_reason: info.note.as_deref().and_then(text),
            started_at: Time(worker.started_at),
            last_heartbeat_at: Time(worker.renewed_at),
            hostname: text(&info.host),
            version: text(&info.version),
            tasks_completed: info.tasks_completed,
            tasks_failed: info.tasks_failed,
            avg_task_duration_ms: if attempts == 0 { 0.0 } else { total_ms / attempts as f64 },
        }
    }
}

/// All registered workers, by start time.
pub(crate) async fn all(call: &Call) -> Result<Vec<DurableWorker>, ApiError> {
    let limit = call.engine.options().limits.page_rows_max;
    let mut workers: Vec<Worker> = Vec::new();
    loop {
        let after = workers.last().map(|worker| worker.info.worker);
        let page = call.engine.store().list(Query::Workers { after, limit }).await?.workers()?;
        let is_last = page.len() < limit as usize;
        workers.extend(page);
        if is_last || workers.len() >= WORKERS_MAX {
            break;
        }
    }
    call.engine.refresh(&mut workers);
    let now = call.engine.clock().now();
    Ok(workers.iter().map(|worker| DurableWorker::of(worker, now)).collect())
}

/// Counts of workers by status.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct WorkersSummary {
    /// Active workers.
    pub active: usize,
    /// Draining workers.
    pub draining: usize,
    /// Stopped workers.
    pub stopped: usize,
    /// The maximum number of concurrent tasks of live workers.
    pub total_capacity: u64,
    /// The number of tasks that live workers hold.
    pub total_load: u64,
    /// How many turns they hold, and how many at most.
    #[serde(skip)]
    pub turns: (u64, u64),
}

impl WorkersSummary {
    /// The load in percent. Tasks and turns have separate limits; the higher load counts.
    pub(crate) fn load_percentage(&self) -> f64 {
        let share = |held: u64, most: u64| held as f64 * 100.0 / most.max(1) as f64;
        share(self.total_load, self.total_capacity).max(share(self.turns.0, self.turns.1))
    }

    pub(crate) fn of(workers: &[DurableWorker]) -> Self {
        let mut summary = Self::default();
        for worker in workers {
            match worker.status {
                "active" => summary.active += 1,
                "draining" => summary.draining += 1,
                "stopped" => summary.stopped += 1,
                // Stale workers count only in the total.
                _ => {}
            }
            if matches!(worker.status, "active" | "draining") {
                summary.total_capacity += u64::from(worker.max_concurrency);
                summary.total_load += u64::from(worker.current_load);
                summary.turns.0 += u64::from(worker.turns.0);
                summary.turns.1 += u64::from(worker.turns.1);
            }
        }
        summary
    }
}

/// A page of workers.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableWorkers {
    /// The workers, by start time.
    pub workers: Vec<DurableWorker>,
    /// The number of matching workers on all pages.
    pub total: usize,
    /// Counts of all matching workers.
    pub summary: WorkersSummary,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Filters and page of the listing.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WorkersParams {
    /// Only workers with this status: `active`, `draining`, `stopped`, `stale`.
    status: Option<String>,
    /// Only workers of this group.
    group: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists workers.
#[utoipa::path(get, path = "/durable/workers", tag = "durable",
    operation_id = "durableListWorkers", params(WorkersParams),
    responses((status = 200, body = DurableWorkers), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    Params(params): Params<WorkersParams>,
) -> ApiResult<DurableWorkers> {
    let size = sized("limit", params.limit)? as usize;
    let words = ["active", "draining", "stopped", "stale"];
    if let Some(status) = params.status.as_deref().filter(|status| !words.contains(status)) {
        let message = format!("{status:?} is not a status; use one of {}", words.join(", "));
        return Err(ApiError::invalid(ErrorCode::InvalidStatus, message));
    }
    let after = decode_as("durable-workers", params.cursor.as_deref(), |key| {
        key.parse::<WorkerKey>().ok()
    })?;
    let mut workers = all(&call).await?;
    workers.retain(|worker| {
        params.status.as_deref().is_none_or(|status| worker.status == status)
            && params.group.as_deref().is_none_or(|group| worker.worker_group == group)
    });
    let (total, summary) = (workers.len(), WorkersSummary::of(&workers));
    let after = after.map(|key| key.to_string());
    workers.retain(|worker| after.as_ref().is_none_or(|after| worker.id > *after));
    let more = workers.len() > size;
    workers.truncate(size);
    let last = workers.last().filter(|_| more);
    let cursor = last.map(|worker| cursor::encode("durable-workers", &worker.id));
    Ok(Json(DurableWorkers { workers, total, summary, cursor }))
}

async fn find(call: &Call, key: &str) -> Result<(WorkerKey, DurableWorker), ApiError> {
    let not_found = || {
        let shown: String = key.chars().take(80).collect();
        ApiError::not_found(ErrorCode::WorkerNotFound, format!("unknown worker {shown:?}"))
    };
    let worker_key: WorkerKey = key.parse().map_err(|_| not_found())?;
    let id = worker_key.to_string();
    let found = all(call).await?.into_iter().find(|worker| worker.id == id);
    Ok((worker_key, found.ok_or_else(not_found)?))
}

/// Returns a worker.
#[utoipa::path(get, path = "/durable/workers/{id}", tag = "durable",
    operation_id = "durableGetWorker",
    params(("id" = String, Path, description = "The id of the worker")),
    responses((status = 200, body = DurableWorker), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, Named(key): Named) -> ApiResult<DurableWorker> {
    Ok(Json(find(&call, &key).await?.1))
}

/// Drains a worker: it accepts no new work, finishes its current work, and stops.
#[utoipa::path(post, path = "/durable/workers/{id}/drain", tag = "durable",
    operation_id = "durableDrainWorker",
    params(("id" = String, Path, description = "The id of the worker")),
    responses((status = 200, body = DurableWorker), (status = "default", body = Failure)))]
pub(crate) async fn drain(call: Call, Named(key): Named) -> ApiResult<DurableWorker> {
    let (worker, found) = find(&call, &key).await?;
    if found.status == "stopped" || !call.engine.drain_worker(worker).await? {
        let message = format!("worker {worker} has already stopped");
        let status = axum::http::StatusCode::CONFLICT;
        return Err(ApiError::new(status, ErrorCode::WorkerStopped, message));
    }
    let drained = find(&call, &key).await.map_or(found, |(_, worker)| worker);
    Ok(Json(drained))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_load_counts() {
        let summary = |tasks: (u64, u64), turns| WorkersSummary {
            total_load: tasks.0,
            total_capacity: tasks.1,
            turns,
            ..WorkersSummary::default()
        };
        let load = |tasks, turns| summary(tasks, turns).load_percentage().round() as u32;
        assert_eq!(load((256, 256), (0, 10_000)), 100);
        assert_eq!(load((64, 256), (5_000, 10_000)), 50);
        assert_eq!(load((0, 0), (0, 0)), 0);
    }
}
