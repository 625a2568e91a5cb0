//! Commits to the store: sent until their outcome is known, then dispatched within this process.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use windlass_kernel::{
    Commit, CommitError, Committed, Delivery, Error, ErrorCode, ErrorKind, Op, Run, RunChange,
    RunGuard, RunStatus, Task,
};

use crate::core::Core;
use crate::local_runs::LocalRuns;
use crate::options::EnqueuedReason;
use crate::results::{Ended, Results};
use crate::signals::Signals;
use crate::tasks::{Tasks, internal_queue};
use crate::templates::Templates;

const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

/// Starts the work that a commit has assigned to this worker.
pub(crate) trait Starter: Send + Sync {
    fn start_run(&self, run: Box<Run>);
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
    /// the store recognises its key.
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
        let mut lost: Option<CommitError> = None;
        let mut incomplete = self.templates.is_incomplete(&commit);
        loop {
            if incomplete {
                match Box::pin(self.templates.complete_commit(&mut commit)).await {
                    Ok(()) => incomplete = false,
                    Err(error) if error.is_retryable() => {
                        let error = CommitError::Unavailable(Arc::new(error));
                        if !resend(&error) {
                            return Err(error);
                        }
                        tracing::warn!(%error, "failed to read the template of a new run; retrying");
                        self.core.env.sleep(delay).await;
                        delay = (delay * 2).min(RETRY_DELAY_MAX);
                        continue;
                    }
                    Err(error) => return Err(CommitError::Invalid(Arc::new(error))),
                }
            }
            let answer = self.core.store.commit(vec![commit.clone()]).await.pop();
            if let Some(Err(CommitError::Unavailable(_))) = &answer {
                self.core.metrics.commits_refused.add(1);
            }
            match answer {
                Some(Ok(committed)) => {
                    self.dispatcher.dispatch(&self.core, &commit, &committed);
                    return Ok(committed);
                }
                Some(Err(error)) if resend(&error) => {
                    if matches!(error, CommitError::Unknown(_)) {
                        lost = Some(error.clone());
                    }
                    tracing::warn!(%error, "a commit failed; sending it again");
                    self.core.metrics.commits_resent.add(1);
                    self.core.env.sleep(delay).await;
                    delay = (delay * 2).min(RETRY_DELAY_MAX);
                }
                // After a lost answer, only the store's answer to the same commit shows whether it was
                // written. A store that has closed meanwhile gives no such answer.
                Some(Err(error @ CommitError::Unavailable(_))) => {
                    return Err(lost.unwrap_or(error));
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

    fn dispatch(&self, core: &Core, commit: &Commit, committed: &Committed) {
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
                    core.run_enqueued(run, EnqueuedReason::Create);
                    if run.turn.worker == Some(core.worker) && !committed.repeated {
                        self.start(|starter| starter.start_run(run.clone()));
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
