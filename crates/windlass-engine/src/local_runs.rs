//! The runs in this process's memory: those whose turn it holds, and those that wait in the cache.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use windlass_kernel::{ClaimedTurn, LimitKey, RunKey, WorkflowName};

use crate::core::FixedState;
use crate::held_run::HeldRun;
use crate::run_cache::{CachedRun, RunCache};

type Held = HashMap<RunKey, Arc<HeldRun>, FixedState>;

/// Two locks. If both are needed, `held` is taken first.
pub(crate) struct LocalRuns {
    held: Mutex<Held>,
    cache: Mutex<RunCache>,
}

impl LocalRuns {
    pub(crate) fn new(cache_bytes_max: usize) -> Self {
        Self { held: Mutex::default(), cache: Mutex::new(RunCache::new(cache_bytes_max)) }
    }

    /// Marks a run as held before the store does: the engine releases every hold in the store that is
    /// not marked here.
    pub(crate) fn hold(&self, run_key: RunKey) -> Arc<HeldRun> {
        let held_run = Arc::new(HeldRun::default());
        if let Some(old) = self.held.lock().insert(run_key, Arc::clone(&held_run)) {
            old.lose();
        }
        held_run
    }

    /// Marks a run that a commit created as held by this worker. `marked` is the mark that was set
    /// before the commit, if there is one. `None` if a claim has taken the run since: the answer to the
    /// commit may be late.
    pub(crate) fn hold_created(
        &self,
        run_key: RunKey,
        marked: Option<Arc<HeldRun>>,
    ) -> Option<Arc<HeldRun>> {
        let mut held = self.held.lock();
        match (held.get(&run_key), marked) {
            (None, None) => {
                let held_run = Arc::new(HeldRun::default());
                held.insert(run_key, Arc::clone(&held_run));
                Some(held_run)
            }
            (Some(known), Some(marked)) if Arc::ptr_eq(known, &marked) && !marked.is_lost() => {
                Some(marked)
            }
            _ => None,
        }
    }

    /// Removes the mark of a run that this process no longer holds.
    pub(crate) fn unhold(&self, run_key: RunKey, held_run: &Arc<HeldRun>) {
        remove(&mut self.held.lock(), run_key, held_run);
    }

    pub(crate) fn held(&self, run_key: RunKey) -> Option<Arc<HeldRun>> {
        self.held.lock().get(&run_key).cloned()
    }

    pub(crate) fn is_held(&self, run_key: RunKey) -> bool {
        self.held.lock().contains_key(&run_key)
    }

    /// Whether this mark is the run's current one.
    pub(crate) fn is_current(&self, run_key: RunKey, held_run: &Arc<HeldRun>) -> bool {
        self.held.lock().get(&run_key).is_some_and(|current| Arc::ptr_eq(current, held_run))
    }

    /// Keeps the run keys that are not held here.
    pub(crate) fn retain_unheld<T>(&self, items: &mut Vec<T>, key: impl Fn(&T) -> Option<RunKey>) {
        let held = self.held.lock();
        items.retain(|item| key(item).is_none_or(|run_key| !held.contains_key(&run_key)));
    }

    /// Makes a turn that is in progress here read its messages.
    pub(crate) fn notify(&self, run_key: RunKey) {
        if let Some(held_run) = self.held(run_key) {
            held_run.notify();
        }
    }

    pub(crate) fn notify_all(&self) {
        let held_runs: Vec<_> = self.held.lock().values().cloned().collect();
        held_runs.iter().for_each(|held_run| held_run.notify());
    }

    /// Passes on that a run accepted a message. Returns whether somebody must claim the run to read it.
    pub(crate) fn message_accepted(&self, run_key: RunKey, seq: u64) -> bool {
        self.notify(run_key);
        if self.is_held(run_key) {
            return false;
        }
        self.cache.lock().message_accepted(run_key, seq);
        true
    }

    /// Ends a turn: the run's next turn if it was claimed meanwhile, else a guard that caches the run.
    pub(crate) fn end_turn(
        &self,
        run_key: RunKey,
        held_run: &Arc<HeldRun>,
    ) -> Result<ClaimedTurn, Ending<'_>> {
        let mut held = self.held.lock();
        match held_run.take_next() {
            Some(claimed) => Ok(claimed),
            None => {
                remove(&mut held, run_key, held_run);
                Err(Ending { _held: held, cache: &self.cache })
            }
        }
    }

    /// Takes a run out of the cache if no other worker has held it since.
    pub(crate) fn take_cached(&self, claimed: &ClaimedTurn) -> Option<CachedRun> {
        self.cache.lock().take(claimed)
    }

    /// The workflow and the limit of a cached run.
    pub(crate) fn cached_route(&self, run_key: RunKey) -> Option<(WorkflowName, Option<LimitKey>)> {
        let cache = self.cache.lock();
        let run = cache.row(run_key)?;
        Some((run.workflow.clone(), run.turn.limit_key.clone()))
    }

    /// Takes a run out of the cache and marks it as held, unless it is held or does not fit.
    pub(crate) fn hold_cached(
        &self,
        run_key: RunKey,
        fits: impl FnOnce(&CachedRun) -> bool,
    ) -> Option<(CachedRun, Arc<HeldRun>)> {
        let mut held = self.held.lock();
        if held.contains_key(&run_key) {
            return None;
        }
        let cached = self.cache.lock().take_if(run_key, fits)?;
        let held_run = Arc::new(HeldRun::default());
        held.insert(run_key, Arc::clone(&held_run));
        Some((cached, held_run))
    }

    pub(crate) fn cached_count(&self) -> usize {
        self.cache.lock().len()
    }

    pub(crate) fn clear_cache(&self) {
        let cleared = self.cache.lock().clear();
        // Outside the lock: programs run user code when they are dropped.
        drop(cleared);
    }
}

/// The end of a turn whose run waits. While it exists, nobody can find the run as not held.
pub(crate) struct Ending<'a> {
    _held: MutexGuard<'a, Held>,
    cache: &'a Mutex<RunCache>,
}

impl Ending<'_> {
    /// Caches the run before anybody can see that it is no longer held: a result that comes from now on
    /// finds it in the cache. Returns the evicted runs, which the caller drops outside the locks.
    pub(crate) fn cache(self, cached: CachedRun) -> Vec<CachedRun> {
        self.cache.lock().put(cached)
    }
}

fn remove(held: &mut Held, run_key: RunKey, held_run: &Arc<HeldRun>) {
    if held.get(&run_key).is_some_and(|current| Arc::ptr_eq(current, held_run)) {
        held.remove(&run_key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunKey = RunKey(uuid::Uuid::from_u128(1));

    #[test]
    fn a_second_hold_revokes_the_first() {
        let runs = LocalRuns::new(0);
        let first = runs.hold(RUN);
        let second = runs.hold(RUN);
        assert!(first.is_lost() && !second.is_lost());
        runs.unhold(RUN, &first);
        assert!(runs.is_current(RUN, &second), "a stale mark removes nothing");
        runs.unhold(RUN, &second);
        assert!(!runs.is_held(RUN));
    }

    #[test]
    fn a_created_run_starts_unless_a_claim_came_first() {
        let runs = LocalRuns::new(0);
        let marked = runs.hold(RUN);
        assert!(runs.hold_created(RUN, Some(Arc::clone(&marked))).is_some());
        assert!(runs.hold_created(RUN, None).is_none(), "another mark exists");
        let claimed = runs.hold(RUN);
        assert!(runs.hold_created(RUN, Some(marked)).is_none(), "a claim replaced the mark");
        runs.unhold(RUN, &claimed);
        assert!(runs.hold_created(RUN, Some(claimed)).is_none(), "the claimed turn is over");
        assert!(runs.hold_created(RUN, None).is_some());
    }

    #[test]
    fn messages_of_held_runs_need_no_claim() {
        let runs = LocalRuns::new(0);
        assert!(runs.message_accepted(RUN, 1));
        let held_run = runs.hold(RUN);
        assert!(!runs.message_accepted(RUN, 2));
        runs.unhold(RUN, &held_run);
        assert!(runs.message_accepted(RUN, 3));
    }
}
