//! How tasks fare: what waits, what is held, and what was done in the last hour.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;
use windlass::kernel::Figures;

use super::bounded;
use super::tasks::is_users;
use crate::error::{ApiResult, Failure};
use crate::extract::Call;
use crate::json::Json;

/// Figures of one activity type.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct ActivityTypeStats {
    /// Tasks that wait: ready, or due later.
    pub pending: u64,
    /// Tasks that a worker has.
    pub claimed: u64,
    /// Attempts that succeeded in the last hour.
    pub completed_last_hour: u64,
    /// Attempts that failed in the last hour.
    pub failed_last_hour: u64,
    /// How long an attempt took on average.
    pub avg_duration_ms: f64,
    /// How long all but one in a hundred took at most; up to a quarter too much.
    pub p99_duration_ms: f64,
}

/// Figures of all tasks of a namespace.
#[derive(Serialize, ToSchema)]
pub(crate) struct TaskQueueStats {
    /// By activity type. At most 10,000 waiting and 10,000 claimed tasks are looked at.
    pub by_activity_type: BTreeMap<String, ActivityTypeStats>,
    /// How many tasks wait, by priority.
    pub by_priority: BTreeMap<String, u64>,
    /// For how long the oldest task that can be claimed has been due.
    pub oldest_pending_task_age_ms: u64,
    /// How long attempts of the last hour waited after they were due, on average.
    pub avg_schedule_to_start_ms: f64,
    /// How long attempts of the last hour took, on average.
    pub avg_execution_time_ms: f64,
}

/// Tells how tasks fare.
#[utoipa::path(get, path = "/durable/tasks/stats", tag = "durable",
    operation_id = "durableTaskStats",
    responses((status = 200, body = TaskQueueStats), (status = "default", body = Failure)))]
pub(crate) async fn stats(call: Call) -> ApiResult<TaskQueueStats> {
    let namespace = call.engine.namespace();
    let census = call.engine.store().census(namespace.clone()).await?;
    let tallies = call.engine.store().tallied(namespace.clone()).await?;
    let mut by_activity_type: BTreeMap<String, ActivityTypeStats> = BTreeMap::new();
    let mut by_priority: BTreeMap<String, u64> = BTreeMap::new();
    let mut oldest = census.now;
    for kind in census.tasks.iter().filter(|kind| is_users(kind)) {
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
    for tally in tallies {
        figures.entry(tally.name.to_string()).or_default().add(tally.field, tally.value);
        all.add(tally.field, tally.value);
    }
    for (name, figures) in figures {
        let stats = by_activity_type.entry(name).or_default();
        stats.completed_last_hour = figures.completed();
        stats.failed_last_hour = figures.failed();
        stats.avg_duration_ms = figures.took_ms_avg();
        stats.p99_duration_ms = figures.took_ms_p99();
    }
    let age = census.now.since(oldest).as_millis();
    Ok(Json(TaskQueueStats {
        by_activity_type,
        by_priority,
        oldest_pending_task_age_ms: u64::try_from(age).unwrap_or(u64::MAX),
        avg_schedule_to_start_ms: all.waited_ms_avg(),
        avg_execution_time_ms: all.took_ms_avg(),
    }))
}
