//! Explains why a run does not progress: what it waits for, and what its children wait for.

use std::sync::Arc;

use serde::Serialize;
use windlass_kernel::request::{Assignee, RequestState, RequestStatus, Verdict};
use windlass_kernel::{
    BoxFuture, BreakerStatus, Error, ErrorKind, LimitState, LoadSteps, Loaded, LogLevel,
    MessageKind, Order, Query, Run, RunId, RunKey, RunOverview, RunStatus, RunsQuery, Step,
    StepStatus, Task, Timestamp, Worker,
};

use crate::breakers;
use crate::carried;
use crate::core::Core;
use crate::description::{StepDescription, StepRole};
use crate::events;
use crate::explain::{ChildRef, StepContext, worker_name};
use crate::rates::Rates;
use crate::registry::Registry;
use crate::requests::RequestRef;
use crate::terminate::Terminator;
use crate::turn_failure::BLOCKED_CATEGORY;
use crate::workers::WorkerRow;

/// How many levels of children are explained.
const DEPTH_MAX: usize = 5;
/// How many open steps are explained.
const STEPS_MAX: usize = 20;
/// How many runs in the queue of a limit are counted.
const QUEUE_MAX: u32 = 1_000;

/// A reason why a run, or a child that it waits for, does not progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// A stable code.
    pub code: Why,
    /// The reason as a sentence.
    pub text: String,
    /// The step that it concerns.
    pub step: Option<String>,
    /// When it ends without any action.
    pub until: Option<Timestamp>,
    /// The child that the run waits for; the next reasons concern the child.
    pub child: Option<Child>,
    /// The level of the run: 0 for the explained run, 1 for its children.
    pub depth: usize,
}

/// A child that a run waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Child {
    /// Its workflow.
    pub workflow: String,
    /// Its id.
    pub id: String,
}

/// The kind of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It has ended.
    Ended,
    /// An operator paused it.
    Paused,
    /// This build cannot continue it.
    Blocked,
    /// It sleeps.
    Sleeping,
    /// It waits for an event.
    AwaitingEvent,
    /// A step failed and is retried later.
    Retrying,
    /// It waits for another run.
    AwaitingChild,
    /// It waits for an activity.
    AwaitingActivity,
    /// No live worker serves the activity.
    ActivityUnserved,
    /// It waits for people to decide.
    AwaitingDecision,
    /// It starts later.
    StartsLater,
    /// No live worker serves its workflow.
    Unserved,
    /// All slots of its limit are in use.
    LimitReached,
    /// A rate delays it.
    RateReached,
    /// A circuit breaker delays it.
    BreakerOpen,
    /// A worker holds its turn or its step.
    Held,
    /// It is ready, and no worker has claimed it yet.
    Ready,
    /// It waits for a message.
    Waiting,
}

/// Why a run is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// A stable code.
    pub code: String,
    /// The error.
    pub reason: String,
    /// The build that reported it, if it has a name.
    pub build: Option<String>,
}

/// Why a run does not progress.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The run.
    pub run: Run,
    /// Whether it progresses, now or later, without any action.
    pub moving: bool,
    /// The reasons, outermost first.
    pub reasons: Vec<Reason>,
}

/// Explains runs.
pub(crate) struct Explainer {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) terminator: Arc<Terminator>,
    pub(crate) rates: Arc<Rates>,
    pub(crate) row: Arc<WorkerRow>,
}

impl Explainer {
    /// Explains why a run does not progress.
    pub(crate) async fn why(&self, run_key: RunKey) -> Result<Explanation, Error> {
        let workers = self.row.live_workers().await?;
        let mut reasons = Vec::new();
        let run = self.explain(run_key, 0, &workers, &mut reasons).await?;
        let stuck = |reason: &Reason| {
            use Why::{ActivityUnserved, Blocked, Paused, Unserved, Waiting};
            matches!(reason.code, Paused | Blocked | Unserved | ActivityUnserved | Waiting)
                || matches!(reason.code, Why::AwaitingEvent | Why::AwaitingDecision)
                    && reason.until.is_none()
        };
        let moving = !run.status.is_ended() && !reasons.iter().any(stuck);
        Ok(Explanation { run, moving, reasons })
    }

    fn explain<'a>(
        &'a self,
        run_key: RunKey,
        depth: usize,
        workers: &'a [Worker],
        reasons: &'a mut Vec<Reason>,
    ) -> BoxFuture<'a, Result<Run, Error>> {
        Box::pin(async move {
            let store = &self.core.store;
            let loaded = match store.load_with(vec![run_key], LoadSteps::Open).await {
                Ok(loaded) => loaded.into_iter().next(),
                // A step or message that cannot be read must not hide why the run is blocked.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let overview = store.run_overview_by_key(run_key).await?;
                    overview.map(|RunOverview { run, open_steps: steps }| Loaded {
                        run,
                        steps,
                        messages: Vec::new(),
                    })
                }
                Err(error) => return Err(error),
            };
            let Some(Loaded { run, steps, messages }) = loaded else {
                return self.core.current(run_key).await;
            };
            let count = reasons.len();
            let mut list = ReasonList { depth, reasons };
            if run.status.is_ended() {
                list.push(Why::Ended, format!("it is {}", run.status));
                return Ok(run);
            }
            let unread = messages.iter().any(|message| message.kind == MessageKind::Control);
            if run.status == RunStatus::Paused {
                list.push(Why::Paused, "it is paused; resume it".into());
            } else if self.explain_blocked(&run, &mut list).await? {
                // Its steps show only what it waited for before it was blocked.
                return Ok(run);
            }
            self.explain_turn(&run, &steps, unread, workers, &mut list).await?;
            let model = self.registry.description(&run);
            let has_task = |step: &Step| model.step(&step.kind).role == StepRole::Activity;
            let tasks = match steps.iter().any(has_task) {
                true => self.terminator.tasks_of(&run).await?,
                false => Vec::new(),
            };
            // A wait that lost a race has a row, and nobody waits for it.
            let is_lost = |step: &Step| {
                let role = model.step(&step.kind).role;
                let is_work = role == StepRole::Work && run.status == RunStatus::Waiting;
                step.status == StepStatus::Pending
                    && (is_work || matches!(role, StepRole::Sleep | StepRole::Event))
            };
            let open = steps.iter().filter(|step| !is_lost(step));
            for step in open.take(STEPS_MAX) {
                let kind = model.step(&step.kind);
                let executing = kind.is_executing(&run, step, self.core.clock.now());
                let context = StepContext { step, executing, tasks: &tasks, workers };
                let child = list.explain(kind, &context);
                if kind.role == StepRole::Request {
                    self.explain_request(&run, step, &mut list).await?;
                }
                let task = context.task();
                if let Some(task) = task.filter(|task| !task.ready && task.worker.is_none()) {
                    self.explain_delay(task, step, &mut list).await?;
                }
                if let Some(child) = child
                    && depth < DEPTH_MAX
                {
                    let child = self.newest_child(&run, child).await?;
                    self.explain(child, depth + 1, workers, list.reasons).await?;
                }
            }
            if list.reasons.len() == count {
                list.push(Why::Waiting, "it waits for a message".into());
            }
            Ok(run)
        })
    }

    // Explains what delays a task that is scheduled for later.
    async fn explain_delay(
        &self,
        task: &Task,
        step: &Step,
        list: &mut ReasonList<'_>,
    ) -> Result<(), Error> {
        let name = step.step_key.as_str();
        let (code, text) = if let Some(row) = breakers::refusing(&self.core, task).await? {
            let key = row.key.as_str();
            let state = match row.status {
                BreakerStatus::Closed => "asked to wait",
                BreakerStatus::Open => "is open",
                BreakerStatus::HalfOpen => "is half open",
            };
            let text = format!(
                "circuit breaker {key:?} {state} and lets {name:?} begin later; if the callee is \
                 available again, reset the breaker"
            );
            (Why::BreakerOpen, text)
        } else if let Some(key) = self.rates.limiting_key(task).await? {
            let text = format!("the rate of {:?} lets {name:?} begin later", key.as_str());
            (Why::RateReached, text)
        } else {
            return Ok(());
        };
        let reason = list.reason(code, text);
        list.reasons.push(Reason { step: Some(name.to_owned()), until: task.due_at, ..reason });
        Ok(())
    }

    // Completes the reason of a step that waits for people.
    async fn explain_request(
        &self,
        run: &Run,
        step: &Step,
        list: &mut ReasonList<'_>,
    ) -> Result<(), Error> {
        let Some(named) = RequestRef::of(step) else { return Ok(()) };
        let key = RequestState::key_of(&run.namespace, &named.request);
        let record = self.core.store.records(vec![key]).await?.pop().flatten();
        let state = record.and_then(|record| record.body?.read::<RequestState>().ok());
        if let (Some(state), Some(reason)) = (state, list.reasons.last_mut()) {
            reason.text = format!("{:?} waits for {}", step.step_key.as_str(), waits_for(&state));
            reason.until = state.due_at;
        }
        Ok(())
    }

    async fn newest_child(&self, parent: &Run, child: ChildRef) -> Result<RunKey, Error> {
        let (namespace, id) = (parent.namespace.clone(), RunId::from_stored(child.id));
        let newest = self.core.store.find(namespace, child.workflow, id).await?;
        Ok(newest.map_or(child.run_key, |run| run.run_key))
    }

    /// Why a run is blocked, if its last event is `workflow.blocked`.
    pub(crate) async fn blocked(&self, run: &Run) -> Result<Option<Blocked>, Error> {
        let query = Query::Event { event_id: run.cursor };
        let last = self.core.store.list(query).await?.events()?.into_iter().next();
        let Some(last) = last.filter(|event| event.event_type == events::WORKFLOW_BLOCKED) else {
            return Ok(None);
        };
        let payload = last.payload_json()?;
        let text = |key: &str| payload[key].as_str().filter(|text| !text.is_empty());
        let reason = match self.blocked_log(run, last.created_at).await? {
            Some(logged) => logged,
            None => text("reason").unwrap_or("the reason is missing in the event").to_owned(),
        };
        Ok(Some(Blocked {
            code: text("code").unwrap_or("INTERNAL").to_owned(),
            reason,
            build: text("build").map(str::to_owned),
        }))
    }

    // The whole text of the error is in the log, in the commit of the event.
    async fn blocked_log(&self, run: &Run, at: Timestamp) -> Result<Option<String>, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let mut after = None;
        loop {
            let query = Query::Logs {
                run_key: run.run_key,
                level_min: Some(LogLevel::Error),
                category: Some(BLOCKED_CATEGORY.into()),
                after,
                limit,
            };
            let page = self.core.store.list(query).await?.logs()?;
            if let Some(line) = page.iter().find(|line| line.created_at == at) {
                return Ok(Some(line.message.to_string()));
            }
            if page.len() < limit as usize {
                return Ok(None);
            }
            after = page.last().map(|line| line.log_id);
        }
    }

    /// The same as a sentence.
    pub(crate) async fn blocked_text(&self, run: &Run) -> Result<Option<String>, Error> {
        let Some(Blocked { reason, build, .. }) = self.blocked(run).await? else { return Ok(None) };
        let build = build.map(|build| format!(" (build {build})")).unwrap_or_default();
        Ok(Some(format!("this code cannot carry it on{build}: {reason}")))
    }

    async fn explain_blocked(&self, run: &Run, list: &mut ReasonList<'_>) -> Result<bool, Error> {
        let Some(text) = self.blocked_text(run).await? else { return Ok(false) };
        list.reasons.push(Reason { until: run.turn.due_at, ..list.reason(Why::Blocked, text) });
        Ok(true)
    }

    // Explains what the run's turn waits for.
    async fn explain_turn(
        &self,
        run: &Run,
        open_steps: &[Step],
        unread: bool,
        workers: &[Worker],
        list: &mut ReasonList<'_>,
    ) -> Result<(), Error> {
        if let Some(holder) = run.turn.worker {
            let since = run.turn.claimed_at.map(|at| format!(" since {at}")).unwrap_or_default();
            let text = format!("its turn is taken by {}{since}", worker_name(workers, holder));
            list.push(Why::Held, text);
            return Ok(());
        }
        let is_served = workers.iter().any(|worker| {
            let mut routes = worker.info.turns.iter();
            routes.any(|route| route.name.as_str() == run.workflow.as_str())
        });
        if !is_served {
            let text = format!("no live worker serves workflow {:?}", run.workflow);
            list.push(Why::Unserved, text);
        }
        if run.status == RunStatus::Paused {
            return Ok(());
        }
        let now = self.core.clock.now();
        let later = |due: &Timestamp| !run.turn.ready && run.started_at.is_none() && *due > now;
        if carried::is_incomplete(run) {
            let text = "the steps of its previous generation are being copied";
            list.push(Why::StartsLater, text.into());
        } else if let Some(due) = run.turn.due_at.filter(later) {
            let reason = list.reason(Why::StartsLater, format!("it starts at {due}"));
            list.reasons.push(Reason { until: Some(due), ..reason });
        } else if run.turn.ready || unread {
            let limited = self.explain_limit(run, list).await?;
            if !limited && is_served {
                list.push(Why::Ready, "it is ready, and no worker has taken it yet".into());
            }
        } else if is_served && open_steps.is_empty() {
            list.push(Why::Waiting, "it waits for a message".into());
        }
        Ok(())
    }

    async fn explain_limit(&self, run: &Run, list: &mut ReasonList<'_>) -> Result<bool, Error> {
        let Some(key) = &run.turn.limit_key else { return Ok(false) };
        let limit = self.core.options.limits.page_rows_max;
        let namespace = run.namespace.clone();
        let mut after = None;
        let found: Option<LimitState> = loop {
            let query = Query::Limits { namespace: namespace.clone(), after, limit };
            let page = self.core.store.list(query).await?.limits()?;
            if let Some(state) = page.iter().find(|state| state.key == *key) {
                break Some(state.clone());
            }
            if page.len() < limit as usize {
                break None;
            }
            after = page.last().map(|state| state.key.clone());
        };
        let Some(state) = found.filter(|state| state.held >= state.slots) else {
            return Ok(false);
        };
        let (before, more) = self.queued_before(run).await?;
        let position = format!("{}{}", before + 1, if more { " or later" } else { "" });
        let text = format!(
            "the limit {:?} is reached: {} of {} are held; it is number {position} in the queue",
            key.as_str(),
            state.held,
            state.slots
        );
        list.push(Why::LimitReached, text);
        Ok(true)
    }

    // How many ready runs of the same limit come before this one: by priority, then by age.
    async fn queued_before(&self, run: &Run) -> Result<(u32, bool), Error> {
        let mut query = RunsQuery::all(run.namespace.clone(), QUEUE_MAX);
        query.status = Some(RunStatus::Active);
        query.order = Order::Ascending;
        let rows = self.core.store.list(Query::Runs(query)).await?.runs()?;
        let more = rows.len() == QUEUE_MAX as usize;
        let order = |run: &Run| (-i32::from(run.turn.priority), run.turn.due_at, run.run_key);
        let before = rows.iter().filter(|other| {
            other.turn.ready
                && other.turn.limit_key == run.turn.limit_key
                && order(other) < order(run)
        });
        Ok((u32::try_from(before.count()).unwrap_or(u32::MAX), more))
    }
}

/// The reasons found so far, with the level of the run that is being explained.
struct ReasonList<'a> {
    depth: usize,
    reasons: &'a mut Vec<Reason>,
}

impl ReasonList<'_> {
    fn reason(&self, code: Why, text: String) -> Reason {
        Reason { code, text, step: None, until: None, child: None, depth: self.depth }
    }

    fn push(&mut self, code: Why, text: String) {
        let reason = self.reason(code, text);
        self.reasons.push(reason);
    }

    /// Explains an open step. Returns the child that it waits for, if it does.
    fn explain(&mut self, kind: &StepDescription, context: &StepContext<'_>) -> Option<ChildRef> {
        let StepContext { step, executing, .. } = *context;
        let (code, text) = (kind.explain)(context);
        let child = ChildRef::of(step).filter(|_| kind.role == StepRole::Child);
        let display =
            |child: &ChildRef| Child { workflow: child.workflow.to_string(), id: child.id.clone() };
        let reason = Reason {
            step: Some(context.key().to_owned()),
            until: step.due_at.filter(|_| !executing),
            child: child.as_ref().map(display),
            ..self.reason(code, text)
        };
        self.reasons.push(reason);
        child
    }
}

// For example: 1 of 2 approvals, of role cfo, since 2026-11-18T08:00:00Z (request 0199…).
fn waits_for(state: &RequestState) -> String {
    let (id, since) = (&state.id, state.opened_at);
    if state.status != RequestStatus::Open {
        return format!("its next turn: request {id} is {}", state.status);
    }
    let asked: Vec<String> = state
        .assignees
        .iter()
        .map(|assignee| match assignee {
            Assignee::Role(role) => format!("role {role}"),
            Assignee::Person(id) => id.clone(),
        })
        .collect();
    let (has, needs) = (state.count(Verdict::Approve), state.quorum);
    let until = state.due_at.map(|due| format!(", due at {due}")).unwrap_or_default();
    let asked = asked.join(", ");
    format!(
        "people: {has} of {needs} approvals, waits for {asked} since {since}{until} (request {id})"
    )
}
