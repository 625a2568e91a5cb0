//! The commit: the one atomic write of what happened.

mod validate;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::body::Body;
use crate::error::{Error, ErrorKind};
use crate::ids::{EventId, MessageId, MessageName, RunKey, StepKey, TaskId, WorkerKey};
use crate::ledger::{CausalRef, Event, Head};
use crate::rows::{DeadLetter, Hold, LogLine, MessageKind, Run, RunStatus, Step, Task, Wake};
use crate::time::Timestamp;

/// What is written together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// A row that this commit alone writes: if an answer was lost, the row tells.
    pub key: CommitKey,
    /// What must be true of the run.
    pub run: Option<RunGuard>,
    /// What must be true of the task.
    pub task: Option<TaskGuard>,
    /// What is written. Shared, because whoever sends a commit keeps it until it is answered.
    pub ops: Arc<Vec<Op>>,
}

impl Commit {
    /// A commit whose key is derived from its ops.
    pub fn new(run: Option<RunGuard>, task: Option<TaskGuard>, ops: Vec<Op>) -> Self {
        Self { key: CommitKey::of(&ops), run, task, ops: Arc::new(ops) }
    }

    /// The ops, to change them; copied first if somebody else has them too.
    pub fn ops_mut(&mut self) -> &mut Vec<Op> {
        Arc::make_mut(&mut self.ops)
    }

    /// The run that the guard names.
    pub fn run_key(&self) -> Option<RunKey> {
        self.run.as_ref().map(RunGuard::run_key)
    }

    /// The change of the guarded run, if there is one.
    pub fn run_change(&self) -> Option<&RunChange> {
        self.ops.iter().find_map(|op| match op {
            Op::SetRun(change) => Some(&**change),
            _ => None,
        })
    }

    /// Whether it is bound to nothing: such a commit can meet its own trace only as a broken key.
    pub fn is_unguarded(&self) -> bool {
        self.run.is_none() && self.task.is_none()
    }

    /// Whether the sender of this commit, found written before, still has the turn under `hold`,
    /// which the row names beside `head`: a commit that took a free turn has it only if it did not
    /// give it back and nothing was written since.
    pub fn still_has(&self, head: Head, hold: Hold) -> bool {
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

    /// The user's statements, in order.
    pub fn user_sql(&self) -> impl Iterator<Item = &Statement> {
        self.ops.iter().flat_map(|op| match op {
            Op::UserSql(statements) => statements.as_slice(),
            _ => &[],
        })
    }

    /// The messages that it sends, in order.
    pub fn messages(&self) -> impl Iterator<Item = &NewMessage> {
        self.ops.iter().filter_map(|op| match op {
            Op::PutMessage(message) => Some(&**message),
            _ => None,
        })
    }

    /// The causes that the store has to find in the given run's namespace, because neither the
    /// run's own guard nor an earlier op of this commit vouches for them.
    pub fn causes_to_look_up(&self) -> Vec<(RunKey, CausalRef)> {
        let mut known: Vec<CausalRef> = Vec::new();
        let mut wanted = Vec::new();
        for op in self.ops.iter() {
            match op {
                Op::CreateRun(run) => known.push(CausalRef::run(run.run_key)),
                Op::AppendEvent { event, cause } => {
                    if *cause == CauseCheck::Look && !known.contains(&event.caused_by) {
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

/// A row that one commit alone writes. On the failure of a guard the store looks for it; if it
/// is there, this is the same commit again, and the answer is the one that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CommitKey {
    /// The run that it creates.
    Run(RunKey),
    /// An event that it appends.
    Event {
        /// The run.
        run_key: RunKey,
        /// The event's place.
        ordinal: u64,
        /// The event.
        event_id: EventId,
    },
    /// A message that it sends. Under a guard its id must be this commit's alone: whoever settles
    /// a task puts the claim number into it, or a zombie would find its successor's message.
    Message {
        /// The run it is sent to.
        run_key: RunKey,
        /// The message.
        message_id: MessageId,
    },
    /// A task that it enqueues. Once somebody settles that task, the trace is gone.
    Task(TaskId),
    /// Nothing stays that could not be another's too: the commit only moves or removes a task that
    /// the sender holds, or leaves its dead letter. Sent again it conflicts, and the sender learns
    /// from the task's row what became of it.
    Nothing,
}

impl CommitKey {
    fn of(ops: &[Op]) -> Self {
        // The strongest trace wins: a run and an event can never be removed by somebody else
        // while the sender is still asking.
        let rank = |key: &CommitKey| match key {
            CommitKey::Run(_) => 0,
            CommitKey::Event { .. } => 1,
            CommitKey::Message { .. } => 2,
            CommitKey::Task(_) => 3,
            CommitKey::Nothing => 4,
        };
        ops.iter().filter_map(Op::trace).min_by_key(rank).unwrap_or(CommitKey::Nothing)
    }
}

/// What must be true of a run for a commit to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunGuard {
    /// No run has this key, nor the (namespace, workflow, id, generation) of the `CreateRun` op.
    Absent {
        /// The run to be created.
        run_key: RunKey,
        /// What to answer if there is one.
        on_existing: OnExisting,
    },
    /// The sender holds the turn, and the ledger ends where the sender saw it end.
    Held {
        /// The run.
        run_key: RunKey,
        /// The end of the ledger that was decided from.
        head: Head,
        /// The hold it is made under.
        hold: Hold,
    },
    /// Nobody holds the turn, and the ledger ends where the sender saw it end: the commit takes
    /// the turn, and keeps it unless its `SetRun` releases it.
    Free {
        /// The run.
        run_key: RunKey,
        /// The end of the ledger that was decided from.
        head: Head,
        /// Who takes the turn.
        worker: WorkerKey,
    },
}

impl RunGuard {
    /// The run.
    pub fn run_key(&self) -> RunKey {
        match self {
            Self::Absent { run_key, .. }
            | Self::Held { run_key, .. }
            | Self::Free { run_key, .. } => *run_key,
        }
    }

    /// The head it expects; none if the run must not exist.
    pub fn head(&self) -> Option<Head> {
        match self {
            Self::Absent { .. } => None,
            Self::Held { head, .. } | Self::Free { head, .. } => Some(*head),
        }
    }
}

/// What to answer when the run that is to be created exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnExisting {
    /// `Committed` with the existing run if its input has the same hash, else a conflict.
    Return,
    /// A conflict.
    Refuse,
}

/// The sender holds this task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskGuard {
    /// The task.
    pub task_id: TaskId,
    /// The hold it is settled under.
    pub hold: Hold,
}

/// One row-level write. A store applies it; it never opens a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an op is written only as part of a commit"]
pub enum Op {
    /// Inserts a run as it stands, its labels too. Its first events are in the same commit.
    CreateRun(Box<Run>),
    /// Changes the guarded run.
    SetRun(Box<RunChange>),
    /// Appends to the ledger of the guarded run, or of one that this commit creates.
    AppendEvent {
        /// The event, with its place and hash.
        event: Event,
        /// Whether its cause has to be looked up.
        cause: CauseCheck,
    },
    /// Inserts or replaces a step. A settled one is never replaced.
    PutStep(Box<Step>),
    /// Sends a message to any run.
    PutMessage(Box<NewMessage>),
    /// Marks a message of the guarded run as consumed. It must not have been.
    ConsumeMessage {
        /// The run.
        run_key: RunKey,
        /// The message.
        seq: u64,
        /// Who consumes it.
        by: StepKey,
        /// When.
        at: Timestamp,
    },
    /// Inserts a task as it stands.
    Enqueue(Box<Task>),
    /// Gives the guarded task back, to be tried again.
    Reschedule(Box<Reschedule>),
    /// Removes a task: the guarded one, or any of the guarded run's. One that is gone is no error,
    /// unless it is the guarded one.
    Settle {
        /// The task.
        task_id: TaskId,
    },
    /// Keeps what a task was when it is given up; `Settle` removes the task itself. One that was
    /// requeued since it was given up last is replaced.
    DeadLetter(Box<DeadLetter>),
    /// Marks a dead letter as requeued. It must be there, and not be requeued.
    Requeue {
        /// The task that died.
        task_id: TaskId,
        /// When.
        at: Timestamp,
    },
    /// Adds a log line.
    PutLog(Box<LogLine>),
    /// Runs the user's statements, after the guards and before everything else.
    UserSql(Vec<Statement>),
}

impl Op {
    fn trace(&self) -> Option<CommitKey> {
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
            _ => None,
        }
    }
}

/// Whether a store has to look for an event's cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CauseCheck {
    /// The guard or the commit itself vouches for it.
    Known,
    /// The user named it: it must be in the commit, or durable in the same namespace.
    Look,
}

/// What becomes of the guarded run's row. Fields that are `None` stay as they are.
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
    /// What it ended with.
    pub output: Option<Body>,
    /// Why it failed.
    pub error: Option<Body>,
    /// The model's snapshot.
    pub state: Option<Body>,
    /// When it must have ended.
    pub deadline_at: Option<Timestamp>,
    /// When its first turn was committed.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Retention does not delete the run before this time.
    pub retention_until: Option<Timestamp>,
    /// When this happened.
    pub updated_at: Timestamp,
    /// What becomes of the turn.
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

/// What becomes of a turn when its holder commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TurnChange {
    /// The holder keeps it.
    Keep,
    /// The holder gives it back. It is ready at once if there are messages beyond `seen`,
    /// unless the run is paused or has ended.
    Release {
        /// When it becomes ready otherwise.
        wake: Wake,
        /// The run's `accepted` counter as the holder read it together with the messages.
        seen: u64,
    },
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// The run it is sent to.
    pub run_key: RunKey,
    /// The sender's id for it; a second one with the same id is the same message.
    pub message_id: MessageId,
    /// What it is.
    pub kind: MessageKind,
    /// Its name.
    pub name: MessageName,
    /// What it carries.
    pub body: Option<Body>,
    /// What caused it to be sent.
    pub caused_by: Option<CausalRef>,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// Whether the commit fails if the run is gone or has ended: so if sending it is what the
    /// caller asked for. A result for a run that has ended is dropped instead.
    pub required: bool,
}

/// How a task is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reschedule {
    /// The task.
    pub task_id: TaskId,
    /// When it becomes ready.
    pub wake: Wake,
    /// How often it failed by now.
    pub attempt: u32,
    /// The errors of its failed attempts, all of them.
    pub errors: Option<Body>,
    /// Whether nothing was done with it, so that how often it was taken away from workers that died
    /// or stalled still counts.
    pub untried: bool,
}

/// A statement of user SQL.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// One statement, with the placeholders of its database.
    pub sql: Arc<str>,
    /// Its parameters.
    pub params: Vec<SqlValue>,
}

// Commits are compared in tests and by the fold; a NaN parameter equals itself there.
impl Eq for Statement {}

/// A parameter of user SQL.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    /// NULL.
    Null,
    /// A truth value; 0 or 1 on SQLite.
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

/// What a commit that holds has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The run that the guard names; the existing one if a create found it.
    pub run_key: Option<RunKey>,
    /// Whether nothing was written now, because the same commit, or a create with the same
    /// input, was written before.
    pub repeated: bool,
    /// The guarded run's `accepted` counter after the commit; 0 if the guard names no run.
    pub accepted: u64,
    /// The hold under which the sender has the turn after the commit, if it has it.
    pub hold: Option<Hold>,
    /// What became of each message, in the order of the ops.
    pub messages: Vec<Delivery>,
    /// The store's clock when it was written.
    pub now: Timestamp,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It is in the mailbox, under this number.
    Accepted {
        /// Its sequence number.
        seq: u64,
    },
    /// It was there already, under this number.
    Duplicate {
        /// Its sequence number.
        seq: u64,
    },
    /// The run is gone or has ended, and the message was not required.
    Dropped,
}

/// Why a commit did not hold. Except for `Unknown`, nothing was written.
#[derive(Debug, Clone)]
pub enum CommitError {
    /// A guard failed.
    Conflict(Conflict),
    /// Something that the commit names does not take it.
    Refused(Refusal),
    /// The user's own SQL failed.
    UserSql {
        /// Whether it broke a unique key.
        unique: bool,
        /// What the database said.
        message: String,
    },
    /// The commit is not well-formed, too large, or breaks a rule that the database enforces.
    Invalid(Arc<Error>),
    /// The store could not write it; the same commit may succeed later.
    Unavailable(Arc<Error>),
    /// The answer was lost: send the same commit again.
    Unknown(Arc<Error>),
}

/// The guard that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conflict {
    /// There is no such run.
    RunMissing {
        /// The run.
        run_key: RunKey,
    },
    /// The ledger ends elsewhere.
    RunHead {
        /// The run.
        run_key: RunKey,
        /// Where it ends.
        found: Head,
    },
    /// The turn is held by somebody else, or under another claim, or by nobody.
    RunHold {
        /// The run.
        run_key: RunKey,
        /// Who holds it.
        found: Option<Hold>,
    },
    /// The run exists.
    RunExists {
        /// The existing run.
        run_key: RunKey,
        /// Whether it was created with the same input.
        same_input: bool,
    },
    /// There is no such task: it was settled.
    TaskMissing {
        /// The task.
        task_id: TaskId,
    },
    /// The task is held by somebody else, or under another claim, or by nobody.
    TaskHold {
        /// The task.
        task_id: TaskId,
        /// Who holds it.
        found: Option<Hold>,
    },
}

/// What did not take a commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// A required message was sent to a run that does not exist.
    RunMissing {
        /// The run.
        run_key: RunKey,
    },
    /// A required message was sent to a run that has ended, or its free turn was to be taken.
    RunEnded {
        /// The run.
        run_key: RunKey,
        /// How it ended.
        status: RunStatus,
    },
    /// An event names a cause that is not there.
    CauseMissing {
        /// The cause.
        cause: CausalRef,
    },
    /// A step that has its result was to be changed.
    StepSettled {
        /// The step.
        step_key: StepKey,
    },
    /// A message was to be consumed that is not there or was consumed.
    MessageConsumed {
        /// The message.
        seq: u64,
    },
    /// A dead letter was to be requeued that is not there or was requeued.
    DeadLetterMissing {
        /// The task that died.
        task_id: TaskId,
    },
}

impl CommitError {
    /// A stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Conflict(conflict) => match conflict {
                Conflict::RunMissing { .. } => "RUN_NOT_FOUND",
                Conflict::RunHead { .. } => "RUN_HEAD_CONFLICT",
                Conflict::RunHold { .. } => "RUN_HOLD_CONFLICT",
                Conflict::RunExists { .. } => "RUN_EXISTS",
                Conflict::TaskMissing { .. } => "TASK_NOT_FOUND",
                Conflict::TaskHold { .. } => "TASK_HOLD_CONFLICT",
            },
            Self::Refused(refusal) => match refusal {
                Refusal::RunMissing { .. } => "RUN_NOT_FOUND",
                Refusal::RunEnded { .. } => "RUN_TERMINAL",
                Refusal::CauseMissing { .. } => "CAUSE_NOT_FOUND",
                Refusal::StepSettled { .. } => "STEP_SETTLED",
                Refusal::MessageConsumed { .. } => "MESSAGE_CONSUMED",
                Refusal::DeadLetterMissing { .. } => "DEAD_LETTER_NOT_FOUND",
            },
            Self::UserSql { unique: true, .. } => "USER_SQL_UNIQUE",
            Self::UserSql { .. } => "USER_SQL_FAILED",
            Self::Invalid(error) | Self::Unavailable(error) | Self::Unknown(error) => error.code(),
        }
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::Refused(_) => ErrorKind::Refused,
            Self::UserSql { .. } => ErrorKind::UserSql,
            Self::Invalid(error) | Self::Unavailable(error) | Self::Unknown(error) => error.kind(),
        }
    }

    /// What it says, with its source and without its code.
    pub fn message(&self) -> String {
        match self {
            Self::Conflict(conflict) => conflict.to_string(),
            Self::Refused(refusal) => refusal.to_string(),
            Self::UserSql { unique: true, message } => {
                format!("the step's own SQL breaks a unique key: {message}")
            }
            Self::UserSql { message, .. } => format!("the step's own SQL failed: {message}"),
            Self::Invalid(error) | Self::Unavailable(error) | Self::Unknown(error) => {
                match std::error::Error::source(&**error) {
                    Some(source) => format!("{}: {source}", error.message()),
                    None => error.message().to_owned(),
                }
            }
        }
    }

    /// Whether the same commit can succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            // A store that was closed is closed for good, although nothing was written.
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

fn shown(hold: &Option<Hold>) -> String {
    match hold {
        Some(hold) => format!("worker {} under claim {}", hold.worker, hold.claim_no),
        None => "nobody".to_owned(),
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunMissing { run_key } => write!(f, "there is no run {run_key}"),
            Self::RunHead { run_key, found } => {
                let next = found.next_ordinal;
                write!(f, "the ledger of run {run_key} has moved on: its next ordinal is {next}")
            }
            Self::RunHold { run_key, found } => {
                write!(f, "the turn of run {run_key} is held by {}", shown(found))
            }
            Self::RunExists { run_key, same_input: true } => {
                write!(f, "the run exists, with the same input, as {run_key}")
            }
            Self::RunExists { run_key, .. } => {
                write!(f, "the run exists, with another input, as {run_key}")
            }
            Self::TaskMissing { task_id } => {
                write!(f, "there is no task {task_id}: it was settled or never enqueued")
            }
            Self::TaskHold { task_id, found } => {
                write!(f, "task {task_id} is held by {}", shown(found))
            }
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RunMissing { run_key } => {
                write!(f, "there is no run {run_key} to take the message")
            }
            Self::RunEnded { run_key, status } => {
                write!(f, "run {run_key} is {status} and takes nothing more")
            }
            Self::CauseMissing { cause } => {
                write!(f, "the cause {} is not in the run's namespace", cause.canonical())
            }
            Self::StepSettled { step_key } => {
                write!(f, "step {step_key:?} has its result already")
            }
            Self::MessageConsumed { seq } => {
                write!(f, "message {seq} is not there or was consumed already")
            }
            Self::DeadLetterMissing { task_id } => {
                write!(f, "there is no dead letter {task_id}, or it was requeued already")
            }
        }
    }
}
