//! The row of this worker in the store and its lease; the holds of dead workers are freed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select;
use tokio::sync::Notify;
use windlass_kernel::{Error, HeldItem, Query, Renewed, Worker, WorkerInfo, WorkerStatus};

use crate::capacity::Capacity;
use crate::core::Core;
use crate::local_runs::LocalRuns;
use crate::registry::Registry;
use crate::shutdown::Shutdown;
use crate::signals::Signals;
use crate::task_stats::TaskStats;
use crate::tasks::{Claim, Tasks};

const REAP_MAX: u32 = 1_000;

/// How long after the end of another worker's lease this worker looks for its holds.
const LAPSE_SLACK: Duration = Duration::from_millis(100);

/// The least time between two renewals that follow missed wake-ups.
const MISSED_DELAY: Duration = Duration::from_millis(200);

/// How often a process looks whether its longer attempts still have their tasks.
const LOST_EVERY: Duration = Duration::from_secs(1);

/// The row of this worker in the store.
pub(crate) struct WorkerRow {
    core: Arc<Core>,
    registry: Arc<Registry>,
    tasks: Arc<Tasks>,
    capacity: Arc<Capacity>,
    stats: Arc<TaskStats>,
}

impl WorkerRow {
    pub(crate) fn new(
        core: Arc<Core>,
        registry: Arc<Registry>,
        tasks: Arc<Tasks>,
        capacity: Arc<Capacity>,
        stats: Arc<TaskStats>,
    ) -> Arc<Self> {
        Arc::new(Self { core, registry, tasks, capacity, stats })
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.capacity
    }

    /// Writes the row and renews the lease.
    pub(crate) async fn renew(&self, status: WorkerStatus) -> Result<Renewed, Error> {
        self.core.store.renew(self.info(status)).await
    }

    /// Updates this worker's row in a list of rows: the stored row is as old as the last renewal.
    pub(crate) fn refresh(&self, workers: &mut [Worker]) {
        for worker in workers.iter_mut().filter(|row| row.info.worker == self.core.worker) {
            worker.info = self.info(worker.info.status);
        }
    }

    /// The rows of all live workers.
    pub(crate) async fn live_workers(&self) -> Result<Vec<Worker>, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let now = self.core.clock.now();
        let mut live = Vec::new();
        let mut after = None;
        loop {
            let mut page =
                self.core.store.list(Query::Workers { after, limit }).await?.workers()?;
            self.refresh(&mut page);
            after = page.last().map(|worker| worker.info.worker);
            let is_last = page.len() < limit as usize;
            live.extend(page.into_iter().filter(|worker| worker.is_live(now)));
            if is_last {
                return Ok(live);
            }
        }
    }

    /// The row as it is now.
    pub(crate) fn info(&self, status: WorkerStatus) -> WorkerInfo {
        let options = &self.core.options;
        // No other process waits for the lease of the only one.
        let forever = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let done = self.stats.total();
        let (turns_held, tasks_held) = (self.capacity.turns_held(), self.capacity.tasks_held());
        let draining = self.core.lifecycle.is_draining().then_some("it drains");
        let note = draining.or_else(|| self.capacity.pressure().reason());
        WorkerInfo {
            worker: self.core.worker,
            name: options.worker_name.as_str().into(),
            version: options.version.as_str().into(),
            status,
            lease: if options.shared { options.lease } else { forever },
            turns: self.registry.routes().into_iter().map(|(route, _)| route).collect(),
            tasks: self.tasks.routes(),
            slots: count(options.turns_max.saturating_add(options.tasks_max)),
            note: note.map(Into::into),
            load: count(turns_held + tasks_held),
            task_slots: count(options.tasks_max),
            task_load: count(tasks_held),
            accepting: note.is_none(),
            group: options.worker_group.as_str().into(),
            host: options.host.as_str().into(),
            tasks_completed: done.completed(),
            tasks_failed: done.failed(),
            tasks_took: Duration::from_micros(done.took_us()),
        }
    }
}

/// Compares what the store says that this worker holds with what it does hold.
pub(crate) struct Holdings {
    core: Arc<Core>,
    runs: Arc<LocalRuns>,
    tasks: Arc<Tasks>,
    // A claim is in the store before its rows are marked as held here. The claimer holds this lock
    // meanwhile.
    claiming: Arc<tokio::sync::Mutex<()>>,
}

impl Holdings {
    pub(crate) fn new(
        core: &Arc<Core>,
        runs: &Arc<LocalRuns>,
        tasks: Arc<Tasks>,
        claiming: &Arc<tokio::sync::Mutex<()>>,
    ) -> Arc<Self> {
        let (core, runs, claiming) = (Arc::clone(core), Arc::clone(runs), Arc::clone(claiming));
        Arc::new(Self { core, runs, tasks, claiming })
    }

    /// Cancels the attempts that have lost their task, again and again, until the engine stops. The
    /// commit that cancels an activity of a machine in another process removes the task's row, and an
    /// attempt without heartbeats would not learn of it before the next scan.
    pub(crate) async fn serve(self: Arc<Self>) {
        let Core { env, lifecycle, .. } = &*self.core;
        let mut seen = BTreeSet::new();
        while lifecycle.until_stopped(env.sleep(LOST_EVERY)).await.is_some() {
            // Only attempts that run for longer: an engine with quick activities, or none, sends no query.
            let running = self.tasks.running();
            let long: BTreeSet<Claim> = running.intersection(&seen).copied().collect();
            seen = running;
            if !long.is_empty()
                && let Err(error) = self.cancel_lost(long).await
            {
                tracing::debug!(%error, "failed to look for cancelled activities; retrying");
            }
        }
    }

    async fn cancel_lost(&self, mut lost: BTreeSet<Claim>) -> Result<(), Error> {
        for item in self.core.store.held(self.core.worker).await? {
            if let HeldItem::Task { task_id, claim_no, .. } = item {
                lost.remove(&(task_id, claim_no));
            }
        }
        lost.iter().for_each(|claim| self.tasks.cancel_claim(claim));
        Ok(())
    }

    /// Cancels the attempts that have lost their task, and releases the holds in the store that this
    /// process does not know.
    pub(crate) async fn reconcile(&self) -> Result<(), Error> {
        let _claiming = self.claiming.lock().await;
        // Before the store is read: an attempt that starts meanwhile must not look lost.
        let mut lost = self.tasks.running();
        let mut held = self.core.store.held(self.core.worker).await?;
        for item in &held {
            if let HeldItem::Task { task_id, claim_no, .. } = item {
                lost.remove(&(*task_id, *claim_no));
            }
        }
        lost.iter().for_each(|claim| self.tasks.cancel_claim(claim));
        self.runs.retain_unheld(&mut held, |item| match item {
            HeldItem::Turn { run_key, .. } => Some(*run_key),
            HeldItem::Task { .. } => None,
        });
        held.retain(|item| match item {
            HeldItem::Turn { .. } => true,
            HeldItem::Task { task_id, claim_no, .. } => !self.tasks.is_held(&(*task_id, *claim_no)),
        });
        if !held.is_empty() {
            tracing::warn!(count = held.len(), "releasing holds that this process does not know");
            self.core.store.release(held).await?;
        }
        Ok(())
    }
}

/// Renews the lease, and frees what dead workers held.
pub(crate) struct Lease {
    pub(crate) core: Arc<Core>,
    pub(crate) row: Arc<WorkerRow>,
    pub(crate) holdings: Arc<Holdings>,
    pub(crate) runs: Arc<LocalRuns>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) shutdown: Arc<Shutdown>,
    /// Wake-ups may have been missed, those for control requests to held runs included.
    pub(crate) missed: Arc<Notify>,
}

impl Lease {
    /// Renews until the engine stops.
    pub(crate) async fn serve(self: Arc<Self>) {
        let Core { env, options, lifecycle, .. } = &*self.core;
        let mut reap_in = 0_u32;
        // At once: the holds of workers that died before this one came must not wait for a renewal,
        // and in a fleet that crashes all the time nobody may live that long.
        let mut renew_at = env.elapsed();
        // When the lease of another worker ends, if that is before the next renewal.
        let mut reap_at: Option<Duration> = None;
        while !lifecycle.is_stopped() {
            let next = reap_at.map_or(renew_at, |at| at.min(renew_at));
            let slept = env.sleep(next.saturating_sub(env.elapsed()));
            let (stopped, missed) =
                (std::pin::pin!(lifecycle.stopped()), std::pin::pin!(self.missed.notified()));
            select(select(slept, missed), stopped).await;
            if lifecycle.is_stopped() {
                return;
            }
            let now = env.elapsed();
            let due = now >= renew_at;
            let has_lapsed = reap_at.is_some_and(|at| now >= at);
            let renewed = match (due, has_lapsed) {
                (true, _) => self.renew_and_reap(&mut reap_in).await.map(|at| reap_at = at),
                (false, true) => self.reap().await.map(|_| reap_at = None),
                (false, false) => self.renew().await.map(|_| ()),
            };
            if let Err(error) = renewed {
                tracing::warn!(%error, "failed to renew the lease; retrying");
                env.sleep(MISSED_DELAY).await;
            } else if due {
                renew_at = env.elapsed() + self.core.jittered(options.renew_every);
            } else if !has_lapsed {
                env.sleep(MISSED_DELAY).await;
            }
        }
    }

    // The answer names the held runs with unread control requests. So a renewal also finds the requests
    // whose wake-up was missed.
    async fn renew(&self) -> Result<Renewed, Error> {
        let draining = self.core.lifecycle.is_draining();
        let status = if draining { WorkerStatus::Draining } else { WorkerStatus::Active };
        let mut renewed = self.row.renew(status).await?;
        self.core.metrics.renewals.add(1);
        self.core.clock.correct(renewed.now);
        if renewed.lapsed {
            tracing::warn!("the lease had expired; other workers may have claimed its work");
            self.holdings.reconcile().await?;
        }
        if renewed.drain {
            self.shutdown.drain();
        }
        for run_key in std::mem::take(&mut renewed.control) {
            self.runs.notify(run_key);
        }
        Ok(renewed)
    }

    // Returns when to look for a dead worker before the next renewal.
    async fn renew_and_reap(&self, reap_in: &mut u32) -> Result<Option<Duration>, Error> {
        let renewed = self.renew().await?;
        if *reap_in == 0 {
            *reap_in = renewals_per_reap(self.core.options.lease, self.core.options.renew_every);
            if renewed.may_reap && self.reap().await? {
                *reap_in = 1;
            }
        }
        *reap_in -= 1;
        let lapse_in = renewed.next_lapse.map(|at| at.since(renewed.now) + LAPSE_SLACK);
        let soon =
            lapse_in.filter(|wait| renewed.may_reap && *wait < self.core.options.renew_every);
        Ok(soon.map(|wait| self.core.env.elapsed() + wait))
    }

    // Returns whether anything was freed. A dead worker may have held many times `REAP_MAX`.
    async fn reap(&self) -> Result<bool, Error> {
        let mut any = false;
        loop {
            let reaped = self.core.store.reap(self.core.worker, REAP_MAX).await?;
            let (turns, tasks) = (reaped.turns.len(), reaped.tasks.len());
            if turns + tasks == 0 {
                return Ok(any);
            }
            tracing::warn!(turns, tasks, "freed the holds of dead workers");
            self.signals.everything();
            any = true;
            if turns.max(tasks) < REAP_MAX as usize {
                return Ok(any);
            }
        }
    }
}

// Dead workers are looked for about twice in the time of a lease.
fn renewals_per_reap(lease: Duration, renew_every: Duration) -> u32 {
    u32::try_from(lease.as_millis() / 2 / renew_every.as_millis().max(1)).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_workers_are_looked_for_about_twice_a_lease() {
        for (lease_s, renew_s, expect) in [(30, 5, 3), (30, 10, 1), (60, 1, 30), (3, 1, 1)] {
            let (lease, every) = (Duration::from_secs(lease_s), Duration::from_secs(renew_s));
            assert_eq!(renewals_per_reap(lease, every), expect, "{lease_s} {renew_s}");
        }
    }
}
