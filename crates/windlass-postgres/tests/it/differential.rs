//! The same random calls on the reference store and on PostgreSQL.

use windlass_testkit::differential::differential;
use windlass_testkit::memory;

use crate::support::TestStore;

async fn check(seed: u64) {
    let reference = memory::open().await;
    let now = reference.store().now().await.expect("the memory store tells the time");
    let test = TestStore::open().await;
    test.store.freeze_clock_for_tests(now).await.expect("the clock stops");
    differential(vec![reference, Box::new(test)], seed, 300).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_does_what_memory_does() {
    let seeds = std::env::var("WINDLASS_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(4) {
        check(seed).await;
    }
}
