//! Definitions against the contracts of all templates: each compiles or fails, an artefact loads
//! again, and no artefact has a path round a gate or changes the document behind one.
//!
//! An input is JSON text, or bytes that each change the definition of a template a little, because
//! random text is hardly ever a graph.

#![no_main]

use std::collections::BTreeSet;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use windlass_contracts::compile::{compile, load, read_definition};
use windlass_contracts::diagnostic::Diagnostic;
use windlass_contracts::templates::{self, Template};
use windlass_contracts::types::{CompiledWorkflow, NodeConfig, OrgWorkflowDefinition};

/// An action that changes the document.
const CHANGE: &str = "a.b";

/// Parsed once: the templates are far larger than an input.
static TEMPLATES: LazyLock<Vec<(Template, Value)>> = LazyLock::new(|| {
    let with_json = |mut template: Template| {
        template.contract.document_actions.push(CHANGE.to_owned());
        let definition = serde_json::to_value(&template.definition).expect("a definition is JSON");
        (template, definition)
    };
    templates::all().into_iter().map(with_json).collect()
});

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && text.starts_with('{')
    {
        match read_definition(text) {
            Ok(definition) => TEMPLATES.iter().for_each(|(one, _)| check(one, &definition)),
            Err(problem) => drop(problem.render(Some(("definition.json", text)))),
        }
        return;
    }
    let Some((&first, changes)) = bytes.split_first() else { return };
    let (template, definition) = &TEMPLATES[first as usize % TEMPLATES.len()];
    let mut value = definition.clone();
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
            content_stays_behind_gates(&artefact);
        }
        Err(error) => {
            let text = serde_json::to_string_pretty(definition).unwrap_or_default();
            let show =
                |problem: &Diagnostic| drop(problem.render(Some(("definition.json", &text))));
            error.problems.iter().for_each(show);
        }
    }
}

/// Without a gate on the way, the active state cannot be reached, nor the second gate without the first.
fn gates_cannot_be_avoided(artefact: &CompiledWorkflow) {
    let active = "sys:state:active";
    for (gate, behind) in [
        ("sys:gate:submit", "sys:gate:approve"),
        ("sys:gate:submit", active),
        ("sys:gate:approve", active),
    ] {
        let (mut seen, mut todo) = (BTreeSet::new(), vec!["sys:start"]);
        while let Some(at) = todo.pop() {
            if at != gate && seen.insert(at) {
                let next = artefact.edges_by_id.values().filter(|edge| edge.source == at);
                todo.extend(next.map(|edge| edge.target.as_str()));
            }
        }
        assert!(!seen.contains(behind), "a path to {behind} avoids {gate}");
    }
}

/// No action changes the document behind a gate that has an obligation.
fn content_stays_behind_gates(artefact: &CompiledWorkflow) {
    for obligation in &artefact.obligations {
        let gate = format!("sys:gate:{}", obligation.gate);
        let (mut seen, mut todo) = (BTreeSet::new(), vec![gate.as_str()]);
        while let Some(at) = todo.pop() {
            if seen.insert(at) {
                let forward = artefact.edges_by_id.values().filter(|edge| !edge.is_return);
                let next = forward.filter(|edge| edge.source == at);
                todo.extend(next.map(|edge| edge.target.as_str()));
            }
        }
        for id in seen {
            let NodeConfig::Action(action) = &artefact.nodes[id].config else { continue };
            assert_ne!(action.mutation.action_type, CHANGE, "{id} is behind {gate}");
        }
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
