//! Panics where nobody guards: a run whose model panics is blocked, a loop of the engine starts again, and the
//! worker goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use windlass::admin::Options;
use windlass::kernel::{
    Body, BoxFuture, Commit, CommitResults, End, Error, ModelName, Namespace, Query, Store,
    TasksQuery, WorkflowName,
};
use windlass::{Ctx, TaskContext};
use windlass_engine::events::WORKFLOW_COMPLETED;
use windlass_engine::{Model, ModelDescription, Opened, Program, StartRun, Turn, TurnError};
use windlass_testkit::gate::{Gate, GatedStore, Pass};

use crate::harness::{Counts, Harness, ok, on_every_store, until};

on_every_store!(
    a_turn_that_panics_is_given_back_and_blocked,
    a_loop_of_the_engine_that_panics_is_started_again,
    heartbeats_are_written_after_a_panic,
);

/// Panics in its first turns, and then ends its runs.
struct Careless(Arc<Counts>);

struct Run(Arc<Counts>);

static DESCRIPTION: ModelDescription = ModelDescription::new(ModelName::from_static("careless"));

impl Model for Careless {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn open(&self, _: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        assert!(self.0.hit("opened") > 1, "the model");
        Ok(Box::new(Run(self.0.clone())))
    }
}

impl Program for Run {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(async move {
            assert!(self.0.hit("turns") > 1, "the program");
            let mut draft = turn.draft();
            turn.end(&mut draft, WORKFLOW_COMPLETED, &json!({}), End::Complete(Body::json("1")))
                .map_err(TurnError::Blocked)?;
            turn.commit(draft).await.map(|_| ())
        })
    }

    fn bytes(&self) -> usize {
        100
    }
}

async fn a_turn_that_panics_is_given_back_and_blocked(h: Arc<Harness>) {
    let again = Duration::from_millis(100);
    let engine = h.engine_with(|options| Options { blocked_retry: again, ..options }).await;
    let counts = Counts::new();
    let name = WorkflowName::new("careless").unwrap();
    engine.core().register(name.clone(), Arc::new(Careless(counts.clone()))).unwrap();
    let model = ModelName::from_stored("careless");
    let run = engine.core().start_run(StartRun::new(name, model, Body::json("1"))).await.unwrap();
    let ended = engine.core().wait(run.run_key).await.unwrap();
    assert_eq!(ended.output, Some(Body::json("1")));
    assert_eq!((counts.get("opened"), counts.get("turns")), (3, 2));
    until("nothing is held", || async { engine.core().load().0 == 0 }).await;
    let query = windlass::kernel::Query::Events { run_key: run.run_key, from: 0, limit: 10 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    let blocked: Vec<String> = (events.iter())
        .filter(|event| event.event_type.as_str() == "workflow.blocked")
        .map(|event| event.payload_json().unwrap()["reason"].as_str().unwrap().to_owned())
        .collect();
    let query = windlass::kernel::Query::Logs {
        run_key: run.run_key,
        level_min: None,
        category: None,
        after: None,
        limit: 10,
    };
    let lines = engine.admin().store().list(query).await.unwrap().logs().unwrap();
    let logged: Vec<String> = lines.iter().map(|line| line.message.to_string()).collect();
    let expect = ["the model", "the program"];
    assert_eq!(blocked.len(), 2, "{blocked:?}");
    for (reason, expect) in blocked.iter().zip(expect) {
        assert!(!reason.contains(expect) && reason.contains("WORKFLOW_PANICKED"), "{reason}");
        assert!(logged.iter().any(|line| line.contains(expect)), "{logged:?}");
    }
}

/// A store whose next calls panic.
struct Panicking(Arc<AtomicU32>);

impl Gate for Panicking {
    fn pass(&self) -> Pass {
        let one_less = |left: u32| left.checked_sub(1);
        let panics = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok();
        assert!(!panics, "the store");
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

async fn a_loop_of_the_engine_that_panics_is_started_again(h: Arc<Harness>) {
    let left = Arc::new(AtomicU32::new(0));
    let gate = Panicking(Arc::clone(&left));
    let (engine, _beside) =
        h.engine_behind(|store| Arc::new(GatedStore::with_gate(store, gate))).await;
    let hellos = engine.workflow("hello", async |_: Ctx, name: String| Ok(name)).unwrap();
    let restarted = || engine.admin().metrics().service_panics.get();
    for _ in 0..3 {
        // Loops of the engine ask the store while no run is there. A call of another task may take the panic.
        let before = restarted();
        until("a loop has panicked", || async {
            left.store(1, Ordering::Release);
            engine.core().wake();
            restarted() > before
        })
        .await;
        left.store(0, Ordering::Release);
        assert_eq!(hellos.start("Ann".into()).await.unwrap().result().await.unwrap(), "Ann");
    }
}

/// A store whose next heartbeats panic.
struct PanickingHeartbeat(Arc<AtomicU32>);

impl Gate for PanickingHeartbeat {
    fn pass(&self) -> Pass {
        Pass::Through
    }

    fn pass_heartbeat(&self) -> Pass {
        let one_less = |left: u32| left.checked_sub(1);
        let panics = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok();
        assert!(!panics, "the store");
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

async fn heartbeats_are_written_after_a_panic(h: Arc<Harness>) {
    let left = Arc::new(AtomicU32::new(1));
    let gate = PanickingHeartbeat(Arc::clone(&left));
    let (engine, _beside) =
        h.engine_behind(|store| Arc::new(GatedStore::with_gate(store, gate))).await;
    let beats = Counts::new();
    let counts = beats.clone();
    let beat = move |context: TaskContext, (): ()| {
        let counts = counts.clone();
        async move {
            while counts.get("end") == 0 {
                context.heartbeat_with(&counts.hit("beats"))?;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ok(())
        }
    };
    engine.activity("beat", beat).unwrap();
    let flow = engine
        .workflow("beats", async |ctx: Ctx, (): ()| {
            ok(ctx.activity::<(), ()>("a", "beat", &()).await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until("a heartbeat has panicked", || async { left.load(Ordering::Acquire) == 0 }).await;
    let query = || {
        let all = TasksQuery::all(Namespace::default_namespace(), 10);
        engine.admin().store().list(Query::Tasks(all))
    };
    until("a later one is written", || async {
        let tasks = query().await.unwrap().tasks().unwrap();
        tasks.iter().any(|task| task.heartbeat.is_some())
    })
    .await;
    beats.hit("end");
    run.result().await.unwrap();
    assert!(engine.admin().metrics().service_panics.get() >= 1);
}
