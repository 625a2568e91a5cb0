//! Commits to the store: sent until their outcome is known, then dispatched within this process.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use windlass_kernel::{
    Commit, CommitError, Committed, Conflict, Delivery, Error, ErrorCode, ErrorKind, MessageKind,
    NewMessage, Op, Refusal, Run, RunChange, RunGuard, RunKey, RunStatus, Task, WorkerKey,
};

use crate::core::Core;
use crate::enqueued;
use crate::held_run::HeldRun;
use crate::local_runs::LocalRuns;
use crate::options::EnqueuedReason;
use crate::results::{Ended, Results};
use crate::signals::Signals;
use crate::tasks::{Claim, Tasks, internal_queue};
use crate::templates::Templates;
use crate::workflow_counts::WorkflowFigure;

const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

/// Starts the work that a commit has assigned to this worker.
pub(crate) trait Starter: Send + Sync {
    /// `held_run` is the mark from before the commit.
    fn start_run(&self, run: Box<Run>, held_run: Option<Arc<HeldRun>>);
    fn start_task(self: Arc<Self>, task: Task);
}

/// The only way of the engine to write to runs and tasks.
pub(crate) struct CommitClient {
    core: Arc<Core>,
    templates: Arc<Templates>,
    dispatcher: Dispatcher,
}

impl CommitClient {
    pub(crate) fn new(
        core: Arc<Core>,
        templates: Arc<Templates>,
        dispatcher: Dispatcher,
    ) -> Arc<Self> {
        Arc::new(Self { core, templates, dispatcher })
    }

    /// Sets the component that starts runs and tasks. It holds this client, so the reference back is weak.
    pub(crate) fn set_starter(&self, starter: Weak<dyn Starter>) {
        let _ = self.dispatcher.starter.set(starter);
    }

    /// Sends a commit until its outcome is known. After a lost answer it sends the same commit again:
    /// the store recognises its key. A commit that creates a run is sent again only for
    /// `create_resend_max`: later, retention may have deleted the run, and the commit would create it
    /// once more.
    pub(crate) fn commit(
        self: Arc<Self>,
        commit: Commit,
    ) -> impl Future<Output = Result<Committed, CommitError>> + Send {
        self.commit_while(commit, CommitError::is_retryable)
    }

    /// Like [`CommitClient::commit`], for a caller that can repeat its request: if the store says that
    /// it has not written the commit, the commit is not sent again. The caller may have gone by then,
    /// and must not find the commit done.
    pub(crate) fn commit_for_caller(
        self: Arc<Self>,
        commit: Commit,
    ) -> impl Future<Output = Result<Committed, CommitError>> + Send {
        let mut unknown = false;
        let resend = move |error: &CommitError| {
            unknown |= matches!(error, CommitError::Unknown(_));
            unknown && error.is_retryable()
        };
        self.commit_while(commit, resend)
    }

    async fn commit_while(
        self: Arc<Self>,
        mut commit: Commit,
        mut resend: impl FnMut(&CommitError) -> bool,
    ) -> Result<Committed, CommitError> {
        let mut delay = RETRY_DELAY_MIN;
        let mut lost: Option<LostAnswer> = None;
        let mut incomplete = self.templates.is_incomplete(&commit);
        // Before the store has the commit: a scan in between would take its holds for unknown ones.
        let mut assigned = self.dispatcher.assign(self.core.worker, &commit);
        loop {
            if incomplete {
                incomplete = !Box::pin(self.complete(&mut commit, &mut resend)).await?;
                if incomplete {
                    self.pause(&mut delay).await;
                    continue;
                }
            }
            let sent_at = self.core.env.elapsed();
            if let Some(error) = self.given_up(&commit, lost.as_ref(), sent_at) {
                return Err(error);
            }
            let sent = commit.with_large_bodies_apart(self.core.options.limits.inline_bytes_max);
            let answer = self.core.store.commit(vec![sent]).await.pop();
            if let Some(Err(CommitError::Unavailable(_))) = &answer {
                self.core.metrics.commits_refused.add(1);
            }
            match answer {
                Some(Ok(committed)) => {
                    self.dispatcher.dispatch(&self.core, &commit, &committed, &mut assigned);
                    enqueued::announce(&self.core, &commit, &committed);
                    return Ok(committed);
                }
                Some(Err(error)) if resend(&error) => {
                    if matches!(error, CommitError::Unknown(_)) {
                        let since = lost.map_or(sent_at, |lost| lost.since);
                        lost = Some(LostAnswer { since, error: error.clone() });
                    }
                    tracing::warn!(%error, "a commit failed; sending it again");
                    self.core.metrics.commits_resent.add(1);
                    self.pause(&mut delay).await;
                }
                // After a lost answer, only the store's answer to the same commit shows whether it was
                // written. A store that has closed meanwhile gives no such answer.
                Some(Err(error @ CommitError::Unavailable(_))) => {
                    return Err(lost.map_or(error, |lost| lost.error));
                }
                Some(Err(CommitError::Conflict(conflict)))
                    if lost.is_some() && commit.is_outcome_open(&conflict) =>
                {
                    return Err(outcome_unknown(&conflict));
                }
                Some(Err(CommitError::Refused(refusal))) => {
                    match self.redirect_results(&mut commit, &refusal).await {
                        Ok(true) => {}
                        Ok(false) => return Err(CommitError::Refused(refusal)),
                        Err(error) => {
                            tracing::warn!(%error, "failed to find the parent of a child; retrying");
                            self.pause(&mut delay).await;
                        }
                    }
                }
                Some(Err(error)) => return Err(error),
                None => {
                    let message = "the store returned no result for a commit";
                    let error = Error::new(ErrorKind::Internal, ErrorCode::Internal, message);
                    return Err(CommitError::Invalid(Arc::new(error)));
                }
            }
        }
    }
}

// The kind says that the caller reads and decides again; sending the commit again cannot help.
fn outcome_unknown(conflict: &Conflict) -> CommitError {
    let message =
        format!("it is unknown whether the write was made: its answer was lost, and {conflict}");
    CommitError::Unknown(Arc::new(Error::new(
        ErrorKind::Conflict,
        ErrorCode::OutcomeUnknown,
        message,
    )))
}

/// The first lost answer to a commit, and the last error that followed.
struct LostAnswer {
    since: Duration,
    error: CommitError,
}

impl CommitClient {
    async fn pause(&self, delay: &mut Duration) {
        self.core.env.sleep(*delay).await;
        *delay = (*delay * 2).min(RETRY_DELAY_MAX);
    }

    // Adds the templates of new runs; `false` if the store did not answer and is asked again.
    async fn complete(
        &self,
        commit: &mut Commit,
        resend: &mut impl FnMut(&CommitError) -> bool,
    ) -> Result<bool, CommitError> {
        match self.templates.complete_commit(commit).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_retryable() => {
                let error = CommitError::Unavailable(Arc::new(error));
                if !resend(&error) {
                    return Err(error);
                }
                tracing::warn!(%error, "failed to read the template of a new run; retrying");
                Ok(false)
            }
            Err(error) => Err(CommitError::Invalid(Arc::new(error))),
        }
    }

    // The error of a create whose answer was lost too long ago. Other commits prove by the head of
    // their run, or by the claim of their task, that they were not written before.
    fn given_up(
        &self,
        commit: &Commit,
        lost: Option<&LostAnswer>,
        now: Duration,
    ) -> Option<CommitError> {
        let is_create = matches!(commit.run, Some(RunGuard::Absent { .. }));
        let resend_max = self.core.options.create_resend_max;
        let is_late = |lost: &&LostAnswer| now.saturating_sub(lost.since) >= resend_max;
        lost.filter(|lost| is_create && is_late(lost)).map(|lost| lost.error.clone())
    }

    // The parent of a child has ended. If it was retried since, its newest generation gets the result;
    // otherwise nobody waits for the result, and the commit is sent without requiring it. `true` if the
    // commit was changed and can be sent again.
    async fn redirect_results(
        &self,
        commit: &mut Commit,
        refusal: &Refusal,
    ) -> Result<bool, Error> {
        let (Refusal::RunEnded { run_key: ended, .. } | Refusal::RunMissing { run_key: ended }) =
            *refusal
        else {
            return Ok(false);
        };
        let is_refused = |op: &Op| match op {
            Op::PutMessage(message) => {
                let NewMessage { run_key, kind, required, .. } = &**message;
                *required && *kind == MessageKind::ChildResult && *run_key == ended
            }
            _ => false,
        };
        if !commit.ops.iter().any(is_refused) {
            return Ok(false);
        }
        let newest = match self.core.current(ended).await {
            Ok(parent) => self.core.newest(&parent).await.map(Some),
            Err(error) => Err(error),
        };
        let newest = match newest {
            Err(error) if error.is_retryable() => return Err(error),
            newest => newest.ok().flatten().filter(|run| !run.status.is_ended()),
        };
        for op in commit.ops_mut().iter_mut().filter(|op| is_refused(op)) {
            let Op::PutMessage(message) = op else { continue };
            match &newest {
                Some(newest) if newest.run_key != ended => message.run_key = newest.run_key,
                _ => message.required = false,
            }
        }
        Ok(true)
    }
}

/// Marks of the runs and tasks that a commit assigns to this worker. Those that the commit has not
/// started are removed on drop.
struct Assigned {
    runs: Arc<LocalRuns>,
    tasks: Arc<Tasks>,
    held_runs: Vec<(RunKey, Arc<HeldRun>)>,
    claims: Vec<Claim>,
}

impl Assigned {
    fn take_run(&mut self, run_key: RunKey) -> Option<Arc<HeldRun>> {
        let index = self.held_runs.iter().position(|(key, _)| *key == run_key)?;
        Some(self.held_runs.swap_remove(index).1)
    }
}

impl Drop for Assigned {
    fn drop(&mut self) {
        for (run_key, held_run) in &self.held_runs {
            self.runs.unhold(*run_key, held_run);
        }
        self.claims.iter().for_each(|claim| self.tasks.unassign(claim));
    }
}

/// Passes the effects of a successful commit to the components of this process.
pub(crate) struct Dispatcher {
    runs: Arc<LocalRuns>,
    signals: Arc<Signals>,
    results: Arc<Results>,
    tasks: Arc<Tasks>,
    starter: OnceLock<Weak<dyn Starter>>,
}

impl Dispatcher {
    pub(crate) fn new(
        runs: &Arc<LocalRuns>,
        signals: &Arc<Signals>,
        results: &Arc<Results>,
        tasks: &Arc<Tasks>,
    ) -> Self {
        Self {
            runs: Arc::clone(runs),
            signals: Arc::clone(signals),
            results: Arc::clone(results),
            tasks: Arc::clone(tasks),
            starter: OnceLock::new(),
        }
    }

    // Marks the runs and tasks that the worker holds if the commit succeeds.
    fn assign(&self, worker: WorkerKey, commit: &Commit) -> Assigned {
        let guarded = commit.run_key();
        let mut assigned = Assigned {
            runs: Arc::clone(&self.runs),
            tasks: Arc::clone(&self.tasks),
            held_runs: Vec::new(),
            claims: Vec::new(),
        };
        for op in commit.ops.iter() {
            match op {
                Op::CreateRun(run)
                    if Some(run.run_key) != guarded && run.turn.worker == Some(worker) =>
                {
                    assigned.held_runs.push((run.run_key, self.runs.hold(run.run_key)));
                }
                Op::Enqueue(task) if task.worker == Some(worker) => {
                    let claim = (task.task_id, task.claim_no);
                    self.tasks.assign(claim);
                    assigned.claims.push(claim);
                }
                _ => {}
            }
        }
        assigned
    }

    fn dispatch(
        &self,
        core: &Core,
        commit: &Commit,
        committed: &Committed,
        assigned: &mut Assigned,
    ) {
        core.changes.committed(commit);
        let guarded = commit.run_key();
        if matches!(commit.run, Some(RunGuard::Free { .. })) && commit.task.is_some() {
            core.metrics.turns_completed_locally.add(1);
        }
        let mut deliveries = committed.messages.iter();
        for op in commit.ops.iter() {
            match op {
                Op::PutMessage(message) => {
                    // A claim skips a row that a commit has locked, and the store sends no wake-up for
                    // a message to a turn that is ready already. So the claimer looks again.
                    if let Some(Delivery::Accepted { seq }) = deliveries.next()
                        && self.runs.message_accepted(message.run_key, *seq)
                    {
                        self.signals.turns();
                    }
                }
                Op::CreateRun(run) if Some(run.run_key) != guarded => {
                    core.metrics.runs_created.add(1);
                    let started = WorkflowFigure::RunsStarted;
                    core.metrics.workflows.add(&run.namespace, &run.workflow, started);
                    core.run_enqueued(run, EnqueuedReason::Create);
                    if run.turn.worker == Some(core.worker) && !committed.repeated {
                        let held_run = assigned.take_run(run.run_key);
                        self.start(|starter| starter.start_run(run.clone(), held_run));
                    }
                }
                Op::Enqueue(task) => {
                    if task.queue != internal_queue() {
                        core.metrics.tasks_scheduled.add(1);
                    }
                    if task.worker == Some(core.worker) && !committed.repeated {
                        self.start(|starter| starter.start_task((**task).clone()));
                    }
                }
                // An attempt that runs here can stop.
                Op::Settle { task_id } => self.tasks.cancel(task_id),
                Op::SetRun(change) => self.run_changed(core, change),
                _ => {}
            }
        }
    }

    // No starter: the engine is stopping.
    fn start(&self, start: impl FnOnce(Arc<dyn Starter>)) {
        if let Some(starter) = self.starter.get().and_then(Weak::upgrade) {
            start(starter);
        }
    }

    fn run_changed(&self, core: &Core, change: &RunChange) {
        let Some(status) = change.status.filter(|status| status.is_ended()) else { return };
        self.results.ended(Ended {
            run_key: change.run_key,
            status,
            output: change.output.clone(),
            error: change.error.clone(),
        });
        let counter = match status {
            RunStatus::Complete => &core.metrics.runs_completed,
            RunStatus::Errored => &core.metrics.runs_failed,
            _ => &core.metrics.runs_terminated,
        };
        counter.add(1);
    }
}
