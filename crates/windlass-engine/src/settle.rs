//! What follows from an attempt at a task: its result, another attempt, or a dead letter.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::json;
use windlass_kernel::retry::{DELAY_MAX, Decision, GiveUpReason};
use windlass_kernel::{
    Body, Commit, DeadLetter, EFFECT, Error, Limits, MessageId, MessageKind, MessageName,
    NewMessage, Op, Reschedule, RetryPolicy, Task, TaskGuard, Timestamp, Wake,
};

use crate::engine::Inner;
use crate::tasks::{TaskBody, TaskFailure, TaskResult, failure};
use crate::turn::Turn;

/// How many errors of failed attempts a task keeps at least, the latest ones, whatever its policy says.
const ERRORS_MIN: u32 = 20;

/// The name of the error of a task whose attempts together took too long.
pub(crate) const SCHEDULE_TO_CLOSE: &str = "ScheduleToCloseTimeout";

/// The name of a failure that says when to come back. It does not count as an attempt.
pub const RATE_LIMITED: &str = "RateLimited";

/// The name of a failure that says: not in this process. The task is left to another one, or to this one
/// after its next start, and no attempt is spent.
pub const NOT_HERE: &str = "NotHere";

/// An attempt that is over.
pub(crate) struct Attempt<'a> {
    pub(crate) task: &'a Task,
    pub(crate) guard: TaskGuard,
    pub(crate) number: u32,
    pub(crate) began_at: Timestamp,
    pub(crate) close_by: Option<Timestamp>,
}

/// What follows from an attempt.
pub(crate) enum Settling {
    /// The task comes back later.
    Later(Commit),
    /// The task is over, and somebody is to be told.
    Over(Over),
}

/// A task that is over, before anybody knows.
pub(crate) struct Over {
    pub(crate) guard: TaskGuard,
    pub(crate) attempt: u32,
    pub(crate) began_at: Timestamp,
    pub(crate) result: TaskResult,
    /// What removes the task.
    pub(crate) ops: Vec<Op>,
    over_at: Timestamp,
}

impl Over {
    /// The commit that leaves the result to the run as a message.
    pub(crate) fn commit(&self, task: &Task) -> Result<Commit, Error> {
        let mut ops = self.ops.clone();
        ops.extend(self.message(task)?);
        Ok(Commit::new(None, Some(self.guard), ops))
    }

    fn message(&self, task: &Task) -> Result<Option<Op>, Error> {
        // Nobody waits for an effect.
        let Some(run_key) = task.run_key.filter(|_| &*task.kind != EFFECT) else { return Ok(None) };
        let mut head = json!({
            "attempt": self.attempt, "worker": self.guard.hold.worker,
            "started_at": self.began_at.to_string(),
        });
        match &self.result {
            Ok(_) => head["status"] = "completed".into(),
            Err(failure) => {
                head["status"] = "failed".into();
                head["error"] = json!({ "name": failure.name, "message": failure.message });
            }
        }
        let mut text = head.to_string();
        text.pop();
        let step_key = json!(task.step_key).to_string();
        text.push_str(&format!(",\"step_key\":{step_key},\"task_id\":\"{}\"", task.task_id));
        if let Ok(output) = &self.result {
            text.push_str(",\"result\":");
            text.push_str(&String::from_utf8_lossy(&output.bytes));
        }
        text.push('}');
        // The claim's number is in the id: a zombie must not find its successor's message.
        let id = format!("activity:{}:{}", task.task_id, self.guard.hold.claim_no);
        Ok(Some(Op::PutMessage(Box::new(NewMessage {
            run_key,
            message_id: MessageId::new(id)?,
            kind: MessageKind::ActivityResult,
            name: MessageName::new("activity")?,
            body: Some(Body::json(text)),
            caused_by: None,
            sent_at: self.over_at,
            required: false,
        }))))
    }
}

/// What becomes of a task whose time has run out.
#[derive(Debug)]
pub enum Overdue {
    /// It is tried again; the commit needs the task's guard.
    Again(Op),
    /// It is given up: what is to be written beside the run's own rows, and how often it was tried.
    GivenUp(Vec<Op>, u32),
}

impl Turn {
    /// Decides about a task of this run that has run out of time while nobody, or a worker that does
    /// not answer, has it.
    pub fn overdue(&self, task: &Task, name: &str, message: String) -> Result<Overdue, Error> {
        let now = self.now();
        let body: Option<TaskBody> = task.body.as_ref().and_then(|body| body.read().ok());
        let number = task.attempt + u32::from(task.worker.is_some());
        let retryable = task.worker.is_some() && name != SCHEDULE_TO_CLOSE;
        let failure = failure(name, message, retryable);
        let policy = body.map_or_else(RetryPolicy::none, |body| body.retry);
        let errors = history(task, number, &failure, now, (&policy, self.limits()))?;
        let random = self.env().random();
        match policy.decide(number, name, retryable, None, random) {
            Decision::RetryIn(delay) => Ok(Overdue::Again(Op::Reschedule(Box::new(Reschedule {
                task_id: task.task_id,
                wake: Wake::At(now.plus(delay)),
                attempt: number,
                errors: Some(errors),
                untried: false,
            })))),
            Decision::GiveUp(_) => {
                self.metrics().tasks_dead.add(1);
                let dead = dead_letter(task, number, errors, &failure, now);
                let settle = Op::Settle { task_id: task.task_id };
                Ok(Overdue::GivenUp(vec![settle, Op::DeadLetter(Box::new(dead))], number))
            }
        }
    }
}

impl Inner {
    /// What follows from an attempt.
    pub(crate) fn settling(
        &self,
        attempt: &Attempt<'_>,
        result: TaskResult,
        policy: &RetryPolicy,
    ) -> Result<Settling, Error> {
        let Attempt { task, guard, number, began_at, .. } = *attempt;
        let now = self.clock.now();
        let settle = Op::Settle { task_id: task.task_id };
        let over =
            |result, ops| Over { guard, attempt: number, began_at, result, ops, over_at: now };
        let failure = match result {
            Ok(output) => {
                self.metrics.tasks_completed.add(1);
                return Ok(Settling::Over(over(Ok(output), vec![settle])));
            }
            Err(failure) => failure,
        };
        self.metrics.tasks_failed.add(1);
        let decision = policy.decide(
            number,
            &failure.name,
            failure.retryable,
            failure.retry_after,
            self.env.random(),
        );
        // Whoever is told to wait has not had its attempt.
        let limited = failure.retry_after.filter(|_| failure.name == RATE_LIMITED);
        let number = if limited.is_some() { task.attempt } else { number };
        let decision = limited.map_or(decision, |after| Decision::RetryIn(after.min(DELAY_MAX)));
        let too_late = |delay| attempt.close_by.is_some_and(|by| now.plus(delay) >= by);
        let (decision, failure) = match decision {
            Decision::RetryIn(delay) if too_late(delay) => {
                (Decision::GiveUp(GiveUpReason::Exhausted), closed(failure))
            }
            decision => (decision, failure),
        };
        let errors = history(task, number, &failure, now, (policy, &self.options.limits))?;
        match decision {
            Decision::RetryIn(delay) => {
                self.metrics.tasks_retried.add(1);
                let again = Reschedule {
                    task_id: task.task_id,
                    wake: Wake::At(now.plus(delay)),
                    attempt: number,
                    // Being told to wait is no failure, and would drive those out that are.
                    errors: limited.is_none().then_some(errors),
                    untried: false,
                };
                let ops = vec![Op::Reschedule(Box::new(again))];
                Ok(Settling::Later(Commit::new(None, Some(guard), ops)))
            }
            Decision::GiveUp(_) => {
                self.metrics.tasks_dead.add(1);
                let dead = dead_letter(task, number, errors, &failure, now);
                let message = cut(&failure.message, 16 * 1024);
                let failure = TaskFailure { message, ..failure };
                let ops = vec![settle, Op::DeadLetter(Box::new(dead))];
                Ok(Settling::Over(over(Err(failure), ops)))
            }
        }
    }
}

// The next attempt would begin when all of them must be over.
fn closed(last: TaskFailure) -> TaskFailure {
    let message = format!(
        "all attempts together took too long; the last failed with {}: {}",
        last.name, last.message
    );
    failure(SCHEDULE_TO_CLOSE, message, false)
}

fn dead_letter(
    task: &Task,
    attempt: u32,
    errors: Body,
    failure: &TaskFailure,
    now: Timestamp,
) -> DeadLetter {
    DeadLetter {
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
    }
}

// A text for people. What PostgreSQL cannot hold in one is replaced.
fn shown(message: &str) -> Arc<str> {
    cut(message, 500).replace('\0', "\u{fffd}").into()
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
