//! Receipts of effects: the commit that settles an effect writes a record that says what became of it.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_kernel::{
    Body, Collection, Commit, CommitError, Committed, Conflict, DeadLetter, EFFECT, Error, Expect,
    Hold, Namespace, Op, Query, Record, RecordFound, RecordId, RecordKey, RecordOp, RecordPut,
    RecordWrite, Reschedule, Route, RouteName, RunKey, Task, TaskGuard, TaskId, Terms, Timestamp,
    Wake, WriteId, derive_key,
};

use crate::commit::CommitClient;
use crate::core::Core;
use crate::env::new_uuid;
use crate::record_change::conflict_delay;
use crate::settle::Finished;
use crate::tasks::{FORGET_RECEIPT, TaskBody, internal_queue};

/// The collection of receipts. The id of a record is the id of the task.
pub(crate) const COLLECTION: &str = "windlass.receipts";
/// The term that finds the receipts of a run.
const RUN: &str = "run";
/// How often a write is decided again because another writer was first.
const ROUNDS_MAX: u32 = 64;

/// The outcome of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReceiptOutcome {
    /// A handler has delivered it.
    Delivered,
    /// It was given up; there is a dead letter.
    Dead,
    /// It was given up and is tried again.
    Requeued,
}

/// The receipt of an effect that asked for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The task of the effect.
    pub task_id: TaskId,
    /// The effect type.
    pub name: String,
    /// The run that enqueued it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_key: Option<RunKey>,
    /// The outcome.
    pub outcome: ReceiptOutcome,
    /// How many attempts were made, those before a requeue included.
    pub attempts: u32,
    /// How often it was requeued.
    pub requeues: u32,
    /// When it was enqueued.
    #[serde(with = "micros")]
    pub enqueued_at: Timestamp,
    /// When the outcome was written.
    #[serde(with = "micros")]
    pub settled_at: Timestamp,
    /// The error of the last attempt of a dead effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ReceiptError>,
}

/// The error of the last attempt at an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptError {
    /// Its name.
    pub name: String,
    /// Its message.
    pub message: String,
}

mod micros {
    use serde::{Deserialize, Deserializer, Serializer};
    use windlass_kernel::Timestamp;

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_i64(at.as_micros())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        i64::deserialize(from).map(Timestamp::from_micros)
    }
}

/// The body of the task that deletes a receipt.
#[derive(Serialize, Deserialize)]
struct ForgetReceipt {
    task_id: TaskId,
}

/// Writes, reads and deletes receipts.
pub(crate) struct Receipts {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
}

impl Receipts {
    /// Whether a task asks for a receipt.
    pub(crate) fn is_asked(task: &Task) -> bool {
        &*task.kind == EFFECT && asks(task.body.as_ref())
    }

    /// Sends the commit that settles an effect, with its receipt.
    pub(crate) async fn settle(
        &self,
        task: &Task,
        finished: &Finished,
    ) -> Result<Committed, CommitError> {
        let invalid = |error: Error| CommitError::Invalid(Arc::new(error));
        let mut round = 1;
        loop {
            let commit = finished.commit(task).map_err(invalid)?;
            let (before, found) = match self.read(&task.namespace, task.task_id).await {
                Ok(read) => read,
                Err(error) => return Err(CommitError::Unavailable(Arc::new(error))),
            };
            let now = self.core.clock.now();
            let error = finished.result.as_ref().err();
            let receipt = Receipt {
                task_id: task.task_id,
                name: task.name.to_string(),
                run_key: task.run_key,
                outcome: match error {
                    None => ReceiptOutcome::Delivered,
                    Some(_) => ReceiptOutcome::Dead,
                },
                attempts: before.as_ref().map_or(0, |before| before.attempts) + finished.attempt,
                requeues: before.as_ref().map_or(0, |before| before.requeues),
                enqueued_at: before.map_or(task.created_at, |before| before.enqueued_at),
                settled_at: now,
                error: error.map(|error| ReceiptError {
                    name: error.name.to_string(),
                    message: error.message.chars().take(2_000).collect(),
                }),
            };
            let mut ops = Vec::clone(&commit.ops);
            ops.extend(self.ops(&task.namespace, &receipt, found, now).map_err(invalid)?);
            let commit = Commit::new(None, commit.task, ops);
            match Arc::clone(&self.commits).commit(commit).await {
                Err(CommitError::Conflict(Conflict::Record { .. })) if round < ROUNDS_MAX => {
                    self.core.env.sleep(conflict_delay(self.core.env.random(), round)).await;
                    round += 1;
                }
                result => return result,
            }
        }
    }

    /// The ops that mark the receipt of a dead effect as requeued, for the commit that requeues it.
    pub(crate) async fn requeue(
        &self,
        letter: &DeadLetter,
        at: Timestamp,
    ) -> Result<Vec<Op>, Error> {
        if !asks(letter.body.as_ref()) {
            return Ok(Vec::new());
        }
        let (before, found) = self.read(&letter.namespace, letter.task_id).await?;
        let Some(before) = before else { return Ok(Vec::new()) };
        let (outcome, requeues) = (ReceiptOutcome::Requeued, before.requeues + 1);
        let receipt = Receipt { outcome, requeues, settled_at: at, ..before };
        self.ops(&letter.namespace, &receipt, found, at)
    }

    /// The receipt of an effect.
    pub(crate) async fn get(
        &self,
        namespace: &Namespace,
        task_id: TaskId,
    ) -> Result<Option<Receipt>, Error> {
        Ok(self.read(namespace, task_id).await?.0)
    }

    /// A page of the receipts of a run's effects.
    pub(crate) async fn of_run(
        &self,
        namespace: &Namespace,
        run_key: RunKey,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<Receipt>, Error> {
        let query = Query::Records {
            namespace: namespace.clone(),
            collection: Collection::from_stored(COLLECTION),
            term: Some((RUN.into(), run_key.to_string().into())),
            after: after.map(|task_id| RecordId::from_stored(task_id.to_string())),
            limit,
        };
        let rows = self.core.store.list(query).await?.records()?;
        let bodies = rows.into_iter().filter_map(|row| row.body);
        bodies.map(|body| body.read()).collect()
    }

    /// Deletes a receipt whose time is over, or looks again later.
    pub(crate) async fn run_task(&self, task: &Task, hold: Hold) -> Result<(), Error> {
        let Some(body) = &task.body else { return Ok(()) };
        let ForgetReceipt { task_id } = body.read()?;
        let retention = self.core.options.receipt_retention;
        let now = self.core.clock.now();
        let (receipt, found) = self.read(&task.namespace, task_id).await?;
        let mut ops = Vec::new();
        match receipt {
            None => ops.push(Op::Settle { task_id: task.task_id }),
            Some(receipt) => match self.kept_until(&receipt, retention, now).await? {
                Some(until) => ops.push(again(task, until)),
                None => {
                    let write_id = WriteId(new_uuid(&*self.core.env, now));
                    let write = RecordWrite::Remove { write_id, at: now };
                    let expect = Expect::At(found.revision());
                    let key = record_key(&task.namespace, task_id);
                    ops.push(Op::Record(Box::new(RecordOp { key, expect, write })));
                    self.core.record_removed.notify_one();
                    ops.push(Op::Settle { task_id: task.task_id });
                }
            },
        }
        let guard = TaskGuard::Held { task_id: task.task_id, hold };
        let commit = Commit::new(None, Some(guard), ops);
        match Arc::clone(&self.commits).commit(commit).await {
            Err(error) if !matches!(error, CommitError::Conflict(_)) => {
                Err(crate::turn::refusal(&error))
            }
            Err(CommitError::Conflict(conflict @ Conflict::Record { .. })) => {
                Err(crate::turn::refusal(&CommitError::Conflict(conflict)))
            }
            // Done, or another worker has the task.
            _ => Ok(()),
        }
    }

    // Until when a receipt is kept; none if that time is over.
    async fn kept_until(
        &self,
        receipt: &Receipt,
        retention: Duration,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let overview = match receipt.run_key {
            Some(run_key) => self.core.store.run_overview_by_key(run_key).await?,
            None => None,
        };
        let is_open = receipt.outcome == ReceiptOutcome::Requeued;
        let ended = match overview {
            Some(overview) if overview.run.ended_at.is_none() => None,
            Some(overview) => overview.run.ended_at,
            None => Some(receipt.settled_at),
        };
        let until = match ended.filter(|_| !is_open) {
            None => now.plus(retention),
            Some(ended) => ended.max(receipt.settled_at).plus(retention),
        };
        Ok((until > now).then_some(until))
    }

    async fn read(
        &self,
        namespace: &Namespace,
        task_id: TaskId,
    ) -> Result<(Option<Receipt>, RecordFound), Error> {
        let rows = self.core.store.records(vec![record_key(namespace, task_id)]).await?;
        let Some(row) = rows.into_iter().next().flatten() else {
            return Ok((None, RecordFound::Absent));
        };
        let found = row.found();
        Ok((row.body.map(|body| body.read()).transpose()?, found))
    }

    // Writes a receipt. The first write also enqueues the task that deletes it.
    fn ops(
        &self,
        namespace: &Namespace,
        receipt: &Receipt,
        found: RecordFound,
        at: Timestamp,
    ) -> Result<Vec<Op>, Error> {
        let mut terms = Terms::default();
        if let Some(run_key) = receipt.run_key {
            terms.add(RUN, run_key.to_string())?;
        }
        let write_id = WriteId(new_uuid(&*self.core.env, at));
        let body = Body::of(receipt)?;
        let put = RecordPut { write_id, body, terms, keep: None, at, revision: None };
        let expect = match found {
            RecordFound::Absent => Expect::Absent,
            RecordFound::At(revision) | RecordFound::Removed(revision) => Expect::At(revision),
        };
        let (key, write) =
            (record_key(namespace, receipt.task_id), RecordWrite::Put(Box::new(put)));
        let mut ops = vec![Op::Record(Box::new(RecordOp { key, expect, write }))];
        if !matches!(found, RecordFound::At(_)) {
            // An effect that asks for a receipt again after a deletion needs another id.
            let word = format!("receipt {}", found.revision());
            let id = TaskId(derive_key(receipt.task_id.0, &word));
            let mut task = forget_task(id, namespace, receipt.task_id, at)?;
            let due = at.plus(self.core.options.receipt_retention);
            (task.ready, task.due_at) = (false, Some(due));
            ops.push(Op::Enqueue(Box::new(task)));
        }
        Ok(ops)
    }
}

/// The task that deletes a receipt, or looks again later.
fn forget_task(
    id: TaskId,
    namespace: &Namespace,
    effect: TaskId,
    at: Timestamp,
) -> Result<Task, Error> {
    let route = Route { queue: internal_queue(), name: RouteName::new(FORGET_RECEIPT)? };
    let mut task = Task::new(id, namespace.clone(), "internal", route, at);
    task.body = Some(Body::of(&ForgetReceipt { task_id: effect })?);
    Ok(task)
}

/// The tasks that an imported receipt needs.
pub(crate) fn tasks_of_imported(record: &Record, at: Timestamp) -> Result<Vec<Task>, Error> {
    let Some(body) = &record.body else { return Ok(Vec::new()) };
    let receipt: Receipt = body.read()?;
    let id = TaskId(derive_key(record.write_id.0, "import"));
    Ok(vec![forget_task(id, &record.key.namespace, receipt.task_id, at)?])
}

fn asks(body: Option<&Body>) -> bool {
    let body: Option<TaskBody> = body.and_then(|body| body.read().ok());
    body.is_some_and(|body| body.receipt)
}

fn record_key(namespace: &Namespace, task_id: TaskId) -> RecordKey {
    RecordKey {
        namespace: namespace.clone(),
        collection: Collection::from_stored(COLLECTION),
        id: RecordId::from_stored(task_id.to_string()),
    }
}

fn again(task: &Task, at: Timestamp) -> Op {
    Op::Reschedule(Box::new(Reschedule {
        task_id: task.task_id,
        wake: Wake::At(at),
        attempt: 0,
        errors: None,
        untried: false,
    }))
}
