//! The traces of a run for people: log lines, events of its own, and values that replay alike.

use std::sync::Arc;

use serde_json::json;
use windlass::admin::{Options, Tick};
use windlass::kernel::CausalRef;
use windlass::{Ctx, ErrorCode, LogLevel};

use crate::harness::{Harness, event_types, ok, on_every_store, until, until_asked, until_waiting};

on_every_store!(
    log_lines_say_where_they_come_from,
    events_of_the_author_are_recorded_once,
    time_chance_and_ids_replay_alike,
    hosts_hear_of_what_is_enqueued,
    hosts_hear_of_results_and_control_requests,
);

async fn log_lines_say_where_they_come_from(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("logs", |ctx: Ctx, (): ()| async move {
            ctx.log().info("begun")?;
            assert_eq!(ctx.log().category("system").info("no").unwrap_err().code(), "INVALID_LOG");
            assert_eq!(ctx.log().info("x".repeat(3_000)).unwrap_err().code(), "INVALID_LOG");
            assert_eq!(ctx.log().info("\0").unwrap_err().code(), "INVALID_LOG");
            let inner = ctx.clone();
            let body = async || {
                inner.log().category("pay").write(LogLevel::Warn, "inside", &(1, "two"))?;
                ok(())
            };
            ctx.step("pay", body).await?;
            ctx.event::<()>("go", "go").await?;
            ctx.log().error("ended")?;
            ok(())
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "go").await;
    until_waiting(&engine, &run).await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    run.result().await.unwrap();
    let lines = run.logs().await.unwrap();
    let found: Vec<_> = lines
        .iter()
        .map(|line| (&*line.message, &*line.category, line.level, line.replay))
        .collect();
    // Lines that a replay writes again are marked; lines of a step are not written again.
    let expect = [
        ("begun", "workflow", LogLevel::Info, false),
        ("inside", "pay", LogLevel::Warn, false),
        ("begun", "workflow", LogLevel::Info, true),
        ("ended", "workflow", LogLevel::Error, false),
    ];
    assert_eq!(found, expect);
    assert_eq!(lines[1].step_key.as_ref().unwrap().as_str(), "pay");
    assert_eq!(lines[1].data.as_ref().unwrap().bytes.as_ref(), b"[1,\"two\"]");
    assert_eq!(run.logs_from(LogLevel::Warn).await.unwrap().len(), 2);
}

async fn events_of_the_author_are_recorded_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("events", |ctx: Ctx, (): ()| async move {
            let mut ids = Vec::new();
            for n in 0..3 {
                ids.push(ctx.record_event("app.begun", 1, &n)?);
                ctx.step(format!("s{n}"), async || ok(())).await?;
                ctx.event::<()>(format!("go{n}"), "go").await?;
            }
            let cause = CausalRef::event(ids[0]);
            ids.push(ctx.record_event_caused_by("app.ended", 2, &"end", cause)?);
            let inner = ctx.clone();
            let body = async || {
                inner.record_event("app.inside", 1, &())?;
                ok(())
            };
            ctx.step("last", body).await?;
            // An event that does not fit into the ledger is refused at the call: its commit would block the run.
            let refused = |name: &str, version, payload: serde_json::Value| {
                ctx.record_event(name, version, &payload).map_err(|error| error.code())
            };
            let large = "x".repeat(40_000);
            assert_eq!(refused("step.completed", 1, json!(0)), Err(ErrorCode::InvalidEventType));
            assert_eq!(refused("app.large", 1, json!(large)), Err(ErrorCode::InvalidSize));
            assert_eq!(refused("app.ended", 0, json!(0)), Err(ErrorCode::InvalidEventVersion));
            assert_eq!(refused("app.ended", 32_768, json!(0)), Err(ErrorCode::InvalidEventVersion));
            assert_eq!(
                refused("app.ended", 1, json!(u64::MAX)),
                Err(ErrorCode::InvalidEventPayload)
            );
            ok(ids.iter().map(ToString::to_string).collect::<Vec<_>>())
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    for n in 0..3 {
        until_asked(&run, &format!("go{n}")).await;
        until_waiting(&engine, &run).await;
        engine.core().evict_all();
        run.send_event("go", &()).await.unwrap();
    }
    let ids = run.result().await.unwrap();
    let events = run.events().await.unwrap();
    let of = |name: &str| -> Vec<String> {
        let ours = events.iter().filter(|event| event.event_type.as_str() == name);
        ours.map(|event| event.event_id.to_string()).collect()
    };
    assert_eq!(of("app.begun"), ids[..3]);
    assert_eq!(of("app.ended"), ids[3..]);
    assert_eq!(of("app.inside").len(), 1);
    assert_eq!(event_types(&run).await.iter().filter(|t| t.starts_with("app.")).count(), 5);
}

async fn time_chance_and_ids_replay_alike(h: Arc<Harness>) {
    let engine = h.engine().await;
    let seen: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let inner = seen.clone();
    let flow = engine
        .workflow("draws", move |ctx: Ctx, (): ()| {
            let seen = inner.clone();
            async move {
                let mut all = Vec::new();
                for n in 0..3 {
                    all.push(format!("{} {} {}", ctx.now(), ctx.random(), ctx.uuid()));
                    ctx.step(format!("s{n}"), async || ok(())).await?;
                    all.push(ctx.now().to_string());
                    seen.lock().push(all.join("|"));
                    ctx.event::<()>(format!("go{n}"), "go").await?;
                }
                ok(all.join("|"))
            }
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    for n in 0..3 {
        until_asked(&run, &format!("go{n}")).await;
        until_waiting(&engine, &run).await;
        engine.core().evict_all();
        run.send_event("go", &()).await.unwrap();
    }
    let end = run.result().await.unwrap();
    let seen = seen.lock().clone();
    assert_eq!(seen.len(), 6 + 3, "every replay went through the code again");
    assert!(seen.iter().all(|part| end.starts_with(part)), "{seen:?}");
    let parts: std::collections::BTreeSet<_> = end.split(['|', ' ']).collect();
    assert_eq!(parts.len(), 3 * 4, "times rise, and draws differ: {end}");
}

async fn hosts_hear_of_what_is_enqueued(h: Arc<Harness>) {
    let heard: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let inner = heard.clone();
    let tell = move |mut options: Options| {
        options.on_enqueued = Some(Arc::new(move |workflow, id, reason| {
            inner.lock().push(format!("{workflow} {id} {}", reason.as_str()));
        }));
        options
    };
    let engine = h.engine_with(tell).await;
    let flow = engine
        .workflow("w", async |ctx: Ctx, (): ()| ok(ctx.event::<u32>("e", "e").await?))
        .unwrap();
    let count = |expect: &str| heard.lock().iter().filter(|line| *line == expect).count();
    let run = flow.start(()).id("one").await.unwrap();
    run.send_event("e", &1).await.unwrap();
    run.result().await.unwrap();
    until("both were heard", || async { count("w one create") == 1 && count("w one event") == 1 })
        .await;
}

async fn hosts_hear_of_results_and_control_requests(h: Arc<Harness>) {
    let heard: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
    let inner = heard.clone();
    let tell = move |mut options: Options| {
        options.background = false;
        options.on_enqueued = Some(Arc::new(move |workflow, id, reason| {
            inner.lock().push(format!("{workflow} {id} {}", reason.as_str()));
        }));
        options
    };
    let engine = h.engine_with(tell).await;
    engine.activity("add", async |_, n: u32| Ok(n + 1)).unwrap();
    engine.workflow("child", async |_: Ctx, (): ()| ok(())).unwrap();
    let flow = engine
        .workflow("w", async |ctx: Ctx, (): ()| {
            ctx.step("one", async || ok(())).await?;
            ctx.step("two", async || ok(())).await?;
            ctx.child_named::<_, ()>("child", "child", &()).await?;
            ctx.activity::<_, u32>("add", "add", &1).await?;
            ok(ctx.event::<u32>("e", "e").await?)
        })
        .unwrap();
    let count = |expect: &str| heard.lock().iter().filter(|line| *line == expect).count();
    let tick = async |steps_max| {
        let tick = Tick { steps_max, ..Tick::default() };
        engine.admin().tick(tick).await.unwrap().processed
    };
    let run = flow.start(()).id("one").await.unwrap();
    assert_eq!(tick(Some(1)).await, 1);
    // The tick may begin no more steps, and the run has more to do.
    until("a parked run is heard", || async { count("w one wake") == 1 }).await;
    // The parent waits for its child; then the child ends.
    assert_eq!(tick(None).await, 1);
    assert_eq!(count("w one event"), 0);
    assert_eq!(tick(None).await, 1);
    until("the result of a child is heard", || async { count("w one event") == 1 }).await;
    assert_eq!(tick(None).await, 1);
    until("a new task is heard", || async { count("w one wake") == 2 }).await;
    assert_eq!(tick(None).await, 1);
    until("the result of an activity is heard", || async { count("w one event") == 2 }).await;
    tick(None).await;
    // Nobody holds the run, so this is no message.
    run.pause().await.unwrap();
    run.resume().await.unwrap();
    until("a resumed run is heard", || async { count("w one resume") == 1 }).await;
    let before = count("w one wake");
    run.wake().await.unwrap();
    until("a control request is heard", || async { count("w one wake") == before + 1 }).await;
    run.send_event("e", &1).await.unwrap();
    until("an event is heard", || async { count("w one event") == 3 }).await;
    while tick(None).await > 0 {}
    run.result().await.unwrap();
}
