//! The same random calls on the memory store and on PostgreSQL.

use windlass_kernel::Limits;
use windlass_postgres::Options;
use windlass_testkit::differential::differential;
use windlass_testkit::memory;

use crate::support::{Schema, TestStore, options};

async fn check(seed: u64, limits: Limits) {
    let reference = memory::open_with(limits.clone()).await;
    let now = reference.store().now().await.expect("cannot read the clock");
    let schema = Schema::new();
    let store = schema.open(Options { limits, ..options(&schema.name) }).await;
    let test = TestStore { store, schema };
    test.store.freeze_clock_for_tests(now).await.expect("cannot freeze the clock");
    differential(vec![reference, Box::new(test)], seed, 300).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_and_memory_store_agree() {
    let seeds = std::env::var("WINDLASS_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(4) {
        check(seed, Limits::DEFAULT).await;
    }
}

// Few messages fill a mailbox, so many are refused.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_and_memory_store_refuse_the_same_messages() {
    for seed in 20..23 {
        let limits = Limits { unread_messages_max: 2, unread_bytes_max: 64, ..Limits::DEFAULT };
        check(seed, limits).await;
    }
}
