//! One unreadable row, one bad policy or one long panic text harms its own run and nothing else.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::{FileArchive, Options, Retention};
use windlass::kernel::{Actor, Namespace, Order, Query, RunsQuery};
use windlass::{Ctx, Result, RunStatus, Store};

use crate::harness::{Harness, Kind, event_types, ok, on_every_store, run, until};

on_every_store!(
    a_long_panic_text_blocks_the_run_and_gives_the_turn_back,
    actors_with_large_metadata_are_refused,
    one_bad_archive_does_not_stop_the_other_policies,
    a_workflow_with_a_slash_in_its_name_is_archived,
);

const RUNS: usize = 500;

fn quick(options: Options) -> Options {
    Options { blocked_retry: Duration::from_millis(200), ..options }
}

async fn one_unreadable_message_blocks_one_run(h: Arc<Harness>) {
    let engine = h.engine_with(quick).await;
    let remote = engine.remote_workflow::<usize, usize>("echo").unwrap();
    let mut runs = Vec::new();
    for n in 0..RUNS {
        runs.push(remote.start(n).id(format!("run-{n}")).await.unwrap());
    }
    let bad = &runs[RUNS / 2];
    bad.send_event("go", &1).await.unwrap();
    h.sql("UPDATE messages SET kind = 'unheard-of'").await;
    engine.workflow("echo", async |_: Ctx, n: usize| ok(n)).unwrap();
    for (n, run) in runs.iter().enumerate() {
        if n != RUNS / 2 {
            assert_eq!(run.result().await.unwrap(), n);
        }
    }
    until("the bad run is blocked", || async {
        event_types(bad).await.iter().any(|name| name == "workflow.blocked")
    })
    .await;
    let why = engine.core().why(bad.run_key()).await.unwrap();
    assert!(format!("{why:?}").contains("STORE_CORRUPT"), "{why:?}");
    // Its row is repaired, and it goes on by itself.
    h.sql("UPDATE messages SET kind = 'event'").await;
    assert_eq!(bad.result().await.unwrap(), RUNS / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unreadable_message_of_500_runs_on_sqlite() {
    run(Kind::Sqlite, one_unreadable_message_blocks_one_run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unreadable_message_of_500_runs_on_postgres() {
    run(Kind::Postgres, one_unreadable_message_blocks_one_run).await;
}

// The run's own row cannot be read, so nothing can be written to the run: its turn is held back.
async fn one_unreadable_run_holds_up_nobody(h: Arc<Harness>) {
    let engine = h.engine_with(quick).await;
    let remote = engine.remote_workflow::<usize, usize>("echo").unwrap();
    let mut runs = Vec::new();
    for n in 0..20 {
        runs.push(remote.start(n).id(format!("run-{n}")).await.unwrap());
    }
    damage(&h, "run-7").await;
    engine.workflow("echo", async |_: Ctx, n: usize| ok(n)).unwrap();
    for (n, run) in runs.iter().enumerate() {
        if n != 7 {
            assert_eq!(run.result().await.unwrap(), n);
        }
    }
    mend(&h, "run-7").await;
    assert_eq!(runs[7].result().await.unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unreadable_run_on_sqlite() {
    run(Kind::Sqlite, one_unreadable_run_holds_up_nobody).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_unreadable_run_on_postgres() {
    run(Kind::Postgres, one_unreadable_run_holds_up_nobody).await;
}

// An ended run does not change.
async fn allow_damage(h: &Harness) {
    h.sql(match h.kind {
        Kind::Postgres => "ALTER TABLE runs DISABLE TRIGGER USER",
        _ => "DROP TRIGGER runs_ended",
    })
    .await;
}

// Makes the row of a run unreadable; `mend` undoes it.
async fn damage(h: &Harness, id: &str) {
    let body = match h.kind {
        Kind::Postgres => "'x'::bytea",
        _ => "CAST('x' AS BLOB)",
    };
    let set = format!("UPDATE runs SET state = {body}, state_encoding = 'unheard-of'");
    h.sql(&format!("{set} WHERE id = '{id}'")).await;
}

async fn mend(h: &Harness, id: &str) {
    let set = "UPDATE runs SET state = NULL, state_encoding = NULL";
    h.sql(&format!("{set} WHERE id = '{id}'")).await;
}

async fn one_unreadable_run_is_kept_and_the_others_are_deleted(h: Arc<Harness>) {
    let engine = h.engine_with(|o| Options { create_resend_max: SECOND / 4, ..o }).await;
    let flow = engine.workflow("echo", async |_: Ctx, n: u32| ok(n)).unwrap();
    let mut keys = Vec::new();
    for id in ["bad", "good"] {
        let run = flow.start(1).id(id).await.unwrap();
        run.result().await.unwrap();
        keys.push(run.run_key());
    }
    allow_damage(&h).await;
    damage(&h, "bad").await;
    engine
        .admin()
        .set_retention("echo", Some(&Retention::keep_for(SECOND).unwrap()))
        .await
        .unwrap();
    let store = engine.admin().store();
    until("the good run is deleted", || async {
        engine.admin().sweep().await.unwrap();
        let left = store.list(Query::RunKeys { after: None, limit: 10 }).await.unwrap();
        left.run_keys().unwrap() == keys[..1]
    })
    .await;
    let swept = engine.admin().sweep().await.unwrap();
    assert_eq!((swept.trees, swept.failed), (0, 1), "{swept:?}");
    mend(&h, "bad").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_passes_over_an_unreadable_run_on_sqlite() {
    run(Kind::Sqlite, one_unreadable_run_is_kept_and_the_others_are_deleted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_passes_over_an_unreadable_run_on_postgres() {
    run(Kind::Postgres, one_unreadable_run_is_kept_and_the_others_are_deleted).await;
}

// All pages of runs, of a number of rows each.
async fn listed(store: &Arc<dyn Store>, limit: u32, order: Order, label: bool) -> Vec<String> {
    let mut query = RunsQuery::all(Namespace::default_namespace(), limit);
    query.order = order;
    query.label = label.then(|| ("batch".to_owned(), "one".to_owned()));
    let mut ids = Vec::new();
    loop {
        let page = store.list(Query::Runs(query.clone())).await.unwrap().runs().unwrap();
        ids.extend(page.iter().map(|run| run.id.to_string()));
        if page.len() < limit as usize {
            return ids;
        }
        query.after = page.last().map(|run| run.run_key);
    }
}

async fn unreadable_rows_do_not_hide_the_others(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("echo", async |_: Ctx, n: u32| ok(n)).unwrap();
    for n in 0..7 {
        let run = flow.start(n).id(format!("run-{n}")).label("batch", "one").await.unwrap();
        run.result().await.unwrap();
    }
    let store = engine.admin().store();
    allow_damage(&h).await;
    let bad = [1, 3, 4];
    for n in bad {
        damage(&h, &format!("run-{n}")).await;
    }
    let mut expect = ["run-0", "run-2", "run-5", "run-6"];
    for (order, label) in [(Order::Ascending, false), (Order::Ascending, true)] {
        for limit in [1, 2, 3, 100] {
            assert_eq!(listed(store, limit, order, label).await, expect, "{limit} {label}");
        }
    }
    expect.reverse();
    assert_eq!(listed(store, 2, Order::Descending, false).await, expect);
    assert_eq!(store.unreadable_rows(), 3, "each row counts once");
    for n in bad {
        mend(&h, &format!("run-{n}")).await;
    }
    assert_eq!(listed(store, 3, Order::Ascending, false).await.len(), 7);

    // One policy of four cannot even be decoded.
    let keep = Retention::keep_for("1 hour").unwrap();
    for name in ["a", "b", "c", "d"] {
        engine.admin().set_retention(name, Some(&keep)).await.unwrap();
    }
    let of = "kind = 'retention' AND name LIKE '%/b'";
    h.sql(&format!("UPDATE settings SET value_encoding = 'unheard-of' WHERE {of}")).await;
    let names = engine.admin().retentions().await.unwrap();
    let names: Vec<String> = names.iter().map(|(name, _)| name.to_string()).collect();
    assert_eq!(names, ["a", "c", "d"]);
    let query = Query::Settings { kind: "retention".into(), after: None, limit: 2 };
    let page = store.list(query).await.unwrap().settings().unwrap();
    assert_eq!(page.len(), 2, "the page is full: {page:?}");
    assert_eq!(store.unreadable_rows(), 4);
    h.sql(&format!("DELETE FROM settings WHERE {of}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_pass_over_unreadable_rows_on_sqlite() {
    run(Kind::Sqlite, unreadable_rows_do_not_hide_the_others).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_pass_over_unreadable_rows_on_postgres() {
    run(Kind::Postgres, unreadable_rows_do_not_hide_the_others).await;
}

// An unreadable template does not stop starts of other workflows that only other processes serve.
async fn one_unreadable_template_stops_no_other_start(h: Arc<Harness>) {
    let shared = |options| Options { shared: true, ..options };
    let server = h.engine_with(shared).await;
    for name in ["one", "two"] {
        server.workflow(name, async |_: Ctx, n: u32| ok(n)).unwrap();
    }
    let run = server.remote_workflow::<u32, u32>("one").unwrap().start(1).await.unwrap();
    run.result().await.unwrap();
    until("the templates are stored", || async {
        h.number("SELECT count(*) FROM settings WHERE kind = 'workflow'").await >= 2
    })
    .await;
    h.stop(&server).await;
    let bad = "kind = 'workflow' AND name = 'one'";
    h.sql(&format!("UPDATE settings SET value_encoding = 'unheard-of' WHERE {bad}")).await;
    let client = h.engine_with(shared).await;
    let remote = client.remote_workflow::<u32, u32>("two").unwrap();
    remote.start(2).id("of-two").await.unwrap();
    h.sql(&format!("DELETE FROM settings WHERE {bad}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_pass_over_an_unreadable_template_on_sqlite() {
    run(Kind::Sqlite, one_unreadable_template_stops_no_other_start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_pass_over_an_unreadable_template_on_postgres() {
    run(Kind::Postgres, one_unreadable_template_stops_no_other_start).await;
}

async fn panics(ctx: Ctx, long: bool) -> Result<u32> {
    ctx.step("first", async || ok(())).await?;
    assert!(!long, "secret {}", "x".repeat(40 * 1024));
    Ok(7)
}

async fn a_long_panic_text_blocks_the_run_and_gives_the_turn_back(h: Arc<Harness>) {
    let engine = h.engine_with(|o| Options { blocked_retry: Duration::from_secs(600), ..o }).await;
    let flow = engine.workflow("panics", panics).unwrap();
    let run = flow.start(true).await.unwrap();
    until("it is blocked", || async {
        event_types(&run).await.iter().any(|name| name == "workflow.blocked")
    })
    .await;
    until("nothing is held", || async { engine.core().load().0 == 0 }).await;
    let query = Query::Events { run_key: run.run_key(), from: 0, limit: 100 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    for event in &events {
        let text = event.payload_json().unwrap().to_string();
        assert!(!text.contains("secret"), "the ledger keeps no content of errors: {text}");
    }
    let why = engine.core().why(run.run_key()).await.unwrap();
    assert!(why.reasons[0].text.contains("secret"), "people see the text: {why:?}");
    run.pause().await.unwrap();
    until("it is paused", || async { run.status().await.unwrap().status == RunStatus::Paused })
        .await;
    run.terminate().await.unwrap();
}

async fn actors_with_large_metadata_are_refused(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("waits", async |ctx: Ctx, (): ()| ok(ctx.event::<u32>("wait", "go").await?))
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let mut actor = Actor::new("user", "u1");
    actor.metadata.insert("note".into(), "x".repeat(40 * 1024).into());
    let row = engine.admin().store().load(vec![run.run_key()]).await.unwrap().remove(0).run;
    let refused = engine.core().pause(&row, Some(actor.clone())).await.unwrap_err();
    assert_eq!(refused.code(), "INVALID_SIZE");
    assert!(refused.message().contains("actor"), "{refused}");
    let refused = engine.core().cancel(run.run_key(), None, Some(actor)).await.unwrap_err();
    assert_eq!(refused.code(), "INVALID_SIZE");
    run.send_event("go", &5).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 5);
}

const SECOND: Duration = Duration::from_secs(1);

// Refuses the trees of one workflow.
struct Picky(String);

impl windlass::admin::Archive for Picky {
    fn take<'a>(
        &'a self,
        store: &'a Arc<dyn windlass::Store>,
        root: windlass::RunKey,
    ) -> windlass::kernel::BoxFuture<'a, Result<(), windlass::Error>> {
        Box::pin(async move {
            let loaded = store.load(vec![root]).await?;
            if loaded.iter().any(|loaded| loaded.run.id.as_str() == self.0) {
                return Err(windlass::Error::corrupt("the archive refuses this tree"));
            }
            Ok(())
        })
    }
}

async fn one_bad_archive_does_not_stop_the_other_policies(h: Arc<Harness>) {
    let archive = Arc::new(Picky("bad".into()));
    let engine = h
        .engine_with(|o| Options { archive: Some(archive), create_resend_max: SECOND / 4, ..o })
        .await;
    let keep = Retention::keep_for(SECOND).unwrap().archive();
    for name in ["a", "b"] {
        let flow = engine.workflow(name, async |_: Ctx, n: u32| ok(n)).unwrap();
        for id in ["bad", "good"] {
            let id = if name == "a" { id.to_owned() } else { format!("{name}-{id}") };
            flow.start(1).id(id).await.unwrap().result().await.unwrap();
        }
        engine.admin().set_retention(name, Some(&keep)).await.unwrap();
    }
    if h.kind != Kind::Memory {
        // A policy that cannot be read comes first, and stops neither the others nor the next start.
        let value = match h.kind {
            Kind::Postgres => "'nonsense'::bytea",
            _ => "CAST('nonsense' AS BLOB)",
        };
        let sql = "UPDATE settings SET value = VALUE WHERE name LIKE '%/broken'";
        engine.workflow("broken", async |_: Ctx, n: u32| ok(n)).unwrap();
        engine.admin().set_retention("broken", Some(&keep)).await.unwrap();
        h.sql(&sql.replace("VALUE", value)).await;
    }
    let trees = std::sync::atomic::AtomicU64::new(0);
    until("all but the bad tree are deleted", || async {
        let swept = engine.admin().sweep().await.map_or(0, |swept| swept.trees);
        trees.fetch_add(swept, std::sync::atomic::Ordering::Relaxed) + swept == 3
    })
    .await;
    if h.kind != Kind::Memory {
        h.stop(&engine).await;
        let again = h.engine().await;
        h.sql("DELETE FROM settings WHERE name LIKE '%/broken'").await;
        h.stop(&again).await;
    }
}

async fn a_workflow_with_a_slash_in_its_name_is_archived(h: Arc<Harness>) {
    let folder = tempfile::tempdir().unwrap();
    let archive = FileArchive::new(folder.path()).unwrap();
    let engine = h
        .engine_with(|o| Options { archive: Some(archive), create_resend_max: SECOND / 4, ..o })
        .await;
    let keep = Retention::keep_for(SECOND).unwrap().archive();
    let flow = engine.workflow("a/b", async |_: Ctx, n: u32| ok(n)).unwrap();
    flow.start(1).id("one").await.unwrap().result().await.unwrap();
    engine.admin().set_retention("a/b", Some(&keep)).await.unwrap();
    until("the run is archived and deleted", || async {
        engine.admin().sweep().await.is_ok_and(|swept| swept.trees == 1)
    })
    .await;
    let other = engine.workflow("other", async |_: Ctx, n: u32| ok(n)).unwrap();
    other.start(1).await.unwrap().result().await.unwrap();
}
