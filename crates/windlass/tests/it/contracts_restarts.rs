//! Documents whose run ends before they do: edits and requests outlive it, and no gate is skipped.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::contracts::language::compile::{COMPILER_VERSION, READABLE_VERSIONS};
use windlass::contracts::language::types::LifecycleContract;
use windlass::contracts::{ApprovalStatus, Contracts};
use windlass::kernel::{Body, Sha256Digest};
use windlass::{Engine, ErrorCode, RunStatus};

use crate::contracts::{
    SLOT, TYPE, approve, contract, directory, document, invoice, node, open_request, opened,
    overwrite, person, publish, refused, role, same_when_rebuilt, submitted, until_run,
    until_state,
};
use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    case_29_running_documents_outlive_their_compiler,
    case_36_a_restart_amends_what_was_edited_behind_a_gate,
    case_36_a_restart_begins_anew_where_nothing_amends,
    a_terminated_run_leaves_no_request_in_an_inbox,
    a_restarted_run_withdraws_what_the_failed_one_asked,
);

/// Invoices that a person releases after they were approved. Until then, edits amend them.
pub(crate) fn released(on_drift: &str) -> LifecycleContract {
    let mut one = serde_json::to_value(contract()).unwrap();
    let add = |list: &mut Value, value: Value| list.as_array_mut().unwrap().push(value);
    add(&mut one["states"], json!({"name": "approved", "editWindow": "amend_only"}));
    let gate = json!({"name": "release", "editWindow": "amend_only", "trigger": "action"});
    add(&mut one["gates"], gate);
    one["transitions"][2]["to"] = json!("approved");
    let release = json!({"from": "approved", "gate": "release", "to": "active"});
    add(&mut one["transitions"], release);
    one["slots"][2]["exit"] = json!("sys:state:approved");
    let slot = json!({"slotId": "approved_to_released", "entry": "sys:state:approved",
                      "exit": "sys:gate:release", "defaultEditWindow": "amend_only",
                      "stableRegion": true, "onDrift": on_drift});
    add(&mut one["slots"], slot);
    serde_json::from_value(one).unwrap()
}

/// A document in the state `approved` whose content somebody has edited, and whose run was restarted before it
/// has read the edit.
async fn edited_and_restarted(h: &Harness, on_drift: &str) -> (Engine, Contracts) {
    let engine = h.engine().await;
    let contracts = Contracts::builder().open(&engine).await.unwrap();
    contracts.publish_type(&released(on_drift), &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    until("it can be released", || async {
        document(&contracts, "a").await.row.gates.contains("release")
    })
    .await;
    let run = contracts.run(TYPE, "a").await.unwrap();
    contracts.engine().pause(&run, None).await.unwrap();
    until_run(&contracts, "a", RunStatus::Paused).await;
    contracts.edit(TYPE, "a", 1, &invoice(9_999), &person("rita"), None).await.unwrap();
    contracts.engine().terminate(run.run_key, None, None).await.unwrap();
    contracts.engine().restart(run.run_key, None).await.unwrap();
    until("the new run has begun", || async {
        let row = document(&contracts, "a").await.row;
        row.run.is_some_and(|last| last != run.run_key)
    })
    .await;
    (engine, contracts)
}

/// Submits the document again, approves the edited content, and releases it.
async fn approved_again(contracts: &Contracts) {
    let release = contracts.act(TYPE, "a", "release", &person("rita"), None).await;
    refused(release, ErrorCode::DocumentActionClosed);
    contracts.act(TYPE, "a", "submit", &person("rita"), None).await.unwrap();
    let request = open_request(contracts, "a", 2).await;
    approve(contracts, &request, "fred").await.unwrap();
    until("it can be released", || async {
        document(contracts, "a").await.row.gates.contains("release")
    })
    .await;
    contracts.act(TYPE, "a", "release", &person("rita"), None).await.unwrap();
    until_state(contracts, "a", "active").await;
    assert_eq!(document(contracts, "a").await.row.digest, request.digest);
    same_when_rebuilt(contracts, "a").await;
}

async fn case_36_a_restart_amends_what_was_edited_behind_a_gate(h: Arc<Harness>) {
    let (_engine, contracts) = edited_and_restarted(&h, "amend").await;
    assert_eq!(document(&contracts, "a").await.row.state, "amended");
    approved_again(&contracts).await;
}

async fn case_36_a_restart_begins_anew_where_nothing_amends(h: Arc<Harness>) {
    let (_engine, contracts) = edited_and_restarted(&h, "fail").await;
    assert_eq!(document(&contracts, "a").await.row.state, "draft");
    approved_again(&contracts).await;
}

async fn case_29_running_documents_outlive_their_compiler(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    submitted(&contracts, "b", 10).await;
    let request = open_request(&contracts, "b", 1).await;
    // The artefact of the document as the earlier compiler made it.
    let artefact = contracts.workflow(TYPE).await.unwrap();
    let mut earlier = serde_json::to_value(&*artefact).unwrap();
    let fields = earlier.as_object_mut().unwrap();
    fields.remove("hash");
    assert_eq!(fields["compilerVersion"], COMPILER_VERSION);
    assert_ne!(READABLE_VERSIONS[0], COMPILER_VERSION);
    fields.insert("compilerVersion".to_owned(), json!(READABLE_VERSIONS[0]));
    let hash = Sha256Digest::of(&windlass::kernel::canonical::to_canonical(&earlier).unwrap());
    earlier["hash"] = json!(hash);
    assert_ne!(hash, artefact.hash);
    let body = Body::of(&earlier).unwrap();
    overwrite(&engine, "windlass.artefacts", &hash.to_string(), body).await;
    let mut row = document(&contracts, "b").await.row;
    row.artefact = hash;
    let body = Body::of(&row).unwrap();
    overwrite(&engine, "windlass.documents", "invoice/b", body).await;
    contracts.evict();
    engine.core().evict_all();
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "b", "active").await;
    assert_eq!(document(&contracts, "b").await.row.artefact, hash);
    // A new document has the artefact of this compiler.
    submitted(&contracts, "c", 10).await;
    assert_eq!(document(&contracts, "c").await.row.artefact, artefact.hash);
}

async fn a_terminated_run_leaves_no_request_in_an_inbox(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    submitted(&contracts, "d", 10).await;
    let request = open_request(&contracts, "d", 1).await;
    let run = contracts.run(TYPE, "d").await.unwrap();
    // Any way to end a run, past contracts.
    contracts.engine().terminate(run.run_key, None, None).await.unwrap();
    let inbox = || async { contracts.inbox(&person("fay"), None, 10).await.unwrap() };
    until("the inbox is empty", || async { inbox().await.is_empty() }).await;
    assert_eq!(contracts.approval(&request.id).await.unwrap().status, ApprovalStatus::Withdrawn);
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalWithdrawn);
    // A new run asks anew, and an operator who ends it has withdrawn that as well.
    contracts.advance_again(TYPE, "d").await.unwrap();
    let again = open_request(&contracts, "d", 1).await;
    assert_ne!(again.id, request.id);
    contracts.force_fail(TYPE, "d", &person("olga"), "a test document").await.unwrap();
    assert!(inbox().await.is_empty());
}

async fn a_restarted_run_withdraws_what_the_failed_one_asked(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    // One branch asks, the other one fails.
    let nodes = json!([
        node("fork", "parallel_split", json!({})),
        node("one", "approval", role("finance_manager")),
        node("two", "approval", role("nobody")),
        node("both", "parallel_join", json!({"mode": "all"})),
    ]);
    let edge = crate::contracts::edge;
    let wait = node("wait", "wait_event", json!({"eventKey": "go:{entity.id}"}));
    let mut nodes = nodes;
    nodes.as_array_mut().unwrap().push(wait);
    let edges = json!([
        edge("f1", "fork", "one"),
        edge("f2", "fork", "wait"),
        edge("w", "wait", "two"),
        edge("j1", "one", "both"),
        edge("j2", "two", "both"),
    ]);
    publish(&contracts, json!({SLOT: {"nodes": nodes, "edges": edges}})).await;
    submitted(&contracts, "e", 10).await;
    let request = open_request(&contracts, "e", 1).await;
    let engine = contracts.engine().clone();
    windlass::Engine::from(engine).send_by_key("document", "go:i-1", &json!({})).await.unwrap();
    until_run(&contracts, "e", RunStatus::Errored).await;
    // A retry would go on with the request, so it stays.
    assert_eq!(contracts.approval(&request.id).await.unwrap().status, ApprovalStatus::Open);
    let run = contracts.run(TYPE, "e").await.unwrap();
    contracts.engine().restart(run.run_key, None).await.unwrap();
    until("the request is withdrawn", || async {
        contracts.approval(&request.id).await.unwrap().status == ApprovalStatus::Withdrawn
    })
    .await;
    let again = open_request(&contracts, "e", 1).await;
    assert_ne!(again.id, request.id);
}
