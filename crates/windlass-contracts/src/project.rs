//! Rebuilds the state of a run from its artefact and its step rows (WF-15).

use crate::tokens::{State, StepRow, StepStatus};
use crate::types::CompiledWorkflow;

/// Rebuilds the state. The rows may be in any order; each one is in its latest form.
pub fn project(artefact: &CompiledWorkflow, rows: &[StepRow]) -> State {
    let mut sorted: Vec<&StepRow> = rows.iter().collect();
    sorted.sort_by_key(|row| row.seq);
    let mut state = State::default();
    for row in &sorted {
        state.apply(artefact, row);
    }
    sorted.retain(|row| row.status == StepStatus::Completed);
    sorted.sort_by_key(|row| row.done);
    for row in sorted {
        state.apply_writes(row);
    }
    state
}
