//! Runs that wait, kept in memory as far as there is room: their next turn needs no replay.

use std::collections::{BTreeMap, HashMap};

use windlass_kernel::{Head, Message, Run, RunKey};

use crate::engine::FixedState;
use crate::model::Program;

/// A run that gave its turn back.
pub(crate) struct Parked {
    pub(crate) run: Box<Run>,
    pub(crate) program: Box<dyn Program>,
    pub(crate) mailbox: BTreeMap<u64, Message>,
    pub(crate) read_to: u64,
    /// It has messages that were not read, so a claim is about to come for it.
    pub(crate) unread: bool,
}

pub(crate) struct Sticky {
    parked: HashMap<RunKey, (u64, usize, Parked), FixedState>,
    oldest: BTreeMap<u64, RunKey>,
    next: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Sticky {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let parked = HashMap::default();
        Self { parked, oldest: BTreeMap::new(), next: 0, bytes: 0, bytes_max }
    }

    pub(crate) fn len(&self) -> usize {
        self.parked.len()
    }

    /// Keeps a run, and answers those that had to go for it: they are dropped outside the lock.
    pub(crate) fn put(&mut self, parked: Parked) -> Vec<Parked> {
        let run_key = parked.run.run_key;
        let mut gone: Vec<Parked> = self.remove(run_key).into_iter().collect();
        let messages: usize = parked
            .mailbox
            .values()
            .map(|message| 200 + message.body.as_ref().map_or(0, |body| body.len()))
            .sum();
        let bytes = size_of::<Run>()
            + parked.run.input.len()
            + parked.run.state.as_ref().map_or(0, |state| state.len())
            + parked.program.bytes()
            + messages;
        self.next += 1;
        self.oldest.insert(self.next, run_key);
        self.parked.insert(run_key, (self.next, bytes, parked));
        self.bytes += bytes;
        while self.bytes > self.bytes_max {
            let Some((_, oldest)) = self.oldest.first_key_value() else { break };
            gone.extend(self.remove(*oldest));
        }
        gone
    }

    /// A run that is as it was left, at the given head. One that has moved on is of no use.
    pub(crate) fn take(&mut self, run_key: RunKey, head: Head) -> Option<Parked> {
        self.remove(run_key).filter(|parked| parked.run.head == head)
    }

    /// A run's row as it was left.
    pub(crate) fn row(&self, run_key: RunKey) -> Option<&Run> {
        self.parked.get(&run_key).map(|(_, _, parked)| &*parked.run)
    }

    /// Notes that a run was sent this message.
    pub(crate) fn is_sent(&mut self, run_key: RunKey, seq: u64) {
        if let Some((_, _, parked)) = self.parked.get_mut(&run_key) {
            // Whoever tells may be late: the run may have read it, and waits again.
            parked.unread |= seq > parked.read_to;
        }
    }

    /// A run as it was left, if it fits. Whether it has moved on since, a guard must say.
    pub(crate) fn take_if(
        &mut self,
        run_key: RunKey,
        fits: impl FnOnce(&Parked) -> bool,
    ) -> Option<Parked> {
        let (_, _, parked) = self.parked.get(&run_key)?;
        fits(parked).then(|| self.remove(run_key)).flatten()
    }

    /// Forgets all, and answers them: they are dropped outside the lock.
    pub(crate) fn clear(&mut self) -> Self {
        let empty = Self::new(self.bytes_max);
        std::mem::replace(self, empty)
    }

    fn remove(&mut self, run_key: RunKey) -> Option<Parked> {
        let (place, bytes, parked) = self.parked.remove(&run_key)?;
        self.oldest.remove(&place);
        self.bytes -= bytes;
        Some(parked)
    }
}
