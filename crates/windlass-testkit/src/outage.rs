//! A store that can be out of reach for a while, around any other. It counts what is read through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use windlass_kernel::{
    Beat, Body, BoxFuture, BreakerRow, Census, ClaimRequest, ClaimedTurn, Claims, Commit,
    CommitError, CommitResults, DeleteTrees, Deleted, Error, ErrorKind, Health, HeldItem, LimitKey,
    Loaded, Looked, Namespace, Promoted, Query, RateRow, Reaped, Renewed, Rows, Run, RunId, RunKey,
    SettingName, Store, Tally, TaskId, Timestamp, WakeSink, WorkerInfo, WorkerKey, WorkflowName,
};

/// How a store is out of reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reach {
    /// It is not.
    Fine,
    /// Nothing is written and nothing is read.
    Gone,
    /// What is sent is written, and no answer to it comes back.
    Deaf,
}

/// A store that is out of reach while it is told to be.
pub struct Outage {
    inner: Arc<dyn Store>,
    reach: AtomicU8,
    loads: AtomicU64,
    messages: AtomicU64,
}

impl Outage {
    /// In front of a store, within reach.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let reach = AtomicU8::new(Reach::Fine as u8);
        let (loads, messages) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { inner, reach, loads, messages })
    }

    /// How many runs were read with everything that they have.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::SeqCst)
    }

    /// How many messages were listed.
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::SeqCst)
    }

    /// From now on.
    pub fn set(&self, reach: Reach) {
        self.reach.store(reach as u8, Ordering::SeqCst);
    }

    fn is(&self, reach: Reach) -> bool {
        self.reach.load(Ordering::SeqCst) == reach as u8
    }

    fn reached<'a, T: Send + 'a>(
        &self,
        call: impl FnOnce() -> BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        match self.is(Reach::Fine) {
            true => call(),
            false => Box::pin(std::future::ready(Err(out_of_reach()))),
        }
    }
}

fn out_of_reach() -> Error {
    Error::new(ErrorKind::Unavailable, "STORE_UNAVAILABLE", "the store is out of reach")
}

impl Store for Outage {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        let gone = || CommitError::Unavailable(Arc::new(out_of_reach()));
        if self.is(Reach::Gone) {
            let results = commits.iter().map(|_| Err(gone())).collect();
            return Box::pin(std::future::ready(results));
        }
        Box::pin(async move {
            let mut results = self.inner.commit(commits).await;
            if self.is(Reach::Deaf) {
                let lost = || Error::new(ErrorKind::Unknown, "STORE_UNKNOWN", "the answer is lost");
                for result in &mut results {
                    *result = Err(CommitError::Unknown(Arc::new(lost())));
                }
            }
            results
        })
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        self.reached(|| self.inner.now())
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>> {
        self.reached(|| self.inner.claim(request))
    }

    fn release(&self, holds: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>> {
        self.reached(|| self.inner.release(holds))
    }

    fn beat(&self, beats: Vec<Beat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        self.reached(|| self.inner.beat(beats))
    }

    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>> {
        self.reached(|| self.inner.revoke(run_key, worker))
    }

    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>> {
        self.reached(|| self.inner.promote(limit))
    }

    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>> {
        self.reached(|| self.inner.renew(info))
    }

    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>> {
        self.reached(|| self.inner.drain_worker(worker))
    }

    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>> {
        self.reached(|| self.inner.reap(worker, limit))
    }

    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>> {
        self.reached(|| self.inner.held(worker))
    }

    fn load(&self, run_keys: Vec<RunKey>) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        self.loads.fetch_add(run_keys.len() as u64, Ordering::SeqCst);
        self.reached(|| self.inner.load(run_keys))
    }

    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>> {
        self.reached(|| self.inner.find(namespace, workflow, id))
    }

    fn look(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Looked>, Error>> {
        self.reached(|| self.inner.look(namespace, workflow, id))
    }

    fn look_at(&self, run_key: RunKey) -> BoxFuture<'_, Result<Option<Looked>, Error>> {
        self.reached(|| self.inner.look_at(run_key))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>> {
        Box::pin(async move {
            let rows = self.reached(|| self.inner.list(query)).await?;
            if let Rows::Messages(messages) = &rows {
                self.messages.fetch_add(messages.len() as u64, Ordering::SeqCst);
            }
            Ok(rows)
        })
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        self.reached(|| self.inner.health())
    }

    fn census(&self, namespace: Namespace) -> BoxFuture<'_, Result<Census, Error>> {
        self.reached(|| self.inner.census(namespace))
    }

    fn tally(&self, tallies: Vec<Tally>) -> BoxFuture<'_, Result<(), Error>> {
        self.reached(|| self.inner.tally(tallies))
    }

    fn tallied(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<Tally>, Error>> {
        self.reached(|| self.inner.tallied(namespace))
    }

    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.reached(|| self.inner.set_limit(namespace, key, slots))
    }

    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>> {
        self.reached(|| self.inner.breaker(namespace, key))
    }

    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>> {
        self.reached(|| self.inner.swap_breaker(row))
    }

    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>> {
        self.reached(|| self.inner.rate(namespace, key))
    }

    fn swap_rate(&self, row: RateRow, tell: bool) -> BoxFuture<'_, Result<bool, Error>> {
        self.reached(|| self.inner.swap_rate(row, tell))
    }

    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.reached(|| self.inner.put_setting(name, value))
    }

    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>> {
        self.reached(|| self.inner.delete_trees(request))
    }

    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        self.reached(|| self.inner.delete_dead_letters(namespace, task_ids))
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.reached(|| self.inner.check())
    }

    fn listen(&self, sink: WakeSink) {
        self.inner.listen(sink);
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.inner.close()
    }
}
