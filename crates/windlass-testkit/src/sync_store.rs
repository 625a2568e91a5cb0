//! A store that answers before its call returns, for an engine in virtual time.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use bytes::Bytes;
use windlass_kernel::{
    Body, BodyKey, BoxFuture, BreakerRow, ClaimRequest, ClaimedTurn, Claims, Commit, CommitResults,
    DeleteRemovedRecords, DeleteTrees, Deleted, DeletedRecords, Error, Fact, Health, Heartbeat,
    HeldItem, LimitKey, LoadSteps, Loaded, Namespace, NamespaceStats, Promoted, Query, RateRow,
    Reaped, Record, RecordKey, Renewed, Rows, Run, RunId, RunKey, RunOverview, SettingName, Store,
    TaskId, TaskStat, Timestamp, WakeSink, Wakeup, WorkerInfo, WorkerKey, WorkflowName,
};

/// Waits for the threads of a store inside each call, so that the simulated executor never sees a pending call.
///
/// The notifications of such a store arrive at any time. This store sends [`Wakeup::Missed`] instead, before the
/// call returns that made work ready: the engine then asks for all ready work.
pub(crate) struct SyncStore {
    inner: Arc<dyn Store>,
    sinks: Mutex<Vec<WakeSink>>,
}

impl SyncStore {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, sinks: Mutex::default() })
    }

    fn notify(&self) {
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for sink in sinks {
            sink(Wakeup::Missed);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

// Waits on this thread: the store answers from threads of its own.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

macro_rules! answered_at_once {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> BoxFuture<'_, $answer> {
            Box::pin(std::future::ready(block_on(self.inner.$name($($argument),*))))
        })*
    };
}

impl Store for SyncStore {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        let results = block_on(self.inner.commit(commits));
        if results.iter().any(Result::is_ok) {
            self.notify();
        }
        Box::pin(std::future::ready(results))
    }

    fn release(&self, holds: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>> {
        let released = block_on(self.inner.release(holds));
        if matches!(released, Ok(1..)) {
            self.notify();
        }
        Box::pin(std::future::ready(released))
    }

    answered_at_once! {
        now() -> Result<Timestamp, Error>;
        claim(request: ClaimRequest) -> Result<Claims, Error>;
        heartbeat(beats: Vec<Heartbeat>) -> Result<Vec<bool>, Error>;
        revoke(run_key: RunKey, worker: WorkerKey) -> Result<Option<ClaimedTurn>, Error>;
        promote(limit: u32) -> Result<Promoted, Error>;
        renew(info: WorkerInfo) -> Result<Renewed, Error>;
        drain_worker(worker: WorkerKey) -> Result<bool, Error>;
        reap(worker: WorkerKey, limit: u32) -> Result<Reaped, Error>;
        held(worker: WorkerKey) -> Result<Vec<HeldItem>, Error>;
        load_rows(run_keys: Vec<RunKey>, steps: LoadSteps) -> Result<Vec<Loaded>, Error>;
        bodies(keys: Vec<BodyKey>) -> Result<Vec<Option<Bytes>>, Error>;
        find(namespace: Namespace, workflow: WorkflowName, id: RunId) -> Result<Option<Run>, Error>;
        run_overview_by_key(run_key: RunKey) -> Result<Option<RunOverview>, Error>;
        record_rows(keys: Vec<RecordKey>) -> Result<Vec<Option<Record>>, Error>;
        list(query: Query) -> Result<Rows, Error>;
        health() -> Result<Health, Error>;
        namespace_stats(namespace: Namespace) -> Result<NamespaceStats, Error>;
        add_task_stats(stats: Vec<TaskStat>) -> Result<(), Error>;
        task_stats(namespace: Namespace) -> Result<Vec<TaskStat>, Error>;
        set_limit(namespace: Namespace, key: LimitKey, slots: Option<u32>) -> Result<(), Error>;
        breaker(namespace: Namespace, key: LimitKey)
            -> Result<(Option<BreakerRow>, Timestamp), Error>;
        swap_breaker(row: BreakerRow) -> Result<bool, Error>;
        rate(namespace: Namespace, key: LimitKey) -> Result<(Option<RateRow>, Timestamp), Error>;
        swap_rate(row: RateRow, tell: bool) -> Result<bool, Error>;
        put_setting(name: SettingName, value: Option<Body>) -> Result<(), Error>;
        delete_trees(request: DeleteTrees) -> Result<Deleted, Error>;
        delete_removed_records(request: DeleteRemovedRecords) -> Result<DeletedRecords, Error>;
        delete_dead_letters(namespace: Namespace, task_ids: Vec<TaskId>) -> Result<u64, Error>;
        check() -> Result<Vec<String>, Error>;
        facts() -> Result<Vec<Fact>, Error>;
        close() -> Result<(), Error>;
    }

    fn closed(&self) -> BoxFuture<'_, Error> {
        self.inner.closed()
    }

    fn listen(&self, sink: WakeSink) {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner).push(sink);
    }
}
