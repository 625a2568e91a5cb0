//! Admission: whether new runs are taken in, by how much work waits for how much room.

use std::time::Duration;

use parking_lot::Mutex;
use windlass_kernel::{Error, ErrorKind, Health, Worker};

use crate::engine::Engine;

/// How long an answer is good for.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// When new runs are refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// So many ready turns or tasks for each that could be held at once are too many. Default 10.
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
        Err(Error::new(ErrorKind::Invalid, "INVALID_OPTION", message))
    }
}

/// What was last found out, and when.
#[derive(Default)]
pub(crate) struct Admitting(Mutex<Option<(Duration, f64)>>);

impl Engine {
    /// Whether the workers are not too far behind to take in new runs: what is ready, over the room
    /// that live workers have which take something new, is below `Options::admission`, or below 10 if
    /// there is none. An answer is good for a second.
    pub async fn should_accept_workflow(&self) -> Result<bool, Error> {
        let admission = self.inner.options.admission.unwrap_or_default();
        Ok(self.queue_ratio().await? < admission.max_queue_ratio)
    }

    async fn queue_ratio(&self) -> Result<f64, Error> {
        let inner = &self.inner;
        let now = inner.env.elapsed();
        let known = *inner.admitting.0.lock();
        if let Some((at, ratio)) = known
            && now.saturating_sub(at) < KEPT_FOR
        {
            return Ok(ratio);
        }
        let health = inner.store.health().await?;
        let found = ratio(&health, &self.live_workers().await?);
        *inner.admitting.0.lock() = Some((now, found));
        Ok(found)
    }

    /// Refuses new runs if the engine was told to and the workers are too far behind.
    pub(crate) async fn admit(&self) -> Result<(), Error> {
        let Some(admission) = self.inner.options.admission else { return Ok(()) };
        let ratio = self.queue_ratio().await?;
        if ratio < admission.max_queue_ratio {
            return Ok(());
        }
        let max = admission.max_queue_ratio;
        let message = format!(
            "{ratio:.1} turns or tasks are ready for each that workers have room for, and {max} are too \
             many; start the run later, or add workers"
        );
        Err(Error::new(ErrorKind::Unavailable, "OVERLOADED", message))
    }
}

// The greater of both: plenty of room for turns does not help tasks that wait.
fn ratio(health: &Health, live: &[Worker]) -> f64 {
    let mut room = (0_u64, 0_u64);
    for info in live.iter().map(|worker| &worker.info).filter(|info| info.accepting) {
        let turn_slots = info.slots.saturating_sub(info.task_slots);
        let turn_load = info.load.saturating_sub(info.task_load);
        room.0 += u64::from(turn_slots.saturating_sub(turn_load));
        room.1 += u64::from(info.task_slots.saturating_sub(info.task_load));
    }
    let over = |ready: u64, room: u64| ready as f64 / room.max(1) as f64;
    over(health.turns.ready.count, room.0).max(over(health.tasks.ready.count, room.1))
}
