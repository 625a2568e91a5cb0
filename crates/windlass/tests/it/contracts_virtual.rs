//! Documents in virtual time, for many turns.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass::RecordChange;
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::{ActionCall, ActionOutcome, Contracts};
use windlass::kernel::{Expect, RunStatus};
use windlass::model::Engine;
use windlass_testkit::TestEngine;

use crate::contracts::{
    SLOT, TYPE, contract, directory, edge, invoice, node, person, publish, role,
};
use crate::contracts_restarts::released;

/// How many turns the state is rebuilt after.
const TURNS: u32 = 200;

/// The next number below a bound (SplitMix64).
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % bound
}

async fn open(engine: &Engine) -> Contracts {
    let contracts = Contracts::builder().open(engine).await.unwrap();
    contracts.publish_type(&released("amend"), &person("olga")).await.unwrap();
    contracts.put_directory(&directory()).await.unwrap();
    contracts
}

/// Waits until the run of a document has nothing to do.
async fn settled(contracts: &Contracts, id: &str) {
    loop {
        let run = contracts.run(TYPE, id).await.unwrap();
        let waits = run.status == RunStatus::Waiting && run.seen == run.accepted;
        if waits || run.status.is_ended() {
            return;
        }
        contracts.engine().env().sleep(Duration::from_millis(1)).await;
    }
}

/// One thing that a person or an operator does.
async fn random_act(contracts: &Contracts, id: &str, random: &mut u64) {
    let (engine, rita) = (contracts.engine(), person("rita"));
    let run = contracts.run(TYPE, id).await.unwrap();
    let row = contracts.document(TYPE, id).await.unwrap().row;
    match below(random, 12) {
        0..=2 => {
            let content = invoice(below(random, 9));
            let _ = contracts.edit(TYPE, id, row.version, &content, &rita, None).await;
        }
        3 => drop(engine.restart(run.run_key, None).await),
        4 => engine.evict_all(),
        5 => drop(contracts.act(TYPE, id, "release", &rita, None).await),
        _ => {
            for by in ["fay", "fred", "cleo"] {
                let inbox = contracts.inbox(&person(by), None, 10).await.unwrap();
                if let Some(request) = inbox.into_iter().find(|one| one.document == id) {
                    let rejects = below(random, 5) == 0;
                    let verdict = if rejects { Verdict::Rejected } else { Verdict::Approved };
                    let (by, digest) = (person(by), request.digest);
                    let _ =
                        contracts.decide_approval(&request.id, verdict, digest, &by, None).await;
                    return;
                }
            }
            let _ = contracts.act(TYPE, id, "submit", &rita, None).await;
        }
    }
}

async fn turns(engine: Engine, mut random: u64) {
    let contracts = open(&engine).await;
    publish(
        &contracts,
        json!({SLOT: {
            "nodes": [
                node("fork", "parallel_split", json!({})),
                node("one", "approval", role("finance_manager")),
                node("two", "approval", role("cfo")),
                node("both", "parallel_join", json!({"mode": "all"})),
            ],
            "edges": [
                edge("f1", "fork", "one"), edge("f2", "fork", "two"),
                edge("j1", "one", "both"), edge("j2", "two", "both"),
            ],
        }}),
    )
    .await;
    let (mut turns, mut documents) = (0, 0);
    while turns < TURNS {
        documents += 1;
        let id = format!("d{documents}");
        contracts.create(TYPE, &id, &invoice(1), &person("rita")).await.unwrap();
        settled(&contracts, &id).await;
        let mut before = String::new();
        while contracts.run(TYPE, &id).await.unwrap().status != RunStatus::Complete {
            random_act(&contracts, &id, &mut random).await;
            settled(&contracts, &id).await;
            let rebuilt = contracts.rebuild(TYPE, &id).await.unwrap();
            assert!(rebuilt.same && rebuilt.steps > 0, "{id}: {rebuilt:?}");
            let position = contracts.position(TYPE, &id).await.unwrap();
            let now = format!("{position:?}");
            turns += u32::from(now != before);
            before = now;
        }
    }
    // Documents become active between, so the turns are not all of one of them.
    assert!(documents > 1, "{documents}");
}

#[test]
fn case_22_the_state_is_rebuilt_after_each_of_200_random_turns() {
    for seed in 0..3 {
        let test = TestEngine::seeded(seed);
        let engine = test.engine().core().clone();
        test.run_to_end(turns(engine, seed));
        test.verify();
    }
}

/// A document that waits for two hours before its ledger is written, and the time that it waits for.
async fn timed(engine: Engine) -> (Contracts, i64) {
    let post = |call: &ActionCall<'_>| {
        let change = RecordChange::put("ledger", call.id, &1, Expect::Absent);
        Ok(ActionOutcome::none().record(change.map_err(|error| error.to_string())?))
    };
    let builder = Contracts::builder().action("ledger.post", Arc::new(post));
    let contracts = builder.open(&engine).await.unwrap();
    let mut free = contract();
    free.obligations.clear();
    contracts.publish_type(&free, &person("olga")).await.unwrap();
    let mutation = json!({"actionType": "ledger.post", "payloadTemplate": {}});
    let nodes = json!([
        node("time", "wait_timer", json!({"for": "2 hours"})),
        node("post", "action", json!({"mutation": mutation})),
    ]);
    publish(&contracts, json!({SLOT: {"nodes": nodes, "edges": [edge("e", "time", "post")]}}))
        .await;
    contracts.create(TYPE, "t", &invoice(1), &person("rita")).await.unwrap();
    contracts.act(TYPE, "t", "submit", &person("rita"), None).await.unwrap();
    loop {
        let position = contracts.position(TYPE, "t").await.unwrap();
        if let Some(due) = position.open.iter().find_map(|row| row.resume_at) {
            return (contracts, due);
        }
        contracts.engine().env().sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn case_27_a_clock_that_jumps_by_an_hour_makes_no_timer_early_and_none_fire_twice() {
    const HOUR_US: i64 = 3_600_000_000;
    for seed in 0..10 {
        let test = TestEngine::seeded(seed);
        let engine = test.engine();
        let (contracts, due) = test.run_to_end(timed(engine.core().clone()));
        let mut random = seed;
        let mut shown = test.now().as_micros();
        let mut fired_at = None;
        for _ in 0..60 {
            match below(&mut random, 4) {
                0 => test.jump_clock(HOUR_US),
                1 => test.jump_clock(-HOUR_US),
                _ => {}
            }
            shown = shown.max(test.now().as_micros());
            test.advance("10 minutes");
            shown = shown.max(test.now().as_micros());
            let row = test.run(contracts.document(TYPE, "t")).unwrap().row;
            if row.state == "active" && fired_at.is_none() {
                fired_at = Some(shown);
            }
        }
        // The clock may have shown the time for a moment only, but it has shown it.
        let fired_at = fired_at.unwrap_or_else(|| panic!("seed {seed}: the timer does not fire"));
        assert!(fired_at >= due, "seed {seed}: {fired_at} is before {due}");
        let ledger = test.run(engine.records::<u32>("ledger").get("t")).unwrap().unwrap();
        assert_eq!(ledger.revision, 1, "seed {seed}");
        let rebuilt = test.run(contracts.rebuild(TYPE, "t")).unwrap();
        assert!(rebuilt.same, "seed {seed}: {rebuilt:?}");
        test.verify();
    }
}
