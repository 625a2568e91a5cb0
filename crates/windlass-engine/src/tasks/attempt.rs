//! One attempt at a task: circuit breaker and rate first, then user code under its timeouts.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::Either;
use tracing::Instrument as _;
use uuid::Uuid;
use windlass_kernel::retry::DELAY_MAX;
use windlass_kernel::{
    Body, Commit, Error, Hold, Op, Permit, Reschedule, RetryPolicy, Route, Sha256Digest, Task,
    TaskGuard, Timestamp, Wake, format_duration,
};

use super::context::{AttemptLink, RunningAttempt};
use super::runner::TaskRunner;
use super::{
    FailureCause, TaskBody, TaskContext, TaskFailure, TaskHandler, TaskResult, TimeoutKind,
    failure, panic_text, timed_out,
};
use crate::core::Core;
use crate::description::ACTIVITY_RETRY;
use crate::env::ThreadPool;
use crate::metrics::Measure;
use crate::settle::{self, Attempt, AttemptOutcome};
use crate::telemetry;

/// How long a probe of a circuit breaker may take if the task has no timeout.
const PROBE_MAX: Duration = Duration::from_secs(60);

/// How long a task waits for a circuit breaker at least and at most, before it asks again.
const BREAKER_WAIT_MIN: Duration = Duration::from_secs(1);
const BREAKER_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a task that this process cannot run is postponed, so that another process claims it.
const NOT_HERE_DELAY: Duration = Duration::from_secs(5);

/// Runs an attempt and decides what follows from it.
pub(super) async fn run(
    runner: &Arc<TaskRunner>,
    task: &Task,
    hold: Hold,
    running: Arc<RunningAttempt>,
) -> Result<AttemptOutcome, Error> {
    let core = &runner.core;
    let route = Route { queue: task.queue.clone(), name: task.name.clone() };
    let handler = runner.tasks.handler(&route);
    let began_at = core.clock.now();
    let body: Option<TaskBody> = task.body.as_ref().and_then(|body| body.read().ok());
    let close_by = body.as_ref().and_then(|body| body.close_by).map(Timestamp::from_micros);
    let (result, policy) = match (handler, body) {
        _ if runner.turns.trials.take_condemned(task.task_id.0) => {
            let message = format!("{} workers died or stalled during an attempt", task.reclaims);
            (Err(failure("NoProgress", message, false)), RetryPolicy::none())
        }
        (Some(handler), Some(body)) => {
            let policy = body.retry.clone();
            match call(runner, task, hold, running, handler, body).await {
                Called::Attempted(result) => (result, policy),
                Called::Postponed(until) => return Ok(postpone(task, hold, until)),
            }
        }
        (None, _) => {
            let message = format!("no activity named {:?} is registered here", task.name);
            (Err(failure("ActivityNotFound", message, true)), ACTIVITY_RETRY)
        }
        (_, None) => {
            let message = "failed to parse the task's body".to_owned();
            (Err(failure("InvalidTask", message, false)), RetryPolicy::none())
        }
    };
    runner.stats.count(task, began_at, &result);
    let attempt = Attempt { task, hold, number: task.attempt + 1, began_at, close_by };
    settle::decide(core, &attempt, result, &policy)
}

enum Called {
    Attempted(TaskResult),
    /// The task comes back at a time; no attempt is spent.
    Postponed(Timestamp),
}

async fn call(
    runner: &Arc<TaskRunner>,
    task: &Task,
    hold: Hold,
    running: Arc<RunningAttempt>,
    handler: Arc<dyn TaskHandler>,
    body: TaskBody,
) -> Called {
    let core = &runner.core;
    let began_at = core.clock.now();
    let context = context(runner, task, hold, &body, &running);
    let breaker = body.breaker.clone();
    let timeout = body.start_to_close_ms.map_or(PROBE_MAX, Duration::from_millis);
    let permit = match &breaker {
        Some(breaker) => runner.breakers.permit(task, breaker, timeout).await,
        None => Permit::Call,
    };
    telemetry::permitted(&body, permit);
    if let Permit::Wait(until) = permit {
        return Called::Postponed(breaker_wait(core, until));
    }
    // After the breaker: a permission of a rate is used up even if no call follows.
    if let Some(until) = runner.rates.wait(task).await {
        if let Some(breaker) = &breaker {
            runner.breakers.not_called(task, breaker, permit).await;
        }
        return Called::Postponed(until);
    }
    // The waits for the breaker and the rate do not count as time without a heartbeat.
    running.beat(&*core.env);
    let result = run_handler(core, handler, context, body, &running).await;
    if let Err(failure) = &result
        && failure.cause == FailureCause::NotHere
    {
        if let Some(breaker) = &breaker {
            runner.breakers.not_called(task, breaker, permit).await;
        }
        tracing::warn!(
            %task.task_id, failure.message,
            "this process cannot run a task; leaving it to other processes"
        );
        let delay = failure.retry_after.unwrap_or(NOT_HERE_DELAY);
        return Called::Postponed(core.clock.now().plus(delay));
    }
    telemetry::attempted(&result);
    let took = core.clock.now().since(began_at);
    core.metrics.time(Measure::Activity, task.name.as_str(), took);
    let backoff = rate_limit_backoff(&result);
    if let Some(backoff) = backoff {
        runner.rates.back_off(task, backoff.min(DELAY_MAX)).await;
    }
    if let Some(breaker) = &breaker {
        runner.breakers.report(task, breaker, permit, &result).await;
    }
    if result.is_err() {
        // A rate-limited attempt does not count, but its heartbeat shows that it began.
        runner.heartbeats.send_now(task.task_id, hold, backoff.is_some()).await;
    }
    Called::Attempted(result)
}

fn context(
    runner: &TaskRunner,
    task: &Task,
    hold: Hold,
    body: &TaskBody,
    running: &Arc<RunningAttempt>,
) -> TaskContext {
    TaskContext {
        task_id: task.task_id,
        namespace: task.namespace.clone(),
        run_key: task.run_key,
        step_key: task.step_key.clone(),
        attempt: task.attempt + 1,
        attempts_max: body.retry.attempts_max(),
        attempt_id: attempt_id(task, hold),
        trace: telemetry::current().or_else(|| task.trace.clone()),
        link: AttemptLink {
            running: Arc::clone(running),
            heartbeats: Arc::downgrade(&runner.heartbeats),
            hold,
            watched: body.heartbeat_ms.is_some(),
            last_details: task.heartbeat.clone(),
        },
    }
}

// Runs user code under its timeouts. A panic is a failed attempt.
async fn run_handler(
    core: &Core,
    handler: Arc<dyn TaskHandler>,
    context: TaskContext,
    body: TaskBody,
    running: &RunningAttempt,
) -> TaskResult {
    let input = Body::json(body.input.get().to_owned());
    let work = async move { handler.run(context, input).await };
    let work = std::panic::AssertUnwindSafe(work).catch_unwind();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // Dropped with this future: work that has timed out ends at its next await point.
    let (_keep, dropped) = tokio::sync::oneshot::channel::<()>();
    let work = async move {
        let work = std::pin::pin!(work);
        if let Either::Left((result, _)) = futures::future::select(work, dropped).await {
            let _ = sender.send(result);
        }
    };
    core.env.spawn(ThreadPool::Task, Box::pin(work.in_current_span()));
    let work = async move {
        match receiver.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(failure("Panic", panic_text(&*panic), true)),
            Err(_) => Err(failure("Interrupted", "the runtime is shutting down".into(), true)),
        }
    };
    let (work, timeout) = (std::pin::pin!(work), std::pin::pin!(timeout(core, &body, running)));
    match futures::future::select(work, timeout).await {
        Either::Left((result, _)) => result,
        Either::Right((failure, _)) => {
            running.cancel();
            Err(failure)
        }
    }
}

// Completes when one of the task's timeouts has passed.
async fn timeout(core: &Core, body: &TaskBody, running: &RunningAttempt) -> TaskFailure {
    let started = core.env.elapsed();
    let close = body.start_to_close_ms.map(Duration::from_millis);
    let close_by = body.close_by.map(Timestamp::from_micros);
    let beat = body.heartbeat_ms.map(Duration::from_millis);
    loop {
        let now = core.env.elapsed();
        let close_in = close.map(|close| (started + close).saturating_sub(now));
        let beat_in = beat.map(|beat| (running.last_beat() + beat).saturating_sub(now));
        if let (Some(close), Some(Duration::ZERO)) = (close, close_in) {
            let message = format!("the attempt took longer than {}", format_duration(close));
            return timed_out(TimeoutKind::StartToClose, message);
        }
        let all_in = close_by.map(|by| by.since(core.clock.now()));
        if all_in.is_some_and(|left| left.is_zero()) {
            let message = "all attempts together took too long".to_owned();
            return timed_out(TimeoutKind::ScheduleToClose, message);
        }
        if let (Some(beat), Some(Duration::ZERO)) = (beat, beat_in) {
            let message = format!("there was no heartbeat for {}", format_duration(beat));
            return timed_out(TimeoutKind::Heartbeat, message);
        }
        match [close_in, beat_in, all_in].into_iter().flatten().min() {
            Some(left) => core.env.sleep(left).await,
            None => futures::future::pending().await,
        }
    }
}

// When a task comes back that a breaker does not let through. Not later than a minute: nobody wakes it
// if an operator resets the breaker. With jitter: many tasks wait for the same breaker.
fn breaker_wait(core: &Core, until: Timestamp) -> Timestamp {
    let now = core.clock.now();
    let wait = until.since(now).clamp(BREAKER_WAIT_MIN, BREAKER_WAIT_MAX);
    let jitter = wait.mul_f64((core.env.random() >> 32) as f64 / f64::from(u32::MAX));
    now.plus(wait + jitter.min(BREAKER_WAIT_MAX / 4))
}

// How long the callee asked for no calls.
fn rate_limit_backoff(result: &TaskResult) -> Option<Duration> {
    let limited = result.as_ref().err().filter(|failure| failure.is_rate_limited());
    limited.and_then(|failure| failure.retry_after)
}

// Reschedules a task without spending an attempt.
fn postpone(task: &Task, hold: Hold, until: Timestamp) -> AttemptOutcome {
    let reschedule = Op::Reschedule(Box::new(Reschedule {
        task_id: task.task_id,
        wake: Wake::At(until),
        attempt: task.attempt,
        errors: None,
        untried: true,
    }));
    let guard = TaskGuard::Held { task_id: task.task_id, hold };
    AttemptOutcome::Retry(Commit::new(None, Some(guard), vec![reschedule]))
}

// Derived from the claim: another attempt has another claim.
fn attempt_id(task: &Task, hold: Hold) -> Uuid {
    let claim_no = hold.claim_no.to_be_bytes();
    let digest = Sha256Digest::of_parts(&[task.task_id.as_bytes(), &claim_no]);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_bytes()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
