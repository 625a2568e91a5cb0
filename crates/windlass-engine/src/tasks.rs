//! Task workers: activities and effects, claimed from queues, run beside turns, settled in one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::Either;
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tracing::{Instrument as _, Span};
use uuid::Uuid;
use windlass_kernel::retry::DELAY_MAX;
use windlass_kernel::{
    Beat, Body, BoxFuture, Commit, CommitError, EFFECT, Error, ErrorKind, Hold, Namespace, Op,
    Permit, QueueName, Reschedule, RetryPolicy, Route, RouteName, RunKey, Sha256Digest, StepKey,
    Task, TaskGuard, TaskId, Timestamp, Wake,
};

use crate::breakers::TaskBreaker;
use crate::engine::{Engine, Inner};
use crate::env::Lane;
use crate::metrics::Measure;
use crate::settle::{Attempt, NOT_HERE, RATE_LIMITED, SCHEDULE_TO_CLOSE, Settling};
use crate::telemetry;
use crate::turn::refusal;

/// The engine's own task: ends what an ended run has left behind.
pub(crate) const CANCEL_TREE: &str = "cancel-tree";

/// The engine's own task: ends a child that its parent no longer waits for.
pub(crate) const CANCEL_RUN: &str = "cancel-run";
/// The engine's own task: sends what came too late for a generation to the next one.
pub(crate) const CARRY_OVER: &str = "carry-over";
/// The engine's own task: ends a run that was told to end and has not done so in time.
pub(crate) const CANCEL_LATE: &str = "cancel-late";
const INTERNAL: [&str; 4] = [CANCEL_TREE, CANCEL_RUN, CARRY_OVER, CANCEL_LATE];

/// How many of its own tasks an engine holds beside `tasks_max`: what ends runs and reaches what they
/// have left behind must not wait for the activities that it is to end.
const OWN_MAX: usize = 16;

/// The queue of the engine's own tasks, which every engine serves.
pub(crate) fn internal_queue() -> QueueName {
    QueueName::from_stored("windlass.internal")
}

/// The queue of effects: outside side effects, delivered at least once under a stable id. A model
/// enqueues one with the commit that wants it, so it exists if and only if that commit does.
pub const EFFECTS_QUEUE: &str = "effects";

/// How long a probe without a timeout of its own may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(60);

pub(crate) trait TaskRoutes {
    fn changed(&self);
}

/// What runs a task.
pub trait TaskHandler: Send + Sync + 'static {
    /// Does the work of one attempt.
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult>;
}

/// What an attempt gave.
pub type TaskResult = Result<Body, TaskFailure>;

/// How long a task rests that cannot be done here, so that others come to it.
const NOT_HERE_REST: Duration = Duration::from_secs(5);

/// Why an attempt failed.
#[derive(Clone, Debug)]
pub struct TaskFailure {
    /// The error's name, which a policy can list.
    pub name: String,
    /// What to tell people.
    pub message: String,
    /// Whether another attempt can help.
    pub retryable: bool,
    /// The least time before another attempt, if the callee said so.
    pub retry_after: Option<Duration>,
}

/// What a task carries: the input, and how to run it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskBody {
    /// The input.
    pub input: Box<RawValue>,
    /// What to do about failed attempts.
    pub retry: RetryPolicy,
    /// How long one attempt may take, in milliseconds.
    pub start_to_close_ms: Option<u64>,
    /// How long an attempt may go without a heartbeat, in milliseconds.
    pub heartbeat_ms: Option<u64>,
    /// When all attempts must be over, in microseconds since 1970 by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub close_by: Option<i64>,
    /// The circuit breaker in front of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breaker: Option<TaskBreaker>,
}

/// What an attempt knows of itself.
#[derive(Clone)]
pub struct TaskContext {
    /// The task.
    pub task_id: TaskId,
    /// The tenant.
    pub namespace: Namespace,
    /// The run it works for.
    pub run_key: Option<RunKey>,
    /// The step it works for.
    pub step_key: Option<StepKey>,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// How many attempts there may be.
    pub attempts_max: Option<u32>,
    /// Names this attempt.
    pub attempt_id: Uuid,
    /// The W3C trace context of the attempt, or that the task was enqueued in if none is made here.
    pub trace: Option<Arc<str>>,
    control: Arc<Running>,
    inner: Weak<Inner>,
    hold: Hold,
    // Somebody looks for heartbeats.
    watched: bool,
    said: Option<Body>,
}

impl TaskContext {
    /// A key that is the same for every attempt of this task: hand it to services that deduplicate.
    pub fn idempotency_key(&self) -> String {
        self.task_id.to_string()
    }

    /// Says that the attempt is alive.
    pub fn heartbeat(&self) {
        self.beat(None);
    }

    /// Says that the attempt is alive, and how far it is: the next attempt can read it.
    pub fn heartbeat_with<T: Serialize>(&self, details: &T) -> Result<(), Error> {
        let details = Body::of(details)?;
        if let Some(inner) = self.inner.upgrade() {
            let beat = Beat { task_id: self.task_id, hold: self.hold, details: Some(details) };
            Beat::validate(std::slice::from_ref(&beat), &inner.options.limits)?;
            self.beat(beat.details);
        }
        Ok(())
    }

    /// What an earlier attempt said last.
    pub fn last_heartbeat<T: DeserializeOwned>(&self) -> Option<T> {
        self.said.as_ref().and_then(|said| said.read().ok())
    }

    fn beat(&self, details: Option<Body>) {
        let Some(inner) = self.inner.upgrade() else { return };
        let now = inner.env.elapsed().as_micros() as u64;
        self.control.beat_us.store(now, Ordering::Relaxed);
        if self.watched || details.is_some() {
            inner.beat(Beat { task_id: self.task_id, hold: self.hold, details });
        }
    }

    /// Whether nobody wants the result any more.
    pub fn is_cancelled(&self) -> bool {
        self.control.cancelled.load(Ordering::Acquire)
    }

    /// Ends when nobody wants the result any more.
    pub async fn cancelled(&self) {
        let notified = self.control.notify.notified();
        if !self.is_cancelled() {
            notified.await;
        }
    }
}

#[derive(Default)]
struct Running {
    cancelled: AtomicBool,
    beat_us: AtomicU64,
    notify: Notify,
}

impl Running {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }
}

/// A task and the number of the claim that it is held under here.
pub(crate) type Claim = (TaskId, u64);

/// The tasks that this process serves and runs.
pub(crate) struct Tasks {
    handlers: RwLock<BTreeMap<Route, Arc<dyn TaskHandler>>>,
    // By claim, too: an attempt that lost its task may still run when the task is claimed again.
    running: Mutex<BTreeMap<Claim, Arc<Running>>>,
    // Room that is kept for tasks whose commit is on its way.
    promised: AtomicUsize,
    // How many of those that run are the engine's own.
    own: AtomicUsize,
    max: usize,
}

impl Tasks {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            handlers: RwLock::default(),
            running: Mutex::default(),
            promised: AtomicUsize::new(0),
            own: AtomicUsize::new(0),
            max,
        }
    }

    pub(crate) fn held(&self) -> usize {
        let all = self.running.lock();
        all.len() - self.own_held()
    }

    /// How many of the engine's own tasks are held.
    pub(crate) fn own_held(&self) -> usize {
        self.own.load(Ordering::Acquire)
    }

    /// The routes of the engine's own tasks, and how many there is room for.
    pub(crate) fn own_wanted(&self) -> (Vec<Route>, usize) {
        (INTERNAL.map(internal_route).into(), OWN_MAX.saturating_sub(self.own_held()))
    }

    /// How many are held, or will be when a commit is known.
    pub(crate) fn taken(&self) -> usize {
        self.held() + self.promised.load(Ordering::Acquire)
    }

    pub(crate) fn knows(&self, claim: &Claim) -> bool {
        self.running.lock().contains_key(claim)
    }

    pub(crate) fn running(&self) -> BTreeSet<Claim> {
        self.running.lock().keys().copied().collect()
    }

    fn begun(&self, claim: Claim, running: Arc<Running>, own: bool) {
        // Whoever has it here from before has lost it.
        self.cancel(&claim.0);
        let mut all = self.running.lock();
        all.insert(claim, running);
        self.own.fetch_add(usize::from(own), Ordering::AcqRel);
    }

    fn over(&self, claim: &Claim, own: bool) {
        let mut all = self.running.lock();
        all.remove(claim);
        self.own.fetch_sub(usize::from(own), Ordering::AcqRel);
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.handlers.read().keys().cloned().collect();
        routes.extend(INTERNAL.map(internal_route));
        routes
    }

    /// Keeps room for one more task, if there is some. So many of those that are held are as good as
    /// gone.
    pub(crate) fn promise(self: &Arc<Self>, leaving: usize) -> Option<Promised> {
        let held = self.held().saturating_sub(leaving);
        let promised = self.promised.fetch_add(1, Ordering::AcqRel);
        // Made before it is asked whether there is room: dropping it gives the room back.
        let mine = Promised(Arc::clone(self));
        (held + promised < self.max).then_some(mine)
    }

    pub(crate) fn serves(&self, route: &Route) -> bool {
        route.queue == internal_queue() || self.handlers.read().contains_key(route)
    }

    pub(crate) fn wanted(&self, max: u32) -> (Vec<Route>, u32) {
        let room = self.max.saturating_sub(self.held() + self.promised.load(Ordering::Acquire));
        (self.routes(), u32::try_from(room).unwrap_or(u32::MAX).min(max))
    }

    /// Tells a running task that nobody wants its result any more.
    pub(crate) fn cancel(&self, task_id: &TaskId) {
        let claims = (*task_id, 0)..=(*task_id, u64::MAX);
        self.running.lock().range(claims).for_each(|(_, running)| running.cancel());
    }

    /// Tells an attempt that it has lost its task.
    pub(crate) fn cancel_claim(&self, claim: &Claim) {
        if let Some(running) = self.running.lock().get(claim) {
            running.cancel();
        }
    }
}

/// Room for a task that this process will hold when a commit is known.
pub(crate) struct Promised(Arc<Tasks>);

impl Drop for Promised {
    fn drop(&mut self) {
        self.0.promised.fetch_sub(1, Ordering::AcqRel);
    }
}

fn internal_route(name: &str) -> Route {
    Route { queue: internal_queue(), name: RouteName::from_stored(name) }
}

impl Engine {
    /// Delivers effects of a name: the handler gets each at least once, with the task's id as its
    /// stable id, and is asked again as the effect's policy says. Those that fail for good are dead
    /// letters.
    pub fn serve_effects(
        &self,
        name: impl AsRef<str>,
        handler: Arc<dyn TaskHandler>,
    ) -> Result<(), Error> {
        let name = RouteName::with_limits(name, &self.inner.options.limits)?;
        self.serve_tasks(Route { queue: QueueName::from_stored(EFFECTS_QUEUE), name }, handler)
    }

    /// An effect, for the commit that wants it. `run_key` is the run that it belongs to.
    pub fn effect(
        &self,
        name: impl AsRef<str>,
        run_key: Option<RunKey>,
        input: Box<RawValue>,
        retry: RetryPolicy,
    ) -> Result<Task, Error> {
        let inner = &self.inner;
        let name = RouteName::with_limits(name, &inner.options.limits)?;
        let route = Route { queue: QueueName::from_stored(EFFECTS_QUEUE), name };
        let body = TaskBody {
            input,
            retry,
            start_to_close_ms: Some(60_000),
            heartbeat_ms: None,
            close_by: None,
            breaker: None,
        };
        let now = inner.clock.now();
        Ok(Task {
            run_key,
            body: Some(Body::of(&body)?),
            ..Task::new(inner.task_id(), self.namespace.clone(), EFFECT, route, now)
        })
    }

    /// Serves tasks of a route.
    pub fn serve_tasks(&self, route: Route, handler: Arc<dyn TaskHandler>) -> Result<(), Error> {
        let mut handlers = self.inner.tasks.handlers.write();
        if handlers.contains_key(&route) {
            let message = format!(
                "an activity {:?} on queue {:?} is registered already; use another type or queue",
                route.name, route.queue
            );
            return Err(Error::new(ErrorKind::Invalid, "ACTIVITY_EXISTS", message));
        }
        handlers.insert(route, handler);
        drop(handlers);
        self.inner.changed();
        Ok(())
    }
}

impl Inner {
    /// Runs a task that this worker holds.
    pub(crate) fn begin_task(self: &Arc<Self>, task: Task) {
        let Some(hold) = task.hold() else { return };
        let running = Arc::new(Running::default());
        running.beat_us.store(self.env.elapsed().as_micros() as u64, Ordering::Relaxed);
        let claim = (task.task_id, hold.claim_no);
        let own = task.queue == internal_queue();
        self.tasks.begun(claim, Arc::clone(&running), own);
        let inner = Arc::clone(self);
        self.env.spawn(
            Lane::User,
            Box::pin(async move {
                let work = inner.run_task(task, hold, Arc::clone(&running));
                let (work, stopped) = (std::pin::pin!(work), std::pin::pin!(inner.stopped()));
                if let Either::Right(_) = futures::future::select(work, stopped).await {
                    // One that blocks its thread ends only if it is told.
                    running.cancel();
                }
                inner.tasks.over(&claim, own);
                inner.room_again();
            }),
        );
    }

    async fn run_task(self: &Arc<Self>, task: Task, hold: Hold, running: Arc<Running>) {
        let guard = TaskGuard { task_id: task.task_id, hold };
        let mut complete = Span::none();
        let commit = if task.queue == internal_queue() {
            match self.run_internal(&task).await {
                Ok(mut ops) => {
                    ops.push(Op::Settle { task_id: task.task_id });
                    Commit::new(None, Some(guard), ops)
                }
                Err(error) => {
                    tracing::warn!(%error, "a task of the engine failed; it is tried again");
                    let at = self.clock.now().plus(Duration::from_secs(1));
                    Commit::new(None, Some(guard), vec![again_in(&task, at)])
                }
            }
        } else {
            self.metrics.tasks_begun.add(1);
            let now = self.clock.now();
            let waited = now.since(telemetry::due(&task));
            self.metrics.time(Measure::ScheduleToStart, task.name.as_str(), waited);
            let span = telemetry::attempt(&task, hold.worker, now);
            let settling = self.attempt(&task, guard, running).instrument(span.clone()).await;
            complete = telemetry::complete(&span, &task);
            let commit = match settling {
                Ok(Settling::Later(commit)) => Ok(commit),
                Ok(Settling::Over(over)) => {
                    if self.settle_at_hand(&task, &over).instrument(complete.clone()).await {
                        return;
                    }
                    over.commit(&task)
                }
                Err(error) => Err(error),
            };
            match commit {
                Ok(commit) => commit,
                Err(error) => {
                    tracing::error!(task_id = %task.task_id, %error, "a task cannot be settled");
                    return;
                }
            }
        };
        let settled = Arc::clone(self).commit_until_known(commit).instrument(complete).await;
        if let Err(error) = settled {
            if matches!(error, CommitError::Refused(_)) && task.queue == internal_queue() {
                // Whom it was for has ended meanwhile: it is looked up again.
                let commit =
                    Commit::new(None, Some(guard), vec![again_in(&task, self.clock.now())]);
                let _ = Arc::clone(self).commit_until_known(commit).await;
                return;
            }
            if matches!(error, CommitError::Invalid(_)) && task.queue != internal_queue() {
                self.settle_refused(&task, guard, &error).await;
                return;
            }
            tracing::debug!(task_id = %task.task_id, error = %refusal(&error), "a result is refused");
        }
    }

    // A result that no store takes would be worked out again and again.
    async fn settle_refused(self: &Arc<Self>, task: &Task, guard: TaskGuard, error: &CommitError) {
        let refused = Err(failure("ResultRefused", refusal(error).to_string(), false));
        let (number, began_at) = (task.attempt + 1, self.clock.now());
        let attempt = Attempt { task, guard, number, began_at, close_by: None };
        let settling = self.settling(&attempt, refused, &RetryPolicy::none());
        let commit = settling.and_then(|settling| match settling {
            Settling::Later(commit) => Ok(commit),
            Settling::Over(over) => over.commit(task),
        });
        let settled = match commit {
            Ok(commit) => Arc::clone(self).commit_until_known(commit).await.map(|_| ()),
            Err(error) => Err(CommitError::Invalid(Arc::new(error))),
        };
        if let Err(error) = settled {
            tracing::error!(task_id = %task.task_id, %error, "a task cannot be settled");
        }
    }

    // Answers what is to be written with the end of the task.
    async fn run_internal(self: &Arc<Self>, task: &Task) -> Result<Vec<Op>, Error> {
        let (Some(run_key), body) = (task.run_key, task.body.as_ref()) else {
            return Ok(Vec::new());
        };
        match (task.name.as_str(), body) {
            (CANCEL_TREE, _) => self.reach_descendants(run_key).await?,
            (CANCEL_RUN, Some(child)) => self.call_off(child.read()?).await?,
            (CANCEL_LATE, Some(late)) => self.cancel_late(run_key, &late.read()?).await?,
            (CARRY_OVER, Some(after)) => return self.carry_over(run_key, after.read()?).await,
            _ => {}
        }
        Ok(Vec::new())
    }

    async fn attempt(
        self: &Arc<Self>,
        task: &Task,
        guard: TaskGuard,
        running: Arc<Running>,
    ) -> Result<Settling, Error> {
        let route = Route { queue: task.queue.clone(), name: task.name.clone() };
        let handler = self.tasks.handlers.read().get(&route).cloned();
        let began_at = self.clock.now();
        let body: Option<TaskBody> = task.body.as_ref().and_then(|body| body.read().ok());
        let attempt = task.attempt + 1;
        let close_by = body.as_ref().and_then(|body| body.close_by).map(Timestamp::from_micros);
        let (result, policy) = match (handler, body) {
            _ if task.reclaims >= self.options.reclaims_max => {
                let message = format!("{} workers died or stalled with it", task.reclaims);
                (Err(failure("NoProgress", message, false)), RetryPolicy::none())
            }
            (Some(handler), Some(body)) => {
                let context = TaskContext {
                    task_id: task.task_id,
                    namespace: task.namespace.clone(),
                    run_key: task.run_key,
                    step_key: task.step_key.clone(),
                    attempt,
                    attempts_max: body.retry.attempts_max(),
                    attempt_id: attempt_id(&guard),
                    trace: telemetry::current().or_else(|| task.trace.clone()),
                    control: Arc::clone(&running),
                    inner: Arc::downgrade(self),
                    hold: guard.hold,
                    watched: body.heartbeat_ms.is_some(),
                    said: task.beat.clone(),
                };
                let (policy, breaker) = (body.retry.clone(), body.breaker.clone());
                let max = body.start_to_close_ms.map_or(ATTEMPT_MAX, Duration::from_millis);
                let permit = match &breaker {
                    Some(breaker) => self.permit(task, breaker, max).await,
                    None => Permit::Call,
                };
                telemetry::permitted(&body, permit);
                if let Permit::Wait(until) = permit {
                    return Ok(postponed(task, guard, until));
                }
                // Last, for a slot that was taken is used up.
                if let Some(until) = self.rate(task).await {
                    if let Some(breaker) = &breaker {
                        self.not_called(task, breaker, permit).await;
                    }
                    return Ok(postponed(task, guard, until));
                }
                let result = self.guarded(handler, context, body, &running).await;
                if let Err(failure) = &result
                    && failure.name == NOT_HERE
                {
                    if let Some(breaker) = &breaker {
                        self.not_called(task, breaker, permit).await;
                    }
                    tracing::warn!(%task.task_id, failure.message, "a task is left to others");
                    let later = failure.retry_after.unwrap_or(NOT_HERE_REST);
                    return Ok(postponed(task, guard, self.clock.now().plus(later)));
                }
                telemetry::attempted(&result);
                let took = self.clock.now().since(began_at);
                self.metrics.time(Measure::Activity, task.name.as_str(), took);
                if let Some(after) = limited_by(&result) {
                    self.close_key(task, after.min(DELAY_MAX)).await;
                }
                if let Some(breaker) = &breaker {
                    self.report(task, breaker, permit, &result).await;
                }
                if result.is_err() {
                    // That it was begun is to be seen although it spends no attempt.
                    let begun = limited_by(&result).is_some();
                    self.beat_now(task.task_id, guard.hold, begun).await;
                }
                (result, policy)
            }
            (None, _) => {
                let message = format!("no activity named {:?} is registered here", task.name);
                (Err(failure("ActivityNotFound", message, true)), RetryPolicy::machines())
            }
            (_, None) => {
                let message = "the task's body does not read".to_owned();
                (Err(failure("InvalidTask", message, false)), RetryPolicy::none())
            }
        };
        self.tally(task, began_at, &result);
        let attempt = Attempt { task, guard, number: attempt, began_at, close_by };
        self.settling(&attempt, result, &policy)
    }

    // Runs user code under its timeouts; a panic is a failed attempt.
    async fn guarded(
        &self,
        handler: Arc<dyn TaskHandler>,
        context: TaskContext,
        body: TaskBody,
        running: &Running,
    ) -> TaskResult {
        let input = Body::json(body.input.get().to_owned());
        let work = async move { handler.run(context, input).await };
        let work = std::panic::AssertUnwindSafe(work).catch_unwind();
        let (tell, told) = tokio::sync::oneshot::channel();
        // Goes with this call: work that is given up ends where it next waits.
        let (_wanted, unwanted) = tokio::sync::oneshot::channel::<()>();
        let work = async move {
            let work = std::pin::pin!(work);
            if let Either::Left((result, _)) = futures::future::select(work, unwanted).await {
                let _ = tell.send(result);
            }
        };
        self.env.spawn(Lane::Task, Box::pin(work.in_current_span()));
        let work = async move {
            match told.await {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(failure("Panic", panic_text(&*panic), true)),
                Err(_) => Err(failure("Interrupted", "its runtime is going down".into(), true)),
            }
        };
        let timeout = async {
            let started = self.env.elapsed();
            let close = body.start_to_close_ms.map(Duration::from_millis);
            let close_by = body.close_by.map(Timestamp::from_micros);
            let beat = body.heartbeat_ms.map(Duration::from_millis);
            loop {
                let now = self.env.elapsed();
                let beaten = Duration::from_micros(running.beat_us.load(Ordering::Relaxed));
                let close_in = close.map(|close| (started + close).saturating_sub(now));
                let beat_in = beat.map(|beat| (beaten + beat).saturating_sub(now));
                if let (Some(close), Some(Duration::ZERO)) = (close, close_in) {
                    let message = format!(
                        "the attempt took longer than {}",
                        windlass_kernel::format_duration(close)
                    );
                    return failure("Timeout", message, true);
                }
                let all_in = close_by.map(|by| by.since(self.clock.now()));
                if all_in.is_some_and(|left| left.is_zero()) {
                    let message = "all attempts together took too long".to_owned();
                    return failure(SCHEDULE_TO_CLOSE, message, false);
                }
                if let (Some(beat), Some(Duration::ZERO)) = (beat, beat_in) {
                    let message = format!(
                        "there was no heartbeat for {}",
                        windlass_kernel::format_duration(beat)
                    );
                    return failure("HeartbeatTimeout", message, true);
                }
                match [close_in, beat_in, all_in].into_iter().flatten().min() {
                    Some(left) => self.env.sleep(left).await,
                    None => futures::future::pending().await,
                }
            }
        };
        let (work, timeout) = (std::pin::pin!(work), std::pin::pin!(timeout));
        match futures::future::select(work, timeout).await {
            Either::Left((result, _)) => result,
            Either::Right((failure, _)) => {
                running.cancel();
                Err(failure)
            }
        }
    }
}

// How long a callee asked to be left alone.
fn limited_by(result: &TaskResult) -> Option<Duration> {
    let limited = result.as_ref().err().filter(|failure| failure.name == RATE_LIMITED);
    limited.and_then(|failure| failure.retry_after)
}

// A task that comes back later without having had its attempt.
fn postponed(task: &Task, guard: TaskGuard, until: Timestamp) -> Settling {
    let later = Op::Reschedule(Box::new(Reschedule {
        task_id: task.task_id,
        wake: Wake::At(until),
        attempt: task.attempt,
        errors: None,
        untried: true,
    }));
    Settling::Later(Commit::new(None, Some(guard), vec![later]))
}

// A task of the engine's that is to be tried again.
fn again_in(task: &Task, at: Timestamp) -> Op {
    Op::Reschedule(Box::new(Reschedule {
        task_id: task.task_id,
        wake: Wake::At(at),
        attempt: task.attempt + 1,
        errors: None,
        untried: false,
    }))
}

pub(crate) fn failure(name: &str, message: String, retryable: bool) -> TaskFailure {
    TaskFailure { name: name.into(), message, retryable, retry_after: None }
}

// Another attempt has another claim.
fn attempt_id(guard: &TaskGuard) -> Uuid {
    let claim_no = guard.hold.claim_no.to_be_bytes();
    let digest = Sha256Digest::of_parts(&[guard.task_id.as_bytes(), &claim_no]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}
