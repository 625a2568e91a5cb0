//! Choices of edges, joins, gates and return edges.

use serde_json::{Map, Value, json};

use super::machine::{Machine, Move, ROOT};
use super::state::is_live;
use super::{Effect, StepRow, StepStatus};
use crate::codes::{WORKFLOW_EVALUATION, WORKFLOW_NO_EDGE, WORKFLOW_VERSION_DRIFT};
use crate::diagnostic::Diagnostic;
use crate::dsl::Expression;
use crate::ids;
use crate::types::edge::labels;
use crate::types::{
    CompiledEdge, CompiledWorkflow, ExpressionText, JoinMode, NodeConfig, NodeType, OnDrift, RunAs,
};

impl<'a> Machine<'a> {
    /// The forward edges of a node, in the order of evaluation.
    pub(super) fn edges(&self, node: &str) -> Vec<&'a CompiledEdge> {
        let artefact = self.artefact;
        let ids = artefact.adjacency.get(node).map_or(&[][..], Vec::as_slice);
        ids.iter().filter_map(|id| artefact.edges_by_id.get(id)).collect()
    }

    /// Takes the only edge. An edge without a label comes first, because the edge from a state to
    /// a cancel gate has one.
    pub(super) fn single(&mut self, row: StepRow) {
        let edges = self.edges(&row.node);
        match edges.iter().find(|edge| edge.label.is_none()).or(edges.first()) {
            Some(edge) => {
                let edge = *edge;
                self.complete(row, &[edge]);
            }
            None => self.no_edge(row, ""),
        }
    }

    /// Takes the edge of an outcome; an edge without a label belongs to the outcome `normal`.
    pub(super) fn by_outcome(&mut self, row: StepRow, outcome: &str, normal: &str) {
        let edges = self.edges(&row.node);
        let fits = |edge: &&&CompiledEdge| edge.label.as_deref().unwrap_or(normal) == outcome;
        match edges.iter().find(fits) {
            Some(edge) => {
                let edge = *edge;
                self.complete(row, &[edge]);
            }
            None => self.no_edge(row, outcome),
        }
    }

    pub(super) fn no_edge(&mut self, mut row: StepRow, outcome: &str) {
        row.chosen_edge_ids = Some(Vec::new());
        let of = if outcome.is_empty() { String::new() } else { format!(" for {outcome:?}") };
        let message = format!("no edge of {} can be taken{of}", row.node);
        let problem = Diagnostic::new(WORKFLOW_NO_EDGE, message)
            .help("correct the document or the settings that the conditions read, then retry");
        self.fail(row, &problem);
    }

    /// Takes the first edge whose condition holds.
    pub(super) fn by_conditions(&mut self, mut row: StepRow) {
        let mut evidence = Vec::new();
        let mut chosen = None;
        for edge in self.edges(&row.node) {
            let Some(condition) = &edge.condition else {
                chosen = Some(edge);
                break;
            };
            match self.evaluate(condition) {
                Ok(explained) => {
                    let holds = explained.is_true();
                    let mut one = json!(explained);
                    one["edge"] = json!(edge.id);
                    evidence.push(one);
                    if holds {
                        chosen = Some(edge);
                        break;
                    }
                }
                Err(problem) => {
                    row.output = json!({"conditions": evidence});
                    row.chosen_edge_ids = Some(Vec::new());
                    return self.fail(row, &problem);
                }
            }
        }
        row.output = json!({"conditions": evidence});
        match chosen {
            Some(edge) => self.complete(row, &[edge]),
            None => self.no_edge(row, ""),
        }
    }

    pub(super) fn evaluate(
        &self,
        text: &ExpressionText,
    ) -> Result<crate::dsl::Explained, Diagnostic> {
        Expression::parse(text.as_str())
            .and_then(|expression| expression.evaluate(&self.scope()))
            .map_err(|error| {
                let message = format!("{:?} cannot be evaluated: {error}", text.as_str());
                Diagnostic::new(WORKFLOW_EVALUATION, message)
                    .help("correct the document or the settings that it reads, then retry")
            })
    }

    /// Ends a waiting step that has no outcomes.
    pub(super) fn finish(&mut self, mut row: StepRow, output: Value, writes: Map<String, Value>) {
        row.output = output;
        row.writes = writes;
        self.single(row);
    }

    /// The return edge of a node.
    pub(super) fn back(&self, node: &str, label: &str) -> Option<&'a CompiledEdge> {
        self.artefact.edges_by_id.values().find(|edge| {
            edge.is_return && edge.source == node && edge.label.as_deref() == Some(label)
        })
    }

    /// Takes a return edge: all other work ends, and a new cycle begins.
    pub(super) fn go_back(&mut self, mut row: StepRow, edge: &'a CompiledEdge, slot: &str) {
        let reason = edge.label.clone().unwrap_or_default();
        row.status = StepStatus::Completed;
        row.applied = row.applied.filter(|applied| *applied);
        row.done = Some(self.state.next_done);
        row.chosen_edge_ids = Some(vec![edge.id.clone()]);
        let seq = row.seq;
        self.put_completed(row);
        self.leave(&reason, Some(slot), |open| open.seq != seq);
        self.state.cycle += 1;
        self.state.open.clear();
        self.queue.clear();
        self.root_to(edge.target.clone());
    }

    /// Cancels live rows and undoes the actions of the slot, or of all slots.
    fn leave(&mut self, reason: &str, slot: Option<&str>, which: impl Fn(&StepRow) -> bool) {
        self.cancel_rows(reason, which);
        let artefact = self.artefact;
        self.compensate(|row| slot.is_none_or(|slot| artefact.slot_map[&row.node] == slot));
    }

    /// Undoes completed actions, the last one first.
    fn compensate(&mut self, which: impl Fn(&StepRow) -> bool) {
        let mut rows: Vec<StepRow> = self
            .state
            .open
            .values()
            .filter(|row| row.node_type == NodeType::Action && row.status == StepStatus::Completed)
            .filter(|row| which(row))
            .cloned()
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.done));
        for mut row in rows {
            let Some(NodeConfig::Action(action)) =
                self.artefact.nodes.get(&row.node).map(|node| &node.config)
            else {
                continue;
            };
            let Some(mutation) = &action.compensate else { continue };
            // An expression that fails leaves the field out: undoing must not stop half way.
            let payload = mutation
                .payload_template
                .iter()
                .filter_map(|(name, text)| {
                    Some((name.clone(), self.evaluate(text).ok()?.value().clone()))
                })
                .collect();
            self.effect(Effect::Mutate {
                key: format!("{}|undo", row.key),
                action_type: mutation.action_type.clone(),
                payload,
                run_as: mutation.run_as,
                await_result: false,
                may_change_document: false,
                compensates: Some(row.key.clone()),
            });
            row.applied = Some(false);
            self.put(row);
        }
    }

    /// Reacts to a material change of the document in a stable region. Returns whether there is one.
    pub(super) fn drift(&mut self) -> bool {
        let is_stale = |row: &&StepRow| {
            is_live(row)
                && row.version < self.facts.drift_version
                && self.artefact.stable_region_nodes.contains(&row.node)
                && !has_drifted(row)
        };
        let mut stale: Vec<StepRow> = self.state.open.values().filter(is_stale).cloned().collect();
        let Some(mut row) = stale.pop() else { return false };
        let slot = slot_of(self.artefact, &row.node);
        let evidence = json!({
            "drift": {"from": row.version, "to": self.facts.version},
        });
        let edge =
            entry_of(self.artefact, &slot).and_then(|entry| self.back(&entry, labels::DRIFT));
        match (self.artefact.on_drift.get(&slot), edge) {
            (Some(OnDrift::Amend), Some(edge)) => {
                if row.status == StepStatus::Waiting {
                    self.effect(Effect::Withdraw { key: row.key.clone() });
                }
                row.output = evidence;
                row.outcome = Some(labels::DRIFT.to_owned());
                self.go_back(row, edge, &slot);
            }
            _ => {
                stale.push(row);
                stale.into_iter().for_each(|row| self.fail_drifted(row, &slot, &evidence));
            }
        }
        true
    }

    fn fail_drifted(&mut self, mut row: StepRow, slot: &str, evidence: &Value) {
        let message = format!(
            "the document changed from version {} to {} in the stable region of {slot:?}",
            row.version, self.facts.version
        );
        if row.status == StepStatus::Waiting {
            self.effect(Effect::Withdraw { key: row.key.clone() });
        }
        row.output = evidence.clone();
        let problem = Diagnostic::new(WORKFLOW_VERSION_DRIFT, message)
            .help("cancel the document, or restart its run");
        self.fail(row, &problem);
    }

    /// Cancels the document through a cancel gate.
    pub(super) fn cancel(&mut self, gate: &str) {
        let id = ids::gate(gate);
        let from = ids::state(&self.state.lifecycle);
        if !self.edges(&from).iter().any(|edge| edge.target == id) {
            let state = self.state.lifecycle.clone();
            self.ignored = Some(format!("the gate {gate:?} is closed in the state {state:?}"));
            return;
        }
        self.leave(labels::CANCEL, None, |_| true);
        self.state.open.clear();
        self.queue.clear();
        self.root_to(id);
    }

    /// A token arrives at a join.
    pub(super) fn arrive(&mut self, mut row: StepRow) {
        let Some(requirement) = self.artefact.join_requirements.get(&row.node) else {
            return self.no_edge(row, "");
        };
        let accept = match self.artefact.nodes.get(&row.node).map(|node| &node.config) {
            Some(NodeConfig::ParallelJoin(config)) => config.accept.as_ref(),
            _ => None,
        };
        let mut accepted = requirement.mode == JoinMode::Any;
        if let Some(accept) = accept {
            match self.evaluate(accept) {
                Ok(explained) => {
                    accepted = explained.is_true();
                    row.output = json!(explained);
                }
                Err(problem) => return self.fail(row, &problem),
            }
        }
        row.status = StepStatus::Arrived;
        let (join, token) = (row.node.clone(), row.token.clone());
        let parent = parent(&token).to_owned();
        self.put(row);
        let is_sibling = |row: &StepRow| self::parent(&row.token) == parent;
        let arrived = self
            .state
            .open
            .values()
            .filter(|row| row.node == join && row.status == StepStatus::Arrived && is_sibling(row))
            .count();
        let all = arrived >= requirement.required_token_count as usize;
        match requirement.mode {
            JoinMode::All if all => self.fire(&join, &parent, "all"),
            JoinMode::Any if accepted => {
                self.cancel_branches(&join, &token);
                self.fire(&join, &parent, "accepted");
            }
            JoinMode::Any if all => self.fire(&join, &parent, labels::EXHAUSTED),
            JoinMode::All | JoinMode::Any => {}
        }
    }

    /// Cancels the branches that lose an ANY join, and undoes their actions.
    fn cancel_branches(&mut self, join: &str, winner: &str) {
        // Tokens of one split share everything up to the number of the branch.
        let family = winner.rsplit_once('-').map_or(winner, |(family, _)| family);
        let of_split =
            |token: &str| token.strip_prefix(family).is_some_and(|rest| rest.starts_with('-'));
        let loses = |row: &StepRow| {
            of_split(&row.token) && row.token != winner && !is_below(&row.token, winner)
        };
        let arrived = |row: &StepRow| row.node == join && row.status == StepStatus::Arrived;
        self.queue.retain(|to| !of_split(&to.token));
        self.cancel_rows("another branch won the join", |row| loses(row) && !arrived(row));
        self.compensate(loses);
        self.void(loses);
    }

    /// Marks the approvals, rules and actions of losing branches, so that no gate counts them.
    fn void(&mut self, which: impl Fn(&StepRow) -> bool) {
        let is_counted = |row: &StepRow| {
            matches!(row.node_type, NodeType::Approval | NodeType::Rule | NodeType::Action)
                && row.status == StepStatus::Completed
        };
        let rows: Vec<StepRow> =
            self.state.open.values().filter(|row| is_counted(row) && which(row)).cloned().collect();
        for mut row in rows {
            row.lost = true;
            self.put(row);
        }
    }

    /// Ends the arrivals of a join and moves the parent token on.
    fn fire(&mut self, join: &str, parent: &str, outcome: &str) {
        let arrivals: Vec<StepRow> = self
            .state
            .open
            .values()
            .filter(|row| row.node == join && row.status == StepStatus::Arrived)
            .filter(|row| self::parent(&row.token) == parent)
            .cloned()
            .collect();
        let tokens: Vec<String> = arrivals.iter().map(|row| row.token.clone()).collect();
        for mut row in arrivals {
            row.status = StepStatus::Completed;
            row.done = Some(self.state.next_done);
            row.chosen_edge_ids = Some(Vec::new());
            self.put(row);
        }
        let Some(node) = self.artefact.nodes.get(join) else { return };
        let mut row = self.new_row(&self.parent_move(join, parent), node);
        row.key = format!("{join}|join:{parent}|v{}|{}", row.version, row.cycle);
        row.outcome = Some(outcome.to_owned());
        row.output = json!({"arrived": tokens});
        row.run_as = RunAs::System;
        match &node.config {
            NodeConfig::ParallelJoin(config) if config.accept.is_some() => {
                self.by_outcome(row, outcome, "accepted");
            }
            _ => self.single(row),
        }
    }

    /// The parent token on its way to the join. Its split row is open until the join fires.
    fn parent_move(&self, join: &str, parent: &str) -> Move {
        let split = self.artefact.join_requirements.get(join).map(|one| one.split.as_str());
        let row = self
            .state
            .open
            .values()
            .find(|row| row.token == parent && Some(row.node.as_str()) == split);
        Move {
            token: parent.to_owned(),
            spawned_from: row.map_or(ids::START.to_owned(), |row| row.spawned_from.clone()),
            path_index: row.map_or(0, |row| row.path_index),
            node: join.to_owned(),
        }
    }
}

pub(super) fn has_drifted(row: &StepRow) -> bool {
    row.status == StepStatus::Failed && row.output.get("drift").is_some()
}

/// The token that was split into this one. Children are `<parent>.<step>-<branch>`.
pub(super) fn parent(token: &str) -> &str {
    token.rsplit_once('.').map_or(ROOT, |(parent, _)| parent)
}

fn is_below(token: &str, ancestor: &str) -> bool {
    token.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with('.'))
}

/// The slot of a node; for a system node, the slot that ends there.
pub(super) fn slot_of(artefact: &CompiledWorkflow, node: &str) -> String {
    let owner = artefact.slot_map.get(node).map_or(ids::ENVELOPE, String::as_str);
    if owner != ids::ENVELOPE {
        return owner.to_owned();
    }
    let entering = artefact.reverse_adjacency.get(node).map_or(&[][..], Vec::as_slice);
    entering
        .iter()
        .filter_map(|id| artefact.edges_by_id.get(id))
        .map(|edge| edge.provenance.as_str())
        .find(|slot| artefact.on_drift.contains_key(*slot))
        .unwrap_or(owner)
        .to_owned()
}

fn entry_of(artefact: &CompiledWorkflow, slot: &str) -> Option<String> {
    let entering = artefact.reverse_adjacency.get(&ids::slot_in(slot))?;
    Some(artefact.edges_by_id.get(entering.first()?)?.source.clone())
}

pub(super) fn exit_of(artefact: &CompiledWorkflow, slot: &str) -> Option<String> {
    let leaving = artefact.adjacency.get(&ids::slot_out(slot))?;
    Some(artefact.edges_by_id.get(leaving.first()?)?.target.clone())
}
