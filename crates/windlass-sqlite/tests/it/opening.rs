//! Opening: only one process, only Windlass files, holds released, time never goes back.

use std::time::Duration;

use rusqlite::Connection;
use windlass_kernel::{ErrorCode, ErrorKind, RunStatus, Store as _, Turn, Wake};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::events;
use windlass_testkit::memory::ManualClock;
use windlass_testkit::verify_store;
use windlass_testkit::world::World;

use crate::support::StoreDir;

#[tokio::test]
async fn a_second_opener_learns_which_process_has_the_lock() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let error = dir.refusal();
    assert_eq!((error.code(), error.kind()), (ErrorCode::StoreLocked, ErrorKind::Closed));
    assert!(error.message().contains("store.db.lock"), "{error}");
    assert!(error.message().contains(&std::process::id().to_string()), "{error}");
    world.store.close().await.unwrap();
    dir.open().await.store.close().await.unwrap();
    // A dropped store releases the lock as well.
    drop(dir.open().await);
    dir.open().await;
}

// The flags of `.cargo/config.toml` reach the tests; a program without them sees other words here.
#[tokio::test]
async fn facts_name_the_compile_options_of_sqlite() {
    let facts = StoreDir::new().open().await.store.facts().await.unwrap();
    let fact = facts.into_iter().find(|fact| fact.name == "compiled with").unwrap();
    assert_eq!(fact.value, "DEFAULT_MEMSTATUS=0, DEFAULT_LOOKASIDE=1200,1000, no API armor");
}

#[tokio::test]
async fn a_foreign_database_is_not_changed() {
    for (what, id) in [("another application", 42), ("tables without an id", 0)] {
        let dir = StoreDir::new();
        let conn = dir.raw();
        conn.execute_batch("CREATE TABLE runs (x)").unwrap();
        conn.pragma_update(None, "application_id", id).unwrap();
        drop(conn);
        let before = std::fs::read(dir.path()).unwrap();
        let error = dir.refusal();
        assert_eq!(
            (error.code(), error.kind()),
            (ErrorCode::StoreForeign, ErrorKind::Closed),
            "{what}"
        );
        assert_eq!(std::fs::read(dir.path()).unwrap(), before, "{what}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_not_changed() {
    let dir = StoreDir::new();
    let text = "not a database but an important text file ".repeat(100);
    std::fs::write(dir.path(), &text).unwrap();
    assert_eq!(dir.refusal().code(), "STORE_FOREIGN");
    assert_eq!(std::fs::read_to_string(dir.path()).unwrap(), text);
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let dir = StoreDir::new();
    std::fs::write(dir.path(), "").unwrap();
    dir.open().await;
}

#[tokio::test]
async fn a_newer_schema_is_not_changed() {
    let dir = StoreDir::new();
    dir.open().await.store.close().await.unwrap();
    dir.raw().pragma_update(None, "user_version", 99).unwrap();
    let before = std::fs::read(dir.path()).unwrap();
    let error = dir.refusal();
    assert_eq!((error.code(), error.kind()), (ErrorCode::StoreNewer, ErrorKind::Closed));
    assert!(error.message().contains("99"), "{error}");
    assert_eq!(std::fs::read(dir.path()).unwrap(), before);
}

#[tokio::test]
async fn opening_for_inspection_changes_nothing() {
    let dir = StoreDir::new();
    let inspect = || SqliteStore::open(dir.path(), Options { inspect: true, ..dir.options() });
    let refused = || inspect().err().expect("open must fail");
    assert_eq!(
        (refused().code(), refused().kind()),
        (ErrorCode::StoreNotFound, ErrorKind::NotFound)
    );
    std::fs::write(dir.path(), "").unwrap();
    assert_eq!(refused().code(), "STORE_NOT_FOUND");
    assert_eq!(std::fs::read_dir(dir.path().parent().unwrap()).unwrap().count(), 1);

    let world = dir.open().await;
    let (run, _) = world.create_held("held").await;
    world.store.close().await.unwrap();
    dir.raw().execute_batch("DROP INDEX runs_ready; DROP TRIGGER runs_ended").unwrap();
    let before = std::fs::read(dir.path()).unwrap();
    let store = inspect().unwrap();
    assert_eq!(dir.refusal().code(), "STORE_LOCKED");
    let damage = store.check().await.unwrap().join(" ");
    assert!(damage.contains("\"runs_ready\"") && damage.contains("\"runs_ended\""), "{damage}");
    let report = verify_store(&*store, &[]).await.unwrap();
    assert!(report.is_clean() && report.runs == 1, "{report:?}");
    // Turns stay held.
    let loaded = store.load(vec![run.run_key]).await.unwrap().remove(0);
    assert!(loaded.run.turn.worker.is_some());
    assert_eq!(store.promote(1).await.unwrap_err().code(), "STORE_CLOSED");
    store.close().await.unwrap();
    assert_eq!(std::fs::read(dir.path()).unwrap(), before);

    dir.raw().pragma_update(None, "user_version", 0).unwrap();
    let error = refused();
    assert_eq!((error.code(), error.kind()), (ErrorCode::StoreOlder, ErrorKind::Closed));
    assert!(error.message().contains("version 0; this build needs 3"), "{error}");
}

#[tokio::test]
async fn a_missing_trigger_or_index_is_damage() {
    for sql in ["DROP TRIGGER runs_ended", "DROP INDEX runs_ready", "DROP TABLE labels"] {
        let dir = StoreDir::new();
        dir.open().await.store.close().await.unwrap();
        dir.raw().execute_batch(sql).unwrap();
        assert_eq!(dir.refusal().kind(), ErrorKind::Corrupt, "{sql}");
    }
}

#[tokio::test]
async fn user_tables_are_allowed() {
    let dir = StoreDir::new();
    dir.open().await.store.close().await.unwrap();
    dir.raw().execute_batch("CREATE TABLE accounts (id INTEGER PRIMARY KEY)").unwrap();
    dir.open().await;
}

#[tokio::test]
async fn opening_releases_all_holds() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (held, hold) = world.create_held("held").await;
    let (paused, paused_hold) = world.create_held("paused").await;
    let mut draft = world.draft(&paused, paused_hold);
    draft.event(events::WORKFLOW_PAUSED, &serde_json::json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused);
    world.ok(draft.finish()).await;
    world.enqueue(vec![world.task(None)]).await;
    let worker = world.worker();
    world.renew(worker).await;
    let task = world.claim_tasks(worker, 1).await.remove(0);
    world.store.close().await.unwrap();

    let world = dir.open().await;
    let run = world.run(held.run_key).await;
    assert_eq!((run.turn.worker, run.turn.ready, run.turn.reclaims), (None, true, 1));
    assert_eq!(run.turn.claim_no, hold.claim_no + 1);
    assert!(run.turn.due_at.is_some() && run.turn.claimed_at.is_none());
    let run = world.run(paused.run_key).await;
    assert_eq!((run.turn.worker, run.turn.ready), (None, false));
    let claimed = world.claim_tasks(world.worker(), 5).await;
    assert_eq!(
        (claimed.len(), claimed[0].reclaims, claimed[0].claim_no),
        (1, 1, task.claim_no + 2)
    );
    assert_eq!(world.code(world.step_commit(&held, hold, "late", "1")).await, "RUN_HOLD_CONFLICT");
    assert_eq!(world.store.health().await.unwrap().workers_live, 0);
}

#[tokio::test]
async fn the_clock_is_never_before_the_last_commit() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let before = world.now().await;
    world.advance_ms(3_600_000).await;
    world.create(world.new_run("late", Turn::ready())).await;
    world.store.close().await.unwrap();
    let options =
        Options { clock: ManualClock::new().as_clock(), elapsed: None, ..Options::default() };
    let world = dir.open_with(options).await;
    assert_eq!(world.now().await, before.plus(Duration::from_secs(3_600)));
}

// A system clock and a monotonic clock that the test moves separately.
async fn open_with_two_clocks(
    dir: &StoreDir,
    system: &ManualClock,
    elapsed: &ManualClock,
) -> World {
    let (clock, elapsed) = (system.as_clock(), Some(elapsed.as_clock()));
    dir.open_with(Options { clock, elapsed, ..Options::default() }).await
}

#[tokio::test]
async fn a_wrong_system_clock_neither_stops_nor_moves_the_clock_of_the_store() {
    let second = Duration::from_secs(1);
    let dir = StoreDir::new();
    let (system, elapsed) = (ManualClock::new(), ManualClock::new());
    let world = open_with_two_clocks(&dir, &system, &elapsed).await;
    let began = world.now().await;
    // Somebody sets the system clock forward by a day; a second passes.
    system.advance(Duration::from_secs(86_400) + second);
    elapsed.advance(second);
    world.create(world.new_run("late", Turn::ready())).await;
    let now = world.now().await;
    assert!(now >= began.plus(second) && now <= began.plus(second * 2), "{began} {now}");
    world.store.close().await.unwrap();

    // The clock was wrong when the store was opened, and is right at the next opening.
    let world = open_with_two_clocks(&dir, &system, &elapsed).await;
    world.create(world.new_run("tomorrow", Turn::ready())).await;
    let last = world.now().await;
    world.store.close().await.unwrap();
    let system = ManualClock::new();
    let world = open_with_two_clocks(&dir, &system, &elapsed).await;
    assert_eq!(world.now().await, last);
    for _ in 0..100 {
        system.advance(second);
        elapsed.advance(second);
    }
    let now = world.now().await;
    assert!(now >= last.plus(second * 95) && now < last.plus(second * 100), "{last} {now}");
    // It approaches the system clock: 5 % of the time that passes.
    for _ in 0..30 {
        system.advance(Duration::from_secs(86_400));
        elapsed.advance(Duration::from_secs(86_400));
        world.now().await;
    }
    assert_eq!(world.now().await, system.now());
}

#[tokio::test]
async fn committed_data_survives_a_crash_of_the_process() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (run, hold) = world.create_held("run").await;
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    // A copy of the files of an open store is what a crash leaves.
    let other = StoreDir::new();
    for suffix in ["", "-wal"] {
        let name = |dir: &StoreDir| {
            let mut name = dir.path().into_os_string();
            name.push(suffix);
            name
        };
        std::fs::copy(name(&dir), name(&other)).unwrap();
    }
    let world = other.open().await;
    assert_eq!(world.load(run.run_key).await.steps.len(), 1);
    assert!(world.store.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn damage_in_a_row_is_reported_and_does_not_spread() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (bad, _) = world.create_held("bad").await;
    let (good, good_hold) = world.create_held("good").await;
    world.create(world.new_run("ready", Turn::ready())).await;
    let broken = world.create(world.new_run("broken", Turn::ready())).await;
    world.store.close().await.unwrap();
    let conn: Connection = dir.raw();
    conn.execute_batch("DROP TRIGGER runs_identity").unwrap();
    conn.execute_batch("UPDATE runs SET status = 'dancing' WHERE id IN ('bad', 'broken')").unwrap();
    conn.execute_batch(
        "CREATE TRIGGER runs_identity AFTER UPDATE OF run_key ON runs BEGIN SELECT 1; END",
    )
    .unwrap();
    assert_eq!(dir.refusal().kind(), ErrorKind::Corrupt, "a changed trigger is damage");
    restore_trigger(&conn);
    drop(conn);

    let world = dir.open().await;
    let error = world.store.load(vec![bad.run_key]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let good = world.run(good.run_key).await;
    assert_eq!(good.turn.claim_no, good_hold.claim_no + 1);
    let claimed = world.claim_turns(world.worker(), 10).await;
    assert_eq!(claimed.len(), 2, "damaged rows are skipped");
    assert!(claimed.iter().all(|turn| turn.run_key != broken.run_key));
    let report = verify_store(&*world.store, &[]).await.unwrap();
    assert!(report.flaws.iter().any(|flaw| flaw.run_key == broken.run_key), "{report:?}");
    assert!(!world.store.check().await.unwrap().is_empty(), "the counters do not match the rows");
    let turn = claimed.iter().find(|turn| turn.run_key == good.run_key).expect("a claimed turn");
    world.ok(world.release_commit(&good, turn.hold, Wake::Now, 0)).await;
}

fn restore_trigger(conn: &Connection) {
    let migration = include_str!("../../migrations/V1__kernel.sql");
    let from = migration.find("CREATE TRIGGER runs_identity").unwrap();
    let to = from + migration[from..].find("END;").unwrap() + 4;
    conn.execute_batch("DROP TRIGGER runs_identity").unwrap();
    conn.execute_batch(&migration[from..to]).unwrap();
}
