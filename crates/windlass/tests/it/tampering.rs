//! Rows that were changed behind the engine's back, and what `verify` says about them.

use std::sync::Arc;

use windlass::Ctx;
use windlass::admin::Options;

use crate::harness::{Harness, Kind, ok, on_every_store};

on_every_store!(a_changed_queue_or_label_is_found);

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
