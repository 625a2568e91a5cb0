//! The test kit for users: virtual time, and a crash at every commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windlass::{AnyError, Ctx, Result, SqlValue, steps};
use windlass_kernel::RunStatus;
use windlass_testkit::{CrashPoints, TestEngine, every_crash_point};

async fn order(ctx: Ctx, cents: u64) -> Result<u64> {
    let charged = ctx.step("charge", async || Ok(cents)).await?;
    ctx.sleep("cool down", "3 days").await?;
    let tip: u64 = ctx.event("tip", "tipped").timeout("30 days").await?;
    Ok(ctx.step("ship", async || Ok(charged + tip)).await?)
}

#[test]
fn days_go_by_in_no_time() {
    let test = TestEngine::new();
    let order = test.engine().workflow("order", order).unwrap();
    let begun = test.now();
    let run = test.run(order.start(500).id("o-1")).unwrap();
    assert_eq!(test.status(&run).status, RunStatus::Waiting);
    assert_eq!(test.now(), begun);
    test.advance("2 days");
    assert_eq!(test.steps(&run).len(), 2);
    test.evict_all();
    test.advance("1 day");
    assert_eq!(test.steps(&run).len(), 3);
    test.send_event(&run, "tipped", &70);
    assert_eq!(test.run(run.result()).unwrap(), 570);
    let three_days = Duration::from_secs(3 * 24 * 60 * 60);
    assert!(test.now().since(begun.plus(three_days)) < Duration::from_millis(10));
    let types: Vec<String> =
        test.ledger(&run).iter().map(|event| event.event_type.as_str().to_owned()).collect();
    assert_eq!(types.first().unwrap(), "workflow.enqueued");
    assert_eq!(types.last().unwrap(), "workflow.completed");
    test.verify();
}

#[test]
fn a_seed_gives_the_same_ledger() {
    let ledger = |seed| {
        let test = TestEngine::seeded(seed);
        let order = test.engine().workflow("order", order).unwrap();
        let run = test.run(order.start(500).id("o-1")).unwrap();
        test.send_event(&run, "tipped", &1);
        assert_eq!(test.run_to_end(run.result()).unwrap(), 501);
        test.ledger(&run)
    };
    assert_eq!(ledger(1), ledger(1));
    assert_ne!(ledger(1), ledger(2));
}

#[test]
fn the_store_has_the_limits_of_the_options() {
    let folder = tempfile::tempdir().unwrap();
    let options = || {
        let mut options = windlass::admin::Options::default();
        options.limits.step_bytes_max *= 2;
        options
    };
    let size = options().limits.step_bytes_max - 100;
    for test in [
        TestEngine::with_options(3, options()),
        TestEngine::on_sqlite_with(folder.path().join("test.db"), 3, options()),
    ] {
        let large = async |ctx: Ctx, size: usize| {
            Ok(ctx.step("large", async || Ok("x".repeat(size))).await?.len())
        };
        let large = test.engine().workflow("large", large).unwrap();
        let run = test.run(large.start(size)).unwrap();
        assert_eq!(test.run(run.result()).unwrap(), size);
        test.verify();
    }
}

#[test]
fn a_seed_counts_on_sqlite_too() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = |file: &str, seed| {
        let path = folder.path().join(file);
        let test = TestEngine::on_sqlite_with(path, seed, windlass::admin::Options::default());
        let order = test.engine().workflow("order", order).unwrap();
        let run = test.run(order.start(500).id("o-1")).unwrap();
        test.ledger(&run)
    };
    assert_eq!(ledger("a.db", 1), ledger("b.db", 1));
    assert_ne!(ledger("c.db", 1), ledger("d.db", 2));
}

#[test]
fn retries_follow_their_backoff() {
    let test = TestEngine::new();
    let tried = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&tried);
    let flaky = move |ctx: Ctx, (): ()| {
        let count = Arc::clone(&count);
        async move {
            let body = || {
                let number = count.fetch_add(1, Ordering::Relaxed);
                std::future::ready(if number < 2 {
                    Err(AnyError::msg("not yet"))
                } else {
                    Ok(number)
                })
            };
            Ok(ctx.step("flaky", body).delay("10 seconds").await?)
        }
    };
    let flaky = test.engine().workflow("flaky", flaky).unwrap();
    let run = test.run(flaky.start(())).unwrap();
    assert_eq!(tried.load(Ordering::Relaxed), 1);
    assert!(test.tick());
    assert_eq!(tried.load(Ordering::Relaxed), 2);
    assert_eq!(test.run_to_end(run.result()).unwrap(), 2);
    assert!(!test.tick(), "an engine with nothing to do sets no timer");
}

#[test]
fn timers_go_on_while_a_run_is_paused() {
    let test = TestEngine::new();
    let sleeps = async |ctx: Ctx, (): ()| -> Result<()> {
        ctx.sleep("s", "2 hours").await?;
        Ok(())
    };
    let sleeps = test.engine().workflow("sleeps", sleeps).unwrap();
    for (paused_for, minutes) in [("3 hours", 180), ("90 minutes", 120)] {
        let begun = test.now();
        let run = test.run(sleeps.start(())).unwrap();
        test.run(run.pause()).unwrap();
        test.advance(paused_for);
        assert_eq!(test.status(&run).status, RunStatus::Paused);
        test.run(run.resume()).unwrap();
        test.run_to_end(run.result()).unwrap();
        // The sleep ends when it would have ended without the pause, or at once if that is past.
        let (took, expect) = (test.now().since(begun), Duration::from_secs(minutes * 60));
        let late = took.checked_sub(expect);
        let in_time = late.is_some_and(|late| late < Duration::from_secs(1));
        assert!(in_time, "{took:?} with a pause of {paused_for}");
    }
}

#[test]
fn a_race_ends_when_the_first_wait_ends() {
    let test = TestEngine::new();
    let races = async |ctx: Ctx, (): ()| -> Result<String> {
        let long = std::pin::pin!(ctx.sleep("long", "30 days"));
        let short = std::pin::pin!(ctx.sleep("short", "1 day"));
        match futures::future::select(long, short).await {
            futures::future::Either::Left(_) => Ok("long".to_owned()),
            futures::future::Either::Right(_) => Ok("short".to_owned()),
        }
    };
    let races = test.engine().workflow("races", races).unwrap();
    let begun = test.now();
    let run = test.run(races.start(())).unwrap();
    test.advance("12 hours");
    test.evict_all();
    assert_eq!(test.run_to_end(run.result()).unwrap(), "short");
    let took = test.now().since(begun);
    let day = Duration::from_secs(24 * 60 * 60);
    assert!(took >= day && took < day + Duration::from_secs(1), "{took:?}");
    test.verify();
}

#[test]
#[should_panic(expected = "no timer is set")]
fn waiting_for_nothing_is_reported() {
    let test = TestEngine::new();
    test.run_to_end(std::future::pending::<()>());
}

#[test]
fn crashes_make_no_difference() {
    let report = every_crash_point(
        |engine, probe| {
            let probe = probe.clone();
            let work = move |ctx: Ctx, n: u64| {
                let probe = probe.clone();
                async move {
                    let step = |key: &'static str, value: u64| {
                        let probe = probe.clone();
                        ctx.step(key, move || {
                            probe.ran(key);
                            std::future::ready(Ok(value))
                        })
                    };
                    let first = step("first", n).await?;
                    ctx.sleep("nap", "1 hour").await?;
                    let (left, right) = futures::join!(step("left", 2), step("right", 3));
                    let last = step("last", first + left? + right?).await?;
                    Ok(last)
                }
            };
            steps::register(engine, "work", work).unwrap()
        },
        10,
    );
    assert_eq!(report.output, 15);
    assert_eq!(report.crashes, 2 * report.commits);
    assert!(report.commits >= 3, "{report:?}");
    assert!(report.bodies_again > 0, "{report:?}");
}

#[test]
fn crashes_with_events_retries_children_and_activities() {
    let report = CrashPoints::new(
        |engine, probe| {
            let double = |_: Ctx, n: u64| async move { Ok(n * 2) };
            steps::register(engine, "double", double).unwrap();
            steps::serve_activity(engine, "default", "negate", |_, n: i64| {
                std::future::ready(Ok(-n))
            })
            .unwrap();
            let probe = probe.clone();
            let work = move |ctx: Ctx, n: u64| {
                let probe = probe.clone();
                async move {
                    let told: u64 = ctx.event("told", "go").await?;
                    let flaky = ctx.step_with("flaky", |attempt| {
                        probe.ran(format!("flaky {}", attempt.number));
                        let fails = attempt.number < 3;
                        std::future::ready(if fails {
                            Err(AnyError::msg("not yet"))
                        } else {
                            Ok(told)
                        })
                    });
                    let child = ctx.child_named::<u64, u64>("child", "double", &n);
                    let (flaky, child) = futures::join!(flaky, child);
                    let negative: i64 = ctx.activity("negate", "negate", &5).await?;
                    Ok((flaky? + child?, negative))
                }
            };
            steps::register(engine, "work", work).unwrap()
        },
        10_u64,
    )
    .event("go", &7)
    .seed(3)
    .run();
    assert_eq!(report.output, serde_json::json!([27, -5]));
}

#[test]
#[should_panic(expected = "crash at commit k = 1 of")]
fn a_difference_names_its_commit() {
    let lives = AtomicU32::new(0);
    every_crash_point(
        |engine, _| {
            // Code that is not the same after a restart.
            let life = lives.fetch_add(1, Ordering::Relaxed);
            steps::register(engine, "work", move |ctx: Ctx, (): ()| async move {
                Ok(ctx.step("one", async || Ok(life > 1)).await?)
            })
            .unwrap()
        },
        (),
    );
}

#[test]
fn statements_of_a_step_are_in_its_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.db");
    let test = TestEngine::on_sqlite(&path);
    let own = rusqlite::Connection::open(&path).unwrap();
    own.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY, cents INTEGER)").unwrap();
    let rows =
        || own.query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0)).unwrap();
    let order = test.engine().workflow("order", async |ctx, cents: i64| {
        ctx.sleep("cool down", "3 days").await?;
        let body = async |tx: steps::StepTx| {
            tx.execute(
                "INSERT INTO orders VALUES (?1, ?2)",
                [SqlValue::Text("o-1".into()), SqlValue::Int(cents)],
            );
            if cents < 0 { Err(AnyError::msg("no money")) } else { Ok(()) }
        };
        Ok(ctx.step_tx("book", body).retries(1).await?)
    });
    let order = order.unwrap();
    let failed = test.run(order.start(-1)).unwrap();
    assert!(test.run_to_end(failed.result()).is_err());
    assert_eq!(rows(), 0);
    let run = test.run(order.start(500)).unwrap();
    test.advance("2 days");
    assert_eq!((rows(), test.status(&run).status), (0, RunStatus::Waiting));
    test.advance("1 day");
    assert_eq!((rows(), test.status(&run).status), (1, RunStatus::Complete));
    test.verify();
}
