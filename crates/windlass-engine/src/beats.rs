//! Heartbeats of attempts: kept in the store, in batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_kernel::{Beat, TaskId};

use crate::engine::Inner;
use crate::env::Lane;

/// How long signs of life are gathered before they are written together.
const GATHER: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(crate) struct Beats {
    pending: Mutex<BTreeMap<TaskId, Beat>>,
    writing: AtomicBool,
}

impl Inner {
    /// Has a sign of life written soon. What was said last stands.
    pub(crate) fn beat(self: &Arc<Self>, beat: Beat) {
        {
            let mut pending = self.beats.pending.lock();
            let said = pending.remove(&beat.task_id).and_then(|before| before.details);
            let details = beat.details.or(said);
            pending.insert(beat.task_id, Beat { details, ..beat });
        }
        if !self.beats.writing.swap(true, Ordering::AcqRel) {
            let inner = Arc::clone(self);
            self.env.spawn(Lane::Service, Box::pin(async move { inner.write_beats().await }));
        }
    }

    /// Writes what an attempt said before it is given back: afterwards nobody would take it.
    pub(crate) async fn beat_now(&self, task_id: TaskId) {
        let beat = self.beats.pending.lock().remove(&task_id);
        if let Some(beat) = beat
            && let Err(error) = self.store.beat(vec![beat]).await
        {
            tracing::warn!(%task_id, %error, "the last heartbeat of an attempt is lost");
        }
    }

    async fn write_beats(self: Arc<Self>) {
        loop {
            self.env.sleep(GATHER).await;
            let beats: Vec<Beat> =
                std::mem::take(&mut *self.beats.pending.lock()).into_values().collect();
            if beats.is_empty() || self.is_stopped() {
                self.beats.writing.store(false, Ordering::Release);
                // One may have come between the two.
                if self.beats.pending.lock().is_empty()
                    || self.is_stopped()
                    || self.beats.writing.swap(true, Ordering::AcqRel)
                {
                    return;
                }
                continue;
            }
            match self.store.beat(beats.clone()).await {
                Ok(held) => {
                    let lost = beats.iter().zip(held).filter(|(_, held)| !held);
                    lost.for_each(|(beat, _)| self.tasks.cancel(&beat.task_id));
                }
                Err(error) => tracing::warn!(%error, "heartbeats were not written"),
            }
        }
    }
}
