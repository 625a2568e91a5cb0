//! Actions that change the document stand only where a gate still sees the change.
//!
//! Approvals and exemptions count for the content that they were given for. A patch must not change
//! the content afterwards: behind the gate, in a branch that others do not wait for, or as the
//! compensation of another action, which nobody waits for.

use std::collections::BTreeSet;

use super::{Error, Slot};
use crate::codes::PATCH_DOCUMENT_ACTION;
use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::ids;
use crate::types::{Envelope, LifecycleContract, NodeConfig};

pub(super) fn check(
    contract: &LifecycleContract,
    envelope: &Envelope,
    slots: &[Slot<'_>],
) -> Result<(), Error> {
    let graph = Graph::new(
        envelope.nodes.iter().map(|node| node.id.as_str()),
        envelope.edges.iter().map(|edge| (edge.source.as_str(), edge.target.as_str())),
    );
    let gates: BTreeSet<String> =
        contract.obligations.iter().map(|obligation| ids::gate(&obligation.gate)).collect();
    for slot in slots {
        let passed = gates
            .iter()
            .find(|gate| graph.reachable(gate).contains(slot.attached.slot.entry.as_str()));
        let problems = check_slot(contract, slot, passed.map(String::as_str));
        if !problems.is_empty() {
            return Err(Error { origin: slot.origin, problems });
        }
    }
    Ok(())
}

/// Checks the actions of a slot. `passed` is a gate with an obligation that stands before the slot.
fn check_slot(
    contract: &LifecycleContract,
    slot: &Slot<'_>,
    passed: Option<&str>,
) -> Vec<Diagnostic> {
    let attached = &slot.attached;
    let mut found = Vec::new();
    for (index, node) in attached.patch.nodes.iter().enumerate() {
        let NodeConfig::Action(action) = &node.config else { continue };
        let mut wrong = |field: &str, action_type: &str, reason: &str, help: &str| {
            let message = format!("{action_type:?} changes the document, but {reason}");
            let at = format!("{}/nodes/{index}/config/{field}/actionType", slot.at);
            found.push(Diagnostic::new(PATCH_DOCUMENT_ACTION, message).at(at).help(help));
        };
        if let Some(undo) = &action.compensate
            && contract.document_actions.contains(&undo.action_type)
        {
            let reason = "the run does not wait for a compensation";
            let help = "put an action after the join instead";
            wrong("compensate", &undo.action_type, reason, help);
        }
        let action_type = &action.mutation.action_type;
        if !contract.document_actions.contains(action_type) {
            continue;
        }
        if let Some(gate) = passed {
            let reason = format!("{gate} was passed with the content from before");
            let help = "move the action to a slot before the gate";
            wrong("mutation", action_type, &reason, help);
        }
        let branches = attached.edges.iter().zip(&attached.regions.branch_of_edge);
        if branches.into_iter().any(|(edge, branch)| edge.target == node.id && branch.is_some()) {
            let reason = format!("{} stands in a parallel branch", node.id);
            let help = "move the action before the split or after the join";
            wrong("mutation", action_type, &reason, help);
        }
    }
    found
}
