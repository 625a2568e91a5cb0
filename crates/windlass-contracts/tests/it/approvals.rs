//! Approvals at gates: quorums, losing branches, waivers, different people.

use serde_json::{Value, json};
use windlass_contracts::compile::compile;
use windlass_contracts::tokens::{Input, Status, StepStatus, Verdict};
use windlass_contracts::types::{CompiledWorkflow, LifecycleContract};

use crate::support::{
    Run, SLOT, approval, contract, definition, edge, free_contract, id, invoice, labelled, node,
    patched, refused, vote,
};

use Verdict::{Abstained, Approved, Rejected};

fn compiled(contract: &LifecycleContract, nodes: Value, edges: Value) -> CompiledWorkflow {
    let patch = json!({"nodes": nodes, "edges": edges, "exitEdgeMode": "join"});
    compile(contract, &patched(patch)).unwrap()
}

/// A workflow that the compiler would refuse, so that only the gate itself can stop the run.
fn unproven(nodes: Value, edges: Value) -> CompiledWorkflow {
    let mut artefact = compiled(&free_contract(), nodes, edges);
    artefact.obligations = contract().obligations;
    artefact.rules.clone_from(&contract().rules);
    artefact
}

fn needing(count: u32) -> LifecycleContract {
    let mut contract = contract();
    contract.obligations = serde_json::from_value(json!([
        {"id": "people", "gate": "approve", "needs": {"kind": "approvals", "count": count}},
    ]))
    .unwrap();
    contract
}

fn with_quorum(quorum: Value) -> Value {
    let mut node = approval("a");
    node["config"]["quorum"] = quorum;
    node
}

#[test]
fn the_quorum_is_counted() {
    let node = with_quorum(json!({"kind": "count", "count": 2}));
    let mut run = Run::submitted(compiled(&contract(), json!([node]), json!([])), invoice());
    let key = run.key("a");
    let ask = |votes: &[(&str, Verdict)]| {
        let mut input = vote(key.clone(), votes);
        if let Input::Approval { asked, .. } = &mut input {
            asked.extend(["anna", "bob", "kim"].map(str::to_owned));
        }
        input
    };
    let decision = run.turn(&ask(&[("anna", Approved)]));
    assert_eq!(run.state.lifecycle, "submitted", "one approval is not a quorum of two");
    let row = decision.steps.iter().find(|row| row.key == key).unwrap();
    assert_eq!((&row.output["granted"], &row.output["needed"]), (&json!(1), &json!(2)));
    // The same decision again does not count twice.
    let decision = run.turn(&ask(&[("anna", Approved)]));
    assert_eq!(decision.ignored.as_deref(), Some("the quorum is not reached: 1 of 2"));
    run.turn(&ask(&[("anna", Approved), ("bob", Abstained)]));
    assert_eq!(run.state.lifecycle, "submitted");
    run.turn(&ask(&[("anna", Approved), ("bob", Abstained), ("kim", Approved)]));
    assert_eq!(run.state.lifecycle, "active");
    let row = run.rows.values().find(|row| row.key == key).unwrap();
    assert_eq!(row.output["by"], json!(["anna", "kim"]));
    assert_eq!(row.applied, Some(true));
}

#[test]
fn people_who_are_not_asked_do_not_count() {
    let mut run =
        Run::submitted(compiled(&contract(), json!([approval("a")]), json!([])), invoice());
    let key = run.key("a");
    let stranger = |asked: &[&str]| Input::Approval {
        key: key.clone(),
        asked: asked.iter().map(|person| (*person).to_owned()).collect(),
        decisions: [("mallory".to_owned(), Approved)].into(),
        givers: [].into(),
    };
    run.turn(&stranger(&["anna"]));
    assert_eq!(run.state.lifecycle, "submitted");
    let decision = run.turn(&stranger(&[]));
    assert_eq!(decision.ignored.as_deref(), Some("nobody is asked"));
    assert_eq!(run.state.lifecycle, "submitted");
}

#[test]
fn a_quorum_that_cannot_be_reached_is_a_rejection() {
    let mut run =
        Run::submitted(compiled(&contract(), json!([approval("a")]), json!([])), invoice());
    let key = run.key("a");
    run.turn(&vote(key, &[("anna", Abstained), ("bob", Abstained)]));
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
}

/// One branch is approved and then waits, the other one wins.
fn race(first: &Value, edges: &[Value]) -> (Value, Value) {
    let nodes = json!([
        node("split", "parallel_split", json!({})),
        first,
        node("w", "wait_event", json!({"eventKey": "k"})),
        node("t", "wait_timer", json!({"for": "1 hour"})),
        node("join", "parallel_join", json!({"mode": "any"})),
    ]);
    let mut all = vec![
        edge("split", "a"),
        edge("w", "join"),
        edge("split", "t"),
        edge("t", "join"),
        edge("join", "out"),
    ];
    all.extend(edges.iter().cloned());
    (nodes, json!(all))
}

fn fire_timer(run: &mut Run) {
    run.now = run.now.checked_add(jiff::SignedDuration::from_hours(1)).unwrap();
    let key = run.key("t");
    run.turn(&Input::Timer { key });
}

#[test]
fn an_approval_of_a_losing_branch_does_not_count() {
    let (nodes, edges) = race(&approval("a"), &[edge("a", "w")]);
    // The compiler refuses it already.
    let patch = json!({"nodes": nodes, "edges": edges});
    refused(&contract(), &patched(patch), "OBLIGATION_BROKEN", &format!("/slots/{SLOT}"));
    let mut run = Run::submitted(unproven(nodes, edges), invoice());
    run.approve("a");
    fire_timer(&mut run);
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
    let row = run.rows.values().find(|row| row.node == id("a")).unwrap();
    assert!(row.lost && row.applied == Some(false), "{row:?}");
    let gate = run.rows.values().find(|row| row.node == "sys:gate:approve").unwrap();
    assert_eq!(gate.output["missing"], json!("four_eyes"));
}

#[test]
fn an_approval_of_the_winning_branch_counts() {
    let (mut nodes, edges) = race(&approval("a"), &[edge("a", "w")]);
    nodes[3] = approval("t");
    let mut run = Run::submitted(compiled(&contract(), nodes, edges), invoice());
    run.approve("a");
    run.approve("t");
    assert_eq!(run.state.lifecycle, "active");
    let applied = |name: &str| run.rows.values().find(|row| row.node == id(name)).unwrap().applied;
    assert_eq!((applied("a"), applied("t")), (Some(false), Some(true)));
}

#[test]
fn a_rule_of_a_losing_branch_is_no_exemption() {
    let rule = node("a", "rule", json!({"rule": "fast_track"}));
    let ways = [labelled("a", "w", "yes"), labelled("a", "join", "no")];
    let (nodes, edges) = race(&rule, &ways);
    let mut document = invoice();
    document["total"] = json!(1);
    document["vendor_class"] = json!("trusted");
    let mut run = Run::submitted(unproven(nodes, edges), document);
    let lane = run.rows.values().find(|row| row.node == id("a")).unwrap();
    assert_eq!(lane.outcome.as_deref(), Some("yes"));
    fire_timer(&mut run);
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
}

#[test]
fn a_rule_of_another_slot_is_no_exemption() {
    let lane = |name: &str| format!("usr:draft_to_submit:{name}");
    let patch = json!({
        "nodes": [
            {"id": lane("r"), "type": "rule", "config": {"rule": "fast_track"}},
            {"id": lane("t"), "type": "condition"},
        ],
        "edges": [
            {"id": "y", "source": lane("r"), "target": lane("t"), "label": "yes"},
            {"id": "n", "source": lane("r"), "target": lane("t"), "label": "no"},
            {"id": "o", "source": lane("t"), "target": "sys:slot:draft_to_submit:out"},
        ],
    });
    let both = definition(json!({"draft_to_submit": patch, SLOT: {}}));
    let mut artefact = compile(&free_contract(), &both).unwrap();
    artefact.obligations = contract().obligations;
    let mut document = invoice();
    document["total"] = json!(1);
    document["vendor_class"] = json!("trusted");
    let run = Run::submitted(artefact, document);
    let lane = run.rows.values().find(|row| row.node == lane("r")).unwrap();
    assert_eq!(lane.outcome.as_deref(), Some("yes"));
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
}

#[test]
fn two_approvals_need_two_people() {
    let nodes = json!([approval("a"), approval("b")]);
    let artefact = compiled(&needing(2), nodes.clone(), json!([edge("a", "b")]));
    let mut run = Run::submitted(artefact, invoice());
    let key = run.key("a");
    run.turn(&vote(key, &[("anna", Approved)]));
    let key = run.key("b");
    let decision = run.turn(&vote(key.clone(), &[("anna", Approved)]));
    assert!(decision.ignored.unwrap().contains("different people"));
    assert_eq!(run.state.lifecycle, "submitted");
    run.turn(&vote(key, &[("anna", Approved), ("bob", Approved)]));
    assert_eq!(run.state.lifecycle, "active");
    let second = run.rows.values().find(|row| row.node == id("b")).unwrap();
    assert_eq!(second.output["by"], json!(["bob"]));
    // A rejection by the same person is a rejection.
    let artefact = compiled(&needing(2), nodes, json!([edge("a", "b")]));
    let mut run = Run::submitted(artefact, invoice());
    let key = run.key("a");
    run.turn(&vote(key, &[("anna", Approved)]));
    let key = run.key("b");
    run.turn(&vote(key, &[("anna", Rejected), ("bob", Approved)]));
    assert_eq!(run.state.lifecycle, "draft");
}

#[test]
fn one_person_may_approve_two_steps_if_the_gate_needs_one() {
    let nodes = json!([approval("a"), approval("b")]);
    let artefact = compiled(&contract(), nodes, json!([edge("a", "b")]));
    let mut run = Run::submitted(artefact, invoice());
    for name in ["a", "b"] {
        let key = run.key(name);
        run.turn(&vote(key, &[("anna", Approved)]));
    }
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn a_quorum_of_two_is_two_approvals() {
    let two = with_quorum(json!({"kind": "count", "count": 2}));
    let mut run = Run::submitted(compiled(&needing(2), json!([two]), json!([])), invoice());
    let key = run.key("a");
    run.turn(&vote(key, &[("anna", Approved), ("bob", Approved)]));
    assert_eq!(run.state.lifecycle, "active");
    let all = with_quorum(json!({"kind": "all"}));
    let patch = patched(json!({"nodes": [all]}));
    refused(&needing(2), &patch, "OBLIGATION_BROKEN", &format!("/slots/{SLOT}"));
}

/// Two branches fail; the retry of the first one fires the join and cancels the second one.
#[test]
fn a_retry_does_not_revive_a_cancelled_branch() {
    let accept = "context.checked == true || entity.total > 5";
    let undo =
        json!({"mutation": {"actionType": "a.b", "payloadTemplate": {"x": "entity.total > 1"}}});
    let nodes = json!([
        node("split", "parallel_split", json!({})),
        node(
            "a1",
            "notification",
            json!({
                "channel": "email", "to": {"strategy": "role", "role": "x"}, "subject": "s",
            })
        ),
        node("act", "action", undo),
        node("join", "parallel_join", json!({"mode": "any", "accept": accept})),
        approval("late"),
    ]);
    let edges = json!([
        edge("split", "a1"),
        edge("split", "act"),
        edge("a1", "join"),
        edge("act", "join"),
        edge("join", "out"),
        labelled("join", "late", "exhausted"),
    ]);
    let mut document = invoice();
    document["total"] = json!("many");
    let mut run = Run::submitted(compiled(&free_contract(), nodes, edges), document);
    assert_eq!(run.state.status, Status::Failed);
    let failed = run.rows.values().filter(|row| row.status == StepStatus::Failed);
    assert_eq!(failed.count(), 2, "{:?}", run.state.tokens());
    run.document = invoice();
    let decision = run.turn(&Input::Retry);
    assert_eq!(run.state.lifecycle, "active");
    let posted = decision.effects.iter().filter(|one| format!("{one:?}").contains("a.b"));
    assert_eq!(posted.count(), 0, "the branch lost");
    let passed = run.rows.values().filter(|row| row.node == "sys:gate:approve");
    assert_eq!(passed.count(), 1);
}

/// A contract whose gate needs the action `credit.check`.
fn checking() -> LifecycleContract {
    let mut contract = contract();
    contract.obligations = serde_json::from_value(json!([
        {"id": "credit", "gate": "approve",
         "needs": {"kind": "action", "actionType": "credit.check"}},
    ]))
    .unwrap();
    contract
}

fn check_credit(name: &str) -> Value {
    let config = json!({"mutation": {"actionType": "credit.check"}, "writes": {"checked": "ok"}});
    node(name, "action", config)
}

/// The gate looks for the action itself, so that an artefact without a proof does not pass.
#[test]
fn a_gate_needs_its_action_to_be_done() {
    let mut artefact = compiled(&free_contract(), json!([approval("a")]), json!([]));
    artefact.obligations = checking().obligations;
    let mut run = Run::submitted(artefact, invoice());
    run.approve("a");
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));

    let artefact = compiled(&checking(), json!([check_credit("c")]), json!([]));
    let mut run = Run::submitted(artefact, invoice());
    let key = run.key("c");
    run.turn(&Input::ActionResult { key, result: json!({"ok": true}) });
    assert_eq!((run.state.status, run.state.lifecycle.as_str()), (Status::Completed, "active"));
}

/// A check of the content of before says nothing about the new content.
#[test]
fn an_action_before_a_change_of_the_document_does_not_count() {
    use windlass_contracts::types::EditWindow::Editable;
    let nodes = json!([check_credit("c"), approval("a")]);
    let mut contract = checking();
    // Without a stable region a change is no drift, and the run goes on to the gate.
    contract.amended = None;
    contract.states.retain(|state| state.name != "amended");
    contract.transitions.retain(|transition| transition.from != "amended");
    contract.slots.retain(|slot| slot.slot_id != "amendment_cycle");
    contract.slots.iter_mut().for_each(|slot| slot.stable_region = false);
    (contract.states[1].edit_window, contract.gates[1].edit_window) = (Editable, Editable);
    contract.slots[1].default_edit_window = Editable;
    contract.defaults.remove("amendment_cycle");
    let mut run = Run::submitted(compiled(&contract, nodes, json!([edge("c", "a")])), invoice());
    let key = run.key("c");
    run.turn(&Input::ActionResult { key, result: json!({"ok": true}) });
    (run.version, run.material_version) = (2, 2);
    run.turn(&Input::DocumentChanged);
    run.approve("a");
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
}

#[test]
fn an_action_of_a_losing_branch_does_not_count() {
    let (nodes, edges) = race(&check_credit("a"), &[edge("a", "w")]);
    let mut artefact = compiled(&free_contract(), nodes, edges);
    artefact.obligations = checking().obligations;
    let mut run = Run::submitted(artefact, invoice());
    let key = run.key("a");
    run.turn(&Input::ActionResult { key, result: json!({"ok": true}) });
    fire_timer(&mut run);
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
}
