//! One simulation: real engines run random workflows on the faulty store. Workers crash, stall and
//! drain, and clients interfere. Then the faults stop, and the checker audits the store.

pub(crate) mod agent;
pub(crate) mod client;
pub(crate) mod machine;
pub(crate) mod program;
pub(crate) mod relay;
pub(crate) mod request;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use windlass_engine::{Engine, Options};
use windlass_kernel::{
    Error, ErrorKind, Namespace, Record, RecordKey, RunKey, StepKey, Store, TaskId, WorkerKey,
};
use windlass_models::AnyError;
use windlass_models::relays::{self, RunOutcome};
use windlass_models::steps;

use super::bugs::Bugs;
use super::check::relays::Hooked;
use super::check::{Checker, Rest, Violation};
use super::env::SimEnv;
use super::executor::{Executor, Handle, NETWORK, NodeId, Stuck, locked};
use super::faults::{Faults, PlantedBug};
use super::points::Reached;
use super::rng::Rng;
use super::store::{FaultyStore, Link, SkewedClock};
use super::trace::Trace;
use agent::Outside;
use client::{Client, ClientView};
use program::{ACTIVITY, ActivityInput, BRIEF, Input, WORKFLOW, step_value};
use relay::{Order, RELAY};
use request::Accepted;

// A simulation that makes progress needs fewer polls.
const STEPS_MAX: u64 = 3_000_000;
const HEAL_US_MAX: u64 = 300_000_000;

/// The outcome of one seed.
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The first invariant that did not hold.
    pub failure: Option<Violation>,
    /// The events of the simulation, in order.
    pub trace: Trace,
    /// The points that were reached.
    pub reached: Reached,
}

/// The tenants of a simulated world.
pub(crate) fn namespaces() -> [Namespace; 2] {
    [Namespace::default_namespace(), Namespace::from_stored("west")]
}

/// Runs one seed of the fleet, with a planted bug or without.
pub fn run_seed(seed: u64, bug: Option<PlantedBug>) -> Report {
    let mut rng = Rng::new(seed ^ 0xF1EE_7000);
    let mut executor = Executor::new(rng.next_u64());
    let sim = executor.handle();
    let checker = Arc::new(Checker::new(sim.clone(), namespaces().into()));
    let clock = SkewedClock::new(sim.clone(), rng.below(20_000_000) as i64);
    let bugs = Bugs::new(bug, rng.fork());
    let faulty = FaultyStore::new(&sim, clock, &mut rng, bugs, checker.clone());
    let fleet = Arc::new(Fleet {
        patient: rng.chance(800),
        options: options(&mut rng),
        sim,
        faulty: faulty.clone(),
        checker: checker.clone(),
        bug,
        nodes: Mutex::new(Nodes::default()),
        intents: Mutex::default(),
        relays: Mutex::new(Rng::new(seed ^ 0xBA70_0000)),
        machines: Mutex::new(Rng::new(seed ^ 0x3111_0000)),
        tenants: Mutex::new(Rng::new(seed ^ 0x7E4A_0000)),
        requests: Mutex::new(Rng::new(seed ^ 0x0A5C_0000)),
        agents: Mutex::new(Rng::new(seed ^ 0xA6E7_0000)),
        outside: Mutex::default(),
        accepted: Accepted::default(),
        relay_orders: Mutex::default(),
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
            let (relay_orders, hooked) = (fleet.relay_orders(), locked(&fleet.hooked));
            let relays = (&relay_orders[..], &*hooked);
            let accepted = locked(&fleet.accepted).clone();
            let may_give_up = !fleet.patient;
            checker.audit_fleet(faulty.inner(), &views(&orders), relays, &accepted, may_give_up);
        }
        Err(Stuck::Stopped) => {}
        Err(stuck) => checker.fail("30 the world comes to rest", format!("{stuck:?}")),
    }
    // Breaks the cycle of engines, their store and its listeners.
    locked(&fleet.nodes).workers.clear();
    drop(faulty.inner().close());
    let (trace, reached) = executor.finish();
    Report { seed, failure: checker.failure(), trace, reached }
}

type Orders = Arc<Mutex<Vec<Arc<Mutex<ClientView>>>>>;

fn views(orders: &Orders) -> Vec<ClientView> {
    locked(orders).iter().map(|view| locked(view).clone()).collect()
}

// Small limits and no cache reach more branches of the engine.
fn options(rng: &mut Rng) -> Options {
    Options {
        worker_name: "sim".into(),
        models: windlass_models::MODELS.to_vec(),
        shared: true,
        lease: Duration::from_secs(3),
        renew_every: Duration::from_millis(rng.range(300, 1_000)),
        scan_every: Duration::from_millis(rng.range(500, 3_000)),
        turns_max: if rng.chance(300) { rng.range(1, 4) as usize } else { 100 },
        tasks_max: if rng.chance(300) { rng.range(1, 3) as usize } else { 100 },
        claim_max: if rng.chance(300) { rng.range(1, 3) as u32 } else { 100 },
        run_cache_bytes_max: if rng.chance(300) { 0 } else { 1 << 20 },
        blocked_retry: Duration::from_secs(2),
        // The shortest policy of `brief_runs` is four times as long.
        create_resend_max: Duration::from_millis(250),
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
struct Nodes {
    nodes: u32,
    workers: Vec<Worker>,
    // Nodes that are starting. They can crash before they are workers.
    starting: BTreeMap<NodeId, Arc<Link>>,
}

struct Fleet {
    sim: Handle,
    faulty: FaultyStore,
    checker: Arc<Checker>,
    options: Options,
    // Whether the reaper may take a turn from dead workers without a limit.
    patient: bool,
    bug: Option<PlantedBug>,
    nodes: Mutex<Nodes>,
    // Attempts with an intent: whether a body has begun since the probe was last called.
    intents: Mutex<BTreeMap<(RunKey, String, u32), bool>>,
    // Generators of their own, so that relays, machines, tenants, requests and agents do not change the rest of a
    // seed.
    relays: Mutex<Rng>,
    machines: Mutex<Rng>,
    tenants: Mutex<Rng>,
    requests: Mutex<Rng>,
    agents: Mutex<Rng>,
    // What the tools of agents have done.
    outside: Mutex<Outside>,
    // The decisions that people were told are written.
    accepted: Accepted,
    // The views of clients on runs of relays, and the calls of hooks.
    relay_orders: Mutex<Vec<Arc<Mutex<Order>>>>,
    hooked: Mutex<Hooked>,
}

/// The part of the simulation that user code on one node can reach.
pub(crate) struct NodeContext {
    fleet: std::sync::Weak<Fleet>,
    sim: Handle,
    node: NodeId,
    worker: OnceLock<WorkerKey>,
    /// The records, as this node reads them.
    store: Arc<dyn Store>,
    rng: Mutex<Rng>,
    unstable: bool,
    blind: bool,
}

impl NodeContext {
    /// Reads a record. The call can fail like every other.
    pub(crate) async fn record(&self, key: RecordKey) -> Result<Option<Record>, Error> {
        Ok(self.store.records(vec![key]).await?.pop().flatten())
    }

    /// The body of a step begins.
    ///
    /// With an intent, a second run of the same attempt must call the probe first, unless its worker
    /// has lost the run and does not know it yet.
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

    /// The probe of an intent is called.
    pub(crate) fn probed(&self, run_key: RunKey, key: &str, attempt: u32) {
        if let Some(fleet) = self.fleet.upgrade() {
            fleet.sim.sometimes("probe of an intent was asked");
            locked(&fleet.intents).insert((run_key, key.to_owned(), attempt), false);
        }
    }

    /// Takes time as user code does: sometimes longer than a lease, and sometimes the process freezes.
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

    /// A hook receives the end of a run.
    pub(crate) fn hooked(&self, outcome: &RunOutcome) {
        let Some(fleet) = self.fleet.upgrade() else { return };
        fleet.sim.sometimes("hook received the end of a run");
        if let Ok(id) = outcome.id.parse() {
            fleet.checker.effect(TaskId(id));
        }
        let view = (outcome.id.clone(), outcome.status);
        locked(&fleet.hooked).entry(outcome.run_key).or_default().push(view);
    }

    /// Sleeps in virtual time.
    pub(crate) async fn linger(&self, us: u64) {
        self.sim.sleep_us(us).await;
    }

    /// Counts a point that must be reached.
    pub(crate) fn sometimes(&self, point: &'static str) {
        self.sim.sometimes(point);
    }

    /// Reports a violation from user code.
    pub(crate) fn wrong(&self, what: &str) {
        if let Some(fleet) = self.fleet.upgrade() {
            fleet.checker.fail("1 a completed step never executes again", what.to_owned());
        }
    }

    /// A random bool.
    pub(crate) fn coin(&self) -> bool {
        locked(&self.rng).chance(500)
    }

    /// The step key of an action.
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
        // An engine learns with its next renewal that the store's clock was set back. Until then its
        // timers may be early on that clock. The other seeds are strict about timers.
        if rng.chance(700) {
            faults.clock_back = 0;
        } else {
            self.checker.let_timers_be_early();
        }
        self.faulty.set_faults(faults);
        for number in 0..rng.range(2, 6) {
            let input = Input { seed: rng.next_u64(), depth: 1, events: true };
            let [namespace, _] = namespaces();
            let view = ClientView::new(namespace, format!("run-{number}"), Some(input));
            let view = Arc::new(Mutex::new(view));
            locked(&orders).push(view.clone());
            if rng.chance(400) {
                self.start_eagerly(view.clone(), &mut rng);
            }
            let (sim, engine) = (self.sim.clone(), engine.clone());
            let client = Client { sim, node, engine, view, rng: rng.fork() };
            self.sim.spawn(node, client.run_to_end());
        }
        self.order_relays(&engine, node);
        self.order_machines(&engine, node, &orders).await;
        self.order_of_tenant(&engine, node, &orders);
        self.order_requests(&engine, node, &orders);
        self.order_agents(&engine, node, &orders);
        if rng.chance(400) {
            let brief = client::brief_runs(self.sim.clone(), engine.clone(), rng.fork());
            self.sim.spawn(node, brief);
        }
        let mut chaos = rng.fork();
        for _ in 0..rng.range(3, 12) {
            self.sim.sleep_us(chaos.range(100_000, 2_000_000)).await;
            self.inject_faults(&mut chaos);
        }
        self.heal(&mut rng, &orders).await;
    }

    fn order_relays(&self, engine: &Engine, node: NodeId) {
        let mut rng = locked(&self.relays);
        let count = if rng.chance(600) { rng.range(1, 3) } else { 0 };
        for number in 0..count {
            let (id, seed) = (format!("relay-{number}"), rng.next_u64());
            let order = Arc::new(Mutex::new(Order {
                id,
                seed,
                cancelled: false,
                answered: None,
                ended: None,
            }));
            locked(&self.relay_orders).push(order.clone());
            let (sim, engine) = (self.sim.clone(), engine.clone());
            let client = relay::run_to_end(sim, node, engine, order, rng.fork());
            self.sim.spawn(node, client);
        }
    }

    async fn order_machines(&self, engine: &Engine, node: NodeId, orders: &Orders) {
        let mut rng = locked(&self.machines).fork();
        let count = if rng.chance(600) { rng.range(1, 4) } else { 0 };
        if count > 0 && rng.chance(500) {
            // Set before the first task: a lower limit does not end what is under way.
            let slots = Some(rng.range(1, 2) as u32);
            let set = client::until_answered(&self.sim, || engine.set_limit(machine::LIMIT, slots));
            set.await.expect("the limit is valid");
        }
        for number in 0..count {
            let (id, seed) = (format!("machine-{number}"), rng.next_u64());
            let [namespace, _] = namespaces();
            let view = Arc::new(Mutex::new(ClientView::new(namespace, id, None)));
            locked(orders).push(view.clone());
            let (sim, engine) = (self.sim.clone(), engine.clone());
            let client = machine::run_to_end(sim, node, engine, (view, seed), rng.fork());
            self.sim.spawn(node, client);
        }
    }

    // Another tenant has a run with a name that is taken in the default namespace.
    fn order_of_tenant(&self, engine: &Engine, node: NodeId, orders: &Orders) {
        let mut rng = locked(&self.tenants);
        if !rng.chance(400) {
            return;
        }
        let [_, namespace] = namespaces();
        let engine = engine.in_namespace(namespace.clone());
        let input = Input { seed: rng.next_u64(), depth: 1, events: true };
        let view = ClientView::new(namespace, "run-0".to_owned(), Some(input));
        let view = Arc::new(Mutex::new(view));
        locked(orders).push(view.clone());
        let client = Client { sim: self.sim.clone(), node, engine, view, rng: rng.fork() };
        self.sim.spawn(node, client.run_to_end());
    }

    fn order_requests(&self, engine: &Engine, node: NodeId, orders: &Orders) {
        let mut rng = locked(&self.requests);
        let count = if rng.chance(600) { rng.range(1, 3) } else { 0 };
        for number in 0..count {
            let [namespace, _] = namespaces();
            let view = ClientView::new(namespace, format!("ask-{number}"), None);
            let view = Arc::new(Mutex::new(view));
            locked(orders).push(view.clone());
            let (sim, engine, accepted) = (self.sim.clone(), engine.clone(), self.accepted.clone());
            let client = request::run_to_end(sim, node, engine, (view, accepted), rng.fork());
            self.sim.spawn(node, client);
        }
    }

    fn order_agents(&self, engine: &Engine, node: NodeId, orders: &Orders) {
        let mut rng = locked(&self.agents);
        let count = if rng.chance(600) { rng.range(1, 3) } else { 0 };
        for number in 0..count {
            let [namespace, _] = namespaces();
            let view = ClientView::new(namespace, format!("agent-{number}"), None);
            let view = Arc::new(Mutex::new(view));
            locked(orders).push(view.clone());
            let (sim, engine, accepted) = (self.sim.clone(), engine.clone(), self.accepted.clone());
            let order = (view, accepted, rng.next_u64());
            let client = agent::run_to_end(sim, node, engine, order, rng.fork());
            self.sim.spawn(node, client);
        }
    }

    fn relay_orders(&self) -> Vec<Order> {
        locked(&self.relay_orders).iter().map(|order| locked(order).clone()).collect()
    }

    fn node(&self) -> NodeId {
        let mut nodes = locked(&self.nodes);
        nodes.nodes += 1;
        NodeId(NETWORK.0 + nodes.nodes)
    }

    // Starts a process. Its engine retries while the store does not answer.
    fn start_worker(self: &Arc<Self>, rng: &mut Rng) {
        let node = self.node();
        let (store, link) = self.faulty.connect(node);
        locked(&self.nodes).starting.insert(node, link.clone());
        self.sim.trace(format_args!("n{} starts", node.0));
        let env = SimEnv::new(self.sim.clone(), node, rng.fork());
        if self.bug == Some(PlantedBug::FastClock) {
            env.set_rate(2_000);
        }
        let node_context = Arc::new(NodeContext {
            fleet: Arc::downgrade(self),
            sim: self.sim.clone(),
            node,
            worker: OnceLock::new(),
            store: store.clone(),
            rng: Mutex::new(rng.fork()),
            unstable: self.bug == Some(PlantedBug::UnstableCode),
            blind: self.bug == Some(PlantedBug::BlindProbe),
        });
        let mut options = self.options.clone();
        options.reclaims_max = if self.patient { 1_000 } else { 3 };
        let fleet = Arc::downgrade(self);
        let sim = self.sim.clone();
        self.sim.spawn(node, async move {
            let engine = start_engine(&sim, store, env, options).await;
            let _ = node_context.worker.set(engine.worker());
            serve(&engine, node_context);
            let Some(fleet) = fleet.upgrade() else { return };
            let mut nodes = locked(&fleet.nodes);
            nodes.starting.remove(&node);
            nodes.workers.push(Worker { node, link, engine });
        });
    }

    // Clients use an engine that serves nothing. It never crashes, but its calls can fail.
    async fn start_client(self: &Arc<Self>, rng: &mut Rng) -> (Engine, NodeId) {
        let node = self.node();
        let (store, _) = self.faulty.connect(node);
        let env = SimEnv::new(self.sim.clone(), node, rng.fork());
        let options = Options { background: false, ..self.options.clone() };
        (start_engine(&self.sim, store, env, options).await, node)
    }

    // Starts the run on a worker too. The worker may hold it from the start and crash with it.
    fn start_eagerly(self: &Arc<Self>, view: Arc<Mutex<ClientView>>, rng: &mut Rng) {
        let (fleet, wait_us, any) = (self.clone(), rng.range(1, 2_000_000), rng.next_u64());
        self.sim.spawn(NETWORK, async move {
            fleet.sim.sleep_us(wait_us).await;
            let (node, engine) = {
                let nodes = locked(&fleet.nodes);
                if nodes.workers.is_empty() {
                    return;
                }
                let worker = &nodes.workers[any as usize % nodes.workers.len()];
                (worker.node, worker.engine.clone())
            };
            fleet.sim.spawn(node, async move {
                let (id, input) = {
                    let view = locked(&view);
                    (view.id.clone(), view.input.clone().expect("an order has an input"))
                };
                let workflow = steps::remote::<Input, u64>(&engine, WORKFLOW);
                let start = workflow.expect("a valid name").start(input).id(id);
                drop(engine);
                let _ = start.await;
            });
        });
    }

    fn inject_faults(self: &Arc<Self>, rng: &mut Rng) {
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
            let nodes = locked(&self.nodes);
            nodes.workers.iter().for_each(|worker| worker.engine.evict_all());
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

    // Kills the given worker or a random one. Another process replaces it.
    fn crash(self: &Arc<Self>, rng: &mut Rng, node: Option<NodeId>) {
        let sim = self.sim.clone();
        let (node, link, engine) = {
            let mut nodes = locked(&self.nodes);
            let any = rng.next_u64() as usize;
            if let Some(node) = node
                && let Some(link) = nodes.starting.remove(&node)
            {
                (node, link, None)
            } else {
                let place = match node {
                    Some(node) => nodes.workers.iter().position(|worker| worker.node == node),
                    None => (!nodes.workers.is_empty()).then(|| any % nodes.workers.len()),
                };
                let Some(place) = place else { return };
                let Worker { node, link, engine } = nodes.workers.remove(place);
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

    // Drains a random worker. Another process replaces it.
    fn drain(self: &Arc<Self>, rng: &mut Rng) {
        let worker = {
            let mut nodes = locked(&self.nodes);
            if nodes.workers.is_empty() {
                return;
            }
            let place = rng.below(nodes.workers.len() as u64) as usize;
            nodes.workers.remove(place)
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
            let nodes = locked(&self.nodes);
            if nodes.workers.is_empty() {
                return;
            }
            nodes.workers[rng.below(nodes.workers.len() as u64) as usize].node
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

    // Stops all faults. Now every run must end.
    async fn heal(self: &Arc<Self>, rng: &mut Rng, orders: &Orders) {
        self.sim.trace(format_args!("heals"));
        // Wake-ups are hints: in half of the seeds no wake-up arrives any more.
        let wake_dropped = if rng.chance(500) { 1_000 } else { 0 };
        self.faulty.set_faults(Faults { wake_dropped, ..Faults::none() });
        self.start_worker(rng);
        let begun_us = self.sim.now_us();
        loop {
            self.sim.sleep_us(500_000).await;
            let store = self.faulty.inner();
            let runs = self.checker.runs(store);
            let moving: Vec<_> = runs.iter().filter(|run| !run.status.is_ended()).collect();
            let tasks = self.checker.open_tasks(store).len();
            let waiting = views(orders).iter().filter(|view| view.ended.is_none()).count()
                + self.relay_orders().iter().filter(|order| order.ended.is_none()).count();
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

fn serve(engine: &Engine, node_context: Arc<NodeContext>) {
    for name in [WORKFLOW, BRIEF] {
        let own = node_context.clone();
        let workflow = move |ctx, input: Input| program::run(own.clone(), ctx, input);
        steps::register(engine, name, workflow).expect("the workflow is registered once");
    }
    let asks = |ctx, ask: request::Ask| request::run(ctx, ask);
    steps::register(engine, request::ASK, asks).expect("the workflow is registered once");
    let (runner, hook) = (relay::Runner(node_context.clone()), relay::Hook(node_context.clone()));
    relays::relay(engine, RELAY, runner, hook)
        .backoff(Duration::from_millis(300), Duration::from_secs(2))
        .build()
        .expect("the relay is registered once");
    machine::serve(engine);
    agent::serve(engine, &node_context);
    steps::serve_activity(engine, "default", ACTIVITY, move |context, labour: ActivityInput| {
        let node_context = node_context.clone();
        async move {
            node_context.work().await;
            let fails = context.attempt <= labour.fails;
            if fails { Err(AnyError::msg("it fails")) } else { Ok(step_value(&labour.key)) }
        }
    })
    .expect("the activity is registered once");
}
