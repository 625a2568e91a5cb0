//! Checks of runs of agents at the end: their results, the order of their ledgers, and the causes of their events.

use std::collections::{BTreeMap, BTreeSet};

use windlass_kernel::{CausalRef, Event, EventId, MemoryStore, Run, RunStatus};

use super::super::fleet::agent::{AGENT, is_right};
use super::super::fleet::client::ClientView;
use super::super::store::short;
use super::Checker;
use super::audit::events_of;

impl Checker {
    /// Checks all runs of agents. After a run that was given up, only their ledgers are checked.
    pub(super) fn audit_agents(
        &self,
        store: &MemoryStore,
        runs: &[Run],
        views: &[ClientView],
        gave_up: bool,
    ) {
        let own: Vec<&Run> = runs.iter().filter(|run| run.workflow.as_str() == AGENT).collect();
        let mut events = BTreeMap::new();
        for run in &own {
            let ledger = events_of(store, run.run_key);
            self.audit_calls(run, &ledger);
            events.extend(ledger.into_iter().map(|event| (event.event_id, event)));
            if !gave_up {
                self.audit_end(run, runs, views);
            }
        }
        self.audit_causes(&own, &events);
    }

    // Only a generation that another one follows may have failed or been restarted.
    fn audit_end(&self, run: &Run, runs: &[Run], views: &[ClientView]) {
        let followed = runs.iter().any(|next| {
            (&next.namespace, &next.workflow, &next.id) == (&run.namespace, &run.workflow, &run.id)
                && next.generation > run.generation
        });
        // A restart of the parent begins with other branches.
        let parent = runs.iter().find(|parent| Some(parent.run_key) == run.parent);
        let orphan = parent.is_some_and(|parent| parent.status == RunStatus::Terminated);
        let asked = views.iter().any(|view| view.is_about(run) && view.terminated);
        let right = match run.status {
            RunStatus::Complete => is_right(run),
            RunStatus::Errored => {
                followed
                    || asked
                    || parent.is_some_and(|parent| parent.status != RunStatus::Complete)
            }
            RunStatus::Terminated => followed || orphan || asked,
            _ => false,
        };
        if !right {
            let (name, output, error) = (short(run.run_key.0), &run.output, &run.error);
            let detail =
                format!("r{name:x} {} is {} with {output:?} {error:?}", run.id, run.status);
            self.fail("6 a run comes to what its program comes to", detail);
        }
    }

    // A local call has one start and at most one end, and each receipt is recorded once.
    fn audit_calls(&self, run: &Run, ledger: &[Event]) {
        let name = short(run.run_key.0);
        let (mut open, mut recorded) = (false, BTreeSet::new());
        for event in ledger {
            let ordinal = event.ordinal;
            let right = match event.event_type.as_str() {
                "local_call.started" => !std::mem::replace(&mut open, true),
                "local_call.completed" | "local_call.failed" => std::mem::take(&mut open),
                "tool_call.recorded" => {
                    let payload = event.payload_json().unwrap_or_default();
                    recorded.insert(payload["step"].to_string())
                }
                _ => true,
            };
            if !right {
                let detail = format!("r{name:x}: event {ordinal} is {}", event.event_type);
                self.fail("37 no local call and no receipt is recorded twice", detail);
            }
        }
    }

    // The causes of every event lead to the first event of the first generation of its root.
    fn audit_causes(&self, runs: &[&Run], events: &BTreeMap<EventId, Event>) {
        for event in events.values() {
            let (mut at, mut left) = (event, events.len());
            while let CausalRef::EventId { event_id } = at.caused_by
                && let Some(cause) = events.get(&event_id)
                && left > 0
            {
                (at, left) = (cause, left - 1);
            }
            let first = runs.iter().find(|run| run.run_key == at.run_key);
            let own = runs.iter().find(|run| run.run_key == event.run_key);
            let root = own.and_then(|own| runs.iter().find(|run| run.run_key == own.root));
            let right = at.ordinal == 0
                && matches!(at.caused_by, CausalRef::RunId { .. })
                && first.zip(root).is_some_and(|(first, root)| {
                    first.parent.is_none() && first.generation == 0 && first.id == root.id
                });
            if !right {
                let detail = format!(
                    "the causes of {} {} of r{:x} lead to {} {} of r{:x}",
                    event.ordinal,
                    event.event_type,
                    short(event.run_key.0),
                    at.ordinal,
                    at.event_type,
                    short(at.run_key.0)
                );
                self.fail("38 the causes of an event lead to its root", detail);
            }
        }
    }
}
