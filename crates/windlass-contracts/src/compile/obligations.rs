//! Proves that every path to a gate meets the obligations of the contract.

use std::collections::BTreeMap;

use super::{Error, Origin, Slot};
use crate::codes::OBLIGATION_BROKEN;
use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::ids;
use crate::patch::Attached;
use crate::types::edge::labels;
use crate::types::{Edge, Envelope, JoinMode, LifecycleContract, Need, NodeConfig, Obligation};

/// The credit of a path on which the waiver applies.
const WAIVED: u32 = u32::MAX;

/// Checks all obligations. The error names the path with the least credit.
pub(super) fn check(
    contract: &LifecycleContract,
    envelope: &Envelope,
    slots: &[Slot<'_>],
) -> Result<(), Error> {
    for obligation in &contract.obligations {
        let gate = ids::gate(&obligation.gate);
        for edge in envelope.edges.iter().filter(|edge| edge.target == gate) {
            let slot = slots.iter().find(|slot| {
                slot.attached.slot.entry == edge.source && slot.attached.slot.exit == gate
            });
            let (credit, path) = match slot {
                Some(slot) => worst_path(contract, &slot.attached, obligation),
                None => (0, vec![edge.source.clone(), gate.clone()]),
            };
            if credit < needed(obligation) {
                let origin = slot.map_or(Origin::Contract, |slot| slot.origin);
                let at = slot.map_or_else(|| "/obligations".to_owned(), |slot| slot.at.clone());
                let change = slot.and_then(|slot| last_change(contract, &slot.attached, &path));
                let problems = vec![problem(obligation, credit, path, at, change)];
                return Err(Error { origin, problems });
            }
        }
    }
    Ok(())
}

/// The obligations sorted by id.
pub(super) fn sorted(contract: &LifecycleContract) -> Vec<Obligation> {
    let mut list = contract.obligations.clone();
    list.sort_by(|a, b| a.id.cmp(&b.id));
    list
}

fn needed(obligation: &Obligation) -> u32 {
    match &obligation.needs {
        Need::Approvals { count, .. } => *count,
        Need::Action { .. } => 1,
    }
}

/// The last action on a path that changes the document. What counts before it is about content that
/// the document no longer has.
fn last_change<'a>(
    contract: &LifecycleContract,
    attached: &Attached<'a>,
    path: &[String],
) -> Option<&'a str> {
    let changes = |id: &&String| {
        attached
            .patch
            .nodes
            .iter()
            .find(|node| node.id == **id && changes_document(contract, &node.config))
    };
    path.iter().rev().find_map(|id| changes(&id)).map(|node| node.id.as_str())
}

fn changes_document(contract: &LifecycleContract, config: &NodeConfig) -> bool {
    matches!(config, NodeConfig::Action(action)
        if contract.document_actions.contains(&action.mutation.action_type))
}

fn problem(
    obligation: &Obligation,
    credit: u32,
    path: Vec<String>,
    at: String,
    change: Option<&str>,
) -> Diagnostic {
    let approvals = |count: u32| match count {
        1 => "1 approval".to_owned(),
        count => format!("{count} approvals"),
    };
    let needs = match &obligation.needs {
        Need::Approvals { count, role: None } => approvals(*count),
        Need::Approvals { count, role: Some(role) } => {
            format!("{} by {role:?}", approvals(*count))
        }
        Need::Action { action_type } => format!("the action {action_type:?}"),
    };
    let message = format!(
        "the obligation {:?} needs {needs} before the gate {:?}, and this path has {credit}",
        obligation.id, obligation.gate
    );
    let after = change
        .map(|node| format!(" after {node}, which changes the document; nothing before it counts"));
    let after = after.unwrap_or_default();
    let help = match &obligation.unless {
        Some(waiver) => format!(
            "let the path pass the rule {:?} with the outcome {:?}, or add the missing nodes to \
             it{after}",
            waiver.rule, waiver.outcome
        ),
        None => format!("add the missing nodes to the path{after}"),
    };
    Diagnostic::new(OBLIGATION_BROKEN, message).at(at).path(path).help(help)
}

/// The least credit of all paths through a slot, and a path that has it.
///
/// Values are relative to the branch that a node is in. An ALL join adds the least credit of each
/// branch to that of the split, because a run passes all of them; an ANY join adds the least of all.
/// An action that changes the document takes all credit away. It never stands in a branch.
fn worst_path(
    contract: &LifecycleContract,
    attached: &Attached<'_>,
    obligation: &Obligation,
) -> (u32, Vec<String>) {
    let slot = attached.slot;
    let (begin, end) = (ids::slot_in(&slot.slot_id), ids::slot_out(&slot.slot_id));
    let configs: BTreeMap<&str, &NodeConfig> =
        attached.patch.nodes.iter().map(|node| (node.id.as_str(), &node.config)).collect();
    let graph = Graph::new(
        configs.keys().copied().chain([begin.as_str(), end.as_str()]),
        attached.edges.iter().map(|edge| (edge.source.as_str(), edge.target.as_str())),
    );
    // The slot validator has refused cycles.
    let order = graph.order().unwrap_or_default();
    let mut value: BTreeMap<usize, u32> = BTreeMap::new();
    let mut before: BTreeMap<usize, usize> = BTreeMap::new();
    for &node in &order {
        let mut least: BTreeMap<Option<usize>, (u32, usize)> = BTreeMap::new();
        for &(from, edge) in graph.incoming(node) {
            let starts_anew = configs.get(graph.id(from)).is_some_and(|config| {
                matches!(config, NodeConfig::ParallelSplit(_)) || changes_document(contract, config)
            });
            let start = if starts_anew { 0 } else { value[&from] };
            let credit = start.saturating_add(credit(&configs, &attached.edges[edge], obligation));
            let branch = attached.regions.branch_of_edge[edge];
            let entry = least.entry(branch).or_insert((credit, from));
            *entry = (*entry).min((credit, from));
        }
        let worst = least.values().copied().min();
        if let Some((_, from)) = worst {
            before.insert(node, from);
        }
        let credit = worst.map_or(0, |(credit, _)| credit);
        let total = match attached.regions.joins.get(graph.id(node)) {
            Some((split, _)) => {
                let base = graph.index(split).map_or(0, |split| value[&split]);
                let any = matches!(
                    configs.get(graph.id(node)),
                    Some(NodeConfig::ParallelJoin(join)) if join.mode == JoinMode::Any
                );
                let sum = least.values().fold(0_u32, |sum, (one, _)| sum.saturating_add(*one));
                base.saturating_add(if any { credit } else { sum })
            }
            None => credit,
        };
        value.insert(node, total);
    }
    let mut path = vec![slot.exit.clone()];
    let mut at = graph.index(&end);
    while let Some(node) = at {
        path.push(graph.id(node).to_owned());
        at = before.get(&node).copied();
    }
    path.push(slot.entry.clone());
    path.reverse();
    (graph.index(&end).map_or(0, |end| value[&end]), path)
}

/// The credit of an edge: an approval counts when it is granted by people.
fn credit(configs: &BTreeMap<&str, &NodeConfig>, edge: &Edge, obligation: &Obligation) -> u32 {
    let label = edge.label.as_deref();
    match (configs.get(edge.source.as_str()), &obligation.needs) {
        (Some(NodeConfig::Rule(rule)), _) => match &obligation.unless {
            Some(waiver) if waiver.rule == rule.rule && label == Some(waiver.outcome.as_str()) => {
                WAIVED
            }
            _ => 0,
        },
        (Some(NodeConfig::Approval(approval)), Need::Approvals { role, .. }) => {
            let granted = label.is_none_or(|label| label == labels::APPROVED);
            let by_role =
                role.as_ref().is_none_or(|wanted| approval.role() == Some(wanted.as_str()));
            if granted && by_role { approval.people_min() } else { 0 }
        }
        (Some(NodeConfig::Action(action)), Need::Action { action_type }) => {
            u32::from(action.mutation.action_type == *action_type)
        }
        _ => 0,
    }
}
