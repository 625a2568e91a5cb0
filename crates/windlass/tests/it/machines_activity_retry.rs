//! Activities that fail: tried again, timed out, given up; and what the attempts leave each other.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::{DeadLetter, Namespace, Query, RetryLimit};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, WorkflowAction,
};
use windlass::{AnyError, Engine, RetryPolicy, RunStatus, TaskContext};

use crate::harness::{Counts, Harness, event_types, ok, on_every_store, until};
use crate::machines_fixtures::{Order, Puppet, quick, serve};

on_every_store!(
    nobody_begins_it,
    an_attempt_takes_too_long,
    no_heartbeat,
    all_attempts_together,
    heartbeats_reach_the_next_attempt,
    a_rate_limited_failure_uses_up_no_attempt,
    poisoned_activities_end_as_dead_letters,
    a_requeued_activity_keeps_its_letter,
    the_activity_of_the_letter_is_tried_again,
);

pub(crate) async fn dead(engine: &Engine) -> Vec<DeadLetter> {
    let (namespace, queue) = (Namespace::default_namespace(), None);
    let query = Query::DeadLetters { namespace, queue, after: None, limit: 100 };
    engine.admin().store().list(query).await.unwrap().dead_letters().unwrap()
}

// Starts a puppet that asks for one activity.
pub(crate) async fn asks_for(
    engine: &Engine,
    id: &str,
    activity: &str,
    input: Value,
    options: ActivityOptions,
) -> windlass::RunHandle<Vec<String>> {
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(false).id(id).await.unwrap();
    let action = WorkflowAction::activity_with("a", activity, input, options);
    run.signal("do", &[action]).await.unwrap();
    run
}

// The result of the activity as the machine received it.
pub(crate) async fn told(run: &windlass::RunHandle<Vec<String>>) -> String {
    until("the activity is over", || async {
        let over = ["activity.completed", "activity.failed", "activity.timed_out"];
        event_types(run).await.iter().any(|t| over.contains(&t.as_str()))
    })
    .await;
    run.signal("end", &()).await.unwrap();
    run.result().await.unwrap().remove(2)
}

pub(crate) fn options(retries: u32) -> ActivityOptions {
    ActivityOptions::retrying(quick(retries))
}

const SOON: Option<Duration> = Some(Duration::from_millis(100));

async fn nobody_begins_it(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let options = ActivityOptions { schedule_to_start_timeout: SOON, ..options(5) };
    let run = asks_for(&engine, "p", "unserved", Value::Null, options).await;
    assert_eq!(told(&run).await, "a!ScheduleToStart ScheduleToStartTimeout");
    let dead = dead(&engine).await;
    assert_eq!((dead.len(), dead[0].attempt), (1, 0));
    assert!(dead[0].reason.contains("no worker began it within 100ms"), "{}", dead[0].reason);
    assert!(!event_types(&run).await.contains(&"activity.started".to_owned()));
}

async fn an_attempt_takes_too_long(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    serve_hanging(&engine, &counts);
    let options = ActivityOptions { start_to_close_timeout: SOON, ..options(1) };
    let run = asks_for(&engine, "p", "hang", Value::Null, options).await;
    assert_eq!(told(&run).await, "a!StartToClose Timeout");
    assert_eq!(counts.get("begun"), 2);
    assert_eq!(dead(&engine).await[0].attempt, 2);
}

fn serve_hanging(engine: &Engine, counts: &Arc<Counts>) {
    let counts = Arc::clone(counts);
    let hang = move |_: TaskContext, _: Value| {
        counts.hit("begun");
        std::future::pending::<windlass::Result<u32>>()
    };
    engine.activity("hang", hang).unwrap();
}

async fn no_heartbeat(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    serve_hanging(&engine, &counts);
    let beats = async |context: TaskContext, _: Value| {
        // It takes longer than the heartbeat's timeout.
        for _ in 0..125 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            context.heartbeat();
        }
        ok(1)
    };
    engine.activity("beats", beats).unwrap();
    let beat = ActivityOptions { heartbeat_timeout: Some(Duration::from_secs(2)), ..options(0) };
    let run = asks_for(&engine, "hangs", "hang", Value::Null, beat.clone()).await;
    let alive = asks_for(&engine, "beats", "beats", Value::Null, beat).await;
    assert_eq!(told(&run).await, "a!Heartbeat HeartbeatTimeout");
    assert_eq!(told(&alive).await, "a=1");
}

async fn all_attempts_together(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    serve_hanging(&engine, &counts);
    let fails = async |_: TaskContext, _: Value| Err::<u32, _>(windlass::AnyError::msg("again"));
    engine.activity("fails", fails).unwrap();
    let all = |retries| ActivityOptions { schedule_to_close_timeout: SOON, ..options(retries) };
    // Its second attempt would begin when all must be over.
    let slowly = RetryPolicy::constant(RetryLimit::Times(9), Duration::from_secs(10));
    let slowly = ActivityOptions { retry_policy: slowly, ..all(0) };
    let tried = asks_for(&engine, "tried", "fails", Value::Null, slowly).await;
    let hangs = asks_for(&engine, "hangs", "hang", Value::Null, all(1_000)).await;
    let unserved = asks_for(&engine, "unserved", "unserved", Value::Null, all(1_000)).await;
    for run in [tried, hangs, unserved] {
        assert_eq!(told(&run).await, "a!ScheduleToClose ScheduleToCloseTimeout");
    }
    let dead = dead(&engine).await;
    assert_eq!(dead.len(), 3);
    assert!(dead.iter().any(|letter| letter.reason.contains("the last failed with Error: again")));
}

/// Gets further with each attempt, and says how far.
struct Resuming(Arc<Counts>);

impl Activity for Resuming {
    const TYPE: &'static str = "resuming";
    type Input = ();
    type Output = Vec<u64>;

    async fn execute(&self, ctx: &ActivityContext, (): ()) -> Result<Vec<u64>, ActivityError> {
        let mut done: Vec<u64> = match ctx.last_heartbeat() {
            Some(said) => serde_json::from_value(said)?,
            None => vec![],
        };
        done.push(u64::from(ctx.attempt));
        ctx.heartbeat(Some(json!(done))).await?;
        assert!(self.0.hit(&ctx.attempt_id.to_string()) == 1, "attempts have ids of their own");
        match ctx.attempt {
            3 => Ok(done),
            _ => Err(ActivityError::new("not all of it")),
        }
    }
}

async fn heartbeats_reach_the_next_attempt(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    engine.machine_activity(Resuming(Arc::clone(&counts))).unwrap();
    let run = asks_for(&engine, "p", "resuming", Value::Null, options(2)).await;
    assert_eq!(told(&run).await, "a=[1,2,3]");
}

struct Busy(Arc<Counts>);

impl Activity for Busy {
    const TYPE: &'static str = "busy";
    type Input = ();
    type Output = u32;

    async fn execute(&self, ctx: &ActivityContext, (): ()) -> Result<u32, ActivityError> {
        match self.0.hit("busy") {
            1..=3 => Err(ActivityError::rate_limited(Duration::from_millis(20))),
            _ => Ok(ctx.attempt),
        }
    }
}

async fn a_rate_limited_failure_uses_up_no_attempt(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    engine.machine_activity(Busy(Arc::clone(&counts))).unwrap();
    let run = asks_for(&engine, "p", "busy", Value::Null, options(0)).await;
    assert_eq!(told(&run).await, "a=1", "its only attempt");
    assert_eq!(counts.get("busy"), 4);
}

/// Goes wrong in every way there is.
struct Poison;

impl Activity for Poison {
    const TYPE: &'static str = "poison";
    type Input = String;
    type Output = String;

    async fn execute(&self, ctx: &ActivityContext, how: String) -> Result<String, ActivityError> {
        match how.as_str() {
            "panic" => panic!("poison"),
            "large" => Ok("x".repeat(2 << 20)),
            "silent" => std::future::pending().await,
            "block" => {
                // It ignores its cancellation.
                while !ctx.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                std::thread::sleep(Duration::from_secs(2));
                Ok("late".into())
            }
            _ => Err(ActivityError::new("y".repeat(3 << 20))),
        }
    }
}

async fn poisoned_activities_end_as_dead_letters(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    engine.machine_activity(Poison).unwrap();
    let silent =
        ActivityOptions { heartbeat_timeout: Some(Duration::from_millis(200)), ..options(1) };
    let mut runs = Vec::new();
    // More that block their threads than this runtime has.
    for how in ["block 1", "block 2", "block 3", "block 4", "panic", "large", "silent", "long"] {
        let kind = how.split(' ').next().unwrap();
        let id = how.replace(' ', "-");
        let options = match kind {
            "block" | "silent" => silent.clone(),
            _ => options(1),
        };
        runs.push((kind, asks_for(&engine, &id, "poison", json!(kind), options).await));
    }
    let order = engine.remote_machine::<Order>().unwrap();
    let healthy = order.start("lamp".into()).id("healthy").await.unwrap();
    assert_eq!(healthy.result().await.unwrap(), "lamp reserve charge ship");
    for (kind, run) in &runs {
        let expect = match *kind {
            "panic" => "a!Panic",
            "large" => "a!ResultTooLarge",
            "long" => "a!ActivityError",
            _ => "a!Heartbeat HeartbeatTimeout",
        };
        assert_eq!(told(run).await, expect, "{kind}");
    }
    let dead = dead(&engine).await;
    assert_eq!(dead.len(), 8);
    for letter in dead {
        let errors: Vec<Value> = letter.errors.unwrap().read().unwrap();
        let once = errors[0]["name"] == "ResultTooLarge";
        assert_eq!(errors.len(), if once { 1 } else { 2 }, "{errors:?}");
    }
}

fn error_names(letter: &DeadLetter) -> Vec<String> {
    let errors: Vec<Value> = letter.errors.as_ref().unwrap().read().unwrap();
    errors.iter().map(|error| error["name"].as_str().unwrap().to_owned()).collect()
}

async fn a_requeued_activity_keeps_its_letter(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("no-charge".into()).id("o").await.unwrap();
    run.result().await.unwrap_err();
    let flow = async |ctx: windlass::Ctx, (): ()| {
        ok(ctx.activity::<_, String>("s", "mark", &("s", "no-s")).await?)
    };
    let of_steps = engine.workflow("of-steps", flow).unwrap();
    of_steps.start(()).await.unwrap().result().await.unwrap_err();
    for letter in dead(&engine).await {
        for times in 1..=2 {
            engine.admin().requeue(letter.task_id, None).await.unwrap();
            until("it dies again, and its run with it", || async {
                let again = engine.core().dead_letter(letter.task_id).await.unwrap();
                let run = engine.core().current(again.run_key.unwrap()).await.unwrap();
                again.requeued_at.is_none() && run.status == RunStatus::Errored
            })
            .await;
            let again = engine.core().dead_letter(letter.task_id).await.unwrap();
            assert_eq!(again.requeues, times);
            assert_eq!(error_names(&again).len(), 1 + times as usize);
        }
    }
    assert_eq!(dead(&engine).await.len(), 2, "they are the same letters");
    assert_eq!((counts.get("reserve"), counts.get("charge"), counts.get("s")), (1, 3, 3));
}

/// Asks for one thing, and if that fails for another.
struct Fallback;

impl windlass::machines::Workflow for Fallback {
    const TYPE: &'static str = "fallback";
    type Input = ();
    type Output = String;

    fn new((): ()) -> Self {
        Self
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![WorkflowAction::activity_with("first", "moody", json!("first"), options(0))]
    }

    fn on_activity_completed(&mut self, id: &str, _: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(json!(id))]
    }

    fn on_activity_failed(&mut self, id: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        match id {
            "first" => {
                let second = ("second", "moody", json!("second"));
                vec![WorkflowAction::activity_with(second.0, second.1, second.2, options(0))]
            }
            _ => vec![WorkflowAction::fail(error)],
        }
    }
}

async fn the_activity_of_the_letter_is_tried_again(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let moody = {
        let counts = Arc::clone(&counts);
        move |_: TaskContext, id: String| {
            let times = counts.hit(&id);
            async move {
                match times {
                    1 => Err(AnyError::msg("not now")),
                    _ => ok(()),
                }
            }
        }
    };
    engine.activity("moody", moody).unwrap();
    let run = engine.machine::<Fallback>().unwrap().start(()).id("f").await.unwrap();
    run.result().await.unwrap_err();
    let dead = dead(&engine).await;
    let first = dead.iter().find(|letter| letter.step_key.as_ref().unwrap().as_str() == "first");
    engine.admin().requeue(first.unwrap().task_id, None).await.unwrap();
    let again = engine.remote_machine::<Fallback>().unwrap().get("f").await.unwrap();
    assert_eq!(again.result().await.unwrap(), "first");
    assert_eq!((counts.get("first"), counts.get("second")), (2, 1));
}
