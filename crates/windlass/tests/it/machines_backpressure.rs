//! Backpressure and admission: a worker that has enough takes nothing new, and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use windlass::admin::{Admission, BackpressureConfig, Options};
use windlass::kernel::{BoxFuture, Query, WorkerInfo};
use windlass::model::{Env, ThreadPool, TokioEnv, Usage};
use windlass::{Ctx, Engine, RunHandle, TaskContext, WorkflowRef};

use crate::harness::{Counts, Harness, fence_elsewhere, ok, on_every_store, until};

on_every_store!(
    a_worker_stops_at_the_upper_mark_and_goes_on_below_the_lower,
    a_worker_without_memory_takes_nothing_until_it_has_some,
    new_runs_are_refused_while_too_much_waits,
    a_worker_full_of_activities_ends_what_they_are_for,
    activities_are_begun_by_priority,
);

async fn info(engine: &Engine) -> WorkerInfo {
    let query = Query::Workers { after: None, limit: 100 };
    let rows = engine.admin().store().list(query).await.unwrap().workers().unwrap();
    rows.into_iter()
        .find(|row| row.info.worker == engine.admin().worker())
        .expect("it is registered")
        .info
}

/// A workflow of one activity that waits for the gate.
fn gated(engine: &Engine, counts: &Arc<Counts>) -> (WorkflowRef<u32, u32>, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let (waits, counts) = (gate.clone(), counts.clone());
    let activity = move |_: TaskContext, n: u32| {
        let (gate, counts) = (waits.clone(), counts.clone());
        async move {
            counts.hit("begun");
            gate.acquire().await?.forget();
            ok(n)
        }
    };
    engine.activity("gate", activity).unwrap();
    let flow = async |ctx: Ctx, n: u32| ok(ctx.activity::<_, u32>("a", "gate", &n).await?);
    (engine.workflow("gated", flow).unwrap(), gate)
}

async fn started(flow: &WorkflowRef<u32, u32>, count: u32) -> Vec<RunHandle<u32>> {
    flow.start_batch((0..count).map(|n| (format!("r{n}"), n))).await.unwrap()
}

async fn a_worker_stops_at_the_upper_mark_and_goes_on_below_the_lower(h: Arc<Harness>) {
    let counts = Counts::new();
    let config =
        BackpressureConfig { high_watermark: 0.6, low_watermark: 0.3, ..Default::default() };
    let set = |options| Options { tasks_max: 10, backpressure: Some(config), ..options };
    let engine = h.engine_with(set).await;
    let (flow, gate) = gated(&engine, &counts);
    assert!(info(&engine).await.accepting);
    let runs = started(&flow, 20).await;
    until("it says so", || async { !info(&engine).await.accepting }).await;
    until("what it holds has begun", || async { counts.get("begun") >= 6 }).await;
    let said = info(&engine).await;
    assert_eq!(said.note.as_deref(), Some("backpressure: tasks"));
    assert_eq!((counts.get("begun"), said.task_load, said.task_slots), (6, 6, 10));
    // Four left are too many to go on; with the next that ends, it takes up to the mark again.
    gate.add_permits(2);
    until("two are done", || async { engine.admin().metrics().tasks_completed.get() == 2 }).await;
    until("four are left", || async { engine.core().capacity_used().0 == 4 }).await;
    fence_elsewhere().await;
    assert_eq!(counts.get("begun"), 6, "it has not fallen below the lower mark");
    gate.add_permits(18);
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), n as u32);
    }
    until("it takes again", || async { info(&engine).await.accepting }).await;
    assert_eq!((counts.get("begun"), info(&engine).await.note), (20, None));
}

/// The real world, but for how much memory the process uses.
struct Memory {
    env: Arc<TokioEnv>,
    bytes: AtomicU64,
    reads: AtomicU64,
}

impl Env for Memory {
    fn elapsed(&self) -> Duration {
        self.env.elapsed()
    }

    fn sleep(&self, span: Duration) -> BoxFuture<'static, ()> {
        self.env.sleep(span)
    }

    fn spawn(&self, pool: ThreadPool, future: BoxFuture<'static, ()>) {
        self.env.spawn(pool, future);
    }

    fn random(&self) -> u64 {
        self.env.random()
    }

    fn usage(&self) -> Option<Usage> {
        let memory_bytes = self.bytes.load(Ordering::SeqCst);
        self.reads.fetch_add(1, Ordering::SeqCst);
        // Nobody tells: a system without the files.
        (memory_bytes > 0).then_some(Usage {
            memory_bytes,
            cpu_time: Duration::ZERO,
            processors: 1,
        })
    }
}

async fn a_worker_without_memory_takes_nothing_until_it_has_some(h: Arc<Harness>) {
    let (bytes, reads) = Default::default();
    let env = Arc::new(Memory { env: TokioEnv::new().unwrap(), bytes, reads });
    let config = BackpressureConfig { memory_threshold: Some(1_000), ..Default::default() };
    let set = |options| Options { backpressure: Some(config.clone()), ..options };
    if h.kind == crate::harness::Kind::Memory {
        let refused = h.engine_in(env.clone(), set).await.err().unwrap();
        assert_eq!(refused.code(), "INVALID_OPTION");
        assert!(refused.message().contains("/proc"), "{refused}");
    }
    env.bytes.store(1_500, Ordering::SeqCst);
    let engine = h.engine_in(env.clone(), set).await.unwrap();
    let echo = engine.workflow("echo", async |_: Ctx, n: u32| ok(n)).unwrap();
    until("it says so", || async { !info(&engine).await.accepting }).await;
    assert_eq!(info(&engine).await.note.as_deref(), Some("backpressure: memory"));
    let run = echo.start(7).await.unwrap();
    env.bytes.store(800, Ordering::SeqCst);
    let reads = env.reads.load(Ordering::SeqCst);
    // It has acted on a value before it reads the next one.
    until("it has read this", || async { env.reads.load(Ordering::SeqCst) >= reads + 3 }).await;
    assert_eq!(engine.admin().metrics().turns.get(), 0, "it has not fallen below 700");
    env.bytes.store(600, Ordering::SeqCst);
    assert_eq!(run.result().await.unwrap(), 7);
    until("it takes again", || async { info(&engine).await.accepting }).await;
    assert!(TokioEnv::new().unwrap().usage().is_some_and(|usage| usage.memory_bytes > 1_000_000));
}

async fn new_runs_are_refused_while_too_much_waits(h: Arc<Harness>) {
    let counts = Counts::new();
    let admission = Some(Admission { max_queue_ratio: 10.0 });
    let set = |options| Options { tasks_max: 1, admission, ..options };
    let engine = h.engine_with(set).await;
    let (flow, gate) = gated(&engine, &counts);
    let child = engine.workflow("child", async |_: Ctx, n: u32| ok(n)).unwrap();
    let parent = engine
        .workflow("parent", move |ctx: Ctx, (): ()| {
            let child = child.clone();
            async move {
                let n = ctx.event::<u32>("wait", "go").await?;
                ok(ctx.child("c", &child, &n).await?)
            }
        })
        .unwrap();
    let parent = parent.start(()).id("p").await.unwrap();
    assert!(engine.admin().should_accept_workflow().await.unwrap());
    let runs = started(&flow, 15).await;
    until("too much waits", || async { !engine.admin().should_accept_workflow().await.unwrap() })
        .await;
    let refused = flow.start(99).id("new").await.err().unwrap();
    assert_eq!(refused.code(), "OVERLOADED");
    assert!(refused.message().contains("the limit is 10"), "{refused}");
    assert_eq!(
        flow.start_batch([("new".to_owned(), 99)]).await.err().unwrap().code(),
        "OVERLOADED"
    );
    assert!(flow.start(3).id("r3").await.unwrap().existed(), "a run that is there is found");
    parent.send_event("go", &5).await.unwrap();
    assert_eq!(parent.result().await.unwrap(), 5, "children are taken in");
    gate.add_permits(20);
    for run in runs {
        run.result().await.unwrap();
    }
    until("it takes in again", || async { engine.admin().should_accept_workflow().await.unwrap() })
        .await;
    assert_eq!(flow.start(99).id("new").await.unwrap().result().await.unwrap(), 99);
}

async fn a_worker_full_of_activities_ends_what_they_are_for(h: Arc<Harness>) {
    let counts = Counts::new();
    let engine = h.engine_with(|options| Options { tasks_max: 1, ..options }).await;
    let (_, gate) = gated(&engine, &counts);
    let parent =
        async |ctx: Ctx, n: u32| ok(ctx.child_named::<_, u32>("child", "gated", &n).await.is_ok());
    let parent = engine.workflow("parent", parent).unwrap();
    let run = parent.start(1).await.unwrap();
    until("it is full", || async { counts.get("begun") == 1 }).await;
    // The children of an ended run are ended by a task of the engine's.
    run.terminate().await.unwrap();
    until("the child is ended, too", || async {
        engine.admin().metrics().runs_terminated.get() == 2
    })
    .await;
    gate.add_permits(1);
}

async fn activities_are_begun_by_priority(h: Arc<Harness>) {
    use windlass::machines::{ActivityOptions, WorkflowAction};
    let engine = h.engine_with(|options| Options { tasks_max: 1, ..options }).await;
    engine.machine::<crate::machines_fixtures::Puppet>().unwrap();
    let puppets = engine.remote_machine::<crate::machines_fixtures::Puppet>().unwrap();
    let run = puppets.start(false).id("p").await.unwrap();
    let asked = |priority: i16| {
        let options = ActivityOptions { priority, ..ActivityOptions::default() };
        let input = serde_json::json!(priority);
        WorkflowAction::activity_with(format!("a{priority}"), "noted", input, options)
    };
    run.signal("do", &[0, 5, -5, 9].map(asked)).await.unwrap();
    crate::harness::until_asked(&run, "a9").await;
    // Nobody serves them before all are there, and then one at a time is taken.
    let begun = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let notes = Arc::clone(&begun);
    let noted = move |context: TaskContext, priority: i16| {
        notes.lock().push(priority);
        async move { ok(context.trace.is_some()) }
    };
    engine.activity("noted", noted).unwrap();
    until("all are done", || async { begun.lock().len() == 4 }).await;
    let begun = begun.lock().clone();
    // One claim in eight takes the oldest.
    let in_order = begun.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(in_order >= 2, "{begun:?}");
    run.terminate().await.unwrap();
}
