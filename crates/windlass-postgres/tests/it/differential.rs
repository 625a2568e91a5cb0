//! The same random calls on the memory store and on PostgreSQL.

use windlass_testkit::differential::differential;
use windlass_testkit::memory;

use crate::support::TestStore;

async fn check(seed: u64) {
    let reference = memory::open().await;
    let now = reference.store().now().await.expect("cannot read the clock");
    let test = TestStore::open().await;
    test.store.freeze_clock_for_tests(now).await.expect("cannot freeze the clock");
    differential(vec![reference, Box::new(test)], seed, 300).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_and_memory_store_agree() {
    let seeds = std::env::var("WINDLASS_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(4) {
        check(seed).await;
    }
}
