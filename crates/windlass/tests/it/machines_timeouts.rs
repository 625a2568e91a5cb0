//! Timeouts of activities that nobody has begun, while a worker begins or settles them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;
use windlass::kernel::{BoxFuture, Commit, CommitResults, Op, TasksQuery};
use windlass::machines::{Activity, ActivityContext, ActivityError, ActivityOptions};
use windlass::{Engine, Store};
use windlass_testkit::gate::{Gate, GatedStore, Pass};

use crate::harness::{Counts, Harness, event_types, ok, on_every_store, until};
use crate::machines_activity_retry::{asks_for, dead, options, told};
use crate::machines_fixtures::Puppet;

on_every_store!(a_claim_beats_the_timeout, a_result_beats_the_timeout, a_failure_beats_the_timeout);

/// Stops the first commit of a turn that gives a task up, until the test lets it pass.
#[derive(Clone)]
struct Stopped {
    seen: Arc<AtomicU32>,
    open: Arc<Semaphore>,
}

impl Gate for Stopped {
    fn pass(&self) -> Pass {
        Pass::Through
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        let gives_up = |commit: &Commit| {
            commit.run.is_some() && commit.ops.iter().any(|op| matches!(op, Op::DeadLetter(_)))
        };
        let stops = commits.iter().any(gives_up) && self.seen.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            if stops {
                drop(self.open.acquire().await);
            }
            inner.commit(commits).await
        })
    }
}

/// A run whose activity has run out of time to begin; the commit that says so is stopped.
async fn out_of_time(h: &Harness) -> (Stopped, Engine, windlass::RunHandle<Vec<String>>) {
    let gate = Stopped { seen: Arc::default(), open: Arc::new(Semaphore::new(0)) };
    let around = gate.clone();
    let wrap = |store| Arc::new(GatedStore::with_gate(store, around)) as Arc<dyn Store>;
    let (engine, other) = h.engine_behind(wrap).await;
    engine.machine::<Puppet>().unwrap();
    let soon = Some(Duration::from_millis(50));
    let options = ActivityOptions { schedule_to_start_timeout: soon, ..options(0) };
    let run = asks_for(&engine, "p", "late", Value::Null, options).await;
    until("its time is over", || async { gate.seen.load(Ordering::SeqCst) == 1 }).await;
    (gate, other, run)
}

async fn tasks(engine: &Engine) -> Vec<windlass::kernel::Task> {
    let query = TasksQuery::all(windlass::Namespace::default_namespace(), 10);
    let rows = engine.admin().store().list(windlass::kernel::Query::Tasks(query)).await;
    rows.unwrap().tasks().unwrap()
}

async fn assert_no_timeout(run: &windlass::RunHandle<Vec<String>>) {
    let events = event_types(run).await;
    let wrong = |name: &String| name == "activity.timed_out" || name == "workflow.blocked";
    assert!(!events.iter().any(wrong), "{events:?}");
}

async fn a_claim_beats_the_timeout(h: Arc<Harness>) {
    let (gate, other, run) = out_of_time(&h).await;
    let (counts, done) = (Counts::new(), Arc::new(Semaphore::new(0)));
    let late = {
        let (counts, done) = (Arc::clone(&counts), Arc::clone(&done));
        move |_: windlass::TaskContext, (): ()| {
            let (counts, done) = (Arc::clone(&counts), Arc::clone(&done));
            async move {
                counts.hit("begun");
                drop(done.acquire().await);
                ok(7)
            }
        }
    };
    other.activity("late", late).unwrap();
    until("a worker begins it", || async { counts.get("begun") == 1 }).await;
    gate.open.add_permits(1);
    // A signal is read in a turn after the one that was refused.
    run.signal("note", &()).await.unwrap();
    until("the run has had another turn", || async {
        event_types(&run).await.iter().filter(|name| *name == "signal.received").count() == 2
    })
    .await;
    assert!(tasks(&other).await[0].worker.is_some(), "the worker still has it");
    done.add_permits(1);
    until("it is over", || async { tasks(&other).await.is_empty() }).await;
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap()[2..], ["signal note", "a=7", "signal end"]);
    assert_no_timeout(&run).await;
    assert_eq!((counts.get("begun"), dead(&other).await.len()), (1, 0));
}

async fn a_result_beats_the_timeout(h: Arc<Harness>) {
    let (gate, other, run) = out_of_time(&h).await;
    other.activity("late", async |_: windlass::TaskContext, (): ()| ok(7)).unwrap();
    until("it is over", || async { tasks(&other).await.is_empty() }).await;
    gate.open.add_permits(1);
    assert_eq!(told(&run).await, "a=7");
    assert_no_timeout(&run).await;
    assert_eq!(dead(&other).await.len(), 0);
}

struct Late;

impl Activity for Late {
    const TYPE: &'static str = "late";
    type Input = ();
    type Output = u32;

    async fn execute(&self, _: &ActivityContext, (): ()) -> Result<u32, ActivityError> {
        Err(ActivityError::non_retryable("no").named("Declined"))
    }
}

async fn a_failure_beats_the_timeout(h: Arc<Harness>) {
    let (gate, other, run) = out_of_time(&h).await;
    other.machine_activity(Late).unwrap();
    until("it is given up", || async { dead(&other).await.len() == 1 }).await;
    gate.open.add_permits(1);
    assert_eq!(told(&run).await, "a!Declined");
    assert_no_timeout(&run).await;
    let dead = dead(&other).await;
    assert_eq!((dead.len(), &*dead[0].reason), (1, "no"));
}
