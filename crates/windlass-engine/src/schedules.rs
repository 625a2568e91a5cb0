//! Schedules: runs that start other runs, by cron or at an interval.
//!
//! A schedule is itself a run, of a workflow that every engine serves. Its turn is due at the next
//! firing; the commit of that turn creates the run of the firing and sets the next due time. So each
//! firing starts one run, however many processes there are. Pausing, listing and the ledger work as for
//! any other run.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use windlass_kernel::{
    Actor, Body, BoxFuture, CausalRef, Draft, Error, ErrorCode, ErrorKind, EventType, Limits,
    ModelName, NewRun, OnExisting, Order, Run, RunId, RunKey, RunStatus, RunsQuery, Timestamp,
    Turn as TurnRow, Wake, WorkflowName,
};

use crate::control::ATTEMPTS_MAX;
use crate::description::ModelDescription;
use crate::engine::Engine;
use crate::events;
use crate::generations::Superseded;
use crate::model::{Model, Opened, Program, TurnError};
use crate::registry::Serving;
use crate::start::StartRun;
use crate::turn::Turn;

const MODEL: ModelName = ModelName::from_static("schedules");

/// Schedules have no steps: the runs that one has started go on when it ends.
pub(crate) static DESCRIPTION: ModelDescription = ModelDescription::new(MODEL);

/// The workflow whose runs are schedules.
pub const SCHEDULE_WORKFLOW: &str = "windlass.schedule";

/// A firing was started, or skipped.
const SCHEDULE_FIRED: EventType = EventType::from_static("schedule.fired");

/// After this many firings a schedule continues as a new generation, which bounds its ledger.
const FIRINGS_PER_GENERATION: u64 = 1_000;
/// At most this many missed firings are started at once.
const MISSED_MAX: usize = 100;
/// A firing that is later than this was missed.
const LATE_MAX: Duration = Duration::from_secs(60);
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
    /// At a fixed interval.
    Every {
        /// The time between two firings, in milliseconds.
        interval_ms: u64,
    },
}

/// The treatment of firings that were missed because no process served the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Start the last of them, late.
    #[default]
    Last,
    /// Start all of them, late, up to a hundred.
    All,
    /// Start none of them.
    Skip,
}

/// The treatment of a firing if the run of the previous one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Start it too.
    #[default]
    Allow,
    /// Skip it.
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
    /// The input of each run.
    pub input: Box<RawValue>,
    /// Labels of each run.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The treatment of missed firings.
    #[serde(default)]
    pub missed: Missed,
    /// The treatment of a firing if the previous run has not ended.
    #[serde(default)]
    pub overlap: Overlap,
}

impl Schedule {
    /// The firings to start now, by the policy for missed ones. Moves `next` past `now`.
    fn due_firings(
        &self,
        next: &mut Timestamp,
        anchor: Timestamp,
        now: Timestamp,
    ) -> Result<Vec<Timestamp>, Error> {
        let mut due = Vec::new();
        while *next <= now && due.len() < MISSED_MAX {
            due.push(*next);
            *next = self.timing.next_after(*next, anchor)?;
        }
        // Firings beyond the bound are skipped at once.
        if *next <= now {
            *next = self.timing.next_after(now, anchor)?;
        }
        match self.missed {
            Missed::All => {}
            Missed::Last => drop(due.drain(..due.len().saturating_sub(1))),
            Missed::Skip => due.retain(|firing| now.since(*firing) < LATE_MAX),
        }
        Ok(due)
    }
}

impl Timing {
    /// Checks the timing.
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

    /// The first firing after a time. `anchor` is when an interval began.
    pub fn next_after(&self, after: Timestamp, anchor: Timestamp) -> Result<Timestamp, Error> {
        match self {
            Self::Every { interval_ms } => {
                let interval = i64::try_from(interval_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
                let passed = after.as_micros().saturating_sub(anchor.as_micros());
                let count = passed.div_euclid(interval.max(1)) + 1;
                let at = anchor.as_micros().saturating_add(interval.saturating_mul(count.max(1)));
                Ok(Timestamp::from_micros(at))
            }
            Self::Cron { expression, time_zone } => {
                let cron = croner::Cron::from_str(expression).map_err(|error| {
                    invalid(format!("failed to parse the cron expression {expression:?}: {error}"))
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
    Error::new(ErrorKind::Invalid, ErrorCode::InvalidSchedule, message)
}

/// A stored schedule and its state.
#[derive(Clone, Debug)]
pub struct ScheduleState {
    /// Its name.
    pub name: String,
    /// The schedule.
    pub schedule: Schedule,
    /// Whether it is paused.
    pub paused: bool,
    /// Its next firing.
    pub next_at: Option<Timestamp>,
    /// Its last firing.
    pub last_at: Option<Timestamp>,
    /// The id of the run that its last firing started.
    pub last_run: Option<String>,
    /// Why it starts no runs, if it cannot.
    pub blocked: Option<String>,
}

/// A page of schedules.
#[derive(Clone, Debug)]
pub struct SchedulesPage {
    /// Oldest first.
    pub schedules: Vec<ScheduleState>,
    /// Where the next page begins, if there may be one.
    pub next: Option<RunKey>,
}

impl Engine {
    /// Sets a schedule. The same schedule again changes nothing. Another schedule with the same name
    /// replaces it, and its firings count from now. A paused schedule stays paused.
    pub async fn put_schedule(&self, name: &str, schedule: &Schedule) -> Result<(), Error> {
        self.put_schedule_as(name, schedule, None).await.map(|_| ())
    }

    /// As [`Engine::put_schedule`], on behalf of an actor. Returns the schedule.
    pub async fn put_schedule_as(
        &self,
        name: &str,
        schedule: &Schedule,
        actor: Option<Actor>,
    ) -> Result<ScheduleState, Error> {
        let limits = &self.parts.core.options.limits;
        schedule.timing.validate(limits)?;
        self.check_firing(schedule).await?;
        let id = RunId::with_limits(name, limits).map_err(|error| {
            let message = error.message().replacen("run id", "schedule name", 1);
            Error::new(error.kind(), error.code(), message)
        })?;
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let input = Body::of(schedule)?;
        for _ in 0..ATTEMPTS_MAX {
            let run = match self.find_run(&workflow, &id).await? {
                Some(run) if run.status.is_ended() || run.input != input => {
                    let next = self.replace(&run, input.clone(), actor.clone()).await?;
                    return Ok(ScheduleState { paused: next.paused, ..state_of(&next.run)? });
                }
                Some(run) => run,
                None => {
                    let model = MODEL;
                    let mut start = StartRun::new(workflow.clone(), model, input.clone());
                    start.id = Some(id.clone());
                    start.on_existing = OnExisting::Refuse;
                    match self.start_run(start).await {
                        Ok(started) => self.current(started.run_key).await?,
                        // A concurrent request has set this schedule, or another one with the same name.
                        Err(error) if error.code() == ErrorCode::RunExists => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            return self.schedule_state(&run).await;
        }
        let message =
            format!("concurrent requests have set schedule {name:?} {ATTEMPTS_MAX} times; retry");
        Err(Error::new(ErrorKind::Unavailable, ErrorCode::RunBusy, message))
    }

    async fn replace(
        &self,
        run: &Run,
        input: Body,
        actor: Option<Actor>,
    ) -> Result<Superseded, Error> {
        self.check_actor(actor.as_ref())?;
        let (generations, run) = (Arc::clone(&self.parts.control.generations), run.clone());
        let replacing = async move { generations.replace(&run, input, actor).await };
        self.parts.core.run_to_completion(replacing).await?
    }

    // Refuses a schedule whose runs could never be started.
    async fn check_firing(&self, schedule: &Schedule) -> Result<(), Error> {
        let (workflow, model) = (schedule.workflow.clone(), schedule.model.clone());
        let input = Body::json(schedule.input.get().to_owned());
        let mut start = StartRun::new(workflow, model, input);
        start.labels = schedule.labels.clone();
        self.parts.templates.complete_start(&mut start).await?;
        self.parts.run_starter.new_run(self.namespace.clone(), start).map(|_| ())
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
            let page =
                self.schedules_page(after, self.parts.core.options.limits.page_rows_max).await?;
            found.extend(page.schedules);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// A page of the schedules whose runs come after `after`: at most `limit`, and maybe fewer.
    pub async fn schedules_page(
        &self,
        after: Option<RunKey>,
        limit: u32,
    ) -> Result<SchedulesPage, Error> {
        let mut query = RunsQuery::all(self.namespace.clone(), limit);
        query.workflow = Some(WorkflowName::from_stored(SCHEDULE_WORKFLOW));
        query.order = Order::Ascending;
        query.after = after;
        let page = self.parts.core.store.list(windlass_kernel::Query::Runs(query)).await?.runs()?;
        let next = page.last().filter(|_| page.len() == limit as usize).map(|run| run.run_key);
        let mut schedules = Vec::new();
        for run in page.iter().filter(|run| !run.status.is_ended()) {
            schedules.push(self.schedule_state(run).await?);
        }
        Ok(SchedulesPage { schedules, next })
    }

    async fn schedule_state(&self, run: &Run) -> Result<ScheduleState, Error> {
        let mut state = state_of(run)?;
        // A schedule that works has its next firing in the future: read the ledger only of the others.
        let late = state.next_at.is_none_or(|next| next <= self.parts.core.clock.now());
        if late && run.status == RunStatus::Waiting {
            state.blocked = self.blocked_text(run).await?;
        }
        Ok(state)
    }

    /// Stops a schedule from starting runs until it is resumed.
    pub async fn pause_schedule(&self, name: &str) -> Result<(), Error> {
        self.pause(&self.schedule_run(name).await?, None).await
    }

    /// Resumes a paused schedule.
    pub async fn resume_schedule(&self, name: &str) -> Result<(), Error> {
        self.resume(&self.schedule_run(name).await?, None).await
    }

    /// Deletes a schedule. Runs that it started continue.
    pub async fn delete_schedule(&self, name: &str) -> Result<(), Error> {
        let run = self.schedule_run(name).await?;
        self.terminate(run.run_key, Some("the schedule was deleted"), None).await
    }

    /// The run of a schedule, by its name.
    pub async fn schedule_run(&self, name: &str) -> Result<Run, Error> {
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let run = self.find_run(&workflow, &RunId::from_stored(name)).await?;
        run.filter(|run| !run.status.is_ended()).ok_or_else(|| {
            let message = format!("there is no schedule {name:?}");
            Error::new(ErrorKind::NotFound, ErrorCode::ScheduleNotFound, message)
        })
    }
}

fn state_of(run: &Run) -> Result<ScheduleState, Error> {
    let snapshot: Snapshot = run.state.as_ref().map(Body::read).transpose()?.unwrap_or_default();
    Ok(ScheduleState {
        name: run.id.as_str().to_owned(),
        schedule: run.input.read()?,
        paused: run.status == RunStatus::Paused,
        next_at: snapshot.next_us.map(Timestamp::from_micros),
        last_at: snapshot.last_us.map(Timestamp::from_micros),
        last_run: snapshot.last_run,
        blocked: None,
    })
}

/// The stored state of a schedule between two firings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Snapshot {
    anchor_us: i64,
    next_us: Option<i64>,
    last_us: Option<i64>,
    last_run: Option<String>,
    #[serde(rename = "slots")]
    firings: u64,
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
        let due = self.schedule.due_firings(&mut next, anchor, now).map_err(blocked)?;
        let mut draft = turn.draft();
        for firing in due {
            self.fire(turn, &mut draft, firing).await?;
        }
        self.snapshot.next_us = Some(next.as_micros());
        if self.snapshot.firings >= FIRINGS_PER_GENERATION {
            return self.next_generation(turn, draft).await;
        }
        draft.state(Body::of(&self.snapshot).map_err(blocked)?);
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
            let payload =
                json!({ "slot": fired_at, "skipped": "the run of the slot before goes on" });
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
        let output = windlass_kernel::End::Complete(Body::json("null"));
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
    fn firings() {
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
    fn missed_firings_follow_the_policy() {
        // Every minute since 00:00:10. The first firing is at 00:01:10.
        let table = [
            ("2026-01-01T00:01:09Z", Missed::All, 0, "2026-01-01T00:01:10Z"),
            ("2026-01-01T00:01:10Z", Missed::All, 1, "2026-01-01T00:02:10Z"),
            ("2026-01-01T00:05:00Z", Missed::All, 4, "2026-01-01T00:05:10Z"),
            ("2026-01-01T00:05:00Z", Missed::Last, 1, "2026-01-01T00:05:10Z"),
            ("2026-01-01T00:05:00Z", Missed::Skip, 1, "2026-01-01T00:05:10Z"),
            ("2026-01-01T00:05:09.999Z", Missed::Skip, 1, "2026-01-01T00:05:10Z"),
            ("2026-01-01T10:00:00Z", Missed::All, MISSED_MAX, "2026-01-01T10:00:10Z"),
            ("2026-01-01T10:00:00Z", Missed::Skip, 0, "2026-01-01T10:00:10Z"),
        ];
        for (now, missed, count, next) in table {
            let schedule = Schedule {
                timing: Timing::Every { interval_ms: 60_000 },
                workflow: WorkflowName::from_stored("report"),
                model: ModelName::from_stored("steps"),
                input: RawValue::from_string("null".into()).expect("JSON"),
                labels: BTreeMap::new(),
                missed,
                overlap: Overlap::Allow,
            };
            let mut found = at("2026-01-01T00:01:10Z");
            let anchor = at("2026-01-01T00:00:10Z");
            let due = schedule.due_firings(&mut found, anchor, at(now)).expect("a timing");
            assert_eq!((due.len(), found), (count, at(next)), "{missed:?} at {now}");
            assert!(due.is_sorted() && due.iter().all(|firing| *firing <= at(now)));
        }
    }

    #[test]
    fn invalid_timings_are_refused() {
        for (timing, expect) in [
            (cron("61 * * * *", "UTC"), "failed to parse"),
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
