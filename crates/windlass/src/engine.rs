//! The engine as users open it: one address, and a builder for what is to be different.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_engine::{
    Admission, BackpressureConfig, Engine as Core, Env, Options, TaskContext, TokioEnv,
};
use windlass_kernel::{Error, ErrorKind, IntoDuration, Namespace, Store};
#[cfg(feature = "machines")]
use windlass_models::machines;
use windlass_models::steps::{self, BoxError, Ctx, WorkflowRef};

use crate::Address;

/// A running engine. Cheap to clone.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use windlass::{Ctx, Engine, Result};
///
/// async fn greet(ctx: Ctx, name: String) -> Result<String> {
///     let text = ctx.step("compose", async || Ok::<_, windlass::BoxError>(format!("Hello, {name}!"))).await?;
///     ctx.sleep("a moment", "10 ms").await?;
///     Ok(text)
/// }
///
/// let engine = Engine::open("memory:").await?;
/// let greetings = engine.workflow("greet", greet)?;
/// let run = greetings.start("Ann".into()).id("greet-ann").await?;
/// assert_eq!(run.result().await?, "Hello, Ann!");
/// # Ok::<(), windlass::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Engine {
    core: Core,
}

impl Deref for Engine {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Engine {
    /// Opens the store that an address names and starts an engine on it, with all defaults.
    pub async fn open(address: &str) -> Result<Self, Error> {
        Self::builder().open(address).await
    }

    /// An engine in the making.
    pub fn builder() -> Builder {
        Builder { options: Options::default(), shared: None }
    }

    /// Registers a workflow: `async fn(Ctx, Input) -> Result<Output, E>`.
    pub fn workflow<I, O, E, F, Fut>(
        &self,
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
        steps::register(&self.core, name, workflow)
    }

    /// As [`Engine::workflow`], for a workflow that wants something of the application:
    /// `async fn(Arc<App>, Ctx, Input) -> Result<Output, E>`.
    pub fn workflow_with<S, I, O, E, F, Fut>(
        &self,
        name: impl AsRef<str>,
        state: Arc<S>,
        workflow: F,
    ) -> Result<WorkflowRef<I, O>, Error>
    where
        S: Send + Sync + 'static,
        I: Serialize + DeserializeOwned + Send + 'static,
        O: Serialize + DeserializeOwned + 'static,
        E: Into<BoxError> + 'static,
        F: Fn(Arc<S>, Ctx, I) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<O, E>> + Send + 'static,
    {
        let with_state = move |ctx, input| workflow(Arc::clone(&state), ctx, input);
        steps::register(&self.core, name, with_state)
    }

    /// A workflow that another process serves.
    pub fn remote_workflow<I, O>(&self, name: impl AsRef<str>) -> Result<WorkflowRef<I, O>, Error> {
        WorkflowRef::remote(&self.core, name)
    }

    /// A relay in the making: `runner` runs its steps, `hook` is told how its runs end. It is served
    /// once it is built.
    #[cfg(feature = "relays")]
    pub fn relay<R, H>(
        &self,
        name: impl Into<String>,
        runner: R,
        hook: H,
    ) -> windlass_models::relays::RuntimeBuilder<R, H>
    where
        R: windlass_models::relays::StepRunner,
        H: windlass_models::relays::TerminalHook,
    {
        windlass_models::relays::WorkflowRuntime::builder(&self.core, runner, hook).name(name)
    }

    /// A relay that another process serves.
    #[cfg(feature = "relays")]
    pub fn remote_relay(
        &self,
        name: impl AsRef<str>,
    ) -> Result<windlass_models::relays::WorkflowRuntime, Error> {
        windlass_models::relays::WorkflowRuntime::remote(&self.core, name)
    }

    /// Registers a state machine under its own name.
    #[cfg(feature = "machines")]
    pub fn machine<W: machines::Workflow>(&self) -> Result<machines::MachineRef<W>, Error> {
        machines::register(&self.core)
    }

    /// A state machine that another process serves.
    #[cfg(feature = "machines")]
    pub fn remote_machine<W: machines::Workflow>(&self) -> Result<machines::MachineRef<W>, Error> {
        machines::MachineRef::remote(&self.core)
    }

    /// Serves an activity on the default queue. Machines and steps share activities: whoever asks for
    /// a type gets whatever serves it.
    #[cfg(feature = "machines")]
    pub fn register_activity<A: machines::Activity>(&self, activity: A) -> Result<(), Error> {
        machines::serve(&self.core, "default", activity)
    }

    /// As [`Engine::register_activity`], on a queue of its own.
    #[cfg(feature = "machines")]
    pub fn register_activity_on<A: machines::Activity>(
        &self,
        queue: impl AsRef<str>,
        activity: A,
    ) -> Result<(), Error> {
        machines::serve(&self.core, queue, activity)
    }

    /// Serves activities of a type on the default queue: `async fn(TaskContext, Input)`.
    pub fn activity<I, O, E, F, Fut>(
        &self,
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
        steps::serve_activity(&self.core, "default", activity_type, activity)
    }

    /// As [`Engine::activity`], on a queue of its own.
    pub fn activity_on<I, O, E, F, Fut>(
        &self,
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
        steps::serve_activity(&self.core, queue, activity_type, activity)
    }
}

/// An engine in the making.
#[derive(Clone)]
pub struct Builder {
    options: Options,
    shared: Option<bool>,
}

impl Builder {
    /// All options at once.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The tenant that this engine's handles speak for. Default `default`.
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.options.namespace = namespace;
        self
    }

    /// What people call this process. Default `windlass`.
    pub fn worker_name(mut self, name: impl Into<String>) -> Self {
        self.options.worker_name = name.into();
        self
    }

    /// The group of workers that this process belongs to, for people. Default `default`.
    pub fn worker_group(mut self, group: impl Into<String>) -> Self {
        self.options.worker_group = group.into();
        self
    }

    /// The machine that this process runs on, for people. Default what the system calls it.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.options.host = host.into();
        self
    }

    /// The build that this process runs. Default empty.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.options.version = version.into();
        self
    }

    /// How many turns are held at once. Default 10,000.
    pub fn turns_max(mut self, max: usize) -> Self {
        self.options.turns_max = max;
        self
    }

    /// How many activities run at once. Default 256.
    pub fn tasks_max(mut self, max: usize) -> Self {
        self.options.tasks_max = max;
        self
    }

    /// How many bytes of waiting runs stay in memory. Default 64 MiB.
    pub fn sticky_bytes_max(mut self, max: usize) -> Self {
        self.options.sticky_bytes_max = max;
        self
    }

    /// How long the store believes in a process that does not renew, where several share it.
    /// Default 30 s; the process renews six times a lease.
    pub fn lease(mut self, lease: impl IntoDuration) -> Result<Self, Error> {
        let lease = lease.into_duration().map_err(|error| {
            Error::new(ErrorKind::Invalid, "INVALID_OPTION", format!("the lease: {error}"))
        })?;
        self.options.lease = lease;
        self.options.renew_every = lease / 6;
        Ok(self)
    }

    /// When this process takes nothing new although it has room. Default never.
    pub fn backpressure(mut self, config: BackpressureConfig) -> Self {
        self.options.backpressure = Some(config);
        self
    }

    /// Refuses new runs while the workers are too far behind. Default never.
    pub fn admission(mut self, admission: Admission) -> Self {
        self.options.admission = Some(admission);
        self
    }

    /// Opens the store that an address names and starts the engine.
    pub async fn open(self, address: &str) -> Result<Engine, Error> {
        let shared = matches!(address.parse()?, Address::Postgres(_));
        let store = crate::open_store(address).await?;
        let mut this = self;
        this.shared = Some(shared);
        this.start(store).await
    }

    /// Starts the engine on a store that is open. Where several processes may use the store, say so
    /// in the options.
    pub async fn start(self, store: Arc<dyn Store>) -> Result<Engine, Error> {
        let env = TokioEnv::new().map_err(|source| {
            let message =
                "an engine needs a tokio runtime; start it inside one, as under #[tokio::main]";
            Error::new(ErrorKind::Invalid, "NO_RUNTIME", message).with_source(source)
        })?;
        let mut this = self;
        if this.options.host.is_empty() {
            let name = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
            this.options.host = name.trim().to_owned();
        }
        this.start_in(store, env).await
    }

    /// As [`Builder::start`], in an environment of the caller's.
    pub async fn start_in(self, store: Arc<dyn Store>, env: Arc<dyn Env>) -> Result<Engine, Error> {
        let mut options = self.options;
        options.shared = self.shared.unwrap_or(options.shared);
        if options.manners.is_empty() {
            options.manners = windlass_models::MANNERS;
        }
        Ok(Engine { core: Core::start(store, env, options).await? })
    }
}

impl Engine {
    /// Stops the engine and closes its store: steps and activities may finish until the deadline,
    /// the rest is given back at once.
    pub async fn stop(&self, deadline: Duration) -> Result<(), Error> {
        self.core.shutdown(deadline).await?;
        self.core.store().close().await
    }
}
