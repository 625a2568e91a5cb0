//! An estimate of the store's clock. It may lag behind the store's clock, but is never ahead of it: if
//! something is due by the estimate, it is due for the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use windlass_kernel::{EventId, LogId, RunKey, Stamp, TaskId, Timestamp};

use crate::env::{Env, new_uuid};

/// Estimates the store's time without a query.
pub struct Clock {
    env: Arc<dyn Env>,
    // The store's clock minus the environment's, in microseconds.
    offset_us: AtomicI64,
    last_us: AtomicI64,
}

impl Clock {
    /// A clock that starts with a fresh reading of the store's clock.
    pub fn new(env: Arc<dyn Env>, now: Timestamp) -> Self {
        let clock =
            Self { env, offset_us: AtomicI64::new(i64::MIN), last_us: AtomicI64::new(i64::MIN) };
        clock.learn(now);
        clock
    }

    /// Adjusts the estimate by a reading of the store's clock. The reading is from the past, so it only
    /// moves the estimate forward.
    pub fn learn(&self, reading: Timestamp) {
        let elapsed = self.env.elapsed().as_micros() as i64;
        self.offset_us.fetch_max(reading.as_micros() - elapsed, Ordering::Relaxed);
    }

    /// Adjusts the estimate by a reading even if it is behind the estimate: the store's clock may have
    /// been set back.
    pub fn correct(&self, reading: Timestamp) {
        let elapsed = self.env.elapsed().as_micros() as i64;
        self.offset_us.store(reading.as_micros() - elapsed, Ordering::Relaxed);
    }

    /// The estimated time of the store; it never goes back.
    pub fn now(&self) -> Timestamp {
        let elapsed = self.env.elapsed().as_micros() as i64;
        let now = elapsed.saturating_add(self.offset_us.load(Ordering::Relaxed));
        let last = self.last_us.fetch_max(now, Ordering::Relaxed);
        Timestamp::from_micros(now.max(last))
    }

    /// A new event's id and time.
    pub fn stamp(&self, at: Timestamp) -> Stamp {
        Stamp { event_id: EventId(new_uuid(&*self.env, at)), at }
    }

    /// A new run's key.
    pub fn run_key(&self) -> RunKey {
        RunKey(new_uuid(&*self.env, self.now()))
    }

    /// A new task's id.
    pub fn task_id(&self) -> TaskId {
        TaskId(new_uuid(&*self.env, self.now()))
    }

    /// A new log line's id.
    pub fn log_id(&self, at: Timestamp) -> LogId {
        LogId(new_uuid(&*self.env, at))
    }
}
