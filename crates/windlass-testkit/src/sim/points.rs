//! Points that must be reached over a set of seeds. A simulation proves nothing about a situation that
//! it never gets into.

use std::collections::BTreeMap;

/// Every point that a simulation must reach. A name that is not here is a typo, and `Reached::note`
/// panics on it.
pub const POINTS: &[&str] = &[
    "a timer and a message were due on one run",
    "a tree of runs was deleted",
    "activity was settled by the turn of its run",
    "answer lost, nothing written",
    "call of a model was sent again",
    "cancel reached a child",
    "claim answer lost after it was written",
    "claim was blocked by a limit",
    "client cancelled a run of a relay",
    "client paused and resumed a run",
    "client restarted a live agent",
    "client retried an agent",
    "client terminated a run",
    "client took a free turn in its commit",
    "clock jumped back",
    "clock jumped forward",
    "commit answer lost after it was written",
    "commit arrived after its sender got an unknown outcome",
    "conflict on the head alone",
    "crash between commit and answer",
    "create found the same run",
    "decision about a changed record was refused",
    "decision came after the end of its request",
    "draft was refused because its run had ended",
    "durable tool had taken effect before its receipt",
    "eager create held its turn",
    "hook received the end of a run",
    "local completion had lost its run",
    "message arrived while the turn was held",
    "message came twice and counted once",
    "node came back from a stall",
    "node crashed",
    "node was drained",
    "paused run had a turn to read what it was sent",
    "paused run was woken by nothing until it was resumed",
    "probe of a durable tool was asked",
    "probe of an intent was asked",
    "reap was refused to a worker without a steady lease",
    "reaped a holder whose commit was on its way",
    "reaped a task",
    "reaped a turn",
    "resend found its key",
    "result for an ended run was dropped",
    "revoke beat a holder",
    "stale effect ran again under its id",
    "step of a relay saw its cancellation",
    "store refused a call",
    "turn stayed ready for a message its holder had not read",
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
        debug_assert!(POINTS.contains(&point), "{point:?} is not in sim::points");
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

    /// The points that were never reached.
    pub fn missing(&self) -> Vec<&'static str> {
        POINTS.iter().copied().filter(|point| self.count(point) == 0).collect()
    }
}
