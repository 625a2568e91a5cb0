//! Invariants of an idle run: something will wake it, and it has missed nothing.

use windlass_kernel::{Loaded, MemoryStore, Run, RunStatus, Step, StepStatus, Timestamp};

use super::super::store::short;
use super::{Checker, load};

/// Whether a run is at rest, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It has ended.
    Ended,
    /// It waits without a timeout for a message or a child.
    Declared,
    /// It is paused.
    Paused,
    /// It has work to do, now or later.
    Moving,
}

impl Checker {
    /// Whether a run is at rest, and why.
    pub fn rest(&self, store: &MemoryStore, run: &Run) -> Rest {
        if run.status.is_ended() {
            return Rest::Ended;
        }
        if run.status == RunStatus::Paused {
            return Rest::Paused;
        }
        let turn = &run.turn;
        if turn.ready || turn.worker.is_some() || turn.due_at.is_some() {
            return Rest::Moving;
        }
        let row = load(store, vec![run.run_key]).pop();
        // A parent rests as long as its child does.
        let declared = |step: &Step| match step.kind.as_str() {
            "relay" => awaits(step),
            kind => matches!(kind, "event" | "child" | "request" | "fork"),
        };
        let waits = row.is_some_and(|row| open_steps(&row).any(declared));
        if waits { Rest::Declared } else { Rest::Moving }
    }

    /// Checks that something will wake a run whose turn is neither held nor ready.
    pub fn check_idle(&self, store: &MemoryStore, run: &Run, now: Timestamp) {
        let turn = &run.turn;
        let open = !run.status.is_ended() && run.status != RunStatus::Paused;
        if !open || turn.worker.is_some() || turn.ready {
            return;
        }
        let name = short(run.run_key.0);
        if run.accepted > run.seen {
            let detail = format!("r{name:x} accepted {} and has read {}", run.accepted, run.seen);
            self.fail("12 no wake-up is lost", detail);
        }
        let Some(row) = load(store, vec![run.run_key]).pop() else { return };
        let unread = row.messages.iter().find(|message| {
            let named = |step: &Step| step.wait_for.as_deref() == Some(message.name.as_str());
            open_steps(&row).any(|step| awaits(step) && named(step))
        });
        if let Some(message) = unread {
            let detail = format!("r{name:x} waits for {} and has it, unread", message.name);
            self.fail("17 a message before its wait is not lost", detail);
        }
        let next = open_steps(&row).filter_map(|step| step.due_at).min();
        let timer = turn.due_at;
        if let Some(next) = next
            && timer.is_none_or(|timer| timer > next.max(now))
        {
            let detail = format!("r{name:x} has a step due at {next} and wakes at {timer:?}");
            self.fail("11 every live run has a wake source", detail);
        }
        // A machine declares no wait for a signal.
        let may_be_sent = run.model.as_str() == "machines" && open_steps(&row).next().is_none();
        let woken = timer.is_some() || may_be_sent;
        if !woken && !open_steps(&row).any(|step| self.will_wake(store, step)) {
            let kinds: Vec<_> = open_steps(&row).map(|step| step.kind.clone()).collect();
            let detail = format!("r{name:x} is idle, open steps: {kinds:?}");
            self.fail("11 every live run has a wake source", detail);
        }
    }

    // Whether a task, a child or a sender exists that will send the message this step waits for.
    fn will_wake(&self, store: &MemoryStore, step: &Step) -> bool {
        match step.kind.as_str() {
            "event" | "relay" | "request" => awaits(step),
            "activity" => self.tasks(store, None).iter().any(|task| {
                task.run_key == Some(step.run_key) && task.step_key.as_ref() == Some(&step.step_key)
            }),
            "child" => self.runs(store).iter().any(|run| {
                let fork = run.fork.as_deref() == Some(step.step_key.as_str());
                run.parent == Some(step.run_key) && fork && !run.status.is_ended()
            }),
            // The branches of a fork of an agent.
            "fork" => self
                .runs(store)
                .iter()
                .any(|run| run.parent == Some(step.run_key) && !run.status.is_ended()),
            _ => false,
        }
    }
}

fn open_steps(row: &Loaded) -> impl Iterator<Item = &Step> {
    row.steps.iter().filter(|step| !step.status.is_settled())
}

// Whether a step still waits for a message. A step of a relay keeps the name of the signal that it
// received.
fn awaits(step: &Step) -> bool {
    let untried = step.status == StepStatus::Waiting && step.attempt == 0;
    step.wait_for.is_some() && (step.kind.as_str() != "relay" || untried)
}
