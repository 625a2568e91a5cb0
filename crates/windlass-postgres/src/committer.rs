//! Group commit: a committer takes all commits that arrived while its previous batch was in flight.
//!
//! All commits of a run go to the same committer, so a holder may send several of them without
//! waiting. A caller is answered only when its data is durable.

mod mailbox;
mod resolve;
mod session;

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};
use windlass_kernel::fold::{Group, fold};
use windlass_kernel::{
    BodySource, Commit, CommitError, CommitKey, Committed, Op, RecordWrite, RunKey,
};

use crate::apply::unavailable;
use crate::error::{Failure, classify, error_text, unknown};
use crate::store::Shared;
use crate::user_sql;

use mailbox::Mailboxes;
use session::{BatchRefused, Session};

pub(crate) use mailbox::{KNOWN, UNREAD};
pub(crate) use resolve::{RESOLVE, SAME_NAME, answer_constraint, repeat_answer, resolve};
pub(crate) use session::decide;

/// The answer to a commit.
pub(crate) type Outcome = Result<Committed, CommitError>;

/// The approximate size of a batch in bytes. A parameter must stay well below PostgreSQL's limit of
/// 1 GB.
const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A commit and the channel for its answer.
pub(crate) struct Job {
    pub(crate) commit: Commit,
    pub(crate) reply: oneshot::Sender<Outcome>,
}

/// Writes batches over its own connection.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    jobs: mpsc::Receiver<Job>,
    session: Session,
    mailboxes: Mailboxes,
    // Runs whose commit with user SQL is running in another task, and the jobs that must wait for
    // them.
    busy: HashSet<RunKey>,
    waiting: Vec<Job>,
    in_flight: usize,
    finished: (mpsc::UnboundedSender<Vec<RunKey>>, mpsc::UnboundedReceiver<Vec<RunKey>>),
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, jobs: mpsc::Receiver<Job>) -> Self {
        Self {
            session: Session::new(shared.clone()),
            shared,
            jobs,
            mailboxes: Mailboxes::default(),
            busy: HashSet::new(),
            waiting: Vec::new(),
            in_flight: 0,
            finished: mpsc::unbounded_channel(),
        }
    }

    /// Runs until the queue is closed and all jobs are answered. After a panic the callers of the
    /// batch get `Unknown`, because their channels are dropped, and the committer goes on.
    pub(crate) async fn run(mut self) {
        let shared = self.shared.clone();
        while shared.panics.catch("a committer", self.run_until_closed()).await.is_none() {
            // The connection may be in the middle of a call.
            self.session = Session::new(shared.clone());
        }
    }

    async fn run_until_closed(&mut self) {
        let max = self.shared.options.batch_max;
        let mut jobs = Vec::with_capacity(max);
        let mut open = true;
        while open || self.in_flight > 0 {
            tokio::select! {
                biased;
                Some(runs) = self.finished.1.recv(), if self.in_flight > 0 => {
                    self.in_flight -= 1;
                    for run_key in &runs {
                        self.busy.remove(run_key);
                    }
                    jobs.append(&mut self.waiting);
                }
                count = self.jobs.recv_many(&mut jobs, max), if open => open = count > 0,
            }
            let (admitted, undecided) =
                self.mailboxes.admit(&self.shared, std::mem::take(&mut jobs)).await;
            let batch = self.take_startable(admitted);
            self.process(batch).await;
            if !undecided.is_empty() {
                self.handle_after_batch(undecided);
            }
        }
    }

    // Returns the jobs that can be written now. A commit with user SQL runs in its own task,
    // because the user's statements may take long; later commits of its runs wait, in order.
    fn take_startable(&mut self, jobs: Vec<Job>) -> Vec<Job> {
        let plain = |job: &Job| job.commit.user_sql().next().is_none();
        if self.busy.is_empty() && self.waiting.is_empty() && jobs.iter().all(plain) {
            return jobs;
        }
        // Jobs that are waiting already come first.
        let mut behind: HashSet<RunKey> =
            self.waiting.iter().flat_map(|job| written_runs(&job.commit)).collect();
        let mut batch = Vec::new();
        let mut after_batch = false;
        for job in jobs {
            let runs = written_runs(&job.commit);
            let blocked =
                |run_key: &RunKey| self.busy.contains(run_key) || behind.contains(run_key);
            // An earlier commit of this batch must be written before it.
            let first =
                |earlier: &Job| written_runs(&earlier.commit).iter().any(|run| runs.contains(run));
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
            self.handle_after_batch(Vec::new());
        }
        batch
    }

    // Handles jobs, and those that wait only for the current batch, right after it.
    fn handle_after_batch(&mut self, jobs: Vec<Job>) {
        self.waiting.extend(jobs);
        self.in_flight += 1;
        let _ = self.finished.0.send(Vec::new());
    }

    fn begin_user_sql(&mut self, job: Job, runs: Vec<RunKey>) {
        self.in_flight += 1;
        self.busy.extend(&runs);
        let (shared, finished) = (self.shared.clone(), self.finished.0.clone());
        tokio::spawn(async move {
            let work = user_sql::run(&shared, &job.commit);
            if let Some(outcome) = shared.panics.catch("a commit with user SQL", work).await {
                let _ = job.reply.send(outcome);
            }
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

    // A conflict may mean that this commit was written before and its answer was lost. The query
    // that finds out runs in its own task, so that others do not wait for it. This is safe because
    // the rows of runs, events and messages last. Records do not: the batch itself finds a repeated
    // write of a record, and only the messages of that commit are looked up.
    fn answer(
        &mut self,
        index: usize,
        commits: &Arc<Vec<Commit>>,
        outcome: Outcome,
        reply: oneshot::Sender<Outcome>,
    ) {
        let commit = &commits[index];
        let conflict = match outcome {
            Err(CommitError::Conflict(conflict)) if commit.key != CommitKey::Nothing => {
                Some(conflict)
            }
            Ok(committed) if committed.repeated && !committed.messages.is_empty() => None,
            other => {
                let _ = reply.send(other);
                return;
            }
        };
        // Counts as in flight, so that the store is not closed before the answer.
        self.in_flight += 1;
        let (shared, finished) = (self.shared.clone(), self.finished.0.clone());
        let commits = commits.clone();
        tokio::spawn(async move {
            let work = async {
                match conflict {
                    Some(conflict) => {
                        resolve(&shared, &commits[index], CommitError::Conflict(conflict)).await
                    }
                    None => repeat_answer(&shared, &commits[index]).await,
                }
            };
            if let Some(outcome) = shared.panics.catch("the check of a conflict", work).await {
                let _ = reply.send(outcome);
            }
            let _ = finished.send(Vec::new());
        });
    }

    // Writes groups of one batch and returns the outcome of each commit.
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
                    self.assign_results(groups, commits, answers.results, sent_before).await
                }
                Err(BatchRefused { error, sent_before })
                    if groups.len() == 1 && !groups[0].is_merged() =>
                {
                    let index = groups[0].members()[0];
                    let outcome = self.answer_refused(&commits[index], error, sent_before).await;
                    vec![(index, outcome)]
                }
                Err(BatchRefused { error, sent_before }) => {
                    let error = error.as_ref().map(error_text);
                    tracing::debug!(?error, "a batch failed; writing each commit separately");
                    self.write_separately(groups, commits, sent_before).await
                }
            }
        })
    }

    async fn assign_results(
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
                // Each member needs its own answer: those before the failed one may succeed.
                Err(error) if group.is_merged() && !is_store_error(&error) => {
                    outcomes.extend(self.write_separately(vec![group], commits, sent_before).await);
                }
                Err(CommitError::Conflict(conflict))
                    if sent_before && group.commit(commits).is_outcome_open(&conflict) =>
                {
                    let error = unknown(&format!("an earlier answer was lost, and {conflict}"));
                    outcomes.extend(group.members().iter().map(|at| (*at, Err(error.clone()))));
                }
                result => {
                    let members = group.members().iter();
                    outcomes.extend(members.map(|index| (*index, result.clone())));
                }
            }
        }
        outcomes
    }

    async fn write_separately(
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

    // Answers a single commit that the database refuses, or whose answers were all lost.
    async fn answer_refused(
        &self,
        commit: &Commit,
        error: Option<tokio_postgres::Error>,
        sent_before: bool,
    ) -> Outcome {
        let Some(error) = error else {
            return Err(unknown("the connection was lost each time the commit was sent"));
        };
        match classify(&error) {
            Failure::Constraint => {
                answer_constraint(&self.shared, commit, &error, sent_before).await
            }
            _ if sent_before => Err(unknown(&error_text(&error))),
            _ => {
                let message =
                    format!("PostgreSQL did not write the commit: {}", error_text(&error));
                Err(unavailable(crate::error::unavailable(message)))
            }
        }
    }
}

fn is_store_error(error: &CommitError) -> bool {
    matches!(error, CommitError::Unavailable(_) | CommitError::Unknown(_))
}

// The runs that a commit writes. Messages to them need not wait: their order is not defined.
fn written_runs(commit: &Commit) -> Vec<RunKey> {
    let created = commit.ops.iter().filter_map(|op| match op {
        Op::CreateRun(run) => Some(run.run_key),
        _ => None,
    });
    commit.run_key().into_iter().chain(created).collect()
}

// Splits a batch whose bodies would make one statement too large.
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
    // Of a large body, only the reference is in its row.
    let bytes = |body: &windlass_kernel::Body| body.bytes.len();
    let body = |body: &Option<windlass_kernel::Body>| body.as_ref().map_or(0, bytes);
    let op = |op: &Op| match op {
        Op::CreateRun(run) => bytes(&run.input) + body(&run.state) + body(&run.output),
        Op::SetRun(change) => body(&change.output) + body(&change.error) + body(&change.state),
        Op::AppendEvent { event, .. } => event.payload.len(),
        Op::PutStep(step) => body(&step.input) + body(&step.result) + body(&step.error),
        Op::PutMessage(message) => body(&message.body),
        Op::Enqueue(task) => body(&task.body) + body(&task.errors),
        Op::Reschedule(change) => body(&change.errors),
        Op::DeadLetter(letter) => body(&letter.body) + body(&letter.errors),
        Op::PutLog(line) => body(&line.data) + line.message.len(),
        Op::Record(record) => match &record.write {
            RecordWrite::Put(put) => bytes(&put.body) * if put.keep.is_some() { 2 } else { 1 },
            RecordWrite::Check | RecordWrite::Remove { .. } => 0,
        },
        Op::PutBody(put) => match put.source() {
            BodySource::Bytes(bytes) => bytes.len(),
            BodySource::Tree(_) => 0,
        },
        Op::ConsumeMessage { .. } | Op::Settle { .. } | Op::Requeue { .. } | Op::UserSql(_) => 0,
    };
    commit.ops.iter().map(|what| op(what) + 256).sum()
}
