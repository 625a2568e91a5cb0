//! Terminating runs, and the tasks and children that must end with a run.

use std::sync::Arc;

use windlass_kernel::{
    Actor, ClaimedTurn, Commit, CommitError, Committed, Conflict, Draft, EFFECT, End, Error,
    ErrorCode, ErrorKind, Hold, Op, Query, Route, RouteName, Run, RunGuard, RunKey, RunOverview,
    Task, TasksQuery, Timestamp,
};

use crate::cancel::{TerminateRequest, cancel_open_steps, shortened};
use crate::commit::CommitClient;
use crate::control::{ATTEMPTS_MAX, busy, refuse_ended, with_actor};
use crate::core::Core;
use crate::events;
use crate::keyed::KeyedEvents;
use crate::local_runs::LocalRuns;
use crate::registry::Registry;
use crate::requests::Requests;
use crate::result_message::ChildResult;
use crate::tasks::{CANCEL_TREE, internal_queue};
use crate::turn::refusal;
use crate::turn_runner::held;

/// Terminates runs: it revokes the turn, drafts the end and commits it.
pub(crate) struct Terminator {
    pub(crate) core: Arc<Core>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) runs: Arc<LocalRuns>,
    pub(crate) keyed: Arc<KeyedEvents>,
}

impl Terminator {
    /// Terminates a run, in its newest generation. An ended run cannot be terminated.
    pub(crate) async fn terminate(
        &self,
        mut run_key: RunKey,
        reason: Option<String>,
        actor: Option<Actor>,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS_MAX {
            let run = self.core.current(run_key).await?;
            if run.status.is_ended() {
                // It may have been restarted since its key was read.
                let newest = self.core.newest(&run).await?;
                if newest.run_key == run_key {
                    return refuse_ended(&run, "terminated");
                }
                run_key = newest.run_key;
                continue;
            }
            let request = TerminateRequest::new("terminate", reason.as_deref(), actor.as_ref());
            let Some((draft, run)) = self.revoke_and_draft_end(run_key, request).await? else {
                continue;
            };
            match self.commit_revoked(draft.finish()).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict(
                    Conflict::RunHead { .. } | Conflict::RunHold { .. } | Conflict::Record { .. },
                )) => {
                    let run_key = run.run_key;
                    tracing::debug!(%run_key, "the run changed during its termination; retrying");
                }
                Err(error) => return Err(refusal(&error)),
            }
        }
        Err(busy(&self.core.current(run_key).await?))
    }

    /// Revokes a run's turn and drafts its end. `None` if it has ended meanwhile.
    pub(crate) async fn revoke_and_draft_end(
        &self,
        run_key: RunKey,
        request: TerminateRequest<'_>,
    ) -> Result<Option<(Draft, Run)>, Error> {
        let held_run = self.runs.held(run_key);
        let Some(claimed) = self.core.store.revoke(run_key, self.core.worker).await? else {
            return Ok(None);
        };
        if let Some(held_run) = held_run {
            held_run.lose();
        }
        let drafted = self.draft_end(&claimed, request).await;
        if !matches!(drafted, Ok(Some(_))) {
            self.release(run_key, claimed.hold).await;
        }
        drafted
    }

    // Sends the commit for which a turn was revoked; if it fails, the turn is released.
    pub(crate) async fn commit_revoked(&self, commit: Commit) -> Result<Committed, CommitError> {
        let revoked = match &commit.run {
            Some(RunGuard::Held { run_key, hold, .. }) => Some((*run_key, *hold)),
            _ => None,
        };
        let committed = Arc::clone(&self.commits).commit(commit).await;
        if let (Err(_), Some((run_key, hold))) = (&committed, revoked) {
            self.release(run_key, hold).await;
        }
        committed
    }

    // Releases a turn that was revoked for a request that failed; nobody else would. If another worker
    // holds the turn by now, this has no effect, because the claim number differs.
    async fn release(&self, run_key: RunKey, hold: Hold) {
        if let Err(error) = self.core.store.release(vec![held(run_key, hold)]).await {
            tracing::warn!(%run_key, %error, "failed to release a revoked turn; the next scan releases it");
        }
    }

    async fn draft_end(
        &self,
        claimed: &ClaimedTurn,
        request: TerminateRequest<'_>,
    ) -> Result<Option<(Draft, Run)>, Error> {
        let Some(overview) = self.core.store.run_overview_by_key(claimed.run_key).await? else {
            return Ok(None);
        };
        let at = self.core.stamp_after(overview.run.updated_at).at;
        let draft = Draft::held(&overview.run, claimed.hold, at);
        self.draft_end_of(overview, draft, at, request).await.map(Some)
    }

    /// Adds the end of a run to a draft that has its guard.
    pub(crate) async fn draft_end_of(
        &self,
        overview: RunOverview,
        mut draft: Draft,
        at: Timestamp,
        request: TerminateRequest<'_>,
    ) -> Result<(Draft, Run), Error> {
        let RunOverview { run, open_steps } = overview;
        draft.keep_unstarted();
        let model = self.registry.description(&run);
        let has_reach = open_steps.iter().any(|step| model.reaches_outside(step));
        let mut last = open_steps.iter().map(|step| step.updated_at).fold(at, Timestamp::max);
        let mut stamp = || {
            last = last.plus(std::time::Duration::from_micros(1));
            self.core.clock.stamp(last)
        };
        let (core, commits) = (Arc::clone(&self.core), Arc::clone(&self.commits));
        let requests = Requests { core, commits, namespace: run.namespace.clone() };
        requests.record_decisions(&mut draft, &open_steps, &mut stamp).await?;
        cancel_open_steps(&mut draft, open_steps, model, &mut stamp)?;
        let stamp = stamp();
        let mut payload = with_actor(request.actor);
        payload["request"] = request.name.into();
        if let Some(reason) = request.reason {
            payload["reason"] = shortened(reason).into();
        }
        let end = End::Terminated(request.error()?);
        // A parent waits for its child by name, so a restart of the child sends no result.
        let message = match request.name {
            "restart" => None,
            _ => ChildResult::to_message(&run, &end, stamp)?,
        };
        draft.end(events::WORKFLOW_TERMINATED, &payload, end, stamp)?;
        if let Some(mut message) = message {
            // The end of the parent ends this child: no generation waits for it.
            message.required = request.name != "parent";
            draft.send(message);
        }
        if has_reach {
            for op in self.cancel_descendants_of(&run, stamp.at).await? {
                draft.op(op);
            }
        }
        Ok((draft, run))
    }

    /// Operations for the commit that ends a run: they settle its tasks and terminate its children.
    pub(crate) async fn cancel_descendants_of(
        &self,
        run: &Run,
        at: Timestamp,
    ) -> Result<Vec<Op>, Error> {
        let cancel_tree = self.internal_task(CANCEL_TREE, run, at)?;
        let mut ops = vec![Op::Enqueue(Box::new(cancel_tree))];
        let tasks = self.tasks_of(run).await?;
        // Effects are delivered however the run ends.
        let works = tasks.iter().filter(|task| &*task.kind != EFFECT);
        ops.extend(works.map(|task| Op::Settle { task_id: task.task_id }));
        for task in &tasks {
            let forget = self.keyed.forget_registered(task, at)?;
            ops.extend(forget.map(|task| Op::Enqueue(Box::new(task))));
        }
        Ok(ops)
    }

    /// The tasks that work for a run.
    pub(crate) async fn tasks_of(&self, run: &Run) -> Result<Vec<Task>, Error> {
        let limit = self.core.options.limits.page_rows_max;
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            let page = self.core.store.list(Query::Tasks(TasksQuery {
                run_key: Some(run.run_key),
                after: tasks.last().map(|task| task.task_id),
                ..TasksQuery::all(run.namespace.clone(), limit)
            }));
            let page = page.await?.tasks()?;
            let last = page.len() < limit as usize;
            tasks.extend(page);
            if last {
                return Ok(tasks);
            }
        }
    }

    /// An internal task for a run.
    pub(crate) fn internal_task(
        &self,
        name: &str,
        run: &Run,
        at: Timestamp,
    ) -> Result<Task, Error> {
        let route = Route { queue: internal_queue(), name: RouteName::new(name)? };
        Ok(Task::new(self.core.clock.task_id(), run.namespace.clone(), "internal", route, at)
            .of_run(run))
    }

    /// Terminates a child for which its parent no longer waits, in its newest generation.
    pub(crate) async fn terminate_abandoned(&self, child: RunKey) -> Result<(), Error> {
        let Some(overview) = self.core.store.run_overview_by_key(child).await? else {
            return Ok(());
        };
        let Run { namespace, workflow, id, .. } = overview.run;
        match self.core.store.find(namespace, workflow, id).await? {
            Some(newest) if !newest.status.is_ended() => self.terminate_child(newest.run_key).await,
            _ => Ok(()),
        }
    }

    /// Terminates the children of an ended run.
    pub(crate) async fn terminate_children(&self, run_key: RunKey) -> Result<(), Error> {
        let is_gone =
            |error: &Error| matches!(error.code(), ErrorCode::RunTerminal | ErrorCode::RunNotFound);
        let Some(parent) = self.core.store.run_overview_by_key(run_key).await? else {
            return Ok(());
        };
        let limit = self.core.options.limits.page_rows_max;
        let mut after = None;
        loop {
            let query = Query::Tree { root: parent.run.root, after, limit };
            let page = self.core.store.list(query).await?.runs()?;
            after = page.last().map(|run| run.run_key);
            let full = page.len() == limit as usize;
            for run in page {
                if run.parent != Some(run_key) || run.status.is_ended() {
                    continue;
                }
                let ended = self.terminate_child(run.run_key).await;
                if let Err(error) = ended
                    && !is_gone(&error)
                {
                    return Err(error);
                }
            }
            if !full {
                return Ok(());
            }
        }
    }

    async fn terminate_child(&self, run_key: RunKey) -> Result<(), Error> {
        let reason = Some("the parent run has ended, or no longer waits for it");
        self.terminate_as(run_key, TerminateRequest::new("parent", reason, None)).await
    }

    /// Terminates a run, unless it has ended.
    pub(crate) async fn terminate_as(
        &self,
        run_key: RunKey,
        request: TerminateRequest<'_>,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS_MAX {
            let Some((draft, _)) = self.revoke_and_draft_end(run_key, request).await? else {
                return Ok(());
            };
            match self.commit_revoked(draft.finish()).await {
                Ok(_) => return Ok(()),
                Err(CommitError::Conflict(_)) => {}
                Err(error) => return Err(refusal(&error)),
            }
        }
        let message =
            format!("run {run_key} changed during {ATTEMPTS_MAX} attempts to terminate it; retry");
        Err(Error::new(ErrorKind::Unavailable, ErrorCode::RunBusy, message))
    }
}
