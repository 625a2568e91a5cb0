//! Attempts: how often, how long, and which failures are worth another one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use windlass::kernel::StepStatus;
use windlass::{AnyError, Ctx, NonRetryable, RetryLimit, RunStatus, StepError};

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
    log_lines_of_a_failed_attempt_stay,
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
                    n if n <= failures => Err(Flaky.into()),
                    n => Ok(n),
                }
            };
            let step = ctx.step_with("try", body).retries(RetryLimit::Forever).delay("5 ms");
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
                let error = ctx.call("try", body).retries(2).delay("5 ms").await.unwrap_err();
                ctx.event::<()>("go", "go").await?;
                ok((error.code.to_string(), error.name, error.message, error.attempts))
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "go").await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    let expect = ("STEP_FAILED".to_owned(), "Flaky".to_owned(), "flaky".to_owned(), 3);
    assert_eq!(run.result().await.unwrap(), expect);
    assert_eq!(counts.get("body"), 3);
}

async fn a_step_that_gives_up_ends_its_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("uncaught", |ctx: Ctx, (): ()| async move {
            let step = ctx.call("try", async || Err::<(), _>(Flaky)).retries(1).delay("5 ms");
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
                "marked" => Err::<(), AnyError>(NonRetryable::new(Flaky).into()),
                "wrapped" => Err(NonRetryable::new("no").named("Refused").into()),
                _ => Err(Flaky.into()),
            };
            let step = ctx.step("try", body).delay("5 ms");
            let failed = match how {
                "judged" => step.fatal_if(|error| error.downcast_ref::<Flaky>().is_some()).await,
                "named" => step.non_retryable(["Flaky"]).await,
                _ => step.await,
            };
            let StepError { name, attempts, .. } = failed.unwrap_err();
            ok((name, attempts))
        })
        .unwrap();
    for (how, name) in [
        ("marked", "NonRetryableError"),
        ("wrapped", "Refused"),
        ("judged", "Flaky"),
        ("named", "Flaky"),
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

struct Dropped(Arc<Counts>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.hit("dropped");
    }
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
                            let _dropped = Dropped(counts);
                            futures::future::pending::<()>().await;
                        }
                        ok(attempt.number)
                    }
                };
                ok(ctx.step_with("try", body).timeout("1 second").delay("5 ms").await?)
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 2);
    until("the body of the first attempt is dropped", || async { counts.get("dropped") == 1 })
        .await;
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
                ok(ctx.call("try", body).delay("300 ms").await?)
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_status(&run, RunStatus::Waiting).await;
    engine.core().evict_all();
    let step = run.steps().await.unwrap().remove(0);
    assert_eq!((step.status, step.attempt), (StepStatus::Waiting, 1));
    assert!(step.due_at.is_some() && step.error.is_some());
    assert_eq!(run.result().await.unwrap(), 2);
    assert_eq!(run.steps().await.unwrap()[0].attempt, 2);
}

async fn log_lines_of_a_failed_attempt_stay(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("logs", |ctx: Ctx, (): ()| async move {
            let body = |attempt: windlass::Attempt| {
                let ctx = ctx.clone();
                async move {
                    ctx.log().info(format!("attempt {}", attempt.number)).unwrap();
                    if attempt.number == 1 { Err(Flaky.into()) } else { Ok(()) }
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
                            1 => Err(AnyError::msg("the other side does not answer")),
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
    // The row that shows long bodies must not forget the intent.
    let commits = engine.admin().metrics().commits.get();
    until("that row is written", || async { engine.admin().metrics().commits.get() > commits })
        .await;
    h.stop_within(&engine, Duration::from_millis(20)).await;
    let engine = h.engine().await;
    let run = start(&engine).get("pay").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 42);
    assert_eq!((counts.get("body"), counts.get("probe")), (1, 2));
}

async fn a_long_body_is_seen(h: Arc<Harness>) {
    let engine = h.engine().await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let inner = gate.clone();
    let flow = engine
        .workflow("long", move |ctx: Ctx, (): ()| {
            let gate = inner.clone();
            async move {
                let body = |attempt: windlass::Attempt| {
                    let gate = gate.clone();
                    async move {
                        gate.acquire().await?.forget();
                        ok(attempt.number)
                    }
                };
                ok(ctx.step_with("long", body).await?)
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let running = || async {
        let steps = run.steps().await.unwrap();
        steps.iter().any(|step| step.status == StepStatus::Running && step.attempt == 1)
    };
    until("the row says running", running).await;
    gate.add_permits(1);
    assert_eq!(run.result().await.unwrap(), 1);
}
