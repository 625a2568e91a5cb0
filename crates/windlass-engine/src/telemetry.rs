//! The names of spans and of what they say, and how a trace goes on in another process.
//!
//! A run lasts longer than a process, so no span covers it: its start is one, and every turn is one below
//! it. What a turn asks for, activities and children, hangs below that turn. The contexts travel in the
//! rows, as W3C `traceparent`. Without a [`Propagator`] the rows keep what the caller gave.

use std::sync::{Arc, OnceLock};

use tracing::Span;
use tracing::field::Empty;
use windlass_kernel::{
    Claims, Commit, Op, Permit, Run, RunId, RunKey, Task, Timestamp, WorkerKey, WorkflowName,
};

use crate::tasks::{TaskBody, TaskResult};

/// What spans say.
pub mod attribute {
    /// The key of the run's generation.
    pub const WORKFLOW_ID: &str = "durable.workflow.id";
    /// The workflow's name.
    pub const WORKFLOW_TYPE: &str = "durable.workflow.type";
    /// The run's status when the span ended.
    pub const WORKFLOW_STATUS: &str = "durable.workflow.status";
    /// The user's name for the run, which all its generations share.
    pub const WORKFLOW_RUN_ID: &str = "durable.workflow.run_id";
    /// The key of the step that an activity works for, or the task's id if there is none.
    pub const ACTIVITY_ID: &str = "durable.activity.id";
    /// The activity's name.
    pub const ACTIVITY_TYPE: &str = "durable.activity.type";
    /// Which attempt it is, from 1.
    pub const ACTIVITY_ATTEMPT: &str = "durable.activity.attempt";
    /// How many attempts there may be; absent if there is no end.
    pub const ACTIVITY_MAX_ATTEMPTS: &str = "durable.activity.max_attempts";
    /// The worker.
    pub const WORKER_ID: &str = "durable.worker.id";
    /// The group it belongs to.
    pub const WORKER_GROUP: &str = "durable.worker.group";
    /// How many tasks the worker holds at most.
    pub const WORKER_CONCURRENCY: &str = "durable.worker.concurrency";
    /// How many tasks the worker held.
    pub const WORKER_LOAD: &str = "durable.worker.load";
    /// The task's priority.
    pub const TASK_PRIORITY: &str = "durable.task.priority";
    /// How long the task was due before it was begun.
    pub const TASK_SCHEDULE_TO_START: &str = "durable.task.schedule_to_start_latency_ms";
    /// How many tasks a claim took.
    pub const TASKS_CLAIMED: &str = "durable.tasks.claimed";
    /// How many turns a claim took.
    pub const TURNS_CLAIMED: &str = "durable.turns.claimed";
    /// How many events a commit holds, or a run's ledger when it was read back.
    pub const EVENTS: &str = "durable.events";
    /// The key of the circuit breaker in front of the activity.
    pub const BREAKER_KEY: &str = "durable.circuit_breaker.key";
    /// What the breaker said when it was asked.
    pub const BREAKER_STATE: &str = "durable.circuit_breaker.state";
}

/// What is measured.
pub mod span {
    /// A run is created.
    pub const WORKFLOW_START: &str = "durable.workflow.start";
    /// One turn of a run.
    pub const WORKFLOW_RUN: &str = "durable.workflow.run";
    /// A run that is not in memory is read back, within its turn.
    pub const WORKFLOW_REPLAY: &str = "durable.workflow.replay";
    /// One attempt at an activity or an effect.
    pub const ACTIVITY_EXECUTE: &str = "durable.activity.execute";
    /// A claim of what is ready.
    pub const TASK_CLAIM: &str = "durable.task.claim";
    /// The commit that follows from an attempt.
    pub const TASK_COMPLETE: &str = "durable.task.complete";
    /// A commit of a run's start or of its turn.
    pub const EVENT_APPEND: &str = "durable.event.append";
}

use attribute as a;

/// Connects spans with the traces of other processes. Whoever sends spans away sets one.
pub trait Propagator: Send + Sync + 'static {
    /// Makes a span, which was not entered yet, the child of the one that a `traceparent` names.
    fn continue_from(&self, span: &Span, traceparent: &str);

    /// The `traceparent` that names a span, if the span is part of a trace.
    fn traceparent(&self, span: &Span) -> Option<String>;
}

static PROPAGATOR: OnceLock<Box<dyn Propagator>> = OnceLock::new();

/// Sets what connects spans with traces, for this process. Answers `false` if it was set before.
pub fn set_propagator(propagator: impl Propagator) -> bool {
    PROPAGATOR.set(Box::new(propagator)).is_ok()
}

/// The `traceparent` of the span that this code runs in.
pub fn current() -> Option<Arc<str>> {
    PROPAGATOR.get()?;
    traceparent(&Span::current())
}

/// Makes a span, which was not entered yet, go on with a trace.
pub fn continue_from(span: &Span, trace: Option<&str>) {
    if let (Some(propagator), Some(trace)) = (PROPAGATOR.get(), trace)
        && !span.is_disabled()
    {
        propagator.continue_from(span, trace);
    }
}

/// The `traceparent` of a span.
pub(crate) fn traceparent(span: &Span) -> Option<Arc<str>> {
    let propagator = PROPAGATOR.get().filter(|_| !span.is_disabled())?;
    propagator.traceparent(span).map(Arc::from)
}

/// A run is created: below the context that the caller gave, else below where it calls.
pub(crate) fn start(
    workflow: &WorkflowName,
    trace: Option<&str>,
    run_key: RunKey,
    id: &RunId,
) -> Span {
    if trace.is_none() {
        return tracing::debug_span!(
            span::WORKFLOW_START, { a::WORKFLOW_TYPE } = %workflow, { a::WORKFLOW_ID } = %run_key,
            { a::WORKFLOW_RUN_ID } = %id
        );
    }
    let span = tracing::debug_span!(
        parent: None, span::WORKFLOW_START, { a::WORKFLOW_TYPE } = %workflow,
        { a::WORKFLOW_ID } = %run_key, { a::WORKFLOW_RUN_ID } = %id
    );
    continue_from(&span, trace);
    span
}

/// One turn of a run.
pub(crate) fn turn(run: &Run, worker: WorkerKey) -> Span {
    let span = tracing::debug_span!(
        parent: None, span::WORKFLOW_RUN, { a::WORKFLOW_ID } = %run.run_key,
        { a::WORKFLOW_TYPE } = %run.workflow, { a::WORKFLOW_RUN_ID } = %run.id,
        { a::WORKER_ID } = %worker, { a::WORKFLOW_STATUS } = Empty, otel.status_code = Empty
    );
    continue_from(&span, run.trace.as_deref());
    span
}

/// How a turn left its run.
pub(crate) fn turn_ended(span: &Span, run: &Run) {
    span.record(a::WORKFLOW_STATUS, run.status.as_str());
    if run.status == windlass_kernel::RunStatus::Errored {
        span.record("otel.status_code", "ERROR");
    }
}

/// A run is read back, within a turn's span.
pub(crate) fn replay(turn: &Span, run: &Run) -> Span {
    tracing::debug_span!(
        parent: turn, span::WORKFLOW_REPLAY, { a::WORKFLOW_ID } = %run.run_key,
        { a::WORKFLOW_TYPE } = %run.workflow, { a::EVENTS } = run.head.next_ordinal
    )
}

/// A commit of a run, below whatever makes it.
pub(crate) fn append(workflow: &WorkflowName, commit: &Commit) -> Span {
    let events = || commit.ops.iter().filter(|op| matches!(op, Op::AppendEvent { .. })).count();
    tracing::debug_span!(
        span::EVENT_APPEND, { a::WORKFLOW_TYPE } = %workflow, { a::EVENTS } = events()
    )
}

/// A claim of what is ready. It serves many traces and is part of none.
pub(crate) fn claim(worker: WorkerKey, group: &str, load: usize, max: usize) -> Span {
    tracing::debug_span!(
        parent: None, span::TASK_CLAIM, { a::WORKER_ID } = %worker, { a::WORKER_GROUP } = group,
        { a::WORKER_LOAD } = load, { a::WORKER_CONCURRENCY } = max,
        { a::TASKS_CLAIMED } = Empty, { a::TURNS_CLAIMED } = Empty
    )
}

/// What a claim took.
pub(crate) fn claimed(span: &Span, claims: &Claims) {
    span.record(a::TASKS_CLAIMED, claims.tasks.len());
    span.record(a::TURNS_CLAIMED, claims.turns.len());
}

/// One attempt at a task, below what enqueued it.
pub(crate) fn attempt(task: &Task, worker: WorkerKey, now: Timestamp) -> Span {
    let span = tracing::debug_span!(
        parent: None, span::ACTIVITY_EXECUTE, { a::ACTIVITY_TYPE } = %task.name,
        { a::ACTIVITY_ID } = Empty, { a::ACTIVITY_ATTEMPT } = task.attempt + 1,
        { a::ACTIVITY_MAX_ATTEMPTS } = Empty, { a::TASK_PRIORITY } = task.priority,
        { a::TASK_SCHEDULE_TO_START } = now.since(due(task)).as_millis() as u64,
        { a::WORKER_ID } = %worker, { a::WORKFLOW_ID } = Empty, { a::BREAKER_KEY } = Empty,
        { a::BREAKER_STATE } = Empty, otel.status_code = Empty, otel.status_description = Empty
    );
    if !span.is_disabled() {
        match &task.step_key {
            Some(key) => span.record(a::ACTIVITY_ID, key.as_str()),
            None => span.record(a::ACTIVITY_ID, tracing::field::display(task.task_id)),
        };
        if let Some(run_key) = task.run_key {
            span.record(a::WORKFLOW_ID, tracing::field::display(run_key));
        }
        continue_from(&span, task.trace.as_deref());
    }
    span
}

/// Since when a task could have been begun.
pub(crate) fn due(task: &Task) -> Timestamp {
    task.due_at.unwrap_or(task.created_at)
}

/// What an attempt is allowed to do.
pub(crate) fn permitted(body: &TaskBody, permit: Permit) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    if let Some(max) = body.retry.attempts_max() {
        span.record(a::ACTIVITY_MAX_ATTEMPTS, max);
    }
    if let Some(breaker) = &body.breaker {
        span.record(a::BREAKER_KEY, breaker.key.as_str());
        let state = match permit {
            Permit::Call => "closed",
            Permit::Probe(_) => "half_open",
            Permit::Wait(_) => "open",
        };
        span.record(a::BREAKER_STATE, state);
    }
}

/// What came of an attempt.
pub(crate) fn attempted(result: &TaskResult) {
    if let Err(failure) = result {
        let span = Span::current();
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", failure.name.as_str());
    }
}

/// The commit that follows from an attempt.
pub(crate) fn complete(attempt: &Span, task: &Task) -> Span {
    tracing::debug_span!(parent: attempt, span::TASK_COMPLETE, { a::ACTIVITY_TYPE } = %task.name)
}
