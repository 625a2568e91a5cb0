//! Large values: stored once for a run, copied to a restart, exported, limited by a setting, and read by everybody who
//! lists the rows that refer to them.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::admin::Options;
use windlass::admin::transfer::{Imported, Importer, RunExport, export_run};
use windlass::kernel::{
    BodyOwner, BodyRef, Delivery, Limits, MemoryStore, Query, RunKey, RunsQuery,
};
use windlass::kernel::{RetryPolicy, Subject};
use windlass::model::{Env, TokioEnv};
use windlass::requests::{
    Decider, InboxOrder, InboxQuery, NewDecision, RecordRef, Request, RequestOutcome, RequestStatus,
};
use windlass::{
    AnyError, Ctx, Engine, ErrorCode, ReceiptOutcome, Result, StepTx, Store, TaskContext,
    Timestamp, WorkflowRef,
};

use crate::contracts::{
    SLOT, TYPE, document, invoice, node, open_request, opened, opened_on, person, publish, role,
    submitted, until_state,
};
use crate::harness::{Counts, Harness, ok, on_every_store, until};
use crate::relays::{Told, script, submit};

on_every_store!(
    a_value_that_passes_through_ten_steps_is_stored_once,
    an_activity_takes_as_much_as_a_step,
    an_activity_that_no_task_can_hold_fails_its_call,
    a_large_event_that_is_sent_again_is_the_same_event,
    large_requests_are_in_the_inbox,
    large_answers_count_as_the_last_approval,
    large_documents_are_listed_and_have_versions,
    an_effect_finds_the_note_of_a_large_document,
    large_approvals_are_listed,
    the_status_of_a_relay_has_its_large_result,
);

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

// The whole limit goes into the input: the task has its retry policy beside it.
async fn an_activity_takes_as_much_as_a_step(h: Arc<Harness>) {
    const BYTES: usize = 2 * MIB;
    let engine = h.engine_with_limits(Limits::DEFAULT.with_value_bytes_max(BYTES)).await;
    engine.activity("measure", measure).unwrap();
    let send = async |ctx: Ctx, bytes: usize| -> Result<usize> {
        Ok(ctx.activity("measured", "measure", &"x".repeat(bytes)).await?)
    };
    let run = engine.workflow("send", send).unwrap().start(BYTES - 2).id("one").await.unwrap();
    assert_eq!(run.result().await.unwrap(), BYTES - 2);
}

async fn an_activity_that_no_task_can_hold_fails_its_call(h: Arc<Harness>) {
    let limits = Limits { step_bytes_max: 4 * MIB, ..Limits::DEFAULT };
    let engine = h.engine_with_limits(limits).await;
    engine.activity("measure", measure).unwrap();
    let send = async |ctx: Ctx, bytes: usize| -> Result<String> {
        let large = ctx.activity::<_, usize>("large", "measure", &"x".repeat(bytes)).await;
        let small: usize = ctx.activity("small", "measure", &"x").await?;
        Ok(format!("{small} {}", large.unwrap_err()))
    };
    let run = engine.workflow("send", send).unwrap().start(2 * MIB).id("one").await.unwrap();
    let result = run.result().await.unwrap();
    assert!(result.starts_with("1 ") && result.contains("at most 1114112 are allowed"), "{result}");
}

async fn measure(_: TaskContext, text: String) -> std::result::Result<usize, AnyError> {
    Ok(text.len())
}

fn env() -> Arc<dyn Env> {
    TokioEnv::new().unwrap()
}

fn memory(limits: Limits) -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(|| Timestamp::from_micros(1_800_000_000_000_000)), limits))
}

fn large() -> String {
    "x".repeat(200 * 1024)
}

async fn a_large_event_that_is_sent_again_is_the_same_event(h: Arc<Harness>) {
    let engine = h.engine().await;
    let wait = async |ctx: Ctx, (): ()| -> Result<usize> {
        let text: String = ctx.event("wait", "text").await?;
        let _: () = ctx.event("end", "end").await?;
        Ok(text.len())
    };
    let run = engine.workflow("wait", wait).unwrap().start(()).id("one").await.unwrap();
    let sent = run.send_event_once("text", &large(), "t-1").await.unwrap();
    assert!(matches!(sent, Delivery::Accepted { .. }), "{sent:?}");
    let again = run.send_event_once("text", &large(), "t-1").await.unwrap();
    assert!(matches!(again, Delivery::Duplicate { .. }), "{again:?}");
    let other = run.send_event_once("text", &format!("{}y", large()), "t-1").await.unwrap_err();
    assert_eq!(other.code(), ErrorCode::MessageExists);
    run.send_event("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), large().len());
}

async fn ask(ctx: Ctx, request: Request) -> Result<RequestOutcome> {
    Ok(ctx.request("approve", request).await?)
}

fn who(text: &str) -> Decider {
    Decider::new(Subject::parse(text).unwrap())
}

async fn inbox(engine: &Engine, query: &InboxQuery, order: InboxOrder, limit: u32) -> Vec<String> {
    let (mut runs, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = engine.requests().inbox(query, order, after.as_deref(), limit).await.unwrap();
        for state in page.requests {
            assert!(state.about.is_some());
            runs.push(state.run.id.to_string());
        }
        after = page.next;
        if after.is_none() {
            return runs;
        }
    }
}

async fn until_opened(engine: &Engine, count: usize) {
    let query = InboxQuery::Status(RequestStatus::Open);
    until("the requests are open", async || {
        let page = engine.requests().inbox(&query, InboxOrder::Opened, None, 100).await.unwrap();
        page.requests.len() == count
    })
    .await;
}

async fn large_requests_are_in_the_inbox(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("ask", ask).unwrap();
    let mut runs = Vec::new();
    let texts = [(large(), 3), ("small".to_owned(), 2), (large() + "y", 1)];
    for (n, (text, due)) in texts.into_iter().enumerate() {
        let request =
            Request::to("ann").and_to("role:cfo").about_snapshot(&json!({ "text": text }));
        let request = request.due(format!("{due} days"));
        runs.push(flow.start(request).id(format!("r{n}")).await.unwrap());
        until_opened(&engine, n + 1).await;
    }
    let queries = [
        InboxQuery::Person("ann".into()),
        InboxQuery::Role("cfo".into()),
        InboxQuery::Of(Subject::parse("ann:cfo").unwrap()),
        InboxQuery::Status(RequestStatus::Open),
    ];
    for limit in [1, 2, 10] {
        for query in &queries {
            let by_age = inbox(&engine, query, InboxOrder::Opened, limit).await;
            assert_eq!(by_age, ["r0", "r1", "r2"], "{query:?} {limit}");
            let by_due = inbox(&engine, query, InboxOrder::Due, limit).await;
            assert_eq!(by_due, ["r2", "r1", "r0"], "{query:?} {limit}");
        }
    }
    let page = engine.requests().inbox(&queries[0], InboxOrder::Opened, None, 10).await.unwrap();
    for state in page.requests {
        let yes = NewDecision::approve();
        engine.requests().decide(&state.id, &who("ann"), &yes).await.unwrap();
    }
    for run in runs {
        assert!(run.result().await.unwrap().is_approved());
    }
}

async fn about_invoice(ctx: Ctx, invoice: RecordRef) -> Result<RequestOutcome> {
    let request = Request::to("role:cfo").about(&invoice).schema(json!({ "type": "string" }));
    Ok(ctx.request("approve", request).await?)
}

async fn large_answers_count_as_the_last_approval(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("about", about_invoice).unwrap();
    let invoices = engine.records::<u32>("invoices");
    for (n, run) in [(70, "one"), (71, "two")] {
        invoices.put("i-7", &n).keep().send().await.unwrap();
        let invoice = invoices.get("i-7").await.unwrap().unwrap();
        let run = flow.start(invoice.reference()).id(run).await.unwrap();
        until_opened(&engine, 1).await;
        let query = InboxQuery::Role("cfo".into());
        let page = engine.requests().inbox(&query, InboxOrder::Opened, None, 10).await.unwrap();
        let yes = NewDecision::approve().answer(json!(large()));
        engine.requests().decide(&page.requests[0].id, &who("ann:cfo"), &yes).await.unwrap();
        assert_eq!(run.result().await.unwrap().answer::<String>().unwrap(), Some(large()));
    }
    invoices.put("i-7", &72).keep().send().await.unwrap();
    let invoice = invoices.get("i-7").await.unwrap().unwrap().reference();
    let last = engine.requests().last_approved("ann", &invoice).await.unwrap();
    assert_eq!(last.map(|approved| approved.revision), Some(2));
}

fn noted(total: u64, note: &str) -> Value {
    let mut content = invoice(total);
    content["note"] = json!(note);
    content
}

async fn large_documents_are_listed_and_have_versions(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    contracts.create(TYPE, "a", &noted(1, &large()), &person("rita")).await.unwrap();
    contracts.create(TYPE, "b", &noted(2, "small"), &person("rita")).await.unwrap();
    for (version, total) in [(1, 3), (2, 4)] {
        let content = noted(total, &large());
        contracts.edit(TYPE, "a", version, &content, &person("rita"), None).await.unwrap();
    }
    let listed = contracts.documents(TYPE, None, None, 10).await.unwrap();
    let totals: Vec<&Value> = listed.iter().map(|found| &found.row.content["total"]).collect();
    assert_eq!(totals, [4, 2]);
    assert_eq!(listed[0].row.content["note"], large());
    let drafts = contracts.documents(TYPE, Some("draft"), None, 10).await.unwrap();
    assert_eq!(drafts.len(), 2);
    let first = contracts.document_version(TYPE, "a", 1).await.unwrap();
    assert_eq!((&first.content["total"], &first.content["note"]), (&json!(1), &json!(large())));
    let changed = contracts.document_diff(TYPE, "a", 1, 3).await.unwrap();
    assert_eq!(changed.keys().collect::<Vec<_>>(), ["total"]);
}

async fn an_effect_finds_the_note_of_a_large_document(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    // Two effects with one note are like two attempts of one effect: the first has lost its answer.
    let send = async |ctx: Ctx, (): ()| -> Result<()> {
        let send = async |tx: StepTx| {
            let payload = json!({ "type": TYPE, "id": "made", "content": noted(1, &large()) });
            let by = json!({ "id": "rita", "roles": [] });
            let input = json!({ "payload": payload, "by": by, "note": "by the test" });
            for _ in 0..2 {
                tx.enqueue_with_receipt("contracts.document", &input, RetryPolicy::none())?;
            }
            Ok(())
        };
        Ok(ctx.step_tx("send", send).await?)
    };
    let run = engine.workflow("send", send).unwrap().start(()).await.unwrap();
    run.result().await.unwrap();
    let receipts = async || engine.receipts(run.run_key(), None, 10).await.unwrap();
    until("both effects are settled", async || receipts().await.len() == 2).await;
    for receipt in receipts().await {
        assert_eq!(receipt.outcome, ReceiptOutcome::Delivered, "{receipt:?}");
    }
    assert_eq!(document(&contracts, "made").await.row.content["note"], large());
}

async fn large_approvals_are_listed(h: Arc<Harness>) {
    // Two reasons of the allowed size make an approval large.
    let limits = Limits { inline_bytes_max: Limits::INLINE_BYTES_MIN, ..Limits::DEFAULT };
    let engine = h.engine_with(|options| Options { limits, ..options }).await;
    let contracts = opened_on(&engine).await;
    let mut both = role("finance_manager");
    both["quorum"] = json!({ "kind": "count", "count": 2 });
    publish(&contracts, json!({ SLOT: { "nodes": [node("review", "approval", both)] } })).await;
    submitted(&contracts, "k", 10).await;
    let request = open_request(&contracts, "k", 1).await;
    for by in ["fay", "fred"] {
        let verdict = windlass::contracts::language::tokens::Verdict::Approved;
        let why = Some("y".repeat(2_000));
        let (id, digest, by) = (&request.id, request.digest, person(by));
        contracts.decide_approval(id, verdict, digest, &by, why.as_deref()).await.unwrap();
    }
    until_state(&contracts, "k", "active").await;
    let listed = contracts.approvals_of(TYPE, "k", None, 10).await.unwrap();
    assert_eq!(listed[0].decisions.len(), 2);
}

async fn the_status_of_a_relay_has_its_large_result(h: Arc<Harness>) {
    let engine = h.engine().await;
    let relay = script(&engine, &Counts::new(), &Told::default());
    submit(&relay, "r", &large()).await;
    let run = relay.get("r").await.unwrap();
    run.finished().await.unwrap();
    let status = run.relay_status().await.unwrap();
    assert_eq!(status.result.map(|bytes| bytes.len()), Some(large().len()));
}
