//! The reference store: every rule of docs/store-contract.md, in memory, one call at a time.
//!
//! The other stores are tested against it, and the simulator breaks it. It keeps nothing when
//! the process ends.

mod apply;
mod census;
mod holds;
mod list;
mod retention;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::body::Body;
use crate::breaker::BreakerRow;
use crate::census::{Census, Tally};
use crate::commit::Commit;
use crate::error::{Error, ErrorKind};
use crate::ids::{LimitKey, Namespace, RunId, RunKey, TaskId, WorkerKey, WorkflowName};
use crate::limits::Limits;
use crate::query::{Query, Rows};
use crate::rate::RateRow;
use crate::rows::{Run, SettingName, WorkerInfo};
use crate::store::{
    Beat, BoxFuture, ClaimRequest, ClaimedTurn, Claims, CommitResults, DeleteTrees, Deleted,
    Health, HeldItem, Loaded, Promoted, Reaped, Renewed, Store, WakeSink, Wakeup,
};
use crate::time::Timestamp;

use state::State;

/// What tells a store the time; the kernel has no clock of its own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A store in memory.
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
    /// An empty store whose time is what `clock` says, or the last time it said if that is later.
    pub fn new(clock: Clock, limits: Limits) -> Self {
        let inner = Inner { state: State::default(), sinks: Vec::new(), closed: false };
        Self { clock, limits, inner: Mutex::new(inner) }
    }

    // A panic under the lock can only be a bug of this store; the state is whole between commits.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Runs one call on the state, then tells the listeners what it made ready, outside the lock.
    fn call<T>(&self, run: impl FnOnce(&mut State) -> Result<T, Error>) -> Result<T, Error> {
        let (result, wakeups, sinks) = {
            let mut inner = self.lock();
            if inner.closed {
                let message = "the store is closed and takes no more calls";
                return Err(Error::new(ErrorKind::Closed, "STORE_CLOSED", message));
            }
            inner.state.advance_to((self.clock)());
            let result = run(&mut inner.state);
            let wakeups = inner.state.take_wakeups();
            let sinks = if wakeups.is_empty() { Vec::new() } else { inner.sinks.clone() };
            (result, wakeups, sinks)
        };
        tell(&sinks, &wakeups);
        result
    }
}

fn tell(sinks: &[WakeSink], wakeups: &[Wakeup]) {
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

    fn beat(&self, beats: Vec<Beat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        ready(self.call(|state| {
            Beat::validate(&beats, &self.limits)?;
            Ok(state.beat(beats))
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

    fn load(&self, run_keys: Vec<RunKey>) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        ready(self.call(|state| Ok(state.load(&run_keys))))
    }

    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>> {
        ready(self.call(|state| Ok(state.find(&namespace, &workflow, &id))))
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

    fn census(&self, namespace: Namespace) -> BoxFuture<'_, Result<Census, Error>> {
        ready(self.call(|state| Ok(state.census(&namespace))))
    }

    fn tally(&self, tallies: Vec<Tally>) -> BoxFuture<'_, Result<(), Error>> {
        ready(self.call(|state| {
            Tally::validate(&tallies, &self.limits)?;
            state.tally(tallies);
            Ok(())
        }))
    }

    fn tallied(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<Tally>, Error>> {
        ready(self.call(|state| Ok(state.tallied(&namespace))))
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

    fn swap_rate(&self, row: RateRow, tell: bool) -> BoxFuture<'_, Result<bool, Error>> {
        ready(self.call(|state| Ok(state.swap_rate(row, tell))))
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

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        ready(self.call(|_| Ok(Vec::new())))
    }

    fn listen(&self, sink: WakeSink) {
        self.lock().sinks.push(sink);
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        let mut inner = self.lock();
        inner.closed = true;
        // A listener may own the store; keeping it would keep both alive for ever.
        inner.sinks.clear();
        ready(Ok(()))
    }
}
