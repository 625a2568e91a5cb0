//! Admission: whether new runs are accepted, by the ratio of ready work to free capacity.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use windlass_kernel::{Error, ErrorCode, ErrorKind, Worker};

use crate::core::Core;
use crate::workers::WorkerRow;

/// How long a ratio is cached.
const CACHED_FOR: Duration = Duration::from_secs(1);

/// How many ready turns or tasks are counted at most.
const READY_COUNT_MAX: u64 = 1_000_000;

/// When new runs are refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// New runs are refused at this ratio of ready turns or tasks to free capacity. Default 10.
    pub max_queue_ratio: f64,
}

impl Default for Admission {
    fn default() -> Self {
        Self { max_queue_ratio: 10.0 }
    }
}

impl Admission {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        if self.max_queue_ratio > 0.0 && self.max_queue_ratio.is_finite() {
            return Ok(());
        }
        let ratio = self.max_queue_ratio;
        let message = format!("max_queue_ratio of admission is {ratio}; use more than 0");
        Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message))
    }
}

/// Decides whether new runs are accepted.
pub(crate) struct AdmissionControl {
    core: Arc<Core>,
    row: Arc<WorkerRow>,
    /// The last ratio, and when it was read.
    cached: Mutex<Option<(Duration, f64)>>,
}

impl AdmissionControl {
    pub(crate) fn new(core: Arc<Core>, row: Arc<WorkerRow>) -> Arc<Self> {
        Arc::new(Self { core, row, cached: Mutex::default() })
    }

    /// Whether the ratio is below the limit, or below 10 if none is set.
    pub(crate) async fn should_accept(&self) -> Result<bool, Error> {
        let admission = self.core.options.admission.unwrap_or_default();
        Ok(self.queue_ratio().await? < admission.max_queue_ratio)
    }

    async fn queue_ratio(&self) -> Result<f64, Error> {
        let now = self.core.env.elapsed();
        let known = *self.cached.lock();
        if let Some((at, ratio)) = known
            && now.saturating_sub(at) < CACHED_FOR
        {
            return Ok(ratio);
        }
        let max = self.core.options.admission.unwrap_or_default().max_queue_ratio;
        let health = self.core.store.health().await?;
        let free = Free::of(&self.row.live_workers().await?);
        // A health check counts so far that idle workers with much capacity hide a long queue.
        let ready = match health.turns.ready.more || health.tasks.ready.more {
            true => self.core.store.ready_counts(free.ready_max(max)).await?,
            false => (health.turns.ready.count, health.tasks.ready.count),
        };
        let found = free.ratio(ready.0, ready.1);
        *self.cached.lock() = Some((now, found));
        Ok(found)
    }

    /// Refuses new runs if admission is configured and the workers are too far behind.
    pub(crate) async fn admit(&self) -> Result<(), Error> {
        let Some(admission) = self.core.options.admission else { return Ok(()) };
        let ratio = self.queue_ratio().await?;
        if ratio < admission.max_queue_ratio {
            return Ok(());
        }
        let max = admission.max_queue_ratio;
        let message = format!(
            "the ratio of ready work to free capacity of the workers is {ratio:.1}, the limit is {max}; \
             start the run later, or add workers"
        );
        Err(Error::new(ErrorKind::Unavailable, ErrorCode::Overloaded, message))
    }
}

/// The free capacity of all workers that take new work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Free {
    turns: u64,
    tasks: u64,
}

impl Free {
    fn of(live: &[Worker]) -> Self {
        let mut free = Self::default();
        for info in live.iter().map(|worker| &worker.info).filter(|info| info.accepting) {
            free.add(info.slots, info.task_slots, info.load, info.task_load);
        }
        free
    }

    // How many ready turns or tasks must be counted to see whether a ratio is reached.
    fn ready_max(self, ratio: f64) -> u64 {
        let free = self.turns.max(self.tasks).max(1);
        ((free as f64 * ratio).ceil() as u64).saturating_add(1).min(READY_COUNT_MAX)
    }

    // A worker's row has its slots for turns and tasks together, and those for tasks alone.
    fn add(&mut self, slots: u32, task_slots: u32, load: u32, task_load: u32) {
        let turn_slots = slots.saturating_sub(task_slots);
        let turn_load = load.saturating_sub(task_load);
        self.turns += u64::from(turn_slots.saturating_sub(turn_load));
        self.tasks += u64::from(task_slots.saturating_sub(task_load));
    }

    // The greater of both ratios: free capacity for turns does not help tasks that wait.
    fn ratio(self, turns_ready: u64, tasks_ready: u64) -> f64 {
        let ratio = |ready: u64, free: u64| ready as f64 / free.max(1) as f64;
        ratio(turns_ready, self.turns).max(ratio(tasks_ready, self.tasks))
    }
}

#[cfg(test)]
mod tests {
    use windlass_kernel::{Timestamp, WorkerInfo, WorkerKey, WorkerStatus};

    use super::*;

    #[test]
    fn capacity_is_what_workers_have_left() {
        for (slots, task_slots, load, task_load, turns, tasks) in [
            (110, 10, 0, 0, 100, 10),
            (110, 10, 30, 4, 74, 6),
            (110, 10, 110, 10, 0, 0),
            // A row can be written between two changes of its counts.
            (110, 10, 3, 12, 100, 0),
            (10, 10, 12, 5, 0, 5),
        ] {
            let mut free = Free::default();
            free.add(slots, task_slots, load, task_load);
            assert_eq!(free, Free { turns, tasks }, "{slots} {task_slots} {load} {task_load}");
        }
    }

    #[test]
    fn the_scarcer_kind_decides() {
        for (turns, tasks, turns_ready, tasks_ready, expect) in [
            (100, 10, 0, 0, 0.0),
            (100, 10, 50, 1, 0.5),
            (100, 10, 50, 30, 3.0),
            (0, 0, 7, 3, 7.0),
            (100, 0, 50, 12, 12.0),
        ] {
            let found = Free { turns, tasks }.ratio(turns_ready, tasks_ready);
            assert!((found - expect).abs() < 1e-9, "{turns_ready} {tasks_ready}: {found}");
        }
    }

    #[test]
    fn enough_is_counted_to_reach_the_ratio() {
        for (turns, tasks, ratio, expect) in [
            (0, 0, 10.0, 11),
            (40_000, 256, 10.0, 400_001),
            (100, 256, 1.5, 385),
            (u64::MAX, 0, 10.0, READY_COUNT_MAX),
        ] {
            let free = Free { turns, tasks };
            let max = free.ready_max(ratio);
            assert_eq!(max, expect, "{turns} {tasks} {ratio}");
            assert!(max == READY_COUNT_MAX || free.ratio(max, max) >= ratio);
        }
    }

    #[test]
    fn a_worker_that_takes_no_new_work_has_no_free_capacity() {
        let worker = |accepting: bool| Worker {
            info: WorkerInfo {
                worker: WorkerKey(uuid::Uuid::nil()),
                name: "w".into(),
                version: "1".into(),
                status: WorkerStatus::Active,
                lease: Duration::from_secs(30),
                turns: Vec::new(),
                tasks: Vec::new(),
                slots: 20,
                note: None,
                load: 0,
                task_slots: 0,
                task_load: 0,
                accepting,
                group: "g".into(),
                host: "h".into(),
                tasks_completed: 0,
                tasks_failed: 0,
                tasks_took: Duration::ZERO,
            },
            started_at: Timestamp::ZERO,
            renewed_at: Timestamp::ZERO,
            steady_since: Timestamp::ZERO,
            drain: false,
        };
        for (workers, expect) in
            [(vec![true, true], 0.25), (vec![true, false], 0.5), (vec![false, false], 10.0)]
        {
            let live: Vec<Worker> = workers.iter().copied().map(worker).collect();
            let found = Free::of(&live).ratio(10, 0);
            assert!((found - expect).abs() < 1e-9, "{workers:?}: {found}");
        }
    }
}
