//! A run that is started for later: nothing makes it start before its time.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::Options;
use windlass::kernel::Run;
use windlass::{Ctx, Result, RunHandle, RunStatus};

use crate::harness::{
    Counts, Harness, Kind, event_types, fence, ok, on_every_store, until, until_status,
};

on_every_store!(
    nothing_starts_a_run_before_its_time,
    a_run_that_was_touched_starts_at_its_time,
    control_does_not_start_a_run,
    a_worker_that_is_lost_does_not_start_a_run,
);

async fn greet(counts: Arc<Counts>, ctx: Ctx, (): ()) -> Result<u32> {
    Ok(ctx.step("hello", async || ok(counts.hit("hello"))).await?)
}

async fn row(run: &RunHandle<u32>) -> Run {
    run.run().await.unwrap()
}

// Waits until the engine has consumed all control messages of a run and put its turn away.
async fn until_at_rest(run: &RunHandle<u32>) {
    let at_rest = || async {
        let turn = row(run).await.turn;
        turn.worker.is_none() && !turn.ready
    };
    until("the turn is at rest", at_rest).await;
}

async fn nothing_starts_a_run_before_its_time(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("greet", counts.clone(), greet).unwrap();
    let run = flow.start(()).delay("1 hour").await.unwrap();
    let start = row(&run).await.turn.due_at;
    assert!(start.is_some());

    run.send_event("any", &1).await.unwrap();
    fence(&engine).await;
    run.wake().await.unwrap();
    fence(&engine).await;
    until_at_rest(&run).await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    run.send_event("any", &2).await.unwrap();
    // A paused run reads it in a turn, together with the events.
    run.wake().await.unwrap();
    until_at_rest(&run).await;
    run.resume().await.unwrap();
    until_status(&run, RunStatus::Active).await;
    fence(&engine).await;
    until_at_rest(&run).await;

    let row = row(&run).await;
    assert_eq!((row.turn.due_at, row.started_at), (start, None));
    assert_eq!(counts.get("hello"), 0);
    run.terminate().await.unwrap();
}

async fn a_run_that_was_touched_starts_at_its_time(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("greet", counts.clone(), greet).unwrap();
    let run = flow.start(()).delay("2 seconds").await.unwrap();
    let start = row(&run).await.turn.due_at.unwrap();
    run.send_event("any", &1).await.unwrap();
    run.wake().await.unwrap();
    run.pause().await.unwrap();
    run.resume().await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    let started = row(&run).await.started_at.unwrap();
    assert!(started >= start, "started at {started:?}, which is before {start:?}");
}

async fn control_does_not_start_a_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("greet", counts.clone(), greet).unwrap();

    let run = flow.start(()).delay("1 hour").await.unwrap();
    run.pause().await.unwrap();
    assert_eq!(until_status(&run, RunStatus::Paused).await.status, RunStatus::Paused);
    assert_eq!(row(&run).await.started_at, None);
    run.terminate().await.unwrap();
    let ended = row(&run).await;
    assert_eq!((ended.status, ended.started_at), (RunStatus::Terminated, None));
    assert!(ended.ended_at.is_some());

    let run = flow.start(()).delay("1 hour").await.unwrap();
    assert!(run.cancel("not needed").await.unwrap());
    let ended = row(&run).await;
    assert_eq!((ended.status, ended.started_at), (RunStatus::Terminated, None));
    assert_eq!(counts.get("hello"), 0);
}

// The worker is lost while it holds the turn that a control message gave to the run.
async fn a_worker_that_is_lost_does_not_start_a_run(h: Arc<Harness>) {
    let counts = Counts::new();
    let engine = h.engine().await;
    let flow = engine.workflow_with("greet", counts.clone(), greet).unwrap();
    let run = flow.start(()).delay("1 hour").await.unwrap();
    let start = row(&run).await.turn.due_at;
    let (store, key) = (Arc::clone(engine.admin().store()), run.run_key());
    // As if a worker had claimed it for a control message and had been reaped.
    let worker = engine.admin().worker();
    let claimed = store.revoke(key, worker).await.unwrap().unwrap();
    let held =
        windlass::kernel::HeldItem::Turn { run_key: key, worker, claim_no: claimed.hold.claim_no };
    store.release(vec![held]).await.unwrap();
    fence(&engine).await;
    until_at_rest(&run).await;
    let row = row(&run).await;
    assert_eq!((row.turn.due_at, row.started_at), (start, None));
    assert_eq!(counts.get("hello"), 0);
}

// A message that cannot be read blocks the run when a control request gives it a turn.
async fn a_blocked_run_does_not_start_before_its_time(h: Arc<Harness>) {
    let quick = |options| Options { blocked_retry: Duration::from_millis(100), ..options };
    let engine = h.engine_with(quick).await;
    let counts = Counts::new();
    let flow = engine.workflow_with("greet", counts.clone(), greet).unwrap();
    let run = flow.start(()).delay("1 hour").await.unwrap();
    let start = row(&run).await.turn.due_at;
    run.send_event("any", &1).await.unwrap();
    h.sql("UPDATE messages SET kind = 'unheard-of'").await;
    run.wake().await.unwrap();
    until("the run is blocked", || async {
        event_types(&run).await.iter().any(|name| name == "workflow.blocked")
    })
    .await;
    until_at_rest(&run).await;
    h.sql("UPDATE messages SET kind = 'event' WHERE kind = 'unheard-of'").await;
    fence(&engine).await;
    let row = row(&run).await;
    assert_eq!((row.turn.due_at, row.started_at), (start, None));
    assert_eq!((row.status, counts.get("hello")), (RunStatus::Active, 0));
    run.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_run_does_not_start_before_its_time_on_sqlite() {
    crate::harness::run(Kind::Sqlite, a_blocked_run_does_not_start_before_its_time).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_run_does_not_start_before_its_time_on_postgres() {
    crate::harness::run(Kind::Postgres, a_blocked_run_does_not_start_before_its_time).await;
}
