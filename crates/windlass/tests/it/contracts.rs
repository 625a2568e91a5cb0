//! Documents with a lifecycle: one write path, runs, approvals, definitions. Names of tests have the number of
//! the acceptance case that they cover.

use std::sync::Arc;

use serde_json::{Value, json};
use windlass::contracts::language::approvers::{Directory, Person};
use windlass::contracts::language::templates;
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::language::types::{LifecycleContract, OrgWorkflowDefinition};
use windlass::contracts::{
    ActionCall, ActionOutcome, Approval, ApprovalStatus, Contracts, Document,
};
use windlass::kernel::{
    Body, Commit, Expect, Op, RecordKey, RecordOp, RecordPut, RecordWrite, Subject, Terms, WriteId,
};
use windlass::{Engine, Error, ErrorCode, RunStatus};

use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    use_case_a_small_invoices_pass_without_people,
    case_17_an_invoice_is_approved_and_locked,
    case_18_no_edge_stops_the_run_and_a_retry_goes_on,
    case_22_the_state_is_rebuilt_from_the_steps,
    case_24_an_any_join_withdraws_the_losers,
    case_26_a_rejected_document_runs_its_slot_again,
    case_29_a_changed_artefact_stops_its_run_alone,
    case_31_a_locked_document_is_not_edited,
    case_32_an_edit_voids_the_decisions,
    case_33_no_race_activates_content_that_was_not_approved,
    case_34_one_person_decides_once,
    case_35_nobody_approves_their_own_document,
    case_35_one_person_counts_once_at_a_gate,
    case_36_a_restart_skips_no_gate,
    case_37_forged_events_have_no_effect,
    case_39_tenants_see_nothing_of_each_other,
    actions_write_with_the_step_that_calls_them,
    a_cancelled_document_withdraws_its_requests,
    a_due_request_asks_more_people,
    bad_input_is_refused_with_a_code,
    definitions_are_versions_that_documents_keep,
);

pub(crate) const TYPE: &str = "invoice";
pub(crate) const SLOT: &str = "submitted_to_approved";

pub(crate) fn contract() -> LifecycleContract {
    let found = templates::all().into_iter().find(|one| one.name == "invoice_approval");
    found.expect("the template exists").contract
}

fn template_definition() -> OrgWorkflowDefinition {
    let found = templates::all().into_iter().find(|one| one.name == "invoice_approval");
    found.expect("the template exists").definition
}

pub(crate) fn person(id: &str) -> Subject {
    Subject::new(id, [""; 0]).unwrap()
}

pub(crate) fn invoice(total: u64) -> Value {
    json!({
        "id": "i-1", "total": total, "currency": "EUR", "requester": "rita",
        "vendor_class": "new", "budget_owner": "bob",
    })
}

pub(crate) fn directory() -> Directory {
    let person = |roles: &[&str], manager: Option<&str>| Person {
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        manager: manager.map(str::to_owned),
        ..Person::default()
    };
    let people = [
        ("rita", person(&["finance_manager"], Some("max"))),
        ("fay", person(&["finance_manager"], None)),
        ("fred", person(&["finance_manager"], None)),
        ("bob", person(&[], None)),
        ("max", person(&[], None)),
        ("cleo", person(&["cfo"], None)),
    ];
    let people = people.into_iter().map(|(id, person)| (id.to_owned(), person)).collect();
    Directory { people, delegations: Vec::new() }
}

/// Contracts with the invoice type, on an engine of the harness.
pub(crate) async fn opened(h: &Harness) -> (Engine, Contracts) {
    let engine = h.engine().await;
    let contracts = opened_on(&engine).await;
    (engine, contracts)
}

/// As [`opened`], on this engine.
pub(crate) async fn opened_on(engine: &Engine) -> Contracts {
    let nothing = |_: &ActionCall<'_>| Ok(ActionOutcome::none());
    let builder = Contracts::builder().action("ledger.post", Arc::new(nothing));
    let contracts = builder.open(engine).await.unwrap();
    contracts.publish_type(&contract(), &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    contracts
}

pub(crate) async fn document(contracts: &Contracts, id: &str) -> Document {
    contracts.document(TYPE, id).await.unwrap()
}

pub(crate) async fn until_state(contracts: &Contracts, id: &str, state: &str) {
    until(state, || async { document(contracts, id).await.row.state == state }).await;
}

pub(crate) async fn submitted(contracts: &Contracts, id: &str, total: u64) {
    contracts.create(TYPE, id, &invoice(total), &person("rita")).await.unwrap();
    contracts.act(TYPE, id, "submit", &person("rita"), None).await.unwrap();
}

pub(crate) async fn open_request(contracts: &Contracts, id: &str, version: u64) -> Approval {
    let find = || async {
        let all = contracts.approvals_of(TYPE, id, None, 100).await.unwrap();
        all.into_iter().find(|one| one.status == ApprovalStatus::Open && one.version == version)
    };
    until("an open request", || async { find().await.is_some() }).await;
    find().await.unwrap()
}

pub(crate) async fn approve(
    contracts: &Contracts,
    request: &Approval,
    by: &str,
) -> Result<Approval, Error> {
    let (id, digest) = (&request.id, request.digest);
    contracts.decide_approval(id, Verdict::Approved, digest, &person(by), None).await
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Error>, code: ErrorCode) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), code, "{error}");
}

pub(crate) async fn until_run(contracts: &Contracts, id: &str, status: RunStatus) {
    let of = || async { contracts.run(TYPE, id).await.unwrap().status };
    until(status.as_str(), || async { of().await == status }).await;
}

pub(crate) async fn same_when_rebuilt(contracts: &Contracts, id: &str) {
    let rebuilt = contracts.rebuild(TYPE, id).await.unwrap();
    assert!(rebuilt.same && rebuilt.steps > 0, "{rebuilt:?}");
}

pub(crate) async fn publish(contracts: &Contracts, slots: Value) {
    let definition: OrgWorkflowDefinition = serde_json::from_value(json!({
        "baseRef": {"entityType": TYPE, "envelopeVersion": 1}, "slots": slots,
    }))
    .unwrap();
    contracts.put_draft(TYPE, &definition).await.unwrap();
    contracts.publish(TYPE, &person("dana")).await.unwrap();
}

pub(crate) fn node(name: &str, node_type: &str, config: Value) -> Value {
    json!({"id": format!("usr:{SLOT}:{name}"), "type": node_type, "config": config})
}

pub(crate) fn role(role: &str) -> Value {
    json!({"approvers": {"strategy": "role", "role": role}})
}

pub(crate) fn edge(id: &str, source: &str, target: &str) -> Value {
    let full = |name: &str| format!("usr:{SLOT}:{name}");
    json!({"id": id, "source": full(source), "target": full(target)})
}

async fn use_case_a_small_invoices_pass_without_people(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    contracts.put_draft(TYPE, &template_definition()).await.unwrap();
    contracts.publish(TYPE, &person("dana")).await.unwrap();
    let mut small = invoice(100);
    small["vendor_class"] = json!("trusted");
    contracts.create(TYPE, "a", &small, &person("rita")).await.unwrap();
    contracts.act(TYPE, "a", "submit", &person("rita"), Some("ready")).await.unwrap();
    until_state(&contracts, "a", "active").await;
    until_run(&contracts, "a", RunStatus::Complete).await;
    assert!(contracts.approvals_of(TYPE, "a", None, 10).await.unwrap().is_empty());
    same_when_rebuilt(&contracts, "a").await;
}

async fn case_17_an_invoice_is_approved_and_locked(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let made = contracts.create(TYPE, "b", &invoice(900), &person("rita")).await.unwrap();
    assert_eq!((made.row.version, made.row.state.as_str()), (1, "draft"));
    let edited = contracts.edit(TYPE, "b", 1, &invoice(950), &person("rita"), Some("typo")).await;
    assert_eq!(edited.unwrap().row.version, 2);
    contracts.act(TYPE, "b", "submit", &person("rita"), None).await.unwrap();
    let request = open_request(&contracts, "b", 2).await;
    let mut asked: Vec<&str> = request.asked.iter().map(|one| one.person.as_str()).collect();
    asked.sort_unstable();
    assert_eq!(asked, ["fay", "fred"], "the requester has the role and is not asked");
    assert_eq!(
        contracts.inbox(&person("fay"), None, 10).await.unwrap(),
        std::slice::from_ref(&request)
    );
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "b", "active").await;
    until_run(&contracts, "b", RunStatus::Complete).await;
    assert!(contracts.inbox(&person("fay"), None, 10).await.unwrap().is_empty());
    assert!(contracts.inbox(&person("fred"), None, 10).await.unwrap().is_empty());
    // The versions and their notes stay.
    let first = contracts.document_version(TYPE, "b", 1).await.unwrap();
    assert_eq!((first.content["total"].as_u64(), first.note.what.as_str()), (Some(900), "create"));
    let second = contracts.document_version(TYPE, "b", 2).await.unwrap();
    assert_eq!(second.note.why.as_deref(), Some("typo"));
    let diff = contracts.document_diff(TYPE, "b", 1, 2).await.unwrap();
    assert_eq!(diff.keys().collect::<Vec<_>>(), ["total"]);
    same_when_rebuilt(&contracts, "b").await;
}

async fn case_18_no_edge_stops_the_run_and_a_retry_goes_on(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut only_large = edge("large", "size", "review");
    only_large["condition"] = json!("entity.total > 1000");
    publish(
        &contracts,
        json!({SLOT: {
            "nodes": [node("size", "condition", json!({})), node("review", "approval", role("cfo"))],
            "edges": [only_large],
        }}),
    )
    .await;
    submitted(&contracts, "c", 10).await;
    until_run(&contracts, "c", RunStatus::Errored).await;
    let run = contracts.run(TYPE, "c").await.unwrap();
    let error: Value = run.error.as_ref().unwrap().read().unwrap();
    assert_eq!(error["name"], "WORKFLOW_NO_EDGE", "{error}");
    let failed = contracts.position(TYPE, "c").await.unwrap();
    let row = failed.open.iter().find(|row| row.node.ends_with(":size")).unwrap();
    assert_eq!(row.chosen_edge_ids.as_deref(), Some(&[][..]));
    same_when_rebuilt(&contracts, "c").await;
    // The same document fails again, a corrected one goes on.
    contracts.engine().retry(run.run_key, None).await.unwrap();
    until_run(&contracts, "c", RunStatus::Errored).await;
    let (version, by) = (document(&contracts, "c").await.row.version, person("rita"));
    let fixed = contracts.edit(TYPE, "c", version, &invoice(5_000), &by, None).await.unwrap();
    assert_eq!(fixed.row.state, "submitted");
    let run = contracts.run(TYPE, "c").await.unwrap();
    contracts.engine().retry(run.run_key, None).await.unwrap();
    // The edit is drift: the run goes through the amended state and asks about the new content.
    until_state(&contracts, "c", "amended").await;
    contracts.act(TYPE, "c", "submit", &person("rita"), None).await.unwrap();
    let request = open_request(&contracts, "c", 2).await;
    approve(&contracts, &request, "cleo").await.unwrap();
    until_state(&contracts, "c", "active").await;
    same_when_rebuilt(&contracts, "c").await;
}

async fn case_22_the_state_is_rebuilt_from_the_steps(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    contracts.put_draft(TYPE, &template_definition()).await.unwrap();
    contracts.publish(TYPE, &person("dana")).await.unwrap();
    submitted(&contracts, "d", 9_000_000).await;
    let find = |person: &'static str| {
        let contracts = contracts.clone();
        async move { contracts.inbox(&self::person(person), None, 10).await.unwrap() }
    };
    until("both are asked", || async {
        !find("fay").await.is_empty() && !find("bob").await.is_empty()
    })
    .await;
    same_when_rebuilt(&contracts, "d").await;
    // Without memory of the run, the store has all that it needs.
    engine.core().evict_all();
    contracts.evict();
    approve(&contracts, &find("bob").await[0], "bob").await.unwrap();
    until("bob's request is closed", || async { find("bob").await.is_empty() }).await;
    same_when_rebuilt(&contracts, "d").await;
    approve(&contracts, &find("fay").await[0], "fay").await.unwrap();
    until_state(&contracts, "d", "active").await;
    until_run(&contracts, "d", RunStatus::Complete).await;
    same_when_rebuilt(&contracts, "d").await;
}

async fn case_24_an_any_join_withdraws_the_losers(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    publish(
        &contracts,
        json!({SLOT: {
            "nodes": [
                node("fork", "parallel_split", json!({})),
                node("one", "approval", role("finance_manager")),
                node("two", "approval", role("cfo")),
                node("first", "parallel_join", json!({"mode": "any"})),
            ],
            "edges": [
                edge("f1", "fork", "one"), edge("f2", "fork", "two"),
                edge("j1", "one", "first"), edge("j2", "two", "first"),
            ],
        }}),
    )
    .await;
    submitted(&contracts, "e", 10).await;
    let inbox = || async { contracts.inbox(&person("cleo"), None, 10).await.unwrap() };
    until("cleo is asked", || async { !inbox().await.is_empty() }).await;
    let losing = inbox().await.remove(0);
    let fays = contracts.inbox(&person("fay"), None, 10).await.unwrap().remove(0);
    approve(&contracts, &fays, "fay").await.unwrap();
    until_state(&contracts, "e", "active").await;
    let late = contracts.approval(&losing.id).await.unwrap();
    assert_eq!(late.status, ApprovalStatus::Withdrawn);
    refused(approve(&contracts, &losing, "cleo").await, ErrorCode::ApprovalWithdrawn);
}

async fn case_26_a_rejected_document_runs_its_slot_again(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    submitted(&contracts, "f", 10).await;
    let request = open_request(&contracts, "f", 1).await;
    let (fay, why) = (person("fay"), Some("no order number"));
    contracts
        .decide_approval(&request.id, Verdict::Rejected, request.digest, &fay, why)
        .await
        .unwrap();
    until_state(&contracts, "f", "draft").await;
    contracts.act(TYPE, "f", "submit", &person("rita"), None).await.unwrap();
    let again = open_request(&contracts, "f", 1).await;
    assert_ne!(again.id, request.id);
    assert_eq!(contracts.position(TYPE, "f").await.unwrap().cycle, 1);
    approve(&contracts, &again, "fay").await.unwrap();
    until_state(&contracts, "f", "active").await;
}

// Writes the body of a record behind the back of contracts.
pub(crate) async fn overwrite(engine: &Engine, collection: &str, id: &str, body: Body) {
    let store = engine.admin().store();
    let key = RecordKey {
        namespace: engine.namespace().clone(),
        collection: windlass::kernel::Collection::new(collection).unwrap(),
        id: windlass::kernel::RecordId::new(id).unwrap(),
    };
    let found = store.records(vec![key.clone()]).await.unwrap().pop().flatten();
    let revision = found.as_ref().map_or(0, |record| record.revision);
    let put = RecordPut {
        write_id: WriteId(uuid::Uuid::from_u128(u128::from(revision) + 7)),
        body,
        terms: Terms::default(),
        keep: None,
        at: found.map_or(engine.core().clock().now(), |record| record.updated_at),
        revision: None,
    };
    let write = RecordWrite::Put(Box::new(put));
    let expect = if revision == 0 { Expect::Absent } else { Expect::At(revision) };
    let op = RecordOp { key, expect, write };
    let commit = Commit::new(None, None, vec![Op::Record(Box::new(op))]);
    store.commit(vec![commit]).await.pop().unwrap().unwrap();
}

async fn case_29_a_changed_artefact_stops_its_run_alone(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", role("cfo"))]}})).await;
    submitted(&contracts, "g", 10).await;
    let request = open_request(&contracts, "g", 1).await;
    let artefact = contracts.workflow(TYPE).await.unwrap();
    let mut changed = serde_json::to_value(&*artefact).unwrap();
    changed["nodes"][format!("usr:{SLOT}:review")]["config"]["approvers"]["role"] = json!("intern");
    let body = Body::of(&changed).unwrap();
    overwrite(&engine, "windlass.artefacts", &artefact.hash.to_string(), body).await;
    contracts.evict();
    engine.core().evict_all();
    approve(&contracts, &request, "cleo").await.unwrap();
    let blocked = || async {
        let run = contracts.run(TYPE, "g").await.unwrap();
        contracts.engine().blocked(&run).await.unwrap().is_some()
    };
    until("the run is blocked", blocked).await;
    assert_eq!(document(&contracts, "g").await.row.state, "submitted");
    // Others go on.
    contracts.archive(TYPE).await.unwrap();
    submitted(&contracts, "g2", 10).await;
    let request = open_request(&contracts, "g2", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "g2", "active").await;
    // The artefact is restored.
    let body = Body::json(artefact.to_json().unwrap());
    overwrite(&engine, "windlass.artefacts", &artefact.hash.to_string(), body).await;
    contracts.act(TYPE, "g", "cancel", &person("rita"), None).await.unwrap();
    until("the run has ended", || async {
        ["active", "cancelled"].contains(&document(&contracts, "g").await.row.state.as_str())
    })
    .await;
}

async fn case_31_a_locked_document_is_not_edited(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    submitted(&contracts, "h", 10).await;
    let request = open_request(&contracts, "h", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "h", "active").await;
    let edit = || contracts.edit(TYPE, "h", 1, &EDITED, &RITA, None);
    static EDITED: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| invoice(11));
    static RITA: std::sync::LazyLock<Subject> = std::sync::LazyLock::new(|| person("rita"));
    refused(edit().await, ErrorCode::WorkflowEditLocked);
    refused(contracts.act(TYPE, "h", "cancel", &RITA, None).await, ErrorCode::DocumentActionClosed);
    let amended = contracts.amend(TYPE, "h", "h2", &RITA).await.unwrap();
    assert_eq!(amended.row.amended_from.unwrap().id, "h");
    until_run(&contracts, "h", RunStatus::Complete).await;
    refused(edit().await, ErrorCode::WorkflowEditLocked);
    // The engine stands still: the row decides.
    engine.core().shutdown(std::time::Duration::from_secs(5)).await.unwrap();
    refused(edit().await, ErrorCode::WorkflowEditLocked);
}

async fn case_32_an_edit_voids_the_decisions(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    submitted(&contracts, "i", 10).await;
    let first = open_request(&contracts, "i", 1).await;
    // An immaterial change keeps the request.
    let mut noted = invoice(10);
    noted["note"] = json!("see the order");
    contracts.edit(TYPE, "i", 1, &noted, &person("rita"), None).await.unwrap();
    assert_eq!(document(&contracts, "i").await.row.material_version, 1);
    // A material one sends the document to the amended state.
    contracts.edit(TYPE, "i", 2, &invoice(99), &person("rita"), None).await.unwrap();
    let stale = approve(&contracts, &first, "fay").await.unwrap_err();
    let codes = [ErrorCode::ApprovalStale, ErrorCode::ApprovalWithdrawn];
    assert!(codes.contains(&stale.code()), "{stale}");
    until_state(&contracts, "i", "amended").await;
    let closed = contracts.approval(&first.id).await.unwrap();
    assert_eq!(closed.status, ApprovalStatus::Withdrawn);
    // The step that amends holds the difference.
    let run = contracts.run(TYPE, "i").await.unwrap();
    let loaded = contracts.engine().store().load(vec![run.run_key]).await.unwrap();
    let results = loaded[0].steps.iter().filter_map(|step| step.result.as_ref());
    let rows: Vec<Value> = results.map(|body| body.read().unwrap()).collect();
    let amended = rows.iter().find(|row| row["node"] == "sys:state:amended").unwrap();
    let total = &amended["output"]["changes"]["fields"]["total"];
    assert_eq!(total, &json!({"from": 10, "to": 99}), "{amended}");
    contracts.act(TYPE, "i", "submit", &person("rita"), None).await.unwrap();
    let second = open_request(&contracts, "i", 3).await;
    // A stale tab names the content of the first version.
    let old = contracts
        .decide_approval(&second.id, Verdict::Approved, first.digest, &person("fay"), None)
        .await;
    refused(old, ErrorCode::ApprovalStale);
    approve(&contracts, &second, "fay").await.unwrap();
    until_state(&contracts, "i", "active").await;
    assert_eq!(document(&contracts, "i").await.row.content["total"], 99);
}

async fn case_33_no_race_activates_content_that_was_not_approved(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    for round in 0..8 {
        let id = format!("r{round}");
        submitted(&contracts, &id, 10).await;
        let request = open_request(&contracts, &id, 1).await;
        let (rita, edited) = (person("rita"), invoice(1_000 + round));
        let edit = contracts.edit(TYPE, &id, 1, &edited, &rita, None);
        let (approved, changed) = tokio::join!(approve(&contracts, &request, "fay"), edit);
        until("the run has settled", || async {
            let row = document(&contracts, &id).await.row;
            ["active", "amended"].contains(&row.state.as_str())
        })
        .await;
        let row = document(&contracts, &id).await.row;
        match row.state.as_str() {
            "active" => {
                assert!(approved.is_ok());
                assert_eq!(row.digest, request.digest, "active with content that nobody approved");
            }
            _ => assert!(changed.is_ok()),
        }
    }
}

async fn case_34_one_person_decides_once(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut both = role("finance_manager");
    both["quorum"] = json!({"kind": "count", "count": 2});
    publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", both)]}})).await;
    submitted(&contracts, "k", 10).await;
    let request = open_request(&contracts, "k", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalRefused);
    assert_eq!(document(&contracts, "k").await.row.state, "submitted");
    approve(&contracts, &request, "fred").await.unwrap();
    until_state(&contracts, "k", "active").await;
    let closed = contracts.approval(&request.id).await.unwrap();
    assert_eq!(closed.decisions.len(), 2);
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalWithdrawn);
}

async fn case_35_nobody_approves_their_own_document(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    contracts.create(TYPE, "l", &invoice(10), &person("rita")).await.unwrap();
    contracts.edit(TYPE, "l", 1, &invoice(11), &person("fay"), None).await.unwrap();
    contracts.act(TYPE, "l", "submit", &person("rita"), None).await.unwrap();
    let request = open_request(&contracts, "l", 2).await;
    let asked: Vec<&str> = request.asked.iter().map(|one| one.person.as_str()).collect();
    assert_eq!(asked, ["fred"], "neither the requester nor the editor is asked");
    for person in ["rita", "fay", "bob"] {
        refused(approve(&contracts, &request, person).await, ErrorCode::ApprovalRefused);
    }
    // Nor through a delegation.
    for to in ["rita", "fay", "nobody"] {
        let delegated = contracts.delegate_approval(&request.id, to, &person("fred")).await;
        refused(delegated, ErrorCode::ApprovalRefused);
    }
    contracts.delegate_approval(&request.id, "max", &person("fred")).await.unwrap();
    refused(approve(&contracts, &request, "fred").await, ErrorCode::ApprovalRefused);
    let again = contracts.delegate_approval(&request.id, "bob", &person("max")).await;
    refused(again, ErrorCode::ApprovalRefused);
    approve(&contracts, &request, "max").await.unwrap();
    until_state(&contracts, "l", "active").await;
}

async fn case_35_one_person_counts_once_at_a_gate(h: Arc<Harness>) {
    let engine = h.engine().await;
    let contracts = Contracts::builder().open(&engine).await.unwrap();
    let mut strict = serde_json::to_value(contract()).unwrap();
    strict["obligations"][0]["needs"]["count"] = json!(2);
    let two = json!({"kind": "count", "count": 2});
    strict["defaults"][SLOT]["nodes"][0]["config"]["quorum"] = two;
    let strict: LifecycleContract = serde_json::from_value(strict).unwrap();
    contracts.publish_type(&strict, &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    publish(
        &contracts,
        json!({SLOT: {
            "nodes": [
                node("fork", "parallel_split", json!({})),
                node("one", "approval", role("finance_manager")),
                node("two", "approval", role("finance_manager")),
                node("both", "parallel_join", json!({"mode": "all"})),
            ],
            "edges": [
                edge("f1", "fork", "one"), edge("f2", "fork", "two"),
                edge("j1", "one", "both"), edge("j2", "two", "both"),
            ],
        }}),
    )
    .await;
    submitted(&contracts, "x", 10).await;
    let inbox = || async { contracts.inbox(&person("fay"), None, 10).await.unwrap() };
    until("fay is asked twice", || async { inbox().await.len() == 2 }).await;
    let requests = inbox().await;
    for request in &requests {
        approve(&contracts, request, "fay").await.unwrap();
    }
    // The second approval of the same person does not count: the step waits for somebody else.
    let open = || async {
        let all = contracts.approvals_of(TYPE, "x", None, 10).await.unwrap();
        all.into_iter().filter(|one| one.status == ApprovalStatus::Open).collect::<Vec<_>>()
    };
    until("one step is decided", || async { open().await.len() == 1 }).await;
    until("the run has read both decisions", || async {
        let run = contracts.run(TYPE, "x").await.unwrap();
        run.seen == run.accepted && run.status == RunStatus::Waiting
    })
    .await;
    assert_eq!(document(&contracts, "x").await.row.state, "submitted");
    approve(&contracts, &open().await[0], "fred").await.unwrap();
    until_state(&contracts, "x", "active").await;
    same_when_rebuilt(&contracts, "x").await;
}

async fn case_36_a_restart_skips_no_gate(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    submitted(&contracts, "m", 10).await;
    let request = open_request(&contracts, "m", 1).await;
    let pinned = document(&contracts, "m").await.row.artefact;
    // A definition that is published meanwhile changes nothing for this document.
    publish(&contracts, json!({SLOT: {"nodes": [node("other", "approval", role("cfo"))]}})).await;
    let run = contracts.run(TYPE, "m").await.unwrap();
    contracts.engine().terminate(run.run_key, None, None).await.unwrap();
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalWithdrawn);
    contracts.engine().restart(run.run_key, None).await.unwrap();
    let find = || async {
        let all = contracts.approvals_of(TYPE, "m", None, 100).await.unwrap();
        all.into_iter().find(|one| one.id != request.id)
    };
    until("it asks again", || async { find().await.is_some() }).await;
    let again = find().await.unwrap();
    assert_eq!(again.asked.len(), 2, "the pinned artefact asks the finance managers");
    refused(approve(&contracts, &request, "fred").await, ErrorCode::ApprovalWithdrawn);
    assert_eq!(document(&contracts, "m").await.row.state, "submitted");
    approve(&contracts, &again, "fay").await.unwrap();
    until_state(&contracts, "m", "active").await;
    assert_eq!(document(&contracts, "m").await.row.artefact, pinned);
    same_when_rebuilt(&contracts, "m").await;
}

async fn case_37_forged_events_have_no_effect(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    submitted(&contracts, "n", 10).await;
    let request = open_request(&contracts, "n", 1).await;
    let run = contracts.run(TYPE, "n").await.unwrap();
    let forged = json!({"approval": request.id, "verdict": "approved", "state": "active"});
    for name in ["document.written", "approval.decided", "document.mutated", "decision"] {
        let name = windlass::kernel::MessageName::new(name).unwrap();
        let body = Some(Body::of(&forged).unwrap());
        engine.core().send_event(run.run_key, name, body, None).await.unwrap();
    }
    until("the messages are read", || async {
        let run = contracts.run(TYPE, "n").await.unwrap();
        run.seen == run.accepted
    })
    .await;
    assert_eq!(document(&contracts, "n").await.row.state, "submitted");
    // Nobody starts a run without its document.
    let start = engine.remote_workflow::<Value, Value>("doc:invoice").unwrap();
    let started = start.start(json!({"document": "n"})).id("n9").await;
    refused(started.map(|run| run.run_key()), ErrorCode::DocumentNotFound);
    // Nobody writes a document past its write path.
    let records = engine.records::<Value>("windlass.documents");
    let written = records.put("invoice/n", &json!({})).send().await;
    refused(written, ErrorCode::CollectionReserved);
}

async fn case_39_tenants_see_nothing_of_each_other(h: Arc<Harness>) {
    let (engine, contracts) = opened(&h).await;
    submitted(&contracts, "o", 10).await;
    let request = open_request(&contracts, "o", 1).await;
    let other = engine.in_namespace("tenant-b").unwrap();
    let other = contracts.in_namespace(other.namespace().clone());
    refused(other.document(TYPE, "o").await, ErrorCode::DocumentNotFound);
    refused(other.approval(&request.id).await, ErrorCode::ApprovalNotFound);
    refused(approve(&other, &request, "fay").await, ErrorCode::ApprovalNotFound);
    refused(other.position(TYPE, "o").await, ErrorCode::RunNotFound);
    assert!(other.inbox(&person("fay"), None, 10).await.unwrap().is_empty());
    assert!(other.documents(TYPE, None, None, 10).await.unwrap().is_empty());
    assert_eq!(contracts.documents(TYPE, Some("submitted"), None, 10).await.unwrap().len(), 1);
    // The other tenant has documents of the operator's types, with ids of its own.
    other.put_directory(&directory()).await.unwrap();
    submitted(&other, "o", 20).await;
    let own = open_request(&other, "o", 1).await;
    approve(&other, &own, "fay").await.unwrap();
    until_state(&other, "o", "active").await;
    assert_eq!(document(&contracts, "o").await.row.state, "submitted");
}

async fn actions_write_with_the_step_that_calls_them(h: Arc<Harness>) {
    let engine = h.engine().await;
    let post = |call: &ActionCall<'_>| {
        if call.payload["total"] == json!(13) {
            return Err("the ledger is closed".to_owned());
        }
        let entry = json!({"total": call.payload["total"], "by": call.actor.id});
        let change = windlass::RecordChange::put("ledger", call.id, &entry, Expect::Absent);
        Ok(ActionOutcome::none().record(change.map_err(|error| error.to_string())?))
    };
    let contracts =
        Contracts::builder().action("ledger.post", Arc::new(post)).open(&engine).await.unwrap();
    contracts.publish_type(&contract(), &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    let action = json!({"mutation": {"actionType": "ledger.post", "payloadTemplate": {"total": "entity.total"}}});
    publish(
        &contracts,
        json!({"approved_to_active": {"nodes": [
            {"id": "usr:approved_to_active:post", "type": "action", "config": action},
        ]}}),
    )
    .await;
    submitted(&contracts, "p", 12).await;
    let request = open_request(&contracts, "p", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    until_state(&contracts, "p", "active").await;
    let entry = engine.records::<Value>("ledger").get("p").await.unwrap().unwrap();
    assert_eq!((entry.revision, entry.value), (1, json!({"total": 12, "by": "fay"})));
    // An action that fails leaves nothing of its commit.
    submitted(&contracts, "q", 13).await;
    let request = open_request(&contracts, "q", 1).await;
    approve(&contracts, &request, "fay").await.unwrap();
    until_run(&contracts, "q", RunStatus::Errored).await;
    assert_eq!(document(&contracts, "q").await.row.state, "submitted");
    assert_eq!(contracts.approval(&request.id).await.unwrap().status, ApprovalStatus::Open);
    let run = contracts.run(TYPE, "q").await.unwrap();
    let error: Value = run.error.as_ref().unwrap().read().unwrap();
    assert_eq!(error["name"], "ACTION_FAILED", "{error}");
    assert!(engine.records::<Value>("ledger").get("q").await.unwrap().is_none());
}

async fn a_cancelled_document_withdraws_its_requests(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    submitted(&contracts, "s", 10).await;
    let request = open_request(&contracts, "s", 1).await;
    contracts.act(TYPE, "s", "cancel", &person("rita"), None).await.unwrap();
    until_state(&contracts, "s", "cancelled").await;
    until_run(&contracts, "s", RunStatus::Complete).await;
    refused(approve(&contracts, &request, "fay").await, ErrorCode::ApprovalWithdrawn);
    assert!(contracts.inbox(&person("fay"), None, 10).await.unwrap().is_empty());
}

async fn a_due_request_asks_more_people(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let mut config = role("finance_manager");
    config["due"] =
        json!({"after": "1 ms", "then": {"escalate": {"strategy": "role", "role": "cfo"}}});
    publish(&contracts, json!({SLOT: {"nodes": [node("review", "approval", config)]}})).await;
    submitted(&contracts, "t", 10).await;
    let inbox = || async { contracts.inbox(&person("cleo"), None, 10).await.unwrap() };
    until("cleo is asked", || async { !inbox().await.is_empty() }).await;
    approve(&contracts, &inbox().await[0], "cleo").await.unwrap();
    until_state(&contracts, "t", "active").await;
    same_when_rebuilt(&contracts, "t").await;
}

async fn bad_input_is_refused_with_a_code(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let rita = person("rita");
    let create = |entity_type: &'static str, id: &'static str, content: Value| {
        let (contracts, rita) = (contracts.clone(), rita.clone());
        async move { contracts.create(entity_type, id, &content, &rita).await }
    };
    refused(create("order", "u", invoice(1)).await, ErrorCode::ContractTypeNotFound);
    refused(create("Order!", "u", invoice(1)).await, ErrorCode::InvalidName);
    refused(create(TYPE, "a b", invoice(1)).await, ErrorCode::InvalidName);
    refused(create(TYPE, "u", json!({"total": 1})).await, ErrorCode::DocumentInvalid);
    let mut rounded = invoice(1);
    rounded["total"] = json!(9_007_199_254_740_993_u64);
    refused(create(TYPE, "u", rounded).await, ErrorCode::DocumentInvalid);
    create(TYPE, "u", invoice(1)).await.unwrap();
    refused(create(TYPE, "u", invoice(1)).await, ErrorCode::DocumentExists);
    let edit = contracts.edit(TYPE, "u", 7, &invoice(2), &rita, None).await;
    refused(edit, ErrorCode::DocumentConflict);
    let act = contracts.act(TYPE, "u", "approve", &rita, None).await;
    refused(act, ErrorCode::DocumentActionClosed);
    refused(contracts.act(TYPE, "x", "submit", &rita, None).await, ErrorCode::DocumentNotFound);
    refused(contracts.document_version(TYPE, "u", 9).await, ErrorCode::RecordVersionNotFound);
    refused(contracts.approval("x").await, ErrorCode::ApprovalNotFound);
    // Nobody is left to ask: the run stops with the reason.
    publish(&contracts, json!({SLOT: {"nodes": [node("one", "approval", role("nobody"))]}})).await;
    submitted(&contracts, "v", 1).await;
    until_run(&contracts, "v", RunStatus::Errored).await;
    let run = contracts.run(TYPE, "v").await.unwrap();
    let error: Value = run.error.as_ref().unwrap().read().unwrap();
    assert_eq!(error["name"], "APPROVER_UNKNOWN", "{error}");
    assert_eq!(document(&contracts, "v").await.row.state, "draft", "nothing is half written");
}

async fn definitions_are_versions_that_documents_keep(h: Arc<Harness>) {
    let (_engine, contracts) = opened(&h).await;
    let dana = person("dana");
    refused(contracts.publish(TYPE, &dana).await, ErrorCode::DefinitionNotFound);
    submitted(&contracts, "w", 10).await;
    let default = document(&contracts, "w").await.row.artefact;
    publish(&contracts, json!({SLOT: {"nodes": [node("x", "approval", role("cfo"))]}})).await;
    submitted(&contracts, "y", 10).await;
    let patched = document(&contracts, "y").await.row.artefact;
    assert_ne!(default, patched);
    assert_eq!(document(&contracts, "w").await.row.artefact, default);
    // A patch that avoids the approval, an unknown action and an unserved channel are refused.
    let head = contracts.definition(TYPE).await.unwrap();
    let action = json!({"mutation": {"actionType": "ledger.unknown"}});
    let mail =
        json!({"channel": "email", "to": {"strategy": "role", "role": "cfo"}, "subject": "x"});
    for bad in [
        json!({SLOT: {"nodes": []}}),
        json!({"approved_to_active": {"nodes": [
            {"id": "usr:approved_to_active:a", "type": "action", "config": action}]}}),
        json!({"approved_to_active": {"nodes": [
            {"id": "usr:approved_to_active:m", "type": "notification", "config": mail}]}}),
    ] {
        let definition = serde_json::from_value(json!({
            "baseRef": {"entityType": TYPE, "envelopeVersion": 1}, "slots": bad}));
        contracts.put_draft(TYPE, &definition.unwrap()).await.unwrap();
        refused(contracts.publish(TYPE, &dana).await, ErrorCode::ContractInvalid);
    }
    let now = contracts.definition(TYPE).await.unwrap();
    assert_eq!((now.published, now.last_version), (head.published, 1));
    publish(&contracts, json!({SLOT: {"nodes": [node("z", "approval", role("cfo"))]}})).await;
    let back = contracts.roll_back(TYPE, 1, &dana).await.unwrap();
    assert_eq!((back.version, back.hash), (3, patched));
    assert_eq!(contracts.definition_version(TYPE, 3).await.unwrap().rolled_back_to, Some(1));
    // A new contract: the tenant's workflow stays until it is rebased.
    let mut second = contract();
    refused(contracts.publish_type(&second, &dana).await, ErrorCode::ContractInvalid);
    second.version = 2;
    contracts.publish_type(&second, &dana).await.unwrap();
    assert_eq!(contracts.workflow(TYPE).await.unwrap().hash, patched);
    contracts.rebase(TYPE).await.unwrap();
    let rebased = contracts.publish(TYPE, &dana).await.unwrap();
    assert_eq!((rebased.version, rebased.envelope_version), (4, 2));
    // A version that was made for the older contract is compiled against the newest one.
    let back = contracts.roll_back(TYPE, 2, &dana).await.unwrap();
    assert_eq!((back.version, back.envelope_version), (5, 2));
    contracts.archive(TYPE).await.unwrap();
    assert!(contracts.definition(TYPE).await.unwrap().published.is_none());
    contracts.archive_type(TYPE).await.unwrap();
    let created = contracts.create(TYPE, "late", &invoice(1), &dana).await;
    refused(created, ErrorCode::ContractTypeNotFound);
}
