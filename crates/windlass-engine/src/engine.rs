//! The engine: the handle that hosts and models use. Each method delegates to a component.

use std::marker::PhantomData;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::value::RawValue;
use windlass_kernel::{
    Actor, Body, BreakerRow, DeadLetter, Delivery, EFFECT, Error, ErrorCode, ErrorKind, LimitKey,
    MessageId, MessageKind, MessageName, ModelName, Namespace, Query, QueueName, Rate, RateRow,
    RetryPolicy, Route, RouteName, Run, RunId, RunKey, Store, Task, TaskId, Timestamp, Worker,
    WorkerKey, WorkflowName,
};

use crate::callees::Callees;
use crate::changes::Changes;
use crate::clock::Clock;
use crate::core::after_write;
use crate::dead_letters::Requeued;
use crate::description::ModelDescription;
use crate::env::Env;
use crate::keyed::{EventAddress, SendByKey};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::options::Options;
use crate::parts::Parts;
use crate::rates;
use crate::receipts::Receipt;
use crate::records::Records;
use crate::registry::Serving;
use crate::requests::Requests;
use crate::results::{Ended, EndsWatch};
use crate::retention::{Retention, Swept};
use crate::schedules::{self, Schedule, ScheduleState, SchedulesPage};
use crate::start::{StartRun, Started};
use crate::startup::{self, Life};
use crate::tasks::{TaskBody, TaskHandler, effects_queue};
use crate::templates::Template;
use crate::tick::{self, Tick, Ticked};
use crate::why::{Blocked, Explanation};

/// A running engine. Cheap to clone. Dropping the last clone stops the engine without waiting.
#[derive(Clone)]
pub struct Engine {
    pub(crate) parts: Arc<Parts>,
    pub(crate) namespace: Namespace,
    _life: Arc<Life>,
}

/// A handle that does not keep the engine alive.
#[derive(Clone)]
pub struct WeakEngine {
    parts: Weak<Parts>,
    namespace: Namespace,
    life: Weak<Life>,
}

impl WeakEngine {
    /// The engine, if a handle of it is left.
    pub fn upgrade(&self) -> Option<Engine> {
        let (parts, life) = (self.parts.upgrade()?, self.life.upgrade()?);
        Some(Engine { parts, namespace: self.namespace.clone(), _life: life })
    }
}

/// The parts of the engine that a model needs to open runs.
#[derive(Clone)]
pub struct EngineParts {
    /// The environment.
    pub env: Arc<dyn Env>,
    /// The limits.
    pub limits: windlass_kernel::Limits,
    /// The store, to read from.
    pub store: Arc<dyn Store>,
}

impl Engine {
    /// Starts an engine on a store.
    pub async fn start(
        store: Arc<dyn Store>,
        env: Arc<dyn Env>,
        options: Options,
    ) -> Result<Self, Error> {
        let namespace = options.namespace.clone();
        let (parts, life) = startup::start(store, env, options).await?;
        let engine = Self { parts, namespace, _life: life };
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
        serving.validate(&workflow)?;
        if workflow.as_str().starts_with("windlass.") {
            let message = format!(
                "{workflow:?} begins with \"windlass.\", which is reserved; use another name"
            );
            return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidName, message));
        }
        self.register_internal(workflow, model, serving)
    }

    /// As [`Engine::register_with`], for workflows of the models themselves: the name may begin with
    /// `windlass.`.
    ///
    /// # Errors
    ///
    /// A workflow with this name is registered.
    pub fn register_internal(
        &self,
        workflow: WorkflowName,
        model: Arc<dyn Model>,
        serving: Serving,
    ) -> Result<(), Error> {
        // Only with a shared store can another process ask for the model of this workflow.
        let is_public = self.options().shared && !workflow.as_str().starts_with("windlass.");
        let model_alone = || Template { model: model.name(), on_end: None, headers: None };
        let template = model.template().or_else(|| is_public.then(model_alone));
        self.parts.registry.register(workflow.clone(), model, &serving)?;
        if let Some(template) = template {
            self.parts.templates.publish(workflow, template);
        }
        self.parts.claimer.signals.turns();
        Ok(())
    }

    /// Sets how many runs of a workflow all processes together may hold at the same time.
    pub async fn limit_workflow(
        &self,
        workflow: &WorkflowName,
        slots: Option<u32>,
    ) -> Result<(), Error> {
        let key = LimitKey::new(format!("workflow:{workflow}"))?;
        self.store().set_limit(self.namespace.clone(), key.clone(), slots).await?;
        self.parts.registry.set_limit(workflow, slots.map(|_| key));
        Ok(())
    }

    /// Sets how many turns and tasks with a limit key all processes together may hold at the same time.
    pub async fn set_limit(&self, key: impl AsRef<str>, slots: Option<u32>) -> Result<(), Error> {
        let key = LimitKey::with_limits(key, &self.options().limits)?;
        self.store().set_limit(self.namespace.clone(), key, slots).await
    }

    /// Sets how often attempts at tasks with a limit key may begin, over all processes; `None` removes
    /// the rate. Tasks above the rate wait and spend no attempt.
    pub async fn set_rate(&self, key: impl AsRef<str>, rate: Option<Rate>) -> Result<(), Error> {
        let key = LimitKey::with_limits(key, &self.options().limits)?;
        self.parts.rates().set((self.namespace.clone(), key), rate).await
    }

    /// A page of the rates of this namespace, by key. A rate without an interval only holds attempts back until its
    /// time, for example because a receiver asked for a pause.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn rates(&self, after: Option<LimitKey>, limit: u32) -> Result<Vec<RateRow>, Error> {
        let query = Query::Rates { namespace: self.namespace.clone(), after, limit };
        self.store().list(query).await?.rates()
    }

    /// The limits on calls that are no tasks.
    pub fn callees(&self) -> Callees {
        Callees { rates: Arc::clone(&self.parts.claimer.rates) }
    }

    /// As [`Engine::set_rate`], for all tasks of a queue.
    pub async fn set_queue_rate(&self, queue: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.parts.rates().set((self.namespace.clone(), rates::queue_key(queue)), rate).await
    }

    /// As [`Engine::set_rate`], for all activities of a type.
    pub async fn set_activity_rate(&self, name: &str, rate: Option<Rate>) -> Result<(), Error> {
        self.parts.rates().set((self.namespace.clone(), rates::activity_key(name)), rate).await
    }

    /// The description of a run's model. A model that this process neither serves nor knows has a neutral
    /// one.
    pub fn description_of(&self, run: &Run) -> &'static ModelDescription {
        self.parts.registry.description(run)
    }

    /// The parts of the engine that a model needs to open runs.
    pub fn parts(&self) -> EngineParts {
        let (env, store) = (Arc::clone(self.env()), Arc::clone(self.store()));
        EngineParts { env, limits: self.options().limits.clone(), store }
    }

    /// The names of the workflows that this process serves.
    pub fn workflows(&self) -> Vec<WorkflowName> {
        let mut names = self.parts.registry.names();
        names.retain(|name| !name.as_str().starts_with("windlass."));
        names
    }

    /// The model of a workflow that this process serves.
    pub fn model_of(&self, workflow: &WorkflowName) -> Option<ModelName> {
        self.parts.registry.model_name(workflow)
    }

    /// The model that serves a workflow in this process. A model can downcast it to its own type.
    pub fn served(&self, workflow: &WorkflowName) -> Option<Arc<dyn Model>> {
        self.parts.registry.model(workflow)
    }

    /// A handle of the same engine for another tenant: it starts and finds runs, schedules and limits
    /// of that namespace.
    pub fn in_namespace(&self, namespace: Namespace) -> Self {
        Self { namespace, ..self.clone() }
    }

    /// The tenant of this handle.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The records of a collection, with documents of type `T`.
    pub fn records<T>(&self, collection: impl Into<String>) -> Records<T> {
        Records {
            core: Arc::clone(&self.parts.core),
            commits: Arc::clone(&self.parts.messages.commits),
            namespace: self.namespace.clone(),
            collection: collection.into(),
            document: PhantomData,
        }
    }

    /// The requests to people.
    pub fn requests(&self) -> Requests {
        self.parts.control.requests(&self.namespace)
    }

    /// A handle that does not keep the engine alive, for tasks that run beside it.
    pub fn downgrade(&self) -> WeakEngine {
        WeakEngine {
            parts: Arc::downgrade(&self.parts),
            namespace: self.namespace.clone(),
            life: Arc::downgrade(&self._life),
        }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.core.store
    }

    /// The environment.
    pub fn env(&self) -> &Arc<dyn Env> {
        &self.parts.core.env
    }

    /// The options that the engine was started with.
    pub fn options(&self) -> &Options {
        &self.parts.core.options
    }

    /// The engine's estimate of the store's clock, and ids made with it.
    pub fn clock(&self) -> &Clock {
        &self.parts.core.clock
    }

    /// The counters of this engine. They do not keep the engine alive, so a task handler may keep them.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.core.metrics
    }

    /// Follows the commits of this process, of all namespaces.
    pub fn changes(&self) -> Changes {
        self.parts.core.changes.follow()
    }

    /// The key of this worker. It is new for every start of an engine.
    pub fn worker(&self) -> WorkerKey {
        self.parts.core.worker
    }

    /// Updates this worker's row in a list of rows: the stored row is as old as the last renewal.
    pub fn refresh(&self, workers: &mut [Worker]) {
        self.parts.shutdown.row.refresh(workers);
    }

    /// Whether the engine takes no new work because it is stopping or has stopped.
    pub fn is_stopping(&self) -> bool {
        self.parts.core.lifecycle.is_draining()
    }

    /// How many turns this worker holds, and how many waiting runs it has cached.
    pub fn load(&self) -> (usize, usize) {
        (self.parts.shutdown.capacity.turns_held(), self.parts.runs.cached_count())
    }

    /// How many turns or tasks this worker holds, and their maximum: of the kind that is closer to its
    /// maximum.
    pub fn capacity_used(&self) -> (usize, usize) {
        let capacity = &self.parts.shutdown.capacity;
        let turns = (capacity.turns_held(), self.options().turns_max);
        let tasks = (capacity.tasks_held(), self.options().tasks_max);
        if turns.0 * tasks.1 > tasks.0 * turns.1 { turns } else { tasks }
    }

    /// Evicts all cached runs: their next turns replay from the store.
    pub fn evict_all(&self) {
        self.parts.runs.clear_cache();
    }

    /// Makes the claimer look for ready work now.
    pub fn wake(&self) {
        self.parts.claimer.signals.everything();
    }

    /// Stops the engine: it takes no new work, lets steps and tasks finish until the deadline, and then
    /// releases the rest, so that another process can claim it before the lease expires.
    pub async fn shutdown(&self, deadline: Duration) -> Result<(), Error> {
        self.parts.shutdown.stop(Some(deadline)).await
    }

    /// Asks a worker of any process to take no new work, to finish what it holds without a deadline, and
    /// to stop. `false` if there is no worker with this key, or it has stopped.
    pub async fn drain_worker(&self, worker: WorkerKey) -> Result<bool, Error> {
        let found = self.store().drain_worker(worker).await.map_err(after_write)?;
        if found && worker == self.worker() {
            self.parts.shutdown.drain();
        }
        Ok(found)
    }

    /// The model of a workflow that this process serves, or that any process has served before on
    /// the same store.
    pub async fn model_known(&self, workflow: &WorkflowName) -> Result<Option<ModelName>, Error> {
        match self.model_of(workflow) {
            Some(model) => Ok(Some(model)),
            None => Ok(self.parts.templates.of(workflow).await?.map(|template| template.model)),
        }
    }

    /// The model of a workflow that another process serves, read from the store now.
    pub async fn model_published(
        &self,
        workflow: &WorkflowName,
    ) -> Result<Option<ModelName>, Error> {
        self.parts.templates.model_published(workflow).await
    }

    /// Delivers effects of a name: the handler gets each at least once, with the task's id as its
    /// stable id. Failed deliveries are retried as the effect's policy says; those that fail for good
    /// become dead letters.
    pub fn serve_effects(
        &self,
        name: impl AsRef<str>,
        handler: Arc<dyn TaskHandler>,
    ) -> Result<(), Error> {
        let name = RouteName::with_limits(name, &self.options().limits)?;
        self.serve_tasks(Route { queue: effects_queue(), name }, handler)
    }

    /// An effect, for the commit that needs it. `run_key` is the run that it belongs to.
    pub fn effect(
        &self,
        name: impl AsRef<str>,
        run_key: Option<RunKey>,
        input: Box<RawValue>,
        retry: RetryPolicy,
    ) -> Result<Task, Error> {
        let name = RouteName::with_limits(name, &self.options().limits)?;
        let route = Route { queue: effects_queue(), name };
        let body = TaskBody {
            input,
            retry,
            start_to_close_ms: Some(60_000),
            heartbeat_ms: None,
            close_by: None,
            breaker: None,
            receipt: false,
            wakes_run: false,
        };
        let (id, now) = (self.clock().task_id(), self.clock().now());
        Ok(Task {
            run_key,
            body: Some(Body::of(&body)?),
            ..Task::new(id, self.namespace.clone(), EFFECT, route, now)
        })
    }

    /// Serves tasks of a route.
    pub fn serve_tasks(&self, route: Route, handler: Arc<dyn TaskHandler>) -> Result<(), Error> {
        self.parts.claimer.tasks.serve(route, handler)?;
        self.parts.claimer.signals.tasks();
        Ok(())
    }

    /// For hosts that drive the engine themselves: promotes what is due, takes turns and tasks that are
    /// ready within the limits of `tick`, and waits for them.
    pub async fn tick(&self, tick: Tick) -> Result<Ticked, Error> {
        tick::tick(&self.parts.claimer, &self.parts.runs, tick).await
    }

    /// Starts a run. If a run with this id exists, the same input returns it, and another input is an
    /// error.
    pub async fn start_run(&self, start: StartRun) -> Result<Started, Error> {
        self.parts.starter.start(&self.namespace, start).await
    }

    /// Starts many runs at once. The result leaves out runs whose id exists.
    pub async fn start_runs(&self, starts: Vec<StartRun>) -> Result<Vec<Started>, Error> {
        self.parts.starter.start_many(&self.namespace, starts).await
    }

    /// The newest generation of a run.
    pub async fn find_run(
        &self,
        workflow: &WorkflowName,
        id: &RunId,
    ) -> Result<Option<Run>, Error> {
        self.parts.starter.find(&self.namespace, workflow, id).await
    }

    /// Whether new runs are accepted: the ratio of ready turns or tasks to the free capacity of live
    /// workers that take new work is below `Options::admission`, or below 10 if that is not set. The
    /// ratio is cached for a second.
    pub async fn should_accept_workflow(&self) -> Result<bool, Error> {
        self.parts.starter.admission.should_accept().await
    }

    /// Sends an event to a run. The same message id, name and body again have no effect; the same id
    /// with another name or body is an error.
    pub async fn send_event(
        &self,
        run_key: RunKey,
        name: MessageName,
        body: Option<Body>,
        message_id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        self.send_message(run_key, MessageKind::Event, name, body, message_id).await
    }

    /// The receipt of an effect; `None` if the effect asked for none, is not settled, or its receipt is
    /// deleted.
    pub async fn receipt(&self, task_id: TaskId) -> Result<Option<Receipt>, Error> {
        self.parts.control.receipts.get(&self.namespace, task_id).await
    }

    /// A page of the receipts of a run's effects, by task.
    pub async fn receipts(
        &self,
        run_key: RunKey,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<Receipt>, Error> {
        self.parts.control.receipts.of_run(&self.namespace, run_key, after, limit).await
    }

    /// Sends an event to a key when the returned builder is awaited: every run that waits for this type
    /// and key, now or within the time to live of the event, gets it once.
    pub fn send_by_key(
        &self,
        event_type: impl AsRef<str>,
        key: impl AsRef<str>,
        payload: Result<Body, Error>,
    ) -> SendByKey {
        let limits = &self.parts.core.options.limits;
        let address = EventAddress::new(event_type, key, limits);
        let keyed = Arc::clone(&self.parts.control.keyed);
        SendByKey::new(keyed, self.namespace.clone(), address, payload)
    }

    /// Sends a message to a run; if the run was replaced, to its newest generation.
    pub async fn send_message(
        &self,
        run_key: RunKey,
        kind: MessageKind,
        name: MessageName,
        body: Option<Body>,
        message_id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        self.parts.messages.send(run_key, kind, name, body, message_id).await
    }

    /// Watches ends of runs from now on: for a waiter for many runs.
    pub fn watch_ends(&self) -> EndsWatch {
        self.parts.waiter.watch_ends()
    }

    /// Waits until this generation of a run has ended. A model knows which of its ends continue as another
    /// generation.
    pub async fn wait(&self, run_key: RunKey) -> Result<Ended, Error> {
        self.parts.waiter.wait(run_key).await
    }

    /// The current row of a run.
    pub async fn current(&self, run_key: RunKey) -> Result<Run, Error> {
        self.parts.core.current(run_key).await
    }

    /// The newest generation of a run.
    pub async fn newest(&self, run: &Run) -> Result<Run, Error> {
        self.parts.core.newest(run).await
    }

    /// The generation that follows a run's.
    pub async fn next_generation_of(&self, run_key: RunKey) -> Result<RunKey, Error> {
        self.parts.core.next_generation_of(run_key).await
    }

    /// Whether a run has no later generation. Only an ended run can have one.
    pub async fn is_newest(&self, run: &Run) -> Result<bool, Error> {
        Ok(!run.status.is_ended() || self.newest(run).await?.run_key == run.run_key)
    }

    /// Explains why a run does not progress.
    pub async fn why(&self, run_key: RunKey) -> Result<Explanation, Error> {
        self.parts.operations.explainer.why(run_key).await
    }

    /// Why a run is blocked, if its last event is `workflow.blocked`.
    pub async fn blocked(&self, run: &Run) -> Result<Option<Blocked>, Error> {
        self.parts.operations.explainer.blocked(run).await
    }

    /// Makes a blocked run try again now.
    pub async fn wake_run(&self, run: &Run) -> Result<(), Error> {
        self.parts.control.wake_run(run).await
    }

    /// Terminates a run, in its newest generation. An ended run cannot be terminated.
    pub async fn terminate(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<Actor>,
    ) -> Result<(), Error> {
        self.parts.control.terminate(run_key, reason, actor).await
    }

    /// Restarts a run as its next generation, with the same input. A generation that has not ended is
    /// terminated; its unread messages are dropped.
    pub async fn restart(&self, run_key: RunKey, actor: Option<Actor>) -> Result<Run, Error> {
        self.parts.control.restart(run_key, actor).await
    }

    /// Retries an errored run as its next generation: completed steps are kept, and the failed step is
    /// tried again.
    pub async fn retry(&self, run_key: RunKey, actor: Option<Actor>) -> Result<Run, Error> {
        self.parts.control.retry(run_key, actor).await
    }

    /// Cancels a run. If nobody holds its turn, this call ends it with its own commit. Otherwise the
    /// worker that holds the turn gets a request, finishes or abandons its current work, and ends the run.
    /// This returns when the run has ended: `true` if it was terminated, `false` if it is unknown or
    /// ended in another way.
    pub async fn cancel(
        &self,
        run_key: RunKey,
        reason: Option<&str>,
        actor: Option<Actor>,
    ) -> Result<bool, Error> {
        self.parts.control.cancel(run_key, reason, actor).await
    }

    /// Whether a cancel request for a run is pending.
    pub async fn is_cancelling(&self, run: &Run) -> Result<bool, Error> {
        self.parts.control.canceller.is_pending(run).await
    }

    /// Pauses a run before its next piece of user code. An ended run cannot be paused; a paused run
    /// stays paused.
    pub async fn pause(&self, run: &Run, actor: Option<Actor>) -> Result<(), Error> {
        self.parts.control.pause(run, actor).await
    }

    /// Resumes a paused run. Any other run stays as it is.
    pub async fn resume(&self, run: &Run, actor: Option<Actor>) -> Result<(), Error> {
        self.parts.control.resume(run, actor).await
    }

    /// Sets a schedule. The same schedule again changes nothing. Another schedule with the same name
    /// replaces it, and its firings count from now. A paused schedule stays paused.
    pub async fn put_schedule(&self, name: &str, schedule: &Schedule) -> Result<(), Error> {
        self.put_schedule_as(name, schedule, None).await.map(|_| ())
    }

    /// As [`Engine::put_schedule`], on behalf of an actor. Returns the schedule.
    pub async fn put_schedule_as(
        &self,
        name: &str,
        schedule: &Schedule,
        actor: Option<Actor>,
    ) -> Result<ScheduleState, Error> {
        self.parts.operations.schedules.put(&self.namespace, name, schedule, actor).await
    }

    /// A schedule by its name.
    pub async fn schedule(&self, name: &str) -> Result<Option<ScheduleState>, Error> {
        self.parts.operations.schedules.get(&self.namespace, name).await
    }

    /// The schedules of the engine's namespace, oldest first.
    pub async fn schedules(&self) -> Result<Vec<ScheduleState>, Error> {
        self.parts.operations.schedules.all(&self.namespace).await
    }

    /// A page of the schedules whose runs come after `after`: at most `limit`, and maybe fewer.
    pub async fn schedules_page(
        &self,
        after: Option<RunKey>,
        limit: u32,
    ) -> Result<SchedulesPage, Error> {
        self.parts.operations.schedules.page(&self.namespace, after, limit).await
    }

    /// The run of a schedule, by its name.
    pub async fn schedule_run(&self, name: &str) -> Result<Run, Error> {
        self.parts.operations.schedules.run(&self.namespace, name).await
    }

    /// Stops a schedule from starting runs until it is resumed.
    pub async fn pause_schedule(&self, name: &str) -> Result<(), Error> {
        self.parts.operations.schedules.pause(&self.namespace, name).await
    }

    /// Resumes a paused schedule.
    pub async fn resume_schedule(&self, name: &str) -> Result<(), Error> {
        self.parts.operations.schedules.resume(&self.namespace, name).await
    }

    /// Deletes a schedule. Runs that it started continue.
    pub async fn delete_schedule(&self, name: &str) -> Result<(), Error> {
        self.parts.operations.schedules.delete(&self.namespace, name).await
    }

    /// One page of the namespace's dead letters, oldest first. Requeued letters stay until they are
    /// deleted.
    pub async fn dead_letters(
        &self,
        queue: Option<QueueName>,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        self.parts.operations.dead_letters.page(&self.namespace, queue, after, limit).await
    }

    /// One dead letter of the namespace.
    pub async fn dead_letter(&self, task_id: TaskId) -> Result<DeadLetter, Error> {
        self.parts.operations.dead_letters.get(&self.namespace, task_id).await
    }

    /// Requeues a dead letter. An effect goes back to its queue under its old id. For any other letter
    /// this retries the errored run: completed steps are kept; the letter's step and the step that ended
    /// the run are tried again. A letter can be requeued once, and again after it has failed again; the
    /// letter counts how often.
    pub async fn requeue(&self, task_id: TaskId, actor: Option<Actor>) -> Result<Requeued, Error> {
        self.parts.operations.dead_letters.requeue(&self.namespace, task_id, actor).await
    }

    /// Deletes dead letters of the namespace. Returns how many existed.
    pub async fn delete_dead_letters(&self, task_ids: Vec<TaskId>) -> Result<u64, Error> {
        self.parts.operations.dead_letters.delete(&self.namespace, task_ids).await
    }

    /// Deletes the dead letters of the namespace, or of one of its queues, that are older than a time.
    /// Returns how many.
    pub async fn purge_dead_letters_before(
        &self,
        queue: Option<QueueName>,
        before: Timestamp,
    ) -> Result<u64, Error> {
        self.parts.operations.dead_letters.purge_before(&self.namespace, queue, before).await
    }

    /// Deletes all dead letters of the namespace, or of one of its queues. Returns how many.
    pub async fn purge_dead_letters(&self, queue: Option<QueueName>) -> Result<u64, Error> {
        self.parts.operations.dead_letters.purge(&self.namespace, queue).await
    }

    /// The circuit breakers of this engine's namespace, by key.
    pub async fn breakers(
        &self,
        after: Option<LimitKey>,
        limit: u32,
    ) -> Result<Vec<BreakerRow>, Error> {
        self.parts.breakers().page(self.namespace.clone(), after, limit).await
    }

    /// Closes a circuit breaker. `false` if there is none with this key.
    pub async fn reset_breaker(&self, key: impl AsRef<str>) -> Result<bool, Error> {
        let key = LimitKey::with_limits(key, &self.options().limits)?;
        let found = self.parts.breakers().reset(&self.namespace, &key).await?;
        if found {
            self.wake();
        }
        Ok(found)
    }

    /// Sets the retention of a workflow; `None` keeps its runs for ever.
    pub async fn set_retention(
        &self,
        workflow: impl AsRef<str>,
        retention: Option<&Retention>,
    ) -> Result<(), Error> {
        let sweeper = &self.parts.operations.sweeper;
        sweeper.set_retention(&self.namespace, workflow.as_ref(), retention).await
    }

    /// The policies of the engine's namespace, by workflow.
    pub async fn retentions(&self) -> Result<Vec<(WorkflowName, Retention)>, Error> {
        self.parts.operations.sweeper.retentions(&self.namespace).await
    }

    /// Deletes all trees that the policies no longer keep. The engine does so every `sweep_every`; hosts
    /// that drive it by ticks call this.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        self.parts.operations.sweeper.sweep().await
    }
}
