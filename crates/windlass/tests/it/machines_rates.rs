//! Rates that all processes share, and callees that ask to be left alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windlass::kernel::{
    Body, Commit, Op, Query, QueueName, Rate, Route, RouteName, Task, TaskId, TasksQuery,
};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, WorkflowAction,
};
use windlass::{Ctx, Engine, Why};

use crate::harness::{Counts, Harness, Kind, fence, fence_between, ok, on_every_store, until};
use crate::machines_fixtures::{Puppet, serve};

on_every_store!(
    two_processes_share_a_rate,
    other_keys_are_not_held_up_and_why_says_what_is,
    a_callee_that_asks_to_wait_closes_its_key_for_all,
    a_task_that_kills_its_workers_is_given_up_despite_a_rate,
    a_rate_of_a_users_key_holds_up_no_other,
    a_callee_that_asks_to_wait_closes_the_users_key,
);

/// Two processes where the store allows it.
async fn engines(h: &Harness) -> Vec<Engine> {
    let mut engines = vec![h.engine().await];
    if h.kind != Kind::Sqlite {
        engines.push(h.engine().await);
    }
    engines
}

const CALL: &str = "call";

/// Notes when each call began.
#[derive(Clone, Default)]
struct Calls {
    begun: Arc<Mutex<Vec<Instant>>>,
    limited: Arc<AtomicBool>,
}

impl Activity for Calls {
    const TYPE: &'static str = CALL;
    type Input = u32;
    type Output = u32;

    async fn execute(&self, ctx: &ActivityContext, _: u32) -> Result<u32, ActivityError> {
        self.begun.lock().push(Instant::now());
        match self.limited.swap(false, Ordering::AcqRel) {
            true => Err(ActivityError::rate_limited(Duration::from_millis(700))),
            false => Ok(ctx.attempt),
        }
    }
}

async fn calls(ctx: Ctx, (activity, count): (String, u32)) -> windlass::Result<Vec<u32>> {
    let call = |n: u32| ctx.activity::<_, u32>(format!("c{n}"), activity.as_str(), &n);
    let all = futures::future::join_all((0..count).map(call)).await;
    ok(all.into_iter().collect::<Result<Vec<_>, _>>()?)
}

async fn two_processes_share_a_rate(h: Arc<Harness>) {
    let engines = engines(&h).await;
    let callee = Calls::default();
    for engine in &engines {
        engine.machine_activity(callee.clone()).unwrap();
    }
    let (count, burst) = (60_u32, 3_u32);
    let rate = Rate::per(20, "1 second").unwrap().burst(burst);
    engines[0].admin().set_activity_rate(CALL, Some(rate)).await.unwrap();
    let flow = engines[0].workflow("calls", calls).unwrap();
    let before = Instant::now();
    let run = flow.start((CALL.into(), count)).await.unwrap();
    assert_eq!(run.result().await.unwrap(), vec![1; count as usize], "waiting spends no attempt");
    let mut begun = callee.begun.lock().clone();
    begun.sort_unstable();
    assert_eq!(begun.len(), count as usize);
    // However late a call begins, the ones before it were not too many by then.
    for (n, at) in (0_u32..).zip(&begun) {
        let earliest = Duration::from_millis(50) * (n + 1).saturating_sub(burst);
        assert!(*at - before >= earliest, "call {n} began after {:?}", *at - before);
    }
    let invalid =
        engines[0].admin().set_activity_rate(CALL, Some(Rate::per(0, "1 second").unwrap()));
    assert_eq!(invalid.await.unwrap_err().code(), "INVALID_RATE");
}

async fn other_keys_are_not_held_up_and_why_says_what_is(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    for name in ["slow", "fast"] {
        let counts = counts.clone();
        let activity = move |_: windlass::TaskContext, n: u32| {
            let counts = counts.clone();
            async move {
                counts.hit(name);
                ok(n)
            }
        };
        engine.activity_on(name, name, activity).unwrap();
    }
    engine.admin().set_queue_rate("slow", Some(Rate::per(1, "1 hour").unwrap())).await.unwrap();
    let flow = async |ctx: Ctx, name: String| {
        let call = |n: u32| ctx.activity::<_, u32>(format!("c{n}"), name.as_str(), &n).queue(&name);
        let all = futures::future::join_all((0..50).map(call)).await;
        ok(all.into_iter().filter(|call| call.is_ok()).count())
    };
    let flow = engine.workflow("calls", flow).unwrap();
    let slow = flow.start("slow".into()).await.unwrap();
    until("one has begun", || async { counts.get("slow") == 1 }).await;
    assert_eq!(flow.start("fast".into()).await.unwrap().result().await.unwrap(), 50);
    assert_eq!((counts.get("fast"), counts.get("slow")), (50, 1));
    until("why says so", || async {
        let why = engine.core().why(slow.run_key()).await.unwrap();
        why.reasons.iter().any(|reason| {
            reason.code == Why::RateReached && reason.text.contains("the rate of \"queue:slow\"")
        })
    })
    .await;
    // Nobody asks again and again while others work.
    let begun = engine.admin().metrics().tasks_begun.get();
    assert_eq!(flow.start("fast".into()).await.unwrap().result().await.unwrap(), 50);
    assert_eq!(engine.admin().metrics().tasks_begun.get(), begun + 50);
    slow.terminate().await.unwrap();
}

async fn a_callee_that_asks_to_wait_closes_its_key_for_all(h: Arc<Harness>) {
    let engines = engines(&h).await;
    let callee = Calls::default();
    for engine in &engines {
        engine.machine_activity(callee.clone()).unwrap();
    }
    let flow = engines[0].workflow("calls", calls).unwrap();
    // The engine served the queue before the rate was set, and learns of it.
    let first = flow.start((CALL.into(), 20)).await.unwrap();
    assert_eq!(first.result().await.unwrap(), [1; 20]);
    callee.begun.lock().clear();
    callee.limited.store(true, Ordering::Release);
    let limited = flow.start((CALL.into(), 1)).await.unwrap();
    until("it was refused", || async { !callee.limited.load(Ordering::Acquire) }).await;
    until("the key is closed", || async {
        let key = windlass::kernel::LimitKey::new(format!("activity:{CALL}")).unwrap();
        let namespace = engines[0].namespace().clone();
        engines[0].admin().store().rate(namespace, key).await.unwrap().0.is_some()
    })
    .await;
    // The other process learns it from the database.
    fence(&engines[0]).await;
    if h.kind == Kind::Postgres {
        fence_between(&engines[0], &engines[1]).await;
    }
    let others = flow.start((CALL.into(), 30)).await.unwrap();
    assert_eq!(limited.result().await.unwrap(), [1], "it spends no attempt");
    assert_eq!(others.result().await.unwrap(), [1; 30]);
    let begun = callee.begun.lock().clone();
    assert_eq!(begun.len(), 32);
    // A lower bound: load can only make the gap longer.
    let gap = *begun[1..].iter().min().unwrap() - begun[0];
    assert!(gap >= Duration::from_millis(690), "somebody called after {gap:?}");
}

// Enqueues a task that was taken away from so many workers.
async fn reclaimed(engine: &Engine, name: &str, reclaims: u32, tried_alone: bool) -> TaskId {
    let route = Route { queue: QueueName::default_queue(), name: RouteName::new(name).unwrap() };
    let retry = serde_json::to_value(windlass::RetryPolicy::none()).unwrap();
    let body = serde_json::json!({ "input": 1, "retry": retry });
    let task_id = engine.core().clock().task_id();
    let (namespace, now) = (engine.namespace().clone(), engine.core().clock().now());
    let task = Task {
        reclaims,
        body: Some(Body::of(&body).unwrap()),
        ..Task::new(task_id, namespace, "activity", route, now)
    };
    if tried_alone {
        // The record that a process leaves that dies during a trial.
        let name = windlass::kernel::SettingName::new("trial", &task_id.to_string());
        let record = Body::of(&serde_json::json!({ "reclaims": reclaims - 1 })).unwrap();
        engine.admin().store().put_setting(name, Some(record)).await.unwrap();
    }
    let commit = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
    engine.admin().store().commit(vec![commit]).await.remove(0).unwrap();
    engine.core().wake();
    task_id
}

async fn a_task_that_kills_its_workers_is_given_up_despite_a_rate(h: Arc<Harness>) {
    let engine = h.engine().await;
    let callee = Calls::default();
    engine.machine_activity(callee.clone()).unwrap();
    engine.admin().set_activity_rate(CALL, Some(Rate::per(1, "1 hour").unwrap())).await.unwrap();
    let flow = engine.workflow("calls", calls).unwrap();
    let run = flow.start((CALL.into(), 1)).await.unwrap();
    assert_eq!(run.result().await.unwrap(), [1], "the rate is used up");
    let waits = reclaimed(&engine, CALL, 2, false).await;
    until("it was put back", || async {
        let tasks = Query::Tasks(TasksQuery::all(engine.namespace().clone(), 10));
        let tasks = engine.admin().store().list(tasks).await.unwrap().tasks().unwrap();
        tasks.iter().any(|task| {
            let put_back = task.task_id == waits && task.due_at > Some(engine.core().clock().now());
            assert!(!put_back || task.reclaims == 2, "nothing was done with it");
            put_back
        })
    })
    .await;
    let dead = reclaimed(&engine, CALL, 3, true).await;
    until("it is given up", || async { engine.core().dead_letter(dead).await.is_ok() }).await;
    let letter = engine.core().dead_letter(dead).await.unwrap();
    let errors: Vec<serde_json::Value> = letter.errors.unwrap().read().unwrap();
    assert_eq!(errors[0]["name"], "NoProgress");
    assert_eq!(callee.begun.lock().len(), 1);
}

// A puppet that asks for calls under a key, one for each id.
async fn asks_under(
    engine: &Engine,
    id: &str,
    key: &str,
    ids: std::ops::Range<u32>,
) -> windlass::RunHandle<Vec<String>> {
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(false).id(id).await.unwrap();
    let options = ActivityOptions { limit_key: Some(key.into()), ..ActivityOptions::default() };
    let call = |n: u32| {
        let input = serde_json::json!(n);
        WorkflowAction::activity_with(format!("c{n}"), CALL, input, options.clone())
    };
    run.signal("do", &ids.map(call).collect::<Vec<_>>()).await.unwrap();
    run
}

async fn a_rate_of_a_users_key_holds_up_no_other(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let callee = Calls::default();
    engine.machine_activity(callee.clone()).unwrap();
    engine.admin().set_rate("slow", Some(Rate::per(1, "1 hour").unwrap())).await.unwrap();
    // So many may begin in all; those that wait for their own key take none of it.
    let rate = Rate::per(4, "1 hour").unwrap().burst(4);
    engine.admin().set_activity_rate(CALL, Some(rate)).await.unwrap();
    let slow = asks_under(&engine, "slow", "slow", 0..5).await;
    until("one has begun", || async { callee.begun.lock().len() == 1 }).await;
    until("the others were put back", || async {
        let tasks = Query::Tasks(TasksQuery::of_run(&slow.run().await.unwrap(), 10));
        let tasks = engine.admin().store().list(tasks).await.unwrap().tasks().unwrap();
        let now = engine.core().clock().now();
        tasks.len() == 4 && tasks.iter().all(|task| task.due_at.is_some_and(|due| due > now))
    })
    .await;
    asks_under(&engine, "fast", "fast", 0..3).await;
    until("all of the other key have begun", || async { callee.begun.lock().len() == 4 }).await;
}

async fn a_callee_that_asks_to_wait_closes_the_users_key(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let callee = Calls::default();
    engine.machine_activity(callee.clone()).unwrap();
    callee.limited.store(true, Ordering::Release);
    asks_under(&engine, "limited", "k", 0..1).await;
    until("it was refused", || async { !callee.limited.load(Ordering::Acquire) }).await;
    let row = |key: &str| {
        let key = windlass::kernel::LimitKey::new(key).unwrap();
        let (namespace, store) = (engine.namespace().clone(), engine.admin().store());
        async move { store.rate(namespace, key).await.unwrap().0 }
    };
    until("the key is closed", || async { row("k").await.is_some() }).await;
    assert_eq!(row(&format!("activity:{CALL}")).await, None, "and no other");
    asks_under(&engine, "other", "other", 0..1).await;
    until("another key is open", || async { callee.begun.lock().len() >= 2 }).await;
    until("both are called", || async { callee.begun.lock().len() == 3 }).await;
}
