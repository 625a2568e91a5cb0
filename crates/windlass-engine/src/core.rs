//! The context that every component of the engine shares, and small helpers that need nothing else.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::Notify;
use tracing::Instrument as _;
use windlass_kernel::{
    Actor, Error, ErrorCode, ErrorKind, Query, Run, RunKey, Stamp, Store, Timestamp, WorkerKey,
    bodies,
};

use crate::changes::ChangeFeed;
use crate::clock::Clock;
use crate::env::{Env, ThreadPool};
use crate::lifecycle::Lifecycle;
use crate::metrics::Metrics;
use crate::options::{EnqueuedReason, Options};
use crate::tasks::panic_text;

const RESTART_DELAY_MIN: Duration = Duration::from_millis(100);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(10);

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
    pub(crate) changes: ChangeFeed,
    pub(crate) lifecycle: Lifecycle,
    /// The store may have holds of this worker that nobody here knows.
    pub(crate) unknown_holds: AtomicBool,
    /// A record of the engine was removed: its row is to be deleted one day.
    pub(crate) record_removed: Notify,
}

impl Core {
    /// A stamp with the current time, but later than `at`: the events of one run have rising times.
    pub(crate) fn stamp_after(&self, at: Timestamp) -> Stamp {
        let at = self.clock.now().max(at.plus(Duration::from_micros(1)));
        self.clock.stamp(at)
    }

    pub(crate) fn has_unknown_holds(&self) -> bool {
        self.unknown_holds.load(Ordering::Acquire)
    }

    /// Notes whether the next scan must look for holds that nobody here knows. The caller wakes the
    /// claimer.
    pub(crate) fn set_unknown_holds(&self, unknown: bool) {
        self.unknown_holds.store(unknown, Ordering::Release);
    }

    /// Calls the host's hook for a run that has something to do.
    pub(crate) fn run_enqueued(&self, run: &Run, reason: EnqueuedReason) {
        if let Some(on_enqueued) = &self.options.on_enqueued {
            on_enqueued(run.workflow.as_str(), run.id.as_str(), reason);
        }
    }

    /// A span that is up to a tenth shorter, so that processes that started together do not send their
    /// periodic queries together.
    pub(crate) fn jittered(&self, span: Duration) -> Duration {
        let unit = (self.env.random() >> 32) as f64 / f64::from(u32::MAX);
        span.mul_f64(1.0 - unit / 10.0)
    }

    /// Starts a loop of the engine. After a panic it is started again: an engine without its claimer
    /// or its lease would look alive and do nothing.
    pub(crate) fn spawn_service<F>(
        self: &Arc<Self>,
        name: &'static str,
        serve: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let core = Arc::clone(self);
        let supervised = async move {
            let mut delay = RESTART_DELAY_MIN;
            loop {
                let began = core.env.elapsed();
                let Err(panic) = AssertUnwindSafe(serve()).catch_unwind().await else { return };
                core.metrics.service_panics.add(1);
                let panic = panic_text(&*panic);
                tracing::error!(
                    service = name,
                    panic,
                    "a loop of the engine panicked; restarting it"
                );
                if core.env.elapsed() - began > RESTART_DELAY_MAX {
                    delay = RESTART_DELAY_MIN;
                }
                core.lifecycle.until_stopped(core.env.sleep(delay)).await;
                delay = (delay * 2).min(RESTART_DELAY_MAX);
            }
        };
        self.env.spawn(ThreadPool::Service, Box::pin(supervised));
    }

    /// Runs `work` in a task of its own, so that it completes even if the caller drops this future:
    /// a turn that it revoked is released, and a run that it holds is started.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = futures::channel::oneshot::channel();
        let work = async move { drop(sender.send(work.await)) };
        self.env.spawn(ThreadPool::User, Box::pin(work.in_current_span()));
        receiver.await.map_err(|_| interrupted())
    }

    /// Refuses an actor that is too large: the actor is in the events of a run, and an event that is
    /// too large would block the run.
    pub(crate) fn check_actor(&self, actor: Option<&Actor>) -> Result<(), Error> {
        actor.map_or(Ok(()), |actor| actor.validate(&self.options.limits))
    }

    /// The current row of a run.
    pub(crate) async fn current(&self, run_key: RunKey) -> Result<Run, Error> {
        let overview = self.store.run_overview_by_key(run_key).await?;
        overview.map(|overview| overview.run).ok_or_else(|| {
            let message = format!("there is no run {run_key}");
            Error::new(ErrorKind::NotFound, ErrorCode::RunNotFound, message)
        })
    }

    /// Reads the large bodies of a run's row.
    pub(crate) async fn fill_run(&self, run: &mut Run) -> Result<(), Error> {
        bodies::fill(&*self.store, bodies::of_run(run)).await
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
