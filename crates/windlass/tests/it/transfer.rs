//! Runs that move to another store: whole, verified, once, and going on there.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use windlass::admin::Options;
use windlass::admin::transfer::{
    Imported, Importer, RecordExport, RunExport, export_record, export_run,
};
use windlass::kernel::{
    Body, BoxFuture, Collection, Namespace, Query, Record, RecordId, RecordKey, RetryPolicy,
    RunKey, Subject,
};
use windlass::model::{Env, TaskHandler, TaskResult, TokioEnv};
use windlass::requests::{Decider, InboxOrder, InboxQuery, NewDecision, Request, RequestStatus};
use windlass::{AnyError, Ctx, Engine, Result, RunHandle, RunStatus, StepTx, Store, TaskContext};
use windlass_testkit::outage::Outage;

use crate::harness::{
    Counts, Harness, ok, on_every_store, until, until_asked, until_status, until_waiting,
};

on_every_store!(
    a_run_arrives_whole_and_goes_on,
    an_import_that_was_cut_off_is_carried_on,
    an_import_skips_existing_runs,
    a_record_arrives_with_its_versions,
    imported_records_of_the_engine_go_when_their_time_is_over,
);

/// More rows than one commit of an import takes.
const WIDTH: usize = 600;

async fn wide(counts: Arc<Counts>, ctx: Ctx, width: usize) -> Result<usize> {
    ctx.log().info("it begins")?;
    let steps = (0..width).map(|n| ctx.step(format!("s{n}"), async || ok(counts.hit("steps"))));
    let done = join_all(steps).await;
    let first: String = ctx.event("first", "go").await?;
    ctx.log().info(first)?;
    ctx.event::<String>("second", "go-on").await?;
    let answer: u32 = ctx.activity("work", "work", &1_u32).await?;
    ctx.sleep("nap", "50 ms").await?;
    Ok(done.len() + answer as usize)
}

async fn work(_: TaskContext, n: u32) -> std::result::Result<u32, AnyError> {
    Ok(n)
}

fn serve(engine: &Engine, counts: &Arc<Counts>) -> windlass::WorkflowRef<usize, usize> {
    engine.workflow_with("wide", Arc::clone(counts), wide).unwrap()
}

/// A run that waits for its second event, with one consumed and two that nobody has asked for.
async fn waiting(engine: &Engine, counts: &Arc<Counts>, width: usize) -> RunKey {
    let run = serve(engine, counts).start(width).id("wide").label("a", "b").await.unwrap();
    run.send_event("go", &"now").await.unwrap();
    until_asked(&run, "second").await;
    run.send_event("other", &"x").await.unwrap();
    run.send_event("other", &"y").await.unwrap();
    at_rest(engine, &run).await;
    run.run_key()
}

// It has looked at all its messages, so that nothing of its turn changes by itself.
async fn at_rest(engine: &Engine, run: &RunHandle<usize>) {
    let overview = || async {
        let loaded = engine.admin().store().load(vec![run.run_key()]).await.unwrap().pop().unwrap();
        let turn = &loaded.run.turn;
        loaded.run.seen == loaded.run.accepted && !turn.ready && turn.worker.is_none()
    };
    until("the run is at rest", overview).await;
}

async fn line(store: &dyn Store, run_key: RunKey) -> String {
    export_run(store, run_key).await.unwrap().expect("the run is there").to_line().unwrap()
}

async fn begin(store: &Arc<dyn Store>) -> Importer {
    let env: Arc<dyn Env> = TokioEnv::new().unwrap();
    Importer::begin(Arc::clone(store), &*env).await.unwrap()
}

async fn import(store: &Arc<dyn Store>, line: &str) -> Imported {
    let importer = begin(store).await;
    let imported = importer.import(RunExport::parse(line).unwrap()).await.unwrap();
    importer.finish().await.unwrap();
    imported
}

// Every store takes what a store in memory gave, and gives the same again.
async fn a_run_arrives_whole_and_goes_on(h: Arc<Harness>) {
    let counts = Counts::new();
    let source = Engine::open("memory:").await.unwrap();
    let run_key = waiting(&source, &counts, WIDTH).await;
    let exported = line(&**source.admin().store(), run_key).await;
    source.stop(Duration::from_secs(5)).await.unwrap();

    let store = h.open().await;
    assert_eq!(import(&store, &exported).await, Imported::Written);
    assert_eq!(line(&*store, run_key).await, exported);
    assert_eq!(import(&store, &exported).await, Imported::Skipped);
    if h.kind != crate::harness::Kind::Memory {
        store.close().await.unwrap();
    }

    let engine = h.engine().await;
    engine.activity("work", work).unwrap();
    let run = serve(&engine, &counts).get("wide").await.unwrap();
    assert_eq!(until_status(&run, RunStatus::Waiting).await.status, RunStatus::Waiting);
    run.send_event("go-on", &"now").await.unwrap();
    assert_eq!(run.result().await.unwrap(), WIDTH + 1);
    assert_eq!(counts.get("steps"), WIDTH as u32, "what was recorded is not done again");
    let logs = run.logs().await.unwrap();
    assert_eq!(logs.iter().filter(|line| !line.replay).count(), 2, "{logs:?}");
}

// Dropped after any number of its commits, and said again by another process.
async fn an_import_that_was_cut_off_is_carried_on(h: Arc<Harness>) {
    let counts = Counts::new();
    let source = Engine::open("memory:").await.unwrap();
    let run_key = waiting(&source, &counts, WIDTH).await;
    let exported = line(&**source.admin().store(), run_key).await;
    source.stop(Duration::from_secs(5)).await.unwrap();
    let counted = Outage::new(h.open().await);
    let store: Arc<dyn Store> = counted.clone();
    let mut carried_on = 0;
    // Each round imports the same run under another key, name and ledger, so it is made anew.
    for cut in 0..8 {
        let fresh = match cut {
            0 => exported.clone(),
            _ => another(&counts, cut).await,
        };
        let key = RunExport::parse(&fresh).unwrap().run_key();
        let importer = begin(&store).await;
        let importing = importer.import(RunExport::parse(&fresh).unwrap());
        let before = counted.commits();
        let cut_off = async {
            while counted.commits() < before + cut as u64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! { biased; imported = importing => drop(imported), () = cut_off => {} }
        // The process is gone without a word: its holds stay.
        drop(importer);
        let again = import(&store, &fresh).await;
        carried_on += u32::from(again == Imported::Completed);
        assert_eq!(line(&*store, key).await, fresh, "cut after {cut}: {again:?}");
    }
    if h.kind != crate::harness::Kind::Memory {
        assert!(carried_on > 0, "no import was cut off in its middle");
        store.close().await.unwrap();
    }
}

async fn another(counts: &Arc<Counts>, n: usize) -> String {
    let source = Engine::open("memory:").await.unwrap();
    let run = serve(&source, counts).start(WIDTH).id(format!("wide-{n}")).await.unwrap();
    run.send_event("go", &"now").await.unwrap();
    until_asked(&run, "second").await;
    at_rest(&source, &run).await;
    let exported = line(&**source.admin().store(), run.run_key()).await;
    source.stop(Duration::from_secs(5)).await.unwrap();
    exported
}

async fn an_import_skips_existing_runs(h: Arc<Harness>) {
    let counts = Counts::new();
    let source = Engine::open("memory:").await.unwrap();
    let run_key = waiting(&source, &counts, 3).await;
    let exported = line(&**source.admin().store(), run_key).await;
    source.stop(Duration::from_secs(5)).await.unwrap();

    // Another run has the name.
    let engine = h.engine().await;
    let run = serve(&engine, &counts).start(2).id("wide").await.unwrap();
    until_asked(&run, "first").await;
    until_waiting(&engine, &run).await;
    let before = line(&**engine.admin().store(), run.run_key()).await;
    let importer = begin(engine.admin().store()).await;
    let refused = importer.import(RunExport::parse(&exported).unwrap()).await.unwrap_err();
    assert_eq!(refused.code(), "RUN_EXISTS", "{refused}");
    // A change on the way is refused, wherever it was made.
    for (was, is) in
        [("\"\\\"now\\\"\"", "\"\\\"not\\\"\""), ("\"id\":\"wide\"", "\"id\":\"other\"")]
    {
        assert!(exported.contains(was), "{was}");
        let changed = exported.replace(was, is);
        let refused = importer.import(RunExport::parse(&changed).unwrap()).await.unwrap_err();
        assert_eq!(refused.code(), "INVALID_EXPORT", "{refused}");
    }
    importer.finish().await.unwrap();
    assert_eq!(line(&**engine.admin().store(), run.run_key()).await, before);
    let query = Query::RunKeys { after: None, limit: 10 };
    assert_eq!(engine.admin().store().list(query).await.unwrap().run_keys().unwrap().len(), 1);
}

fn record_key(id: &str) -> RecordKey {
    RecordKey {
        namespace: Namespace::default_namespace(),
        collection: Collection::new("carts").unwrap(),
        id: RecordId::new(id).unwrap(),
    }
}

async fn record_line(store: &dyn Store, id: &str) -> String {
    let export = export_record(store, record_key(id)).await.unwrap();
    export.expect("the record is there").to_line().unwrap()
}

// Revisions, times, terms and kept versions are the same in the new store, also after an import that
// was cut off after any of its commits.
async fn a_record_arrives_with_its_versions(h: Arc<Harness>) {
    let source = Engine::open("memory:").await.unwrap();
    let carts = source.records::<u32>("carts");
    carts.put("plain", &1).term("customer", "u-1").send().await.unwrap();
    for n in 1..=7 {
        let put = carts.put("kept", &n).term("customer", "u-1");
        if [2, 3, 6].contains(&n) { put.keep() } else { put }.send().await.unwrap();
        carts.put("newest", &n).keep().send().await.unwrap();
        carts.put("removed", &n).send().await.unwrap();
    }
    carts.put("removed soon", &1).keep().send().await.unwrap();
    carts.remove("removed soon", 1).await.unwrap();
    carts.remove("removed", 7).await.unwrap();
    let run_key = waiting(&source, &Counts::new(), 1).await;
    let counted = Outage::new(h.open().await);
    let store: Arc<dyn Store> = counted.clone();
    import(&store, &line(&**source.admin().store(), run_key).await).await;
    for id in ["plain", "kept", "newest", "removed", "removed soon"] {
        let exported = record_line(&**source.admin().store(), id).await;
        assert!(RecordExport::is_record(&exported));
        let export = || RecordExport::parse(&exported).unwrap();
        let importer = begin(&store).await;
        for cut in 0..10 {
            let before = counted.commits();
            let cut_off = async {
                while counted.commits() < before + cut {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let importing = importer.import_record(export());
            tokio::select! { biased; () = cut_off => {}, imported = importing => drop(imported) }
        }
        // The request that was cut off may still run.
        let again = until_imported(&importer, &exported).await;
        assert_eq!(record_line(&*store, id).await, exported, "{again:?}");
        assert_eq!(importer.import_record(export()).await.unwrap(), Imported::Skipped);
        importer.finish().await.unwrap();
    }
    // Another record with this key is left alone, and a damaged line is refused.
    let other = Engine::open("memory:").await.unwrap();
    other.records::<u32>("carts").put("plain", &2).send().await.unwrap();
    let importer = begin(&store).await;
    let theirs = record_line(&**other.admin().store(), "plain").await;
    let refused = importer.import_record(RecordExport::parse(&theirs).unwrap()).await.unwrap_err();
    assert_eq!(refused.code(), "RECORD_CONFLICT", "{refused}");
    let newest = record_line(&**source.admin().store(), "newest").await;
    let damaged = newest.replacen("\"json\":\"3\"", "\"json\":\"8\"", 1).replace("newest", "new");
    let refused = importer.import_record(RecordExport::parse(&damaged).unwrap()).await.unwrap_err();
    assert_eq!(refused.code(), "INVALID_EXPORT", "{refused}");
    assert!(store.records(vec![record_key("new")]).await.unwrap()[0].is_none());
    // The record of a kept ledger would be a flaw without the events of the ledger.
    let ledger = newest.replace("\"carts\"", "\"windlass.ledgers\"");
    let refused = importer.import_record(RecordExport::parse(&ledger).unwrap()).await.unwrap_err();
    assert_eq!(refused.code(), "IMPORT_REFUSED", "{refused}");
    importer.finish().await.unwrap();
    if h.kind != crate::harness::Kind::Memory {
        store.close().await.unwrap();
    }
}

struct Deliver;

impl TaskHandler for Deliver {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        Box::pin(std::future::ready(Ok(Body::json("null"))))
    }
}

async fn pay(ctx: Ctx, (): ()) -> Result<()> {
    let send = async |tx: StepTx| {
        tx.enqueue_with_receipt("mail", "paid", RetryPolicy::none())?;
        Ok(())
    };
    ctx.step_tx("send", send).await?;
    ctx.request("approve", Request::to("ann")).await?;
    Ok(())
}

async fn all_records(store: &dyn Store) -> Vec<Record> {
    let query = Query::AllRecords { after: None, limit: 100 };
    let records = store.list(query).await.unwrap().records().unwrap();
    records.into_iter().filter(|record| record.body.is_some()).collect()
}

// A receipt, a closed request with its decision, and an event by key that has expired. The tasks that delete
// them belong to no run, so the import makes them.
async fn imported_records_of_the_engine_go_when_their_time_is_over(h: Arc<Harness>) {
    let source = Engine::open("memory:").await.unwrap();
    source.serve_effects("mail", Arc::new(Deliver)).unwrap();
    let run = source.workflow("pay", pay).unwrap().start(()).id("one").await.unwrap();
    let requests = source.requests();
    let open = async || {
        let query = InboxQuery::Status(RequestStatus::Open);
        let page = requests.inbox(&query, InboxOrder::Opened, None, 10).await.unwrap();
        page.requests.first().map(|state| state.id.clone())
    };
    until("the request is open", async || open().await.is_some()).await;
    let (id, ann) = (open().await.unwrap(), Decider::new(Subject::parse("ann").unwrap()));
    requests.decide(&id, &ann, &NewDecision::approve()).await.unwrap();
    run.result().await.unwrap();
    until("the receipt is written", async || {
        !source.receipts(run.run_key(), None, 10).await.unwrap().is_empty()
    })
    .await;
    let sent = source.send_by_key("scanned", "parcel-17", &1).await.unwrap();
    let from = source.admin().store();
    let mut lines = Vec::new();
    for record in all_records(&**from).await {
        let export = export_record(&**from, record.key).await.unwrap().unwrap();
        // The time of the event passes at once.
        let expiry = sent.expires_at.as_micros().to_string();
        lines.push(export.to_line().unwrap().replace(&expiry, "1700000000000000"));
    }
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains(":1700000000000000")).count(), 1);
    let exported = line(&**from, run.run_key()).await;
    source.stop(Duration::from_secs(5)).await.unwrap();

    let store = h.open().await;
    import(&store, &exported).await;
    let importer = begin(&store).await;
    for line in &lines {
        let export = || RecordExport::parse(line).unwrap();
        assert_eq!(importer.import_record(export()).await.unwrap(), Imported::Written);
        assert_eq!(importer.import_record(export()).await.unwrap(), Imported::Skipped);
    }
    importer.finish().await.unwrap();
    assert_eq!(all_records(&*store).await.len(), 4);
    if h.kind != crate::harness::Kind::Memory {
        store.close().await.unwrap();
    }

    let short = Duration::from_secs(1);
    let retain =
        |options| Options { receipt_retention: short, request_retention: short, ..options };
    let engine = h.engine_with(retain).await;
    let store = engine.admin().store();
    until("the records are gone", async || all_records(&**store).await.is_empty()).await;
}

async fn until_imported(importer: &Importer, line: &str) -> Imported {
    for _ in 0..50 {
        match importer.import_record(RecordExport::parse(line).unwrap()).await {
            Ok(imported) => return imported,
            Err(error) => assert_eq!(error.code(), "RECORD_CONFLICT", "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("another writer has the record");
}
