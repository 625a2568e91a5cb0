//! Registers workflows and activities of this model.

use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_engine::{
    Engine, Model, ModelDescription, Opened, Program, TaskContext, TaskFailure, TaskHandler,
    TaskResult,
};
use windlass_kernel::{Body, BoxFuture, Error, ErrorCode, ErrorKind};

use crate::any_error::AnyError;
use crate::run::check_body;
use crate::value::Value;
use crate::workflow_ref::{Format, WorkflowRef};

use super::core::Core;
use super::ctx::Ctx;
use super::description::DESCRIPTION;
use super::error::Failure;
use super::program::{Root, StepsProgram};

type Make = Box<dyn Fn(Ctx, &Body) -> Result<(Root, usize), Error> + Send + Sync>;

struct StepsModel {
    make: Make,
    engine: windlass_engine::EngineParts,
}

impl Model for StepsModel {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let (run, steps) = (opened.run(), opened.steps());
        let limits = self.engine.limits.clone();
        let core = Core::new(run, steps, &limits)?;
        let ctx = Ctx::new(run, core, Arc::clone(&self.engine.env), limits);
        let (root, bytes) = (self.make)(ctx.clone(), &run.input)?;
        Ok(Box::new(StepsProgram::new(root, ctx, bytes)))
    }
}

/// Registers a workflow.
///
/// ```
/// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
/// let doubles = windlass::steps::register(engine.core(), "double", async |_, n: u32| Ok(n * 2))?;
/// # drop(doubles);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The name is not valid, or a workflow with this name is registered.
pub fn register<I, O, F, Fut, InputOwnership, OutputOwnership>(
    engine: &Engine,
    name: impl AsRef<str>,
    workflow: F,
) -> Result<WorkflowRef<I, O>, Error>
where
    I: Value<InputOwnership> + Serialize,
    O: Value<OutputOwnership> + Serialize,
    F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, AnyError>> + Send + 'static,
{
    let workflow_ref = WorkflowRef::new(engine, name, Format::json(&DESCRIPTION))?;
    let make: Make = Box::new(move |ctx, input| {
        let input = I::from_body(input).map_err(|source| {
            let wanted = std::any::type_name::<I>();
            let message = format!("the run's input does not read as {wanted}");
            Error::new(ErrorKind::Invalid, ErrorCode::InputUnreadable, message).with_source(source)
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
    engine.register(workflow_ref.name.clone(), Arc::new(model))?;
    Ok(workflow_ref)
}

/// A workflow of steps that another process serves: this process can start its runs and find them.
///
/// ```
/// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
/// let orders = windlass::steps::remote::<String, String>(engine.core(), "order")?;
/// # drop(orders);
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// The name is not valid.
pub fn remote<I, O>(engine: &Engine, name: impl AsRef<str>) -> Result<WorkflowRef<I, O>, Error>
where
    I: Serialize,
    O: DeserializeOwned + 'static,
{
    WorkflowRef::new(engine, name, Format::json(&DESCRIPTION))
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
///
/// ```
/// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
/// use windlass::steps::serve_activity;
///
/// serve_activity(engine.core(), "default", "triple", async |_, n: u32| Ok(n * 3))?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorCode::ActivityExists`] if this process serves the type on the queue, [`ErrorCode::InvalidName`] if a name
/// is not valid.
pub fn serve_activity<I, O, F, Fut, InputOwnership>(
    engine: &Engine,
    queue: impl AsRef<str>,
    activity_type: impl AsRef<str>,
    activity: F,
) -> Result<(), Error>
where
    I: Value<InputOwnership>,
    O: Serialize + Send + 'static,
    F: Fn(TaskContext, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, AnyError>> + Send + 'static,
{
    let limits = engine.options().limits.clone();
    let route = windlass_kernel::Route {
        queue: windlass_kernel::QueueName::with_limits(queue, &limits)?,
        name: windlass_kernel::RouteName::with_limits(activity_type, &limits)?,
    };
    let failed =
        |failure: Failure| TaskFailure::new(failure.name, failure.message, failure.retryable);
    let (bytes, depth) = (limits.step_bytes_max / 2, limits.json_depth_max);
    let handler = ActivityFn(move |context, input: Body| -> BoxFuture<'static, TaskResult> {
        let input = match I::from_body(&input) {
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
