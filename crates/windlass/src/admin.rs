//! For operators: stores, verification, export, retention, limits, rates, workers, dead letters, schedules, metrics.
//!
//! [`Engine::admin`](crate::Engine::admin) gives an [`Admin`].
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let engine = windlass::Engine::open("memory:").await?;
//! let report = engine.admin().verify().await?;
//! assert!(report.is_clean());
//! # Ok::<(), windlass::Error>(()) }).unwrap();
//! ```

pub mod transfer;

use std::sync::Arc;

pub use windlass_engine::{
    Admission, Archive, BackpressureConfig, EnqueuedReason, Metrics, Missed, OnEnqueued, Options,
    Overlap, Requeued, Retention, Schedule, ScheduleState, SchedulesPage, Swept, Timing,
};
pub use windlass_kernel::verify::{Anchor, Report};
pub use windlass_kernel::{
    Actor, BreakerRow, DeadLetter, LimitKey, QueueName, Rate, TaskId, WorkerKey, WorkflowName,
};
use windlass_kernel::{Error, Store, Timestamp};

pub use crate::archive::FileArchive;
use crate::model;
pub use crate::store::{inspect_store, open_store};

/// Calls for operators, on an engine.
#[derive(Clone, Copy)]
pub struct Admin<'a> {
    core: &'a model::Engine,
}

impl<'a> Admin<'a> {
    pub(crate) fn new(core: &'a model::Engine) -> Self {
        Self { core }
    }

    /// The store.
    pub fn store(self) -> &'a Arc<dyn Store> {
        self.core.store()
    }

    /// The options that the engine was started with.
    pub fn options(self) -> &'a Options {
        self.core.options()
    }

    /// Counters of the work that this engine did.
    pub fn metrics(self) -> &'a Arc<Metrics> {
        self.core.metrics()
    }

    /// Checks the ledgers of all runs against their rows and hashes.
    ///
    /// # Errors
    ///
    /// The store cannot be read. Flaws are no error: see [`Report`].
    pub async fn verify(self) -> Result<Report, Error> {
        windlass_kernel::verify::verify_store(&**self.core.store(), &[]).await
    }

    /// Takes ready runs, begins at most `steps_max` steps in them and waits until they give their turns back.
    /// For hosts that drive the engine themselves ([`Builder::background`](crate::Builder::background)). Returns
    /// the number of runs.
    ///
    /// # Errors
    ///
    /// The store cannot be used.
    pub async fn tick(self, runs_max: u32, steps_max: Option<u32>) -> Result<u32, Error> {
        self.core.tick(runs_max, steps_max).await
    }

    /// Whether the workers are near enough to their backlog to accept a new run.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn should_accept_workflow(self) -> Result<bool, Error> {
        self.core.should_accept_workflow().await
    }

    /// The key of this process among the workers of the store.
    pub fn worker(self) -> WorkerKey {
        self.core.worker()
    }

    /// Asks a worker, of this process or of another, to take nothing new, to finish its work and to stop.
    /// `Ok(false)` if there is no such worker, or it has stopped.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn drain_worker(self, worker: WorkerKey) -> Result<bool, Error> {
        self.core.drain_worker(worker).await
    }

    /// Limits how many runs or tasks with a key are held at the same time, over all processes; `None` removes
    /// the limit.
    ///
    /// # Errors
    ///
    /// The key is not valid, or the store cannot be written.
    pub async fn set_limit(
        self,
        key: impl AsRef<str>,
        holders_max: Option<u32>,
    ) -> Result<(), Error> {
        self.core.set_limit(key, holders_max).await
    }

    /// Limits how often attempts at tasks with a key begin, over all processes; `None` removes the rate.
    ///
    /// # Errors
    ///
    /// The key or the rate is not valid, or the store cannot be written.
    pub async fn set_rate(self, key: impl AsRef<str>, rate: Option<Rate>) -> Result<(), Error> {
        self.core.set_rate(key, rate).await
    }

    /// As [`Admin::set_rate`], for all tasks of a queue.
    ///
    /// # Errors
    ///
    /// As [`Admin::set_rate`].
    pub async fn set_queue_rate(self, queue: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.core.set_queue_rate(queue, rate).await
    }

    /// As [`Admin::set_rate`], for all activities of a type.
    ///
    /// # Errors
    ///
    /// As [`Admin::set_rate`].
    pub async fn set_activity_rate(self, name: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.core.set_activity_rate(name, rate).await
    }

    /// One page of the circuit breakers, by key.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn breakers(
        self,
        after: Option<LimitKey>,
        limit: u32,
    ) -> Result<Vec<BreakerRow>, Error> {
        self.core.breakers(after, limit).await
    }

    /// Closes a circuit breaker. `Ok(false)` if there is none with this key.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn reset_breaker(self, key: impl AsRef<str>) -> Result<bool, Error> {
        self.core.reset_breaker(key).await
    }

    /// One page of the dead letters, oldest first. A requeued letter stays until it is deleted.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn dead_letters(
        self,
        queue: Option<QueueName>,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        self.core.dead_letters(queue, after, limit).await
    }

    /// Tries the work of a dead letter again: an effect returns to its queue, a run is retried.
    ///
    /// # Errors
    ///
    /// There is no such letter, it was requeued before, or the store cannot be written.
    pub async fn requeue(self, task_id: TaskId, actor: Option<Actor>) -> Result<Requeued, Error> {
        self.core.requeue(task_id, actor).await
    }

    /// Deletes dead letters. Returns how many there were.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn delete_dead_letters(self, task_ids: Vec<TaskId>) -> Result<u64, Error> {
        self.core.delete_dead_letters(task_ids).await
    }

    /// Deletes all dead letters that are older than a time, of one queue if it is given. Returns how many.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn purge_dead_letters_before(
        self,
        queue: Option<QueueName>,
        before: Timestamp,
    ) -> Result<u64, Error> {
        self.core.purge_dead_letters_before(queue, before).await
    }

    /// Sets the retention of the ended runs of a workflow; `None` keeps them for ever.
    ///
    /// # Errors
    ///
    /// The retention is not valid, or the store cannot be written.
    pub async fn set_retention(
        self,
        workflow: impl AsRef<str>,
        retention: Option<&Retention>,
    ) -> Result<(), Error> {
        self.core.set_retention(workflow, retention).await
    }

    /// The retention policies, by workflow.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn retentions(self) -> Result<Vec<(WorkflowName, Retention)>, Error> {
        self.core.retentions().await
    }

    /// Deletes the runs whose retention is over. The engine does so by itself from time to time
    /// ([`Builder::sweep_every`](crate::Builder::sweep_every)).
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn sweep(self) -> Result<Swept, Error> {
        self.core.sweep().await
    }

    /// All schedules, oldest first.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn schedules(self) -> Result<Vec<ScheduleState>, Error> {
        self.core.schedules().await
    }

    /// A schedule by its name.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn schedule(self, name: &str) -> Result<Option<ScheduleState>, Error> {
        self.core.schedule(name).await
    }

    /// Stops a schedule from starting runs until it is resumed.
    ///
    /// # Errors
    ///
    /// There is no such schedule, or the store cannot be written.
    pub async fn pause_schedule(self, name: &str) -> Result<(), Error> {
        self.core.pause_schedule(name).await
    }

    /// Lets a paused schedule start runs again.
    ///
    /// # Errors
    ///
    /// There is no such schedule, or the store cannot be written.
    pub async fn resume_schedule(self, name: &str) -> Result<(), Error> {
        self.core.resume_schedule(name).await
    }

    /// Ends a schedule. The runs that it started continue.
    ///
    /// # Errors
    ///
    /// There is no such schedule, or the store cannot be written.
    pub async fn delete_schedule(self, name: &str) -> Result<(), Error> {
        self.core.delete_schedule(name).await
    }
}
