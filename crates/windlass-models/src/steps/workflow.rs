//! Registering workflows, starting runs of them, and handles to runs.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_engine::{
    Engine, Model, Opened, Program, StartRun, Started, TaskContext, TaskFailure, TaskHandler,
    TaskResult,
};
use windlass_kernel::{
    Body, BoxFuture, Delivery, Error, ErrorKind, Event, IntoDuration, LimitKey, LogLevel, LogLine,
    MessageId, MessageName, ModelName, OnExisting, Query, Run, RunId, RunKey, RunStatus, Step,
    Timestamp, WorkflowName,
};

use super::core::Core;
use super::ctx::{Ctx, check_body, invalid};
use super::error::{BoxError, Failure};
use super::program::{Root, StepsProgram};

/// The output of a generation that was continued by the next.
pub(crate) const CONTINUED: &str = "{\"windlass\":\"continued\"}";

/// The name of this model, as runs carry it.
pub(crate) fn model_name() -> ModelName {
    ModelName::from_stored("steps")
}

type Make = Box<dyn Fn(Ctx, &Body) -> Result<(Root, usize), Error> + Send + Sync>;

struct StepsModel {
    make: Make,
    engine: windlass_engine::EngineParts,
}

impl Model for StepsModel {
    fn name(&self) -> ModelName {
        model_name()
    }

    fn has_reach(&self, step_kind: &str) -> bool {
        matches!(step_kind, "child" | "activity")
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let run = opened.run();
        let steps: &[Step] = match &opened {
            Opened::New(_) => &[],
            Opened::Loaded(loaded) => &loaded.steps,
        };
        let limits = self.engine.limits.clone();
        let core = Core::new(run, steps, limits.clone())?;
        let ctx = Ctx::new(run, core, Arc::clone(&self.engine.env), limits);
        let (root, bytes) = (self.make)(ctx.clone(), &run.input)?;
        Ok(Box::new(StepsProgram::new(root, ctx, bytes)))
    }
}

/// Registers a workflow.
pub fn register<I, O, E, F, Fut>(
    engine: &Engine,
    name: impl AsRef<str>,
    workflow: F,
) -> Result<WorkflowRef<I, O>, Error>
where
    I: Serialize + DeserializeOwned + Send + 'static,
    O: Serialize + DeserializeOwned + 'static,
    E: Into<BoxError> + 'static,
    F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
{
    let name = WorkflowName::with_limits(name, &engine.options().limits)?;
    let make: Make = Box::new(move |ctx, input| {
        let input: I = input.read().map_err(|source| {
            let wanted = std::any::type_name::<I>();
            let message = format!("the run's input does not read as {wanted}");
            Error::new(ErrorKind::Invalid, "INPUT_UNREADABLE", message).with_source(source)
        })?;
        let future = workflow(ctx, input);
        let bytes = size_of_val(&future);
        // Mapping keeps the future one state machine; another `async` block would double it.
        let written = future.map(|result| match result {
            Ok(output) => Body::of(&output)
                .map_err(|error| Failure::new("ResultUnwritable", error.to_string(), false)),
            Err(error) => Err(Failure::of(error, false)),
        });
        // Cooperative yields would look like wake-ups from outside the run.
        let root: Root = Box::pin(tokio::task::coop::unconstrained(written));
        Ok((root, bytes))
    });
    let model = StepsModel { make, engine: engine.parts() };
    engine.register(name.clone(), Arc::new(model))?;
    Ok(WorkflowRef { engine: engine.clone(), name, types: PhantomData })
}

/// A registered workflow: what starts its runs and finds them.
pub struct WorkflowRef<I, O> {
    engine: Engine,
    name: WorkflowName,
    types: PhantomData<fn(I) -> O>,
}

impl<I, O> Clone for WorkflowRef<I, O> {
    fn clone(&self) -> Self {
        Self { engine: self.engine.clone(), name: self.name.clone(), types: PhantomData }
    }
}

impl<I, O> WorkflowRef<I, O> {
    /// A workflow that another process serves: runs of it can be started and found from here.
    pub fn remote(engine: &Engine, name: impl AsRef<str>) -> Result<Self, Error> {
        let name = WorkflowName::with_limits(name, &engine.options().limits)?;
        Ok(Self { engine: engine.clone(), name, types: PhantomData })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn workflow_name(&self) -> &WorkflowName {
        &self.name
    }

    /// Lets at most so many of its runs be held at the same time, over all processes; `None` lifts
    /// the limit. Runs beyond it wait in the queue.
    pub async fn at_once(&self, slots: Option<u32>) -> Result<(), Error> {
        self.engine.limit_workflow(&self.name, slots).await
    }
}

impl<I: Serialize, O: DeserializeOwned> WorkflowRef<I, O> {
    /// Starts a run. Await what this returns.
    pub fn start(&self, input: I) -> Start<I, O> {
        Start {
            workflow: self.clone(),
            input,
            id: None,
            labels: BTreeMap::new(),
            priority: 0,
            due: None,
            limit: None,
            on_existing: OnExisting::Return,
        }
    }

    /// Starts many runs with ids of their own. Those whose id is taken are left out.
    pub async fn start_batch(
        &self,
        runs: impl IntoIterator<Item = (String, I)>,
    ) -> Result<Vec<RunHandle<O>>, Error> {
        let mut starts = Vec::new();
        for (id, input) in runs {
            let mut start = self.request(&input)?;
            start.id = Some(RunId::with_limits(id, &self.engine.options().limits)?);
            starts.push(start);
        }
        let started = self.engine.start_runs(starts).await?;
        Ok(started.into_iter().map(|started| self.handle(started)).collect())
    }

    /// The run with an id.
    pub async fn get(&self, id: impl AsRef<str>) -> Result<RunHandle<O>, Error> {
        let id = RunId::from_stored(id.as_ref());
        let found = self.engine.find_run(&self.name, &id).await?;
        let run = found.ok_or_else(|| {
            let message = format!("there is no run {:?} of workflow {:?}", id, self.name);
            Error::new(ErrorKind::NotFound, "RUN_NOT_FOUND", message)
        })?;
        Ok(self.handle(Started { run_key: run.run_key, id, existed: true }))
    }

    fn request(&self, input: &I) -> Result<StartRun, Error> {
        let limits = &self.engine.options().limits;
        let body = Body::of(input)?;
        let body = check_body("the input", body, limits.input_bytes_max, limits.json_depth_max)?;
        Ok(StartRun::new(self.name.clone(), model_name(), body))
    }

    fn handle(&self, started: Started) -> RunHandle<O> {
        let Started { run_key, id, existed } = started;
        RunHandle {
            engine: self.engine.clone(),
            workflow: self.name.clone(),
            id,
            run_key,
            existed,
            output: PhantomData,
        }
    }
}

/// A run that is about to be started.
#[must_use = "a run is started when this is awaited"]
pub struct Start<I, O> {
    workflow: WorkflowRef<I, O>,
    input: I,
    id: Option<String>,
    labels: BTreeMap<String, String>,
    priority: i16,
    due: Option<Result<Due, Error>>,
    limit: Option<(String, Option<u32>)>,
    on_existing: OnExisting,
}

enum Due {
    After(Duration),
    At(Timestamp),
}

impl<I, O> Start<I, O> {
    /// The run's name. Starting it again with the same input finds it; another input is an error.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Makes a known id an error, whatever the input.
    pub fn must_not_exist(mut self) -> Self {
        self.on_existing = OnExisting::Refuse;
        self
    }

    /// A small string to find the run by.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// Higher first. Default 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Begins the run later.
    pub fn delay(mut self, delay: impl IntoDuration) -> Self {
        let delay = delay.into_duration().map(Due::After);
        self.due = Some(delay.map_err(|error| invalid("INVALID_DURATION", error.to_string())));
        self
    }

    /// Begins the run at a time.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.due = Some(Ok(Due::At(at)));
        self
    }

    /// Counts the run against the limit of a key, which `Engine::set_limit` sets: at most so many
    /// runs with the key are held at the same time, over all processes.
    pub fn limit_key(mut self, key: impl Into<String>) -> Self {
        self.limit = Some((key.into(), None));
        self
    }
}

impl<I, O> IntoFuture for Start<I, O>
where
    I: Serialize + Send + 'static,
    O: DeserializeOwned + 'static,
{
    type Output = Result<RunHandle<O>, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        // The input need not be shared between threads: it is written before anything is awaited.
        let request = self.workflow.request(&self.input);
        let Start { workflow, id, labels, priority, due, limit, on_existing, .. } = self;
        Box::pin(async move {
            let mut request = request?;
            let limits = &workflow.engine.options().limits;
            request.id = id.map(|id| RunId::with_limits(id, limits)).transpose()?;
            request.labels = labels;
            request.priority = priority;
            request.on_existing = on_existing;
            request.due_at = match due.transpose()? {
                Some(Due::After(delay)) => Some(workflow.engine.clock().now().plus(delay)),
                Some(Due::At(at)) => Some(at),
                None => None,
            };
            request.limit_key =
                limit.map(|(key, _)| LimitKey::with_limits(key, limits)).transpose()?;
            let started = workflow.engine.start_run(request).await?;
            Ok(workflow.handle(started))
        })
    }
}

/// Where a run is.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its status.
    pub status: RunStatus,
    /// What it ended with, as JSON.
    pub output: Option<serde_json::Value>,
    /// Why it failed: name and message.
    pub error: Option<(String, String)>,
    /// Why this build, or any so far, cannot carry it on.
    pub blocked: Option<String>,
    /// Which generation this is.
    pub generation: u32,
}

/// A handle to a run. It follows the run through restarts and retries.
pub struct RunHandle<O> {
    engine: Engine,
    workflow: WorkflowName,
    id: RunId,
    run_key: RunKey,
    existed: bool,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for RunHandle<O> {
    fn clone(&self) -> Self {
        let (engine, workflow) = (self.engine.clone(), self.workflow.clone());
        let (id, run_key, existed) = (self.id.clone(), self.run_key, self.existed);
        Self { engine, workflow, id, run_key, existed, output: PhantomData }
    }
}

impl<O> RunHandle<O> {
    /// The run's name.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The key of the generation that was the newest when this handle was made.
    pub fn run_key(&self) -> RunKey {
        self.run_key
    }

    /// Whether starting it found it.
    pub fn existed(&self) -> bool {
        self.existed
    }

    /// The run's row, newest generation.
    pub async fn run(&self) -> Result<Run, Error> {
        let found = self.engine.find_run(&self.workflow, &self.id).await?;
        found.ok_or_else(|| {
            let message = format!("there is no run {:?} of workflow {:?}", self.id, self.workflow);
            Error::new(ErrorKind::NotFound, "RUN_NOT_FOUND", message)
        })
    }

    /// Where the run is.
    pub async fn status(&self) -> Result<Status, Error> {
        let run = self.run().await?;
        let blocked = match run.status.is_ended() {
            true => None,
            false => self.blocked(&run).await?,
        };
        let failure = run.error.as_ref().map(Failure::read);
        Ok(Status {
            status: run.status,
            output: run.output.as_ref().map(Body::read).transpose()?,
            error: failure.map(|failure| (failure.name, failure.message)),
            blocked,
            generation: run.generation,
        })
    }

    async fn blocked(&self, run: &Run) -> Result<Option<String>, Error> {
        let query = Query::Event { event_id: run.cursor };
        let last = self.engine.store().list(query).await?.events()?.into_iter().next();
        let Some(last) = last.filter(|event| event.event_type.as_str() == "workflow.blocked")
        else {
            return Ok(None);
        };
        let payload = last.payload_json()?;
        Ok(payload["reason"].as_str().map(str::to_owned))
    }

    /// Sends an event to the run. It waits in the mailbox until the run asks for it.
    pub async fn send_event<T: Serialize>(
        &self,
        event_type: impl AsRef<str>,
        payload: &T,
    ) -> Result<(), Error> {
        self.send(event_type.as_ref(), payload, None).await.map(|_| ())
    }

    /// As [`RunHandle::send_event`], with an id: sent again it is the same event.
    pub async fn send_event_once<T: Serialize>(
        &self,
        event_type: impl AsRef<str>,
        payload: &T,
        id: impl AsRef<str>,
    ) -> Result<Delivery, Error> {
        let id = MessageId::with_limits(id, &self.engine.options().limits)?;
        self.send(event_type.as_ref(), payload, Some(id)).await
    }

    async fn send<T: Serialize>(
        &self,
        event_type: &str,
        payload: &T,
        id: Option<MessageId>,
    ) -> Result<Delivery, Error> {
        let limits = &self.engine.options().limits;
        let name = MessageName::with_limits(event_type, limits)?;
        let body = Body::of(payload)?;
        let (bytes, depth) = (limits.message_bytes_max, limits.json_depth_max);
        let body = check_body("the event's payload", body, bytes, depth)?;
        self.engine.send_event(self.run_key, name, Some(body), id).await
    }

    /// Stops the run before its next piece of user code. Its timers go on.
    pub async fn pause(&self) -> Result<(), Error> {
        self.engine.pause(&self.run().await?, None).await
    }

    /// Lets a paused run go on; any other is left as it is.
    pub async fn resume(&self) -> Result<(), Error> {
        self.engine.resume(&self.run().await?, None).await
    }

    /// Ends the run, whatever it is doing.
    pub async fn terminate(&self) -> Result<(), Error> {
        let run = self.run().await?;
        self.engine.terminate(run.run_key, None, None).await
    }

    /// Begins the run anew with the same input. Earlier generations stay readable.
    pub async fn restart(&self) -> Result<Self, Error> {
        let run = self.engine.restart(self.run().await?.run_key, None).await?;
        Ok(Self { run_key: run.run_key, ..self.clone() })
    }

    /// Carries an errored run on at the step that failed.
    pub async fn retry(&self) -> Result<Self, Error> {
        let run = self.engine.retry(self.run().await?.run_key, None).await?;
        Ok(Self { run_key: run.run_key, ..self.clone() })
    }

    /// Asks a run that waits for a new build to try again now.
    pub async fn wake(&self) -> Result<(), Error> {
        self.engine.wake_run(&self.run().await?).await
    }

    /// The run's durable log lines, oldest first.
    pub async fn logs(&self) -> Result<Vec<LogLine>, Error> {
        self.logs_from(LogLevel::Debug).await
    }

    /// As [`RunHandle::logs`], of this level or above.
    pub async fn logs_from(&self, level: LogLevel) -> Result<Vec<LogLine>, Error> {
        let run_key = self.run().await?.run_key;
        let mut lines: Vec<LogLine> = Vec::new();
        loop {
            let after = lines.last().map(|line| line.log_id);
            let level_min = (level != LogLevel::Debug).then_some(level);
            let query = Query::Logs { run_key, level_min, category: None, after, limit: 1_000 };
            let page = self.engine.store().list(query).await?.logs()?;
            let last = page.len() < 1_000;
            lines.extend(page);
            if last {
                return Ok(lines);
            }
        }
    }

    /// The run's ledger.
    pub async fn events(&self) -> Result<Vec<Event>, Error> {
        let run_key = self.run().await?.run_key;
        let mut events = Vec::new();
        loop {
            let query = Query::Events { run_key, from: events.len() as u64, limit: 1_000 };
            let page = self.engine.store().list(query).await?.events()?;
            let last = page.len() < 1_000;
            events.extend(page);
            if last {
                return Ok(events);
            }
        }
    }

    /// The run's steps, in the order in which they were first recorded.
    pub async fn steps(&self) -> Result<Vec<Step>, Error> {
        let run_key = self.run().await?.run_key;
        let loaded = self.engine.store().load(vec![run_key]).await?;
        Ok(loaded.into_iter().flat_map(|loaded| loaded.steps).collect())
    }
}

impl<O: DeserializeOwned> RunHandle<O> {
    /// Waits until the run has ended, and answers its output, or an error that says how it ended.
    pub async fn result(&self) -> Result<O, Error> {
        let mut run_key = self.run_key;
        loop {
            let ended = self.engine.wait(run_key).await?;
            match ended.status {
                RunStatus::Complete => {
                    let output = ended.output.unwrap_or_else(|| Body::json("null"));
                    if output.bytes.as_ref() == CONTINUED.as_bytes() {
                        run_key = self.engine.next_generation_of(run_key).await?;
                        continue;
                    }
                    return output.read();
                }
                RunStatus::Errored => {
                    let failure = ended.error.as_ref().map(Failure::read);
                    let failure = failure
                        .unwrap_or_else(|| Failure::new("Error", "no reason was kept", false));
                    let message = format!("{}: {}", failure.name, failure.message);
                    return Err(Error::new(ErrorKind::Failed, "RUN_ERRORED", message));
                }
                status => {
                    let reason = ended.error.as_ref().map(|error| Failure::read(error).message);
                    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                    let message = format!("run {:?} was {status}{reason}", self.id);
                    return Err(Error::new(ErrorKind::Failed, "RUN_TERMINATED", message));
                }
            }
        }
    }
}

struct ActivityFn<F>(F);

impl<F> TaskHandler for ActivityFn<F>
where
    F: Fn(TaskContext, Body) -> BoxFuture<'static, TaskResult> + Send + Sync + 'static,
{
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        (self.0)(context, input)
    }
}

/// Serves activities of a type on a queue.
pub fn serve_activity<I, O, E, F, Fut>(
    engine: &Engine,
    queue: impl AsRef<str>,
    activity_type: impl AsRef<str>,
    activity: F,
) -> Result<(), Error>
where
    I: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
    E: Into<BoxError> + 'static,
    F: Fn(TaskContext, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send + 'static,
{
    let limits = engine.options().limits.clone();
    let route = windlass_kernel::Route {
        queue: windlass_kernel::QueueName::with_limits(queue, &limits)?,
        name: windlass_kernel::RouteName::with_limits(activity_type, &limits)?,
    };
    let failed = |failure: Failure| TaskFailure {
        name: failure.name,
        message: failure.message,
        retryable: failure.retryable,
        retry_after: None,
    };
    let (bytes, depth) = (limits.step_bytes_max / 2, limits.json_depth_max);
    let handler = ActivityFn(move |context, input: Body| -> BoxFuture<'static, TaskResult> {
        let input: I = match input.read() {
            Ok(input) => input,
            Err(error) => {
                let failure = Failure::new("InputUnreadable", error.to_string(), false);
                return Box::pin(std::future::ready(Err(failed(failure))));
            }
        };
        let work = activity(context, input);
        Box::pin(work.map(move |result| {
            match result {
                Ok(output) => Body::of(&output)
                    .and_then(|body| check_body("the result", body, bytes, depth))
                    .map_err(|error| {
                        failed(Failure::new("ResultTooLarge", error.to_string(), false))
                    }),
                Err(error) => Err(failed(Failure::of(error, false))),
            }
        }))
    });
    engine.serve_tasks(route, Arc::new(handler))
}
