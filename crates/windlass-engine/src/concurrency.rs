//! The slots of one workflow: how many of its turns this process holds at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::signals::Signals;

/// How many turns of a workflow this process may hold, and how many it holds.
pub(crate) struct Concurrency {
    max: usize,
    held: AtomicUsize,
    // A claim found no free slot, or filled all of them: more turns may be ready.
    wanted: AtomicBool,
}

impl Concurrency {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, held: AtomicUsize::new(0), wanted: AtomicBool::new(false) }
    }

    /// Whether all slots are in use and more turns may be ready.
    pub(crate) fn is_contended(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) && self.held.load(Ordering::SeqCst) >= self.max
    }

    /// Makes the next permit that is dropped wake the claimer.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::SeqCst);
    }
}

/// Slots that are in use. Dropping the permits frees them.
pub(crate) struct Permits {
    signals: Arc<Signals>,
    concurrency: Arc<Concurrency>,
    pub(crate) count: usize,
}

impl Permits {
    /// Takes all free slots, for a claim of as many turns; `None` if all are in use.
    pub(crate) fn all_free(signals: &Arc<Signals>, concurrency: &Arc<Concurrency>) -> Option<Self> {
        let permits = Self::try_all_free(signals, concurrency);
        if permits.is_some() {
            return permits;
        }
        concurrency.want();
        // A permit may have been dropped before `wanted` was set; try again.
        Self::try_all_free(signals, concurrency)
    }

    fn try_all_free(signals: &Arc<Signals>, concurrency: &Arc<Concurrency>) -> Option<Self> {
        let all = |held: usize| (held < concurrency.max).then_some(concurrency.max);
        let held = concurrency.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, all).ok()?;
        let (signals, concurrency) = (Arc::clone(signals), Arc::clone(concurrency));
        Some(Self { signals, count: concurrency.max - held, concurrency })
    }

    /// Takes one slot for a turn that is held already, even if no slot is free.
    pub(crate) fn one(signals: &Arc<Signals>, concurrency: &Arc<Concurrency>) -> Self {
        concurrency.held.fetch_add(1, Ordering::SeqCst);
        Self { signals: Arc::clone(signals), concurrency: Arc::clone(concurrency), count: 1 }
    }

    /// See [`Concurrency::want`].
    pub(crate) fn want(&self) {
        self.concurrency.want();
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        let held = self.concurrency.held.fetch_sub(self.count, Ordering::SeqCst) - self.count;
        if held < self.concurrency.max && self.concurrency.wanted.swap(false, Ordering::SeqCst) {
            self.signals.turns();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_taken_and_freed() {
        let signals = Arc::new(Signals::default());
        let concurrency = Arc::new(Concurrency::new(3));
        let free = || Permits::all_free(&signals, &concurrency).map(|permits| permits.count);
        assert_eq!(free(), Some(3));
        let one = Permits::one(&signals, &concurrency);
        assert_eq!(free(), Some(2));
        let rest = Permits::all_free(&signals, &concurrency).unwrap();
        let above = Permits::one(&signals, &concurrency);
        assert_eq!(free(), None);
        drop(above);
        assert_eq!(free(), None, "a turn that is held takes a slot though none is free");
        drop(rest);
        assert_eq!(free(), Some(2));
        drop(one);
        assert_eq!(free(), Some(3));
    }

    #[test]
    fn a_freed_slot_wakes_the_claimer_if_turns_were_left() {
        for (wanted, expect) in [(false, false), (true, true)] {
            let signals = Arc::new(Signals::default());
            let concurrency = Arc::new(Concurrency::new(1));
            let one = Permits::one(&signals, &concurrency);
            if wanted {
                assert!(Permits::all_free(&signals, &concurrency).is_none());
            }
            signals.take();
            drop(one);
            assert_eq!(signals.take().turns, expect);
        }
    }
}
