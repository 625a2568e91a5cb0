//! Heartbeats of attempts: kept in the store, in batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_kernel::{Beat, Hold, TaskId};

use crate::engine::Inner;
use crate::env::Lane;
use crate::tasks::Claim;

/// How long signs of life are gathered before they are written together.
const GATHER: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Beats {
    pending: Mutex<BTreeMap<Claim, Beat>>,
    writing: AtomicBool,
    // Held while a batch is on its way: what it took is neither pending nor in the store.
    under_way: tokio::sync::Mutex<()>,
}

impl Beats {
    // What was said last stands, unless the later sign of life says nothing.
    fn put(&self, beat: Beat) {
        let (mut pending, claim) = (self.pending.lock(), claim(&beat));
        let before = pending.remove(&claim).and_then(|before| before.details);
        let details = beat.details.or(before);
        pending.insert(claim, Beat { details, ..beat });
    }

    // Beats that were not written, unless there are later ones.
    fn put_back(&self, beats: Vec<Beat>) {
        let mut pending = self.pending.lock();
        for beat in beats {
            match pending.get_mut(&claim(&beat)) {
                Some(later) => later.details = later.details.take().or(beat.details),
                None => drop(pending.insert(claim(&beat), beat)),
            }
        }
    }
}

fn claim(beat: &Beat) -> Claim {
    (beat.task_id, beat.hold.claim_no)
}

impl Inner {
    /// Has a sign of life written soon. What was said last stands.
    pub(crate) fn beat(self: &Arc<Self>, beat: Beat) {
        self.beats.put(beat);
        if !self.beats.writing.swap(true, Ordering::AcqRel) {
            let inner = Arc::clone(self);
            self.env.spawn(Lane::Service, Box::pin(async move { inner.write_beats().await }));
        }
    }

    /// Writes what an attempt said before it is given back: afterwards nobody would take it. With
    /// `begun` there is a sign of life even if it said nothing.
    pub(crate) async fn beat_now(&self, task_id: TaskId, hold: Hold, begun: bool) {
        let mut delay = GATHER;
        loop {
            let sent = {
                let _under_way = self.beats.under_way.lock().await;
                let said = self.beats.pending.lock().remove(&(task_id, hold.claim_no));
                let beat = said.or_else(|| begun.then_some(Beat { task_id, hold, details: None }));
                let Some(beat) = beat else { return };
                let sent = self.store.beat(vec![beat.clone()]).await;
                if sent.is_err() {
                    self.beats.put_back(vec![beat]);
                }
                sent
            };
            match sent {
                Ok(_) => return,
                // Without the store the attempt cannot be settled either.
                Err(error) if error.is_retryable() && !self.is_stopped() => {
                    self.env.sleep(delay).await;
                    delay = (delay * 2).min(DELAY_MAX);
                }
                Err(error) => {
                    tracing::warn!(%task_id, %error, "the last heartbeat of an attempt is lost");
                    return;
                }
            }
        }
    }

    /// Writes all that was said, before what is held is given back.
    pub(crate) async fn flush_beats(&self) {
        let _under_way = self.beats.under_way.lock().await;
        let beats: Vec<Beat> =
            std::mem::take(&mut *self.beats.pending.lock()).into_values().collect();
        if !beats.is_empty()
            && let Err(error) = self.store.beat(beats).await
        {
            tracing::warn!(%error, "the last heartbeats of attempts are lost");
        }
    }

    async fn write_beats(self: Arc<Self>) {
        let mut delay = GATHER;
        loop {
            self.env.sleep(delay).await;
            let under_way = self.beats.under_way.lock().await;
            if self.is_stopped() {
                // Whoever stops the engine writes what is left.
                return;
            }
            let beats: Vec<Beat> =
                std::mem::take(&mut *self.beats.pending.lock()).into_values().collect();
            if beats.is_empty() {
                self.beats.writing.store(false, Ordering::Release);
                // One may have come between the two.
                if self.beats.pending.lock().is_empty()
                    || self.beats.writing.swap(true, Ordering::AcqRel)
                {
                    return;
                }
                continue;
            }
            match self.store.beat(beats.clone()).await {
                Ok(held) => {
                    delay = GATHER;
                    let lost = beats.iter().zip(held).filter(|(_, held)| !held);
                    lost.for_each(|(beat, _)| self.tasks.cancel_claim(&claim(beat)));
                }
                Err(error) => {
                    tracing::warn!(%error, "heartbeats were not written; trying again");
                    self.beats.put_back(beats);
                    delay = (delay * 2).min(DELAY_MAX);
                }
            }
            drop(under_way);
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_kernel::{Body, WorkerKey};

    use super::*;

    fn beat(claim_no: u64, details: Option<&str>) -> Beat {
        Beat {
            task_id: TaskId(uuid::Uuid::nil()),
            hold: Hold { worker: WorkerKey(uuid::Uuid::nil()), claim_no },
            details: details.map(|text| Body::json(text.to_owned())),
        }
    }

    #[test]
    fn what_was_said_last_stands() {
        let beats = Beats::default();
        let said = |claim_no: u64| {
            let pending = beats.pending.lock();
            let beat = &pending[&(TaskId(uuid::Uuid::nil()), claim_no)];
            beat.details.as_ref().map(|body| String::from_utf8_lossy(&body.bytes).into_owned())
        };
        beats.put(beat(1, Some("1")));
        beats.put(beat(1, None));
        assert_eq!(said(1).unwrap(), "1");
        beats.put(beat(1, Some("2")));
        beats.put_back(vec![beat(1, Some("1")), beat(3, Some("3"))]);
        assert_eq!((said(1).unwrap(), said(3).unwrap()), ("2".into(), "3".into()));
        beats.put(beat(4, None));
        beats.put_back(vec![beat(4, Some("4"))]);
        assert_eq!(said(4).unwrap(), "4", "a later one that says nothing keeps it");
    }
}
