//! Workers that stop, freeze and are taken from: what becomes of the attempts that they have begun.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::admin::Options;
use windlass::machines::{Activity, ActivityContext, ActivityError, ActivityOptions};
use windlass::{Engine, TaskContext};

use crate::examples::example;
use crate::harness::{Counts, Harness, PATIENCE, event_types, ok, on_every_store, until};
use crate::machines_activity_retry::{asks_for, options, told};
use crate::machines_fixtures::{Puppet, serve};

on_every_store!(attempts_hear_that_their_worker_stops, the_last_heartbeat_outlives_the_worker);

// An attempt that blocks its thread until it is told, and one that waits.
fn serve_deaf(engine: &Engine, counts: &Arc<Counts>) {
    let counts = Arc::clone(counts);
    let blocks = move |context: TaskContext, (): ()| {
        let counts = Arc::clone(&counts);
        async move {
            counts.hit("begun");
            while !context.is_cancelled() {
                std::thread::sleep(Duration::from_millis(5));
            }
            counts.hit("heard");
            ok(())
        }
    };
    engine.activity("blocks", blocks).unwrap();
}

async fn attempts_hear_that_their_worker_stops(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    serve_deaf(&engine, &counts);
    asks_for(&engine, "p", "blocks", Value::Null, options(1)).await;
    until("it runs", || async { counts.get("begun") == 1 }).await;
    h.stop_within(&engine, Duration::from_millis(20)).await;
    until("it hears of it", || async { counts.get("heard") == 1 }).await;
}

async fn the_last_heartbeat_outlives_the_worker(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let serve_saying = |engine: &Engine| {
        let counts = Arc::clone(&counts);
        let says = move |context: TaskContext, (): ()| {
            let counts = Arc::clone(&counts);
            async move {
                if let Some(said) = context.last_heartbeat::<u32>() {
                    return ok(said);
                }
                context.heartbeat_with(&7)?;
                counts.hit("said");
                futures::future::pending().await
            }
        };
        engine.activity("says", says).unwrap();
    };
    serve_saying(&engine);
    asks_for(&engine, "p", "says", Value::Null, options(1)).await;
    until("it has said something", || async { counts.get("said") == 1 }).await;
    // Sooner than heartbeats are written.
    h.stop_within(&engine, Duration::ZERO).await;
    let engine = h.engine().await;
    serve(&engine, &counts);
    serve_saying(&engine);
    let run = engine.remote_machine::<Puppet>().unwrap().get("p").await.unwrap();
    assert_eq!(told(&run).await, "a=7");
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
    fn start(dsn: &str, queue: &str, lease: &str) -> Self {
        let mut process = example("machine_worker")
            .args([dsn, queue, lease])
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

// The example knows no schema but the default, so that each test has a database of its own.
async fn with_worker<Fut: Future<Output = ()>>(
    name: &str,
    lease: u64,
    test: impl FnOnce(Engine, Worker) -> Fut,
) {
    let database = format!("{name}_{}", std::process::id());
    let admin = crate::schema::connect().await;
    admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
    let server = crate::schema::dsn();
    let dsn = format!("{}/{database}", server.rsplit_once('/').unwrap().0);
    let lease_span = Duration::from_secs(lease);
    let options = Options {
        lease: lease_span,
        renew_every: lease_span / 6,
        scan_every: lease_span / 2,
        shared: true,
        ..Options::default()
    };
    let engine = windlass::Builder::from(options).open(&dsn).await.unwrap();
    let worker = Worker::start(&dsn, QUEUE, &lease.to_string());
    assert_eq!(worker.line(), "serving photos");
    engine.machine::<Puppet>().unwrap();
    test(engine.clone(), worker).await;
    engine.stop(Duration::from_secs(5)).await.unwrap();
    admin.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await.unwrap();
}

const QUEUE: &str = "photos";

// How long the attempt of a worker takes that is frozen meanwhile: on a busy machine the signal may
// arrive a good while after the attempt has begun.
const ATTEMPT_MS: u64 = 3_000;

// The result that a frozen worker sends when it continues is refused.
async fn completed_once(worker: &Worker, run: &windlass::RunHandle<Vec<String>>, attempt: u32) {
    // A worker that stops has sent everything.
    worker.send("-TERM");
    while worker.line() != "stopped" {}
    let steps = run.steps().await.unwrap();
    assert_eq!((steps.len(), steps[0].attempt), (1, attempt));
    let completed = event_types(run).await.into_iter().filter(|t| t == "activity.completed");
    assert_eq!(completed.count(), 1);
}

// A worker that is frozen in the middle of an attempt loses it, and what it sends afterwards is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_worker_settles_nothing() {
    with_worker("frozen", 30, |engine, worker| async move {
        let options = ActivityOptions {
            // Longer than the attempt, so that the continued worker finds its own result first.
            start_to_close_timeout: Some(Duration::from_millis(2 * ATTEMPT_MS)),
            queue: QUEUE.into(),
            ..options(1)
        };
        let run = asks_for(&engine, "frozen", "develop", json!(ATTEMPT_MS), options).await;
        assert_eq!(worker.line(), "attempt 1 of a begins");
        worker.send("-STOP");
        engine.machine_activity_on(QUEUE, Here).unwrap();
        assert_eq!(told(&run).await, "a=\"here\"");
        worker.send("-CONT");
        assert_eq!(worker.line(), "attempt 1 of a is over");
        completed_once(&worker, &run, 2).await;
    })
    .await;
}

// As above, but nothing times out: its lease does, and a reaper takes the task away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_frozen_past_its_lease_settles_nothing() {
    with_worker("reaped", 4, |engine, worker| async move {
        let options =
            ActivityOptions { start_to_close_timeout: None, queue: QUEUE.into(), ..options(1) };
        let run = asks_for(&engine, "reaped", "develop", json!(ATTEMPT_MS), options).await;
        assert_eq!(worker.line(), "attempt 1 of a begins");
        worker.send("-STOP");
        engine.machine_activity_on(QUEUE, Here).unwrap();
        assert_eq!(told(&run).await, "a=\"here\"");
        worker.send("-CONT");
        completed_once(&worker, &run, 1).await;
    })
    .await;
}

// A worker that is asked to stop finishes what it has begun, and its result counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_terminated_finishes_its_attempt() {
    with_worker("stopping", 30, |engine, worker| async move {
        let options = ActivityOptions { queue: QUEUE.into(), ..options(0) };
        let run = asks_for(&engine, "stopping", "develop", json!(500), options).await;
        assert_eq!(worker.line(), "attempt 1 of a begins");
        worker.send("-TERM");
        assert_eq!(worker.line(), "attempt 1 of a is over");
        assert_eq!(worker.line(), "stopped");
        assert_eq!(told(&run).await, format!("a=\"developed by process {}\"", worker.process.id()));
    })
    .await;
}
