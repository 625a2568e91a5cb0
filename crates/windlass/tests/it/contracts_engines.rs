//! Documents on engines as programs run them: policies, step limits, real webhooks, refused commits, and two
//! engines on one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use windlass::contracts::language::types::{LifecycleContract, RunAs};
use windlass::contracts::{
    ActionCall, ActionOutcome, Approval, ApprovalStatus, Contracts, DocumentRow, Person, Policy,
};
use windlass::kernel::{BoxFuture, Commit, CommitError, CommitResults, Expect, Op};
use windlass::outbound;
use windlass::webhooks::{WebhookOptions, Webhooks};
use windlass::{Engine, Error, ErrorCode, ErrorKind, RecordChange, RunStatus, Store};
use windlass_testkit::gate::{Gate, GatedStore, Pass};

use crate::contracts::{
    SLOT, TYPE, approve, contract, directory, document, edge, invoice, node, open_request, person,
    publish, refused, role, same_when_rebuilt, submitted, until_run, until_state,
};
use crate::harness::{Harness, on_every_store};
use crate::receiver::{Receiver, answer};

on_every_store!(
    a_policy_refuses_writes_of_people_and_actions_of_runs,
    a_run_with_too_many_steps_stops_and_its_document_can_be_cancelled,
    webhooks_of_documents_are_signed_and_name_their_step,
    case_20_a_refused_commit_leaves_no_trace,
    case_21_two_engines_advance_each_document_once,
);

fn action(name: &str) -> Value {
    let mutation = json!({"actionType": "ledger.post", "payloadTemplate": {}});
    node(name, "action", json!({"mutation": mutation}))
}

fn slot(nodes: Value, edges: Value) -> Value {
    json!({SLOT: {"nodes": nodes, "edges": edges}})
}

fn free() -> LifecycleContract {
    let mut free = contract();
    free.obligations.clear();
    free
}

/// Writes one ledger record a document, so that a second call would be refused.
fn post(call: &ActionCall<'_>) -> Result<ActionOutcome, String> {
    let change = RecordChange::put("ledger", call.id, &call.version, Expect::Absent);
    Ok(ActionOutcome::none().record(change.map_err(|error| error.to_string())?))
}

async fn prepare(contracts: &Contracts, contract: &LifecycleContract) {
    contracts.publish_type(contract, &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
}

/// Max writes nothing, and runs post nothing for totals above 100.
struct Strict;

impl Policy for Strict {
    fn write(&self, person: &Person, write: &str, _: &DocumentRow) -> Result<(), String> {
        match person.id.as_str() {
            "max" => Err(format!("max may not {write}")),
            _ => Ok(()),
        }
    }

    fn action(
        &self,
        action_type: &str,
        _: RunAs,
        _: &Person,
        document: &DocumentRow,
    ) -> Result<(), String> {
        match document.content["total"].as_u64() {
            Some(101..) => Err(format!("{action_type} is only for small totals")),
            _ => Ok(()),
        }
    }
}

async fn a_policy_refuses_writes_of_people_and_actions_of_runs(h: Arc<Harness>) {
    let engine = h.engine().await;
    let builder = Contracts::builder().action("ledger.post", Arc::new(post)).policy(Strict);
    let contracts = builder.open(&engine).await.unwrap();
    prepare(&contracts, &free()).await;
    publish(&contracts, slot(json!([action("post")]), json!([]))).await;
    let (max, rita) = (person("max"), person("rita"));
    let code = ErrorCode::PolicyRefused;
    refused(contracts.create(TYPE, "a", &invoice(900), &max).await, code);
    refused(contracts.document(TYPE, "a").await, ErrorCode::DocumentNotFound);
    contracts.create(TYPE, "a", &invoice(900), &rita).await.unwrap();
    refused(contracts.edit(TYPE, "a", 1, &invoice(901), &max, None).await, code);
    refused(contracts.act(TYPE, "a", "submit", &max, None).await, code);
    let row = document(&contracts, "a").await.row;
    assert_eq!((row.version, row.pending.len()), (1, 0));
    contracts.act(TYPE, "a", "submit", &rita, None).await.unwrap();
    until_run(&contracts, "a", RunStatus::Errored).await;
    let run = contracts.run(TYPE, "a").await.unwrap();
    let error: Value = run.error.as_ref().unwrap().read().unwrap();
    assert_eq!(error["name"], "WORKFLOW_POLICY_DENIED", "{error}");
    let ledger = engine.records::<u64>("ledger");
    assert!(ledger.get("a").await.unwrap().is_none());
    submitted(&contracts, "b", 100).await;
    until_state(&contracts, "b", "active").await;
    assert!(ledger.get("b").await.unwrap().is_some());
}

async fn a_run_with_too_many_steps_stops_and_its_document_can_be_cancelled(h: Arc<Harness>) {
    let engine = h.engine().await;
    let builder = Contracts::builder().action("ledger.post", Arc::new(post)).steps_max(8);
    let contracts = builder.open(&engine).await.unwrap();
    prepare(&contracts, &contract()).await;
    let tell = json!({"channel": "in_app", "to": {"strategy": "role", "role": "cfo"},
                      "subject": "Invoice {entity.id}"});
    let nodes: Vec<Value> = (0..8)
        .map(|index| node(&format!("s{index}"), "notification", tell.clone()))
        .chain([node("ask", "approval", role("finance_manager"))])
        .collect();
    let edges: Vec<Value> = (0..7)
        .map(|index| {
            let to = format!("s{}", index + 1);
            edge(&format!("e{index}"), &format!("s{index}"), &to)
        })
        .chain([edge("last", "s7", "ask")])
        .collect();
    publish(&contracts, slot(json!(nodes), json!(edges))).await;
    submitted(&contracts, "a", 10).await;
    until_run(&contracts, "a", RunStatus::Errored).await;
    let run = contracts.run(TYPE, "a").await.unwrap();
    let error: Value = run.error.as_ref().unwrap().read().unwrap();
    assert_eq!(error["name"], "WORKFLOW_STEP_LIMIT", "{error}");
    contracts.act(TYPE, "a", "cancel", &person("rita"), None).await.unwrap();
    until_state(&contracts, "a", "cancelled").await;
    until_run(&contracts, "a", RunStatus::Complete).await;
    same_when_rebuilt(&contracts, "a").await;
}

async fn webhooks_of_documents_are_signed_and_name_their_step(h: Arc<Harness>) {
    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let engine = h.engine().await;
    let receiver = Receiver::start([answer("200 OK", "", "")]).await;
    let options = WebhookOptions {
        policy: outbound::Policy {
            plain_http: true,
            allow: vec!["127.0.0.1".parse().unwrap()],
            ..outbound::Policy::default()
        },
        secrets: [("default".to_owned(), vec![SECRET.parse().unwrap()])].into(),
        ..WebhookOptions::default()
    };
    Webhooks::new(&engine, options).unwrap().serve_contracts(&engine).unwrap();
    let contracts = Contracts::builder().webhooks().open(&engine).await.unwrap();
    prepare(&contracts, &free()).await;
    let config = json!({"url": receiver.url(), "payloadTemplate": {"total": "entity.total"},
                        "await": "delivered"});
    publish(&contracts, slot(json!([node("hook", "webhook_out", config)]), json!([]))).await;
    submitted(&contracts, "a", 10).await;
    until_state(&contracts, "a", "active").await;
    // The run has waited for the delivery.
    let requests = receiver.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    let request = &requests[0];
    let secrets = [SECRET.parse().unwrap()];
    windlass::webhooks::verify(&secrets, &request.headers, &request.body).unwrap();
    let sent = request.json();
    assert_eq!((&sent["type"], &sent["data"]["total"]), (&json!("invoice.webhook"), &json!(10)));
    assert_eq!(request.header("idempotency-key").len(), "sha256:".len() + 64);
    same_when_rebuilt(&contracts, "a").await;
}

/// Refuses the first commits of runs that open a request for approval.
struct Refusing {
    left: Arc<AtomicU32>,
}

/// How many of them are refused.
const REFUSED: u32 = 3;

impl Gate for Refusing {
    fn pass(&self) -> Pass {
        Pass::Through
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        let asks = |commit: &Commit| {
            commit.ops.iter().any(|op| match op {
                Op::Record(record) => record.key.collection.as_str() == "windlass.approvals",
                _ => false,
            })
        };
        let refuses = commits.iter().any(asks)
            && self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                .is_ok();
        Box::pin(async move {
            if refuses {
                let error = || {
                    let message = "the disk is full";
                    let code = ErrorCode::StoreUnavailable;
                    CommitError::Unavailable(Arc::new(Error::new(
                        ErrorKind::Unavailable,
                        code,
                        message,
                    )))
                };
                return commits.iter().map(|_| Err(error())).collect();
            }
            inner.commit(commits).await
        })
    }
}

async fn case_20_a_refused_commit_leaves_no_trace(h: Arc<Harness>) {
    let left = Arc::new(AtomicU32::new(REFUSED));
    let gate = Refusing { left: Arc::clone(&left) };
    let wrap = |store| Arc::new(GatedStore::with_gate(store, gate)) as Arc<dyn Store>;
    let (engine, _other) = h.engine_behind(wrap).await;
    let seen = Arc::new(AtomicU32::new(0));
    let calls = Arc::clone(&seen);
    // The action writes a record that must not exist.
    let counted = move |call: &ActionCall<'_>| {
        calls.fetch_add(1, Ordering::SeqCst);
        post(call)
    };
    let builder = Contracts::builder().action("ledger.post", Arc::new(counted));
    let contracts = builder.open(&engine).await.unwrap();
    prepare(&contracts, &contract()).await;
    let nodes = json!([action("post"), node("ask", "approval", role("finance_manager"))]);
    publish(&contracts, slot(nodes, json!([edge("e", "post", "ask")]))).await;
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    assert_eq!(left.load(Ordering::SeqCst), 0, "the commits were refused");
    assert_eq!(seen.load(Ordering::SeqCst), 1, "the engine sends the same commit again");
    // One request, one record, one row for each step.
    let all = contracts.approvals_of(TYPE, "a", None, 10).await.unwrap();
    assert_eq!(all, std::slice::from_ref(&request));
    assert_eq!(engine.records::<u64>("ledger").get("a").await.unwrap().unwrap().revision, 1);
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "a", "active").await;
    same_when_rebuilt(&contracts, "a").await;
}

async fn case_21_two_engines_advance_each_document_once(h: Arc<Harness>) {
    let (first, second) = h.two_engines(|options| options).await;
    let open = async |engine: &Engine| {
        let builder = Contracts::builder().action("ledger.post", Arc::new(post));
        builder.open(engine).await.unwrap()
    };
    let contracts = open(&first).await;
    prepare(&contracts, &contract()).await;
    let nodes = json!([action("post"), node("ask", "approval", role("finance_manager"))]);
    publish(&contracts, slot(nodes, json!([edge("e", "post", "ask")]))).await;
    // The second engine opens when the type is there, so that it serves it at once.
    let others = open(&second).await;
    for index in 0..8 {
        let id = format!("d{index}");
        let (here, there) =
            if index % 2 == 0 { (&contracts, &others) } else { (&others, &contracts) };
        here.create(TYPE, &id, &invoice(10), &person("rita")).await.unwrap();
        there.act(TYPE, &id, "submit", &person("rita"), None).await.unwrap();
        let request = open_request(here, &id, 1).await;
        // Both engines are woken at the same time.
        let (fay, fred) =
            tokio::join!(approve(here, &request, "fay"), approve(there, &request, "fred"));
        assert!(fay.is_ok() || fred.is_ok(), "{fay:?} {fred:?}");
        until_state(there, &id, "active").await;
        until_run(here, &id, RunStatus::Complete).await;
        let all: Vec<Approval> = there.approvals_of(TYPE, &id, None, 10).await.unwrap();
        assert_eq!((all.len(), all[0].status), (1, ApprovalStatus::Closed), "{all:?}");
        let ledger = first.records::<u64>("ledger").get(&id).await.unwrap().unwrap();
        assert_eq!(ledger.revision, 1);
        same_when_rebuilt(here, &id).await;
    }
}
