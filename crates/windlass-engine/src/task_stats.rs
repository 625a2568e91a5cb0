//! Statistics of attempts by task name: counted here, and added to the store's figures in batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass_kernel::{ErrorKind, Figures, Namespace, RouteName, Task, TaskStat, Timestamp};

use crate::core::Core;
use crate::env::ThreadPool;
use crate::tasks::TaskResult;

/// How long figures are collected before they are written together.
const COLLECT_FOR: Duration = Duration::from_secs(5);

/// How many rows are collected at once; attempts that would need more are not counted.
const ROWS_MAX: usize = 10_000;

type Pending = BTreeMap<(Namespace, RouteName, i64), Figures>;

pub(crate) struct TaskStats {
    core: Arc<Core>,
    pending: Mutex<Pending>,
    total: Mutex<Figures>,
    writing: AtomicBool,
}

impl TaskStats {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        let (pending, total) = (Mutex::default(), Mutex::default());
        Arc::new(Self { core, pending, total, writing: AtomicBool::new(false) })
    }

    /// The figures since the engine started.
    pub(crate) fn total(&self) -> Figures {
        self.total.lock().clone()
    }

    /// Counts an attempt that has ended. A rate-limited one does not count as an attempt.
    pub(crate) fn count(self: &Arc<Self>, task: &Task, began_at: Timestamp, result: &TaskResult) {
        if result.as_ref().is_err_and(|failure| failure.is_rate_limited()) {
            return;
        }
        let now = self.core.clock.now();
        let due_at = task.due_at.map_or(task.created_at, |due| due.max(task.created_at));
        let mut one = Figures::default();
        one.attempt(result.is_ok(), began_at.since(due_at), now.since(began_at));
        self.total.lock().merge(&one);
        let key = (task.namespace.clone(), task.name.clone(), TaskStat::minute_of(now));
        add(&mut self.pending.lock(), key, &one);
        // Start the flush lazily so that an idle engine sends no queries.
        if !self.writing.swap(true, Ordering::AcqRel) {
            let stats = Arc::clone(self);
            let write = async move {
                let core = &stats.core;
                let slept = core.env.sleep(COLLECT_FOR);
                futures::future::select(slept, std::pin::pin!(core.lifecycle.stopped())).await;
                stats.writing.store(false, Ordering::Release);
                // The shutdown flushes the rest.
                if !core.lifecycle.is_stopped() {
                    stats.flush().await;
                }
            };
            self.core.env.spawn(ThreadPool::Service, Box::pin(write));
        }
    }

    /// Adds the pending figures to those of the store.
    pub(crate) async fn flush(&self) {
        let pending = std::mem::take(&mut *self.pending.lock());
        let rows: Vec<TaskStat> = pending.iter().flat_map(rows).collect();
        for page in rows.chunks(self.core.options.limits.task_stats_max) {
            if let Err(error) = self.core.store.add_task_stats(page.to_vec()).await {
                tracing::warn!(%error, rows = rows.len(), "failed to write task statistics");
                // Drop on unknown outcome: undercounting beats double counting.
                if error.kind() == ErrorKind::Unavailable && rows.len() == page.len() {
                    let mut kept = self.pending.lock();
                    for (key, figures) in pending {
                        add(&mut kept, key, &figures);
                    }
                }
                return;
            }
        }
    }
}

fn add(pending: &mut Pending, key: (Namespace, RouteName, i64), figures: &Figures) {
    if pending.len() < ROWS_MAX || pending.contains_key(&key) {
        pending.entry(key).or_default().merge(figures);
    }
}

fn rows(
    (key, figures): (&(Namespace, RouteName, i64), &Figures),
) -> impl Iterator<Item = TaskStat> + use<> {
    let (namespace, name, minute) = key.clone();
    let fields: Vec<(u16, u64)> = figures.fields().collect();
    fields.into_iter().map(move |(field, value)| TaskStat {
        minute,
        namespace: namespace.clone(),
        name: name.clone(),
        field,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_one_minute_are_merged_up_to_the_bound() {
        let key =
            |minute| (Namespace::default_namespace(), RouteName::from_stored("charge"), minute);
        let mut one = Figures::default();
        one.attempt(true, Duration::ZERO, Duration::from_millis(1));
        let mut pending = Pending::new();
        add(&mut pending, key(1), &one);
        add(&mut pending, key(1), &one);
        assert_eq!(pending[&key(1)].completed(), 2);
        for minute in 2..=ROWS_MAX as i64 + 5 {
            add(&mut pending, key(minute), &one);
        }
        assert_eq!(pending.len(), ROWS_MAX, "rows beyond the bound are left out");
        add(&mut pending, key(1), &one);
        assert_eq!(pending[&key(1)].completed(), 3, "a known row still counts");
    }
}
