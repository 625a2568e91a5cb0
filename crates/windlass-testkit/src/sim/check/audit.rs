//! Checks of the final state: ledgers, mailboxes, effects and dead letters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::FutureExt as _;
use serde_json::json;
use windlass::admin::verify_store;
use windlass_kernel::canonical::to_canonical;
use windlass_kernel::ledger::{genesis, run_end_digest, step_digest};
use windlass_kernel::{
    Event, Head, Loaded, MemoryStore, Message, Query, Run, RunKey, Sha256Digest, Store, Task,
};

use super::super::fleet::program::counter;
use super::super::store::short;
use super::{Checker, load};

/// No simulation lasts as long.
const LATER: Duration = Duration::from_secs(24 * 60 * 60);

impl Checker {
    // The kernel's own verification agrees on every head that was ever acknowledged.
    pub(super) fn audit_verified(&self, store: &MemoryStore) {
        let anchors = self.state().anchors.clone();
        match verify_store(store, &anchors).now_or_never() {
            Some(Ok(report)) if report.is_clean() => {}
            Some(Ok(report)) => {
                let detail = format!("{:?} {:?}", report.flaws, report.unreadable);
                self.fail("5 verification finds no flaw", detail);
            }
            other => self.fail("5 verification finds no flaw", format!("{other:?}")),
        }
    }

    pub(super) fn audit_ledger(&self, store: &MemoryStore, run: &Run) {
        let events = events_of(store, run.run_key);
        let name = short(run.run_key.0);
        let mut head = genesis(run);
        for event in &events {
            if event.ordinal != head.next_ordinal {
                let detail =
                    format!("r{name:x}: {} instead of {}", event.ordinal, head.next_ordinal);
                return self.fail("5 ordinals are gapless", detail);
            }
            let hash = hash_of(&head.hash, event);
            if hash != event.hash {
                let detail = format!("r{name:x}: event {} has another hash", event.ordinal);
                return self.fail("5 the hash chain is intact", detail);
            }
            head = Head { next_ordinal: event.ordinal + 1, hash };
            let known = self.state().events.get(&event.event_id).copied();
            if known != Some((run.run_key, event.ordinal)) {
                let detail = format!("r{name:x}: event {} was never committed", event.ordinal);
                return self.fail("5 the ledger holds what was committed", detail);
            }
        }
        if head != run.head || events.last().map(|event| event.event_id) != Some(run.cursor) {
            let detail = format!("r{name:x} does not end where its ledger does");
            self.fail("5 the ledger ends where its run says", detail);
        }
        let committed = self.state().events.values().filter(|at| at.0 == run.run_key).count();
        if committed != events.len() {
            let detail = format!("r{name:x}: {committed} committed, {} there", events.len());
            self.fail("8 what was acknowledged survives", detail);
        }
    }

    // Every settled step is what was recorded, and an ended run ended as it was recorded.
    pub(super) fn audit_records(&self, store: &MemoryStore, run: &Run) {
        let Some(row) = load(store, vec![run.run_key]).pop() else { return };
        let name = short(run.run_key.0);
        for step in row.steps.iter().filter(|step| step.status.is_settled()) {
            let key = (run.run_key, step.step_key.clone());
            let recorded = self.state().settled.get(&key).map(|settled| settled.digest);
            if recorded != Some(step_digest(step)) {
                let detail =
                    format!("step {} of r{name:x} is not what was recorded", step.step_key);
                self.fail("2 one result a step, immutable", detail);
            }
        }
        let ended = self.state().ended.get(&run.run_key).copied();
        let now = run_end_digest(run.status, run.output.as_ref(), run.error.as_ref());
        if ended.is_some_and(|ended| ended != now) || run.status.is_ended() && ended.is_none() {
            let detail = format!("r{name:x} ended otherwise and is {}", run.status);
            self.fail("15 terminal is final", detail);
        }
    }

    pub(super) fn audit_mailbox(&self, store: &MemoryStore, run: &Run) {
        let messages = messages_of(store, run.run_key);
        let name = short(run.run_key.0);
        let mut ids = BTreeSet::new();
        for (place, message) in messages.iter().enumerate() {
            let id = (run.run_key, message.message_id.clone());
            let known = self.state().accepted.get(&id).copied();
            let gap = message.seq != place as u64 + 1;
            if gap || known != Some(message.seq) || !ids.insert(message.message_id.clone()) {
                let detail = format!("r{name:x}: message {} at {place}", message.message_id);
                self.fail("16 a mailbox holds what was accepted, in order", detail);
            }
        }
        if run.accepted != messages.len() as u64 {
            let detail = format!("r{name:x} accepted {}, has {}", run.accepted, messages.len());
            self.fail("16 a mailbox holds what was accepted, in order", detail);
        }
    }

    pub(super) fn audit_accepted(&self, runs: &[Run]) {
        let counts: BTreeMap<RunKey, u64> =
            runs.iter().map(|run| (run.run_key, run.accepted)).collect();
        let mut known: BTreeMap<RunKey, u64> = BTreeMap::new();
        for (run_key, _) in self.state().accepted.keys() {
            *known.entry(*run_key).or_default() += 1;
        }
        for (run_key, count) in known {
            let deleted = self.state().deleted.contains(&run_key);
            if counts.get(&run_key) != Some(&count) && !deleted {
                let detail = format!("r{:x}: {count} messages were accepted", short(run_key.0));
                self.fail("8 what was acknowledged survives", detail);
            }
        }
    }

    pub(super) fn audit_rest(&self, store: &MemoryStore, runs: &[Run]) {
        for run in runs.iter().filter(|run| run.turn.worker.is_some()) {
            let detail = format!("r{:x} is held at rest", short(run.run_key.0));
            self.fail("22 permits are returned", detail);
        }
        // A closed request is deleted by a task that is due long after the end of the simulation.
        let is_due = |task: &Task| {
            let wait = task.due_at.map(|due| due.since(task.created_at));
            task.attempt > 0 || wait.is_none_or(|wait| wait < LATER)
        };
        for task in self.tasks(store, None).into_iter().filter(is_due) {
            let detail = format!("t{:x} {} was never done", short(task.task_id.0), task.kind);
            self.fail("30 after healing every run ends or waits for what it declared", detail);
        }
        for namespace in &self.namespaces {
            let query = Query::Limits { namespace: namespace.clone(), after: None, limit: 100 };
            let limits = store.list(query).now_or_never().and_then(|rows| rows.ok()?.limits().ok());
            for limit in limits.unwrap_or_default().iter().filter(|limit| limit.held > 0) {
                let detail = format!("{:?} still counts {}", limit.key, limit.held);
                self.fail("22 permits are returned", detail);
            }
        }
    }

    // Each write of a counter adds one to its value and to its revision. A writer that decided from an
    // older revision leaves a smaller value.
    pub(super) fn audit_counters(&self, store: &MemoryStore) {
        for namespace in &self.namespaces {
            let rows = store.records(vec![counter(namespace)]).now_or_never();
            let row = rows.and_then(|rows| rows.ok()?.pop().flatten());
            let Some(row) = row else { continue };
            let value: Option<u64> = row.body.as_ref().and_then(|body| body.read().ok());
            if value != Some(row.revision) {
                let detail = format!("revision {} counts {value:?}", row.revision);
                self.fail("31 no write of a record is lost", detail);
            }
        }
    }

    pub(super) fn audit_effects(&self, store: &MemoryStore) {
        let state = self.state();
        let undone = state.enqueued.iter().find(|(task_id, task)| {
            let given_up = state.dead_letters.contains(task_id);
            task.effect && !state.effects.contains_key(task_id) && !given_up
        });
        let undone = undone.map(|(task_id, _)| short(task_id.0));
        let letters: BTreeSet<_> = state.dead_letters.clone();
        let strangers =
            state.enqueued.values().find(|task| !self.namespaces.contains(&task.namespace));
        let stranger = strangers.map(|task| task.namespace.clone());
        drop(state);
        if let Some(task) = undone {
            let detail = format!("effect t{task:x} was committed and never delivered");
            self.fail("24 an effect exists if and only if its commit did", detail);
        }
        if let Some(namespace) = stranger {
            self.fail("27 nothing crosses namespaces", format!("a task of {namespace}"));
        }
        let mut found = BTreeSet::new();
        for namespace in &self.namespaces {
            let (namespace, queue) = (namespace.clone(), None);
            let query = Query::DeadLetters { namespace, queue, after: None, limit: 1_000 };
            let rows = store.list(query).now_or_never();
            let rows = rows.and_then(|rows| rows.ok()?.dead_letters().ok()).unwrap_or_default();
            found.extend(rows.into_iter().map(|letter| letter.task_id));
        }
        if found != letters {
            let detail = format!("{} dead letters committed, {} there", letters.len(), found.len());
            self.fail("8 what was acknowledged survives", detail);
        }
    }

    /// The rows of a run, for the message of a failure.
    pub fn describe(&self, store: &MemoryStore, run: &Run) -> String {
        let Some(Loaded { run, steps, messages }) = load(store, vec![run.run_key]).pop() else {
            return String::new();
        };
        let steps: Vec<String> = steps
            .iter()
            .map(|step| {
                format!("{} {} {} due {:?}", step.step_key, step.kind, step.status, step.due_at)
            })
            .collect();
        let unread: Vec<_> = messages.iter().map(|message| message.name.to_string()).collect();
        let (key, turn) = (short(run.run_key.0), &run.turn);
        format!("r{key:x} {} {turn:?} steps {steps:?} unread {unread:?}", run.status)
    }
}

pub(super) fn events_of(store: &MemoryStore, run_key: RunKey) -> Vec<Event> {
    let query = Query::Events { run_key, from: 0, limit: 1_000 };
    let rows = store.list(query).now_or_never().and_then(|rows| rows.ok()?.events().ok());
    rows.unwrap_or_default()
}

pub(super) fn messages_of(store: &MemoryStore, run_key: RunKey) -> Vec<Message> {
    let query = Query::Messages { run_key, after: 0, limit: 1_000 };
    let rows = store.list(query).now_or_never().and_then(|rows| rows.ok()?.messages().ok());
    rows.unwrap_or_default()
}

// The hash, computed from the stored event alone. This does not use the kernel's encoder, so that a
// mistake in the encoder shows.
fn hash_of(previous: &Sha256Digest, event: &Event) -> Sha256Digest {
    let payload = event.payload_json().unwrap_or_default();
    let whole = to_canonical(&json!({
        "run_key": event.run_key,
        "ordinal": event.ordinal,
        "event_id": event.event_id,
        "type": event.event_type.as_str(),
        "version": event.version,
        "caused_by": event.caused_by,
        "payload": payload,
        "created_at": event.created_at.as_micros(),
    }));
    let whole = whole.unwrap_or_default();
    Sha256Digest::of(&[&previous.as_bytes()[..], &whole].concat())
}
