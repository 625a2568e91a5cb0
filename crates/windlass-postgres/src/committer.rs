//! Group commit: a committer takes all that arrived while its last batch was on its way.
//!
//! A run's commits always go to the same committer, so a holder may send a chain of them without
//! waiting. Callers are answered only when their data is durable.

mod resolve;
mod session;

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use windlass_kernel::fold::{Group, fold};
use windlass_kernel::{Commit, CommitError, CommitKey, Committed, Op, RunKey};

use crate::apply::unavailable;
use crate::error::{Failure, classify, said, unknown};
use crate::store::Shared;
use crate::user_sql;

use session::{Refused, Session};

pub(crate) use resolve::{RESOLVE, SAME_NAME, broken, resolve};
pub(crate) use session::decide;

/// The answer to a commit.
pub(crate) type Outcome = Result<Committed, CommitError>;

/// Bytes of a batch, about: a parameter must stay well below PostgreSQL's gigabyte.
const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A commit and who waits for it.
pub(crate) struct Job {
    pub(crate) commit: Commit,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// Writes batches over a connection of its own.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedReceiver<Job>,
    session: Session,
    // Runs whose commit with user SQL is under way elsewhere, and what has to wait for them.
    busy: HashSet<RunKey>,
    waiting: Vec<Job>,
    under_way: usize,
    finished: (mpsc::UnboundedSender<Vec<RunKey>>, mpsc::UnboundedReceiver<Vec<RunKey>>),
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, jobs: mpsc::UnboundedReceiver<Job>) -> Self {
        Self {
            session: Session::new(shared.clone()),
            shared,
            jobs,
            busy: HashSet::new(),
            waiting: Vec::new(),
            under_way: 0,
            finished: mpsc::unbounded_channel(),
        }
    }

    /// Works until nobody can send any more and everything taken is answered.
    pub(crate) async fn run(mut self) {
        let max = self.shared.options.batch_max;
        let mut jobs = Vec::with_capacity(max);
        let mut open = true;
        while open || self.under_way > 0 {
            tokio::select! {
                biased;
                Some(runs) = self.finished.1.recv(), if self.under_way > 0 => {
                    self.under_way -= 1;
                    for run_key in &runs {
                        self.busy.remove(run_key);
                    }
                    jobs.append(&mut self.waiting);
                }
                count = self.jobs.recv_many(&mut jobs, max), if open => open = count > 0,
            }
            let batch = self.startable(std::mem::take(&mut jobs));
            self.process(batch).await;
        }
    }

    // What can be written now. Commits with user SQL begin elsewhere, because nobody knows how long
    // the user's statements take; later commits of their runs wait, in order.
    fn startable(&mut self, jobs: Vec<Job>) -> Vec<Job> {
        let plain = |job: &Job| job.commit.user_sql().next().is_none();
        if self.busy.is_empty() && self.waiting.is_empty() && jobs.iter().all(plain) {
            return jobs;
        }
        // What waits already comes first.
        let mut behind: HashSet<RunKey> =
            self.waiting.iter().flat_map(|job| touched(&job.commit)).collect();
        let mut batch = Vec::new();
        let mut after_batch = false;
        for job in jobs {
            let runs = touched(&job.commit);
            let blocked =
                |run_key: &RunKey| self.busy.contains(run_key) || behind.contains(run_key);
            // A commit of this very batch that comes first has to be written first, too.
            let first =
                |earlier: &Job| touched(&earlier.commit).iter().any(|run| runs.contains(run));
            let blocked = runs.iter().any(blocked);
            if blocked || (!plain(&job) && batch.iter().any(first)) {
                after_batch |= !blocked;
                behind.extend(runs);
                self.waiting.push(job);
            } else if plain(&job) {
                batch.push(job);
            } else {
                self.begin_user_sql(job, runs);
            }
        }
        if after_batch {
            // Somebody waits only for what is in this batch: come back right after it.
            self.under_way += 1;
            let _ = self.finished.0.send(Vec::new());
        }
        batch
    }

    fn begin_user_sql(&mut self, job: Job, runs: Vec<RunKey>) {
        self.under_way += 1;
        self.busy.extend(&runs);
        let (shared, finished) = (self.shared.clone(), self.finished.0.clone());
        tokio::spawn(async move {
            let outcome = user_sql::run(&shared, &job.commit).await;
            let _ = job.reply.send(outcome);
            let _ = finished.send(runs);
        });
    }

    async fn process(&mut self, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let mut replies = Vec::with_capacity(jobs.len());
        let mut commits = Vec::with_capacity(jobs.len());
        for job in jobs {
            commits.push(job.commit);
            replies.push(Some(job.reply));
        }
        let commits = Arc::new(commits);
        let batches = match commits.len() {
            1 => vec![vec![Group::single(0)]],
            _ => fold(&commits),
        };
        for batch in batches {
            for groups in chunks(batch, &commits) {
                for (index, outcome) in self.write(groups, &commits, false).await {
                    if let Some(reply) = replies[index].take() {
                        self.answer(index, &commits, outcome, reply);
                    }
                }
            }
        }
    }

    // A conflict may be the echo of a commit whose answer was lost. To find out takes another look,
    // for which nobody else has to wait: a guard that has failed once can never hold again.
    fn answer(
        &mut self,
        index: usize,
        commits: &Arc<Vec<Commit>>,
        outcome: Outcome,
        reply: oneshot::Sender<Outcome>,
    ) {
        let conflict = match outcome {
            Err(CommitError::Conflict(conflict)) => conflict,
            other => {
                let _ = reply.send(other);
                return;
            }
        };
        if commits[index].key == CommitKey::Nothing {
            let _ = reply.send(Err(CommitError::Conflict(conflict)));
            return;
        }
        // It counts as under way, so that the store is not closed before it is answered.
        self.under_way += 1;
        let (shared, finished) = (self.shared.clone(), self.finished.0.clone());
        let commits = commits.clone();
        tokio::spawn(async move {
            let conflict = CommitError::Conflict(conflict);
            let _ = reply.send(resolve(&shared, &commits[index], conflict).await);
            let _ = finished.send(Vec::new());
        });
    }

    // Writes groups that can share a batch; answers each of their commits.
    fn write<'a>(
        &'a mut self,
        groups: Vec<Group>,
        commits: &'a [Commit],
        sent_before: bool,
    ) -> BoxFuture<'a, Vec<(usize, Outcome)>> {
        Box::pin(async move {
            let refs: Vec<&Commit> = groups.iter().map(|group| group.commit(commits)).collect();
            match self.session.send(&refs, sent_before).await {
                Ok((answers, sent_before)) => {
                    self.shared.waker.publish(answers.wakeups);
                    self.spread(groups, commits, answers.results, sent_before).await
                }
                Err(Refused { error, sent_before })
                    if groups.len() == 1 && !groups[0].is_merged() =>
                {
                    let index = groups[0].members()[0];
                    let outcome = self.blamed(&commits[index], error, sent_before).await;
                    vec![(index, outcome)]
                }
                Err(Refused { error, sent_before }) => {
                    let error = error.as_ref().map(said);
                    tracing::debug!(?error, "a batch failed; each commit runs alone");
                    self.one_by_one(groups, commits, sent_before).await
                }
            }
        })
    }

    async fn spread(
        &mut self,
        groups: Vec<Group>,
        commits: &[Commit],
        results: Vec<Outcome>,
        sent_before: bool,
    ) -> Vec<(usize, Outcome)> {
        let mut outcomes = Vec::with_capacity(groups.len());
        for (group, result) in groups.into_iter().zip(results) {
            match result {
                Ok(whole) if group.is_merged() => {
                    let members = group.members().iter().copied();
                    outcomes.extend(members.zip(group.split(commits, whole).into_iter().map(Ok)));
                }
                // Each has its own answer, and those before the one that failed do hold.
                Err(error) if group.is_merged() && !is_store_error(&error) => {
                    outcomes.extend(self.one_by_one(vec![group], commits, sent_before).await);
                }
                result => {
                    let members = group.members().iter();
                    outcomes.extend(members.map(|index| (*index, result.clone())));
                }
            }
        }
        outcomes
    }

    async fn one_by_one(
        &mut self,
        groups: Vec<Group>,
        commits: &[Commit],
        sent_before: bool,
    ) -> Vec<(usize, Outcome)> {
        let mut indexes: Vec<usize> =
            groups.iter().flat_map(|group| group.members().iter().copied()).collect();
        indexes.sort_unstable();
        let mut outcomes = Vec::with_capacity(indexes.len());
        for index in indexes {
            outcomes.extend(self.write(vec![Group::single(index)], commits, sent_before).await);
        }
        outcomes
    }

    // A commit that the database refuses by itself, or whose answers are all lost.
    async fn blamed(
        &self,
        commit: &Commit,
        error: Option<tokio_postgres::Error>,
        sent_before: bool,
    ) -> Outcome {
        let Some(error) = error else {
            return Err(unknown("it was lost each time that it was sent"));
        };
        match classify(&error) {
            Failure::Constraint => broken(&self.shared, commit, &error, sent_before).await,
            _ if sent_before => Err(unknown(&said(&error))),
            _ => {
                let message = format!("PostgreSQL did not write the commit: {}", said(&error));
                Err(unavailable(crate::error::unavailable(message)))
            }
        }
    }
}

fn is_store_error(error: &CommitError) -> bool {
    matches!(error, CommitError::Unavailable(_) | CommitError::Unknown(_))
}

// The runs that it writes. Messages to them need not wait: nobody said which comes first.
fn touched(commit: &Commit) -> Vec<RunKey> {
    let created = commit.ops.iter().filter_map(|op| match op {
        Op::CreateRun(run) => Some(run.run_key),
        _ => None,
    });
    commit.run_key().into_iter().chain(created).collect()
}

// Splits a batch where its bodies would make one statement too large.
fn chunks(groups: Vec<Group>, commits: &[Commit]) -> Vec<Vec<Group>> {
    let mut chunks = Vec::with_capacity(1);
    let mut chunk = Vec::with_capacity(groups.len());
    let mut total = 0;
    for group in groups {
        let size: usize = group.members().iter().map(|index| size_of(&commits[*index])).sum();
        if total + size > BATCH_BYTES_MAX && !chunk.is_empty() {
            chunks.push(std::mem::take(&mut chunk));
            total = 0;
        }
        total += size;
        chunk.push(group);
    }
    chunks.push(chunk);
    chunks
}

fn size_of(commit: &Commit) -> usize {
    let body = |body: &Option<windlass_kernel::Body>| body.as_ref().map_or(0, |body| body.len());
    let op = |op: &Op| match op {
        Op::CreateRun(run) => run.input.len() + body(&run.state) + body(&run.output),
        Op::SetRun(change) => body(&change.output) + body(&change.error) + body(&change.state),
        Op::AppendEvent { event, .. } => event.payload.len(),
        Op::PutStep(step) => body(&step.input) + body(&step.result) + body(&step.error),
        Op::PutMessage(message) => body(&message.body),
        Op::Enqueue(task) => body(&task.body) + body(&task.errors),
        Op::Reschedule(change) => body(&change.errors),
        Op::DeadLetter(letter) => body(&letter.body) + body(&letter.errors),
        Op::PutLog(line) => body(&line.data) + line.message.len(),
        Op::ConsumeMessage { .. } | Op::Settle { .. } | Op::Requeue { .. } | Op::UserSql(_) => 0,
    };
    commit.ops.iter().map(|what| op(what) + 256).sum()
}
