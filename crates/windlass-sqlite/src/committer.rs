//! The committer: the one thread that writes, in batches, and what becomes of a batch that fails.

mod checkpoint;
mod units;

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use futures::channel::oneshot;
use rusqlite::{ffi, params};
use windlass_kernel::{
    Clock, Commit, CommitError, CommitResults, Committed, Error, ErrorKind, Timestamp, Wakeup,
};

use crate::apply::{Buffers, Writer, found_again};
use crate::error::{self, Fail};
use crate::load::Near;
use crate::options::Options;
use crate::schema::{self, Opened};
use crate::user_sql::Fence;
use crate::wake::Bell;

use checkpoint::{Checkpointer, Log};
use units::{Answers, CallOf, Outcome, Unit};

/// The store's clock: the system's, but never behind the last commit.
pub(crate) struct StoreClock {
    source: Clock,
    last: AtomicI64,
}

impl StoreClock {
    pub(crate) fn new(source: Clock, last: Timestamp) -> Self {
        Self { source, last: AtomicI64::new(last.as_micros()) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let read = (self.source)().as_micros();
        let last = self.last.fetch_max(read, Ordering::AcqRel);
        Timestamp::from_micros(last.max(read))
    }
}

/// Where calls that write are left.
pub(crate) struct Committer {
    queue: Sender<Job>,
    closed: Arc<AtomicBool>,
}

/// What is left for the writer.
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
        bell: Bell,
        near: Near,
    ) -> Result<(Committer, JoinHandle<()>), Error> {
        let (queue, jobs) = unbounded();
        let closed = Arc::new(AtomicBool::new(false));
        let state = closed.clone();
        let options = options.clone();
        let thread = schema::spawn("windlass-sqlite", move || {
            let closed = Closing { closed: state, jobs: jobs.clone() };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                write_batches(opened, &options, &clock, &bell, &near, &jobs)
            }));
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the store closes"),
                Err(_) => tracing::error!("the store's writer panicked; the store closes"),
            }
            drop(closed);
        })?;
        Ok((Committer { queue, closed }, thread))
    }

    /// Starts a thread that keeps the lock and refuses whatever is left for it.
    pub(crate) fn idle(opened: Opened) -> Result<(Committer, JoinHandle<()>), Error> {
        let (queue, jobs) = unbounded();
        let closed = Arc::new(AtomicBool::new(false));
        let closing = Closing { closed: closed.clone(), jobs: jobs.clone() };
        let thread = schema::spawn("windlass-sqlite", move || {
            let mut done = None;
            for job in jobs {
                match job {
                    Job::Unit(unit) => unit.refuse(&error::inspected()),
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
        Ok((Committer { queue, closed }, thread))
    }

    /// Leaves commits; the receiver is cancelled if the writer dies on them.
    pub(crate) fn commit(
        &self,
        commits: Vec<Commit>,
    ) -> Result<oneshot::Receiver<CommitResults>, Error> {
        let user_sql = commits.iter().any(|commit| commit.user_sql().next().is_some());
        let (reply, answer) = oneshot::channel();
        self.leave(Job::Unit(Unit::Commits { commits, user_sql, reply }))?;
        Ok(answer)
    }

    /// Leaves another call.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Writer<'_>) -> Result<T, Fail> + Send + 'static,
    ) -> Result<oneshot::Receiver<Result<T, Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        let call = CallOf { work, result: None, reply: Some(reply) };
        self.leave(Job::Unit(Unit::Call(RefCell::new(Box::new(call)))))?;
        Ok(answer)
    }

    /// Asks the writer to end after what was left before.
    pub(crate) fn close(&self) -> Option<oneshot::Receiver<()>> {
        let (reply, done) = oneshot::channel();
        let left = self.leave(Job::Close(reply));
        self.closed.store(true, Ordering::Release);
        left.ok().map(|()| done)
    }

    /// Whether the writer takes no more calls.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn leave(&self, job: Job) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(error::closed());
        }
        self.queue.send(job).map_err(|_| error::closed())
    }
}

// However the writer ends, those who wait in its queue get an answer, and later ones find it closed.
struct Closing {
    closed: Arc<AtomicBool>,
    jobs: Receiver<Job>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        for job in self.jobs.try_iter() {
            match job {
                Job::Unit(unit) => unit.refuse(&error::closed()),
                Job::Close(reply) => drop(reply.send(())),
            }
        }
    }
}

fn write_batches(
    opened: Opened,
    options: &Options,
    clock: &StoreClock,
    bell: &Bell,
    near: &Near,
    jobs: &Receiver<Job>,
) -> Result<(), Error> {
    let Opened { mut conn, path, lock, .. } = opened;
    let log = Log::watch(&mut conn)?;
    let fence = Fence::install(&mut conn, options.user_sql_max).map_err(error::sql)?;
    let checkpointer = Checkpointer::start(path)?;
    let answers = Answers::start()?;
    let writer = Writer::new(&conn, &fence).map_err(error::sql)?;
    let mut batcher = Batcher {
        writer,
        clock,
        bell,
        near,
        options,
        seen_version: None,
        log,
        checkpointer,
        answers,
    };
    let closing = batcher.run(jobs);
    drop(batcher);
    drop(fence);
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
    bell: &'c Bell,
    near: &'c Near,
    options: &'c Options,
    // What SQLite calls the state of the file as far as others changed it.
    seen_version: Option<i64>,
    log: Log,
    checkpointer: Checkpointer,
    answers: Answers,
}

impl<'c> Batcher<'c> {
    fn run(&mut self, jobs: &Receiver<Job>) -> Result<Option<oneshot::Sender<()>>, Error> {
        let mut held_back = None;
        loop {
            let first = match held_back.take() {
                Some(job) => job,
                None => match jobs.recv() {
                    Ok(job) => job,
                    Err(_) => return Ok(None),
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
            self.write(batch)?;
            self.checkpoint();
        }
    }

    fn write(&mut self, batch: Vec<Unit>) -> Result<(), Error> {
        self.writer.now = self.clock.now();
        self.writer.heard = self.bell.is_heard();
        if batch[0].has_user_sql() {
            return self.write_apart(batch);
        }
        let written = match self.together(&batch) {
            Err(fail) if !fail.is_fatal() && !fail.is_everybodys() => self.one_by_one(&batch),
            other => other,
        };
        match written {
            Ok(outcomes) => {
                self.ring();
                self.answers.give(batch.into_iter().zip(outcomes).collect());
                Ok(())
            }
            Err(Broken::Lost(error)) => {
                // What is on the disk is not known; the same commits sent to the next opener tell.
                for unit in batch {
                    unit.refuse(&error);
                }
                Err(error)
            }
            Err(Broken::Fail(fail)) => {
                let error = fail.into_error();
                for unit in batch {
                    unit.refuse(&error);
                }
                Ok(())
            }
        }
    }

    // The way of nearly every batch: all in one transaction, no savepoints.
    fn together(&mut self, batch: &[Unit]) -> Result<Vec<Outcome>, Broken> {
        self.begin()?;
        let before = self.writer.conn.total_changes();
        let done = self.units(batch);
        match done {
            Ok(outcomes) => {
                self.commit(before)?;
                Ok(outcomes)
            }
            Err(fail) => {
                self.rollback()?;
                Err(Broken::Fail(fail))
            }
        }
    }

    fn units(&mut self, batch: &[Unit]) -> Result<Vec<Outcome>, Fail> {
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

    // After something in the batch failed: each in a savepoint, so that it fails alone.
    fn one_by_one(&mut self, batch: &[Unit]) -> Result<Vec<Outcome>, Broken> {
        let mut spoilers = Spoilers::new();
        loop {
            if let Some(outcomes) = self.savepoints(batch, &mut spoilers)? {
                return Ok(outcomes);
            }
        }
    }

    // Nothing if one of them ended the transaction that was everybody's: then it is among the
    // spoilers, and the others are written without it.
    fn savepoints(
        &mut self,
        batch: &[Unit],
        spoilers: &mut Spoilers,
    ) -> Result<Option<Vec<Outcome>>, Broken> {
        self.begin()?;
        let before = self.writer.conn.total_changes();
        self.writer.careful = true;
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut failed = None;
        for (index, unit) in batch.iter().enumerate() {
            match self.unit_alone(unit, index, spoilers) {
                Ok(outcome) => outcomes.push(outcome),
                Err((n, fail)) => {
                    failed = Some(((index, n), fail));
                    break;
                }
            }
        }
        self.writer.careful = false;
        let Some((place, fail)) = failed else {
            self.commit(before)?;
            return Ok(Some(outcomes));
        };
        let has_ended = self.writer.conn.is_autocommit();
        self.rollback()?;
        if fail.is_everybodys() || !has_ended {
            return Err(Broken::Fail(fail));
        }
        spoilers.insert(place, fail.into_commit_error());
        Ok(None)
    }

    fn unit_alone(
        &mut self,
        unit: &Unit,
        index: usize,
        spoilers: &Spoilers,
    ) -> Result<Outcome, (usize, Fail)> {
        match unit {
            Unit::Commits { commits, .. } => {
                let mut results = Vec::with_capacity(commits.len());
                for (n, commit) in commits.iter().enumerate() {
                    if let Some(error) = spoilers.get(&(index, n)) {
                        results.push(Err(error.clone()));
                        continue;
                    }
                    let written = self.in_savepoint(|writer| {
                        let mut buffers = Buffers::default();
                        let committed = writer.apply(&mut buffers, commit)?;
                        writer.finish(&mut buffers)?;
                        Ok(committed)
                    });
                    let written = written.map_err(|fail| (n, fail))?;
                    let written = match written {
                        Err(Fail::Sql(error)) if commit.is_unguarded() => {
                            let found = found_again(&mut self.writer, commit);
                            found.map_err(|fail| (n, fail))?.ok_or(Fail::Sql(error))
                        }
                        other => other,
                    };
                    results.push(written.map_err(Fail::into_commit_error));
                }
                Ok(Outcome::Commits(results))
            }
            Unit::Call(_) if let Some(error) = spoilers.get(&(index, 0)) => {
                let error = Error::new(error.kind(), error.code(), error.to_string());
                Ok(Outcome::Call(Err(error)))
            }
            Unit::Call(call) => {
                let written = self.in_savepoint(|writer| {
                    call.borrow_mut().run(writer)?;
                    writer.finish(&mut Buffers::default())
                });
                let written = written.map_err(|fail| (0, fail))?;
                Ok(Outcome::Call(written.map_err(Fail::into_error)))
            }
        }
    }

    // The outer error is everybody's, the inner one only of what was tried.
    fn in_savepoint<T>(
        &mut self,
        work: impl FnOnce(&mut Writer<'c>) -> Result<T, Fail>,
    ) -> Result<Result<T, Fail>, Fail> {
        let conn = self.writer.conn;
        conn.prepare_cached("SAVEPOINT one")?.execute([])?;
        let wakeups = std::mem::take(&mut self.writer.wakeups);
        let done = work(&mut self.writer);
        if let Err(fail) = done {
            if fail.is_everybodys() || conn.is_autocommit() {
                return Err(fail);
            }
            conn.prepare_cached("ROLLBACK TO one")?.execute([])?;
            conn.prepare_cached("RELEASE one")?.execute([])?;
            self.writer.forget();
            self.writer.wakeups = wakeups;
            return Ok(Err(fail));
        }
        conn.prepare_cached("RELEASE one")?.execute([])?;
        self.writer.wakeups.extend(wakeups);
        Ok(done)
    }

    // A call with user SQL in it: each commit in a transaction of its own, in order.
    fn write_apart(&mut self, batch: Vec<Unit>) -> Result<(), Error> {
        for unit in batch {
            let Unit::Commits { commits, reply, .. } = unit else { continue };
            let mut results = Vec::with_capacity(commits.len());
            let mut lost = None;
            for commit in &commits {
                if lost.is_some() {
                    results.push(Err(error::commit_error(error::closed())));
                    continue;
                }
                results.push(match self.alone(commit) {
                    Ok(committed) => {
                        self.ring();
                        Ok(committed)
                    }
                    Err(Broken::Fail(fail)) => Err(fail.into_commit_error()),
                    Err(Broken::Lost(error)) => {
                        let answer = error::commit_error(error::again(&error));
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

    fn alone(&mut self, commit: &Commit) -> Result<Committed, Broken> {
        self.begin()?;
        let before = self.writer.conn.total_changes();
        self.writer.careful = true;
        let mut buffers = Buffers::default();
        let done = self.writer.apply(&mut buffers, commit);
        let done = done.and_then(|committed| {
            self.writer.finish(&mut buffers)?;
            Ok(committed)
        });
        self.writer.careful = false;
        match done {
            Ok(committed) => match self.commit(before) {
                // A deferred constraint of the user's tables speaks up only now.
                Err(Broken::Fail(Fail::Sql(error))) if !error::is_environment(&error) => {
                    let unique = error::is_unique(&error);
                    let message = error.to_string();
                    Err(Broken::Fail(Fail::Answer(CommitError::UserSql { unique, message })))
                }
                other => other.map(|()| committed),
            },
            Err(fail) => {
                self.rollback()?;
                Err(Broken::Fail(fail))
            }
        }
    }

    fn begin(&mut self) -> Result<(), Broken> {
        let conn = self.writer.conn;
        conn.prepare_cached("BEGIN IMMEDIATE")
            .and_then(|mut s| s.execute([]))
            .map_err(Fail::Sql)?;
        // Somebody with a SQL prompt may have changed rows that the writer remembers.
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
                Err(Broken::Fail(Fail::Sql(error)))
            }
        }
    }

    // Makes the batch durable. On an error nothing of it is left, unless it is `Broken::Lost`.
    fn commit(&mut self, changes_before: u64) -> Result<(), Broken> {
        let conn = self.writer.conn;
        let done = || -> rusqlite::Result<()> {
            // What only looked leaves no trace, and costs no sync.
            let wrote = conn.total_changes() != changes_before;
            if wrote {
                let sql = "UPDATE meta SET value = MAX(value, ?1) WHERE name = 'clock'";
                let now = self.writer.now.as_micros();
                conn.prepare_cached(sql)?.execute(params![now])?;
            }
            if let Some(code) = self.options.commit_fault.as_ref().and_then(|fault| fault()) {
                return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            }
            conn.prepare_cached("COMMIT")?.execute([])?;
            if wrote {
                self.near.wrote();
            }
            Ok(())
        };
        match done() {
            Ok(()) => Ok(()),
            Err(error) if error::is_unsynced(&error) => {
                let message = "the disk did not confirm a commit; the store closes, and whether \
                               the commit is there will be known when it is opened again";
                let error =
                    Error::new(ErrorKind::Unknown, "STORE_UNKNOWN", message).with_source(error);
                Err(Broken::Lost(error))
            }
            Err(error) => {
                self.rollback()?;
                Err(Broken::Fail(Fail::Sql(error)))
            }
        }
    }

    fn rollback(&mut self) -> Result<(), Broken> {
        self.writer.forget();
        let conn = self.writer.conn;
        // Some errors have rolled back already.
        if conn.is_autocommit() {
            return Ok(());
        }
        let done = conn.prepare_cached("ROLLBACK").and_then(|mut s| s.execute([]));
        match done {
            Ok(_) => Ok(()),
            Err(_) if conn.is_autocommit() => Ok(()),
            Err(error) => {
                let message = "a transaction can neither be committed nor undone; the store closes";
                let error = Error::new(ErrorKind::Unavailable, "STORE_UNAVAILABLE", message)
                    .with_source(error);
                Err(Broken::Lost(error))
            }
        }
    }

    fn ring(&mut self) {
        let wakeups: Vec<Wakeup> = self.writer.wakeups.drain().collect();
        self.bell.ring(wakeups);
    }

    // The log's pages are copied into the database by another thread while commits go on; what
    // came in meanwhile is then copied here, so that the log can begin anew.
    fn checkpoint(&mut self) {
        let size = self.log.bytes();
        if size < self.options.wal_bytes_soft {
            return;
        }
        self.near.let_go();
        let done = self.checkpointer.is_done();
        if done || size >= self.options.wal_bytes_hard {
            let sql = "PRAGMA wal_checkpoint(PASSIVE)";
            let copied = self
                .writer
                .conn
                .query_row(sql, [], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)));
            match copied {
                // A reader may hold on to an old page: then once more, later.
                Ok((all, copied)) if all == copied => {
                    // Those that still need the log would keep it from beginning anew.
                    self.near.let_go();
                    self.log.restarts();
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a checkpoint failed; the log grows"),
            }
        } else {
            self.checkpointer.ask();
        }
    }
}

/// Commits (by unit, and place in it) whose failure ended a transaction, and their answer.
type Spoilers = HashMap<(usize, usize), CommitError>;

/// A batch of which nothing was written, or of which nobody knows.
enum Broken {
    Fail(Fail),
    Lost(Error),
}

impl From<Fail> for Broken {
    fn from(fail: Fail) -> Self {
        Broken::Fail(fail)
    }
}

impl Broken {
    fn is_fatal(&self) -> bool {
        matches!(self, Broken::Lost(_))
    }

    fn is_everybodys(&self) -> bool {
        matches!(self, Broken::Fail(fail) if fail.is_everybodys())
    }
}

impl Writer<'_> {
    // A commit that does not hold is an answer; anything else is the batch's affair.
    fn apply_or_answer<'b>(
        &mut self,
        buffers: &mut Buffers<'b>,
        commit: &'b Commit,
    ) -> Result<Result<Committed, CommitError>, Fail> {
        match self.apply(buffers, commit) {
            Ok(committed) => Ok(Ok(committed)),
            Err(Fail::Answer(error)) => Ok(Err(error)),
            Err(fail) => Err(fail),
        }
    }
}
