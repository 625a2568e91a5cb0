//! Schedules: runs that start other runs, once a slot, by cron or at an interval.
//!
//! A schedule is itself a run, of a workflow that every engine serves. Its turn is due at the next
//! slot; the commit of that turn creates the slot's run and sets the next due time. So a slot is
//! started once whatever the number of processes, and pausing, listing and the ledger are those of
//! every run.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use windlass_kernel::{
    Actor, Body, BoxFuture, CausalRef, Draft, Error, ErrorKind, Limits, ModelName, NewRun,
    OnExisting, Order, Run, RunId, RunKey, RunStatus, RunsQuery, Timestamp, Turn as TurnRow, Wake,
    WorkflowName,
};

use crate::control::ATTEMPTS_MAX;
use crate::engine::{Engine, Serving};
use crate::model::{Model, Opened, Program, TurnError};
use crate::start::StartRun;
use crate::turn::Turn;

/// The workflow whose runs are schedules.
pub const SCHEDULE_WORKFLOW: &str = "windlass.schedule";

/// After so many slots a schedule goes on as a new generation, so that no ledger grows for ever.
const SLOTS_PER_GENERATION: u64 = 1_000;
/// Missed slots are started at most this many at a time.
const MISSED_MAX: usize = 100;
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// When a schedule starts runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Timing {
    /// By a cron expression, in a time zone.
    Cron {
        /// Five fields, or six with seconds first.
        expression: String,
        /// A name of the IANA time zone database, such as `Europe/Berlin`.
        time_zone: String,
    },
    /// Again and again after the same time.
    Every {
        /// The time between two slots, in milliseconds.
        interval_ms: u64,
    },
}

/// What becomes of slots that passed while nobody served the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// The last of them is started, late.
    #[default]
    Last,
    /// All of them are started, late, up to a hundred.
    All,
    /// None of them is.
    Skip,
}

/// What becomes of a slot whose predecessor's run has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is started beside it.
    #[default]
    Allow,
    /// It is left out.
    Skip,
}

/// A schedule.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// When it starts runs.
    pub timing: Timing,
    /// The workflow whose runs it starts.
    pub workflow: WorkflowName,
    /// The model of that workflow.
    pub model: ModelName,
    /// What each run is started with.
    pub input: Box<RawValue>,
    /// Labels of each run.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What becomes of slots that passed unseen.
    #[serde(default)]
    pub missed: Missed,
    /// What becomes of a slot whose predecessor still runs.
    #[serde(default)]
    pub overlap: Overlap,
}

impl Timing {
    /// Refuses what is no timing, and says why.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        match self {
            Self::Every { interval_ms } => {
                let interval = Duration::from_millis(*interval_ms);
                if interval < INTERVAL_MIN {
                    let message = format!(
                        "an interval of {interval_ms} ms is too short; use at least 1 second"
                    );
                    return Err(invalid(message));
                }
                // As long as anything may sleep.
                let days = limits.sleep_days_max;
                if interval > Duration::from_secs(u64::from(days) * 86_400) {
                    let message = format!(
                        "an interval of {interval_ms} ms is too long; use at most {days} days"
                    );
                    return Err(invalid(message));
                }
                Ok(())
            }
            Self::Cron { .. } => self.next_after(Timestamp::ZERO, Timestamp::ZERO).map(|_| ()),
        }
    }

    /// The first slot after a time. `anchor` is when an interval began.
    pub fn next_after(&self, after: Timestamp, anchor: Timestamp) -> Result<Timestamp, Error> {
        match self {
            Self::Every { interval_ms } => {
                let interval = i64::try_from(interval_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
                let passed = after.as_micros().saturating_sub(anchor.as_micros());
                let slots = passed.div_euclid(interval.max(1)) + 1;
                let at = anchor.as_micros().saturating_add(interval.saturating_mul(slots.max(1)));
                Ok(Timestamp::from_micros(at))
            }
            Self::Cron { expression, time_zone } => {
                let cron = croner::Cron::from_str(expression).map_err(|error| {
                    invalid(format!("the cron expression {expression:?} does not read: {error}"))
                })?;
                let zone = jiff::tz::TimeZone::get(time_zone).map_err(|_| {
                    invalid(format!("there is no time zone {time_zone:?}; use a name such as Europe/Berlin or UTC"))
                })?;
                let after = jiff::Timestamp::from_microsecond(after.as_micros())
                    .map_err(|error| invalid(format!("the time does not fit: {error}")))?;
                let next =
                    cron.find_next_occurrence(&after.to_zoned(zone), false).map_err(|error| {
                        invalid(format!(
                            "the cron expression {expression:?} has no next time: {error}"
                        ))
                    })?;
                Ok(Timestamp::from_micros(next.timestamp().as_microsecond()))
            }
        }
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "INVALID_SCHEDULE", message)
}

/// A schedule as it stands in the store.
#[derive(Clone, Debug)]
pub struct ScheduleState {
    /// Its name.
    pub name: String,
    /// What it does.
    pub schedule: Schedule,
    /// Whether it is paused.
    pub paused: bool,
    /// Its next slot.
    pub next_at: Option<Timestamp>,
    /// Its last slot.
    pub last_at: Option<Timestamp>,
    /// The id of the run that its last slot started.
    pub last_run: Option<String>,
    /// Why it starts no runs, if it cannot.
    pub blocked: Option<String>,
}

/// Some of the schedules, and after which run the next ones come.
#[derive(Clone, Debug)]
pub struct SchedulesPage {
    /// Oldest first.
    pub schedules: Vec<ScheduleState>,
    /// Where the next page begins, if there may be one.
    pub next: Option<RunKey>,
}

impl Engine {
    /// Sets a schedule. The same schedule again changes nothing; another one under the name
    /// replaces it, and its slots count from now. One that is paused stays so.
    pub async fn put_schedule(&self, name: &str, schedule: &Schedule) -> Result<(), Error> {
        self.put_schedule_as(name, schedule, None).await.map(|_| ())
    }

    /// As [`Engine::put_schedule`], on behalf of somebody. Answers the schedule as it was set.
    pub async fn put_schedule_as(
        &self,
        name: &str,
        schedule: &Schedule,
        actor: Option<Actor>,
    ) -> Result<ScheduleState, Error> {
        let limits = &self.inner.options.limits;
        schedule.timing.validate(limits)?;
        self.check_slot(schedule).await?;
        let id = RunId::with_limits(name, limits).map_err(|error| {
            let message = error.message().replacen("run id", "schedule name", 1);
            Error::new(error.kind(), error.code(), message)
        })?;
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let input = Body::of(schedule)?;
        for _ in 0..ATTEMPTS_MAX {
            let run = match self.find_run(&workflow, &id).await? {
                Some(run) if run.status.is_ended() || run.input != input => {
                    let next = self.supersede(&run, input.clone(), actor.clone()).await?;
                    return Ok(ScheduleState { paused: next.paused, ..state_of(&next.run)? });
                }
                Some(run) => run,
                None => {
                    let model = ModelName::from_stored("schedules");
                    let mut start = StartRun::new(workflow.clone(), model, input.clone());
                    start.id = Some(id.clone());
                    start.on_existing = OnExisting::Refuse;
                    match self.start_run(start).await {
                        Ok(started) => self.current(started.run_key).await?,
                        // Somebody else was faster, with the same schedule or with another.
                        Err(error) if error.code() == "RUN_EXISTS" => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            return self.schedule_state(&run).await;
        }
        let message = format!("schedule {name:?} is set by others all the time; ask again");
        Err(Error::new(ErrorKind::Unavailable, "RUN_BUSY", message))
    }

    // A slot starts a run: what nobody could start would never be started.
    async fn check_slot(&self, schedule: &Schedule) -> Result<(), Error> {
        let (workflow, model) = (schedule.workflow.clone(), schedule.model.clone());
        let input = Body::json(schedule.input.get().to_owned());
        let mut start = StartRun::new(workflow, model, input);
        start.labels = schedule.labels.clone();
        self.inner.complete_start(&mut start).await?;
        self.inner.new_run(self.namespace.clone(), start).map(|_| ())
    }

    /// A schedule by its name.
    pub async fn schedule(&self, name: &str) -> Result<Option<ScheduleState>, Error> {
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let run = self.find_run(&workflow, &RunId::from_stored(name)).await?;
        match run.filter(|run| !run.status.is_ended()) {
            Some(run) => self.schedule_state(&run).await.map(Some),
            None => Ok(None),
        }
    }

    /// The schedules of the engine's namespace, oldest first.
    pub async fn schedules(&self) -> Result<Vec<ScheduleState>, Error> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.schedules_page(after, self.inner.options.limits.page_rows_max).await?;
            found.extend(page.schedules);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Some of the schedules: those whose runs come after one, at most `limit` and perhaps fewer.
    pub async fn schedules_page(
        &self,
        after: Option<RunKey>,
        limit: u32,
    ) -> Result<SchedulesPage, Error> {
        let mut query = RunsQuery::all(self.namespace.clone(), limit);
        query.workflow = Some(WorkflowName::from_stored(SCHEDULE_WORKFLOW));
        query.order = Order::Ascending;
        query.after = after;
        let page = self.inner.store.list(windlass_kernel::Query::Runs(query)).await?.runs()?;
        let next = page.last().filter(|_| page.len() == limit as usize).map(|run| run.run_key);
        let mut schedules = Vec::new();
        for run in page.iter().filter(|run| !run.status.is_ended()) {
            schedules.push(self.schedule_state(run).await?);
        }
        Ok(SchedulesPage { schedules, next })
    }

    async fn schedule_state(&self, run: &Run) -> Result<ScheduleState, Error> {
        let mut state = state_of(run)?;
        // One that goes on has its next slot ahead of it: only of others the ledger is asked.
        let late = state.next_at.is_none_or(|next| next <= self.inner.clock.now());
        if late && run.status == RunStatus::Waiting {
            state.blocked = self.blocked_for(run).await?;
        }
        Ok(state)
    }

    /// Stops a schedule from starting runs until it is resumed.
    pub async fn pause_schedule(&self, name: &str) -> Result<(), Error> {
        self.pause(&self.schedule_run(name).await?, None).await
    }

    /// Lets a paused schedule go on.
    pub async fn resume_schedule(&self, name: &str) -> Result<(), Error> {
        self.resume(&self.schedule_run(name).await?, None).await
    }

    /// Ends a schedule. Runs that it started go on.
    pub async fn delete_schedule(&self, name: &str) -> Result<(), Error> {
        let run = self.schedule_run(name).await?;
        self.terminate(run.run_key, Some("the schedule was deleted"), None).await
    }

    /// The run that a schedule is, by its name.
    pub async fn schedule_run(&self, name: &str) -> Result<Run, Error> {
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let run = self.find_run(&workflow, &RunId::from_stored(name)).await?;
        run.filter(|run| !run.status.is_ended()).ok_or_else(|| {
            let message = format!("there is no schedule {name:?}");
            Error::new(ErrorKind::NotFound, "SCHEDULE_NOT_FOUND", message)
        })
    }
}

fn state_of(run: &Run) -> Result<ScheduleState, Error> {
    let kept: Kept = run.state.as_ref().map(Body::read).transpose()?.unwrap_or_default();
    Ok(ScheduleState {
        name: run.id.as_str().to_owned(),
        schedule: run.input.read()?,
        paused: run.status == RunStatus::Paused,
        next_at: kept.next_us.map(Timestamp::from_micros),
        last_at: kept.last_us.map(Timestamp::from_micros),
        last_run: kept.last_run,
        blocked: None,
    })
}

/// What a schedule keeps between two slots.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    anchor_us: i64,
    next_us: Option<i64>,
    last_us: Option<i64>,
    last_run: Option<String>,
    slots: u64,
}

/// The model of schedules.
pub(crate) struct Schedules;

impl Model for Schedules {
    fn name(&self) -> ModelName {
        ModelName::from_stored("schedules")
    }

    fn open(&self, opened: Opened<'_>) -> Result<Box<dyn Program>, Error> {
        let run = opened.run();
        let schedule = run.input.read()?;
        let kept: Option<Kept> = run.state.as_ref().map(Body::read).transpose()?;
        let kept = kept
            .unwrap_or_else(|| Kept { anchor_us: run.created_at.as_micros(), ..Kept::default() });
        Ok(Box::new(Scheduled { schedule, kept }))
    }

    // The runs that a schedule has started go on when it ends.
    fn has_reach(&self, _: &str) -> bool {
        false
    }
}

struct Scheduled {
    schedule: Schedule,
    kept: Kept,
}

impl Scheduled {
    async fn take(&mut self, turn: &mut Turn) -> Result<(), TurnError> {
        let now = turn.now();
        let anchor = Timestamp::from_micros(self.kept.anchor_us);
        let timing = self.schedule.timing.clone();
        let blocked = TurnError::Blocked;
        let mut next = match self.kept.next_us {
            Some(next) => Timestamp::from_micros(next),
            None => timing.next_after(anchor, anchor).map_err(blocked)?,
        };
        let mut due = Vec::new();
        while next <= now && due.len() < MISSED_MAX {
            due.push(next);
            next = timing.next_after(next, anchor).map_err(blocked)?;
        }
        // Slots beyond the bound are not looked at one by one.
        if next <= now {
            next = timing.next_after(now, anchor).map_err(blocked)?;
        }
        match self.schedule.missed {
            Missed::All => {}
            Missed::Last => drop(due.drain(..due.len().saturating_sub(1))),
            // A slot that is served in time is a little late as well.
            Missed::Skip => due.retain(|slot| now.since(*slot) < Duration::from_secs(60)),
        }
        let mut draft = turn.draft();
        for slot in due {
            self.fire(turn, &mut draft, slot).await?;
        }
        self.kept.next_us = Some(next.as_micros());
        if self.kept.slots >= SLOTS_PER_GENERATION {
            return self.next_generation(turn, draft).await;
        }
        draft.state(Body::of(&self.kept).map_err(blocked)?);
        draft.status(RunStatus::Waiting);
        let read_to = turn.read_to();
        draft.release(Wake::At(next), read_to);
        turn.commit(draft).await.map(|_| ())
    }

    async fn fire(
        &mut self,
        turn: &mut Turn,
        draft: &mut Draft,
        slot: Timestamp,
    ) -> Result<(), TurnError> {
        self.kept.slots += 1;
        self.kept.last_us = Some(slot.as_micros());
        let busy = match (&self.kept.last_run, self.schedule.overlap) {
            (Some(last), Overlap::Skip) => {
                let last = RunId::from_stored(last.as_str());
                let found = turn.find(&self.schedule.workflow, &last).await?;
                found.is_some_and(|run| !run.status.is_ended())
            }
            _ => false,
        };
        let stamp = turn.stamp();
        let shown = slot.to_string();
        if busy {
            let payload = json!({ "slot": shown, "skipped": "the run of the slot before goes on" });
            return draft
                .event("schedule.fired", &payload, stamp)
                .map(|_| ())
                .map_err(TurnError::Blocked);
        }
        // Only the engine makes ids with a colon, so this one is the slot's alone.
        let id = format!("{}:{}", turn.run.id, slot.as_millis());
        let id = RunId::composed(id).map_err(TurnError::Blocked)?;
        let payload = json!({ "slot": shown, "id": id });
        draft.event("schedule.fired", &payload, stamp).map_err(TurnError::Blocked)?;
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
        self.kept.last_run = Some(id.to_string());
        Ok(())
    }

    async fn next_generation(
        &mut self,
        turn: &mut Turn,
        mut draft: Draft,
    ) -> Result<(), TurnError> {
        self.kept.slots = 0;
        let state = Body::of(&self.kept).map_err(TurnError::Blocked)?;
        let output = windlass_kernel::End::Complete(Body::json("null"));
        turn.end(&mut draft, "workflow.completed", &json!({ "continued": true }), output)
            .map_err(TurnError::Blocked)?;
        let due = self.kept.next_us.map(Timestamp::from_micros);
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

/// Every engine serves schedules.
pub(crate) fn register(engine: &Engine) -> Result<(), Error> {
    let name = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
    engine.register_own(name, Arc::new(Schedules), Serving::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let time: jiff::Timestamp = text.parse().expect("a time");
        Timestamp::from_micros(time.as_microsecond())
    }

    fn cron(expression: &str, time_zone: &str) -> Timing {
        Timing::Cron { expression: expression.into(), time_zone: time_zone.into() }
    }

    #[track_caller]
    fn check(timing: &Timing, after: &str, expect: &str) {
        let next = timing.next_after(at(after), at("2026-01-01T00:00:10Z")).expect("a next time");
        assert_eq!(next.to_string(), expect, "{timing:?} after {after}");
    }

    #[test]
    fn slots() {
        let utc = cron("0 3 * * *", "UTC");
        check(&utc, "2026-01-01T02:59:59Z", "2026-01-01T03:00:00Z");
        check(&utc, "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z");
        let berlin = cron("30 2 * * *", "Europe/Berlin");
        check(&berlin, "2026-01-10T00:00:00Z", "2026-01-10T01:30:00Z");
        check(&berlin, "2026-07-10T00:00:00Z", "2026-07-10T00:30:00Z");
        let every = Timing::Every { interval_ms: 60_000 };
        check(&every, "2026-01-01T00:00:10Z", "2026-01-01T00:01:10Z");
        check(&every, "2026-01-01T00:01:10Z", "2026-01-01T00:02:10Z");
        check(&every, "2026-01-01T00:01:11Z", "2026-01-01T00:02:10Z");
    }

    #[test]
    fn what_is_no_timing() {
        for (timing, expect) in [
            (cron("61 * * * *", "UTC"), "does not read"),
            (cron("* * * * *", "Mars/Olympus"), "no time zone"),
            (Timing::Every { interval_ms: 10 }, "at least 1 second"),
            (Timing::Every { interval_ms: 366 * 86_400_000 }, "at most 365 days"),
            (Timing::Every { interval_ms: u64::MAX }, "at most 365 days"),
        ] {
            let error = timing.validate(&Limits::DEFAULT).expect_err("it is refused");
            assert_eq!(error.code(), "INVALID_SCHEDULE");
            assert!(error.to_string().contains(expect), "{error}");
        }
    }
}
