//! Crashes are counted against the run or task that causes them, not against those beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::admin::Options;
use windlass::kernel::{BoxFuture, Commit, CommitResults};
use windlass::{Ctx, Engine, RunStatus, Store, WorkflowRef};
use windlass_testkit::gate::{Gate, GatedStore, Pass};

use crate::harness::{Counts, Harness, Kind, ok, run, until};

const RUNS: u32 = 200;
const BAD: u32 = 77;

fn short_lease(options: Options) -> Options {
    let lease = Duration::from_millis(900);
    Options { lease, renew_every: lease / 3, ..options }
}

// In a crowded process every body waits for ever, so a crash takes all of them. Otherwise only the bad
// one does.
fn flow(engine: &Engine, counts: &Arc<Counts>, crowded: bool) -> WorkflowRef<u32, u32> {
    let counts = counts.clone();
    let bodies = Arc::new(AtomicU32::new(0));
    let flow = move |ctx: Ctx, n: u32| {
        let (counts, bodies) = (counts.clone(), bodies.clone());
        async move {
            let body = async || {
                bodies.fetch_add(1, Ordering::SeqCst);
                counts.hit("begun");
                if crowded {
                    futures::future::pending::<()>().await;
                }
                if n == BAD {
                    // A process that dies here holds nothing else.
                    counts.hit(if bodies.load(Ordering::SeqCst) == 1 { "alone" } else { "beside" });
                    futures::future::pending::<()>().await;
                }
                tokio::task::yield_now().await;
                bodies.fetch_sub(1, Ordering::SeqCst);
                ok(n)
            };
            ok(ctx.step("body", body).await?)
        }
    };
    engine.workflow("crowd", flow).unwrap()
}

async fn one_run_that_crashes_its_process_is_given_up_alone(h: Arc<Harness>) {
    let counts = Counts::new();
    let mut runs = Vec::new();
    for crash in 0..2 {
        let engine = h.engine_with(short_lease).await;
        let flow = flow(&engine, &counts, true);
        if crash == 0 {
            for n in 0..RUNS {
                runs.push(flow.start(n).id(format!("run-{n}")).await.unwrap().run_key());
            }
        }
        until("all bodies run", || async { counts.get("begun") == RUNS }).await;
        counts.reset("begun");
        h.lose(&engine).await;
    }
    // Everybody is a suspect now. The innocent are tried one by one, until the bad one crashes alone.
    let engine = h.engine_with(short_lease).await;
    flow(&engine, &counts, false);
    until("the bad run is tried", || async { counts.get("alone") + counts.get("beside") == 1 })
        .await;
    assert_eq!(counts.get("alone"), 1, "nothing runs beside a suspect");
    h.lose(&engine).await;
    let engine = h.engine_with(short_lease).await;
    let flow = flow(&engine, &counts, false);
    for n in 0..RUNS {
        let run = flow.get(format!("run-{n}")).await.unwrap();
        let result = run.result().await;
        match n {
            BAD => {
                let error = format!("{:?}", result.unwrap_err());
                assert!(error.contains("NoProgress"), "{error}");
            }
            _ => assert_eq!(result.unwrap(), n),
        }
    }
    assert_eq!((counts.get("alone"), counts.get("beside")), (1, 0), "it is not tried again");
    let bad = flow.get(format!("run-{BAD}")).await.unwrap();
    assert_eq!(bad.status().await.unwrap().status, RunStatus::Errored);
    until("no record of a trial is left", || async { records(&h).await == 0 }).await;
}

async fn records(h: &Harness) -> i64 {
    h.number("SELECT count(*) FROM settings WHERE kind = 'trial'").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_run_beside_200_on_sqlite() {
    run(Kind::Sqlite, one_run_that_crashes_its_process_is_given_up_alone).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_bad_run_beside_200_on_postgres() {
    run(Kind::Postgres, one_run_that_crashes_its_process_is_given_up_alone).await;
}

/// A store that panics when the record of a trial is written for the first time.
struct PanickingRecord(Arc<Counts>);

impl Gate for PanickingRecord {
    fn pass(&self) -> Pass {
        Pass::Through
    }

    fn pass_setting(&self, bytes: usize) -> Pass {
        let is_record = bytes == r#"{"reclaims":1}"#.len();
        assert!(!is_record || self.0.hit("records") > 1, "the store");
        Pass::Through
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        inner.commit(commits)
    }
}

async fn a_panic_before_a_trial_gives_the_run_back(h: Arc<Harness>) {
    let set = |options| Options { reclaims_max: 2, ..short_lease(options) };
    let counts = Counts::new();
    let engine = h.engine_with(set).await;
    flow(&engine, &counts, true).start(1).id("run").await.unwrap();
    until("the body runs", || async { counts.get("begun") == 1 }).await;
    h.lose(&engine).await;
    let gate = PanickingRecord(counts.clone());
    let wrap = |store| -> Arc<dyn Store> { Arc::new(GatedStore::with_gate(store, gate)) };
    let (engine, _beside) = h.engine_behind_with(set, wrap).await;
    let flow = flow(&engine, &counts, false);
    assert_eq!(flow.get("run").await.unwrap().result().await.unwrap(), 1);
    assert_eq!(counts.get("records"), 2, "the trial was begun twice");
    until("no record of a trial is left", || async { records(&h).await == 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_before_a_trial_on_sqlite() {
    run(Kind::Sqlite, a_panic_before_a_trial_gives_the_run_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_before_a_trial_on_postgres() {
    run(Kind::Postgres, a_panic_before_a_trial_gives_the_run_back).await;
}

// A graceful stop during a trial is no crash, however often it happens.
async fn a_trial_that_is_stopped_proves_nothing(h: Arc<Harness>) {
    let counts = Counts::new();
    let mut bad = None;
    for _ in 0..2 {
        let engine = h.engine_with(short_lease).await;
        let flow = flow(&engine, &counts, true);
        if bad.is_none() {
            bad = Some(flow.start(BAD).id("bad").await.unwrap().run_key());
        }
        until("the body runs", || async { counts.get("begun") == 1 }).await;
        counts.reset("begun");
        h.lose(&engine).await;
    }
    for _ in 0..4 {
        let engine = h.engine_with(short_lease).await;
        flow(&engine, &counts, true);
        until("the body runs", || async { counts.get("begun") == 1 }).await;
        counts.reset("begun");
        h.stop_within(&engine, Duration::from_millis(10)).await;
    }
    let engine = h.engine_with(short_lease).await;
    let good = async |ctx: Ctx, n: u32| ok(ctx.step("body", async || ok(n)).await?);
    let flow = engine.workflow("crowd", good).unwrap();
    assert_eq!(flow.get("bad").await.unwrap().result().await.unwrap(), BAD);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_trial_on_sqlite() {
    run(Kind::Sqlite, a_trial_that_is_stopped_proves_nothing).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_trial_on_postgres() {
    run(Kind::Postgres, a_trial_that_is_stopped_proves_nothing).await;
}
