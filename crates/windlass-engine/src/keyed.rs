//! Events by key: a sender names a key such as `parcel-17` instead of a run, and every run that waits
//! for the key gets the event once.
//!
//! One record per key holds the events that are kept and the waits that are registered. Senders and
//! waiters change it by compare-and-swap, together with the messages to the runs, so an event is
//! delivered whichever of them came first. The commit that makes a run wait enqueues a task that
//! registers the wait: a crash in between delays the registration and does not lose it. Decision 0065
//! has the reasons.

mod send;
mod state;
mod tasks;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, Collection, Commit, Error, EventKey, Expect, Limits, Message, MessageId, MessageKind,
    MessageName, Namespace, NewMessage, Op, Record, RecordFound, RecordId, RecordKey, RecordOp,
    RecordPut, RecordWrite, Route, RouteName, Run, Sha256Digest, Step, StepKey, Task, TaskId,
    Terms, Timestamp, WriteId, derive_key,
};

use crate::commit::CommitClient;
use crate::core::Core;
use crate::env::new_uuid;
use crate::tasks::{AWAIT_KEY, DELIVER_KEY, FORGET_KEY, TIDY_KEY, internal_queue};

pub(crate) use send::check_ttl;
pub use send::{SendByKey, SentByKey};
use state::{Deliveries, KeyState, receiver};

/// The collection of the records of keys.
pub(crate) const COLLECTION: &str = "windlass.events";
/// How often a change of a key's record is decided again because another writer was first.
const ROUNDS_MAX: u32 = 64;

/// The type of an event and the key that it is sent to. Events of different types have nothing to do
/// with each other, also if their keys are the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventAddress {
    /// The type.
    pub event_type: MessageName,
    /// The key.
    #[serde(rename = "event_key")]
    pub key: EventKey,
}

impl EventAddress {
    /// Checks a type and a key.
    ///
    /// # Errors
    ///
    /// [`windlass_kernel::ErrorCode::InvalidName`] if either is empty, too long, or has a character that is
    /// not allowed.
    pub fn new(
        event_type: impl AsRef<str>,
        key: impl AsRef<str>,
        limits: &Limits,
    ) -> Result<Self, Error> {
        let event_type = MessageName::with_limits(event_type, limits)?;
        Ok(Self { event_type, key: EventKey::with_limits(key, limits)? })
    }

    /// The digest of type and key in hexadecimal digits. It is the id of the key's record.
    pub fn digest(&self) -> String {
        let (event_type, key) = (self.event_type.as_str(), self.key.as_str());
        let digest = Sha256Digest::of_parts(&[event_type.as_bytes(), key.as_bytes()]);
        digest.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The digest of the key that a message was sent to; `None` if it was sent to a run.
    pub fn digest_of(message: &Message) -> Option<&str> {
        let is_keyed = message.kind == MessageKind::KeyedEvent;
        let id = message.message_id.as_str().strip_prefix("key:").filter(|_| is_keyed)?;
        id.split_once(':').map(|(digest, _)| digest)
    }

    fn record(&self, namespace: &Namespace) -> RecordKey {
        RecordKey {
            namespace: namespace.clone(),
            collection: Collection::from_stored(COLLECTION),
            id: RecordId::from_stored(self.digest()),
        }
    }
}

/// The wait of a step for an event by key. A model writes it as the input of the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyedWait {
    /// The type and the key.
    #[serde(flatten)]
    pub address: EventAddress,
    /// The task that registers the wait.
    pub task_id: TaskId,
}

impl KeyedWait {
    /// Reads the input of a step; `None` if the step does not wait for a key.
    pub fn of(step: &Step) -> Option<Self> {
        step.input.as_ref().and_then(|input| input.read().ok())
    }
}

/// The body of the tasks of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeyTask {
    #[serde(flatten)]
    address: EventAddress,
    /// The registration that the task makes or removes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waiter: Option<TaskId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    receiver: Option<String>,
    /// The end of the wait, or the time at which expired events are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<i64>,
}

impl KeyTask {
    fn of(address: &EventAddress) -> Self {
        Self { address: address.clone(), waiter: None, receiver: None, at: None }
    }
}

/// The record of a key as it was read.
struct KeyRecord {
    record: RecordKey,
    found: RecordFound,
    state: KeyState,
}

fn key_task(
    id: TaskId,
    name: &str,
    namespace: &Namespace,
    body: &KeyTask,
    at: Timestamp,
) -> Result<Task, Error> {
    let route = Route { queue: internal_queue(), name: RouteName::new(name)? };
    let mut task = Task::new(id, namespace.clone(), "internal", route, at);
    task.body = Some(Body::of(body)?);
    Ok(task)
}

/// The tasks that the imported record of a key needs: the one that removes expired events, and one that
/// sends events to waiters that have not got theirs.
pub(crate) fn tasks_of_imported(record: &Record, at: Timestamp) -> Result<Vec<Task>, Error> {
    let Some(body) = &record.body else { return Ok(Vec::new()) };
    let state: KeyState = body.read()?;
    let address = state.address();
    let task = |name: &str, body: &KeyTask| {
        let id = TaskId(derive_key(record.write_id.0, name));
        key_task(id, name, &record.key.namespace, body, at)
    };
    let mut tasks = Vec::new();
    if let Some(due) = state.tidy_at() {
        let body = KeyTask { at: Some(due.as_micros()), ..KeyTask::of(&address) };
        let mut tidy = task(TIDY_KEY, &body)?;
        (tidy.ready, tidy.due_at) = (false, Some(due));
        tasks.push(tidy);
    }
    if state.has_waiters_and_events() {
        tasks.push(task(DELIVER_KEY, &KeyTask::of(&address))?);
    }
    Ok(tasks)
}

/// Sends events to keys, and registers the waits for them.
pub(crate) struct KeyedEvents {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
}

impl KeyedEvents {
    /// The task that registers a wait of a step.
    pub(crate) fn await_task(
        &self,
        run: &Run,
        step_key: &StepKey,
        address: &EventAddress,
        until: Timestamp,
        at: Timestamp,
    ) -> Result<Task, Error> {
        let mut body = KeyTask::of(address);
        body.receiver = Some(receiver(run));
        body.at = Some(until.as_micros());
        let mut task = self.task(AWAIT_KEY, &run.namespace, &body, at)?.of_run(run);
        task.step_key = Some(step_key.clone());
        Ok(task)
    }

    /// The task that removes the registration of a wait.
    pub(crate) fn forget_task(
        &self,
        namespace: &Namespace,
        wait: &KeyedWait,
        at: Timestamp,
    ) -> Result<Task, Error> {
        let waiter = Some(wait.task_id);
        // It belongs to no run: the end of the run settles the tasks of the run.
        self.task(FORGET_KEY, namespace, &KeyTask { waiter, ..KeyTask::of(&wait.address) }, at)
    }

    /// The task that removes the registration which a task of an ended run has made.
    pub(crate) fn forget_registered(
        &self,
        task: &Task,
        at: Timestamp,
    ) -> Result<Option<Task>, Error> {
        let body = task.body.as_ref().filter(|_| task.name.as_str() == AWAIT_KEY);
        let Some(body) = body else { return Ok(None) };
        let KeyTask { address, .. } = body.read()?;
        let wait = KeyedWait { address, task_id: task.task_id };
        self.forget_task(&task.namespace, &wait, at).map(Some)
    }

    fn task(
        &self,
        name: &str,
        namespace: &Namespace,
        body: &KeyTask,
        at: Timestamp,
    ) -> Result<Task, Error> {
        key_task(self.core.clock.task_id(), name, namespace, body, at)
    }

    async fn read(
        &self,
        namespace: &Namespace,
        address: &EventAddress,
    ) -> Result<KeyRecord, Error> {
        let record = address.record(namespace);
        let row = self.core.store.records(vec![record.clone()]).await?.pop().flatten();
        let found = row.as_ref().map_or(RecordFound::Absent, |row| row.found());
        let body = row.and_then(|row| row.body);
        let state = body.map(|body| body.read()).transpose()?;
        let state = state.unwrap_or_else(|| KeyState::new(address));
        Ok(KeyRecord { record, found, state })
    }

    // The ops that write a changed state, send its deliveries and schedule what must follow.
    fn ops(
        &self,
        address: &EventAddress,
        mut key: KeyRecord,
        deliveries: Deliveries,
        tidy_not_before: Timestamp,
    ) -> Result<Vec<Op>, Error> {
        let namespace = key.record.namespace.clone();
        let now = self.core.clock.now();
        let mut ops = Vec::new();
        for delivery in deliveries.list {
            // The time, because an id can name another event when the first one has expired.
            let (id, sent_at) = (&delivery.event_id, delivery.sent_at.as_micros());
            let message_id = format!("key:{}:{id}:{sent_at}", key.record.id);
            ops.push(Op::PutMessage(Box::new(NewMessage {
                run_key: delivery.run_key,
                message_id: MessageId::new(message_id)?,
                kind: MessageKind::KeyedEvent,
                name: address.event_type.clone(),
                body: Some(delivery.body),
                caused_by: None,
                sent_at: delivery.sent_at,
                // A run that has ended must not count as a receiver: its next generation may wait.
                required: true,
            })));
        }
        if deliveries.has_more {
            let task = self.task(DELIVER_KEY, &namespace, &KeyTask::of(address), now)?;
            ops.push(Op::Enqueue(Box::new(task)));
        }
        if let Some(due) = key.state.schedule_tidy(tidy_not_before) {
            let body = KeyTask { at: Some(due.as_micros()), ..KeyTask::of(address) };
            let mut task = self.task(TIDY_KEY, &namespace, &body, now)?;
            (task.ready, task.due_at) = (false, Some(due));
            ops.push(Op::Enqueue(Box::new(task)));
        }
        ops.extend(self.write(key, now)?.map(|op| Op::Record(Box::new(op))));
        Ok(ops)
    }

    fn write(&self, key: KeyRecord, at: Timestamp) -> Result<Option<RecordOp>, Error> {
        let KeyRecord { record, found, state } = key;
        let write_id = WriteId(new_uuid(&*self.core.env, at));
        let (expect, write) = match (found, state.is_empty()) {
            (RecordFound::Absent | RecordFound::Removed(_), true) => return Ok(None),
            (RecordFound::At(revision), true) => {
                self.core.record_removed.notify_one();
                (Expect::At(revision), RecordWrite::Remove { write_id, at })
            }
            (found, false) => {
                let expect = match found {
                    RecordFound::Absent => Expect::Absent,
                    RecordFound::At(revision) | RecordFound::Removed(revision) => {
                        Expect::At(revision)
                    }
                };
                let body = Body::of(&state)?;
                let terms = Terms::default();
                let put = RecordPut { write_id, body, terms, keep: None, at, revision: None };
                (expect, RecordWrite::Put(Box::new(put)))
            }
        };
        Ok(Some(RecordOp { key: record, expect, write }))
    }

    // Calls the host's hook for the runs that a commit has sent an event to.
    async fn announce(&self, commit: &Commit) {
        if self.core.options.on_enqueued.is_none() {
            return;
        }
        for message in commit.messages() {
            match self.core.current(message.run_key).await {
                Ok(run) => self.core.run_enqueued(&run, crate::EnqueuedReason::Event),
                Err(error) => {
                    tracing::warn!(run_key = %message.run_key, %error, "failed to read a run for the hook on_enqueued");
                }
            }
        }
    }
}
