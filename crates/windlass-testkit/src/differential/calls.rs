//! The calls of the differential test.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{
    Body, Breaker, BreakerPolicy, BreakerRow, ClaimFilter, ClaimOrder, ClaimRequest, Commit,
    DeleteRemovedRecords, DeleteTrees, Heartbeat, HeldItem, Hold, LimitKey, Namespace, Permit,
    Rate, RateRow, RouteName, RunKey, SettingName, Store, TaskStat, WorkerInfo, WorkerKey,
    WorkerStatus,
};

use super::commit;
use super::commits::Author;
use crate::world::{Subject, World, route};

/// One call, the same for all stores.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Commit(Vec<Commit>),
    Claim(ClaimRequest),
    Release(Vec<HeldItem>),
    Heartbeat(Vec<Heartbeat>),
    Revoke(RunKey, WorkerKey),
    Promote(u32),
    Renew(WorkerInfo),
    DrainWorker(WorkerKey),
    Reap(WorkerKey, u32),
    SetLimit(Namespace, LimitKey, Option<u32>),
    SwapBreaker(BreakerRow),
    SwapRate(RateRow),
    Rate(Namespace, LimitKey),
    PutSetting(SettingName, Option<Body>),
    TaskStat(Vec<TaskStat>),
    DeleteTrees(DeleteTrees),
    DeleteRemovedRecords(DeleteRemovedRecords),
    Advance(Duration),
}

impl Call {
    pub(super) async fn next(author: &mut Author, world: &World) -> Self {
        if author.beside.chance(60) {
            return Self::beside(author, world).await;
        }
        let worker = author.worker(world);
        match author.rng.below(100) {
            0..58 => {
                let mut commits = Vec::new();
                for _ in 0..author.rng.range(1, 6) {
                    commits.extend(author.commits(world).await);
                }
                Self::Commit(commits)
            }
            58..74 => Self::Claim(claim(author, worker)),
            74..78 => {
                let mut held = world.store.held(worker).await.unwrap();
                held.retain(|_| author.rng.chance(600));
                held.extend(author.stale_hold());
                Self::Release(held)
            }
            78 => {
                let mut held = world.store.held(worker).await.unwrap();
                held.extend(author.stale_hold());
                let beat = |item| match item {
                    HeldItem::Task { task_id, worker, claim_no } => {
                        let details = author.rng.chance(700).then(|| author.rng.below(100));
                        let details = details.map(|details| Body::of(&details).unwrap());
                        Some(Heartbeat { task_id, hold: Hold { worker, claim_no }, details })
                    }
                    HeldItem::Turn { .. } => None,
                };
                Self::Heartbeat(held.into_iter().filter_map(beat).collect())
            }
            79..82 => Self::Revoke(author.run_key(world), worker),
            82..86 => Self::Promote(author.rng.range(1, 5) as u32),
            86..91 => Self::Renew(renewal(author, world, worker)),
            91..94 => Self::Reap(worker, author.rng.range(1, 6) as u32),
            94 => {
                let slots = author.rng.chance(700).then(|| author.rng.below(3) as u32);
                let key = LimitKey::new(["l1", "l2"][author.rng.below(2) as usize]).unwrap();
                Self::SetLimit(author.namespace(), key, slots)
            }
            95 if author.rng.chance(500) => {
                let key = LimitKey::new(["b1", "b2"][author.rng.below(2) as usize]).unwrap();
                let namespace = author.namespace();
                let (found, now) =
                    world.store.breaker(namespace.clone(), key.clone()).await.unwrap();
                let mut breaker = Breaker::of(found.as_ref()).unwrap();
                breaker.failed(&BreakerPolicy::default(), Permit::Call, now);
                let mut row = breaker.row(namespace, key, found.as_ref(), now).unwrap();
                row.version += author.rng.below(2);
                Self::SwapBreaker(row)
            }
            96 if author.rng.chance(500) => {
                let minute = TaskStat::minute_of(world.now().await);
                let count = author.rng.range(0, 4);
                let stat = |_| TaskStat {
                    minute: minute - author.rng.below(62) as i64,
                    namespace: author.namespace(),
                    name: RouteName::new(["t", "u"][author.rng.below(2) as usize]).unwrap(),
                    field: author.rng.below(3) as u16,
                    value: author.rng.below(10),
                };
                Self::TaskStat((0..count).map(stat).collect())
            }
            95 | 96 => {
                let name = SettingName::new("kind", ["a", "b"][author.rng.below(2) as usize]);
                let value = author.rng.chance(700).then(|| author.rng.below(100));
                Self::PutSetting(name, value.map(|value| Body::of(&value).unwrap()))
            }
            97 => {
                let roots = (0..author.rng.range(1, 4)).map(|_| author.run_key(world)).collect();
                let ended_for = Duration::from_millis(author.rng.range(0, 5_000));
                let (keep_ledger, keep_for_newer) =
                    (author.rng.chance(500), author.rng.chance(500));
                Self::DeleteTrees(DeleteTrees { roots, ended_for, keep_ledger, keep_for_newer })
            }
            _ => Self::Advance(Duration::from_millis(author.rng.range(1, 12_000))),
        }
    }

    // Drains and rates.
    async fn beside(author: &mut Author, world: &World) -> Self {
        if author.beside.chance(300)
            && let Some(worker) = author.known_worker()
        {
            return Self::DrainWorker(worker);
        }
        let rng = &mut author.beside;
        if rng.chance(300) {
            return Self::DeleteRemovedRecords(super::records::deletion(rng));
        }
        let key = LimitKey::new(["r1", "r2"][rng.below(2) as usize]).unwrap();
        let namespace = Namespace::new(["default", "other"][rng.below(2) as usize]).unwrap();
        if rng.chance(300) {
            return Self::Rate(namespace, key);
        }
        let (found, now) = world.store.rate(namespace.clone(), key.clone()).await.unwrap();
        let mut row = found.unwrap_or_else(|| RateRow::new(namespace, key));
        if rng.chance(500) {
            row.set(Some(&Rate { count: 3, period: Duration::from_secs(1), burst: 2 }));
        }
        row.take(now, 1, 3);
        row.version += 1 + rng.below(2);
        Self::SwapRate(row)
    }

    /// Makes the call and shows the answer.
    pub(super) async fn play(&self, store: &Arc<dyn Store>, subject: &dyn Subject) -> Vec<String> {
        match self {
            Self::Commit(commits) => commit(&**store, commits).await,
            Self::Claim(request) => {
                vec![format!("{:?}", store.claim(request.clone()).await.unwrap())]
            }
            Self::Release(held) => vec![format!("{}", store.release(held.clone()).await.unwrap())],
            Self::Heartbeat(beats) => {
                vec![format!("{:?}", store.heartbeat(beats.clone()).await.unwrap())]
            }
            Self::Revoke(run_key, worker) => {
                vec![format!("{:?}", store.revoke(*run_key, *worker).await.unwrap())]
            }
            Self::Promote(limit) => vec![format!("{:?}", store.promote(*limit).await.unwrap())],
            Self::Renew(info) => vec![format!("{:?}", store.renew(info.clone()).await.unwrap())],
            Self::DrainWorker(worker) => {
                vec![format!("{:?}", store.drain_worker(*worker).await.unwrap())]
            }
            Self::Reap(worker, limit) => {
                vec![format!("{:?}", store.reap(*worker, *limit).await.unwrap())]
            }
            Self::SetLimit(namespace, key, slots) => {
                let answer = store.set_limit(namespace.clone(), key.clone(), *slots).await;
                vec![format!("{answer:?}")]
            }
            Self::SwapBreaker(row) => {
                vec![format!("{:?}", store.swap_breaker(row.clone()).await.unwrap())]
            }
            Self::SwapRate(row) => {
                vec![format!("{:?}", store.swap_rate(row.clone(), true).await.unwrap())]
            }
            Self::Rate(namespace, key) => {
                let found = store.rate(namespace.clone(), key.clone()).await.unwrap();
                vec![format!("{found:?}")]
            }
            Self::PutSetting(name, value) => {
                let answer = store.put_setting(name.clone(), value.clone()).await;
                vec![format!("{answer:?}")]
            }
            Self::TaskStat(stats) => {
                vec![format!("{:?}", store.add_task_stats(stats.clone()).await)]
            }
            Self::DeleteTrees(request) => {
                vec![format!("{:?}", store.delete_trees(request.clone()).await.unwrap())]
            }
            Self::DeleteRemovedRecords(request) => {
                let deleted = store.delete_removed_records(request.clone()).await.unwrap();
                vec![format!("{deleted:?}")]
            }
            Self::Advance(by) => {
                subject.advance(*by).await;
                Vec::new()
            }
        }
    }
}

fn claim(author: &mut Author, worker: WorkerKey) -> ClaimRequest {
    let mut routes = vec![route("default", "w"), route("default", "v"), route("q", "t")];
    routes.retain(|_| author.rng.chance(800));
    let order = if author.rng.chance(250) { ClaimOrder::Oldest } else { ClaimOrder::Priority };
    let mut after = || match author.beside.below(3) {
        0 => None,
        1 => Some(Namespace::default_namespace()),
        _ => Some(Namespace::from_stored("other")),
    };
    let (turns_after, tasks_after) = (after(), after());
    ClaimRequest {
        worker,
        turns: ClaimFilter {
            routes: routes.clone(),
            max: author.rng.below(4) as u32,
            after: turns_after,
        },
        tasks: ClaimFilter { routes, max: author.rng.below(4) as u32, after: tasks_after },
        order,
        offer: Duration::from_millis(author.rng.below(2) * author.rng.below(3_000)),
    }
}

fn renewal(author: &mut Author, world: &World, worker: WorkerKey) -> WorkerInfo {
    let status = match author.rng.below(10) {
        0 => WorkerStatus::Stopped,
        1 => WorkerStatus::Draining,
        _ => WorkerStatus::Active,
    };
    WorkerInfo {
        status,
        lease: Duration::from_secs(20),
        load: author.beside.below(9) as u32,
        accepting: author.beside.chance(700),
        ..world.info(worker)
    }
}
