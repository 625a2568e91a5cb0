//! Errors that the code of a workflow can cause are errors that it can catch, and bodies run once.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::Options;
use windlass::kernel::StepStatus;
use windlass::{Ctx, Result, RunStatus};

use crate::harness::{
    Counts, Harness, Kind, ok, on_every_store, run, until, until_asked, until_status, until_waiting,
};

on_every_store!(
    a_malformed_event_is_an_error_to_catch,
    a_result_that_does_not_read_back_is_refused,
    a_late_result_is_a_timeout,
    too_many_log_lines_are_an_error_to_catch,
    lines_of_a_recorded_step_survive_a_panic,
    keys_are_stable_over_a_retry,
    an_event_after_its_timeout_is_late_although_the_run_was_paused,
    settled_waits_keep_their_times,
    many_waits_begin_at_once,
    losers_of_a_race_are_not_what_a_run_waits_for,
);

// A blocked run would be tried again within the test.
fn quick(options: Options) -> Options {
    Options { blocked_retry: Duration::from_millis(100), ..options }
}

async fn a_malformed_event_is_an_error_to_catch(h: Arc<Harness>) {
    let engine = h.engine_with(quick).await;
    let flow = async |ctx: Ctx, (): ()| {
        let caught = match ctx.event::<u32>("first", "go").await {
            Ok(_) => "none".to_owned(),
            Err(error) => error.code.as_str().to_owned(),
        };
        let second: u32 = ctx.event("second", "go").await?;
        ok((caught, second))
    };
    let flow = engine.workflow("waits", flow).unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "first").await;
    run.send_event("go", &"not a number").await.unwrap();
    run.send_event("go", &7).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("RESULT_UNREADABLE".to_owned(), 7));
    let steps = run.steps().await.unwrap();
    let first = steps.iter().find(|step| step.step_key.as_str() == "first").unwrap();
    assert_eq!(first.status, StepStatus::Errored);
}

async fn a_result_that_does_not_read_back_is_refused(h: Arc<Harness>) {
    let engine = h.engine_with(quick).await;
    let counts = Counts::new();
    let nan = async |counts: Arc<Counts>, ctx: Ctx, (): ()| -> Result<String> {
        let body = async || {
            counts.hit("body");
            ok(f64::NAN)
        };
        match ctx.step("nan", body).await {
            Ok(value) => ok(format!("{value}")),
            Err(error) => ok(error.name),
        }
    };
    let flow = engine.workflow_with("nan", counts.clone(), nan).unwrap();
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "ResultUnreadable");
    assert_eq!(counts.get("body"), 1);
}

// The body blocks its thread for longer than its timeout, before or after an await.
async fn a_late_result_is_a_timeout(h: Arc<Harness>) {
    let engine = h.engine_with(quick).await;
    let late = async |ctx: Ctx, awaits: bool| -> Result<String> {
        let body = move || async move {
            if awaits {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(Duration::from_millis(60));
            ok(())
        };
        let step = ctx.step("slow", body).timeout(Duration::from_millis(20)).retries(0);
        match step.await {
            Ok(()) => ok("in time".to_owned()),
            Err(error) => ok(error.name),
        }
    };
    let flow = engine.workflow("late", late).unwrap();
    for awaits in [false, true] {
        let run = flow.start(awaits).await.unwrap();
        assert_eq!(run.result().await.unwrap(), "Timeout", "{awaits}");
    }
}

async fn too_many_log_lines_are_an_error_to_catch(h: Arc<Harness>) {
    let engine = h.engine_with(quick).await;
    let counts = Counts::new();
    let floods = async |counts: Arc<Counts>, ctx: Ctx, (): ()| -> Result<usize> {
        let inside = ctx.clone();
        let body = async || {
            counts.hit("body");
            let written = (0..10_500).take_while(|n| inside.log().info(format!("{n}")).is_ok());
            ok(written.count())
        };
        let written = ctx.step("floods", body).await?;
        // Other steps have room of their own.
        let other = async || {
            inside.log().info("other")?;
            ok(())
        };
        ctx.step("other", other).await?;
        ok(written)
    };
    let flow = engine.workflow_with("floods", counts.clone(), floods).unwrap();
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 5_000);
    assert_eq!(counts.get("body"), 1);
    assert_eq!(run.logs().await.unwrap().len(), 5_001);
}

async fn lines_of_a_recorded_step_survive_a_panic(h: Arc<Harness>) {
    let engine = h.engine_with(|o| Options { blocked_retry: Duration::from_secs(600), ..o }).await;
    let flow = async |ctx: Ctx, (): ()| -> Result<u32> {
        let inside = ctx.clone();
        let body = async || {
            inside.log().info("inside")?;
            ok(())
        };
        ctx.step("logs", body).await?;
        panic!("right after the step");
    };
    let flow = engine.workflow("panics", flow).unwrap();
    let run = flow.start(()).await.unwrap();
    until("it is blocked", || async {
        run.logs().await.unwrap().iter().any(|line| line.message.contains("panicked"))
    })
    .await;
    let lines = run.logs().await.unwrap();
    assert_eq!(lines.iter().filter(|line| &*line.message == "inside").count(), 1, "{lines:?}");
    run.terminate().await.unwrap();
}

async fn keys_are_stable_over_a_retry(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let keys = async |counts: Arc<Counts>, ctx: Ctx, (): ()| -> Result<(String, String)> {
        let drawn = format!("{} {}", ctx.uuid(), ctx.random());
        let kept = drawn.clone();
        let first = ctx.step("carried", async || ok(kept.clone())).await?;
        let body = async |attempt: windlass::Attempt| {
            if counts.hit("body") < 3 {
                return Err(std::io::Error::other("not yet").into());
            }
            ok(attempt.idempotency_key)
        };
        let key = ctx.step_with("fails", body).retries(0).await?;
        assert_eq!(first, drawn, "the carried step used other numbers");
        ok((drawn, key))
    };
    let flow = engine.workflow_with("keys", counts.clone(), keys).unwrap();
    let run = flow.start(()).id("one").await.unwrap();
    let origin = run.run_key();
    until_status(&run, RunStatus::Errored).await;
    run.retry().await.unwrap();
    until("the second generation fails", || async { counts.get("body") == 2 }).await;
    let run = flow.get("one").await.unwrap();
    until_status(&run, RunStatus::Errored).await;
    run.retry().await.unwrap();
    let (_, key) = flow.get("one").await.unwrap().result().await.unwrap();
    assert_eq!(key, format!("{origin}:fails"));
}

async fn an_event_after_its_timeout_is_late_although_the_run_was_paused(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = async |ctx: Ctx, (): ()| {
        let wait = ctx.event::<u32>("wait", "go").timeout("1 second");
        let code =
            wait.await.map_or_else(|error| error.code.as_str().to_owned(), |n| n.to_string());
        let next: u32 = ctx.event("next", "go").await?;
        ok((code, next))
    };
    let flow = engine.workflow("late", flow).unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "wait").await;
    until_waiting(&engine, &run).await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    let steps = run.steps().await.unwrap();
    let due = steps[0].due_at.unwrap();
    until("the timeout has passed", || async {
        engine.admin().store().now().await.unwrap() > due.plus(Duration::from_millis(50))
    })
    .await;
    run.send_event("go", &5).await.unwrap();
    run.resume().await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("EVENT_TIMEOUT".to_owned(), 5));
}

async fn settled_waits_keep_their_times(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = async |ctx: Ctx, (): ()| {
        ctx.sleep("nap", "20 ms").await?;
        ok(ctx.event::<u32>("wait", "go").timeout("1 hour").await?)
    };
    let flow = engine.workflow("times", flow).unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "wait").await;
    until_waiting(&engine, &run).await;
    run.send_event("go", &5).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 5);
    let steps = run.steps().await.unwrap();
    assert!(steps.iter().all(|step| step.due_at.is_some()), "{steps:?}");
    assert_eq!(steps[1].timeout, Some(Duration::from_secs(3_600)));
}

// The body is so long that its row shows that it runs, and then it loses to an event.
async fn losers_of_a_race_are_not_what_a_run_waits_for(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = async |ctx: Ctx, (): ()| -> Result<u32> {
        let body = ctx.step("body", async || ok(futures::future::pending::<u32>().await));
        let lost = ctx.event::<u32>("lost", "never");
        let won = ctx.event::<u32>("won", "go");
        let first = futures::future::select_all([
            futures::FutureExt::boxed(body),
            futures::FutureExt::boxed(lost),
            futures::FutureExt::boxed(won),
        ]);
        let (first, _, others) = first.await;
        drop(others);
        let next: u32 = ctx.event("next", "on").await?;
        ok(first? + next)
    };
    let flow = engine.workflow("races", flow).unwrap();
    let run = flow.start(()).await.unwrap();
    until("the body is shown as running", || async {
        run.steps().await.unwrap().iter().any(|step| step.status == StepStatus::Running)
    })
    .await;
    run.send_event("go", &1).await.unwrap();
    until_asked(&run, "next").await;
    until_waiting(&engine, &run).await;
    let why = engine.core().why(run.run_key()).await.unwrap();
    assert!(why.reasons[0].text.contains("\"on\""), "{why:?}");
    assert_eq!(why.reasons.len(), 1, "{why:?}");
    let steps = run.steps().await.unwrap();
    assert!(steps.iter().all(|step| step.status != StepStatus::Running), "{steps:?}");
    run.send_event("on", &2).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 3);
    let steps = run.steps().await.unwrap();
    assert!(steps.iter().all(|step| step.status.is_settled()), "{steps:?}");
}

async fn many_waits_begin_at_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = async |ctx: Ctx, (): ()| -> Result<u32> {
        let wait = |n: u32| ctx.event::<u32>(format!("wait {n}"), format!("go-{n}"));
        let all = futures::future::try_join_all((0..2_500).map(wait)).await?;
        ok(all.iter().sum())
    };
    let flow = engine.workflow("many", flow).unwrap();
    let run = flow.start(()).await.unwrap();
    until_waiting(&engine, &run).await;
    assert_eq!(run.steps().await.unwrap().len(), 2_500, "all waits are in the store");
    run.terminate().await.unwrap();
}

// Another process sends events so fast that the row of the run is locked most of the time. The scan is
// too rare to help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_events_from_another_process_needs_no_scan() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let rare = |o| Options { scan_every: Duration::from_secs(3_600), ..o };
        let (asks, serves) = h.two_engines(rare).await;
        let sums = async |ctx: Ctx, rounds: u32| -> Result<u32> {
            let mut sum = 0;
            for n in 0..rounds {
                sum += ctx.event::<u32>(format!("event {n}"), "go").await?;
            }
            ok(sum)
        };
        serves.workflow("sums", sums).unwrap();
        let remote = asks.remote_workflow::<u32, u32>("sums").unwrap();
        for _ in 0..3 {
            let run = remote.start(300).await.unwrap();
            until_asked(&run, "event 0").await;
            let sends = (0..300).map(|_| run.send_event("go", &1));
            for sent in futures::future::join_all(sends).await {
                sent.unwrap();
            }
            assert_eq!(run.result().await.unwrap(), 300);
        }
    })
    .await;
}
