//! Runs a test on each of the three stores, and checks the ledger when it is done.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass::Status;
use windlass::admin::{Options, verify_store};
use windlass::kernel::{Event, MemoryStore, StepStatus};
use windlass::model::Env;
use windlass::{AnyError, Builder, Ctx, Engine, Limits, RunHandle, RunStatus, Store};

use crate::schema::{self, Schema};

/// How long a test waits for something before it says that it does not come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long a whole test may take before it counts as hung.
const HUNG: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Postgres,
}

/// Makes a module with a test a store for each body, an `async fn(Arc<Harness>)`.
macro_rules! on_every_store {
    ($($body:ident),* $(,)?) => {$(
        mod $body {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn memory() {
                crate::harness::run(crate::harness::Kind::Memory, super::$body).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                crate::harness::run(crate::harness::Kind::Sqlite, super::$body).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                crate::harness::run(crate::harness::Kind::Postgres, super::$body).await;
            }
        }
    )*};
}
pub(crate) use on_every_store;

/// One store, and the engines that a test has started on it.
pub(crate) struct Harness {
    pub(crate) kind: Kind,
    memory: Arc<dyn Store>,
    folder: tempfile::TempDir,
    schema: Option<Schema>,
    engines: Mutex<Vec<Engine>>,
    without_runs: AtomicBool,
}

pub(crate) async fn run<F, Fut>(kind: Kind, body: F)
where
    F: FnOnce(Arc<Harness>) -> Fut,
    Fut: Future<Output = ()>,
{
    let harness = Arc::new(Harness::new(kind));
    let tested = tokio::time::timeout(HUNG, body(Arc::clone(&harness))).await;
    assert!(tested.is_ok(), "the test hangs on {kind:?}");
    harness.done().await;
}

impl Harness {
    fn new(kind: Kind) -> Self {
        let clock = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            windlass::Timestamp::ZERO.plus(since.expect("after 1970"))
        };
        Self {
            kind,
            memory: Arc::new(MemoryStore::new(Arc::new(clock), Limits::DEFAULT)),
            folder: tempfile::tempdir().expect("a temporary folder"),
            schema: (kind == Kind::Postgres).then(Schema::new),
            engines: Mutex::default(),
            without_runs: AtomicBool::new(false),
        }
    }

    /// The test starts no run. Without this, a test that leaves no run behind fails.
    pub(crate) fn expect_no_runs(&self) {
        self.without_runs.store(true, Ordering::Relaxed);
    }

    /// All bytes that the store has written to its folder.
    pub(crate) fn stored_bytes(&self) -> Vec<u8> {
        let files = std::fs::read_dir(self.folder.path()).expect("the folder is there");
        let paths = files.map(|file| file.expect("a file").path()).filter(|path| path.is_file());
        paths.flat_map(|path| std::fs::read(path).expect("it can be read")).collect()
    }

    fn schema(&self) -> &Schema {
        self.schema.as_ref().expect("this is PostgreSQL")
    }

    pub(crate) async fn open(&self) -> Arc<dyn Store> {
        match self.kind {
            Kind::Memory => Arc::clone(&self.memory),
            Kind::Sqlite => {
                let file = format!("sqlite://{}/test.db", self.folder.path().display());
                windlass::admin::open_store(&file).await.expect("the file opens")
            }
            Kind::Postgres => {
                let mut options = schema::options(&self.schema().name);
                (options.pool_size_max, options.committers, options.threads) = (3, 1, 1);
                self.schema().open(options).await
            }
        }
    }

    pub(crate) async fn engine(&self) -> Engine {
        self.engine_with(|options| options).await
    }

    /// An engine with other options than the defaults.
    pub(crate) async fn engine_with(&self, set: impl FnOnce(Options) -> Options) -> Engine {
        let options = Options { shared: self.kind == Kind::Postgres, ..Options::default() };
        self.start(windlass::Builder::from(set(options))).await
    }

    /// Two engines that share the store: each with a connection of its own where it is a server.
    pub(crate) async fn two_engines(&self, set: impl Fn(Options) -> Options) -> (Engine, Engine) {
        let options = || set(Options { shared: true, ..Options::default() });
        let first = self.start(windlass::Builder::from(options())).await;
        let second = match self.kind {
            Kind::Postgres => self.start(windlass::Builder::from(options())).await,
            Kind::Memory | Kind::Sqlite => {
                let beside =
                    windlass::Builder::from(options()).start(Arc::clone(first.admin().store()));
                let beside = beside.await.expect("the engine starts");
                self.engines.lock().push(beside.clone());
                beside
            }
        };
        (first, second)
    }

    /// Two engines that share the store. The first sees it only through `wrap`.
    pub(crate) async fn engine_behind(
        &self,
        wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> (Engine, Engine) {
        self.engine_behind_with(|options| options, wrap).await
    }

    /// As [`Harness::engine_behind`], with other options than the defaults for both.
    pub(crate) async fn engine_behind_with(
        &self,
        set: impl Fn(Options) -> Options,
        wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> (Engine, Engine) {
        let options = || set(Options { shared: true, ..Options::default() });
        let beside = self.start(windlass::Builder::from(options())).await;
        let store = match self.kind {
            Kind::Postgres => self.open().await,
            Kind::Memory | Kind::Sqlite => Arc::clone(beside.admin().store()),
        };
        let engine = windlass::Builder::from(options()).start(wrap(store)).await;
        let engine = engine.expect("the engine starts");
        self.engines.lock().push(engine.clone());
        (engine, beside)
    }

    /// As [`Harness::engine_with`], in an environment of the test's.
    pub(crate) async fn engine_in(
        &self,
        env: Arc<dyn Env>,
        set: impl FnOnce(Options) -> Options,
    ) -> Result<Engine, windlass::Error> {
        let options = Options { shared: self.kind == Kind::Postgres, ..Options::default() };
        let builder = windlass::Builder::from(set(options));
        let engine = builder.start_in(self.open().await, env).await?;
        self.engines.lock().push(engine.clone());
        Ok(engine)
    }

    /// An engine on a store with other limits than the defaults. In memory it is a store of its own.
    pub(crate) async fn engine_with_limits(&self, limits: Limits) -> Engine {
        let options = Options {
            shared: self.kind == Kind::Postgres,
            limits: limits.clone(),
            ..Options::default()
        };
        let builder = windlass::Builder::from(options);
        let engine = match self.kind {
            Kind::Memory => builder.open("memory:").await,
            Kind::Sqlite => {
                builder.open(&format!("sqlite://{}/test.db", self.folder.path().display())).await
            }
            Kind::Postgres => {
                let mut options = schema::options(&self.schema().name);
                (options.pool_size_max, options.committers, options.threads) = (3, 1, 1);
                options.limits = limits;
                builder.start(self.schema().open(options).await).await
            }
        };
        let engine = engine.expect("the engine starts");
        self.engines.lock().push(engine.clone());
        engine
    }

    async fn start(&self, builder: Builder) -> Engine {
        let engine = builder.start(self.open().await).await.expect("the engine starts");
        self.engines.lock().push(engine.clone());
        engine
    }

    /// Stops an engine, as a deployment does.
    pub(crate) async fn stop(&self, engine: &Engine) {
        self.stop_within(engine, PATIENCE).await;
    }

    /// Stops an engine; what has not ended by the deadline is cut off.
    pub(crate) async fn stop_within(&self, engine: &Engine, deadline: Duration) {
        engine.core().shutdown(deadline).await.expect("it stops");
        if self.kind != Kind::Memory {
            engine.admin().store().close().await.expect("it closes");
        }
        self.engines.lock().retain(|known| known.admin().worker() != engine.admin().worker());
    }

    /// Loses an engine, as a machine that is switched off: it gives nothing back. Only where each
    /// engine has a connection of its own.
    pub(crate) async fn lose(&self, engine: &Engine) {
        assert_ne!(self.kind, Kind::Memory);
        self.engines.lock().retain(|known| known.admin().worker() != engine.admin().worker());
        engine.admin().store().close().await.expect("it closes");
    }

    /// Ends the connections that listen for wake-ups; engines listen anew after a while.
    pub(crate) async fn deafen(&self) {
        let listens = format!("LISTEN \"windlass_{}\"%", self.schema().name);
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE";
        self.sql(&format!("{sql} '{listens}'")).await;
    }

    /// Runs SQL beside the engine.
    pub(crate) async fn sql(&self, sql: &str) {
        match self.kind {
            Kind::Memory => panic!("the memory store has no SQL"),
            Kind::Sqlite => self.sqlite().execute_batch(sql).expect("the SQL runs"),
            Kind::Postgres => {
                let client = schema::connect_to(&self.schema().dsn()).await;
                client.batch_execute(sql).await.expect("the SQL runs");
            }
        }
    }

    /// Asks for one number beside the engine.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        match self.kind {
            Kind::Memory => panic!("the memory store has no SQL"),
            Kind::Sqlite => {
                let asked = self.sqlite().query_row(sql, [], |row| row.get(0));
                asked.expect("the SQL runs")
            }
            Kind::Postgres => {
                let client = schema::connect_to(&self.schema().dsn()).await;
                client.query_one(sql, &[]).await.expect("the SQL runs").get(0)
            }
        }
    }

    fn sqlite(&self) -> rusqlite::Connection {
        let file = self.folder.path().join("test.db");
        let connection = rusqlite::Connection::open(file).expect("the file opens");
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout is set");
        connection
    }

    async fn done(&self) {
        let engines = std::mem::take(&mut *self.engines.lock());
        for engine in &engines {
            engine.core().shutdown(Duration::from_secs(5)).await.expect("it stops");
        }
        let store = match engines.first() {
            Some(engine) => Arc::clone(engine.admin().store()),
            None => self.open().await,
        };
        let report = verify_store(&*store, &[]).await.expect("the store can be verified");
        assert!(report.is_clean(), "{:?} {:?}", report.flaws, report.unreadable);
        let expects_runs = !self.without_runs.load(Ordering::Relaxed);
        assert_eq!(report.runs > 0, expects_runs, "the store has {} runs", report.runs);
        for engine in &engines {
            engine.admin().store().close().await.expect("it closes");
        }
        if engines.is_empty() {
            store.close().await.expect("it closes");
        }
    }
}

/// How often things happened, by name.
#[derive(Default)]
pub(crate) struct Counts(Mutex<BTreeMap<String, u32>>);

impl Counts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// One more; answers how many that makes.
    pub(crate) fn hit(&self, name: &str) -> u32 {
        let mut counts = self.0.lock();
        let count = counts.entry(name.to_owned()).or_default();
        *count += 1;
        *count
    }

    pub(crate) fn reset(&self, name: &str) {
        self.0.lock().remove(name);
    }

    pub(crate) fn get(&self, name: &str) -> u32 {
        self.0.lock().get(name).copied().unwrap_or_default()
    }
}

/// An outcome of a body, with the error type that needs no name.
pub(crate) fn ok<T>(value: T) -> Result<T, AnyError> {
    Ok(value)
}

/// Asks until the answer is yes.
pub(crate) async fn until<F, Fut>(what: &str, mut ask: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = std::time::Instant::now() + PATIENCE;
    while !ask().await {
        assert!(std::time::Instant::now() < deadline, "it does not come to this: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs other workflows to their end: by then the engine has seen everything that was written before,
/// and has had time to act on it.
pub(crate) async fn fence(engine: &Engine) {
    fence_between(engine, engine).await;
}

/// As [`fence`], for an engine that learns from the store what another one has written.
pub(crate) async fn fence_between(asks: &Engine, serves: &Engine) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("fence-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    serves.workflow(&name, async |_: Ctx, n: u32| ok(n)).expect("the name is free");
    let flow = asks.remote_workflow::<u32, u32>(&name).expect("the name is valid");
    for n in 0..3 {
        assert_eq!(flow.start(n).await.unwrap().result().await.unwrap(), n);
    }
}

/// As [`fence`], beside an engine that takes no work: an engine that takes some has done it by now.
pub(crate) async fn fence_elsewhere() {
    let engine = Engine::open("memory:").await.expect("the engine starts");
    fence(&engine).await;
    engine.stop(PATIENCE).await.expect("it stops");
}

/// Waits until a run has a status.
pub(crate) async fn until_status<O>(run: &RunHandle<O>, status: RunStatus) -> Status {
    until(status.as_str(), || async { run.status().await.unwrap().status == status }).await;
    run.status().await.unwrap()
}

/// Waits until a run has given its turn back and waits.
pub(crate) async fn until_waiting<O>(engine: &Engine, run: &RunHandle<O>) {
    until_status(run, RunStatus::Waiting).await;
    until("the turn is put away", || async { engine.core().load().0 == 0 }).await;
}

/// Waits until a run waits for this step.
pub(crate) async fn until_asked<O>(run: &RunHandle<O>, key: &str) {
    let asked = || async {
        let steps = run.steps().await.unwrap();
        steps.iter().any(|step| {
            let open = matches!(step.status, StepStatus::Waiting | StepStatus::Pending);
            step.step_key.as_str() == key && open
        })
    };
    until(key, asked).await;
}

/// Waits until a run is blocked; answers the reason.
pub(crate) async fn until_blocked<O>(run: &RunHandle<O>) -> String {
    // It may be tried again right after it was asked.
    let reason = Mutex::new(None);
    until("blocked", || async {
        let blocked = run.status().await.unwrap().blocked;
        let is_blocked = blocked.is_some();
        *reason.lock() = blocked;
        is_blocked
    })
    .await;
    reason.into_inner().expect("it is blocked")
}

/// The types of a run's events.
pub(crate) async fn event_types<O>(run: &RunHandle<O>) -> Vec<String> {
    let events = run.events().await.unwrap();
    events.iter().map(|event: &Event| event.event_type.as_str().to_owned()).collect()
}

/// The keys of a run's steps that are completed.
pub(crate) async fn completed<O>(run: &RunHandle<O>) -> Vec<String> {
    let mut steps = run.steps().await.unwrap();
    steps.retain(|step| step.status == StepStatus::Completed);
    steps.sort_by_key(|step| step.updated_at);
    steps.iter().map(|step| step.step_key.as_str().to_owned()).collect()
}
