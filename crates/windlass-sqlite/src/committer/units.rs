//! The calls in a batch and their answers.

use std::cell::RefCell;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use futures::channel::oneshot;
use windlass_kernel::{Commit, CommitResults, Error};

use crate::apply::Writer;
use crate::error::{self, UnitError};
use crate::schema;

/// One call.
pub(super) enum Unit {
    Commits { commits: Vec<Commit>, user_sql: bool, reply: oneshot::Sender<CommitResults> },
    Call(RefCell<Box<dyn Call + Send>>),
}

/// A write call that is not a commit. It may run again after a rollback.
pub(super) trait Call {
    fn run(&mut self, writer: &mut Writer<'_>) -> Result<(), UnitError>;
    fn answer(&mut self, outcome: Result<(), Error>);
}

pub(super) struct CallOf<T, F> {
    pub(super) work: F,
    pub(super) result: Option<T>,
    pub(super) reply: Option<oneshot::Sender<Result<T, Error>>>,
}

impl<T: Send, F: FnMut(&mut Writer<'_>) -> Result<T, UnitError> + Send> Call for CallOf<T, F> {
    fn run(&mut self, writer: &mut Writer<'_>) -> Result<(), UnitError> {
        self.result = Some((self.work)(writer)?);
        Ok(())
    }

    fn answer(&mut self, outcome: Result<(), Error>) {
        let Some(reply) = self.reply.take() else { return };
        let answer = outcome.and_then(|()| self.result.take().ok_or_else(error::no_answer));
        // The caller may have stopped waiting; the write stays.
        let _ = reply.send(answer);
    }
}

impl Unit {
    pub(super) fn len(&self) -> usize {
        match self {
            Unit::Commits { commits, .. } => commits.len(),
            Unit::Call(_) => 1,
        }
    }

    pub(super) fn has_user_sql(&self) -> bool {
        matches!(self, Unit::Commits { user_sql: true, .. })
    }

    // Replier that nothing was written because of `error`.
    pub(super) fn refuse(self, error: &Error) {
        match self {
            Unit::Commits { commits, reply, .. } => {
                let error = error::commit_error(error::copy(error));
                let _ = reply.send(commits.iter().map(|_| Err(error.clone())).collect());
            }
            Unit::Call(call) => call.into_inner().answer(Err(error::copy(error))),
        }
    }
}

/// The outcome of a unit: the results of commits, or whether a call succeeded.
pub(super) enum Outcome {
    Commits(CommitResults),
    Call(Result<(), Error>),
}

pub(super) fn answer(unit: Unit, outcome: Outcome) {
    match (unit, outcome) {
        (Unit::Commits { reply, .. }, Outcome::Commits(results)) => drop(reply.send(results)),
        (Unit::Call(call), Outcome::Call(result)) => call.into_inner().answer(result),
        // Unreachable: each outcome is built from its unit.
        _ => {}
    }
}

// The writer sends fewer answers than this itself, because another thread would only cost time.
const ANSWERS_MIN: usize = 32;

/// The thread that answers large batches while the writer handles the next one. Waking a caller and
/// dropping its commit costs a quarter of writing it.
pub(super) struct Replier {
    queue: Option<Sender<Vec<(Unit, Outcome)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Replier {
    pub(super) fn start() -> Result<Self, Error> {
        let (queue, batches) = unbounded::<Vec<(Unit, Outcome)>>();
        let work =
            move || batches.into_iter().flatten().for_each(|(unit, outcome)| answer(unit, outcome));
        let thread = Some(schema::spawn("windlass-answer", work)?);
        Ok(Self { queue: Some(queue), thread })
    }

    pub(super) fn send(&self, answers: Vec<(Unit, Outcome)>) {
        match &self.queue {
            Some(queue) if answers.len() >= ANSWERS_MIN => {
                // Sending fails only if the thread is gone; answer here then.
                if let Err(unsent) = queue.send(answers) {
                    unsent
                        .into_inner()
                        .into_iter()
                        .for_each(|(unit, outcome)| answer(unit, outcome));
                }
            }
            _ => answers.into_iter().for_each(|(unit, outcome)| answer(unit, outcome)),
        }
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
