//! The committer: the single writer thread, its batches, and the handling of batches that fail.

mod checkpoint;
mod units;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::Shared;
use rusqlite::config::DbConfig;
use rusqlite::params;
use windlass_kernel::{
    Commit, CommitError, CommitResults, Committed, Error, ErrorCode, ErrorKind, Wakeup,
};

use crate::apply::{Buffers, Writer, answer_if_written};
use crate::clock::StoreClock;
use crate::error::{self, UnitError};
use crate::load::LocalReader;
use crate::options::Options;
use crate::schema::{self, Opened};
use crate::user_sql::Sandbox;
use crate::wake::WakeNotifier;

use checkpoint::{Checkpointer, Waited, WalSize};
use units::{CallOf, Outcome, Replier, Unit};

/// The handle to the writer thread.
pub(crate) struct Committer {
    queue: Sender<Job>,
    waiting_max: usize,
    closed: Arc<AtomicBool>,
    panics: Arc<AtomicU64>,
    // Cancelled if the writer ends without a failure.
    failure: Shared<oneshot::Receiver<Arc<Error>>>,
}

/// An item in the writer's queue.
enum Job {
    Unit(Unit),
    Close(oneshot::Sender<()>),
}

impl Committer {
    /// Starts the writer thread.
    pub(crate) fn start(
        opened: Opened,
        options: &Options,
        clock: Arc<StoreClock>,
        notifier: WakeNotifier,
        local_reader: LocalReader,
    ) -> Result<(Committer, JoinHandle<()>), Error> {
        let (queue, jobs) = unbounded();
        let (mut closing, failure) = CloseGuard::new(jobs.clone());
        let closed = closing.closed.clone();
        let panics = Arc::new(AtomicU64::new(0));
        let counted = panics.clone();
        let (options, waiting_max) = (options.clone(), options.waiting_max);
        let thread = schema::spawn("windlass-sqlite", move || {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                write_batches(opened, &options, &clock, &notifier, &local_reader, &jobs, &counted)
            }));
            let ended = ended.unwrap_or_else(|_| {
                let message = "the writer thread panicked, so the store is closed";
                Err(Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, message))
            });
            if let Err(error) = ended {
                tracing::error!(%error, "the writer thread failed; the store is closed");
                closing.failure = Some(error);
            }
            drop(closing);
        })?;
        Ok((Committer { queue, waiting_max, closed, panics, failure }, thread))
    }

    /// Starts a thread that keeps the file lock and refuses all writes.
    pub(crate) fn start_read_only(opened: Opened) -> Result<(Committer, JoinHandle<()>), Error> {
        let (queue, jobs) = unbounded();
        let (closing, failure) = CloseGuard::new(jobs.clone());
        let closed = closing.closed.clone();
        let thread = schema::spawn("windlass-sqlite", move || {
            let mut done = None;
            for job in jobs {
                match job {
                    Job::Unit(unit) => unit.refuse(&error::read_only()),
                    Job::Close(reply) => {
                        done = Some(reply);
                        break;
                    }
                }
            }
            drop((closing, opened));
            if let Some(reply) = done {
                let _ = reply.send(());
            }
        })?;
        let (panics, waiting_max) = (Arc::default(), usize::MAX);
        Ok((Committer { queue, waiting_max, closed, panics, failure }, thread))
    }

    /// Resolves with the reason when the writer has failed. Never resolves otherwise.
    pub(crate) async fn failed(&self) -> Error {
        match self.failure.clone().await {
            Ok(error) => {
                let message = format!("the store closed itself: {}", error::copy(&error).message());
                Error::new(ErrorKind::Closed, ErrorCode::StoreClosed, message)
            }
            Err(_) => std::future::pending().await,
        }
    }

    /// How many batches panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Enqueues commits. The receiver is cancelled if the writer thread dies before it answers.
    pub(crate) fn commit(
        &self,
        commits: Vec<Commit>,
    ) -> Result<oneshot::Receiver<CommitResults>, Error> {
        let user_sql = commits.iter().any(|commit| commit.user_sql().next().is_some());
        let (reply, answer) = oneshot::channel();
        self.enqueue_unit(Unit::Commits { commits, user_sql, reply })?;
        Ok(answer)
    }

    /// Enqueues another call.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Writer<'_>) -> Result<T, UnitError> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        let call = CallOf { work, result: None, reply: Some(reply) };
        self.enqueue_unit(Unit::Call(RefCell::new(Box::new(call))))?;
        Ok(answer)
    }

    /// Asks the writer to stop after all calls that were enqueued before.
    pub(crate) fn close(&self) -> Option<oneshot::Receiver<()>> {
        let (reply, done) = oneshot::channel();
        let enqueued = self.enqueue(Job::Close(reply));
        self.closed.store(true, Ordering::Release);
        enqueued.ok().map(|()| done)
    }

    /// Whether the writer accepts no more calls.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    // Callers wait for their answers, but one that gives up leaves its job in the queue.
    fn enqueue_unit(&self, unit: Unit) -> Result<(), Error> {
        if self.queue.len() >= self.waiting_max {
            return Err(error::too_many_waiting("the writer", self.waiting_max));
        }
        self.enqueue(Job::Unit(unit))
    }

    fn enqueue(&self, job: Job) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(error::closed());
        }
        self.queue.send(job).map_err(|_| error::closed())
    }
}

// However the writer thread ends, this answers the calls in its queue and refuses later ones.
struct CloseGuard {
    closed: Arc<AtomicBool>,
    jobs: Receiver<Job>,
    failure: Option<Error>,
    report: Option<oneshot::Sender<Arc<Error>>>,
}

impl CloseGuard {
    fn new(jobs: Receiver<Job>) -> (Self, Shared<oneshot::Receiver<Arc<Error>>>) {
        let (report, failure) = oneshot::channel();
        let guard = Self { closed: Arc::default(), jobs, failure: None, report: Some(report) };
        (guard, failure.shared())
    }
}

impl Drop for CloseGuard {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // A waiting call may be the repetition of one that was written.
        let answer = match &self.failure {
            Some(error) => error::closed_by(error),
            None => error::closed(),
        };
        for job in self.jobs.try_iter() {
            match job {
                Job::Unit(unit) => unit.refuse(&answer),
                Job::Close(reply) => drop(reply.send(())),
            }
        }
        if let (Some(error), Some(report)) = (self.failure.take(), self.report.take()) {
            let _ = report.send(Arc::new(error));
        }
    }
}

fn write_batches(
    opened: Opened,
    options: &Options,
    clock: &StoreClock,
    notifier: &WakeNotifier,
    local_reader: &LocalReader,
    jobs: &Receiver<Job>,
    panics: &AtomicU64,
) -> Result<(), Error> {
    let Opened { mut conn, path, lock, .. } = opened;
    let log = WalSize::watch(&mut conn)?;
    let sandbox = Sandbox::install(&mut conn, options.user_sql_max)?;
    let checkpointer = Checkpointer::start(path, options.checkpoint_fault.clone())?;
    let replier = Replier::start()?;
    let writer = Writer::new(&conn, &sandbox, &options.limits).map_err(error::sql)?;
    let mut batcher = Batcher {
        writer,
        clock,
        notifier,
        local_reader,
        options,
        seen_version: None,
        log,
        checkpointer,
        replier,
        is_full: false,
        panics,
    };
    let closing = batcher.run(jobs);
    drop(batcher);
    drop(sandbox);
    if closing.is_err() {
        // SQLite checkpoints when the last connection closes. After a failed sync that would copy
        // only the pages that no earlier checkpoint copied, and then delete the log. Keep the log:
        // opening the store again copies all of it.
        let kept = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        if !matches!(kept, Ok(true)) {
            // A connection that is never closed keeps the log until the process ends.
            std::mem::forget(conn);
            drop(lock);
            return closing.map(|_| ());
        }
    }
    let closed = conn.close().map_err(|(_, error)| error::sql(error));
    drop(lock);
    if let Some(reply) = closing? {
        let _ = reply.send(());
    }
    closed
}

struct Batcher<'c> {
    writer: Writer<'c>,
    clock: &'c StoreClock,
    notifier: &'c WakeNotifier,
    local_reader: &'c LocalReader,
    options: &'c Options,
    // SQLite's `data_version`, which changes when another connection writes to the file.
    seen_version: Option<i64>,
    log: WalSize,
    checkpointer: Checkpointer,
    replier: Replier,
    // The last batch failed because the disk is full.
    is_full: bool,
    panics: &'c AtomicU64,
}

impl<'c> Batcher<'c> {
    fn run(&mut self, jobs: &Receiver<Job>) -> Result<Option<oneshot::Sender<()>>, Error> {
        let mut held_back = None;
        loop {
            let first = match held_back.take() {
                Some(job) => job,
                None => match self.checkpointer.wait_for(jobs) {
                    Waited::Job(Ok(job)) => job,
                    Waited::Job(Err(_)) => return Ok(None),
                    Waited::Checkpointed => {
                        self.checkpoint()?;
                        continue;
                    }
                },
            };
            let first = match first {
                Job::Unit(unit) => unit,
                Job::Close(reply) => return Ok(Some(reply)),
            };
            let mut size = first.len();
            let mut batch = vec![first];
            while !batch[0].has_user_sql() && size < self.options.batch_commits_max {
                match jobs.try_recv() {
                    Ok(Job::Unit(unit)) if !unit.has_user_sql() => {
                        size += unit.len();
                        batch.push(unit);
                    }
                    Ok(other) => {
                        held_back = Some(other);
                        break;
                    }
                    Err(_) => break,
                }
            }
            self.write_or_recover(batch)?;
            self.checkpoint()?;
        }
    }

    // After a panic the callers of the batch get `Unknown`, because their channels are dropped. The
    // writer goes on with the next batch.
    fn write_or_recover(&mut self, batch: Vec<Unit>) -> Result<(), Error> {
        match catch_unwind(AssertUnwindSafe(|| self.write(batch))) {
            Ok(written) => written,
            Err(_) => {
                self.note_panic();
                self.writer.check_steps_first = false;
                let rolled_back = self.rollback();
                self.notifier.notify(vec![Wakeup::Missed]);
                match rolled_back {
                    Err(BatchError::Lost(error)) => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }

    fn note_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!("the writer panicked in a batch; it rolls back and goes on");
    }

    // Runs the work of one or more units. A panic is an error of these units.
    fn catch<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|_| {
            self.note_panic();
            Err(UnitError::Kernel(error::panicked()))
        })
    }

    fn write(&mut self, batch: Vec<Unit>) -> Result<(), Error> {
        self.writer.now = self.clock.now();
        self.writer.has_listeners = self.notifier.has_listeners();
        if self.is_full {
            self.make_room()?;
        }
        if batch[0].has_user_sql() {
            return self.write_user_sql(batch);
        }
        let mut written = self.write_batch(&batch);
        // The pages that the checkpoint freed may be enough for this batch.
        if self.note_full(&written) && self.make_room()? {
            written = self.write_batch(&batch);
            self.note_full(&written);
        }
        match written {
            Ok(outcomes) => {
                self.notify_listeners();
                self.replier.send(batch.into_iter().zip(outcomes).collect());
                Ok(())
            }
            Err(BatchError::Lost(error)) => {
                // Whether the commits are on disk is unknown. The senders find out by sending them
                // again after the store is reopened.
                for unit in batch {
                    unit.refuse(&error);
                }
                Err(error)
            }
            Err(BatchError::Failed(error)) => {
                let error = error.into_error();
                for unit in batch {
                    unit.refuse(&error);
                }
                Ok(())
            }
        }
    }

    fn write_batch(&mut self, batch: &[Unit]) -> Result<Vec<Outcome>, BatchError> {
        let written = match self.write_together(batch) {
            Err(error) if !error.is_fatal() && !error.affects_batch() => {
                self.write_with_savepoints(batch)
            }
            other => other,
        };
        written.map_err(BatchError::or_unsynced)
    }

    // The normal case: all units in one transaction without savepoints.
    fn write_together(&mut self, batch: &[Unit]) -> Result<Vec<Outcome>, BatchError> {
        self.begin()?;
        let before = self.writer.conn.total_changes();
        let done = self.catch(|batcher| batcher.units(batch));
        match done {
            Ok(outcomes) => {
                self.commit(before)?;
                Ok(outcomes)
            }
            Err(error) => {
                self.rollback()?;
                Err(BatchError::Failed(error))
            }
        }
    }

    fn units(&mut self, batch: &[Unit]) -> Result<Vec<Outcome>, UnitError> {
        let mut buffers = Buffers::default();
        let mut outcomes = Vec::with_capacity(batch.len());
        for unit in batch {
            outcomes.push(match unit {
                Unit::Commits { commits, .. } => {
                    let mut results = Vec::with_capacity(commits.len());
                    for commit in commits {
                        results.push(self.writer.apply_or_answer(&mut buffers, commit)?);
                    }
                    Outcome::Commits(results)
                }
                Unit::Call(call) => {
                    call.borrow_mut().run(&mut self.writer)?;
                    Outcome::Call(Ok(()))
                }
            });
        }
        self.writer.finish(&mut buffers)?;
        Ok(outcomes)
    }

    // Used after a unit of the batch failed: each commit gets a savepoint, so that it fails
    // separately.
    fn write_with_savepoints(&mut self, batch: &[Unit]) -> Result<Vec<Outcome>, BatchError> {
        let mut poisoned = PoisonedCommits::new();
        loop {
            if let Some(outcomes) = self.try_savepoints(batch, &mut poisoned)? {
                return Ok(outcomes);
            }
        }
    }

    // Returns `None` if the failure of one commit ended the transaction of the whole batch. That
    // commit is now in `poisoned`, and the caller tries again without it.
    fn try_savepoints(
        &mut self,
        batch: &[Unit],
        poisoned: &mut PoisonedCommits,
    ) -> Result<Option<Vec<Outcome>>, BatchError> {
        self.begin()?;
        let before = self.writer.conn.total_changes();
        self.writer.check_steps_first = true;
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut failed = None;
        for (index, unit) in batch.iter().enumerate() {
            match self.apply_unit(unit, index, poisoned) {
                Ok(outcome) => outcomes.push(outcome),
                Err((n, error)) => {
                    failed = Some(((index, n), error));
                    break;
                }
            }
        }
        self.writer.check_steps_first = false;
        let Some((position, error)) = failed else {
            self.commit(before)?;
            return Ok(Some(outcomes));
        };
        let has_ended = self.writer.conn.is_autocommit();
        self.rollback()?;
        if error.affects_batch() || !has_ended {
            return Err(BatchError::Failed(error));
        }
        poisoned.insert(position, error.into_commit_error());
        Ok(None)
    }

    fn apply_unit(
        &mut self,
        unit: &Unit,
        index: usize,
        poisoned: &PoisonedCommits,
    ) -> Result<Outcome, (usize, UnitError)> {
        match unit {
            Unit::Commits { commits, .. } => {
                let mut results = Vec::with_capacity(commits.len());
                for (n, commit) in commits.iter().enumerate() {
                    if let Some(error) = poisoned.get(&(index, n)) {
                        results.push(Err(error.clone()));
                        continue;
                    }
                    let written = self.in_savepoint(|writer| {
                        let mut buffers = Buffers::default();
                        let committed = writer.apply(&mut buffers, commit)?;
                        writer.finish(&mut buffers)?;
                        Ok(committed)
                    });
                    let written = written.map_err(|error| (n, error))?;
                    let written = match written {
                        Err(UnitError::Sql(error)) if commit.is_unguarded() => {
                            let found = answer_if_written(&mut self.writer, commit);
                            found.map_err(|error| (n, error))?.ok_or(UnitError::Sql(error))
                        }
                        other => other,
                    };
                    results.push(written.map_err(UnitError::into_commit_error));
                }
                Ok(Outcome::Commits(results))
            }
            Unit::Call(_) if let Some(error) = poisoned.get(&(index, 0)) => {
                let error = Error::new(error.kind(), error.code(), error.to_string());
                Ok(Outcome::Call(Err(error)))
            }
            Unit::Call(call) => {
                let written = self.in_savepoint(|writer| {
                    call.borrow_mut().run(writer)?;
                    writer.finish(&mut Buffers::default())
                });
                let written = written.map_err(|error| (0, error))?;
                Ok(Outcome::Call(written.map_err(UnitError::into_error)))
            }
        }
    }

    // The outer error affects the whole batch, the inner one only this unit.
    fn in_savepoint<T>(
        &mut self,
        work: impl FnOnce(&mut Writer<'c>) -> Result<T, UnitError>,
    ) -> Result<Result<T, UnitError>, UnitError> {
        let conn = self.writer.conn;
        conn.prepare_cached("SAVEPOINT one")?.execute([])?;
        let wakeups = std::mem::take(&mut self.writer.wakeups);
        let done = self.catch(|batcher| work(&mut batcher.writer));
        if let Err(error) = done {
            if error.affects_batch() || conn.is_autocommit() {
                return Err(error);
            }
            conn.prepare_cached("ROLLBACK TO one")?.execute([])?;
            conn.prepare_cached("RELEASE one")?.execute([])?;
            self.writer.clear_caches();
            self.writer.wakeups = wakeups;
            return Ok(Err(error));
        }
        conn.prepare_cached("RELEASE one")?.execute([])?;
        self.writer.wakeups.extend(wakeups);
        Ok(done)
    }

    // A call with user SQL: each commit has its own transaction, in order.
    fn write_user_sql(&mut self, batch: Vec<Unit>) -> Result<(), Error> {
        for unit in batch {
            let Unit::Commits { commits, reply, .. } = unit else { continue };
            let mut results = Vec::with_capacity(commits.len());
            let mut lost = None;
            for commit in &commits {
                if lost.is_some() {
                    results.push(Err(error::commit_error(error::closed())));
                    continue;
                }
                let written = self.write_one(commit).map_err(BatchError::or_unsynced);
                self.note_full(&written);
                results.push(match written {
                    Ok(committed) => {
                        self.notify_listeners();
                        Ok(committed)
                    }
                    Err(BatchError::Failed(error)) => Err(error.into_commit_error()),
                    Err(BatchError::Lost(error)) => {
                        let answer = error::commit_error(error::copy(&error));
                        lost = Some(error);
                        Err(answer)
                    }
                });
            }
            let _ = reply.send(results);
            if let Some(error) = lost {
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_one(&mut self, commit: &Commit) -> Result<Committed, BatchError> {
        self.begin()?;
        let before = self.writer.conn.total_changes();
        self.writer.check_steps_first = true;
        let mut buffers = Buffers::default();
        let done = self.catch(|batcher| {
            let committed = batcher.writer.apply(&mut buffers, commit)?;
            batcher.writer.finish(&mut buffers)?;
            Ok(committed)
        });
        self.writer.check_steps_first = false;
        match done {
            Ok(committed) => match self.commit(before) {
                // A deferred constraint of the user's tables fails only at COMMIT.
                Err(BatchError::Failed(UnitError::Sql(error)))
                    if !error::is_environment(&error) =>
                {
                    let unique = error::is_unique(&error);
                    let message = error.to_string();
                    Err(BatchError::Failed(UnitError::Commit(CommitError::UserSql {
                        unique,
                        message,
                    })))
                }
                other => other.map(|()| committed),
            },
            Err(error) => {
                self.rollback()?;
                Err(BatchError::Failed(error))
            }
        }
    }

    fn begin(&mut self) -> Result<(), BatchError> {
        let conn = self.writer.conn;
        conn.prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut s| s.execute([]))
            .map_err(UnitError::Sql)?;
        // Another connection (a SQL prompt) may have changed rows that the writer has cached.
        let version = conn
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut s| s.query_row([], |row| row.get(0)));
        match version {
            Ok(version) => {
                if self.seen_version.is_some_and(|seen| seen != version) {
                    self.writer.runs.clear();
                }
                self.seen_version = Some(version);
                Ok(())
            }
            Err(error) => {
                self.rollback()?;
                Err(BatchError::Failed(UnitError::Sql(error)))
            }
        }
    }

    // Makes the batch durable. On an error nothing of it was written, except for
    // `BatchError::Lost`.
    fn commit(&mut self, changes_before: u64) -> Result<(), BatchError> {
        let conn = self.writer.conn;
        let is_sent = Cell::new(false);
        let done = || -> rusqlite::Result<()> {
            // A batch that changed nothing writes nothing, so it needs no sync.
            let wrote = conn.total_changes() != changes_before;
            if wrote {
                let sql = "UPDATE meta SET value = MAX(value, ?1) WHERE name = 'clock'";
                let now = self.writer.now.as_micros();
                conn.prepare_cached(sql)?.execute(params![now])?;
            }
            let mut commit = conn.prepare_cached("COMMIT")?;
            is_sent.set(true);
            checkpoint::inject(self.options.commit_fault.as_ref())?;
            commit.execute([])?;
            if wrote {
                self.local_reader.note_commit();
            }
            Ok(())
        };
        match done() {
            Ok(()) => Ok(()),
            Err(error) if is_sent.get() && error::is_undecided(&error) => {
                Err(BatchError::Lost(error::unsynced(error)))
            }
            Err(error) => {
                self.rollback()?;
                Err(BatchError::Failed(UnitError::Sql(error)))
            }
        }
    }

    fn rollback(&mut self) -> Result<(), BatchError> {
        self.writer.clear_caches();
        let conn = self.writer.conn;
        // SQLite rolls back by itself after some errors.
        if conn.is_autocommit() {
            return Ok(());
        }
        let done = conn.prepare_cached("ROLLBACK").and_then(|mut s| s.execute([]));
        match done {
            Ok(_) => Ok(()),
            Err(_) if conn.is_autocommit() => Ok(()),
            Err(error) => {
                let message = "cannot commit or roll back a transaction; the store is closed";
                let error =
                    Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, message)
                        .with_source(error);
                Err(BatchError::Lost(error))
            }
        }
    }

    fn notify_listeners(&mut self) {
        let wakeups: Vec<Wakeup> = self.writer.wakeups.drain().collect();
        self.notifier.notify(wakeups);
    }
}

/// Commits whose failure ended a transaction, by unit and index in the unit, with their answers.
type PoisonedCommits = HashMap<(usize, usize), CommitError>;

/// The error of a batch: nothing was written, or the result is unknown.
enum BatchError {
    Failed(UnitError),
    Lost(Error),
}

impl From<UnitError> for BatchError {
    fn from(error: UnitError) -> Self {
        BatchError::Failed(error)
    }
}

impl BatchError {
    fn is_fatal(&self) -> bool {
        matches!(self, BatchError::Lost(_))
    }

    // A failed sync leaves the disk in doubt, whichever statement met it.
    fn or_unsynced(self) -> Self {
        match self {
            BatchError::Failed(UnitError::Sql(error)) if error::is_unsynced(&error) => {
                BatchError::Lost(error::unsynced(error))
            }
            other => other,
        }
    }

    fn is_full(&self) -> bool {
        matches!(self, BatchError::Failed(UnitError::Sql(error)) if error::is_full(error))
    }

    fn affects_batch(&self) -> bool {
        matches!(self, BatchError::Failed(error) if error.affects_batch())
    }
}

impl Writer<'_> {
    // A commit error is the answer of that commit. Any other error fails the batch.
    fn apply_or_answer<'b>(
        &mut self,
        buffers: &mut Buffers<'b>,
        commit: &'b Commit,
    ) -> Result<Result<Committed, CommitError>, UnitError> {
        match self.apply(buffers, commit) {
            Ok(committed) => Ok(Ok(committed)),
            Err(UnitError::Commit(error)) => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }
}
