//! What becomes of a turn or a task: the rules of docs/store-contract.md as pure functions.

use crate::commit::{Reschedule, TurnChange};
use crate::ids::WorkerKey;
use crate::rows::{Hold, MessageKind, RunStatus, Task, Turn, Wake};
use crate::time::Timestamp;

impl Turn {
    /// The turn of a run that is being created.
    pub fn normalised(mut self, now: Timestamp) -> Self {
        normalise(&mut self.ready, &mut self.due_at, self.worker.is_some(), now);
        self.claimed_at = self.worker.map(|_| now);
        self.last = None;
        self
    }

    /// The turn after its holder committed. `status` and `accepted` are those after the commit.
    pub fn after_commit(
        mut self,
        change: TurnChange,
        status: RunStatus,
        accepted: u64,
        now: Timestamp,
    ) -> Self {
        self.reclaims = 0;
        let (wake, seen) = match change {
            TurnChange::Release { wake, seen } => (wake, seen),
            TurnChange::Keep if status.is_ended() => (Wake::OnMessage, accepted),
            TurnChange::Keep => return self,
        };
        self.last = self.worker.take().filter(|_| !status.is_ended());
        self.claimed_at = None;
        self.claim_no += 1;
        (self.ready, self.due_at) = match wake {
            _ if status.is_ended() => (false, None),
            // A paused run too: what it has not read may be the request to go on.
            _ if accepted > seen => (true, Some(now)),
            Wake::Now if status == RunStatus::Paused => (false, Some(now)),
            Wake::At(at) if status == RunStatus::Paused => (false, Some(at)),
            Wake::Now => (true, Some(now)),
            Wake::At(at) => (at <= now, Some(at)),
            Wake::OnMessage => (false, None),
        };
        self
    }

    /// The turn after somebody took it.
    pub fn taken(mut self, hold: Hold, now: Timestamp) -> Self {
        self.worker = Some(hold.worker);
        self.claim_no = hold.claim_no;
        self.claimed_at = Some(now);
        self.ready = false;
        self
    }

    /// The turn after its hold was given back or taken away without a commit. `unread` says whether
    /// the run accepted messages that no release has seen.
    pub fn freed(mut self, status: RunStatus, unread: bool, now: Timestamp) -> Self {
        self.worker = None;
        self.claimed_at = None;
        self.claim_no += 1;
        self.last = None;
        self.ready = !status.is_ended() && (status != RunStatus::Paused || unread);
        if self.ready {
            self.due_at = Some(self.due_at.map_or(now, |due_at| due_at.min(now)));
        }
        self
    }

    /// Whether a ready turn is left to another worker: to the one that gave it back last, if it became
    /// ready after `since`.
    pub fn is_left_to_another(&self, worker: WorkerKey, since: Timestamp) -> bool {
        let other = self.last.is_some_and(|last| last != worker);
        other && self.due_at.is_some_and(|due_at| due_at > since)
    }

    /// The turn after its run accepted a message. A paused run is woken by control alone.
    pub fn poked(mut self, status: RunStatus, kind: MessageKind, now: Timestamp) -> Self {
        let wakes = status != RunStatus::Paused || kind == MessageKind::Control;
        if !status.is_ended() && wakes && self.worker.is_none() && !self.ready {
            self.ready = true;
            self.due_at = Some(now);
        }
        self
    }
}

impl Task {
    /// A task that is being enqueued.
    pub fn normalised(mut self, now: Timestamp) -> Self {
        normalise(&mut self.ready, &mut self.due_at, self.worker.is_some(), now);
        self.claimed_at = self.worker.map(|_| now);
        (self.beat_at, self.beat) = (None, None);
        self
    }

    /// The task after its holder gave it back to be tried again.
    pub fn rescheduled(mut self, change: &Reschedule, now: Timestamp) -> Self {
        self.worker = None;
        self.claimed_at = None;
        self.claim_no += 1;
        self.attempt = change.attempt;
        if !change.untried {
            self.reclaims = 0;
        }
        if change.errors.is_some() {
            self.errors.clone_from(&change.errors);
        }
        (self.ready, self.due_at) = match change.wake {
            Wake::Now | Wake::OnMessage => (true, Some(now)),
            Wake::At(at) => (at <= now, Some(at)),
        };
        self
    }

    /// The task after somebody took it.
    pub fn taken(mut self, hold: Hold, now: Timestamp) -> Self {
        self.worker = Some(hold.worker);
        self.claim_no = hold.claim_no;
        self.claimed_at = Some(now);
        self.ready = false;
        self
    }

    /// The task after its hold was given back or taken away without a commit.
    pub fn freed(mut self, now: Timestamp) -> Self {
        self.worker = None;
        self.claimed_at = None;
        self.claim_no += 1;
        self.ready = true;
        self.due_at = Some(self.due_at.map_or(now, |due_at| due_at.min(now)));
        self
    }
}

fn normalise(ready: &mut bool, due_at: &mut Option<Timestamp>, held: bool, now: Timestamp) {
    if held {
        *ready = false;
    } else if let Some(at) = *due_at {
        *ready = at <= now;
    } else if *ready {
        *due_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(100);

    #[track_caller]
    fn check(change: TurnChange, status: RunStatus, accepted: u64, expect: &str) {
        let held = Turn::held_by(WorkerKey(uuid::Uuid::from_u128(1)));
        let turn = held.after_commit(change, status, accepted, NOW);
        let due = turn.due_at.map_or("none".to_owned(), |at| at.as_micros().to_string());
        let found = match (turn.worker, turn.ready) {
            (Some(_), _) => "held".to_owned(),
            (None, true) => format!("ready {due}"),
            (None, false) => format!("idle {due}"),
        };
        assert_eq!(found, expect);
        assert_eq!(turn.claim_no, if turn.worker.is_some() { 1 } else { 2 });
    }

    #[test]
    fn a_turn_after_a_commit() {
        let at = |micros| Wake::At(Timestamp::from_micros(micros));
        let release = |wake, seen| TurnChange::Release { wake, seen };
        use RunStatus::{Active, Complete, Paused, Waiting};
        check(TurnChange::Keep, Active, 5, "held");
        check(TurnChange::Keep, Complete, 5, "idle none");
        check(release(Wake::Now, 0), Complete, 5, "idle none");
        check(release(Wake::Now, 5), Active, 5, "ready 100");
        check(release(at(50), 5), Waiting, 5, "ready 50");
        check(release(at(100), 5), Waiting, 5, "ready 100");
        check(release(at(101), 5), Waiting, 5, "idle 101");
        check(release(at(101), 4), Waiting, 5, "ready 100");
        check(release(Wake::OnMessage, 5), Waiting, 5, "idle none");
        check(release(Wake::OnMessage, 4), Waiting, 5, "ready 100");
        check(release(at(50), 5), Paused, 5, "idle 50");
        check(release(Wake::Now, 5), Paused, 5, "idle 100");
        check(release(Wake::OnMessage, 5), Paused, 5, "idle none");
        check(release(at(50), 4), Paused, 5, "ready 100");
        check(release(Wake::OnMessage, 4), Paused, 5, "ready 100");
    }
}
