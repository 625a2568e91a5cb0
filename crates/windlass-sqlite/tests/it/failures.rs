//! A full disk, a disk that does not confirm, a writer that dies: every caller gets an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use windlass_kernel::{CommitError, ErrorCode, ErrorKind, Statement, Turn};
use windlass_sqlite::{Fault, Options, SqliteStore};

use crate::support::StoreDir;

// Extended result codes of SQLite.
const NOMEM: i32 = 7;
const FULL: i32 = 13;
const IOERR_WRITE: i32 = 10 | (3 << 8);
const IOERR_FSYNC: i32 = 10 | (4 << 8);
const IOERR_SHMSIZE: i32 = 10 | (19 << 8);
const IOERR_SHMMAP: i32 = 10 | (21 << 8);

// Faults that a test can switch on: COMMIT or a checkpoint fails with the code.
fn fault() -> (Option<Fault>, Arc<AtomicI32>) {
    let code = Arc::new(AtomicI32::new(0));
    let current = code.clone();
    let fault = move || match current.load(Ordering::SeqCst) {
        0 => None,
        code => Some(code),
    };
    (Some(Arc::new(fault)), code)
}

fn faulty(dir: &StoreDir) -> (Options, Arc<AtomicI32>) {
    let (commit_fault, code) = fault();
    (Options { commit_fault, ..dir.options() }, code)
}

#[tokio::test]
async fn a_full_disk_fails_all_commits_and_nothing_is_written() {
    let dir = StoreDir::new();
    let world = dir.open_with(Options { pages_max: Some(120), ..dir.options() }).await;
    let mut created = Vec::new();
    let mut refused = None;
    for n in 0..200 {
        let mut new = world.new_run(&format!("r{n}"), Turn::ready());
        new.input = windlass_kernel::Body::bytes(vec![7; 20_000]);
        let key = new.run_key;
        let create = world.create_commit(new, windlass_kernel::OnExisting::Refuse);
        match world.commit(create.clone()).await {
            Ok(_) => created.push(key),
            Err(error) => {
                assert!(matches!(error, CommitError::Unavailable(_)), "{error:?}");
                assert!(error.is_retryable());
                refused = Some((key, create));
                break;
            }
        }
    }
    let (key, create) = refused.expect("200 runs need more than 120 pages");
    assert!(!created.is_empty());
    assert!(world.store.load(vec![key]).await.unwrap().is_empty());
    assert_eq!(world.store.load(created.clone()).await.unwrap().len(), created.len());
    assert!(world.store.check().await.unwrap().is_empty());
    world.store.close().await.unwrap();
    // Without the page limit the commit succeeds.
    let world = dir.open().await;
    world.ok(create).await;
}

#[tokio::test]
async fn a_commit_that_fails_on_a_full_disk_is_rolled_back() {
    for code in [FULL, IOERR_WRITE] {
        let dir = StoreDir::new();
        let (options, fault) = faulty(&dir);
        let world = dir.open_with(options).await;
        let (run, hold) = world.create_held("run").await;
        let step = world.step_commit(&run, hold, "one", "1");
        fault.store(code, Ordering::SeqCst);
        let answers = world.store.commit(vec![step.clone(), step.clone()]).await;
        for answer in &answers {
            assert!(matches!(answer, Err(CommitError::Unavailable(_))), "{answer:?}");
        }
        let error = world.store.promote(1).await;
        assert!(error.is_err_and(|error| error.kind() == ErrorKind::Unavailable));
        fault.store(0, Ordering::SeqCst);
        assert!(!world.ok(step.clone()).await.repeated, "the failed attempt left nothing behind");
        assert!(world.ok(step).await.repeated);
        assert_eq!(world.load(run.run_key).await.steps.len(), 1);
    }
}

#[tokio::test]
async fn a_failed_sync_is_unknown_and_closes_the_store() {
    let dir = StoreDir::new();
    let (options, fault) = faulty(&dir);
    let world = dir.open_with(options).await;
    let (run, hold) = world.create_held("run").await;
    let step = world.step_commit(&run, hold, "one", "1");
    fault.store(IOERR_FSYNC, Ordering::SeqCst);
    let answer = world.commit(step.clone()).await;
    assert!(matches!(answer, Err(CommitError::Unknown(_))), "{answer:?}");
    fault.store(0, Ordering::SeqCst);
    // The writer thread closes the store after it has answered.
    while world.store.now().await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.code(step.clone()).await, "STORE_CLOSED");
    assert_eq!(world.store.load(vec![run.run_key]).await.unwrap_err().code(), "STORE_CLOSED");
    assert_eq!(world.store.promote(1).await.unwrap_err().code(), "STORE_CLOSED");
    drop(world);
    let world = dir.open().await;
    assert_eq!(world.code(step).await, "RUN_HOLD_CONFLICT", "the commit was not written");
}

#[tokio::test]
async fn a_failed_sync_of_user_sql_is_unknown_too() {
    let dir = StoreDir::new();
    let (options, fault) = faulty(&dir);
    let world = dir.open_with(options).await;
    let (run, hold) = world.create_held("run").await;
    let mut draft = world.draft(&run, hold);
    draft.user_sql(vec![Statement { sql: "CREATE TABLE mine (x)".into(), params: Vec::new() }]);
    draft
        .event(windlass_testkit::events::STEP_COMPLETED, &serde_json::json!({}), world.stamp())
        .unwrap();
    fault.store(IOERR_FSYNC, Ordering::SeqCst);
    let answer = world.commit(draft.finish()).await;
    assert!(matches!(answer, Err(CommitError::Unknown(_))), "{answer:?}");
}

#[tokio::test]
async fn an_error_after_the_sync_of_a_commit_is_unknown() {
    for code in [IOERR_SHMSIZE, IOERR_SHMMAP, NOMEM] {
        let dir = StoreDir::new();
        let (options, fault) = faulty(&dir);
        let world = dir.open_with(options).await;
        let (run, hold) = world.create_held("run").await;
        fault.store(code, Ordering::SeqCst);
        let answer = world.commit(world.step_commit(&run, hold, "one", "1")).await;
        assert!(matches!(answer, Err(CommitError::Unknown(_))), "{code}: {answer:?}");
        assert_eq!(world.store.closed().await.code(), ErrorCode::StoreClosed);
    }
}

fn log_bytes(dir: &StoreDir) -> u64 {
    std::fs::metadata(format!("{}-wal", dir.path().display())).map_or(0, |found| found.len())
}

// In the writer (the log has its hard size) and in the checkpoint thread.
#[tokio::test]
async fn a_failed_sync_of_a_checkpoint_closes_the_store_and_keeps_the_log() {
    for wal_bytes_hard in [1 << 16, 512 << 20] {
        let dir = StoreDir::new();
        let (checkpoint_fault, fault) = fault();
        let options =
            Options { checkpoint_fault, wal_bytes_soft: 1 << 16, wal_bytes_hard, ..dir.options() };
        let world = dir.open_with(options).await;
        fault.store(IOERR_FSYNC, Ordering::SeqCst);
        let mut written = Vec::new();
        let error = loop {
            let new = world.new_run(&format!("r{}", written.len()), Turn::ready());
            let key = new.run_key;
            let create = world.create_commit(new, windlass_kernel::OnExisting::Refuse);
            match world.commit(create).await {
                Ok(_) => written.push(key),
                Err(error) => break error,
            }
            assert!(written.len() < 5_000, "the store ignores the failed sync");
        };
        assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Closed), "{error:?}");
        let closed = world.store.closed().await;
        assert_eq!((closed.code(), closed.kind()), (ErrorCode::StoreClosed, ErrorKind::Closed));
        assert!(closed.message().contains("did not confirm a write"), "{closed}");
        drop(world);
        assert!(log_bytes(&dir) >= 1 << 16, "closing must not copy the log and delete it");
        let world = dir.open().await;
        assert_eq!(world.store.load(written.clone()).await.unwrap().len(), written.len());
        assert_eq!(log_bytes(&dir), 0, "opening copies the whole log");
    }
}

#[tokio::test]
async fn a_failed_sync_of_a_checkpoint_closes_an_idle_store() {
    let dir = StoreDir::new();
    let (allow, allowed) = std::sync::mpsc::channel();
    let allowed = std::sync::Mutex::new(allowed);
    let fault: Fault = Arc::new(move || {
        let _ = allowed.lock().unwrap().recv();
        Some(IOERR_FSYNC)
    });
    let options = Options { checkpoint_fault: Some(fault), wal_bytes_soft: 1, ..dir.options() };
    let world = dir.open_with(options).await;
    world.create_held("run").await;
    // The checkpoint fails after the last call.
    allow.send(()).unwrap();
    assert_eq!(world.store.closed().await.code(), ErrorCode::StoreClosed);
}

#[tokio::test]
async fn calls_that_wait_when_a_checkpoint_fails_are_unknown() {
    let dir = StoreDir::new();
    let (allow, allowed) = std::sync::mpsc::channel();
    let allowed = std::sync::Mutex::new(allowed);
    let fault: Fault = Arc::new(move || {
        let _ = allowed.lock().unwrap().recv();
        Some(IOERR_FSYNC)
    });
    let options = Options {
        checkpoint_fault: Some(fault),
        batch_commits_max: 1,
        wal_bytes_soft: 1 << 14,
        wal_bytes_hard: 1 << 14,
        ..dir.options()
    };
    let world = dir.open_with(options).await;
    let calls: Vec<_> = (0..100)
        .map(|n| {
            let new = world.new_run(&format!("r{n}"), Turn::ready());
            world.store.commit(vec![world.create_commit(new, windlass_kernel::OnExisting::Refuse)])
        })
        .collect();
    // All calls are in the queue now.
    allow.send(()).unwrap();
    let mut unknown = 0;
    for call in calls {
        match call.await.remove(0) {
            Ok(_) => assert_eq!(unknown, 0, "no call is written after the failure"),
            Err(error) => {
                assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
                unknown += 1;
            }
        }
    }
    assert!(unknown > 0);
}

#[tokio::test]
async fn closing_a_store_is_no_failure() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    world.store.close().await.unwrap();
    let mut closed = world.store.closed();
    assert!(futures::poll!(&mut closed).is_pending());
}

#[tokio::test]
async fn a_full_disk_gets_the_room_of_the_log_back() {
    let dir = StoreDir::new();
    let (options, fault) = faulty(&dir);
    let world = dir.open_with(options).await;
    for n in 0..20 {
        world.create_held(&format!("r{n}")).await;
    }
    let before = log_bytes(&dir);
    let (run, hold) = world.create_held("run").await;
    let step = world.step_commit(&run, hold, "one", "1");
    fault.store(FULL, Ordering::SeqCst);
    assert!(matches!(world.commit(step.clone()).await, Err(CommitError::Unavailable(_))));
    assert!(before > 0);
    assert_eq!(log_bytes(&dir), 0);
    fault.store(0, Ordering::SeqCst);
    world.ok(step).await;
}

#[tokio::test]
async fn a_commit_that_fits_after_the_checkpoint_of_a_full_disk_is_written() {
    let dir = StoreDir::new();
    let times = Arc::new(AtomicI32::new(0));
    let left = times.clone();
    let fault: Fault = Arc::new(move || {
        let is_left =
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n > 0).then(|| n - 1));
        is_left.is_ok().then_some(FULL)
    });
    let world = dir.open_with(Options { commit_fault: Some(fault), ..dir.options() }).await;
    let (run, hold) = world.create_held("run").await;
    times.store(1, Ordering::SeqCst);
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    assert_eq!(times.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panicking_writer_answers_all_callers_and_goes_on() {
    let dir = StoreDir::new();
    let fails = Arc::new(AtomicBool::new(false));
    let (clock, clock_fails) = (dir.clock.as_clock(), fails.clone());
    let clock = move || {
        // Only the writer reads the clock here, once for every batch.
        assert!(!clock_fails.load(Ordering::SeqCst), "injected failure of the clock");
        clock()
    };
    let options = Options { clock: Arc::new(clock), elapsed: None, ..Options::default() };
    let world = dir.open_with(options).await;
    let mut runs = Vec::new();
    for n in 0..20 {
        runs.push(world.create_held(&format!("r{n}")).await);
    }
    fails.store(true, Ordering::SeqCst);
    let calls: Vec<_> = runs
        .iter()
        .map(|(run, hold)| {
            let store = world.store.clone();
            let commit = world.step_commit(run, *hold, "one", "1");
            tokio::spawn(async move { store.commit(vec![commit]).await.remove(0) })
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    }
    fails.store(false, Ordering::SeqCst);
    for (run, hold) in runs {
        assert!(world.load(run.run_key).await.steps.is_empty());
        world.ok(world.step_commit(&run, hold, "one", "1")).await;
    }
    let facts = world.store.facts().await.unwrap();
    let panics = facts.iter().find(|fact| fact.name == "panics").expect("a fact");
    assert!(panics.value != "0" && panics.warning.is_some(), "{panics:?}");
}

#[tokio::test]
async fn a_failing_user_trigger_affects_only_its_commits() {
    for way in ["ABORT", "FAIL", "ROLLBACK"] {
        check_failing_trigger(way).await;
    }
}

async fn check_failing_trigger(way: &str) {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let sql = format!(
        "CREATE TRIGGER fails BEFORE INSERT ON steps WHEN NEW.step_key = 'bad' \
         BEGIN SELECT RAISE({way}, 'fails'); END"
    );
    world.subject.raw_sql(sql).await.unwrap();
    let mut commits = Vec::new();
    let mut runs = Vec::new();
    for n in 0..50 {
        let (run, hold) = world.create_held(&format!("r{n}")).await;
        let key = if n == 17 || n == 31 { "bad" } else { "good" };
        commits.push(world.step_commit(&run, hold, key, "1"));
        runs.push(run);
    }
    let answers = world.store.commit(commits).await;
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(_) => assert!(n != 17 && n != 31, "{way}"),
            Err(error) => {
                assert!(n == 17 || n == 31, "{way}: commit {n} {error}");
                assert_eq!(error.code(), "STORE_CONSTRAINT");
            }
        }
    }
    assert_eq!(world.run(runs[17].run_key).await, runs[17]);
    assert_eq!(world.load(runs[18].run_key).await.steps.len(), 1, "{way}");
}

#[tokio::test]
async fn writes_of_other_processes_are_seen() {
    let dir = StoreDir::new();
    let world = dir.open().await;
    let (run, hold) = world.create_held("run").await;
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    let run = world.run(run.run_key).await;
    let sql = "UPDATE runs SET turn_claim_no = turn_claim_no + 1";
    world.subject.raw_sql(sql.into()).await.unwrap();
    assert_eq!(world.code(world.step_commit(&run, hold, "two", "1")).await, "RUN_HOLD_CONFLICT");
}

#[test]
fn invalid_options_are_refused() {
    let dir = StoreDir::new();
    let bad = [
        Options { readers: 0, ..Options::default() },
        Options { batch_commits_max: 0, ..Options::default() },
        Options { page_bytes: 5_000, ..Options::default() },
        Options { wal_bytes_soft: 2, wal_bytes_hard: 1, ..Options::default() },
    ];
    for options in bad {
        let error = SqliteStore::open(dir.path(), options).err().expect("open must fail");
        assert_eq!((error.code(), error.kind()), (ErrorCode::InvalidOption, ErrorKind::Invalid));
    }
}
