//! Generates the commits of a run: create with a held turn, one commit per step, complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use uuid::Uuid;
use windlass_kernel::ledger::run_events::WORKFLOW_COMPLETED;
use windlass_kernel::{
    Body, Commit, Draft, End, Error, EventId, EventType, Hold, ModelName, Namespace, NewRun,
    OnExisting, Op, Run, RunId, RunKey, Stamp, Step, StepKey, StepKind, StepStatus, Timestamp,
    Turn, WorkerKey, WorkflowName,
};
use windlass_testkit::world::uuid7;

const DO: StepKind = StepKind::from_static("do");
const STEP_COMPLETED: EventType = EventType::from_static("step.completed");

/// Generates runs and their commits, like an engine with one worker.
pub(crate) struct RunGenerator {
    keys: AtomicU64,
    worker: WorkerKey,
    namespace: Namespace,
    workflow: WorkflowName,
    model: ModelName,
    steps: Vec<(StepKey, Arc<str>)>,
}

/// The state of a generated run.
pub(crate) struct GeneratedRun {
    run: Run,
    hold: Hold,
}

#[derive(Serialize)]
struct StepPayload<'a> {
    key: &'a str,
    attempt: u32,
}

#[derive(Serialize)]
struct EndPayload {
    steps: usize,
}

impl RunGenerator {
    /// Creates a generator of runs with this number of steps.
    pub(crate) fn new(steps: usize) -> Result<Self, Error> {
        let key = |n: usize| {
            let key = StepKey::new(format!("step-{n}"))?;
            let name = Arc::from(key.as_str());
            Ok((key, name))
        };
        let keys = AtomicU64::new(1);
        Ok(Self {
            worker: WorkerKey(uuid7(millis(now()), 0)),
            keys,
            namespace: Namespace::default_namespace(),
            workflow: WorkflowName::new("order")?,
            model: ModelName::new("steps")?,
            steps: (0..steps).map(key).collect::<Result<_, Error>>()?,
        })
    }

    /// The number of steps of a run.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Creates a key; keys are increasing.
    pub(crate) fn key(&self, at: Timestamp) -> Uuid {
        uuid7(millis(at), self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates a run.
    pub(crate) fn create(&self, n: u64) -> Result<(GeneratedRun, Commit), Error> {
        let stamp = self.stamp();
        let new = NewRun {
            run_key: RunKey(self.key(stamp.at)),
            namespace: self.namespace.clone(),
            workflow: self.workflow.clone(),
            model: self.model.clone(),
            id: RunId::new(format!("order-{n:09}"))?,
            generation: 0,
            input: Body::json(format!(
                r#"{{"order":{n:09},"customer":"c-{:06}","amount":4250,"currency":"EUR"}}"#,
                n % 1_000_000
            )),
            parent: None,
            fork: None,
            labels: BTreeMap::new(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: Turn::held_by(self.worker),
            caused_by: None,
        };
        let commit = Draft::create(new, OnExisting::Refuse, stamp)?.finish();
        let run = commit.ops.iter().find_map(|op| match op {
            Op::CreateRun(run) => Some(Run::clone(run)),
            _ => None,
        });
        let run = run.unwrap_or_else(|| unreachable!("a draft that creates a run contains it"));
        let hold = Hold { worker: self.worker, claim_no: run.turn.claim_no };
        Ok((GeneratedRun { run, hold }, commit))
    }

    /// Completes a step and keeps the turn.
    pub(crate) fn step(&self, run: &mut GeneratedRun, n: usize) -> Result<Commit, Error> {
        let stamp = self.stamp();
        let (key, name) = &self.steps[n];
        let step = Step {
            run_key: run.run.run_key,
            step_key: key.clone(),
            name: name.clone(),
            kind: DO,
            status: StepStatus::Completed,
            position: run.run.head.next_ordinal,
            attempt: 1,
            attempts_max: Some(6),
            input: None,
            result: Some(Body::json(format!(r#"{{"step":{n},"ok":true,"receipt":"r-{:08}"}}"#, n))),
            error: None,
            timeout: Some(Duration::from_secs(600)),
            due_at: None,
            wait_for: None,
            created_at: stamp.at,
            updated_at: stamp.at,
        };
        let mut draft = Draft::held(&run.run, run.hold, stamp.at);
        let payload = StepPayload { key: key.as_str(), attempt: 1 };
        draft.step(STEP_COMPLETED, &payload, step, stamp)?;
        Ok(run.finish(draft))
    }

    /// Completes the run.
    pub(crate) fn complete(&self, run: &mut GeneratedRun) -> Result<Commit, Error> {
        let stamp = self.stamp();
        let mut draft = Draft::held(&run.run, run.hold, stamp.at);
        let end = End::Complete(Body::json(&br#"{"shipped":true,"parcels":1}"#[..]));
        draft.end(WORKFLOW_COMPLETED, &EndPayload { steps: self.steps() }, end, stamp)?;
        Ok(run.finish(draft))
    }

    fn stamp(&self) -> Stamp {
        let at = now();
        Stamp { event_id: EventId(self.key(at)), at }
    }
}

impl GeneratedRun {
    // The holder of the turn knows the row after its commit without reading it.
    fn finish(&mut self, draft: Draft) -> Commit {
        let commit = draft.finish();
        if let Some(change) = commit.run_change() {
            change.apply_to(&mut self.run);
        }
        commit
    }
}

/// The time of this machine.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0)
}
