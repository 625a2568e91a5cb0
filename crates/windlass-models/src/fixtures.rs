//! Rows for unit tests.

use std::collections::BTreeMap;

use uuid::Uuid;
use windlass_kernel::{
    Body, EventId, Head, ModelName, Namespace, Run, RunId, RunKey, RunStatus, Sha256Digest, Step,
    StepKey, StepKind, StepStatus, Timestamp, Turn, WorkflowName,
};

use crate::kit;

/// A run of `w` in the default namespace, created at 1 s.
pub(crate) fn run() -> Run {
    let run_key = RunKey(Uuid::from_u128(1));
    Run {
        run_key,
        namespace: Namespace::default_namespace(),
        workflow: WorkflowName::new("w").expect("a valid name"),
        model: ModelName::new("steps").expect("a valid name"),
        id: RunId::new("r").expect("a valid name"),
        generation: 0,
        status: RunStatus::Active,
        input: Body::json("null"),
        input_hash: Sha256Digest::of(b"null"),
        output: None,
        error: None,
        state: None,
        head: Head { next_ordinal: 0, hash: Sha256Digest::of(b"") },
        cursor: EventId(Uuid::nil()),
        root: run_key,
        parent: None,
        fork: None,
        labels: BTreeMap::new(),
        trace: None,
        headers: None,
        on_end: None,
        deadline_at: None,
        created_at: Timestamp::from_millis(1_000),
        started_at: None,
        updated_at: Timestamp::from_millis(1_000),
        ended_at: None,
        retention_until: None,
        turn: Turn::ready(),
        accepted: 0,
        seen: 0,
    }
}

/// A step of that run without attempts, result and wait, created at 2 s.
pub(crate) fn step(key: &str, kind: &str, status: StepStatus) -> Step {
    let (key, at) = (StepKey::new(key).expect("a valid key"), Timestamp::from_millis(2_000));
    Step { status, ..kit::blank_step(&run(), 0, key, StepKind::from_stored(kind), at) }
}
