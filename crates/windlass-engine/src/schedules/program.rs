//! The program of a schedule: starts the runs of due firings and waits for the next one.

use serde::{Deserialize, Serialize};
use serde_json::json;
use windlass_kernel::{
    Body, BoxFuture, CausalRef, Draft, End, Error, EventType, NewRun, RunId, RunStatus, Timestamp,
    Turn as TurnRow, Wake,
};

use super::DESCRIPTION;
use super::timing::{Overlap, Schedule};
use crate::description::ModelDescription;
use crate::events;
use crate::model::{Model, Opened, Program, TurnError};
use crate::turn::Turn;

/// A firing was started, or skipped.
const SCHEDULE_FIRED: EventType = EventType::from_static("schedule.fired");

/// After this many firings a schedule continues as a new generation, which bounds its ledger.
const FIRINGS_PER_GENERATION: u64 = 1_000;

/// The stored state of a schedule between two firings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) anchor_us: i64,
    pub(super) next_us: Option<i64>,
    pub(super) last_us: Option<i64>,
    pub(super) last_run: Option<String>,
    #[serde(rename = "slots")]
    pub(super) firings: u64,
}

/// The model of schedules.
pub(crate) struct Schedules;

impl Model for Schedules {
    fn description(&self) -> &'static ModelDescription {
        &DESCRIPTION
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let run = opened.run();
        let schedule = run.input.read()?;
        let snapshot: Option<Snapshot> = run.state.as_ref().map(Body::read).transpose()?;
        let snapshot = snapshot.unwrap_or_else(|| Snapshot {
            anchor_us: run.created_at.as_micros(),
            ..Snapshot::default()
        });
        Ok(Box::new(Scheduled { schedule, snapshot }))
    }
}

struct Scheduled {
    schedule: Schedule,
    snapshot: Snapshot,
}

impl Scheduled {
    async fn take(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let now = turn.now();
        let anchor = Timestamp::from_micros(self.snapshot.anchor_us);
        let timing = self.schedule.timing.clone();
        let blocked = TurnError::Blocked;
        let mut next = match self.snapshot.next_us {
            Some(next) => Timestamp::from_micros(next),
            None => timing.next_after(anchor, anchor).map_err(blocked)?,
        };
        let before = next;
        let due = self.schedule.due_firings(&mut next, anchor, now).map_err(blocked)?;
        let mut draft = turn.draft();
        // A snapshot that says the same as the stored one, or as a new schedule, is not written.
        let changed = next != before || !due.is_empty();
        for firing in due {
            self.fire(turn, &mut draft, firing).await?;
        }
        self.snapshot.next_us = Some(next.as_micros());
        if self.snapshot.firings >= FIRINGS_PER_GENERATION {
            return self.next_generation(turn, draft).await;
        }
        if changed {
            draft.state(Body::of(&self.snapshot).map_err(blocked)?, turn.stamp());
        }
        draft.status(RunStatus::Waiting);
        let read_to = turn.read_to();
        draft.release(Wake::At(next), read_to);
        turn.commit(draft).await.map(|_| ())
    }

    async fn fire(
        &mut self,
        turn: &mut Turn,
        draft: &mut Draft,
        firing: Timestamp,
    ) -> Result<(), TurnError> {
        self.snapshot.firings += 1;
        self.snapshot.last_us = Some(firing.as_micros());
        let busy = match (&self.snapshot.last_run, self.schedule.overlap) {
            (Some(last), Overlap::Skip) => {
                let last = RunId::from_stored(last.as_str());
                let found = turn.find(&self.schedule.workflow, &last).await?;
                found.is_some_and(|run| !run.status.is_ended())
            }
            _ => false,
        };
        let stamp = turn.stamp();
        let fired_at = firing.to_string();
        if busy {
            let payload = json!({ "slot": fired_at, "skipped": "the run of the previous firing has not ended" });
            return draft
                .event(SCHEDULE_FIRED, &payload, stamp)
                .map(|_| ())
                .map_err(TurnError::Blocked);
        }
        // Only the engine creates ids with a colon, so no other run has this one.
        let id = format!("{}:{}", turn.run.id, firing.as_millis());
        let id = RunId::composed(id).map_err(TurnError::Blocked)?;
        let payload = json!({ "slot": fired_at, "id": id });
        draft.event(SCHEDULE_FIRED, &payload, stamp).map_err(TurnError::Blocked)?;
        let new = NewRun {
            run_key: turn.new_run_key(),
            namespace: turn.run.namespace.clone(),
            workflow: self.schedule.workflow.clone(),
            model: self.schedule.model.clone(),
            id: id.clone(),
            generation: 0,
            input: Body::json(self.schedule.input.get().to_owned()),
            parent: None,
            fork: None,
            labels: self.schedule.labels.clone(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: TurnRow::ready(),
            caused_by: Some(CausalRef::event(stamp.event_id)),
        };
        let new = turn.child(new, true);
        let stamp = turn.stamp();
        draft.also_create(new, stamp).map_err(TurnError::Blocked)?;
        self.snapshot.last_run = Some(id.to_string());
        Ok(())
    }

    async fn next_generation(
        &mut self,
        turn: &mut Turn,
        mut draft: Draft,
    ) -> Result<(), TurnError> {
        self.snapshot.firings = 0;
        let state = Body::of(&self.snapshot).map_err(TurnError::Blocked)?;
        let output = End::Complete(Body::json("null"));
        turn.end(&mut draft, events::WORKFLOW_COMPLETED, &json!({ "continued": true }), output)
            .map_err(TurnError::Blocked)?;
        let due = self.snapshot.next_us.map(Timestamp::from_micros);
        let new = NewRun {
            run_key: turn.new_run_key(),
            namespace: turn.run.namespace.clone(),
            workflow: turn.run.workflow.clone(),
            model: turn.run.model.clone(),
            id: turn.run.id.clone(),
            generation: turn.run.generation + 1,
            input: turn.run.input.clone(),
            parent: None,
            fork: None,
            labels: turn.run.labels.clone(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: due.map_or_else(TurnRow::ready, TurnRow::due_at),
            caused_by: Some(draft.cursor()),
        };
        let stamp = turn.stamp();
        draft.also_create_with_state(new, Some(state), stamp).map_err(TurnError::Blocked)?;
        turn.commit(draft).await.map(|_| ())
    }
}

impl Program for Scheduled {
    fn turn<'a>(&'a mut self, turn: &'a mut Turn) -> BoxFuture<'a, Result<(), TurnError>> {
        Box::pin(self.take(turn))
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.schedule.input.get().len() + 500
    }
}
