//! Attempts: how often, how long, and which failures are worth another one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass::kernel::StepStatus;
use windlass::{BoxError, Ctx, NonRetryable, Retries, RunStatus, StepError};

use crate::harness::{
    Counts, Harness, event_types, ok, on_every_store, until, until_asked, until_status,
};

on_every_store!(
    a_step_is_tried_again_until_it_succeeds,
    a_step_that_gives_up_is_an_error_that_can_be_caught,
    a_step_that_gives_up_ends_its_run,
    failures_that_no_attempt_can_help,
    a_panic_is_a_failed_attempt,
    a_timeout_is_a_failed_attempt,
    a_retry_is_due_at_a_time_in_the_store,
    what_is_logged_by_a_failed_attempt_stays,
    a_probe_is_asked_after_a_cut,
    a_long_body_is_seen,
);

#[derive(Debug)]
struct Flaky;

impl fmt::Display for Flaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("flaky")
    }
}

impl std::error::Error for Flaky {}

async fn a_step_is_tried_again_until_it_succeeds(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("flaky", |ctx: Ctx, failures: u32| async move {
            let body = |attempt: windlass::Attempt| async move {
                match attempt.number {
                    n if n <= failures => Err(Flaky),
                    n => Ok(n),
                }
            };
            let step = ctx.step_with("try", body).retries(Retries::Forever).delay("5 ms");
            ok(step.backoff(windlass::Backoff::Constant).await?)
        })
        .unwrap();
    for failures in [0, 1, 7] {
        let run = flow.start(failures).await.unwrap();
        assert_eq!(run.result().await.unwrap(), failures + 1);
        let steps = run.steps().await.unwrap();
        assert_eq!((steps[0].attempt, steps[0].status), (failures + 1, StepStatus::Completed));
        let retried = event_types(&run).await.iter().filter(|t| *t == "step.retried").count();
        assert_eq!(retried, failures as usize);
    }
}

async fn a_step_that_gives_up_is_an_error_that_can_be_caught(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("caught", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                let body = async || {
                    counts.hit("body");
                    Err::<(), _>(Flaky)
                };
                let error = ctx.step("try", body).retries(2).delay("5 ms").await.unwrap_err();
                ctx.event::<()>("go", "go").await?;
                ok((error.code.to_owned(), error.name, error.message, error.attempts))
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "go").await;
    engine.evict_all();
    run.send_event("go", &()).await.unwrap();
    let expect = ("STEP_FAILED".to_owned(), "Flaky".to_owned(), "flaky".to_owned(), 3);
    assert_eq!(run.result().await.unwrap(), expect);
    assert_eq!(counts.get("body"), 3);
}

async fn a_step_that_gives_up_ends_its_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("uncaught", |ctx: Ctx, (): ()| async move {
            let step = ctx.step("try", async || Err::<(), _>(Flaky)).retries(1).delay("5 ms");
            ok(step.await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let error = run.result().await.unwrap_err();
    assert_eq!(error.code(), "RUN_ERRORED");
    assert!(error.to_string().contains("flaky"), "{error}");
    let (name, message) = run.status().await.unwrap().error.unwrap();
    assert_eq!(name, "Flaky");
    assert!(message.contains("flaky"), "{message}");
    assert_eq!(run.steps().await.unwrap()[0].status, StepStatus::Errored);
}

async fn failures_that_no_attempt_can_help(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("fatal", |ctx: Ctx, how: String| async move {
            let how = how.as_str();
            let body = async || match how {
                "marked" => Err::<(), BoxError>(NonRetryable::new(Flaky).into()),
                "wrapped" => Err(NonRetryable::new("no").named("Refused").into()),
                _ => Err(Flaky.into()),
            };
            let step = ctx.step("try", body).delay("5 ms");
            let failed = match how {
                "judged" => step.fatal_if(|error| error.downcast_ref::<Flaky>().is_some()).await,
                "named" => step.non_retryable(["Error"]).await,
                _ => step.await,
            };
            let StepError { name, attempts, .. } = failed.unwrap_err();
            ok((name, attempts))
        })
        .unwrap();
    for (how, name) in [
        ("marked", "NonRetryableError"),
        ("wrapped", "Refused"),
        ("judged", "Error"),
        ("named", "Error"),
    ] {
        let run = flow.start(how.into()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), (name.to_owned(), 1), "{how}");
    }
}

async fn a_panic_is_a_failed_attempt(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("panics", |ctx: Ctx, (): ()| async move {
            let body = |attempt: windlass::Attempt| {
                assert!(attempt.number > 1, "before the future");
                async move {
                    assert!(attempt.number > 2, "inside the future");
                    ok(attempt.number)
                }
            };
            ok(ctx.step_with("try", body).delay("5 ms").await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 3);
}

async fn a_timeout_is_a_failed_attempt(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("slow", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                let body = |attempt: windlass::Attempt| {
                    let counts = counts.clone();
                    async move {
                        if attempt.number == 1 {
                            tokio::time::sleep(Duration::from_millis(200)).await;
                            counts.hit("late");
                        }
                        ok(attempt.number)
                    }
                };
                let step = ctx.step_with("try", body).timeout("30 ms").delay("5 ms");
                let number = step.await?;
                ctx.sleep("longer than the body", "300 ms").await?;
                ok(number)
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 2);
    assert_eq!(counts.get("late"), 0, "the body of the first attempt was dropped");
}

async fn a_retry_is_due_at_a_time_in_the_store(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("later", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                let body = async || match counts.hit("body") {
                    1 => Err(Flaky),
                    n => Ok(n),
                };
                ok(ctx.step("try", body).delay("300 ms").await?)
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_status(&run, RunStatus::Waiting).await;
    engine.evict_all();
    let step = run.steps().await.unwrap().remove(0);
    assert_eq!((step.status, step.attempt), (StepStatus::Waiting, 1));
    assert!(step.due_at.is_some() && step.error.is_some());
    assert_eq!(run.result().await.unwrap(), 2);
    assert_eq!(run.steps().await.unwrap()[0].attempt, 2);
}

async fn what_is_logged_by_a_failed_attempt_stays(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("logs", |ctx: Ctx, (): ()| async move {
            let body = |attempt: windlass::Attempt| {
                let ctx = ctx.clone();
                async move {
                    ctx.log().info(format!("attempt {}", attempt.number)).unwrap();
                    if attempt.number == 1 { Err(Flaky) } else { Ok(()) }
                }
            };
            ok(ctx.step_with("try", body).delay("5 ms").await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    run.result().await.unwrap();
    let lines = run.logs().await.unwrap();
    let found: Vec<_> = lines.iter().map(|line| (&*line.message, line.attempt)).collect();
    assert_eq!(found, [("attempt 1", Some(1)), ("attempt 2", Some(2))]);
    assert!(lines.iter().all(|line| line.step_key.as_ref().unwrap().as_str() == "try"));
}

async fn a_probe_is_asked_after_a_cut(h: Arc<Harness>) {
    let counts = Counts::new();
    let start = |engine: &windlass::Engine| {
        let counts = counts.clone();
        let flow = move |ctx: Ctx, (): ()| {
            let counts = counts.clone();
            async move {
                let body = async || {
                    counts.hit("body");
                    futures::future::pending::<()>().await;
                    ok(0)
                };
                let probe = |_| {
                    let counts = counts.clone();
                    async move {
                        match counts.hit("probe") {
                            // Not knowing is no reason to do it again.
                            1 => Err("the other side does not answer".into()),
                            _ => ok(Some(42)),
                        }
                    }
                };
                ok(ctx.step("pay", body).intent(probe).delay("5 ms").await?)
            }
        };
        engine.workflow("pay", flow).unwrap()
    };
    let engine = h.engine().await;
    let run = start(&engine).start(()).id("pay").await.unwrap();
    until("the body runs", || async { counts.get("body") == 1 }).await;
    assert_eq!(run.steps().await.unwrap()[0].status, StepStatus::Running);
    // Long enough for the row that shows long bodies: it must not forget the intent.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    h.stop_within(&engine, Duration::from_millis(20)).await;
    let engine = h.engine().await;
    let run = start(&engine).get("pay").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 42);
    assert_eq!((counts.get("body"), counts.get("probe")), (1, 2));
}

async fn a_long_body_is_seen(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("long", |ctx: Ctx, (): ()| async move {
            let body = |attempt: windlass::Attempt| async move {
                tokio::time::sleep(Duration::from_millis(4_000)).await;
                ok(attempt.number)
            };
            ok(ctx.step_with("long", body).await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let running = || async {
        let steps = run.steps().await.unwrap();
        steps.iter().any(|step| step.status == StepStatus::Running && step.attempt == 1)
    };
    until("the row says running", running).await;
    assert_eq!(run.result().await.unwrap(), 1);
}
