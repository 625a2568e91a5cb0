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
    Body, BoxFuture, Error, ErrorKind, IntoDuration, LimitKey, ModelName, OnExisting, RunId, Step,
    Timestamp, WorkflowName,
};

use crate::run::RunHandle;

use super::core::Core;
use super::ctx::{Ctx, check_body, invalid};
use super::error::{BoxError, Failure};
use super::program::{Root, StepsProgram};

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
        RunHandle::new(self.engine.clone(), self.name.clone(), started)
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
