//! Edit windows through which a change could pass a gate without the approvals that the gate needs.

use std::collections::BTreeSet;

use crate::codes::CONTRACT_LIFECYCLE;
use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::ids;
use crate::types::edge::labels;
use crate::types::{EditWindow, Envelope, GateTrigger, LifecycleContract, OnDrift};

/// Only a stable slot notices a change. So a window of `amend_only` stands in one, and behind a gate with an
/// obligation every window that is not locked does.
pub(super) fn check(
    contract: &LifecycleContract,
    envelope: &Envelope,
    found: &mut Vec<Diagnostic>,
) {
    let mut wrong = |pointer: String, message: String, help: &str| {
        found.push(Diagnostic::new(CONTRACT_LIFECYCLE, message).at(pointer).help(help));
    };
    let behind = behind(contract, envelope);
    let mut window = |pointer: String, what: String, at: &str, window: EditWindow, stable: bool| {
        if stable || window == EditWindow::Locked {
            return;
        }
        if window == EditWindow::AmendOnly {
            let message = format!("{what} has the window amend_only, but is not in a stable slot");
            let help = "set `stableRegion` of the slot that begins there, or use the window locked, \
                        or editable before the gates with obligations";
            return wrong(pointer, message, help);
        }
        if let Some((gate, _)) = behind.iter().find(|(_, nodes)| nodes.contains(at)) {
            let message =
                format!("{what} is editable behind the gate {gate:?}, which has an obligation");
            let help = "use the window locked, or amend_only in a stable slot: otherwise nobody \
                        approves the change";
            wrong(pointer, message, help);
        }
    };
    let stable = |entry: &str, exit: Option<&str>| {
        contract.slots.iter().any(|slot| {
            slot.stable_region && slot.entry == entry && exit.is_none_or(|exit| slot.exit == exit)
        })
    };
    for (index, state) in contract.states.iter().enumerate() {
        let (at, what) = (ids::state(&state.name), format!("the state {:?}", state.name));
        let pointer = format!("/states/{index}/editWindow");
        window(pointer, what, &at, state.edit_window, stable(&at, None));
    }
    for (index, gate) in contract.gates.iter().enumerate() {
        if gate.trigger == GateTrigger::Cancel {
            continue;
        }
        let (at, what) = (ids::gate(&gate.name), format!("the gate {:?}", gate.name));
        let mut entering = contract.transitions.iter().filter(|one| one.gate == gate.name);
        let all_stable = entering.all(|one| stable(&ids::state(&one.from), Some(&at)));
        window(format!("/gates/{index}/editWindow"), what, &at, gate.edit_window, all_stable);
    }
    for (index, slot) in contract.slots.iter().enumerate() {
        let what = format!("the slot {:?}", slot.slot_id);
        let pointer = format!("/slots/{index}/defaultEditWindow");
        // The end tells: a slot that begins at a gate is behind it, one that ends there is not.
        let own = slot.default_edit_window;
        window(pointer, what, &slot.exit, own, slot.stable_region);
    }
    for (index, slot) in contract.slots.iter().enumerate() {
        let amends = slot.stable_region && slot.on_drift == OnDrift::Amend;
        let Some(amended) = contract.amended.as_deref().filter(|_| amends) else { continue };
        let ahead = ahead(envelope, &ids::state(amended));
        let passed = behind.iter().filter(|(_, nodes)| nodes.contains(&slot.exit));
        for (gate, _) in passed.filter(|(gate, _)| !ahead.contains(&ids::gate(gate))) {
            let message = format!(
                "a change in the slot {:?} leads to {amended:?}, behind the gate {gate:?} with its obligation",
                slot.slot_id
            );
            let help = "name a state before the gate in `amended`, or set `onDrift` to `fail`";
            wrong(format!("/slots/{index}"), message, help);
        }
    }
}

/// The gates with obligations, each with all nodes that a document reaches behind it.
fn behind<'a>(
    contract: &'a LifecycleContract,
    envelope: &Envelope,
) -> Vec<(&'a str, BTreeSet<String>)> {
    let gates: BTreeSet<&str> = contract.obligations.iter().map(|one| one.gate.as_str()).collect();
    let behind = |gate| {
        let id = ids::gate(gate);
        let mut nodes = ahead(envelope, &id);
        nodes.remove(&id);
        (gate, nodes)
    };
    gates.into_iter().map(behind).collect()
}

/// A node and the nodes ahead of it, apart from those that a cancellation leads to.
fn ahead(envelope: &Envelope, from: &str) -> BTreeSet<String> {
    let is_cancel = |label: &Option<String>| label.as_deref() == Some(labels::CANCEL);
    let edges = envelope.edges.iter().filter(|edge| !is_cancel(&edge.label));
    let graph = Graph::new(
        envelope.nodes.iter().map(|node| node.id.as_str()),
        edges.map(|edge| (edge.source.as_str(), edge.target.as_str())),
    );
    graph.reachable(from).into_iter().map(str::to_owned).collect()
}
