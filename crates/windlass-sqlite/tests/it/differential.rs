//! The same random calls on the memory store and on SQLite leave the same rows.

use windlass_kernel::Limits;
use windlass_testkit::differential::differential;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_and_memory_store_agree() {
    for seed in 0..6 {
        let subjects = vec![windlass_testkit::memory::open().await, crate::subject::open().await];
        differential(subjects, seed, 600).await;
    }
}

// Few messages fill a mailbox, so many are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_and_memory_store_refuse_the_same_messages() {
    let limits = || Limits { unread_messages_max: 2, unread_bytes_max: 64, ..Limits::DEFAULT };
    for seed in 20..24 {
        let memory = windlass_testkit::memory::open_with(limits()).await;
        let subjects = vec![memory, crate::subject::open_with(limits()).await];
        differential(subjects, seed, 600).await;
    }
}
