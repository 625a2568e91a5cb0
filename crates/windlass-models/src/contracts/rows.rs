//! Rows of the token engine as steps of a run, and back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_contracts::project::project;
use windlass_contracts::tokens::{State, StepRow, StepStatus as RowStatus, Verdict};
use windlass_contracts::types::{CompiledWorkflow, NodeType};
use windlass_engine::{KeyedWait, Turn};
use windlass_kernel::{
    Body, Draft, Error, EventType, RunKey, Sha256Digest, Step, StepKey, StepKind, StepStatus,
    Timestamp,
};

use super::description::{
    LATER, NODE, NODE_CANCELLED, NODE_CHANGED, NODE_COMPLETED, NODE_FAILED, NODE_WAITING, WAIT,
};
use super::waits::Delivery;
use crate::kit;

/// The snapshot of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Snapshot {
    /// The generation in which the run began: a retry goes on with an earlier one.
    pub(crate) origin: u32,
    /// The generation that has written the open rows as its steps.
    pub(crate) run: Option<RunKey>,
    /// The version of the document that the last turn has seen.
    pub(crate) seen_version: u64,
    /// The decisions that the token engine ignored, by key of the step: they count only after something else
    /// has changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) ignored: BTreeMap<String, BTreeMap<String, Verdict>>,
    /// The position and the time of the steps of open rows, by number of the row.
    pub(crate) placed: BTreeMap<u64, (u64, Timestamp)>,
    /// The registered waits for events by key, by key of the step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) waits: BTreeMap<String, KeyedWait>,
    /// The effects whose delivery steps wait for, by key of the step.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) deliveries: BTreeMap<String, Delivery>,
    /// The state of the token engine.
    pub(crate) state: State,
}

/// Writes a row as a step. `settled` says that the row was settled before: a settled step never changes, so the
/// later form gets a step of its own.
pub(crate) fn write(
    turn: &mut Turn,
    draft: &mut Draft,
    snapshot: &mut Snapshot,
    row: &StepRow,
    settled: bool,
    run_fails: bool,
) -> Result<(), Error> {
    let stamp = turn.stamp();
    let (key, kind) = match settled {
        true => (format!("{}|later", row.key), LATER),
        false => (row.key.clone(), kind_of(row.node_type)),
    };
    let key = StepKey::with_limits(key, turn.limits())?;
    let mut step = kit::new_step(&turn.run, draft, key, kind, stamp.at);
    if !settled && let Some((position, at)) = snapshot.placed.get(&row.seq) {
        (step.position, step.created_at) = (*position, *at);
    }
    step.name = row.node.as_str().into();
    step.attempt = row.attempts;
    step.result = Some(Body::of(row)?);
    step.input = snapshot.waits.get(&row.key).map(Body::of).transpose()?;
    let mut status = status_of(row.status);
    if run_fails && status == StepStatus::Waiting {
        // An ended run has no open steps. A retry writes the row again from the snapshot.
        status = StepStatus::Cancelled;
    }
    step.status = status;
    if status == StepStatus::Waiting {
        step.due_at = row.resume_at.map(Timestamp::from_micros);
        step.wait_for = Some(row.node_type.as_str().into());
        snapshot.placed.insert(row.seq, (step.position, step.created_at));
    } else {
        snapshot.placed.remove(&row.seq);
    }
    if status == StepStatus::Errored {
        step.error = Some(Body::of(&row.output["error"])?);
    }
    let digest = Sha256Digest::of(row.key.as_bytes());
    let payload = json!({
        "key": step.step_key, "node": row.node, "node_type": row.node_type, "version": row.version,
        "cycle": row.cycle, "idempotency_key": digest, "chosen_edge_ids": row.chosen_edge_ids,
        "outcome": row.outcome, "run_as": row.run_as,
    });
    draft.step(event_of(status, settled), &payload, step, stamp)?;
    Ok(())
}

fn event_of(status: StepStatus, settled: bool) -> EventType {
    match status {
        _ if settled => NODE_CHANGED,
        StepStatus::Completed => NODE_COMPLETED,
        StepStatus::Errored => NODE_FAILED,
        StepStatus::Cancelled => NODE_CANCELLED,
        _ => NODE_WAITING,
    }
}

fn status_of(status: RowStatus) -> StepStatus {
    match status {
        RowStatus::Waiting | RowStatus::Arrived => StepStatus::Waiting,
        RowStatus::Completed => StepStatus::Completed,
        RowStatus::Failed => StepStatus::Errored,
        RowStatus::Cancelled => StepStatus::Cancelled,
    }
}

fn kind_of(node_type: NodeType) -> StepKind {
    match node_type {
        NodeType::Approval
        | NodeType::WaitTimer
        | NodeType::WaitEvent
        | NodeType::LifecycleGate
        | NodeType::ParallelJoin
        | NodeType::Action
        | NodeType::WebhookOut => WAIT,
        _ => NODE,
    }
}

/// Rebuilds the state of the token engine from the steps of a run (WF-15).
pub(crate) fn rebuild(artefact: &CompiledWorkflow, steps: &[Step]) -> Result<State, Error> {
    let mut rows: BTreeMap<u64, (bool, StepRow)> = BTreeMap::new();
    for step in steps.iter().filter(|step| [NODE, WAIT, LATER].contains(&step.kind)) {
        let Some(body) = &step.result else { continue };
        let (row, later): (StepRow, bool) = (body.read()?, step.kind == LATER);
        match rows.get(&row.seq) {
            Some((true, _)) if !later => {}
            _ => drop(rows.insert(row.seq, (later, row))),
        }
    }
    let rows: Vec<StepRow> = rows.into_values().map(|(_, row)| row).collect();
    Ok(project(artefact, &rows))
}
