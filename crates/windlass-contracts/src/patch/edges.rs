//! Checks that the edges of each node fit its type and its outcomes.

use std::collections::{BTreeMap, BTreeSet};

use super::Surroundings;
use crate::codes::NODE_EDGES;
use crate::diagnostic::Diagnostic;
use crate::ids;
use crate::types::edge::labels;
use crate::types::{DueAction, Edge, JoinMode, NodeConfig, SlotGraphPatch};

const LABEL_CHARS_MAX: usize = 100;

/// How a node selects one of its edges.
pub(crate) enum Selection<'a> {
    /// There is one edge.
    Single,
    /// All edges are taken.
    All,
    /// The first edge whose condition holds.
    Conditions,
    /// The edge whose label is the outcome.
    Outcomes {
        /// The outcome of an edge without a label.
        default: &'a str,
        /// All outcomes, and whether the edge may be absent.
        all: Vec<(&'a str, bool)>,
    },
}

pub(super) fn check(
    around: &Surroundings<'_>,
    patch: &SlotGraphPatch,
    edges: &[Edge],
    at: &str,
    found: &mut Vec<Diagnostic>,
) {
    let mut leaving: BTreeMap<&str, Vec<&Edge>> = BTreeMap::new();
    for edge in edges {
        leaving.entry(&edge.source).or_default().push(edge);
    }
    for (index, edge) in patch.edges.iter().enumerate() {
        let label = edge.label.as_deref().unwrap_or_default();
        if label.chars().count() > LABEL_CHARS_MAX || label.chars().any(char::is_control) {
            let message = format!("the label of edge {:?} is not short plain text", edge.id);
            found.push(
                Diagnostic::new(NODE_EDGES, message)
                    .at(format!("{at}/edges/{index}/label"))
                    .help(format!("write at most {LABEL_CHARS_MAX} printable characters")),
            );
        }
        if let Some(condition) = &edge.condition {
            let place = format!("{at}/edges/{index}/condition");
            found.extend(around.language.check_condition(condition, &place));
        }
    }
    let begin = ids::slot_in(&around.slot.slot_id);
    let empty = Vec::new();
    let mut one = |id: &str, selection: &Selection<'_>, place: String, auto: bool| {
        let edges = leaving.get(id).unwrap_or(&empty);
        check_one(id, selection, edges, auto, &place, found);
    };
    one(&begin, &Selection::Conditions, at.to_owned(), false);
    let written: BTreeSet<&str> = patch.edges.iter().map(|edge| edge.source.as_str()).collect();
    for (index, node) in patch.nodes.iter().enumerate() {
        let outcomes;
        let selection = match &node.config {
            NodeConfig::Rule(config) => {
                outcomes = around.language.outcomes(&config.rule);
                let all = outcomes.iter().map(|outcome| (outcome.as_str(), false)).collect();
                Selection::Outcomes { default: "", all }
            }
            other => selection(other, around.can_reject),
        };
        let auto = !written.contains(node.id.as_str());
        one(&node.id, &selection, format!("{at}/nodes/{index}"), auto);
    }
}

/// How a node of this configuration selects its edges. A rule adds the outcomes of its table.
pub(crate) fn selection(config: &NodeConfig, can_reject: bool) -> Selection<'static> {
    let outcomes = |all: Vec<(&'static str, bool)>| Selection::Outcomes { default: all[0].0, all };
    match config {
        NodeConfig::Condition(_) => Selection::Conditions,
        NodeConfig::ParallelSplit(_) => Selection::All,
        NodeConfig::ParallelJoin(join) => match (join.mode, &join.accept) {
            (JoinMode::Any, Some(_)) => {
                outcomes(vec![("accepted", false), (labels::EXHAUSTED, false)])
            }
            _ => Selection::Single,
        },
        NodeConfig::Approval(approval) => {
            let mut all = vec![(labels::APPROVED, false), (labels::REJECTED, can_reject)];
            if approval.due.as_ref().is_some_and(|due| due.then == DueAction::Timeout) {
                all.push((labels::TIMEOUT, false));
            }
            outcomes(all)
        }
        NodeConfig::WaitEvent(event) if event.timeout.is_some() => {
            outcomes(vec![("received", false), (labels::TIMEOUT, false)])
        }
        _ => Selection::Single,
    }
}

fn check_one(
    id: &str,
    selection: &Selection<'_>,
    edges: &[&Edge],
    auto: bool,
    place: &str,
    found: &mut Vec<Diagnostic>,
) {
    let mut wrong = |message: String, help: &str| {
        found.push(Diagnostic::new(NODE_EDGES, message).at(place).help(help));
    };
    if !matches!(selection, Selection::Conditions)
        && let Some(edge) = edges.iter().find(|edge| edge.condition.is_some())
    {
        let message = format!("the edge {:?} has a condition, but {id} does not choose", edge.id);
        wrong(message, "put a node of the type `condition` before it");
    }
    match selection {
        Selection::Single if edges.len() > 1 => wrong(
            format!("{id} has {} edges that leave it", edges.len()),
            "use a condition to choose one, or a parallel_split to take all",
        ),
        Selection::Single => {}
        Selection::All if auto => {
            wrong(format!("the split {id} has no branches"), "add the edges to its branches")
        }
        Selection::All => {}
        Selection::Conditions => check_conditions(id, edges, auto, &mut wrong),
        Selection::Outcomes { default, all } => {
            check_outcomes(id, default, all, edges, &mut wrong);
        }
    }
}

fn check_conditions(id: &str, edges: &[&Edge], auto: bool, wrong: &mut impl FnMut(String, &str)) {
    if auto {
        wrong(format!("{id} has no edges to choose from"), "add edges with conditions");
        return;
    }
    let mut sorted = edges.to_vec();
    sorted.sort_by(|a, b| (a.priority, &a.id).cmp(&(b.priority, &b.id)));
    if let Some(at) = sorted.iter().position(|edge| edge.condition.is_none())
        && let Some(later) = sorted.get(at + 1)
    {
        let message = format!(
            "the edge {:?} of {id} has no condition, so {:?} is never taken",
            sorted[at].id, later.id
        );
        wrong(message, "give the edge without a condition the highest priority number");
    }
}

fn check_outcomes(
    id: &str,
    default: &str,
    outcomes: &[(&str, bool)],
    edges: &[&Edge],
    wrong: &mut impl FnMut(String, &str),
) {
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    for edge in edges {
        let label = edge.label.as_deref().unwrap_or(default);
        if !outcomes.iter().any(|(outcome, _)| *outcome == label) {
            let names: Vec<&str> = outcomes.iter().map(|(outcome, _)| *outcome).collect();
            wrong(
                format!("{id} never has the outcome {label:?} of edge {:?}", edge.id),
                &format!("use one of these labels: {}", names.join(", ")),
            );
        } else if !taken.insert(label) {
            wrong(
                format!("two edges of {id} have the outcome {label:?}"),
                "keep one edge for each outcome",
            );
        }
    }
    for (outcome, optional) in outcomes {
        if !optional && !taken.contains(outcome) {
            wrong(
                format!("no edge of {id} has the outcome {outcome:?}"),
                &format!("add an edge with the label {outcome:?}"),
            );
        }
    }
}
