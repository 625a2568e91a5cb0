//! What became of attempts, by what was run: counted here, and added to the store's figures now and then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_kernel::{ErrorKind, Figures, Namespace, RouteName, Tally, Task, Timestamp};

use crate::engine::Inner;
use crate::env::Lane;
use crate::settle::RATE_LIMITED;
use crate::tasks::TaskResult;

/// How long figures are gathered before they are written together.
const GATHER: Duration = Duration::from_secs(5);

/// How many kinds of tasks are counted at once; what goes beyond is left out of the figures.
const KINDS_MAX: usize = 10_000;

type Pending = BTreeMap<(Namespace, RouteName, i64), Figures>;

#[derive(Default)]
pub(crate) struct Tallies {
    pending: Mutex<Pending>,
    total: Mutex<Figures>,
    writing: AtomicBool,
}

impl Tallies {
    /// All that was counted since the engine began.
    pub(crate) fn total(&self) -> Figures {
        self.total.lock().clone()
    }
}

impl Inner {
    /// Counts an attempt that is over. One that was told to come back later was none.
    pub(crate) fn tally(self: &Arc<Self>, task: &Task, began_at: Timestamp, result: &TaskResult) {
        if result.as_ref().is_err_and(|failure| failure.name == RATE_LIMITED) {
            return;
        }
        let now = self.clock.now();
        let due_at = task.due_at.map_or(task.created_at, |due| due.max(task.created_at));
        let mut one = Figures::default();
        one.attempt(result.is_ok(), began_at.since(due_at), now.since(began_at));
        self.tallies.total.lock().merge(&one);
        let key = (task.namespace.clone(), task.name.clone(), Tally::minute_of(now));
        let mut pending = self.tallies.pending.lock();
        if pending.len() < KINDS_MAX || pending.contains_key(&key) {
            pending.entry(key).or_default().merge(&one);
        }
        drop(pending);
        // Whoever does nothing asks nothing: the first one begins to gather.
        if !self.tallies.writing.swap(true, Ordering::AcqRel) {
            let inner = Arc::clone(self);
            let write = async move {
                let slept = inner.env.sleep(GATHER);
                futures::future::select(slept, std::pin::pin!(inner.stopped())).await;
                inner.tallies.writing.store(false, Ordering::Release);
                if !inner.is_stopped() {
                    inner.write_tallies().await;
                }
            };
            self.env.spawn(Lane::Service, Box::pin(write));
        }
    }

    /// Adds what was counted to the store's figures.
    pub(crate) async fn write_tallies(&self) {
        let pending = std::mem::take(&mut *self.tallies.pending.lock());
        let tallies: Vec<Tally> = pending.iter().flat_map(rows).collect();
        for page in tallies.chunks(self.options.limits.tallies_max) {
            if let Err(error) = self.store.tally(page.to_vec()).await {
                tracing::warn!(%error, "figures of the last minutes were not written");
                // What may have been written is not written twice: a gap shows less than a double.
                if error.kind() == ErrorKind::Unavailable && tallies.len() == page.len() {
                    self.put_back(pending);
                }
                return;
            }
        }
    }

    fn put_back(&self, counted: Pending) {
        let mut pending = self.tallies.pending.lock();
        for (key, figures) in counted {
            if pending.len() < KINDS_MAX || pending.contains_key(&key) {
                pending.entry(key).or_default().merge(&figures);
            }
        }
    }
}

fn rows(
    (key, figures): (&(Namespace, RouteName, i64), &Figures),
) -> impl Iterator<Item = Tally> + use<> {
    let (namespace, name, minute) = key.clone();
    let fields: Vec<(u16, u64)> = figures.fields().collect();
    fields.into_iter().map(move |(field, value)| Tally {
        minute,
        namespace: namespace.clone(),
        name: name.clone(),
        field,
        value,
    })
}
