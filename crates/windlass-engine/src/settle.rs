//! Decides what follows from an attempt at a task: its result, another attempt, or a dead letter.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::json;
use windlass_kernel::retry::{DELAY_MAX, Decision, GiveUpReason};
use windlass_kernel::{
    Body, Commit, EFFECT, Error, Hold, Limits, MessageId, MessageKind, MessageName, NewMessage, Op,
    Reschedule, RetryPolicy, Task, TaskGuard, Timestamp, Wake,
};

use crate::core::Core;
use crate::letter::letter_of_task;
use crate::metrics::Metrics;
use crate::result_message::{ActivityResult, SettledAttempt};
use crate::tasks::{TaskBody, TaskFailure, TaskResult, TimeoutKind, timed_out};
use crate::turn::Turn;

/// A task keeps the errors of at least this many attempts, the latest ones, whatever its policy says.
const ERRORS_MIN: u32 = 20;

/// The least delay after a reply that asks for a later call; a callee may ask for none.
const RATE_LIMITED_MIN: Duration = Duration::from_millis(100);

/// An attempt that has ended.
pub(crate) struct Attempt<'a> {
    pub(crate) task: &'a Task,
    pub(crate) hold: Hold,
    pub(crate) number: u32,
    pub(crate) began_at: Timestamp,
    pub(crate) close_by: Option<Timestamp>,
}

/// The outcome of an attempt.
pub(crate) enum AttemptOutcome {
    /// The task comes back later.
    Retry(Commit),
    /// The task is finished: its run gets the result.
    Finished(Finished),
}

/// A finished task, before the commit that settles it.
pub(crate) struct Finished {
    pub(crate) hold: Hold,
    pub(crate) attempt: u32,
    pub(crate) began_at: Timestamp,
    pub(crate) result: TaskResult,
    /// Operations that settle the task.
    pub(crate) ops: Vec<Op>,
    finished_at: Timestamp,
}

impl Finished {
    /// Counts the task, after the commit that settled it.
    pub(crate) fn count(&self, metrics: &Metrics) {
        match &self.result {
            Ok(_) => metrics.tasks_completed.add(1),
            Err(_) => metrics.tasks_dead.add(1),
        }
    }

    /// The commit that sends the result to the run as a message.
    pub(crate) fn commit(&self, task: &Task) -> Result<Commit, Error> {
        let mut ops = self.ops.clone();
        ops.extend(self.message(task)?);
        let guard = TaskGuard::Held { task_id: task.task_id, hold: self.hold };
        Ok(Commit::new(None, Some(guard), ops))
    }

    fn message(&self, task: &Task) -> Result<Option<Op>, Error> {
        if &*task.kind == EFFECT {
            return self.wake_message(task);
        }
        let attempt = SettledAttempt {
            number: self.attempt,
            worker: self.hold.worker,
            claim_no: self.hold.claim_no,
            began_at: self.began_at,
            ended_at: self.finished_at,
            result: &self.result,
        };
        let message = ActivityResult::to_message(task, &attempt)?;
        Ok(message.map(|message| Op::PutMessage(Box::new(message))))
    }
}

impl Finished {
    /// The message that wakes a run which waits for its effect. A run that has ended does not get it.
    fn wake_message(&self, task: &Task) -> Result<Option<Op>, Error> {
        let (Some(run_key), Ok(_), Some(body)) = (task.run_key, &self.result, &task.body) else {
            return Ok(None);
        };
        if !body.read::<TaskBody>().is_ok_and(|body| body.wakes_run) {
            return Ok(None);
        }
        let message_id = format!("effect:{}:{}", task.task_id, self.began_at.as_micros());
        Ok(Some(Op::PutMessage(Box::new(NewMessage {
            run_key,
            message_id: MessageId::new(message_id)?,
            kind: MessageKind::Event,
            name: EFFECT_DELIVERED,
            body: None,
            caused_by: None,
            sent_at: self.finished_at,
            required: false,
        }))))
    }
}

/// The message that wakes a run because its effect was delivered.
pub const EFFECT_DELIVERED: MessageName = MessageName::from_static("effect.delivered");

/// The decision about a task whose time has run out.
#[derive(Debug)]
pub enum Overdue {
    /// It is retried; the commit needs the task's guard.
    Again(Op),
    /// It has failed: the operations beside the run's own rows, and the number of attempts.
    GivenUp(Vec<Op>, u32),
}

impl Turn {
    /// Decides about a task of this run whose time has run out while no worker, or one that does not
    /// answer, holds it.
    pub fn overdue(
        &self,
        task: &Task,
        timeout: TimeoutKind,
        message: String,
    ) -> Result<Overdue, Error> {
        let now = self.now();
        let body: Option<TaskBody> = task.body.as_ref().and_then(|body| body.read().ok());
        let number = task.attempt + u32::from(task.worker.is_some());
        let retryable = task.worker.is_some() && timeout != TimeoutKind::ScheduleToClose;
        let failure = TaskFailure { retryable, ..timed_out(timeout, message) };
        let policy = body.map_or_else(RetryPolicy::none, |body| body.retry);
        let errors = history(task, number, &failure, now, (&policy, self.limits()))?;
        let random = self.env().random();
        match policy.decide(number, &failure.name, retryable, None, random) {
            Decision::RetryIn(delay) => Ok(Overdue::Again(Op::Reschedule(Box::new(Reschedule {
                task_id: task.task_id,
                wake: Wake::At(now.plus(delay)),
                attempt: number,
                errors: Some(errors),
                untried: false,
            })))),
            Decision::GiveUp(_) => {
                let dead = letter_of_task(task, number, errors, &failure.message, now);
                let settle = Op::Settle { task_id: task.task_id };
                Ok(Overdue::GivenUp(vec![settle, Op::DeadLetter(Box::new(dead))], number))
            }
        }
    }
}

/// Decides what follows from an attempt.
pub(crate) fn decide(
    core: &Core,
    attempt: &Attempt<'_>,
    result: TaskResult,
    policy: &RetryPolicy,
) -> Result<AttemptOutcome, Error> {
    let Attempt { task, hold, number, began_at, .. } = *attempt;
    let now = core.clock.now();
    let settle = Op::Settle { task_id: task.task_id };
    let finished =
        |result, ops| Finished { hold, attempt: number, began_at, result, ops, finished_at: now };
    let failure = match result {
        Ok(output) => {
            return Ok(AttemptOutcome::Finished(finished(Ok(output), vec![settle])));
        }
        Err(failure) => failure,
    };
    core.metrics.tasks_failed.add(1);
    let decision = policy.decide(
        number,
        &failure.name,
        failure.retryable,
        failure.retry_after,
        core.env.random(),
    );
    // A rate-limited attempt does not count.
    let limited = failure.is_rate_limited().then(|| failure.retry_after.unwrap_or_default());
    let number = if limited.is_some() { task.attempt } else { number };
    let decision = limited
        .map_or(decision, |after| Decision::RetryIn(after.clamp(RATE_LIMITED_MIN, DELAY_MAX)));
    let too_late = |delay| attempt.close_by.is_some_and(|by| now.plus(delay) >= by);
    let (decision, failure) = match decision {
        Decision::RetryIn(delay) if too_late(delay) => {
            (Decision::GiveUp(GiveUpReason::Exhausted), closed(failure))
        }
        decision => (decision, failure),
    };
    let errors = history(task, number, &failure, now, (policy, &core.options.limits))?;
    match decision {
        Decision::RetryIn(delay) => {
            core.metrics.tasks_retried.add(1);
            let again = Reschedule {
                task_id: task.task_id,
                wake: Wake::At(now.plus(delay)),
                attempt: number,
                // Rate-limit replies would evict real errors from the bounded list.
                errors: limited.is_none().then_some(errors),
                untried: false,
            };
            let ops = vec![Op::Reschedule(Box::new(again))];
            let guard = TaskGuard::Held { task_id: task.task_id, hold };
            Ok(AttemptOutcome::Retry(Commit::new(None, Some(guard), ops)))
        }
        Decision::GiveUp(_) => {
            let dead = letter_of_task(task, number, errors, &failure.message, now);
            let message = cut(&failure.message, 16 * 1024);
            let failure = TaskFailure { message, ..failure };
            let ops = vec![settle, Op::DeadLetter(Box::new(dead))];
            Ok(AttemptOutcome::Finished(finished(Err(failure), ops)))
        }
    }
}

// The next attempt would begin after the deadline of all attempts.
fn closed(last: TaskFailure) -> TaskFailure {
    let message = format!(
        "all attempts together took too long; the last failed with {}: {}",
        last.name, last.message
    );
    timed_out(TimeoutKind::ScheduleToClose, message)
}

fn cut(message: &str, chars_max: usize) -> String {
    message.chars().take(chars_max).collect()
}

fn history(
    task: &Task,
    attempt: u32,
    failure: &TaskFailure,
    now: Timestamp,
    (policy, limits): (&RetryPolicy, &Limits),
) -> Result<Body, Error> {
    let mut errors: VecDeque<serde_json::Value> =
        task.errors.as_ref().and_then(|errors| errors.read().ok()).unwrap_or_default();
    errors.push_back(json!({
        "attempt": attempt,
        "name": failure.name,
        "message": cut(&failure.message, 2_000),
        "at": now.to_string(),
    }));
    let most = policy.attempts_max().unwrap_or(0).max(ERRORS_MIN) as usize;
    loop {
        let body = Body::of(&errors)?;
        if errors.len() <= most && (body.len() <= limits.task_bytes_max || errors.len() == 1) {
            return Ok(body);
        }
        errors.pop_front();
    }
}
