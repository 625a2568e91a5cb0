//! Nobody approves content that they wrote, made or asked for, on any way round (acceptance case 35).

use std::sync::Arc;

use serde_json::json;
use windlass::contracts::{Approval, Contracts};
use windlass::{ErrorCode, RunStatus};

use crate::contracts::{
    SLOT, TYPE, approve, contract, directory, document, invoice, node, open_request, opened,
    person, publish, refused, role, submitted, until_run, until_state,
};
use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    case_35_authors_of_a_document_do_not_approve_what_an_action_makes_of_it,
    case_35_editors_do_not_approve_an_amendment,
    case_35_a_delegation_ends_when_its_giver_edits,
    case_35_an_ignored_action_does_not_replace_the_requester,
    case_35_nobody_approves_with_a_key_that_an_editor_made,
    case_35_a_key_makes_its_creators_editors_and_requesters,
    an_approver_sees_the_content_and_what_has_changed_since,
);

fn people(request: &Approval) -> Vec<&str> {
    let mut asked: Vec<&str> = request.asked.iter().map(|one| one.person.as_str()).collect();
    asked.sort_unstable();
    asked
}

async fn case_35_authors_of_a_document_do_not_approve_what_an_action_makes_of_it(h: Arc<Harness>) {
    let engine = h.engine().await;
    let contracts = Contracts::builder().open(&engine).await.unwrap();
    // An invoice with another one in it.
    let mut nested = contract();
    let inner = nested.schemas.document.clone();
    nested.schemas.document["properties"]["inner"] = inner;
    contracts.publish_type(&nested, &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    let payload = json!({"type": "'invoice'", "id": "entity.note", "content": "entity.inner"});
    let mutation =
        json!({"actionType": "document.create", "payloadTemplate": payload, "runAs": "system"});
    let copy = json!({"id": "usr:approved_to_active:copy", "type": "action",
                      "config": {"mutation": mutation}});
    publish(&contracts, json!({"approved_to_active": {"nodes": [copy]}})).await;
    let mut content = invoice(10);
    (content["note"], content["inner"]) = (json!("copy"), invoice(15));
    contracts.create(TYPE, "source", &content, &person("bob")).await.unwrap();
    content["inner"]["total"] = json!(20);
    contracts.edit(TYPE, "source", 1, &content, &person("rita"), None).await.unwrap();
    contracts.act(TYPE, "source", "submit", &person("fred"), None).await.unwrap();
    let request = open_request(&contracts, "source", 2).await;
    assert_eq!(people(&request), ["fay"]);
    // The copy has the default workflow, without the action.
    contracts.archive(TYPE).await.unwrap();
    approve(&contracts, &request, "fay").await.unwrap();
    let made = || async { contracts.document(TYPE, "copy").await.is_ok() };
    until("the other document exists", made).await;
    let made = document(&contracts, "copy").await.row;
    assert_eq!(made.content["total"], 20);
    // The system made the row, the people of the source made its content.
    assert_eq!(made.note.who, "system");
    let editors: Vec<&str> = made.editors.iter().map(String::as_str).collect();
    assert_eq!(editors, ["bob", "fred", "rita", "system"]);
    contracts.act(TYPE, "copy", "submit", &person("max"), None).await.unwrap();
    let request = open_request(&contracts, "copy", 1).await;
    assert_eq!(people(&request), ["fay"]);
    for author in ["rita", "fred"] {
        refused(approve(&contracts, &request, author).await, ErrorCode::ApprovalRefused);
    }
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "copy", "active").await;
}

async fn case_35_editors_do_not_approve_an_amendment(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    submitted(&contracts, "a", 10).await;
    let request = open_request(&contracts, "a", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "a", "active").await;
    // Max amends what rita wrote.
    let amended = contracts.amend(TYPE, "a", "a2", &person("max")).await.unwrap();
    assert!(amended.row.editors.contains("rita") && amended.row.editors.contains("max"));
    contracts.act(TYPE, "a2", "submit", &person("max"), None).await.unwrap();
    let request = open_request(&contracts, "a2", 1).await;
    assert_eq!(people(&request), ["fay", "fred"]);
    refused(approve(&contracts, &request, "rita").await, ErrorCode::ApprovalRefused);
    approve(&contracts, &request, "fred").await.unwrap();
    until_state(&contracts, "a2", "active").await;
}

async fn case_35_a_delegation_ends_when_its_giver_edits(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut both = role("finance_manager");
    both["quorum"] = json!({"kind": "count", "count": 2});
    publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", both)]}})).await;
    // An edit of an immaterial field keeps the request open, and its writer is an editor.
    let note = |id: &'static str| {
        let contracts = contracts.clone();
        async move {
            let mut noted = invoice(10);
            noted["note"] = json!("see the order");
            contracts.edit(TYPE, id, 1, &noted, &person("fred"), None).await.unwrap();
        }
    };
    submitted(&contracts, "b", 10).await;
    let request = open_request(&contracts, "b", 1).await;
    contracts.delegate_approval(&request.id, "max", &person("fred")).await.unwrap();
    note("b").await;
    refused(approve(&contracts, &request, "max").await, ErrorCode::ApprovalRefused);
    // A decision from before the edit does not count: with fay alone the quorum cannot be reached.
    submitted(&contracts, "c", 10).await;
    let request = open_request(&contracts, "c", 1).await;
    contracts.delegate_approval(&request.id, "max", &person("fred")).await.unwrap();
    approve(&contracts, &request, "max").await.unwrap();
    note("c").await;
    approve(&contracts, &request, "fay").await.unwrap();
    until("the run has counted", || async {
        document(&contracts, "c").await.row.state != "submitted"
    })
    .await;
    assert_eq!(document(&contracts, "c").await.row.state, "draft");
}

async fn case_35_an_ignored_action_does_not_replace_the_requester(h: Arc<Harness>) {
    let engine = h.engine().await;
    let contracts = Contracts::builder().open(&engine).await.unwrap();
    let mut without_cancel = contract();
    without_cancel.transitions.retain(|one| (&*one.from, &*one.gate) != ("submitted", "cancel"));
    contracts.publish_type(&without_cancel, &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    contracts.create(TYPE, "d", &invoice(10), &person("rita")).await.unwrap();
    until_run(&contracts, "d", RunStatus::Waiting).await;
    // Both actions are called before the run carries out the first one, which closes the gate of the second.
    engine.core().shutdown(std::time::Duration::from_secs(5)).await.unwrap();
    contracts.act(TYPE, "d", "submit", &person("fay"), None).await.unwrap();
    contracts.act(TYPE, "d", "cancel", &person("bob"), None).await.unwrap();
    assert_eq!(document(&contracts, "d").await.row.pending.len(), 2);
    h.stop(&engine).await;
    let engine = h.engine().await;
    let contracts = Contracts::builder().open(&engine).await.unwrap();
    let request = open_request(&contracts, "d", 1).await;
    until("both actions are settled", || async {
        document(&contracts, "d").await.row.pending.is_empty()
    })
    .await;
    let row = document(&contracts, "d").await.row;
    assert_eq!((&*row.state, &*row.requester), ("submitted", "fay"));
    assert_eq!(people(&request), ["fred"]);
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalRefused);
    approve(&contracts, &request, "fred").await.unwrap();
    until_state(&contracts, "d", "active").await;
}

async fn an_approver_sees_the_content_and_what_has_changed_since(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut both = role("finance_manager");
    both["quorum"] = json!({"kind": "count", "count": 2});
    publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", both)]}})).await;
    submitted(&contracts, "e", 10).await;
    let first = open_request(&contracts, "e", 1).await;
    let seen = contracts.review(&first.id, Some(&person("fay"))).await.unwrap();
    assert_eq!((&seen.content, seen.since, seen.diff.len()), (&invoice(10), None, 0));
    approve(&contracts, &first, "fay").await.unwrap();
    for (version, total) in [(1, 50), (2, 99)] {
        contracts.edit(TYPE, "e", version, &invoice(total), &person("rita"), None).await.unwrap();
    }
    until_state(&contracts, "e", "amended").await;
    contracts.act(TYPE, "e", "submit", &person("rita"), None).await.unwrap();
    let second = open_request(&contracts, "e", 3).await;
    // The old request still shows what it was about.
    assert_eq!(contracts.review(&first.id, None).await.unwrap().content["total"], 10);
    let again = contracts.review(&second.id, Some(&person("fay"))).await.unwrap();
    assert_eq!((again.since, &again.content["total"]), (Some(1), &json!(99)));
    let change = json!({"total": {"from": 10, "to": 99}});
    assert_eq!(json!(again.diff), change);
    // Fred has approved nothing before.
    let other = contracts.review(&second.id, Some(&person("fred"))).await.unwrap();
    assert_eq!((other.since, other.diff.len()), (None, 0));
    refused(contracts.review("nothing", None).await, ErrorCode::ApprovalNotFound);
}

async fn case_35_nobody_approves_with_a_key_that_an_editor_made(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut both = role("finance_manager");
    both["quorum"] = json!({"kind": "count", "count": 2});
    publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", both)]}})).await;
    let mut people = directory();
    people.people.get_mut("max").unwrap().roles.insert("finance_manager".to_owned());
    contracts.put_directory(&people).await.unwrap();
    submitted(&contracts, "f", 10).await;
    let request = open_request(&contracts, "f", 1).await;
    let key_of = |creators: [&'static str; 1]| contracts.with_key_creators(creators);
    let by_rita = key_of(["rita"]);
    refused(approve(&by_rita, &request, "fay").await, ErrorCode::ApprovalRefused);
    let given = by_rita.delegate_approval(&request.id, "bob", &person("fay")).await;
    refused(given, ErrorCode::ApprovalRefused);
    // One person decides once, whichever key they use, and whichever key they made.
    approve(&key_of(["max"]), &request, "fay").await.unwrap();
    refused(approve(&contracts, &request, "max").await, ErrorCode::ApprovalRefused);
    refused(approve(&key_of(["fay"]), &request, "fred").await, ErrorCode::ApprovalRefused);
    // The decision does not count any more when the person who made the key edits the document.
    let mut noted = invoice(10);
    noted["note"] = json!("a typo");
    contracts.edit(TYPE, "f", 1, &noted, &person("max"), None).await.unwrap();
    approve(&contracts, &request, "fred").await.unwrap();
    until("the run has counted", || async {
        document(&contracts, "f").await.row.state != "submitted"
    })
    .await;
    assert_eq!(document(&contracts, "f").await.row.state, "draft");
}

async fn case_35_a_key_makes_its_creators_editors_and_requesters(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    contracts.create(TYPE, "g", &invoice(10), &person("rita")).await.unwrap();
    let by_fay = contracts.with_key_creators(["fay"]);
    by_fay.edit(TYPE, "g", 1, &invoice(20), &person("bob"), None).await.unwrap();
    let row = document(&contracts, "g").await.row;
    let editors: Vec<&str> = row.editors.iter().map(String::as_str).collect();
    assert_eq!(editors, ["bob", "fay", "rita"]);
    contracts.act(TYPE, "g", "submit", &person("rita"), None).await.unwrap();
    let request = open_request(&contracts, "g", 2).await;
    assert_eq!(people(&request), ["fred"]);
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalRefused);
    // A document that somebody submits with such a key is as good as submitted by its creator.
    contracts.create(TYPE, "h", &invoice(10), &person("rita")).await.unwrap();
    by_fay.act(TYPE, "h", "submit", &person("bob"), None).await.unwrap();
    let request = open_request(&contracts, "h", 1).await;
    assert_eq!(people(&request), ["fred"]);
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalRefused);
    approve(&contracts, &request, "fred").await.unwrap();
    until_state(&contracts, "h", "active").await;
    // An amendment and a document that an action makes keep them.
    by_fay.amend(TYPE, "h", "h2", &person("max")).await.unwrap();
    assert!(document(&contracts, "h2").await.row.editors.contains("fay"));
}
