//! The engine as programs use it.

#[cfg(feature = "steps")]
use std::future::Future;
#[cfg(feature = "steps")]
use std::sync::Arc;

use serde::Serialize;
#[cfg(feature = "steps")]
use serde::de::DeserializeOwned;
use windlass_engine::{Receipt, Records, SendByKey};
use windlass_kernel::{
    Body, Collection, Error, ErrorCode, ErrorKind, IntoDuration, Namespace, Query, RunKey, TaskId,
};
#[cfg(any(feature = "agents", feature = "machines", feature = "relays", feature = "steps"))]
use windlass_models::WorkflowRef;
#[cfg(feature = "machines")]
use windlass_models::machines;
#[cfg(feature = "relays")]
use windlass_models::relays;
#[cfg(feature = "steps")]
use windlass_models::steps::{self, Ctx};
#[cfg(feature = "steps")]
use windlass_models::{AnyError, Value};

use crate::admin::Admin;
use crate::requests::Requests;
use crate::runs::Runs;
use crate::{Builder, model};

/// A running engine: registers workflows, starts their runs and serves them. Cheap to clone.
///
/// One process opens a store with [`Engine::open`] and registers the workflows that it serves. Runs that are
/// ready start at once. The engine stops when its last clone is dropped; [`Engine::stop`] waits for steps that
/// are running.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use windlass::{Ctx, Engine, Result};
///
/// async fn greet(ctx: Ctx, name: String) -> Result<String> {
///     let text = ctx.step("compose", async || Ok(format!("Hello, {name}!"))).await?;
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
    core: model::Engine,
}

impl Engine {
    /// Opens the store at an address and starts an engine with default options on it. [`Builder`] has the
    /// options, [`open_store`](crate::admin::open_store) the addresses.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let engine = windlass::Engine::open("memory:").await?;
    /// # engine.stop("1 second").await?;
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The address is not valid, the store cannot be opened, or there is no tokio runtime.
    pub async fn open(address: &str) -> Result<Self, Error> {
        Self::builder().open(address).await
    }

    /// A builder with default options.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let engine = windlass::Engine::builder().tasks_max(16).open("memory:").await?;
    /// # engine.stop("1 second").await?;
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The engine as authors of models and servers use it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// assert!(!engine.core().is_stopping());
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn core(&self) -> &model::Engine {
        &self.core
    }

    /// Calls for operators: dead letters, schedules, limits, rates, retention, workers, metrics, the store.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// assert!(engine.admin().schedules().await?.is_empty());
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(&self.core)
    }

    /// Sends an event to a key when it is awaited: every run that waits for this type and key, now or
    /// within the time to live of the event (by default a day), gets it once.
    ///
    /// ```
    /// # use windlass::{Ctx, Engine, Result};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let engine = Engine::open("memory:").await?;
    /// let track = async |ctx: Ctx, (): ()| -> Result<String> {
    ///     Ok(ctx.event("parcel", "scanned").key("parcel-17").await?)
    /// };
    /// let runs = engine.workflow("track", track)?;
    /// engine.send_by_key("scanned", "parcel-17", &"Oslo").id("scan-1").ttl("2 days").await?;
    /// assert_eq!(runs.start(()).await?.result().await?, "Oslo");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::EventKeyFull`](crate::ErrorCode::EventKeyFull) if the key keeps too many events,
    /// [`ErrorCode::MessageExists`](crate::ErrorCode::MessageExists) if it keeps another event with this id.
    pub fn send_by_key<T: Serialize + ?Sized>(
        &self,
        event_type: impl AsRef<str>,
        key: impl AsRef<str>,
        payload: &T,
    ) -> SendByKey {
        self.core.send_by_key(event_type, key, Body::of(payload))
    }

    /// The receipt of an effect that was enqueued with a receipt; `None` if the effect is not settled
    /// yet, or its receipt was deleted.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine, task_id: windlass::kernel::TaskId) -> windlass::Result<()> {
    /// if let Some(receipt) = engine.receipt(task_id).await? {
    ///     println!("{receipt:?}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn receipt(&self, task_id: TaskId) -> Result<Option<Receipt>, Error> {
        self.core.receipt(task_id).await
    }

    /// A page of the receipts of a run's effects: what became of them, after how many attempts, and when.
    /// They are deleted 90 days after the end of the run (`Options::receipt_retention`).
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine, run: windlass::RunHandle<u32>) -> windlass::Result<()> {
    /// let first_page = engine.receipts(run.run_key(), None, 100).await?;
    /// println!("{} receipts", first_page.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn receipts(
        &self,
        run_key: RunKey,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<Receipt>, Error> {
        self.core.receipts(run_key, after, limit).await
    }

    /// The records of a collection: documents outside any run, with a revision that each write increases.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// let carts = engine.records::<Vec<String>>("carts");
    /// let revision = carts.put("c-7", &vec!["tea".to_owned()]).term("customer", "u-1").send().await?;
    /// let cart = carts.get("c-7").await?.expect("it was just written");
    /// assert_eq!((cart.revision, revision), (1, 1));
    ///
    /// // Another writer is first: the second write fails, and the error says which revision there is.
    /// carts.put("c-7", &vec![]).expect_revision(1).send().await?;
    /// let error = carts.put("c-7", &cart.value).expect_revision(1).send().await.unwrap_err();
    /// assert_eq!(error.code(), windlass::ErrorCode::RecordConflict);
    /// assert!(error.message().contains("it has revision 2"));
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn records<T>(&self, collection: impl Into<String>) -> Records<T> {
        self.core.records(collection)
    }

    /// A page of the names of collections that have records, sorted, after the given name. A page with fewer
    /// names than `limit` is the last.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// engine.records::<u32>("stock").put("lamp", &7).send().await?;
    /// let names = engine.collections(None, 100).await?;
    /// assert_eq!(names[0].as_str(), "stock");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if `after` cannot be the name of a collection,
    /// [`ErrorCode::InvalidPageSize`] if the limit is 0 or too large.
    pub async fn collections(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<Collection>, Error> {
        let after = after.map(Collection::new).transpose()?;
        let namespace = self.core.namespace().clone();
        let query = Query::Collections { namespace, after, limit };
        self.core.store().list(query).await?.collections()
    }

    /// The requests to people: decisions, delegations, comments and the inbox.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use windlass::requests::{InboxOrder, InboxQuery};
    ///
    /// let engine = windlass::Engine::open("memory:").await?;
    /// let query = InboxQuery::Role("cfo".into());
    /// let page = engine.requests().inbox(&query, InboxOrder::Due, None, 50).await?;
    /// assert!(page.requests.is_empty());
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn requests(&self) -> Requests {
        self.core.requests()
    }

    /// A listing of runs, with filters and pages. Await it.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// let page = engine.runs().workflow("order").label("customer", "ann").limit(20).await?;
    /// assert!(page.runs.is_empty());
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn runs(&self) -> Runs {
        Runs::new(self.core.clone())
    }

    /// The namespace that this handle works in.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// assert_eq!(engine.namespace().as_str(), "default");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn namespace(&self) -> &Namespace {
        self.core.namespace()
    }

    /// The same engine for another namespace: runs, schedules and limits are those of that namespace.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// let other = engine.in_namespace("tenant-7")?;
    /// assert_eq!(other.namespace().as_str(), "tenant-7");
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidName`] if the name is not valid.
    pub fn in_namespace(&self, namespace: impl AsRef<str>) -> Result<Self, Error> {
        let namespace = Namespace::with_limits(namespace, &self.core.options().limits)?;
        Ok(Self { core: self.core.in_namespace(namespace) })
    }

    /// Stops the engine and closes its store: steps and activities may finish until the deadline, the rest is
    /// released at once.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// engine.stop("10 seconds").await?;
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// The deadline is no duration, or the store cannot be written.
    pub async fn stop(&self, deadline: impl IntoDuration) -> Result<(), Error> {
        let deadline = deadline.into_duration().map_err(|error| {
            let message = format!("the deadline of the stop: {error}");
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidDuration, message)
        })?;
        self.core.shutdown(deadline).await?;
        self.core.store().close().await
    }

    /// Whether the engine is stopping or has stopped.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// # let engine = windlass::Engine::open("memory:").await?;
    /// assert!(!engine.is_stopping());
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn is_stopping(&self) -> bool {
        self.core.is_stopping()
    }

    /// Delivers effects with a name: the handler gets each at least once, with a stable id. Effects that fail
    /// for good become dead letters.
    ///
    /// ```
    /// # async fn example(engine: windlass::Engine) -> windlass::Result<()> {
    /// use std::sync::Arc;
    /// use windlass::kernel::{Body, BoxFuture};
    /// use windlass::model::{TaskContext, TaskHandler, TaskResult};
    ///
    /// struct Mail;
    ///
    /// impl TaskHandler for Mail {
    ///     fn run(&self, _: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
    ///         Box::pin(async move { Ok(input) })
    ///     }
    /// }
    ///
    /// engine.serve_effects("mail", Arc::new(Mail))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ActivityExists`] if this process serves effects with the name.
    pub fn serve_effects(
        &self,
        name: impl AsRef<str>,
        handler: std::sync::Arc<dyn model::TaskHandler>,
    ) -> Result<(), Error> {
        self.core.serve_effects(name, handler)
    }
}

impl AsRef<model::Engine> for Engine {
    fn as_ref(&self) -> &model::Engine {
        &self.core
    }
}

impl From<model::Engine> for Engine {
    fn from(core: model::Engine) -> Self {
        Self { core }
    }
}

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
        WorkflowRef::remote(&self.core, name)
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
