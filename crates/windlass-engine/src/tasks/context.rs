//! The context of an attempt: its identity, its heartbeats, and whether it is cancelled.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use uuid::Uuid;
use windlass_kernel::{Body, Error, Heartbeat, Hold, Namespace, RunKey, StepKey, TaskId};

use crate::env::Env;
use crate::heartbeats::Heartbeats;

/// The context of an attempt.
#[derive(Clone)]
pub struct TaskContext {
    /// The task.
    pub task_id: TaskId,
    /// The tenant.
    pub namespace: Namespace,
    /// The run it works for.
    pub run_key: Option<RunKey>,
    /// The step it works for.
    pub step_key: Option<StepKey>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// How many attempts there may be.
    pub attempts_max: Option<u32>,
    /// Names this attempt.
    pub attempt_id: Uuid,
    /// The W3C trace context of the attempt. If this process records no trace, it is the context in
    /// which the task was enqueued.
    pub trace: Option<Arc<str>>,
    pub(super) link: AttemptLink,
}

/// The connection of an attempt to the engine.
#[derive(Clone)]
pub(super) struct AttemptLink {
    pub(super) running: Arc<RunningAttempt>,
    // Weak: an attempt that ignores its cancellation must not keep the engine alive.
    pub(super) heartbeats: Weak<Heartbeats>,
    pub(super) hold: Hold,
    // The task has a heartbeat timeout, so heartbeats without details are written too.
    pub(super) watched: bool,
    pub(super) last_details: Option<Body>,
}

impl TaskContext {
    /// A key that is the same for every attempt of this task: pass it to services that deduplicate.
    pub fn idempotency_key(&self) -> String {
        self.task_id.to_string()
    }

    /// Reports that the attempt is alive.
    pub fn heartbeat(&self) {
        self.send_heartbeat(None);
    }

    /// Reports that the attempt is alive, with details of its progress for the next attempt.
    ///
    /// # Errors
    ///
    /// The details cannot be written as JSON, or are too large.
    pub fn heartbeat_with<T: Serialize>(&self, details: &T) -> Result<(), Error> {
        let details = Body::of(details)?;
        if let Some(heartbeats) = self.link.heartbeats.upgrade() {
            let hold = self.link.hold;
            let beat = Heartbeat { task_id: self.task_id, hold, details: Some(details) };
            let limits = &heartbeats.core().options.limits;
            Heartbeat::validate(std::slice::from_ref(&beat), limits)?;
            self.send_heartbeat(beat.details);
        }
        Ok(())
    }

    /// The last details that an earlier attempt reported.
    pub fn last_heartbeat<T: DeserializeOwned>(&self) -> Option<T> {
        self.link.last_details.as_ref().and_then(|details| details.read().ok())
    }

    fn send_heartbeat(&self, details: Option<Body>) {
        let Some(heartbeats) = self.link.heartbeats.upgrade() else { return };
        self.link.running.beat(&*heartbeats.core().env);
        if self.link.watched || details.is_some() {
            let hold = self.link.hold;
            heartbeats.send(Heartbeat { task_id: self.task_id, hold, details });
        }
    }

    /// Whether nobody needs the result any more.
    pub fn is_cancelled(&self) -> bool {
        self.link.running.is_cancelled()
    }

    /// Completes when nobody needs the result any more.
    pub async fn cancelled(&self) {
        let notified = self.link.running.notify.notified();
        if !self.is_cancelled() {
            notified.await;
        }
    }
}

/// The state that an attempt shares with the engine.
#[derive(Default)]
pub(crate) struct RunningAttempt {
    cancelled: AtomicBool,
    beat_us: AtomicU64,
    notify: Notify,
}

impl RunningAttempt {
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn beat(&self, env: &dyn Env) {
        self.beat_us.store(env.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn last_beat(&self) -> Duration {
        Duration::from_micros(self.beat_us.load(Ordering::Relaxed))
    }
}
