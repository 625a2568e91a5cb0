//! Contracts with a state behind the gate with the obligation, and edits at every time that the edit window
//! allows: no accepted contract becomes active with content that nobody has approved.

use serde_json::{Value, json};
use windlass_contracts::compile::compile;
use windlass_contracts::tokens::{Input, Status, StepRow, StepStatus, restart};
use windlass_contracts::types::{
    EditWindow, LifecycleContract, NodeType, OnDrift, OrgWorkflowDefinition,
};

use super::patches::Random;
use super::{cases, random_input};
use crate::support::{Run, amend_to_draft, contract, definition, invoice};

const WINDOWS: [&str; 3] = ["locked", "amend_only", "editable"];
const BEHIND: &str = "approved_to_released";

/// Changes a JSON value.
type Change = fn(&mut Value);

/// Invoices that are released after they were approved.
fn released() -> Value {
    let mut one = serde_json::to_value(contract()).unwrap();
    let states = one["states"].as_array_mut().unwrap();
    states.push(json!({"name": "approved", "editWindow": "locked"}));
    let gates = one["gates"].as_array_mut().unwrap();
    gates.push(json!({"name": "release", "editWindow": "locked", "trigger": "action"}));
    let transitions = one["transitions"].as_array_mut().unwrap();
    transitions[2]["to"] = json!("approved");
    transitions.push(json!({"from": "approved", "gate": "release", "to": "active"}));
    transitions.push(json!({"from": "approved", "gate": "cancel", "to": "cancelled"}));
    let slots = one["slots"].as_array_mut().unwrap();
    slots[2]["exit"] = json!("sys:state:approved");
    slots.push(json!({"slotId": BEHIND, "entry": "sys:state:approved",
                      "exit": "sys:gate:release", "defaultEditWindow": "locked"}));
    one["obligations"] = json!([
        {"id": "one", "gate": "approve", "needs": {"kind": "approvals", "count": 1}}]);
    one
}

fn compiled(
    one: &Value,
    slots: Value,
) -> Result<windlass_contracts::types::CompiledWorkflow, windlass_contracts::compile::Error> {
    let contract: LifecycleContract = serde_json::from_value(one.clone()).unwrap();
    let definition: OrgWorkflowDefinition = definition(slots);
    compile(&contract, &definition)
}

#[test]
fn a_window_that_forces_no_amendment_is_refused() {
    let check = |change: Change, pointer: &str| {
        let mut one = released();
        change(&mut one);
        let error = compiled(&one, json!({})).unwrap_err();
        let found = error.problems.iter().find(|problem| {
            problem.code.as_str() == "CONTRACT_LIFECYCLE"
                && problem.place.pointer.as_deref() == Some(pointer)
        });
        assert!(found.is_some_and(|one| !one.help.is_empty()), "{pointer} is not in {error}");
    };
    let good = |change: Change| {
        let mut one = released();
        change(&mut one);
        compiled(&one, json!({})).unwrap();
    };
    good(|_| {});
    // The states have the order of the contract, so the new one is the last.
    check(|c| c["states"][5]["editWindow"] = json!("amend_only"), "/states/5/editWindow");
    check(|c| c["states"][5]["editWindow"] = json!("editable"), "/states/5/editWindow");
    check(|c| c["gates"][3]["editWindow"] = json!("amend_only"), "/gates/3/editWindow");
    check(|c| c["gates"][3]["editWindow"] = json!("editable"), "/gates/3/editWindow");
    for window in ["amend_only", "editable"] {
        let mut one = released();
        one["slots"][4]["defaultEditWindow"] = json!(window);
        assert!(compiled(&one, json!({})).is_err(), "{window}");
    }
    // Before the gate, an edit voids the approvals; but `amend_only` promises an amendment.
    good(|c| {
        c["slots"][1] = json!({"slotId": "submitted_to_approved", "entry": "sys:state:submitted",
        "exit": "sys:gate:approve", "defaultEditWindow": "locked", "stableRegion": true})
    });
    check(|c| c["slots"][1]["stableRegion"] = json!(false), "/states/1/editWindow");
    check(|c| c["slots"][1]["stableRegion"] = json!(false), "/gates/1/editWindow");
    check(|c| c["slots"][1]["stableRegion"] = json!(false), "/slots/1/defaultEditWindow");
    check(|c| c["states"][0]["editWindow"] = json!("amend_only"), "/states/0/editWindow");
    check(|c| c["gates"][0]["editWindow"] = json!("amend_only"), "/gates/0/editWindow");
    // In a stable slot all of them are.
    good(|c| {
        c["states"][5]["editWindow"] = json!("amend_only");
        c["gates"][3]["editWindow"] = json!("amend_only");
        c["slots"][4]["defaultEditWindow"] = json!("amend_only");
        c["slots"][4]["stableRegion"] = json!(true);
    });
    // A final state is in no slot.
    check(|c| c["states"][2]["editWindow"] = json!("editable"), "/states/2/editWindow");
    check(|c| c["states"][2]["editWindow"] = json!("amend_only"), "/states/2/editWindow");
    // An amendment leads before the gate with the obligation.
    let mut one = released();
    one["states"].as_array_mut().unwrap().push(json!({"name": "reopened", "editWindow": "locked"}));
    let again = json!({"from": "reopened", "gate": "release", "to": "active"});
    one["transitions"].as_array_mut().unwrap().push(again);
    one["amended"] = json!("reopened");
    one["states"][1]["editWindow"] = json!("locked");
    one["gates"][1]["editWindow"] = json!("locked");
    one["slots"][1]["defaultEditWindow"] = json!("locked");
    one["slots"][1]["stableRegion"] = json!(false);
    one["slots"][4]["stableRegion"] = json!(true);
    let error = compiled(&one, json!({})).unwrap_err();
    assert!(error.to_string().contains("behind the gate \"approve\""), "{error}");
}

#[test]
fn a_patch_does_not_promise_an_amendment_either() {
    let slots = |window: &str| json!({BEHIND: {"nodes": [], "editWindowOverride": window}});
    assert!(compiled(&released(), slots("locked")).is_ok());
    let mut one = released();
    one["obligations"] = json!([]);
    one["slots"][0]["defaultEditWindow"] = json!("editable");
    let patch = json!({"draft_to_submit": {"nodes": [], "editWindowOverride": "amend_only"}});
    let error = compiled(&one, patch).unwrap_err();
    let found = &error.problems[0];
    assert_eq!(found.code.as_str(), "PATCH_EDIT_WINDOW", "{error}");
    let at = found.place.pointer.as_deref();
    assert_eq!(at, Some("/slots/draft_to_submit/editWindowOverride"), "{error}");
}

fn random_contract(random: &mut Random) -> Value {
    let mut one = released();
    let mut window = || json!(WINDOWS[random.below(3)]);
    one["states"][5]["editWindow"] = window();
    one["gates"][3]["editWindow"] = window();
    one["slots"][4]["defaultEditWindow"] = window();
    one["slots"][2]["defaultEditWindow"] = window();
    for slot in [2, 4] {
        one["slots"][slot]["stableRegion"] = json!(random.chance(60));
        one["slots"][slot]["onDrift"] = json!(["amend", "fail"][random.below(2)]);
    }
    if random.chance(30) {
        amend_to_draft(&mut one);
    }
    one
}

/// The version of the content that the document had when it entered its state.
fn state_version(run: &Run) -> u64 {
    let states = run.rows.values().filter(|row| row.node_type == NodeType::State);
    states.map(|row| row.version).next_back().unwrap_or(1)
}

fn is_unlocked(run: &Run) -> bool {
    run.state.edit_window(&run.artefact) != EditWindow::Locked
}

#[test]
fn edits_behind_a_gate_pass_it_again() {
    let (mut accepted, mut edits, mut actives) = (0_u32, 0_u32, 0_u32);
    for seed in 0..cases().max(400) {
        let mut random = Random(seed);
        let one = random_contract(&mut random);
        let wait = json!({"id": format!("usr:{BEHIND}:wait"), "type": "wait_event",
                          "config": {"eventKey": "go:{entity.id}"}});
        let Ok(artefact) = compiled(&one, json!({BEHIND: {"nodes": [wait]}})) else { continue };
        accepted += 1;
        let mut run = Run::submitted(artefact, invoice());
        // The content that the gate has seen.
        let mut passed = 0;
        for _ in 0..60 {
            if run.state.status == Status::Completed {
                break;
            }
            if is_unlocked(&run) && random.chance(25) {
                run.version += 1;
                run.material_version = run.version;
                edits += 1;
                if random.chance(50) {
                    run.turn(&Input::DocumentChanged);
                }
            } else if run.state.status == Status::Failed || random.chance(15) {
                let drifted = run.material_version > state_version(&run);
                let input = restart(&run.artefact, &run.state.lifecycle, drifted);
                run.state = Default::default();
                run.rows.clear();
                run.turn(&input);
            } else {
                let open = run.state.open.values();
                let waiting: Vec<_> =
                    open.filter(|row| row.status == StepStatus::Waiting).cloned().collect();
                let row = waiting[random.below(waiting.len())].clone();
                let input = random_input(&mut run, &row, &mut random);
                run.turn(&input);
            }
            let drifts = |row: &StepRow| row.output["error"]["code"] == "WORKFLOW_VERSION_DRIFT";
            if run.artefact.on_drift.values().all(|one| *one == OnDrift::Amend) {
                let failed = run.rows.values().find(|row| drifts(row));
                assert!(failed.is_none(), "seed {seed}: a slot that amends fails: {failed:?}");
            }
            let gate = run.rows.values().filter(|row| row.node == "sys:gate:approve");
            let forward = gate.filter(|row| row.done.is_some() && row.outcome.is_none());
            passed = forward.map(|row| row.version).fold(passed, u64::max);
            if run.state.lifecycle == "active" {
                actives += 1;
                assert!(
                    passed >= run.material_version,
                    "seed {seed}: active with version {}, approved was {passed}: {one:#}",
                    run.material_version
                );
            }
        }
    }
    println!("{accepted} contracts, {edits} edits, {actives} times active");
    assert!(accepted > 40 && edits > 100 && actives > 20, "{accepted} {edits} {actives}");
}
