//! A store behind a gate, which decides for every call whether it reaches the store.

use std::sync::Arc;

use bytes::Bytes;
use windlass_kernel::{
    Body, BodyKey, BoxFuture, BreakerRow, ClaimRequest, ClaimedTurn, Claims, Commit, CommitResults,
    DeleteRemovedRecords, DeleteTrees, Deleted, DeletedRecords, Error, Health, Heartbeat, HeldItem,
    LimitKey, LoadSteps, Loaded, Namespace, NamespaceStats, Promoted, Query, RateRow, Reaped,
    Record, RecordKey, Renewed, Rows, Run, RunId, RunKey, RunOverview, SettingName, Store, TaskId,
    TaskStat, Timestamp, WakeSink, WorkerInfo, WorkerKey, WorkflowName,
};

/// A gate's decision about a call.
pub enum Pass {
    /// The call reaches the store.
    Through,
    /// The call fails with this error and does not reach the store.
    Refuse(Error),
    /// The call does not reach the store and never returns.
    Hang,
}

/// Decides about the calls of a [`GatedStore`].
pub trait Gate: Send + Sync + 'static {
    /// Decides about a call that is not a commit.
    fn pass(&self) -> Pass;

    /// Decides about the write of a setting of this size.
    fn pass_setting(&self, _bytes: usize) -> Pass {
        self.pass()
    }

    /// Decides about heartbeats.
    fn pass_heartbeat(&self) -> Pass {
        self.pass()
    }

    /// Decides about a read of records.
    fn pass_records(&self) -> Pass {
        self.pass()
    }

    /// Decides about a release of holds.
    fn pass_release(&self) -> Pass {
        self.pass()
    }

    /// Sends commits to the store, or does not.
    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults>;

    /// Somebody asks for so many runs.
    fn on_load(&self, _runs: usize) {}

    /// The store has answered a query.
    fn on_rows(&self, _rows: &Rows) {}
}

/// A store behind a gate.
pub struct GatedStore<G> {
    inner: Arc<dyn Store>,
    pub(crate) gate: G,
}

impl<G: Gate> GatedStore<G> {
    /// Puts a gate before a store.
    pub fn with_gate(inner: Arc<dyn Store>, gate: G) -> Self {
        Self { inner, gate }
    }

    fn gated<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a dyn Store) -> BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        match self.gate.pass() {
            Pass::Through => call(&*self.inner),
            Pass::Refuse(error) => Box::pin(std::future::ready(Err(error))),
            Pass::Hang => Box::pin(std::future::pending()),
        }
    }
}

impl<G: Gate> Store for GatedStore<G> {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        self.gate.commit(&*self.inner, commits)
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        self.gated(|inner| inner.now())
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>> {
        self.gated(|inner| inner.claim(request))
    }

    fn release(&self, holds: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>> {
        match self.gate.pass_release() {
            Pass::Through => self.inner.release(holds),
            Pass::Refuse(error) => Box::pin(std::future::ready(Err(error))),
            Pass::Hang => Box::pin(std::future::pending()),
        }
    }

    fn heartbeat(&self, beats: Vec<Heartbeat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        match self.gate.pass_heartbeat() {
            Pass::Through => self.inner.heartbeat(beats),
            Pass::Refuse(error) => Box::pin(std::future::ready(Err(error))),
            Pass::Hang => Box::pin(std::future::pending()),
        }
    }

    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>> {
        self.gated(|inner| inner.revoke(run_key, worker))
    }

    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>> {
        self.gated(|inner| inner.promote(limit))
    }

    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>> {
        self.gated(|inner| inner.renew(info))
    }

    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>> {
        self.gated(|inner| inner.drain_worker(worker))
    }

    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>> {
        self.gated(|inner| inner.reap(worker, limit))
    }

    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>> {
        self.gated(|inner| inner.held(worker))
    }

    fn load_rows(
        &self,
        run_keys: Vec<RunKey>,
        steps: LoadSteps,
    ) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        self.gate.on_load(run_keys.len());
        self.gated(|inner| inner.load_rows(run_keys, steps))
    }

    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>> {
        self.gated(|inner| inner.find(namespace, workflow, id))
    }

    fn run_overview(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<RunOverview>, Error>> {
        self.gated(|inner| inner.run_overview(namespace, workflow, id))
    }

    fn run_overview_by_key(
        &self,
        run_key: RunKey,
    ) -> BoxFuture<'_, Result<Option<RunOverview>, Error>> {
        self.gated(|inner| inner.run_overview_by_key(run_key))
    }

    fn bodies(&self, keys: Vec<BodyKey>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Error>> {
        self.gated(|inner| inner.bodies(keys))
    }

    fn record_rows(
        &self,
        keys: Vec<RecordKey>,
    ) -> BoxFuture<'_, Result<Vec<Option<Record>>, Error>> {
        match self.gate.pass_records() {
            Pass::Through => self.inner.record_rows(keys),
            Pass::Refuse(error) => Box::pin(std::future::ready(Err(error))),
            Pass::Hang => Box::pin(std::future::pending()),
        }
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>> {
        Box::pin(async move {
            let rows = self.gated(|inner| inner.list(query)).await?;
            self.gate.on_rows(&rows);
            Ok(rows)
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        self.gated(|inner| inner.health())
    }

    fn namespace_stats(
        &self,
        namespace: Namespace,
    ) -> BoxFuture<'_, Result<NamespaceStats, Error>> {
        self.gated(|inner| inner.namespace_stats(namespace))
    }

    fn add_task_stats(&self, stats: Vec<TaskStat>) -> BoxFuture<'_, Result<(), Error>> {
        self.gated(|inner| inner.add_task_stats(stats))
    }

    fn task_stats(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<TaskStat>, Error>> {
        self.gated(|inner| inner.task_stats(namespace))
    }

    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.gated(|inner| inner.set_limit(namespace, key, slots))
    }

    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>> {
        self.gated(|inner| inner.breaker(namespace, key))
    }

    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>> {
        self.gated(|inner| inner.swap_breaker(row))
    }

    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>> {
        self.gated(|inner| inner.rate(namespace, key))
    }

    fn swap_rate(&self, row: RateRow, tell: bool) -> BoxFuture<'_, Result<bool, Error>> {
        self.gated(|inner| inner.swap_rate(row, tell))
    }

    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        match self.gate.pass_setting(value.as_ref().map_or(0, |value| value.bytes.len())) {
            Pass::Through => self.inner.put_setting(name, value),
            Pass::Refuse(error) => Box::pin(std::future::ready(Err(error))),
            Pass::Hang => Box::pin(std::future::pending()),
        }
    }

    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>> {
        self.gated(|inner| inner.delete_trees(request))
    }

    fn delete_removed_records(
        &self,
        request: DeleteRemovedRecords,
    ) -> BoxFuture<'_, Result<DeletedRecords, Error>> {
        self.gated(|inner| inner.delete_removed_records(request))
    }

    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        self.gated(|inner| inner.delete_dead_letters(namespace, task_ids))
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.gated(|inner| inner.check())
    }

    fn listen(&self, sink: WakeSink) {
        self.inner.listen(sink);
    }

    // An engine can close a store that refuses its calls.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        match self.gate.pass() {
            Pass::Through | Pass::Refuse(_) => self.inner.close(),
            Pass::Hang => Box::pin(std::future::pending()),
        }
    }
}
