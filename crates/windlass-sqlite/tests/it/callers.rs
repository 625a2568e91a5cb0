//! Many callers at once, and reads that see what was acknowledged.

use std::sync::Arc;
use std::time::Duration;

use windlass_kernel::{Run, RunStatus};
use windlass_sqlite::Options;
use windlass_testkit::world::World;

use crate::support::Home;

async fn look(world: &World, run: &Run) -> Run {
    let name = (run.namespace.clone(), run.workflow.clone(), run.id.clone());
    world.store.look(name.0, name.1, name.2).await.unwrap().expect("a run").run
}

fn log_bytes(home: &Home) -> u64 {
    let mut log = home.path().into_os_string();
    log.push("-wal");
    std::fs::metadata(log).unwrap().len()
}

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
    let size = log_bytes(&home);
    assert!(size < 8 << 20, "the log begins anew: {size} bytes");
}

#[tokio::test]
async fn a_glance_sees_every_commit_before_it() {
    let home = Home::new();
    let world = home.open().await;
    let (mut run, hold) = world.create_held("run").await;
    for n in 0..20 {
        // More than one, because only then they share a snapshot.
        for _ in 0..3 {
            assert_eq!(look(&world, &run).await.head.next_ordinal, n + 1);
        }
        world.ok(world.step_commit(&run, hold, &format!("s{n}"), "1")).await;
        run = look(&world, &run).await;
    }
    world.ok(world.complete_commit(&run, hold)).await;
    assert_eq!(look(&world, &run).await.status, RunStatus::Complete);
}

#[tokio::test]
async fn a_glance_of_long_ago_does_not_keep_the_log() {
    let home = Home::new();
    let options = Options { wal_bytes_soft: 1 << 18, wal_bytes_hard: 1 << 20, ..home.options() };
    let world = Arc::new(home.open_with(options).await);
    let (run, hold) = world.create_held("run").await;
    let (seen, from) = (run.clone(), Arc::clone(&world));
    // The thread that looked, more than once, does not look again.
    let looking = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for _ in 0..3 {
            assert_eq!(runtime.block_on(look(&from, &seen)).head, seen.head);
        }
    });
    looking.await.unwrap();
    for n in 0..400 {
        let now = world.run(run.run_key).await;
        let result = format!("{:?}", "x".repeat(8 << 10));
        world.ok(world.step_commit(&now, hold, &format!("s{n}"), &result)).await;
    }
    let size = log_bytes(&home);
    assert!(size < 3 << 20, "the log begins anew: {size} bytes");
}

#[tokio::test]
async fn glances_see_what_was_done_at_a_prompt_soon() {
    let home = Home::new();
    let world = home.open().await;
    let (run, _) = world.create_held("run").await;
    for _ in 0..3 {
        look(&world, &run).await;
    }
    home.raw().execute("UPDATE runs SET priority = 7", []).unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(look(&world, &run).await.turn.priority, 7);
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
