//! Starts the turns that this worker holds, each run in a task of its own.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use futures::FutureExt as _;
use uuid::Uuid;
use windlass_kernel::{BoxFuture, ClaimedTurn, HeldItem, Hold, LoadSteps, Run, RunKey};

use crate::capacity::{Capacity, CountedTurn};
use crate::commit::CommitClient;
use crate::core::Core;
use crate::env::ThreadPool;
use crate::held_run::HeldRun;
use crate::local_runs::LocalRuns;
use crate::registry::Registry;
use crate::signals::Signals;
use crate::tasks::panic_text;
use crate::templates::Templates;
use crate::terminate::Terminator;
use crate::trials::{Suspect, Trials};
use crate::turn_failure;
use crate::turn_loop::{self, Start};

/// Takes the turns that this worker holds.
pub(crate) struct TurnRunner {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) templates: Arc<Templates>,
    pub(crate) runs: Arc<LocalRuns>,
    pub(crate) capacity: Arc<Capacity>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) terminator: Arc<Terminator>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) trials: Arc<Trials>,
}

/// A claimed turn whose run is not in the cache.
struct ToLoad {
    claimed: ClaimedTurn,
    held_run: Arc<HeldRun>,
    counted: CountedTurn,
}

impl TurnRunner {
    /// Takes the first turn of a run that was created as held by this worker, unless a claim has taken
    /// the run since: the answer to the commit may be late. `held_run` is the mark from before the
    /// commit.
    pub(crate) fn start_created(self: &Arc<Self>, run: Box<Run>, held_run: Option<Arc<HeldRun>>) {
        if let Some(turns) = self.first_turns(run, held_run) {
            self.core.env.spawn(ThreadPool::User, turns);
        }
    }

    /// As [`TurnRunner::start_created`], for a caller that has a task already.
    pub(crate) fn first_turns(
        self: &Arc<Self>,
        run: Box<Run>,
        held_run: Option<Arc<HeldRun>>,
    ) -> Option<BoxFuture<'static, ()>> {
        let held_run = self.runs.hold_created(run.run_key, held_run)?;
        let counted = self.capacity.count_turn(&run.workflow);
        Some(Box::pin(Arc::clone(self).turns(Start::New(run), held_run, None, counted)))
    }

    pub(crate) fn begin_turns(
        self: &Arc<Self>,
        turns: Vec<ClaimedTurn>,
        steps_left: Option<Arc<AtomicI64>>,
    ) {
        let mut to_load = Vec::new();
        for claimed in turns {
            if self.trials.is_suspect(claimed.reclaims) {
                self.try_alone(claimed);
                continue;
            }
            let run_key = claimed.run_key;
            let known = self.runs.held(run_key);
            let claimed = match known {
                Some(held_run) => match held_run.hand_over(claimed) {
                    Some(claimed) => claimed,
                    None => {
                        // That task may have looked for its next turn just before the hand-over.
                        self.follow_if_gone(run_key, &held_run, &mut to_load);
                        continue;
                    }
                },
                None => claimed,
            };
            self.begin_one(claimed, &steps_left, &mut to_load);
        }
        self.spawn_loads(to_load, steps_left);
    }

    // One load for all runs whose models ask for the same steps.
    fn spawn_loads(self: &Arc<Self>, to_load: Vec<ToLoad>, steps_left: Option<Arc<AtomicI64>>) {
        let mut loads: BTreeMap<LoadSteps, Vec<ToLoad>> = BTreeMap::new();
        for item in to_load {
            let model = self.registry.model(&item.claimed.workflow);
            let steps = model.map(|model| model.description().load.clone()).unwrap_or_default();
            loads.entry(steps).or_default().push(item);
        }
        for (steps, to_load) in loads {
            let (runner, steps_left) = (Arc::clone(self), steps_left.clone());
            let load = async move { runner.load_and_begin(to_load, steps, steps_left).await };
            self.core.env.spawn(ThreadPool::User, Box::pin(load));
        }
    }

    /// Makes the next scan release what the store says that this worker holds and nobody here knows.
    pub(crate) fn scan_later(&self) {
        self.core.set_unknown_holds(true);
        self.signals.turns();
    }

    fn try_alone(self: &Arc<Self>, claimed: ClaimedTurn) {
        let held_run = self.runs.hold(claimed.run_key);
        self.trials.add(Box::new(SuspectRun { runner: Arc::clone(self), claimed, held_run }));
    }

    fn begin_one(
        self: &Arc<Self>,
        claimed: ClaimedTurn,
        steps_left: &Option<Arc<AtomicI64>>,
        to_load: &mut Vec<ToLoad>,
    ) {
        let held_run = self.runs.hold(claimed.run_key);
        let cached = self.runs.take_cached(&claimed);
        match cached {
            Some(cached) => {
                let start = Start::Memory(Box::new(cached), claimed);
                self.spawn(start, held_run, steps_left.clone());
            }
            None => {
                let counted = self.capacity.count_turn(&claimed.workflow);
                to_load.push(ToLoad { claimed, held_run, counted });
            }
        }
    }

    fn follow_if_gone(
        self: &Arc<Self>,
        run_key: RunKey,
        held_run: &Arc<HeldRun>,
        to_load: &mut Vec<ToLoad>,
    ) {
        if !self.runs.is_current(run_key, held_run)
            && let Some(claimed) = held_run.take_next()
        {
            self.begin_one(claimed, &None, to_load);
        }
    }

    async fn load_and_begin(
        self: Arc<Self>,
        to_load: Vec<ToLoad>,
        steps: LoadSteps,
        steps_left: Option<Arc<AtomicI64>>,
    ) {
        let keys: Vec<_> = to_load.iter().map(|item| item.claimed.run_key).collect();
        let loaded = match self.core.store.load_with(keys, steps.clone()).await {
            Ok(loaded) => loaded,
            Err(error) if !turn_failure::is_temporary(&error) => {
                tracing::warn!(%error, "failed to load claimed runs together; loading each alone");
                return self.load_each(to_load, steps, steps_left).await;
            }
            Err(error) => {
                tracing::warn!(%error, "failed to load claimed runs; releasing their turns");
                let mut holds = Vec::new();
                for ToLoad { claimed, held_run, .. } in &to_load {
                    self.runs.unhold(claimed.run_key, held_run);
                    holds.push(held(claimed.run_key, claimed.hold));
                }
                if let Err(error) = self.core.store.release(holds).await {
                    tracing::warn!(%error, "failed to release turns; the next scan releases them");
                    self.scan_later();
                }
                return;
            }
        };
        let mut loaded = loaded.into_iter().peekable();
        for ToLoad { claimed, held_run, counted } in to_load {
            // The store leaves out runs whose row is gone; the others keep their order.
            let found = loaded.next_if(|loaded| loaded.run.run_key == claimed.run_key);
            match found {
                Some(found) => {
                    let start = Start::Store(Box::new(found), claimed);
                    self.spawn_counted(start, held_run, steps_left.clone(), counted);
                }
                None => self.runs.unhold(claimed.run_key, &held_run),
            }
        }
    }

    // One unreadable row fails a load of many runs. It must harm its own run only.
    async fn load_each(
        self: &Arc<Self>,
        to_load: Vec<ToLoad>,
        steps: LoadSteps,
        steps_left: Option<Arc<AtomicI64>>,
    ) {
        for ToLoad { claimed, held_run, counted } in to_load {
            let run_key = claimed.run_key;
            match self.core.store.load_with(vec![run_key], steps.clone()).await {
                Ok(loaded) => match loaded.into_iter().next() {
                    Some(found) => {
                        let start = Start::Store(Box::new(found), claimed);
                        self.spawn_counted(start, held_run, steps_left.clone(), counted);
                    }
                    None => self.runs.unhold(run_key, &held_run),
                },
                Err(error) => {
                    turn_failure::unreadable(self, &claimed, &held_run, error).await;
                    self.runs.unhold(run_key, &held_run);
                }
            }
        }
    }

    pub(crate) fn spawn(
        self: &Arc<Self>,
        start: Start,
        held_run: Arc<HeldRun>,
        steps: Option<Arc<AtomicI64>>,
    ) {
        let counted = self.capacity.count_turn(&start.run().workflow);
        self.spawn_counted(start, held_run, steps, counted);
    }

    fn spawn_counted(
        self: &Arc<Self>,
        start: Start,
        held_run: Arc<HeldRun>,
        steps_left: Option<Arc<AtomicI64>>,
        counted: CountedTurn,
    ) {
        let turns = Arc::clone(self).turns(start, held_run, steps_left, counted);
        self.core.env.spawn(ThreadPool::User, Box::pin(turns));
    }

    // Every run in progress has one of these futures, so the rare paths are boxed: with all of them
    // inline the future was 17 KiB.
    fn turns(
        self: Arc<Self>,
        start: Start,
        held_run: Arc<HeldRun>,
        steps_left: Option<Arc<AtomicI64>>,
        counted: CountedTurn,
    ) -> impl Future<Output = ()> + Send {
        let runner = self;
        async move {
            let run_key = start.run().run_key;
            let limited = start.run().turn.limit_key.is_some();
            let turns =
                AssertUnwindSafe(turn_loop::take_turns(&runner, start, &held_run, steps_left))
                    .catch_unwind();
            // A run whose turn is released because the engine stops is not cached.
            if let Some(Err(panic)) = runner.core.lifecycle.until_stopped(turns).await {
                Box::pin(turn_failure::panicked(&runner, run_key, &held_run, panic_text(&*panic)))
                    .await;
            }
            runner.runs.unhold(run_key, &held_run);
            held_run.stop_waiting();
            drop(counted);
            // The next turn may have been claimed while this one failed.
            if !runner.core.lifecycle.is_stopped()
                && let Some(claimed) = held_run.take_next()
            {
                runner.begin_again(claimed);
            }
            if limited {
                // The store may send no wake-up when a slot of a limit is free again.
                runner.signals.everything();
            }
        }
    }

    pub(crate) fn begin_again(self: &Arc<Self>, claimed: ClaimedTurn) {
        let mut to_load = Vec::new();
        self.begin_one(claimed, &None, &mut to_load);
        self.spawn_loads(to_load, None);
    }
}

/// A run that waits for a trial.
struct SuspectRun {
    runner: Arc<TurnRunner>,
    claimed: ClaimedTurn,
    held_run: Arc<HeldRun>,
}

impl Suspect for SuspectRun {
    fn key(&self) -> Uuid {
        self.claimed.run_key.0
    }

    fn reclaims(&self) -> u32 {
        self.claimed.reclaims
    }

    fn start(self: Box<Self>) -> Box<dyn Fn() -> bool + Send + Sync> {
        let Self { runner, claimed, .. } = *self;
        let run_key = claimed.run_key;
        runner.begin_again(claimed);
        let runs = Arc::clone(&runner.runs);
        Box::new(move || runs.is_held(run_key))
    }

    fn release(self: Box<Self>) {
        let Self { runner, claimed, held_run } = *self;
        let env = Arc::clone(&runner.core.env);
        let release = async move {
            let item = held(claimed.run_key, claimed.hold);
            if let Err(error) = runner.core.store.release(vec![item]).await {
                tracing::warn!(run_key = %claimed.run_key, %error, "failed to release a turn");
                runner.scan_later();
            }
            runner.runs.unhold(claimed.run_key, &held_run);
        };
        env.spawn(ThreadPool::Service, Box::pin(release));
    }
}

pub(crate) fn held(run_key: RunKey, hold: Hold) -> HeldItem {
    HeldItem::Turn { run_key, worker: hold.worker, claim_no: hold.claim_no }
}
