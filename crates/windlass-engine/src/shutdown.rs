//! Stopping an engine: it takes no new work, finishes what it holds, and releases the rest.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{Error, WorkerStatus};

use crate::capacity::Capacity;
use crate::core::Core;
use crate::env::ThreadPool;
use crate::heartbeats::Heartbeats;
use crate::lifecycle::Phase;
use crate::local_runs::LocalRuns;
use crate::signals::Signals;
use crate::task_stats::TaskStats;
use crate::templates::Templates;
use crate::trials::Trials;
use crate::workers::WorkerRow;

const POLL_EVERY: Duration = Duration::from_millis(5);

pub(crate) struct Shutdown {
    pub(crate) core: Arc<Core>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) runs: Arc<LocalRuns>,
    pub(crate) capacity: Arc<Capacity>,
    /// Held by the claimer during a claim: claimed work is started or released before the engine stops.
    pub(crate) claiming: Arc<tokio::sync::Mutex<()>>,
    pub(crate) heartbeats: Arc<Heartbeats>,
    pub(crate) stats: Arc<TaskStats>,
    pub(crate) templates: Arc<Templates>,
    pub(crate) row: Arc<WorkerRow>,
    pub(crate) trials: Arc<Trials>,
}

impl Shutdown {
    /// Stops the engine. Turns and tasks may finish `within` a time, or without a deadline.
    pub(crate) async fn stop(&self, within: Option<Duration>) -> Result<(), Error> {
        let Core { env, store, .. } = &*self.core;
        self.advance(Phase::Draining);
        self.runs.notify_all();
        let until = within.map(|within| env.elapsed() + within);
        while self.capacity.is_busy() && until.is_none_or(|until| env.elapsed() < until) {
            if within.is_none() && self.core.lifecycle.is_stopped() {
                // A concurrent shutdown with a deadline won.
                return Ok(());
            }
            env.sleep(POLL_EVERY).await;
        }
        self.advance(Phase::Stopped);
        drop(self.claiming.lock().await);
        self.trials.end_trial().await;
        self.heartbeats.flush().await;
        self.stats.flush().await;
        if let Err(error) = self.templates.write().await {
            tracing::warn!(%error, "failed to publish workflow template");
        }
        let held = store.held(self.core.worker).await?;
        if !held.is_empty() {
            store.release(held).await?;
        }
        self.row.renew(WorkerStatus::Stopped).await?;
        Ok(())
    }

    /// Stops in the background when all held work is done.
    pub(crate) fn drain(self: &Arc<Self>) {
        if self.core.lifecycle.is_draining() {
            return;
        }
        tracing::info!(worker = %self.core.worker, "draining this worker as requested");
        self.advance(Phase::Draining);
        let shutdown = Arc::clone(self);
        let drain = async move {
            // Operators see the new status before the worker has stopped.
            if let Err(error) = shutdown.row.renew(WorkerStatus::Draining).await {
                tracing::warn!(%error, "failed to write the status \"draining\" to the worker's row");
            }
            if let Err(error) = shutdown.stop(None).await {
                tracing::warn!(%error, "failed to release held work or to write the status \"stopped\"");
            }
        };
        self.core.env.spawn(ThreadPool::Service, Box::pin(drain));
    }

    fn advance(&self, phase: Phase) {
        self.core.lifecycle.advance(phase);
        self.signals.everything();
    }
}
