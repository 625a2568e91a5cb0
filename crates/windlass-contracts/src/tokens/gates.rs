//! Decisions of people, and the gates that consume them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::flow::{exit_of, slot_of};
use super::machine::{Machine, merged};
use super::{Effect, StepRow, StepStatus, Verdict, quorum};
use crate::ids;
use crate::types::edge::labels;
use crate::types::{ApprovalConfig, CompiledWorkflow, Need, NodeConfig, NodeType, Obligation};

impl Machine<'_> {
    /// Counts the decisions on a request, and ends the step if they decide it.
    pub(super) fn vote(
        &mut self,
        mut row: StepRow,
        config: &ApprovalConfig,
        asked: &BTreeSet<String>,
        decisions: &BTreeMap<String, Verdict>,
        givers: &BTreeMap<String, String>,
    ) {
        let taken = self.taken(&row);
        let repeats = |person: &&String| {
            taken.contains(*person) && decisions.get(*person) != Some(&Verdict::Rejected)
        };
        let asked: BTreeSet<String> =
            asked.iter().filter(|person| !repeats(person)).cloned().collect();
        if asked.is_empty() {
            return self.ignore(match taken.is_empty() {
                true => "nobody is asked",
                false => {
                    "all people who are asked have approved another step, and the gate needs \
                     approvals of different people"
                }
            });
        }
        let count = quorum::count(config, &asked, decisions, givers);
        let evidence = merged(row.output.clone(), count.evidence(decisions));
        let outcome = match count.verdict {
            Some(Verdict::Approved) => labels::APPROVED,
            Some(_) => labels::REJECTED,
            None if row.output == evidence => {
                let (granted, needed) = (count.granted, count.needed);
                self.ignored = Some(format!("the quorum is not reached: {granted} of {needed}"));
                return;
            }
            None => {
                row.output = evidence;
                return self.put(row);
            }
        };
        self.decide(row, outcome, evidence);
    }

    /// The people who cannot approve this step, because the gate needs different people and they
    /// have approved another step that counts there.
    fn taken(&self, row: &StepRow) -> BTreeSet<String> {
        let Some(gate) = self.gate_of(row) else { return BTreeSet::new() };
        let different = |one: &&Obligation| {
            ids::gate(&one.gate) == gate
                && matches!(one.needs, Need::Approvals { count, .. } if count > 1)
        };
        if !self.artefact.obligations.iter().any(|one| different(&one)) {
            return BTreeSet::new();
        }
        let counted = self.counted(&gate);
        counted.iter().flat_map(approvers).map(str::to_owned).collect()
    }

    /// Ends an approval.
    pub(super) fn decide(&mut self, mut row: StepRow, outcome: &str, output: Value) {
        let by_people = output.get("by").is_some();
        row.output = output;
        row.outcome = Some(outcome.to_owned());
        if outcome == labels::APPROVED && by_people {
            row.applied = Some(false);
        }
        let has_edge =
            self.edges(&row.node).iter().any(|edge| edge.label.as_deref() == Some(outcome));
        if outcome == labels::REJECTED && !has_edge {
            let slot = slot_of(self.artefact, &row.node);
            return match exit_of(self.artefact, &slot)
                .and_then(|gate| self.back(&gate, labels::REJECT))
            {
                Some(edge) => self.go_back(row, edge, &slot),
                None => self.no_edge(row, outcome),
            };
        }
        self.by_outcome(row, outcome, labels::APPROVED);
    }

    /// The gate that a step of a slot leads to.
    fn gate_of(&self, row: &StepRow) -> Option<String> {
        exit_of(self.artefact, &slot_of(self.artefact, &row.node))
    }

    /// The approvals that count at a gate: granted by people for the current content of the
    /// document, in a slot that leads to the gate.
    fn counted(&self, gate: &str) -> Vec<StepRow> {
        let rows = self.state.open.values().filter(|row| {
            row.node_type == NodeType::Approval
                && row.status == StepStatus::Completed
                && row.applied == Some(false)
                && row.version >= self.facts.material_version
                && self.gate_of(row).as_deref() == Some(gate)
        });
        rows.cloned().collect()
    }

    /// Consumes approvals and passes a gate, or sends the run back if approvals are missing.
    pub(super) fn pass_gate(&mut self, mut row: StepRow) {
        let gate = row.node.clone();
        let fresh = self.counted(&gate);
        if let Some(obligation) = self.missing(&gate, &fresh) {
            let slot = slot_of(self.artefact, &gate);
            row.output = json!({"missing": obligation, "approvals": fresh.len()});
            row.outcome = Some(labels::REJECT.to_owned());
            return match self.back(&gate, labels::REJECT) {
                Some(edge) => self.go_back(row, edge, &slot),
                None => self.no_edge(row, labels::REJECT),
            };
        }
        let keys: Vec<String> = fresh.iter().map(|open| open.key.clone()).collect();
        for mut open in fresh {
            open.applied = Some(true);
            self.put(open);
        }
        if !keys.is_empty() {
            self.effect(Effect::ApplyApprovals { keys: keys.clone() });
        }
        row.output = json!({"applied": keys});
        self.single(row);
    }

    /// The first obligation of a gate that this cycle does not meet.
    fn missing(&self, gate: &str, fresh: &[StepRow]) -> Option<String> {
        let mut here = self.artefact.obligations.iter().filter(|one| ids::gate(&one.gate) == gate);
        here.find(|one| !self.is_waived(one, gate) && !self.is_met(one, gate, fresh))
            .map(|one| one.id.clone())
    }

    fn is_waived(&self, obligation: &Obligation, gate: &str) -> bool {
        let Some(waiver) = &obligation.unless else { return false };
        self.state.open.values().any(|row| {
            row.node_type == NodeType::Rule
                && row.status == StepStatus::Completed
                && row.version >= self.facts.material_version
                && row.outcome.as_ref() == Some(&waiver.outcome)
                && is_rule(self.artefact, &row.node, &waiver.rule)
                && self.gate_of(row).as_deref() == Some(gate)
        })
    }

    fn is_met(&self, obligation: &Obligation, gate: &str, fresh: &[StepRow]) -> bool {
        match &obligation.needs {
            Need::Approvals { count, role } => {
                let fits = |row: &&StepRow| {
                    role.as_ref().is_none_or(|role| is_role(self.artefact, &row.node, role))
                };
                let people: BTreeSet<&str> =
                    fresh.iter().filter(fits).flat_map(approvers).collect();
                people.len() >= *count as usize
            }
            Need::Action { action_type } => {
                // An action that changes the document raises the version itself. The compiler
                // refuses a later change by the run, so only a change by others is left.
                let since = match self.artefact.document_actions.contains(action_type) {
                    true => self.facts.drift_version,
                    false => self.facts.material_version,
                };
                self.state.open.values().any(|row| {
                    row.node_type == NodeType::Action
                        && row.status == StepStatus::Completed
                        && row.version >= since
                        && is_action(self.artefact, &row.node, action_type)
                        && self.gate_of(row).as_deref() == Some(gate)
                })
            }
        }
    }
}

/// Whether the slot of a node ends at a gate.
pub(crate) fn leads_to(artefact: &CompiledWorkflow, node: &str, gate: &str) -> bool {
    exit_of(artefact, &slot_of(artefact, node)).as_deref() == Some(gate)
}

/// The people whose approval ended the step.
pub(crate) fn approvers(row: &StepRow) -> impl Iterator<Item = &str> {
    let by = row.output.get("by").and_then(Value::as_array);
    by.into_iter().flatten().filter_map(Value::as_str)
}

pub(crate) fn is_rule(artefact: &CompiledWorkflow, node: &str, rule: &str) -> bool {
    matches!(artefact.nodes.get(node).map(|node| &node.config),
        Some(NodeConfig::Rule(config)) if config.rule == rule)
}

pub(crate) fn is_role(artefact: &CompiledWorkflow, node: &str, wanted: &str) -> bool {
    matches!(artefact.nodes.get(node).map(|node| &node.config),
        Some(NodeConfig::Approval(config)) if config.role() == Some(wanted))
}

fn is_action(artefact: &CompiledWorkflow, node: &str, wanted: &str) -> bool {
    matches!(artefact.nodes.get(node).map(|node| &node.config),
        Some(NodeConfig::Action(config)) if config.mutation.action_type == wanted)
}
