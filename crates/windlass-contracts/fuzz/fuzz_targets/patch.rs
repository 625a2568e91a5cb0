//! Definitions against the contracts of all templates: each compiles or fails, an artefact loads
//! again, and no artefact has a path round a gate.
//!
//! An input is JSON text, or bytes that each change the definition of a template a little, because
//! random text is hardly ever a graph.

#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use windlass_contracts::compile::{compile, load, read_definition};
use windlass_contracts::diagnostic::Diagnostic;
use windlass_contracts::templates::{self, Template};
use windlass_contracts::types::{CompiledWorkflow, OrgWorkflowDefinition};

fuzz_target!(|bytes: &[u8]| {
    let templates = templates::all();
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.starts_with('{')
    {
        match read_definition(text) {
            Ok(definition) => templates.iter().for_each(|one| check(one, &definition)),
            Err(problem) => drop(problem.render(Some(("definition.json", text)))),
        }
        return;
    }
    let Some((&first, changes)) = bytes.split_first() else { return };
    let template = &templates[first as usize % templates.len()];
    let mut value = serde_json::to_value(&template.definition).expect("a definition is JSON");
    for change in changes.chunks_exact(4).take(40) {
        apply(&mut value, change);
    }
    if let Ok(definition) = serde_json::from_value::<OrgWorkflowDefinition>(value) {
        check(template, &definition);
    }
});

fn check(template: &Template, definition: &OrgWorkflowDefinition) {
    match compile(&template.contract, definition) {
        Ok(artefact) => {
            let stored = artefact.to_json().expect("an artefact is JSON");
            assert_eq!(load(&stored).expect("a stored artefact loads"), artefact);
            gates_cannot_be_avoided(&artefact);
        }
        Err(error) => {
            let text = serde_json::to_string_pretty(definition).unwrap_or_default();
            let show = |problem: &Diagnostic| drop(problem.render(Some(("definition.json", &text))));
            error.problems.iter().for_each(show);
        }
    }
}

/// Without a gate on the way, the active state cannot be reached.
fn gates_cannot_be_avoided(artefact: &CompiledWorkflow) {
    for gate in ["sys:gate:submit", "sys:gate:approve"] {
        let (mut seen, mut todo) = (BTreeSet::new(), vec!["sys:start"]);
        while let Some(at) = todo.pop() {
            if at != gate && seen.insert(at) {
                let next = artefact.edges_by_id.values().filter(|edge| edge.source == at);
                todo.extend(next.map(|edge| edge.target.as_str()));
            }
        }
        assert!(!seen.contains("sys:state:active"), "a path avoids {gate}");
    }
}

/// One change of one patch: `[kind, slot, a, b]`.
fn apply(definition: &mut Value, change: &[u8]) {
    let [kind, slot, a, b] = [change[0], change[1], change[2], change[3]].map(usize::from);
    let Some(slots) = definition["slots"].as_object_mut() else { return };
    let Some((name, patch)) = slots.iter_mut().nth(slot % 4) else { return };
    let ids: Vec<Value> = patch["nodes"]
        .as_array()
        .map(|nodes| nodes.iter().map(|node| node["id"].clone()).collect())
        .unwrap_or_default();
    let id = |at: usize| match at % (ids.len() + 3) {
        0 => json!(format!("sys:slot:{name}:in")),
        1 => json!(format!("sys:slot:{name}:out")),
        2 => json!("sys:state:active"),
        other => ids[other - 3].clone(),
    };
    let (source, target) = (id(a), id(b));
    let new = json!(format!("usr:{name}:x{a}"));
    let modes = ["all", "any"];
    let configs = [
        json!({"type": "approval", "config": {"approvers": {"strategy": "role", "role": "r"}}}),
        json!({"type": "condition"}),
        json!({"type": "parallel_split"}),
        json!({"type": "parallel_join", "config": {"mode": modes[a % 2]}}),
        json!({"type": "wait_timer", "config": {"for": "1 hour"}}),
        json!({"type": "rule", "config": {"rule": "fast_track"}}),
        json!({"type": "action", "config": {"mutation": {"actionType": "a.b"}}}),
        json!({"type": "lifecycle_gate", "config": {"gate": "approve", "trigger": "arrival"}}),
    ];
    let labels = ["approved", "rejected", "timeout", "exhausted", "yes", "no"];
    let field = if kind % 8 < 3 { "nodes" } else { "edges" };
    if !patch[field].is_array() {
        patch[field] = json!([]);
    }
    let Some(list) = patch[field].as_array_mut() else { return };
    let at = if list.is_empty() { 0 } else { a % list.len() };
    match kind % 8 {
        0 => {
            let mut node = configs[b % configs.len()].clone();
            node["id"] = new;
            list.push(node);
        }
        1 if !list.is_empty() => drop(list.remove(at)),
        2 if !list.is_empty() => {
            let mut node = configs[b % configs.len()].clone();
            node["id"] = list[at]["id"].clone();
            list[at] = node;
        }
        3 => list.push(json!({"id": format!("e{a}-{b}"), "source": source, "target": target})),
        4 if !list.is_empty() => drop(list.remove(at)),
        5 if !list.is_empty() => list[at]["target"] = target,
        6 if !list.is_empty() => list[at]["label"] = json!(labels[b % labels.len()]),
        7 if !list.is_empty() => {
            list[at]["condition"] = json!("entity.total > 5");
            list[at]["priority"] = json!(b);
        }
        _ => patch["exitEdgeMode"] = json!("join"),
    }
}
