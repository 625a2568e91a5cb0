//! A small worker over `Store` that does what the engine will do: renews, claims, loads, decides,
//! commits, resends what is unknown, promotes, reaps, and finds what it forgot.

mod client;
mod decide;
mod task;
mod turn;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use uuid::Uuid;
use windlass_kernel::{
    Body, ClaimOrder, ClaimRequest, Commit, CommitError, Committed, EventId, HeldItem, Hold,
    QueueName, Route, RouteName, RunKey, Sha256Digest, Stamp, Step, Store, Timestamp, Wakeup, Want,
    WorkerInfo, WorkerKey, WorkerStatus,
};

use super::check::Checker;
use super::executor::{Handle, NETWORK, NodeId, Signal, locked};
use super::faults::PlantedBug;
use super::rng::Rng;
use super::store::{FaultyStore, SkewedClock};

pub use client::{Client, Order};

/// How long a worker lives without renewing.
pub const LEASE: Duration = Duration::from_secs(3);
const RENEW_US: u64 = 900_000;
const SCAN_US: u64 = 1_000_000;
const SLOTS: u32 = 4;

/// The workflows of the simulated world.
pub const WORKFLOWS: [&str; 2] = ["alpha", "beta"];
/// The limit that some turns and tasks count against.
pub const LIMIT: &str = "narrow";

/// What every part of a simulated world shares.
#[derive(Clone)]
pub struct World {
    /// The executor.
    pub sim: Handle,
    /// The store, for those who only watch.
    pub faulty: FaultyStore,
    /// The checker.
    pub checker: Arc<Checker>,
    /// The bug that is planted, if one is.
    pub bug: Option<PlantedBug>,
}

impl World {
    /// Whether this bug is planted.
    pub fn has(&self, bug: PlantedBug) -> bool {
        bug.is(self.bug)
    }

    /// A key that is new in this world and sorts by the time it was made.
    pub fn key(&self) -> Uuid {
        let millis = 1_700_000_000_000 + u128::from(self.sim.now_us() / 1_000);
        let unique = u128::from(self.sim.unique());
        Uuid::from_u128(millis << 80 | 0x7 << 76 | 0x2 << 62 | unique)
    }

    /// The id and the time of an event.
    pub fn stamp(&self, at: Timestamp) -> Stamp {
        Stamp { event_id: EventId(self.key()), at }
    }

    /// Sends a commit until its outcome is known. `false` beside the result says that the answer
    /// to an earlier sending was lost.
    pub async fn commit(
        &self,
        store: &Arc<dyn Store>,
        commit: &Commit,
        rng: &Mutex<Rng>,
    ) -> Result<Committed, CommitError> {
        let mut unknown = false;
        loop {
            let result = store.commit(vec![commit.clone()]).await.pop();
            match result.expect("one answer for one commit") {
                Err(error) if error.is_retryable() => {
                    let lost = matches!(error, CommitError::Unknown(_));
                    if lost && self.has(PlantedBug::RunsAgainAfterUnknown) {
                        return Err(error);
                    }
                    unknown |= lost;
                    let wait_us = locked(rng).range(1_000, 400_000);
                    self.sim.sleep_us(wait_us).await;
                }
                result => {
                    if unknown && result.as_ref().is_ok_and(|done| !done.repeated) {
                        self.sim.sometimes("resend wrote it");
                    }
                    return result;
                }
            }
        }
    }
}

/// The output of a run: made of all that its steps gave, in the order of their keys.
pub fn fold<'a>(steps: impl Iterator<Item = &'a Step>) -> Body {
    let mut steps: Vec<&Step> = steps.filter(|step| step.status.is_settled()).collect();
    steps.sort_by(|a, b| a.step_key.cmp(&b.step_key));
    let result = |step: &&Step| step.result.as_ref().map(|body| body.bytes.to_vec());
    let parts: Vec<Vec<u8>> = steps.iter().map(|step| result(step).unwrap_or_default()).collect();
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Body::of(&Sha256Digest::of_parts(&parts)).expect("a digest is JSON")
}

struct Local {
    rng: Rng,
    held: BTreeSet<HeldItem>,
    // The latest time that the store told this worker: never ahead of the store's clock.
    now: Timestamp,
    next_due: Option<Timestamp>,
    may_reap: bool,
    scan: bool,
}

/// One worker process.
pub struct Worker {
    world: World,
    store: Arc<dyn Store>,
    node: NodeId,
    key: WorkerKey,
    clock: SkewedClock,
    local: Mutex<Local>,
    // Draws of tasks that commit; apart from `local` so that it can be lent to `World::commit`.
    rng: Mutex<Rng>,
    wake: Signal,
}

fn routes(names: &[&str]) -> Vec<Route> {
    let route = |name: &&str| Route {
        queue: QueueName::default_queue(),
        name: RouteName::new(name).expect("a valid name"),
    };
    names.iter().map(route).collect()
}

impl Worker {
    /// Starts a worker on a node.
    pub fn start(world: World, store: Arc<dyn Store>, node: NodeId, rng: &mut Rng) -> Arc<Self> {
        let skew_us = rng.below(40_000_000) as i64 - 20_000_000;
        let clock = SkewedClock::new(world.sim.clone(), skew_us);
        let local = Local {
            rng: rng.fork(),
            held: BTreeSet::new(),
            now: Timestamp::ZERO,
            next_due: None,
            may_reap: false,
            scan: true,
        };
        let key = WorkerKey(world.key());
        let (local, rng) = (Mutex::new(local), Mutex::new(rng.fork()));
        let wake = Signal::default();
        let worker = Arc::new(Self { world, store, node, key, clock, local, rng, wake });
        worker.listen();
        let (sim, one, two) = (worker.world.sim.clone(), worker.clone(), worker.clone());
        sim.spawn(node, async move { one.renew_for_ever().await });
        sim.spawn(node, async move { two.serve_for_ever().await });
        worker
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        locked(&self.local)
    }

    fn saw(&self, now: Timestamp) {
        let mut local = self.local();
        local.now = local.now.max(now);
    }

    // The time by which this worker decides what is due.
    fn now(&self) -> Timestamp {
        if self.world.has(PlantedBug::TimerOnOwnClock) {
            self.clock.now()
        } else {
            self.local().now
        }
    }

    fn listen(self: &Arc<Self>) {
        let worker = Arc::downgrade(self);
        self.store.listen(Arc::new(move |wakeup| {
            let Some(worker) = worker.upgrade() else { return };
            if let Wakeup::Due(at) = wakeup {
                let mut local = worker.local();
                local.next_due = Some(local.next_due.map_or(at, |due| due.min(at)));
            }
            worker.wake.set();
        }));
    }

    async fn renew_for_ever(self: Arc<Self>) {
        let info = WorkerInfo {
            worker: self.key,
            name: "sim".into(),
            version: "1".into(),
            status: WorkerStatus::Active,
            lease: LEASE,
            turns: routes(&WORKFLOWS),
            tasks: routes(&["activity", "effect"]),
            slots: SLOTS * 2,
            note: None,
            load: 0,
            task_slots: 0,
            task_load: 0,
            tasks_completed: 0,
            tasks_failed: 0,
            tasks_took: Duration::ZERO,
            accepting: true,
            group: "sim".into(),
            host: "".into(),
        };
        loop {
            match self.store.renew(info.clone()).await {
                Ok(renewed) => {
                    self.saw(renewed.now);
                    {
                        let mut local = self.local();
                        local.may_reap = renewed.may_reap;
                        local.scan |= renewed.lapsed;
                    }
                    if renewed.lapsed {
                        self.world.sim.sometimes("worker lapsed");
                    }
                    self.world.sim.sleep_us(RENEW_US).await;
                }
                Err(_) => self.world.sim.sleep_us(RENEW_US / 4).await,
            }
        }
    }

    async fn serve_for_ever(self: Arc<Self>) {
        let mut scanned_us = 0;
        loop {
            let now_us = self.world.sim.now_us();
            let due = now_us.saturating_sub(scanned_us) >= SCAN_US;
            let asked = self.local().scan;
            if due || asked {
                scanned_us = now_us;
                self.find_forgotten().await;
                self.reap().await;
            }
            self.promote().await;
            if self.claim().await {
                continue;
            }
            let wait_us = self.wait_us();
            self.wake.wait_us(&self.world.sim, wait_us).await;
        }
    }

    // Until the next timer, or the next look at everything: no wake-up is needed for progress.
    fn wait_us(&self) -> u64 {
        let local = self.local();
        let due = local.next_due.map(|due| due.since(local.now).as_micros() as u64);
        due.unwrap_or(SCAN_US).clamp(1_000, SCAN_US)
    }

    async fn promote(&self) {
        if let Ok(promoted) = self.store.promote(50).await {
            self.saw(promoted.now);
            self.local().next_due = promoted.next_due;
        }
    }

    async fn reap(&self) {
        let (may, anyway) = {
            let mut local = self.local();
            (local.may_reap, local.rng.chance(100))
        };
        if may || anyway {
            let _ = self.store.reap(self.key, 50).await;
        }
    }

    async fn claim(self: &Arc<Self>) -> bool {
        let request = {
            let mut local = self.local();
            let turns = local.held.iter().filter(|i| matches!(i, HeldItem::Turn { .. })).count();
            let tasks = local.held.len() - turns;
            let room = |held: usize| SLOTS.saturating_sub(held as u32);
            let order =
                if local.rng.chance(125) { ClaimOrder::Oldest } else { ClaimOrder::Priority };
            let offer_ms = 50 * local.rng.below(2);
            ClaimRequest {
                worker: self.key,
                turns: Want { routes: routes(&WORKFLOWS), max: room(turns) },
                tasks: Want { routes: routes(&["activity", "effect"]), max: room(tasks) },
                order,
                offer: Duration::from_millis(offer_ms),
            }
        };
        if request.turns.max == 0 && request.tasks.max == 0 {
            return false;
        }
        let claims = match self.store.claim(request).await {
            Ok(claims) => claims,
            Err(_) => {
                self.local().scan = true;
                return false;
            }
        };
        self.saw(claims.now);
        let any = !claims.turns.is_empty() || !claims.tasks.is_empty();
        for turn in claims.turns {
            self.take_turn(turn.run_key, turn.hold);
        }
        for task in claims.tasks {
            self.take_task(task);
        }
        any
    }

    /// Drives a turn that this worker holds, unless it is driving it already.
    pub fn take_turn(self: &Arc<Self>, run_key: RunKey, hold: Hold) {
        let item = HeldItem::Turn { run_key, worker: hold.worker, claim_no: hold.claim_no };
        if !self.local().held.insert(item) {
            return;
        }
        let worker = self.clone();
        self.world.sim.spawn(self.node, async move {
            worker.drive(run_key, hold).await;
            worker.local().held.remove(&item);
            worker.wake.set();
        });
    }

    fn take_task(self: &Arc<Self>, task: windlass_kernel::Task) {
        let (task_id, claim_no) = (task.task_id, task.claim_no);
        let item = HeldItem::Task { task_id, worker: self.key, claim_no };
        if !self.local().held.insert(item) {
            return;
        }
        let worker = self.clone();
        self.world.sim.spawn(self.node, async move {
            worker.perform(task).await;
            worker.local().held.remove(&item);
            worker.wake.set();
        });
    }

    // What the store says this key holds and this process does not know: claimed under an answer
    // that was lost. A turn can be driven from its row; a task is given back.
    async fn find_forgotten(self: &Arc<Self>) {
        if self.world.has(PlantedBug::NeverAdopts) {
            self.local().scan = false;
            return;
        }
        let Ok(held) = self.store.held(self.key).await else { return };
        self.local().scan = false;
        let unknown: Vec<HeldItem> = {
            let local = self.local();
            held.into_iter().filter(|item| !local.held.contains(item)).collect()
        };
        let mut back = Vec::new();
        for item in unknown {
            let adopt = self.local().rng.chance(600);
            match item {
                HeldItem::Turn { run_key, worker, claim_no } if adopt => {
                    self.world.sim.sometimes("adopted a forgotten turn");
                    self.take_turn(run_key, Hold { worker, claim_no });
                }
                _ => back.push(item),
            }
        }
        if !back.is_empty() && self.store.release(back).await.is_ok_and(|count| count > 0) {
            self.world.sim.sometimes("released a forgotten hold");
        }
    }

    async fn give_back(&self, item: HeldItem) {
        if self.store.release(vec![item]).await.is_err() {
            self.local().scan = true;
        }
    }

    // How long user code takes: sometimes longer than a lease.
    async fn work(&self) {
        self.stall().await;
        let slow = self.world.faulty.faults().slow_body;
        let us = {
            let mut local = self.local();
            if local.rng.chance(slow) {
                local.rng.below(6_000_000)
            } else {
                local.rng.below(30_000)
            }
        };
        self.world.sim.sleep_us(us).await;
    }

    // The whole process may stop here and come back later, a zombie if that is after its lease.
    // Stalls at random moments mostly hit a worker that does nothing.
    async fn stall(&self) {
        let rate = self.world.faulty.faults().stall_at_work;
        let us = {
            let mut local = self.local();
            local.rng.chance(rate).then(|| local.rng.range(1_000_000, 12_000_000))
        };
        let Some(us) = us else { return };
        let (sim, node) = (self.world.sim.clone(), self.node);
        sim.trace(format_args!("n{} freezes at work", node.0));
        sim.freeze(node);
        self.world.sim.spawn(NETWORK, async move {
            sim.sleep_us(us).await;
            sim.sometimes("node came back from a stall");
            sim.thaw(node);
        });
        self.world.sim.sleep_us(1).await;
    }
}
