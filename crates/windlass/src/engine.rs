//! The engine as programs use it.

#[cfg(any(feature = "agents", feature = "machines", feature = "relays", feature = "steps"))]
mod register;

use serde::Serialize;
use windlass_engine::{Receipt, Records, SendByKey};
use windlass_kernel::{
    Body, Collection, Error, ErrorCode, ErrorKind, IntoDuration, Namespace, Query, RunKey, TaskId,
};

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
