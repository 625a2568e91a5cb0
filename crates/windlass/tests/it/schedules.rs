//! Schedules: once a firing, visible, paused and ended by hand.

use std::collections::BTreeSet;
use std::sync::Arc;

use windlass::kernel::{Order, Query, RunsQuery, WorkflowName};
use windlass::{Ctx, Engine};

use crate::harness::{Counts, Harness, Kind, ok, on_every_store, until};

on_every_store!(a_schedule_starts_a_run_once_a_firing);

// Ids of the runs that firings have started.
async fn started(engine: &Engine) -> Vec<String> {
    let mut query = RunsQuery::all(engine.admin().options().namespace.clone(), 100);
    query.workflow = Some(WorkflowName::new("tick").unwrap());
    query.order = Order::Ascending;
    let runs = engine.admin().store().list(Query::Runs(query)).await.unwrap().runs().unwrap();
    runs.iter().map(|run| run.id.to_string()).collect()
}

async fn a_schedule_starts_a_run_once_a_firing(h: Arc<Harness>) {
    let counts = Counts::new();
    // Where several processes can share the store, two of them serve the schedule.
    let engines = match h.kind {
        Kind::Postgres => vec![h.engine().await, h.engine().await],
        _ => vec![h.engine().await],
    };
    for engine in &engines {
        let counts = counts.clone();
        let flow = move |ctx: Ctx, name: String| {
            let counts = counts.clone();
            async move {
                let id = ctx.run().id.clone();
                ok(ctx.step("tick", async || ok(counts.hit(&format!("{name} {id}")))).await?)
            }
        };
        let ticks = engine.workflow("tick", flow).unwrap();
        ticks.schedule("often", &"a".into()).every("1 second").label("by", "clock").await.unwrap();
        ticks.schedule("nightly", &"b".into()).cron("0 3 * * *").await.unwrap();
        let error = ticks.schedule("never", &"c".into()).cron("no cron").await.unwrap_err();
        assert_eq!(error.code(), "INVALID_SCHEDULE");
    }
    let engine = &engines[0];
    until("three firings have started runs", || async { started(engine).await.len() >= 3 }).await;
    let schedules = engine.admin().schedules().await.unwrap();
    let names: Vec<&str> = schedules.iter().map(|schedule| &*schedule.name).collect();
    assert_eq!(names, ["often", "nightly"]);
    assert!(schedules[0].last_at.is_some() && schedules[0].next_at > schedules[0].last_at);
    assert!(schedules[1].last_at.is_none() && schedules[1].next_at.is_some());

    engine.admin().pause_schedule("often").await.unwrap();
    until("it is paused", || async {
        engine.admin().schedule("often").await.unwrap().is_some_and(|schedule| schedule.paused)
    })
    .await;
    let before = started(engine).await;
    engine.admin().resume_schedule("often").await.unwrap();
    until("it goes on", || async { started(engine).await.len() > before.len() }).await;

    // Another schedule under the name replaces it; deleting it ends it.
    let ticks = engine.remote_workflow::<String, u32>("tick").unwrap();
    ticks.schedule("often", &"d".into()).every("1 day").await.unwrap();
    let replaced = engine.admin().schedule("often").await.unwrap().unwrap();
    assert_eq!(replaced.schedule.input.get(), "\"d\"");
    engine.admin().delete_schedule("often").await.unwrap();
    assert!(engine.admin().schedule("often").await.unwrap().is_none());
    assert_eq!(
        engine.admin().delete_schedule("often").await.unwrap_err().code(),
        "SCHEDULE_NOT_FOUND"
    );

    let ids = started(engine).await;
    let distinct: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
    for id in &ids {
        until("the run of the firing is done", || async { counts.get(&format!("a {id}")) > 0 })
            .await;
        assert_eq!(counts.get(&format!("a {id}")), 1, "{id}");
    }
}
