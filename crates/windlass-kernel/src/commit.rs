//! The commit: the only way to write what happened to a run.

mod display;
mod guard;
#[cfg(test)]
mod tests;
mod validate;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::bodies::PutBody;
use crate::body::Body;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{
    Collection, EventId, MessageId, MessageName, RecordId, RunKey, StepKey, TaskId, WriteId,
};
use crate::ledger::{CausalRef, Event, Head};
use crate::limits::Limits;
use crate::record::{Expect, RecordFound, RecordKey, RecordOp};
use crate::rows::{DeadLetter, Hold, LogLine, MessageKind, Run, RunStatus, Step, Task, Wake};
use crate::time::Timestamp;

pub use self::guard::{OnExisting, RunGuard, TaskGuard};

/// A set of ops that a store writes atomically if the guards hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// A row that only this commit writes. If the answer was lost, its presence proves that the
    /// commit was written.
    pub key: CommitKey,
    /// The guard on the run.
    pub run: Option<RunGuard>,
    /// The guard on the task.
    pub task: Option<TaskGuard>,
    /// The ops to write. They are shared because the sender keeps the commit until it is answered.
    pub ops: Arc<Vec<Op>>,
}

impl Commit {
    /// A commit whose key is derived from its ops.
    pub fn new(run: Option<RunGuard>, task: Option<TaskGuard>, ops: Vec<Op>) -> Self {
        Self { key: CommitKey::of(&ops), run, task, ops: Arc::new(ops) }
    }

    /// Mutable access to the ops. Copies them if they are shared.
    pub fn ops_mut(&mut self) -> &mut Vec<Op> {
        Arc::make_mut(&mut self.ops)
    }

    /// The guarded run.
    pub fn run_key(&self) -> Option<RunKey> {
        self.run.as_ref().map(RunGuard::run_key)
    }

    /// The change of the guarded run.
    pub fn run_change(&self) -> Option<&RunChange> {
        self.ops.iter().find_map(|op| match op {
            Op::SetRun(change) => Some(&**change),
            _ => None,
        })
    }

    /// Whether the commit has no guard. The store can detect that such a commit is sent again only
    /// by a duplicate key.
    pub fn is_unguarded(&self) -> bool {
        self.run.is_none() && self.task.is_none()
    }

    /// Whether the sender of this commit, which was found to be written before, still holds the
    /// turn under `hold`. `head` and `hold` are those of the run's row. A commit that claimed a
    /// free turn still holds it only if the commit did not release it and nothing was written
    /// since.
    pub fn still_holds(&self, head: Head, hold: Hold) -> bool {
        let created = |run_key: RunKey| {
            self.ops.iter().find_map(|op| match op {
                Op::CreateRun(run) if run.run_key == run_key => run.turn.hold(),
                _ => None,
            })
        };
        match &self.run {
            Some(RunGuard::Held { hold: sent, .. }) => *sent == hold,
            Some(RunGuard::Free { worker, .. }) => self.run_change().is_some_and(|change| {
                change.turn == TurnChange::Keep && change.head == head && *worker == hold.worker
            }),
            Some(RunGuard::Absent { run_key, .. }) => created(*run_key) == Some(hold),
            None => false,
        }
    }

    /// The user's SQL statements, in order.
    pub fn user_sql(&self) -> impl Iterator<Item = &Statement> {
        self.ops.iter().flat_map(|op| match op {
            Op::UserSql(statements) => statements.as_slice(),
            _ => &[],
        })
    }

    /// The records in the order in which a store decides about them: first the writes, then the
    /// checks, so that a commit that is sent again fails on the record that is its key.
    pub fn records(&self) -> impl Iterator<Item = &RecordOp> {
        let of = |write: bool| {
            self.ops.iter().filter_map(move |op| match op {
                Op::Record(record) if record.is_write() == write => Some(&**record),
                _ => None,
            })
        };
        of(true).chain(of(false))
    }

    /// Whether this commit may have been written before, although it conflicts now: its key was a
    /// record that others have written since. Only a sender whose first answer was lost asks.
    pub fn is_outcome_open(&self, conflict: &Conflict) -> bool {
        let (CommitKey::Record { key, expect, .. }, Conflict::Record { collection, id, found, .. }) =
            (&self.key, conflict)
        else {
            return false;
        };
        let beyond = match expect {
            Expect::Absent => 1,
            Expect::At(revision) => revision + 1,
            Expect::Present => 0,
        };
        key.collection == *collection && key.id == *id && found.revision() > beyond
    }

    /// The messages that the commit sends, in order.
    pub fn messages(&self) -> impl Iterator<Item = &NewMessage> {
        self.ops.iter().filter_map(|op| match op {
            Op::PutMessage(message) => Some(&**message),
            _ => None,
        })
    }

    /// The causes that the store must find in the namespace of the given run: neither the run's
    /// guard nor an earlier op of this commit proves that they exist.
    pub fn causes_to_look_up(&self) -> Vec<(RunKey, CausalRef)> {
        let mut known: Vec<CausalRef> = Vec::new();
        let mut wanted = Vec::new();
        for op in self.ops.iter() {
            match op {
                Op::CreateRun(run) => known.push(CausalRef::run(run.run_key)),
                Op::AppendEvent { event, cause } => {
                    if *cause == CauseCheck::LookUp && !known.contains(&event.caused_by) {
                        wanted.push((event.run_key, event.caused_by));
                    }
                    known.push(CausalRef::event(event.event_id));
                }
                _ => {}
            }
        }
        wanted
    }
}

/// A row that only one commit writes. If a guard fails, the store looks for this row. If it exists,
/// the same commit was sent again and the store repeats the lost answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CommitKey {
    /// The run that the commit creates.
    Run(RunKey),
    /// An event that the commit appends.
    Event {
        /// The run.
        run_key: RunKey,
        /// The ordinal of the event.
        ordinal: u64,
        /// The event.
        event_id: EventId,
    },
    /// A message that the commit sends. If the commit has a guard, no other commit may use this
    /// message id. A commit that settles a task puts the claim number into it; otherwise a worker
    /// that lost the task would find the message of its successor.
    Message {
        /// The receiving run.
        run_key: RunKey,
        /// The message.
        message_id: MessageId,
    },
    /// The first record that the commit writes. A later write replaces its write id.
    Record {
        /// The record.
        key: RecordKey,
        /// The state that the commit expects.
        expect: Expect,
        /// The write.
        write_id: WriteId,
    },
    /// A task that the commit enqueues. The row disappears when the task is settled.
    Task(TaskId),
    /// The commit leaves no row of its own: it only moves or removes a task that the sender holds,
    /// or writes its dead letter. Sent again it conflicts, and the sender reads the task's row to
    /// learn the outcome.
    Nothing,
}

impl CommitKey {
    fn of(ops: &[Op]) -> Self {
        // Choose the most durable row: nobody can remove a run or an event while the sender still
        // asks. A record ranks before a message: callers choose message ids, so two commits can send
        // the same message, and its row would not tell which of them was written.
        let rank = |key: &CommitKey| match key {
            CommitKey::Run(_) => 0,
            CommitKey::Event { .. } => 1,
            CommitKey::Record { .. } => 2,
            CommitKey::Message { .. } => 3,
            CommitKey::Task(_) => 4,
            CommitKey::Nothing => 5,
        };
        ops.iter().filter_map(Op::commit_key).min_by_key(rank).unwrap_or(CommitKey::Nothing)
    }
}

/// One row-level write. A store applies it and never parses a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an op is written only as part of a commit"]
pub enum Op {
    /// Inserts a run and its labels. Its first events are in the same commit.
    CreateRun(Box<Run>),
    /// Changes the guarded run.
    SetRun(Box<RunChange>),
    /// Appends to the ledger of the guarded run, or of one that this commit creates.
    AppendEvent {
        /// The event, with its ordinal and hash.
        event: Event,
        /// Whether the store must look up the cause.
        cause: CauseCheck,
    },
    /// Inserts or replaces a step. A settled step is never replaced.
    PutStep(Box<Step>),
    /// Sends a message to any run.
    PutMessage(Box<NewMessage>),
    /// Marks a message of the guarded run as consumed. It must not be consumed already.
    ConsumeMessage {
        /// The run.
        run_key: RunKey,
        /// The message.
        seq: u64,
        /// The step that consumes it.
        by: StepKey,
        /// The time.
        at: Timestamp,
    },
    /// Inserts a task.
    Enqueue(Box<Task>),
    /// Releases the guarded task for another attempt.
    Reschedule(Box<Reschedule>),
    /// Removes a task: the guarded one, or any task of the guarded run. It is not an error if the
    /// task does not exist, unless it is the guarded one.
    Settle {
        /// The task.
        task_id: TaskId,
    },
    /// Stores a task that is given up; `Settle` removes the task itself. Replaces an earlier dead
    /// letter of the task that was requeued.
    DeadLetter(Box<DeadLetter>),
    /// Marks a dead letter as requeued. It must exist and must not be requeued already.
    Requeue {
        /// The task that was given up.
        task_id: TaskId,
        /// The time.
        at: Timestamp,
    },
    /// Adds a log line.
    PutLog(Box<LogLine>),
    /// Checks or writes a record. A commit names each record at most once.
    Record(Box<RecordOp>),
    /// Stores a large body: for the tree of the guarded run, of a run that this commit creates or
    /// sends a message to, or for a record that it writes. Does nothing if the owner has these bytes,
    /// or if the run does not exist.
    PutBody(Box<PutBody>),
    /// Runs the user's statements, after the guards and before everything else.
    UserSql(Vec<Statement>),
}

impl Op {
    fn commit_key(&self) -> Option<CommitKey> {
        match self {
            Op::CreateRun(run) => Some(CommitKey::Run(run.run_key)),
            Op::AppendEvent { event, .. } => Some(CommitKey::Event {
                run_key: event.run_key,
                ordinal: event.ordinal,
                event_id: event.event_id,
            }),
            Op::PutMessage(message) => Some(CommitKey::Message {
                run_key: message.run_key,
                message_id: message.message_id.clone(),
            }),
            Op::Enqueue(task) => Some(CommitKey::Task(task.task_id)),
            Op::Record(record) => record.write_id().map(|write_id| CommitKey::Record {
                key: record.key.clone(),
                expect: record.expect,
                write_id,
            }),
            _ => None,
        }
    }
}

/// Whether a store must look up the cause of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CauseCheck {
    /// The guard or the commit itself proves that the cause exists.
    Known,
    /// The user named the cause: it must be in the commit, or stored in the same namespace.
    LookUp,
}

/// A change of the guarded run's row. Fields that are `None` do not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunChange {
    /// The run.
    pub run_key: RunKey,
    /// The end of the ledger after this commit's events.
    pub head: Head,
    /// The last event after this commit.
    pub cursor: EventId,
    /// The status.
    pub status: Option<RunStatus>,
    /// The output.
    pub output: Option<Body>,
    /// The error.
    pub error: Option<Body>,
    /// The model's snapshot.
    pub state: Option<Body>,
    /// The time by which the run must end.
    pub deadline_at: Option<Timestamp>,
    /// When its first turn was committed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Retention does not delete the run before this time.
    pub retention_until: Option<Timestamp>,
    /// The time of this change.
    pub updated_at: Timestamp,
    /// The change of the turn.
    pub turn: TurnChange,
}

impl RunChange {
    /// A change that only moves the ledger's end and keeps the turn.
    pub fn new(run_key: RunKey, head: Head, cursor: EventId, updated_at: Timestamp) -> Self {
        Self {
            run_key,
            head,
            cursor,
            status: None,
            output: None,
            error: None,
            state: None,
            deadline_at: None,
            started_at: None,
            ended_at: None,
            retention_until: None,
            updated_at,
            turn: TurnChange::Keep,
        }
    }
}

/// The change of a turn by a commit of its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnChange {
    /// The holder keeps the turn.
    Keep,
    /// The holder releases the turn. It is ready at once if there are messages beyond `seen`,
    /// unless the run has ended.
    Release {
        /// When the turn becomes ready otherwise.
        wake: Wake,
        /// The value of the run's `accepted` counter that the holder read together with the
        /// messages.
        seen: u64,
    },
}

/// A message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// The receiving run.
    pub run_key: RunKey,
    /// The sender's id of the message. A second message with the same id is a duplicate.
    pub message_id: MessageId,
    /// The kind.
    pub kind: MessageKind,
    /// The name.
    pub name: MessageName,
    /// The body.
    pub body: Option<Body>,
    /// The cause.
    pub caused_by: Option<CausalRef>,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// Whether the commit fails if the run does not exist or has ended. Set it if the caller asked
    /// to send this message. A result for a run that has ended is dropped instead.
    pub required: bool,
}

impl NewMessage {
    /// Whether the limits on the unread messages of a run apply. They do not apply to control
    /// messages, to results and to events by key, because refusing these would stop a run instead of
    /// protecting it. A run gets at most one event by key for each of its waits.
    pub fn is_limited(&self) -> bool {
        use MessageKind::{ActivityResult, ChildResult, Control, Decision, KeyedEvent};
        let sent_by_engine =
            matches!(self.kind, Control | ActivityResult | ChildResult | Decision | KeyedEvent);
        self.required && !sent_by_engine
    }
}

/// The number and size of a run's unread messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Unread {
    /// How many there are.
    pub count: u64,
    /// The bytes of their bodies.
    pub bytes: u64,
}

impl Unread {
    /// Adds a message.
    pub fn add(&mut self, message: &NewMessage) {
        self.count += 1;
        self.bytes += message.body.as_ref().map_or(0, |body| body.len() as u64);
    }

    /// Whether the limits admit one more message.
    pub fn admits(mut self, message: &NewMessage, limits: &Limits) -> bool {
        let is_first = self.count == 0;
        self.add(message);
        let fits = self.bytes <= limits.unread_bytes_max as u64;
        self.count <= limits.unread_messages_max as u64 && (fits || is_first)
    }

    /// Whether a run that accepted this many messages since its start can be above the limits. A
    /// store need not count if it cannot.
    pub fn may_exceed(accepted: u64, limits: &Limits) -> bool {
        let bytes = accepted.saturating_add(1).saturating_mul(limits.message_bytes_max as u64);
        accepted >= limits.unread_messages_max as u64 || bytes > limits.unread_bytes_max as u64
    }
}

/// A change that releases a task for another attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reschedule {
    /// The task.
    pub task_id: TaskId,
    /// When it becomes ready.
    pub wake: Wake,
    /// How many attempts have failed.
    pub attempt: u32,
    /// The errors of all failed attempts.
    pub errors: Option<Body>,
    /// Whether no attempt was made. In that case the count of reclaims from dead or stalled workers
    /// is kept.
    pub untried: bool,
}

/// A statement of user SQL.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// One statement, with the placeholder syntax of its database.
    pub sql: Arc<str>,
    /// Its parameters.
    pub params: Vec<SqlValue>,
}

// Commits are compared in tests. A NaN parameter is not equal to itself, which no caller relies on.
impl Eq for Statement {}

/// A parameter of user SQL.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    /// NULL.
    Null,
    /// A boolean; 0 or 1 on SQLite.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Bytes),
}

/// The result of a successful commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The guarded run; the existing one if a create found it.
    pub run_key: Option<RunKey>,
    /// Whether nothing was written now, because the same commit, or a create with the same input,
    /// was written before.
    pub repeated: bool,
    /// The guarded run's `accepted` counter after the commit; 0 if the guard names no run.
    pub accepted: u64,
    /// The sender's hold on the turn after the commit, if it still has one.
    pub hold: Option<Hold>,
    /// The result for each message, in the order of the ops.
    pub messages: Vec<Delivery>,
    /// The store's clock at the time of the write.
    pub now: Timestamp,
}

/// The result of sending a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The message is in the mailbox.
    Accepted {
        /// Its sequence number.
        seq: u64,
    },
    /// The message was in the mailbox already.
    Duplicate {
        /// Its sequence number.
        seq: u64,
    },
    /// The run does not exist or has ended, and the message was not required.
    Dropped,
}

/// The reasons why a commit failed. Except for `Unknown`, nothing was written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CommitError {
    /// A guard failed.
    Conflict(Conflict),
    /// A row that the commit names does not accept the change.
    Refused(Refusal),
    /// The user's SQL failed.
    UserSql {
        /// Whether it violated a unique constraint.
        unique: bool,
        /// The message of the database.
        message: String,
    },
    /// The commit is malformed, too large, or violates a constraint of the database.
    Invalid(Arc<Error>),
    /// The store could not write the commit. The same commit may succeed later.
    Unavailable(Arc<Error>),
    /// The answer was lost. Send the same commit again.
    Unknown(Arc<Error>),
}

/// The guard that failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Conflict {
    /// The run does not exist.
    RunMissing {
        /// The run.
        run_key: RunKey,
    },
    /// The ledger has another end.
    RunHead {
        /// The run.
        run_key: RunKey,
        /// The end of the ledger.
        found: Head,
    },
    /// Another worker holds the turn, or the hold has another claim number, or nobody holds it.
    RunHold {
        /// The run.
        run_key: RunKey,
        /// The current hold.
        found: Option<Hold>,
    },
    /// The run exists.
    RunExists {
        /// The existing run.
        run_key: RunKey,
        /// Whether it was created with the same input.
        same_input: bool,
    },
    /// The task does not exist: it was settled.
    TaskMissing {
        /// The task.
        task_id: TaskId,
    },
    /// The task has another holder, or another claim number, than the guard says.
    TaskHold {
        /// The task.
        task_id: TaskId,
        /// The current hold.
        found: Option<Hold>,
    },
    /// A record is not as expected. The sender keeps its holds.
    Record {
        /// The collection.
        collection: Collection,
        /// The record.
        id: RecordId,
        /// The expectation.
        expected: Expect,
        /// The state of the record.
        found: RecordFound,
    },
}

/// The reasons why a row does not accept a commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A required message was sent to a run that does not exist.
    RunMissing {
        /// The run.
        run_key: RunKey,
    },
    /// The run has ended. The commit sends it a required message or claims its free turn.
    RunEnded {
        /// The run.
        run_key: RunKey,
        /// The status with which it ended.
        status: RunStatus,
    },
    /// The run has as many unread messages, or bytes of them, as the limits allow.
    MessagesLimit {
        /// The run.
        run_key: RunKey,
    },
    /// An event names a cause that does not exist.
    CauseMissing {
        /// The cause.
        cause: CausalRef,
    },
    /// The commit changes a step that is settled.
    StepSettled {
        /// The step.
        step_key: StepKey,
    },
    /// The commit consumes a message that does not exist or is consumed already.
    MessageConsumed {
        /// The message.
        seq: u64,
    },
    /// The commit requeues a dead letter that does not exist or is requeued already.
    DeadLetterMissing {
        /// The task that was given up.
        task_id: TaskId,
    },
}

impl CommitError {
    /// A stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Conflict(conflict) => match conflict {
                Conflict::RunMissing { .. } => ErrorCode::RunNotFound,
                Conflict::RunHead { .. } => ErrorCode::RunHeadConflict,
                Conflict::RunHold { .. } => ErrorCode::RunHoldConflict,
                Conflict::RunExists { .. } => ErrorCode::RunExists,
                Conflict::TaskMissing { .. } => ErrorCode::TaskNotFound,
                Conflict::TaskHold { .. } => ErrorCode::TaskHoldConflict,
                Conflict::Record { .. } => ErrorCode::RecordConflict,
            },
            Self::Refused(refusal) => match refusal {
                Refusal::RunMissing { .. } => ErrorCode::RunNotFound,
                Refusal::RunEnded { .. } => ErrorCode::RunTerminal,
                Refusal::MessagesLimit { .. } => ErrorCode::MessagesLimit,
                Refusal::CauseMissing { .. } => ErrorCode::CauseNotFound,
                Refusal::StepSettled { .. } => ErrorCode::StepSettled,
                Refusal::MessageConsumed { .. } => ErrorCode::MessageConsumed,
                Refusal::DeadLetterMissing { .. } => ErrorCode::DeadLetterNotFound,
            },
            Self::UserSql { unique: true, .. } => ErrorCode::UserSqlUnique,
            Self::UserSql { .. } => ErrorCode::UserSqlFailed,
            Self::Invalid(error) | Self::Unavailable(error) | Self::Unknown(error) => error.code(),
        }
    }

    /// The kind, which says what a caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::Refused(_) => ErrorKind::Refused,
            Self::UserSql { .. } => ErrorKind::UserSql,
            Self::Invalid(error) | Self::Unavailable(error) | Self::Unknown(error) => error.kind(),
        }
    }

    /// The message with its source and without its code.
    pub fn message(&self) -> String {
        match self {
            Self::Conflict(conflict) => conflict.to_string(),
            Self::Refused(refusal) => refusal.to_string(),
            Self::UserSql { unique: true, message } => {
                format!("the step's SQL violates a unique constraint: {message}")
            }
            Self::UserSql { message, .. } => format!("the step's SQL failed: {message}"),
            Self::Invalid(error) | Self::Unavailable(error) | Self::Unknown(error) => {
                match std::error::Error::source(&**error) {
                    Some(source) => format!("{}: {source}", error.message()),
                    None => error.message().to_owned(),
                }
            }
        }
    }

    /// Whether the same commit can succeed later without any change.
    pub fn is_retryable(&self) -> bool {
        match self {
            // Nothing was written to a closed store either, but it stays closed.
            Self::Unavailable(error) | Self::Unknown(error) => error.is_retryable(),
            _ => false,
        }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) | Self::Unavailable(error) | Self::Unknown(error) => error.fmt(f),
            _ => write!(f, "{} [{}]", self.message(), self.code()),
        }
    }
}

impl std::error::Error for CommitError {}
