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
    Overlap, Requeued, Retention, Schedule, ScheduleState, SchedulesPage, Swept, Tick, Ticked,
    Timing,
};
pub use windlass_kernel::verify::{Anchor, Report};
pub use windlass_kernel::{
    Actor, BreakerRow, DeadLetter, LimitKey, QueueName, Rate, TaskId, WorkerKey, WorkflowName,
};
use windlass_kernel::{Error, Store, Timestamp};

pub use crate::archive::FileArchive;
use crate::model;
pub use crate::store::{Connections, inspect_store, open_store, open_store_with_limits};

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
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let health = engine.admin().store().health().await?;
    /// # drop(health);
    /// # Ok(()) }
    /// ```
    pub fn store(self) -> &'a Arc<dyn Store> {
        self.core.store()
    }

    /// The options that the engine was started with.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// println!("{} turns at once", engine.admin().options().turns_max);
    /// # Ok(()) }
    /// ```
    pub fn options(self) -> &'a Options {
        self.core.options()
    }

    /// Counters of the work that this engine did.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// for counter in engine.admin().metrics().all() {
    ///     println!("{counter:?}");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn metrics(self) -> &'a Arc<Metrics> {
        self.core.metrics()
    }

    /// Checks the ledgers of all runs against their rows and hashes.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let report = engine.admin().verify().await?;
    /// assert!(report.is_clean());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read. Flaws are no error: see [`Report`].
    pub async fn verify(self) -> Result<Report, Error> {
        windlass_kernel::verify::verify_store(&**self.core.store(), &[]).await
    }

    /// Takes ready runs and tasks within the limits of `tick`, and waits for them. For hosts that drive the
    /// engine themselves ([`Builder::background`](crate::Builder::background)). With
    /// [`Tick::wait_max`] it returns in time, and the result says how much goes on.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::admin::Tick;
    ///
    /// while engine.admin().tick(Tick::default()).await?.processed > 0 {}
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be used.
    pub async fn tick(self, tick: Tick) -> Result<Ticked, Error> {
        self.core.tick(tick).await
    }

    /// Whether the workers are near enough to their backlog to accept a new run.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// if !engine.admin().should_accept_workflow().await? {
    ///     println!("the workers are behind");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn should_accept_workflow(self) -> Result<bool, Error> {
        self.core.should_accept_workflow().await
    }

    /// The key of this process among the workers of the store.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// println!("this worker is {}", engine.admin().worker());
    /// # Ok(()) }
    /// ```
    pub fn worker(self) -> WorkerKey {
        self.core.worker()
    }

    /// Asks a worker, of this process or of another, to take nothing new, to finish its work and to stop.
    /// `Ok(false)` if there is no such worker, or it has stopped.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let admin = engine.admin();
    /// admin.drain_worker(admin.worker()).await?;
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// engine.admin().set_limit("tenant-7", Some(10)).await?;
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::Rate;
    ///
    /// engine.admin().set_rate("tenant-7", Some(Rate::per(5, "1 second")?)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The key or the rate is not valid, or the store cannot be written.
    pub async fn set_rate(self, key: impl AsRef<str>, rate: Option<Rate>) -> Result<(), Error> {
        self.core.set_rate(key, rate).await
    }

    /// As [`Admin::set_rate`], for all tasks of a queue.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::Rate;
    ///
    /// engine.admin().set_queue_rate("mail", Some(Rate::per(1_000, "1 hour")?.burst(50))).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Admin::set_rate`].
    pub async fn set_queue_rate(self, queue: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.core.set_queue_rate(queue, rate).await
    }

    /// As [`Admin::set_rate`], for all activities of a type.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::Rate;
    ///
    /// engine.admin().set_activity_rate("charge_card", Some(Rate::per(20, "1 second")?)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Admin::set_rate`].
    pub async fn set_activity_rate(self, name: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.core.set_activity_rate(name, rate).await
    }

    /// One page of the circuit breakers, by key.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// for breaker in engine.admin().breakers(None, 100).await? {
    ///     println!("{}", breaker.key);
    /// }
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// engine.admin().reset_breaker("activity:charge_card").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn reset_breaker(self, key: impl AsRef<str>) -> Result<bool, Error> {
        self.core.reset_breaker(key).await
    }

    /// One page of the dead letters, oldest first. A requeued letter stays until it is deleted.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// for letter in engine.admin().dead_letters(None, None, 100).await? {
    ///     println!("{}", letter.task_id);
    /// }
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// for letter in engine.admin().dead_letters(None, None, 100).await? {
    ///     engine.admin().requeue(letter.task_id, None).await?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// There is no such letter, it was requeued before, or the store cannot be written.
    pub async fn requeue(self, task_id: TaskId, actor: Option<Actor>) -> Result<Requeued, Error> {
        self.core.requeue(task_id, actor).await
    }

    /// Deletes dead letters. Returns how many there were.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let letters = engine.admin().dead_letters(None, None, 100).await?;
    /// let ids = letters.iter().map(|letter| letter.task_id).collect();
    /// engine.admin().delete_dead_letters(ids).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn delete_dead_letters(self, task_ids: Vec<TaskId>) -> Result<u64, Error> {
        self.core.delete_dead_letters(task_ids).await
    }

    /// Deletes all dead letters that are older than a time, of one queue if it is given. Returns how many.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use std::time::Duration;
    ///
    /// let now = engine.admin().store().now().await?;
    /// let week_ago = now.minus(Duration::from_secs(7 * 86_400));
    /// engine.admin().purge_dead_letters_before(None, week_ago).await?;
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use windlass::admin::Retention;
    ///
    /// let month = Retention::keep_for("30 days")?;
    /// engine.admin().set_retention("order", Some(&month)).await?;
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// for (workflow, retention) in engine.admin().retentions().await? {
    ///     println!("{workflow}: {:?}", retention.span());
    /// }
    /// # Ok(()) }
    /// ```
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
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let swept = engine.admin().sweep().await?;
    /// # drop(swept);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn sweep(self) -> Result<Swept, Error> {
        self.core.sweep().await
    }

    /// All schedules, oldest first.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// println!("{} schedules", engine.admin().schedules().await?.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn schedules(self) -> Result<Vec<ScheduleState>, Error> {
        self.core.schedules().await
    }

    /// A schedule by its name.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// assert!(engine.admin().schedule("nightly").await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn schedule(self, name: &str) -> Result<Option<ScheduleState>, Error> {
        self.core.schedule(name).await
    }

    /// Stops a schedule from starting runs until it is resumed.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// engine.admin().pause_schedule("nightly").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// There is no such schedule, or the store cannot be written.
    pub async fn pause_schedule(self, name: &str) -> Result<(), Error> {
        self.core.pause_schedule(name).await
    }

    /// Lets a paused schedule start runs again.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// engine.admin().resume_schedule("nightly").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// There is no such schedule, or the store cannot be written.
    pub async fn resume_schedule(self, name: &str) -> Result<(), Error> {
        self.core.resume_schedule(name).await
    }

    /// Ends a schedule. The runs that it started continue.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// engine.admin().delete_schedule("nightly").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// There is no such schedule, or the store cannot be written.
    pub async fn delete_schedule(self, name: &str) -> Result<(), Error> {
        self.core.delete_schedule(name).await
    }
}
