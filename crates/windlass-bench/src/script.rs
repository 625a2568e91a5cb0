//! The commits of one run of the load: created with the turn held, a step at a time, completed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use uuid::Uuid;
use windlass_kernel::{
    Body, Commit, Draft, End, Error, EventId, Hold, ModelName, Namespace, NewRun, OnExisting, Op,
    Run, RunId, RunKey, Stamp, Step, StepKey, StepStatus, Timestamp, Turn, WorkerKey, WorkflowName,
};
use windlass_testkit::world::uuid7;

/// Makes runs and their commits, as an engine with one worker would.
pub(crate) struct Author {
    keys: AtomicU64,
    worker: WorkerKey,
    namespace: Namespace,
    workflow: WorkflowName,
    model: ModelName,
    steps: Vec<(StepKey, Arc<str>)>,
    kind: Arc<str>,
}

/// A run as its author knows it.
pub(crate) struct Script {
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

impl Author {
    /// An author of runs with so many steps.
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
            kind: "do".into(),
        })
    }

    /// Steps a run has.
    pub(crate) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// A new key; later ones are greater.
    pub(crate) fn key(&self, at: Timestamp) -> Uuid {
        uuid7(millis(at), self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Begins a run.
    pub(crate) fn create(&self, n: u64) -> Result<(Script, Commit), Error> {
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
        let run = run.unwrap_or_else(|| unreachable!("a draft that creates has the run"));
        let hold = Hold { worker: self.worker, claim_no: run.turn.claim_no };
        Ok((Script { run, hold }, commit))
    }

    /// Records the result of a step and keeps the turn.
    pub(crate) fn step(&self, script: &mut Script, n: usize) -> Result<Commit, Error> {
        let stamp = self.stamp();
        let (key, name) = &self.steps[n];
        let step = Step {
            run_key: script.run.run_key,
            step_key: key.clone(),
            name: name.clone(),
            kind: self.kind.clone(),
            status: StepStatus::Completed,
            position: script.run.head.next_ordinal,
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
        let mut draft = Draft::held(&script.run, script.hold, stamp.at);
        let payload = StepPayload { key: key.as_str(), attempt: 1 };
        draft.step("step.completed", &payload, step, stamp)?;
        Ok(script.finish(draft))
    }

    /// Completes the run.
    pub(crate) fn complete(&self, script: &mut Script) -> Result<Commit, Error> {
        let stamp = self.stamp();
        let mut draft = Draft::held(&script.run, script.hold, stamp.at);
        let end = End::Complete(Body::json(&br#"{"shipped":true,"parcels":1}"#[..]));
        draft.end("workflow.completed", &EndPayload { steps: self.steps() }, end, stamp)?;
        Ok(script.finish(draft))
    }

    fn stamp(&self) -> Stamp {
        let at = now();
        Stamp { event_id: EventId(self.key(at)), at }
    }
}

impl Script {
    // The holder knows the row after its commit without reading it.
    fn finish(&mut self, draft: Draft) -> Commit {
        let commit = draft.finish();
        if let Some(change) = commit.run_change() {
            change.apply_to(&mut self.run);
        }
        commit
    }
}

/// This machine's time.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

fn millis(at: Timestamp) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0)
}
