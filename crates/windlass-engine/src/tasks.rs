//! Task workers: activities and effects, claimed from queues, run beside turns, settled in one commit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tracing::Instrument as _;
use windlass_kernel::retry::Decision;
use windlass_kernel::{
    Body, BoxFuture, Commit, CommitError, DeadLetter, EFFECT, Error, ErrorKind, Hold, MessageId,
    MessageKind, MessageName, Namespace, NewMessage, Op, QueueName, Reschedule, RetryPolicy, Route,
    RouteName, RunKey, StepKey, Task, TaskGuard, TaskId, Timestamp, Wake,
};

use crate::engine::{Engine, FixedState, Inner};
use crate::env::{Env, Lane};
use crate::turn::refusal;

/// The engine's own task: ends what an ended run has left behind.
pub(crate) const CANCEL_TREE: &str = "cancel-tree";

/// The engine's own task: ends a child that its parent no longer waits for.
pub(crate) const CANCEL_RUN: &str = "cancel-run";
/// The engine's own task: sends what came too late for a generation to the next one.
pub(crate) const CARRY_OVER: &str = "carry-over";
const INTERNAL: [&str; 3] = [CANCEL_TREE, CANCEL_RUN, CARRY_OVER];

/// How many errors of failed attempts a task keeps, the latest ones.
const ERRORS_MAX: usize = 20;

/// The queue of the engine's own tasks, which every engine serves.
pub(crate) fn internal_queue() -> QueueName {
    QueueName::from_stored("windlass.internal")
}

/// The queue of effects: outside side effects, delivered at least once under a stable id. A model
/// enqueues one with the commit that wants it, so it exists if and only if that commit does.
pub const EFFECTS_QUEUE: &str = "effects";

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
    control: Arc<Running>,
    env: Arc<dyn Env>,
}

impl TaskContext {
    /// A key that is the same for every attempt of this task: hand it to services that deduplicate.
    pub fn idempotency_key(&self) -> String {
        self.task_id.to_string()
    }

    /// Says that the attempt is alive.
    pub fn heartbeat(&self) {
        let now = self.env.elapsed().as_micros() as u64;
        self.control.beat_us.store(now, Ordering::Relaxed);
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

/// The tasks that this process serves and runs.
pub(crate) struct Tasks {
    handlers: RwLock<BTreeMap<Route, Arc<dyn TaskHandler>>>,
    running: Mutex<HashMap<TaskId, Arc<Running>, FixedState>>,
    max: usize,
}

impl Tasks {
    pub(crate) fn new(max: usize) -> Self {
        Self { handlers: RwLock::default(), running: Mutex::default(), max }
    }

    pub(crate) fn held(&self) -> usize {
        self.running.lock().len()
    }

    pub(crate) fn knows(&self, task_id: &TaskId) -> bool {
        self.running.lock().contains_key(task_id)
    }

    pub(crate) fn running(&self) -> BTreeSet<TaskId> {
        self.running.lock().keys().copied().collect()
    }

    pub(crate) fn routes(&self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.handlers.read().keys().cloned().collect();
        routes.extend(INTERNAL.map(internal_route));
        routes
    }

    pub(crate) fn serves(&self, route: &Route) -> bool {
        route.queue == internal_queue() || self.handlers.read().contains_key(route)
    }

    pub(crate) fn wanted(&self, max: u32) -> (Vec<Route>, u32) {
        let room = self.max.saturating_sub(self.held());
        (self.routes(), u32::try_from(room).unwrap_or(u32::MAX).min(max))
    }

    /// Tells a running task that nobody wants its result any more.
    pub(crate) fn cancel(&self, task_id: &TaskId) {
        if let Some(running) = self.running.lock().get(task_id) {
            running.cancel();
        }
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
        let body = TaskBody { input, retry, start_to_close_ms: Some(60_000), heartbeat_ms: None };
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
        self.tasks.running.lock().insert(task.task_id, Arc::clone(&running));
        let inner = Arc::clone(self);
        self.env.spawn(
            Lane::User,
            Box::pin(async move {
                let task_id = task.task_id;
                let work = inner.run_task(task, hold, running);
                let stopped = inner.stopped();
                futures::future::select(std::pin::pin!(work), std::pin::pin!(stopped)).await;
                inner.tasks.running.lock().remove(&task_id);
                inner.room_again();
            }),
        );
    }

    async fn run_task(self: &Arc<Self>, task: Task, hold: Hold, running: Arc<Running>) {
        self.metrics.tasks_begun.add(1);
        let guard = TaskGuard { task_id: task.task_id, hold };
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
            let span = tracing::debug_span!(
                "windlass.activity", activity = %task.name, task_id = %task.task_id,
                attempt = task.attempt + 1
            );
            match self.attempt(&task, guard, running).instrument(span).await {
                Ok(commit) => commit,
                Err(error) => {
                    tracing::error!(task_id = %task.task_id, %error, "a task cannot be settled");
                    return;
                }
            }
        };
        if let Err(error) = Arc::clone(self).commit_until_known(commit).await {
            if matches!(error, CommitError::Refused(_)) && task.queue == internal_queue() {
                // Whom it was for has ended meanwhile: it is looked up again.
                let commit =
                    Commit::new(None, Some(guard), vec![again_in(&task, self.clock.now())]);
                let _ = Arc::clone(self).commit_until_known(commit).await;
                return;
            }
            tracing::debug!(task_id = %task.task_id, error = %refusal(&error), "a result is refused");
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
    ) -> Result<Commit, Error> {
        let route = Route { queue: task.queue.clone(), name: task.name.clone() };
        let handler = self.tasks.handlers.read().get(&route).cloned();
        let body: Option<TaskBody> = task.body.as_ref().and_then(|body| body.read().ok());
        let attempt = task.attempt + 1;
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
                    control: Arc::clone(&running),
                    env: Arc::clone(&self.env),
                };
                let policy = body.retry.clone();
                (self.guarded(&*handler, context, body, &running).await, policy)
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
        self.settling(task, guard, attempt, result, &policy)
    }

    // Runs user code under its timeouts; a panic is a failed attempt.
    async fn guarded(
        &self,
        handler: &dyn TaskHandler,
        context: TaskContext,
        body: TaskBody,
        running: &Running,
    ) -> TaskResult {
        let input = Body::json(body.input.get().to_owned());
        let work = std::panic::AssertUnwindSafe(handler.run(context, input)).catch_unwind();
        let work = async move {
            match work.await {
                Ok(result) => result,
                Err(panic) => Err(failure("Panic", panic_text(&*panic), true)),
            }
        };
        let timeout = async {
            let started = self.env.elapsed();
            let close = body.start_to_close_ms.map(Duration::from_millis);
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
                if let (Some(beat), Some(Duration::ZERO)) = (beat, beat_in) {
                    let message = format!(
                        "there was no heartbeat for {}",
                        windlass_kernel::format_duration(beat)
                    );
                    return failure("HeartbeatTimeout", message, true);
                }
                match [close_in, beat_in].into_iter().flatten().min() {
                    Some(left) => self.env.sleep(left).await,
                    None => futures::future::pending().await,
                }
            }
        };
        let (work, timeout) = (std::pin::pin!(work), std::pin::pin!(timeout));
        match futures::future::select(work, timeout).await {
            futures::future::Either::Left((result, _)) => result,
            futures::future::Either::Right((failure, _)) => {
                running.cancel();
                Err(failure)
            }
        }
    }

    // The commit that follows from an attempt: the result, another attempt, or a dead letter.
    fn settling(
        &self,
        task: &Task,
        guard: TaskGuard,
        attempt: u32,
        result: TaskResult,
        policy: &RetryPolicy,
    ) -> Result<Commit, Error> {
        let now = self.clock.now();
        let settle = Op::Settle { task_id: task.task_id };
        let failure = match result {
            Ok(output) => {
                self.metrics.tasks_completed.add(1);
                let head = json!({ "status": "completed", "attempt": attempt });
                let mut ops = vec![settle];
                ops.extend(result_message(task, guard, head, Some(&output), now)?);
                return Ok(Commit::new(None, Some(guard), ops));
            }
            Err(failure) => failure,
        };
        self.metrics.tasks_failed.add(1);
        let errors = history(task, attempt, &failure, now)?;
        let decision = policy.decide(
            attempt,
            &failure.name,
            failure.retryable,
            failure.retry_after,
            self.env.random(),
        );
        match decision {
            Decision::RetryIn(delay) => {
                let again = Reschedule {
                    task_id: task.task_id,
                    wake: Wake::At(now.plus(delay)),
                    attempt,
                    errors: Some(errors),
                };
                Ok(Commit::new(None, Some(guard), vec![Op::Reschedule(Box::new(again))]))
            }
            Decision::GiveUp(_) => {
                self.metrics.tasks_dead.add(1);
                let head = json!({
                    "status": "failed", "attempt": attempt,
                    "error": { "name": failure.name, "message": failure.message },
                });
                let dead = DeadLetter {
                    task_id: task.task_id,
                    namespace: task.namespace.clone(),
                    run_key: task.run_key,
                    step_key: task.step_key.clone(),
                    kind: task.kind.clone(),
                    queue: task.queue.clone(),
                    name: task.name.clone(),
                    attempt,
                    body: task.body.clone(),
                    errors: Some(errors),
                    reason: shown(&failure.message),
                    dead_at: now,
                    requeues: 0,
                    requeued_at: None,
                };
                let mut ops = vec![settle, Op::DeadLetter(Box::new(dead))];
                ops.extend(result_message(task, guard, head, None, now)?);
                Ok(Commit::new(None, Some(guard), ops))
            }
        }
    }
}

fn result_message(
    task: &Task,
    guard: TaskGuard,
    head: serde_json::Value,
    output: Option<&Body>,
    now: Timestamp,
) -> Result<Option<Op>, Error> {
    // Nobody waits for an effect.
    let Some(run_key) = task.run_key.filter(|_| &*task.kind != EFFECT) else { return Ok(None) };
    let mut text = head.to_string();
    text.pop();
    let step_key = json!(task.step_key).to_string();
    text.push_str(&format!(",\"step_key\":{step_key},\"task_id\":\"{}\"", task.task_id));
    if let Some(output) = output {
        text.push_str(",\"result\":");
        text.push_str(&String::from_utf8_lossy(&output.bytes));
    }
    text.push('}');
    // The claim's number is in the id: a zombie must not find its successor's message.
    let id = format!("activity:{}:{}", task.task_id, guard.hold.claim_no);
    Ok(Some(Op::PutMessage(Box::new(NewMessage {
        run_key,
        message_id: MessageId::new(id)?,
        kind: MessageKind::ActivityResult,
        name: MessageName::new("activity")?,
        body: Some(Body::json(text)),
        caused_by: None,
        sent_at: now,
        required: false,
    }))))
}

// A task of the engine's that is to be tried again.
fn again_in(task: &Task, at: Timestamp) -> Op {
    Op::Reschedule(Box::new(Reschedule {
        task_id: task.task_id,
        wake: Wake::At(at),
        attempt: task.attempt + 1,
        errors: None,
    }))
}

// A text for people. What PostgreSQL cannot hold in one is replaced.
fn shown(message: &str) -> Arc<str> {
    message.chars().take(500).collect::<String>().replace('\0', "\u{fffd}").into()
}

fn history(
    task: &Task,
    attempt: u32,
    failure: &TaskFailure,
    now: Timestamp,
) -> Result<Body, Error> {
    let mut errors: Vec<serde_json::Value> =
        task.errors.as_ref().and_then(|errors| errors.read().ok()).unwrap_or_default();
    errors.push(json!({
        "attempt": attempt,
        "name": failure.name,
        "message": failure.message.chars().take(2_000).collect::<String>(),
        "at": now.to_string(),
    }));
    let skip = errors.len().saturating_sub(ERRORS_MAX);
    Body::of(&errors[skip..])
}

fn failure(name: &str, message: String, retryable: bool) -> TaskFailure {
    TaskFailure { name: name.into(), message, retryable, retry_after: None }
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}
