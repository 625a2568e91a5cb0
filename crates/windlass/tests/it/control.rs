//! Control from outside: pause, resume, terminate, restart, retry and continue-as-new.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::{Options, Tick};
use windlass::kernel::{Query, StepStatus};
use windlass::{AnyError, Ctx, Engine, Result, RunStatus, WorkflowRef};

use crate::harness::{
    Counts, Harness, completed, event_types, fence, fence_elsewhere, ok, on_every_store, until,
    until_asked, until_status, until_waiting,
};

on_every_store!(
    a_waiting_run_pauses_and_goes_on,
    a_run_pauses_when_its_body_has_ended,
    timers_go_on_while_a_run_is_paused,
    resume_of_what_is_not_paused_does_nothing,
    ended_runs_are_left_alone,
    terminate_cuts_off_a_body,
    restart_of_a_live_run,
    restart_of_an_ended_run,
    retry_goes_on_at_the_failed_step,
    retry_of_a_run_that_caught_and_compensated,
    continue_as_new_carries_unread_events,
    events_race_with_generations,
    pauses_and_resumes_beside_each_other,
    a_host_that_ticks,
    a_tick_returns_in_time,
    a_caller_may_be_dropped_before_the_answer,
);

async fn two(counts: Arc<Counts>, ctx: Ctx, (): ()) -> Result<u32> {
    ctx.step("first", async || ok(counts.hit("first"))).await?;
    let got: u32 = ctx.event("wait", "go").await?;
    ctx.step("second", async || ok(counts.hit("second"))).await?;
    Ok(got)
}

async fn a_waiting_run_pauses_and_goes_on(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("two", counts.clone(), two).unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "wait").await;
    until_waiting(&engine, &run).await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    run.pause().await.unwrap();
    // Events that come during a pause are kept.
    run.send_event("go", &5).await.unwrap();
    fence(&engine).await;
    assert_eq!(run.status().await.unwrap().status, RunStatus::Paused);
    assert_eq!(counts.get("second"), 0);
    run.resume().await.unwrap();
    assert_eq!(run.result().await.unwrap(), 5);
    assert_eq!((counts.get("first"), counts.get("second")), (1, 1));
    let types = event_types(&run).await;
    for expect in ["workflow.paused", "workflow.resumed"] {
        assert_eq!(types.iter().filter(|t| *t == expect).count(), 1, "{types:?}");
    }
}

// A workflow whose bodies begin to run and then wait for a permit.
fn gated(engine: &Engine, counts: &Arc<Counts>, gate: &Arc<tokio::sync::Semaphore>) -> Gated {
    let (counts, gate) = (counts.clone(), gate.clone());
    let flow = move |ctx: Ctx, (): ()| {
        let (counts, gate) = (counts.clone(), gate.clone());
        async move {
            for key in ["first", "second"] {
                let body = async || {
                    counts.hit(key);
                    gate.acquire().await?.forget();
                    ok(())
                };
                ctx.step(key, body).await?;
            }
            ok(())
        }
    };
    engine.workflow("gated", flow).unwrap()
}

type Gated = WorkflowRef<(), ()>;

async fn a_run_pauses_when_its_body_has_ended(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (counts, gate) = (Counts::new(), Arc::new(tokio::sync::Semaphore::new(0)));
    let run = gated(&engine, &counts, &gate).start(()).await.unwrap();
    until("the body runs", || async { counts.get("first") == 1 }).await;
    run.pause().await.unwrap();
    fence(&engine).await;
    assert_eq!(run.status().await.unwrap().status, RunStatus::Active);
    gate.add_permits(1);
    until_status(&run, RunStatus::Paused).await;
    // The result of the body is kept, and the next one has not begun.
    assert_eq!(completed(&run).await, ["first"]);
    assert_eq!(counts.get("second"), 0);
    gate.add_permits(1);
    run.resume().await.unwrap();
    run.result().await.unwrap();
    assert_eq!((counts.get("first"), counts.get("second")), (1, 1));
}

async fn timers_go_on_while_a_run_is_paused(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("sleeps", |ctx: Ctx, (): ()| async move {
            ctx.sleep("s", "2 seconds").await?;
            ok(())
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "s").await;
    let sleep = async || {
        let steps = run.steps().await.unwrap();
        steps.into_iter().find(|step| step.step_key.as_str() == "s").unwrap()
    };
    let due = sleep().await.due_at.expect("a sleep has a due time");
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    // This one begins to sleep later, and so the first timer is due before it ends.
    flow.start(()).await.unwrap().result().await.unwrap();
    fence(&engine).await;
    assert_eq!(run.status().await.unwrap().status, RunStatus::Paused);
    let store = engine.admin().store();
    assert!(store.now().await.unwrap() >= due, "the sleep is over while the run is paused");
    run.resume().await.unwrap();
    run.result().await.unwrap();
    // A sleep that began again would have another event, or another due time.
    let types = event_types(&run).await;
    assert_eq!(types.iter().filter(|name| *name == "sleep.started").count(), 1, "{types:?}");
    let settled = sleep().await;
    assert!(settled.due_at.is_none_or(|after| after == due), "{settled:?}");
}

async fn resume_of_what_is_not_paused_does_nothing(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("two", counts.clone(), two).unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "wait").await;
    let before = event_types(&run).await;
    run.resume().await.unwrap();
    assert_eq!(event_types(&run).await, before);
    // A resume right after a pause is not lost.
    run.pause().await.unwrap();
    run.resume().await.unwrap();
    run.send_event("go", &1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    run.resume().await.unwrap();
}

async fn ended_runs_are_left_alone(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("done", async |_: Ctx, (): ()| ok(1)).unwrap();
    let run = flow.start(()).await.unwrap();
    run.result().await.unwrap();
    assert_eq!(run.pause().await.unwrap_err().code(), "RUN_TERMINAL");
    assert_eq!(run.terminate().await.unwrap_err().code(), "RUN_TERMINAL");
    assert_eq!(run.wake().await.unwrap_err().code(), "RUN_TERMINAL");
    assert_eq!(run.retry().await.err().unwrap().code(), "RUN_NOT_ERRORED");
    assert_eq!(run.status().await.unwrap().status, RunStatus::Complete);
}

async fn terminate_cuts_off_a_body(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (counts, gate) = (Counts::new(), Arc::new(tokio::sync::Semaphore::new(0)));
    let flow = gated(&engine, &counts, &gate);
    let run = flow.start(()).await.unwrap();
    until("the body runs", || async { counts.get("first") == 1 }).await;
    run.terminate().await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_TERMINATED");
    until("the body is dropped", || async { engine.core().load().0 == 0 }).await;
    gate.add_permits(5);
    fence(&engine).await;
    assert_eq!((gate.available_permits(), counts.get("second")), (5, 0));
    assert_eq!(run.status().await.unwrap().status, RunStatus::Terminated);
    assert_eq!(run.terminate().await.unwrap_err().code(), "RUN_TERMINAL");
    // Runs that wait, that are paused and that nobody has begun end too.
    let waits = engine.workflow_with("two", counts.clone(), two).unwrap();
    let run = waits.start(()).await.unwrap();
    until_asked(&run, "wait").await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    run.terminate().await.unwrap();
    let run = waits.start(()).delay("1 hour").await.unwrap();
    run.terminate().await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_TERMINATED");
}

async fn restart_of_a_live_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("two", counts.clone(), two).unwrap();
    let run = flow.start(()).id("live").await.unwrap();
    until_asked(&run, "wait").await;
    // An event that nobody has read goes with the generation it was sent to.
    run.send_event("other", &0).await.unwrap();
    let again = run.restart().await.unwrap();
    assert_ne!(again.run_key(), run.run_key());
    until_asked(&again, "wait").await;
    assert_eq!(again.status().await.unwrap().generation, 1);
    assert_eq!(counts.get("first"), 2);
    let old = engine.core().current(run.run_key()).await.unwrap();
    assert_eq!((old.status, old.generation), (RunStatus::Terminated, 0));
    // A handle of the old generation reaches the new one.
    run.send_event("go", &3).await.unwrap();
    assert_eq!(again.result().await.unwrap(), 3);
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_TERMINATED");
    let query = Query::Messages { run_key: again.run_key(), after: 0, limit: 10 };
    let messages = engine.admin().store().list(query).await.unwrap().messages().unwrap();
    assert_eq!(messages.len(), 1, "the old generation's event was not delivered");
}

async fn restart_of_an_ended_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("again", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move { ok(ctx.step("s", async || ok(counts.hit("s"))).await?) }
        })
        .unwrap();
    let run = flow.start(()).id("ended").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    for generation in 1..4 {
        let again = run.restart().await.unwrap();
        assert_eq!(again.result().await.unwrap(), generation + 1);
        assert_eq!(again.status().await.unwrap().generation, generation);
    }
    assert_eq!(run.result().await.unwrap(), 1, "earlier generations stay readable");
    // Starting it again finds the newest.
    let found = flow.start(()).id("ended").await.unwrap();
    assert_eq!((found.existed(), found.result().await.unwrap()), (true, 4));
}

async fn retry_goes_on_at_the_failed_step(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("fails", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                let drawn = ctx.step("first", async || ok(counts.hit("first"))).await?;
                let caught = ctx.step("caught", async || {
                    counts.hit("caught");
                    Err::<(), _>(AnyError::msg("never mind"))
                });
                let caught = caught.retries(0).await.is_err();
                ctx.sleep("short", "5 ms").await?;
                let event: u32 = ctx.event("early", "early").await?;
                let body = async || match counts.hit("flaky") {
                    1 => Err(AnyError::msg("not this time")),
                    n => Ok(n),
                };
                let flaky = ctx.step("flaky", body).retries(0).await?;
                let late: u32 = ctx.event("late", "late").await?;
                ok((drawn, caught, event, flaky, late))
            }
        })
        .unwrap();
    let run = flow.start(()).id("retry").await.unwrap();
    // One event is read before the failure, the other one is not.
    run.send_event("late", &8).await.unwrap();
    run.send_event("early", &7).await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
    let again = run.retry().await.unwrap();
    assert_eq!(again.result().await.unwrap(), (1, true, 7, 2, 8));
    assert_eq!((counts.get("first"), counts.get("caught"), counts.get("flaky")), (1, 1, 2));
    assert_eq!(again.status().await.unwrap().generation, 1);
    assert_eq!(engine.core().current(run.run_key()).await.unwrap().status, RunStatus::Errored);
}

async fn retry_of_a_run_that_caught_and_compensated(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("saga", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                ctx.step("book", async || ok(counts.hit("book"))).await?;
                let body = async || match counts.hit("pay") {
                    n if n < 3 => Err(AnyError::msg("declined")),
                    n => Ok(n),
                };
                match ctx.step("pay", body).retries(0).await {
                    Ok(paid) => {
                        ctx.event::<()>("go", "go").await?;
                        ok(paid)
                    }
                    Err(error) => {
                        ctx.step("cancel", async || ok(counts.hit("cancel"))).await?;
                        Err(error.into())
                    }
                }
            }
        })
        .unwrap();
    let mut run = flow.start(()).id("saga").await.unwrap();
    for _ in 0..2 {
        assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
        run = run.retry().await.unwrap();
    }
    until_asked(&run, "go").await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 3);
    assert_eq!((counts.get("book"), counts.get("pay")), (1, 3));
    let steps = run.steps().await.unwrap();
    assert!(steps.iter().all(|step| step.status == StepStatus::Completed));
}

async fn continue_as_new_carries_unread_events(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("sum", |ctx: Ctx, (left, sum): (u32, u64)| async move {
            if left == 0 {
                return ok(sum);
            }
            let n: u64 = ctx.event("next", "number").await?;
            ctx.continue_as_new(&(left - 1, sum + n))
        })
        .unwrap();
    let run = flow.start((5, 0)).id("sum").await.unwrap();
    for n in 1..=5_u64 {
        run.send_event("number", &n).await.unwrap();
    }
    assert_eq!(run.result().await.unwrap(), 15);
    assert_eq!(run.status().await.unwrap().generation, 5);
}

async fn events_race_with_generations(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("count", |ctx: Ctx, (left, seen): (u32, u32)| async move {
            if left == 0 {
                return ok(seen);
            }
            ctx.event::<u32>("next", "number").await?;
            ctx.continue_as_new(&(left - 1, seen + 1))
        })
        .unwrap();
    let run = flow.start((60, 0)).id("count").await.unwrap();
    let sends = (0..60_u32).map(|n| {
        let run = run.clone();
        async move { run.send_event("number", &n).await.unwrap() }
    });
    futures::future::join_all(sends).await;
    assert_eq!(run.result().await.unwrap(), 60, "no event was lost");
}

async fn pauses_and_resumes_beside_each_other(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow_with("two", counts.clone(), two).unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "wait").await;
    for round in 0..20_u64 {
        run.pause().await.unwrap();
        tokio::time::sleep(Duration::from_micros(round * 200)).await;
        run.resume().await.unwrap();
    }
    run.send_event("go", &1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    assert_eq!((counts.get("first"), counts.get("second")), (1, 1));
}

async fn a_host_that_ticks(h: Arc<Harness>) {
    let by_hand = |mut options: Options| {
        options.background = false;
        options
    };
    let engine = h.engine_with(by_hand).await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("ticks", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                for n in 0..4 {
                    ctx.step(format!("s{n}"), async || ok(counts.hit("step"))).await?;
                }
                ok(())
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    fence_elsewhere().await;
    assert_eq!(counts.get("step"), 0, "nothing moves by itself");
    let tick = async |steps_max| {
        let tick = Tick { runs_max: 10, steps_max, wait_max: None };
        let ticked = engine.admin().tick(tick).await.unwrap();
        assert_eq!(ticked.in_progress, 0, "without `wait_max` a tick waits to the end");
        ticked.processed
    };
    // Three steps, and then the last one.
    assert_eq!(tick(Some(3)).await, 1);
    assert_eq!((counts.get("step"), completed(&run).await.len()), (3, 3));
    assert_eq!(tick(None).await, 1);
    assert_eq!(counts.get("step"), 4);
    run.result().await.unwrap();
    assert_eq!(tick(None).await, 0);
}

async fn a_tick_returns_in_time(h: Arc<Harness>) {
    let engine = h.engine_with(|options| Options { background: false, ..options }).await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("held", move |ctx: Ctx, key: String| {
            let counts = inner.clone();
            async move {
                let body = async || {
                    counts.hit("begun");
                    while counts.get(&key) == 0 {
                        tokio::task::yield_now().await;
                    }
                    ok(())
                };
                ok(ctx.step("wait", body).await?)
            }
        })
        .unwrap();
    let slow = flow.start("slow".to_owned()).await.unwrap();
    let soon = Tick { wait_max: Some(Duration::ZERO), ..Tick::default() };
    let ticked = engine.admin().tick(soon).await.unwrap();
    assert_eq!((ticked.processed, ticked.in_progress), (1, 1));
    until("its step has begun", || async { counts.get("begun") == 1 }).await;
    // Work of another tick is none of this one's: with a tick that waits to the end this would hang.
    let quick = flow.start("quick".to_owned()).await.unwrap();
    counts.hit("quick");
    let ticked = engine.admin().tick(Tick::default()).await.unwrap();
    assert_eq!((ticked.processed, ticked.in_progress), (1, 0));
    quick.result().await.unwrap();
    counts.hit("slow");
    slow.result().await.unwrap();
}

async fn a_caller_may_be_dropped_before_the_answer(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("patient", async |ctx: Ctx, (): ()| ok(ctx.event::<u32>("go", "go").await?))
        .unwrap();
    // Each is polled once and dropped: what it began goes on, or was never begun.
    let left = async |mut asked: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        let _ = futures::poll!(&mut asked);
    };
    let starts = flow.clone();
    left(Box::pin(async move { drop(starts.start(()).id("left").await) })).await;
    let run = flow.start(()).id("left").await.unwrap();
    until_asked(&run, "go").await;
    let (of, key) = (engine.clone(), run.run_key());
    left(Box::pin(async move { drop(of.core().restart(key, None).await) })).await;
    until("it is restarted", || async {
        let newest = engine
            .core()
            .newest(&engine.core().current(run.run_key()).await.unwrap())
            .await
            .unwrap();
        newest.generation == 1 && newest.status == RunStatus::Waiting
    })
    .await;
    let (of, key) = (engine.clone(), run.run_key());
    left(Box::pin(async move { drop(of.core().terminate(key, None, None).await) })).await;
    until("it has ended", || async {
        let newest = engine
            .core()
            .newest(&engine.core().current(run.run_key()).await.unwrap())
            .await
            .unwrap();
        newest.status == RunStatus::Terminated
    })
    .await;
}
