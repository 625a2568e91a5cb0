//! Log lines and custom events of the code that wait for the next commit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use windlass_kernel::{Body, CausalRef, EventId, LogLevel, RunKey};

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
    /// The first generation of a chain of retries; none if this is the first. Idempotency keys and
    /// random numbers come from it, because a retry carries over the steps that used them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<RunKey>,
}

pub(crate) struct Outbox {
    pub(crate) logs: Vec<PendingLog>,
    pub(crate) events: Vec<PendingEvent>,
    // Lines of attempts that have not ended, and of the code outside steps since the last commit.
    lines: BTreeMap<Option<(Key, u32)>, usize>,
    snapshot: Snapshot,
    stored: Snapshot,
    // Custom events outside steps that this replay has seen, recorded or skipped.
    events_seen: u64,
}

impl Outbox {
    pub(super) fn new(stored: Snapshot) -> Self {
        let (logs, events, lines) = Default::default();
        Self { logs, events, lines, snapshot: stored, stored, events_seen: 0 }
    }

    /// Adds a log line. Returns whether there was room for it under the limit.
    pub(crate) fn push_log(&mut self, log: PendingLog, max: usize) -> bool {
        let lines = self.lines.entry(log.step.clone()).or_default();
        if *lines >= max {
            return false;
        }
        *lines += 1;
        self.logs.push(log);
        true
    }

    /// Takes lines for a commit, at most `max`.
    pub(crate) fn take_logs(&mut self, max: usize) -> Vec<PendingLog> {
        self.lines.remove(&None);
        let rest = self.logs.split_off(self.logs.len().min(max));
        std::mem::replace(&mut self.logs, rest)
    }

    /// An attempt has ended: it writes no more lines.
    pub(crate) fn attempt_ended(&mut self, key: &Key, attempt: u32) {
        self.lines.remove(&Some((key.clone(), attempt)));
    }

    /// Drops the lines and events that belong to no recorded step: the code will write them again.
    pub(crate) fn keep_recorded(&mut self, recorded: impl Fn(&Key) -> bool) {
        self.logs.retain(|log| log.step.as_ref().is_some_and(|(key, _)| recorded(key)));
        self.events.retain(|event| !event.outside_step);
    }

    /// Adds an event, unless an earlier execution of the same code has recorded it.
    pub(crate) fn push_event(&mut self, event: PendingEvent) {
        if event.outside_step && self.events_seen < self.stored.custom_events {
            self.events_seen += 1;
            return;
        }
        self.events.push(event);
    }

    /// The first generation of a chain of retries, if this is not the first.
    pub(crate) fn origin(&self) -> Option<RunKey> {
        self.snapshot.origin
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
