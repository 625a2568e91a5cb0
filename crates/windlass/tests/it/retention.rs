//! Retention: what is due goes with its whole tree, and nothing else does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use windlass::admin::transfer::{Imported, Importer, RunExport};
use windlass::admin::{Anchor, Archive, FileArchive, Options, Retention, verify_store};
use windlass::kernel::kept::{load_kept, load_kept_tree};
use windlass::kernel::{
    BoxFuture, Commit, CommitError, CommitResults, ErrorCode, ErrorKind, Query, RunGuard,
};
use windlass::model::{Env, TokioEnv};
use windlass::{Ctx, Engine, Error, Result, RunKey, Store, Timestamp, WorkflowRef};

use windlass_testkit::gate::{Gate, GatedStore, Pass};

use crate::harness::{Counts, Harness, ok, on_every_store, until};

on_every_store!(
    without_a_policy_everything_is_kept,
    a_tree_goes_when_its_time_is_over,
    the_ledger_stays_if_asked,
    nothing_goes_before_it_is_archived,
    the_engine_sweeps_by_itself,
    a_name_is_free_again,
    archived_trees_can_be_imported,
    a_create_is_not_sent_again_after_its_run_was_deleted,
    a_policy_is_longer_than_creates_are_sent_again,
);

const SECOND: Duration = Duration::from_secs(1);

// A policy of a second is long enough for these engines.
fn brief(options: Options) -> Options {
    Options { create_resend_max: Duration::from_millis(250), ..options }
}

async fn leaf(_: Ctx, n: u32) -> Result<u32> {
    Ok(n)
}

async fn parent(ctx: Ctx, n: u32) -> Result<u32> {
    Ok(ctx.child_named("leaf", "leaf", &n).await?)
}

async fn sleeper(ctx: Ctx, n: u32) -> Result<u32> {
    ctx.sleep("long", "1 day").await?;
    Ok(n)
}

fn flow(engine: &Engine) -> WorkflowRef<u32, u32> {
    engine.workflow("leaf", leaf).unwrap();
    engine.workflow("parent", parent).unwrap()
}

// Until what has ended by now has been over for a second by the store's clock.
async fn a_second_later(engine: &Engine) {
    let now = engine.admin().store().now().await.unwrap();
    let late = now.plus(Duration::from_millis(1_100));
    until("a second has passed", || async {
        let now: Timestamp = engine.admin().store().now().await.unwrap();
        now > late
    })
    .await;
}

// Something to verify is left when a test is over.
async fn leave_one(engine: &Engine) {
    let lone = engine.workflow("lone", leaf).unwrap();
    assert_eq!(lone.start(9).id("lone").await.unwrap().result().await.unwrap(), 9);
}

async fn is_there(engine: &Engine, run_key: RunKey) -> bool {
    !engine.admin().store().load(vec![run_key]).await.unwrap().is_empty()
}

async fn without_a_policy_everything_is_kept(h: Arc<Harness>) {
    let engine = h.engine_with(brief).await;
    let run = flow(&engine).start(1).id("a").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    a_second_later(&engine).await;
    assert_eq!(engine.admin().sweep().await.unwrap().trees, 0);
    assert!(is_there(&engine, run.run_key()).await);
    let short = Retention::keep_for(Duration::from_millis(999)).unwrap_err();
    assert_eq!(short.code(), "INVALID_RETENTION");
}

async fn a_tree_goes_when_its_time_is_over(h: Arc<Harness>) {
    let engine = h.engine_with(brief).await;
    let flow = flow(&engine);
    let asleep = engine.workflow("sleeper", sleeper).unwrap();
    let policy = Retention::keep_for(SECOND).unwrap();
    for workflow in ["parent", "sleeper"] {
        engine.admin().set_retention(workflow, Some(&policy)).await.unwrap();
    }
    let policies = engine.admin().retentions().await.unwrap();
    let names: Vec<_> = policies.iter().map(|(workflow, _)| workflow.as_str()).collect();
    assert_eq!(names, ["parent", "sleeper"]);
    let live = asleep.start(0).id("live").await.unwrap();
    let run = flow.start(1).id("a").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    let lone = engine.workflow("other", leaf).unwrap();
    let kept = lone.start(2).id("kept").await.unwrap();
    assert_eq!(kept.result().await.unwrap(), 2);
    a_second_later(&engine).await;
    let swept = engine.admin().sweep().await.unwrap();
    assert_eq!((swept.trees, swept.runs), (1, 2), "the child goes with its parent");
    assert!(!is_there(&engine, run.run_key()).await);
    assert_eq!(flow.get("a").await.err().unwrap().code(), "RUN_NOT_FOUND");
    assert!(is_there(&engine, live.run_key()).await, "a live run is never touched");
    assert!(is_there(&engine, kept.run_key()).await, "its workflow has no policy");
    engine.admin().set_retention("parent", None).await.unwrap();
    assert_eq!(engine.admin().retentions().await.unwrap().len(), 1);
    live.terminate().await.unwrap();
}

async fn the_ledger_stays_if_asked(h: Arc<Harness>) {
    let engine = h.engine_with(brief).await;
    let policy = Retention::keep_for(SECOND).unwrap().keep_ledger();
    engine.admin().set_retention("parent", Some(&policy)).await.unwrap();
    let run = flow(&engine).start(1).id("a").await.unwrap();
    run.result().await.unwrap();
    let events = Query::Events { run_key: run.run_key(), from: 0, limit: 100 };
    let before = engine.admin().store().list(events.clone()).await.unwrap();
    a_second_later(&engine).await;
    assert_eq!(engine.admin().sweep().await.unwrap().trees, 1);
    assert!(!is_there(&engine, run.run_key()).await);
    let store = engine.admin().store();
    assert_eq!(store.list(events).await.unwrap(), before);

    // The ledger can be read by run and by root, and verified.
    let namespace = windlass::kernel::Namespace::default_namespace();
    let kept = load_kept(&**store, &namespace, run.run_key()).await.unwrap().expect("it is kept");
    assert_eq!((kept.ledger.id.as_str(), kept.ledger.status.as_str()), ("a", "complete"));
    assert_eq!(before.events().unwrap(), kept.events);
    let tree = load_kept_tree(&**store, &namespace, run.run_key()).await.unwrap();
    let parents: Vec<_> = tree.iter().map(|kept| kept.ledger.parent).collect();
    assert_eq!(parents, [None, Some(run.run_key())], "the child's ledger is kept too");
    let last = kept.events.last().unwrap();
    let anchor = |hash| Anchor { run_key: run.run_key(), next_ordinal: last.ordinal + 1, hash };
    let report = verify_store(&**store, &[anchor(last.hash)]).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.flaws);
    assert_eq!(report.kept_ledgers, 2);
    let other = windlass::kernel::Sha256Digest::of(b"x");
    let report = verify_store(&**store, &[anchor(other)]).await.unwrap();
    assert_eq!(report.flaws.len(), 1, "{:?}", report.flaws);

    // A changed event, a missing one and another identity are found.
    let mut changed = kept.events.clone();
    changed[1].payload = "{}".into();
    assert_eq!(kept.ledger.verify(&changed).unwrap_err().0, 1);
    let short = &kept.events[..kept.events.len() - 1];
    assert_eq!(kept.ledger.verify(short).unwrap_err().0, last.ordinal);
    let mut renamed = kept.ledger.clone();
    renamed.id = "b".into();
    assert_eq!(renamed.verify(&kept.events).unwrap_err().0, 0);
    leave_one(&engine).await;
}

#[derive(Default)]
struct Shelf {
    taken: Mutex<Vec<RunKey>>,
    full: Mutex<bool>,
}

impl Archive for Shelf {
    fn take<'a>(
        &'a self,
        _: &'a Arc<dyn Store>,
        root: RunKey,
    ) -> BoxFuture<'a, std::result::Result<(), Error>> {
        Box::pin(async move {
            if *self.full.lock() {
                return Err(Error::new(
                    windlass::ErrorKind::Unavailable,
                    ErrorCode::Custom("DISK_FULL"),
                    "full",
                ));
            }
            self.taken.lock().push(root);
            Ok(())
        })
    }
}

async fn nothing_goes_before_it_is_archived(h: Arc<Harness>) {
    let shelf = Arc::new(Shelf::default());
    let policy = Retention::keep_for(SECOND).unwrap().archive();
    {
        let engine = h.engine_with(brief).await;
        engine.admin().set_retention("parent", Some(&policy)).await.unwrap();
        let run = flow(&engine).start(1).id("a").await.unwrap();
        run.result().await.unwrap();
        a_second_later(&engine).await;
        assert_eq!(engine.admin().sweep().await.unwrap().trees, 0, "this engine has no archive");
        h.stop(&engine).await;
    }
    let archive: Arc<dyn Archive> = shelf.clone();
    let engine =
        h.engine_with(|options| Options { archive: Some(archive), ..brief(options) }).await;
    let run = flow(&engine).get("a").await.unwrap();
    *shelf.full.lock() = true;
    assert_eq!(engine.admin().sweep().await.unwrap().failed, 1, "the archive is full");
    assert!(is_there(&engine, run.run_key()).await);
    *shelf.full.lock() = false;
    assert_eq!(engine.admin().sweep().await.unwrap().trees, 1);
    assert_eq!(*shelf.taken.lock(), [run.run_key()]);
    assert!(!is_there(&engine, run.run_key()).await);
    leave_one(&engine).await;
}

async fn the_engine_sweeps_by_itself(h: Arc<Harness>) {
    let engine = h.engine_with(|options| Options { sweep_every: SECOND, ..brief(options) }).await;
    let run = flow(&engine).start(1).id("a").await.unwrap();
    run.result().await.unwrap();
    // Set after the fact, and for what has ended before.
    let policy = Retention::keep_for(SECOND).unwrap();
    engine.admin().set_retention("parent", Some(&policy)).await.unwrap();
    until("the run is gone", || async { !is_there(&engine, run.run_key()).await }).await;
    until("it is counted", || async { engine.admin().metrics().runs_deleted.get() == 2 }).await;
    leave_one(&engine).await;
}

async fn a_name_is_free_again(h: Arc<Harness>) {
    let engine = h.engine_with(brief).await;
    let flow = flow(&engine);
    let policy = Retention::keep_for(SECOND).unwrap();
    engine.admin().set_retention("parent", Some(&policy)).await.unwrap();
    flow.start(1).id("a").await.unwrap().result().await.unwrap();
    let second = flow.get("a").await.unwrap().restart().await.unwrap();
    second.result().await.unwrap();
    a_second_later(&engine).await;
    let swept = engine.admin().sweep().await.unwrap();
    assert_eq!((swept.trees, swept.kept), (2, 0), "both generations, the earlier one first");
    let run = flow.start(7).id("a").await.unwrap();
    assert!(!run.existed());
    assert_eq!(run.result().await.unwrap(), 7);
}

async fn archived_trees_can_be_imported(h: Arc<Harness>) {
    let folder = tempfile::tempdir().unwrap();
    let archive: Arc<dyn Archive> = FileArchive::new(folder.path().join("old")).unwrap();
    let engine =
        h.engine_with(|options| Options { archive: Some(archive), ..brief(options) }).await;
    let policy = Retention::keep_for(SECOND).unwrap().archive();
    engine.admin().set_retention("parent", Some(&policy)).await.unwrap();
    let run = flow(&engine).start(4).id("a").await.unwrap();
    run.result().await.unwrap();
    a_second_later(&engine).await;
    assert_eq!(engine.admin().sweep().await.unwrap().runs, 2);
    let file = folder.path().join("old/default.parent.jsonl");
    let lines = std::fs::read_to_string(&file).unwrap();
    assert_eq!(lines.lines().count(), 2, "the run and its child");

    let env: Arc<dyn Env> = TokioEnv::new().unwrap();
    let importer = Importer::begin(Arc::clone(engine.admin().store()), &*env).await.unwrap();
    for line in lines.lines() {
        let imported = importer.import(RunExport::parse(line).unwrap()).await.unwrap();
        assert_eq!(imported, Imported::Written);
    }
    importer.finish().await.unwrap();
    let back = flow_ref(&engine).get("a").await.unwrap();
    assert_eq!(back.run_key(), run.run_key());
    assert_eq!(back.result().await.unwrap(), 4);
    // Where it cannot be written, it is not deleted.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert_eq!(engine.admin().sweep().await.unwrap().failed, 1);
    assert!(is_there(&engine, run.run_key()).await);
}

fn flow_ref(engine: &Engine) -> WorkflowRef<u32, u32> {
    engine.remote_workflow("parent").unwrap()
}

/// Loses the answers to all commits that create a run, and counts them.
#[derive(Clone, Default)]
struct LoseCreates(Arc<AtomicU64>);

impl Gate for LoseCreates {
    fn pass(&self) -> Pass {
        Pass::Through
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        let creates = |commit: &Commit| matches!(commit.run, Some(RunGuard::Absent { .. }));
        let creates: Vec<bool> = commits.iter().map(creates).collect();
        Box::pin(async move {
            let mut results = inner.commit(commits).await;
            for (result, _) in results.iter_mut().zip(creates).filter(|(_, creates)| *creates) {
                let lost = Error::new(ErrorKind::Unknown, ErrorCode::StoreUnknown, "it is lost");
                *result = Err(CommitError::Unknown(Arc::new(lost)));
                self.0.fetch_add(1, Ordering::SeqCst);
            }
            results
        })
    }
}

async fn a_create_is_not_sent_again_after_its_run_was_deleted(h: Arc<Harness>) {
    let gate = LoseCreates::default();
    let around = gate.clone();
    let wrap = |store| Arc::new(GatedStore::with_gate(store, around)) as Arc<dyn Store>;
    let (engine, beside) = h.engine_behind_with(brief, wrap).await;
    let counts = Counts::new();
    let body = async |counts: Arc<Counts>, _: Ctx, n: u32| {
        counts.hit("run");
        ok(n)
    };
    let flow = beside.workflow_with("leaf", counts.clone(), body).unwrap();
    leave_one(&beside).await;
    let policy = Retention::keep_for(SECOND).unwrap();
    beside.admin().set_retention("leaf", Some(&policy)).await.unwrap();
    let remote = engine.remote_workflow::<u32, u32>("leaf").unwrap();
    let create = tokio::spawn(async move { remote.start(1).id("a").await });
    until("the run is deleted", || async { beside.admin().sweep().await.unwrap().trees == 1 })
        .await;
    let sent = gate.0.load(Ordering::SeqCst);
    let unknown = create.await.unwrap().expect_err("nobody knows the outcome");
    assert_eq!(unknown.code(), "STORE_UNKNOWN");
    assert_eq!(gate.0.load(Ordering::SeqCst), sent, "the commit was sent again");
    assert_eq!(flow.get("a").await.err().unwrap().code(), "RUN_NOT_FOUND");
    assert_eq!(counts.get("run"), 1);
}

async fn a_policy_is_longer_than_creates_are_sent_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    leave_one(&engine).await;
    let set = async |text: &str| {
        let policy = Retention::keep_for(text).unwrap();
        engine.admin().set_retention("lone", Some(&policy)).await
    };
    set("4 minutes").await.unwrap();
    let refused = set("239 seconds").await.unwrap_err();
    assert_eq!(refused.code(), "INVALID_RETENTION");
    assert!(refused.message().contains("use at least 4m"), "{refused}");
    let kept = engine.admin().retentions().await.unwrap();
    assert_eq!(kept[0].1.span(), Duration::from_secs(240), "the policy before stays");
}
