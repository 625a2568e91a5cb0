//! The reference store: all rules of docs/store-contract.md, in memory, one call at a time.
//!
//! The other stores are tested against it, and the simulator injects faults into it. It loses
//! everything when the process ends.

mod apply;
mod bodies;
mod holds;
mod list;
mod namespace_stats;
mod records;
mod retention;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::bodies::BodyKey;
use crate::body::Body;
use crate::breaker::BreakerRow;
use crate::commit::Commit;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{LimitKey, Namespace, RunId, RunKey, TaskId, WorkerKey, WorkflowName};
use crate::limits::Limits;
use crate::namespace_stats::{NamespaceStats, TaskStat};
use crate::query::{Query, Rows};
use crate::rate::RateRow;
use crate::record::{Record, RecordKey};
use crate::rows::{Run, SettingName, WorkerInfo};
use crate::store::{
    BoxFuture, ClaimRequest, ClaimedTurn, Claims, CommitResults, DeleteRemovedRecords, DeleteTrees,
    Deleted, DeletedRecords, Health, Heartbeat, HeldItem, LoadSteps, Loaded, Promoted, Reaped,
    Renewed, Store, WakeSink, Wakeup,
};
use crate::time::Timestamp;

use state::State;

/// The source of time of a store; the kernel has no clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// An in-memory store.
pub struct MemoryStore {
    clock: Clock,
    limits: Limits,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    sinks: Vec<WakeSink>,
    closed: bool,
}

impl MemoryStore {
    /// An empty store. Its time is that of `clock`, but it never goes backwards.
    pub fn new(clock: Clock, limits: Limits) -> Self {
        let inner = Inner { state: State::default(), sinks: Vec::new(), closed: false };
        Self { clock, limits, inner: Mutex::new(inner) }
    }

    // The state is consistent after every commit, so a poisoned lock can be used.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Runs one call on the state, then calls the listeners outside the lock.
    fn call<T>(&self, run: impl FnOnce(&mut State) -> Result<T, Error>) -> Result<T, Error> {
        let (result, wakeups, sinks) = {
            let mut inner = self.lock();
            if inner.closed {
                let message = "the store is closed and accepts no more calls";
                return Err(Error::new(ErrorKind::Closed, ErrorCode::StoreClosed, message));
            }
            inner.state.advance_to((self.clock)());
            let result = run(&mut inner.state);
            let wakeups = inner.state.take_wakeups();
            let sinks = if wakeups.is_empty() { Vec::new() } else { inner.sinks.clone() };
            (result, wakeups, sinks)
        };
        notify(&sinks, &wakeups);
        result
    }
}

fn notify(sinks: &[WakeSink], wakeups: &[Wakeup]) {
    for wakeup in wakeups {
        for sink in sinks {
            sink(wakeup.clone());
        }
    }
}

fn ready<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

impl Store for MemoryStore {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        let count = commits.len();
        let results = self.call(|state| {
            let one = |commit| state.commit(&commit, &self.limits);
            Ok(commits.into_iter().map(one).collect::<CommitResults>())
        });
        ready(results.unwrap_or_else(|error| {
            let error = Arc::new(error);
            let closed = || Err(crate::commit::CommitError::Unavailable(error.clone()));
            (0..count).map(|_| closed()).collect()
        }))
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        ready(self.call(|state| Ok(state.now)))
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>> {
        ready(self.call(|state| state.claim(&request, &self.limits)))
    }

    fn release(&self, holds: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>> {
        ready(self.call(|state| Ok(state.release(&holds))))
    }

    fn heartbeat(&self, heartbeats: Vec<Heartbeat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        ready(self.call(|state| {
            Heartbeat::validate(&heartbeats, &self.limits)?;
            Ok(state.heartbeat(heartbeats))
        }))
    }

    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>> {
        ready(self.call(|state| Ok(state.revoke(run_key, worker))))
    }

    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>> {
        ready(self.call(|state| Ok(state.promote(limit))))
    }

    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>> {
        ready(self.call(|state| Ok(state.renew(info))))
    }

    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>> {
        ready(self.call(|state| Ok(state.drain_worker(worker))))
    }

    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>> {
        ready(self.call(|state| Ok(state.reap(worker, limit))))
    }

    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>> {
        ready(self.call(|state| Ok(state.held(worker))))
    }

    fn load_rows(
        &self,
        run_keys: Vec<RunKey>,
        steps: LoadSteps,
    ) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        ready(self.call(|state| Ok(state.load(&run_keys, &steps))))
    }

    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>> {
        ready(self.call(|state| Ok(state.find(&namespace, &workflow, &id))))
    }

    fn bodies(&self, keys: Vec<BodyKey>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Error>> {
        ready(self.call(|state| {
            BodyKey::validate(&keys)?;
            Ok(keys.iter().map(|key| state.body(key)).collect())
        }))
    }

    fn record_rows(
        &self,
        keys: Vec<RecordKey>,
    ) -> BoxFuture<'_, Result<Vec<Option<Record>>, Error>> {
        ready(self.call(|state| {
            RecordKey::validate(&keys, &self.limits)?;
            Ok(keys.iter().map(|key| state.records.get(key).cloned()).collect())
        }))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>> {
        ready(self.call(|state| {
            query.validate(&self.limits)?;
            Ok(state.list(&query))
        }))
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        ready(self.call(|state| Ok(state.health())))
    }

    fn namespace_stats(
        &self,
        namespace: Namespace,
    ) -> BoxFuture<'_, Result<NamespaceStats, Error>> {
        ready(self.call(|state| Ok(state.namespace_stats(&namespace))))
    }

    fn add_task_stats(&self, stats: Vec<TaskStat>) -> BoxFuture<'_, Result<(), Error>> {
        ready(self.call(|state| {
            TaskStat::validate(&stats, &self.limits)?;
            state.add_task_stats(stats);
            Ok(())
        }))
    }

    fn task_stats(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<TaskStat>, Error>> {
        ready(self.call(|state| Ok(state.task_stats(&namespace))))
    }

    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        ready(self.call(|state| {
            state.set_limit(namespace, key, slots);
            Ok(())
        }))
    }

    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>> {
        ready(self.call(|state| Ok((state.breakers.get(&(namespace, key)).cloned(), state.now))))
    }

    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>> {
        ready(self.call(|state| Ok(state.swap_breaker(row))))
    }

    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>> {
        ready(self.call(|state| Ok((state.rates.get(&(namespace, key)).cloned(), state.now))))
    }

    fn swap_rate(&self, row: RateRow, notify: bool) -> BoxFuture<'_, Result<bool, Error>> {
        ready(self.call(|state| Ok(state.swap_rate(row, notify))))
    }

    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        ready(self.call(|state| {
            name.validate(value.as_ref(), &self.limits)?;
            state.put_setting(name, value);
            Ok(())
        }))
    }

    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        ready(self.call(|state| {
            let mut deleted = 0;
            for task_id in task_ids {
                let found = state.dead_letters.get(&task_id);
                if found.is_some_and(|letter| letter.namespace == namespace) {
                    state.dead_letters.remove(&task_id);
                    deleted += 1;
                }
            }
            Ok(deleted)
        }))
    }

    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>> {
        ready(self.call(|state| {
            request.validate(&self.limits)?;
            Ok(state.delete_trees(&request))
        }))
    }

    fn delete_removed_records(
        &self,
        request: DeleteRemovedRecords,
    ) -> BoxFuture<'_, Result<DeletedRecords, Error>> {
        ready(self.call(|state| {
            request.validate(&self.limits)?;
            Ok(state.delete_removed_records(&request))
        }))
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        ready(self.call(|_| Ok(Vec::new())))
    }

    fn ready_counts(&self, max: u64) -> BoxFuture<'_, Result<(u64, u64), Error>> {
        ready(self.call(|state| Ok(state.ready_counts(max))))
    }

    fn limits(&self) -> Option<&Limits> {
        Some(&self.limits)
    }

    fn listen(&self, sink: WakeSink) {
        self.lock().sinks.push(sink);
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        let mut inner = self.lock();
        inner.closed = true;
        // A listener may own the store; keeping the listener would leak both.
        inner.sinks.clear();
        ready(Ok(()))
    }
}
