//! Dead letters are made here, for tasks and for steps that a model gives up.

use std::sync::Arc;

use serde::Serialize;
use windlass_kernel::{
    Body, DeadLetter, Error, ErrorCode, ErrorKind, QueueName, RouteName, StepKey, Task, TaskId,
    Timestamp, derive_key,
};

use crate::turn::Turn;

/// Characters of a reason that a letter keeps.
const REASON_CHARS_MAX: usize = 500;

/// A step that a model gives up.
pub struct DeadStep<'a, E> {
    /// The step.
    pub step_key: StepKey,
    /// Names the step among the letters of the run; the same step always has the same letter.
    pub letter_name: String,
    /// The attempt that was the last one.
    pub attempt: u32,
    /// Why it failed.
    pub reason: &'a str,
    /// The errors of its attempts.
    pub errors: &'a E,
}

impl Turn {
    /// The letter of a step, under the kind and the queue that the description of the run's model names.
    /// It has no body: to requeue it is to retry the run.
    pub fn dead_letter<E: Serialize>(
        &self,
        step: DeadStep<'_, E>,
        at: Timestamp,
    ) -> Result<DeadLetter, Error> {
        let run = &self.run;
        let route = self.description().dead_letters.as_ref().ok_or_else(|| {
            let message = format!("the model {:?} describes no dead letters", run.model);
            Error::new(ErrorKind::Internal, ErrorCode::Internal, message)
        })?;
        Ok(DeadLetter {
            task_id: TaskId(derive_key(run.run_key.0, &step.letter_name)),
            namespace: run.namespace.clone(),
            run_key: Some(run.run_key),
            step_key: Some(step.step_key),
            kind: route.kind.into(),
            queue: QueueName::from_stored(route.queue),
            name: RouteName::from(&run.workflow),
            attempt: step.attempt,
            body: None,
            errors: Some(Body::of(step.errors)?),
            reason: display_reason(step.reason),
            dead_at: at,
            requeues: 0,
            requeued_at: None,
        })
    }
}

/// The letter of a task whose attempts are spent.
pub(crate) fn letter_of_task(
    task: &Task,
    attempt: u32,
    errors: Body,
    reason: &str,
    at: Timestamp,
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
        reason: display_reason(reason),
        dead_at: at,
        requeues: 0,
        requeued_at: None,
    }
}

// PostgreSQL cannot store a NUL in a text.
fn display_reason(reason: &str) -> Arc<str> {
    let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
    reason.replace('\0', "\u{fffd}").into()
}
