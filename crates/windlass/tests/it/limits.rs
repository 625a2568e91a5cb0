//! Ids, sizes and counts: what is refused, by which code, and that nothing else suffers from it.

use std::sync::Arc;
use std::time::Duration;

use windlass::admin::Options;
use windlass::{Ctx, ErrorCode, Result, RunStatus};

use crate::harness::{Harness, ok, on_every_store, until, until_status};

on_every_store!(
    an_id_names_one_run,
    a_batch_leaves_out_known_ids,
    bad_names_are_refused_at_the_edge,
    results_over_the_limit_fail_the_step,
    steps_over_the_limit_fail_the_run,
    a_key_that_is_live_twice,
    waits_over_the_limit_are_refused,
    a_workflow_that_nobody_serves_waits,
    at_most_so_many_at_once,
    a_full_process_takes_the_rest_when_it_has_room,
    priority_labels_and_delay,
    the_more_urgent_run_goes_first,
);

async fn echo(_: Ctx, text: String) -> Result<String> {
    Ok(text)
}

async fn an_id_names_one_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("echo", echo).unwrap();
    let first = flow.start("a".into()).id("one").await.unwrap();
    assert!(!first.existed());
    assert_eq!(first.result().await.unwrap(), "a");
    let again = flow.start("a".into()).id("one").await.unwrap();
    assert!(again.existed());
    assert_eq!(again.run_key(), first.run_key());
    assert_eq!(again.result().await.unwrap(), "a");
    let other = flow.start("b".into()).id("one").await.err().unwrap();
    assert_eq!(other.code(), "RUN_EXISTS");
    let refused = flow.start("a".into()).id("one").must_not_exist().await.err().unwrap();
    assert_eq!(refused.code(), "RUN_EXISTS");
    // The same id of another workflow is another run.
    let second = engine.workflow("second", echo).unwrap();
    assert!(!second.start("b".into()).id("one").await.unwrap().existed());
    assert_eq!(flow.get("two").await.err().unwrap().code(), "RUN_NOT_FOUND");
    // Started many times at the same moment it is one run.
    let starts = (0..20).map(|_| async { flow.start("r".into()).id("race").await.unwrap() });
    let runs = futures::future::join_all(starts).await;
    assert_eq!(runs.iter().filter(|run| !run.existed()).count(), 1);
    for run in runs {
        assert_eq!(run.result().await.unwrap(), "r");
    }
}

async fn a_batch_leaves_out_known_ids(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("echo", echo).unwrap();
    flow.start("x".into()).id("b").await.unwrap();
    let batch = ["a", "b", "c", "a"].map(|id| (id.to_owned(), "x".to_owned()));
    let runs = flow.start_batch(batch).await.unwrap();
    let mut ids: Vec<_> = runs.iter().map(|run| run.id()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["a", "c"]);
    for run in runs {
        assert_eq!(run.result().await.unwrap(), "x");
    }
}

async fn bad_names_are_refused_at_the_edge(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine.workflow("echo", echo).unwrap();
    let long = "x".repeat(101);
    for id in ["", "-a", "a b", "a:b", "ä", "a\0", &long] {
        let refused = flow.start("x".into()).id(id).await.err();
        assert_eq!(refused.map(|error| error.code()), Some(ErrorCode::InvalidName), "{id:?}");
    }
    assert!(engine.workflow("x".repeat(65), echo).is_err());
    assert_eq!(engine.workflow("echo", echo).err().unwrap().code(), "WORKFLOW_EXISTS");
    let large = flow.start("x".repeat(1024 * 1024)).await.err().unwrap();
    assert_eq!(large.code(), "INVALID_SIZE");
    let labelled = flow.start("x".into()).label("k\0", "v").await.err();
    assert!(labelled.is_some());
    let run = flow.start("fine".into()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "fine");
    let late = run.send_event("late", &()).await.unwrap_err().to_string();
    assert!(late.ends_with("and accepts no more changes [RUN_TERMINAL]"), "{late}");
    let waiting = engine
        .workflow("waits", async |ctx: Ctx, (): ()| ok(ctx.event::<u8>("e", "e").await?))
        .unwrap();
    let run = waiting.start(()).await.unwrap();
    assert_eq!(run.send_event("not a name", &()).await.unwrap_err().code(), "INVALID_NAME");
    let large = run.send_event("e", &"x".repeat(1024 * 1024)).await;
    assert_eq!(large.unwrap_err().code(), "INVALID_SIZE");
    run.send_event("e", &1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
}

async fn results_over_the_limit_fail_the_step(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("large", |ctx: Ctx, bytes: usize| async move {
            let text = ctx.step("make", async || ok("x".repeat(bytes))).await?;
            ok(text.len())
        })
        .unwrap();
    let max = 1024 * 1024 - 2;
    assert_eq!(flow.start(max).await.unwrap().result().await.unwrap(), max);
    let run = flow.start(max + 1).await.unwrap();
    let status = until_status(&run, RunStatus::Errored).await;
    let (name, message) = status.error.unwrap();
    assert_eq!(name, "ResultTooLarge");
    assert!(message.contains("1048576"), "{message}");
    // The output of a run has the same limit.
    let output =
        engine.workflow("output", async |_: Ctx, bytes: usize| ok("x".repeat(bytes))).unwrap();
    assert_eq!(output.start(max).await.unwrap().result().await.unwrap().len(), max);
    let run = output.start(max + 1).await.unwrap();
    let status = until_status(&run, RunStatus::Errored).await;
    assert_eq!(status.error.unwrap().0, "ResultTooLarge");
    // So has the depth of what is nested.
    let deep = engine
        .workflow("deep", |ctx: Ctx, depth: usize| async move {
            let mut value = serde_json::json!(1);
            (0..depth).for_each(|_| value = serde_json::json!([value]));
            let made = ctx.step("make", async || ok(value.clone())).retries(0).await;
            ok(made.map_or_else(|error| error.name, |_| "fine".to_owned()))
        })
        .unwrap();
    for (depth, expect) in [(64, "fine"), (65, "ResultTooDeep")] {
        assert_eq!(deep.start(depth).await.unwrap().result().await.unwrap(), expect);
    }
}

async fn steps_over_the_limit_fail_the_run(h: Arc<Harness>) {
    let fewer = |mut options: Options| {
        options.limits.steps_per_run_max = 5;
        options
    };
    let engine = h.engine_with(fewer).await;
    let flow = engine
        .workflow("many", |ctx: Ctx, steps: u32| async move {
            for n in 0..steps {
                ctx.step(format!("s{n}"), async || ok(n)).await?;
                // Sleeps do not count.
                ctx.sleep(format!("z{n}"), "1 ms").await?;
            }
            ok(steps)
        })
        .unwrap();
    assert_eq!(flow.start(5).await.unwrap().result().await.unwrap(), 5);
    let run = flow.start(6).await.unwrap();
    let status = until_status(&run, RunStatus::Errored).await;
    assert_eq!(status.error.unwrap().0, "StepLimit");
    assert_eq!(run.steps().await.unwrap().len(), 10);
}

async fn a_key_that_is_live_twice(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("twice", |ctx: Ctx, (): ()| async move {
            let one = || ctx.step("same", async || ok(1));
            let (a, b) = tokio::join!(one(), one());
            ok((a?, b.unwrap_err().code.to_string()))
        })
        .unwrap();
    let found = flow.start(()).await.unwrap().result().await.unwrap();
    assert_eq!(found, (1, "DUPLICATE_STEP".to_owned()));
}

async fn waits_over_the_limit_are_refused(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("waits", |ctx: Ctx, (): ()| async move {
            let day = 24 * 60 * 60;
            let far = ctx.now().plus(std::time::Duration::from_secs(366 * day));
            let refused = [
                ctx.sleep("long", "366 days").await.unwrap_err(),
                ctx.sleep("text", "a while").await.unwrap_err(),
                ctx.sleep_until("until", far).await.unwrap_err(),
                ctx.event::<()>("e", "e").timeout("1 ms").await.unwrap_err(),
                ctx.event::<()>("e", "e").timeout("366 days").await.unwrap_err(),
                ctx.event::<()>("e", "not a name").await.unwrap_err(),
                ctx.step("s", async || ok(())).timeout("0 s").await.unwrap_err(),
                ctx.step("", async || ok(())).await.unwrap_err(),
                ctx.step("x".repeat(257), async || ok(())).await.unwrap_err(),
            ];
            // A time in the past is no error.
            ctx.sleep_until("past", windlass::Timestamp::ZERO).await?;
            ok(refused.map(|error| error.code.to_string()).to_vec())
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let codes = run.result().await.unwrap();
    assert_eq!(codes[..5], ["INVALID_DURATION"; 5]);
    assert_eq!(codes[5], "INVALID_NAME");
    assert_eq!(codes[6], "INVALID_DURATION");
    assert_eq!(codes[7..], ["INVALID_NAME"; 2]);
    assert_eq!(run.steps().await.unwrap().len(), 1);
}

async fn a_workflow_that_nobody_serves_waits(h: Arc<Harness>) {
    let engine = h.engine().await;
    let remote = engine.remote_workflow::<String, String>("later").unwrap();
    let run = remote.start("x".into()).id("x").await.unwrap();
    let fine = engine.workflow("echo", echo).unwrap();
    assert_eq!(fine.start("y".into()).await.unwrap().result().await.unwrap(), "y");
    assert_eq!(run.status().await.unwrap().status, RunStatus::Active);
    engine.workflow("later", echo).unwrap();
    assert_eq!(run.result().await.unwrap(), "x");
}

async fn a_full_process_takes_the_rest_when_it_has_room(h: Arc<Harness>) {
    let engine = h.engine_with(|options| Options { turns_max: 2, ..options }).await;
    let nap = async |ctx: Ctx, n: u32| {
        let body = async || {
            tokio::time::sleep(Duration::from_millis(5)).await;
            ok(n)
        };
        ok(ctx.step("nap", body).await?)
    };
    let flow = engine.workflow("nap", nap).unwrap();
    let mut runs = Vec::new();
    for n in 0..12 {
        runs.push(flow.start(n).await.unwrap());
    }
    for (n, run) in (0..).zip(runs) {
        assert_eq!(run.result().await.unwrap(), n);
    }
}

async fn at_most_so_many_at_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    let now = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let inner = now.clone();
    let flow = engine
        .workflow("limited", move |ctx: Ctx, n: u32| {
            let now = inner.clone();
            async move {
                use std::sync::atomic::Ordering::SeqCst;
                let body = async || {
                    let held = now.fetch_add(1, SeqCst) + 1;
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                    now.fetch_sub(1, SeqCst);
                    ok(held)
                };
                let held = ctx.step("work", body).await?;
                ok((n, held))
            }
        })
        .unwrap();
    flow.at_once(Some(2)).await.unwrap();
    let batch = (0..12).map(|n| (format!("r{n}"), n));
    for run in flow.start_batch(batch).await.unwrap() {
        let (_, held) = run.result().await.unwrap();
        assert!(held <= 2, "{held} at once");
    }
}

async fn priority_labels_and_delay(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("labels", |ctx: Ctx, (): ()| async move {
            let info = ctx.run();
            ok((info.id.clone(), info.labels.clone(), info.generation))
        })
        .unwrap();
    let later = flow.start(()).id("later").label("team", "a").delay("300 ms").priority(5);
    let run = later.await.unwrap();
    let row = run.run().await.unwrap();
    assert_eq!((row.turn.priority, row.started_at), (5, None));
    let due_at = row.turn.due_at.unwrap();
    let (id, labels, generation) = run.result().await.unwrap();
    assert_eq!((&*id, &*labels["team"], generation), ("later", "a", 0));
    let started_at = run.run().await.unwrap().started_at.unwrap();
    assert!(started_at >= due_at, "{started_at} is before {due_at}");
    until("labels are found", || async { run.run().await.unwrap().labels.len() == 1 }).await;
}

async fn the_more_urgent_run_goes_first(h: Arc<Harness>) {
    let engine = h.engine().await;
    let order: Arc<parking_lot::Mutex<Vec<i16>>> = Arc::default();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (seen, wait) = (order.clone(), gate.clone());
    let flow = engine
        .workflow("urgent", move |ctx: Ctx, priority: i16| {
            let (order, gate) = (seen.clone(), wait.clone());
            async move {
                let body = async || {
                    order.lock().push(priority);
                    gate.acquire().await?.forget();
                    ok(())
                };
                ok(ctx.step("work", body).await?)
            }
        })
        .unwrap();
    flow.at_once(Some(1)).await.unwrap();
    let mut runs = vec![flow.start(0).await.unwrap()];
    until("the first one runs", || async { order.lock().len() == 1 }).await;
    for priority in [-1; 10].into_iter().chain([1; 10]) {
        runs.push(flow.start(priority).priority(priority).await.unwrap());
    }
    gate.add_permits(21);
    for run in runs {
        run.result().await.unwrap();
    }
    // One claim in eight takes the oldest, so that nobody waits for ever: most of the first ten
    // are urgent, not all of them.
    let order = order.lock();
    let urgent = order[1..11].iter().filter(|priority| **priority == 1).count();
    assert!(urgent >= 7, "{order:?}");
}
