//! Schedules: runs that start other runs, by cron or at an interval.
//!
//! A schedule is itself a run, of a workflow that every engine serves. Its turn is due at the next
//! firing; the commit of that turn creates the run of the firing and sets the next due time. So each
//! firing starts one run, however many processes there are. Pausing, listing and the ledger work as for
//! any other run.

mod program;
mod timing;

use std::sync::Arc;

use windlass_kernel::{
    Actor, Body, Error, ErrorCode, ErrorKind, ModelName, OnExisting, Order, Run, RunId, RunKey,
    RunStatus, RunsQuery, Timestamp, WorkflowName,
};

use crate::control::ATTEMPTS_MAX;
use crate::description::ModelDescription;
use crate::engine::Engine;
use crate::generations::Superseded;
use crate::registry::Serving;
use crate::start::StartRun;

pub use timing::{Missed, Overlap, Schedule, Timing};

pub(crate) use program::Schedules;
use program::Snapshot;

const MODEL: ModelName = ModelName::from_static("schedules");

/// Schedules have no steps: the runs that one has started go on when it ends.
pub(crate) static DESCRIPTION: ModelDescription = ModelDescription::new(MODEL);

/// The workflow whose runs are schedules.
pub const SCHEDULE_WORKFLOW: &str = "windlass.schedule";

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

impl ScheduleState {
    // A schedule that was just set, before its first turn.
    fn set(name: &str, schedule: &Schedule) -> Self {
        Self {
            name: name.to_owned(),
            schedule: schedule.clone(),
            paused: false,
            next_at: None,
            last_at: None,
            last_run: None,
            blocked: None,
        }
    }
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
                        // A failed read does not change that the schedule is set.
                        Ok(started) => match self.current(started.run_key).await {
                            Ok(run) => run,
                            Err(_) => return Ok(ScheduleState::set(name, schedule)),
                        },
                        // A concurrent request has set this schedule, or another one with the same name.
                        Err(error) if error.code() == ErrorCode::RunExists => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            let state = state_of(&run)?;
            return Ok(self.schedule_state(&run).await.unwrap_or(state));
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

/// Every engine serves schedules.
pub(crate) fn register(engine: &Engine) -> Result<(), Error> {
    let name = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
    engine.register_own(name, Arc::new(Schedules), Serving::default())
}
