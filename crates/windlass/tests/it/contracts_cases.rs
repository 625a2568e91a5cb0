//! Documents at the edges: locked ones, races of approvers, and input that a run cannot use.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::contracts::language::approvers::Directory;
use windlass::contracts::language::tokens::StepRow;
use windlass::contracts::{Contracts, DirectorySource, DocumentRow};
use windlass::kernel::{
    BoxFuture, Collection, Commit, Expect, Namespace, Op, RecordId, RecordKey, RecordOp,
    RecordWrite, WriteId,
};
use windlass::{Engine, Error, ErrorCode, RunStatus};

use crate::contracts::{
    SLOT, TYPE, approve, contract, directory, document, invoice, node, open_request, opened,
    person, publish, refused, role, submitted, until_run, until_state,
};
use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    case_31_a_locked_slot_and_a_terminated_run_take_no_edit,
    case_34_two_approvers_race_for_one_quorum,
    approvers_who_cannot_be_found_stop_the_run_and_write_nothing,
    an_action_on_a_removed_document_is_refused,
    people_can_come_from_the_directory_of_the_program,
);

async fn case_31_a_locked_slot_and_a_terminated_run_take_no_edit(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let wait = json!({"id": "usr:approved_to_active:wait", "type": "wait_event",
                      "config": {"eventKey": "booked:{entity.id}"}});
    publish(&contracts, json!({"approved_to_active": {"nodes": [wait]}})).await;
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    // The run has passed the gate and waits, before its end.
    let waits = || async {
        let position = contracts.position(TYPE, "a").await.unwrap();
        position.open.iter().any(|row| row.node.ends_with(":wait"))
    };
    until("the run waits in the locked slot", waits).await;
    let (changed, rita) = (invoice(11), person("rita"));
    let edit = || contracts.edit(TYPE, "a", 1, &changed, &rita, None);
    refused(edit().await, ErrorCode::WorkflowEditLocked);
    let run = contracts.run(TYPE, "a").await.unwrap();
    assert_eq!(run.status, RunStatus::Waiting);
    contracts.engine().terminate(run.run_key, None, None).await.unwrap();
    until_run(&contracts, "a", RunStatus::Terminated).await;
    refused(edit().await, ErrorCode::WorkflowEditLocked);
    let row = document(&contracts, "a").await.row;
    assert_eq!((row.version, row.content), (1, invoice(10)));
}

/// The rows of the token engine that the steps of a document's run hold.
async fn rows(contracts: &Contracts, id: &str) -> Vec<StepRow> {
    let run = contracts.run(TYPE, id).await.unwrap();
    let loaded = contracts.engine().store().load(vec![run.run_key]).await.unwrap();
    let results = loaded[0].steps.iter().filter_map(|step| step.result.as_ref());
    results.map(|body| body.read().unwrap()).collect()
}

async fn case_34_two_approvers_race_for_one_quorum(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut both = role("finance_manager");
    both["quorum"] = json!({"kind": "count", "count": 2});
    publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", both)]}})).await;
    for round in 0..6 {
        let id = format!("r{round}");
        submitted(&contracts, &id, 10).await;
        let request = open_request(&contracts, &id, 1).await;
        let (fay, fred) = tokio::join!(
            approve(&contracts, &request, "fay"),
            approve(&contracts, &request, "fred")
        );
        fay.unwrap();
        fred.unwrap();
        until_state(&contracts, &id, "active").await;
        // Both are recorded, and the gate has consumed one approval by both.
        let decided = contracts.approval(&request.id).await.unwrap();
        assert_eq!(decided.decisions.keys().collect::<Vec<_>>(), ["fay", "fred"]);
        let found = rows(&contracts, &id).await;
        let applied: Vec<&StepRow> = found.iter().filter(|row| row.applied == Some(true)).collect();
        assert_eq!(applied.len(), 1, "{applied:#?}");
        assert_eq!(applied[0].output["by"], json!(["fay", "fred"]));
    }
}

async fn approvers_who_cannot_be_found_stop_the_run_and_write_nothing(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut people = directory();
    people.people.retain(|id, _| !["fay", "fred"].contains(&id.as_str()));
    // Max, the manager of rita, has rita as manager.
    people.people.get_mut("max").unwrap().manager = Some("rita".to_owned());
    contracts.put_directory(&people).await.unwrap();
    let managers = json!({"approvers": {"strategy": "org_chart", "levels": 2}});
    let cases: [(&str, Value, &str); 3] = [
        ("only", role("finance_manager"), "APPROVER_NONE"),
        ("circle", managers, "APPROVER_MANAGER_CYCLE"),
        (
            "stranger",
            json!({"approvers": {"strategy": "direct", "users": ["zoe"]}}),
            "APPROVER_UNKNOWN",
        ),
    ];
    for (id, config, code) in cases {
        publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", config)]}})).await;
        let before = contracts.create(TYPE, id, &invoice(10), &person("rita")).await.unwrap();
        contracts.act(TYPE, id, "submit", &person("rita"), None).await.unwrap();
        until_run(&contracts, id, RunStatus::Errored).await;
        let run = contracts.run(TYPE, id).await.unwrap();
        let error: Value = run.error.as_ref().unwrap().read().unwrap();
        assert_eq!(error["name"], code, "{error}");
        // Nothing of the failed decision is written: the action is still to be carried out.
        let row: DocumentRow = document(&contracts, id).await.row;
        assert_eq!((row.state.as_str(), row.pending.len()), ("draft", 1), "{id}");
        assert_eq!((row.version, &row.requester), (1, &before.row.requester), "{id}");
        assert!(contracts.approvals_of(TYPE, id, None, 10).await.unwrap().is_empty(), "{id}");
    }
    // With somebody to ask, a retry goes on.
    contracts.put_directory(&directory()).await.unwrap();
    contracts.advance_again(TYPE, "only").await.unwrap();
    let request = open_request(&contracts, "only", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "only", "active").await;
}

/// Removes a record behind the back of contracts.
async fn remove(engine: &Engine, collection: &str, id: &str) {
    let store = engine.admin().store();
    let key = RecordKey {
        namespace: engine.namespace().clone(),
        collection: Collection::new(collection).unwrap(),
        id: RecordId::new(id).unwrap(),
    };
    let found = store.records(vec![key.clone()]).await.unwrap().pop().flatten().unwrap();
    let write_id = WriteId(uuid::Uuid::from_u128(17));
    let write = RecordWrite::Remove { write_id, at: found.updated_at };
    let op = RecordOp { key, expect: Expect::At(found.revision), write };
    let commit = Commit::new(None, None, vec![Op::Record(Box::new(op))]);
    store.commit(vec![commit]).await.pop().unwrap().unwrap();
}

async fn an_action_on_a_removed_document_is_refused(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    submitted(&contracts, "b", 10).await;
    let request = open_request(&contracts, "b", 1).await;
    remove(&engine, "windlass.documents", "invoice/b").await;
    let rita = person("rita");
    refused(contracts.document(TYPE, "b").await, ErrorCode::DocumentNotFound);
    refused(contracts.act(TYPE, "b", "cancel", &rita, None).await, ErrorCode::DocumentNotFound);
    let edit = contracts.edit(TYPE, "b", 1, &invoice(11), &rita, None).await;
    refused(edit, ErrorCode::DocumentNotFound);
    refused(contracts.amend(TYPE, "b", "b2", &rita).await, ErrorCode::DocumentNotFound);
    refused(approve(&contracts, &request, "fay").await, ErrorCode::DocumentNotFound);
    assert!(contracts.approval(&request.id).await.unwrap().decisions.is_empty());
    // Its run ends with the reason.
    contracts.advance_again(TYPE, "b").await.unwrap();
    until_run(&contracts, "b", RunStatus::Errored).await;
    let run = contracts.run(TYPE, "b").await.unwrap();
    let error: Value = run.error.as_ref().unwrap().read().unwrap();
    assert_eq!(error["name"], "DOCUMENT_NOT_FOUND", "{error}");
}

/// People of one tenant alone.
struct Staff;

impl DirectorySource for Staff {
    fn directory<'a>(&'a self, of: &'a Namespace) -> BoxFuture<'a, Result<Directory, Error>> {
        let found = if of.as_str() == "default" { directory() } else { Directory::default() };
        Box::pin(async { Ok(found) })
    }
}

async fn people_can_come_from_the_directory_of_the_program(h: Arc<Harness>) {
    let engine = h.engine().await;
    let contracts = Contracts::builder().directory(Staff).open(&engine).await.unwrap();
    contracts.publish_type(&contract(), &person("olga")).await.unwrap();
    refused(contracts.put_directory(&directory()).await, ErrorCode::InvalidOption);
    submitted(&contracts, "c", 10).await;
    let request = open_request(&contracts, "c", 1).await;
    let asked: Vec<&str> = request.asked.iter().map(|one| one.person.as_str()).collect();
    assert_eq!(asked, ["fay", "fred"]);
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "c", "active").await;
    // Another tenant has nobody with the role.
    let other = contracts.in_namespace("tenant-b".parse().unwrap());
    submitted(&other, "c", 10).await;
    until_run(&other, "c", RunStatus::Errored).await;
}
