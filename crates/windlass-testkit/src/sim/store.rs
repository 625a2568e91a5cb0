//! A faulty store: the reference store behind a network that loses, delays and repeats.
//!
//! Every call is a packet of its own on the network's node, so it arrives even if its sender is
//! frozen or dead by then, and two calls of one sender can overtake each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::channel::oneshot;
use windlass_kernel::{
    Body, BodyKey, BoxFuture, BreakerRow, ClaimRequest, ClaimedTurn, Claims, Commit, CommitError,
    CommitResults, Committed, DeleteRemovedRecords, DeleteTrees, Deleted, DeletedRecords, Error,
    ErrorCode, ErrorKind, Health, Heartbeat, HeldItem, LimitKey, Limits, LoadSteps, Loaded,
    MemoryStore, Namespace, NamespaceStats, Promoted, Query, RateRow, Reaped, Record, RecordKey,
    Renewed, Rows, Run, RunId, RunKey, SettingName, Store, TaskId, TaskStat, Timestamp, WakeSink,
    Wakeup, WorkerInfo, WorkerKey, WorkflowName,
};

use super::bugs::Bugs;
use super::check::Checker;
use super::executor::{Handle, NETWORK, NodeId, locked};
use super::faults::Faults;
use super::rng::Rng;

/// When the virtual world begins.
const EPOCH_US: i64 = 1_700_000_000_000_000;

/// A clock that runs with virtual time, at an offset.
#[derive(Clone)]
pub struct SkewedClock {
    sim: Handle,
    skew_us: Arc<AtomicI64>,
}

impl SkewedClock {
    /// A clock that is this far ahead of virtual time.
    pub fn new(sim: Handle, skew_us: i64) -> Self {
        Self { sim, skew_us: Arc::new(AtomicI64::new(skew_us)) }
    }

    /// The time that it shows.
    pub fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.sim.now_us()).unwrap_or(i64::MAX);
        Timestamp::from_micros(EPOCH_US + elapsed + self.skew_us.load(Ordering::Relaxed))
    }

    /// Sets it forward, or back.
    pub fn jump(&self, us: i64) {
        self.skew_us.fetch_add(us, Ordering::Relaxed);
    }
}

/// The connection of one process to the store. A crash cuts it.
pub struct Link {
    node: NodeId,
    cut: AtomicBool,
}

impl Link {
    /// Cuts the connection: no answer and no wake-up arrives any more.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }
}

type Listeners = Arc<Mutex<BTreeMap<NodeId, (Arc<Link>, WakeSink)>>>;

struct Network {
    inner: MemoryStore,
    sim: Handle,
    clock: SkewedClock,
    faults: Arc<Mutex<Faults>>,
    rng: Arc<Mutex<Rng>>,
    bugs: Bugs,
    checker: Arc<Checker>,
    listeners: Listeners,
    killer: Mutex<Option<Killer>>,
    // The newest claim of a run that each node knows of.
    delivered: Mutex<BTreeMap<(NodeId, RunKey), u64>>,
}

/// Kills a node when the store asks for it.
pub type Killer = Arc<dyn Fn(NodeId) + Send + Sync>;

/// The store and the network before it.
#[derive(Clone)]
pub struct FaultyStore(Arc<Network>);

impl FaultyStore {
    /// An empty store. `checker` sees every call at the moment it takes effect.
    pub fn new(
        sim: &Handle,
        clock: SkewedClock,
        rng: &mut Rng,
        bugs: Bugs,
        checker: Arc<Checker>,
    ) -> Self {
        let told = clock.clone();
        let inner = MemoryStore::new(Arc::new(move || told.now()), Limits::DEFAULT);
        let faults = Arc::new(Mutex::new(Faults::none()));
        let listeners = Listeners::default();
        let wakes = Arc::new(Mutex::new(rng.fork()));
        inner.listen(wake_sink(sim.clone(), faults.clone(), wakes, listeners.clone()));
        let (sim, rng) = (sim.clone(), Arc::new(Mutex::new(rng.fork())));
        let killer = Mutex::new(None);
        Self(Arc::new(Network {
            inner,
            sim,
            clock,
            faults,
            rng,
            bugs,
            checker,
            listeners,
            killer,
            delivered: Mutex::default(),
        }))
    }

    /// Sets the function that kills the sender of a commit.
    pub fn set_killer(&self, killer: Killer) {
        *locked(&self.0.killer) = Some(killer);
    }

    /// Changes the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        *locked(&self.0.faults) = faults;
    }

    /// The newest claim of a run whose answer has reached a node.
    pub fn delivered(&self, node: NodeId, run_key: RunKey) -> Option<u64> {
        locked(&self.0.delivered).get(&(node, run_key)).copied()
    }

    /// Kills a node now.
    pub fn kill(&self, node: NodeId) {
        self.0.kill(node);
    }

    /// The faults of now.
    pub fn faults(&self) -> Faults {
        locked(&self.0.faults).clone()
    }

    /// The clock that the store reads. The store itself never runs backwards.
    pub fn clock(&self) -> &SkewedClock {
        &self.0.clock
    }

    /// The store itself, for checks that do not take part in the simulation.
    pub fn inner(&self) -> &MemoryStore {
        &self.0.inner
    }

    /// Connects a node to the store.
    pub fn connect(&self, node: NodeId) -> (Arc<NodeStore>, Arc<Link>) {
        let link = Arc::new(Link { node, cut: AtomicBool::new(false) });
        (Arc::new(NodeStore { network: self.0.clone(), link: link.clone() }), link)
    }
}

// Wake-ups are packets too: they can be lost, doubled, late and out of order.
fn wake_sink(
    sim: Handle,
    faults: Arc<Mutex<Faults>>,
    rng: Arc<Mutex<Rng>>,
    listeners: Listeners,
) -> WakeSink {
    Arc::new(move |wakeup: Wakeup| {
        let faults = locked(&faults).clone();
        let targets: Vec<_> = locked(&listeners).values().cloned().collect();
        for (link, sink) in targets {
            let mut rng = locked(&rng);
            if rng.chance(faults.wake_dropped) {
                sim.sometimes("wake-up dropped");
                continue;
            }
            let twice = rng.chance(faults.wake_doubled);
            if twice {
                sim.sometimes("wake-up duplicated");
            }
            for _ in 0..=u32::from(twice) {
                let slow = rng.chance(faults.wake_slow);
                let delay_us = if slow { rng.range(1_000, 4_000_000) } else { rng.below(3_000) };
                let (sim2, link, sink, wakeup) =
                    (sim.clone(), link.clone(), sink.clone(), wakeup.clone());
                sim.spawn(NETWORK, async move {
                    sim2.sleep_us(delay_us).await;
                    if !link.is_cut() {
                        sink(wakeup);
                    }
                });
            }
        }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Refused,
    LostBefore,
    LostAfter,
    Late,
}

struct Plan {
    fate: Fate,
    there_us: u64,
    back_us: u64,
}

impl Network {
    fn plan(&self) -> Plan {
        let faults = locked(&self.faults).clone();
        let mut rng = locked(&self.rng);
        let fates = [
            (faults.refused, Fate::Refused),
            (faults.lost_before, Fate::LostBefore),
            (faults.lost_after, Fate::LostAfter),
            (faults.late, Fate::Late),
        ];
        let mut fate = Fate::Fine;
        for (rate, worse) in fates {
            if rng.chance(rate) {
                fate = worse;
            }
        }
        let mut delay = || {
            let slow = rng.chance(faults.slow);
            if slow { rng.range(50_000, 5_000_000) } else { rng.below(8_000) }
        };
        Plan { fate, there_us: delay(), back_us: delay() }
    }

    /// The answer of a call that is ready as soon as it is asked, as the reference store's are.
    fn at_once<T>(&self, future: BoxFuture<'_, T>) -> T {
        future.now_or_never().expect("the reference store answers at once")
    }

    // Whether the sender of a commit dies just before it is written, or just after.
    fn draw_death(&self, name: &str) -> (bool, bool) {
        let rate = locked(&self.faults).crash_at_commit;
        let mut rng = locked(&self.rng);
        let dies = rng.chance(rate) && name == "commit";
        let before = rng.chance(500);
        (dies && before, dies && !before)
    }

    fn kill(&self, node: NodeId) {
        let killer = locked(&self.killer).clone();
        if let Some(killer) = killer {
            killer(node);
        }
    }

    fn commit_one(&self, commit: &Commit) -> Result<Committed, CommitError> {
        let before = self.checker.snapshot(&self.inner, commit);
        let result = self.bugs.commit(&self.inner, commit);
        self.checker.commit(&self.inner, commit, &before, &result);
        result
    }

    fn commit_all(&self, commits: &[Commit]) -> CommitResults {
        commits.iter().map(|commit| self.commit_one(commit)).collect()
    }
}

/// A store as one node sees it.
pub struct NodeStore {
    network: Arc<Network>,
    link: Arc<Link>,
}

fn lost(kind: ErrorKind) -> Error {
    match kind {
        ErrorKind::Unknown => {
            Error::new(kind, ErrorCode::Custom("SIM_ANSWER_LOST"), "the simulator lost the answer")
        }
        _ => Error::new(kind, ErrorCode::Custom("SIM_REFUSED"), "the simulator refused the call"),
    }
}

impl NodeStore {
    // Sends a call over the network. `apply` runs if the call arrives; `fail` makes the error of a call
    // that is lost, or whose answer is lost.
    fn send<T: Send + 'static>(
        &self,
        name: &'static str,
        apply: impl FnOnce(&Network) -> T + Send + 'static,
        fail: impl FnOnce(ErrorKind) -> T + Send + 'static,
        show: impl FnOnce(&T) -> String + Send + 'static,
    ) -> BoxFuture<'_, T> {
        let (network, link) = (self.network.clone(), self.link.clone());
        let sim = network.sim.clone();
        if link.is_cut() {
            return Box::pin(std::future::pending());
        }
        let plan = network.plan();
        let fate = plan.fate;
        let (answer, answered) = oneshot::channel();
        sim.clone().spawn(NETWORK, async move {
            let node = link.node.0;
            let apply = move |network: &Network| {
                let result = apply(network);
                network.sim.trace(format_args!("n{node} {name} {fate:?} {}", show(&result)));
                result
            };
            let open = link.clone();
            let reply = move |result: T| {
                if !open.is_cut() {
                    let _ = answer.send(result);
                }
            };
            carry(&network, &link, name, plan, apply, fail, reply).await;
        });
        Box::pin(async move {
            match answered.await {
                Ok(result) => result,
                // The link was cut: the caller waits for an answer that never comes.
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn ask<T: Send + 'static>(
        &self,
        name: &'static str,
        apply: impl FnOnce(&Network) -> Result<T, Error> + Send + 'static,
        show: impl FnOnce(&T) -> String + Send + 'static,
    ) -> BoxFuture<'_, Result<T, Error>> {
        let shown = move |result: &Result<T, Error>| match result {
            Ok(value) => show(value),
            Err(error) => error.code().as_str().to_owned(),
        };
        self.send(name, apply, |kind| Err(lost(kind)), shown)
    }
}

// One packet to the store, and its answer.
async fn carry<T>(
    network: &Network,
    link: &Link,
    name: &'static str,
    Plan { fate, there_us, back_us }: Plan,
    apply: impl FnOnce(&Network) -> T,
    fail: impl FnOnce(ErrorKind) -> T,
    reply: impl FnOnce(T),
) {
    let sim = &network.sim;
    sim.sleep_us(there_us).await;
    match fate {
        Fate::Fine => {
            let (dies_before, dies_after) = network.draw_death(name);
            if dies_before {
                network.kill(link.node);
            }
            let result = apply(network);
            if dies_after {
                network.kill(link.node);
            }
            sim.sleep_us(back_us).await;
            if link.is_cut() && name == "commit" {
                sim.sometimes("crash between commit and answer");
            }
            reply(result);
        }
        Fate::Refused => {
            sim.sometimes("store refused a call");
            reply(fail(ErrorKind::Unavailable));
        }
        Fate::LostBefore => {
            sim.sometimes("answer lost, nothing written");
            sim.sleep_us(back_us).await;
            reply(fail(ErrorKind::Unknown));
        }
        Fate::LostAfter => {
            apply(network);
            note_lost(sim, name);
            sim.sleep_us(back_us).await;
            reply(fail(ErrorKind::Unknown));
        }
        Fate::Late => {
            reply(fail(ErrorKind::Unknown));
            sim.sleep_us(back_us.saturating_mul(3)).await;
            if name == "commit" {
                sim.sometimes("commit arrived after its sender got an unknown outcome");
            }
            apply(network);
        }
    }
}

fn note_lost(sim: &Handle, name: &str) {
    match name {
        "commit" => sim.sometimes("commit answer lost after it was written"),
        "claim" => sim.sometimes("claim answer lost after it was written"),
        _ => {}
    }
}

/// The part of a key that differs most, for traces.
pub(crate) fn short(key: uuid::Uuid) -> u32 {
    key.as_u128() as u32
}

fn show_commit(result: &Result<Committed, CommitError>) -> String {
    match result {
        Ok(done) if done.repeated => "repeated".to_owned(),
        Ok(done) => format!("ok acc={} {:?}", done.accepted, done.hold.map(|hold| hold.claim_no)),
        Err(error) => error.code().as_str().to_owned(),
    }
}

fn show_commits(commits: &[Commit]) -> String {
    let one = |commit: &Commit| {
        let run = commit.run_key().map_or(0, |key| short(key.0));
        let task = commit.task.map_or(0, |guard| short(guard.task_id().0));
        format!("r{run:x} t{task:x} ops={}", commit.ops.len())
    };
    commits.iter().map(one).collect::<Vec<_>>().join(",")
}

impl Store for NodeStore {
    fn commit(&self, commits: Vec<Commit>) -> BoxFuture<'_, CommitResults> {
        let count = commits.len();
        let what = show_commits(&commits);
        let fail = move |kind| {
            let error = Arc::new(lost(kind));
            let one = || match kind {
                ErrorKind::Unknown => Err(CommitError::Unknown(error.clone())),
                _ => Err(CommitError::Unavailable(error.clone())),
            };
            (0..count).map(|_| one()).collect()
        };
        let show = move |results: &CommitResults| {
            let shown: Vec<String> = results.iter().map(show_commit).collect();
            format!("{what}: {}", shown.join(","))
        };
        self.send("commit", move |network| network.commit_all(&commits), fail, show)
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        self.ask("now", |network| network.at_once(network.inner.now()), |_| String::new())
    }

    fn claim(&self, request: ClaimRequest) -> BoxFuture<'_, Result<Claims, Error>> {
        let apply = move |network: &Network| {
            let claims = network.at_once(network.inner.claim(request.clone()))?;
            let claims = network.bugs.claimed(&network.inner, &request, claims);
            network.checker.claim(&network.inner, &request, &claims);
            Ok(claims)
        };
        let claimed = self.ask("claim", apply, |claims| {
            let turns = claims.turns.iter().map(|turn| (short(turn.run_key.0), turn.hold.claim_no));
            let tasks = claims.tasks.iter().map(|task| (short(task.task_id.0), task.claim_no));
            format!("{:x?} {:x?}", turns.collect::<Vec<_>>(), tasks.collect::<Vec<_>>())
        });
        Box::pin(claimed.map(|claimed| {
            let mut delivered = locked(&self.network.delivered);
            for turn in claimed.iter().flat_map(|claims| &claims.turns) {
                delivered.insert((self.link.node, turn.run_key), turn.hold.claim_no);
            }
            claimed
        }))
    }

    fn release(&self, holds: Vec<HeldItem>) -> BoxFuture<'_, Result<u32, Error>> {
        let apply = move |network: &Network| {
            let count = network.at_once(network.inner.release(holds.clone()))?;
            network.checker.released(&network.inner, &holds, count);
            Ok(count)
        };
        self.ask("release", apply, |count| count.to_string())
    }

    fn heartbeat(&self, beats: Vec<Heartbeat>) -> BoxFuture<'_, Result<Vec<bool>, Error>> {
        let apply =
            move |network: &Network| network.at_once(network.inner.heartbeat(beats.clone()));
        self.ask("beat", apply, |held| format!("{held:?}"))
    }

    fn revoke(
        &self,
        run_key: RunKey,
        worker: WorkerKey,
    ) -> BoxFuture<'_, Result<Option<ClaimedTurn>, Error>> {
        let apply = move |network: &Network| {
            let held = network.checker.holder(&network.inner, run_key);
            let turn = network.at_once(network.inner.revoke(run_key, worker))?;
            if held.is_some() && turn.is_some() {
                network.sim.sometimes("revoke beat a holder");
            }
            network.checker.revoked(run_key, worker, turn.as_ref());
            Ok(turn)
        };
        self.ask("revoke", apply, move |turn| {
            let claim_no = turn.as_ref().map(|turn| turn.hold.claim_no);
            format!("r{:x} {claim_no:?}", short(run_key.0))
        })
    }

    fn promote(&self, limit: u32) -> BoxFuture<'_, Result<Promoted, Error>> {
        let apply = move |network: &Network| {
            let promoted = network.at_once(network.inner.promote(limit))?;
            network.checker.promoted(&network.inner, &promoted);
            Ok(promoted)
        };
        self.ask("promote", apply, |promoted| format!("{} {}", promoted.turns, promoted.tasks))
    }

    fn renew(&self, info: WorkerInfo) -> BoxFuture<'_, Result<Renewed, Error>> {
        let worker = info.worker;
        let apply = move |network: &Network| {
            let renewed = network.at_once(network.inner.renew(info.clone()))?;
            network.checker.renewed(&info, renewed.now);
            Ok(renewed)
        };
        self.ask("renew", apply, move |renewed| {
            let Renewed { lapsed, may_reap, control, drain, .. } = renewed;
            let control = control.len();
            format!("w{:x} {lapsed} {may_reap} {control} {drain}", short(worker.0))
        })
    }

    fn drain_worker(&self, worker: WorkerKey) -> BoxFuture<'_, Result<bool, Error>> {
        let apply = move |network: &Network| network.at_once(network.inner.drain_worker(worker));
        self.ask("drain", apply, move |found| format!("w{:x} {found}", short(worker.0)))
    }

    fn reap(&self, worker: WorkerKey, limit: u32) -> BoxFuture<'_, Result<Reaped, Error>> {
        let apply = move |network: &Network| {
            let before = network.checker.before_reap(&network.inner);
            let reaped = network.at_once(network.inner.reap(worker, limit))?;
            let reaped = network.bugs.reaped(&network.inner, worker, reaped);
            network.checker.reap(&network.inner, worker, &before, &reaped);
            Ok(reaped)
        };
        self.ask("reap", apply, |reaped| {
            format!("{} {} {}", reaped.permitted, reaped.turns.len(), reaped.tasks.len())
        })
    }

    fn held(&self, worker: WorkerKey) -> BoxFuture<'_, Result<Vec<HeldItem>, Error>> {
        let apply = move |network: &Network| network.at_once(network.inner.held(worker));
        self.ask("held", apply, |held| held.len().to_string())
    }

    fn load_rows(
        &self,
        run_keys: Vec<RunKey>,
        steps: LoadSteps,
    ) -> BoxFuture<'_, Result<Vec<Loaded>, Error>> {
        let apply = move |network: &Network| {
            let rows = network.at_once(network.inner.load_rows(run_keys, steps))?;
            Ok(network.bugs.loaded(rows))
        };
        self.ask("load", apply, |loaded| {
            let one = |loaded: &Loaded| {
                let run = &loaded.run;
                format!("r{:x}@{} {}", short(run.run_key.0), run.head.next_ordinal, run.status)
            };
            loaded.iter().map(one).collect::<Vec<_>>().join(",")
        })
    }

    fn find(
        &self,
        namespace: Namespace,
        workflow: WorkflowName,
        id: RunId,
    ) -> BoxFuture<'_, Result<Option<Run>, Error>> {
        let apply = move |network: &Network| {
            let asked = network.bugs.namespace(&namespace);
            let found = network.at_once(network.inner.find(asked, workflow, id.clone()))?;
            network.checker.found(&namespace, &id, found.as_ref());
            Ok(found)
        };
        self.ask("find", apply, |run| {
            run.as_ref().map_or(String::new(), |run| format!("r{:x}", short(run.run_key.0)))
        })
    }

    fn bodies(&self, keys: Vec<BodyKey>) -> BoxFuture<'_, Result<Vec<Option<Bytes>>, Error>> {
        let apply = move |network: &Network| network.at_once(network.inner.bodies(keys));
        self.ask("bodies", apply, |_| String::new())
    }

    fn record_rows(
        &self,
        keys: Vec<RecordKey>,
    ) -> BoxFuture<'_, Result<Vec<Option<Record>>, Error>> {
        let apply = move |network: &Network| network.at_once(network.inner.record_rows(keys));
        self.ask("records", apply, |_| String::new())
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Rows, Error>> {
        let apply = move |network: &Network| network.at_once(network.inner.list(query));
        self.ask("list", apply, |_| String::new())
    }

    fn health(&self) -> BoxFuture<'_, Result<Health, Error>> {
        self.ask("health", |network| network.at_once(network.inner.health()), |_| String::new())
    }

    fn namespace_stats(
        &self,
        namespace: Namespace,
    ) -> BoxFuture<'_, Result<NamespaceStats, Error>> {
        let apply =
            move |network: &Network| network.at_once(network.inner.namespace_stats(namespace));
        self.ask("namespace_stats", apply, |_| String::new())
    }

    fn add_task_stats(&self, stats: Vec<TaskStat>) -> BoxFuture<'_, Result<(), Error>> {
        let apply = move |network: &Network| network.at_once(network.inner.add_task_stats(stats));
        self.ask("stat", apply, |()| String::new())
    }

    fn task_stats(&self, namespace: Namespace) -> BoxFuture<'_, Result<Vec<TaskStat>, Error>> {
        let apply = move |network: &Network| network.at_once(network.inner.task_stats(namespace));
        self.ask("task_stats", apply, |_| String::new())
    }

    fn set_limit(
        &self,
        namespace: Namespace,
        key: LimitKey,
        slots: Option<u32>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        let apply = move |network: &Network| {
            network.checker.limit_set(&namespace, &key, slots);
            let slots = network.bugs.slots(slots);
            network.at_once(network.inner.set_limit(namespace, key, slots))
        };
        self.ask("set_limit", apply, |()| String::new())
    }

    fn breaker(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<BreakerRow>, Timestamp), Error>> {
        let apply = move |network: &Network| {
            network.at_once(network.inner.breaker(namespace.clone(), key.clone()))
        };
        self.ask("breaker", apply, |(row, _)| format!("{:?}", row.as_ref().map(|row| row.version)))
    }

    fn swap_breaker(&self, row: BreakerRow) -> BoxFuture<'_, Result<bool, Error>> {
        let apply =
            move |network: &Network| network.at_once(network.inner.swap_breaker(row.clone()));
        self.ask("swap breaker", apply, |swapped| swapped.to_string())
    }

    fn rate(
        &self,
        namespace: Namespace,
        key: LimitKey,
    ) -> BoxFuture<'_, Result<(Option<RateRow>, Timestamp), Error>> {
        let apply = move |network: &Network| {
            network.at_once(network.inner.rate(namespace.clone(), key.clone()))
        };
        self.ask("rate", apply, |(row, _)| format!("{:?}", row.as_ref().map(|row| row.version)))
    }

    fn swap_rate(&self, row: RateRow, tell: bool) -> BoxFuture<'_, Result<bool, Error>> {
        let apply =
            move |network: &Network| network.at_once(network.inner.swap_rate(row.clone(), tell));
        self.ask("swap rate", apply, |swapped| swapped.to_string())
    }

    fn put_setting(
        &self,
        name: SettingName,
        value: Option<Body>,
    ) -> BoxFuture<'_, Result<(), Error>> {
        let apply =
            move |network: &Network| network.at_once(network.inner.put_setting(name, value));
        self.ask("put_setting", apply, |()| String::new())
    }

    fn delete_dead_letters(
        &self,
        namespace: Namespace,
        task_ids: Vec<TaskId>,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        let apply = move |network: &Network| {
            network.at_once(network.inner.delete_dead_letters(namespace, task_ids))
        };
        self.ask("delete_dead_letters", apply, |count| count.to_string())
    }

    fn delete_trees(&self, request: DeleteTrees) -> BoxFuture<'_, Result<Deleted, Error>> {
        let apply = move |network: &Network| {
            let before = network.checker.trees(&network.inner, &request.roots);
            let deleted = network.at_once(network.inner.delete_trees(request))?;
            network.checker.deleted(&before, &deleted);
            Ok(deleted)
        };
        self.ask("delete_trees", apply, |deleted| format!("{} runs", deleted.runs))
    }

    fn delete_removed_records(
        &self,
        request: DeleteRemovedRecords,
    ) -> BoxFuture<'_, Result<DeletedRecords, Error>> {
        let apply =
            move |network: &Network| network.at_once(network.inner.delete_removed_records(request));
        self.ask("delete_removed_records", apply, |done| format!("{} records", done.deleted))
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<String>, Error>> {
        self.ask("check", |network| network.at_once(network.inner.check()), |_| String::new())
    }

    fn listen(&self, sink: WakeSink) {
        locked(&self.network.listeners).insert(self.link.node, (self.link.clone(), sink));
    }

    // All nodes share the store, so one node cannot close it.
    fn close(&self) -> BoxFuture<'_, Result<(), Error>> {
        locked(&self.network.listeners).remove(&self.link.node);
        Box::pin(std::future::ready(Ok(())))
    }
}
