//! Registration of workflows: what each model adds to [`Engine`].

#[cfg(feature = "steps")]
use std::future::Future;
#[cfg(feature = "steps")]
use std::sync::Arc;

#[cfg(feature = "steps")]
use serde::Serialize;
#[cfg(feature = "steps")]
use serde::de::DeserializeOwned;
use windlass_kernel::Error;
#[cfg(doc)]
use windlass_kernel::ErrorCode;
use windlass_models::WorkflowRef;
#[cfg(feature = "machines")]
use windlass_models::machines;
#[cfg(feature = "relays")]
use windlass_models::relays;
#[cfg(feature = "steps")]
use windlass_models::steps::{self, Ctx};
#[cfg(feature = "steps")]
use windlass_models::{AnyError, Value};

use super::Engine;
#[cfg(feature = "steps")]
use crate::model;

/// Workflows of the model `agents`.
#[cfg(feature = "agents")]
impl Engine {
    /// Registers an agent: functions, tools and providers under one name. The input of a run is a JSON object, which
    /// becomes the env of its workflow.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use serde_json::json;
    /// use windlass::agents::{Agent, CallResult, Continuation, Workflow};
    ///
    /// async fn greet(workflow: &mut Workflow, next: Continuation) -> CallResult {
    ///     let name: String = workflow.get("name")?;
    ///     workflow.set("greeting", &format!("Hello, {name}!"))?;
    ///     Ok(next.halt())
    /// }
    ///
    /// let engine = windlass::Engine::open("memory:").await?;
    /// let agent = Agent::new("greeter", "greet").function("greet", greet).output("greeting");
    /// let greeters = engine.agent(agent)?;
    /// let run = greeters.start(json!({ "name": "Ann" })).await?;
    /// assert_eq!(run.result().await?, "Hello, Ann!");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if the name is not valid, [`ErrorCode::WorkflowExists`] if a workflow with this name
    /// is registered, [`ErrorCode::AgentFunctionNotFound`] if the first function is missing.
    pub fn agent(
        &self,
        agent: windlass_models::agents::Agent,
    ) -> Result<WorkflowRef<serde_json::Value, serde_json::Value>, Error> {
        windlass_models::agents::register(&self.core, agent)
    }

    /// An agent that another process serves: this process can start its runs and find them.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// let greeters = engine.remote_agent("greeter")?;
    /// assert_eq!(greeters.name(), "greeter");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if the name is not valid.
    pub fn remote_agent(
        &self,
        name: impl AsRef<str>,
    ) -> Result<WorkflowRef<serde_json::Value, serde_json::Value>, Error> {
        windlass_models::agents::remote(&self.core, name)
    }
}

/// Workflows of the model `steps`.
#[cfg(feature = "steps")]
impl Engine {
    /// Registers a workflow, an `async fn(Ctx, Input) -> Result<Output>` or a closure. Input and output are owned
    /// types with serde (`String`, not `&str`), and a closure names the type of its input.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// let doubles = engine.workflow("double", async |ctx, n: u32| {
    ///     let twice = ctx.step("multiply", async || Ok(n * 2)).await?;
    ///     Ok(twice)
    /// })?;
    /// assert_eq!(doubles.start(21).await?.result().await?, 42);
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// A function with an error type of its own needs one line:
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # use windlass::Ctx;
    /// async fn parse(_: Ctx, text: String) -> Result<u32, std::num::ParseIntError> {
    ///     text.parse()
    /// }
    ///
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// let parses = engine.workflow("parse", async |ctx, text| Ok(parse(ctx, text).await?))?;
    /// # let _ = parses;
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if the name is not valid, [`ErrorCode::WorkflowExists`] if a workflow with
    /// this name is registered.
    pub fn workflow<I, O, F, Fut, InputOwnership, OutputOwnership>(
        &self,
        name: impl AsRef<str>,
        workflow: F,
    ) -> Result<WorkflowRef<I, O>, Error>
    where
        I: Value<InputOwnership> + Serialize,
        O: Value<OutputOwnership> + Serialize,
        F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, AnyError>> + Send + 'static,
    {
        steps::register(&self.core, name, workflow)
    }

    /// As [`Engine::workflow`], for a workflow that uses shared state of the application:
    /// `async fn(Arc<App>, Ctx, Input) -> Result<Output>`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::sync::Arc;
    /// use windlass::{Ctx, Engine, Result};
    ///
    /// struct App {
    ///     greeting: &'static str,
    /// }
    ///
    /// async fn greet(app: Arc<App>, ctx: Ctx, name: String) -> Result<String> {
    ///     Ok(ctx.step("compose", async || Ok(format!("{}, {name}!", app.greeting))).await?)
    /// }
    ///
    /// let engine = Engine::open("memory:").await?;
    /// let app = Arc::new(App { greeting: "Hello" });
    /// let greetings = engine.workflow_with("greet", app, greet)?;
    /// assert_eq!(greetings.start("Ann".into()).await?.result().await?, "Hello, Ann!");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Engine::workflow`].
    pub fn workflow_with<S, I, O, F, Fut, InputOwnership, OutputOwnership>(
        &self,
        name: impl AsRef<str>,
        state: Arc<S>,
        workflow: F,
    ) -> Result<WorkflowRef<I, O>, Error>
    where
        S: Send + Sync + 'static,
        I: Value<InputOwnership> + Serialize,
        O: Value<OutputOwnership> + Serialize,
        F: Fn(Arc<S>, Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, AnyError>> + Send + 'static,
    {
        let with_state = move |ctx, input| workflow(Arc::clone(&state), ctx, input);
        steps::register(&self.core, name, with_state)
    }

    /// A workflow that another process serves: this process can start its runs and find them.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// let orders = engine.remote_workflow::<String, String>("order")?;
    /// assert_eq!(orders.name(), "order");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if the name is not valid.
    pub fn remote_workflow<I, O>(&self, name: impl AsRef<str>) -> Result<WorkflowRef<I, O>, Error>
    where
        I: Serialize,
        O: DeserializeOwned + 'static,
    {
        windlass_models::steps::remote(&self.core, name)
    }

    /// Serves activities of a type on the queue `default`: `async fn(TaskContext, Input) -> Result<Output>` or
    /// a closure. Steps and machines share activities.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// engine.activity("double", async |_, n: u32| Ok(n * 2))?;
    /// let doubles = engine.workflow("doubles", async |ctx, n: u32| {
    ///     let twice: u32 = ctx.activity("twice", "double", &n).await?;
    ///     Ok(twice)
    /// })?;
    /// assert_eq!(doubles.start(21).await?.result().await?, 42);
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ActivityExists`] if this process serves the type on the queue.
    pub fn activity<I, O, F, Fut, InputOwnership>(
        &self,
        activity_type: impl AsRef<str>,
        activity: F,
    ) -> Result<(), Error>
    where
        I: Value<InputOwnership>,
        O: Serialize + Send + 'static,
        F: Fn(model::TaskContext, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, AnyError>> + Send + 'static,
    {
        steps::serve_activity(&self.core, "default", activity_type, activity)
    }

    /// As [`Engine::activity`], on another queue.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// engine.activity_on("gpu", "render", async |_, scene: String| Ok(scene.len()))?;
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Engine::activity`].
    pub fn activity_on<I, O, F, Fut, InputOwnership>(
        &self,
        queue: impl AsRef<str>,
        activity_type: impl AsRef<str>,
        activity: F,
    ) -> Result<(), Error>
    where
        I: Value<InputOwnership>,
        O: Serialize + Send + 'static,
        F: Fn(model::TaskContext, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, AnyError>> + Send + 'static,
    {
        steps::serve_activity(&self.core, queue, activity_type, activity)
    }
}

/// Workflows of the model `machines`.
#[cfg(feature = "machines")]
impl Engine {
    /// Registers a state machine under the name of its type. [`machines::Workflow`] has an example.
    ///
    /// ```
    /// # use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
    /// # struct Hello;
    /// # impl Workflow for Hello {
    /// #     const TYPE: &'static str = "hello";
    /// #     type Input = ();
    /// #     type Output = String;
    /// #     fn new((): ()) -> Self { Self }
    /// #     fn on_start(&mut self) -> Vec<WorkflowAction> { vec![WorkflowAction::complete("hello".into())] }
    /// #     fn on_activity_completed(&mut self, _: &str, _: serde_json::Value) -> Vec<WorkflowAction> { vec![] }
    /// #     fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> { vec![] }
    /// # }
    /// # struct Parse;
    /// # impl Activity for Parse {
    /// #     const TYPE: &'static str = "parse";
    /// #     type Input = String;
    /// #     type Output = u32;
    /// #     async fn execute(&self, _: &ActivityContext, text: String) -> Result<u32, ActivityError> {
    /// #         Ok(text.parse()?)
    /// #     }
    /// # }
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let hellos = engine.machine::<Hello>()?;
    /// println!("{}", hellos.start(()).await?.result().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::WorkflowExists`] if a workflow with this name is registered.
    pub fn machine<W: machines::Workflow>(
        &self,
    ) -> Result<WorkflowRef<W::Input, W::Output>, Error> {
        machines::register::<W>(&self.core)
    }

    /// A state machine that another process serves: this process can start its runs and find them.
    ///
    /// ```
    /// # use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
    /// # struct Hello;
    /// # impl Workflow for Hello {
    /// #     const TYPE: &'static str = "hello";
    /// #     type Input = ();
    /// #     type Output = String;
    /// #     fn new((): ()) -> Self { Self }
    /// #     fn on_start(&mut self) -> Vec<WorkflowAction> { vec![WorkflowAction::complete("hello".into())] }
    /// #     fn on_activity_completed(&mut self, _: &str, _: serde_json::Value) -> Vec<WorkflowAction> { vec![] }
    /// #     fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> { vec![] }
    /// # }
    /// # struct Parse;
    /// # impl Activity for Parse {
    /// #     const TYPE: &'static str = "parse";
    /// #     type Input = String;
    /// #     type Output = u32;
    /// #     async fn execute(&self, _: &ActivityContext, text: String) -> Result<u32, ActivityError> {
    /// #         Ok(text.parse()?)
    /// #     }
    /// # }
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let hellos = engine.remote_machine::<Hello>()?;
    /// # drop(hellos);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if the name of its type is not valid.
    pub fn remote_machine<W: machines::Workflow>(
        &self,
    ) -> Result<WorkflowRef<W::Input, W::Output>, Error> {
        machines::remote::<W>(&self.core)
    }

    /// Serves an activity that implements [`machines::Activity`], on the queue `default`. Steps and machines
    /// share activities.
    ///
    /// ```
    /// # use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
    /// # struct Hello;
    /// # impl Workflow for Hello {
    /// #     const TYPE: &'static str = "hello";
    /// #     type Input = ();
    /// #     type Output = String;
    /// #     fn new((): ()) -> Self { Self }
    /// #     fn on_start(&mut self) -> Vec<WorkflowAction> { vec![WorkflowAction::complete("hello".into())] }
    /// #     fn on_activity_completed(&mut self, _: &str, _: serde_json::Value) -> Vec<WorkflowAction> { vec![] }
    /// #     fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> { vec![] }
    /// # }
    /// # struct Parse;
    /// # impl Activity for Parse {
    /// #     const TYPE: &'static str = "parse";
    /// #     type Input = String;
    /// #     type Output = u32;
    /// #     async fn execute(&self, _: &ActivityContext, text: String) -> Result<u32, ActivityError> {
    /// #         Ok(text.parse()?)
    /// #     }
    /// # }
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// engine.machine_activity(Parse)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ActivityExists`] if this process serves the type on the queue.
    pub fn machine_activity<A: machines::Activity>(&self, activity: A) -> Result<(), Error> {
        machines::serve(&self.core, "default", activity)
    }

    /// As [`Engine::machine_activity`], on another queue.
    ///
    /// ```
    /// # use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
    /// # struct Hello;
    /// # impl Workflow for Hello {
    /// #     const TYPE: &'static str = "hello";
    /// #     type Input = ();
    /// #     type Output = String;
    /// #     fn new((): ()) -> Self { Self }
    /// #     fn on_start(&mut self) -> Vec<WorkflowAction> { vec![WorkflowAction::complete("hello".into())] }
    /// #     fn on_activity_completed(&mut self, _: &str, _: serde_json::Value) -> Vec<WorkflowAction> { vec![] }
    /// #     fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> { vec![] }
    /// # }
    /// # struct Parse;
    /// # impl Activity for Parse {
    /// #     const TYPE: &'static str = "parse";
    /// #     type Input = String;
    /// #     type Output = u32;
    /// #     async fn execute(&self, _: &ActivityContext, text: String) -> Result<u32, ActivityError> {
    /// #         Ok(text.parse()?)
    /// #     }
    /// # }
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// engine.machine_activity_on("numbers", Parse)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Engine::machine_activity`].
    pub fn machine_activity_on<A: machines::Activity>(
        &self,
        queue: impl AsRef<str>,
        activity: A,
    ) -> Result<(), Error> {
        machines::serve(&self.core, queue, activity)
    }
}

/// Workflows of the model `relays`.
#[cfg(feature = "relays")]
impl Engine {
    /// A builder of a relay: `runner` runs its steps, `hook` is called when a run has ended.
    /// [`relays::RelayBuilder::build`] registers it. [`relays::StepRunner`] has an example.
    ///
    /// ```
    /// # use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
    /// # struct Report;
    /// # impl StepRunner for Report {
    /// #     async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
    /// #         Ok(StepOutcome::done(step.payload.clone()))
    /// #     }
    /// # }
    /// # fn example(engine: &windlass::Engine) -> windlass::Result<()> {
    /// let reports = engine.relay("report", Report, NoopTerminalHook).retries(4).build()?;
    /// # drop(reports);
    /// # Ok(()) }
    /// ```
    pub fn relay<R, H>(
        &self,
        name: impl Into<String>,
        runner: R,
        hook: H,
    ) -> relays::RelayBuilder<R, H>
    where
        R: relays::StepRunner,
        H: relays::TerminalHook,
    {
        relays::relay(&self.core, name, runner, hook)
    }

    /// A relay that another process serves: this process can start, find, signal and cancel its runs.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// let reports = engine.remote_relay("report")?;
    /// # drop(reports);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if the name is not valid.
    pub fn remote_relay(
        &self,
        name: impl AsRef<str>,
    ) -> Result<WorkflowRef<bytes::Bytes, bytes::Bytes>, Error> {
        relays::remote(&self.core, name)
    }
}
