//! The begin of a new run for a document that an earlier run has left in a state.

use std::collections::BTreeSet;

use super::Input;
use crate::ids;
use crate::types::CompiledWorkflow;
use crate::types::edge::labels;

/// The input with which a new run begins for a document that an earlier run has left in a state.
///
/// `has_drifted` says that somebody has changed the content since the document entered the state, and that no
/// action of a run did so. The run then begins where a live run would have gone: in the amended state, if the
/// slot of the state amends. If there is none, a document behind a gate with an obligation begins anew, because
/// the gate has seen other content.
pub fn restart(artefact: &CompiledWorkflow, state: &str, has_drifted: bool) -> Input {
    let id = ids::state(state);
    let first = ahead(artefact, ids::START).into_iter().next();
    if first == Some(id.as_str()) {
        return Input::Start;
    }
    let at = |state: &str| Input::StartAt { state: state.to_owned() };
    if !has_drifted {
        return at(state);
    }
    let is_drift = |label: &Option<String>| label.as_deref() == Some(labels::DRIFT);
    let mut drifts = artefact.edges_by_id.values();
    let amended = drifts
        .find(|edge| edge.is_return && edge.source == id && is_drift(&edge.label))
        .and_then(|edge| ids::state_name(&edge.target));
    match amended {
        Some(amended) => at(amended),
        None if is_behind_obligation(artefact, &id) => Input::Start,
        None => at(state),
    }
}

fn is_behind_obligation(artefact: &CompiledWorkflow, node: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut todo: Vec<String> =
        artefact.obligations.iter().map(|obligation| ids::gate(&obligation.gate)).collect();
    while let Some(at) = todo.pop() {
        if at == node {
            return true;
        }
        let next = ahead(artefact, &at).into_iter().map(str::to_owned).collect::<Vec<_>>();
        if seen.insert(at) {
            todo.extend(next);
        }
    }
    false
}

/// The nodes that forward edges lead to, apart from cancellations.
fn ahead<'a>(artefact: &'a CompiledWorkflow, node: &str) -> Vec<&'a str> {
    let edges = artefact.adjacency.get(node).into_iter().flatten();
    let edges = edges.filter_map(|id| artefact.edges_by_id.get(id));
    let forward = edges.filter(|edge| edge.label.as_deref() != Some(labels::CANCEL));
    forward.map(|edge| edge.target.as_str()).collect()
}
