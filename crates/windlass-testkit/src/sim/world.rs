//! A whole run of one seed: workers, clients and chaos first, then healing, then the audit.

use std::sync::{Arc, Mutex};

use windlass_kernel::{LimitKey, Namespace, RunId, Store};

use super::bugs::Bugs;
use super::check::{Checker, Rest, Violation};
use super::driver::{Client, LIMIT, Order, Worker, World};
use super::executor::{Executor, NETWORK, NodeId, Stuck, locked};
use super::faults::{Faults, PlantedBug};
use super::points::Reached;
use super::rng::Rng;
use super::store::{FaultyStore, Link, SkewedClock};
use super::trace::Trace;

// More polls than any run needs that makes progress.
const STEPS_MAX: u64 = 1_000_000;
const HEAL_US_MAX: u64 = 400_000_000;

/// What became of one run of a seed.
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The first invariant that did not hold.
    pub failure: Option<Violation>,
    /// What happened.
    pub trace: Trace,
    /// The points that were reached.
    pub reached: Reached,
}

/// Runs one seed, with a planted bug or without.
pub fn run_seed(seed: u64, bug: Option<PlantedBug>) -> Report {
    let mut rng = Rng::new(seed);
    let mut executor = Executor::new(rng.next_u64());
    let sim = executor.handle();
    let namespaces: Vec<Namespace> =
        ["east", "west"].map(|name| Namespace::new(name).expect("a valid name")).into();
    let checker = Arc::new(Checker::new(sim.clone(), namespaces.clone()));
    let clock = SkewedClock::new(sim.clone(), rng.below(20_000_000) as i64);
    let bugs = Bugs::new(bug, rng.fork());
    let faulty = FaultyStore::new(&sim, clock, &mut rng, bugs, checker.clone());
    let world = World { sim, faulty: faulty.clone(), checker: checker.clone(), bug };
    let stage = Arc::new(Scenario { world, namespaces, cast: Mutex::new(Cast::default()) });
    let (weak, deaths) = (Arc::downgrade(&stage), Mutex::new(rng.fork()));
    faulty.set_killer(Arc::new(move |node| {
        if let Some(stage) = weak.upgrade() {
            stage.crash(&mut locked(&deaths), Some(node));
        }
    }));
    let result = executor.block_on(STEPS_MAX, stage.play(rng));
    match result {
        Ok(()) => checker.audit(faulty.inner()),
        Err(Stuck::Stopped) => {}
        Err(stuck) => checker.fail("30 the world comes to rest", format!("{stuck:?}")),
    }
    // The listeners of the store would keep it alive, and it them.
    drop(faulty.inner().close());
    let (trace, reached) = executor.finish();
    Report { seed, failure: checker.failure(), trace, reached }
}

#[derive(Default)]
struct Cast {
    nodes: u32,
    workers: Vec<(NodeId, Arc<Link>, Arc<Worker>)>,
}

struct Scenario {
    world: World,
    namespaces: Vec<Namespace>,
    cast: Mutex<Cast>,
}

impl Scenario {
    async fn play(self: Arc<Self>, mut rng: Rng) {
        let sim = self.world.sim.clone();
        let setup = self.client(&mut rng).1;
        for namespace in &self.namespaces {
            let slots = Some(rng.range(1, 2) as u32);
            let key = LimitKey::new(LIMIT).expect("a valid key");
            let _ = setup.set_limit(namespace.clone(), key, slots).await;
        }
        for _ in 0..rng.range(2, 3) {
            self.start_worker(&mut rng);
        }
        self.world.faulty.set_faults(Faults::swarm(&mut rng));
        let open = self.start_clients(&mut rng);
        let mut chaos = rng.fork();
        for _ in 0..rng.range(4, 14) {
            sim.sleep_us(chaos.range(100_000, 2_500_000)).await;
            self.wreak(&mut chaos);
        }
        for _ in 0..60 {
            if *locked(&open) == 0 {
                break;
            }
            sim.sleep_us(500_000).await;
        }
        self.heal(&mut rng, &open).await;
    }

    fn node(&self) -> NodeId {
        let mut cast = locked(&self.cast);
        cast.nodes += 1;
        NodeId(NETWORK.0 + cast.nodes)
    }

    fn start_worker(&self, rng: &mut Rng) {
        let node = self.node();
        let (store, link) = self.world.faulty.connect(node);
        let worker = Worker::start(self.world.clone(), store, node, rng);
        self.world.sim.trace(format_args!("n{} starts", node.0));
        locked(&self.cast).workers.push((node, link, worker));
    }

    fn client(&self, rng: &mut Rng) -> (Arc<Client>, Arc<dyn Store>, NodeId) {
        let node = self.node();
        let (store, _) = self.world.faulty.connect(node);
        let client = Client::new(self.world.clone(), store.clone(), rng);
        (Arc::new(client), store, node)
    }

    // Both tenants use the same ids.
    fn start_clients(self: &Arc<Self>, rng: &mut Rng) -> Arc<Mutex<u32>> {
        let open = Arc::new(Mutex::new(0));
        for number in 0..rng.range(2, 5) {
            for namespace in &self.namespaces {
                let (client, _, node) = self.client(rng);
                let id = RunId::new(format!("run-{}", "x".repeat(number as usize)));
                let id = id.expect("a valid id");
                let seed = rng.next_u64() as u32;
                let order = Order { namespace: namespace.clone(), id, seed };
                let eager = rng.chance(300).then(|| {
                    let cast = locked(&self.cast);
                    let (node, _, worker) = &cast.workers[seed as usize % cast.workers.len()];
                    (*node, worker.clone())
                });
                // An eager create lives and dies with its worker's process.
                let counted = eager.is_none();
                let (node, worker) = eager.map_or((node, None), |(node, w)| (node, Some(w)));
                *locked(&open) += u32::from(counted);
                let open = open.clone();
                self.world.sim.spawn(node, async move {
                    client.see_through(order, worker).await;
                    *locked(&open) -= u32::from(counted);
                });
            }
        }
        open
    }

    fn wreak(self: &Arc<Self>, rng: &mut Rng) {
        let faults = self.world.faulty.faults();
        let sim = &self.world.sim;
        let clock = self.world.faulty.clock();
        if rng.chance(faults.crash) {
            self.crash(rng, None);
        }
        if rng.chance(faults.freeze) {
            self.freeze(rng);
        }
        if rng.chance(faults.clock_forward) {
            sim.sometimes("clock jumped forward");
            clock.jump(rng.range(100_000, 15_000_000) as i64);
        }
        if rng.chance(faults.clock_back) {
            sim.sometimes("clock jumped back");
            clock.jump(-(rng.range(100_000, 8_000_000) as i64));
        }
    }

    // Kills a worker, this one or any; another process takes its place.
    fn crash(self: &Arc<Self>, rng: &mut Rng, node: Option<NodeId>) {
        let sim = self.world.sim.clone();
        let victim = {
            let mut cast = locked(&self.cast);
            if cast.workers.is_empty() {
                return;
            }
            let any = rng.below(cast.workers.len() as u64) as usize;
            let place = node
                .map_or(Some(any), |node| cast.workers.iter().position(|(own, ..)| *own == node));
            let Some(place) = place else { return };
            cast.workers.remove(place)
        };
        sim.trace(format_args!("n{} crashes", victim.0.0));
        sim.sometimes("node crashed");
        victim.1.cut();
        sim.crash(victim.0);
        let (stage, mut rng) = (self.clone(), rng.fork());
        sim.clone().spawn(NETWORK, async move {
            sim.sleep_us(rng.range(1_000, 4_000_000)).await;
            stage.start_worker(&mut rng);
        });
    }

    fn freeze(&self, rng: &mut Rng) {
        let sim = self.world.sim.clone();
        let node = {
            let cast = locked(&self.cast);
            if cast.workers.is_empty() {
                return;
            }
            cast.workers[rng.below(cast.workers.len() as u64) as usize].0
        };
        sim.trace(format_args!("n{} freezes", node.0));
        sim.freeze(node);
        let us = rng.range(200_000, 9_000_000);
        sim.clone().spawn(NETWORK, async move {
            sim.sleep_us(us).await;
            sim.trace(format_args!("n{} thaws", node.0));
            sim.sometimes("node came back from a stall");
            sim.thaw(node);
        });
    }

    // No more faults: everything must end, or wait for what it declared.
    async fn heal(self: &Arc<Self>, rng: &mut Rng, open: &Mutex<u32>) {
        let sim = self.world.sim.clone();
        sim.trace(format_args!("heals"));
        // Wake-ups are hints: in half of the worlds none arrives any more.
        let wake_dropped = if rng.chance(500) { 1_000 } else { 0 };
        self.world.faulty.set_faults(Faults { wake_dropped, ..Faults::none() });
        self.start_worker(rng);
        let (client, _, _) = self.client(rng);
        let begun_us = sim.now_us();
        loop {
            sim.sleep_us(500_000).await;
            let store = self.world.faulty.inner();
            let checker = &self.world.checker;
            let runs = checker.runs(store);
            let mut moving = Vec::new();
            for run in &runs {
                match checker.rest(store, run) {
                    Rest::Ended | Rest::Declared => {}
                    Rest::Paused => {
                        client.set_paused(run.run_key, false).await;
                        moving.push(run);
                    }
                    Rest::Moving => moving.push(run),
                }
            }
            if moving.is_empty() && checker.tasks(store, None).is_empty() && *locked(open) == 0 {
                return;
            }
            if sim.now_us() - begun_us > HEAL_US_MAX {
                let what = moving.first().map(|run| checker.describe(store, run));
                let detail = format!("{} runs still move: {what:?}", moving.len());
                checker
                    .fail("30 after healing every run ends or waits for what it declared", detail);
                std::future::pending::<()>().await;
            }
        }
    }
}
