//! All stores behave alike: the same random calls leave the same rows.

#[path = "../../../windlass-postgres/tests/it/subject.rs"]
mod postgres;
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
