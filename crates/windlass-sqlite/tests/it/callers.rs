//! Many concurrent callers, and reads that see all acknowledged commits.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{Run, RunStatus};
use windlass_sqlite::Options;
use windlass_testkit::world::World;

use crate::support::StoreDir;

async fn overview(world: &World, run: &Run) -> Run {
    let name = (run.namespace.clone(), run.workflow.clone(), run.id.clone());
    world.store.run_overview(name.0, name.1, name.2).await.unwrap().expect("a run").run
}

fn log_bytes(dir: &StoreDir) -> u64 {
    let mut log = dir.path().into_os_string();
    log.push("-wal");
    std::fs::metadata(log).unwrap().len()
}

async fn a_run(world: &World, n: usize) {
    let (mut run, hold) = world.create_held(&format!("r{n}")).await;
    for step in 0..3 {
        world.ok(world.step_commit(&run, hold, &format!("s{step}"), "1")).await;
        // An acknowledged commit is visible to the next read.
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
    let dir = StoreDir::new();
    // A log this small is copied and restarted many times during the writes.
    let options = Options { wal_bytes_soft: 1 << 18, wal_bytes_hard: 1 << 20, ..dir.options() };
    let world = Arc::new(dir.open_with(options).await);
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
    let report = windlass_testkit::verify_store(&*world.store, &[]).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    let size = log_bytes(&dir);
    assert!(size < 8 << 20, "the log was not restarted: {size} bytes");
}

#[tokio::test]
async fn a_cached_read_sees_every_earlier_commit() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (mut run, hold) = world.create_held("run").await;
    for n in 0..20 {
        // More than one read, because a single one does not open a shared snapshot.
        for _ in 0..3 {
            assert_eq!(overview(&world, &run).await.head.next_ordinal, n + 1);
        }
        world.ok(world.step_commit(&run, hold, &format!("s{n}"), "1")).await;
        run = overview(&world, &run).await;
    }
    world.ok(world.complete_commit(&run, hold)).await;
    assert_eq!(overview(&world, &run).await.status, RunStatus::Complete);
}

#[tokio::test]
async fn an_old_cached_read_does_not_keep_the_log() {
    let dir = StoreDir::new();
    let options = Options { wal_bytes_soft: 1 << 18, wal_bytes_hard: 1 << 20, ..dir.options() };
    let world = Arc::new(dir.open_with(options).await);
    let (run, hold) = world.create_held("run").await;
    let (seen, from) = (run.clone(), Arc::clone(&world));
    // The thread whose connection holds the snapshot does not read again.
    let reading = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..3 {
            assert_eq!(runtime.block_on(overview(&from, &seen)).head, seen.head);
        }
    });
    reading.await.unwrap();
    for n in 0..400 {
        let now = world.run(run.run_key).await;
        let result = format!("{:?}", "x".repeat(8 << 10));
        world.ok(world.step_commit(&now, hold, &format!("s{n}"), &result)).await;
    }
    let size = log_bytes(&dir);
    assert!(size < 3 << 20, "the log was not restarted: {size} bytes");
}

#[tokio::test]
async fn cached_reads_soon_see_writes_of_other_processes() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (run, _) = world.create_held("run").await;
    for _ in 0..3 {
        overview(&world, &run).await;
    }
    dir.raw().execute("UPDATE runs SET priority = 7", []).unwrap();
    let seen = async {
        while overview(&world, &run).await.turn.priority != 7 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen).await.expect("the change is seen");
}

#[tokio::test]
async fn a_dropped_call_is_still_executed() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (run, hold) = world.create_held("run").await;
    drop(world.store.commit(vec![world.step_commit(&run, hold, "one", "1")]));
    // Write calls run in order.
    assert_eq!(world.store.held(hold.worker).await.unwrap().len(), 1);
    assert_eq!(world.load(run.run_key).await.steps.len(), 1);
}

#[tokio::test]
async fn close_waits_for_pending_calls() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (run, hold) = world.create_held("run").await;
    let pending = world.store.commit(vec![world.step_commit(&run, hold, "one", "1")]);
    world.store.close().await.unwrap();
    assert!(pending.await[0].is_ok());
    assert_eq!(dir.open().await.load(run.run_key).await.steps.len(), 1);
}
