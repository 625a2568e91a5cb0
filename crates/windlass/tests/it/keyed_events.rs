//! Events that are sent to a key instead of a run.

use std::sync::Arc;

use futures::future::{Either, join_all, select};
use serde_json::Value;
use windlass::admin::Options;
use windlass::kernel::Query;
use windlass::{Ctx, Engine, ErrorCode, Limits, Result, WorkflowRef};

use crate::harness::{Harness, Kind, event_types, on_every_store, run, until, until_asked};

on_every_store!(
    every_waiting_run_gets_an_event_once,
    a_run_gets_each_event_once_across_its_generations,
    many_senders_and_waiters_lose_nothing,
    more_waiters_than_one_commit_takes,
    an_event_with_an_id_is_sent_once,
    an_id_names_another_event_when_the_first_has_expired,
    the_limits_of_a_key_are_named,
    an_expired_event_is_not_delivered,
    waits_that_are_over_are_not_registered,
    namespaces_and_types_are_kept_apart,
    a_wait_survives_its_process,
    the_key_is_in_the_ledger_and_in_why,
    bad_input_is_refused,
);

const TYPE: &str = "scanned";
const KEY: &str = "parcel-17";

async fn track(ctx: Ctx, (): ()) -> Result<u32> {
    Ok(ctx.event("parcel", TYPE).key(KEY).await?)
}

fn tracker(engine: &Engine) -> WorkflowRef<(), u32> {
    engine.workflow("track", track).unwrap()
}

// The content of the records of keys.
async fn keys(engine: &Engine) -> Vec<Value> {
    let page = engine.records::<Value>("windlass.events").all().page(100).await.unwrap();
    page.into_iter().map(|record| record.value).collect()
}

async fn until_registered(engine: &Engine, count: usize) {
    let registered = async || {
        let keys = keys(engine).await;
        let waiters = |key: &Value| key["waiters"].as_array().unwrap().len();
        keys.iter().map(waiters).sum::<usize>() == count
    };
    until("all waits are registered", registered).await;
}

async fn every_waiting_run_gets_an_event_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let tracker = tracker(&engine);
    // Two runs wait before the event is sent, and one begins to wait after it.
    let (one, two) = (tracker.start(()).await.unwrap(), tracker.start(()).await.unwrap());
    until_registered(&engine, 2).await;
    let sent = engine.send_by_key(TYPE, KEY, &7).await.unwrap();
    assert_eq!((sent.delivered, sent.repeated), (2, false));
    assert_eq!(one.result().await.unwrap(), 7);
    assert_eq!(two.result().await.unwrap(), 7);
    assert_eq!(tracker.start(()).await.unwrap().result().await.unwrap(), 7);
    let query = Query::Messages { run_key: one.run_key(), after: 0, limit: 10 };
    let messages = engine.admin().store().list(query).await.unwrap().messages().unwrap();
    assert_eq!(messages.len(), 1);
}

async fn a_run_gets_each_event_once_across_its_generations(h: Arc<Harness>) {
    let engine = h.engine().await;
    let collect = async |ctx: Ctx, got: Vec<u32>| -> Result<Vec<u32>> {
        let mut got = got;
        got.push(ctx.event::<u32>("one", TYPE).key(KEY).await?);
        match got.len() {
            3 => Ok(got),
            _ => ctx.continue_as_new(&got),
        }
    };
    let collectors = engine.workflow("collect", collect).unwrap();
    for n in [1, 2] {
        engine.send_by_key(TYPE, KEY, &n).await.unwrap();
    }
    let run = collectors.start(Vec::new()).id("c").await.unwrap();
    until_registered(&engine, 1).await;
    engine.send_by_key(TYPE, KEY, &3).await.unwrap();
    assert_eq!(run.result().await.unwrap(), [1, 2, 3]);
}

async fn many_senders_and_waiters_lose_nothing(h: Arc<Harness>) {
    let engine = h.engine().await;
    let collect = async |ctx: Ctx, (): ()| -> Result<Vec<u32>> {
        let mut got = Vec::new();
        for n in 0..6 {
            got.push(ctx.event(format!("event {n}"), TYPE).key(KEY).await?);
        }
        got.sort_unstable();
        Ok(got)
    };
    let collectors = engine.workflow("collect", collect).unwrap();
    let runs = join_all((0..6).map(|_| async { collectors.start(()).await.unwrap() }));
    let sends = join_all((0..6).map(|n| {
        let engine = engine.clone();
        async move { engine.send_by_key(TYPE, KEY, &n).await.unwrap() }
    }));
    let (runs, _) = futures::future::join(runs, sends).await;
    for run in runs {
        assert_eq!(run.result().await.unwrap(), [0, 1, 2, 3, 4, 5]);
    }
}

async fn more_waiters_than_one_commit_takes(h: Arc<Harness>) {
    let engine = h.engine().await;
    let tracker = tracker(&engine);
    let runs = join_all((0..110).map(|_| async { tracker.start(()).await.unwrap() })).await;
    until_registered(&engine, 110).await;
    let sent = engine.send_by_key(TYPE, KEY, &7).await.unwrap();
    assert_eq!(sent.delivered, 100, "a task delivers the others");
    for run in runs {
        assert_eq!(run.result().await.unwrap(), 7);
    }
}

async fn an_event_with_an_id_is_sent_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let send = |n: u32| engine.send_by_key(TYPE, KEY, &n).id("scan-1").into_future();
    let first = send(7).await.unwrap();
    let again = send(7).await.unwrap();
    assert_eq!((first.repeated, again.repeated), (false, true));
    assert_eq!((&*again.id, again.expires_at), ("scan-1", first.expires_at));
    assert_eq!(send(8).await.unwrap_err().code(), ErrorCode::MessageExists);
    assert_eq!(keys(&engine).await[0]["events"].as_array().unwrap().len(), 1);
    assert_eq!(tracker(&engine).start(()).await.unwrap().result().await.unwrap(), 7);
}

async fn track_twice(ctx: Ctx, (): ()) -> Result<u32> {
    let first: u32 = ctx.event("one", TYPE).key(KEY).await?;
    let second: u32 = ctx.event("two", TYPE).key(KEY).await?;
    Ok(first * 10 + second)
}

async fn an_id_names_another_event_when_the_first_has_expired(h: Arc<Harness>) {
    let engine = h.engine().await;
    let run = engine.workflow("twice", track_twice).unwrap().start(()).await.unwrap();
    until_registered(&engine, 1).await;
    engine.send_by_key(TYPE, KEY, &3).id("scan-1").ttl("1 s").await.unwrap();
    until("the event has expired", async || {
        keys(&engine).await.iter().all(|key| key["events"].as_array().unwrap().is_empty())
    })
    .await;
    until_registered(&engine, 1).await;
    let sent = engine.send_by_key(TYPE, KEY, &4).id("scan-1").await.unwrap();
    assert_eq!((sent.delivered, sent.repeated), (1, false));
    let messages = async || {
        let query = Query::Messages { run_key: run.run_key(), after: 0, limit: 10 };
        engine.admin().store().list(query).await.unwrap().messages().unwrap().len()
    };
    until("the run has both events", async || messages().await == 2).await;
    assert_eq!(run.result().await.unwrap(), 34);
}

async fn the_limits_of_a_key_are_named(h: Arc<Harness>) {
    let limits = Limits { key_events_max: 2, key_bytes_max: 30, ..Limits::DEFAULT };
    let engine = h.engine_with(|options| Options { limits, ..options }).await;
    for n in [1, 2] {
        engine.send_by_key(TYPE, KEY, &n).await.unwrap();
    }
    let cases =
        [(KEY, 3.to_string(), "key_events_max"), ("other", "x".repeat(31), "key_bytes_max")];
    for (key, payload, limit) in cases {
        let error = engine.send_by_key(TYPE, key, &payload).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::EventKeyFull);
        assert!(error.message().contains(limit), "{error}");
    }
    assert_eq!(keys(&engine).await.len(), 1, "nothing is written for the other key");
    assert_eq!(tracker(&engine).start(()).await.unwrap().result().await.unwrap(), 1);
}

async fn an_expired_event_is_not_delivered(h: Arc<Harness>) {
    let engine = h.engine().await;
    engine.send_by_key(TYPE, KEY, &7).ttl("1 s").await.unwrap();
    // A task removes the event, and the record with it.
    until("the record is removed", async || keys(&engine).await.is_empty()).await;
    let late = async |ctx: Ctx, (): ()| -> Result<String> {
        let event = ctx.event::<u32>("parcel", TYPE).key(KEY).timeout("1 s").await;
        Ok(event.expect_err("it has expired").to_string())
    };
    let run = engine.workflow("late", late).unwrap().start(()).await.unwrap();
    let error = run.result().await.unwrap();
    assert!(error.contains("to key \"parcel-17\"") && error.contains("EVENT_TIMEOUT"), "{error}");
}

async fn waits_that_are_over_are_not_registered(h: Arc<Harness>) {
    let engine = h.engine().await;
    let ended = async || keys(&engine).await.is_empty();
    // A run that is terminated.
    let run = tracker(&engine).start(()).await.unwrap();
    until_registered(&engine, 1).await;
    run.terminate().await.unwrap();
    until("the wait of the terminated run is gone", ended).await;
    // A wait that times out.
    let times_out = async |ctx: Ctx, (): ()| -> Result<()> {
        let event = ctx.event::<u32>("parcel", TYPE).key(KEY).timeout("1 s").await;
        event.map(drop).or(Ok(()))
    };
    let run = engine.workflow("times out", times_out).unwrap().start(()).await.unwrap();
    run.result().await.unwrap();
    until("the wait that timed out is gone", ended).await;
    // A wait that loses a race, in a run that goes on.
    let races = async |ctx: Ctx, (): ()| -> Result<u32> {
        let parcel = ctx.event::<u32>("parcel", TYPE).key(KEY);
        match select(parcel, ctx.event::<u32>("stop", "stop")).await {
            Either::Left(_) => Ok(0),
            Either::Right((stopped, parcel)) => {
                drop(parcel);
                Ok(stopped? + ctx.event::<u32>("end", "end").await?)
            }
        }
    };
    let run = engine.workflow("races", races).unwrap().start(()).await.unwrap();
    until_registered(&engine, 1).await;
    run.send_event("stop", &1).await.unwrap();
    until("the wait that lost is gone", ended).await;
    run.send_event("end", &1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 2);
    // A run that returns while it waits.
    let returns = async |ctx: Ctx, (): ()| -> Result<u32> {
        let parcel = ctx.event::<u32>("parcel", TYPE).key(KEY);
        match select(parcel, ctx.event::<u32>("stop", "stop")).await {
            Either::Left(_) => Ok(0),
            Either::Right((stopped, _)) => Ok(stopped?),
        }
    };
    let run = engine.workflow("returns", returns).unwrap().start(()).await.unwrap();
    until_registered(&engine, 1).await;
    run.send_event("stop", &1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    until("the wait of the run that returned is gone", ended).await;
}

async fn namespaces_and_types_are_kept_apart(h: Arc<Harness>) {
    let engine = h.engine().await;
    let other = engine.in_namespace("other").unwrap();
    other.send_by_key(TYPE, KEY, &1).await.unwrap();
    engine.send_by_key("lost", KEY, &2).await.unwrap();
    engine.send_by_key(TYPE, "parcel-18", &3).await.unwrap();
    engine.send_by_key(TYPE, KEY, &4).await.unwrap();
    let run = tracker(&engine).start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 4);
}

async fn a_wait_survives_its_process(h: Arc<Harness>) {
    let engine = h.engine().await;
    let run = tracker(&engine).start(()).id("t").await.unwrap();
    until_asked(&run, "parcel").await;
    // The registration may be done, or left to the next process.
    h.stop(&engine).await;
    let engine = h.engine().await;
    engine.send_by_key(TYPE, KEY, &7).await.unwrap();
    let run = tracker(&engine).get("t").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 7);
}

async fn the_key_is_in_the_ledger_and_in_why(h: Arc<Harness>) {
    let engine = h.engine().await;
    let run = tracker(&engine).start(()).await.unwrap();
    until_registered(&engine, 1).await;
    until_asked(&run, "parcel").await;
    let why = run.why().await.unwrap();
    let texts: Vec<_> = why.reasons.iter().map(|reason| reason.text.as_str()).collect();
    let expect = "\"parcel\" waits for an event of type \"scanned\" to key \"parcel-17\"";
    assert!(texts.iter().any(|text| text.starts_with(expect)), "{texts:?}");
    engine.send_by_key(TYPE, KEY, &7).await.unwrap();
    run.result().await.unwrap();
    let types = event_types(&run).await;
    let of_events: Vec<_> = types.iter().filter(|name| name.starts_with("event.")).collect();
    assert_eq!(of_events, ["event.awaited", "event.consumed"]);
    let query = Query::Events { run_key: run.run_key(), from: 0, limit: 10 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    for event in events.iter().filter(|event| event.event_type.as_str().starts_with("event.")) {
        let payload = event.payload_json().unwrap();
        assert_eq!(payload["event_key"], KEY, "{payload}");
    }
}

async fn bad_input_is_refused(h: Arc<Harness>) {
    let engine = h.engine().await;
    let long = "x".repeat(257);
    let cases = [
        (engine.send_by_key("", KEY, &1), ErrorCode::InvalidName, "message name is empty"),
        (engine.send_by_key(TYPE, "", &1), ErrorCode::InvalidName, "event key is empty"),
        (engine.send_by_key(TYPE, &long, &1), ErrorCode::InvalidName, "at most 256"),
        (engine.send_by_key(TYPE, KEY, &1).id("a\nb"), ErrorCode::InvalidEventId, "control"),
        (engine.send_by_key(TYPE, KEY, &1).ttl("1 ms"), ErrorCode::InvalidDuration, "a second"),
        (engine.send_by_key(TYPE, KEY, &1).ttl("366 days"), ErrorCode::InvalidDuration, "365 days"),
    ];
    for (send, code, text) in cases {
        let error = send.await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(text), "{error}");
    }
    assert!(keys(&engine).await.is_empty());
    let empty =
        async |ctx: Ctx, (): ()| -> Result<u32> { Ok(ctx.event("parcel", TYPE).key("").await?) };
    let run = engine.workflow("empty", empty).unwrap().start(()).await.unwrap();
    let error = run.result().await.unwrap_err().to_string();
    assert!(error.contains("event key is empty"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_reaches_a_run_of_another_process() {
    run(Kind::Postgres, |h: Arc<Harness>| async move {
        let (sends, serves) = (h.engine().await, h.engine().await);
        let tracker = tracker(&serves);
        let waiting = tracker.start(()).await.unwrap();
        until_registered(&sends, 1).await;
        sends.send_by_key(TYPE, KEY, &7).await.unwrap();
        assert_eq!(waiting.result().await.unwrap(), 7);
        assert_eq!(tracker.start(()).await.unwrap().result().await.unwrap(), 7);
    })
    .await;
}
