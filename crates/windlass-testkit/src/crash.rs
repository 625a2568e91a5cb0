//! Crashes at every commit: a workflow must have the same output, whichever of its commits was the last
//! before the process died.
//!
//! ```
//! use windlass::{Ctx, steps};
//! use windlass_testkit::every_crash_point;
//!
//! let report = every_crash_point(
//!     |engine, probe| {
//!         let probe = probe.clone();
//!         steps::register(engine, "order", move |ctx: Ctx, cents: u64| {
//!             let probe = probe.clone();
//!             async move {
//!                 let charge = || {
//!                     probe.ran("charge");
//!                     std::future::ready(Ok(cents))
//!                 };
//!                 Ok(ctx.step("charge", charge).await?)
//!             }
//!         })
//!         .unwrap()
//!     },
//!     500,
//! );
//! assert!(report.commits >= 2);
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use windlass_engine::{Engine, Options};
use windlass_kernel::{
    BoxFuture, Commit, CommitResults, Error, ErrorCode, Limits, Query, StepStatus, Store,
};
use windlass_models::WorkflowRef;

use crate::engine::{VirtualWorld, in_words, verify_clean};
use crate::gate::{Gate, GatedStore, Pass};
use crate::sim::executor::{NodeId, locked};

const STEPS_MAX: u64 = 20_000_000;
const RUN_ID: &str = "crash-point";

/// Counts which bodies ran. A body calls [`Probe::ran`] with the key of its step; a key must belong
/// to one step of one run only.
#[derive(Clone, Default)]
pub struct Probe(Arc<Mutex<BTreeMap<String, u32>>>);

impl Probe {
    /// The body of this step runs.
    pub fn ran(&self, key: impl AsRef<str>) {
        *locked(&self.0).entry(key.as_ref().to_owned()).or_default() += 1;
    }

    /// How often the body of this step ran.
    pub fn count(&self, key: impl AsRef<str>) -> u32 {
        locked(&self.0).get(key.as_ref()).copied().unwrap_or(0)
    }

    fn counts(&self) -> BTreeMap<String, u32> {
        locked(&self.0).clone()
    }
}

/// The result of crashes at every commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashReport {
    /// How many commits the workflow makes without a crash.
    pub commits: u64,
    /// How many crashes were tried: two a commit, one after the answer came and one before.
    pub crashes: u64,
    /// How many bodies ran over all crashes.
    pub bodies: u64,
    /// How many of them ran again because their first result was lost with the process.
    pub bodies_again: u64,
    /// The output, the same every time.
    pub output: serde_json::Value,
}

/// Runs a workflow with a crash at every commit; see [`CrashPoints`].
#[track_caller]
pub fn every_crash_point<I, O, M>(make: M, input: I) -> CrashReport
where
    I: Serialize + Clone + Send + 'static,
    O: Serialize + DeserializeOwned + Send + 'static,
    M: Fn(&Engine, &Probe) -> WorkflowRef<I, O>,
{
    CrashPoints::new(make, input).run()
}

/// A workflow that is to be crashed at every commit it makes.
///
/// It is run once to count its commits. Then, for each of them, it is run on a fresh store whose
/// handle dies right after that commit was written, once after the answer was given and once before.
/// Another engine continues from the store. Each time the output must be the same, no step
/// whose result was recorded may run again, and every ledger must fit its rows.
pub struct CrashPoints<M, I> {
    make: M,
    input: I,
    events: Vec<(String, serde_json::Value)>,
    seed: u64,
}

impl<M, I, O> CrashPoints<M, I>
where
    I: Serialize + Clone + Send + 'static,
    O: Serialize + DeserializeOwned + Send + 'static,
    M: Fn(&Engine, &Probe) -> WorkflowRef<I, O>,
{
    /// `make` registers the workflow, and whatever it needs, with an engine.
    pub fn new(make: M, input: I) -> Self {
        Self { make, input, events: Vec::new(), seed: 0 }
    }

    /// An event that is sent to the run once it has been started.
    pub fn event(mut self, event_type: impl Into<String>, payload: &impl Serialize) -> Self {
        let payload = serde_json::to_value(payload).expect("the payload can be written as JSON");
        self.events.push((event_type.into(), payload));
        self
    }

    /// Another order of what runs side by side.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Runs it.
    ///
    /// # Panics
    ///
    /// If a crash makes a difference. The message names the commit.
    #[track_caller]
    pub fn run(self) -> CrashReport {
        let seed = self.seed;
        let script = move |engine: &Engine, probe: &Probe| self.script(engine, probe);
        Points { script, seed, folder: None }.run()
    }

    // Starting it again under the same name finds it, and an event sent again is the same event.
    fn script(&self, engine: &Engine, probe: &Probe) -> BoxFuture<'static, Told> {
        let workflow = (self.make)(engine, probe);
        let (input, events) = (self.input.clone(), self.events.clone());
        Box::pin(async move {
            let ended = async {
                let run = workflow.start(input).id(RUN_ID).await?;
                for (place, (event_type, payload)) in events.iter().enumerate() {
                    let sent =
                        run.send_event_once(event_type, payload, format!("event-{place}")).await;
                    match sent {
                        Err(error) if error.code() == ErrorCode::RunTerminal => break,
                        sent => sent?,
                    };
                }
                run.result().await
            };
            let ended: Result<O, Error> = ended.await;
            ended
                .map_err(|error| error.to_string())
                .and_then(|output| serde_json::to_value(&output).map_err(|error| error.to_string()))
        })
    }
}

/// As [`every_crash_point`], for workflows of any model. `script` registers what it needs with the
/// engine, begins a run or finds the one that was begun, and answers what came of it; it is called
/// again with the engine that carries on. A body tells the probe the key of its step.
#[track_caller]
pub fn every_crash_of<S>(script: S) -> CrashReport
where
    S: Fn(&Engine, &Probe) -> BoxFuture<'static, Told>,
{
    Points { script, seed: 0, folder: None }.run()
}

/// As [`every_crash_of`], on SQLite files in a folder.
///
/// ```
/// # let folder = std::env::temp_dir().join(format!("windlass-crash-points-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let report = windlass_testkit::every_crash_of_on_sqlite(&folder, |_, _| {
///     Box::pin(async { Ok(serde_json::json!("a script that commits nothing")) })
/// });
/// assert_eq!(report.output, "a script that commits nothing");
/// # std::fs::remove_dir_all(&folder).unwrap();
/// ```
#[track_caller]
pub fn every_crash_of_on_sqlite<S>(folder: impl AsRef<Path>, script: S) -> CrashReport
where
    S: Fn(&Engine, &Probe) -> BoxFuture<'static, Told>,
{
    Points { script, seed: 0, folder: Some(folder.as_ref().to_owned()) }.run()
}

/// The output of a run, or the error.
pub type Told = Result<serde_json::Value, String>;

struct Points<S> {
    script: S,
    seed: u64,
    /// The folder of the SQLite files; nothing for stores in memory.
    folder: Option<PathBuf>,
}

impl<S> Points<S>
where
    S: Fn(&Engine, &Probe) -> BoxFuture<'static, Told>,
{
    #[track_caller]
    fn run(self) -> CrashReport {
        let quiet = self.once(None).unwrap_or_else(|flaw| panic!("without a crash: {flaw}"));
        let mut report = CrashReport {
            commits: quiet.commits,
            crashes: 0,
            bodies: 0,
            bodies_again: 0,
            output: quiet.output,
        };
        for k in 1..=quiet.commits {
            for answered in [true, false] {
                let when = if answered { "after its answer" } else { "before its answer" };
                let once = self.once(Some(Death { k, answered })).unwrap_or_else(|flaw| {
                    panic!("crash at commit k = {k} of {}, {when}: {flaw}", quiet.commits)
                });
                if once.output != report.output {
                    panic!(
                        "crash at commit k = {k} of {}, {when}: the output is {} and not {}",
                        quiet.commits, once.output, report.output
                    );
                }
                report.crashes += 1;
                report.bodies += once.bodies;
                report.bodies_again += once.bodies_again;
            }
        }
        report
    }

    fn once(&self, death: Option<Death>) -> Result<Once, String> {
        let mut world = VirtualWorld::new(self.seed);
        let probe = Probe::default();
        let store = self.store(&world, death);
        let dying = Arc::new(DyingStore::new(Arc::clone(&store), death));
        let first = world.start(NodeId(1), dying.clone(), options());
        let told = self.start(&mut world, NodeId(1), &first, &probe);
        if death.is_none() {
            let output = finish(&mut world, &told)?;
            verify_clean(&*store)?;
            return Ok(Once {
                commits: dying.commits(),
                output,
                bodies: probe.counts().values().map(|count| u64::from(*count)).sum(),
                bodies_again: 0,
            });
        }
        while !dying.is_dead() {
            if locked(&told).is_some() {
                return Err(
                    "the run ended before that commit: it does not do the same thing every \
                            time"
                        .to_owned(),
                );
            }
            tick(&mut world)?;
        }
        // Tasks of the dead engine may still run and even start bodies. None of them reaches the store.
        world.executor.run_ready(STEPS_MAX).map_err(|stuck| in_words(&stuck))?;
        world.sim.crash(NodeId(1));
        drop(first);
        world.executor.run_ready(STEPS_MAX).map_err(|stuck| in_words(&stuck))?;
        let before = probe.counts();
        let recorded = recorded_steps(&*store);
        let second = world.start(NodeId(2), Arc::clone(&store), options());
        let told = self.start(&mut world, NodeId(2), &second, &probe);
        let output = finish(&mut world, &told)?;
        verify_clean(&*store)?;
        let after = probe.counts();
        let again = after
            .iter()
            .filter(|(key, count)| before.get(*key).is_some_and(|before| before < count));
        if let Some(key) = again.clone().map(|(key, _)| key).find(|key| recorded.contains(*key)) {
            return Err(format!(
                "step {key:?} was recorded before the crash and ran again after it"
            ));
        }
        Ok(Once {
            commits: dying.commits(),
            output,
            bodies_again: again.count() as u64,
            bodies: after.values().map(|count| u64::from(*count)).sum(),
        })
    }

    fn store(&self, world: &VirtualWorld, death: Option<Death>) -> Arc<dyn Store> {
        let Some(folder) = &self.folder else { return world.store.clone() };
        let name = match death {
            None => "quiet.db".to_owned(),
            Some(Death { k, answered }) => format!("{k}-{answered}.db"),
        };
        world.sqlite(&folder.join(name), Limits::DEFAULT)
    }

    fn start(
        &self,
        world: &mut VirtualWorld,
        node: NodeId,
        engine: &Engine,
        probe: &Probe,
    ) -> SharedTold {
        let script = (self.script)(engine, probe);
        let told = SharedTold::default();
        let place = told.clone();
        world.sim.spawn(node, async move {
            *locked(&place) = Some(script.await);
        });
        told
    }
}

type SharedTold = Arc<Mutex<Option<Told>>>;

#[derive(Clone, Copy)]
struct Death {
    k: u64,
    answered: bool,
}

struct Once {
    commits: u64,
    output: serde_json::Value,
    bodies: u64,
    bodies_again: u64,
}

fn options() -> Options {
    Options {
        // Others may take over what a dead engine held, soon after its lease has run out.
        shared: true,
        lease: Duration::from_secs(3),
        renew_every: Duration::from_secs(1),
        scan_every: Duration::from_secs(2),
        ..Options::default()
    }
}

/// So many timers go by before a run counts as one that does not end.
const TICKS_MAX: u64 = 1_000_000;

fn tick(world: &mut VirtualWorld) -> Result<(), String> {
    let ran = world.executor.run_ready(STEPS_MAX).and_then(|_| {
        let next = world.executor.next_timer_us().unwrap_or(world.sim.now_us());
        world.executor.advance_us(next.saturating_sub(world.sim.now_us()), STEPS_MAX)
    });
    ran.map_err(|stuck| in_words(&stuck))
}

// A run that fails ends as well: its error is its output here.
fn finish(world: &mut VirtualWorld, told: &SharedTold) -> Result<serde_json::Value, String> {
    for _ in 0..TICKS_MAX {
        if let Some(ended) = locked(told).take() {
            return Ok(ended.unwrap_or_else(|error| serde_json::json!({ "error": error })));
        }
        tick(world)?;
    }
    Err("the run does not end; does it wait for an event that nobody sends?".to_owned())
}

fn recorded_steps(store: &dyn Store) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let rows = store.list(Query::RunKeys { after: None, limit: 1_000 }).now_or_never();
    let runs = rows.and_then(|rows| rows.ok()?.run_keys().ok()).unwrap_or_default();
    let loaded = store.load(runs).now_or_never().and_then(Result::ok).unwrap_or_default();
    for step in loaded.iter().flat_map(|loaded| &loaded.steps) {
        if matches!(step.status, StepStatus::Completed | StepStatus::Errored) {
            keys.insert(step.step_key.as_str().to_owned());
        }
    }
    keys
}

/// Dies at a commit: afterwards no call returns.
struct DeathGate {
    death: Option<Death>,
    commits: AtomicU64,
    dead: AtomicBool,
}

type DyingStore = GatedStore<DeathGate>;

impl DyingStore {
    fn new(inner: Arc<dyn Store>, death: Option<Death>) -> Self {
        let (commits, dead) = (AtomicU64::new(0), AtomicBool::new(false));
        Self::with_gate(inner, DeathGate { death, commits, dead })
    }

    fn commits(&self) -> u64 {
        self.gate.commits.load(Ordering::Relaxed)
    }

    fn is_dead(&self) -> bool {
        self.gate.is_dead()
    }
}

impl DeathGate {
    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

impl Gate for DeathGate {
    fn pass(&self) -> Pass {
        if self.is_dead() { Pass::Hang } else { Pass::Through }
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        Box::pin(async move {
            let mut results = Vec::new();
            for commit in commits {
                if self.is_dead() {
                    return std::future::pending().await;
                }
                let answer = inner.commit(vec![commit]).await;
                let written = answer
                    .iter()
                    .any(|answer| answer.as_ref().is_ok_and(|committed| !committed.repeated));
                results.extend(answer);
                if !written {
                    continue;
                }
                let count = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
                if let Some(death) = self.death.filter(|death| death.k == count) {
                    self.dead.store(true, Ordering::Relaxed);
                    if !death.answered {
                        return std::future::pending().await;
                    }
                }
            }
            results
        })
    }
}
