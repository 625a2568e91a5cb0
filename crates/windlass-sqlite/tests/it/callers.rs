//! Many callers at once, and reads that see what was acknowledged.

use std::sync::Arc;

use windlass_kernel::RunStatus;
use windlass_sqlite::Options;
use windlass_testkit::world::World;

use crate::support::Home;

async fn a_run(world: &World, n: usize) {
    let (mut run, hold) = world.create_held(&format!("r{n}")).await;
    for step in 0..3 {
        world.ok(world.step_commit(&run, hold, &format!("s{step}"), "1")).await;
        // Whatever was acknowledged is there for the next read.
        let loaded = world.load(run.run_key).await;
        assert_eq!(loaded.steps.len(), step + 1);
        assert_eq!(loaded.run.head.next_ordinal, step as u64 + 2);
        run = loaded.run;
    }
    world.ok(world.complete_commit(&run, hold)).await;
    assert_eq!(world.run(run.run_key).await.status, RunStatus::Complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_read_what_they_wrote() {
    let home = Home::new();
    // A log this small is copied and begun anew many times while everybody writes.
    let options = Options { wal_bytes_soft: 1 << 18, wal_bytes_hard: 1 << 20, ..home.options() };
    let world = Arc::new(home.open_with(options).await);
    let tasks: Vec<_> = (0..300)
        .map(|n| {
            let world = world.clone();
            tokio::spawn(async move { a_run(&world, n).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let health = world.store.health().await.unwrap();
    assert_eq!((health.runs.len(), health.runs[0].count), (1, 300));
    assert_eq!((health.turns.held.count, health.turns.ready.count), (0, 0));
    assert!(world.store.check().await.unwrap().is_empty());
    let report = windlass_kernel::verify::verify_store(&*world.store, &[]).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    let mut log = home.path().into_os_string();
    log.push("-wal");
    let size = std::fs::metadata(log).unwrap().len();
    assert!(size < 8 << 20, "the log begins anew: {size} bytes");
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_is_still_made() {
    let home = Home::new();
    let world = home.open().await;
    let (run, hold) = world.create_held("run").await;
    drop(world.store.commit(vec![world.step_commit(&run, hold, "one", "1")]));
    // Calls that write are made in order.
    assert_eq!(world.store.held(hold.worker).await.unwrap().len(), 1);
    assert_eq!(world.load(run.run_key).await.steps.len(), 1);
}

#[tokio::test]
async fn close_waits_for_what_was_asked() {
    let home = Home::new();
    let world = home.open().await;
    let (run, hold) = world.create_held("run").await;
    let asked = world.store.commit(vec![world.step_commit(&run, hold, "one", "1")]);
    world.store.close().await.unwrap();
    assert!(asked.await[0].is_ok());
    assert_eq!(home.open().await.load(run.run_key).await.steps.len(), 1);
}
