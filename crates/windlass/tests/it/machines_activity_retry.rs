//! Activities that fail: tried again, timed out, given up; and what the attempts leave each other.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::{DeadLetter, Namespace, Query, RetryLimit};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, MachineRun, WorkflowAction,
};
use windlass::{Engine, RetryPolicy, TaskContext};

use crate::examples::example;
use crate::harness::{Counts, Harness, PATIENCE, event_types, ok, on_every_store, until};
use crate::machines_fixtures::{Order, Puppet, quick, serve};

on_every_store!(
    nobody_begins_it,
    an_attempt_takes_too_long,
    no_heartbeat,
    all_attempts_together,
    heartbeats_reach_the_next_attempt,
    being_told_to_wait_is_no_attempt,
    poisoned_activities_end_as_dead_letters,
);

async fn dead(engine: &Engine) -> Vec<DeadLetter> {
    let (namespace, queue) = (Namespace::default_namespace(), None);
    let query = Query::DeadLetters { namespace, queue, after: None, limit: 100 };
    engine.store().list(query).await.unwrap().dead_letters().unwrap()
}

// Starts a puppet that asks for one activity.
async fn asks_for(
    engine: &Engine,
    id: &str,
    activity: &str,
    input: Value,
    options: ActivityOptions,
) -> MachineRun<Vec<String>> {
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(false).id(id).await.unwrap();
    let action = WorkflowAction::activity_with("a", activity, input, options);
    run.signal("do", &[action]).await.unwrap();
    run
}

// What the machine was told of its activity.
async fn told(run: &MachineRun<Vec<String>>) -> String {
    until("the activity is over", || async {
        let over = ["activity.completed", "activity.failed", "activity.timed_out"];
        event_types(run).await.iter().any(|t| over.contains(&t.as_str()))
    })
    .await;
    run.signal("end", &()).await.unwrap();
    run.result().await.unwrap().remove(2)
}

fn options(retries: u32) -> ActivityOptions {
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
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(40)).await;
            context.heartbeat();
        }
        ok(1)
    };
    engine.activity("beats", beats).unwrap();
    let beat =
        ActivityOptions { heartbeat_timeout: Some(Duration::from_millis(400)), ..options(0) };
    let run = asks_for(&engine, "hangs", "hang", Value::Null, beat.clone()).await;
    let alive = asks_for(&engine, "beats", "beats", Value::Null, beat).await;
    assert_eq!(told(&run).await, "a!Heartbeat HeartbeatTimeout");
    assert_eq!(told(&alive).await, "a=1");
}

async fn all_attempts_together(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    serve_hanging(&engine, &counts);
    let fails = async |_: TaskContext, _: Value| Err::<u32, windlass::BoxError>("again".into());
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
    engine.register_activity(Resuming(Arc::clone(&counts))).unwrap();
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

async fn being_told_to_wait_is_no_attempt(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    engine.register_activity(Busy(Arc::clone(&counts))).unwrap();
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
                // Whoever gave it up, it does not hear of it.
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
    engine.register_activity(Poison).unwrap();
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

struct Here;

impl Activity for Here {
    const TYPE: &'static str = "develop";
    type Input = u64;
    type Output = String;

    async fn execute(&self, _: &ActivityContext, _: u64) -> Result<String, ActivityError> {
        Ok("here".into())
    }
}

// Another process with one activity. It ends with the test, also with one that failed.
struct Worker {
    process: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn start(dsn: &str, queue: &str) -> Self {
        let mut process = example("machine_worker")
            .args([dsn, queue])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let printed = BufReader::new(process.stdout.take().expect("it prints")).lines();
        let (sender, lines) = channel();
        std::thread::spawn(move || printed.map_while(Result::ok).all(|l| sender.send(l).is_ok()));
        Self { process, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }

    fn send(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(sent.expect("kill is there").success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

// A worker that is frozen in the middle of an attempt loses it, and what it sends afterwards is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_settles_nothing() {
    // The example knows no schema but the default, so that it has a database of its own.
    let database = format!("frozen_{}", std::process::id());
    let admin = crate::schema::connect().await;
    admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let server = crate::schema::dsn();
    let dsn = format!("{}/{database}", server.rsplit_once('/').unwrap().0);
    let queue = "photos";
    let engine = Engine::open(&dsn).await.unwrap();
    let worker = Worker::start(&dsn, queue);
    assert_eq!(worker.line(), "serving photos");

    engine.machine::<Puppet>().unwrap();
    let options = ActivityOptions {
        start_to_close_timeout: Some(Duration::from_secs(1)),
        queue: queue.into(),
        ..options(1)
    };
    let run = asks_for(&engine, "frozen", "develop", json!(300), options).await;
    assert_eq!(worker.line(), "attempt 1 of a begins");
    worker.send("-STOP");
    engine.register_activity_on(queue, Here).unwrap();
    assert_eq!(told(&run).await, "a=\"here\"");
    worker.send("-CONT");
    assert_eq!(worker.line(), "attempt 1 of a is over");
    // Long enough for whatever it has to say to be refused.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let steps = run.steps().await.unwrap();
    assert_eq!((steps.len(), steps[0].attempt), (1, 2));
    let completed = event_types(&run).await.into_iter().filter(|t| t == "activity.completed");
    assert_eq!(completed.count(), 1);
    engine.stop(Duration::from_secs(5)).await.unwrap();
    drop(worker);
    admin.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await.unwrap();
}
