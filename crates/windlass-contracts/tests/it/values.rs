//! Values from outside that a run keeps, the reasons that a simulation names, and return edges with one source and one
//! target.

use serde_json::{Value, json};
use windlass_contracts::compile::{READABLE_VERSIONS, compile, load};
use windlass_contracts::simulate::{Scenario, simulate};
use windlass_contracts::tokens::{Effect, Input, Status, StepStatus, check_result};
use windlass_contracts::types::{CompiledWorkflow, LifecycleContract, Quorum};

use crate::support::{
    Run, SLOT, amend_to_draft, approval, contract, definition, edge, free_contract, id, invoice,
    labelled, node, patched,
};

/// A wait for an event and an action; both write the amount, which a condition then reads.
fn amounts() -> CompiledWorkflow {
    let writes = json!({"amount": "sum.total", "signed_by": "by"});
    let nodes = json!([
        node("wait", "wait_event", json!({"eventKey": "k:{entity.id}", "writes": writes})),
        node("call", "action", json!({"mutation": {"actionType": "a.b"}, "writes": writes})),
        node("size", "condition", json!({})),
        approval("ask"),
    ]);
    let mut large = labelled("size", "ask", "large");
    large["condition"] = json!("context.amount > 5");
    let mut small = edge("size", "out");
    small["priority"] = json!(1);
    let edges = json!([edge("wait", "call"), edge("call", "size"), large, small]);
    let patch = json!({"nodes": nodes, "edges": edges, "exitEdgeMode": "join"});
    compile(&free_contract(), &patched(patch)).unwrap()
}

#[test]
fn an_event_whose_payload_does_not_fit_is_refused_and_can_be_sent_again() {
    let mut run = Run::submitted(amounts(), invoice());
    let send = |run: &mut Run, payload: Value| {
        let key = run.key("wait");
        run.turn(&Input::Event { key, payload })
    };
    for (payload, place) in [
        (json!({"sum": {"total": "7"}, "by": "ann"}), "/amount"),
        (json!({"sum": {"total": [7]}}), "/amount"),
        (json!({"sum": {"total": 7}, "by": {"name": "ann"}}), "/signed_by"),
        (json!({"sum": {"total": 9_007_199_254_740_993_u64}}), "/amount"),
    ] {
        let decision = send(&mut run, payload.clone());
        assert_eq!(run.state.status, Status::Failed, "{payload}");
        assert!(run.state.context.is_empty(), "{:?}", run.state.context);
        let row = decision.steps.iter().find(|row| row.node == id("wait")).unwrap();
        let error = &row.output["error"];
        assert_eq!(error["code"], "WORKFLOW_RESULT_INVALID", "{error}");
        assert_eq!(error["pointer"], place, "{error}");
        assert_eq!(row.output["event"], payload);
        // The retry waits for the event again.
        let decision = run.turn(&Input::Retry);
        assert_eq!(run.state.status, Status::Running);
        let waits = |one: &Effect| matches!(one, Effect::AwaitEvent { .. });
        assert!(decision.effects.iter().any(waits), "{:?}", decision.effects);
    }
    let text = json!({"sum": {"total": "7"}}).to_string();
    let message = send(&mut run, json!({"sum": {"total": text}}));
    let message = message.steps[0].output["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("sum.total") && message.contains("\"amount\""), "{message}");
    run.turn(&Input::Retry);
    // Absent fields are null, which every variable can be.
    send(&mut run, json!({"sum": {"total": 7}}));
    assert_eq!(run.state.context["amount"], 7);
    assert_eq!(run.statuses("call"), [StepStatus::Waiting]);
}

#[test]
fn a_result_that_does_not_fit_fails_the_action() {
    let mut run = Run::submitted(amounts(), invoice());
    let key = run.key("wait");
    run.turn(&Input::Event { key, payload: Value::Null });
    let key = run.key("call");
    let wrong = json!({"sum": {"total": true}});
    let problem = check_result(&run.artefact, &run.state, &key, &wrong).unwrap_err();
    assert_eq!(problem.code.as_str(), "WORKFLOW_RESULT_INVALID");
    let right = json!({"sum": {"total": 7}});
    check_result(&run.artefact, &run.state, &key, &right).unwrap();
    run.turn(&Input::ActionResult { key: key.clone(), result: wrong.clone() });
    assert_eq!(run.state.status, Status::Failed);
    let decision = run.turn(&Input::Retry);
    assert!(decision.effects.iter().any(|one| matches!(one, Effect::Mutate { .. })));
    run.turn(&Input::ActionResult { key, result: right });
    assert_eq!(run.statuses("ask"), [StepStatus::Waiting]);
}

/// Artefacts of an earlier compiler have no schema of the context. They go on as before.
#[test]
fn an_artefact_without_a_context_schema_takes_every_payload() {
    let mut artefact = amounts();
    assert!(artefact.context_schema.is_object());
    artefact.context_schema = Value::Null;
    let mut run = Run::submitted(artefact, invoice());
    let key = run.key("wait");
    run.turn(&Input::Event { key, payload: json!({"sum": {"total": "7"}}) });
    assert_eq!(run.state.context["amount"], "7");
    // Without a node that takes values from outside, the artefact does not need the schema.
    let plain = compile(&contract(), &patched(json!({"nodes": [approval("a")]}))).unwrap();
    assert!(plain.context_schema.is_null());
    assert!(!String::from_utf8(plain.to_json().unwrap()).unwrap().contains("contextSchema"));
}

#[test]
fn a_quorum_refuses_the_fields_of_another_kind() {
    for wrong in [
        json!({"kind": "any", "count": 2}),
        json!({"kind": "all", "count": 2}),
        json!({"kind": "count", "count": 2, "percent": 50}),
        json!({"kind": "percent", "percent": 50, "count": 2}),
    ] {
        assert!(serde_json::from_value::<Quorum>(wrong.clone()).is_err(), "{wrong}");
        let schema = json!(schemars::schema_for!(Quorum));
        assert!(!jsonschema::is_valid(&schema, &wrong), "{wrong}");
    }
    for right in
        [json!({"kind": "any"}), json!({"kind": "all"}), json!({"kind": "count", "count": 2})]
    {
        let read: Quorum = serde_json::from_value(right.clone()).unwrap();
        assert_eq!(json!(read), right);
    }
}

#[test]
fn a_simulation_counts_what_the_gate_counted() {
    let mut contract = contract();
    contract.obligations = serde_json::from_value(json!([
        {"id": "finance", "gate": "approve",
         "needs": {"kind": "approvals", "count": 1, "role": "finance_manager"}},
        {"id": "two", "gate": "approve", "needs": {"kind": "approvals", "count": 2},
         "unless": {"rule": "fast_track", "outcome": "yes"}},
    ]))
    .unwrap();
    let clerk = json!({"approvers": {"strategy": "role", "role": "clerk"}});
    let other = |value: Value| -> Value {
        serde_json::from_str(&value.to_string().replace(SLOT, "draft_to_submit")).unwrap()
    };
    // The clerk, and the rule, of another slot do not count at this gate.
    let first = other(json!({
        "nodes": [node("rule", "rule", json!({"rule": "fast_track"})),
                  node("first", "approval", clerk.clone())],
        "edges": [labelled("rule", "first", "yes"), labelled("rule", "out", "no"),
                  labelled("first", "out", "approved"), labelled("first", "out", "rejected")],
        "exitEdgeMode": "join",
    }));
    let second = json!({
        "nodes": [approval("manager"), node("clerk", "approval", clerk)],
        "edges": [edge("manager", "clerk")],
    });
    let one = definition(json!({"draft_to_submit": first, SLOT: second}));
    let artefact = compile(&contract, &one).unwrap();
    let mut document = invoice();
    document["total"] = json!(90);
    document["vendor_class"] = json!("trusted");
    let result =
        simulate(&artefact, &Scenario::new(document, jiff::Timestamp::UNIX_EPOCH)).unwrap();
    assert_eq!(result.state, "active", "{:?}", result.failure);
    assert_eq!(result.asked.len(), 3);
    let held: Vec<&str> = result.obligations.iter().map(|held| held.by.as_str()).collect();
    assert_eq!(held, ["1 approval by the role finance_manager", "2 approvals"]);
}

/// The contract with a stable slot behind the gate, and without the state `amended`.
fn amending_to_draft() -> LifecycleContract {
    let mut one = json!(free_contract());
    amend_to_draft(&mut one);
    one["slots"][2]["stableRegion"] = json!(true);
    serde_json::from_value(one).unwrap()
}

#[test]
fn a_rejection_and_an_amendment_can_lead_to_one_state() {
    let wait = json!({"id": "usr:approved_to_active:wait", "type": "wait_event",
                      "config": {"eventKey": "go:{entity.id}"}});
    let slots = json!({SLOT: {"nodes": [approval("a")]}, "approved_to_active": {"nodes": [wait]}});
    let artefact = compile(&amending_to_draft(), &definition(slots)).unwrap();
    for label in ["reject", "drift"] {
        let edge = format!("sys:edge:sys:gate:approve->sys:state:draft[{label}]");
        assert!(artefact.edges_by_id[&edge].is_return, "{edge}");
    }
    let mut run = Run::submitted(artefact, invoice());
    run.approve("a");
    assert_eq!(run.statuses("usr:approved_to_active:wait"), [StepStatus::Waiting]);
    (run.version, run.material_version) = (2, 2);
    run.turn(&Input::DocumentChanged);
    assert_eq!(run.state.status, Status::Running, "the change must amend and not fail");
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
}

#[test]
fn an_amendment_can_lead_to_the_end_of_its_own_empty_slot() {
    let mut one = json!(amending_to_draft());
    one["amended"] = json!("approved");
    let add = |list: &mut Value, item: Value| list.as_array_mut().unwrap().push(item);
    add(&mut one["states"], json!({"name": "approved", "editWindow": "locked"}));
    add(&mut one["gates"], json!({"name": "release", "editWindow": "locked", "trigger": "action"}));
    one["transitions"][1]["to"] = json!("approved");
    add(&mut one["transitions"], json!({"from": "approved", "gate": "release", "to": "active"}));
    one["slots"][1]["onDrift"] = json!("fail");
    one["slots"][2]["exit"] = json!("sys:state:approved");
    let contract: LifecycleContract = serde_json::from_value(one).unwrap();
    let slots = json!({SLOT: {"nodes": [approval("a")]}});
    let artefact = compile(&contract, &definition(slots)).unwrap();
    let edge = "sys:edge:sys:gate:approve->sys:state:approved";
    assert!(!artefact.edges_by_id[edge].is_return);
    assert!(artefact.edges_by_id[&format!("{edge}[drift]")].is_return);
    assert_eq!(load(&artefact.to_json().unwrap()).unwrap(), artefact);
    let mut run = Run::submitted(artefact, invoice());
    run.approve("a");
    assert_eq!(run.state.lifecycle, "approved");
}

#[test]
fn earlier_compilers_are_listed_once() {
    let mut versions = READABLE_VERSIONS.to_vec();
    versions.dedup();
    assert_eq!(versions, ["1.0.0", "1.1.0", "1.2.0"]);
}
