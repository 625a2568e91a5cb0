//! Task statistics: pending and held tasks, and the results of the last hour.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use windlass::kernel::Figures;

use super::bounded;
use super::tasks::is_user_task;
use crate::error::{ApiResult, Failure};
use crate::extract::Call;
use crate::json::Json;

/// Statistics of one activity type.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct ActivityTypeStats {
    /// Pending tasks: ready, or due later.
    pub pending: u64,
    /// Tasks that a worker holds.
    pub claimed: u64,
    /// Successful attempts of the last hour.
    pub completed_last_hour: u64,
    /// Failed attempts of the last hour.
    pub failed_last_hour: u64,
    /// The average duration of an attempt.
    pub avg_duration_ms: f64,
    /// The 99th percentile of the duration, up to 25 % too high.
    pub p99_duration_ms: f64,
}

/// Statistics of all tasks of a namespace.
#[derive(Serialize, ToSchema)]
pub(crate) struct TaskQueueStats {
    /// By activity type. Covers at most 10,000 pending and 10,000 claimed tasks.
    pub by_activity_type: BTreeMap<String, ActivityTypeStats>,
    /// The number of pending tasks by priority.
    pub by_priority: BTreeMap<String, u64>,
    /// How long the oldest ready task has been due.
    pub oldest_pending_task_age_ms: u64,
    /// The average wait of attempts of the last hour after they were due.
    pub avg_schedule_to_start_ms: f64,
    /// The average duration of attempts of the last hour.
    pub avg_execution_time_ms: f64,
}

/// Returns task statistics.
#[utoipa::path(get, path = "/durable/tasks/stats", tag = "durable",
    operation_id = "durableTaskStats",
    responses((status = 200, body = TaskQueueStats), (status = "default", body = Failure)))]
pub(crate) async fn stats(call: Call) -> ApiResult<TaskQueueStats> {
    let namespace = call.engine.namespace();
    let namespace_stats = call.engine.store().namespace_stats(namespace.clone()).await?;
    let stats = call.engine.store().task_stats(namespace.clone()).await?;
    let mut by_activity_type: BTreeMap<String, ActivityTypeStats> = BTreeMap::new();
    let mut by_priority: BTreeMap<String, u64> = BTreeMap::new();
    let mut oldest = namespace_stats.now;
    for kind in namespace_stats.tasks.iter().filter(|kind| is_user_task(kind)) {
        let stats = by_activity_type.entry(kind.name.to_string()).or_default();
        let pending = kind.ready + kind.scheduled;
        stats.pending = bounded(stats.pending + pending);
        stats.claimed = bounded(stats.claimed + kind.held);
        if pending > 0 {
            let known = by_priority.entry(kind.priority.to_string()).or_default();
            *known = bounded(*known + pending);
        }
        oldest = oldest.min(kind.ready_oldest.unwrap_or(oldest));
    }
    let mut figures: BTreeMap<String, Figures> = BTreeMap::new();
    let mut all = Figures::default();
    for stat in stats {
        figures.entry(stat.name.to_string()).or_default().add(stat.field, stat.value);
        all.add(stat.field, stat.value);
    }
    for (name, figures) in figures {
        let stats = by_activity_type.entry(name).or_default();
        stats.completed_last_hour = figures.completed();
        stats.failed_last_hour = figures.failed();
        stats.avg_duration_ms = figures.took_ms_avg();
        stats.p99_duration_ms = figures.took_ms_p99();
    }
    let age = namespace_stats.now.since(oldest).as_millis();
    Ok(Json(TaskQueueStats {
        by_activity_type,
        by_priority,
        oldest_pending_task_age_ms: u64::try_from(age).unwrap_or(u64::MAX),
        avg_schedule_to_start_ms: all.waited_ms_avg(),
        avg_execution_time_ms: all.took_ms_avg(),
    }))
}
