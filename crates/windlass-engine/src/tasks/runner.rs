//! Runs the tasks that this worker holds, and settles them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::Either;
use tracing::Instrument as _;
use uuid::Uuid;
use windlass_kernel::{
    Commit, CommitError, Committed, HeldItem, Hold, Op, Reschedule, RetryPolicy, Run, Task,
    TaskGuard, Timestamp, Wake,
};

use super::context::RunningAttempt;
use super::internal::{self, internal_queue};
use super::{Claim, Tasks, attempt, failure};
use crate::breakers::Breakers;
use crate::capacity::Capacity;
use crate::commit::{CommitClient, Starter};
use crate::control::RunControl;
use crate::core::Core;
use crate::env::ThreadPool;
use crate::heartbeats::Heartbeats;
use crate::held_run::HeldRun;
use crate::keyed::KeyedEvents;
use crate::local_completion;
use crate::metrics::Measure;
use crate::rates::Rates;
use crate::receipts::Receipts;
use crate::settle::{self, Attempt, AttemptOutcome, Finished};
use crate::task_stats::TaskStats;
use crate::telemetry;
use crate::trials::Suspect;
use crate::turn::refusal;
use crate::turn_runner::TurnRunner;

/// How long an internal task waits after an error. The time doubles with each further error, up to the
/// maximum: a damaged row must not keep the engine busy.
const INTERNAL_RETRY: Duration = Duration::from_secs(1);
const INTERNAL_RETRY_MAX: Duration = Duration::from_secs(60);

pub(crate) struct TaskRunner {
    pub(crate) core: Arc<Core>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) capacity: Arc<Capacity>,
    pub(crate) commits: Arc<CommitClient>,
    pub(crate) turns: Arc<TurnRunner>,
    pub(crate) control: Arc<RunControl>,
    pub(crate) heartbeats: Arc<Heartbeats>,
    pub(crate) stats: Arc<TaskStats>,
    pub(crate) rates: Arc<Rates>,
    pub(crate) breakers: Breakers,
}

impl Starter for TaskRunner {
    fn start_run(&self, run: Box<Run>, held_run: Option<Arc<HeldRun>>) {
        self.turns.start_created(run, held_run);
    }

    fn start_task(self: Arc<Self>, task: Task) {
        self.start(task);
    }
}

impl TaskRunner {
    /// Runs a task that this worker holds; a suspect is tried alone.
    pub(crate) fn start(self: &Arc<Self>, task: Task) {
        let Some(hold) = task.hold() else { return };
        if self.turns.trials.is_suspect(task.reclaims) && task.queue != internal_queue() {
            self.tasks.assign((task.task_id, hold.claim_no));
            let suspect = SuspectTask { runner: Arc::clone(self), task, hold };
            return self.turns.trials.add(Box::new(suspect));
        }
        self.start_now(task, hold);
    }

    fn start_now(self: &Arc<Self>, task: Task, hold: Hold) {
        let running = Arc::new(RunningAttempt::default());
        running.beat(&*self.core.env);
        let claim = (task.task_id, hold.claim_no);
        let is_internal = task.queue == internal_queue();
        self.tasks.started(claim, Arc::clone(&running), is_internal);
        let runner = Arc::clone(self);
        let work = async move {
            let work = async {
                match is_internal {
                    true => runner.run_internal(&task, hold).await,
                    false => runner.run_attempt(&task, hold, Arc::clone(&running)).await,
                }
            };
            let stopped = runner.core.lifecycle.stopped();
            let (work, stopped) = (std::pin::pin!(work), std::pin::pin!(stopped));
            if let Either::Right(_) = futures::future::select(work, stopped).await {
                // Code that blocks its thread ends only if it checks for cancellation.
                running.cancel();
            }
            runner.tasks.ended(&claim, is_internal);
            runner.capacity.freed();
        };
        self.core.env.spawn(ThreadPool::User, Box::pin(work));
    }

    async fn run_attempt(self: &Arc<Self>, task: &Task, hold: Hold, running: Arc<RunningAttempt>) {
        let core = &self.core;
        core.metrics.tasks_begun.add(1);
        let now = core.clock.now();
        let waited = now.since(telemetry::due(task));
        core.metrics.time(Measure::ScheduleToStart, task.name.as_str(), waited);
        let span = telemetry::attempt(task, hold.worker, now);
        let outcome = attempt::run(self, task, hold, running).instrument(span.clone()).await;
        let span = telemetry::complete(&span, task);
        let (commit, finished) = match outcome {
            Ok(AttemptOutcome::Retry(commit)) => (Ok(commit), None),
            Ok(AttemptOutcome::Finished(finished)) => {
                let locally = local_completion::complete(&self.turns, task, &finished)
                    .instrument(span.clone());
                match locally.await {
                    Some(true) => return finished.count(&core.metrics),
                    // Nobody needs the result.
                    Some(false) => return,
                    None if Receipts::is_asked(task) => {
                        let settled = self.control.receipts.settle(task, &finished).await;
                        return self.settled(task, settled, Some(&finished));
                    }
                    None => (finished.commit(task), Some(finished)),
                }
            }
            Err(error) => (Err(error), None),
        };
        let commit = match commit {
            Ok(commit) => commit,
            Err(error) => {
                tracing::error!(task_id = %task.task_id, %error, "failed to settle a task");
                return self.turns.scan_later();
            }
        };
        match Arc::clone(&self.commits).commit(commit).instrument(span).await {
            Err(error @ CommitError::Invalid(_)) => self.settle_refused(task, hold, &error).await,
            settled => self.settled(task, settled, finished.as_ref()),
        }
    }

    fn settled(
        &self,
        task: &Task,
        settled: Result<Committed, CommitError>,
        finished: Option<&Finished>,
    ) {
        if let (Ok(_), Some(finished)) = (&settled, finished) {
            finished.count(&self.core.metrics);
        }
        if matches!(settled, Err(CommitError::Unavailable(_))) {
            self.turns.scan_later();
        }
        log_refusal(task, settled.map(|_| ()));
    }

    // The store will never accept the result: without this the task would run again and again.
    async fn settle_refused(&self, task: &Task, hold: Hold, error: &CommitError) {
        let refused = Err(failure("ResultRefused", refusal(error).to_string(), false));
        let (number, began_at) = (task.attempt + 1, self.core.clock.now());
        let attempt = Attempt { task, hold, number, began_at, close_by: None };
        let outcome = settle::decide(&self.core, &attempt, refused, &RetryPolicy::none());
        let commit = outcome.and_then(|outcome| match outcome {
            AttemptOutcome::Retry(commit) => Ok(commit),
            AttemptOutcome::Finished(finished) => finished.commit(task),
        });
        let settled = match commit {
            Ok(commit) => Arc::clone(&self.commits).commit(commit).await.map(|_| ()),
            Err(error) => Err(CommitError::Invalid(Arc::new(error))),
        };
        if settled.is_ok() {
            self.core.metrics.tasks_dead.add(1);
        }
        if let Err(error) = settled {
            tracing::error!(task_id = %task.task_id, %error, "failed to settle a task");
            self.turns.scan_later();
        }
    }

    async fn run_internal(&self, task: &Task, hold: Hold) {
        if internal::is_of_record(task) {
            return self.run_of_record(task, hold).await;
        }
        let guard = TaskGuard::Held { task_id: task.task_id, hold };
        let ops = match internal::run(&self.control, task).await {
            Ok(mut ops) => {
                ops.push(Op::Settle { task_id: task.task_id });
                ops
            }
            Err(error) => {
                tracing::warn!(name = %task.name, %error, "an internal task failed; retrying");
                vec![retry_at(task, self.core.clock.now().plus(internal_delay(task.attempt)))]
            }
        };
        let commit = Commit::new(None, Some(guard), ops);
        match Arc::clone(&self.commits).commit(commit).await {
            Err(CommitError::Refused(_)) => {
                // The run that it writes to has ended meanwhile: the next attempt finds its successor. Or
                // the mailbox of that run is full, and somebody has to read it first.
                let delay = task.attempt.checked_sub(1).map_or(Duration::ZERO, internal_delay);
                let retry = vec![retry_at(task, self.core.clock.now().plus(delay))];
                let commit = Commit::new(None, Some(guard), retry);
                let _ = Arc::clone(&self.commits).commit(commit).await;
            }
            settled => log_refusal(task, settled.map(|_| ())),
        }
    }
}

impl TaskRunner {
    async fn run_of_record(&self, task: &Task, hold: Hold) {
        let result = match task.name.as_str() {
            internal::FORGET_RECEIPT => self.control.receipts.run_task(task, hold).await,
            _ => self.control.keyed.run_task(task, hold).await,
        };
        let Err(error) = result else { return };
        tracing::warn!(name = %task.name, %error, "an internal task failed; retrying");
        let at = self.core.clock.now().plus(INTERNAL_RETRY);
        let retry = Arc::clone(&self.commits).commit(KeyedEvents::retry(task, hold, at)).await;
        log_refusal(task, retry.map(|_| ()));
    }
}

/// A task that waits for a trial.
struct SuspectTask {
    runner: Arc<TaskRunner>,
    task: Task,
    hold: Hold,
}

impl SuspectTask {
    fn claim(&self) -> Claim {
        (self.task.task_id, self.hold.claim_no)
    }
}

impl Suspect for SuspectTask {
    fn key(&self) -> Uuid {
        self.task.task_id.0
    }

    fn reclaims(&self) -> u32 {
        self.task.reclaims
    }

    fn start(self: Box<Self>) -> Box<dyn Fn() -> bool + Send + Sync> {
        let claim = self.claim();
        let Self { runner, task, hold } = *self;
        runner.start_now(task, hold);
        runner.tasks.unassign(&claim);
        let tasks = Arc::clone(&runner.tasks);
        Box::new(move || tasks.is_running(&claim))
    }

    fn release(self: Box<Self>) {
        let claim = self.claim();
        let Self { runner, task, hold } = *self;
        let env = Arc::clone(&runner.core.env);
        let release = async move {
            let Hold { worker, claim_no } = hold;
            let item = HeldItem::Task { task_id: task.task_id, worker, claim_no };
            if let Err(error) = runner.core.store.release(vec![item]).await {
                tracing::warn!(task_id = %task.task_id, %error, "failed to release a task");
                runner.turns.scan_later();
            }
            runner.tasks.unassign(&claim);
        };
        env.spawn(ThreadPool::Service, Box::pin(release));
    }
}

fn log_refusal(task: &Task, settled: Result<(), CommitError>) {
    if let Err(error) = settled {
        let error = refusal(&error);
        tracing::debug!(task_id = %task.task_id, %error, "the store refused the result of a task");
    }
}

// How long an internal task waits that has failed this many times before.
fn internal_delay(failures: u32) -> Duration {
    INTERNAL_RETRY_MAX.min(INTERNAL_RETRY * 2_u32.saturating_pow(failures.min(16)))
}

fn retry_at(task: &Task, at: Timestamp) -> Op {
    Op::Reschedule(Box::new(Reschedule {
        task_id: task.task_id,
        wake: Wake::At(at),
        attempt: task.attempt + 1,
        errors: None,
        untried: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_tasks_that_fail_wait_longer_and_longer() {
        let seconds =
            [0, 1, 2, 5, 6, 7, u32::MAX].map(|failures| internal_delay(failures).as_secs());
        assert_eq!(seconds, [1, 2, 4, 32, 60, 60, 60]);
    }
}
