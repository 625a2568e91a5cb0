//! The same random calls on the memory store and on SQLite leave the same rows.

use windlass_testkit::differential::differential;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_and_memory_store_agree() {
    for seed in 0..6 {
        let subjects = vec![windlass_testkit::memory::open().await, crate::subject::open().await];
        differential(subjects, seed, 600).await;
    }
}
