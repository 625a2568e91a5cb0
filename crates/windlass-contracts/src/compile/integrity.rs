//! Proves that the merged graph contains the whole envelope, unchanged and in order (WF-08).

use std::collections::{BTreeMap, BTreeSet};

use super::merge::Merged;
use crate::codes::ENVELOPE_INTEGRITY;
use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::ids;
use crate::types::{
    CompiledEdge, CompiledWorkflow, Edge, Envelope, GateIntegrity, Node, NodeConfig, NodeType,
};

/// Compares the merged graph with the envelope.
pub(super) fn prove(envelope: &Envelope, merged: &Merged) -> Result<GateIntegrity, Diagnostic> {
    check_nodes(envelope, merged)?;
    check_edges(envelope, merged)?;
    check_policies(&merged.nodes, &merged.edges)?;
    let system: BTreeSet<String> = envelope.nodes.iter().map(|node| node.id.clone()).collect();
    let own = |edges: Vec<(&str, &str)>, ids: Vec<&str>| {
        Graph::new(ids, edges).dominators_within(ids::START, &system)
    };
    let required = own(
        envelope
            .edges
            .iter()
            .chain(&envelope.return_edges)
            .map(|edge| (edge.source.as_str(), edge.target.as_str()))
            .collect(),
        system.iter().map(String::as_str).collect(),
    );
    let present = dominators(&merged.nodes, &merged.edges, &system);
    for (node, gate) in &required {
        if present.get(node) != Some(gate) {
            let found = present.get(node).map_or("nothing", String::as_str);
            return Err(broken(format!("{node} must come after {gate}, not after {found}")));
        }
    }
    let gates: Vec<String> = gates(&envelope.nodes, &required);
    let present_gates =
        gates.iter().filter(|gate| merged.nodes.contains_key(*gate)).cloned().collect();
    Ok(GateIntegrity { required_gates: gates, present_gates, dominators: present, valid: true })
}

/// Checks an artefact that was read from a store against its own proof.
pub(super) fn recheck(compiled: &CompiledWorkflow) -> Result<(), Diagnostic> {
    let proof = &compiled.system_gate_integrity;
    if !proof.valid || proof.required_gates != proof.present_gates {
        return Err(broken("the artefact does not prove its gates".to_owned()));
    }
    if let Some(gate) = proof.required_gates.iter().find(|gate| !compiled.nodes.contains_key(*gate))
    {
        return Err(broken(format!("the gate {gate} is missing")));
    }
    check_policies(&compiled.nodes, &compiled.edges_by_id)?;
    let mut system: BTreeSet<String> = proof.dominators.keys().cloned().collect();
    system.insert(ids::START.to_owned());
    if dominators(&compiled.nodes, &compiled.edges_by_id, &system) != proof.dominators {
        return Err(broken("the gates are not in the order of the envelope".to_owned()));
    }
    Ok(())
}

fn broken(message: String) -> Diagnostic {
    Diagnostic::new(ENVELOPE_INTEGRITY, message)
        .help("compile the definition again from its contract and patches")
}

fn gates(nodes: &[Node], dominators: &BTreeMap<String, String>) -> Vec<String> {
    let depth = |id: &str| {
        let mut at = id;
        let mut depth = 0_usize;
        while let Some(next) = dominators.get(at) {
            (at, depth) = (next, depth + 1);
        }
        depth
    };
    let mut gates: Vec<String> = nodes
        .iter()
        .filter(|node| node.node_type() == NodeType::LifecycleGate)
        .map(|node| node.id.clone())
        .collect();
    gates.sort_by_key(|id| (depth(id), id.clone()));
    gates
}

fn dominators(
    nodes: &BTreeMap<String, Node>,
    edges: &BTreeMap<String, CompiledEdge>,
    system: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    Graph::new(
        nodes.keys().map(String::as_str),
        edges.values().map(|edge| (edge.source.as_str(), edge.target.as_str())),
    )
    .dominators_within(ids::START, system)
}

fn check_nodes(envelope: &Envelope, merged: &Merged) -> Result<(), Diagnostic> {
    for node in &envelope.nodes {
        match merged.nodes.get(&node.id) {
            None => return Err(broken(format!("the system node {} is missing", node.id))),
            Some(found) if found != node => {
                return Err(broken(format!("the system node {} was changed", node.id)));
            }
            Some(_) => {}
        }
    }
    let own: BTreeSet<&str> = envelope.nodes.iter().map(|node| node.id.as_str()).collect();
    let slots: BTreeSet<&str> = envelope.slots.iter().map(|slot| slot.slot_id.as_str()).collect();
    for node in merged.nodes.values().filter(|node| node.node_type().is_system()) {
        let known = match &node.config {
            NodeConfig::Attachment(config) => slots.contains(config.slot.as_str()),
            NodeConfig::PolicyGate(config) => merged.nodes.contains_key(&config.guards),
            _ => own.contains(node.id.as_str()),
        };
        if !known {
            return Err(broken(format!("the system node {} is not in the envelope", node.id)));
        }
    }
    Ok(())
}

fn check_edges(envelope: &Envelope, merged: &Merged) -> Result<(), Diagnostic> {
    let own: BTreeSet<&str> = envelope.nodes.iter().map(|node| node.id.as_str()).collect();
    let mut expected: BTreeMap<String, (Edge, bool)> = BTreeMap::new();
    let mut expect =
        |edge: Edge, is_return| match expected.insert(edge.id.clone(), (edge, is_return)) {
            None => Ok(()),
            Some((edge, _)) => Err(broken(format!("two system edges have the id {}", edge.id))),
        };
    let plain = |source: &str, target: &str| Edge {
        id: ids::system_edge(source, target),
        source: source.to_owned(),
        target: target.to_owned(),
        label: None,
        condition: None,
        priority: 0,
    };
    for edge in &envelope.edges {
        let slot = envelope.slots.iter().find(|slot| {
            slot.entry == edge.source && slot.exit == edge.target && edge.label.is_none()
        });
        match slot.filter(|slot| merged.nodes.contains_key(&ids::slot_in(&slot.slot_id))) {
            Some(slot) => {
                let begin = ids::slot_in(&slot.slot_id);
                let end = ids::slot_out(&slot.slot_id);
                expect(plain(&slot.entry, &begin), false)?;
                expect(plain(&end, &slot.exit), false)?;
            }
            None => expect(edge.clone(), false)?,
        }
    }
    for edge in &envelope.return_edges {
        expect(edge.clone(), true)?;
    }
    for (id, (edge, is_return)) in &expected {
        let same = |found: &CompiledEdge| {
            found.is_return == *is_return
                && (&found.source, &found.target, found.priority)
                    == (&edge.source, &edge.target, edge.priority)
                && (&found.label, &found.condition) == (&edge.label, &edge.condition)
        };
        if !merged.edges.get(id).is_some_and(same) {
            return Err(broken(format!("the system edge {id} is missing or changed")));
        }
    }
    let extra = merged.edges.values().find(|edge| {
        let touches = own.contains(edge.source.as_str()) || own.contains(edge.target.as_str());
        touches && !expected.contains_key(&edge.id)
    });
    match extra {
        Some(edge) => {
            Err(broken(format!("the edge {} touches a system node outside a slot", edge.id)))
        }
        None => Ok(()),
    }
}

/// Every action has its policy check as the only node before it.
fn check_policies(
    nodes: &BTreeMap<String, Node>,
    edges: &BTreeMap<String, CompiledEdge>,
) -> Result<(), Diagnostic> {
    for node in nodes.values().filter(|node| node.node_type() == NodeType::Action) {
        let policy = ids::policy(&node.id);
        let mut before = edges.values().filter(|edge| edge.target == node.id);
        let only =
            before.next().is_some_and(|edge| edge.source == policy) && before.next().is_none();
        if !only || !nodes.contains_key(&policy) {
            return Err(broken(format!("the action {} has no policy check", node.id)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::merge;
    use crate::envelope;
    use crate::samples;

    fn check(change: impl FnOnce(&mut Merged), part: &str) {
        let envelope = envelope::generate(&samples::invoice()).unwrap();
        let mut merged = merge::merge(&envelope, &[]);
        assert!(prove(&envelope, &merged).unwrap().valid);
        change(&mut merged);
        let error = prove(&envelope, &merged).unwrap_err();
        assert_eq!(error.code, ENVELOPE_INTEGRITY);
        assert!(error.message.contains(part), "{}", error.message);
    }

    #[test]
    fn a_missing_system_node_is_found() {
        check(
            |merged| drop(merged.nodes.remove("sys:gate:approve")),
            "sys:gate:approve is missing",
        );
    }

    #[test]
    fn a_changed_system_node_is_found() {
        check(
            |merged| {
                let node = merged.nodes.get_mut("sys:state:active").unwrap();
                node.edit_window = Some(crate::types::EditWindow::Editable);
            },
            "sys:state:active was changed",
        );
    }

    #[test]
    fn an_edge_past_a_gate_is_found() {
        check(
            |merged| {
                let id = ids::system_edge("sys:state:submitted", "sys:gate:approve");
                let mut edge = merged.edges[&id].clone();
                edge.id = "shortcut".to_owned();
                edge.target = "sys:state:active".to_owned();
                merged.edges.insert(edge.id.clone(), edge);
            },
            "shortcut touches a system node",
        );
    }

    #[test]
    fn a_changed_system_edge_is_found() {
        fn edge<'a>(merged: &'a mut Merged, id: &str) -> &'a mut CompiledEdge {
            merged.edges.get_mut(id).unwrap()
        }
        let submit = "sys:edge:sys:gate:submit->sys:state:submitted";
        let reject = "sys:edge:sys:gate:approve->sys:state:draft[reject]";
        let active = || "sys:state:active".to_owned();
        check(|merged| edge(merged, submit).target = active(), submit);
        check(|merged| edge(merged, submit).is_return = true, submit);
        check(|merged| edge(merged, reject).label = None, reject);
        check(|merged| drop(merged.edges.remove(reject)), reject);
    }

    #[test]
    fn edges_with_one_id_are_found() {
        let mut envelope = envelope::generate(&samples::invoice()).unwrap();
        let mut other = envelope.return_edges[0].clone();
        other.label = Some("other".to_owned());
        envelope.return_edges.push(other);
        let error = prove(&envelope, &merge::merge(&envelope, &[])).unwrap_err();
        assert!(error.message.contains("two system edges have the id"), "{}", error.message);
    }

    #[test]
    fn reordered_gates_are_found() {
        let envelope = envelope::generate(&samples::invoice()).unwrap();
        let mut merged = merge::merge(&envelope, &[]);
        let proof = prove(&envelope, &merged).unwrap();
        let id = ids::system_edge("sys:gate:submit", "sys:state:submitted");
        merged.edges.get_mut(&id).unwrap().target = "sys:state:active".to_owned();
        let system = envelope.nodes.iter().map(|node| node.id.clone()).collect();
        assert_ne!(dominators(&merged.nodes, &merged.edges, &system), proof.dominators);
    }
}
