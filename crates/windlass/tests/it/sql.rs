//! Records and the user's own SQL: what is durable when, and what is written together.

use std::sync::Arc;

use windlass::kernel::StepStatus;
use windlass::{AnyError, Ctx, RunHandle, SqlValue, StepTx};

use crate::harness::{Counts, Harness, Kind, ok, on_every_store, until_asked, until_waiting};

on_every_store!(
    a_record_is_durable_before_the_next_body_starts,
    a_step_is_one_commit,
    statements_run_with_the_record_and_once,
    a_unique_violation_is_final,
    a_failed_attempt_leaves_nothing,
    too_many_statements_fail_the_step,
    a_deferred_constraint_fails_the_step_that_broke_it,
);

async fn a_record_is_durable_before_the_next_body_starts(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (store, look) = (engine.admin().store().clone(), h.clone());
    let flow = engine
        .workflow("order", move |ctx: Ctx, (): ()| {
            let (store, h) = (store.clone(), look.clone());
            async move {
                let run_key = ctx.run().run_key;
                for n in 0..5_usize {
                    let body = || {
                        let (store, h) = (store.clone(), h.clone());
                        async move {
                            let loaded = store.load(vec![run_key]).await?.remove(0);
                            let done =
                                |s: &&windlass::kernel::Step| s.status == StepStatus::Completed;
                            let found = loaded.steps.iter().filter(done).count();
                            assert_eq!(found, n, "what came before is in the store");
                            if h.kind != Kind::Memory {
                                let sql = "SELECT count(*) FROM steps WHERE status = 'completed'";
                                assert_eq!(h.number(sql).await, n as i64);
                            }
                            ok(n)
                        }
                    };
                    ctx.step(format!("s{n}"), body).retries(0).await?;
                }
                ok(())
            }
        })
        .unwrap();
    flow.start(()).await.unwrap().result().await.unwrap();
}

async fn a_step_is_one_commit(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("ten", |ctx: Ctx, (): ()| async move {
            for n in 0..10 {
                ctx.step(format!("s{n}"), async || ok(n)).await?;
            }
            ok(())
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    run.result().await.unwrap();
    // A commit a step; the end of the run is in the commit of the last one.
    assert_eq!(engine.admin().metrics().commits.get(), 10);
    assert_eq!(run.events().await.unwrap().len(), 12);
}

// The statement of a dialect, from one with `$1`.
fn dialect(h: &Harness, sql: &str) -> String {
    match h.kind {
        Kind::Sqlite => sql.replace('$', "?"),
        _ => sql.to_owned(),
    }
}

const TABLE: &str = "CREATE TABLE accounts (name TEXT PRIMARY KEY, amount BIGINT NOT NULL)";
const INSERT: &str = "INSERT INTO accounts VALUES ($1, $2)";
const COUNT: &str = "SELECT count(*) FROM accounts";

fn account(tx: &StepTx, insert: &str, name: &str, amount: i64) {
    tx.execute(insert, [SqlValue::Text(name.into()), SqlValue::Int(amount)]);
}

async fn statements_run_with_the_record_and_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let (inner, insert) = (counts.clone(), dialect(&h, INSERT));
    let flow = engine
        .workflow("sql", move |ctx: Ctx, (): ()| {
            let (counts, insert) = (inner.clone(), insert.clone());
            async move {
                let body = |tx: StepTx| {
                    let (counts, insert) = (counts.clone(), insert.clone());
                    async move {
                        account(&tx, &insert, "ann", 1);
                        account(&tx, &insert, "bob", 2);
                        ok(counts.hit("body"))
                    }
                };
                let number = ctx.step_tx("open", body).retries(0).await?;
                ctx.event::<()>("go", "go").await?;
                ok(number)
            }
        })
        .unwrap();
    if h.kind == Kind::Memory {
        // There is no SQL in memory, and the error says so.
        let run = flow.start(()).await.unwrap();
        let error = run.result().await.unwrap_err();
        assert!(error.to_string().contains("memory store cannot run SQL"), "{error}");
        return;
    }
    h.sql(TABLE).await;
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "go").await;
    until_waiting(&engine, &run).await;
    assert_eq!(h.number(COUNT).await, 2);
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    assert_eq!((h.number(COUNT).await, counts.get("body")), (2, 1));
    let types = crate::harness::event_types(&run).await;
    assert_eq!(types.iter().filter(|t| *t == "step.completed").count(), 1);
}

async fn in_sql<O>(h: &Harness, run: &RunHandle<O>) -> i64 {
    let _ = run.status().await.unwrap();
    h.number(COUNT).await
}

async fn a_unique_violation_is_final(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let (inner, insert) = (counts.clone(), dialect(&h, INSERT));
    let flow = engine
        .workflow("unique", move |ctx: Ctx, (): ()| {
            let (counts, insert) = (inner.clone(), insert.clone());
            async move {
                let body = |tx: StepTx| {
                    let (counts, insert) = (counts.clone(), insert.clone());
                    async move {
                        counts.hit("body");
                        account(&tx, &insert, "new", 1);
                        account(&tx, &insert, "taken", 1);
                        ok(())
                    }
                };
                let step =
                    ctx.step_tx("open", body).retries(if counts.get("x") > 0 { 0 } else { 3 });
                let failed = step.delay("5 ms").await.unwrap_err();
                // Steps beside and after it go on.
                ctx.step("after", async || ok(())).await?;
                ok((failed.name, failed.attempts))
            }
        })
        .unwrap();
    if h.kind == Kind::Memory {
        let run = flow.start(()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), ("SqlError".to_owned(), 4));
        return;
    }
    h.sql(TABLE).await;
    h.sql("INSERT INTO accounts VALUES ('taken', 0)").await;
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("UniqueViolation".to_owned(), 1));
    assert_eq!((in_sql(&h, &run).await, counts.get("body")), (1, 1));
}

async fn a_failed_attempt_leaves_nothing(h: Arc<Harness>) {
    let engine = h.engine().await;
    let insert = dialect(&h, INSERT);
    let flow = engine
        .workflow("attempts", move |ctx: Ctx, (): ()| {
            let insert = insert.clone();
            async move {
                let mut attempt = 0;
                let body = |tx: StepTx| {
                    attempt += 1;
                    let (attempt, insert) = (attempt, insert.clone());
                    async move {
                        account(&tx, &insert, &format!("attempt {attempt}"), attempt);
                        match attempt {
                            1 => Err(AnyError::msg("not yet")),
                            2 => {
                                tx.execute("INSERT INTO nowhere VALUES (1)", []);
                                ok(attempt)
                            }
                            _ => ok(attempt),
                        }
                    }
                };
                let beside = ctx.step("beside", async || ok(()));
                let step = ctx.step_tx("open", body).retries(2).delay("5 ms");
                let (done, beside) = tokio::join!(step, beside);
                beside?;
                ok(done?)
            }
        })
        .unwrap();
    if h.kind == Kind::Memory {
        flow.start(()).await.unwrap().result().await.unwrap_err();
        return;
    }
    h.sql(TABLE).await;
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 3);
    assert_eq!(h.number(COUNT).await, 1);
    assert_eq!(h.number("SELECT CAST(sum(amount) AS BIGINT) FROM accounts").await, 3);
}

async fn too_many_statements_fail_the_step(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("many", |ctx: Ctx, (): ()| async move {
            let body = |tx: StepTx| async move {
                for _ in 0..1_001 {
                    tx.execute("SELECT 1", []);
                }
                ok(())
            };
            let failed = ctx.step_tx("many", body).await.unwrap_err();
            ok(failed.name)
        })
        .unwrap();
    assert_eq!(flow.start(()).await.unwrap().result().await.unwrap(), "SqlTooLarge");
}

const DEFERRED: &str = "CREATE TABLE owners (name TEXT PRIMARY KEY); \
     CREATE TABLE pets (name TEXT PRIMARY KEY, \
         owner TEXT REFERENCES owners (name) DEFERRABLE INITIALLY DEFERRED)";

// Databases check deferred constraints at COMMIT, after the last statement of the step.
async fn a_deferred_constraint_fails_the_step_that_broke_it(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("deferred", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                let orphan = |tx: StepTx| {
                    counts.hit("orphan");
                    async move {
                        tx.execute("INSERT INTO pets VALUES ('rex', 'nobody')", []);
                        ok(())
                    }
                };
                let failed = ctx.step_tx("orphan", orphan).retries(0).await.unwrap_err();
                // The order of the statements is free as long as the constraint holds at the end.
                let family = |tx: StepTx| {
                    counts.hit("family");
                    async move {
                        tx.execute("INSERT INTO pets VALUES ('rex', 'ann')", []);
                        tx.execute("INSERT INTO owners VALUES ('ann')", []);
                        ok(())
                    }
                };
                ctx.step_tx("family", family).retries(0).await?;
                ok((failed.name, failed.attempts))
            }
        })
        .unwrap();
    if h.kind == Kind::Memory {
        flow.start(()).await.unwrap().result().await.unwrap_err();
        return;
    }
    h.sql(DEFERRED).await;
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("SqlError".to_owned(), 1));
    assert_eq!((counts.get("orphan"), counts.get("family")), (1, 1));
    assert_eq!(h.number("SELECT count(*) FROM pets WHERE owner = 'ann'").await, 1);
    if h.kind == Kind::Postgres {
        a_deferred_unique_violation_is_final(&h, &engine).await;
    }
}

// SQLite has no deferred UNIQUE.
async fn a_deferred_unique_violation_is_final(h: &Harness, engine: &windlass::Engine) {
    h.sql("CREATE TABLE seats (seat INT UNIQUE DEFERRABLE INITIALLY DEFERRED)").await;
    let flow = engine
        .workflow("seats", |ctx: Ctx, (): ()| async move {
            let body = |tx: StepTx| async move {
                tx.execute("INSERT INTO seats VALUES (1), (1)", []);
                ok(())
            };
            let failed = ctx.step_tx("twice", body).retries(3).delay("5 ms").await.unwrap_err();
            ok((failed.name, failed.attempts))
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("UniqueViolation".to_owned(), 1));
}
