//! Names of spans and attributes, and trace propagation between processes.
//!
//! A run can outlive a process, so no span covers it. Its start is a span, and every turn is a child of
//! that span. Activities and child runs are children of the turn that scheduled them. The contexts are
//! stored in the rows as W3C `traceparent`. Without a [`Propagator`] the rows keep the caller's context.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tracing::Span;
use tracing::field::Empty;
use windlass_kernel::{
    Claims, Commit, Op, Permit, Run, RunId, RunKey, Task, Timestamp, WorkerKey, WorkflowName,
};

use crate::tasks::{TaskBody, TaskResult};

/// Names of span attributes.
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
    /// The number of events in a commit, or in a run's ledger when the run is replayed.
    pub const EVENTS: &str = "durable.events";
    /// The key of the circuit breaker in front of the activity.
    pub const BREAKER_KEY: &str = "durable.circuit_breaker.key";
    /// The breaker's state when the attempt began.
    pub const BREAKER_STATE: &str = "durable.circuit_breaker.state";
}

/// Names of spans.
pub mod span {
    /// A run is created.
    pub const WORKFLOW_START: &str = "durable.workflow.start";
    /// One turn of a run.
    pub const WORKFLOW_RUN: &str = "durable.workflow.run";
    /// A run that is not cached is replayed within its turn.
    pub const WORKFLOW_REPLAY: &str = "durable.workflow.replay";
    /// One attempt at an activity or an effect.
    pub const ACTIVITY_EXECUTE: &str = "durable.activity.execute";
    /// A claim of ready turns and tasks.
    pub const TASK_CLAIM: &str = "durable.task.claim";
    /// The commit after an attempt.
    pub const TASK_COMPLETE: &str = "durable.task.complete";
    /// A commit of a run's start or of its turn.
    pub const EVENT_APPEND: &str = "durable.event.append";
}

use attribute as a;

/// Connects spans with traces of other processes. A host that exports spans sets one.
pub trait Propagator: Send + Sync + 'static {
    /// Makes a span that was not entered yet the child of the span that `traceparent` names.
    fn continue_from(&self, span: &Span, traceparent: &str);

    /// The `traceparent` that names a span, if the span is part of a trace.
    fn traceparent(&self, span: &Span) -> Option<String>;

    /// Sets an attribute that is a list. `tracing` knows no lists, so by default it becomes one text.
    fn set_list(&self, span: &Span, name: &'static str, values: &[&str]) {
        span.record(name, values.join(","));
    }
}

static PROPAGATOR: OnceLock<Box<dyn Propagator>> = OnceLock::new();

static CONTENT: AtomicBool = AtomicBool::new(false);

/// Sets whether spans contain the content of calls: what a model is asked and answers, and what a tool gets and
/// returns. Default: they do not.
pub fn set_content(is_recorded: bool) {
    CONTENT.store(is_recorded, Ordering::Relaxed);
}

/// Whether spans contain the content of calls.
pub fn has_content() -> bool {
    CONTENT.load(Ordering::Relaxed)
}

/// Sets an attribute that is a list. The span must have been made with a field of this name.
pub fn set_list(span: &Span, name: &'static str, values: &[&str]) {
    if span.is_disabled() {
        return;
    }
    match PROPAGATOR.get() {
        Some(propagator) => propagator.set_list(span, name, values),
        None => drop(span.record(name, values.join(","))),
    }
}

/// Sets the propagator of this process. Returns `false` if one is set already.
pub fn set_propagator(propagator: impl Propagator) -> bool {
    PROPAGATOR.set(Box::new(propagator)).is_ok()
}

/// The `traceparent` of the current span.
pub fn current() -> Option<Arc<str>> {
    PROPAGATOR.get()?;
    traceparent(&Span::current())
}

/// Makes a span that was not entered yet part of a trace.
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

/// The start of a run: a child of the context that the caller gave, else of the current span.
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

/// Records the run's status at the end of a turn.
pub(crate) fn turn_ended(span: &Span, run: &Run) {
    span.record(a::WORKFLOW_STATUS, run.status.as_str());
    if run.status == windlass_kernel::RunStatus::Errored {
        span.record("otel.status_code", "ERROR");
    }
}

/// The replay of a run, a child of its turn.
pub(crate) fn replay(turn: &Span, run: &Run) -> Span {
    tracing::debug_span!(
        parent: turn, span::WORKFLOW_REPLAY, { a::WORKFLOW_ID } = %run.run_key,
        { a::WORKFLOW_TYPE } = %run.workflow, { a::EVENTS } = run.head.next_ordinal
    )
}

/// A commit of a run, a child of the current span.
pub(crate) fn append(workflow: &WorkflowName, commit: &Commit) -> Span {
    let events = || commit.ops.iter().filter(|op| matches!(op, Op::AppendEvent { .. })).count();
    tracing::debug_span!(
        span::EVENT_APPEND, { a::WORKFLOW_TYPE } = %workflow, { a::EVENTS } = events()
    )
}

/// A claim. It serves many traces and is part of none.
pub(crate) fn claim(worker: WorkerKey, group: &str, load: usize, max: usize) -> Span {
    tracing::debug_span!(
        parent: None, span::TASK_CLAIM, { a::WORKER_ID } = %worker, { a::WORKER_GROUP } = group,
        { a::WORKER_LOAD } = load, { a::WORKER_CONCURRENCY } = max,
        { a::TASKS_CLAIMED } = Empty, { a::TURNS_CLAIMED } = Empty
    )
}

/// Records the result of a claim.
pub(crate) fn claimed(span: &Span, claims: &Claims) {
    span.record(a::TASKS_CLAIMED, claims.tasks.len());
    span.record(a::TURNS_CLAIMED, claims.turns.len());
}

/// One attempt at a task, a child of the span that enqueued it.
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

/// When a task could have begun.
pub(crate) fn due(task: &Task) -> Timestamp {
    task.due_at.unwrap_or(task.created_at)
}

/// Records the answer of the circuit breaker.
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

/// Records the result of an attempt.
pub(crate) fn attempted(result: &TaskResult) {
    if let Err(failure) = result {
        let span = Span::current();
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", failure.name.as_str());
    }
}

/// The commit after an attempt.
pub(crate) fn complete(attempt: &Span, task: &Task) -> Span {
    tracing::debug_span!(parent: attempt, span::TASK_COMPLETE, { a::ACTIVITY_TYPE } = %task.name)
}
