//! The state changes of turns and tasks: the rules of docs/store-contract.md as pure functions.

use crate::commit::{Reschedule, TurnChange};
use crate::ids::WorkerKey;
use crate::rows::{Hold, MessageKind, Run, RunStatus, Task, Turn, Wake};
use crate::time::Timestamp;

impl Turn {
    /// The turn of a new run.
    pub fn normalised(mut self, now: Timestamp) -> Self {
        normalise(&mut self.ready, &mut self.due_at, self.worker.is_some(), now);
        self.claimed_at = self.worker.map(|_| now);
        self.last_worker = None;
        self
    }

    /// The turn after a commit of its holder. `status`, `started` and `accepted` are the values
    /// after the commit.
    pub fn after_commit(
        mut self,
        change: TurnChange,
        status: RunStatus,
        started: bool,
        accepted: u64,
        now: Timestamp,
    ) -> Self {
        self.reclaims = 0;
        let (wake, seen) = match change {
            TurnChange::Release { wake, seen } => (wake, seen),
            TurnChange::Keep if status.is_ended() => (Wake::OnMessage, accepted),
            TurnChange::Keep => return self,
        };
        self.last_worker = self.worker.take().filter(|_| !status.is_ended());
        self.claimed_at = None;
        self.claim_no += 1;
        (self.ready, self.due_at) = match wake {
            _ if status.is_ended() => (false, None),
            // An unread message gives the run a turn, because it may be a control request. The time
            // of the start stays.
            Wake::At(at) if !started && at > now => {
                self.last_worker = None;
                (accepted > seen, Some(at))
            }
            // This holds for a paused run too: the unread message may be the request to resume.
            _ if accepted > seen => (true, Some(now)),
            Wake::Now if status == RunStatus::Paused => (false, Some(now)),
            Wake::At(at) if status == RunStatus::Paused => (false, Some(at)),
            Wake::Now => (true, Some(now)),
            Wake::At(at) => (at <= now, Some(at)),
            Wake::OnMessage => (false, None),
        };
        self
    }

    /// The turn after a worker claimed it.
    pub fn claimed(mut self, hold: Hold, now: Timestamp) -> Self {
        self.worker = Some(hold.worker);
        self.claim_no = hold.claim_no;
        self.claimed_at = Some(now);
        self.ready = false;
        self
    }

    /// The turn after its hold was released or revoked without a commit. `unread`: the run has
    /// accepted messages that no release has seen.
    pub fn released(
        mut self,
        status: RunStatus,
        started: bool,
        unread: bool,
        now: Timestamp,
    ) -> Self {
        self.worker = None;
        self.claimed_at = None;
        self.claim_no += 1;
        self.last_worker = None;
        self.ready = !status.is_ended() && (status != RunStatus::Paused || unread);
        // A run whose start is delayed gets a turn that only reads its messages.
        if self.ready && !self.is_delayed(started, now) {
            self.due_at = Some(self.due_at.map_or(now, |due_at| due_at.min(now)));
        }
        self
    }

    /// Whether a ready turn is reserved for another worker: for the one that released it last, if
    /// it became ready after `since`.
    pub fn is_reserved_for_another(&self, worker: WorkerKey, since: Timestamp) -> bool {
        let other = self.last_worker.is_some_and(|last| last != worker);
        other && self.due_at.is_some_and(|due_at| due_at > since)
    }

    /// The turn after its run accepted a message. Only a control message wakes a paused run, or one
    /// whose start is delayed; it does not change the time of the start.
    pub fn after_message(
        mut self,
        status: RunStatus,
        started: bool,
        kind: MessageKind,
        now: Timestamp,
    ) -> Self {
        let delayed = self.is_delayed(started, now);
        let waits = delayed || status == RunStatus::Paused;
        let wakes = !waits || kind == MessageKind::Control;
        if !status.is_ended() && wakes && self.worker.is_none() && !self.ready {
            self.ready = true;
            if !delayed {
                self.due_at = Some(now);
            }
        }
        self
    }

    /// Whether a run with this turn must not start yet. Before a run has started, `due_at` is the
    /// time of its start.
    pub fn is_delayed(&self, started: bool, now: Timestamp) -> bool {
        !started && self.due_at.is_some_and(|at| at > now)
    }
}

impl Run {
    /// The time of the start, if the run has not started and must not start yet.
    pub fn delayed_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.turn.due_at.filter(|_| self.turn.is_delayed(self.started_at.is_some(), now))
    }
}

impl Task {
    /// A new task.
    pub fn normalised(mut self, now: Timestamp) -> Self {
        normalise(&mut self.ready, &mut self.due_at, self.worker.is_some(), now);
        self.claimed_at = self.worker.map(|_| now);
        (self.heartbeat_at, self.heartbeat) = (None, None);
        self
    }

    /// The task after its holder requeued it for another attempt.
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

    /// The task after a worker claimed it.
    pub fn claimed(mut self, hold: Hold, now: Timestamp) -> Self {
        self.worker = Some(hold.worker);
        self.claim_no = hold.claim_no;
        self.claimed_at = Some(now);
        self.ready = false;
        self
    }

    /// The task after its hold was released or revoked without a commit.
    pub fn released(mut self, now: Timestamp) -> Self {
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
        check_start(change, status, true, accepted, expect);
    }

    #[track_caller]
    fn check_start(
        change: TurnChange,
        status: RunStatus,
        started: bool,
        accepted: u64,
        expect: &str,
    ) {
        let held = Turn::held_by(WorkerKey(uuid::Uuid::from_u128(1)));
        let turn = held.after_commit(change, status, started, accepted, NOW);
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
        // Before the first turn.
        let unstarted =
            |change, status, expect: &str| check_start(change, status, false, 5, expect);
        unstarted(release(at(150), 5), Active, "idle 150");
        unstarted(release(at(150), 4), Active, "ready 150");
        unstarted(release(at(150), 5), Paused, "idle 150");
        unstarted(release(at(150), 4), Paused, "ready 150");
        unstarted(release(at(50), 4), Active, "ready 100");
        unstarted(release(Wake::Now, 5), Active, "ready 100");
    }

    // The worker that released the turn may be gone until the run starts.
    #[test]
    fn a_delayed_turn_is_reserved_for_nobody() {
        let change = TurnChange::Release { wake: Wake::At(micros(150)), seen: 4 };
        let turn = Turn::held_by(A).after_commit(change, RunStatus::Active, false, 5, NOW);
        assert!(!turn.is_reserved_for_another(B, micros(50)));
    }

    const A: WorkerKey = WorkerKey(uuid::Uuid::from_u128(1));
    const B: WorkerKey = WorkerKey(uuid::Uuid::from_u128(2));

    fn micros(at: i64) -> Timestamp {
        Timestamp::from_micros(at)
    }

    fn display_turn(held: bool, ready: bool, due_at: Option<Timestamp>) -> String {
        let due = due_at.map_or("none".to_owned(), |at| at.as_micros().to_string());
        match (held, ready) {
            (true, _) => "held".to_owned(),
            (false, true) => format!("ready {due}"),
            (false, false) => format!("idle {due}"),
        }
    }

    #[test]
    fn a_turn_after_its_hold_is_gone_without_a_commit() {
        #[track_caller]
        fn check(status: RunStatus, unread: bool, due: Option<i64>, expect: &str) {
            check_start(status, true, unread, due, expect);
        }
        #[track_caller]
        fn check_start(
            status: RunStatus,
            started: bool,
            unread: bool,
            due: Option<i64>,
            expect: &str,
        ) {
            let held = Turn { due_at: due.map(micros), last_worker: Some(B), ..Turn::held_by(A) };
            let turn = held.released(status, started, unread, NOW);
            assert_eq!(display_turn(turn.worker.is_some(), turn.ready, turn.due_at), expect);
            assert_eq!((turn.claim_no, turn.claimed_at, turn.last_worker), (2, None, None));
        }
        use RunStatus::{Active, Complete, Paused, Waiting};
        check(Active, false, None, "ready 100");
        check(Waiting, false, Some(50), "ready 50");
        check(Waiting, false, Some(150), "ready 100");
        check(Paused, false, None, "idle none");
        check(Paused, false, Some(150), "idle 150");
        check(Paused, true, None, "ready 100");
        check(Complete, true, None, "idle none");
        check_start(Active, false, false, Some(150), "ready 150");
        check_start(Active, false, true, Some(150), "ready 150");
        check_start(Paused, false, true, Some(150), "ready 150");
        check_start(Paused, false, false, Some(150), "idle 150");
        check_start(Active, false, false, Some(50), "ready 50");
        check_start(Active, false, false, None, "ready 100");
    }

    #[test]
    fn a_turn_after_a_message() {
        #[track_caller]
        fn check(turn: Turn, status: RunStatus, kind: MessageKind, expect: &str) {
            check_start(turn, status, true, kind, expect);
        }
        #[track_caller]
        fn check_start(
            turn: Turn,
            status: RunStatus,
            started: bool,
            kind: MessageKind,
            expect: &str,
        ) {
            let turn = turn.after_message(status, started, kind, NOW);
            assert_eq!(display_turn(turn.worker.is_some(), turn.ready, turn.due_at), expect);
        }
        use MessageKind::{Control, Event};
        use RunStatus::{Active, Complete, Paused, Waiting};
        let idle = || Turn::due_at(micros(150));
        check(idle(), Waiting, Event, "ready 100");
        check(idle(), Waiting, Control, "ready 100");
        check(idle(), Paused, Event, "idle 150");
        check(idle(), Paused, Control, "ready 100");
        check(idle(), Complete, Control, "idle 150");
        check(Turn::held_by(A), Waiting, Event, "held");
        let ready = Turn { due_at: Some(micros(50)), ..Turn::ready() };
        check(ready, Waiting, Event, "ready 50");
        check_start(idle(), Active, false, Event, "idle 150");
        check_start(idle(), Active, false, Control, "ready 150");
        check_start(idle(), Paused, false, Control, "ready 150");
        check_start(Turn::due_at(micros(50)), Active, false, Event, "ready 100");
    }

    #[test]
    fn a_ready_turn_waits_for_the_worker_that_has_the_run_in_memory() {
        let turn = |last_worker| Turn { last_worker, due_at: Some(micros(60)), ..Turn::ready() };
        let check = |last, worker, since, expect: bool| {
            assert_eq!(turn(last).is_reserved_for_another(worker, micros(since)), expect);
        };
        check(Some(A), B, 50, true);
        check(Some(A), A, 50, false);
        check(Some(A), B, 60, false);
        check(None, B, 50, false);
    }

    #[test]
    fn a_claimed_turn_keeps_its_due_time() {
        let turn = Turn { due_at: Some(micros(60)), ..Turn::ready() };
        let turn = turn.claimed(Hold { worker: B, claim_no: 7 }, NOW);
        let found = (turn.hold(), turn.ready, turn.due_at, turn.claimed_at);
        let hold = Some(Hold { worker: B, claim_no: 7 });
        assert_eq!(found, (hold, false, Some(micros(60)), Some(NOW)));
    }

    #[test]
    fn a_new_turn() {
        #[track_caller]
        fn check(turn: Turn, expect: &str) {
            let turn = Turn { last_worker: Some(B), ..turn }.normalised(NOW);
            assert_eq!(display_turn(turn.worker.is_some(), turn.ready, turn.due_at), expect);
            assert_eq!((turn.claimed_at, turn.last_worker), (turn.worker.map(|_| NOW), None));
        }
        check(Turn::ready(), "ready 100");
        check(Turn::held_by(A), "held");
        check(Turn::due_at(micros(50)), "ready 50");
        check(Turn::due_at(micros(100)), "ready 100");
        check(Turn::due_at(micros(101)), "idle 101");
        check(Turn { ready: false, ..Turn::ready() }, "idle none");
        check(Turn { due_at: Some(micros(101)), ..Turn::ready() }, "idle 101");
    }

    // A task in its second attempt, held, and reaped twice.
    fn task() -> Task {
        let route = crate::rows::Route {
            queue: crate::ids::QueueName::default_queue(),
            name: crate::ids::RouteName::from_stored("t"),
        };
        let namespace = crate::ids::Namespace::default_namespace();
        let id = crate::ids::TaskId(uuid::Uuid::nil());
        let mut task = Task::new(id, namespace, "activity", route, NOW);
        (task.worker, task.ready, task.claim_no) = (Some(A), false, 4);
        (task.attempt, task.reclaims) = (1, 2);
        task.errors = Some(crate::body::Body::json("[1]"));
        task
    }

    #[test]
    fn a_task_after_a_failed_attempt() {
        #[track_caller]
        fn check(wake: Wake, untried: bool, errors: Option<&'static str>, expect: &str) {
            let before = task();
            let errors = errors.map(crate::body::Body::json);
            let expected_errors = errors.clone().or(before.errors.clone());
            let task_id = before.task_id;
            let change = Reschedule { task_id, wake, attempt: 2, errors, untried };
            let after = before.rescheduled(&change, NOW);
            assert_eq!(display_turn(after.worker.is_some(), after.ready, after.due_at), expect);
            let reclaims = if untried { 2 } else { 0 };
            let found = (after.attempt, after.claim_no, after.reclaims, after.claimed_at);
            assert_eq!(found, (2, 5, reclaims, None));
            assert_eq!(after.errors, expected_errors);
        }
        check(Wake::Now, false, None, "ready 100");
        check(Wake::OnMessage, false, None, "ready 100");
        check(Wake::At(micros(50)), false, Some("[1,2]"), "ready 50");
        check(Wake::At(micros(150)), true, None, "idle 150");
    }

    #[test]
    fn a_task_after_its_hold_is_gone_without_a_commit() {
        for (due, expect) in [(None, "ready 100"), (Some(50), "ready 50"), (Some(150), "ready 100")]
        {
            let task = Task { due_at: due.map(micros), ..task() }.released(NOW);
            assert_eq!(display_turn(task.worker.is_some(), task.ready, task.due_at), expect);
            assert_eq!((task.claim_no, task.claimed_at, task.attempt), (5, None, 1));
        }
    }
}
