//! Opening: one process, our files only, holds freed, time never back.

use std::time::Duration;

use rusqlite::Connection;
use windlass_kernel::verify::verify_store;
use windlass_kernel::{ErrorKind, RunStatus, Store as _, Turn, Wake};
use windlass_sqlite::{Options, SqliteStore};
use windlass_testkit::memory::ManualClock;

use crate::support::Home;

#[tokio::test]
async fn a_second_opener_is_told_who_has_it() {
    let home = Home::new();
    let world = home.open().await;
    let error = home.refusal();
    assert_eq!((error.code(), error.kind()), ("STORE_LOCKED", ErrorKind::Closed));
    assert!(error.message().contains("store.db.lock"), "{error}");
    assert!(error.message().contains(&std::process::id().to_string()), "{error}");
    world.store.close().await.unwrap();
    home.open().await.store.close().await.unwrap();
    // A store that nobody closed gives the lock back as well.
    drop(home.open().await);
    home.open().await;
}

#[tokio::test]
async fn a_foreign_database_is_left_alone() {
    for (what, id) in [("another application", 42), ("tables without an id", 0)] {
        let home = Home::new();
        let conn = home.raw();
        conn.execute_batch("CREATE TABLE runs (x)").unwrap();
        conn.pragma_update(None, "application_id", id).unwrap();
        drop(conn);
        let before = std::fs::read(home.path()).unwrap();
        let error = home.refusal();
        assert_eq!((error.code(), error.kind()), ("STORE_FOREIGN", ErrorKind::Closed), "{what}");
        assert_eq!(std::fs::read(home.path()).unwrap(), before, "{what}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_left_alone() {
    let home = Home::new();
    let text = "not a database, but somebody's only copy of a poem ".repeat(100);
    std::fs::write(home.path(), &text).unwrap();
    assert_eq!(home.refusal().code(), "STORE_FOREIGN");
    assert_eq!(std::fs::read_to_string(home.path()).unwrap(), text);
}

#[tokio::test]
async fn an_empty_file_becomes_a_store() {
    let home = Home::new();
    std::fs::write(home.path(), "").unwrap();
    home.open().await;
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let home = Home::new();
    home.open().await.store.close().await.unwrap();
    home.raw().pragma_update(None, "user_version", 99).unwrap();
    let before = std::fs::read(home.path()).unwrap();
    let error = home.refusal();
    assert_eq!((error.code(), error.kind()), ("STORE_NEWER", ErrorKind::Closed));
    assert!(error.message().contains("99"), "{error}");
    assert_eq!(std::fs::read(home.path()).unwrap(), before);
}

#[tokio::test]
async fn what_is_only_looked_at_is_left_as_it_is() {
    let home = Home::new();
    let look = || SqliteStore::open(home.path(), Options { inspect: true, ..home.options() });
    let refused = || look().err().expect("it does not open");
    assert_eq!((refused().code(), refused().kind()), ("STORE_NOT_FOUND", ErrorKind::NotFound));
    std::fs::write(home.path(), "").unwrap();
    assert_eq!(refused().code(), "STORE_NOT_FOUND");
    assert_eq!(std::fs::read_dir(home.path().parent().unwrap()).unwrap().count(), 1);

    let world = home.open().await;
    let (run, _) = world.create_held("held").await;
    world.store.close().await.unwrap();
    home.raw().execute_batch("DROP INDEX runs_ready; DROP TRIGGER runs_ended").unwrap();
    let before = std::fs::read(home.path()).unwrap();
    let store = look().unwrap();
    assert_eq!(home.refusal().code(), "STORE_LOCKED");
    let damage = store.check().await.unwrap().join(" ");
    assert!(damage.contains("\"runs_ready\"") && damage.contains("\"runs_ended\""), "{damage}");
    let report = verify_store(&*store, &[]).await.unwrap();
    assert!(report.is_clean() && report.runs == 1, "{report:?}");
    // Whoever held a turn holds it still.
    let loaded = store.load(vec![run.run_key]).await.unwrap().remove(0);
    assert!(loaded.run.turn.worker.is_some());
    assert_eq!(store.promote(1).await.unwrap_err().code(), "STORE_CLOSED");
    store.close().await.unwrap();
    assert_eq!(std::fs::read(home.path()).unwrap(), before);

    home.raw().pragma_update(None, "user_version", 0).unwrap();
    let error = refused();
    assert_eq!((error.code(), error.kind()), ("STORE_OLDER", ErrorKind::Closed));
    assert!(error.message().contains("version 0; this build needs 1"), "{error}");
}

#[tokio::test]
async fn a_missing_trigger_or_index_is_damage() {
    for sql in ["DROP TRIGGER runs_ended", "DROP INDEX runs_ready", "DROP TABLE labels"] {
        let home = Home::new();
        home.open().await.store.close().await.unwrap();
        home.raw().execute_batch(sql).unwrap();
        assert_eq!(home.refusal().kind(), ErrorKind::Corrupt, "{sql}");
    }
}

#[tokio::test]
async fn tables_of_the_user_are_welcome() {
    let home = Home::new();
    home.open().await.store.close().await.unwrap();
    home.raw().execute_batch("CREATE TABLE accounts (id INTEGER PRIMARY KEY)").unwrap();
    home.open().await;
}

#[tokio::test]
async fn opening_frees_what_was_held() {
    let home = Home::new();
    let world = home.open().await;
    let (held, hold) = world.create_held("held").await;
    let (paused, paused_hold) = world.create_held("paused").await;
    let mut draft = world.draft(&paused, paused_hold);
    draft.event("workflow.paused", &serde_json::json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused);
    world.ok(draft.finish()).await;
    world.enqueue(vec![world.task(None)]).await;
    let worker = world.worker();
    world.renew(worker).await;
    let task = world.claim_tasks(worker, 1).await.remove(0);
    world.store.close().await.unwrap();

    let world = home.open().await;
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
async fn the_clock_never_runs_behind_the_last_commit() {
    let home = Home::new();
    let world = home.open().await;
    let before = world.now().await;
    world.advance_ms(3_600_000).await;
    world.create(world.new_run("late", Turn::ready())).await;
    world.store.close().await.unwrap();
    let options = Options { clock: ManualClock::new().as_clock(), ..Options::default() };
    let world = home.open_with(options).await;
    assert_eq!(world.now().await, before.plus(Duration::from_secs(3_600)));
}

#[tokio::test]
async fn what_was_committed_is_there_after_a_crash_of_the_process() {
    let home = Home::new();
    let world = home.open().await;
    let (run, hold) = world.create_held("run").await;
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    // A copy of the files while the store is open is what a crash leaves.
    let other = Home::new();
    for suffix in ["", "-wal"] {
        let name = |home: &Home| {
            let mut name = home.path().into_os_string();
            name.push(suffix);
            name
        };
        std::fs::copy(name(&home), name(&other)).unwrap();
    }
    let world = other.open().await;
    assert_eq!(world.load(run.run_key).await.steps.len(), 1);
    assert!(world.store.check().await.unwrap().is_empty());
}

#[tokio::test]
async fn damage_in_a_row_is_said_and_stays_in_its_row() {
    let home = Home::new();
    let world = home.open().await;
    let (bad, _) = world.create_held("bad").await;
    let (good, good_hold) = world.create_held("good").await;
    world.create(world.new_run("ready", Turn::ready())).await;
    let broken = world.create(world.new_run("broken", Turn::ready())).await;
    world.store.close().await.unwrap();
    let conn: Connection = home.raw();
    conn.execute_batch("DROP TRIGGER runs_identity").unwrap();
    conn.execute_batch("UPDATE runs SET status = 'dancing' WHERE id IN ('bad', 'broken')").unwrap();
    conn.execute_batch(
        "CREATE TRIGGER runs_identity AFTER UPDATE OF run_key ON runs BEGIN SELECT 1; END",
    )
    .unwrap();
    assert_eq!(home.refusal().kind(), ErrorKind::Corrupt, "a changed trigger is damage, too");
    restore_trigger(&conn);
    drop(conn);

    let world = home.open().await;
    let error = world.store.load(vec![bad.run_key]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let good = world.run(good.run_key).await;
    assert_eq!(good.turn.claim_no, good_hold.claim_no + 1);
    let claimed = world.claim_turns(world.worker(), 10).await;
    assert_eq!(claimed.len(), 2, "the damaged ones are passed over");
    assert!(claimed.iter().all(|turn| turn.run_key != broken.run_key));
    let report = verify_store(&*world.store, &[]).await.unwrap();
    assert!(report.flaws.iter().any(|flaw| flaw.run_key == broken.run_key), "{report:?}");
    assert!(!world.store.check().await.unwrap().is_empty(), "the counts do not add up");
    let turn = claimed.iter().find(|turn| turn.run_key == good.run_key).expect("it is claimed");
    world.ok(world.release_commit(&good, turn.hold, Wake::Now, 0)).await;
}

fn restore_trigger(conn: &Connection) {
    let migration = include_str!("../../migrations/V1__kernel.sql");
    let from = migration.find("CREATE TRIGGER runs_identity").unwrap();
    let to = from + migration[from..].find("END;").unwrap() + 4;
    conn.execute_batch("DROP TRIGGER runs_identity").unwrap();
    conn.execute_batch(&migration[from..to]).unwrap();
}
