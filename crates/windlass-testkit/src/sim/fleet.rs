//! A fleet of real engines in the simulated world: random workflows on the faulty store, workers
//! that die, stall and drain, clients that interfere; then healing, then the audit.

pub(crate) mod client;
pub(crate) mod mill;
pub(crate) mod program;
pub(crate) mod relay;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use windlass_engine::{Engine, Options};
use windlass_kernel::{ErrorKind, Namespace, RunKey, StepKey, Store, TaskId, WorkerKey};
use windlass_models::relays::{RunOutcome, WorkflowRuntime};
use windlass_models::steps;

use super::bugs::Bugs;
use super::check::relays::Hooked;
use super::check::{Checker, Rest};
use super::env::SimEnv;
use super::executor::{Executor, Handle, NETWORK, NodeId, Stuck, locked};
use super::faults::{Faults, PlantedBug};
use super::rng::Rng;
use super::store::{FaultyStore, Link, SkewedClock};
use super::world::Report;
use client::{Client, Told};
use program::{ACTIVITY, BRIEF, Input, Labour, WORKFLOW, step_value};
use relay::{Order, RELAY};

// More polls than any world needs that makes progress.
const STEPS_MAX: u64 = 3_000_000;
const HEAL_US_MAX: u64 = 300_000_000;

/// A bug of the fleet that must be caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetBug {
    /// A bug of the store.
    Store(PlantedBug),
    /// The clocks of the workers run twice as fast as the store's.
    FastClock,
    /// The workflows' code asks for other steps in another life of a process.
    UnstableCode,
}

impl FleetBug {
    /// All that the fleet is tried with.
    pub const ALL: &'static [FleetBug] = &[
        FleetBug::FastClock,
        FleetBug::UnstableCode,
        FleetBug::Store(PlantedBug::StaleLoad),
        FleetBug::Store(PlantedBug::SkipHeadCheck),
        FleetBug::Store(PlantedBug::SkipHoldCheck),
        FleetBug::Store(PlantedBug::ForgetTimer),
        FleetBug::Store(PlantedBug::ClaimGivenTwice),
        FleetBug::Store(PlantedBug::ReleaseIgnoresAccepted),
        FleetBug::Store(PlantedBug::MessageAcceptedTwice),
        FleetBug::Store(PlantedBug::KeyIgnored),
        FleetBug::Store(PlantedBug::EndForgotten),
        FleetBug::Store(PlantedBug::AckWithoutWrite),
    ];
}

/// Runs one seed of the fleet, with a planted bug or without.
pub fn run_fleet(seed: u64, bug: Option<FleetBug>) -> Report {
    let mut rng = Rng::new(seed ^ 0xF1EE_7000);
    let mut executor = Executor::new(rng.next_u64());
    let sim = executor.handle();
    let checker = Arc::new(Checker::new(sim.clone(), vec![Namespace::default_namespace()]));
    let clock = SkewedClock::new(sim.clone(), rng.below(20_000_000) as i64);
    let store_bug = match bug {
        Some(FleetBug::Store(bug)) => Some(bug),
        _ => None,
    };
    let bugs = Bugs::new(store_bug, rng.fork());
    let faulty = FaultyStore::new(&sim, clock, &mut rng, bugs, checker.clone());
    let fleet = Arc::new(Fleet {
        patient: rng.chance(800),
        options: options(&mut rng),
        sim,
        faulty: faulty.clone(),
        checker: checker.clone(),
        bug,
        cast: Mutex::new(Cast::default()),
        intents: Mutex::default(),
        relays: Mutex::new(Rng::new(seed ^ 0xBA70_0000)),
        mills: Mutex::new(Rng::new(seed ^ 0x3111_0000)),
        batons: Mutex::default(),
        hooked: Mutex::default(),
    });
    let (weak, deaths) = (Arc::downgrade(&fleet), Mutex::new(rng.fork()));
    faulty.set_killer(Arc::new(move |node| {
        if let Some(fleet) = weak.upgrade() {
            fleet.crash(&mut locked(&deaths), Some(node));
        }
    }));
    let orders = Arc::new(Mutex::new(Vec::new()));
    let result = executor.block_on(STEPS_MAX, fleet.clone().play(rng, orders.clone()));
    match result {
        Ok(()) => {
            let (batons, hooked) = (fleet.batons(), locked(&fleet.hooked));
            let relays = (&batons[..], &*hooked);
            checker.audit_fleet(faulty.inner(), &told(&orders), relays, !fleet.patient);
        }
        Err(Stuck::Stopped) => {}
        Err(stuck) => checker.fail("30 the world comes to rest", format!("{stuck:?}")),
    }
    // Engines, their store and its listeners would keep each other alive.
    locked(&fleet.cast).workers.clear();
    drop(faulty.inner().close());
    let (trace, reached) = executor.finish();
    Report { seed, failure: checker.failure(), trace, reached }
}

type Orders = Arc<Mutex<Vec<Arc<Mutex<Told>>>>>;

fn told(orders: &Orders) -> Vec<Told> {
    locked(orders).iter().map(|told| locked(told).clone()).collect()
}

// Small rooms and no memory are where most of an engine's corners are.
fn options(rng: &mut Rng) -> Options {
    Options {
        worker_name: "sim".into(),
        manners: windlass_models::MANNERS,
        shared: true,
        lease: Duration::from_secs(3),
        renew_every: Duration::from_millis(rng.range(300, 1_000)),
        scan_every: Duration::from_millis(rng.range(500, 3_000)),
        turns_max: if rng.chance(300) { rng.range(1, 4) as usize } else { 100 },
        tasks_max: if rng.chance(300) { rng.range(1, 3) as usize } else { 100 },
        claim_max: if rng.chance(300) { rng.range(1, 3) as u32 } else { 100 },
        sticky_bytes_max: if rng.chance(300) { 0 } else { 1 << 20 },
        blocked_retry: Duration::from_secs(2),
        sweep_every: Duration::from_millis(rng.range(1_000, 6_000)),
        ..Options::default()
    }
}

struct Worker {
    node: NodeId,
    link: Arc<Link>,
    engine: Engine,
}

#[derive(Default)]
struct Cast {
    nodes: u32,
    workers: Vec<Worker>,
    // Nodes that are starting: they can die before they are workers.
    starting: BTreeMap<NodeId, Arc<Link>>,
}

struct Fleet {
    sim: Handle,
    faulty: FaultyStore,
    checker: Arc<Checker>,
    options: Options,
    // Whether turns may be taken from dead workers as often as it happens.
    patient: bool,
    bug: Option<FleetBug>,
    cast: Mutex<Cast>,
    // The attempts of intents that have begun since their probe was last asked.
    intents: Mutex<BTreeMap<(RunKey, String, u32), bool>>,
    // Of their own, so that the rest of a world is what it is without relays and machines.
    relays: Mutex<Rng>,
    mills: Mutex<Rng>,
    // What clients know of runs of relays, and what hooks were told.
    batons: Mutex<Vec<Arc<Mutex<Order>>>>,
    hooked: Mutex<Hooked>,
}

/// What user code on one node reaches of the world.
pub(crate) struct Yard {
    fleet: std::sync::Weak<Fleet>,
    sim: Handle,
    node: NodeId,
    worker: OnceLock<WorkerKey>,
    rng: Mutex<Rng>,
    unstable: bool,
}

impl Yard {
    /// The body of a step begins.
    ///
    /// With an intent, whoever runs the same attempt once more has asked the probe before, unless
    /// it has lost the run and does not know yet.
    pub(crate) fn body_begins(&self, run_key: RunKey, key: &str, intent: Option<u32>) {
        if let Some(attempt) = intent
            && let Some(fleet) = self.fleet.upgrade()
        {
            let begun = locked(&fleet.intents).insert((run_key, key.to_owned(), attempt), true);
            let holder = fleet.checker.holder(fleet.faulty.inner(), run_key);
            let own = holder.is_some_and(|hold| Some(&hold.worker) == self.worker.get());
            if begun == Some(true) && own {
                let detail = format!("step {key} of {run_key} runs again without its probe");
                fleet.checker.fail("1 an intent is probed before its body runs again", detail);
            }
        }
        if let (Some(fleet), Some(worker)) = (self.fleet.upgrade(), self.worker.get()) {
            let (store, key) = (fleet.faulty.inner(), StepKey::from_stored(key));
            let delivered = fleet.faulty.delivered(self.node, run_key);
            fleet.checker.body_begins(store, run_key, &key, *worker, delivered);
        }
    }

    /// The probe of an intent is asked.
    pub(crate) fn probed(&self, run_key: RunKey, key: &str, attempt: u32) {
        if let Some(fleet) = self.fleet.upgrade() {
            fleet.sim.sometimes("probe of an intent was asked");
            locked(&fleet.intents).insert((run_key, key.to_owned(), attempt), false);
        }
    }

    /// How long user code takes: sometimes longer than a lease, sometimes with the whole process.
    pub(crate) async fn work(&self) {
        let Some(fleet) = self.fleet.upgrade() else { return };
        let faults = fleet.faulty.faults();
        drop(fleet);
        let (stall, us) = {
            let mut rng = locked(&self.rng);
            let stall = rng.chance(faults.stall_at_work).then(|| rng.range(1_000_000, 9_000_000));
            let slow = rng.chance(faults.slow_body);
            (stall, if slow { rng.below(6_000_000) } else { rng.below(30_000) })
        };
        if let Some(us) = stall {
            self.sim.trace(format_args!("n{} freezes at work", self.node.0));
            self.sim.freeze(self.node);
            let (sim, node) = (self.sim.clone(), self.node);
            self.sim.spawn(NETWORK, async move {
                sim.sleep_us(us).await;
                sim.sometimes("node came back from a stall");
                sim.thaw(node);
            });
        }
        self.sim.sleep_us(us).await;
    }

    /// A hook is told how a run ended.
    pub(crate) fn hooked(&self, outcome: &RunOutcome) {
        let Some(fleet) = self.fleet.upgrade() else { return };
        fleet.sim.sometimes("hook was told of an end");
        if let Ok(id) = outcome.id.parse() {
            fleet.checker.effect(TaskId(id));
        }
        let told = (outcome.id.clone(), outcome.status);
        locked(&fleet.hooked).entry(outcome.run_key).or_default().push(told);
    }

    /// Takes so long.
    pub(crate) async fn linger(&self, us: u64) {
        self.sim.sleep_us(us).await;
    }

    /// Counts a point that must be reached.
    pub(crate) fn sometimes(&self, point: &'static str) {
        self.sim.sometimes(point);
    }

    /// Something is not as it must be.
    pub(crate) fn wrong(&self, what: &str) {
        if let Some(fleet) = self.fleet.upgrade() {
            fleet.checker.fail("1 a completed step never executes again", what.to_owned());
        }
    }

    /// Heads or tails.
    pub(crate) fn coin(&self) -> bool {
        locked(&self.rng).chance(500)
    }

    /// The key of a program's act.
    pub(crate) fn key(&self, place: usize) -> String {
        if self.unstable { format!("{place}@{}", self.node.0) } else { place.to_string() }
    }
}

impl Fleet {
    async fn play(self: Arc<Self>, mut rng: Rng, orders: Orders) {
        for _ in 0..rng.range(2, 3) {
            self.start_worker(&mut rng);
        }
        let (engine, node) = self.start_client(&mut rng).await;
        let mut faults = Faults::swarm(&mut rng);
        // An engine learns with its next renewal that the store's clock was set back; until then
        // timers of turns that it holds may be early on that clock. The other worlds are strict.
        if rng.chance(700) {
            faults.clock_back = 0;
        } else {
            self.checker.let_timers_be_early();
        }
        self.faulty.set_faults(faults);
        for number in 0..rng.range(2, 6) {
            let input = Input { seed: rng.next_u64(), depth: 1, events: true };
            let told = Told { id: format!("run-{number}"), input: Some(input), ..Told::default() };
            let told = Arc::new(Mutex::new(told));
            locked(&orders).push(told.clone());
            if rng.chance(400) {
                self.start_eagerly(told.clone(), &mut rng);
            }
            let (sim, engine) = (self.sim.clone(), engine.clone());
            let client = Client { sim, node, engine, told, rng: rng.fork() };
            self.sim.spawn(node, client.see_through());
        }
        self.order_relays(&engine, node);
        self.order_mills(&engine, node, &orders);
        if rng.chance(400) {
            let brief = client::brief_runs(self.sim.clone(), engine.clone(), rng.fork());
            self.sim.spawn(node, brief);
        }
        let mut chaos = rng.fork();
        for _ in 0..rng.range(3, 12) {
            self.sim.sleep_us(chaos.range(100_000, 2_000_000)).await;
            self.wreak(&mut chaos);
        }
        self.heal(&mut rng, &orders).await;
    }

    fn order_relays(&self, engine: &Engine, node: NodeId) {
        let mut rng = locked(&self.relays);
        let count = if rng.chance(600) { rng.range(1, 3) } else { 0 };
        for number in 0..count {
            let (id, seed) = (format!("baton-{number}"), rng.next_u64());
            let order = Arc::new(Mutex::new(Order {
                id,
                seed,
                cancelled: false,
                answered: None,
                ended: None,
            }));
            locked(&self.batons).push(order.clone());
            let (sim, engine) = (self.sim.clone(), engine.clone());
            let client = relay::see_through(sim, node, engine, order, rng.fork());
            self.sim.spawn(node, client);
        }
    }

    fn order_mills(&self, engine: &Engine, node: NodeId, orders: &Orders) {
        let mut rng = locked(&self.mills);
        let count = if rng.chance(600) { rng.range(1, 4) } else { 0 };
        for number in 0..count {
            let (id, seed) = (format!("mill-{number}"), rng.next_u64());
            let told = Arc::new(Mutex::new(Told { id, ..Told::default() }));
            locked(orders).push(told.clone());
            let (sim, engine) = (self.sim.clone(), engine.clone());
            let client = mill::see_through(sim, node, engine, (told, seed), rng.fork());
            self.sim.spawn(node, client);
        }
    }

    fn batons(&self) -> Vec<Order> {
        locked(&self.batons).iter().map(|order| locked(order).clone()).collect()
    }

    fn node(&self) -> NodeId {
        let mut cast = locked(&self.cast);
        cast.nodes += 1;
        NodeId(NETWORK.0 + cast.nodes)
    }

    // A process comes up: its engine may have to ask a store that does not answer.
    fn start_worker(self: &Arc<Self>, rng: &mut Rng) {
        let node = self.node();
        let (store, link) = self.faulty.connect(node);
        locked(&self.cast).starting.insert(node, link.clone());
        self.sim.trace(format_args!("n{} starts", node.0));
        let env = SimEnv::new(self.sim.clone(), node, rng.fork());
        if self.bug == Some(FleetBug::FastClock) {
            env.set_rate(2_000);
        }
        let yard = Arc::new(Yard {
            fleet: Arc::downgrade(self),
            sim: self.sim.clone(),
            node,
            worker: OnceLock::new(),
            rng: Mutex::new(rng.fork()),
            unstable: self.bug == Some(FleetBug::UnstableCode),
        });
        let mut options = self.options.clone();
        options.reclaims_max = if self.patient { 1_000 } else { 3 };
        let fleet = Arc::downgrade(self);
        let sim = self.sim.clone();
        self.sim.spawn(node, async move {
            let engine = start_engine(&sim, store, env, options).await;
            let _ = yard.worker.set(engine.worker());
            serve(&engine, yard);
            let Some(fleet) = fleet.upgrade() else { return };
            let mut cast = locked(&fleet.cast);
            cast.starting.remove(&node);
            cast.workers.push(Worker { node, link, engine });
        });
    }

    // Clients talk to an engine that serves nothing; it does not die, but its calls fail as others.
    async fn start_client(self: &Arc<Self>, rng: &mut Rng) -> (Engine, NodeId) {
        let node = self.node();
        let (store, _) = self.faulty.connect(node);
        let env = SimEnv::new(self.sim.clone(), node, rng.fork());
        let options = Options { background: false, ..self.options.clone() };
        (start_engine(&self.sim, store, env, options).await, node)
    }

    // A run that is also started on a worker, which may hold it from the start and die with it.
    fn start_eagerly(self: &Arc<Self>, told: Arc<Mutex<Told>>, rng: &mut Rng) {
        let (fleet, wait_us, any) = (self.clone(), rng.range(1, 2_000_000), rng.next_u64());
        self.sim.spawn(NETWORK, async move {
            fleet.sim.sleep_us(wait_us).await;
            let (node, engine) = {
                let cast = locked(&fleet.cast);
                if cast.workers.is_empty() {
                    return;
                }
                let worker = &cast.workers[any as usize % cast.workers.len()];
                (worker.node, worker.engine.clone())
            };
            fleet.sim.spawn(node, async move {
                let (id, input) = {
                    let told = locked(&told);
                    (told.id.clone(), told.input.clone().expect("an order has an input"))
                };
                let workflow = steps::WorkflowRef::<Input, u64>::remote(&engine, WORKFLOW);
                let start = workflow.expect("a valid name").start(input).id(id);
                drop(engine);
                let _ = start.await;
            });
        });
    }

    fn wreak(self: &Arc<Self>, rng: &mut Rng) {
        let faults = self.faulty.faults();
        if rng.chance(faults.crash) {
            self.crash(rng, None);
        }
        if rng.chance(faults.freeze) {
            self.freeze(rng);
        }
        if rng.chance(faults.crash / 3) {
            self.drain(rng);
        }
        if rng.chance(200) {
            let cast = locked(&self.cast);
            cast.workers.iter().for_each(|worker| worker.engine.evict_all());
        }
        if rng.chance(faults.clock_forward) {
            self.sim.sometimes("clock jumped forward");
            self.faulty.clock().jump(rng.range(100_000, 8_000_000) as i64);
        }
        if rng.chance(faults.clock_back) {
            self.sim.sometimes("clock jumped back");
            self.faulty.clock().jump(-(rng.range(100_000, 8_000_000) as i64));
        }
    }

    // Kills a worker, this one or any; another process takes its place.
    fn crash(self: &Arc<Self>, rng: &mut Rng, node: Option<NodeId>) {
        let sim = self.sim.clone();
        let (node, link, engine) = {
            let mut cast = locked(&self.cast);
            let any = rng.next_u64() as usize;
            if let Some(node) = node
                && let Some(link) = cast.starting.remove(&node)
            {
                (node, link, None)
            } else {
                let place = match node {
                    Some(node) => cast.workers.iter().position(|worker| worker.node == node),
                    None => (!cast.workers.is_empty()).then(|| any % cast.workers.len()),
                };
                let Some(place) = place else { return };
                let Worker { node, link, engine } = cast.workers.remove(place);
                (node, link, Some(engine))
            }
        };
        sim.trace(format_args!("n{} crashes", node.0));
        sim.sometimes("node crashed");
        link.cut();
        sim.crash(node);
        drop(engine);
        self.replace(rng);
    }

    fn replace(self: &Arc<Self>, rng: &mut Rng) {
        let (fleet, mut rng) = (self.clone(), rng.fork());
        self.sim.spawn(NETWORK, async move {
            fleet.sim.sleep_us(rng.range(1_000, 4_000_000)).await;
            fleet.start_worker(&mut rng);
        });
    }

    // Stops a worker the polite way; another process takes its place.
    fn drain(self: &Arc<Self>, rng: &mut Rng) {
        let worker = {
            let mut cast = locked(&self.cast);
            if cast.workers.is_empty() {
                return;
            }
            let place = rng.below(cast.workers.len() as u64) as usize;
            cast.workers.remove(place)
        };
        self.sim.trace(format_args!("n{} drains", worker.node.0));
        let (sim, deadline) = (self.sim.clone(), Duration::from_millis(rng.below(3_000)));
        self.sim.spawn(worker.node, async move {
            let done = worker.engine.shutdown(deadline).await;
            sim.trace(format_args!("n{} is drained: {}", worker.node.0, done.is_ok()));
            sim.sometimes("node was drained");
            worker.link.cut();
            sim.crash(worker.node);
        });
        self.replace(rng);
    }

    fn freeze(&self, rng: &mut Rng) {
        let node = {
            let cast = locked(&self.cast);
            if cast.workers.is_empty() {
                return;
            }
            cast.workers[rng.below(cast.workers.len() as u64) as usize].node
        };
        self.sim.trace(format_args!("n{} freezes", node.0));
        self.sim.freeze(node);
        let (sim, us) = (self.sim.clone(), rng.range(200_000, 9_000_000));
        self.sim.spawn(NETWORK, async move {
            sim.sleep_us(us).await;
            sim.trace(format_args!("n{} thaws", node.0));
            sim.sometimes("node came back from a stall");
            sim.thaw(node);
        });
    }

    // No more faults: every run must end, for its clients ask for nothing else.
    async fn heal(self: &Arc<Self>, rng: &mut Rng, orders: &Orders) {
        self.sim.trace(format_args!("heals"));
        // Wake-ups are hints: in half of the worlds none arrives any more.
        let wake_dropped = if rng.chance(500) { 1_000 } else { 0 };
        self.faulty.set_faults(Faults { wake_dropped, ..Faults::none() });
        self.start_worker(rng);
        let begun_us = self.sim.now_us();
        loop {
            self.sim.sleep_us(500_000).await;
            let store = self.faulty.inner();
            let runs = self.checker.runs(store);
            let moving: Vec<_> = runs.iter().filter(|run| !run.status.is_ended()).collect();
            let tasks = self.checker.tasks(store, None).len();
            let waiting = told(orders).iter().filter(|told| told.ended.is_none()).count()
                + self.batons().iter().filter(|order| order.ended.is_none()).count();
            if moving.is_empty() && tasks == 0 && waiting == 0 {
                return;
            }
            if self.sim.now_us() - begun_us > HEAL_US_MAX {
                let paused = moving.iter().any(|run| self.checker.rest(store, run) == Rest::Paused);
                let what = moving.first().map(|run| self.checker.describe(store, run));
                let detail = format!(
                    "{} runs still move (paused: {paused}), {tasks} tasks, {waiting} clients wait: \
                     {what:?}",
                    moving.len()
                );
                self.checker
                    .fail("30 after healing every run ends or waits for what it declared", detail);
                std::future::pending::<()>().await;
            }
        }
    }
}

async fn start_engine(
    sim: &Handle,
    store: Arc<dyn Store>,
    env: Arc<SimEnv>,
    options: Options,
) -> Engine {
    loop {
        let started = Engine::start(store.clone(), env.clone(), options.clone()).await;
        match started {
            Ok(engine) => return engine,
            Err(error) => {
                let store_error =
                    matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable);
                assert!(store_error, "an engine does not start: {error}");
                sim.sleep_us(100_000).await;
            }
        }
    }
}

fn serve(engine: &Engine, yard: Arc<Yard>) {
    for name in [WORKFLOW, BRIEF] {
        let own = yard.clone();
        let workflow = move |ctx, input: Input| program::run(own.clone(), ctx, input);
        steps::register(engine, name, workflow).expect("the workflow is registered once");
    }
    let (runner, hook) = (relay::Runner(yard.clone()), relay::Hook(yard.clone()));
    WorkflowRuntime::builder(engine, runner, hook)
        .name(RELAY)
        .backoff(Duration::from_millis(300), Duration::from_secs(2))
        .build()
        .expect("the relay is registered once");
    mill::serve(engine);
    steps::serve_activity(engine, "default", ACTIVITY, move |context, labour: Labour| {
        let yard = yard.clone();
        async move {
            yard.work().await;
            let fails = context.attempt <= labour.fails;
            if fails { Err("it fails") } else { Ok(step_value(&labour.key)) }
        }
    })
    .expect("the activity is registered once");
}
