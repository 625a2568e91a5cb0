//! Retries of runs whose steps do not fit into one commit: all steps are carried over, and the next
//! generation does not run before it has them.

use std::sync::Arc;

use windlass::admin::{Options, Requeued};
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, RunSpec, StepOutcome, StepRunner};
use windlass::{AnyError, Ctx, Engine, Limits, Result, RunHandle, RunStatus, WorkflowRef};

use crate::harness::{Counts, Harness, completed, ok, on_every_store, until};
use crate::relay_calls::RelayCalls as _;

on_every_store!(
    a_run_of_6000_steps_is_retried,
    a_relay_with_5400_memos_is_requeued,
    a_run_that_is_paused_while_its_steps_are_copied_stays_paused,
    the_copying_goes_on_after_a_restart,
);

/// Completes many steps, then fails once, then waits for an event.
async fn many(counts: Arc<Counts>, ctx: Ctx, steps: usize) -> Result<(usize, u32)> {
    let body = async || ok(counts.hit("body"));
    let bodies = (0..steps).map(|n| ctx.step(format!("s{n}"), body));
    let done = futures::future::join_all(bodies).await;
    let done = done.into_iter().filter(|done| done.is_ok()).count();
    let flaky = ctx.step("flaky", async || match counts.hit("flaky") {
        1 => Err(AnyError::msg("not this time")),
        n => Ok(n),
    });
    flaky.retries(0).await?;
    let got = ctx.event("go", "go").await?;
    Ok((done, got))
}

type Many = WorkflowRef<usize, (usize, u32)>;

async fn engine(h: &Harness, limits: Limits) -> Engine {
    h.engine_with(|options| Options { limits, ..options }).await
}

fn serve(engine: &Engine, counts: &Arc<Counts>) -> Many {
    engine.workflow_with("many", counts.clone(), many).unwrap()
}

async fn a_run_of_6000_steps_is_retried(h: Arc<Harness>) {
    let steps = 6_000;
    let limits = Limits { steps_per_run_max: 10_000, ..Limits::DEFAULT };
    let (engine, counts) = (engine(&h, limits).await, Counts::new());
    let run = serve(&engine, &counts).start(steps).await.unwrap();
    run.send_event("go", &7).await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
    let again = run.retry().await.unwrap();
    assert_eq!(again.result().await.unwrap(), (steps, 7));
    assert_eq!((counts.get("body") as usize, counts.get("flaky")), (steps, 2));
    assert_eq!(again.status().await.unwrap().generation, 1);
}

/// Works out many memos a step, and fails in its last step until it was told otherwise.
struct Asker(Arc<Counts>);

const RELAY_STEPS: u32 = 9;
const MEMOS: usize = 600;

impl StepRunner for Asker {
    async fn run_step(&self, step: &RelayStep) -> std::result::Result<StepOutcome, RelayError> {
        let ask = |n: usize| {
            let name = format!("m{n}");
            async move { step.memo(&name, || async { Ok(self.0.hit("memo")) }).await }
        };
        for answer in futures::future::join_all((0..MEMOS).map(ask)).await {
            answer?;
        }
        if step.step_number + 1 < RELAY_STEPS {
            return Ok(StepOutcome::next(""));
        }
        match self.0.hit("last") {
            1 => Err(RelayError::permanent("not this time")),
            _ => Ok(StepOutcome::done("done")),
        }
    }
}

async fn a_relay_with_5400_memos_is_requeued(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let relay = engine.relay("asker", Asker(counts.clone()), NoopTerminalHook).build().unwrap();
    relay.submit(RunSpec::new("").id("a")).await.unwrap();
    relay.wait("a").await.unwrap();
    let letters = engine.admin().dead_letters(None, None, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    let requeued = engine.admin().requeue(letters[0].task_id, None).await.unwrap();
    assert!(matches!(requeued, Requeued::Run(_)), "{requeued:?}");
    until("the next generation ends", || async { counts.get("last") == 2 }).await;
    let ended = relay.wait("a").await.unwrap();
    assert_eq!(ended.result.as_deref(), Some(&b"done"[..]));
    // The memos of the failed step are worked out again only if they were not kept.
    assert_eq!(counts.get("memo") as usize, RELAY_STEPS as usize * MEMOS);
}

// Room for 50 steps in one commit.
fn small() -> Limits {
    Limits { commit_ops_max: 1_200, ..Limits::DEFAULT }
}

// The copying takes some milliseconds, so the pause may come after it. Such a run has started, and the
// test tries another one.
async fn a_run_that_is_paused_while_its_steps_are_copied_stays_paused(h: Arc<Harness>) {
    let (engine, counts) = (engine(&h, small()).await, Counts::new());
    let runs = serve(&engine, &counts);
    for _ in 0..100 {
        counts.reset("body");
        counts.reset("flaky");
        let run = runs.start(700).await.unwrap();
        assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
        let again = run.retry().await.unwrap();
        again.pause().await.unwrap();
        again.wake().await.unwrap();
        again.send_event("go", &7).await.unwrap();
        let ended = until_paused_or_ended(&again).await;
        let has_started = again.run().await.unwrap().started_at.is_some();
        if has_started && !ended {
            again.resume().await.unwrap();
        }
        if !has_started {
            return stays_paused_until_resumed(&again, &counts).await;
        }
        assert_eq!(again.result().await.unwrap(), (700, 7));
    }
    panic!("no pause came before the end of the copying");
}

// Whether the run has ended: a pause that comes too late does not stop it.
async fn until_paused_or_ended<O>(run: &RunHandle<O>) -> bool {
    until("the run is paused or has ended", || async {
        let status = run.run().await.unwrap().status;
        status == RunStatus::Paused || status.is_ended()
    })
    .await;
    run.run().await.unwrap().status.is_ended()
}

async fn stays_paused_until_resumed(run: &RunHandle<(usize, u32)>, counts: &Counts) {
    until("all steps are copied", || async { completed(run).await.len() == 700 }).await;
    until("its turn is put away", || async {
        let turn = run.run().await.unwrap().turn;
        turn.worker.is_none() && !turn.ready && turn.due_at.is_none()
    })
    .await;
    assert_eq!(run.run().await.unwrap().status, RunStatus::Paused);
    assert_eq!(counts.get("flaky"), 1);
    run.resume().await.unwrap();
    assert_eq!(run.result().await.unwrap(), (700, 7));
    assert_eq!((counts.get("body"), counts.get("flaky")), (700, 2));
}

async fn the_copying_goes_on_after_a_restart(h: Arc<Harness>) {
    let (first, counts) = (engine(&h, small()).await, Counts::new());
    let run = serve(&first, &counts).start(700).id("a").await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
    let again = run.retry().await.unwrap();
    h.stop_within(&first, std::time::Duration::ZERO).await;
    drop(again);

    let second = engine(&h, small()).await;
    let again = serve(&second, &counts).get("a").await.unwrap();
    again.send_event("go", &7).await.unwrap();
    assert_eq!(again.result().await.unwrap(), (700, 7));
    assert_eq!((counts.get("body"), counts.get("flaky")), (700, 2));
}
