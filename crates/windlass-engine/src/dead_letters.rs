//! Dead letters of all models: failed work that operators can inspect, requeue or delete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_kernel::{
    Actor, Body, Commit, CommitError, DeadLetter, Error, ErrorCode, ErrorKind, Namespace, Op,
    Query, QueueName, Route, Run, RunKey, RunStatus, StepKey, Task, TaskId, Timestamp,
};

use crate::commit::CommitClient;
use crate::core::{Core, after_write};
use crate::generations::Generations;
use crate::model::TurnError;
use crate::receipts::Receipts;
use crate::turn::{Turn, refusal};

/// The result of requeueing a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeued {
    /// Its task is in its queue again and has all its attempts.
    Task(TaskId),
    /// Its run had ended: it continues as this generation, with the completed steps.
    Run(RunKey),
}

/// Lists, requeues and deletes dead letters.
pub(crate) struct DeadLetters {
    pub(crate) core: Arc<Core>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) generations: Arc<Generations>,
    pub(crate) receipts: Arc<Receipts>,
}

impl DeadLetters {
    /// One page of the namespace's dead letters, oldest first. Requeued letters stay until they are
    /// deleted.
    pub(crate) async fn page(
        &self,
        namespace: &Namespace,
        queue: Option<QueueName>,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        let namespace = namespace.clone();
        let query = Query::DeadLetters { namespace, queue, after, limit };
        self.core.store.list(query).await?.dead_letters()
    }

    /// One dead letter of the namespace.
    pub(crate) async fn get(
        &self,
        namespace: &Namespace,
        task_id: TaskId,
    ) -> Result<DeadLetter, Error> {
        let found = self.core.store.list(Query::DeadLetter { task_id }).await?.dead_letters()?;
        let found = found.into_iter().find(|letter| letter.namespace == *namespace);
        found.ok_or_else(|| {
            let message = format!("there is no dead letter {task_id}");
            Error::new(ErrorKind::NotFound, ErrorCode::DeadLetterNotFound, message)
        })
    }

    /// Requeues a dead letter. An effect goes back to its queue under its old id. For any other letter
    /// this retries the errored run: completed steps are kept; the letter's step and the step that ended
    /// the run are tried again. A letter can be requeued once, and again after it has failed again; the
    /// letter counts how often.
    pub(crate) async fn requeue(
        &self,
        namespace: &Namespace,
        task_id: TaskId,
        actor: Option<Actor>,
    ) -> Result<Requeued, Error> {
        self.core.check_actor(actor.as_ref())?;
        let letter = self.get(namespace, task_id).await?;
        if letter.requeued_at.is_some() {
            let message = format!("dead letter {task_id} was requeued already");
            return Err(Error::new(ErrorKind::Conflict, ErrorCode::DeadLetterRequeued, message));
        }
        let at = self.core.clock.now();
        match letter.run_key.filter(|_| &*letter.kind != windlass_kernel::EFFECT) {
            Some(run_key) => {
                let run = self.generations.retry(run_key, actor, Some(&letter)).await?;
                self.core.metrics.dead_requeued.add(1);
                Ok(Requeued::Run(run.run_key))
            }
            None => {
                let receipt = self.receipts.requeue(&letter, at).await?;
                let task = task_of(letter, at);
                let mut ops = vec![Op::Requeue { task_id, at }, Op::Enqueue(Box::new(task))];
                ops.extend(receipt);
                let commit = Commit::new(None, None, ops);
                let answer = Arc::clone(&self.commits).commit(commit).await;
                match answer {
                    Ok(_) => {
                        self.core.metrics.dead_requeued.add(1);
                        Ok(Requeued::Task(task_id))
                    }
                    // After a lost answer: the time in the letter shows that this request requeued it.
                    Err(CommitError::Refused(_))
                        if self.get(namespace, task_id).await.map_err(after_write)?.requeued_at
                            == Some(at) =>
                    {
                        Ok(Requeued::Task(task_id))
                    }
                    Err(error) => Err(refusal(&error)),
                }
            }
        }
    }

    /// Deletes dead letters of the namespace. Returns how many existed.
    pub(crate) async fn delete(
        &self,
        namespace: &Namespace,
        task_ids: Vec<TaskId>,
    ) -> Result<u64, Error> {
        let store = &self.core.store;
        // The store does not say whether a call that failed had its effect.
        store.delete_dead_letters(namespace.clone(), task_ids).await.map_err(after_write)
    }

    /// Deletes the dead letters of the namespace, or of one of its queues, that are older than a time.
    /// Returns how many.
    pub(crate) async fn purge_before(
        &self,
        namespace: &Namespace,
        queue: Option<QueueName>,
        before: Timestamp,
    ) -> Result<u64, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let (mut deleted, mut after) = (0, None);
        loop {
            let page = self.page(namespace, queue.clone(), after, limit).await;
            let page =
                page.map_err(|error| if deleted > 0 { after_write(error) } else { error })?;
            after = page.last().map(|letter| letter.task_id);
            let last = page.len() < limit as usize;
            let old = page.into_iter().filter(|letter| letter.dead_at < before);
            let ids: Vec<TaskId> = old.map(|letter| letter.task_id).collect();
            if !ids.is_empty() {
                deleted += self.delete(namespace, ids).await?;
            }
            if last {
                return Ok(deleted);
            }
        }
    }

    /// Deletes all dead letters of the namespace, or of one of its queues. Returns how many.
    pub(crate) async fn purge(
        &self,
        namespace: &Namespace,
        queue: Option<QueueName>,
    ) -> Result<u64, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let mut deleted = 0;
        loop {
            let page = self.page(namespace, queue.clone(), None, limit).await?;
            let last = page.len() < limit as usize;
            let ids = page.into_iter().map(|letter| letter.task_id).collect();
            deleted += self.delete(namespace, ids).await?;
            if last {
                return Ok(deleted);
            }
        }
    }
}

/// Operations that mark the letters of an errored run as requeued, for the commit that creates its
/// next generation. Letters of effects are left alone. `letter` is marked even if it is requeued
/// already, so that the commit fails.
pub(crate) async fn requeue_ops(
    core: &Core,
    run: &Run,
    letter: Option<&DeadLetter>,
) -> Result<Vec<Op>, Error> {
    let letters = letters_of(core, run.run_key).await?;
    let at = core.clock.now();
    let open = letters.into_iter().filter(|letter| letter.requeued_at.is_none());
    let mut ids: BTreeSet<TaskId> = open.map(|letter| letter.task_id).collect();
    ids.extend(letter.map(|letter| letter.task_id));
    Ok(ids.into_iter().map(|task_id| Op::Requeue { task_id, at }).collect())
}

// The letters of a run, without those of its effects.
async fn letters_of(core: &Core, run_key: RunKey) -> Result<Vec<DeadLetter>, Error> {
    let limit = core.options.limits.page_rows_max;
    let letters = core.store.list(Query::DeadLettersOfRun { run_key, limit }).await?;
    let mut letters = letters.dead_letters()?;
    letters.retain(|letter| &*letter.kind != windlass_kernel::EFFECT);
    Ok(letters)
}

/// Tasks of the previous generation that became dead letters and were requeued with this generation, by
/// step. If the step is scheduled again, its task keeps its old id. If it fails again, it is the same
/// letter, with all errors and the count.
#[derive(Debug, Default)]
pub struct Revived(BTreeMap<StepKey, (TaskId, Option<Body>)>);

impl Revived {
    /// Gives a step's new task the id and the errors of the dead one, if there is one.
    pub fn revive(&self, task: &mut Task) {
        let found = task.step_key.as_ref().and_then(|key| self.0.get(key));
        if let Some((task_id, errors)) = found {
            (task.task_id, task.errors) = (*task_id, errors.clone());
        }
    }

    /// The id of a step's dead task.
    pub fn task_id(&self, step_key: &str) -> Option<TaskId> {
        self.0.get(&StepKey::from_stored(step_key)).map(|(task_id, _)| *task_id)
    }
}

impl Turn {
    /// The tasks that were requeued with this generation of the run.
    pub async fn revived(&self) -> Result<Revived, TurnError> {
        if self.run.generation == 0 {
            return Ok(Revived::default());
        }
        let before = Query::Generations {
            namespace: self.run.namespace.clone(),
            workflow: self.run.workflow.clone(),
            id: self.run.id.clone(),
            before: Some(self.run.generation),
            limit: 1,
        };
        let before = self.core().store.list(before).await.and_then(|rows| rows.runs());
        let before = before.map_err(TurnError::Store)?.into_iter().next();
        let Some(before) = before.filter(|run| run.status == RunStatus::Errored) else {
            return Ok(Revived::default());
        };
        let letters = letters_of(self.core(), before.run_key).await.map_err(TurnError::Store)?;
        let requeued = letters.into_iter().filter(|letter| letter.requeued_at.is_some());
        let by_step =
            requeued.filter_map(|letter| Some((letter.step_key?, (letter.task_id, letter.errors))));
        Ok(Revived(by_step.collect()))
    }
}

// The task of a letter, with its errors and a new count of attempts.
fn task_of(letter: DeadLetter, at: windlass_kernel::Timestamp) -> Task {
    let route = Route { queue: letter.queue, name: letter.name };
    Task {
        run_key: letter.run_key,
        step_key: letter.step_key,
        body: letter.body,
        errors: letter.errors,
        ..Task::new(letter.task_id, letter.namespace, &letter.kind, route, at)
    }
}
