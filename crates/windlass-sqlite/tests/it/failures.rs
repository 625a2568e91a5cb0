//! A full disk, a disk that does not confirm, a writer that dies: every caller gets an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use windlass_kernel::{CommitError, ErrorCode, ErrorKind, Statement, Turn};
use windlass_sqlite::{Options, SqliteStore};

use crate::support::StoreDir;

// SQLITE_FULL, SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC.
const FULL: i32 = 13;
const IOERR_WRITE: i32 = 10 | (3 << 8);
const IOERR_FSYNC: i32 = 10 | (4 << 8);

fn faulty(dir: &StoreDir) -> (Options, Arc<AtomicI32>) {
    let code = Arc::new(AtomicI32::new(0));
    let current = code.clone();
    let fault = move || match current.load(Ordering::SeqCst) {
        0 => None,
        code => Some(code),
    };
    (Options { commit_fault: Some(Arc::new(fault)), ..dir.options() }, code)
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panicking_writer_answers_all_callers() {
    let dir = StoreDir::new();
    let fails = Arc::new(AtomicBool::new(false));
    let (clock, clock_fails) = (dir.clock.as_clock(), fails.clone());
    let clock = move || {
        // Only the writer reads the clock here, once for every batch.
        assert!(!clock_fails.load(Ordering::SeqCst), "injected failure of the clock");
        clock()
    };
    let options = Options { clock: Arc::new(clock), ..Options::default() };
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
        let answered = matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Closed);
        assert!(answered, "{error:?}");
    }
    assert_eq!(world.store.promote(1).await.unwrap_err().code(), "STORE_CLOSED");
    drop(world);
    fails.store(false, Ordering::SeqCst);
    let world = dir.open().await;
    for (run, _) in runs {
        assert!(world.load(run.run_key).await.steps.is_empty());
    }
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
