//! Contracts and patches that try to get round a gate, and inputs that try to break the compiler.

use serde_json::{Value, json};
use windlass_contracts::compile::{
    OBLIGATIONS_MAX, TABLES_MAX, compile, default_definition, load, read_contract, read_definition,
};
use windlass_contracts::types::{CompiledWorkflow, LifecycleContract};

use crate::support::{
    SLOT, approval, contract, definition, edge, free_contract, id, node, patched, refused,
};

fn changed(change: impl FnOnce(&mut Value)) -> LifecycleContract {
    let mut value = serde_json::to_value(contract()).unwrap();
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

/// Every contract is refused although its own default patches are in order.
fn contract_refused(contract: &LifecycleContract, code: &str, pointer: &str, part: &str) {
    let found = refused(contract, &default_definition(contract), code, pointer);
    assert!(found.message.contains(part), "{}", found.message);
}

fn transition_of(contract: &Value, gate: &str) -> usize {
    let list = contract["transitions"].as_array().unwrap();
    list.iter().position(|one| one["gate"] == json!(gate)).unwrap()
}

#[test]
fn an_escalation_to_other_people_does_not_meet_an_obligation_of_a_role() {
    let mut contract = contract();
    contract.obligations = serde_json::from_value(json!([
        {"id": "cfo", "gate": "approve",
         "needs": {"kind": "approvals", "count": 1, "role": "finance_manager"}},
    ]))
    .unwrap();
    let escalating = |to: Value| {
        let mut node = approval("a");
        node["config"]["due"] = json!({"after": "1 second", "then": {"escalate": to}});
        patched(json!({"nodes": [node]}))
    };
    let intern = escalating(json!({"strategy": "direct", "users": ["intern"]}));
    refused(&contract, &intern, "OBLIGATION_BROKEN", &format!("/slots/{SLOT}"));
    let other = escalating(json!({"strategy": "role", "role": "intern"}));
    refused(&contract, &other, "OBLIGATION_BROKEN", &format!("/slots/{SLOT}"));
    let same = json!({"strategy": "role", "role": "finance_manager", "pick": "first_available"});
    compile(&contract, &escalating(same)).unwrap();
}

#[test]
fn an_exemption_cannot_read_what_patches_write() {
    let contract = changed(|value| {
        value["rules"]["fast_track"]["inputs"][0]["path"] = json!("context.amount");
        value["rules"]["fast_track"]["inputs"][0]["type"] = json!("decimal");
        value["rules"]["fast_track"]["inputs"][0]["scale"] = json!(2);
    });
    let at = "/obligations/0/unless/rule";
    let found = compile(&contract, &definition(json!({}))).unwrap_err();
    let found = found.problems.iter().find(|one| one.place.pointer.as_deref() == Some(at));
    assert!(found.unwrap().message.contains("every patch can write the context"), "{found:?}");
}

#[test]
fn a_rejection_cannot_lead_past_its_gate() {
    let mut at = 0;
    let past = changed(|value| {
        at = transition_of(value, "approve");
        value["transitions"][at]["reject"] = json!("active");
    });
    contract_refused(&past, "CONTRACT_LIFECYCLE", &format!("/transitions/{at}/reject"), "past it");
    // A final state that only rejections reach is no way round.
    let dead_end = changed(|value| {
        value["transitions"][at]["reject"] = json!("refused");
        let state = json!({"name": "refused", "editWindow": "locked", "final": true});
        value["states"].as_array_mut().unwrap().push(state);
    });
    compile(&dead_end, &default_definition(&dead_end)).unwrap();
}

#[test]
fn a_change_cannot_lead_past_the_gate_of_its_slot() {
    let past = changed(|value| {
        value["amended"] = json!("active");
        for (list, field) in [("states", "name"), ("transitions", "from"), ("slots", "slotId")] {
            value[list].as_array_mut().unwrap().retain(|one| {
                one[field] != json!("amended") && one[field] != json!("amendment_cycle")
            });
        }
        value["defaults"].as_object_mut().unwrap().remove("amendment_cycle");
    });
    let found = compile(&past, &default_definition(&past)).unwrap_err();
    let found = found.problems.iter().find(|one| one.message.contains("is not reached"));
    assert_eq!(found.map(|one| one.code.as_str()), Some("CONTRACT_LIFECYCLE"));
}

#[test]
fn a_cancellation_cannot_lead_to_the_state_behind_a_gate() {
    let past = changed(|value| {
        for one in value["transitions"].as_array_mut().unwrap() {
            if one["gate"] == json!("cancel") {
                one["to"] = json!("active");
            }
        }
        value["states"].as_array_mut().unwrap().retain(|one| one["name"] != json!("cancelled"));
    });
    let found = compile(&past, &default_definition(&past)).unwrap_err();
    assert!(
        found.problems.iter().any(|one| one.message.contains("and so does the gate \"approve\"")),
        "{found}"
    );
}

#[test]
fn look_alikes_of_rules_and_slots_are_refused() {
    let table = serde_json::to_value(&contract().rules["fast_track"]).unwrap();
    for name in ["f\u{0430}st_track", "FAST_TRACK", "fast_track\0", ""] {
        let mut one = definition(json!({}));
        one.rules.insert(name.to_owned(), serde_json::from_value(table.clone()).unwrap());
        refused(&contract(), &one, "CONTRACT_NAME", &format!("/rules/{name}"));
    }
    let mut own = definition(json!({}));
    own.rules.insert("fast_track".to_owned(), serde_json::from_value(table).unwrap());
    refused(&contract(), &own, "CONTRACT_DUPLICATE", "/rules/fast_track");
    for slot in ["submitted_to_\u{0430}pproved", "Submitted_to_approved"] {
        let one = definition(json!({slot: {}}));
        refused(&contract(), &one, "CONTRACT_UNKNOWN", &format!("/slots/{slot}"));
    }
}

#[test]
fn labels_with_control_characters_are_refused() {
    let mut one = approval("a");
    one["label"] = json!("\u{1b}[2J");
    let at = format!("/slots/{SLOT}/nodes/0/label");
    refused(&contract(), &patched(json!({"nodes": [one]})), "NODE_CONFIG", &at);
}

#[test]
fn quorums_that_nobody_can_reach_are_refused() {
    let check = |approvers: Value, quorum: Value, field: &str| {
        let config = json!({"approvers": approvers, "quorum": quorum});
        let patch = patched(json!({"nodes": [node("a", "approval", config)]}));
        let at = format!("/slots/{SLOT}/nodes/0/config/quorum{field}");
        refused(&contract(), &patch, "NODE_CONFIG", &at);
    };
    let people = |users: &[&str]| json!({"strategy": "direct", "users": users});
    check(people(&["u", "u"]), json!({"kind": "count", "count": 2}), "/count");
    check(json!({"strategy": "org_chart"}), json!({"kind": "count", "count": 2}), "/count");
    let role = json!({"strategy": "role", "role": "r"});
    check(role.clone(), json!({"kind": "count", "count": 4_000_000_000_u32}), "/count");
    let weights = json!({"kind": "weighted", "weights": {"a": 1, "b": 1}, "needed": 3});
    check(role.clone(), weights, "");
    check(role, json!({"kind": "percent", "percent": 101}), "/percent");
}

#[test]
fn tables_and_obligations_have_limits() {
    let mut many = definition(json!({}));
    let table = &contract().rules["fast_track"];
    many.rules = (0..TABLES_MAX).map(|i| (format!("r{i}"), table.clone())).collect();
    let found = refused(&contract(), &many, "CONTRACT_LIMIT", "");
    assert!(found.message.contains("decision tables, the limit is 50"), "{}", found.message);
    let mut contract = contract();
    let one = contract.obligations[0].clone();
    contract.obligations = (0..=OBLIGATIONS_MAX)
        .map(|i| windlass_contracts::types::Obligation { id: format!("o{i}"), ..one.clone() })
        .collect();
    contract_refused(&contract, "CONTRACT_LIMIT", "", "51 obligations, the limit is 50");
}

#[test]
fn exactly_the_most_nodes_compile() {
    let contract = free_contract();
    let system = compile(&contract, &patched(json!({}))).unwrap().nodes.len();
    let chain = |count: usize| {
        let name = |i: usize| format!("n{i}");
        let nodes: Vec<Value> =
            (0..count).map(|i| node(&name(i), "wait_timer", json!({"for": "1 day"}))).collect();
        let edges: Vec<Value> = (1..count).map(|i| edge(&name(i - 1), &name(i))).collect();
        patched(json!({"nodes": nodes, "edges": edges}))
    };
    assert_eq!(compile(&contract, &chain(500 - system)).unwrap().nodes.len(), 500);
    let found = refused(&contract, &chain(501 - system), "CONTRACT_LIMIT", "");
    assert_eq!(found.message, "the workflow has 501 nodes, the limit is 500");
}

#[test]
fn a_foreign_meta_schema_is_an_error_and_not_a_panic() {
    for schema in ["https://x.example/meta", "http://json-schema.org/draft-99/schema#", ""] {
        let contract = changed(|value| value["schemas"]["document"]["$schema"] = json!(schema));
        let error = compile(&contract, &default_definition(&contract)).unwrap_err();
        assert_eq!(error.problems[0].code.as_str(), "CONTRACT_SCHEMA", "{schema}: {error}");
        assert!(error.problems[0].help.is_some());
    }
}

/// A table with many regions is refused or accepted, but never slow: the budget counts the work.
#[test]
fn tables_that_are_too_complex_are_refused() {
    let fields: Vec<String> = (0..8).map(|i| format!("f{i}")).collect();
    let contract = changed(|value| {
        for field in &fields {
            value["schemas"]["document"]["properties"][field] = json!({"type": "integer"});
        }
    });
    let inputs: Vec<Value> = fields
        .iter()
        .map(|f| json!({"name": f, "path": format!("entity.{f}"), "type": "integer"}))
        .collect();
    let rows: Vec<Value> = (0..200)
        .map(|row| {
            let when: serde_json::Map<String, Value> = fields
                .iter()
                .enumerate()
                .map(|(i, f)| {
                    (f.clone(), json!({"atLeast": (row * 7 + i * 13) % 97, "atMost": 1000 + row}))
                })
                .collect();
            json!({"id": format!("r{row}"), "when": when, "then": {"outcome": "x"}})
        })
        .collect();
    let table = json!({
        "hitPolicy": "first", "inputs": inputs, "rows": rows,
        "outputs": [{"name": "outcome", "type": "text"}],
    });
    let mut one = definition(json!({}));
    for i in 0..3 {
        one.rules.insert(format!("r{i}"), serde_json::from_value(table.clone()).unwrap());
    }
    let error = compile(&contract, &one).unwrap_err();
    assert!(error.problems[0].code.as_str().starts_with("RULE_"), "{error}");
}

/// Someone who can write to the store can also compute the hash: nothing may panic later.
#[test]
fn an_artefact_that_does_not_describe_its_nodes_is_refused() {
    let patch = patched(json!({
        "nodes": [
            node("s", "parallel_split", json!({})), approval("a"), approval("b"),
            node("j", "parallel_join", json!({"mode": "all"})),
        ],
        "edges": [edge("s", "a"), edge("s", "b"), edge("a", "j"), edge("b", "j")],
    }));
    let compiled = compile(&contract(), &patch).unwrap();
    let check = |change: &dyn Fn(&mut CompiledWorkflow)| {
        let mut one = compiled.clone();
        change(&mut one);
        let mut value = serde_json::to_value(&one).unwrap();
        value.as_object_mut().unwrap().remove("hash");
        let bytes = windlass_kernel::canonical::to_canonical(&value).unwrap();
        one.hash = windlass_kernel::Sha256Digest::of(&bytes);
        let error = load(&one.to_json().unwrap()).unwrap_err();
        assert!(error.message.contains("does not describe"), "{error}");
    };
    check(&|one| drop(one.slot_map.remove(&id("a"))));
    check(&|one| {
        one.edit_windows.remove("sys:state:active");
    });
    check(&|one| drop(one.join_requirements.remove(&id("j"))));
    check(&|one| one.nodes.get_mut(&id("a")).unwrap().id = id("b"));
    check(&|one| one.edges_by_id.get_mut("a-j").unwrap().target = "usr:x:y".to_owned());
}

#[test]
fn numbers_and_keys_cannot_be_smuggled() {
    let base = r#""baseRef": {"entityType": "invoice", "envelopeVersion": 1}"#;
    let patch = |inner: &str| format!("{{{base}, \"slots\": {{\"{SLOT}\": {inner}}}}}");
    let node = |config: &str| {
        format!(
            "{{\"nodes\": [{{\"id\": \"{}\", \"type\": \"approval\", \"config\": {config}}}]}}",
            id("a")
        )
    };
    for (text, code) in [
        (
            patch(&node(r#"{"chain": "c", "quorum": {"kind": "count", "count": 1, "count": 0}}"#)),
            "JSON_DUPLICATE_KEY",
        ),
        (patch(&node(r#"{"chain": "c", "\u0063hain": "d"}"#)), "JSON_DUPLICATE_KEY"),
        (
            patch(&node(r#"{"chain": "c", "quorum": {"kind": "count", "count": 4294967296}}"#)),
            "CONTRACT_SHAPE",
        ),
        (
            patch(&node(r#"{"chain": "c", "quorum": {"kind": "count", "count": -1}}"#)),
            "CONTRACT_SHAPE",
        ),
        (
            patch(&node(r#"{"chain": "c", "quorum": {"kind": "count", "count": 1e0}}"#)),
            "CONTRACT_SHAPE",
        ),
        (
            patch(
                r#"{"edges": [{"id": "e", "source": "a", "target": "b", "priority": 99999999999}]}"#,
            ),
            "CONTRACT_SHAPE",
        ),
        (patch(r#"{"Nodes": []}"#), "CONTRACT_SHAPE"),
        (patch(r#"{"entryEdgeMode": "SERIAL"}"#), "CONTRACT_SHAPE"),
        (format!("\u{feff}{{{base}}}"), "JSON_INVALID"),
        (format!("{{{base}}} {{}}"), "JSON_INVALID"),
    ] {
        let found = read_definition(&text).unwrap_err();
        assert_eq!(found.code.as_str(), code, "{text}: {found}");
    }
    assert_eq!(read_contract("[]").unwrap_err().code.as_str(), "CONTRACT_SHAPE");
}
