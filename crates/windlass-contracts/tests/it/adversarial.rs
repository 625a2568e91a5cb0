//! Contracts and patches that try to get round a gate, and inputs that try to break the compiler.

use serde_json::{Value, json};
use windlass_contracts::compile::{
    OBLIGATIONS_MAX, Origin, PROBLEMS_MAX, TABLES_MAX, compile, default_definition, load,
    read_contract, read_definition,
};
use windlass_contracts::tokens::{AllowAll, Facts, Input, advance};
use windlass_contracts::types::{CompiledWorkflow, LifecycleContract};

use crate::support::{
    Run, SLOT, approval, contract, definition, edge, free_contract, id, invoice, node, patched,
    refused,
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
fn an_exemption_cannot_read_what_patches_choose() {
    let at = "/obligations/0/unless/rule";
    let reads = |path: &str, change: &dyn Fn(&mut Value)| {
        let contract = changed(|value| {
            value["rules"]["fast_track"]["inputs"][0]["path"] = json!(path);
            value["rules"]["fast_track"]["inputs"][0]["type"] = json!("decimal");
            value["rules"]["fast_track"]["inputs"][0]["scale"] = json!(2);
            change(value);
        });
        let found = compile(&contract, &definition(json!({}))).unwrap_err();
        let found = found.problems.into_iter().find(|one| one.place.pointer.as_deref() == Some(at));
        found.unwrap().message
    };
    let found = reads("context.amount", &|_| {});
    assert!(found.contains("every patch can write the context"), "{found}");
    // The rule could stand behind a step of any person, also behind one who rejected.
    let found = reads("actor.level", &|value| {
        value["schemas"]["actor"] = json!({"properties": {"level": {"type": "number"}}});
    });
    assert!(found.contains("a patch chooses whose action"), "{found}");
    // A small amount first, the real one after the exemption.
    let found = reads("entity.total", &|value| {
        value["immaterialFields"] = json!(["note", "total"]);
    });
    assert!(found.contains("a change of this field keeps the exemption"), "{found}");
    let found = reads("entity.sum.net", &|value| {
        let sum = json!({"type": "object", "properties": {"net": {"type": "number"}}});
        value["schemas"]["document"]["properties"]["sum"] = sum;
        value["immaterialFields"] = json!(["sum"]);
    });
    assert!(found.contains("a change of this field keeps the exemption"), "{found}");
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
    // A state with a gate of its own that leads behind the gate of the rejection.
    let detour = changed(|value| {
        value["transitions"][at]["reject"] = json!("disputed");
        let states = value["states"].as_array_mut().unwrap();
        states.push(json!({"name": "disputed", "editWindow": "locked"}));
        let gates = value["gates"].as_array_mut().unwrap();
        gates.push(json!({"name": "settle", "editWindow": "locked", "trigger": "arrival"}));
        let transitions = value["transitions"].as_array_mut().unwrap();
        transitions.push(json!({"from": "disputed", "gate": "settle", "to": "active"}));
    });
    contract_refused(
        &detour,
        "CONTRACT_LIFECYCLE",
        &format!("/transitions/{at}/reject"),
        "past it",
    );
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
        assert!(!error.problems[0].help.is_empty());
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
    // Few regions, but each one has many ranges and meets its next row late: counting regions alone
    // would take minutes.
    let rows: Vec<Value> = (0..200_i64)
        .map(|row| {
            let values: Vec<i64> = (0..100).map(|k| k * 1000 + row * 7).collect();
            let when: serde_json::Map<String, Value> = fields
                .iter()
                .map(|f| match row < 180 {
                    true => (f.clone(), json!({"equals": -row - 1})),
                    false => (f.clone(), json!({"notIn": values})),
                })
                .collect();
            json!({"id": format!("r{row}"), "when": when, "then": {"outcome": "x"}})
        })
        .collect();
    let mut late = table;
    late["rows"] = json!(rows);
    let mut one = definition(json!({}));
    one.rules.insert("late".to_owned(), serde_json::from_value(late).unwrap());
    refused(&contract, &one, "RULE_TOO_COMPLEX", "/rules/late/rows");
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

/// The key of a step names the branches around it, and the store limits it to 256 characters.
#[test]
fn parallel_regions_nest_only_so_deep_that_step_keys_fit() {
    let contract = changed(|value| {
        let long = "s".repeat(64);
        let text = value.to_string().replace(SLOT, &long);
        *value = serde_json::from_str(&text).unwrap();
        value["obligations"] = json!([]);
    });
    let slot = "s".repeat(64);
    let nested = |depth: usize| {
        let name = |part: &str, at: usize| {
            let name = format!("{part}{at}");
            format!("usr:{slot}:{}{name}", "n".repeat(64 - name.len()))
        };
        let (mut nodes, mut edges) = (Vec::new(), Vec::new());
        let mut link = |from: String, to: String| {
            edges.push(json!({"id": format!("e{}", edges.len()), "source": from, "target": to}));
        };
        for at in 0..depth {
            nodes.push(json!({"id": name("s", at), "type": "parallel_split"}));
            let mode = json!({"mode": "all"});
            nodes.push(json!({"id": name("j", at), "type": "parallel_join", "config": mode}));
            let act = json!({"mutation": {"actionType": "a.b"}});
            nodes.push(json!({"id": name("a", at), "type": "action", "config": act}));
            link(name("s", at), name("a", at));
            link(name("a", at), name("j", at));
            if at > 0 {
                link(name("s", at - 1), name("s", at));
                link(name("j", at), name("j", at - 1));
            }
        }
        let wait = json!({"for": "1 day"});
        nodes.push(json!({"id": name("w", 0), "type": "wait_timer", "config": wait}));
        link(name("s", depth - 1), name("w", 0));
        link(name("w", 0), name("j", depth - 1));
        let mut one = definition(json!({}));
        let patch = json!({"nodes": nodes, "edges": edges});
        one.slots.insert(slot.clone(), serde_json::from_value(patch).unwrap());
        one
    };
    let found = compile(&contract, &nested(7)).unwrap_err();
    assert_eq!(found.problems[0].code.as_str(), "GRAPH_REGION");
    assert!(found.problems[0].message.contains("inside 6 others"), "{found}");

    let mut run = Run::new(compile(&contract, &nested(6)).unwrap(), invoice());
    // A run with a long life: its steps, versions and cycles have long numbers.
    (run.version, run.material_version) = (9_999_999_999, 0);
    (run.state.next_seq, run.state.cycle) = (900_000, 9_999);
    let facts = Facts {
        version: run.version,
        material_version: 0,
        drift_version: 0,
        entity: &run.document,
        actor: &Value::Null,
        org: &Value::Null,
        now: run.now,
        policy: &AllowAll,
    };
    let begun = advance(&run.artefact, &run.state, &Input::Start, &facts).unwrap();
    let submit = Input::Action { gate: "submit".to_owned() };
    let moved = advance(&run.artefact, &begun.state, &submit, &facts).unwrap();
    let longest = moved.steps.iter().map(|row| row.key.chars().count()).max().unwrap();
    // The model adds `|later` to the key of a row that changes once more.
    assert!((200..=250).contains(&longest), "{longest}");
}

#[test]
fn an_error_has_a_limited_number_of_problems() {
    let edges: Vec<Value> = (0..400)
        .map(|i| json!({"id": format!("e{i}"), "source": "usr:x:y", "target": "usr:x:z"}))
        .collect();
    let error = compile(&contract(), &patched(json!({"edges": edges}))).unwrap_err();
    assert_eq!(error.problems.len(), PROBLEMS_MAX + 1);
    let last = error.problems.last().unwrap();
    assert_eq!(last.message, "700 more problems are not shown");
}

/// A tenant cannot know the edge ids of the default patches, so the advice names the place.
#[test]
fn an_edge_id_of_a_default_patch_is_refused_where_the_tenant_wrote_it() {
    let mut contract = contract();
    let of_default = contract
        .defaults
        .iter()
        .find(|(slot, patch)| slot.as_str() != SLOT && !patch.edges.is_empty());
    let taken = match of_default {
        Some((_, patch)) => patch.edges[0].id.clone(),
        None => {
            let slot = "approved_to_active";
            let patch = json!({"nodes": [
                {"id": format!("usr:{slot}:a"), "type": "wait_timer", "config": {"for": "1 day"}},
                {"id": format!("usr:{slot}:b"), "type": "wait_timer", "config": {"for": "1 day"}},
            ], "edges": [
                {"id": "e", "source": format!("usr:{slot}:a"), "target": format!("usr:{slot}:b")},
            ]});
            contract.defaults.insert(slot.to_owned(), serde_json::from_value(patch).unwrap());
            "e".to_owned()
        }
    };
    let mut own = edge("a", "b");
    own["id"] = json!(taken);
    let own = patched(json!({"nodes": [approval("a"), approval("b")], "edges": [own]}));
    let error = compile(&contract, &own).unwrap_err();
    assert_eq!(error.origin, Origin::Definition);
    let place = error.problems[0].place.pointer.clone().unwrap();
    assert_eq!(place, format!("/slots/{SLOT}/edges/0/id"));
    assert!(error.problems[0].message.starts_with("/defaults/"), "{error}");
}

#[test]
fn names_that_match_nobody_and_times_that_never_come_are_refused() {
    let check = |node_type: &str, config: Value, field: &str, part: &str| {
        let patch = patched(json!({"nodes": [node("x", node_type, config)]}));
        let at = format!("/slots/{SLOT}/nodes/0/config{field}");
        let found = refused(&contract(), &patch, "NODE_CONFIG", &at);
        assert!(found.message.contains(part), "{}", found.message);
    };
    let role = |role: &str| json!({"approvers": {"strategy": "role", "role": role}});
    for name in ["", "a b", "a,b", "a\u{0}", &"r".repeat(129)] {
        check("approval", role(name), "/approvers/role", "is not the name of a role");
    }
    let direct = |users: Value| json!({"approvers": {"strategy": "direct", "users": users}});
    check("approval", direct(json!([])), "/approvers/users", "0 people");
    check("approval", direct(json!(["u", ""])), "/approvers/users/1", "is not the id of a person");
    let weights: serde_json::Map<String, Value> =
        (0..101).map(|i| (format!("p{i}"), json!(1))).collect();
    let mut heavy = role("cfo");
    heavy["quorum"] = json!({"kind": "weighted", "weights": weights, "needed": 1});
    check("approval", heavy, "/quorum/weights", "101 weights");
    for cron in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
        check("wait_timer", json!({"cron": cron}), "/cron", "never comes");
    }
    check("wait_timer", json!({"for": "101 years"}), "/for", "");
    check("wait_timer", json!({"for": "40000 days"}), "/for", "longer than the limit of 3650 days");
    let by_rule = json!({"approvers": {"strategy": "rule", "rule": "nothing"}});
    check("approval", by_rule, "/approvers/rule", "there is no decision table");
}
