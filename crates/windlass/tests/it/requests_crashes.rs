//! A process that dies at every commit of a run that asks people or waits for events by key: each decision counts
//! once, each event is delivered once, and no run is stuck.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::{Body, Query, RunKey, Subject};
use windlass::model::Engine;
use windlass::requests::{
    Decider, InboxOrder, InboxQuery, NewDecision, Request, RequestState, RequestStatus,
};
use windlass::{AnyError, Ctx, Error, steps};
use windlass_testkit::{Probe, every_crash_of};

async fn pause(engine: &Engine) {
    engine.env().sleep(Duration::from_millis(100)).await;
}

// How often a run has recorded each of these events.
async fn counts(engine: &Engine, run_key: RunKey, names: &[&str]) -> Result<Vec<usize>, Error> {
    let query = Query::Events { run_key, from: 0, limit: 1_000 };
    let events = engine.store().list(query).await?.events()?;
    let count = |name: &&str| events.iter().filter(|e| e.event_type.as_str() == *name).count();
    Ok(names.iter().map(count).collect())
}

async fn ask(ctx: Ctx, (): ()) -> Result<Value, AnyError> {
    let approve = Request::to("role:cfo").quorum(2).due("1 day");
    let first = ctx.request("approve", approve).await?;
    let second = ctx.request("late", Request::to("ann").due("1 hour")).await?;
    let by: Vec<&str> = first.decisions.iter().map(|decision| &*decision.by).collect();
    Ok(json!([first.status, by, second.status, second.decisions.len()]))
}

// The request of a step, open or closed.
async fn request_of(engine: &Engine, step: &str) -> Result<RequestState, Error> {
    loop {
        for status in RequestStatus::ALL {
            let query = InboxQuery::Status(status);
            let page = engine.requests().inbox(&query, InboxOrder::Opened, None, 10).await?;
            if let Some(found) = page.requests.into_iter().find(|state| state.run.step == step) {
                return Ok(found);
            }
        }
        pause(engine).await;
    }
}

async fn decided(engine: Engine) -> Result<Value, Error> {
    let run = steps::register(&engine, "ask", ask)?.start(()).id("one").await?;
    let request = request_of(&engine, "approve").await?;
    for name in ["ann", "bob"] {
        let who = Decider::new(Subject::new(name, ["cfo"])?);
        // Sent again after a crash, it is the same decision.
        engine.requests().decide(&request.id, &who, &NewDecision::approve()).await?;
    }
    let output = run.result().await?;
    let names = ["request.opened", "request.decided", "request.closed"];
    Ok(json!([output, counts(&engine, run.run_key(), &names).await?]))
}

#[test]
fn each_decision_counts_once() {
    let report = every_crash_of(|engine: &Engine, _: &Probe| {
        let decided = decided(engine.clone());
        Box::pin(async { decided.await.map_err(|error| error.to_string()) })
    });
    let outcomes = json!(["approved", ["ann", "bob"], "expired", 0]);
    assert_eq!(report.output, json!([outcomes, [2, 2, 2]]));
    // The start, two openings, two decisions and a due time.
    assert!(report.commits >= 6, "{report:?}");
}

async fn track(ctx: Ctx, probe: Probe) -> Result<Value, AnyError> {
    let early: u32 = ctx.event("early", "scanned").key("parcel-17").await?;
    let late: u32 = ctx.event("late", "scanned").key("parcel-18").await?;
    let tell = || {
        probe.ran("tell");
        std::future::ready(Ok::<_, AnyError>(json!([early, late])))
    };
    Ok(ctx.step("tell", tell).await?)
}

async fn delivered(engine: Engine, probe: Probe) -> Result<Value, Error> {
    let flow =
        steps::register(&engine, "track", move |ctx: Ctx, (): ()| track(ctx, probe.clone()))?;
    // One event is sent before the run waits for it, the other one while it waits.
    engine.send_by_key("scanned", "parcel-17", Body::of(&17)).id("e-17").await?;
    let run = flow.start(()).id("one").await?;
    let waits = async || {
        let steps = run.steps().await?;
        Ok::<_, Error>(steps.iter().any(|step| step.step_key.as_str() == "late"))
    };
    while !waits().await? {
        pause(&engine).await;
    }
    engine.send_by_key("scanned", "parcel-18", Body::of(&18)).id("e-18").await?;
    let output = run.result().await?;
    // The run keeps no event that it did not take.
    let loaded = engine.store().load(vec![run.run_key()]).await?;
    let unread: usize = loaded.iter().map(|loaded| loaded.messages.len()).sum();
    Ok(json!([output, unread]))
}

#[test]
fn an_event_by_key_is_delivered_once() {
    let report = every_crash_of(|engine: &Engine, probe: &Probe| {
        let delivered = delivered(engine.clone(), probe.clone());
        Box::pin(async { delivered.await.map_err(|error| error.to_string()) })
    });
    assert_eq!(report.output, json!([[17, 18], 0]));
    // The start, two sends, two waits and the step.
    assert!(report.commits >= 6, "{report:?}");
}
