//! What the writer is asked, and the answers it gives.

use std::cell::RefCell;
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use futures::channel::oneshot;
use windlass_kernel::{Commit, CommitResults, Error};

use crate::apply::Writer;
use crate::error::{self, Fail};
use crate::schema;

/// One call.
pub(super) enum Unit {
    Commits { commits: Vec<Commit>, user_sql: bool, reply: oneshot::Sender<CommitResults> },
    Call(RefCell<Box<dyn Call + Send>>),
}

/// A call that writes and is not a commit. It may be run again after a rollback.
pub(super) trait Call {
    fn run(&mut self, writer: &mut Writer<'_>) -> Result<(), Fail>;
    fn answer(&mut self, outcome: Result<(), Error>);
}

pub(super) struct CallOf<T, F> {
    pub(super) work: F,
    pub(super) result: Option<T>,
    pub(super) reply: Option<oneshot::Sender<Result<T, Error>>>,
}

impl<T: Send, F: FnMut(&mut Writer<'_>) -> Result<T, Fail> + Send> Call for CallOf<T, F> {
    fn run(&mut self, writer: &mut Writer<'_>) -> Result<(), Fail> {
        self.result = Some((self.work)(writer)?);
        Ok(())
    }

    fn answer(&mut self, outcome: Result<(), Error>) {
        let Some(reply) = self.reply.take() else { return };
        let answer = outcome.and_then(|()| self.result.take().ok_or_else(error::lost));
        // Nobody waits any more: what was written stays written.
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

    // Answers that nothing was written, because of `error`.
    pub(super) fn refuse(self, error: &Error) {
        match self {
            Unit::Commits { commits, reply, .. } => {
                let error = error::commit_error(error::again(error));
                let _ = reply.send(commits.iter().map(|_| Err(error.clone())).collect());
            }
            Unit::Call(call) => call.into_inner().answer(Err(error::again(error))),
        }
    }
}

/// What became of a batch's units: for commits the results, for calls whether it went through.
pub(super) enum Outcome {
    Commits(CommitResults),
    Call(Result<(), Error>),
}

pub(super) fn answer(unit: Unit, outcome: Outcome) {
    match (unit, outcome) {
        (Unit::Commits { reply, .. }, Outcome::Commits(results)) => drop(reply.send(results)),
        (Unit::Call(call), Outcome::Call(result)) => call.into_inner().answer(result),
        // Outcomes are made from their units, one for one.
        _ => {}
    }
}

// Fewer answers than this are given by the writer itself: a thread more would only cost time.
const ANSWERS_MIN: usize = 32;

/// The thread that answers large batches, while the writer is at the next one: waking a caller
/// and taking its commit apart costs a quarter of writing it.
pub(super) struct Answers {
    give: Option<Sender<Vec<(Unit, Outcome)>>>,
    thread: Option<JoinHandle<()>>,
}

impl Answers {
    pub(super) fn start() -> Result<Self, Error> {
        let (give, given) = unbounded::<Vec<(Unit, Outcome)>>();
        let work =
            move || given.into_iter().flatten().for_each(|(unit, outcome)| answer(unit, outcome));
        let thread = Some(schema::spawn("windlass-answer", work)?);
        Ok(Self { give: Some(give), thread })
    }

    pub(super) fn give(&self, answers: Vec<(Unit, Outcome)>) {
        match &self.give {
            Some(give) if answers.len() >= ANSWERS_MIN => {
                // The thread is gone only when the writer is.
                if let Err(unheard) = give.send(answers) {
                    unheard
                        .into_inner()
                        .into_iter()
                        .for_each(|(unit, outcome)| answer(unit, outcome));
                }
            }
            _ => answers.into_iter().for_each(|(unit, outcome)| answer(unit, outcome)),
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.give = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
