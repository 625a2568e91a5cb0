//! The context that every component of the engine shares, and small helpers that need nothing else.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;
use windlass_kernel::{
    Error, ErrorCode, ErrorKind, Query, Run, RunKey, Stamp, Store, Timestamp, WorkerKey,
};

use crate::clock::Clock;
use crate::env::{Env, Lane};
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::options::{EnqueuedReason, Options};

/// A hasher without a random seed: two simulator runs with the same seed must iterate in the same order.
pub(crate) type FixedState = BuildHasherDefault<DefaultHasher>;

/// The store, the environment and the settings of one engine. It holds no mutable engine state
/// except for the lifecycle.
pub(crate) struct Core {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    pub(crate) worker: WorkerKey,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lifecycle: Lifecycle,
}

impl Core {
    /// A stamp with the current time, but later than `at`: the events of one run have rising times.
    pub(crate) fn stamp_after(&self, at: Timestamp) -> Stamp {
        let at = self.clock.now().max(at.plus(Duration::from_micros(1)));
        self.clock.stamp(at)
    }

    /// Calls the host's hook for a run that has something to do.
    pub(crate) fn run_enqueued(&self, run: &Run, reason: EnqueuedReason) {
        if let Some(on_enqueued) = &self.options.on_enqueued {
            on_enqueued(run.workflow.as_str(), run.id.as_str(), reason);
        }
    }

    /// Runs `work` in a task of its own, so that it completes even if the caller drops this future:
    /// a turn that it revoked is released, and a run that it holds is started.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = futures::channel::oneshot::channel();
        let work = async move { drop(sender.send(work.await)) };
        self.env.spawn(Lane::User, Box::pin(work.in_current_span()));
        receiver.await.map_err(|_| interrupted())
    }

    /// The current row of a run.
    pub(crate) async fn current(&self, run_key: RunKey) -> Result<Run, Error> {
        let overview = self.store.run_overview_by_key(run_key).await?;
        overview.map(|overview| overview.run).ok_or_else(|| {
            let message = format!("there is no run {run_key}");
            Error::new(ErrorKind::NotFound, ErrorCode::RunNotFound, message)
        })
    }

    /// The newest generation of a run.
    pub(crate) async fn newest(&self, run: &Run) -> Result<Run, Error> {
        let (namespace, workflow) = (run.namespace.clone(), run.workflow.clone());
        let newest = self.store.find(namespace, workflow, run.id.clone()).await?;
        Ok(newest.unwrap_or_else(|| run.clone()))
    }

    /// The generation that follows a run's.
    pub(crate) async fn next_generation_of(&self, run_key: RunKey) -> Result<RunKey, Error> {
        let run = self.current(run_key).await?;
        let query = Query::Generations {
            namespace: run.namespace.clone(),
            workflow: run.workflow.clone(),
            id: run.id.clone(),
            before: Some(run.generation + 2),
            limit: 1,
        };
        let next = self.store.list(query).await?.runs()?.into_iter().next();
        let next = next.filter(|next| next.generation == run.generation + 1);
        next.map(|next| next.run_key).ok_or_else(|| {
            let message = format!("run {:?} has no generation after {}", run.id, run.generation);
            Error::new(ErrorKind::NotFound, ErrorCode::RunNotFound, message)
        })
    }
}

/// The error of a request that has written already, or may have: it must not say that nothing was
/// written.
pub fn after_write(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unavailable | ErrorKind::Closed => {
            let message = format!("the request may have been written: {}", error.message());
            Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, message)
        }
        _ => error,
    }
}

/// The engine stopped before it could answer.
pub(crate) fn interrupted() -> Error {
    let message = "the engine stopped before the outcome of the request was known; check the run";
    Error::new(ErrorKind::Unknown, ErrorCode::EngineStopping, message)
}
