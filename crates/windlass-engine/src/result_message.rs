//! The messages that bring a run the result of an activity or of a child: one encoder and one decoder.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use windlass_kernel::{
    Body, CausalRef, Encoding, End, Error, ErrorCode, ErrorKind, Message, MessageId, MessageKind,
    MessageName, NewMessage, Run, RunKey, RunStatus, Stamp, StepKey, Task, Timestamp, WorkerKey,
};

use crate::tasks::{FailureCause, TaskResult, TimeoutKind};

/// The name of a message with an activity's result.
const ACTIVITY_RESULT: MessageName = MessageName::from_static("activity");
/// The name of a message with a child's result.
const CHILD_RESULT: MessageName = MessageName::from_static("child");

/// A larger result of a child is not in its message: the parent reads it from the child's row.
const CHILD_RESULT_BYTES_MAX: usize = 64 * 1024;

/// The end of an activity, as its run reads it.
#[derive(Debug, Deserialize)]
pub struct ActivityResult {
    /// The step that the activity works for.
    pub step_key: Option<String>,
    /// Which attempt ended it, from 1.
    pub attempt: u32,
    /// The worker of that attempt.
    pub worker: Option<WorkerKey>,
    /// When that attempt began.
    pub started_at: Option<String>,
    /// Why it failed; none if it gave a result.
    pub error: Option<ResultError>,
    /// The errors of the attempts before, the last ones of them.
    #[serde(default)]
    pub earlier: Vec<AttemptError>,
    result: Option<Box<RawValue>>,
}

/// The error of an activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultError {
    /// Its message.
    pub message: String,
    /// Its name.
    pub name: String,
    /// The time that ran out, if that is why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<TimeoutKind>,
}

/// How many errors of earlier attempts the run of an activity gets, and how many characters of each.
const EARLIER_MAX: usize = 10;
const EARLIER_CHARS_MAX: usize = 200;
/// Up to this size of a result, its message has the errors of earlier attempts too.
const RESULT_WITH_ERRORS_BYTES_MAX: usize = 512 * 1024;

/// The error of an attempt that was followed by another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptError {
    /// The attempt, from 1.
    pub attempt: u32,
    /// The error's name.
    pub name: String,
    /// The beginning of its message.
    pub message: String,
    /// When the attempt failed.
    pub at: String,
}

/// The errors of the failed attempts that a task's row has: at most the last ten. Errors from before
/// the task was requeued are left out, because the generation before has them.
pub fn earlier_errors(task: &Task) -> Vec<AttemptError> {
    if task.attempt == 0 {
        return Vec::new();
    }
    let errors: Option<Vec<AttemptError>> = task.errors.as_ref().and_then(|body| body.read().ok());
    let mut errors = errors.unwrap_or_default();
    let count = EARLIER_MAX.min(task.attempt as usize);
    errors.drain(..errors.len().saturating_sub(count));
    for error in &mut errors {
        error.name = error.name.chars().take(EARLIER_CHARS_MAX).collect();
        error.message = error.message.chars().take(EARLIER_CHARS_MAX).collect();
    }
    errors
}

impl ActivityResult {
    /// Reads a message.
    pub fn from_message(message: &Message) -> Result<Self, Error> {
        read(message)
    }

    /// The result of the activity.
    pub fn result(&self) -> Body {
        body(self.result.as_deref())
    }

    /// Writes a message; none if no run waits for the task.
    pub(crate) fn to_message(
        task: &Task,
        attempt: &SettledAttempt<'_>,
    ) -> Result<Option<NewMessage>, Error> {
        let Some(run_key) = task.run_key else { return Ok(None) };
        let mut head = ActivityHead::of(task, attempt);
        let output = attempt.result.as_ref().ok();
        // A large result needs all of the message.
        if output.is_some_and(|output| output.len() > RESULT_WITH_ERRORS_BYTES_MAX) {
            head.earlier.clear();
        }
        let SettledAttempt { claim_no, .. } = attempt;
        Ok(Some(NewMessage {
            run_key,
            // A worker that lost the task must not find the message of its successor.
            message_id: MessageId::new(format!("activity:{}:{claim_no}", task.task_id))?,
            kind: MessageKind::ActivityResult,
            name: ACTIVITY_RESULT,
            body: Some(with_member(&head, output.map(Member::Result))?),
            caused_by: None,
            sent_at: attempt.ended_at,
            required: false,
        }))
    }
}

/// An attempt that settled its task.
pub(crate) struct SettledAttempt<'a> {
    pub(crate) number: u32,
    pub(crate) worker: WorkerKey,
    pub(crate) claim_no: u64,
    pub(crate) began_at: Timestamp,
    pub(crate) ended_at: Timestamp,
    pub(crate) result: &'a TaskResult,
}

#[derive(Serialize)]
struct ActivityHead<'a> {
    attempt: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<AttemptError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ResultError>,
    started_at: String,
    status: &'static str,
    worker: WorkerKey,
    step_key: Option<&'a StepKey>,
    task_id: windlass_kernel::TaskId,
}

impl<'a> ActivityHead<'a> {
    fn of(task: &'a Task, attempt: &SettledAttempt<'_>) -> Self {
        let error = attempt.result.as_ref().err().map(|failure| ResultError {
            message: failure.message.clone(),
            name: failure.name.clone(),
            timeout: match failure.cause {
                FailureCause::Timeout(kind) => Some(kind),
                _ => None,
            },
        });
        Self {
            attempt: attempt.number,
            earlier: earlier_errors(task),
            status: if error.is_some() { "failed" } else { "completed" },
            error,
            started_at: attempt.began_at.to_string(),
            worker: attempt.worker,
            step_key: task.step_key.as_ref(),
            task_id: task.task_id,
        }
    }
}

/// The end of a child, as its parent reads it.
#[derive(Debug, Deserialize)]
pub struct ChildResult {
    /// The generation that ended.
    pub run_key: RunKey,
    /// The child's id.
    pub id: String,
    /// The step of the parent that waits for it.
    pub fork: Option<String>,
    status: String,
    #[serde(default)]
    large: bool,
    result: Option<Box<RawValue>>,
}

impl ChildResult {
    /// Reads a message.
    pub fn from_message(message: &Message) -> Result<Self, Error> {
        read(message)
    }

    /// How the child ended.
    pub fn status(&self) -> &str {
        &self.status
    }

    /// Whether it completed.
    pub fn is_complete(&self) -> bool {
        self.status == RunStatus::Complete.as_str()
    }

    /// Whether the result is only in the child's row ([`crate::Turn::result_of`]).
    pub fn is_large(&self) -> bool {
        self.large
    }

    /// The output, or the error, as far as the message has it.
    pub fn result(&self) -> Option<Body> {
        self.result.as_deref().map(|raw| body(Some(raw)))
    }

    /// Writes the message that tells the parent of a run how the run ended; none if it has no parent. The
    /// message is required: if the parent has ended, the commit client sends it to the parent's newest
    /// generation, or drops it ([`crate::commit::CommitClient`]).
    pub(crate) fn to_message(
        run: &Run,
        end: &End,
        stamp: Stamp,
    ) -> Result<Option<NewMessage>, Error> {
        let Some(parent) = run.parent else { return Ok(None) };
        let (status, result) = match end {
            End::Complete(output) => (RunStatus::Complete, Some(output)),
            End::Errored(error) => (RunStatus::Errored, Some(error)),
            End::Terminated(error) => (RunStatus::Terminated, error.as_ref()),
        };
        let head = ChildHead {
            fork: run.fork.as_deref(),
            id: run.id.as_str(),
            run_key: run.run_key,
            status: status.as_str(),
            workflow: run.workflow.as_str(),
        };
        let member = result.map(|result| match result.encoding {
            Encoding::Json if result.len() <= CHILD_RESULT_BYTES_MAX => Member::Result(result),
            _ => Member::Large,
        });
        Ok(Some(NewMessage {
            run_key: parent,
            message_id: MessageId::new(format!("child:{}", run.run_key))?,
            kind: MessageKind::ChildResult,
            name: CHILD_RESULT,
            body: Some(with_member(&head, member)?),
            caused_by: Some(CausalRef::event(stamp.event_id)),
            sent_at: stamp.at,
            required: true,
        }))
    }
}

#[derive(Serialize)]
struct ChildHead<'a> {
    fork: Option<&'a str>,
    id: &'a str,
    run_key: RunKey,
    status: &'static str,
    workflow: &'a str,
}

enum Member<'a> {
    Result(&'a Body),
    Large,
}

// The result is copied as the bytes that it is: it is JSON already, and parsing it costs more than
// copying.
fn with_member<T: Serialize>(head: &T, member: Option<Member<'_>>) -> Result<Body, Error> {
    let mut text = serde_json::to_vec(head).map_err(|source| {
        let message = "a result message cannot be written as JSON";
        Error::new(ErrorKind::Internal, ErrorCode::Internal, message).with_source(source)
    })?;
    if let Some(member) = member {
        text.pop();
        match member {
            Member::Result(result) => {
                text.extend_from_slice(b",\"result\":");
                text.extend_from_slice(String::from_utf8_lossy(&result.bytes).as_bytes());
                text.push(b'}');
            }
            Member::Large => text.extend_from_slice(b",\"large\":true}"),
        }
    }
    Ok(Body::json(text))
}

fn read<T: for<'de> Deserialize<'de>>(message: &Message) -> Result<T, Error> {
    let bytes = message.body.as_ref().map_or(&b""[..], |body| &body.bytes);
    serde_json::from_slice(bytes).map_err(|source| {
        let text = format!("message {} does not read as a {}", message.seq, message.kind);
        Error::new(ErrorKind::Invalid, ErrorCode::MessageUnreadable, text).with_source(source)
    })
}

fn body(raw: Option<&RawValue>) -> Body {
    Body::json(raw.map_or("null", RawValue::get).to_owned())
}
