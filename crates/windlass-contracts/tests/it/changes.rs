//! Actions that change the document cannot get round a gate.

use serde_json::{Value, json};
use windlass_contracts::compile::{compile, default_definition};
use windlass_contracts::tokens::{Effect, Input, Policy, Status};
use windlass_contracts::types::{LifecycleContract, OrgWorkflowDefinition, RunAs};

use crate::support::{
    Run, SLOT, approval, contract, definition, edge, id, invoice, labelled, node, patched, refused,
};

const CORRECT: &str = "invoice.correct";

/// The contract for invoices, with an action that changes them.
fn correcting() -> LifecycleContract {
    let mut contract = contract();
    contract.document_actions.push(CORRECT.to_owned());
    contract
}

fn correct(name: &str) -> Value {
    let payload = json!({"total": "1"});
    node(name, "action", json!({"mutation": {"actionType": CORRECT, "payloadTemplate": payload}}))
}

fn in_slot(slot: &str, patch: &Value) -> OrgWorkflowDefinition {
    let patch = patch.to_string().replace(SLOT, slot);
    definition(json!({slot: serde_json::from_str::<Value>(&patch).unwrap()}))
}

/// The correction comes first, then the rule that exempts small invoices.
fn correct_before_fast_track() -> Value {
    json!({
        "nodes": [correct("c"), node("fast", "rule", json!({"rule": "fast_track"})), approval("a")],
        "edges": [edge("c", "fast"), labelled("fast", "a", "no"), labelled("fast", "out", "yes")],
        "exitEdgeMode": "join",
    })
}

#[test]
fn the_document_cannot_change_behind_a_gate_with_an_obligation() {
    let patch = json!({"nodes": [correct("c")]});
    let behind = in_slot("approved_to_active", &patch);
    let at = "/slots/approved_to_active/nodes/0/config/mutation/actionType";
    let found = refused(&correcting(), &behind, "PATCH_DOCUMENT_ACTION", at);
    assert!(found.message.contains("sys:gate:approve was passed"), "{}", found.message);
    // The gate `submit` has no obligation, and the gate `approve` comes later.
    compile(&correcting(), &in_slot("draft_to_submit", &patch)).unwrap();
    compile(&correcting(), &patched(correct_before_fast_track())).unwrap();
    // The contract's own default patches are checked too.
    let mut contract = correcting();
    contract.defaults.extend(behind.slots);
    let at = at.replace("/slots/", "/defaults/");
    refused(&contract, &default_definition(&contract), "PATCH_DOCUMENT_ACTION", &at);
}

#[test]
fn the_document_cannot_change_beside_other_branches_or_without_a_wait() {
    let parallel = patched(json!({
        "nodes": [
            node("s", "parallel_split", json!({})), correct("c"), approval("a"),
            node("j", "parallel_join", json!({"mode": "any"})), approval("b"),
        ],
        "edges": [
            edge("s", "c"), edge("s", "a"), edge("c", "j"), edge("a", "j"), edge("j", "b"),
        ],
    }));
    let at = format!("/slots/{SLOT}/nodes/1/config/mutation/actionType");
    refused(&correcting(), &parallel, "PATCH_DOCUMENT_ACTION", &at);

    let undo = json!({"mutation": {"actionType": "x.y"}, "compensate": {"actionType": CORRECT}});
    let undo = patched(json!({
        "nodes": [node("x", "action", undo), approval("a")], "edges": [edge("x", "a")],
    }));
    let at = format!("/slots/{SLOT}/nodes/0/config/compensate/actionType");
    refused(&correcting(), &undo, "PATCH_DOCUMENT_ACTION", &at);
}

#[test]
fn names_of_document_actions_are_checked() {
    let mut contract = contract();
    contract.document_actions.push("Invoice correct".to_owned());
    contract.document_actions.push("invoice.correct".to_owned());
    let at = "/documentActions/0";
    refused(&contract, &default_definition(&contract), "CONTRACT_NAME", at);
    contract.document_actions = (0..101).map(|i| format!("invoice.a{i}")).collect();
    let found = refused(&contract, &default_definition(&contract), "CONTRACT_LIMIT", "");
    assert!(found.message.contains("101 document actions"), "{}", found.message);
}

/// The run waits for the change, so that rules read the new content. The change is no drift.
#[test]
fn a_run_waits_until_its_own_change_is_written() {
    let compiled = compile(&correcting(), &patched(correct_before_fast_track())).unwrap();
    let mut run = Run::new(compiled, invoice());
    run.turn(&Input::Start);
    let decision = run.turn(&Input::Action { gate: "submit".to_owned() });
    let changes = |effect: &Effect| {
        matches!(effect, Effect::Mutate { await_result: true, may_change_document: true, .. })
    };
    assert!(decision.effects.iter().any(changes), "{:?}", decision.effects);
    let key = run.key("c");
    (run.version, run.material_version, run.own_version) = (2, 2, 2);
    run.document["total"] = json!(1);
    run.document["vendor_class"] = json!("trusted");
    run.turn(&Input::ActionResult { key, result: Value::Null });
    assert_eq!((run.state.status, run.state.lifecycle.as_str()), (Status::Completed, "active"));
    assert_eq!(run.state.cycle, 0);
}

/// An approval counts for the content that the person saw, so a later correction of the run takes its
/// credit away. The same holds for an exemption.
#[test]
fn approvals_and_exemptions_before_a_change_do_not_count() {
    let at = format!("/slots/{SLOT}");
    let late = json!({"nodes": [approval("a"), correct("c")], "edges": [edge("a", "c")]});
    let found = refused(&correcting(), &patched(late), "OBLIGATION_BROKEN", &at);
    assert!(found.message.contains("this path has 0"), "{}", found.message);
    let help = found.help;
    assert!(help.contains("after usr:submitted_to_approved:c, which changes"), "{help}");

    let exempt = json!({
        "nodes": [node("fast", "rule", json!({"rule": "fast_track"})), correct("c"), approval("a")],
        "edges": [labelled("fast", "a", "no"), labelled("fast", "c", "yes")],
        "exitEdgeMode": "join",
    });
    let found = refused(&correcting(), &patched(exempt), "OBLIGATION_BROKEN", &at);
    assert!(found.path.contains(&id("c")), "{:?}", found.path);

    let again = json!({
        "nodes": [approval("a"), correct("c"), approval("b")],
        "edges": [edge("a", "c"), edge("c", "b")],
    });
    compile(&correcting(), &patched(again)).unwrap();
}

/// The gate does not rest on the proof.
#[test]
fn a_change_of_the_run_voids_earlier_approvals() {
    let patch = json!({"nodes": [approval("a"), correct("c")], "edges": [edge("a", "c")]});
    let mut free = correcting();
    free.obligations.clear();
    let mut artefact = compile(&free, &patched(patch)).unwrap();
    artefact.obligations = contract().obligations;
    let mut run = Run::submitted(artefact, invoice());
    run.approve("a");
    let key = run.key("c");
    (run.version, run.material_version, run.own_version) = (2, 2, 2);
    run.turn(&Input::ActionResult { key, result: Value::Null });
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
}

/// A gate can need an action that itself changes the document.
#[test]
fn a_needed_change_counts_for_the_content_that_it_wrote() {
    let mut contract = correcting();
    contract.obligations = serde_json::from_value(json!([
        {"id": "checked", "gate": "approve", "needs": {"kind": "action", "actionType": CORRECT}},
    ]))
    .unwrap();
    let patch = json!({"nodes": [correct("c")]});
    let mut run = Run::submitted(compile(&contract, &patched(patch)).unwrap(), invoice());
    let key = run.key("c");
    (run.version, run.material_version, run.own_version) = (2, 2, 2);
    run.turn(&Input::ActionResult { key, result: Value::Null });
    assert_eq!(run.state.lifecycle, "active");
}

struct Refuse(&'static str);

impl Policy for Refuse {
    fn check(&self, action_type: &str, _: RunAs) -> Result<(), String> {
        if action_type == self.0 { Err("not allowed".to_owned()) } else { Ok(()) }
    }
}

/// A compensation runs when it is too late to ask, so the policy decides before the action.
#[test]
fn the_policy_decides_about_compensations_too() {
    let config = json!({
        "mutation": {"actionType": "stock.reserve"}, "compensate": {"actionType": "ledger.wipe"},
    });
    let patch =
        json!({"nodes": [node("x", "action", config), approval("a")], "edges": [edge("x", "a")]});
    let compiled = compile(&contract(), &patched(patch)).unwrap();
    for (refused, expect) in
        [("ledger.wipe", Status::Failed), ("stock.reserve", Status::Failed), ("", Status::Running)]
    {
        let mut run = Run::new(compiled.clone(), invoice());
        run.turn(&Input::Start);
        let submit = Input::Action { gate: "submit".to_owned() };
        let decision = run.turn_with(&submit, &Refuse(refused));
        assert_eq!(run.state.status, expect, "{refused}");
        let runs = decision.effects.iter().any(|effect| matches!(effect, Effect::Mutate { .. }));
        assert_eq!(runs, expect == Status::Running, "{refused}");
    }
}
