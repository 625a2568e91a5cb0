//! Records that change in the commit of a workflow: of a start, a step, an outcome of a relay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use windlass::kernel::verify::verify_store;
use windlass::kernel::{
    Body, Commit, Draft, EventId, NewRun, OnExisting, Op, Query, RunId, RunKey, Stamp,
};
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
use windlass::{Ctx, Engine, ErrorCode, Expect, Limits, RecordChange, Result, RunStatus, StepTx};

use crate::harness::{Harness, on_every_store};

on_every_store!(
    a_start_and_its_record_are_one_commit,
    a_start_that_is_repeated_does_not_write_again,
    a_step_that_loses_reads_again_and_wins,
    a_step_gives_up_after_its_retries,
    a_step_changes_many_records_or_none,
    a_relay_writes_a_record_with_its_outcome,
    bad_changes_are_refused_before_anything_is_written,
    the_records_of_a_commit_have_a_limit,
    kept_versions_are_sealed_by_their_run,
    a_changed_or_missing_version_is_found,
);

async fn echo(_: Ctx, text: String) -> Result<String> {
    Ok(text)
}

async fn a_start_and_its_record_are_one_commit(h: Arc<Harness>) {
    let engine = h.engine().await;
    let orders = engine.workflow("order", echo).unwrap();
    let carts = engine.records::<Vec<String>>("carts");
    let cart = vec!["tea".to_owned()];
    carts.put("c-7", &cart).expect_absent().send().await.unwrap();
    // Two writers have read revision 1. The first turns the cart into an order.
    let run = orders.start("tea".into()).id("o-1").put_record("carts", "c-7", &(), 1).await;
    run.unwrap().result().await.unwrap();
    let lost = orders.start("tea".into()).id("o-2").put_record("carts", "c-7", &cart, 1).await;
    let lost = lost.unwrap_err();
    assert_eq!(lost.code(), ErrorCode::RecordConflict);
    assert!(lost.message().contains("to have revision 1, but it has revision 2"), "{lost}");
    assert_eq!(orders.get("o-2").await.unwrap_err().code(), ErrorCode::RunNotFound);
    // The ledger of the run reports the write.
    let run = orders.get("o-1").await.unwrap();
    let query = Query::Events { run_key: run.run_key(), from: 0, limit: 10 };
    let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
    let written = events.iter().find(|event| event.event_type.as_str() == "record.written");
    let payload = String::from_utf8(written.expect("an event").payload.to_vec()).unwrap();
    for part in [r#""collection":"carts""#, r#""id":"c-7""#, r#""revision":2"#] {
        assert!(payload.contains(part), "{payload}");
    }
}

async fn a_start_that_is_repeated_does_not_write_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    let orders = engine.workflow("order", echo).unwrap();
    let start = || {
        let start = orders.start("tea".into()).id("o-1");
        start.put_record("orders", "o-1", "open", Expect::Absent)
    };
    let first = start().await.unwrap();
    let second = start().await.unwrap();
    assert_eq!(first.run_key(), second.run_key());
    first.result().await.unwrap();
    let record = engine.records::<String>("orders").get("o-1").await.unwrap().unwrap();
    assert_eq!((record.revision, &*record.value), (1, "open"));
}

// Counts up in a record. Another writer is first in as many attempts as it is told.
async fn counting(engine: &Engine, losses: u32) -> Arc<AtomicU32> {
    let attempts = Arc::new(AtomicU32::new(0));
    let (counter, tried) = (engine.clone(), Arc::clone(&attempts));
    let count = move |ctx: Ctx, retries: u32| {
        let (engine, tried) = (counter.clone(), Arc::clone(&tried));
        async move {
            let add = async |tx: StepTx| {
                let counters = engine.records::<u32>("counters");
                let found = counters.get("n").await?.expect("a counter");
                if tried.fetch_add(1, Ordering::SeqCst) < losses {
                    counters.put("n", &(found.value + 100)).send().await?;
                }
                tx.put_record("counters", "n", &(found.value + 1), found.revision)?;
                Ok(found.value + 1)
            };
            // The delay is that of other errors.
            Ok(ctx.step_tx("add", add).retries(retries).delay("1 hour").await?)
        }
    };
    engine.workflow::<u32, u32, _, _, _, _>("count", count).unwrap();
    engine.records::<u32>("counters").put("n", &0).send().await.unwrap();
    attempts
}

async fn a_step_that_loses_reads_again_and_wins(h: Arc<Harness>) {
    let engine = h.engine().await;
    let attempts = counting(&engine, 3).await;
    let counts = engine.remote_workflow::<u32, u32>("count").unwrap();
    let run = counts.start(5).id("a").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 301);
    assert_eq!(attempts.load(Ordering::SeqCst), 4);
    let found = engine.records::<u32>("counters").get("n").await.unwrap().unwrap();
    assert_eq!((found.value, found.revision), (301, 5));
}

async fn a_step_gives_up_after_its_retries(h: Arc<Harness>) {
    let engine = h.engine().await;
    let attempts = counting(&engine, 10).await;
    let counts = engine.remote_workflow::<u32, u32>("count").unwrap();
    let run = counts.start(1).id("a").await.unwrap();
    let error = run.result().await.unwrap_err().to_string();
    assert!(error.contains("RecordConflict") && error.contains("revision"), "{error}");
    assert_eq!(run.status().await.unwrap().status, RunStatus::Errored);
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    let found = engine.records::<u32>("counters").get("n").await.unwrap().unwrap();
    assert_eq!(found.value, 200, "nothing of the step is written");
}

async fn a_step_changes_many_records_or_none(h: Arc<Harness>) {
    let engine = h.engine().await;
    let notes = engine.records::<u32>("notes");
    for (id, value) in [("checked", 1), ("removed", 2), ("other", 3)] {
        notes.put(id, &value).term("kind", "note").send().await.unwrap();
    }
    let change = async |ctx: Ctx, revision: u64| -> Result<()> {
        let change = async |tx: StepTx| {
            tx.record(RecordChange::check("notes", "checked", revision)?)?;
            tx.record(RecordChange::remove("notes", "removed", 1)?)?;
            tx.record(
                RecordChange::put("notes", "new", &4, Expect::Absent)?.term("kind", "note")?,
            )?;
            Ok(())
        };
        Ok(ctx.step_tx("change", change).retries(0).await?)
    };
    let changes = engine.workflow("change", change).unwrap();
    let lost = changes.start(2).id("a").await.unwrap().result().await.unwrap_err();
    assert!(lost.to_string().contains("notes/checked"), "{lost}");
    let ids = async || {
        let page = notes.find("kind", "note").page(10).await.unwrap();
        page.iter().map(|note| note.id.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids().await, ["checked", "other", "removed"]);
    changes.start(1).id("b").await.unwrap().result().await.unwrap();
    assert_eq!(ids().await, ["checked", "new", "other"]);
}

struct Report {
    engine: Engine,
    attempts: Arc<AtomicU32>,
}

impl StepRunner for Report {
    async fn run_step(&self, step: &RelayStep) -> std::result::Result<StepOutcome, RelayError> {
        let reports = self.engine.records::<String>("reports");
        let found = reports.get("r").await?.expect("a report");
        if self.attempts.fetch_add(1, Ordering::SeqCst) == 0 {
            reports.put("r", &"edited".to_owned()).send().await?;
        }
        let text = format!("{}, sent", found.value);
        step.effects.put_record("reports", "r", &text, found.revision)?;
        Ok(StepOutcome::done("sent"))
    }
}

async fn a_relay_writes_a_record_with_its_outcome(h: Arc<Harness>) {
    let engine = h.engine().await;
    let reports = engine.records::<String>("reports");
    reports.put("r", &"draft".to_owned()).send().await.unwrap();
    let attempts = Arc::new(AtomicU32::new(0));
    let runner = Report { engine: engine.clone(), attempts: Arc::clone(&attempts) };
    let relay = engine.relay("report", runner, NoopTerminalHook).build().unwrap();
    let run = relay.start("go".into()).id("a").await.unwrap();
    run.result().await.unwrap();
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    assert_eq!(reports.get("r").await.unwrap().unwrap().value, "edited, sent");
}

async fn steal(ctx: Ctx, _: String) -> Result<String> {
    let write = async |tx: StepTx| {
        let change = RecordChange::put_own("windlass.keys", "k", "v", Expect::Absent)?;
        Ok(tx.record(change).unwrap_err().code().to_string())
    };
    Ok(ctx.step_tx("steal", write).await?)
}

async fn bad_changes_are_refused_before_anything_is_written(h: Arc<Harness>) {
    let engine = h.engine().await;
    let orders = engine.workflow("order", echo).unwrap();
    let start = || orders.start("a".into()).id("bad");
    let large = "x".repeat((1 << 20) + 1);
    let cases = [
        (start().put_record("windlass.keys", "k", "v", Expect::Absent), "COLLECTION_RESERVED"),
        (start().put_record("no spaces", "k", "v", Expect::Absent), "INVALID_NAME"),
        (start().put_record("carts", "", "v", Expect::Absent), "INVALID_NAME"),
        (start().put_record("carts", "k", "v", 0), "INVALID_REVISION"),
        (start().put_record("carts", "k", "v", Expect::Present), "INVALID_REVISION"),
        (start().put_record("carts", "k", &large, Expect::Absent), "INVALID_SIZE"),
    ];
    for (start, code) in cases {
        let error = start.await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    // Also a change that was made for the engine.
    let own = || RecordChange::put_own("windlass.keys", "k", "v", Expect::Absent).unwrap();
    let error = start().record(own()).await.unwrap_err();
    assert_eq!(error.code(), "COLLECTION_RESERVED", "{error}");
    let thief = engine.workflow("thief", steal).unwrap();
    let run = thief.start("a".into()).id("thief").await.unwrap();
    assert_eq!(run.result().await.unwrap(), "COLLECTION_RESERVED");
    let mut many = start();
    for n in 0..65 {
        many = many.put_record("carts", format!("c-{n}"), "v", Expect::Absent);
    }
    let error = many.await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidSize, "{error}");
    assert!(error.message().contains("65 records; at most 64"), "{error}");
    assert_eq!(orders.get("bad").await.unwrap_err().code(), ErrorCode::RunNotFound);
    assert!(engine.records::<String>("carts").all().page(10).await.unwrap().is_empty());
    orders.start("a".into()).id("good").await.unwrap().result().await.unwrap();
}

async fn kept_versions_are_sealed_by_their_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let orders = engine.workflow("order", echo).unwrap();
    let keep = RecordChange::put("orders", "o", "open", Expect::Absent).unwrap().keep();
    let run = orders.start("a".into()).id("a").record(keep).await.unwrap();
    run.result().await.unwrap();
    let records = engine.records::<String>("orders");
    let versions = records.versions("o", None, 10).await.unwrap();
    assert_eq!(versions.len(), 1);
    assert!(versions[0].caused_by.is_some(), "the event that reports the write");
    let report = verify_store(&**engine.admin().store(), &[]).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
}

// Commits whose event seals another version than the one that they write, or one that they do not write.
async fn a_changed_or_missing_version_is_found(h: Arc<Harness>) {
    let engine = Engine::open("memory:").await.unwrap();
    let orders = engine.workflow("order", echo).unwrap();
    let store = Arc::clone(engine.admin().store());
    let body = Body::of("open").unwrap();
    for (n, damage) in ["none", "changed", "missing"].into_iter().enumerate() {
        let run = orders.start("a".into()).id(damage).await.unwrap();
        run.result().await.unwrap();
        let found = store.load(vec![run.run_key()]).await.unwrap().remove(0).run;
        let stamp = |n: usize| {
            let event_id = EventId(windlass::Uuid::from_u128(n as u128 + 1));
            Stamp { event_id, at: found.updated_at }
        };
        // A new run with the rows of the old one, so that its namespace and model are valid.
        let new = NewRun {
            run_key: RunKey(windlass::Uuid::from_u128(n as u128 + 1)),
            namespace: found.namespace.clone(),
            workflow: found.workflow.clone(),
            model: found.model.clone(),
            id: RunId::new(format!("{damage}-again")).unwrap(),
            generation: 0,
            input: body.clone(),
            parent: None,
            fork: None,
            labels: Default::default(),
            trace: None,
            headers: None,
            on_end: None,
            deadline_at: None,
            turn: windlass::kernel::Turn::ready(),
            caused_by: None,
        };
        let mut draft = Draft::create(new, OnExisting::Refuse, stamp(10 * n)).unwrap();
        let keep = RecordChange::put("orders", damage, "open", Expect::Absent).unwrap().keep();
        let kept = stamp(10 * n + 1);
        draft.record(keep.op(&found.namespace, kept), kept).unwrap();
        let commit = draft.finish();
        let other = RecordChange::put("orders", damage, "forged", Expect::Absent).unwrap().keep();
        let ops = commit.ops.iter().cloned().filter_map(|op| match (&op, damage) {
            (Op::Record(_), "missing") => None,
            (Op::Record(_), "changed") => {
                Some(Op::Record(Box::new(other.op(&found.namespace, kept))))
            }
            _ => Some(op),
        });
        let damaged = Commit::new(commit.run.clone(), None, ops.collect());
        store.commit(vec![damaged]).await.remove(0).unwrap();
    }
    let report = verify_store(&*store, &[]).await.unwrap();
    let flaws: Vec<_> = report.flaws.iter().map(|flaw| flaw.what.as_str()).collect();
    assert_eq!(
        flaws,
        [
            "version 1 of record orders/changed is not the one that was written",
            "version 1 of record orders/missing is missing"
        ]
    );
    // The store of the harness is verified at its end.
    drop(h.engine().await.workflow("order", echo).unwrap().start("a".into()).await.unwrap());
}

async fn the_records_of_a_commit_have_a_limit(h: Arc<Harness>) {
    let limits = Limits { records_bytes_per_commit_max: 1_000, ..Limits::DEFAULT };
    let engine = h.engine_with_limits(limits).await;
    let orders = engine.workflow("order", echo).unwrap();
    let text = "x".repeat(600);
    let two = orders.start("a".into()).id("a");
    let two = two.put_record("carts", "a", &text, Expect::Absent);
    let error = two.put_record("carts", "b", &text, Expect::Absent).await.unwrap_err();
    assert_eq!(error.code(), "INVALID_SIZE", "{error}");
    assert_eq!(orders.get("a").await.err().unwrap().code(), "RUN_NOT_FOUND");
    let both = async |ctx: Ctx, (): ()| -> Result<()> {
        let write = async |tx: StepTx| {
            tx.put_record("carts", "a", "small", Expect::Absent)?;
            let large = tx.put_record("carts", "b", &"x".repeat(1_000), Expect::Absent);
            assert_eq!(large.unwrap_err().code(), "INVALID_SIZE");
            Ok(())
        };
        Ok(ctx.step_tx("write", write).await?)
    };
    let flow = engine.workflow("both", both).unwrap();
    flow.start(()).await.unwrap().result().await.unwrap();
    let carts = engine.records::<String>("carts");
    assert_eq!(carts.get("a").await.unwrap().unwrap().value, "small");
    assert!(carts.get("b").await.unwrap().is_none());
}
