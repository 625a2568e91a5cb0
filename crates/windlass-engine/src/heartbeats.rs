//! Heartbeats of attempts, written to the store in batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_kernel::{Heartbeat, Hold, TaskId};

use crate::core::Core;
use crate::tasks::{Claim, Tasks};

/// How long heartbeats are collected before they are written together.
const COLLECT_FOR: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Heartbeats {
    core: Arc<Core>,
    tasks: Arc<Tasks>,
    pending: Pending,
    writing: AtomicBool,
    // Held while a batch is being written: its heartbeats are neither pending nor in the store.
    in_flight: tokio::sync::Mutex<()>,
}

impl Heartbeats {
    pub(crate) fn new(core: Arc<Core>, tasks: Arc<Tasks>) -> Arc<Self> {
        Arc::new(Self {
            core,
            tasks,
            pending: Pending::default(),
            writing: AtomicBool::new(false),
            in_flight: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Writes a heartbeat soon. Later details replace earlier ones.
    pub(crate) fn send(self: &Arc<Self>, beat: Heartbeat) {
        self.pending.put(beat);
        if !self.writing.swap(true, Ordering::AcqRel) {
            let heartbeats = Arc::clone(self);
            self.core
                .spawn_service("heartbeats", move || Arc::clone(&heartbeats).write_until_idle());
        }
    }

    /// Writes the last heartbeat of an attempt before the task is rescheduled: afterwards the store
    /// refuses it. With `begun` it writes one even if the attempt sent none.
    pub(crate) async fn send_now(&self, task_id: TaskId, hold: Hold, begun: bool) {
        let mut delay = COLLECT_FOR;
        loop {
            let sent = {
                let _in_flight = self.in_flight.lock().await;
                let pending = self.pending.take(&(task_id, hold.claim_no));
                let beat =
                    pending.or_else(|| begun.then_some(Heartbeat { task_id, hold, details: None }));
                let Some(beat) = beat else { return };
                let sent = self.core.store.heartbeat(vec![beat.clone()]).await;
                if sent.is_err() {
                    self.pending.put_back(vec![beat]);
                }
                sent
            };
            match sent {
                Ok(_) => return,
                // Without the store the attempt cannot be settled either, so waiting costs nothing.
                Err(error) if error.is_retryable() && !self.core.lifecycle.is_stopped() => {
                    self.core.env.sleep(delay).await;
                    delay = (delay * 2).min(DELAY_MAX);
                }
                Err(error) => {
                    tracing::warn!(%task_id, %error, "failed to write the last heartbeat of an attempt");
                    return;
                }
            }
        }
    }

    /// Writes all pending heartbeats, before the engine releases its tasks.
    pub(crate) async fn flush(&self) {
        let _in_flight = self.in_flight.lock().await;
        let beats = self.pending.take_all();
        if !beats.is_empty()
            && let Err(error) = self.core.store.heartbeat(beats).await
        {
            tracing::warn!(%error, "failed to write the last heartbeats before the engine stops");
        }
    }

    async fn write_until_idle(self: Arc<Self>) {
        let mut delay = COLLECT_FOR;
        loop {
            self.core.env.sleep(delay).await;
            let in_flight = self.in_flight.lock().await;
            if self.core.lifecycle.is_stopped() {
                // The shutdown flushes the rest.
                return;
            }
            let beats = self.pending.take_all();
            if beats.is_empty() {
                self.writing.store(false, Ordering::Release);
                // A heartbeat may have come after `take_all` and seen `writing` still set.
                if self.pending.is_empty() || self.writing.swap(true, Ordering::AcqRel) {
                    return;
                }
                continue;
            }
            match self.core.store.heartbeat(beats.clone()).await {
                Ok(held) => {
                    delay = COLLECT_FOR;
                    let lost = beats.iter().zip(held).filter(|(_, held)| !held);
                    lost.for_each(|(beat, _)| self.tasks.cancel_claim(&claim(beat)));
                }
                Err(error) => {
                    tracing::warn!(%error, count = beats.len(), "failed to write heartbeats; retrying");
                    self.pending.put_back(beats);
                    delay = (delay * 2).min(DELAY_MAX);
                }
            }
            drop(in_flight);
        }
    }
}

/// Heartbeats that are not written yet, at most one for each claim.
#[derive(Default)]
struct Pending(Mutex<BTreeMap<Claim, Heartbeat>>);

impl Pending {
    // A heartbeat without details keeps the details of the one before.
    fn put(&self, beat: Heartbeat) {
        let (mut pending, claim) = (self.0.lock(), claim(&beat));
        let before = pending.remove(&claim).and_then(|before| before.details);
        let details = beat.details.or(before);
        pending.insert(claim, Heartbeat { details, ..beat });
    }

    // Puts heartbeats back that could not be written. Later ones win.
    fn put_back(&self, beats: Vec<Heartbeat>) {
        let mut pending = self.0.lock();
        for beat in beats {
            match pending.get_mut(&claim(&beat)) {
                Some(later) => later.details = later.details.take().or(beat.details),
                None => drop(pending.insert(claim(&beat), beat)),
            }
        }
    }

    fn take(&self, claim: &Claim) -> Option<Heartbeat> {
        self.0.lock().remove(claim)
    }

    fn take_all(&self) -> Vec<Heartbeat> {
        std::mem::take(&mut *self.0.lock()).into_values().collect()
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

fn claim(beat: &Heartbeat) -> Claim {
    (beat.task_id, beat.hold.claim_no)
}

#[cfg(test)]
mod tests {
    use windlass_kernel::{Body, WorkerKey};

    use super::*;

    fn beat(claim_no: u64, details: Option<&str>) -> Heartbeat {
        Heartbeat {
            task_id: TaskId(uuid::Uuid::nil()),
            hold: Hold { worker: WorkerKey(uuid::Uuid::nil()), claim_no },
            details: details.map(|text| Body::json(text.to_owned())),
        }
    }

    #[test]
    fn the_last_details_win() {
        let pending = Pending::default();
        let details = |claim_no: u64| {
            let pending = pending.0.lock();
            let beat = &pending[&(TaskId(uuid::Uuid::nil()), claim_no)];
            beat.details.as_ref().map(|body| String::from_utf8_lossy(&body.bytes).into_owned())
        };
        pending.put(beat(1, Some("1")));
        pending.put(beat(1, None));
        assert_eq!(details(1).unwrap(), "1");
        pending.put(beat(1, Some("2")));
        pending.put_back(vec![beat(1, Some("1")), beat(3, Some("3"))]);
        assert_eq!((details(1).unwrap(), details(3).unwrap()), ("2".into(), "3".into()));
        pending.put(beat(4, None));
        pending.put_back(vec![beat(4, Some("4"))]);
        assert_eq!(details(4).unwrap(), "4", "a later heartbeat without details keeps them");
    }
}
