//! Options of an engine, set one by one.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{Error, ErrorCode, ErrorKind, IntoDuration, Limits, Namespace, Store};

use crate::admin::{Admission, Archive, BackpressureConfig, Connections, EnqueuedReason, Options};
use crate::model::{self, Env, TokioEnv};
use crate::requests::Directory;
use crate::{Address, Engine};

/// How many times a lease is renewed before it ends, unless [`Builder::renew_every`] says otherwise.
const RENEWALS_OF_LEASE: u32 = 6;

/// Sets the options of an engine and starts it. No call overwrites another option.
///
/// A value that is not valid is reported by [`Builder::open`] or [`Builder::start`].
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let engine = windlass::Engine::builder()
///     .worker_name("checkout")
///     .turns_max(1_000)
///     .lease("15 seconds")
///     .blocked_retry("5 seconds")
///     .open("memory:")
///     .await?;
/// # engine.stop("1 second").await?;
/// # Ok::<(), windlass::Error>(()) }).unwrap();
/// ```
#[derive(Default)]
#[must_use = "a builder does nothing until it is opened or started"]
pub struct Builder {
    options: Options,
    connections: Connections,
    // A sixth of the lease if it is not set.
    renew_every: Option<Duration>,
    refused: Option<Error>,
}

/// A builder that begins with options.
impl From<Options> for Builder {
    fn from(options: Options) -> Self {
        let is_derived = options.renew_every == options.lease / RENEWALS_OF_LEASE;
        let renew_every = (!is_derived).then_some(options.renew_every);
        Self { options, connections: Connections::default(), renew_every, refused: None }
    }
}

impl Builder {
    /// The namespace that the engine works in. Default `default`.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().namespace("tenant-7").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn namespace(mut self, namespace: impl AsRef<str>) -> Self {
        match Namespace::new(namespace) {
            Ok(namespace) => self.options.namespace = namespace,
            Err(error) => self.refuse(error),
        }
        self
    }

    /// The name of this process, for people. Default `windlass`.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().worker_name("checkout").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn worker_name(mut self, name: impl Into<String>) -> Self {
        self.options.worker_name = name.into();
        self
    }

    /// The group of workers that this process belongs to, for people. Default `default`.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().worker_group("gpu").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn worker_group(mut self, group: impl Into<String>) -> Self {
        self.options.worker_group = group.into();
        self
    }

    /// The name of the machine, for people. Default: the host name of the system.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().host("node-1").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.options.host = host.into();
        self
    }

    /// The version of the program, for people and for runs that wait for another build. Default empty.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().version("1.4.0").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.options.version = version.into();
        self
    }

    /// How many turns the engine holds at once. Default 10,000.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().turns_max(1_000).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn turns_max(mut self, max: usize) -> Self {
        self.options.turns_max = max;
        self
    }

    /// How many activities run at once. Default 256.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().tasks_max(16).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn tasks_max(mut self, max: usize) -> Self {
        self.options.tasks_max = max;
        self
    }

    /// How many turns or tasks one claim takes. Default 500.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().claim_max(100).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn claim_max(mut self, max: u32) -> Self {
        self.options.claim_max = max;
        self
    }

    /// How many bytes of waiting runs stay in memory. Default 64 MiB.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().run_cache_bytes_max(16 << 20).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn run_cache_bytes_max(mut self, max: usize) -> Self {
        self.options.run_cache_bytes_max = max;
        self
    }

    /// How often a run or a task may be reclaimed from dead workers without progress. Default 3.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().reclaims_max(5).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn reclaims_max(mut self, max: u32) -> Self {
        self.options.reclaims_max = max;
        self
    }

    /// The limits on names, sizes and counts, for the engine and for the store that [`Builder::open`] opens.
    /// [`Builder::start`] gets a store that has its own: open it with the same limits.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// use windlass::Limits;
    ///
    /// let limits = Limits { step_bytes_max: 4 << 20, ..Limits::default() };
    /// windlass::Engine::builder().limits(limits).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits;
        self
    }

    /// How long a process that does not renew its lease keeps its runs, where several processes share a store.
    /// Default 30 s.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().lease("15 seconds").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn lease(self, lease: impl IntoDuration) -> Self {
        self.set("the lease", lease, |builder, lease| builder.options.lease = lease)
    }

    /// How often the process renews its lease, at least three times a lease. Default: six times a lease.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().lease("15 seconds").renew_every("3 seconds").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn renew_every(self, every: impl IntoDuration) -> Self {
        self.set("renew_every", every, |builder, every| builder.renew_every = Some(every))
    }

    /// How often the engine asks the store for ready work that it was not notified of. Default 10 s.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().scan_every("5 seconds").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn scan_every(self, every: impl IntoDuration) -> Self {
        self.set("scan_every", every, |builder, every| builder.options.scan_every = every)
    }

    /// How often the engine deletes runs whose retention is over. Default one hour.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().sweep_every("10 minutes").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn sweep_every(self, every: impl IntoDuration) -> Self {
        self.set("sweep_every", every, |builder, every| builder.options.sweep_every = every)
    }

    /// How long a run waits that this build cannot carry on, before it is tried again. Default one minute.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().blocked_retry("5 seconds").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn blocked_retry(self, after: impl IntoDuration) -> Self {
        self.set("blocked_retry", after, |builder, after| builder.options.blocked_retry = after)
    }

    /// How long a machine that is cancelled may take to end by itself. Default 30 s.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().cancel_grace("1 minute").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn cancel_grace(self, grace: impl IntoDuration) -> Self {
        self.set("cancel_grace", grace, |builder, grace| builder.options.cancel_grace = grace)
    }

    /// How long an event that is sent to a key is kept for runs that begin to wait later. Default one day.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().event_ttl("1 hour").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn event_ttl(self, ttl: impl IntoDuration) -> Self {
        self.set("event_ttl", ttl, |builder, ttl| builder.options.event_ttl = ttl)
    }

    /// How long a commit that creates a run is sent again while its outcome is unknown. Then the caller gets
    /// [`ErrorCode::StoreUnknown`]. A retention policy must keep runs at least four times as long. Default one
    /// minute.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().create_resend_max("20 seconds").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn create_resend_max(self, max: impl IntoDuration) -> Self {
        self.set("create_resend_max", max, |builder, max| builder.options.create_resend_max = max)
    }

    /// How long the receipt of an effect is kept after its run has ended. Default 90 days.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().receipt_retention("30 days").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn receipt_retention(self, kept: impl IntoDuration) -> Self {
        self.set("receipt_retention", kept, |builder, kept| {
            builder.options.receipt_retention = kept
        })
    }

    /// How long a closed request to people and its decisions are kept after their run has ended. Default
    /// 90 days.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().request_retention("30 days").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn request_retention(self, kept: impl IntoDuration) -> Self {
        self.set("request_retention", kept, |builder, kept| {
            builder.options.request_retention = kept
        })
    }

    /// How long the row of a removed record stays in a collection of the engine and its models. Default 90
    /// days.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().removed_record_retention("30 days").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn removed_record_retention(self, kept: impl IntoDuration) -> Self {
        self.set("removed_record_retention", kept, |builder, kept| {
            builder.options.removed_record_retention = kept
        })
    }

    /// As [`Builder::removed_record_retention`], for collections of applications. Default for ever: the
    /// revisions of a record whose row is deleted begin again at 1, so a run that expects a revision which it
    /// read before this time could write a document that it has not seen.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().removed_record_retention_of_applications("365 days").open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn removed_record_retention_of_applications(self, kept: impl IntoDuration) -> Self {
        self.set("removed_record_retention_of_applications", kept, |builder, kept| {
            builder.options.removed_record_retention_of_applications = Some(kept)
        })
    }

    /// Takes nothing new while the process has too much load. Default: never.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// use windlass::admin::BackpressureConfig;
    ///
    /// windlass::Engine::builder().backpressure(BackpressureConfig::default()).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn backpressure(mut self, config: BackpressureConfig) -> Self {
        self.options.backpressure = Some(config);
        self
    }

    /// Refuses new runs while the workers are too far behind. Default: never.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// use windlass::admin::Admission;
    ///
    /// windlass::Engine::builder().admission(Admission::default()).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn admission(mut self, admission: Admission) -> Self {
        self.options.admission = Some(admission);
        self
    }

    /// Where runs are written before retention deletes them. Default: nowhere.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// let archive = windlass::admin::FileArchive::new("archive")?;
    /// windlass::Engine::builder().archive(archive).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn archive(mut self, archive: Arc<dyn Archive>) -> Self {
        self.options.archive = Some(archive);
        self
    }

    /// Sets who has which role, so that requests to people can ask for all members of a role. Default
    /// nobody knows: a request to a role needs a number as its quorum.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use windlass::requests::Directory;
    ///
    /// struct Roles;
    ///
    /// impl Directory for Roles {
    ///     fn members(&self, role: &str) -> Option<Vec<String>> {
    ///         (role == "cfo").then(|| vec!["ann".into(), "bob".into()])
    ///     }
    /// }
    ///
    /// windlass::Engine::builder().directory(Roles).open("memory:").await?;
    /// # Ok::<(), windlass::Error>(()) }).unwrap();
    /// ```
    pub fn directory(mut self, directory: impl Directory + 'static) -> Self {
        self.options.directory = Some(Arc::new(directory));
        self
    }

    /// A callback for each run that becomes ready, with its workflow, its id and the reason.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder()
    ///     .on_enqueued(|workflow, id, _| println!("{workflow}/{id} is ready"))
    ///     .open("memory:")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn on_enqueued(
        mut self,
        callback: impl Fn(&str, &str, EnqueuedReason) + Send + Sync + 'static,
    ) -> Self {
        self.options.on_enqueued = Some(Arc::new(callback));
        self
    }

    /// Whether the engine takes ready work by itself. Hosts that drive it with
    /// [`Admin::tick`](crate::admin::Admin::tick) say `false`. Default `true`.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().background(false).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn background(mut self, background: bool) -> Self {
        self.options.background = background;
        self
    }

    /// Whether other processes use the store at the same time. Default `false`, and `true` if
    /// [`Builder::open`] gets the address of a PostgreSQL server.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().shared(true).start(windlass::admin::open_store("memory:").await?).await?;
    /// # Ok(()) }
    /// ```
    pub fn shared(mut self, shared: bool) -> Self {
        self.options.shared = shared;
        self
    }

    /// How many connections [`Builder::open`] may use for PostgreSQL. Default: at most 13.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// use windlass::admin::Connections;
    ///
    /// let few = Connections { pool_size_max: 2, lease_pool_size_max: 1, committers: 1 };
    /// assert_eq!(few.total(), 5);
    /// windlass::Engine::builder().connections(few).open("memory:").await?;
    /// # Ok(()) }
    /// ```
    pub fn connections(mut self, connections: Connections) -> Self {
        self.connections = connections;
        self
    }

    /// Opens the store at an address and starts the engine on it.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// windlass::Engine::builder().open("memory:").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An option or the address is not valid, the store cannot be opened, or there is no tokio runtime.
    pub async fn open(mut self, address: &str) -> Result<Engine, Error> {
        self.options.shared |= matches!(address.parse()?, Address::Postgres(_));
        let store =
            crate::store::open(address, &self.options.limits, self.connections, false).await?;
        self.start(store).await
    }

    /// Starts the engine on a store that is open.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// let store = windlass::admin::open_store("memory:").await?;
    /// windlass::Engine::builder().start(store).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An option is not valid, the store cannot be used, or there is no tokio runtime.
    pub async fn start(mut self, store: Arc<dyn Store>) -> Result<Engine, Error> {
        let env = TokioEnv::new().map_err(|source| {
            let message =
                "an engine needs a tokio runtime; start it inside one, as under #[tokio::main]";
            Error::new(ErrorKind::Invalid, ErrorCode::NoRuntime, message).with_source(source)
        })?;
        if self.options.host.is_empty() {
            let name = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
            self.options.host = name.trim().to_owned();
        }
        self.start_in(store, env).await
    }

    /// As [`Builder::start`], in another environment than tokio's, such as that of a simulator.
    ///
    /// ```
    /// # async fn example() -> windlass::Result<()> {
    /// let store = windlass::admin::open_store("memory:").await?;
    /// let env = windlass::model::TokioEnv::new()?;
    /// windlass::Engine::builder().start_in(store, env).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// An option is not valid, or the store cannot be used.
    pub async fn start_in(self, store: Arc<dyn Store>, env: Arc<dyn Env>) -> Result<Engine, Error> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let mut options = self.options;
        options.renew_every = self.renew_every.unwrap_or(options.lease / RENEWALS_OF_LEASE);
        options.models.extend(windlass_models::MODELS);
        Ok(Engine::from(model::Engine::start(store, env, options).await?))
    }

    fn set(
        mut self,
        what: &str,
        span: impl IntoDuration,
        set: impl FnOnce(&mut Self, Duration),
    ) -> Self {
        match span.into_duration() {
            Ok(span) => set(&mut self, span),
            Err(error) => {
                let message = format!("{what}: {error}");
                self.refuse(Error::new(ErrorKind::Invalid, ErrorCode::InvalidOption, message));
            }
        }
        self
    }

    // The first value that is not valid is reported.
    fn refuse(&mut self, error: Error) {
        self.refused.get_or_insert(error);
    }
}
