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
}

impl Outage {
    /// In front of a store that can be reached.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let reach = AtomicU8::new(Reach::Fine as u8);
        let (loads, messages, commits, answers_lost) = Default::default();
        let gate = OutageGate { reach, loads, messages, commits, answers_lost };
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
    fn is(&self, reach: Reach) -> bool {
        self.reach.load(Ordering::SeqCst) == reach as u8
    }
}

fn out_of_reach() -> Error {
    Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the store is out of reach")
}

impl Gate for OutageGate {
    fn pass(&self) -> Pass {
        if self.is(Reach::Fine) { Pass::Through } else { Pass::Refuse(out_of_reach()) }
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        let gone = || CommitError::Unavailable(Arc::new(out_of_reach()));
        if self.is(Reach::Gone) {
            let results = commits.iter().map(|_| Err(gone())).collect();
            return Box::pin(std::future::ready(results));
        }
        Box::pin(async move {
            let mut results = inner.commit(commits).await;
            let written = results.iter().filter(|result| result.is_ok()).count();
            self.commits.fetch_add(written as u64, Ordering::SeqCst);
            if self.is(Reach::Deaf) {
                self.answers_lost.fetch_add(results.len() as u64, Ordering::SeqCst);
                let lost = || {
                    Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, "the answer is lost")
                };
                for result in &mut results {
                    *result = Err(CommitError::Unknown(Arc::new(lost())));
                }
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
