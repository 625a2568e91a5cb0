//! Editors, deciders, operators, publishers and forged events race for a document, in many orders of virtual
//! time. However they interleave, the document is never active with content that nobody has approved
//! (acceptance cases 31 to 37).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::language::types::{LifecycleContract, OrgWorkflowDefinition};
use windlass::contracts::{Contracts, DocumentRow, EVENT_TYPE};
use windlass::kernel::{Body, Collection, MessageName, Query, RecordId, RecordKey, RunStatus};
use windlass::model::Engine;
use windlass_testkit::TestEngine;

use crate::contracts::{
    SLOT, TYPE, contract, directory, edge, invoice, node, person, publish, role,
};
use crate::contracts_restarts::released;

const ID: &str = "d";
/// How many rounds the end may take.
const ROUNDS_MAX: u32 = 300;

/// The state that the actors share.
struct World {
    engine: Engine,
    contracts: Contracts,
    /// The engine as programs see it, for events by key.
    outer: windlass::Engine,
    /// The state before `active`. If it is not `submitted`, a person releases the document there.
    before_active: &'static str,
    random: Mutex<u64>,
}

impl World {
    /// The next number below a bound.
    fn below(&self, bound: u64) -> u64 {
        let mut state = self.random.lock();
        // SplitMix64.
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    async fn pause(&self) {
        let us = self.below(20_000);
        self.engine.env().sleep(Duration::from_micros(us)).await;
    }

    async fn row(&self) -> DocumentRow {
        self.contracts.document(TYPE, ID).await.unwrap().row
    }

    /// Edits the document and submits it again. Refusals are part of the race.
    async fn edit(&self) {
        for _ in 0..6 {
            self.pause().await;
            let row = self.row().await;
            let content = invoice(1_000 + self.below(1_000));
            let rita = person("rita");
            let _ = self.contracts.edit(TYPE, ID, row.version, &content, &rita, None).await;
            self.pause().await;
            let _ = self.contracts.act(TYPE, ID, "submit", &rita, None).await;
        }
    }

    /// Edits what was approved, and ends or restarts the run before it has read the edit.
    async fn edit_behind(&self) {
        for _ in 0..12 {
            self.pause().await;
            let row = self.row().await;
            if row.state != "approved" {
                continue;
            }
            let run = self.contracts.run(TYPE, ID).await.unwrap();
            if self.below(2) == 0 {
                let _ = self.engine.pause(&run, None).await;
                self.pause().await;
            }
            let (rita, content) = (person("rita"), invoice(1_000 + self.below(1_000)));
            let _ = self.contracts.edit(TYPE, ID, row.version, &content, &rita, None).await;
            let _ = self.engine.terminate(run.run_key, None, None).await;
            let _ = self.engine.restart(run.run_key, None).await;
            self.pause().await;
            let _ = self.contracts.act(TYPE, ID, "release", &rita, None).await;
        }
    }

    /// Decides about everything that asks a person, sometimes with the digest of an old tab.
    async fn decide(&self, by: &str) {
        let mut seen = Vec::new();
        for _ in 0..10 {
            self.pause().await;
            for request in self.contracts.inbox(&person(by), None, 10).await.unwrap() {
                seen.push((request.id.clone(), request.digest));
            }
            if seen.is_empty() {
                continue;
            }
            let (id, digest) = seen[self.below(seen.len() as u64) as usize].clone();
            let verdict = if self.below(4) == 0 { Verdict::Rejected } else { Verdict::Approved };
            self.pause().await;
            let _ = self.contracts.decide_approval(&id, verdict, digest, &person(by), None).await;
        }
    }

    /// Restarts, terminates and retries the run, and evicts it from memory.
    async fn operate(&self) {
        for _ in 0..5 {
            self.pause().await;
            let run = self.contracts.run(TYPE, ID).await.unwrap();
            match self.below(5) {
                0 => drop(self.engine.restart(run.run_key, None).await),
                1 => drop(self.engine.terminate(run.run_key, None, None).await),
                2 => drop(self.engine.retry(run.run_key, None).await),
                3 => drop(self.contracts.advance_again(TYPE, ID).await),
                _ => self.engine.evict_all(),
            }
        }
    }

    /// Sends events that claim what did not happen.
    async fn forge(&self) {
        let body = json!({"verdict": "approved", "state": "active", "document": ID});
        for name in ["document.written", "approval.decided", "document.mutated", "effect.delivered"]
        {
            self.pause().await;
            let run = self.contracts.run(TYPE, ID).await.unwrap();
            let (name, body) = (MessageName::new(name).unwrap(), Body::of(&body).unwrap());
            let _ = self.engine.send_event(run.run_key, name, Some(body), None).await;
        }
    }

    /// Sends the events by key that definitions with waits wait for, and moves time past timers and due dates.
    async fn signal(&self) {
        for _ in 0..6 {
            self.pause().await;
            self.send_key().await;
        }
    }

    async fn send_key(&self) {
        let sent = self.outer.send_by_key(EVENT_TYPE, "go:i-1", &json!({"go": true}));
        sent.id(format!("go-{}", self.below(u64::MAX))).await.unwrap();
    }

    /// Publishes other definitions and archives them.
    async fn define(&self) {
        for role_name in ["cfo", "finance_manager"] {
            self.pause().await;
            let slots = json!({SLOT: {"nodes": [node("other", "approval", role(role_name))]}});
            let definition: OrgWorkflowDefinition = serde_json::from_value(json!({
                "baseRef": {"entityType": TYPE, "envelopeVersion": 1}, "slots": slots,
            }))
            .unwrap();
            self.contracts.put_draft(TYPE, &definition).await.unwrap();
            self.contracts.publish(TYPE, &person("dana")).await.unwrap();
            self.pause().await;
            self.contracts.archive(TYPE).await.unwrap();
        }
    }

    /// Brings the document to its end, as an operator and its people would.
    async fn finish(&self) {
        for round in 0..ROUNDS_MAX {
            if self.row().await.state == "active" {
                return;
            }
            let run = self.contracts.run(TYPE, ID).await.unwrap();
            if matches!(run.status, RunStatus::Errored | RunStatus::Terminated) {
                // No retry helps a run that has failed because of drift.
                let _ = match round % 2 {
                    0 => self.contracts.advance_again(TYPE, ID).await.map(drop),
                    _ => self.engine.restart(run.run_key, None).await.map(drop),
                };
            }
            if run.status == RunStatus::Paused {
                let _ = self.engine.resume(&run, None).await;
            }
            if round % 10 == 0 {
                self.send_key().await;
            }
            for gate in ["submit", "release"] {
                let _ = self.contracts.act(TYPE, ID, gate, &person("rita"), None).await;
            }
            for by in ["fay", "fred"] {
                for request in self.contracts.inbox(&person(by), None, 10).await.unwrap() {
                    let (id, digest) = (&request.id, request.digest);
                    let verdict = Verdict::Approved;
                    let _ = self
                        .contracts
                        .decide_approval(id, verdict, digest, &person(by), None)
                        .await;
                }
            }
            self.engine.env().sleep(Duration::from_millis(100)).await;
        }
        let position = self.contracts.position(TYPE, ID).await.unwrap();
        panic!("the document does not end: {position:#?}");
    }

    /// Every version of the row that is active has content that somebody else approved.
    async fn check(&self, seed: u64) {
        let key = RecordKey {
            namespace: self.engine.namespace().clone(),
            collection: Collection::new("windlass.documents").unwrap(),
            id: RecordId::new(format!("{TYPE}/{ID}")).unwrap(),
        };
        let query = Query::RecordVersions { key, before: None, limit: 100 };
        let kept = self.engine.store().list(query).await.unwrap().record_versions().unwrap();
        let rows: Vec<DocumentRow> = kept.iter().map(|one| one.body.read().unwrap()).collect();
        let approvals = self.contracts.approvals_of(TYPE, ID, None, 100).await.unwrap();
        let mut actives = 0;
        // Newest first.
        for (after, before) in rows.iter().zip(&rows[1..]) {
            if after.state != "active" || before.state == "active" {
                continue;
            }
            actives += 1;
            assert_eq!(before.state, self.before_active, "seed {seed}: the gate was skipped");
            let is_approved = approvals.iter().any(|approval| {
                approval.digest == after.digest
                    && approval.decisions.iter().any(|(by, note)| {
                        note.verdict == Verdict::Approved && !after.editors.contains(by)
                    })
            });
            assert!(
                is_approved,
                "seed {seed}: active with content that nobody approved: {after:#?}"
            );
        }
        assert_eq!(actives, 1, "seed {seed}");
        let last = self.row().await;
        assert_eq!((last.state.as_str(), &last.digest), ("active", &rows[0].digest), "seed {seed}");
        let rebuilt = self.contracts.rebuild(TYPE, ID).await.unwrap();
        assert!(rebuilt.same, "seed {seed}: {rebuilt:?}");
    }
}

/// A slot with a timer, an event by key, and people with a due date.
fn waits(seed: u64) -> Value {
    let then = match seed % 4 {
        1 => json!({"escalate": {"strategy": "role", "role": "cfo"}}),
        _ => json!("reject"),
    };
    let mut ask = role("finance_manager");
    ask["due"] = json!({"after": "150 ms", "then": then});
    let nodes = json!([
        node("time", "wait_timer", json!({"for": "3 ms"})),
        node("event", "wait_event", json!({"eventKey": "go:{entity.id}"})),
        node("ask", "approval", ask),
    ]);
    json!({SLOT: {"nodes": nodes, "edges": [edge("e1", "time", "event"), edge("e2", "event", "ask")]}})
}

async fn race(outer: windlass::Engine, contract: LifecycleContract, seed: u64) {
    let engine = outer.core().clone();
    let contracts = Contracts::builder().open(&engine).await.unwrap();
    let is_released = contract.gates.iter().any(|gate| gate.name == "release");
    let before_active = if is_released { "approved" } else { "submitted" };
    contracts.publish_type(&contract, &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    if seed % 2 == 1 {
        publish(&contracts, waits(seed)).await;
    }
    contracts.create(TYPE, ID, &invoice(900), &person("rita")).await.unwrap();
    contracts.act(TYPE, ID, "submit", &person("rita"), None).await.unwrap();
    let random = Mutex::new(seed);
    let world = Arc::new(World { engine, contracts, outer, before_active, random });
    futures::join!(
        world.edit(),
        world.edit_behind(),
        world.decide("fay"),
        world.decide("fred"),
        world.operate(),
        world.forge(),
        world.define(),
        world.signal(),
    );
    world.finish().await;
    world.check(seed).await;
}

fn seeds() -> u64 {
    let given: Option<Value> =
        std::env::var("WINDLASS_SEEDS").ok().and_then(|text| serde_json::from_str(&text).ok());
    given.and_then(|value| value.as_u64()).unwrap_or(60)
}

#[test]
fn case_33_36_37_no_order_of_events_activates_content_that_was_not_approved() {
    for seed in 0..seeds() {
        let contract = match seed % 3 {
            0 => contract(),
            1 => released("amend"),
            _ => released("fail"),
        };
        let test = TestEngine::seeded(seed);
        test.run_to_end(race(test.engine(), contract, seed));
        test.verify();
    }
}
