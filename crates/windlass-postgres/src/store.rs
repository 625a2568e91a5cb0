//! The `Store` trait: passes each call to the component that executes it.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use windlass_kernel::fold::fold;
use windlass_kernel::{
    Body, BodyKey, BoxFuture, BreakerRow, ClaimRequest, ClaimedTurn, Claims, Commit, CommitError,
    CommitResults, DeleteRemovedRecords, DeleteTrees, Deleted, DeletedRecords, Error, ErrorCode,
    ErrorKind, Fact, Health, Heartbeat, HeldItem, LimitKey, Limits, LoadSteps, Loaded, Namespace,
    NamespaceStats, Op, Promoted, Query, RateRow, Reaped, Record, RecordKey, Renewed, Rows, Run,
    RunId, RunKey, RunOverview, SettingName, Store, TaskId, TaskStat, Timestamp, UnreadableRows,
    WakeSink, WorkerInfo, WorkerKey, WorkflowName,
};

use crate::apply::unavailable;
use crate::committer::{Committer, Job, Outcome};
use crate::error::{Failure, call_error, classify, closed, pool_error};
use crate::options::{Connector, Options};
use crate::supervise::Panics;
use crate::wake::{Waker, listen_loop, notify_loop};
use crate::{
    bodies, health, holds, list, load, namespace_stats, records, retention, schema, workers,
};

/// The state that all parts of an open store share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) connector: Connector,
    pub(crate) waker: Waker,
    pub(crate) panics: Panics,
    pub(crate) task_vacuum: holds::TaskVacuum,
    pub(crate) unreadable: UnreadableRows,
    /// Held during a claim.
    pub(crate) claiming: tokio::sync::Mutex<()>,
    pool: Pool,
    leases: Pool,
    schema: String,
    /// When old rows are deleted next, in microseconds.
    pub(crate) delete_old_at: AtomicI64,
    /// The end of the last partition, in microseconds.
    pub(crate) partitions_until: AtomicI64,
}

impl Shared {
    /// Replaces `@schema@` by the schema name.
    pub(crate) fn sql(&self, text: &str) -> String {
        text.replace("@schema@", &self.schema)
    }

    /// Takes a connection from the pool.
    pub(crate) async fn client(&self) -> Result<Object, Error> {
        self.pool.get().await.map_err(pool_error)
    }

    /// Runs a prepared statement in its own transaction.
    pub(crate) async fn query(
        &self,
        text: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.query_in(&self.pool, text, params).await
    }

    /// Like [`Shared::query`], for leases and heartbeats, on connections that nothing else uses.
    pub(crate) async fn lease(
        &self,
        text: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.query_in(&self.leases, text, params).await
    }

    // A server that became read-only refuses writes and writes nothing. Its connections are dropped,
    // because the next one looks for the server that accepts writes.
    async fn query_in(
        &self,
        pool: &Pool,
        text: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let text = self.sql(text);
        // Every connection of the pool may lead to that server.
        let mut tries_left = pool.status().max_size;
        loop {
            let client = pool.get().await.map_err(pool_error)?;
            let result = async {
                let statement = client.prepare_cached(&text).await?;
                client.query(&statement, params).await
            };
            match result.await {
                Err(error) if classify(&error) == Failure::ReadOnly && tries_left > 0 => {
                    tries_left -= 1;
                    drop(Object::take(client));
                    tracing::warn!("PostgreSQL accepts no writes; looking for another server");
                }
                other => return other.map_err(call_error),
            }
        }
    }

    /// Like [`Shared::query`], for reads: retries on another connection if one is lost.
    pub(crate) async fn read(
        &self,
        text: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let text = self.sql(text);
        let mut tries = 0;
        loop {
            let client = self.client().await?;
            let result = async {
                let statement = client.prepare_cached(&text).await?;
                client.query(&statement, params).await
            };
            match result.await {
                Err(error) if classify(&error) == Failure::Lost && tries < 3 => tries += 1,
                other => return other.map_err(call_error),
            }
        }
    }
}

/// A store in PostgreSQL.
pub struct PostgresStore {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    closed: AtomicBool,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    committers: Vec<mpsc::Sender<Job>>,
    committing: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
    listening: bool,
}

impl PostgresStore {
    /// Connects, migrates the schema if it has to, and starts the committers.
    pub async fn open(dsn: &str, options: Options) -> Result<Arc<Self>, Error> {
        options.validate()?;
        let connector = Connector::new(dsn, &options)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads)
            .thread_name("windlass-postgres")
            .enable_all()
            .build()
            .map_err(|error| internal("cannot start the store's threads").with_source(error))?;
        let leases = pool(&connector, &options, options.lease_pool_size_max)?;
        let pool = pool(&connector, &options, options.pool_size_max)?;
        let schema = options.schema_quoted();
        let waker = Waker::new(options.notify);
        let partitions_until = AtomicI64::new(0);
        let task_vacuum = holds::TaskVacuum::default();
        let claiming = tokio::sync::Mutex::default();
        let shared = Shared {
            options,
            connector,
            waker,
            panics: Panics::default(),
            task_vacuum,
            unreadable: UnreadableRows::default(),
            claiming,
            pool,
            leases,
            schema,
            delete_old_at: AtomicI64::new(0),
            partitions_until,
        };
        let shared = Arc::new(shared);
        let store = Self {
            shared: shared.clone(),
            runtime: Some(runtime),
            closed: AtomicBool::new(false),
            running: Mutex::default(),
        };
        store.run_on_store(async move { schema::prepare(&shared).await }).await?;
        store.start();
        Ok(Arc::new(store))
    }

    /// Moves the clock of this schema forward, for tests. All processes that share the schema see
    /// the new time at once.
    #[doc(hidden)]
    pub async fn advance_clock_for_tests(&self, by: Duration) -> Result<(), Error> {
        let shared = self.shared.clone();
        self.run_on_store(async move { schema::set_clock(&shared, None, by).await }).await
    }

    /// Freezes the clock of this schema at a time, for tests; see
    /// [`PostgresStore::advance_clock_for_tests`].
    #[doc(hidden)]
    pub async fn freeze_clock_for_tests(&self, at: Timestamp) -> Result<(), Error> {
        let shared = self.shared.clone();
        let set = async move { schema::set_clock(&shared, Some(at), Duration::ZERO).await };
        self.run_on_store(set).await
    }

    /// Every statement that the store prepares, with a name, for tests.
    #[doc(hidden)]
    pub fn statements_for_tests(&self) -> Vec<(String, String)> {
        let named = |(name, text): (String, String)| (name, self.shared.sql(&text));
        statements().into_iter().map(named).collect()
    }

    fn start(&self) {
        let mut running = self.running();
        for _ in 0..self.shared.options.committers {
            let (sender, jobs) = mpsc::channel(self.shared.options.waiting_max);
            let committer = Committer::new(self.shared.clone(), jobs);
            running.committers.push(sender);
            running.committing.extend(self.spawn(committer.run()));
        }
        if self.shared.options.notify {
            let shared = self.shared.clone();
            running.helpers.extend(self.spawn(async move {
                shared
                    .panics
                    .restart("the sender of wake-ups", || notify_loop(shared.clone()))
                    .await;
            }));
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        self.runtime.as_ref().map(|runtime| runtime.spawn(work))
    }

    // Runs a future on the store's threads, so that the caller's executor does not matter.
    async fn run_on_store<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        match self.spawn(work) {
            Some(handle) => match handle.await {
                Ok(result) => result,
                Err(error) => Err(internal("a call of the store panicked").with_source(error)),
            },
            None => Err(closed()),
        }
    }

    fn call<'a, T: Send + 'static, F>(
        &'a self,
        work: impl FnOnce(Arc<Shared>) -> F,
    ) -> BoxFuture<'a, Result<T, Error>>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        if self.closed.load(Ordering::Acquire) {
            return Box::pin(std::future::ready(Err(closed())));
        }
        Box::pin(self.run_on_store(work(self.shared.clone())))
    }

    // Sends a commit to the committer of its run. This happens before the first await, so two calls
    // of one holder keep their order.
    fn submit(&self, commit: Commit) -> Result<oneshot::Receiver<Outcome>, CommitError> {
        let (reply, answer) = oneshot::channel();
        let running = self.running();
        let at = committer_key(&commit) as usize % running.committers.len().max(1);
        let Some(jobs) = running.committers.get(at) else { return Err(unavailable(closed())) };
        match jobs.try_send(Job { commit, reply }) {
            Ok(()) => Ok(answer),
            Err(TrySendError::Closed(_)) => Err(unavailable(closed())),
            // Callers wait for their answers, but one that gives up leaves its job in the queue.
            Err(TrySendError::Full(_)) => {
                let max = self.shared.options.waiting_max;
                let message = format!(
                    "too many commits wait for a committer of the store (waiting_max {max}); retry later"
                );
                let (kind, code) = (ErrorKind::Unavailable, ErrorCode::StoreUnavailable);
                Err(unavailable(Error::new(kind, code, message)))
            }
        }
    }
}

// The hash that selects the committer: of the commit's run, or else of its first message, task or
// record.
fn committer_key(commit: &Commit) -> u64 {
    let key = commit
        .run_key()
        .or_else(|| commit.messages().next().map(|message| message.run_key))
        .map(|run_key| run_key.0)
        .or(commit.task.map(|guard| guard.task_id().0))
        .or_else(|| {
            commit.ops.iter().find_map(|op| match op {
                Op::Enqueue(task) => Some(task.task_id.0),
                _ => None,
            })
        });
    let mut hasher = std::hash::DefaultHasher::new();
    key.hash(&mut hasher);
    if key.is_none() {
        // Writers of one record then wait in a queue of this process and not for each other's locks.
        commit.records().next().map(|record| &record.key).hash(&mut hasher);
    }
    hasher.finish()
}

fn pool(connector: &Connector, options: &Options, size_max: usize) -> Result<Pool, Error> {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let hosts = connector.hosts.clone();
    let manager = Manager::from_connect(connector.config.clone(), hosts, recycling);
    let settings: Arc<str> = connector.settings().into();
    let set = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
        let settings = settings.clone();
        Box::pin(async move { client.batch_execute(&settings).await.map_err(HookError::Backend) })
    });
    Pool::builder(manager)
        .max_size(size_max)
        .runtime(deadpool_postgres::Runtime::Tokio1)
        .wait_timeout(Some(options.connect_timeout))
        .create_timeout(Some(connector.hosts.timeout_total()))
        .post_create(set)
        .build()
        .map_err(|error| internal("cannot build the connection pool").with_source(error))
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, ErrorCode::Internal, message)
}

fn statements() -> Vec<(String, String)> {
    let fixed = [
        ("commit", crate::apply::CALL),
        ("settle", crate::apply::SETTLE),
        ("resolve", crate::committer::RESOLVE),
        ("same_name", crate::committer::SAME_NAME),
        ("unread", crate::committer::UNREAD),
        ("known_messages", crate::committer::KNOWN),
        ("notify", crate::wake::NOTIFY),
        ("now", load::NOW),
    ];
    let mut all: Vec<(String, String)> =
        fixed.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    all.extend(holds::statements());
    all.extend(workers::statements());
    all.extend(load::statements());
    all.extend(list::statements());
    all.extend(records::statements());
    all.extend(bodies::statements());
    all.extend(health::statements());
    all.extend(namespace_stats::statements());
    all
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // A runtime must not wait for its threads inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Store for PostgresStore {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        if self.closed.load(Ordering::Acquire) {
            let failed = |_| Err(unavailable(closed()));
            return Box::pin(std::future::ready((0..commits.len()).map(failed).collect()));
        }
        let mut results: Vec<Option<Outcome>> = Vec::with_capacity(commits.len());
        let mut valid = Vec::with_capacity(commits.len());
        for commit in commits {
            match commit.validate(&self.shared.options.limits) {
                Ok(()) => {
                    results.push(None);
                    valid.push(Some(commit));
                }
                Err(error) => {
                    results.push(Some(Err(error)));
                    valid.push(None);
                }
            }
        }
        let indexes: Vec<usize> =
            (0..valid.len()).filter(|index| valid[*index].is_some()).collect();
        let commits: Vec<Commit> = valid.into_iter().flatten().collect();
        let mut batches = batches_of(commits).into_iter();
        // The first batch is sent before the future is polled.
        let first = batches.next().map(|batch| self.submit_all(batch));
        let rest: Vec<_> = batches.collect();
        Box::pin(async move {
            let mut in_flight = first;
            let mut rest = rest.into_iter();
            while let Some(batch) = in_flight {
                for (index, answer) in batch {
                    results[indexes[index]] = Some(receive(answer).await);
                }
                in_flight = rest.next().map(|batch| self.submit_all(batch));
            }
            let lost = || Err(unavailable(closed()));
            results.into_iter().map(|result| result.unwrap_or_else(lost)).collect()
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        self.call(|shared| async move { load::now(&shared).await })
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>> {
        self.call(|shared| async move { holds::claim(&shared, request).await })
    }

    fn release(&self, items: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>> {
        self.call(|shared| async move { holds::release(&shared, items).await })
    }

    fn heartbeat(&self, heartbeats: Vec<Heartbeat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        let valid = Heartbeat::validate(&heartbeats, &self.shared.options.limits);
        self.call(|shared| async move {
            valid?;
            holds::heartbeat(&shared, heartbeats).await
        })
    }

    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>> {
        self.call(move |shared| async move { holds::revoke(&shared, run_key, worker).await })
    }

    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>> {
        self.call(move |shared| async move { holds::promote(&shared, limit).await })
    }

    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>> {
        self.call(|shared| async move { workers::renew(&shared, info).await })
    }

    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>> {
        self.call(move |shared| async move { workers::drain(&shared, worker).await })
    }

    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>> {
        self.call(move |shared| async move { workers::reap(&shared, worker, limit).await })
    }

    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>> {
        self.call(move |shared| async move { workers::held(&shared, worker).await })
    }

    fn load_rows(
        &self,
        run_keys: Vec<RunKey>,
        steps: LoadSteps,
    ) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        self.call(move |shared| async move { load::load(&shared, run_keys, &steps).await })
    }

    fn run_overview_by_key(
        &self,
        run_key: RunKey,
    ) -> BoxFuture<'_, Result<Option<RunOverview>, Error>> {
        self.call(|shared| async move { load::run_overview_by_key(&shared, run_key).await })
    }

    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>> {
        self.call(|shared| async move { load::find(&shared, namespace, workflow, id).await })
    }

    fn bodies(&self, keys: Vec<BodyKey>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Error>> {
        let valid = BodyKey::validate(&keys);
        self.call(|shared| async move {
            valid?;
            bodies::get(&shared, keys).await
        })
    }

    fn record_rows(
        &self,
        keys: Vec<RecordKey>,
    ) -> BoxFuture<'_, Result<Vec<Option<Record>>, Error>> {
        let valid = RecordKey::validate(&keys, &self.shared.options.limits);
        self.call(|shared| async move {
            valid?;
            records::get(&shared, keys).await
        })
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>> {
        self.call(|shared| async move { list::list(&shared, query).await })
    }

    fn unreadable_rows(&self) -> u64 {
        self.shared.unreadable.count()
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        self.call(|shared| async move { health::health(&shared).await })
    }

    fn namespace_stats(
        &self,
        namespace: Namespace,
    ) -> BoxFuture<'_, Result<NamespaceStats, Error>> {
        self.call(
            |shared| async move { namespace_stats::namespace_stats(&shared, namespace).await },
        )
    }

    fn add_task_stats(&self, stats: Vec<TaskStat>) -> BoxFuture<'_, Result<(), Error>> {
        self.call(|shared| async move { namespace_stats::add_task_stats(&shared, stats).await })
    }

    fn task_stats(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<TaskStat>, Error>> {
        self.call(|shared| async move { namespace_stats::task_stats(&shared, namespace).await })
    }

    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.call(
            move |shared| async move { holds::set_limit(&shared, namespace, key, slots).await },
        )
    }

    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>> {
        self.call(|shared| async move { holds::breaker(&shared, namespace, key).await })
    }

    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>> {
        self.call(|shared| async move { holds::swap_breaker(&shared, row).await })
    }

    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>> {
        self.call(|shared| async move { workers::rate(&shared, namespace, key).await })
    }

    fn swap_rate(&self, row: RateRow, notify: bool) -> BoxFuture<'_, Result<bool, Error>> {
        self.call(move |shared| async move { workers::swap_rate(&shared, row, notify).await })
    }

    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.call(|shared| async move { retention::put_setting(&shared, name, value).await })
    }

    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        self.call(move |shared| async move {
            retention::delete_dead_letters(&shared, namespace, task_ids).await
        })
    }

    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>> {
        self.call(|shared| async move { retention::delete_trees(&shared, request).await })
    }

    fn delete_removed_records(
        &self,
        request: DeleteRemovedRecords,
    ) -> BoxFuture<'_, Result<DeletedRecords, Error>> {
        self.call(|shared| async move { records::delete_removed_records(&shared, request).await })
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.call(|shared| async move { health::check(&shared).await })
    }

    fn facts(&self) -> BoxFuture<'_, Result<Vec<Fact>, Error>> {
        self.call(|shared| async move { health::facts(&shared).await })
    }

    fn ready_counts(&self, max: u64) -> BoxFuture<'_, Result<(u64, u64), Error>> {
        self.call(move |shared| async move { health::ready_counts(&shared, max).await })
    }

    fn limits(&self) -> Option<&Limits> {
        Some(&self.shared.options.limits)
    }

    fn listen(&self, sink: WakeSink) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        self.shared.waker.add(sink);
        let mut running = self.running();
        // LISTEN starts with the first listener of the store.
        if !running.listening {
            running.listening = true;
            let shared = self.shared.clone();
            running.helpers.extend(self.spawn(async move {
                shared.panics.restart("the listener", || listen_loop(shared.clone())).await;
            }));
        }
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.closed.store(true, Ordering::Release);
        let (committing, helpers) = {
            let mut running = self.running();
            running.committers.clear();
            (std::mem::take(&mut running.committing), std::mem::take(&mut running.helpers))
        };
        Box::pin(async move {
            for committer in committing {
                let _ = committer.await;
            }
            for helper in helpers {
                helper.abort();
            }
            self.shared.waker.clear();
            self.shared.pool.close();
            self.shared.leases.close();
            Ok(())
        })
    }
}

type InFlight = Vec<(usize, Result<oneshot::Receiver<Outcome>, CommitError>)>;

impl PostgresStore {
    fn submit_all(&self, batch: Vec<(usize, Commit)>) -> InFlight {
        batch.into_iter().map(|(index, commit)| (index, self.submit(commit))).collect()
    }
}

async fn receive(answer: Result<oneshot::Receiver<Outcome>, CommitError>) -> Outcome {
    match answer?.await {
        Ok(outcome) => outcome,
        // The committer ended without an answer; sending the commit again gives it.
        Err(_) => Err(crate::error::unknown("the committer stopped")),
    }
}

// Commits of one call go to several committers, which do not wait for each other. A commit that
// depends on an earlier one is sent after that one is answered.
fn batches_of(commits: Vec<Commit>) -> Vec<Vec<(usize, Commit)>> {
    if commits.len() <= 1 {
        return vec![commits.into_iter().enumerate().collect()];
    }
    let plan = fold(&commits);
    let mut commits: Vec<Option<Commit>> = commits.into_iter().map(Some).collect();
    let mut batches = Vec::with_capacity(plan.len());
    for groups in plan {
        let mut members: Vec<usize> =
            groups.iter().flat_map(|group| group.members().iter().copied()).collect();
        members.sort_unstable();
        for wave in waves(members, &commits) {
            let wave = wave.into_iter().filter_map(|index| Some((index, commits[index].take()?)));
            batches.push(wave.collect());
        }
    }
    batches
}

// Messages to one run may be in one batch, where they are numbered in order, but only if they go to
// the same committer. A commit for another committer goes to the next wave, and so do later commits
// of the same run, because the commits of a chain must keep their order.
fn waves(members: Vec<usize>, commits: &[Option<Commit>]) -> Vec<Vec<usize>> {
    let mut waves: Vec<Vec<usize>> = Vec::new();
    let mut last: BTreeMap<RunKey, (usize, u64)> = BTreeMap::new();
    let mut chains: BTreeMap<RunKey, usize> = BTreeMap::new();
    for index in members {
        let Some(commit) = &commits[index] else { continue };
        let own = committer_key(commit);
        let after = |(wave, key): &(usize, u64)| if *key == own { *wave } else { wave + 1 };
        let targets = || commit.messages().map(|message| message.run_key);
        let chained = commit.run_key().and_then(|run| chains.get(&run)).copied();
        let sent = targets().filter_map(|run| last.get(&run)).map(after).max();
        let wave = chained.max(sent).unwrap_or(0);
        chains.extend(commit.run_key().map(|run| (run, wave)));
        for run in targets() {
            last.insert(run, (wave, own));
        }
        if waves.len() <= wave {
            waves.resize(wave + 1, Vec::new());
        }
        waves[wave].push(index);
    }
    waves
}
