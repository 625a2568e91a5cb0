//! Dead letters of all models: what was given up, for operators to look at, requeue or delete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use windlass_kernel::{
    Actor, Body, Commit, CommitError, DeadLetter, Error, ErrorKind, Op, Query, QueueName, Route,
    Run, RunKey, RunStatus, StepKey, Task, TaskId, Timestamp,
};

use crate::engine::{Engine, Inner};
use crate::model::TurnError;
use crate::turn::{Turn, refusal};

/// What a requeued dead letter became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeued {
    /// Its task is in its queue again, with all its attempts before it.
    Task(TaskId),
    /// Its run had ended: it is carried on as this generation, with the steps that it had completed.
    Run(RunKey),
}

impl Engine {
    /// One page of the namespace's dead letters, oldest first. Those that were requeued stay until
    /// they are deleted.
    pub async fn dead_letters(
        &self,
        queue: Option<QueueName>,
        after: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        let namespace = self.namespace.clone();
        let query = Query::DeadLetters { namespace, queue, after, limit };
        self.inner.store.list(query).await?.dead_letters()
    }

    /// One dead letter of the namespace.
    pub async fn dead_letter(&self, task_id: TaskId) -> Result<DeadLetter, Error> {
        let found = self.inner.store.list(Query::DeadLetter { task_id }).await?.dead_letters()?;
        let found = found.into_iter().find(|letter| letter.namespace == self.namespace);
        found.ok_or_else(|| {
            let message = format!("there is no dead letter {task_id}");
            Error::new(ErrorKind::NotFound, "DEAD_LETTER_NOT_FOUND", message)
        })
    }

    /// Tries a dead letter again. An effect goes back to its queue under its old id. For anything
    /// else the run is what has to go on: if it has errored, this is its retry. Completed steps are
    /// taken along; the letter's step is tried again, and so is the one that ended the run. A letter
    /// is requeued once, unless it dies again; how often is counted.
    pub async fn requeue(&self, task_id: TaskId, actor: Option<Actor>) -> Result<Requeued, Error> {
        let letter = self.dead_letter(task_id).await?;
        if letter.requeued_at.is_some() {
            let message = format!("dead letter {task_id} was requeued already");
            return Err(Error::new(ErrorKind::Conflict, "DEAD_LETTER_REQUEUED", message));
        }
        let at = self.inner.clock.now();
        match letter.run_key.filter(|_| &*letter.kind != windlass_kernel::EFFECT) {
            Some(run_key) => {
                let run = self.retry_with(run_key, actor, Some(&letter)).await?;
                self.inner.metrics.dead_requeued.add(1);
                Ok(Requeued::Run(run.run_key))
            }
            None => {
                let task = again(letter, at);
                let ops = vec![Op::Requeue { task_id, at }, Op::Enqueue(Box::new(task))];
                let commit = Commit::new(None, None, ops);
                let answer = Arc::clone(&self.inner).commit_until_known(commit).await;
                match answer {
                    Ok(_) => {
                        self.inner.metrics.dead_requeued.add(1);
                        Ok(Requeued::Task(task_id))
                    }
                    // After a lost answer the letter tells whether it was this very request.
                    Err(CommitError::Refused(_))
                        if self.dead_letter(task_id).await?.requeued_at == Some(at) =>
                    {
                        Ok(Requeued::Task(task_id))
                    }
                    Err(error) => Err(refusal(&error)),
                }
            }
        }
    }

    /// What marks the letters of an errored run as requeued, for the commit that carries it on: that
    /// run's steps cannot be tried again any more. Effects have a life of their own. If it is carried
    /// on for a letter, that one is marked, whatever has become of it.
    pub(crate) async fn requeued_with(
        &self,
        run: &Run,
        letter: Option<&DeadLetter>,
    ) -> Result<Vec<Op>, Error> {
        let letters = self.inner.letters_of(run.run_key).await?;
        let at = self.inner.clock.now();
        let open = letters.into_iter().filter(|letter| letter.requeued_at.is_none());
        let mut ids: BTreeSet<TaskId> = open.map(|letter| letter.task_id).collect();
        ids.extend(letter.map(|letter| letter.task_id));
        Ok(ids.into_iter().map(|task_id| Op::Requeue { task_id, at }).collect())
    }

    /// Deletes dead letters of the namespace. Answers how many were there.
    pub async fn delete_dead_letters(&self, task_ids: Vec<TaskId>) -> Result<u64, Error> {
        self.inner.store.delete_dead_letters(self.namespace.clone(), task_ids).await
    }

    /// Deletes the dead letters of the namespace, or of one of its queues, that were given up before a
    /// time. Answers how many.
    pub async fn purge_dead_letters_before(
        &self,
        queue: Option<QueueName>,
        before: Timestamp,
    ) -> Result<u64, Error> {
        let limit = self.inner.options.limits.page_rows_max;
        let (mut deleted, mut after) = (0, None);
        loop {
            let page = self.dead_letters(queue.clone(), after, limit).await?;
            after = page.last().map(|letter| letter.task_id);
            let last = page.len() < limit as usize;
            let old = page.into_iter().filter(|letter| letter.dead_at < before);
            let ids: Vec<TaskId> = old.map(|letter| letter.task_id).collect();
            if !ids.is_empty() {
                deleted += self.delete_dead_letters(ids).await?;
            }
            if last {
                return Ok(deleted);
            }
        }
    }

    /// Deletes all dead letters of the namespace, or of one of its queues. Answers how many.
    pub async fn purge_dead_letters(&self, queue: Option<QueueName>) -> Result<u64, Error> {
        let limit = self.inner.options.limits.page_rows_max;
        let mut deleted = 0;
        loop {
            let page = self.dead_letters(queue.clone(), None, limit).await?;
            let last = page.len() < limit as usize;
            let ids = page.into_iter().map(|letter| letter.task_id).collect();
            deleted += self.delete_dead_letters(ids).await?;
            if last {
                return Ok(deleted);
            }
        }
    }
}

impl Inner {
    // The letters of a run, without those of its effects.
    async fn letters_of(&self, run_key: RunKey) -> Result<Vec<DeadLetter>, Error> {
        let limit = self.options.limits.page_rows_max;
        let letters = self.store.list(Query::LettersOfRun { run_key, limit }).await?;
        let mut letters = letters.dead_letters()?;
        letters.retain(|letter| &*letter.kind != windlass_kernel::EFFECT);
        Ok(letters)
    }
}

/// Tasks that died in the generation before and were requeued with this one, by their steps. If such a
/// step is asked for again, its task goes on under its old id: so the letter, should there be another,
/// is the same one, with all the errors and the count.
#[derive(Debug, Default)]
pub struct Revived(BTreeMap<StepKey, (TaskId, Option<Body>)>);

impl Revived {
    /// Makes a step's new task the one that died, if there is one.
    pub fn revive(&self, task: &mut Task) {
        let found = task.step_key.as_ref().and_then(|key| self.0.get(key));
        if let Some((task_id, errors)) = found {
            (task.task_id, task.errors) = (*task_id, errors.clone());
        }
    }

    /// The id that a step's task had when it died.
    pub fn task_id(&self, step_key: &str) -> Option<TaskId> {
        self.0.get(&StepKey::from_stored(step_key)).map(|(task_id, _)| *task_id)
    }
}

impl Turn {
    /// What was requeued with this generation of the run.
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
        let before = self.inner.store.list(before).await.and_then(|rows| rows.runs());
        let before = before.map_err(TurnError::Store)?.into_iter().next();
        let Some(before) = before.filter(|run| run.status == RunStatus::Errored) else {
            return Ok(Revived::default());
        };
        let letters = self.inner.letters_of(before.run_key).await.map_err(TurnError::Store)?;
        let requeued = letters.into_iter().filter(|letter| letter.requeued_at.is_some());
        let by_step =
            requeued.filter_map(|letter| Some((letter.step_key?, (letter.task_id, letter.errors))));
        Ok(Revived(by_step.collect()))
    }
}

// The task that died, as it was, with its errors and a new count of attempts.
fn again(letter: DeadLetter, at: windlass_kernel::Timestamp) -> Task {
    let route = Route { queue: letter.queue, name: letter.name };
    Task {
        run_key: letter.run_key,
        step_key: letter.step_key,
        body: letter.body,
        errors: letter.errors,
        ..Task::new(letter.task_id, letter.namespace, &letter.kind, route, at)
    }
}
