//! A thousand workers on one store, and some of them die: nothing is lost and nothing is done twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use windlass::Store;
use windlass::kernel::{
    ClaimFilter, ClaimOrder, ClaimRequest, Commit, Namespace, Op, Query, QueueName, Route,
    RouteName, Task, TaskGuard, TaskId, WorkerInfo, WorkerKey, WorkerStatus,
};

use crate::harness::{Harness, ok, on_every_store, until};

on_every_store!(a_thousand_workers);

const WORKERS: u32 = 1_000;
const TASKS: u32 = 2_000;
/// One worker in so many dies with what it holds.
const DIES: u32 = 10;
const AT_ONCE: usize = 64;

fn route() -> Route {
    let (queue, name) = (QueueName::new("q").unwrap(), RouteName::new("t").unwrap());
    Route { queue, name }
}

fn info(worker: WorkerKey, lease: Duration) -> WorkerInfo {
    WorkerInfo {
        worker,
        name: "one of many".into(),
        version: "1".into(),
        status: WorkerStatus::Active,
        lease,
        turns: Vec::new(),
        tasks: vec![route()],
        slots: 4,
        note: None,
        load: 0,
        task_slots: 4,
        task_load: 0,
        accepting: true,
        group: "many".into(),
        host: "".into(),
        tasks_completed: 0,
        tasks_failed: 0,
        tasks_took: Duration::ZERO,
    }
}

async fn claimed(store: &dyn Store, worker: WorkerKey, max: u32) -> Vec<Task> {
    let request = ClaimRequest {
        worker,
        turns: ClaimFilter::default(),
        tasks: ClaimFilter { routes: vec![route()], max, after: None },
        order: ClaimOrder::Priority,
        offer: Duration::ZERO,
    };
    store.claim(request).await.unwrap().tasks
}

/// Whether the settlement held.
async fn settled(store: &dyn Store, task: &Task) -> bool {
    let (task_id, hold) = (task.task_id, task.hold().expect("it is held"));
    let guard = TaskGuard::Held { task_id, hold };
    let commit = Commit::new(None, Some(guard), vec![Op::Settle { task_id }]);
    store.commit(vec![commit]).await.remove(0).is_ok()
}

async fn a_thousand_workers(h: Arc<Harness>) {
    let engine = h.engine().await;
    // The harness verifies a store with a run in it.
    let flow = engine.workflow("w", async |_: windlass::Ctx, n: u32| ok(n)).unwrap();
    assert_eq!(flow.start(1).await.unwrap().result().await.unwrap(), 1);
    let store = Arc::clone(engine.admin().store());
    let store = &*store;
    let (lives, dies) = (Duration::from_secs(600), Duration::from_millis(400));
    let workers: Vec<WorkerKey> =
        (0..WORKERS).map(|_| WorkerKey(engine.core().clock().task_id().0)).collect();
    let is_dying = |n: usize| n as u32 % DIES == 3;
    let registered = futures::stream::iter(workers.iter().enumerate())
        .map(|(n, worker)| store.renew(info(*worker, if is_dying(n) { dies } else { lives })));
    let registered: Vec<_> = registered.buffer_unordered(AT_ONCE).collect().await;
    assert!(registered.into_iter().all(|renewed| renewed.is_ok()));

    let now = store.now().await.unwrap();
    let make = |_| {
        let id = engine.core().clock().task_id();
        Task::new(id, Namespace::default_namespace(), "activity", route(), now)
    };
    let tasks: Vec<Task> = (0..TASKS).map(make).collect();
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.task_id).collect();
    let enqueue = |task| Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
    for answer in store.commit(tasks.into_iter().map(enqueue).collect()).await {
        answer.unwrap();
    }

    // All claim at once; those that die keep what they have and settle it when it is too late.
    let mut done: BTreeMap<TaskId, u32> = BTreeMap::new();
    let mut lost: Vec<Task> = Vec::new();
    let work = futures::stream::iter(workers.iter().enumerate()).map(|(n, worker)| async move {
        let tasks = claimed(store, *worker, 2).await;
        let mut held = Vec::new();
        for task in tasks {
            let counts = !is_dying(n) && settled(store, &task).await;
            held.push((task, counts));
        }
        (is_dying(n), held)
    });
    let mut work = work.buffer_unordered(AT_ONCE);
    while let Some((dying, held)) = work.next().await {
        for (task, counts) in held {
            match dying {
                true => lost.push(task),
                false => *done.entry(task.task_id).or_default() += u32::from(counts),
            }
        }
    }
    assert!(lost.len() > 100, "{} were held by those that died", lost.len());

    // Somebody who has been there for a whole lease frees what the dead hold.
    let reaper = WorkerKey(engine.core().clock().task_id().0);
    let mut freed = 0;
    until("the dead are found", || {
        let renewed = store.renew(info(reaper, dies));
        async move { renewed.await.unwrap().may_reap }
    })
    .await;
    while freed < lost.len() {
        store.renew(info(reaper, dies)).await.unwrap();
        freed += store.reap(reaper, 1_000).await.unwrap().tasks.len();
    }
    for zombie in &lost {
        assert!(!settled(store, zombie).await, "who was taken for dead settles nothing");
    }
    loop {
        let tasks = claimed(store, workers[0], 500).await;
        if tasks.is_empty() {
            break;
        }
        for task in tasks {
            let counts = settled(store, &task).await;
            *done.entry(task.task_id).or_default() += u32::from(counts);
        }
    }
    assert!(ids.iter().all(|id| done.get(id) == Some(&1)), "each was done once");
    assert_eq!(done.len(), TASKS as usize);
    let mut after = None;
    let mut known = 0;
    loop {
        let page =
            store.list(Query::Workers { after, limit: 500 }).await.unwrap().workers().unwrap();
        known += page.len();
        after = page.last().map(|row| row.info.worker);
        if page.len() < 500 {
            break;
        }
    }
    assert_eq!(known, WORKERS as usize + 2, "a thousand, the engine and the reaper");
}
