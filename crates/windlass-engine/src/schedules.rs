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
    Actor, Body, Error, ErrorCode, ErrorKind, ModelName, Namespace, OnExisting, Order, Run, RunId,
    RunKey, RunStatus, RunsQuery, Timestamp, WorkflowName,
};

use crate::control::{ATTEMPTS_MAX, RunControl};
use crate::core::Core;
use crate::description::ModelDescription;
use crate::engine::Engine;
use crate::generations::Superseded;
use crate::registry::Serving;
use crate::start::{RunStarter, StartRun};
use crate::why::Explainer;

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

/// Sets, lists and deletes schedules.
pub(crate) struct ScheduleControl {
    pub(crate) core: Arc<Core>,
    pub(crate) starter: Arc<RunStarter>,
    pub(crate) control: Arc<RunControl>,
    pub(crate) explainer: Arc<Explainer>,
}

impl ScheduleControl {
    /// Sets a schedule, and returns it.
    pub(crate) async fn put(
        &self,
        namespace: &Namespace,
        name: &str,
        schedule: &Schedule,
        actor: Option<Actor>,
    ) -> Result<ScheduleState, Error> {
        let limits = &self.core.options.limits;
        schedule.timing.validate(limits)?;
        self.check_firing(namespace, schedule).await?;
        let id = RunId::with_limits(name, limits).map_err(|error| {
            let message = error.message().replacen("run id", "schedule name", 1);
            Error::new(error.kind(), error.code(), message)
        })?;
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let input = Body::of(schedule)?;
        for _ in 0..ATTEMPTS_MAX {
            let run = match self.starter.find(namespace, &workflow, &id).await? {
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
                    match self.starter.start(namespace, start).await {
                        // A failed read does not change that the schedule is set.
                        Ok(started) => match self.core.current(started.run_key).await {
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
        self.core.check_actor(actor.as_ref())?;
        let (generations, run) = (Arc::clone(&self.control.generations), run.clone());
        let replacing = async move { generations.replace(&run, input, actor).await };
        self.core.run_to_completion(replacing).await?
    }

    // Refuses a schedule whose runs could never be started.
    async fn check_firing(&self, namespace: &Namespace, schedule: &Schedule) -> Result<(), Error> {
        let (workflow, model) = (schedule.workflow.clone(), schedule.model.clone());
        let input = Body::json(schedule.input.get().to_owned());
        let mut start = StartRun::new(workflow, model, input);
        start.labels = schedule.labels.clone();
        self.starter.check(namespace.clone(), start).await
    }

    /// A schedule by its name.
    pub(crate) async fn get(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Result<Option<ScheduleState>, Error> {
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let run = self.starter.find(namespace, &workflow, &RunId::from_stored(name)).await?;
        match run.filter(|run| !run.status.is_ended()) {
            Some(run) => self.schedule_state(&run).await.map(Some),
            None => Ok(None),
        }
    }

    /// The schedules of a namespace, oldest first.
    pub(crate) async fn all(&self, namespace: &Namespace) -> Result<Vec<ScheduleState>, Error> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = self.page(namespace, after, self.core.options.limits.page_rows_max).await?;
            found.extend(page.schedules);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// A page of the schedules whose runs come after `after`: at most `limit`, and maybe fewer.
    pub(crate) async fn page(
        &self,
        namespace: &Namespace,
        after: Option<RunKey>,
        limit: u32,
    ) -> Result<SchedulesPage, Error> {
        let mut query = RunsQuery::all(namespace.clone(), limit);
        query.workflow = Some(WorkflowName::from_stored(SCHEDULE_WORKFLOW));
        query.order = Order::Ascending;
        query.after = after;
        let mut page = self.core.store.list(windlass_kernel::Query::Runs(query)).await?.runs()?;
        for run in &mut page {
            self.core.fill_run(run).await?;
        }
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
        let late = state.next_at.is_none_or(|next| next <= self.core.clock.now());
        if late && run.status == RunStatus::Waiting {
            state.blocked = self.explainer.blocked_text(run).await?;
        }
        Ok(state)
    }

    /// Stops a schedule from starting runs until it is resumed.
    pub(crate) async fn pause(&self, namespace: &Namespace, name: &str) -> Result<(), Error> {
        self.control.pause(&self.run(namespace, name).await?, None).await
    }

    /// Resumes a paused schedule.
    pub(crate) async fn resume(&self, namespace: &Namespace, name: &str) -> Result<(), Error> {
        self.control.resume(&self.run(namespace, name).await?, None).await
    }

    /// Deletes a schedule. Runs that it started continue.
    pub(crate) async fn delete(&self, namespace: &Namespace, name: &str) -> Result<(), Error> {
        let run = self.run(namespace, name).await?;
        self.control.terminate(run.run_key, Some("the schedule was deleted"), None).await
    }

    /// The run of a schedule, by its name.
    pub(crate) async fn run(&self, namespace: &Namespace, name: &str) -> Result<Run, Error> {
        let workflow = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
        let run = self.starter.find(namespace, &workflow, &RunId::from_stored(name)).await?;
        run.filter(|run| !run.status.is_ended()).ok_or_else(|| {
            let message = format!("there is no schedule {name:?}");
            Error::new(ErrorKind::NotFound, ErrorCode::ScheduleNotFound, message)
        })
    }
}

fn state_of(run: &Run) -> Result<ScheduleState, Error> {
    let snapshot: Snapshot = run.state.as_ref().map(Body::read).transpose()?.unwrap_or_default();
    let schedule: Schedule = run.input.read()?;
    // A schedule that has not fired has no snapshot; its first firing follows its creation.
    let next_at = match snapshot.next_us {
        Some(next) => Some(Timestamp::from_micros(next)),
        None => schedule.timing.next_after(run.created_at, run.created_at).ok(),
    };
    Ok(ScheduleState {
        name: run.id.as_str().to_owned(),
        schedule,
        paused: run.status == RunStatus::Paused,
        next_at,
        last_at: snapshot.last_us.map(Timestamp::from_micros),
        last_run: snapshot.last_run,
        blocked: None,
    })
}

/// Every engine serves schedules.
pub(crate) fn register(engine: &Engine) -> Result<(), Error> {
    let name = WorkflowName::from_stored(SCHEDULE_WORKFLOW);
    engine.register_internal(name, Arc::new(Schedules), Serving::default())
}
