//! Signals to the claimer: which work may be ready, and when the next work is due.

use parking_lot::Mutex;
use tokio::sync::Notify;
use windlass_kernel::Timestamp;

/// Kinds of work that may be ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) turns: bool,
    pub(crate) tasks: bool,
    /// The engine's own tasks. They have capacity of their own, so they can be claimed when there is
    /// none for other tasks.
    pub(crate) internal: bool,
}

impl Work {
    pub(crate) const NONE: Self = Self { turns: false, tasks: false, internal: false };
    pub(crate) const ALL: Self = Self { turns: true, tasks: true, internal: true };
    pub(crate) const TURNS: Self = Self { turns: true, ..Self::NONE };
    pub(crate) const TASKS: Self = Self { tasks: true, ..Self::NONE };
    /// A claim looks for the engine's own tasks only if it looks for tasks.
    pub(crate) const INTERNAL: Self = Self { tasks: true, internal: true, ..Self::NONE };

    fn or(self, other: Self) -> Self {
        Self {
            turns: self.turns || other.turns,
            tasks: self.tasks || other.tasks,
            internal: self.internal || other.internal,
        }
    }
}

/// The claimer's to-do list. One lock, held for a few instructions: every commit that makes work ready
/// takes it.
pub(crate) struct Signals {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    ready: Work,
    // The earliest known due time of a scheduled turn or task.
    due: Option<Timestamp>,
    recheck: Recheck,
}

/// Counts turn wake-ups of the store. The store first offers a turn to the process that released it
/// last. If a claim after a wake-up finds nothing, the claimer looks once more after the offer window:
/// the other process may be gone.
#[derive(Default)]
struct Recheck {
    wakeups: u64,
    rechecked: u64,
    scheduled: bool,
}

impl Default for Signals {
    // No wake-up comes for work that was ready or due before the engine started.
    fn default() -> Self {
        let due = Some(Timestamp::from_micros(i64::MIN));
        let state = State { ready: Work::ALL, due, recheck: Recheck::default() };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl Signals {
    /// Turns may be ready.
    pub(crate) fn turns(&self) {
        if !std::mem::replace(&mut self.state.lock().ready.turns, true) {
            self.changed.notify_one();
        }
    }

    /// Tasks may be ready.
    pub(crate) fn tasks(&self) {
        if !std::mem::replace(&mut self.state.lock().ready.tasks, true) {
            self.changed.notify_one();
        }
    }

    /// Tasks of the engine itself may be ready.
    pub(crate) fn internal_tasks(&self) {
        self.restore(Work::INTERNAL);
        self.changed.notify_one();
    }

    /// Anything may be ready or due.
    pub(crate) fn everything(&self) {
        {
            let mut state = self.state.lock();
            state.ready = Work::ALL;
            state.due = Some(Timestamp::from_micros(i64::MIN));
        }
        self.changed.notify_one();
    }

    /// Something is due at a time.
    pub(crate) fn due(&self, at: Timestamp) {
        if self.restore_due(at) {
            self.changed.notify_one();
        }
    }

    /// Wakes the claimer if it has left work ready for which there was no capacity.
    pub(crate) fn capacity_freed(&self) {
        let ready = self.state.lock().ready;
        if ready.turns || ready.tasks {
            self.changed.notify_one();
        }
    }

    /// Completes after the next signal.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes the signals for turns and tasks. The one for internal tasks stays until
    /// [`Signals::take_internal`].
    pub(crate) fn take(&self) -> Work {
        let mut state = self.state.lock();
        let internal = state.ready.internal;
        std::mem::replace(&mut state.ready, Work { internal, ..Work::NONE })
    }

    pub(crate) fn take_internal(&self) -> bool {
        std::mem::take(&mut self.state.lock().ready.internal)
    }

    /// Sets signals for the claimer's next round, without waking it.
    pub(crate) fn restore(&self, work: Work) {
        let mut state = self.state.lock();
        state.ready = state.ready.or(work);
    }

    /// Keeps the earlier due time, without waking the claimer. Returns whether `at` is the earlier one.
    pub(crate) fn restore_due(&self, at: Timestamp) -> bool {
        let mut state = self.state.lock();
        let earlier = state.due.is_none_or(|due| at < due);
        if earlier {
            state.due = Some(at);
        }
        earlier
    }

    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.state.lock().due
    }

    /// Takes the due time if it has come.
    pub(crate) fn take_due(&self, now: Timestamp) -> Option<Timestamp> {
        self.state.lock().due.take_if(|due| *due <= now)
    }

    /// Counts a wake-up of the store that may be about a turn.
    pub(crate) fn count_turn_wakeup(&self) {
        self.state.lock().recheck.wakeups += 1;
    }

    /// After a claim that found no turn: the number of wake-ups to pass to [`Signals::recheck`] after
    /// the offer window, if there are unchecked wake-ups and no recheck is scheduled yet. If the claim
    /// has passed over turns, wake-ups do not matter.
    pub(crate) fn schedule_recheck(&self, passed_over: bool) -> Option<u64> {
        let recheck = &mut self.state.lock().recheck;
        if (recheck.rechecked == recheck.wakeups && !passed_over) || recheck.scheduled {
            return None;
        }
        recheck.scheduled = true;
        Some(recheck.wakeups)
    }

    /// The offer window of all wake-ups up to this number is over.
    pub(crate) fn recheck(&self, wakeups: u64) {
        {
            let recheck = &mut self.state.lock().recheck;
            (recheck.rechecked, recheck.scheduled) = (wakeups, false);
        }
        self.turns();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn at(us: i64) -> Timestamp {
        Timestamp::from_micros(us)
    }

    // Signals of an engine that has looked at everything once.
    fn quiet() -> Signals {
        let signals = Signals::default();
        signals.take();
        signals.take_internal();
        signals.take_due(at(0));
        signals
    }

    #[track_caller]
    fn check(signal: impl Fn(&Signals), wakes: bool, expect: Work) {
        let signals = quiet();
        signal(&signals);
        let woken = std::pin::pin!(signals.changed()).now_or_never().is_some();
        assert_eq!(woken, wakes);
        let internal = signals.take_internal();
        assert_eq!(Work { internal, ..signals.take() }, expect);
        assert_eq!(signals.take(), Work::NONE, "a signal is taken once");
    }

    #[test]
    fn each_signal_sets_its_work() {
        check(|_| (), false, Work::NONE);
        check(Signals::turns, true, Work::TURNS);
        check(Signals::tasks, true, Work::TASKS);
        check(Signals::internal_tasks, true, Work::INTERNAL);
        check(Signals::everything, true, Work::ALL);
        check(|signals| signals.restore(Work::TURNS), false, Work::TURNS);
        check(Signals::capacity_freed, false, Work::NONE);
        let left_ready = |signals: &Signals| {
            signals.restore(Work::TASKS);
            signals.capacity_freed();
        };
        check(left_ready, true, Work::TASKS);
    }

    #[test]
    fn the_earliest_due_time_counts() {
        let signals = quiet();
        assert_eq!(signals.next_due(), None);
        for (due, wakes, next) in [(50, true, 50), (70, false, 50), (30, true, 30)] {
            signals.due(at(due));
            let woken = std::pin::pin!(signals.changed()).now_or_never().is_some();
            assert_eq!((woken, signals.next_due()), (wakes, Some(at(next))), "{due}");
        }
        assert_eq!(signals.take_due(at(29)), None);
        assert_eq!(signals.take_due(at(30)), Some(at(30)));
        assert_eq!(signals.take_due(at(99)), None, "it is taken once");
    }

    #[test]
    fn a_wakeup_is_rechecked_once() {
        let signals = quiet();
        assert_eq!(signals.schedule_recheck(false), None, "there was no wake-up");
        assert_eq!(signals.schedule_recheck(true), Some(0), "a turn was passed over");
        signals.recheck(0);
        assert_eq!(signals.take(), Work::TURNS);
        signals.count_turn_wakeup();
        assert_eq!(signals.schedule_recheck(false), Some(1));
        assert_eq!(signals.schedule_recheck(false), None, "one is scheduled");
        signals.count_turn_wakeup();
        signals.recheck(1);
        assert_eq!(signals.take(), Work::TURNS);
        assert_eq!(
            signals.schedule_recheck(false),
            Some(2),
            "the second wake-up came during the first"
        );
        signals.recheck(2);
        assert_eq!(signals.schedule_recheck(false), None);
    }
}
