//! Replaces the direct edge of each slot by its patch, and puts a policy check before each action.

use std::collections::BTreeMap;

use super::{Slot, normalized};
use crate::codes::GRAPH_CYCLE;
use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::ids;
use crate::types::{
    AttachmentConfig, AttachmentSide, CompiledEdge, Edge, Envelope, Node, NodeConfig, PolicyConfig,
};

/// The effective graph.
#[derive(Clone, Debug)]
pub(crate) struct Merged {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) edges: BTreeMap<String, CompiledEdge>,
    pub(crate) slot_map: BTreeMap<String, String>,
}

pub(super) fn merge(envelope: &Envelope, slots: &[Slot<'_>]) -> Merged {
    let mut merged =
        Merged { nodes: BTreeMap::new(), edges: BTreeMap::new(), slot_map: BTreeMap::new() };
    for node in &envelope.nodes {
        merged.add_node(node.clone(), ids::ENVELOPE);
    }
    for edge in &envelope.edges {
        let filled = slots.iter().any(|slot| {
            let slot = slot.attached.slot;
            slot.entry == edge.source && slot.exit == edge.target && edge.label.is_none()
        });
        if !filled {
            merged.add_edge(edge, ids::ENVELOPE, false);
        }
    }
    for edge in &envelope.return_edges {
        merged.add_edge(edge, ids::ENVELOPE, true);
    }
    for slot in slots {
        merged.add_slot(slot);
    }
    merged
}

impl Merged {
    fn add_node(&mut self, node: Node, owner: &str) {
        self.slot_map.insert(node.id.clone(), owner.to_owned());
        self.nodes.insert(node.id.clone(), node);
    }

    fn add_edge(&mut self, edge: &Edge, provenance: &str, is_return: bool) {
        let compiled = CompiledEdge {
            id: edge.id.clone(),
            source: edge.source.clone(),
            target: edge.target.clone(),
            priority: edge.priority,
            label: edge.label.clone(),
            condition: edge.condition.clone(),
            provenance: provenance.to_owned(),
            is_return,
        };
        self.edges.insert(edge.id.clone(), compiled);
    }

    fn connect(&mut self, source: &str, target: &str, provenance: &str) {
        let edge = Edge {
            id: ids::system_edge(source, target),
            source: source.to_owned(),
            target: target.to_owned(),
            label: None,
            condition: None,
            priority: 0,
        };
        self.add_edge(&edge, provenance, false);
    }

    fn add_slot(&mut self, slot: &Slot<'_>) {
        let attached = &slot.attached;
        let id = attached.slot.slot_id.as_str();
        let (begin, end) = (ids::slot_in(id), ids::slot_out(id));
        for (node, side) in [(&begin, AttachmentSide::In), (&end, AttachmentSide::Out)] {
            let config = AttachmentConfig { slot: id.to_owned(), side };
            self.add_node(Node::new(node.clone(), NodeConfig::Attachment(config)), id);
        }
        self.connect(&attached.slot.entry, &begin, id);
        self.connect(&end, &attached.slot.exit, id);
        let mut policies = BTreeMap::new();
        for node in &attached.patch.nodes {
            if let NodeConfig::Action(action) = &node.config {
                let policy = ids::policy(&node.id);
                let config = PolicyConfig {
                    guards: node.id.clone(),
                    action_type: action.mutation.action_type.clone(),
                    run_as: action.mutation.run_as,
                };
                self.add_node(Node::new(policy.clone(), NodeConfig::PolicyGate(config)), id);
                self.connect(&policy, &node.id, id);
                policies.insert(node.id.as_str(), policy);
            }
            self.add_node(normalized(node), id);
        }
        for edge in &attached.edges {
            let mut edge = edge.clone();
            if let Some(policy) = policies.get(edge.target.as_str()) {
                edge.target = policy.clone();
            }
            self.add_edge(&edge, id, false);
        }
    }

    pub(super) fn adjacency(&self) -> BTreeMap<String, Vec<String>> {
        adjacency(&self.nodes, &self.edges)
    }

    pub(super) fn reverse_adjacency(&self) -> BTreeMap<String, Vec<String>> {
        reverse_adjacency(&self.nodes, &self.edges)
    }

    pub(super) fn order(&self) -> Result<Vec<String>, Diagnostic> {
        order(&self.nodes, &self.edges)
    }
}

/// The forward edges that leave each node, in the order of evaluation.
pub(super) fn adjacency(
    nodes: &BTreeMap<String, Node>,
    edges: &BTreeMap<String, CompiledEdge>,
) -> BTreeMap<String, Vec<String>> {
    let mut leaving: BTreeMap<String, Vec<&CompiledEdge>> =
        nodes.keys().map(|id| (id.clone(), Vec::new())).collect();
    for edge in edges.values().filter(|edge| !edge.is_return) {
        leaving.entry(edge.source.clone()).or_default().push(edge);
    }
    let sorted = |mut list: Vec<&CompiledEdge>| {
        list.sort_by(|a, b| (a.priority, &a.id).cmp(&(b.priority, &b.id)));
        list.into_iter().map(|edge| edge.id.clone()).collect()
    };
    leaving.into_iter().map(|(id, list)| (id, sorted(list))).collect()
}

/// The forward edges that enter each node, sorted by id.
pub(super) fn reverse_adjacency(
    nodes: &BTreeMap<String, Node>,
    edges: &BTreeMap<String, CompiledEdge>,
) -> BTreeMap<String, Vec<String>> {
    let mut entering: BTreeMap<String, Vec<String>> =
        nodes.keys().map(|id| (id.clone(), Vec::new())).collect();
    for edge in edges.values().filter(|edge| !edge.is_return) {
        entering.entry(edge.target.clone()).or_default().push(edge.id.clone());
    }
    entering
}

/// The topological order of the forward edges.
pub(super) fn order(
    nodes: &BTreeMap<String, Node>,
    edges: &BTreeMap<String, CompiledEdge>,
) -> Result<Vec<String>, Diagnostic> {
    let forward = edges.values().filter(|edge| !edge.is_return);
    let graph = Graph::new(
        nodes.keys().map(String::as_str),
        forward.map(|edge| (edge.source.as_str(), edge.target.as_str())),
    );
    match graph.order() {
        Ok(order) => Ok(order.into_iter().map(|index| graph.id(index).to_owned()).collect()),
        Err(cycle) => Err(Diagnostic::new(GRAPH_CYCLE, "the workflow has a cycle")
            .path(cycle)
            .help("remove one of these edges; only the envelope has ways back")),
    }
}
