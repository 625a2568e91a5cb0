//! The queues around the states: open waits, bodies, and the cursor of the replay.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use windlass_kernel::Timestamp;

use super::{Change, Completion, Entry, FixedState, Input, Key};

pub(crate) struct Queues {
    pub(crate) waits: OpenWaits,
    pub(crate) bodies: Bodies,
    pub(crate) replay: Replay,
}

impl Queues {
    /// The only way to change a state, and the queues with it.
    pub(super) fn apply(&mut self, key: &Key, entry: &mut Entry, input: Input) {
        let change = match entry.on(input) {
            Ok(change) => change,
            Err(illegal) => {
                debug_assert!(false, "step {key:?}: {illegal:?}");
                return;
            }
        };
        match change {
            Change::Nothing => {}
            Change::Defer => self.bodies.deferred.push_back(Arc::clone(key)),
            Change::StartBody => {
                self.bodies.running += 1;
                entry.wake();
            }
            Change::StopBody => self.bodies.running -= 1,
            Change::OpenWait => self.waits.insert(key),
            Change::CloseWait => self.waits.remove(key),
            Change::DropWait => self.waits.drop_wait(key),
            Change::Redeliver => self.replay.redeliver.push_back(Arc::clone(key)),
            Change::Deliver(at) => {
                self.replay.now = self.replay.now.max(at);
                entry.wake();
            }
            Change::Wake => entry.wake(),
        }
    }
}

/// Waits and retries that are open, in the order in which the code asked for them.
#[derive(Default)]
pub(crate) struct OpenWaits {
    order: BTreeMap<u64, Key>,
    numbers: HashMap<Key, u64, FixedState>,
    last: u64,
    /// Those that the code dropped while they are in the store. The next park cancels them.
    dropped: BTreeSet<Key>,
}

impl OpenWaits {
    pub(super) fn insert(&mut self, key: &Key) {
        if self.numbers.contains_key(key) {
            return;
        }
        self.last += 1;
        self.order.insert(self.last, Arc::clone(key));
        self.numbers.insert(Arc::clone(key), self.last);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        if let Some(number) = self.numbers.remove(key) {
            self.order.remove(&number);
        }
    }

    pub(super) fn drop_wait(&mut self, key: &Key) {
        self.dropped.insert(Arc::clone(key));
    }

    pub(super) fn undrop(&mut self, key: &Key) {
        self.dropped.remove(key);
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.order.values()
    }

    pub(super) fn from(&self, place: u64) -> impl Iterator<Item = (u64, &Key)> {
        self.order.range(place..).map(|(place, key)| (*place, key))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn take_dropped(&mut self) -> BTreeSet<Key> {
        std::mem::take(&mut self.dropped)
    }
}

/// Bodies of steps: deferred, running, ended.
#[derive(Default)]
pub(crate) struct Bodies {
    pub(super) deferred: VecDeque<Key>,
    pub(super) running: usize,
    /// Bodies that have ended and are not recorded yet.
    pub(crate) completions: VecDeque<Completion>,
    /// Bodies that run for so long that their rows should show it.
    pub(crate) long_running: Vec<Key>,
}

impl Bodies {
    /// Whether a body runs in this process, or is about to.
    pub(crate) fn is_running(&self) -> bool {
        self.running > 0
    }
}

/// The cursor of the replay: the results that the code has not received yet.
pub(crate) struct Replay {
    /// Keys with a recorded result that was not delivered, in the order of the record.
    pub(crate) records: VecDeque<Key>,
    // Keys with a result that the code claims after the record has passed them.
    pub(super) redeliver: VecDeque<Key>,
    pub(crate) active: bool,
    /// The deterministic now: the time of the last record that was delivered.
    pub(crate) now: Timestamp,
    /// Random numbers drawn so far. Each draw depends on its number alone.
    pub(crate) draws: u64,
}

/// Counts the records of commits, so that a body starts only after its causes are durable.
#[derive(Default)]
pub(crate) struct RecordCount {
    /// Records put into commits.
    pub(crate) appended: u64,
    /// Records that are durable.
    pub(crate) durable: u64,
}

/// The number of steps of the run, and its limit.
pub(super) struct StepCount {
    pub(super) count: usize,
    pub(super) max: usize,
}
