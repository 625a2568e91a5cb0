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
    case_36_a_restart_amends_what_was_edited_behind_a_gate,
    case_36_a_restart_begins_anew_where_nothing_amends,
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
