//! The engine: claims what is ready, takes turns, and tells those who wait how runs ended.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use windlass_kernel::{
    Commit, Committed, Delivery, Error, ErrorKind, HeldItem, LimitKey, ModelName, Namespace, Op,
    Route, RouteName, Run, RunGuard, RunKey, Store, Task, TaskId, Worker, WorkerInfo, WorkerKey,
    WorkerStatus, WorkflowName,
};

use crate::admission::Admitting;
use crate::beats::Beats;
use crate::breakers::Refusals;
use crate::claim::{self, Signals};
use crate::clock::Clock;
use crate::env::{Env, Lane, new_uuid};
use crate::metrics::Metrics;
use crate::model::{Manners, Model};
use crate::options::{EnqueuedReason, Options};
use crate::pressure::{self, Pressure};
use crate::rates::Rates;
use crate::results::{Ended, Results};
use crate::retention;
use crate::room::Room;
use crate::schedules;
use crate::slot::Slot;
use crate::sticky::Sticky;
use crate::tallies::Tallies;
use crate::tasks::{Promised, TaskRoutes, Tasks, internal_queue};
use crate::templates::Templates;
use crate::workers;

/// A hasher without a random seed: two runs of the simulator must not differ.
pub(crate) type FixedState = BuildHasherDefault<DefaultHasher>;

/// How far an engine has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Draining,
    Stopped,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    pub(crate) worker: WorkerKey,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) models: RwLock<BTreeMap<WorkflowName, Registered>>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) beats: Beats,
    pub(crate) tallies: Tallies,
    pub(crate) rates: Rates,
    pub(crate) pressure: Pressure,
    pub(crate) admitting: Admitting,
    pub(crate) refusals: Refusals,
    pub(crate) live: Mutex<HashMap<RunKey, Arc<Slot>, FixedState>>,
    pub(crate) turns_held: AtomicUsize,
    pub(crate) sticky: Mutex<Sticky>,
    pub(crate) results: Results,
    pub(crate) templates: Templates,
    pub(crate) signals: Signals,
    /// Held while a claim is under way: what it brings is begun or given back before the engine stops.
    pub(crate) claiming: tokio::sync::Mutex<()>,
    pub(crate) backlog: AtomicBool,
    pub(crate) task_backlog: AtomicBool,
    pub(crate) policy_set: tokio::sync::Notify,
    /// Wake-ups may have been missed, those of requests to runs that are held here too.
    pub(crate) missed: tokio::sync::Notify,
    phase: AtomicU8,
    phase_rose: tokio::sync::Notify,
}

/// A workflow that this process serves.
#[derive(Clone)]
pub(crate) struct Registered {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) limit: Option<LimitKey>,
    pub(crate) room: Option<Arc<Room>>,
}

/// How a workflow is served.
#[derive(Clone, Debug, Default)]
pub struct Serving {
    /// How many turns of it this process holds at once: what is ready beyond that is left to others.
    /// Default: as many as the engine holds at all.
    pub slots: Option<usize>,
}

/// A running engine. Cheap to clone; the last clone that goes stops it without waiting.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<Inner>,
    pub(crate) namespace: Namespace,
    _life: Arc<Life>,
}

/// What a model needs of the engine to open runs.
#[derive(Clone)]
pub struct EngineParts {
    /// The environment.
    pub env: Arc<dyn Env>,
    /// The limits.
    pub limits: windlass_kernel::Limits,
}

struct Life(Arc<Inner>);

impl Drop for Life {
    fn drop(&mut self) {
        self.0.set_phase(Phase::Stopped);
    }
}

impl Engine {
    /// Starts an engine on a store.
    pub async fn start(
        store: Arc<dyn Store>,
        env: Arc<dyn Env>,
        options: Options,
    ) -> Result<Self, Error> {
        options.validate()?;
        options.backpressure.as_ref().map_or(Ok(()), |config| config.validate(&*env))?;
        let now = store.now().await?;
        let clock = Clock::new(Arc::clone(&env), now);
        let worker = WorkerKey(new_uuid(&*env, now));
        let sticky_bytes_max = options.sticky_bytes_max;
        let inner = Arc::new(Inner {
            tasks: Arc::new(Tasks::new(options.tasks_max)),
            beats: Beats::default(),
            tallies: Tallies::default(),
            rates: Rates::default(),
            pressure: Pressure::default(),
            admitting: Admitting::default(),
            refusals: Refusals::default(),
            store,
            env,
            clock,
            options,
            worker,
            metrics: Arc::default(),
            models: RwLock::default(),
            live: Mutex::default(),
            turns_held: AtomicUsize::new(0),
            sticky: Mutex::new(Sticky::new(sticky_bytes_max)),
            results: Results::default(),
            templates: Templates::default(),
            signals: Signals::default(),
            claiming: tokio::sync::Mutex::default(),
            backlog: AtomicBool::new(false),
            task_backlog: AtomicBool::new(false),
            policy_set: tokio::sync::Notify::new(),
            missed: tokio::sync::Notify::new(),
            phase: AtomicU8::new(Phase::Running as u8),
            phase_rose: tokio::sync::Notify::new(),
        });
        let renewed = inner.store.renew(inner.worker_info(WorkerStatus::Active)).await?;
        inner.clock.learn(renewed.now);
        let weak = Arc::downgrade(&inner);
        inner.store.listen(Arc::new(move |wakeup| {
            if let Some(inner) = weak.upgrade() {
                inner.woken(&wakeup);
            }
        }));
        if inner.options.background {
            inner.env.spawn(Lane::Service, Box::pin(claim::serve(Arc::clone(&inner))));
            let has_policies = !inner.policies().await?.is_empty();
            let sweeps = retention::serve(Arc::clone(&inner), has_policies);
            inner.env.spawn(Lane::Service, Box::pin(sweeps));
        }
        if inner.options.backpressure.is_some() {
            inner.env.spawn(Lane::Service, Box::pin(pressure::serve(Arc::clone(&inner))));
        }
        if inner.options.shared {
            inner.env.spawn(Lane::Service, Box::pin(workers::serve(Arc::clone(&inner))));
        }
        let life = Arc::new(Life(Arc::clone(&inner)));
        let namespace = inner.options.namespace.clone();
        let engine = Self { inner, namespace, _life: life };
        schedules::register(&engine)?;
        Ok(engine)
    }

    /// Serves the runs of a workflow with a model.
    pub fn register(&self, workflow: WorkflowName, model: Arc<dyn Model>) -> Result<(), Error> {
        self.register_with(workflow, model, Serving::default())
    }

    /// As [`Engine::register`], with options.
    pub fn register_with(
        &self,
        workflow: WorkflowName,
        model: Arc<dyn Model>,
        serving: Serving,
    ) -> Result<(), Error> {
        if serving.slots == Some(0) {
            let message = format!("{workflow:?} has 0 slots; it needs at least one to be served");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_OPTION", message));
        }
        if workflow.as_str().starts_with("windlass.") {
            let message =
                format!("{workflow:?}: names that begin with \"windlass.\" are the engine's");
            return Err(Error::new(ErrorKind::Invalid, "INVALID_NAME", message));
        }
        self.register_own(workflow, model, serving)
    }

    pub(crate) fn register_own(
        &self,
        workflow: WorkflowName,
        model: Arc<dyn Model>,
        serving: Serving,
    ) -> Result<(), Error> {
        let mut models = self.inner.models.write();
        if models.contains_key(&workflow) {
            let message = format!(
                "a workflow named {workflow:?} is registered already; give this one another name"
            );
            return Err(Error::new(ErrorKind::Invalid, "WORKFLOW_EXISTS", message));
        }
        let room = serving.slots.map(|slots| Arc::new(Room::new(slots)));
        let template = model.template();
        models.insert(workflow.clone(), Registered { model, limit: None, room });
        drop(models);
        if let Some(template) = template {
            self.inner.publish(workflow, template);
        }
        self.inner.signals.turns();
        Ok(())
    }

    /// Sets how many runs of a workflow may be held at the same time over all processes.
    pub async fn limit_workflow(
        &self,
        workflow: &WorkflowName,
        slots: Option<u32>,
    ) -> Result<(), Error> {
        let inner = &self.inner;
        let key = LimitKey::new(format!("workflow:{workflow}"))?;
        inner.store.set_limit(self.namespace.clone(), key.clone(), slots).await?;
        if let Some(registered) = inner.models.write().get_mut(workflow) {
            registered.limit = slots.map(|_| key);
        }
        Ok(())
    }

    /// Sets how many may be held at the same time under a key of the user's.
    pub async fn set_limit(&self, key: impl AsRef<str>, slots: Option<u32>) -> Result<(), Error> {
        let key = LimitKey::with_limits(key, &self.inner.options.limits)?;
        self.inner.store.set_limit(self.namespace.clone(), key, slots).await
    }

    /// What a model needs of the engine to open runs.
    pub fn parts(&self) -> EngineParts {
        EngineParts { env: Arc::clone(&self.inner.env), limits: self.inner.options.limits.clone() }
    }

    /// The names of the workflows that this process serves.
    pub fn workflows(&self) -> Vec<WorkflowName> {
        let models = self.inner.models.read();
        models.keys().filter(|name| !name.as_str().starts_with("windlass.")).cloned().collect()
    }

    /// The model of a workflow that this process serves.
    pub fn model_of(&self, workflow: &WorkflowName) -> Option<ModelName> {
        self.inner.registered(workflow).map(|registered| registered.model.name())
    }

    /// How a run is asked to end.
    pub fn manners_of(&self, run: &Run) -> Manners {
        self.inner.manners(run)
    }

    /// The same engine, speaking for another tenant: the runs that it starts and finds by name, the
    /// schedules and the limits are those of that namespace.
    pub fn in_namespace(&self, namespace: Namespace) -> Self {
        Self { namespace, ..self.clone() }
    }

    /// The tenant that this handle speaks for.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// The environment.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.inner.env
    }

    /// The options that the engine was started with.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// The engine's estimate of the store's clock, and ids made with it.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Counters of what this engine did. A task's handler may keep them, for unlike the engine itself
    /// they do not keep it running.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// This life of this process.
    pub fn worker(&self) -> WorkerKey {
        self.inner.worker
    }

    /// Puts what this process serves now into its row among others: what the store has of it is as
    /// old as the last renewal.
    pub fn refresh(&self, workers: &mut [Worker]) {
        for worker in workers.iter_mut().filter(|row| row.info.worker == self.inner.worker) {
            worker.info = self.inner.worker_info(worker.info.status);
        }
    }

    /// Whether the engine takes nothing new because it stops, or has stopped.
    pub fn is_stopping(&self) -> bool {
        self.inner.is_draining()
    }

    /// How many turns are held here, and how many waiting runs are in memory.
    pub fn load(&self) -> (usize, usize) {
        let held = self.inner.turns_held.load(Ordering::Acquire);
        (held, self.inner.sticky.lock().len())
    }

    /// How much of its room this process uses: turns or tasks held here, and how many there may be,
    /// whichever are closer to their limit.
    pub fn room_used(&self) -> (usize, usize) {
        let (turns, tasks) = self.inner.held_now();
        let turns = (turns, self.inner.options.turns_max);
        let tasks = (tasks, self.inner.options.tasks_max);
        if turns.0 * tasks.1 > tasks.0 * turns.1 { turns } else { tasks }
    }

    /// Forgets every waiting run in memory, as if there were no room for them: their next turns
    /// replay from the store.
    pub fn evict_all(&self) {
        let gone = self.inner.sticky.lock().clear();
        drop(gone);
    }

    /// Looks for ready work now, as after a wake-up.
    pub fn wake(&self) {
        self.inner.signals.everything();
    }

    /// Stops: takes nothing new, lets steps and tasks finish until the deadline, then gives the
    /// rest back at once, so that another process takes it without waiting for the lease.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), Error> {
        self.inner.stop(Some(deadline)).await
    }

    /// Asks a worker, of this process or of another, to take nothing new, to finish what it holds,
    /// however long that takes, and to stop. `false` if there is none with this key, or it has stopped.
    pub async fn drain_worker(&self, worker: WorkerKey) -> Result<bool, Error> {
        let found = self.inner.store.drain_worker(worker).await?;
        if found && worker == self.inner.worker {
            self.inner.drain();
        }
        Ok(found)
    }
}

impl Inner {
    async fn stop(&self, within: Option<Duration>) -> Result<(), Error> {
        self.set_phase(Phase::Draining);
        let slots: Vec<_> = self.live.lock().values().cloned().collect();
        slots.iter().for_each(|slot| slot.poke());
        let until = within.map(|within| self.env.elapsed() + within);
        while self.busy() && until.is_none_or(|until| self.env.elapsed() < until) {
            if within.is_none() && self.is_stopped() {
                // Another call has less patience.
                return Ok(());
            }
            self.env.sleep(Duration::from_millis(5)).await;
        }
        self.set_phase(Phase::Stopped);
        drop(self.claiming.lock().await);
        self.flush_beats().await;
        self.write_tallies().await;
        if let Err(error) = self.write_templates().await {
            tracing::warn!(%error, "what runs of a workflow have cannot be told to others");
        }
        let held = self.store.held(self.worker).await?;
        if !held.is_empty() {
            self.store.release(held).await?;
        }
        self.store.renew(self.worker_info(WorkerStatus::Stopped)).await?;
        Ok(())
    }

    /// Takes nothing new and stops when all that is held here is done.
    pub(crate) fn drain(self: &Arc<Self>) {
        if self.is_draining() {
            return;
        }
        tracing::info!(worker = %self.worker, "this worker was asked to drain");
        self.set_phase(Phase::Draining);
        let inner = Arc::clone(self);
        let drain = async move {
            // That it drains can be seen before it has stopped.
            if let Err(error) = inner.store.renew(inner.worker_info(WorkerStatus::Draining)).await {
                tracing::warn!(%error, "that this worker drains was not written");
            }
            if let Err(error) = inner.stop(None).await {
                tracing::warn!(%error, "this worker has stopped; its row does not say so");
            }
        };
        self.env.spawn(Lane::Service, Box::pin(drain));
    }

    fn busy(&self) -> bool {
        self.held_now() != (0, 0) || self.tasks.own_held() > 0
    }

    /// How many turns and tasks are held here.
    pub(crate) fn held_now(&self) -> (usize, usize) {
        (self.turns_held.load(Ordering::Acquire), self.tasks.held())
    }

    fn set_phase(&self, phase: Phase) {
        // An engine never comes back from a later phase.
        if self.phase.fetch_max(phase as u8, Ordering::AcqRel) < phase as u8 {
            // Not a watch: that one wakes in an order that differs between two runs of one seed.
            self.phase_rose.notify_waiters();
        }
        self.signals.everything();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.phase.load(Ordering::Acquire) != Phase::Running as u8
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Stopped as u8
    }

    /// Does something until it is done or the engine is to stop at once.
    pub(crate) async fn until_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut work, mut stopped) = (std::pin::pin!(work), std::pin::pin!(self.stopped()));
        // Being told of the stop takes a lock that all share, so it is asked for again only when whom
        // to tell or the phase has changed, and not whenever the work goes on.
        let mut told: Option<(Waker, u8)> = None;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            let phase = self.phase.load(Ordering::Acquire);
            let same = |(waker, then): &(Waker, u8)| waker.will_wake(cx.waker()) && *then == phase;
            if told.as_ref().is_some_and(same) {
                return Poll::Pending;
            }
            told = Some((cx.waker().clone(), phase));
            stopped.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Ends when the engine is to stop at once.
    pub(crate) async fn stopped(&self) {
        loop {
            let rose = self.phase_rose.notified();
            if self.is_stopped() {
                return;
            }
            rose.await;
        }
    }

    pub(crate) fn registered(&self, workflow: &WorkflowName) -> Option<Registered> {
        self.models.read().get(workflow).cloned()
    }

    /// Whether a run that is being created can be held from the start: this process serves it, has
    /// room, is not behind with its queue, and neither a limit nor a number of slots applies.
    pub(crate) fn takes_eagerly(&self, workflow: &WorkflowName, limit: Option<&LimitKey>) -> bool {
        !self.backlog.load(Ordering::Relaxed) && self.takes_unclaimed(workflow, limit)
    }

    /// Whether this process may hold a turn of a run without claiming it: it serves the run and has
    /// room, and neither a limit nor a number of slots applies.
    pub(crate) fn takes_unclaimed(
        &self,
        workflow: &WorkflowName,
        limit: Option<&LimitKey>,
    ) -> bool {
        limit.is_none()
            && self.options.background
            && !self.is_draining()
            && !self.pressed().turns
            && self.turns_held.load(Ordering::Relaxed) < self.options.turns_max
            && self
                .models
                .read()
                .get(workflow)
                .is_some_and(|served| served.limit.is_none() && served.room.is_none())
    }

    /// Room for a task that is being enqueued and can be held from the start: this process serves it
    /// and is not behind with its queue, and nothing says that others come first. So many of the tasks
    /// that it holds are as good as gone.
    pub(crate) fn takes_task_eagerly(&self, task: &Task, leaving: usize) -> Option<Promised> {
        let route = Route { queue: task.queue.clone(), name: task.name.clone() };
        let plain = task.limit_key.is_none() && task.priority == 0 && task.due_at.is_none();
        let ours = plain
            && self.options.background
            && !self.task_backlog.load(Ordering::Relaxed)
            && !self.is_draining()
            && !self.pressed().tasks
            && self.tasks.serves(&route);
        ours.then(|| self.tasks.promise(leaving)).flatten()
    }

    pub(crate) fn worker_info(&self, status: WorkerStatus) -> WorkerInfo {
        let route = |name: RouteName| windlass_kernel::Route {
            queue: windlass_kernel::QueueName::default_queue(),
            name,
        };
        let turns = self.models.read().keys().map(|name| route(RouteName::from(name))).collect();
        // With one process there is nobody who could wait for the lease to run out.
        let forever = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let done = self.tallies.total();
        let (turns_held, tasks_held) = self.held_now();
        let note = self.is_draining().then_some("it drains").or_else(|| self.pressure_note());
        WorkerInfo {
            worker: self.worker,
            name: self.options.worker_name.as_str().into(),
            version: self.options.version.as_str().into(),
            status,
            lease: if self.options.shared { self.options.lease } else { forever },
            turns,
            tasks: self.tasks.routes(),
            slots: count(self.options.turns_max.saturating_add(self.options.tasks_max)),
            note: note.map(Into::into),
            load: count(turns_held + tasks_held),
            task_slots: count(self.options.tasks_max),
            task_load: count(tasks_held),
            accepting: note.is_none(),
            group: self.options.worker_group.as_str().into(),
            host: self.options.host.as_str().into(),
            tasks_completed: done.completed(),
            tasks_failed: done.failed(),
            tasks_took: Duration::from_micros(done.took_us()),
        }
    }

    /// What follows from a commit that holds, outside the store.
    pub(crate) fn dispatch(self: &Arc<Self>, commit: &Commit, committed: &Committed) {
        let guarded = commit.run_key();
        if matches!(commit.run, Some(RunGuard::Free { .. })) && commit.task.is_some() {
            self.metrics.turns_at_hand.add(1);
        }
        let mut deliveries = committed.messages.iter();
        for op in commit.ops.iter() {
            match op {
                Op::PutMessage(message) => {
                    if let Some(Delivery::Accepted { seq }) = deliveries.next() {
                        self.poke(message.run_key);
                        // A claim passes over a row that a commit has locked, and a message for a
                        // turn that is ready already announces nothing: this looks again.
                        if !self.live.lock().contains_key(&message.run_key) {
                            self.sticky.lock().is_sent(message.run_key, *seq);
                            self.signals.turns();
                        }
                    }
                }
                Op::CreateRun(run) if Some(run.run_key) != guarded => {
                    self.metrics.runs_created.add(1);
                    self.enqueued(run, EnqueuedReason::Create);
                    if run.turn.worker == Some(self.worker) && !committed.repeated {
                        self.begin_new(run.clone(), None);
                    }
                }
                Op::Enqueue(task) => {
                    if task.queue != internal_queue() {
                        self.metrics.tasks_scheduled.add(1);
                    }
                    if task.worker == Some(self.worker) && !committed.repeated {
                        self.begin_task((**task).clone());
                    }
                }
                // Whoever runs it here need not go on.
                Op::Settle { task_id } => self.tasks.cancel(task_id),
                Op::SetRun(change) if change.status.is_some_and(|status| status.is_ended()) => {
                    let status = change.status.expect("it has a status");
                    self.results.ended(Ended {
                        run_key: change.run_key,
                        status,
                        output: change.output.clone(),
                        error: change.error.clone(),
                    });
                    match status {
                        windlass_kernel::RunStatus::Complete => &self.metrics.runs_completed,
                        windlass_kernel::RunStatus::Errored => &self.metrics.runs_failed,
                        _ => &self.metrics.runs_terminated,
                    }
                    .add(1);
                }
                _ => {}
            }
        }
    }

    /// Tells the host that a run has something to do.
    pub(crate) fn enqueued(&self, run: &Run, reason: EnqueuedReason) {
        if let Some(on_enqueued) = &self.options.on_enqueued {
            on_enqueued(run.workflow.as_str(), run.id.as_str(), reason);
        }
    }

    /// Tells a turn that is being taken here to look at its messages.
    pub(crate) fn poke(&self, run_key: RunKey) {
        let slot = self.live.lock().get(&run_key).cloned();
        if let Some(slot) = slot {
            slot.poke();
        }
    }

    /// Gives back what this worker's key holds and this process does not know of.
    pub(crate) async fn adopt_or_release(&self) -> Result<(), Error> {
        let running = self.tasks.running();
        let held = self.store.held(self.worker).await?;
        // Nobody wants the results of tasks that were taken away.
        let mut gone = running;
        for item in &held {
            if let HeldItem::Task { task_id, claim_no, .. } = item {
                gone.remove(&(*task_id, *claim_no));
            }
        }
        gone.iter().for_each(|claim| self.tasks.cancel_claim(claim));
        let forgotten: Vec<HeldItem> = {
            let live = self.live.lock();
            held.into_iter()
                .filter(|item| match item {
                    HeldItem::Turn { run_key, .. } => !live.contains_key(run_key),
                    HeldItem::Task { task_id, claim_no, .. } => {
                        !self.tasks.knows(&(*task_id, *claim_no))
                    }
                })
                .collect()
        };
        if !forgotten.is_empty() {
            tracing::warn!(count = forgotten.len(), "giving back what was held unknowingly");
            self.store.release(forgotten).await?;
        }
        Ok(())
    }

    pub(crate) fn task_id(&self) -> TaskId {
        self.clock.task_id()
    }
}

impl TaskRoutes for Inner {
    fn changed(&self) {
        self.signals.tasks();
    }
}
