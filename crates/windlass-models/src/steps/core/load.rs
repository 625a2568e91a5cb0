//! Builds the operations of a run from its stored steps.

use std::collections::{HashMap, VecDeque};

use windlass_engine::RequestRef;
use windlass_kernel::{
    Body, Error, ErrorCode, ErrorKind, Limits, Run, Step, StepStatus, Timestamp,
};

use super::super::error::Failure;
use super::KeyedWait;
use super::queues::{Bodies, OpenWaits, Queues, Replay, StepCount};
use super::{
    ChildRef, Core, Entry, EventMeta, Intent, Key, Kind, Outbox, Outcome, Place, Record,
    RecordCount, Row, Snapshot, State, Wait,
};

impl Core {
    pub(crate) fn new(run: &Run, steps: &[Step], limits: &Limits) -> Result<Self, Error> {
        let snapshot: Snapshot =
            run.state.as_ref().map(Body::read).transpose()?.unwrap_or_default();
        let mut core = Self {
            entries: HashMap::default(),
            steps: StepCount { count: 0, max: limits.steps_per_run_max },
            queues: Queues {
                waits: OpenWaits::default(),
                bodies: Bodies::default(),
                replay: Replay {
                    records: VecDeque::new(),
                    redeliver: VecDeque::new(),
                    active: !steps.is_empty() || snapshot.custom_events > 0,
                    now: run.created_at,
                    draws: 0,
                },
            },
            records: RecordCount::default(),
            outbox: Outbox::new(snapshot),
            continue_with: None,
            fault: None,
            closed: false,
            bytes: 0,
        };
        let mut settled: Vec<(&Step, Key)> = Vec::new();
        for step in steps {
            let key: Key = step.step_key.as_str().into();
            core.insert(&key, entry(run, step)?);
            core.bytes += step.result.as_ref().map_or(0, Body::len);
            if step.status.is_settled() {
                settled.push((step, key));
            }
        }
        // The times of one run's records rise strictly, so this is the order of the ledger.
        settled.sort_by_key(|(step, _)| step.updated_at);
        core.queues.replay.records = settled.into_iter().map(|(_, key)| key).collect();
        Ok(core)
    }
}

fn entry(run: &Run, step: &Step) -> Result<Entry, Error> {
    let Some(kind) = Kind::parse(step.kind.as_str()) else {
        let (key, kind) = (step.step_key.as_str(), &step.kind);
        let message = format!("step {key:?} is of a kind {kind:?} that is not known");
        return Err(Error::new(ErrorKind::Invalid, ErrorCode::NonDeterminism, message));
    };
    let state = match outcome(step) {
        Some(outcome) => {
            let record = Record { outcome, at: step.updated_at };
            let carried = step.created_at < run.created_at;
            if carried { State::Carried(record) } else { State::Recorded(record) }
        }
        None => open_state(kind, step),
    };
    // The attempt of a running body has not ended.
    let running = u32::from(step.status == StepStatus::Running);
    let place = Place { position: step.position, created_at: step.created_at };
    Ok(Entry {
        kind,
        plan: None,
        reads: |_| Ok(()),
        state,
        row: Row::Stored(place),
        waker: None,
        attempt: step.attempt.saturating_sub(running),
        sent_at: sent_at(kind, step),
    })
}

fn sent_at(kind: Kind, step: &Step) -> Option<Timestamp> {
    let input = step.input.as_ref().filter(|_| kind == Kind::Event)?;
    input.read::<EventMeta>().ok().map(|meta| meta.sent_at)
}

fn outcome(step: &Step) -> Option<Outcome> {
    match step.status {
        StepStatus::Completed => {
            Some(Ok(step.result.clone().unwrap_or_else(|| Body::json("null"))))
        }
        StepStatus::Errored | StepStatus::Skipped | StepStatus::Cancelled => {
            Some(Err(match &step.error {
                Some(error) => Failure::read(error),
                None => Failure::new("Cancelled", "it was called off", false),
            }))
        }
        StepStatus::Running | StepStatus::Pending | StepStatus::Waiting => None,
    }
}

fn open_state(kind: Kind, step: &Step) -> State {
    if kind == Kind::Do {
        // Only a step with an intent has an input: its body may have run.
        let intent = if step.input.is_some() { Intent::Unknown } else { Intent::None };
        return match step.due_at {
            Some(due) => State::RetryLoaded { due, intent },
            None => State::Idle { intent },
        };
    }
    // A wait that the code dropped has a row, but waits for nothing.
    if step.due_at.is_none() && step.wait_for.is_none() {
        return State::Idle { intent: Intent::None };
    }
    let child = step.input.as_ref().filter(|_| kind == Kind::Child);
    State::WaitLoaded(Wait {
        due: step.due_at,
        wait_for: step.wait_for.clone(),
        child: child.and_then(|input| input.read::<ChildRef>().ok()),
        request: RequestRef::of(step).filter(|_| kind == Kind::Request),
        keyed: KeyedWait::of(step).filter(|_| kind == Kind::Event).map(Box::new),
    })
}
