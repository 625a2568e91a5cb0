//! Circuit breakers that all processes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass::kernel::{BreakerStatus, Query, TasksQuery};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, CircuitBreakerConfig, WorkflowAction,
};
use windlass::{Engine, Reason, Why};

use crate::harness::{Counts, Harness, event_types, on_every_store, until};
use crate::machines_fixtures::{Puppet, quick, serve};

on_every_store!(
    it_opens_and_closes_for_all,
    calls_of_another_process_wait_as_well,
    an_operator_closes_it,
    a_reset_frees_postponed_calls_of_all,
    a_callee_that_asks_to_wait_is_left_alone_by_all,
    errors_of_the_caller_do_not_count,
    calls_can_have_breakers_of_their_own,
);

/// A callee that is down until it is up.
#[derive(Clone)]
struct Callee {
    up: Arc<AtomicBool>,
    counts: Arc<Counts>,
    error: fn() -> ActivityError,
}

impl Callee {
    fn down(counts: &Arc<Counts>) -> Self {
        let error = || ActivityError::new("down");
        Self { up: Arc::default(), counts: Arc::clone(counts), error }
    }
}

impl Activity for Callee {
    const TYPE: &'static str = "call";
    type Input = ();
    type Output = u32;

    async fn execute(&self, ctx: &ActivityContext, (): ()) -> Result<u32, ActivityError> {
        self.counts.hit("calls");
        match self.up.load(Ordering::Relaxed) {
            true => Ok(ctx.attempt),
            false => Err((self.error)()),
        }
    }
}

fn guarded(retries: u32, reset: Duration) -> ActivityOptions {
    let circuit_breaker = Some(CircuitBreakerConfig {
        failure_threshold: 3,
        success_threshold: 2,
        reset_timeout: reset,
        ..CircuitBreakerConfig::default()
    });
    ActivityOptions { circuit_breaker, ..ActivityOptions::retrying(quick(retries)) }
}

async fn calls(
    engine: &Engine,
    id: &str,
    options: &ActivityOptions,
) -> windlass::RunHandle<Vec<String>> {
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(false).id(id).await.unwrap();
    let call = WorkflowAction::activity_with("a", "call", Value::Null, options.clone());
    run.signal("do", &[call]).await.unwrap();
    run
}

async fn told(run: &windlass::RunHandle<Vec<String>>) -> String {
    until("the call is over", || async {
        let over = ["activity.completed", "activity.failed"];
        event_types(run).await.iter().any(|t| over.contains(&t.as_str()))
    })
    .await;
    run.signal("end", &()).await.unwrap();
    run.result().await.unwrap().remove(2)
}

async fn status(engine: &Engine) -> Option<BreakerStatus> {
    let breakers = engine.admin().breakers(None, 10).await.unwrap();
    breakers.iter().find(|row| row.key.as_str() == "activity:call").map(|row| row.status)
}

const LONG: Duration = Duration::from_secs(3_600);

async fn it_opens_and_closes_for_all(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let callee = Callee::down(&counts);
    engine.machine_activity(callee.clone()).unwrap();
    let options = guarded(3, Duration::from_millis(300));
    let first = calls(&engine, "first", &options).await;
    until("it is open", || async { status(&engine).await == Some(BreakerStatus::Open) }).await;
    assert_eq!(counts.get("calls"), 3, "the fourth attempt waits");
    let mut others = Vec::new();
    for n in 0..4 {
        others.push(calls(&engine, &format!("other-{n}"), &options).await);
    }
    callee.up.store(true, Ordering::Relaxed);
    assert_eq!(told(&first).await, "a=4", "waiting spends no attempt");
    for other in others {
        assert_eq!(told(&other).await, "a=1");
    }
    assert_eq!(status(&engine).await, Some(BreakerStatus::Closed));
    assert_eq!(counts.get("calls"), 8);
    assert_eq!(engine.admin().metrics().breaker_opens.get(), 1);
}

async fn calls_of_another_process_wait_as_well(h: Arc<Harness>) {
    let (first, counts) = (h.engine().await, Counts::new());
    serve(&first, &counts);
    first.machine_activity(Callee::down(&counts)).unwrap();
    let options = guarded(3, LONG);
    let run = calls(&first, "first", &options).await;
    until("it is postponed", || async {
        let health = first.admin().store().health().await.unwrap();
        let next = health.tasks.scheduled_next;
        next.is_some_and(|next| next > health.now.plus(Duration::from_secs(60)))
    })
    .await;
    assert_eq!(status(&first).await, Some(BreakerStatus::Open));
    // On SQLite the second process comes after the first.
    if h.kind == crate::harness::Kind::Sqlite {
        h.stop(&first).await;
    }
    let second = h.engine().await;
    let called = Counts::new();
    let callee = Callee::down(&called);
    callee.up.store(true, Ordering::Relaxed);
    if h.kind == crate::harness::Kind::Sqlite {
        second.machine::<Puppet>().unwrap();
    }
    second.machine_activity_on("second", callee).unwrap();
    let options = ActivityOptions { queue: "second".into(), ..options };
    let other = calls(&second, "other", &options).await;
    until("it is postponed", || async {
        let health = second.admin().store().health().await.unwrap();
        health.tasks.scheduled.count == 2
    })
    .await;
    assert_eq!(called.get("calls"), 0);
    assert!(!event_types(&other).await.contains(&"activity.completed".to_owned()));
    drop(run);
}

async fn an_operator_closes_it(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let callee = Callee::down(&counts);
    engine.machine_activity(callee.clone()).unwrap();
    assert!(!engine.admin().reset_breaker("activity:call").await.unwrap());
    let fails = calls(&engine, "fails", &guarded(2, LONG)).await;
    assert_eq!(told(&fails).await, "a!ActivityError");
    assert_eq!(status(&engine).await, Some(BreakerStatus::Open));
    callee.up.store(true, Ordering::Relaxed);
    assert!(engine.admin().reset_breaker("activity:call").await.unwrap());
    assert_eq!(status(&engine).await, Some(BreakerStatus::Closed));
    let works = calls(&engine, "works", &guarded(0, LONG)).await;
    assert_eq!(told(&works).await, "a=1");
}

/// How many tasks are scheduled for later than in 20 s.
async fn postponed(engine: &Engine) -> usize {
    let store = engine.admin().store();
    let late = store.now().await.unwrap().plus(Duration::from_secs(20));
    let query = TasksQuery::all(windlass::Namespace::default_namespace(), 100);
    let tasks = store.list(Query::Tasks(query)).await.unwrap().tasks().unwrap();
    tasks.iter().filter(|task| task.due_at.is_some_and(|at| at > late)).count()
}

async fn a_reset_frees_postponed_calls_of_all(h: Arc<Harness>) {
    let (first, second) = h.two_engines(|options| options).await;
    let counts = Counts::new();
    serve(&first, &counts);
    let callee = Callee::down(&counts);
    first.machine_activity(callee.clone()).unwrap();
    let fails = calls(&first, "fails", &guarded(2, LONG)).await;
    assert_eq!(told(&fails).await, "a!ActivityError");
    let options = guarded(0, LONG);
    let waits = [calls(&first, "b", &options).await, calls(&first, "c", &options).await];
    until("they are postponed", || async { postponed(&first).await == 2 }).await;
    let why = waits[0].why().await.unwrap();
    let text = "circuit breaker \"activity:call\" is open and lets \"a\" begin later";
    let named = |reason: &Reason| reason.code == Why::BreakerOpen && reason.text.contains(text);
    assert!(why.reasons.iter().any(named), "{:?}", why.reasons);
    callee.up.store(true, Ordering::Relaxed);
    assert!(second.admin().reset_breaker("activity:call").await.unwrap());
    assert_eq!(postponed(&first).await, 0, "they are due when the reset is answered");
    for run in &waits {
        assert_eq!(told(run).await, "a=1");
    }
}

async fn a_callee_that_asks_to_wait_is_left_alone_by_all(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let error = || ActivityError::rate_limited(Duration::from_millis(400));
    let callee = Callee { error, ..Callee::down(&counts) };
    engine.machine_activity(callee.clone()).unwrap();
    let options = guarded(0, LONG);
    let first = calls(&engine, "first", &options).await;
    until("it asked to wait", || async { status(&engine).await.is_some() }).await;
    callee.up.store(true, Ordering::Relaxed);
    let second = calls(&engine, "second", &options).await;
    assert_eq!((told(&first).await, told(&second).await), ("a=1".into(), "a=1".into()));
    assert_eq!(counts.get("calls"), 3, "nobody asked in between");
    assert_eq!(status(&engine).await, Some(BreakerStatus::Closed));
}

async fn errors_of_the_caller_do_not_count(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let error = || ActivityError::non_retryable("there is no such customer");
    engine.machine_activity(Callee { error, ..Callee::down(&counts) }).unwrap();
    for n in 0..5 {
        let run = calls(&engine, &format!("r{n}"), &guarded(0, LONG)).await;
        assert_eq!(told(&run).await, "a!ActivityError");
    }
    assert_eq!((counts.get("calls"), status(&engine).await), (5, None));
}

async fn calls_can_have_breakers_of_their_own(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let callee = Callee::down(&counts);
    engine.machine_activity(callee.clone()).unwrap();
    let keyed = |key: &str| {
        let mut options = guarded(3, LONG);
        let breaker = options.circuit_breaker.take().unwrap();
        let circuit_breaker = Some(CircuitBreakerConfig { key: Some(key.into()), ..breaker });
        ActivityOptions { circuit_breaker, ..options }
    };
    calls(&engine, "one", &keyed("one")).await;
    let open = || async {
        let breakers = engine.admin().breakers(None, 10).await.unwrap();
        let open = breakers.into_iter().filter(|row| row.status == BreakerStatus::Open);
        open.map(|row| row.key.to_string()).collect::<Vec<_>>()
    };
    until("it is open", || async { open().await == ["one"] }).await;
    callee.up.store(true, Ordering::Relaxed);
    assert_eq!(told(&calls(&engine, "two", &keyed("two")).await).await, "a=1");
    assert_eq!(open().await, ["one"]);
}
