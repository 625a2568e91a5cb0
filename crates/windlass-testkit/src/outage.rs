//! A store that fails on demand, in front of any other store. It counts the rows that are read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use windlass_kernel::{
    BoxFuture, Commit, CommitError, CommitResults, Error, ErrorCode, ErrorKind, Rows, Store,
};

use crate::gate::{Gate, GatedStore, Pass};

/// Whether a store can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reach {
    /// All calls reach it.
    Fine,
    /// Every call fails; nothing is written or read.
    Gone,
    /// Commits are written, but their answers are lost. All other calls fail.
    Deaf,
    /// Every call reaches it until the next commit is written and answered. Then it is `Blind`.
    BlindAfterCommit,
    /// Commits and releases reach it. All other calls fail.
    Blind,
    /// Every commit and the write of every setting fails. All other calls reach it.
    ReadOnly,
    /// Every commit and the write of every large setting fails. All other calls reach it.
    NearlyFull,
    /// The answer to the next commit that is written is lost. Then the store is `Closed`.
    ClosedAfterCommit,
    /// The store is closed: every call fails for good.
    Closed,
}

/// A store that fails while it is set to.
pub type Outage = GatedStore<OutageGate>;

/// The gate of an [`Outage`].
pub struct OutageGate {
    reach: AtomicU8,
    loads: AtomicU64,
    messages: AtomicU64,
    commits: AtomicU64,
    answers_lost: AtomicU64,
    calls: AtomicU64,
}

impl Outage {
    /// In front of a store that can be reached.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let reach = AtomicU8::new(Reach::Fine as u8);
        let (loads, messages, commits, answers_lost, calls) = Default::default();
        let gate = OutageGate { reach, loads, messages, commits, answers_lost, calls };
        Arc::new(Self::with_gate(inner, gate))
    }

    /// How many runs were loaded with all their steps and messages.
    pub fn loads(&self) -> u64 {
        self.gate.loads.load(Ordering::SeqCst)
    }

    /// How many messages were listed.
    pub fn messages(&self) -> u64 {
        self.gate.messages.load(Ordering::SeqCst)
    }

    /// How many calls that are not commits were made.
    pub fn calls(&self) -> u64 {
        self.gate.calls.load(Ordering::SeqCst)
    }

    /// How many commits were sent and written.
    pub fn commits(&self) -> u64 {
        self.gate.commits.load(Ordering::SeqCst)
    }

    /// How many commits were written without an answer.
    pub fn answers_lost(&self) -> u64 {
        self.gate.answers_lost.load(Ordering::SeqCst)
    }

    /// Changes whether the store can be reached.
    pub fn set(&self, reach: Reach) {
        self.gate.reach.store(reach as u8, Ordering::SeqCst);
    }
}

impl OutageGate {
    fn refusal(&self) -> Option<Error> {
        match () {
            () if self.is(Reach::Gone) => Some(out_of_reach()),
            () if self.is(Reach::Closed) => Some(closed()),
            () => None,
        }
    }

    fn advance(&self, from: Reach, to: Reach) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.reach.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn is(&self, reach: Reach) -> bool {
        self.reach.load(Ordering::SeqCst) == reach as u8
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, ErrorCode::StoreClosed, "the store is closed")
}

fn answer_lost() -> CommitError {
    let lost = Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, "the answer is lost");
    CommitError::Unknown(Arc::new(lost))
}

fn out_of_reach() -> Error {
    Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the store is out of reach")
}

impl Gate for OutageGate {
    fn pass(&self) -> Pass {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.refusal() {
            Some(error) => Pass::Refuse(error),
            None if self.is(Reach::Deaf) || self.is(Reach::Blind) => Pass::Refuse(out_of_reach()),
            None => Pass::Through,
        }
    }

    fn pass_setting(&self, bytes: usize) -> Pass {
        if self.is(Reach::ReadOnly) || self.is(Reach::NearlyFull) && bytes > 1_024 {
            Pass::Refuse(out_of_reach())
        } else {
            self.pass()
        }
    }

    fn pass_release(&self) -> Pass {
        if self.is(Reach::Blind) { Pass::Through } else { self.pass() }
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        if self.refusal().is_some() || self.is(Reach::ReadOnly) || self.is(Reach::NearlyFull) {
            let refused = || self.refusal().unwrap_or_else(out_of_reach);
            let refused = || Err(CommitError::Unavailable(Arc::new(refused())));
            let results = commits.iter().map(|_| refused()).collect();
            return Box::pin(std::future::ready(results));
        }
        Box::pin(async move {
            let mut results = inner.commit(commits).await;
            let written = results.iter().filter(|result| result.is_ok()).count();
            self.commits.fetch_add(written as u64, Ordering::SeqCst);
            let is_lost = self.is(Reach::Deaf)
                || written > 0 && self.advance(Reach::ClosedAfterCommit, Reach::Closed);
            if is_lost {
                self.answers_lost.fetch_add(results.len() as u64, Ordering::SeqCst);
                results.iter_mut().for_each(|result| *result = Err(answer_lost()));
            }
            if written > 0 {
                self.advance(Reach::BlindAfterCommit, Reach::Blind);
            }
            results
        })
    }

    fn on_load(&self, runs: usize) {
        self.loads.fetch_add(runs as u64, Ordering::SeqCst);
    }

    fn on_rows(&self, rows: &Rows) {
        if let Rows::Messages(messages) = rows {
            self.messages.fetch_add(messages.len() as u64, Ordering::SeqCst);
        }
    }
}
