//! Features of workflows, seen at their end: results, sleeps, events and errors of any type.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use windlass::{AnyError, Ctx, ErrorCode, Result, RunStatus, StepError};

use crate::harness::{
    Counts, Harness, event_types, ok, on_every_store, until_status, until_waiting,
};

on_every_store!(
    a_run_does_its_steps_once_and_sleeps,
    an_event_may_come_before_or_after_its_wait,
    events_are_taken_oldest_first_and_by_type,
    an_event_that_does_not_come_can_be_caught,
    an_event_that_does_not_come_ends_a_run_that_does_not_catch_it,
    results_have_types,
    errors_have_names,
    a_finished_key_gives_its_record_again,
    many_runs_at_once,
);

async fn hello(counts: Arc<Counts>, ctx: Ctx, name: String) -> Result<String> {
    let text = ctx
        .step("compose", async || {
            counts.hit("compose");
            ok(format!("Hello, {name}!"))
        })
        .await?;
    ctx.sleep("a moment", "20 ms").await?;
    let shout = ctx
        .step("shout", async || {
            counts.hit("shout");
            ok(text.to_uppercase())
        })
        .await?;
    Ok(shout)
}

async fn a_run_does_its_steps_once_and_sleeps(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let hellos = engine.workflow_with("hello", counts.clone(), hello).unwrap();
    let run = hellos.start("Ann".into()).id("ann").await.unwrap();
    assert_eq!(run.result().await.unwrap(), "HELLO, ANN!");
    assert_eq!((counts.get("compose"), counts.get("shout")), (1, 1));
    let expect = [
        "workflow.enqueued",
        "step.completed",
        "sleep.started",
        "sleep.elapsed",
        "step.completed",
        "workflow.completed",
    ];
    assert_eq!(event_types(&run).await, expect);
    let status = run.status().await.unwrap();
    assert_eq!(status.status, RunStatus::Complete);
    assert_eq!(status.output.unwrap(), "HELLO, ANN!");
    // It is found by its id, and says the same again.
    let found = hellos.get("ann").await.unwrap();
    assert_eq!(found.result().await.unwrap(), "HELLO, ANN!");
}

async fn approval(ctx: Ctx, (): ()) -> Result<u32> {
    Ok(ctx.event("wait", "approved").await?)
}

async fn an_event_may_come_before_or_after_its_wait(h: Arc<Harness>) {
    let engine = h.engine().await;
    let late = engine.workflow("late", approval).unwrap();
    let early = engine
        .workflow("early", |ctx: Ctx, (): ()| async move {
            ctx.sleep("first", "50 ms").await?;
            approval(ctx, ()).await
        })
        .unwrap();
    let run = early.start(()).await.unwrap();
    run.send_event("approved", &7).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 7);
    let run = late.start(()).await.unwrap();
    until_waiting(&engine, &run).await;
    run.send_event("approved", &8).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 8);
    assert!(event_types(&run).await.contains(&"event.awaited".to_owned()));
}

async fn events_are_taken_oldest_first_and_by_type(h: Arc<Harness>) {
    let engine = h.engine().await;
    let both = engine
        .workflow("both", |ctx: Ctx, (): ()| async move {
            let b: u32 = ctx.event("b", "b").await?;
            let first: u32 = ctx.event("first", "a").await?;
            let second: u32 = ctx.event("second", "a").await?;
            ok((b, first, second))
        })
        .unwrap();
    let run = both.start(()).await.unwrap();
    for (name, n) in [("a", 1), ("a", 2), ("b", 3)] {
        run.send_event(name, &n).await.unwrap();
    }
    assert_eq!(run.result().await.unwrap(), (3, 1, 2));
    // An event that has an id is the same event when it is sent again.
    let run = both.start(()).await.unwrap();
    for _ in 0..2 {
        run.send_event_once("a", &1, "only").await.unwrap();
    }
    run.send_event("b", &3).await.unwrap();
    until_waiting(&engine, &run).await;
    run.send_event("a", &2).await.unwrap();
    assert_eq!(run.result().await.unwrap(), (3, 1, 2));
}

async fn an_event_that_does_not_come_can_be_caught(h: Arc<Harness>) {
    let engine = h.engine().await;
    let waits = engine
        .workflow("waits", |ctx: Ctx, (): ()| async move {
            match ctx.event::<u32>("wait", "never").timeout("1 second").await {
                Err(StepError { code: ErrorCode::EventTimeout, .. }) => ok("gave up".to_owned()),
                other => ok(format!("{other:?}")),
            }
        })
        .unwrap();
    let run = waits.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "gave up");
    assert!(event_types(&run).await.contains(&"event.timed_out".to_owned()));
}

async fn an_event_that_does_not_come_ends_a_run_that_does_not_catch_it(h: Arc<Harness>) {
    let engine = h.engine().await;
    let waits = engine
        .workflow("waits", |ctx: Ctx, (): ()| async move {
            ok(ctx.event::<u32>("wait", "never").timeout("1 second").await?)
        })
        .unwrap();
    let run = waits.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
    let status = run.status().await.unwrap();
    assert_eq!(status.status, RunStatus::Errored);
    assert_eq!(status.error.unwrap().0, "EventTimeout");
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    lines: Vec<(String, u64)>,
    note: Option<String>,
}

async fn results_have_types(h: Arc<Harness>) {
    let engine = h.engine().await;
    let typed = engine
        .workflow("typed", |ctx: Ctx, receipt: Receipt| async move {
            ctx.step("nothing", async || ok(())).await?;
            let none: Option<u8> = ctx.step("none", async || ok(None)).await?;
            let again: Receipt = ctx.step("same", async || ok(receipt.clone())).await?;
            ctx.event::<()>("go", "go").await?;
            ok((none, again))
        })
        .unwrap();
    let receipt = Receipt { lines: vec![("ü\0\u{1F600}".into(), u64::MAX)], note: None };
    let run = typed.start(receipt.clone()).await.unwrap();
    until_waiting(&engine, &run).await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), (None, receipt));
    let nothing = engine.workflow("nothing", async |_: Ctx, (): ()| ok(())).unwrap();
    nothing.start(()).await.unwrap().result().await.unwrap();
}

#[derive(Debug)]
struct Declined(u32);

impl fmt::Display for Declined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "card declined with {}", self.0)
    }
}

impl std::error::Error for Declined {}

async fn errors_have_names(h: Arc<Harness>) {
    let engine = h.engine().await;
    // A workflow with an error type of its own.
    let own =
        engine.workflow("own", async |_: Ctx, n: u32| Err::<(), _>(Declined(n).into())).unwrap();
    let run = own.start(51).await.unwrap();
    let error = run.result().await.unwrap_err();
    assert_eq!(error.code(), "RUN_ERRORED");
    let status = run.status().await.unwrap();
    assert_eq!(status.error.unwrap(), ("Declined".into(), "card declined with 51".into()));
    // `?` takes errors of the standard library, of the user, of steps, and texts.
    let any = engine
        .workflow("any", |ctx: Ctx, text: String| async move {
            if text == "text" {
                return Err(AnyError::msg("just a text"));
            }
            if text == "declined" {
                let failed = ctx.call("pay", async || Err::<(), _>(Declined(1))).retries(0);
                failed.await?;
            }
            ok(text.parse::<u32>()?)
        })
        .unwrap();
    for (input, name, part) in [
        ("text", "Error", "just a text"),
        ("x", "ParseIntError", "invalid digit"),
        ("declined", "Declined", "card declined with 1"),
    ] {
        let run = any.start(input.into()).await.unwrap();
        let status = until_status(&run, RunStatus::Errored).await;
        let (found, message) = status.error.unwrap();
        assert_eq!(found, name);
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(any.start("12".into()).await.unwrap().result().await.unwrap(), 12);
}

async fn a_finished_key_gives_its_record_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let twice = engine
        .workflow("twice", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                let mut found = Vec::new();
                for _ in 0..3 {
                    found.push(ctx.step("once", async || ok(counts.hit("once"))).await?);
                }
                ctx.event::<()>("go", "go").await?;
                found.push(ctx.step("once", async || ok(counts.hit("once"))).await?);
                ok(found)
            }
        })
        .unwrap();
    let run = twice.start(()).await.unwrap();
    until_waiting(&engine, &run).await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), [1, 1, 1, 1]);
    assert_eq!(counts.get("once"), 1);
}

async fn many_runs_at_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let hellos = engine.workflow_with("hello", counts.clone(), hello).unwrap();
    let names = (0..200).map(|n| (format!("run-{n}"), format!("n{n}")));
    let runs = hellos.start_batch(names).await.unwrap();
    assert_eq!(runs.len(), 200);
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), format!("HELLO, N{n}!"));
    }
    assert_eq!((counts.get("compose"), counts.get("shout")), (200, 200));
}
