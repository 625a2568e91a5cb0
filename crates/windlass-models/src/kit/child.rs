//! Child runs, and the generation that follows a run.

use std::collections::BTreeMap;

use serde_json::json;
use windlass_engine::{Turn, events};
use windlass_kernel::{
    Body, CausalRef, Draft, Error, ModelName, NewRun, Run, RunId, Sha256Digest, Stamp, Step,
    StepKey, StepStatus, Turn as TurnRow, WorkflowName,
};

pub use windlass_engine::explain::ChildRef;

use super::{CHILD, new_step};

/// A child that is to be started.
#[derive(Debug)]
pub struct NewChild {
    /// Its name and key; see [`name_child`].
    pub child: ChildRef,
    /// Its model. A model that this process serves, or has read about, takes precedence.
    pub model: ModelName,
    /// Its input.
    pub input: Body,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Names the child that a step of the run starts.
pub fn name_child(turn: &Turn, step_key: &str, workflow: &WorkflowName) -> Result<ChildRef, Error> {
    let id = child_id(&turn.run, step_key)?;
    let run_key = turn.new_run_key();
    Ok(ChildRef { workflow: workflow.clone(), id: id.to_string(), run_key })
}

/// Starts a child in the commit that records a new step for it. Returns the step's row.
pub fn begin_child(
    turn: &mut Turn,
    draft: &mut Draft,
    key: StepKey,
    workflow: &WorkflowName,
    model: ModelName,
    input: Body,
) -> Result<Step, Error> {
    let child = name_child(turn, key.as_str(), workflow)?;
    let stamp = turn.stamp();
    let mut row = new_step(&turn.run, draft, key, CHILD, stamp.at);
    row.input = Some(Body::of(&child)?);
    let new = NewChild { child, model, input, labels: BTreeMap::new() };
    start_child(turn, draft, row, new, stamp)
}

/// Starts a child in the commit that records its step. The step's input must name the child, as
/// [`ChildRef`] does. Returns the row as it is written.
pub fn start_child(
    turn: &mut Turn,
    draft: &mut Draft,
    mut row: Step,
    new: NewChild,
    stamp: Stamp,
) -> Result<Step, Error> {
    let ChildRef { workflow, id, run_key } = new.child;
    row.status = StepStatus::Waiting;
    row.wait_for = Some(CHILD.as_str().into());
    let payload =
        json!({ "key": row.step_key, "workflow": workflow, "id": id, "run_key": run_key });
    let fork = row.step_key.shared();
    draft.step(events::CHILD_STARTED, &payload, row.clone(), stamp)?;
    let new = NewRun {
        run_key,
        namespace: turn.run.namespace.clone(),
        workflow,
        model: new.model,
        id: RunId::from_stored(id),
        generation: 0,
        input: new.input,
        parent: Some((turn.run.root, turn.run.run_key)),
        fork: Some(fork),
        labels: new.labels,
        trace: turn.run.trace.clone(),
        headers: None,
        on_end: None,
        deadline_at: None,
        turn: TurnRow::ready(),
        caused_by: Some(draft.cursor()),
    };
    let new = turn.child(new, true);
    let created = turn.stamp();
    draft.also_create(new, created)?;
    Ok(row)
}

/// The generation that follows a run, with another input.
pub fn next_generation(turn: &Turn, input: Body, caused_by: CausalRef) -> NewRun {
    let run = &turn.run;
    let mut row = TurnRow::ready();
    row.queue = run.turn.queue.clone();
    row.priority = run.turn.priority;
    row.limit_key = run.turn.limit_key.clone();
    NewRun {
        run_key: turn.new_run_key(),
        namespace: run.namespace.clone(),
        workflow: run.workflow.clone(),
        model: run.model.clone(),
        id: run.id.clone(),
        generation: run.generation + 1,
        input,
        parent: run.parent.map(|parent| (run.root, parent)),
        fork: run.fork.clone(),
        labels: run.labels.clone(),
        trace: run.trace.clone(),
        headers: run.headers.clone(),
        on_end: run.on_end.clone(),
        deadline_at: None,
        turn: row,
        caused_by: Some(caused_by),
    }
}

// A child is named after its parent and step. A name that does not fit is cut, and a digest keeps it
// apart from others; each generation has children of its own.
fn child_id(run: &Run, key: &str) -> Result<RunId, Error> {
    let plain =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' };
    let shown: String = key.chars().map(plain).collect();
    let mut id = format!("{}:{shown}", run.id);
    if run.generation > 0 {
        id.push_str(&format!(":g{}", run.generation));
    }
    if shown != key || id.len() > 300 {
        let digest = Sha256Digest::of_parts(&[run.id.as_str().as_bytes(), key.as_bytes()]);
        id.truncate(300);
        let bytes = digest.as_bytes();
        id.push_str(&format!(":{:02x}{:02x}{:02x}{:02x}", bytes[0], bytes[1], bytes[2], bytes[3]));
    }
    RunId::composed(id)
}
