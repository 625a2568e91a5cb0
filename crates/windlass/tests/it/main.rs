//! All stores behave alike: the same random calls leave the same rows, examples run on each, and so
//! does everything that a workflow can do.

#![allow(clippy::disallowed_methods, reason = "the tests live in the real world")]

mod agent_batch_failures;
mod agent_batches;
mod agent_budgets;
mod agent_lane_crashes;
mod agent_loops;
mod agent_reach;
mod agent_telemetry;
mod agents;
mod agents_answers;
mod agents_builds;
mod agents_cost;
mod agents_crashes;
mod agents_events;
mod agents_examples;
mod agents_failures;
mod agents_fixtures;
mod agents_flaws;
mod agents_forks;
mod agents_large;
mod agents_mcp;
mod agents_restarts;
mod agents_retries;
mod agents_tools;
mod api;
mod carried;
mod changes;
mod children;
mod compile_errors;
mod contracts;
mod contracts_cases;
mod contracts_crashes;
mod contracts_engines;
mod contracts_flaws;
mod contracts_nodes;
mod contracts_people;
mod contracts_races;
mod contracts_restarts;
mod contracts_virtual;
mod control;
mod crashes;
mod delayed_start;
mod effects;
mod examples;
mod harness;
mod isolation;
mod keyed_events;
mod large_bodies;
mod ledger_lines;
mod limits;
mod llm_batches;
mod llm_clients;
mod llm_limits;
mod machines_activity_retry;
mod machines_backpressure;
mod machines_circuit_breaker;
mod machines_fixtures;
mod machines_generations;
mod machines_local_completion;
mod machines_names;
mod machines_rates;
mod machines_recovery;
mod machines_scale_1000_workers;
mod machines_stops;
mod machines_timeouts;
mod machines_workflow_execution;
mod metrics;
mod model_state;
#[cfg(feature = "webhooks")]
mod outbound;
mod pair;
mod panics;
mod receipts;
#[cfg(feature = "webhooks")]
mod receiver;
mod records;
mod records_of_runs;
mod relay_calls;
#[cfg(all(feature = "relays", feature = "webhooks"))]
mod relay_http;
mod relays;
mod relays_cancel;
mod relays_ends;
mod relays_errors;
mod relays_long;
mod relays_memos;
mod relays_shared;
mod replay;
mod requests;
mod requests_crashes;
mod requests_of_models;
mod retention;
mod retries;
mod schedules;
mod sql;
mod step_errors;
mod steps;
mod tampering;
mod transfer;
mod transfer_damage;
#[cfg(feature = "webhooks")]
mod webhooks;

#[path = "../../examples/ledger.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod ledger;
#[path = "../../../windlass-postgres/tests/it/subject.rs"]
mod postgres;
#[path = "../../../windlass-postgres/tests/it/support.rs"]
#[allow(dead_code, reason = "most of it is for the tests of the store itself")]
mod schema;
#[path = "../../../windlass-sqlite/tests/it/subject.rs"]
mod sqlite;

use windlass_testkit::differential::differential;
use windlass_testkit::memory;

/// Seeds and calls a seed; `WINDLASS_SEEDS` gives more seeds.
const SEEDS: u64 = 12;
const CALLS: usize = 200;

fn seeds(default: u64) -> u64 {
    std::env::var("WINDLASS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_calls_leave_the_same_rows() {
    for seed in 0..seeds(SEEDS) {
        let subjects = vec![memory::open().await, sqlite::open().await, postgres::open().await];
        differential(subjects, seed, CALLS).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_example_runs_and_finds_its_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite://{}/new/demo.db", folder.path().display());
    for address in ["memory:", &file, &file] {
        let text = ledger::run(address).await.unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.contains("#3 workflow.completed sha256:"), "{text}");
        assert!(text.ends_with("run order-A-42 is complete; 0 flaws\n"), "{text}");
    }
}
