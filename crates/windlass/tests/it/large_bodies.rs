//! Large values: stored once for a run, copied to a restart, exported, and limited by a setting.

use std::sync::Arc;

use windlass::admin::transfer::{Imported, Importer, RunExport, export_run};
use windlass::kernel::{BodyOwner, BodyRef, Limits, MemoryStore, Query, RunKey, RunsQuery};
use windlass::model::{Env, TokioEnv};
use windlass::{Ctx, Engine, ErrorCode, Result, Store, Timestamp, WorkflowRef};

use crate::harness::{Harness, ok, on_every_store};

on_every_store!(a_value_that_passes_through_ten_steps_is_stored_once);

const MIB: usize = 1024 * 1024;

async fn pass(ctx: Ctx, mut value: String) -> Result<String> {
    for n in 0..10 {
        let given = value.clone();
        value = ctx.step(format!("pass-{n}"), async || ok(given.clone())).await?;
    }
    Ok(value)
}

fn serve(engine: &Engine) -> WorkflowRef<String, String> {
    engine.workflow("pass", pass).unwrap()
}

async fn stored(store: &dyn Store, run_key: RunKey) -> Vec<BodyRef> {
    let query = Query::Bodies { owner: BodyOwner::Run(run_key), after: None, limit: 100 };
    store.list(query).await.unwrap().bodies().unwrap()
}

async fn a_value_that_passes_through_ten_steps_is_stored_once(h: Arc<Harness>) {
    let value = "x".repeat(8 * MIB);
    let limits = || Limits::DEFAULT.with_body_bytes_max(Limits::BODY_BYTES_MAX);
    let engine = h.engine().await;
    let refused = serve(&engine).start(value.clone()).id("small").await;
    assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidSize);
    h.stop(&engine).await;
    let engine = h.engine_with_limits(limits()).await;
    let workflow = serve(&engine);
    let run = workflow.start(value.clone()).id("large").await.unwrap();
    assert_eq!(run.result().await.unwrap().len(), value.len());
    let store = Arc::clone(engine.admin().store());
    let bodies = stored(&*store, run.run_key()).await;
    assert_eq!(bodies.len(), 1, "input, ten results and the output are the same bytes");
    assert_eq!(bodies[0].len, value.len() as u64 + 2);

    // Listings do not read it, single reads do.
    let query = RunsQuery::all(windlass::Namespace::default_namespace(), 10);
    let listed = store.list(Query::Runs(query)).await.unwrap().runs().unwrap();
    assert!(listed[0].input.is_reference() && listed[0].output.as_ref().unwrap().is_reference());
    assert_eq!(
        run.status().await.unwrap().output.and_then(|text| text.as_str().map(str::len)),
        Some(value.len())
    );
    assert_eq!(run.steps().await.unwrap().len(), 10);

    // The next generation is a root itself.
    run.restart().await.unwrap();
    let next = run.run().await.unwrap().run_key;
    assert_ne!(next, run.run_key());
    assert_eq!(workflow.get("large").await.unwrap().result().await.unwrap().len(), value.len());
    assert_eq!(stored(&*store, next).await, bodies);

    // It moves to another store and stays one body.
    let line = export_run(&*store, next).await.unwrap().unwrap().to_line().unwrap();
    let copy = memory(limits());
    let importer = Importer::begin(copy.clone(), &*env()).await.unwrap().limits(limits());
    let imported = importer.import(RunExport::parse(&line).unwrap()).await.unwrap();
    assert_eq!(imported, Imported::Written);
    assert_eq!(stored(&*copy, next).await, bodies);
}

fn env() -> Arc<dyn Env> {
    TokioEnv::new().unwrap()
}

fn memory(limits: Limits) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000)), limits))
}
