//! The cache of waiting runs, bounded by bytes: the next turn of a cached run needs no replay.

use std::collections::{BTreeMap, HashMap};

use windlass_kernel::{ClaimedTurn, Head, Message, Run, RunKey};

use crate::core::FixedState;
use crate::model::Program;

/// A run that has released its turn.
pub(crate) struct CachedRun {
    pub(crate) run: Box<Run>,
    /// The claim number of the hold that it released.
    pub(crate) claim_no: u64,
    pub(crate) program: Box<dyn Program>,
    pub(crate) mailbox: BTreeMap<u64, Message>,
    pub(crate) read_to: u64,
    /// It has unread messages, so a claim will take it soon.
    pub(crate) unread: bool,
}

pub(crate) struct RunCache {
    cached: HashMap<RunKey, (u64, usize, CachedRun), FixedState>,
    oldest: BTreeMap<u64, RunKey>,
    next: u64,
    bytes: usize,
    bytes_max: usize,
}

impl RunCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let cached = HashMap::default();
        Self { cached, oldest: BTreeMap::new(), next: 0, bytes: 0, bytes_max }
    }

    pub(crate) fn len(&self) -> usize {
        self.cached.len()
    }

    /// Inserts a run. Returns the evicted runs, which the caller drops outside the lock.
    pub(crate) fn put(&mut self, cached: CachedRun) -> Vec<CachedRun> {
        let run_key = cached.run.run_key;
        let mut evicted: Vec<CachedRun> = self.remove(run_key).into_iter().collect();
        let messages: usize = cached
            .mailbox
            .values()
            .map(|message| 200 + message.body.as_ref().map_or(0, |body| body.len()))
            .sum();
        let bytes = size_of::<Run>()
            + cached.run.input.len()
            + cached.run.state.as_ref().map_or(0, |state| state.len())
            + cached.program.bytes()
            + messages;
        self.next += 1;
        self.oldest.insert(self.next, run_key);
        self.cached.insert(run_key, (self.next, bytes, cached));
        self.bytes += bytes;
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.oldest.first_key_value() else { break };
            evicted.extend(self.remove(*oldest));
        }
        evicted
    }

    /// Removes a run and returns it, unless another worker has held it since.
    pub(crate) fn take(&mut self, claimed: &ClaimedTurn) -> Option<CachedRun> {
        let current = |cached: &CachedRun| {
            is_current(cached.run.head, cached.claim_no, claimed.head, claimed.hold.claim_no)
        };
        self.remove(claimed.run_key).filter(current)
    }

    /// The row of a cached run.
    pub(crate) fn row(&self, run_key: RunKey) -> Option<&Run> {
        self.cached.get(&run_key).map(|(_, _, cached)| &*cached.run)
    }

    /// Marks a cached run as having an unread message.
    pub(crate) fn message_accepted(&mut self, run_key: RunKey, seq: u64) {
        if let Some((_, _, cached)) = self.cached.get_mut(&run_key) {
            // The answer to the sender's commit may be late: the run may have read the message since.
            cached.unread |= seq > cached.read_to;
        }
    }

    /// Removes a run and returns it if it fits. It may be stale: the guard of the next commit finds out.
    pub(crate) fn take_if(
        &mut self,
        run_key: RunKey,
        fits: impl FnOnce(&CachedRun) -> bool,
    ) -> Option<CachedRun> {
        let (_, _, cached) = self.cached.get(&run_key)?;
        fits(cached).then(|| self.remove(run_key)).flatten()
    }

    /// Removes all runs and returns them, so that the caller drops them outside the lock.
    pub(crate) fn clear(&mut self) -> Self {
        let empty = Self::new(self.bytes_max);
        std::mem::replace(self, empty)
    }

    fn remove(&mut self, run_key: RunKey) -> Option<CachedRun> {
        let (age, bytes, cached) = self.cached.remove(&run_key)?;
        self.oldest.remove(&age);
        self.bytes -= bytes;
        Some(cached)
    }
}

/// Whether a run in memory, which released the hold `released`, is as the claim `claimed` finds it.
///
/// The head alone does not say it: another worker can write the intent of a step, which appends no
/// event, start the body and die. Release and claim raise the claim number by one each, so any other
/// difference means that a claim came in between.
pub(crate) fn is_current(head: Head, released: u64, claimed_head: Head, claimed: u64) -> bool {
    head == claimed_head && claimed == claim_after(released)
}

/// The number of the claim that follows the release of a hold.
pub(crate) fn claim_after(released: u64) -> u64 {
    released + 2
}

#[cfg(test)]
mod tests {
    use windlass_kernel::Sha256Digest;

    use super::*;

    #[test]
    fn a_run_in_memory_is_current_if_no_claim_came_in_between() {
        let head = |next_ordinal| Head { next_ordinal, hash: Sha256Digest::of(b"") };
        // The head in memory, the hold that was released, the claimed head and the claim.
        let check = |memory: u64, released: u64, found: u64, claimed: u64, expect: bool| {
            assert_eq!(is_current(head(memory), released, head(found), claimed), expect);
        };
        check(7, 5, 7, 7, true);
        check(7, 5, 8, 7, false);
        check(7, 5, 7, 9, false);
        check(7, 5, 7, 8, false);
        check(7, 5, 7, 5, false);
    }
}
