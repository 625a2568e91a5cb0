//! An engine for tests of workflows: virtual time, seeded ids and schedules.
//!
//! A [`TestEngine`] runs the real engine and the real models on one thread, with a clock that moves only when the
//! test moves it. Three days of sleep take no time, and a test does the same thing every time; another seed gives
//! another order of concurrent work. The store is in memory, or an SQLite file for tests of
//! [`Ctx::step_tx`](windlass::Ctx::step_tx). Programs register workflows with the same code as on
//! [`windlass::Engine`].
//!
//! ```
//! use windlass::{Ctx, Engine, Result};
//! use windlass_testkit::TestEngine;
//!
//! async fn remind(ctx: Ctx, name: String) -> Result<String> {
//!     ctx.sleep("a while", "3 days").await?;
//!     Ok(ctx.step("greet", async || Ok(format!("hello {name}"))).await?)
//! }
//!
//! let test = TestEngine::new();
//! let remind = test.engine().workflow("remind", remind).unwrap();
//! let run = test.run(remind.start("Ada".into())).unwrap();
//! test.advance("2 days");
//! assert!(!test.status(&run).status.is_ended());
//! test.advance("1 day");
//! assert_eq!(test.run(run.result()).unwrap(), "hello Ada");
//! ```
//!
//! Bodies that wait for sockets, for timers of tokio or for spawned tokio tasks do not work in virtual time: nothing
//! drives them here, and the test would wait for ever. Give such a workflow a fake, or test it on an engine in real
//! time.

use std::future::{Future, IntoFuture};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Wake, Waker};

use futures::FutureExt as _;
use serde::Serialize;
use windlass::admin::verify_store;
use windlass::{RunHandle, Status};
use windlass_engine::{Engine, Options};
use windlass_kernel::{Event, IntoDuration, Limits, MemoryStore, Step, Store, Timestamp};

use crate::sim::env::SimEnv;
use crate::sim::executor::{Executor, Handle, NodeId, Stuck, locked};
use crate::sim::rng::Rng;
use crate::sim::store::SkewedClock;
use crate::sync_store::SyncStore;

/// A test that makes progress needs fewer polls.
const STEPS_MAX: u64 = 20_000_000;
/// Time moves this much further than the caller asks.
const GRACE_US: u64 = 1_000;

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An engine in virtual time; see the module.
pub struct TestEngine {
    executor: Mutex<Executor>,
    sim: Handle,
    clock: SkewedClock,
    store: Arc<dyn Store>,
    engine: windlass::Engine,
}

impl Default for TestEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl TestEngine {
    /// An engine on an empty store.
    pub fn new() -> Self {
        Self::seeded(0)
    }

    /// As [`TestEngine::new`], with other ids and another order of concurrent tasks.
    pub fn seeded(seed: u64) -> Self {
        Self::with_options(seed, Options::default())
    }

    /// As [`TestEngine::seeded`], with options of the engine. The store has the same limits.
    pub fn with_options(seed: u64, options: Options) -> Self {
        let world = VirtualWorld::with_limits(seed, options.limits.clone());
        let store = Arc::clone(&world.store);
        Self::on(world, store, options)
    }

    /// An engine on an SQLite file, in virtual time too: for tests of [`Ctx::step_tx`](windlass::Ctx::step_tx).
    /// The file is created if it is missing. Create the tables of the application with a connection of the test.
    ///
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("windlass-test-engine-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// let test = windlass_testkit::TestEngine::on_sqlite(folder.join("test.db"));
    /// # drop(test);
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// ```
    ///
    /// # Panics
    ///
    /// If the file cannot be opened.
    pub fn on_sqlite(path: impl AsRef<Path>) -> Self {
        Self::on_sqlite_with(path, 0, Options::default())
    }

    /// As [`TestEngine::on_sqlite`], with a seed and with options of the engine, as in
    /// [`TestEngine::with_options`].
    ///
    /// # Panics
    ///
    /// If the file cannot be opened.
    pub fn on_sqlite_with(path: impl AsRef<Path>, seed: u64, options: Options) -> Self {
        let world = VirtualWorld::new(seed);
        let store = world.sqlite(path.as_ref(), options.limits.clone());
        Self::on(world, store, options)
    }

    fn on(mut world: VirtualWorld, store: Arc<dyn Store>, options: Options) -> Self {
        let engine = world.start(NodeId(1), Arc::clone(&store), options).into();
        let (sim, clock) = (world.sim.clone(), world.clock.clone());
        Self { executor: Mutex::new(world.executor), sim, clock, store, engine }
    }

    /// The engine, to register workflows and activities with.
    pub fn engine(&self) -> windlass::Engine {
        self.engine.clone()
    }

    /// The store.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// The store's time.
    pub fn now(&self) -> Timestamp {
        self.store.now().now_or_never().and_then(Result::ok).expect("the store answers at once")
    }

    /// Runs everything until a future ends, without moving time.
    ///
    /// # Panics
    ///
    /// If the future waits for a time, or for an event that nothing sends.
    #[track_caller]
    pub fn run<F: IntoFuture>(&self, future: F) -> F::Output {
        let still = |_: &mut Executor| -> Result<(), String> {
            Err("it waits, and nothing is left to run at this time: advance the time, send what it \
                 waits for, or use `run_to_end`"
                .to_owned())
        };
        match self.drive(future.into_future(), still) {
            Ok(value) => value,
            Err(why) => panic!("the future does not end: {why}"),
        }
    }

    /// Runs everything until a future ends, and moves time as far as that needs.
    ///
    /// # Panics
    ///
    /// If the future waits for an event that no timer causes.
    #[track_caller]
    pub fn run_to_end<F: IntoFuture>(&self, future: F) -> F::Output {
        let next = |executor: &mut Executor| {
            let now = executor.handle().now_us();
            let at = executor.next_timer_us().ok_or_else(|| in_words(&Stuck::Nothing))?;
            let moved = executor.advance_us(at.saturating_sub(now), STEPS_MAX);
            moved.map_err(|stuck| in_words(&stuck))
        };
        match self.drive(future.into_future(), next) {
            Ok(value) => value,
            Err(why) => panic!("the future does not end: {why}"),
        }
    }

    // The future is the test's own and may borrow: it is polled here and not on the executor.
    #[track_caller]
    fn drive<F: Future>(
        &self,
        future: F,
        idle: impl Fn(&mut Executor) -> Result<(), String>,
    ) -> Result<F::Output, String> {
        let mut future = std::pin::pin!(future);
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            if woken.0.swap(false, Ordering::Relaxed) {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                if let Poll::Ready(value) = polled {
                    // The consequences of the result are visible when the test goes on.
                    self.run_until_idle();
                    return Ok(value);
                }
            }
            let mut executor = self.executor();
            executor.run_ready(STEPS_MAX).map_err(|stuck| in_words(&stuck))?;
            if !woken.0.load(Ordering::Relaxed) {
                idle(&mut executor)?;
            }
        }
    }

    /// Runs everything that is ready, without moving time.
    #[track_caller]
    pub fn run_until_idle(&self) {
        let ran = self.executor().run_ready(STEPS_MAX);
        if let Err(stuck) = ran {
            panic!("the engine does not come to rest: {}", in_words(&stuck));
        }
    }

    /// Moves time forward, by `"1 day"` or a `Duration`, from timer to timer, and runs all tasks that
    /// become ready. It moves a millisecond further than asked: events of a run are at least a
    /// microsecond apart, so a sleep of a day ends a little more than a day after the run began.
    #[track_caller]
    pub fn advance(&self, span: impl IntoDuration) {
        let span = span.into_duration().unwrap_or_else(|error| panic!("{error}"));
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.advance_us(us.saturating_add(GRACE_US));
    }

    /// Moves time to the next timer and runs the tasks that it makes ready. `false` if no timer is set:
    /// then only an event from outside can make progress.
    #[track_caller]
    pub fn tick(&self) -> bool {
        self.run_until_idle();
        let next = self.executor().next_timer_us();
        let Some(next) = next else { return false };
        self.advance_us(next.saturating_sub(self.sim.now_us()));
        true
    }

    #[track_caller]
    fn advance_us(&self, us: u64) {
        if let Err(stuck) = self.executor().advance_us(us, STEPS_MAX) {
            panic!("the engine does not come to rest: {}", in_words(&stuck));
        }
    }

    /// Sets the clock of the store forward, or back, as a time server may do. Timers that run go on.
    pub fn jump_clock(&self, us: i64) {
        self.clock.jump(us);
    }

    /// Sends an event to a run and lets it take effect.
    #[track_caller]
    pub fn send_event<O>(&self, run: &RunHandle<O>, event_type: &str, payload: &impl Serialize) {
        let sent = self.run(run.send_event(event_type, payload));
        sent.unwrap_or_else(|error| panic!("the event was refused: {error}"));
    }

    /// The status of a run.
    #[track_caller]
    pub fn status<O>(&self, run: &RunHandle<O>) -> Status {
        self.run(run.status()).expect("the store answers")
    }

    /// The recorded steps of a run.
    #[track_caller]
    pub fn steps<O>(&self, run: &RunHandle<O>) -> Vec<Step> {
        self.run(run.steps()).expect("the store answers")
    }

    /// The ledger of a run.
    #[track_caller]
    pub fn ledger<O>(&self, run: &RunHandle<O>) -> Vec<Event> {
        self.run(run.events()).expect("the store answers")
    }

    /// Checks every ledger against its rows.
    ///
    /// # Panics
    ///
    /// If there is a flaw. The message names it.
    #[track_caller]
    pub fn verify(&self) {
        verify_clean(&*self.store).unwrap_or_else(|flaw| panic!("{flaw}"));
    }

    /// Evicts every waiting run from memory: its next turn replays its code from the top, as after a
    /// restart.
    pub fn evict_all(&self) {
        self.engine.core().evict_all();
    }

    #[track_caller]
    fn executor(&self) -> MutexGuard<'_, Executor> {
        match self.executor.try_lock() {
            Ok(executor) => executor,
            // A test that has failed may still read the store.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => panic!(
                "the test engine is running: do not drive it from inside a workflow, a step or \
                 another thread"
            ),
        }
    }
}

/// An executor, virtual time and a memory store that follows it.
pub(crate) struct VirtualWorld {
    pub(crate) executor: Executor,
    pub(crate) sim: Handle,
    clock: SkewedClock,
    pub(crate) store: Arc<MemoryStore>,
    rng: Rng,
}

impl VirtualWorld {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_limits(seed, Limits::DEFAULT)
    }

    /// A world whose store has these limits.
    fn with_limits(seed: u64, limits: Limits) -> Self {
        Self::with_clock(seed, limits, |_| {})
    }

    /// A world whose clock shows this time.
    pub(crate) fn at(now: Timestamp) -> Self {
        Self::with_clock(0, Limits::DEFAULT, |clock| {
            clock.jump(now.as_micros() - clock.now().as_micros())
        })
    }

    fn with_clock(seed: u64, limits: Limits, set: impl FnOnce(&SkewedClock)) -> Self {
        let mut rng = Rng::new(seed);
        let executor = Executor::new(rng.next_u64());
        let sim = executor.handle();
        let clock = SkewedClock::new(sim.clone(), 0);
        set(&clock);
        let of_store = clock.clone();
        let store = Arc::new(MemoryStore::new(Arc::new(move || of_store.now()), limits));
        Self { executor, sim, clock, store, rng }
    }

    /// A store in an SQLite file whose clock is that of this world.
    pub(crate) fn sqlite(&self, path: &Path, limits: Limits) -> Arc<dyn Store> {
        let clock = self.clock.clone();
        let options = windlass_sqlite::Options {
            clock: Arc::new(move || clock.now()),
            elapsed: None,
            limits,
            ..windlass_sqlite::Options::default()
        };
        let store = windlass_sqlite::SqliteStore::open(path, options).unwrap_or_else(|error| {
            panic!("the store at {} does not open: {error}", path.display())
        });
        SyncStore::new(store)
    }

    /// Starts an engine on a node of this world.
    pub(crate) fn start(
        &mut self,
        node: NodeId,
        store: Arc<dyn Store>,
        options: Options,
    ) -> Engine {
        let env = SimEnv::new(self.sim.clone(), node, self.rng.fork());
        let started = Arc::new(Mutex::new(None));
        let place = Arc::clone(&started);
        // On the engine's own node, so that a crash of the node reaches it.
        self.sim.spawn(node, async move {
            let engine = Engine::start(store, env, options).await;
            *locked(&place) = Some(engine);
        });
        let ran = self.executor.run_ready(STEPS_MAX);
        let engine = locked(&started).take();
        match (ran, engine) {
            (Ok(_), Some(Ok(engine))) => engine,
            (Ok(_), Some(Err(error))) => panic!("the engine does not start: {error}"),
            (ran, _) => panic!("the engine does not start: {ran:?}"),
        }
    }
}

/// Checks every ledger of a store and describes the first flaw.
pub(crate) fn verify_clean(store: &dyn Store) -> Result<(), String> {
    match verify_store(store, &[]).now_or_never() {
        Some(Ok(report)) if report.is_clean() => Ok(()),
        Some(Ok(report)) => Err(format!("flaws: {:?} {:?}", report.flaws, report.unreadable)),
        Some(Err(error)) => Err(format!("the store cannot be verified: {error}")),
        None => Err("the store did not answer at once".into()),
    }
}

pub(crate) fn in_words(stuck: &Stuck) -> String {
    match stuck {
        Stuck::LiveLock { steps } => {
            format!("after {steps} polls it is as busy as before; does a workflow spin?")
        }
        Stuck::Nothing => "nothing is left to run and no timer is set; does it wait for an event, \
                           or for something outside virtual time?"
            .to_owned(),
        Stuck::Stopped => "it was stopped".to_owned(),
    }
}
