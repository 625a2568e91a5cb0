//! Log lines and custom events of the code that wait for the next commit.

use serde::{Deserialize, Serialize};
use windlass_kernel::{Body, CausalRef, EventId, LogLevel};

use super::Key;

/// A durable log line that waits for the next commit.
pub(crate) struct PendingLog {
    pub(crate) step: Option<(Key, u32)>,
    pub(crate) level: LogLevel,
    pub(crate) category: String,
    pub(crate) message: String,
    pub(crate) data: Option<Body>,
    pub(crate) replay: bool,
}

/// A custom event that waits for the next commit.
pub(crate) struct PendingEvent {
    pub(crate) event_id: EventId,
    pub(crate) event_type: String,
    pub(crate) version: u16,
    pub(crate) payload: serde_json::Value,
    pub(crate) caused_by: Option<CausalRef>,
    pub(crate) outside_step: bool,
}

/// The state that the model stores with a run, beside the run's steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The number of custom events recorded outside steps. A replay skips as many.
    pub(crate) custom_events: u64,
}

pub(crate) struct Outbox {
    pub(crate) logs: Vec<PendingLog>,
    pub(crate) events: Vec<PendingEvent>,
    snapshot: Snapshot,
    stored: Snapshot,
    // Custom events outside steps that this replay has seen, recorded or skipped.
    events_seen: u64,
}

impl Outbox {
    pub(super) fn new(stored: Snapshot) -> Self {
        let (logs, events) = Default::default();
        Self { logs, events, snapshot: stored, stored, events_seen: 0 }
    }

    /// Adds an event, unless an earlier execution of the same code has recorded it.
    pub(crate) fn push_event(&mut self, event: PendingEvent) {
        if event.outside_step && self.events_seen < self.stored.custom_events {
            self.events_seen += 1;
            return;
        }
        self.events.push(event);
    }

    /// An event from outside a step is in the commit that is being made.
    pub(crate) fn count_event(&mut self) {
        self.snapshot.custom_events += 1;
        self.events_seen += 1;
    }

    /// The snapshot, if it differs from the stored one. The caller stores it.
    pub(crate) fn take_changed_snapshot(&mut self) -> Option<Snapshot> {
        let changed = self.snapshot != self.stored;
        self.stored = self.snapshot;
        changed.then_some(self.snapshot)
    }
}
