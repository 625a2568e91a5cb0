//! Runs of documents that cannot go on: each stops with a reason, and people can still act.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::contracts::language::approvers::{Delegation, Person};
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::language::types::LifecycleContract;
use windlass::contracts::{ActionCall, ActionOutcome, Contracts};
use windlass::kernel::{Expect, Subject};
use windlass::{Engine, ErrorCode, RecordChange, RunStatus};

use crate::contracts::{
    SLOT, TYPE, approve, contract, directory, document, edge, invoice, node, open_request, person,
    publish, refused, role, same_when_rebuilt, submitted, until_run, until_state,
};
use crate::harness::{Harness, Kind, on_every_store, until};

on_every_store!(
    an_action_whose_record_exists_stops_the_run,
    actions_that_write_one_record_or_a_reserved_one_stop_the_run,
    more_people_than_a_commit_has_records_are_notified,
    a_delegate_has_the_weight_of_the_giver,
    a_document_whose_run_has_failed_can_be_cancelled,
    a_document_that_nobody_can_approve_can_be_cancelled,
    drift_that_nothing_amends_stops_the_run,
    superseded_runs_do_not_hide_stuck_documents,
    stuck_documents_of_all_tenants_are_found,
    an_action_after_a_decision_sees_the_roles_of_the_person,
    case_38_what_is_published_is_read_as_it_was_sealed,
);

fn free() -> LifecycleContract {
    let mut free = contract();
    free.obligations.clear();
    free
}

async fn open_with(
    h: &Harness,
    contract: &LifecycleContract,
    action: impl Fn(&ActionCall<'_>) -> Result<ActionOutcome, String> + Send + Sync + 'static,
) -> (Engine, Contracts) {
    let engine = h.engine().await;
    let builder = Contracts::builder().action("ledger.note", Arc::new(action));
    let contracts = builder.open(&engine).await.unwrap();
    contracts.publish_type(contract, &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    (engine, contracts)
}

async fn open(h: &Harness, contract: &LifecycleContract) -> (Engine, Contracts) {
    open_with(h, contract, |_| Ok(ActionOutcome::none())).await
}

fn action(name: &str, payload: Value) -> Value {
    let mutation =
        json!({"actionType": "ledger.note", "payloadTemplate": payload, "runAs": "actor"});
    node(name, "action", json!({"mutation": mutation}))
}

fn slot(nodes: Value, edges: Value) -> Value {
    json!({SLOT: {"nodes": nodes, "edges": edges}})
}

/// Waits until the run of a document has failed, and returns the error.
async fn failed(contracts: &Contracts, id: &str) -> Value {
    until_run(contracts, id, RunStatus::Errored).await;
    let run = contracts.run(TYPE, id).await.unwrap();
    run.error.as_ref().unwrap().read().unwrap()
}

fn put(id: &str) -> Result<RecordChange, String> {
    RecordChange::put("ledger", id, &1, Expect::Absent).map_err(|error| error.to_string())
}

async fn an_action_whose_record_exists_stops_the_run(h: Arc<Harness>) {
    let note = |call: &ActionCall<'_>| Ok(ActionOutcome::none().record(put(call.id)?));
    let (_engine, contracts) = open_with(&h, &contract(), note).await;
    let nodes =
        json!([action("note", json!({})), node("ask", "approval", role("finance_manager"))]);
    publish(&contracts, slot(nodes, json!([edge("e", "note", "ask")]))).await;
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    let (id, fay) = (&request.id, person("fay"));
    contracts.decide_approval(id, Verdict::Rejected, request.digest, &fay, None).await.unwrap();
    until_state(&contracts, "a", "draft").await;
    // The second passage writes the same record, which exists now.
    contracts.act(TYPE, "a", "submit", &person("rita"), None).await.unwrap();
    let error = failed(&contracts, "a").await;
    assert_eq!(error["name"], "ACTION_FAILED", "{error}");
    assert!(error["message"].as_str().unwrap().contains("ledger/a"), "{error}");
    // Nothing of it is written.
    let row = document(&contracts, "a").await.row;
    assert_eq!((&*row.state, row.pending.len()), ("draft", 1));
}

async fn actions_that_write_one_record_or_a_reserved_one_stop_the_run(h: Arc<Harness>) {
    let note = |call: &ActionCall<'_>| {
        let change = match call.payload["as"].as_str().unwrap_or_default() {
            "own" => RecordChange::put_own("windlass.people", "directory", &1, Expect::Absent)
                .map_err(|error| error.to_string())?,
            id => put(id)?,
        };
        Ok(ActionOutcome::none().record(change))
    };
    let (engine, contracts) = open_with(&h, &free(), note).await;
    let twice = json!([action("one", json!({"as": "'x'"})), action("two", json!({"as": "'x'"}))]);
    publish(&contracts, slot(twice, json!([edge("e", "one", "two")]))).await;
    submitted(&contracts, "a", 10).await;
    let error = failed(&contracts, "a").await;
    assert_eq!(error["name"], "ACTION_FAILED", "{error}");
    assert!(error["message"].as_str().unwrap().contains("two actions of one turn"), "{error}");
    assert!(engine.records::<u32>("ledger").get("x").await.unwrap().is_none());
    publish(&contracts, slot(json!([action("one", json!({"as": "'own'"}))]), json!([]))).await;
    submitted(&contracts, "b", 10).await;
    let error = failed(&contracts, "b").await;
    assert_eq!(error["name"], "ACTION_FAILED", "{error}");
    assert_eq!(contracts.directory().await.unwrap(), directory());
}

async fn more_people_than_a_commit_has_records_are_notified(h: Arc<Harness>) {
    let (_engine, contracts) = open(&h, &free()).await;
    let mut people = directory();
    for index in 0..100 {
        let clerk = Person { roles: ["clerk".to_owned()].into(), ..Person::default() };
        people.people.insert(format!("clerk-{index}"), clerk);
    }
    contracts.put_directory(&people).await.unwrap();
    let tell = json!({"channel": "in_app", "to": {"strategy": "role", "role": "clerk"},
                      "subject": "Invoice {entity.id}"});
    publish(&contracts, slot(json!([node("tell", "notification", tell)]), json!([]))).await;
    submitted(&contracts, "a", 10).await;
    until_state(&contracts, "a", "active").await;
    submitted(&contracts, "b", 10).await;
    until_state(&contracts, "b", "active").await;
    // Each reads their own, the newest first, and dismisses it for themselves alone.
    for person_id in ["clerk-0", "clerk-99"] {
        let clerk = person(person_id);
        let notes = contracts.notifications(&clerk, None, 10).await.unwrap();
        let of: Vec<&str> = notes.iter().map(|note| note.document.as_str()).collect();
        assert_eq!((of, &*notes[0].subject), (vec!["b", "a"], "Invoice i-1"));
        let after = contracts.notifications(&clerk, Some(&notes[0].id), 10).await.unwrap();
        assert_eq!(after, notes[1..]);
        contracts.dismiss_notification(&notes[0].id, &clerk).await.unwrap();
        assert_eq!(contracts.notifications(&clerk, None, 10).await.unwrap(), notes[1..]);
        let again = contracts.dismiss_notification(&notes[0].id, &clerk).await;
        refused(again, ErrorCode::RecordNotFound);
    }
    assert_eq!(contracts.notifications(&person("clerk-1"), None, 10).await.unwrap().len(), 2);
    assert!(contracts.notifications(&person("rita"), None, 10).await.unwrap().is_empty());
}

async fn a_delegate_has_the_weight_of_the_giver(h: Arc<Harness>) {
    let (_engine, contracts) = open(&h, &contract()).await;
    let mut heavy = role("finance_manager");
    heavy["quorum"] = json!({"kind": "weighted", "weights": {"fay": 3, "fred": 1}, "needed": 3});
    publish(&contracts, slot(json!([node("ask", "approval", heavy)]), json!([]))).await;
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    contracts.delegate_approval(&request.id, "max", &person("fay")).await.unwrap();
    // One vote of weight 1 decides nothing.
    approve(&contracts, &request, "fred").await.unwrap();
    approve(&contracts, &request, "max").await.unwrap();
    until_state(&contracts, "a", "active").await;
    // A delegation of the directory is as good.
    let mut people = directory();
    let dated = json!({"from": "fay", "to": "max", "ends": "2100-01-01T00:00:00Z"});
    let dated: Delegation = serde_json::from_value(dated).unwrap();
    people.delegations.push(dated);
    contracts.put_directory(&people).await.unwrap();
    submitted(&contracts, "b", 10).await;
    let request = open_request(&contracts, "b", 1).await;
    assert!(request.asked.iter().any(|one| one.on_behalf_of.as_deref() == Some("fay")));
    approve(&contracts, &request, "max").await.unwrap();
    until_state(&contracts, "b", "active").await;
    same_when_rebuilt(&contracts, "b").await;
}

async fn a_document_whose_run_has_failed_can_be_cancelled(h: Arc<Harness>) {
    let (_engine, contracts) = open(&h, &contract()).await;
    let mut only_large = edge("large", "size", "ask");
    only_large["condition"] = json!("entity.total > 1000");
    let nodes = json!([node("size", "condition", json!({})), node("ask", "approval", role("cfo"))]);
    publish(&contracts, slot(nodes, json!([only_large]))).await;
    submitted(&contracts, "a", 10).await;
    let error = failed(&contracts, "a").await;
    assert_eq!(error["name"], "WORKFLOW_NO_EDGE", "{error}");
    // Only the gate of the cancellation is open.
    let rita = person("rita");
    refused(contracts.act(TYPE, "a", "submit", &rita, None).await, ErrorCode::DocumentActionClosed);
    contracts.act(TYPE, "a", "cancel", &rita, None).await.unwrap();
    until_state(&contracts, "a", "cancelled").await;
    until_run(&contracts, "a", RunStatus::Complete).await;
    same_when_rebuilt(&contracts, "a").await;
    assert!(contracts.stuck().await.unwrap().is_empty());
}

async fn a_document_that_nobody_can_approve_can_be_cancelled(h: Arc<Harness>) {
    let (_engine, contracts) = open(&h, &contract()).await;
    let mut people = directory();
    people.people.retain(|id, _| !["fay", "fred"].contains(&id.as_str()));
    contracts.put_directory(&people).await.unwrap();
    publish(&contracts, slot(json!([node("ask", "approval", role("finance_manager"))]), json!([])))
        .await;
    submitted(&contracts, "a", 10).await;
    let error = failed(&contracts, "a").await;
    assert_eq!(error["name"], "APPROVER_NONE", "{error}");
    contracts.act(TYPE, "a", "cancel", &person("rita"), None).await.unwrap();
    until_state(&contracts, "a", "cancelled").await;
    until_run(&contracts, "a", RunStatus::Complete).await;
    assert!(document(&contracts, "a").await.row.pending.is_empty());
}

async fn drift_that_nothing_amends_stops_the_run(h: Arc<Harness>) {
    let mut strict = serde_json::to_value(contract()).unwrap();
    strict["slots"][1]["onDrift"] = json!("fail");
    // Something else must lead to the state of an amendment.
    strict["transitions"][2]["reject"] = json!("amended");
    let strict: LifecycleContract = serde_json::from_value(strict).unwrap();
    let (_engine, contracts) = open(&h, &strict).await;
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    contracts.edit(TYPE, "a", 1, &invoice(11), &person("rita"), None).await.unwrap();
    let error = failed(&contracts, "a").await;
    assert_eq!(error["name"], "WORKFLOW_VERSION_DRIFT", "{error}");
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalWithdrawn);
    // A retry cannot help, so it fails with the same reason.
    let before = contracts.run(TYPE, "a").await.unwrap();
    contracts.advance_again(TYPE, "a").await.unwrap();
    until("the retry has failed", || async {
        let run = contracts.run(TYPE, "a").await.unwrap();
        run.generation > before.generation && run.status == RunStatus::Errored
    })
    .await;
    assert_eq!(failed(&contracts, "a").await["name"], "WORKFLOW_VERSION_DRIFT");
    contracts.act(TYPE, "a", "cancel", &person("rita"), None).await.unwrap();
    until_state(&contracts, "a", "cancelled").await;
    until_run(&contracts, "a", RunStatus::Complete).await;
}

async fn superseded_runs_do_not_hide_stuck_documents(h: Arc<Harness>) {
    let (_engine, contracts) = open(&h, &contract()).await;
    publish(&contracts, slot(json!([node("ask", "approval", role("nobody"))]), json!([]))).await;
    submitted(&contracts, "old", 10).await;
    // As many failed generations as one page has.
    for generation in 1..=windlass::contracts::STUCK_MAX {
        until("the run has failed", || async {
            let run = contracts.run(TYPE, "old").await.unwrap();
            run.generation + 1 == generation && run.status == RunStatus::Errored
        })
        .await;
        contracts.advance_again(TYPE, "old").await.unwrap();
    }
    submitted(&contracts, "new", 10).await;
    until_run(&contracts, "new", RunStatus::Errored).await;
    until_run(&contracts, "old", RunStatus::Errored).await;
    let mut stuck: Vec<String> =
        contracts.stuck().await.unwrap().into_iter().map(|one| one.id).collect();
    stuck.sort();
    assert_eq!(stuck, ["new", "old"]);
}

async fn an_action_after_a_decision_sees_the_roles_of_the_person(h: Arc<Harness>) {
    let note = |call: &ActionCall<'_>| {
        let roles = call.actor.roles.join(",");
        let by = format!("{}:{roles}", call.actor.id);
        let change = RecordChange::put("ledger", call.id, &by, Expect::Absent);
        Ok(ActionOutcome::none().record(change.map_err(|error| error.to_string())?))
    };
    let (engine, contracts) = open_with(&h, &contract(), note).await;
    let nodes =
        json!([node("ask", "approval", role("finance_manager")), action("note", json!({}))]);
    publish(&contracts, slot(nodes, json!([edge("e", "ask", "note")]))).await;
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    let fay = Subject::new("fay", ["finance_manager"]).unwrap();
    contracts
        .decide_approval(&request.id, Verdict::Approved, request.digest, &fay, None)
        .await
        .unwrap();
    until_state(&contracts, "a", "active").await;
    let written = engine.records::<String>("ledger").get("a").await.unwrap().unwrap();
    assert_eq!(written.value, "fay:finance_manager");
}

async fn stuck_documents_of_all_tenants_are_found(h: Arc<Harness>) {
    let (_engine, contracts) = open(&h, &contract()).await;
    let other = contracts.in_namespace("tenant-b".parse().unwrap());
    // The other tenant has no people.
    submitted(&other, "a", 10).await;
    until_run(&other, "a", RunStatus::Errored).await;
    assert!(contracts.stuck().await.unwrap().is_empty());
    let all = contracts.stuck_of_all_tenants().await.unwrap();
    let found: Vec<_> = all.iter().map(|one| (&*one.namespace, &*one.id)).collect();
    assert_eq!(found, [("tenant-b", "a")]);
}

async fn case_38_what_is_published_is_read_as_it_was_sealed(h: Arc<Harness>) {
    let (_engine, contracts) = open(&h, &contract()).await;
    publish(&contracts, slot(json!([node("ask", "approval", role("cfo"))]), json!([]))).await;
    let definition = contracts.definition_version(TYPE, 1).await.unwrap();
    submitted(&contracts, "a", 10).await;
    open_request(&contracts, "a", 1).await;
    // The memory store has no rows that anybody else could change.
    if h.kind == Kind::Memory {
        return;
    }
    let body = |text: &str| {
        let text = text.replace('\'', "''");
        match h.kind {
            Kind::Postgres => format!("convert_to('{text}', 'UTF8')"),
            _ => format!("CAST('{text}' AS BLOB)"),
        }
    };
    // A contract without obligations, and a definition by somebody else.
    let weaker = json!({"contract": free(), "hash": definition.hash, "by": "eve",
                        "at": definition.at});
    let row = "collection = 'windlass.types' AND id = 'invoice@1'";
    let set = format!("UPDATE records SET body = {} WHERE {row}", body(&weaker.to_string()));
    h.sql(&set).await;
    let mut other = json!(definition);
    other["by"] = json!("eve");
    let row = "collection = 'windlass.definitions' AND id = 'invoice@1'";
    h.sql(&format!("UPDATE records SET body = {} WHERE {row}", body(&other.to_string()))).await;
    contracts.evict();
    assert_eq!(contracts.contract(TYPE, None).await.unwrap(), contract());
    assert_eq!(contracts.definition_version(TYPE, 1).await.unwrap(), definition);
    // The version itself refuses a change. Without the trigger, the digest tells.
    h.sql(match h.kind {
        Kind::Postgres => "ALTER TABLE record_versions DISABLE TRIGGER USER",
        _ => "DROP TRIGGER record_versions_update",
    })
    .await;
    let set = async |text: &str| {
        h.sql(&format!("UPDATE record_versions SET body = {} WHERE {row}", body(text))).await;
    };
    set(&other.to_string()).await;
    let damaged = contracts.definition_version(TYPE, 1).await.unwrap_err();
    assert!(damaged.to_string().contains("damaged"), "{damaged}");
    set(&stored(&definition)).await;
    assert_eq!(contracts.definition_version(TYPE, 1).await.unwrap(), definition);
}

/// The bytes that a published version was stored with.
fn stored(definition: &windlass::contracts::DefinitionVersion) -> String {
    let body = windlass::kernel::Body::of(definition).unwrap();
    String::from_utf8(body.bytes.to_vec()).unwrap()
}
