//! The slot validator: a patch stays inside its slot, and its graph is sound.

mod config;
mod edges;

use std::collections::{BTreeMap, BTreeSet};

use crate::codes::{
    CONTRACT_DUPLICATE, GRAPH_CYCLE, GRAPH_REGION, GRAPH_UNREACHABLE, PATCH_ATTACHMENT,
    PATCH_EDIT_WINDOW, PATCH_SCOPE, PATCH_SYSTEM_NODE,
};
use crate::diagnostic::Diagnostic;
use crate::graph::{Graph, REGION_DEPTH_MAX, RegionError, Regions, find_regions};
use crate::ids;
use crate::language::Language;
use crate::types::{
    BodySlot, Edge, EditWindow, EntryEdgeMode, ExitEdgeMode, Node, NodeType, SlotGraphPatch,
};

/// A patch with the edges that the compiler adds, and its parallel regions.
#[derive(Debug)]
pub(crate) struct Attached<'a> {
    pub(crate) slot: &'a BodySlot,
    pub(crate) patch: &'a SlotGraphPatch,
    /// The edges of the patch and the added ones.
    pub(crate) edges: Vec<Edge>,
    pub(crate) regions: Regions,
}

/// The surroundings of a slot that its patch is checked against.
pub(crate) struct Surroundings<'a> {
    pub(crate) slot: &'a BodySlot,
    /// Whether a rejection in the slot can return through the gate at its end.
    pub(crate) can_reject: bool,
    pub(crate) language: &'a Language,
}

/// Checks a patch (WF-06) and connects it to the attachment points of its slot.
///
/// `at` is the place of the patch in the JSON input.
pub(crate) fn check<'a>(
    around: &Surroundings<'a>,
    patch: &'a SlotGraphPatch,
    at: &str,
) -> Result<Attached<'a>, Vec<Diagnostic>> {
    let mut found = Vec::new();
    check_window(around.slot, patch, at, &mut found);
    check_nodes(around.slot, patch, at, &mut found);
    check_edges(around.slot, patch, at, &mut found);
    if !found.is_empty() {
        return Err(found);
    }
    for (index, node) in patch.nodes.iter().enumerate() {
        config::check(around.language, node, &format!("{at}/nodes/{index}"), &mut found);
    }
    let edges = attach(around.slot, patch, at, &mut found);
    edges::check(around, patch, &edges, at, &mut found);
    if !found.is_empty() {
        return Err(found);
    }
    let regions = check_graph(around.slot, patch, &edges, at)?;
    Ok(Attached { slot: around.slot, patch, edges, regions })
}

fn check_window(slot: &BodySlot, patch: &SlotGraphPatch, at: &str, found: &mut Vec<Diagnostic>) {
    if let Some(window) = patch.edit_window_override
        && window < slot.default_edit_window
    {
        let message = format!(
            "the edit window {window} is less strict than {} of the slot {:?}",
            slot.default_edit_window, slot.slot_id
        );
        found.push(
            Diagnostic::new(PATCH_EDIT_WINDOW, message)
                .at(format!("{at}/editWindowOverride"))
                .help("a patch can only make a window stricter: editable, amend_only, locked"),
        );
    }
    if patch.edit_window_override == Some(EditWindow::AmendOnly) && !slot.stable_region {
        let message = format!(
            "the window amend_only amends nothing in the slot {:?}, which is not stable",
            slot.slot_id
        );
        found.push(
            Diagnostic::new(PATCH_EDIT_WINDOW, message)
                .at(format!("{at}/editWindowOverride"))
                .help("use the window locked, or leave it out"),
        );
    }
}

fn check_nodes(slot: &BodySlot, patch: &SlotGraphPatch, at: &str, found: &mut Vec<Diagnostic>) {
    let mut seen = BTreeMap::new();
    for (index, node) in patch.nodes.iter().enumerate() {
        let place = format!("{at}/nodes/{index}");
        let id = &node.id;
        if node.node_type().is_system() {
            let message = format!("the node {id:?} has the system type {}", node.node_type());
            found.push(
                Diagnostic::new(PATCH_SYSTEM_NODE, message)
                    .at(format!("{place}/type"))
                    .help("only the envelope has nodes of this type"),
            );
        }
        if !ids::is_custom_node(id, &slot.slot_id) {
            let message = format!("{id:?} is not the id of a node in the slot {:?}", slot.slot_id);
            found.push(Diagnostic::new(PATCH_SCOPE, message).at(format!("{place}/id")).help(
                format!(
                    "write usr:{}:<name> with lowercase letters, digits, _ and -",
                    slot.slot_id
                ),
            ));
        }
        if node.edit_window.is_some() {
            found.push(
                Diagnostic::new(PATCH_EDIT_WINDOW, format!("the node {id:?} has an edit window"))
                    .at(format!("{place}/editWindow"))
                    .help("a slot has one window; set `editWindowOverride` of the patch"),
            );
        }
        if let Some(first) = seen.insert(id.as_str(), index) {
            found.push(
                Diagnostic::new(
                    CONTRACT_DUPLICATE,
                    format!("{at}/nodes/{first} has the id {id:?} too"),
                )
                .at(format!("{place}/id"))
                .help("use each id once"),
            );
        }
    }
}

fn check_edges(slot: &BodySlot, patch: &SlotGraphPatch, at: &str, found: &mut Vec<Diagnostic>) {
    let nodes: BTreeSet<&str> = patch.nodes.iter().map(|node| node.id.as_str()).collect();
    let (begin, end) = (ids::slot_in(&slot.slot_id), ids::slot_out(&slot.slot_id));
    let mut seen = BTreeMap::new();
    for (index, edge) in patch.edges.iter().enumerate() {
        let place = format!("{at}/edges/{index}");
        if !ids::is_custom_edge(&edge.id) {
            found.push(
                Diagnostic::new(PATCH_SCOPE, format!("{:?} is not the id of an edge", edge.id))
                    .at(format!("{place}/id"))
                    .help("write 1 to 128 letters, digits, _ - . : and do not begin with sys:"),
            );
        }
        if let Some(first) = seen.insert(edge.id.as_str(), index) {
            let message = format!("{at}/edges/{first} has the id {:?} too", edge.id);
            found.push(
                Diagnostic::new(CONTRACT_DUPLICATE, message)
                    .at(format!("{place}/id"))
                    .help("use each id once"),
            );
        }
        for (field, id, point) in [("source", &edge.source, &begin), ("target", &edge.target, &end)]
        {
            if !nodes.contains(id.as_str()) && id != point {
                let message = format!(
                    "the {field} {id:?} of edge {:?} is outside the slot {:?}",
                    edge.id, slot.slot_id
                );
                found.push(
                    Diagnostic::new(PATCH_SCOPE, message)
                        .at(format!("{place}/{field}"))
                        .help(format!("name a node of this patch, or {point}")),
                );
            }
        }
    }
}

/// Adds the edges between the attachment points and the first and last nodes.
fn attach(
    slot: &BodySlot,
    patch: &SlotGraphPatch,
    at: &str,
    found: &mut Vec<Diagnostic>,
) -> Vec<Edge> {
    let (begin, end) = (ids::slot_in(&slot.slot_id), ids::slot_out(&slot.slot_id));
    let added = |source: &str, target: &str| Edge {
        id: ids::system_edge(source, target),
        source: source.to_owned(),
        target: target.to_owned(),
        label: None,
        condition: None,
        priority: 0,
    };
    let mut edges = patch.edges.clone();
    if patch.nodes.is_empty() {
        if patch.edges.is_empty() {
            edges.push(added(&begin, &end));
        }
        return edges;
    }
    let targets: BTreeSet<&str> = patch.edges.iter().map(|edge| edge.target.as_str()).collect();
    let sources: BTreeSet<&str> = patch.edges.iter().map(|edge| edge.source.as_str()).collect();
    let ids = || patch.nodes.iter().map(|node| node.id.as_str());
    let first: Vec<&str> = ids().filter(|id| !targets.contains(id)).collect();
    let written = patch.edges.iter().filter(|edge| edge.source == begin).count();
    match patch.entry_edge_mode {
        EntryEdgeMode::Serial if written > 1 || (written == 0 && first.len() > 1) => {
            let message = format!("the slot {:?} begins with several nodes", slot.slot_id);
            found.push(
                Diagnostic::new(PATCH_ATTACHMENT, message).at(at).path(first.iter().copied()).help(
                    format!(
                        "lead to them from one node, or set entryEdgeMode to `branch` \
                                   and write edges from {begin}"
                    ),
                ),
            );
        }
        EntryEdgeMode::Serial if written == 0 => {
            edges.extend(first.iter().map(|id| added(&begin, id)));
        }
        EntryEdgeMode::Branch if written == 0 => {
            let message = format!("no edge begins at {begin}");
            found.push(
                Diagnostic::new(PATCH_ATTACHMENT, message)
                    .at(format!("{at}/entryEdgeMode"))
                    .help("write the edges to the first nodes, with conditions"),
            );
        }
        EntryEdgeMode::Serial | EntryEdgeMode::Branch => {}
    }
    let last: Vec<&str> = ids().filter(|id| !sources.contains(id)).collect();
    edges.extend(last.iter().map(|id| added(id, &end)));
    let ending: BTreeSet<&str> =
        edges.iter().filter(|edge| edge.target == end).map(|edge| edge.source.as_str()).collect();
    if patch.exit_edge_mode == ExitEdgeMode::Single && ending.len() > 1 {
        let message = format!("the slot {:?} ends with several nodes", slot.slot_id);
        found.push(
            Diagnostic::new(PATCH_ATTACHMENT, message)
                .at(at)
                .path(ending)
                .help("lead them to one node, or set exitEdgeMode to `join`"),
        );
    }
    edges
}

fn check_graph(
    slot: &BodySlot,
    patch: &SlotGraphPatch,
    edges: &[Edge],
    at: &str,
) -> Result<Regions, Vec<Diagnostic>> {
    let (begin, end) = (ids::slot_in(&slot.slot_id), ids::slot_out(&slot.slot_id));
    let nodes = patch.nodes.iter().map(|node| node.id.as_str());
    let graph = Graph::new(
        nodes.clone().chain([begin.as_str(), end.as_str()]),
        edges.iter().map(|edge| (edge.source.as_str(), edge.target.as_str())),
    );
    let order = graph.order().map_err(|cycle| {
        vec![
            Diagnostic::new(GRAPH_CYCLE, format!("the slot {:?} has a cycle", slot.slot_id))
                .at(format!("{at}/edges"))
                .path(cycle)
                .help("remove one of these edges; only the envelope has ways back"),
        ]
    })?;
    let (reached, reaching) = (graph.reachable(&begin), graph.reaching(&end));
    let mut found = Vec::new();
    for (index, node) in patch.nodes.iter().enumerate() {
        let id = node.id.as_str();
        let message = match (reached.contains(id), reaching.contains(id)) {
            (false, _) => format!("the run can never reach {id}"),
            (true, false) => format!("the run can never leave the slot after {id}"),
            (true, true) => continue,
        };
        found.push(
            Diagnostic::new(GRAPH_UNREACHABLE, message)
                .at(format!("{at}/nodes/{index}"))
                .help("add the missing edge, or remove the node"),
        );
    }
    if !found.is_empty() {
        return Err(found);
    }
    let types: BTreeMap<&str, NodeType> =
        patch.nodes.iter().map(|node| (node.id.as_str(), node.node_type())).collect();
    let has = |id: &str, wanted: NodeType| types.get(id) == Some(&wanted);
    find_regions(
        &graph,
        &order,
        |id| has(id, NodeType::ParallelSplit),
        |id| has(id, NodeType::ParallelJoin),
    )
    .map_err(|error| vec![region_problem(patch, &error, at)])
}

fn region_problem(patch: &SlotGraphPatch, error: &RegionError, at: &str) -> Diagnostic {
    let place = |id: &str| {
        let index = patch.nodes.iter().position(|node: &Node| node.id == id);
        index.map_or_else(|| at.to_owned(), |index| format!("{at}/nodes/{index}"))
    };
    let new = |message: String| Diagnostic::new(GRAPH_REGION, message);
    let found = match error {
        RegionError::JoinWithoutSplit { join } => {
            new(format!("no split leads to the join {join}")).at(place(join))
        }
        RegionError::SplitWithoutJoin { split } => {
            new(format!("the branches of {split} never meet in a join")).at(place(split))
        }
        RegionError::Escapes { split, from, to } => {
            new(format!("the edge from {from} to {to} leaves a branch of {split} outside its join"))
                .at(place(split))
                .path([from.clone(), to.clone()])
        }
        RegionError::TwoJoins { split, first, second } => {
            new(format!("the branches of {split} meet in two joins, {first} and {second}"))
                .at(place(split))
        }
        RegionError::OneBranch { split } => {
            new(format!("the split {split} has fewer than two branches")).at(place(split))
        }
        RegionError::TooDeep { split } => {
            let text =
                format!("the split {split} stands inside {REGION_DEPTH_MAX} others, the limit");
            return new(text).at(place(split)).help("put parallel regions one after the other");
        }
    };
    found.help("lead all branches of a split to one parallel_join, and nothing else into it")
}
