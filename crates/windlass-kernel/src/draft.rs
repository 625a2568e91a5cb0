//! Builds a commit: events, seals and rows that belong together are written together.
//!
//! Models and tests build commits only through drafts. A draft guarantees that each settled row has
//! the event that seals it, and that a run's row has the head of its ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::json;

use crate::bodies::{BodyOwner, PutBody};
use crate::body::Body;
use crate::commit::{
    Commit, NewMessage, OnExisting, Op, RunChange, RunGuard, Statement, TaskGuard, TurnChange,
};
use crate::digest::Sha256Digest;
use crate::error::{Error, ErrorCode, ErrorKind};
use crate::ids::{
    EventId, ModelName, Namespace, QueueName, RunId, RunKey, StepKey, TaskId, WorkerKey,
    WorkflowName,
};
use crate::ledger::run_events::{
    HOOK_ENQUEUED, RECORD_REMOVED, RECORD_WRITTEN, WORKFLOW_ENQUEUED, WORKFLOW_SAVED,
};
use crate::ledger::{CONSUMED_MAX, CausalRef, Head, Ledger, NewEvent, Seal, Stamp};
use crate::limits::{Limits, check_max};
use crate::on_end::{EFFECT, EndTask};
use crate::record::{RecordOp, RecordWrite};
use crate::rows::{Hold, LogLine, Message, Run, RunStatus, Step, Task, Turn, Wake};
use crate::time::Timestamp;

/// The data of a run to create.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Identifies this generation.
    pub run_key: RunKey,
    /// The namespace.
    pub namespace: Namespace,
    /// The workflow.
    pub workflow: WorkflowName,
    /// The model that runs it.
    pub model: ModelName,
    /// The user's id of the run.
    pub id: RunId,
    /// The generation.
    pub generation: u32,
    /// The input.
    pub input: Body,
    /// The root and the parent, if it is a child.
    pub parent: Option<(RunKey, RunKey)>,
    /// The fork branch of the parent that the run executes.
    pub fork: Option<Arc<str>>,
    /// Labels to find the run by.
    pub labels: BTreeMap<String, String>,
    /// The W3C trace context of the caller.
    pub trace: Option<Arc<str>>,
    /// Headers besides the input: a JSON object of strings.
    pub headers: Option<Arc<str>>,
    /// The task that the commit which ends the run enqueues; see [`crate::OnEnd`].
    pub on_end: Option<Arc<str>>,
    /// The time by which it must end.
    pub deadline_at: Option<Timestamp>,
    /// Its turn: ready, due later, or held by its creator.
    pub turn: Turn,
    /// The cause; `None` if nothing but the run itself caused it.
    pub caused_by: Option<CausalRef>,
}

impl NewRun {
    /// The row before its first event.
    fn row(self, at: Timestamp) -> Run {
        let (root, parent) = match self.parent {
            Some((root, parent)) => (root, Some(parent)),
            None => (self.run_key, None),
        };
        Run {
            run_key: self.run_key,
            namespace: self.namespace,
            workflow: self.workflow,
            model: self.model,
            id: self.id,
            generation: self.generation,
            status: RunStatus::Active,
            input_hash: self.input.digest(),
            input: self.input,
            output: None,
            error: None,
            state: None,
            head: Head { next_ordinal: 0, hash: Sha256Digest::from_bytes([0; 32]) },
            cursor: EventId(uuid::Uuid::nil()),
            root,
            parent,
            fork: self.fork,
            labels: self.labels,
            trace: self.trace,
            headers: self.headers,
            on_end: self.on_end,
            deadline_at: self.deadline_at,
            created_at: at,
            started_at: None,
            updated_at: at,
            ended_at: None,
            retention_until: None,
            turn: self.turn,
            accepted: 0,
            seen: 0,
        }
    }
}

/// A builder of a commit.
#[derive(Debug)]
pub struct Draft {
    guard: RunGuard,
    task: Option<TaskGuard>,
    subject: Subject,
    ledger: Ledger,
    ops: Vec<Op>,
    on_end: Option<Box<EndTask>>,
    // For the event that seals a changed state if the commit has no other.
    state_stamp: Option<Stamp>,
}

#[derive(Debug)]
enum Subject {
    New(Box<Run>),
    Existing(Box<RunChange>),
}

impl Draft {
    /// A draft that creates a run, with its `workflow.enqueued` event.
    pub fn create(new: NewRun, on_existing: OnExisting, stamp: Stamp) -> Result<Self, Error> {
        let guard = RunGuard::Absent { run_key: new.run_key, on_existing };
        let (run, ledger, event) = enqueued(new, stamp)?;
        let on_end = EndTask::of(&run);
        let ops = new_ops(Some(event));
        let subject = Subject::New(run);
        Ok(Self { guard, task: None, subject, ledger, ops, on_end, state_stamp: None })
    }

    /// A draft of a worker that holds the turn.
    pub fn held(run: &Run, hold: Hold, at: Timestamp) -> Self {
        let guard = RunGuard::Held { run_key: run.run_key, head: run.head, hold };
        Self::advancing(run, guard, at)
    }

    /// A draft that claims a turn which nobody holds.
    pub fn free(run: &Run, worker: WorkerKey, at: Timestamp) -> Self {
        let guard = RunGuard::Free { run_key: run.run_key, head: run.head, worker };
        Self::advancing(run, guard, at)
    }

    fn advancing(run: &Run, guard: RunGuard, at: Timestamp) -> Self {
        let mut change = RunChange::new(run.run_key, run.head, run.cursor, at);
        // A run counts as started from its first committed turn.
        change.started_at = run.started_at.is_none().then_some(at);
        let subject = Subject::Existing(Box::new(change));
        let ledger = Ledger::of(run);
        let on_end = EndTask::of(run);
        let ops = new_ops(None);
        Self { guard, task: None, subject, ledger, ops, on_end, state_stamp: None }
    }

    /// Leaves the run unstarted if it has not started: this commit runs none of its code.
    pub fn keep_unstarted(&mut self) -> &mut Self {
        if let Subject::Existing(change) = &mut self.subject {
            change.started_at = None;
        }
        self
    }

    /// Checks events against these limits instead of the defaults.
    pub fn set_limits(&mut self, limits: &Limits) -> &mut Self {
        self.ledger.set_limits(limits);
        self
    }

    /// Also requires that the sender holds this task.
    pub fn guard_task(&mut self, guard: TaskGuard) -> &mut Self {
        self.task = Some(guard);
        self
    }

    /// The run that this draft creates; none if it advances one that exists.
    pub fn created(&self) -> Option<&Run> {
        match &self.subject {
            Subject::New(run) => Some(run),
            Subject::Existing(_) => None,
        }
    }

    /// The head after the events of this draft.
    pub fn head(&self) -> Head {
        self.ledger.head()
    }

    /// The cause of the next automatic event.
    pub fn cursor(&self) -> CausalRef {
        self.ledger.cursor()
    }

    /// Appends a first-party event.
    pub fn event<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        self.sealed(event, payload, &[], stamp)
    }

    /// Appends a user's event.
    pub fn record_event<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<EventId, Error> {
        let op = self.ledger.record_event(event_type, version, payload, stamp, limits)?;
        self.ops.push(op);
        self.touch(stamp.at);
        Ok(stamp.event_id)
    }

    /// Appends a user's event with a cause that the user names.
    pub fn record_event_caused_by<T: Serialize>(
        &mut self,
        event_type: &str,
        version: u16,
        payload: &T,
        caused_by: CausalRef,
        stamp: Stamp,
        limits: &Limits,
    ) -> Result<EventId, Error> {
        let ledger = &mut self.ledger;
        let op = ledger
            .record_event_caused_by(event_type, version, payload, caused_by, stamp, limits)?;
        self.ops.push(op);
        self.touch(stamp.at);
        Ok(stamp.event_id)
    }

    /// Writes a step and its event. The event seals the step.
    pub fn step<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        step: Step,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let seal = Seal::step(&step);
        let id = self.sealed(event, payload, &[seal], stamp)?;
        self.ops.push(Op::PutStep(Box::new(step)));
        Ok(id)
    }

    /// Writes several steps with one event that seals all of them.
    pub fn steps<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        steps: Vec<Step>,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let seals: Vec<Seal> = steps.iter().map(Seal::step).collect();
        let id = self.sealed(event, payload, &seals, stamp)?;
        self.ops.extend(steps.into_iter().map(|step| Op::PutStep(Box::new(step))));
        Ok(id)
    }

    /// Writes a step that is not settled, without an event.
    pub fn open_step(&mut self, step: Step) -> &mut Self {
        debug_assert!(!step.status.is_settled(), "a settled step needs the event that seals it");
        self.ops.push(Op::PutStep(Box::new(step)));
        self
    }

    /// Consumes a message and appends the event for it. The event seals the message's body.
    pub fn consume<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        message: &Message,
        by: StepKey,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let seal = Seal::message(message.seq, message.body.as_ref());
        let id = self.sealed(event, payload, &[seal], stamp)?;
        let (run_key, seq) = (message.run_key, message.seq);
        self.ops.push(Op::ConsumeMessage { run_key, seq, by, at: stamp.at });
        Ok(id)
    }

    /// Like [`Draft::consume`], for a message that settles a step. One event seals both.
    pub fn consume_into_step<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        message: &Message,
        step: Step,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let seals = [Seal::message(message.seq, message.body.as_ref()), Seal::step(&step)];
        let id = self.sealed(event, payload, &seals, stamp)?;
        let (run_key, seq, by) = (message.run_key, message.seq, step.step_key.clone());
        self.ops.push(Op::ConsumeMessage { run_key, seq, by, at: stamp.at });
        self.ops.push(Op::PutStep(Box::new(step)));
        Ok(id)
    }

    /// Consumes several messages, at most [`CONSUMED_MAX`], with one event that seals all of them.
    pub fn consume_all<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        messages: &[Message],
        by: StepKey,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        self.consume_sealed(event, payload, messages, by, None, stamp)
    }

    /// Like [`Draft::consume_all`], for messages that settle a step. One event seals all of them.
    pub fn consume_all_into_step<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        messages: &[Message],
        step: Step,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let by = step.step_key.clone();
        self.consume_sealed(event, payload, messages, by, Some(step), stamp)
    }

    fn consume_sealed<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        messages: &[Message],
        by: StepKey,
        step: Option<Step>,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        check_max("an event", "consumed messages", messages.len(), CONSUMED_MAX)?;
        let mut seals = vec![Seal::messages(messages.iter())];
        seals.extend(step.as_ref().map(Seal::step));
        let id = self.sealed(event, payload, &seals, stamp)?;
        for message in messages {
            let (run_key, seq, by) = (message.run_key, message.seq, by.clone());
            self.ops.push(Op::ConsumeMessage { run_key, seq, by, at: stamp.at });
        }
        self.ops.extend(step.map(|step| Op::PutStep(Box::new(step))));
        Ok(id)
    }

    /// Creates another run in the same commit: a child, or the next generation.
    pub fn also_create(&mut self, new: NewRun, stamp: Stamp) -> Result<RunKey, Error> {
        self.also_create_with_state(new, None, stamp)
    }

    /// Like [`Draft::also_create`], with a snapshot of the model.
    pub fn also_create_with_state(
        &mut self,
        new: NewRun,
        state: Option<Body>,
        stamp: Stamp,
    ) -> Result<RunKey, Error> {
        let (mut run, mut ledger, event) = enqueued(new, stamp)?;
        let mut event = [event];
        if let Some(state) = state {
            ledger.seal_last(&mut event, Seal::state(&state))?;
            run.state = Some(state);
        }
        let [event] = event;
        let run_key = run.run_key;
        end_row(&mut run, &ledger);
        self.ops.push(Op::CreateRun(run));
        self.ops.push(event);
        Ok(run_key)
    }

    /// Sends a message.
    pub fn send(&mut self, message: NewMessage) -> &mut Self {
        self.ops.push(Op::PutMessage(Box::new(message)));
        self
    }

    /// Enqueues a task.
    pub fn enqueue(&mut self, task: Task) -> &mut Self {
        self.ops.push(Op::Enqueue(Box::new(task)));
        self
    }

    /// The step that this draft writes, if it writes that step.
    pub fn written_step(&self, key: &str) -> Option<&Step> {
        self.ops.iter().rev().find_map(|op| match op {
            Op::PutStep(step) if step.step_key.as_str() == key => Some(&**step),
            _ => None,
        })
    }

    /// Removes tasks that this draft enqueues. Returns whether there were any.
    pub fn withdraw(&mut self, unwanted: impl Fn(&Task) -> bool) -> bool {
        let before = self.ops.len();
        self.ops.retain(|op| !matches!(op, Op::Enqueue(task) if unwanted(task)));
        self.ops.len() < before
    }

    /// Removes a task of the run. If this draft enqueues the task, it drops that op instead: a
    /// commit that does both is refused.
    pub fn settle(&mut self, task_id: TaskId) -> &mut Self {
        let settle = Op::Settle { task_id };
        if !self.withdraw(|task| task.task_id == task_id) && !self.ops.contains(&settle) {
            self.ops.push(settle);
        }
        self
    }

    /// Adds a log line.
    pub fn log(&mut self, line: LogLine) -> &mut Self {
        self.ops.push(Op::PutLog(Box::new(line)));
        self
    }

    /// Runs the user's SQL statements in this commit.
    pub fn user_sql(&mut self, statements: Vec<Statement>) -> &mut Self {
        self.ops.push(Op::UserSql(statements));
        self
    }

    /// Checks or writes a record in this commit. A write has an event, which seals the record and
    /// is the cause of a kept version.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidRevision`] if the op writes a record at any revision: its event could not
    /// say which revision it makes.
    pub fn record(&mut self, mut op: RecordOp, stamp: Stamp) -> Result<&mut Self, Error> {
        let event = match &mut op.write {
            RecordWrite::Check => {
                self.ops.push(Op::Record(Box::new(op)));
                return Ok(self);
            }
            RecordWrite::Put(put) => {
                let cause = CausalRef::EventId { event_id: stamp.event_id };
                if let Some(keep) = &mut put.keep {
                    keep.caused_by = Some(cause);
                }
                RECORD_WRITTEN
            }
            RecordWrite::Remove { .. } => RECORD_REMOVED,
        };
        let revision = op.next_revision().ok_or_else(|| {
            let message =
                format!("a run writes record {} only at a revision that it names", op.key);
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidRevision, message)
        })?;
        self.sealed(event, &json!({}), &[Seal::record(&op, revision)], stamp)?;
        self.ops.push(Op::Record(Box::new(op)));
        Ok(self)
    }

    /// Writes a record and the open step that belongs to it. One event seals both.
    ///
    /// # Errors
    ///
    /// As [`Draft::record`].
    pub fn step_with_record<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        step: Step,
        op: RecordOp,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let revision = op.next_revision().ok_or_else(|| {
            let message =
                format!("a run writes record {} only at a revision that it names", op.key);
            Error::new(ErrorKind::Invalid, ErrorCode::InvalidRevision, message)
        })?;
        let seals = [Seal::step(&step), Seal::record(&op, revision)];
        let id = self.sealed(event, payload, &seals, stamp)?;
        self.ops.push(Op::PutStep(Box::new(step)));
        self.ops.push(Op::Record(Box::new(op)));
        Ok(id)
    }

    /// Stores bytes as a large body of the run's tree, unless the tree has them, and returns their
    /// digest. A model that names it in the run's state reads the bytes by it
    /// ([`Store::bodies`](crate::Store::bodies)).
    pub fn put_body(&mut self, bytes: Bytes) -> Sha256Digest {
        let put = PutBody::new(BodyOwner::Run(self.guard.run_key()), bytes);
        let digest = put.digest();
        self.ops.push(Op::PutBody(Box::new(put)));
        digest
    }

    /// Copies a large body from the tree of another run of the same namespace, unless the tree of this
    /// run has it. The store copies the bytes itself.
    pub fn copy_body(&mut self, from: RunKey, digest: Sha256Digest) -> &mut Self {
        let copy = PutBody::copy(from, self.guard.run_key(), digest);
        self.ops.push(Op::PutBody(Box::new(copy)));
        self
    }

    /// Adds any other op.
    pub fn op(&mut self, op: Op) -> &mut Self {
        if let Op::Settle { task_id } = op {
            return self.settle(task_id);
        }
        self.ops.push(op);
        self
    }

    /// Sets the model's snapshot. The last event of the engine in this commit seals it; if there is
    /// none, [`Draft::finish`] appends `workflow.saved` with this stamp.
    pub fn state(&mut self, state: Body, stamp: Stamp) -> &mut Self {
        self.state_stamp = Some(stamp);
        match &mut self.subject {
            Subject::New(run) => run.state = Some(state),
            Subject::Existing(change) => change.state = Some(state),
        }
        self
    }

    /// Sets a status that does not end the run.
    pub fn status(&mut self, status: RunStatus) -> &mut Self {
        debug_assert!(!status.is_ended(), "a run ends with the event that seals its end");
        self.set_status(status);
        self
    }

    /// Releases the turn.
    pub fn release(&mut self, wake: Wake, seen: u64) -> &mut Self {
        if let Subject::Existing(change) = &mut self.subject {
            change.turn = TurnChange::Release { wake, seen };
        }
        self
    }

    /// Does not enqueue the run's end task: the generation that this draft creates will do so.
    pub fn skip_on_end(&mut self) -> &mut Self {
        self.on_end = None;
        self
    }

    /// Ends the run and appends the event for it, which seals status, output and error. Enqueues
    /// the run's end task. Drops the tasks that this draft enqueues for steps of the run, because
    /// nobody would read their results.
    pub fn end<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        end: End,
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let (status, output, error) = match end {
            End::Complete(output) => (RunStatus::Complete, Some(output), None),
            End::Errored(error) => (RunStatus::Errored, None, Some(error)),
            End::Terminated(error) => (RunStatus::Terminated, None, error),
        };
        self.withdraw(|task| task.step_key.is_some() && &*task.kind != EFFECT);
        // The end must be the last event, because it causes the first event of the next generation.
        if let Some(ending) = self.on_end.take() {
            let (task, event_id) = ending.task(stamp)?;
            let payload = json!({ "task": task.task_id, "name": task.name });
            self.sealed(HOOK_ENQUEUED, &payload, &[], Stamp { event_id, ..stamp })?;
            self.ops.push(Op::Enqueue(Box::new(task)));
        }
        let seal = Seal::run_end(status, output.as_ref(), error.as_ref());
        let id = self.sealed(event, payload, &[seal], stamp)?;
        self.set_status(status);
        match &mut self.subject {
            Subject::New(run) => {
                (run.output, run.error, run.ended_at) = (output, error, Some(stamp.at));
            }
            Subject::Existing(change) => {
                (change.output, change.error) = (output, error);
                change.ended_at = Some(stamp.at);
            }
        }
        Ok(id)
    }

    /// Builds the commit.
    pub fn finish(mut self) -> Commit {
        if let Some(stamp) = self.state_stamp.take() {
            self.seal_state(stamp);
        }
        let own = match self.subject {
            Subject::New(mut run) => {
                end_row(&mut run, &self.ledger);
                Op::CreateRun(run)
            }
            Subject::Existing(mut change) => {
                change.head = self.ledger.head();
                if let CausalRef::EventId { event_id } = self.ledger.cursor() {
                    change.cursor = event_id;
                }
                Op::SetRun(change)
            }
        };
        self.ops.insert(0, own);
        Commit::new(Some(self.guard), self.task, self.ops)
    }

    // The state may change until the commit is built, so the seal is added last.
    fn seal_state(&mut self, stamp: Stamp) {
        let state = match &self.subject {
            Subject::New(run) => run.state.as_ref(),
            Subject::Existing(change) => change.state.as_ref(),
        };
        let Some(seal) = state.map(Seal::state) else { return };
        // An event that the engine wrote is a canonical object, and parses.
        if !self.ledger.seal_last(&mut self.ops, seal.clone()).unwrap_or(false) {
            let saved = self.sealed(WORKFLOW_SAVED, &json!({}), &[seal], stamp);
            debug_assert!(saved.is_ok(), "the payload has only a seal: {saved:?}");
        }
    }

    fn sealed<T: Serialize>(
        &mut self,
        event: impl Into<NewEvent>,
        payload: &T,
        seals: &[Seal],
        stamp: Stamp,
    ) -> Result<EventId, Error> {
        let op = self.ledger.append(event, payload, seals, stamp)?;
        self.ops.push(op);
        self.touch(stamp.at);
        Ok(stamp.event_id)
    }

    // A row is never older than its last event, so a reader that stamps after the row also stamps
    // after the event.
    fn touch(&mut self, at: Timestamp) {
        let updated_at = match &mut self.subject {
            Subject::New(run) => &mut run.updated_at,
            Subject::Existing(change) => &mut change.updated_at,
        };
        *updated_at = (*updated_at).max(at);
    }

    fn set_status(&mut self, status: RunStatus) {
        match &mut self.subject {
            Subject::New(run) => run.status = status,
            Subject::Existing(change) => change.status = Some(status),
        }
    }
}

/// The ways in which a run ends.
#[derive(Clone, Debug)]
pub enum End {
    /// With an output.
    Complete(Body),
    /// With an error.
    Errored(Body),
    /// By an operator or a parent, with an optional reason.
    Terminated(Option<Body>),
}

impl RunChange {
    /// Applies the change to a row as a store does, except for the turn, which depends on the
    /// store's clock. A holder that sends several commits updates its copy of the row with this.
    pub fn apply_to(&self, run: &mut Run) {
        fn set<T: Clone>(field: &mut Option<T>, value: &Option<T>) {
            if value.is_some() {
                field.clone_from(value);
            }
        }
        run.head = self.head;
        run.cursor = self.cursor;
        run.status = self.status.unwrap_or(run.status);
        set(&mut run.output, &self.output);
        set(&mut run.error, &self.error);
        set(&mut run.state, &self.state);
        set(&mut run.deadline_at, &self.deadline_at);
        set(&mut run.started_at, &self.started_at);
        set(&mut run.ended_at, &self.ended_at);
        set(&mut run.retention_until, &self.retention_until);
        run.updated_at = self.updated_at;
        if let TurnChange::Release { seen, .. } = self.turn {
            run.seen = seen;
        }
    }
}

// Most commits need four ops: the run, a step, its event and perhaps the end.
fn new_ops(first: Option<Op>) -> Vec<Op> {
    let mut ops = Vec::with_capacity(4);
    ops.extend(first);
    ops
}

fn enqueued(new: NewRun, stamp: Stamp) -> Result<(Box<Run>, Ledger, Op), Error> {
    let caused_by = new.caused_by.unwrap_or(CausalRef::run(new.run_key));
    let run = Box::new(new.row(stamp.at));
    let mut ledger = Ledger::starting(&run, caused_by);
    let event = ledger.append(WORKFLOW_ENQUEUED, &EnqueuedPayload::of(&run), &[], stamp)?;
    Ok((run, ledger, event))
}

// For people to read; the genesis hash already covers the input. It also seals the headers, the task of the
// end, the labels, and a queue that is not the default one: a run with a damaged queue would never be claimed.
// The members are sorted by name, as canonical JSON requires.
#[derive(Serialize)]
struct EnqueuedPayload<'a> {
    generation: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Sha256Digest>,
    id: &'a RunId,
    input: InputPayload,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<Sha256Digest>,
    model: &'a ModelName,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_end: Option<Sha256Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a QueueName>,
    workflow: &'a WorkflowName,
}

#[derive(Serialize)]
struct InputPayload {
    bytes: usize,
    digest: Sha256Digest,
    encoding: &'static str,
}

impl<'a> EnqueuedPayload<'a> {
    fn of(run: &'a Run) -> Self {
        Self {
            generation: run.generation,
            headers: run.headers.as_deref().map(text_digest),
            id: &run.id,
            input: InputPayload {
                bytes: run.input.len(),
                digest: run.input_hash,
                encoding: run.input.encoding.as_str(),
            },
            labels: (!run.labels.is_empty()).then(|| labels_digest(&run.labels)),
            model: &run.model,
            on_end: run.on_end.as_deref().map(text_digest),
            queue: Some(&run.turn.queue).filter(|queue| **queue != QueueName::default_queue()),
            workflow: &run.workflow,
        }
    }
}

/// The digest of a run's headers, or of the task of its end, in its first event.
pub(crate) fn text_digest(text: &str) -> Sha256Digest {
    Sha256Digest::of(text.as_bytes())
}

/// The digest of a run's labels in its first event.
pub(crate) fn labels_digest(labels: &BTreeMap<String, String>) -> Sha256Digest {
    // The length of each text separates it from the next one.
    let mut bytes = Vec::new();
    for text in labels.iter().flat_map(|(key, value)| [key, value]) {
        bytes.extend((text.len() as u64).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    Sha256Digest::of(&bytes)
}

fn end_row(run: &mut Run, ledger: &Ledger) {
    run.head = ledger.head();
    if let CausalRef::EventId { event_id } = ledger.cursor() {
        run.cursor = event_id;
    }
}
