//! The token engine: gates, joins, drift, waits, retries. `Run` compares each state with its rebuild.

use serde_json::{Value, json};
use windlass_contracts::compile::compile;
use windlass_contracts::tokens::{Effect, Input, Policy, Status, StepStatus, Verdict};
use windlass_contracts::types::{CompiledWorkflow, RunAs};

use crate::support::{
    Run, approval, contract, edge, free_contract, id, invoice, labelled, node, patched, template,
    vote,
};

fn compiled(nodes: Value, edges: Value) -> CompiledWorkflow {
    let patch = json!({"nodes": nodes, "edges": edges, "exitEdgeMode": "join"});
    compile(&free_contract(), &patched(patch)).unwrap()
}

fn region(mode: Value, nodes: &[Value], extra: &[Value]) -> CompiledWorkflow {
    let mut all =
        vec![node("split", "parallel_split", json!({})), node("join", "parallel_join", mode)];
    let mut edges = Vec::new();
    for one in nodes {
        let name = one["id"].as_str().unwrap().rsplit(':').next().unwrap();
        edges.extend([edge("split", name), edge(name, "join")]);
        all.push(one.clone());
    }
    edges.extend(extra.iter().cloned());
    compiled(json!(all), json!(edges))
}

fn large() -> Value {
    let mut document = invoice();
    document["total"] = json!(2_000_000);
    document
}

fn invoice_run(document: Value) -> Run {
    let template = template("invoice_approval");
    Run::submitted(compile(&template.contract, &template.definition).unwrap(), document)
}

#[test]
fn a_gate_consumes_the_approvals_that_lead_to_it() {
    let mut run = invoice_run(large());
    assert_eq!(run.state.lifecycle, "submitted");
    assert_eq!(run.state.edit_window(&run.artefact).as_str(), "amend_only");
    run.approve("finance");
    assert_eq!(run.state.status, Status::Running);
    let decision = run.approve("budget");
    assert_eq!((run.state.lifecycle.as_str(), run.state.status), ("active", Status::Completed));
    let applied = decision.effects.iter().find_map(|effect| match effect {
        Effect::ApplyApprovals { keys } => Some(keys.len()),
        _ => None,
    });
    assert_eq!(applied, Some(2));
    let posted = decision.effects.iter().any(|effect| {
        matches!(effect, Effect::Mutate { action_type, payload, run_as: RunAs::System, .. }
            if action_type == "ledger.post" && payload["amount"] == json!(2_000_000))
    });
    assert!(posted);
    assert_eq!(run.state.edit_window(&run.artefact).as_str(), "locked");
}

#[test]
fn branch_nodes_and_gates_record_their_edges() {
    let mut run = invoice_run(invoice());
    run.approve("manager");
    for row in run.rows.values() {
        assert!(row.chosen_edge_ids.is_some(), "{} has no chosen edges", row.key);
    }
    let size = run.rows.values().find(|row| row.node == id("size")).unwrap();
    assert_eq!(size.chosen_edge_ids.as_deref(), Some(&["small".to_owned()][..]));
    let evidence = &size.output["conditions"][0];
    assert_eq!(evidence["expression"], json!("entity.total > 1000000"));
    assert_eq!(evidence["variables"]["entity.total"], json!(90_000));
    assert_eq!(evidence["result"], json!(false));
}

#[test]
fn a_rejection_starts_a_new_cycle_and_the_slot_runs_again() {
    let mut run = invoice_run(large());
    let decision = run.decide("finance", Verdict::Rejected);
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("draft", 1));
    assert_eq!(run.statuses("budget"), [StepStatus::Cancelled]);
    assert!(decision.effects.iter().any(|effect| matches!(effect, Effect::Withdraw { .. })));
    // The same version is submitted again: the keys differ by the cycle.
    run.turn(&Input::Action { gate: "submit".to_owned() });
    run.approve("finance");
    run.approve("budget");
    assert_eq!(run.state.lifecycle, "active");
    assert_eq!(run.statuses("budget"), [StepStatus::Cancelled, StepStatus::Completed]);
}

#[test]
fn drift_voids_approvals_and_leads_to_the_amended_state() {
    let mut run = invoice_run(large());
    run.approve("finance");
    let late = run.key("budget");
    (run.version, run.material_version) = (2, 2);
    let decision = run.turn(&vote(late, &[("bob", Verdict::Approved)]));
    assert!(decision.ignored.unwrap().contains("document changed"));
    assert_eq!((run.state.lifecycle.as_str(), run.state.cycle), ("amended", 1));
    run.turn(&Input::Action { gate: "submit".to_owned() });
    run.approve("budget");
    assert_eq!(run.state.lifecycle, "submitted", "the approval of version 1 must not count");
    run.approve("finance");
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn an_immaterial_change_is_no_drift() {
    let mut run = invoice_run(large());
    run.approve("finance");
    run.version = 2;
    run.turn(&Input::DocumentChanged);
    run.approve("budget");
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn drift_can_fail_the_run() {
    let mut contract = contract();
    contract.amended = None;
    contract.states.retain(|state| state.name != "amended");
    contract.transitions.retain(|transition| transition.from != "amended");
    contract.slots.retain(|slot| slot.slot_id != "amendment_cycle");
    for slot in &mut contract.slots {
        slot.on_drift = windlass_contracts::types::OnDrift::Fail;
    }
    let template = template("invoice_approval");
    let mut run = Run::submitted(compile(&contract, &template.definition).unwrap(), large());
    (run.version, run.material_version) = (2, 2);
    run.turn(&Input::DocumentChanged);
    assert_eq!(run.state.status, Status::Failed);
    let row = run.rows.values().find(|row| row.status == StepStatus::Failed).unwrap();
    assert_eq!(row.output["error"]["code"], json!("WORKFLOW_VERSION_DRIFT"));
    let decision = run.turn(&Input::Retry);
    assert!(decision.ignored.is_some() && decision.steps.is_empty());
    run.turn(&Input::Action { gate: "cancel".to_owned() });
    assert_eq!((run.state.lifecycle.as_str(), run.state.status), ("cancelled", Status::Completed));
}

#[test]
fn cancel_works_in_the_states_that_allow_it() {
    let mut run = invoice_run(large());
    let decision = run.turn(&Input::Action { gate: "cancel".to_owned() });
    assert_eq!((run.state.lifecycle.as_str(), run.state.status), ("cancelled", Status::Completed));
    let withdrawn = decision.effects.iter().filter(|one| matches!(one, Effect::Withdraw { .. }));
    assert_eq!(withdrawn.count(), 2);
    let decision = run.turn(&Input::Action { gate: "submit".to_owned() });
    assert_eq!(decision.ignored.as_deref(), Some("the run is complete"));
}

#[test]
fn an_all_join_fires_once_in_every_order() {
    let names = ["a", "b", "c"];
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let nodes: Vec<Value> = names.iter().map(|name| approval(name)).collect();
        let mut run = Run::submitted(region(json!({"mode": "all"}), &nodes, &[]), invoice());
        for index in order {
            assert_eq!(run.state.lifecycle, "submitted");
            run.approve(names[index]);
        }
        assert_eq!(run.state.lifecycle, "active");
        let fired = run.rows.values().filter(|row| row.node == id("join") && row.outcome.is_some());
        assert_eq!(fired.count(), 1);
    }
}

#[test]
fn an_any_join_cancels_its_losers() {
    let nodes = [approval("a"), approval("b"), node("c", "wait_timer", json!({"for": "1 day"}))];
    let mut run = Run::submitted(region(json!({"mode": "any"}), &nodes, &[]), invoice());
    let late = run.key("b");
    let decision = run.approve("a");
    assert_eq!(run.state.lifecycle, "active");
    assert_eq!(run.statuses("b"), [StepStatus::Cancelled]);
    assert_eq!(run.statuses("c"), [StepStatus::Cancelled]);
    let withdrawn = decision.effects.iter().filter(|one| matches!(one, Effect::Withdraw { .. }));
    assert_eq!(withdrawn.count(), 2);
    let decision = run.turn(&vote(late, &[("bob", Verdict::Approved)]));
    assert!(decision.ignored.is_some() && decision.steps.is_empty() && decision.effects.is_empty());
}

/// Use case B: a notification arrives first and must not win.
fn fulfilment() -> CompiledWorkflow {
    let reserve = json!({
        "mutation": {"actionType": "stock.reserve", "payloadTemplate": {"order": "entity.id"}},
        "writes": {"reserved": "ok"},
    });
    let notify = json!({
        "channel": "in_app", "to": {"strategy": "role", "role": "warehouse"},
        "subject": "Order {entity.id}",
    });
    let check = json!({"eventKey": "credit:{entity.id}", "writes": {"checked": "ok"}});
    let accept = "context.reserved == true || context.checked == true";
    let nodes = json!([
        node("split", "parallel_split", json!({})),
        node("reserve", "action", reserve),
        node("notify", "notification", notify),
        node("credit", "wait_event", check),
        node("join", "parallel_join", json!({"mode": "any", "accept": accept})),
        node("pay", "wait_event", json!({"eventKey": "paid:{entity.id}"})),
    ]);
    let edges = json!([
        edge("split", "reserve"),
        edge("split", "notify"),
        edge("split", "credit"),
        edge("reserve", "join"),
        edge("notify", "join"),
        edge("credit", "join"),
        edge("join", "out"),
        labelled("join", "pay", "exhausted"),
    ]);
    compiled(nodes, edges)
}

#[test]
fn a_branch_wins_an_any_join_only_if_it_is_accepted() {
    let mut run = Run::submitted(fulfilment(), invoice());
    assert_eq!(run.state.lifecycle, "submitted", "the notification must not win");
    let key = run.key("reserve");
    let decision = run.turn(&Input::ActionResult { key, result: json!({"ok": true}) });
    assert_eq!(run.state.lifecycle, "active");
    assert!(decision.effects.iter().any(|effect| matches!(effect, Effect::Withdraw { .. })));
    assert_eq!(run.statuses("credit"), [StepStatus::Cancelled]);
}

#[test]
fn an_any_join_that_accepts_nobody_is_exhausted() {
    let mut run = Run::submitted(fulfilment(), invoice());
    let key = run.key("reserve");
    run.turn(&Input::ActionResult { key, result: json!({"ok": false}) });
    assert_eq!(run.state.context["reserved"], json!(false));
    let key = run.key("credit");
    run.turn(&Input::Event { key, payload: json!({"ok": false}) });
    let fired = run.rows.values().find(|row| row.node == id("join") && row.outcome.is_some());
    assert_eq!(fired.unwrap().outcome.as_deref(), Some("exhausted"));
    let key = run.key("pay");
    run.turn(&Input::Event { key, payload: Value::Null });
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn actions_of_losing_branches_are_undone() {
    let reserve = json!({
        "mutation": {"actionType": "stock.reserve"},
        "compensate": {"actionType": "stock.release", "payloadTemplate": {"order": "entity.id"}},
    });
    let nodes = json!([
        node("split", "parallel_split", json!({})),
        node("reserve", "action", reserve),
        approval("a"),
        approval("b"),
        node("join", "parallel_join", json!({"mode": "any"})),
    ]);
    let edges = json!([
        edge("split", "reserve"),
        edge("reserve", "a"),
        edge("a", "join"),
        edge("split", "b"),
        edge("b", "join"),
    ]);
    let undone = |winner: &str| {
        let mut run = Run::submitted(compiled(nodes.clone(), edges.clone()), invoice());
        let decision = run.approve(winner);
        assert_eq!(run.state.lifecycle, "active");
        let undo = |one: &Effect| matches!(one, Effect::Mutate { compensates: Some(_), .. });
        decision.effects.iter().filter(|one| undo(one)).count()
    };
    assert_eq!(undone("b"), 1);
    assert_eq!(undone("a"), 0);
}

#[test]
fn regions_nest_and_follow_each_other() {
    let split = |name: &str| node(name, "parallel_split", json!({}));
    let join = |name: &str, mode: &str| node(name, "parallel_join", json!({"mode": mode}));
    let nodes = json!([
        split("s1"),
        split("s2"),
        approval("a"),
        approval("b"),
        approval("c"),
        join("j2", "any"),
        join("j1", "all"),
        split("s3"),
        approval("d"),
        approval("e"),
        join("j3", "all"),
    ]);
    let edges = json!([
        edge("s1", "a"),
        edge("s1", "s2"),
        edge("s2", "b"),
        edge("s2", "c"),
        edge("b", "j2"),
        edge("c", "j2"),
        edge("j2", "j1"),
        edge("a", "j1"),
        edge("j1", "s3"),
        edge("s3", "d"),
        edge("s3", "e"),
        edge("d", "j3"),
        edge("e", "j3"),
    ]);
    let mut run = Run::submitted(compiled(nodes, edges), invoice());
    assert_eq!(run.state.tokens().len(), 3);
    run.approve("c");
    assert_eq!(run.statuses("b"), [StepStatus::Cancelled]);
    run.approve("a");
    run.approve("e");
    run.approve("d");
    assert_eq!(run.state.lifecycle, "active");
    let token = run.rows.values().find(|row| row.node == id("j3") && row.outcome.is_some());
    assert_eq!(token.unwrap().token, "0");
}

#[test]
fn a_condition_without_a_match_fails_and_can_be_retried() {
    let mut first = edge("c", "a");
    first["condition"] = json!("entity.total > 1000000");
    let artefact =
        compiled(json!([node("c", "condition", json!({})), approval("a")]), json!([first]));
    let mut run = Run::submitted(artefact, invoice());
    assert_eq!(run.state.status, Status::Failed);
    let row = run.rows.values().find(|row| row.node == id("c")).unwrap();
    assert_eq!(row.output["error"]["code"], json!("WORKFLOW_NO_EDGE"));
    assert_eq!(row.chosen_edge_ids.as_deref(), Some(&[][..]));
    run.document = large();
    run.turn(&Input::Retry);
    assert_eq!(run.state.status, Status::Running);
    assert_eq!(run.rows.values().find(|row| row.node == id("c")).unwrap().attempts, 2);
    run.approve("a");
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn the_policy_stands_before_every_action() {
    struct Deny;
    impl Policy for Deny {
        fn check(&self, action_type: &str, _: RunAs) -> Result<(), String> {
            Err(format!("{action_type} is closed"))
        }
    }
    let mut run = invoice_run(invoice());
    let key = run.key("manager");
    let input = vote(key, &[("bob", Verdict::Approved)]);
    let decision = run.turn_with(&input, &Deny);
    assert!(!decision.effects.iter().any(|effect| matches!(effect, Effect::Mutate { .. })));
    assert_eq!(run.state.status, Status::Failed);
    let row = run.rows.values().find(|row| row.status == StepStatus::Failed).unwrap();
    assert_eq!(row.output["error"]["code"], json!("WORKFLOW_POLICY_DENIED"));
    run.turn(&Input::Retry);
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn timers_are_never_early() {
    let timer = node("t", "wait_timer", json!({"cron": "0 0 1 * *"}));
    let mut run = Run::submitted(compiled(json!([timer]), json!([])), invoice());
    let key = run.key("t");
    let decision = run.turn(&Input::Timer { key: key.clone() });
    assert_eq!(decision.ignored.as_deref(), Some("the step is not due yet"));
    let due = run.state.waiting(&key).unwrap().resume_at.unwrap();
    run.now = jiff::Timestamp::from_microsecond(due).unwrap();
    assert!(run.now.to_string().contains("-01T00:00:00Z"), "{}", run.now);
    run.turn(&Input::Timer { key });
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn an_event_or_its_timeout_continues_the_run() {
    let wait = node(
        "w",
        "wait_event",
        json!({"eventKey": "pod:{entity.id}", "timeout": "72 hours", "writes": {"signed_by": "by.name"}}),
    );
    let nodes = json!([wait, approval("late")]);
    let edges = json!([edge("w", "out"), labelled("w", "late", "timeout")]);
    let mut run = Run::submitted(compiled(nodes.clone(), edges.clone()), invoice());
    let key = run.key("w");
    assert_eq!(run.state.waiting(&key).unwrap().waiting_for_event_key.as_deref(), Some("pod:i-1"));
    run.turn(&Input::Event { key, payload: json!({"by": {"name": "Kim"}}) });
    assert_eq!(run.state.lifecycle, "active");

    let mut run = Run::submitted(compiled(nodes, edges), invoice());
    let key = run.key("w");
    run.now = run.now.checked_add(jiff::SignedDuration::from_hours(72)).unwrap();
    run.turn(&Input::Timer { key });
    run.approve("late");
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn values_of_a_document_never_become_syntax() {
    let wait = node("w", "wait_event", json!({"eventKey": "pod:{entity.id}"}));
    let mut first = edge("c", "w");
    first["condition"] = json!("entity.currency == 'EUR'");
    let mut second = edge("c", "out");
    second["priority"] = json!(1);
    let artefact =
        compiled(json!([node("c", "condition", json!({})), wait]), json!([first, second]));
    let attack = "' || true || '";
    let mut document = invoice();
    document["currency"] = json!(attack);
    let run = Run::submitted(artefact.clone(), document);
    assert_eq!(run.state.lifecycle, "active", "the condition must be false");
    let row = run.rows.values().find(|row| row.node == id("c")).unwrap();
    assert_eq!(row.output["conditions"][0]["variables"]["entity.currency"], json!(attack));
    let mut document = invoice();
    document["id"] = json!("{entity.currency}:x");
    let run = Run::submitted(artefact, document);
    let key = run.state.waiting(&run.key("w")).unwrap().waiting_for_event_key.clone().unwrap();
    assert!(!key.contains("EUR") && !key[4..].contains(':'), "{key}");
}

#[test]
fn approval_requests_escalate_and_time_out() {
    let mut ask = approval("a");
    let to = json!({"strategy": "role", "role": "cfo"});
    ask["config"]["due"] = json!({"after": "3 days", "then": {"escalate": to}});
    let mut run = Run::submitted(compiled(json!([ask]), json!([])), invoice());
    let key = run.key("a");
    run.now = run.now.checked_add(jiff::SignedDuration::from_hours(72)).unwrap();
    let decision = run.turn(&Input::Timer { key });
    assert!(decision.effects.iter().any(|effect| matches!(effect, Effect::Escalate { .. })));
    run.approve("a");
    assert_eq!(run.state.lifecycle, "active");
}

#[test]
fn inputs_that_do_not_fit_change_nothing() {
    let mut run = invoice_run(large());
    let before = run.state.clone();
    let key = run.key("finance");
    for input in [
        Input::Start,
        Input::Action { gate: "submit".to_owned() },
        Input::Action { gate: "nowhere".to_owned() },
        Input::Timer { key: key.clone() },
        Input::Event { key: key.clone(), payload: Value::Null },
        Input::ActionResult { key: key.clone(), result: Value::Null },
        Input::Delivered { key },
        Input::Event { key: "x".to_owned(), payload: Value::Null },
        Input::Retry,
    ] {
        let decision = run.turn(&input);
        assert!(decision.ignored.is_some(), "{input:?}");
        assert!(decision.steps.is_empty() && decision.effects.is_empty(), "{input:?}");
        assert_eq!(run.state, before, "{input:?}");
    }
}
