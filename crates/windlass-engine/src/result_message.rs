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
        let head = ActivityHead::of(task, attempt);
        let output = attempt.result.as_ref().ok();
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

    /// Writes the message that tells the parent of a run how the run ended; none if it has no parent.
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
            required: false,
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
