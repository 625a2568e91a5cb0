//! Why a run is where it is: what it waits for, and what that waits for, in words.

use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, BoxFuture, Error, LimitState, Loaded, MessageKind, Order, Query, Run, RunId, RunKey,
    RunStatus, RunsQuery, Step, StepStatus, Task, Timestamp, Worker, WorkerKey, WorkflowName,
};

use crate::engine::Engine;

/// How many children of children are looked at.
const DEPTH_MAX: usize = 5;
/// How many open steps are told of.
const STEPS_MAX: usize = 20;
/// How far the queue of a limit is counted.
const QUEUE_MAX: u32 = 1_000;

/// One reason, of the run that was asked about or of one that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// A stable word.
    pub code: Why,
    /// The same in a sentence.
    pub text: String,
    /// The step that it is about.
    pub step: Option<String>,
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// The child that is waited for; the reasons that follow are the child's.
    pub child: Option<Child>,
    /// How many runs lie between the one that was asked about and the one that this is about.
    pub depth: usize,
}

/// A child that is waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Child {
    /// Its workflow.
    pub workflow: String,
    /// Its id.
    pub id: String,
}

/// What kind of reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It has ended.
    Ended,
    /// An operator paused it.
    Paused,
    /// This build and those before could not carry it on.
    Blocked,
    /// It sleeps.
    Sleeping,
    /// It waits for an event.
    AwaitingEvent,
    /// A step failed and is tried again later.
    Retrying,
    /// It waits for another run.
    AwaitingChild,
    /// It waits for an activity.
    AwaitingActivity,
    /// No live worker takes such an activity.
    ActivityUnserved,
    /// It starts later.
    StartsLater,
    /// No live worker serves its workflow.
    Unserved,
    /// As many hold under its limit as may.
    LimitReached,
    /// A rate lets it begin later.
    RateReached,
    /// A worker has its turn, or its step.
    Held,
    /// It is ready, and nobody has taken it yet.
    Ready,
    /// It waits, and its record does not say for what.
    Waiting,
}

/// Why this build and those before could not carry a run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// A stable code.
    pub code: String,
    /// What is wrong.
    pub reason: String,
    /// The build that found it, if it has a name.
    pub build: Option<String>,
}

/// Why a run is where it is.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The run.
    pub run: Run,
    /// Whether it moves, or will without anybody doing anything.
    pub moving: bool,
    /// The reasons, outermost first.
    pub reasons: Vec<Reason>,
}

/// As a child stands in the row of the step that waits for it.
#[derive(Deserialize)]
struct ChildRef {
    workflow: WorkflowName,
    id: String,
    run_key: RunKey,
}

/// Whether an open step is being done just now, or is about to be, whatever its row says: one that had to
/// wait is begun without another commit.
pub fn is_being_done(run: &Run, step: &Step, now: Timestamp) -> bool {
    let tried = matches!(&*step.kind, "do" | "relay") && !step.status.is_settled();
    let for_signal = step.status == StepStatus::Waiting && step.attempt == 0;
    tried
        && run.turn.worker.is_some()
        && !(for_signal && step.wait_for.is_some())
        && step.due_at.is_none_or(|due| due <= now)
}

impl Engine {
    /// Why a run is where it is.
    pub async fn why(&self, run_key: RunKey) -> Result<Explanation, Error> {
        let workers = self.live_workers().await?;
        let mut reasons = Vec::new();
        let run = self.explain(run_key, 0, &workers, &mut reasons).await?;
        let stuck = |reason: &Reason| {
            use Why::{ActivityUnserved, Blocked, Paused, Unserved, Waiting};
            matches!(reason.code, Paused | Blocked | Unserved | ActivityUnserved | Waiting)
                || reason.code == Why::AwaitingEvent && reason.until.is_none()
        };
        let moving = !run.status.is_ended() && !reasons.iter().any(stuck);
        Ok(Explanation { run, moving, reasons })
    }

    pub(crate) async fn live_workers(&self) -> Result<Vec<Worker>, Error> {
        let limit = self.inner.options.limits.page_rows_max;
        let now = self.inner.clock.now();
        let mut live = Vec::new();
        let mut after = None;
        loop {
            let mut page =
                self.inner.store.list(Query::Workers { after, limit }).await?.workers()?;
            self.refresh(&mut page);
            after = page.last().map(|worker| worker.info.worker);
            let is_last = page.len() < limit as usize;
            live.extend(page.into_iter().filter(|worker| worker.is_live(now)));
            if is_last {
                return Ok(live);
            }
        }
    }

    fn explain<'a>(
        &'a self,
        run_key: RunKey,
        depth: usize,
        workers: &'a [Worker],
        reasons: &'a mut Vec<Reason>,
    ) -> BoxFuture<'a, Result<Run, Error>> {
        Box::pin(async move {
            let loaded = self.inner.store.load(vec![run_key]).await?.into_iter().next();
            let Some(Loaded { run, steps, messages }) = loaded else {
                return self.current(run_key).await;
            };
            let told = reasons.len();
            let mut tell = Teller { depth, reasons };
            if run.status.is_ended() {
                tell.say(Why::Ended, format!("it is {}", run.status));
                return Ok(run);
            }
            let unread = messages.iter().any(|message| message.kind == MessageKind::Control);
            if run.status == RunStatus::Paused {
                tell.say(Why::Paused, "it is paused; resume it".into());
            } else if self.tell_blocked(&run, &mut tell).await? {
                // What it waits for besides is what it waited for before.
                return Ok(run);
            }
            self.tell_turn(&run, &steps, unread, workers, &mut tell).await?;
            let tasks = match steps.iter().any(|step| &*step.kind == "activity") {
                true => self.inner.tasks_of(&run).await?,
                false => Vec::new(),
            };
            let open = steps.iter().filter(|step| !step.status.is_settled()).take(STEPS_MAX);
            for step in open {
                let being_done = is_being_done(&run, step, self.inner.clock.now());
                let child = tell_step(step, being_done, &tasks, workers, &mut tell);
                let task = tasks.iter().find(|task| task.step_key.as_ref() == Some(&step.step_key));
                if let Some(task) = task.filter(|task| !task.ready && task.worker.is_none())
                    && let Some(key) = self.inner.holding_rate(task).await?
                {
                    let name = step.step_key.as_str();
                    let text = format!("the rate of {:?} lets {name:?} begin later", key.as_str());
                    let reason = tell.reason(Why::RateReached, text);
                    let step = Some(name.to_owned());
                    tell.reasons.push(Reason { step, until: task.due_at, ..reason });
                }
                if let Some(child) = child
                    && depth < DEPTH_MAX
                {
                    let child = self.newest_child(&run, child).await?;
                    self.explain(child, depth + 1, workers, tell.reasons).await?;
                }
            }
            if tell.reasons.len() == told {
                tell.say(Why::Waiting, "it waits for a message".into());
            }
            Ok(run)
        })
    }

    async fn newest_child(&self, parent: &Run, child: ChildRef) -> Result<RunKey, Error> {
        let (namespace, id) = (parent.namespace.clone(), RunId::from_stored(child.id));
        let newest = self.inner.store.find(namespace, child.workflow, id).await?;
        Ok(newest.map_or(child.run_key, |run| run.run_key))
    }

    /// What blocks a run, if its last event says that something does.
    pub async fn blocked(&self, run: &Run) -> Result<Option<Blocked>, Error> {
        let query = Query::Event { event_id: run.cursor };
        let last = self.inner.store.list(query).await?.events()?.into_iter().next();
        let Some(last) = last.filter(|event| event.event_type.as_str() == "workflow.blocked")
        else {
            return Ok(None);
        };
        let payload = last.payload_json()?;
        let text = |key: &str| payload[key].as_str().filter(|text| !text.is_empty());
        Ok(Some(Blocked {
            code: text("code").unwrap_or("INTERNAL").to_owned(),
            reason: text("reason").unwrap_or("no reason was kept").to_owned(),
            build: text("build").map(str::to_owned),
        }))
    }

    /// The same in words.
    pub(crate) async fn blocked_for(&self, run: &Run) -> Result<Option<String>, Error> {
        let Some(Blocked { reason, build, .. }) = self.blocked(run).await? else { return Ok(None) };
        let build = build.map(|build| format!(" (build {build})")).unwrap_or_default();
        Ok(Some(format!("this code cannot carry it on{build}: {reason}")))
    }

    async fn tell_blocked(&self, run: &Run, tell: &mut Teller<'_>) -> Result<bool, Error> {
        let Some(text) = self.blocked_for(run).await? else { return Ok(false) };
        tell.reasons.push(Reason { until: run.turn.due_at, ..tell.reason(Why::Blocked, text) });
        Ok(true)
    }

    // What its turn waits for, if anything.
    async fn tell_turn(
        &self,
        run: &Run,
        steps: &[Step],
        unread: bool,
        workers: &[Worker],
        tell: &mut Teller<'_>,
    ) -> Result<(), Error> {
        if let Some(holder) = run.turn.worker {
            let since = run.turn.claimed_at.map(|at| format!(" since {at}")).unwrap_or_default();
            let text = format!("its turn is taken by {}{since}", name_of(workers, holder));
            tell.say(Why::Held, text);
            return Ok(());
        }
        let is_served = workers.iter().any(|worker| {
            let mut routes = worker.info.turns.iter();
            routes.any(|route| route.name.as_str() == run.workflow.as_str())
        });
        if !is_served {
            let text = format!("no live worker serves workflow {:?}", run.workflow);
            tell.say(Why::Unserved, text);
        }
        if run.status == RunStatus::Paused {
            return Ok(());
        }
        let now = self.inner.clock.now();
        let later = |due: &Timestamp| !run.turn.ready && run.started_at.is_none() && *due > now;
        if let Some(due) = run.turn.due_at.filter(later) {
            let reason = tell.reason(Why::StartsLater, format!("it starts at {due}"));
            tell.reasons.push(Reason { until: Some(due), ..reason });
        } else if run.turn.ready || unread {
            let limited = self.tell_limit(run, tell).await?;
            if !limited && is_served {
                tell.say(Why::Ready, "it is ready, and no worker has taken it yet".into());
            }
        } else if is_served && steps.iter().all(|step| step.status.is_settled()) {
            tell.say(Why::Waiting, "it waits for a message".into());
        }
        Ok(())
    }

    async fn tell_limit(&self, run: &Run, tell: &mut Teller<'_>) -> Result<bool, Error> {
        let Some(key) = &run.turn.limit_key else { return Ok(false) };
        let limit = self.inner.options.limits.page_rows_max;
        let namespace = run.namespace.clone();
        let mut after = None;
        let found: Option<LimitState> = loop {
            let query = Query::Limits { namespace: namespace.clone(), after, limit };
            let page = self.inner.store.list(query).await?.limits()?;
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
        let place = format!("{}{}", before + 1, if more { " or later" } else { "" });
        let text = format!(
            "the limit {:?} is reached: {} of {} are held; it is number {place} in the queue",
            key.as_str(),
            state.held,
            state.slots
        );
        tell.say(Why::LimitReached, text);
        Ok(true)
    }

    // How many ready runs of the same limit come before this one: by priority, then by age.
    async fn queued_before(&self, run: &Run) -> Result<(u32, bool), Error> {
        let mut query = RunsQuery::all(run.namespace.clone(), QUEUE_MAX);
        query.status = Some(RunStatus::Active);
        query.order = Order::Ascending;
        let rows = self.inner.store.list(Query::Runs(query)).await?.runs()?;
        let more = rows.len() == QUEUE_MAX as usize;
        let place = |run: &Run| (-i32::from(run.turn.priority), run.turn.due_at, run.run_key);
        let before = rows.iter().filter(|other| {
            other.turn.ready
                && other.turn.limit_key == run.turn.limit_key
                && place(other) < place(run)
        });
        Ok((u32::try_from(before.count()).unwrap_or(u32::MAX), more))
    }
}

struct Teller<'a> {
    depth: usize,
    reasons: &'a mut Vec<Reason>,
}

impl Teller<'_> {
    fn reason(&self, code: Why, text: String) -> Reason {
        Reason { code, text, step: None, until: None, child: None, depth: self.depth }
    }

    fn say(&mut self, code: Why, text: String) {
        let reason = self.reason(code, text);
        self.reasons.push(reason);
    }
}

/// Tells of an open step; the child that it waits for, if it does.
fn tell_step(
    step: &Step,
    being_done: bool,
    tasks: &[Task],
    workers: &[Worker],
    tell: &mut Teller<'_>,
) -> Option<ChildRef> {
    let key = step.step_key.as_str();
    let due = step.due_at;
    let at = due.map(|due| due.to_string()).unwrap_or_else(|| "some time".into());
    let last_error = step.error.as_ref().map(error_text).unwrap_or_default();
    let of = step.attempts_max.map(|max| format!(" of {max}")).unwrap_or_default();
    let mut child = None;
    let (code, text) = match (&*step.kind, step.status) {
        ("sleep", _) => (Why::Sleeping, format!("{key:?} sleeps until {at}")),
        ("timer", _) => (Why::Sleeping, format!("{key:?} runs until {at}")),
        ("event", _) => {
            let name = step.wait_for.as_deref().unwrap_or_default();
            let text = format!("{key:?} waits for an event of type {name:?}, until {at}");
            (Why::AwaitingEvent, text)
        }
        ("child", _) => {
            child = step.input.as_ref().and_then(|input| input.read::<ChildRef>().ok());
            let named =
                child.as_ref().map(|child| format!(" {:?} of {:?}", child.id, child.workflow));
            let text = format!("{key:?} waits for the child run{}", named.unwrap_or_default());
            (Why::AwaitingChild, text)
        }
        ("activity", _) => tell_activity(step, tasks, workers),
        _ if being_done => {
            let attempt = match step.status {
                StepStatus::Running => step.attempt.max(1),
                // The row has how often it failed.
                _ => step.attempt + 1,
            };
            (Why::Held, format!("{key:?} is being done, attempt {attempt}{of}"))
        }
        // One that has not been tried yet waits for a time or a signal.
        (_, StepStatus::Waiting) if step.attempt == 0 && step.wait_for.is_none() => {
            (Why::Sleeping, format!("{key:?} is put off until {at}"))
        }
        (_, StepStatus::Waiting) if step.attempt == 0 => {
            let name = step.wait_for.as_deref().unwrap_or_default();
            let until = due.map(|_| format!(", until {at}")).unwrap_or_default();
            (Why::AwaitingEvent, format!("{key:?} waits for the signal {name:?}{until}"))
        }
        (_, StepStatus::Waiting) => {
            let next = step.attempt + 1;
            let text = format!(
                "{key:?} failed and is tried again at {at}, attempt {next}{of}: {last_error}"
            );
            (Why::Retrying, text)
        }
        _ => (Why::Held, format!("{key:?} is being done, attempt {}{of}", step.attempt.max(1))),
    };
    let mut reason = tell.reason(code, text);
    reason.step = Some(key.to_owned());
    reason.until = due.filter(|_| !being_done);
    reason.child = child
        .as_ref()
        .map(|child| Child { workflow: child.workflow.to_string(), id: child.id.clone() });
    tell.reasons.push(reason);
    child
}

fn tell_activity(step: &Step, tasks: &[Task], workers: &[Worker]) -> (Why, String) {
    let key = step.step_key.as_str();
    let Some(task) = tasks.iter().find(|task| task.step_key.as_ref() == Some(&step.step_key))
    else {
        return (
            Why::AwaitingActivity,
            format!("{key:?} waits for an activity that has just ended"),
        );
    };
    let (name, queue) = (task.name.as_str(), task.queue.as_str());
    let is_served = workers.iter().any(|worker| {
        let mut routes = worker.info.tasks.iter();
        routes.any(|route| route.name == task.name && route.queue == task.queue)
    });
    let errors = task.errors.as_ref().map(error_text).filter(|text| !text.is_empty());
    let tried = match (task.attempt, errors) {
        (0, _) => String::new(),
        (times, None) => format!("; it failed {times} times"),
        (times, Some(errors)) => format!("; it failed {times} times, last with {errors}"),
    };
    match task.worker {
        Some(holder) => {
            let holder = name_of(workers, holder);
            (
                Why::AwaitingActivity,
                format!("{key:?} waits for the activity {name:?}, which {holder} does{tried}"),
            )
        }
        None if !is_served => {
            let text = format!(
                "{key:?} waits for the activity {name:?} on queue {queue:?}, which no live worker serves"
            );
            (Why::ActivityUnserved, text)
        }
        None => {
            let due = task.due_at.filter(|_| !task.ready).map(|due| format!(", due at {due}"));
            let due = due.unwrap_or_else(|| ", which is ready".into());
            (Why::AwaitingActivity, format!("{key:?} waits for the activity {name:?}{due}{tried}"))
        }
    }
}

fn name_of(workers: &[Worker], key: WorkerKey) -> String {
    match workers.iter().find(|worker| worker.info.worker == key) {
        Some(worker) => format!("worker {:?} ({key})", worker.info.name),
        None => format!("worker {key}, which is not live"),
    }
}

// An error, or the last of a list of them.
fn error_text(body: &Body) -> String {
    let value: serde_json::Value = body.read().unwrap_or_default();
    let error = value.as_array().and_then(|list| list.last()).unwrap_or(&value);
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    match (text("name"), text("message")) {
        (name, message) if name.is_empty() => message,
        (name, message) => format!("{name}: {message}"),
    }
}
