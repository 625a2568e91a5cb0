//! Rows that were changed behind the engine's back, and what `verify` says about them.

use std::sync::Arc;

use windlass::Ctx;
use windlass::admin::Options;
use windlass::kernel::{Body, ModelName, OnEnd, QueueName, RouteName, WorkflowName};
use windlass::relays::NoopTerminalHook;
use windlass_engine::StartRun;

use crate::harness::{Counts, Harness, Kind, ok, on_every_store};
use crate::relays::Script;

on_every_store!(
    a_changed_queue_or_label_is_found,
    changed_headers_or_a_changed_end_task_are_found,
    a_changed_version_of_a_record_is_found,
);

async fn a_changed_queue_or_label_is_found(h: Arc<Harness>) {
    let engine = h.engine_with(|options| Options { background: false, ..options }).await;
    let flow = engine.workflow("w", async |_: Ctx, (): ()| ok(())).unwrap();
    flow.start(()).id("r").label("tenant", "ann").await.unwrap();
    let flaws = async || {
        let report = engine.admin().verify().await.unwrap();
        report.flaws.iter().map(|flaw| flaw.what.clone()).collect::<Vec<_>>()
    };
    assert_eq!(flaws().await, Vec::<String>::new());
    // The memory store has no rows that anybody else could change.
    if h.kind == Kind::Memory {
        return;
    }
    // Nobody claims a run on a queue that does not exist.
    h.sql("UPDATE runs SET queue = 'defaumt'").await;
    let what = "the run is on queue \"defaumt\", and its ledger says \"default\"";
    assert_eq!(flaws().await, [what]);
    h.sql("UPDATE runs SET queue = 'default'").await;
    h.sql(match h.kind {
        Kind::Postgres => "ALTER TABLE runs DISABLE TRIGGER runs_identity",
        _ => "DROP TRIGGER runs_identity",
    })
    .await;
    let set = async |from: &str, to: &str| {
        h.sql(&format!("UPDATE runs SET labels = replace(labels, '{from}', '{to}')")).await;
    };
    set("ann", "amn").await;
    assert_eq!(flaws().await, ["the labels are not those the run was started with"]);
    set("amn", "ann").await;
    assert_eq!(flaws().await, Vec::<String>::new());
}

async fn changed_headers_or_a_changed_end_task_are_found(h: Arc<Harness>) {
    let engine = h.engine_with(|options| Options { background: false, ..options }).await;
    // Only runs of relays have headers; a relay sets the task of the end itself.
    let _relay = engine.relay("w", Script(Counts::new()), NoopTerminalHook).build().unwrap();
    engine.workflow("s", async |_: Ctx, (): ()| ok(())).unwrap();
    let start = |workflow: &str, model| {
        let name = WorkflowName::new(workflow).unwrap();
        StartRun::new(name, ModelName::from_stored(model), Body::json("null"))
    };
    let mut relay = start("w", "relays");
    relay.headers = Some(r#"{"x-tenant":"ann"}"#.into());
    engine.core().start_run(relay).await.unwrap();
    let (queue, route) = (QueueName::default_queue(), RouteName::from_stored("end"));
    let body = serde_json::value::to_raw_value("ann").unwrap();
    let mut steps = start("s", "steps");
    steps.on_end = Some(OnEnd { queue, name: route, body }.to_json().unwrap());
    engine.core().start_run(steps).await.unwrap();
    let flaws = async || {
        let report = engine.admin().verify().await.unwrap();
        report.flaws.iter().map(|flaw| flaw.what.clone()).collect::<Vec<_>>()
    };
    assert_eq!(flaws().await, Vec::<String>::new());
    if h.kind == Kind::Memory {
        return;
    }
    h.sql(match h.kind {
        Kind::Postgres => "ALTER TABLE runs DISABLE TRIGGER runs_identity",
        _ => "DROP TRIGGER runs_identity",
    })
    .await;
    for (column, what) in [
        ("headers", "the headers are not those the run was started with"),
        ("on_end", "the task of the end is not the one the run was started with"),
    ] {
        let set = async |from: &str, to: &str| {
            let sql = format!("UPDATE runs SET {column} = replace({column}, '{from}', '{to}')");
            h.sql(&sql).await;
        };
        set("ann", "amn").await;
        assert_eq!(flaws().await, [what]);
        set("amn", "ann").await;
        assert_eq!(flaws().await, Vec::<String>::new());
    }
}

// No commit of a run wrote them, so no ledger has a seal of them.
async fn a_changed_version_of_a_record_is_found(h: Arc<Harness>) {
    h.expect_no_runs();
    let engine = h.engine().await;
    let notes = engine.records::<String>("notes");
    notes.put("n-1", &"first".to_owned()).expect_absent().keep().send().await.unwrap();
    notes.put("n-1", &"second".to_owned()).expect_revision(1).keep().send().await.unwrap();
    let large = "x".repeat(100_000);
    notes.put("n-2", &large).expect_absent().keep().send().await.unwrap();
    let flaws = async || {
        let report = engine.admin().verify().await.unwrap();
        assert_eq!((report.versions, report.is_clean()), (3, report.record_flaws.is_empty()));
        report.record_flaws.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(flaws().await, Vec::<String>::new());
    if h.kind == Kind::Memory {
        return;
    }
    h.sql(match h.kind {
        Kind::Postgres => "ALTER TABLE record_versions DISABLE TRIGGER USER",
        _ => "DROP TRIGGER record_versions_update",
    })
    .await;
    let set = async |text: &str| {
        let body = match h.kind {
            Kind::Postgres => format!("'\"{text}\"'::bytea"),
            _ => format!("CAST('\"{text}\"' AS BLOB)"),
        };
        let row = "id = 'n-1' AND revision = 1";
        h.sql(&format!("UPDATE record_versions SET body = {body} WHERE {row}")).await;
    };
    set("fifth").await;
    let what = "the document is not the one that was kept";
    assert_eq!(
        flaws().await,
        [format!("version 1 of record notes/n-1 of namespace default: {what}")]
    );
    set("first").await;
    assert_eq!(flaws().await, Vec::<String>::new());
}
