//! Invariants of runs of the real engine: while their bodies run, and at the end.

use windlass_kernel::{
    Hold, MemoryStore, MessageKind, Run, RunKey, RunStatus, StepKey, Store as _, WorkerKey,
};

use futures::FutureExt as _;

use super::super::fleet::agent::AGENT;
use super::super::fleet::client::ClientView;
use super::super::fleet::machine::{self, MACHINE};
use super::super::fleet::program::{Input, Program};
use super::super::fleet::relay::{Order, RELAY};
use super::super::fleet::request::ASK;
use super::super::store::short;
use super::audit::{events_of, messages_of};
use super::relays::{Hooked, dead_steps};
use super::{Checker, load};

impl Checker {
    /// The body of a step begins on a worker. `delivered` is the newest claim of the run whose answer has
    /// reached that worker.
    pub fn body_begins(
        &self,
        store: &MemoryStore,
        run_key: RunKey,
        step_key: &StepKey,
        worker: WorkerKey,
        delivered: Option<u64>,
    ) {
        let Some(row) = load(store, vec![run_key]).pop() else { return };
        let own = row.run.turn.hold().filter(|hold| hold.worker == worker);
        let settled = self.state().settled.get(&(run_key, step_key.clone())).map(|s| s.claim_no);
        if let Some(claim_no) = settled {
            // Under an older claim it is a zombie, and the store will refuse its result. As soon as the
            // worker knows its newest claim, it has dropped the work under older ones.
            let knows = |hold: Hold| hold.claim_no == claim_no || delivered == Some(hold.claim_no);
            if own.is_some_and(|hold| hold.claim_no >= claim_no && knows(hold)) {
                let detail = format!("step {step_key} of r{:x} runs again", short(run_key.0));
                self.fail("1 a completed step never executes again", detail);
            }
            self.sim.sometimes("zombie executed a step that was completed meanwhile");
            return;
        }
        let now = store.now().now_or_never().and_then(Result::ok).unwrap_or_default();
        let step = row.steps.iter().find(|step| step.step_key == *step_key);
        if let Some(due_at) = step.and_then(|step| step.due_at)
            && own.is_some()
            && due_at > now
            && !self.state().timers_may_be_early
        {
            let detail = format!("step {step_key} is due at {due_at} and ran at {now}");
            self.fail("18 a backoff is not cut short", detail);
        }
    }

    /// Checks the whole store at the end.
    pub(crate) fn audit_fleet(
        &self,
        store: &MemoryStore,
        views: &[ClientView],
        (orders, hooked): (&[Order], &Hooked),
        accepted: &[(String, String)],
        may_give_up: bool,
    ) {
        let runs = self.runs(store);
        for run in &runs {
            self.audit_ledger(store, run);
            self.audit_records(store, run);
            self.audit_mailbox(store, run);
            self.audit_replay(store, run);
        }
        let gave_up = runs.iter().any(no_progress);
        if gave_up && !may_give_up {
            let detail = "a run ended in NoProgress and was to be patient".to_owned();
            self.fail("30 after healing every run ends or waits for what it declared", detail);
        }
        for run in &runs {
            self.audit_children(store, run, &runs);
            match run.workflow.as_str() {
                // They are checked together.
                RELAY | AGENT => {}
                _ if gave_up => {}
                // Its output is compared with its request.
                ASK => {}
                MACHINE => self.audit_machine(run, views),
                _ => self.audit_output(run, &runs, views),
            }
        }
        let relays: Vec<&Run> = runs.iter().filter(|run| run.workflow.as_str() == RELAY).collect();
        if !gave_up {
            let letters = dead_steps(store, windlass_kernel::Namespace::default_namespace());
            relays.iter().for_each(|run| self.audit_relay(run, orders, &letters));
        }
        self.audit_hooks(&relays, hooked, may_give_up);
        self.audit_agents(store, &runs, views, gave_up);
        for view in views {
            self.audit_answer(view, &runs);
        }
        self.audit_rest(store, &runs);
        self.audit_effects(store);
        self.audit_counters(store);
        if !gave_up {
            self.audit_requests(store, &runs, accepted);
        }
        self.audit_accepted(&runs);
        self.audit_verified(store);
    }

    // Every process has the same code, so no run may be blocked.
    fn audit_replay(&self, store: &MemoryStore, run: &Run) {
        let events = events_of(store, run.run_key);
        if let Some(event) = events.iter().find(|e| e.event_type.as_str() == "workflow.blocked") {
            let payload = event.payload_json().unwrap_or_default();
            let detail = format!("r{:x} was blocked: {payload}", short(run.run_key.0));
            self.fail("7 replay asks for the same steps", detail);
        }
    }

    fn audit_machine(&self, run: &Run, views: &[ClientView]) {
        let expected = run.input.read::<u64>().ok().map(machine::expected);
        let output = run.output.as_ref().and_then(|output| output.read::<u64>().ok());
        let right = match run.status {
            RunStatus::Complete => output.is_some() && output == expected,
            RunStatus::Terminated => views.iter().any(|view| view.is_about(run) && view.terminated),
            _ => false,
        };
        if !right {
            let (name, error) = (short(run.run_key.0), &run.error);
            let detail = format!(
                "r{name:x} {} is {} with {output:?} {error:?}, expected {expected:?}",
                run.id, run.status
            );
            self.fail("6 a run comes to what its program comes to", detail);
        }
    }

    fn audit_output(&self, run: &Run, runs: &[Run], views: &[ClientView]) {
        let name = short(run.run_key.0);
        let Ok(input) = run.input.read::<Input>() else {
            return self.fail("6 a run keeps its input", format!("r{name:x} has another input"));
        };
        let program = Program::of(&input);
        let asked = views.iter().any(|view| view.is_about(run) && view.terminated);
        let orphan = runs
            .iter()
            .any(|parent| Some(parent.run_key) == run.parent && parent.status.is_ended());
        let right = match run.status {
            // A generation that is continued has an output of the model's own.
            RunStatus::Complete if program.next.is_some() => runs.iter().any(|next| {
                (&next.namespace, &next.id) == (&run.namespace, &run.id)
                    && next.generation == run.generation + 1
            }),
            RunStatus::Complete => {
                let output = run.output.as_ref().and_then(|output| output.read::<u64>().ok());
                output.is_some() && output == program.expected()
            }
            RunStatus::Errored => program.fails && program.next.is_none(),
            RunStatus::Terminated => asked || orphan,
            _ => false,
        };
        if !right {
            let (output, error) = (&run.output, &run.error);
            let expected = program.expected();
            let detail = format!(
                "r{name:x} {} is {} with {output:?} {error:?}, expected {expected:?}",
                run.id, run.status
            );
            self.fail("6 a run comes to what its program comes to", detail);
        }
    }

    // The result that a client received is the result in the store.
    fn audit_answer(&self, view: &ClientView, runs: &[Run]) {
        let Some(ended) = &view.ended else { return };
        let newest = runs.iter().filter(|run| view.is_about(run)).max_by_key(|run| run.generation);
        let right = newest.is_some_and(|run| match ended {
            Ok(output) => {
                let stored = run.output.as_ref().and_then(|stored| stored.read::<u64>().ok());
                run.status == RunStatus::Complete && stored == Some(*output)
            }
            Err(code) if code == "RUN_ERRORED" => run.status == RunStatus::Errored,
            Err(code) if code == "RUN_TERMINATED" => run.status == RunStatus::Terminated,
            Err(_) => false,
        });
        if !right {
            let detail = format!("the client of {} received {ended:?}, {newest:?}", view.id);
            self.fail("8 what was acknowledged survives", detail);
        }
    }

    fn audit_children(&self, store: &MemoryStore, run: &Run, runs: &[Run]) {
        let Some(parent) = runs.iter().find(|parent| Some(parent.run_key) == run.parent) else {
            return;
        };
        if parent.namespace != run.namespace || parent.root != run.root {
            let detail = format!("r{:x} is not of its parent's tree", short(run.run_key.0));
            self.fail("27 nothing crosses namespaces", detail);
        }
        if parent.status.is_ended() && !run.status.is_ended() {
            let detail = format!("r{:x} lives, its parent has ended", short(run.run_key.0));
            self.fail("20 cancel reaches every live descendant", detail);
        }
        let id = format!("child:{}", run.run_key);
        let results = messages_of(store, parent.run_key).into_iter().filter(|message| {
            message.kind == MessageKind::ChildResult && message.message_id.as_str() == id
        });
        if results.count() > 1 {
            let detail = format!("r{:x} sent its result more than once", short(run.run_key.0));
            self.fail("21 a parent sees each child's result once", detail);
        }
        if parent.status == RunStatus::Terminated && run.status == RunStatus::Terminated {
            self.sim.sometimes("cancel reached a child");
        }
    }
}

fn no_progress(run: &Run) -> bool {
    let error: Option<serde_json::Value> = run.error.as_ref().and_then(|error| error.read().ok());
    error.is_some_and(|error| error["name"] == "NoProgress")
}
