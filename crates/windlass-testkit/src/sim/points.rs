//! Points that must be reached over a set of seeds: a simulation that never gets there proves
//! nothing about it.

use std::collections::BTreeMap;

/// Every point that the driver, the faulty store or the checker can reach. A name that is not
/// here is a typo, and `Reached::note` says so.
pub const POINTS: &[&str] = &[
    "activity was given up and left a dead letter",
    "activity was tried again",
    "adopted a forgotten turn",
    "answer lost, nothing written",
    "an ended run refused a change",
    "another input was a conflict",
    "cancel reached a child",
    "claim answer lost after it was written",
    "claim was blocked by a limit",
    "client abandoned a revoked turn",
    "client took a free turn in its commit",
    "clock jumped back",
    "clock jumped forward",
    "commit answer lost after it was written",
    "commit arrived after its sender was told unknown",
    "conflict on the head alone",
    "crash between commit and answer",
    "create found the same run",
    "draft was refused because its run had ended",
    "eager create held its turn",
    "message arrived before its wait",
    "message arrived during its wait",
    "message arrived while the turn was held",
    "message came twice and counted once",
    "node came back from a stall",
    "node crashed",
    "paused run had a turn to read what it was sent",
    "paused run was woken by nothing until it was resumed",
    "promote and poke met on one run",
    "reap was refused to a worker without a steady lease",
    "reaped a holder whose commit was on its way",
    "reaped a task",
    "reaped a turn",
    "released a forgotten hold",
    "resend found its key",
    "resend wrote it",
    "result for an ended run was dropped",
    "revoke beat a holder",
    "run gave up without progress",
    "step was tried again after a backoff",
    "stale effect ran again under its id",
    "store refused a call",
    "turn stayed ready for a message its holder had not read",
    "wait timed out",
    "wake-up dropped",
    "wake-up duplicated",
    "worker lapsed",
    "zombie executed a step that was completed meanwhile",
    "zombie settle refused",
    "zombie turn refused",
];

/// The points that the fleet of real engines must reach.
pub const FLEET_POINTS: &[&str] = &[
    "a tree of runs was deleted",
    "activity at hand had lost its run",
    "activity was settled by the turn of its run",
    "client cancelled a run of a relay",
    "hook was told of an end",
    "stale effect ran again under its id",
    "step of a relay heard that it was cancelled",
    "answer lost, nothing written",
    "cancel reached a child",
    "claim answer lost after it was written",
    "client paused and resumed a run",
    "client terminated a run",
    "clock jumped back",
    "clock jumped forward",
    "commit answer lost after it was written",
    "commit arrived after its sender was told unknown",
    "crash between commit and answer",
    "create found the same run",
    "eager create held its turn",
    "message arrived while the turn was held",
    "message came twice and counted once",
    "node came back from a stall",
    "node crashed",
    "node was drained",
    "probe of an intent was asked",
    "reaped a holder whose commit was on its way",
    "reaped a task",
    "reaped a turn",
    "resend found its key",
    "result for an ended run was dropped",
    "revoke beat a holder",
    "store refused a call",
    "wake-up dropped",
    "wake-up duplicated",
    "zombie executed a step that was completed meanwhile",
    "zombie settle refused",
    "zombie turn refused",
];

/// How often each point was reached.
#[derive(Clone, Debug, Default)]
pub struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    /// Counts a point.
    pub fn note(&mut self, point: &'static str) {
        let known = POINTS.contains(&point) || FLEET_POINTS.contains(&point);
        debug_assert!(known, "{point:?} is not in sim::points");
        *self.0.entry(point).or_default() += 1;
    }

    /// Adds what another run reached.
    pub fn merge(&mut self, other: &Reached) {
        for (point, count) in &other.0 {
            *self.0.entry(point).or_default() += count;
        }
    }

    /// How often a point was reached.
    pub fn count(&self, point: &str) -> u64 {
        self.0.get(point).copied().unwrap_or(0)
    }

    /// Those of a list that were never reached.
    pub fn missing(&self, points: &[&'static str]) -> Vec<&'static str> {
        points.iter().copied().filter(|point| self.count(point) == 0).collect()
    }
}
