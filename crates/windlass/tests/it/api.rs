//! The public API: errors of step bodies, listings, delayed runs, cancelling, and the builder.

use std::sync::Arc;
use std::time::Duration;

use windlass::kernel::RetryLimit;
use windlass::{
    AnyError, Engine, ErrorCode, IntoDuration, Limits, RetryPolicy, RunStatus, Timestamp,
};

async fn engine() -> Engine {
    Engine::open("memory:").await.unwrap()
}

#[tokio::test]
async fn an_error_that_came_through_a_question_mark_keeps_its_type() {
    let engine = engine().await;
    let parse = engine.workflow("parse", async |ctx, text: String| {
        let body = async || Ok(text.parse::<u32>()?);
        let by_name = ctx.step("name", body).non_retryable(["ParseIntError"]).await.unwrap_err();
        let body = async || Ok(text.parse::<u32>()?);
        let is_fatal = |error: &AnyError| error.is::<std::num::ParseIntError>();
        let by_value = ctx.step("value", body).fatal_if(is_fatal).await.unwrap_err();
        let body = async || Err::<(), _>(AnyError::msg("no number"));
        let text = ctx.step("text", body).retries(0).await.unwrap_err();
        Ok([by_name, by_value, text].map(|error| (error.name, error.attempts)).to_vec())
    });
    let run = parse.unwrap().start("many".into()).await.unwrap();
    let expect = [("ParseIntError", 1), ("ParseIntError", 1), ("Error", 1)];
    assert_eq!(run.result().await.unwrap(), expect.map(|(name, n)| (name.to_owned(), n)));
}

#[tokio::test]
async fn a_function_with_an_error_of_its_own_is_called() {
    async fn half(n: u32) -> Result<u32, std::num::TryFromIntError> {
        u32::try_from(i64::from(n) - 10)
    }
    let engine = engine().await;
    let halves = engine.workflow("half", async |ctx, n: u32| {
        let retry = RetryPolicy::constant(RetryLimit::Times(1), Duration::from_millis(1));
        Ok(ctx.call("half", || half(n)).retry_policy(retry).await?)
    });
    let halves = halves.unwrap();
    assert_eq!(halves.start(12).await.unwrap().result().await.unwrap(), 2);
    let failed = halves.start(1).await.unwrap();
    let error = failed.result().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::RunErrored);
    assert!(error.message().starts_with("TryFromIntError: "), "{error}");
    assert_eq!(failed.steps().await.unwrap()[0].attempt, 2);
}

#[tokio::test]
async fn a_delayed_run_says_when_it_starts_and_can_be_cancelled() {
    let engine = engine().await;
    let echo = engine.workflow("echo", async |_, n: u32| Ok(n)).unwrap();
    let now = engine.admin().store().now().await.unwrap();
    let later = echo.start(1).id("later").delay("1 hour").await.unwrap();
    let starts_at = later.status().await.unwrap().starts_at.unwrap();
    let hour = "1 hour".into_duration().unwrap();
    let minute = Duration::from_secs(60);
    assert!(starts_at >= now.plus(hour) && starts_at < now.plus(hour + minute), "{starts_at}");
    assert!(later.why().await.unwrap().moving);
    assert!(later.cancel("not needed").await.unwrap());
    assert!(!later.cancel("not needed").await.unwrap());
    let status = later.status().await.unwrap();
    assert_eq!((status.status, status.starts_at), (RunStatus::Terminated, None));
    assert_eq!(later.result().await.unwrap_err().code(), ErrorCode::RunTerminated);
    let at_once = echo.start(1).await.unwrap();
    at_once.result().await.unwrap();
    assert_eq!(at_once.status().await.unwrap().starts_at, None);
}

#[tokio::test]
async fn runs_are_listed_with_filters_and_pages() {
    let engine = engine().await;
    let echo = engine.workflow("echo", async |_, n: u32| Ok(n)).unwrap();
    let waits = engine.workflow("waits", async |ctx, (): ()| {
        ctx.event::<()>("go", "go").await?;
        Ok(())
    });
    let waits = waits.unwrap();
    for n in 0..5 {
        let run = echo.start(n).id(format!("e{n}")).label("odd", (n % 2).to_string()).await;
        run.unwrap().result().await.unwrap();
    }
    waits.start(()).id("w").delay("1 hour").await.unwrap();
    let ids = |runs: &[windlass::Run]| {
        runs.iter().map(|run| run.id.as_str().to_owned()).collect::<Vec<_>>()
    };
    let first = engine.runs().workflow("echo").limit(3).await.unwrap();
    assert_eq!(ids(&first.runs), ["e4", "e3", "e2"]);
    let rest = engine.runs().workflow("echo").limit(3).after(first.next.unwrap()).await.unwrap();
    assert_eq!((ids(&rest.runs), rest.next), (vec!["e1".to_owned(), "e0".to_owned()], None));
    let odd = engine.runs().label("odd", "1").oldest_first().await.unwrap();
    assert_eq!(ids(&odd.runs), ["e1", "e3"]);
    let complete = engine.runs().status(RunStatus::Complete).await.unwrap();
    assert_eq!(complete.runs.len(), 5);
    let none = engine.runs().created_before(Timestamp::from_micros(1)).await.unwrap();
    assert!(none.runs.is_empty());
    let refused = engine.runs().workflow("").await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidName);
    let handles = echo.list(Some(RunStatus::Complete), None, 2).await.unwrap();
    assert_eq!(handles.iter().map(|run| run.id()).collect::<Vec<_>>(), ["e4", "e3"]);
    let older = echo.list(None, handles.last(), 10).await.unwrap();
    assert_eq!(older.len(), 3);
}

#[tokio::test]
async fn limits_of_the_builder_are_those_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("sqlite://{}/app.db", folder.path().display());
    let mib = 1 << 20;
    let limits = Limits {
        step_bytes_max: 4 * mib,
        output_bytes_max: 4 * mib,
        state_bytes_max: 16 * mib,
        ..Limits::default()
    };
    let builder = Engine::builder().limits(limits).worker_name("large").blocked_retry("1 second");
    let engine = builder.open(&address).await.unwrap();
    let large = engine.workflow("large", async |ctx, bytes: usize| {
        Ok(ctx.step("make", async || Ok("x".repeat(bytes))).await?)
    });
    let run = large.unwrap().start(2 * mib).await.unwrap();
    assert_eq!(run.result().await.unwrap().len(), 2 * mib);
    let options = engine.admin().options();
    assert_eq!((&*options.worker_name, options.blocked_retry), ("large", Duration::from_secs(1)));
    engine.stop("1 second").await.unwrap();
}

#[tokio::test]
async fn limits_above_those_of_the_store_are_refused() {
    let store = windlass::admin::open_store("memory:").await.unwrap();
    let start = |limits| Engine::builder().limits(limits).start(Arc::clone(&store));
    let raised = Limits { step_bytes_max: 4 << 20, ..Limits::default() };
    let refused = start(raised).await.err().unwrap();
    assert_eq!(refused.code(), ErrorCode::InvalidOption);
    let expect = "the limit step_bytes_max is 4194304, and the store was opened with 1048576";
    assert!(refused.message().starts_with(expect), "{refused}");
    // Only the engine counts steps, and the store may allow more than the engine.
    let fine = Limits { steps_per_run_max: 10_000, step_bytes_max: 1_000, ..Limits::default() };
    start(fine).await.unwrap();
}

#[tokio::test]
async fn no_call_of_the_builder_overwrites_another_option() {
    let secs = Duration::from_secs;
    let options = async |builder: windlass::Builder| {
        let engine = builder.background(false).open("memory:").await.unwrap();
        engine.admin().options().clone()
    };
    let given = windlass::admin::Options { renew_every: secs(2), ..Default::default() };
    for (builder, lease, renew_every) in [
        (Engine::builder(), 30, 5),
        (Engine::builder().lease("60 seconds"), 60, 10),
        (Engine::builder().renew_every("2 seconds").lease("60 seconds"), 60, 2),
        (Engine::builder().lease("60 seconds").renew_every("2 seconds"), 60, 2),
        (windlass::Builder::from(given).lease("60 seconds"), 60, 2),
        (windlass::Builder::from(windlass::admin::Options::default()).lease("6 seconds"), 6, 1),
    ] {
        let options = options(builder).await;
        assert_eq!((options.lease, options.renew_every), (secs(lease), secs(renew_every)));
    }
    assert!(options(Engine::builder().shared(true)).await.shared);
    assert!(!options(Engine::builder()).await.shared);
    let builder = Engine::builder()
        .event_ttl("1 second")
        .create_resend_max("2 seconds")
        .receipt_retention("3 seconds")
        .request_retention("4 seconds")
        .removed_record_retention("5 seconds")
        .removed_record_retention_of_applications("6 seconds");
    let options = options(builder).await;
    let found = [
        options.event_ttl,
        options.create_resend_max,
        options.receipt_retention,
        options.request_retention,
        options.removed_record_retention,
        options.removed_record_retention_of_applications.unwrap(),
    ];
    assert_eq!(found, [1, 2, 3, 4, 5, 6].map(secs));
}

#[tokio::test]
async fn the_builder_reports_the_first_value_that_is_not_valid() {
    let builder = Engine::builder().lease("soon").namespace("no name").turns_max(5);
    let error = builder.open("memory:").await.err().unwrap();
    assert_eq!(error.code(), ErrorCode::InvalidOption);
    assert!(error.message().starts_with("the lease: "), "{error}");
}
