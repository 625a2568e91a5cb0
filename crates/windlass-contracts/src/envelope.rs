//! Generates the envelope of a lifecycle contract: system nodes, forward edges and return edges.

mod windows;

use std::collections::{BTreeMap, BTreeSet};

use crate::codes::{CONTRACT_DUPLICATE, CONTRACT_LIFECYCLE, CONTRACT_NAME, CONTRACT_UNKNOWN};
use crate::diagnostic::{Diagnostic, pointer_join};
use crate::graph::Graph;
use crate::ids;
use crate::types::edge::labels;
use crate::types::{
    Edge, EditWindow, Empty, Envelope, GateConfig, GateTrigger, LifecycleContract, Node,
    NodeConfig, OnDrift, StateConfig, Transition,
};

/// Generates the envelope of a contract.
///
/// # Errors
/// Returns every problem of the lifecycle: names, duplicates, unknown references, states without a
/// way on, cycles that are not return edges, and nodes that cannot be reached.
pub fn generate(contract: &LifecycleContract) -> Result<Envelope, Vec<Diagnostic>> {
    let mut found = Vec::new();
    check_names(contract, &mut found);
    check_references(contract, &mut found);
    if found.is_empty() {
        check_transitions(contract, &mut found);
    }
    if !found.is_empty() {
        return Err(found);
    }
    let envelope = build(contract);
    check_slots(contract, &envelope, &mut found);
    check_graph(&envelope, &mut found);
    windows::check(contract, &envelope, &mut found);
    if found.is_empty() {
        check_ways_round(contract, &envelope, &mut found);
    }
    if found.is_empty() { Ok(envelope) } else { Err(found) }
}

fn check_names(contract: &LifecycleContract, found: &mut Vec<Diagnostic>) {
    let mut name = |pointer: String, text: &str| {
        if !ids::is_name(text) {
            found.push(ids::not_a_name(text, pointer));
        }
    };
    name("/entityType".to_owned(), &contract.entity_type);
    let mut listed: [(&str, &str, BTreeMap<&str, usize>); 4] = [
        ("states", "name", BTreeMap::new()),
        ("gates", "name", BTreeMap::new()),
        ("slots", "slotId", BTreeMap::new()),
        ("obligations", "id", BTreeMap::new()),
    ];
    let texts: [Vec<&str>; 4] = [
        contract.states.iter().map(|state| state.name.as_str()).collect(),
        contract.gates.iter().map(|gate| gate.name.as_str()).collect(),
        contract.slots.iter().map(|slot| slot.slot_id.as_str()).collect(),
        contract.obligations.iter().map(|obligation| obligation.id.as_str()).collect(),
    ];
    let mut twice = Vec::new();
    for ((list, field, seen), texts) in listed.iter_mut().zip(&texts) {
        for (index, text) in texts.iter().enumerate() {
            let pointer = format!("/{list}/{index}/{field}");
            name(pointer.clone(), text);
            if let Some(first) = seen.insert(text, index) {
                let message = format!("{text:?} is already at /{list}/{first}/{field}");
                twice.push(
                    Diagnostic::new(CONTRACT_DUPLICATE, message)
                        .at(pointer)
                        .help("use each name once"),
                );
            }
        }
    }
    for rule in contract.rules.keys() {
        name(pointer_join("/rules", rule), rule);
    }
    for (index, action) in contract.document_actions.iter().enumerate() {
        if !ids::is_dotted_name(action) {
            let message = format!("{action:?} is not the type of an action");
            twice.push(
                Diagnostic::new(CONTRACT_NAME, message)
                    .at(format!("/documentActions/{index}"))
                    .help("write names with dots between them, such as invoice.correct"),
            );
        }
    }
    found.extend(twice);
    if contract.version == 0 {
        found.push(
            Diagnostic::new(CONTRACT_LIFECYCLE, "the version 0 is not a version")
                .at("/version")
                .help("begin with 1 and add 1 with each change"),
        );
    }
}

fn check_references(contract: &LifecycleContract, found: &mut Vec<Diagnostic>) {
    let states: BTreeSet<&str> = contract.states.iter().map(|state| state.name.as_str()).collect();
    let gates: BTreeSet<&str> = contract.gates.iter().map(|gate| gate.name.as_str()).collect();
    let slots: BTreeSet<&str> = contract.slots.iter().map(|slot| slot.slot_id.as_str()).collect();
    let mut known = |kind: &str, all: &BTreeSet<&str>, text: &str, pointer: String| {
        if !all.contains(text) {
            found.push(unknown(kind, all, text, pointer));
        }
    };
    known("state", &states, &contract.initial, "/initial".to_owned());
    if let Some(amended) = &contract.amended {
        known("state", &states, amended, "/amended".to_owned());
    }
    for (index, transition) in contract.transitions.iter().enumerate() {
        known("state", &states, &transition.from, format!("/transitions/{index}/from"));
        known("gate", &gates, &transition.gate, format!("/transitions/{index}/gate"));
        known("state", &states, &transition.to, format!("/transitions/{index}/to"));
        if let Some(reject) = &transition.reject {
            known("state", &states, reject, format!("/transitions/{index}/reject"));
        }
    }
    for slot in contract.defaults.keys() {
        known("slot", &slots, slot, pointer_join("/defaults", slot));
    }
    for (index, obligation) in contract.obligations.iter().enumerate() {
        known("gate", &gates, &obligation.gate, format!("/obligations/{index}/gate"));
    }
}

/// The problem of a reference to a thing that does not exist.
pub(crate) fn unknown(kind: &str, all: &BTreeSet<&str>, text: &str, pointer: String) -> Diagnostic {
    let names = all.iter().copied().collect::<Vec<_>>().join(", ");
    let help = match names.is_empty() {
        true => format!("there is no {kind}"),
        false => format!("use one of: {names}"),
    };
    Diagnostic::new(CONTRACT_UNKNOWN, format!("there is no {kind} {text:?}")).at(pointer).help(help)
}

fn check_transitions(contract: &LifecycleContract, found: &mut Vec<Diagnostic>) {
    let mut wrong = |pointer: String, message: String, help: &str| {
        found.push(Diagnostic::new(CONTRACT_LIFECYCLE, message).at(pointer).help(help));
    };
    let trigger: BTreeMap<&str, GateTrigger> =
        contract.gates.iter().map(|gate| (gate.name.as_str(), gate.trigger)).collect();
    let is_final: BTreeMap<&str, bool> =
        contract.states.iter().map(|state| (state.name.as_str(), state.is_final)).collect();
    let mut of_gate: BTreeMap<&str, usize> = BTreeMap::new();
    let mut forward: BTreeMap<&str, usize> = BTreeMap::new();
    let mut pairs = BTreeSet::new();
    for (index, transition) in contract.transitions.iter().enumerate() {
        let at = format!("/transitions/{index}");
        let gate = transition.gate.as_str();
        let cancel = trigger[gate] == GateTrigger::Cancel;
        if !pairs.insert((transition.from.as_str(), gate)) {
            let message =
                format!("there are two transitions from {:?} to {gate:?}", transition.from);
            wrong(at.clone(), message, "remove one of them");
        }
        let first = *of_gate.entry(gate).or_insert(index);
        let other = &contract.transitions[first];
        if (&other.to, &other.reject) != (&transition.to, &transition.reject) {
            let message = format!("the gate {gate:?} leads elsewhere in /transitions/{first}");
            wrong(at.clone(), message, "all transitions of a gate need the same `to` and `reject`");
        }
        if is_final[transition.from.as_str()] {
            let message = format!("the final state {:?} has a transition", transition.from);
            wrong(format!("{at}/from"), message, "remove the transition, or `final` of the state");
        }
        if cancel && (!is_final[transition.to.as_str()] || transition.reject.is_some()) {
            let message = format!("the cancel gate {gate:?} must lead to a final state");
            wrong(at.clone(), message, "name a final state and remove `reject`");
        }
        if !cancel && forward.insert(transition.from.as_str(), index).is_some() {
            let message = format!("the state {:?} has two gates", transition.from);
            wrong(at, message, "a state leads to one gate, apart from cancel gates");
        }
    }
    for (index, state) in contract.states.iter().enumerate() {
        if !state.is_final && !forward.contains_key(state.name.as_str()) {
            let message = format!("no gate leads out of the state {:?}", state.name);
            wrong(format!("/states/{index}"), message, "add a transition, or set `final`");
        }
    }
    for (index, gate) in contract.gates.iter().enumerate() {
        if !of_gate.contains_key(gate.name.as_str()) {
            let message = format!("no transition uses the gate {:?}", gate.name);
            wrong(format!("/gates/{index}"), message, "add a transition, or remove the gate");
        }
    }
}

fn build(contract: &LifecycleContract) -> Envelope {
    let system = |id: String, window: EditWindow, config: NodeConfig| Node {
        id,
        label: None,
        edit_window: Some(window),
        config,
    };
    let edge = |source: &str, target: &str, label: Option<&str>| Edge {
        id: match label {
            Some(label) => ids::labelled_system_edge(source, target, label),
            None => ids::system_edge(source, target),
        },
        source: source.to_owned(),
        target: target.to_owned(),
        label: label.map(str::to_owned),
        condition: None,
        priority: 0,
    };
    let mut nodes = vec![
        system(ids::START.to_owned(), EditWindow::Editable, NodeConfig::Start(Empty {})),
        system(ids::END.to_owned(), EditWindow::Locked, NodeConfig::End(Empty {})),
    ];
    let mut edges = vec![edge(ids::START, &ids::state(&contract.initial), None)];
    let mut return_edges = Vec::new();
    for state in &contract.states {
        let id = ids::state(&state.name);
        if state.is_final {
            edges.push(edge(&id, ids::END, None));
        }
        let config = StateConfig { state: state.name.clone(), is_final: state.is_final };
        nodes.push(system(id, state.edit_window, NodeConfig::State(config)));
    }
    for gate in &contract.gates {
        let id = ids::gate(&gate.name);
        for transition in contract.transitions.iter().filter(|one| one.gate == gate.name) {
            let label = (gate.trigger == GateTrigger::Cancel).then_some(labels::CANCEL);
            edges.push(edge(&ids::state(&transition.from), &id, label));
            edges.push(edge(&id, &ids::state(&transition.to), None));
            if let Some(reject) = &transition.reject {
                return_edges.push(edge(&id, &ids::state(reject), Some(labels::REJECT)));
            }
        }
        let config = GateConfig { gate: gate.name.clone(), trigger: gate.trigger };
        nodes.push(system(id, gate.edit_window, NodeConfig::LifecycleGate(config)));
    }
    for slot in &contract.slots {
        if let (true, OnDrift::Amend, Some(amended)) =
            (slot.stable_region, slot.on_drift, &contract.amended)
        {
            return_edges.push(edge(&slot.entry, &ids::state(amended), Some(labels::DRIFT)));
        }
    }
    let mut slots = contract.slots.clone();
    nodes.sort_by(|a, b| a.id.cmp(&b.id));
    for list in [&mut edges, &mut return_edges] {
        list.sort_by(|a, b| a.id.cmp(&b.id));
        // The transitions of a gate have one target. Other edges with one id are no repetitions, and stay: the
        // integrity check refuses them.
        list.dedup();
    }
    slots.sort_by(|a, b| a.slot_id.cmp(&b.slot_id));
    Envelope {
        entity_type: contract.entity_type.clone(),
        version: contract.version,
        nodes,
        edges,
        return_edges,
        slots,
    }
}

fn check_slots(contract: &LifecycleContract, envelope: &Envelope, found: &mut Vec<Diagnostic>) {
    let mut taken: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (index, slot) in contract.slots.iter().enumerate() {
        let at = format!("/slots/{index}");
        let ends = (slot.entry.as_str(), slot.exit.as_str());
        let edge = envelope.edges.iter().find(|edge| {
            (edge.source.as_str(), edge.target.as_str()) == ends && edge.label.is_none()
        });
        if edge.is_none() {
            let message = format!("no edge leads from {:?} to {:?}", slot.entry, slot.exit);
            let help = "a slot stands on an edge between a state and a gate, such as \
                        sys:state:submitted and sys:gate:approve";
            found.push(Diagnostic::new(CONTRACT_UNKNOWN, message).at(at.clone()).help(help));
        }
        if let Some(other) = taken.insert(ends, &slot.slot_id) {
            let message = format!("the slot {other:?} stands on the same edge");
            found.push(
                Diagnostic::new(CONTRACT_DUPLICATE, message)
                    .at(at.clone())
                    .help("use one slot for each edge"),
            );
        }
        if slot.stable_region && slot.on_drift == OnDrift::Amend && contract.amended.is_none() {
            let message = format!("the slot {:?} amends, but no state is `amended`", slot.slot_id);
            found.push(
                Diagnostic::new(CONTRACT_LIFECYCLE, message)
                    .at(at)
                    .help("name the state in `amended`, or set `onDrift` to `fail`"),
            );
        }
    }
}

fn check_graph(envelope: &Envelope, found: &mut Vec<Diagnostic>) {
    let pair = |edge: &'_ Edge| (edge.source.clone(), edge.target.clone());
    let forward: Vec<(String, String)> = envelope.edges.iter().map(pair).collect();
    let back: Vec<(String, String)> = envelope.return_edges.iter().map(pair).collect();
    let ids = || envelope.nodes.iter().map(|node| node.id.as_str());
    let edges = |list: &'_ [(String, String)]| -> Vec<(String, String)> { list.to_vec() };
    let forward_pairs = edges(&forward);
    let order =
        Graph::new(ids(), forward_pairs.iter().map(|(a, b)| (a.as_str(), b.as_str()))).order();
    if let Err(cycle) = order {
        found.push(
            Diagnostic::new(CONTRACT_LIFECYCLE, "the transitions form a cycle")
                .at("/transitions")
                .path(cycle)
                .help("a way back is the `reject` of a transition or a drift"),
        );
    }
    let all: Vec<(String, String)> = forward.iter().chain(&back).cloned().collect();
    let graph = Graph::new(ids(), all.iter().map(|(a, b)| (a.as_str(), b.as_str())));
    let reached = graph.reachable(ids::START);
    for node in ids().filter(|id| !reached.contains(id)) {
        found.push(
            Diagnostic::new(CONTRACT_LIFECYCLE, format!("the run can never reach {node}"))
                .at("/transitions")
                .help("add a transition that leads there, or remove it"),
        );
    }
}

/// No rejection, amendment or cancellation leads past a gate.
fn check_ways_round(
    contract: &LifecycleContract,
    envelope: &Envelope,
    found: &mut Vec<Diagnostic>,
) {
    let graph = Graph::new(
        envelope.nodes.iter().map(|node| node.id.as_str()),
        envelope.edges.iter().map(|edge| (edge.source.as_str(), edge.target.as_str())),
    );
    let mut wrong = |pointer: String, message: String, help: &str| {
        found.push(Diagnostic::new(CONTRACT_LIFECYCLE, message).at(pointer).help(help));
    };
    let cancels = |gate: &str| {
        contract.gates.iter().any(|one| one.name == gate && one.trigger == GateTrigger::Cancel)
    };
    for (index, transition) in contract.transitions.iter().enumerate() {
        let at = format!("/transitions/{index}");
        let gate = transition.gate.as_str();
        if let Some(reject) = &transition.reject
            && avoids_gate(contract, envelope, transition, reject)
        {
            let message = format!("a rejection at the gate {gate:?} leads past it, to {reject:?}");
            let help = "name a state before the gate, or a final state that only rejections reach";
            wrong(format!("{at}/reject"), message, help);
        }
        let other = contract
            .transitions
            .iter()
            .find(|other| cancels(gate) && other.to == transition.to && !cancels(&other.gate));
        if let Some(other) = other {
            let message = format!(
                "the cancel gate {gate:?} leads to {:?}, and so does the gate {:?}",
                transition.to, other.gate
            );
            wrong(at, message, "name a final state that only cancel gates lead to");
        }
    }
    for (index, slot) in contract.slots.iter().enumerate() {
        let Some(amended) = contract.amended.as_deref().filter(|_| slot.stable_region) else {
            continue;
        };
        let drifts = slot.on_drift == OnDrift::Amend;
        if drifts && !graph.reachable(&ids::state(amended)).contains(slot.exit.as_str()) {
            let message = format!(
                "a change in the slot {:?} leads to {amended:?}, from where {} is not reached",
                slot.slot_id, slot.exit
            );
            let help = "name a state before the slot in `amended`, or set `onDrift` to `fail`";
            wrong(format!("/slots/{index}"), message, help);
        }
    }
}

/// Whether a rejection leads behind its gate without passing it. A gate with an obligation protects
/// all states behind it, another gate only the next one. Cancellations have rules of their own.
fn avoids_gate(
    contract: &LifecycleContract,
    envelope: &Envelope,
    transition: &Transition,
    reject: &str,
) -> bool {
    let gate = ids::gate(&transition.gate);
    let reached = |from: &str, with_gate: bool| {
        let edges = envelope.edges.iter().filter(|edge| {
            edge.label.as_deref() != Some(labels::CANCEL) && (with_gate || edge.source != gate)
        });
        let graph = Graph::new(
            envelope.nodes.iter().map(|node| node.id.as_str()),
            edges.map(|edge| (edge.source.as_str(), edge.target.as_str())),
        );
        let found = graph.reachable(&ids::state(from));
        let states = contract.states.iter().map(|state| state.name.as_str());
        states.filter(|state| found.contains(ids::state(state).as_str())).collect::<BTreeSet<_>>()
    };
    let behind = reached(&transition.to, true);
    let obliged = contract.obligations.iter().any(|one| one.gate == transition.gate);
    behind.contains(reject)
        || reached(reject, false)
            .iter()
            .any(|state| *state == transition.to || (obliged && behind.contains(state)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn the_envelope_of_an_invoice_has_all_edges() {
        let envelope = generate(&samples::invoice()).unwrap();
        let edges: Vec<String> = envelope
            .edges
            .iter()
            .chain(&envelope.return_edges)
            .map(|edge| {
                let label = edge.label.as_deref().map(|label| format!("[{label}] "));
                format!("{} {}-> {}", edge.source, label.unwrap_or_default(), edge.target)
            })
            .collect();
        assert_eq!(
            edges,
            [
                "sys:gate:approve -> sys:state:active",
                "sys:gate:cancel -> sys:state:cancelled",
                "sys:gate:submit -> sys:state:submitted",
                "sys:start -> sys:state:draft",
                "sys:state:active -> sys:end",
                "sys:state:amended -> sys:gate:submit",
                "sys:state:cancelled -> sys:end",
                "sys:state:draft [cancel] -> sys:gate:cancel",
                "sys:state:draft -> sys:gate:submit",
                "sys:state:submitted -> sys:gate:approve",
                "sys:state:submitted [cancel] -> sys:gate:cancel",
                "sys:gate:approve [reject] -> sys:state:draft",
                "sys:state:submitted [drift] -> sys:state:amended",
            ]
        );
    }

    #[test]
    fn a_lifecycle_that_cannot_work_is_refused_with_a_place() {
        type Change = fn(&mut LifecycleContract);
        let check = |change: Change, code: &str, pointer: &str| {
            let mut contract = samples::invoice();
            change(&mut contract);
            let found = generate(&contract).unwrap_err();
            let places: Vec<(&str, &str)> = found
                .iter()
                .map(|one| (one.code.as_str(), one.place.pointer.as_deref().unwrap_or_default()))
                .collect();
            assert!(places.contains(&(code, pointer)), "{code} {pointer} not in {places:?}");
        };
        check(|c| c.version = 0, "CONTRACT_LIFECYCLE", "/version");
        check(|c| c.entity_type = "In voice".to_owned(), "CONTRACT_NAME", "/entityType");
        check(|c| c.initial = "drift".to_owned(), "CONTRACT_UNKNOWN", "/initial");
        check(|c| c.states.push(c.states[0].clone()), "CONTRACT_DUPLICATE", "/states/5/name");
        check(|c| c.states[0].is_final = true, "CONTRACT_LIFECYCLE", "/transitions/0/from");
        check(
            |c| c.transitions[0].gate = "go".to_owned(),
            "CONTRACT_UNKNOWN",
            "/transitions/0/gate",
        );
        check(
            |c| c.transitions[1].to = "active".to_owned(),
            "CONTRACT_LIFECYCLE",
            "/transitions/1",
        );
        check(|c| c.amended = None, "CONTRACT_LIFECYCLE", "/slots/1");
        check(|c| c.slots[1].entry = "sys:state:draft".to_owned(), "CONTRACT_UNKNOWN", "/slots/1");
        check(
            |c| {
                let (entry, exit) = (c.slots[0].entry.clone(), c.slots[0].exit.clone());
                (c.slots[1].entry, c.slots[1].exit) = (entry, exit);
            },
            "CONTRACT_DUPLICATE",
            "/slots/1",
        );
        check(
            |c| c.obligations[0].gate = "x".to_owned(),
            "CONTRACT_UNKNOWN",
            "/obligations/0/gate",
        );
        check(|c| c.slots[1].on_drift = OnDrift::Fail, "CONTRACT_LIFECYCLE", "/transitions");
    }

    #[test]
    fn a_cycle_of_transitions_is_printed_as_a_path() {
        let mut contract = samples::invoice();
        contract.transitions[2].reject = None;
        contract.transitions[2].to = "draft".to_owned();
        let found = generate(&contract).unwrap_err();
        let cycle = found.iter().find(|one| !one.path.is_empty()).unwrap();
        assert_eq!(
            cycle.path,
            [
                "sys:gate:approve",
                "sys:state:draft",
                "sys:gate:submit",
                "sys:state:submitted",
                "sys:gate:approve"
            ]
        );
    }
}
