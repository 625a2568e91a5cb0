//! The state of a run, as a function of its step rows.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{StepRow, StepStatus};
use crate::types::{CompiledWorkflow, EditWindow, Need, NodeConfig, NodeType, Token, TokenState};

/// The position of a run. It can be rebuilt from the artefact and the step rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct State {
    /// The status.
    pub status: Status,
    /// The lifecycle state of the document.
    pub lifecycle: String,
    /// The number of return edges that the run passed.
    pub cycle: u32,
    /// The context variables.
    pub context: Map<String, Value>,
    /// The rows that later turns can still read or change, by number.
    pub open: BTreeMap<u64, StepRow>,
    /// The number of the next step.
    pub next_seq: u64,
    /// The place of the next completion.
    pub next_done: u64,
}

/// The status of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The run has not begun.
    #[default]
    New,
    /// The run waits or moves.
    Running,
    /// A step failed. A retry can continue the run.
    Failed,
    /// The run reached its end.
    Completed,
}

impl State {
    /// The live tokens, sorted by id.
    pub fn tokens(&self) -> Vec<Token> {
        let mut tokens: Vec<Token> = self
            .open
            .values()
            .filter(|row| is_live(row))
            .map(|row| Token {
                token_id: row.token.clone(),
                state: TokenState::Waiting,
                node: row.node.clone(),
                spawned_from: row.spawned_from.clone(),
                path_index: row.path_index,
                cycle: row.cycle,
            })
            .collect();
        tokens.sort_by(|a, b| a.token_id.cmp(&b.token_id));
        tokens
    }

    /// The edit window of the document: the strictest of all live tokens. Without a token it is
    /// that of the lifecycle state.
    pub fn edit_window(&self, artefact: &CompiledWorkflow) -> EditWindow {
        let of = |node: &str| artefact.edit_windows.get(node).copied();
        let live = self.open.values().filter(|row| is_live(row)).filter_map(|row| of(&row.node));
        live.max()
            .or_else(|| of(&crate::ids::state(&self.lifecycle)))
            .unwrap_or(EditWindow::Editable)
    }

    /// The row that waits under this key.
    pub fn waiting(&self, key: &str) -> Option<&StepRow> {
        self.open.values().find(|row| row.key == key && row.status == StepStatus::Waiting)
    }

    /// Takes over a new or changed row, but not its writes.
    pub(crate) fn apply(&mut self, artefact: &CompiledWorkflow, row: &StepRow) {
        self.next_seq = self.next_seq.max(row.seq + 1);
        self.next_done = self.next_done.max(row.done.map_or(0, |done| done + 1));
        if row.cycle > self.cycle {
            self.cycle = row.cycle;
            self.open.retain(|_, open| open.cycle == row.cycle);
        }
        if let Some(node) = artefact.nodes.get(&row.node) {
            match &node.config {
                NodeConfig::State(config) => self.lifecycle.clone_from(&config.state),
                NodeConfig::End(_) => self.status = Status::Completed,
                // The join fired: its split, and splits inside its branches, are over.
                NodeConfig::ParallelJoin(_) if row.outcome.is_some() => {
                    let split = artefact.join_requirements.get(&row.node).map(|one| &one.split);
                    let inside = format!("{}.", row.token);
                    self.open.retain(|_, open| {
                        open.node_type != NodeType::ParallelSplit
                            || !(open.token.starts_with(&inside)
                                || (open.token == row.token && Some(&open.node) == split))
                    });
                }
                _ => {}
            }
        }
        if row.cycle == self.cycle && stays_open(artefact, row) {
            self.open.insert(row.seq, row.clone());
        } else {
            self.open.remove(&row.seq);
        }
        if self.status == Status::Completed {
            self.open.clear();
            return;
        }
        let failed = self.open.values().any(|row| row.status == StepStatus::Failed);
        self.status = if failed { Status::Failed } else { Status::Running };
    }

    /// Adds the writes of a completed row. Call it in the order of completions.
    pub(crate) fn apply_writes(&mut self, row: &StepRow) {
        for (variable, value) in &row.writes {
            self.context.insert(variable.clone(), value.clone());
        }
    }
}

/// Whether the row is the position of a token.
pub(crate) fn is_live(row: &StepRow) -> bool {
    matches!(row.status, StepStatus::Waiting | StepStatus::Arrived | StepStatus::Failed)
}

/// Whether a later turn can still read or change the row.
fn stays_open(artefact: &CompiledWorkflow, row: &StepRow) -> bool {
    match row.status {
        StepStatus::Waiting | StepStatus::Arrived | StepStatus::Failed => true,
        StepStatus::Cancelled => false,
        StepStatus::Completed if row.lost => false,
        StepStatus::Completed => match row.node_type {
            // The join continues their token.
            NodeType::ParallelSplit => true,
            // A gate consumes them.
            NodeType::Approval => row.applied == Some(false),
            // A gate reads their outcome as a waiver.
            NodeType::Rule => true,
            // They are undone if their branch is cancelled, or a gate needs them.
            NodeType::Action => artefact.nodes.get(&row.node).is_some_and(|node| {
                matches!(&node.config, NodeConfig::Action(action)
                    if action.compensate.is_some() || is_needed(artefact, &action.mutation.action_type))
            }) && row.applied.is_none(),
            _ => false,
        },
    }
}

/// Whether an obligation needs an action of this type.
fn is_needed(artefact: &CompiledWorkflow, wanted: &str) -> bool {
    artefact.obligations.iter().any(|obligation| {
        matches!(&obligation.needs, Need::Action { action_type } if action_type == wanted)
    })
}
