//! Children and activities: their results, their failures, and how their end follows their run's.

use std::sync::Arc;
use std::time::Duration;

use windlass::kernel::{Namespace, Query, TasksQuery};
use windlass::{
    AnyError, Ctx, Engine, NonRetryable, Result, RetryPolicy, RunStatus, TaskContext, WorkflowRef,
};

use crate::harness::{
    Counts, Harness, event_types, ok, on_every_store, until, until_asked, until_status,
};

on_every_store!(
    a_child_gives_its_result,
    a_child_that_fails_can_be_caught,
    a_child_ends_with_its_parent,
    a_parent_follows_its_child_through_generations,
    many_children,
    a_child_that_loses_a_race_is_ended,
    a_run_that_fails_ends_its_children,
    retry_begins_a_failed_child_anew,
    an_activity_gives_its_result,
    an_activity_is_tried_again_and_given_up,
    an_activity_that_takes_too_long,
    an_activity_ends_with_its_run,
    an_activity_that_loses_a_race_is_cancelled,
    an_activity_waits_for_its_worker,
);

fn doubling(engine: &Engine) -> WorkflowRef<u32, u32> {
    let double = async |ctx: Ctx, n: u32| ok(ctx.step("double", async || ok(2 * n)).await?);
    engine.workflow("double", double).unwrap()
}

async fn a_child_gives_its_result(h: Arc<Harness>) {
    let engine = h.engine().await;
    let double = doubling(&engine);
    let large = engine.workflow("large", async |_: Ctx, n: usize| ok("x".repeat(n))).unwrap();
    let flow = engine
        .workflow("parent", move |ctx: Ctx, (): ()| {
            let (double, large) = (double.clone(), large.clone());
            async move {
                let first = ctx.child("a child", &double, &4).label("k", "v").await?;
                // Larger than what rides in a message.
                let text = ctx.child("large", &large, &200_000).await?;
                ctx.event::<()>("go", "go").await?;
                let named: u32 = ctx.child_named("named", "double", &first).await?;
                ok((named, text.len()))
            }
        })
        .unwrap();
    let run = flow.start(()).id("p").await.unwrap();
    until_asked(&run, "go").await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), (16, 200_000));
    let root = run.run_key();
    let tree = engine.admin().store().list(Query::Tree { root, after: None, limit: 10 });
    let tree = tree.await.unwrap().runs().unwrap();
    assert_eq!(tree.len(), 4);
    let children = tree.iter().filter(|child| child.parent == Some(root));
    assert_eq!(children.filter(|child| child.id.as_str().starts_with("p:")).count(), 3);
}

async fn a_child_that_fails_can_be_caught(h: Arc<Harness>) {
    let engine = h.engine().await;
    let fails =
        engine.workflow("fails", async |_: Ctx, (): ()| Err::<u32, _>(AnyError::msg("oh no")));
    let fails = fails.unwrap();
    let flow = engine
        .workflow("parent", move |ctx: Ctx, catch: bool| {
            let fails = fails.clone();
            async move {
                match ctx.child("child", &fails, &()).await {
                    Err(error) if catch => ok(format!("{} {}", error.code, error.message)),
                    other => ok(other?.to_string()),
                }
            }
        })
        .unwrap();
    let run = flow.start(true).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "CHILD_FAILED oh no");
    let run = flow.start(false).await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
}

// A run that waits for ever, and one that has it for a child.
fn family(engine: &Engine) -> (WorkflowRef<(), u32>, WorkflowRef<(), u32>) {
    let waits = async |ctx: Ctx, (): ()| ok(ctx.event::<u32>("wait", "go").await?);
    let child = engine.workflow("waits", waits).unwrap();
    let inner = child.clone();
    let parent = move |ctx: Ctx, (): ()| {
        let child = inner.clone();
        async move { ok(ctx.child("child", &child, &()).await?) }
    };
    (engine.workflow("parent", parent).unwrap(), child)
}

async fn a_child_ends_with_its_parent(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (parents, children) = family(&engine);
    let grand = engine
        .workflow("grand", move |ctx: Ctx, (): ()| {
            let parents = parents.clone();
            async move { ok(ctx.child("child", &parents, &()).await?) }
        })
        .unwrap();
    let run = grand.start(()).id("g").await.unwrap();
    let found = || async { children.get("g:child:child").await.is_ok() };
    until("the grandchild is there", found).await;
    let grandchild = children.get("g:child:child").await.unwrap();
    until_asked(&grandchild, "wait").await;
    run.terminate().await.unwrap();
    until_status(&grandchild, RunStatus::Terminated).await;
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_TERMINATED");
}

async fn a_parent_follows_its_child_through_generations(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (parents, children) = family(&engine);
    let run = parents.start(()).id("p").await.unwrap();
    until("the child is there", || async { children.get("p:child").await.is_ok() }).await;
    let child = children.get("p:child").await.unwrap();
    until_asked(&child, "wait").await;
    let child = child.restart().await.unwrap();
    until_asked(&child, "wait").await;
    child.send_event("go", &6).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 6);
    // A child that continues as new is awaited to its last generation.
    let counter = engine
        .workflow("counter", |ctx: Ctx, (left, sum): (u32, u32)| async move {
            match left {
                0 => ok(sum),
                _ => ctx.continue_as_new(&(left - 1, sum + 1)),
            }
        })
        .unwrap();
    let awaiting = engine
        .workflow("awaiting", move |ctx: Ctx, (): ()| {
            let counter = counter.clone();
            async move { ok(ctx.child("c", &counter, &(3, 0)).await?) }
        })
        .unwrap();
    assert_eq!(awaiting.start(()).await.unwrap().result().await.unwrap(), 3);
}

async fn many_children(h: Arc<Harness>) {
    let engine = h.engine().await;
    let double = doubling(&engine);
    let flow = engine
        .workflow("fan", move |ctx: Ctx, n: u32| {
            let double = double.clone();
            async move {
                let all = (0..n).map(|i| ctx.child(format!("c{i}"), &double, &i));
                let results = futures::future::try_join_all(all).await?;
                ok(results.into_iter().sum::<u32>())
            }
        })
        .unwrap();
    let run = flow.start(50).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 50 * 49);
}

async fn a_child_that_loses_a_race_is_ended(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (_, children) = family(&engine);
    let inner = children.clone();
    let flow = engine
        .workflow("race", move |ctx: Ctx, (): ()| {
            let children = inner.clone();
            async move {
                tokio::select! { biased;
                    found = ctx.child("child", &children, &()) => { found?; }
                    slept = ctx.sleep("short", "30 ms") => slept?,
                }
                ctx.event::<()>("go", "go").await?;
                // Asked for again it says what became of it.
                let again = ctx.child("child", &children, &()).await.unwrap_err();
                ok(again.name)
            }
        })
        .unwrap();
    let run = flow.start(()).id("r").await.unwrap();
    until_asked(&run, "go").await;
    let child = children.get("r:child").await.unwrap();
    until_status(&child, RunStatus::Terminated).await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "Cancelled");
}

async fn a_run_that_fails_ends_its_children(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (_, children) = family(&engine);
    let inner = children.clone();
    let flow = engine
        .workflow("fails", move |ctx: Ctx, (): ()| {
            let children = inner.clone();
            async move {
                let fails = async {
                    ctx.sleep("short", "30 ms").await?;
                    let body = async || Err::<u32, _>(AnyError::msg("enough"));
                    ctx.step("fails", body).retries(0).await
                };
                tokio::try_join!(ctx.child("child", &children, &()), fails)?;
                ok(())
            }
        })
        .unwrap();
    let run = flow.start(()).id("f").await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
    let child = children.get("f:child").await.unwrap();
    until_status(&child, RunStatus::Terminated).await;
    no_tasks(&engine).await;
}

async fn retry_begins_a_failed_child_anew(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let inner = counts.clone();
    let child = engine
        .workflow("child", move |_: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                match counts.hit("child") {
                    1 => Err(AnyError::msg("not yet")),
                    n => ok(n),
                }
            }
        })
        .unwrap();
    let flow = engine
        .workflow("parent", move |ctx: Ctx, (): ()| {
            let child = child.clone();
            async move { ok(ctx.child("child", &child, &()).await?) }
        })
        .unwrap();
    let run = flow.start(()).id("p").await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_ERRORED");
    assert_eq!(run.retry().await.unwrap().result().await.unwrap(), 2);
}

async fn an_activity_gives_its_result(h: Arc<Harness>) {
    let engine = h.engine().await;
    let upper = async |_: TaskContext, text: String| ok(text.to_uppercase());
    engine.activity("upper", upper).unwrap();
    engine.activity_on("other", "len", async |_: TaskContext, t: String| ok(t.len())).unwrap();
    let flow = engine
        .workflow("acts", |ctx: Ctx, (): ()| async move {
            let text: String = ctx.activity("u", "upper", &"abc").await?;
            ctx.event::<()>("go", "go").await?;
            let len: usize = ctx.activity("l", "len", &text).queue("other").await?;
            ok((text, len))
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "go").await;
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ("ABC".to_owned(), 3));
    let types = event_types(&run).await;
    assert_eq!(types.iter().filter(|t| *t == "activity.completed").count(), 2);
}

fn quick(retries: u32) -> RetryPolicy {
    let mut policy = windlass_engine::description::ACTIVITY_RETRY;
    policy.limit = windlass::kernel::RetryLimit::Times(retries);
    policy.delay = Duration::from_millis(5);
    policy
}

async fn an_activity_is_tried_again_and_given_up(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flaky = |context: TaskContext, succeeds_at: u32| async move {
        match context.attempt {
            n if n == succeeds_at => ok(n),
            n if succeeds_at == 99 && n == 2 => panic!("out of \0 order"),
            _ if succeeds_at == 100 => Err(NonRetryable::new("never").into()),
            n => Err(AnyError::msg(format!("attempt {n} failed"))),
        }
    };
    engine.activity("flaky", flaky).unwrap();
    let flow = engine
        .workflow("acts", |ctx: Ctx, succeeds_at: u32| async move {
            let tried = ctx.activity("a", "flaky", &succeeds_at).retry_policy(quick(2)).await;
            match tried {
                Ok(attempt) => ok((attempt, String::new())),
                Err(error) => ok((error.attempts, error.message)),
            }
        })
        .unwrap();
    for (succeeds_at, expect) in [
        (1, (1, "")),
        (3, (3, "")),
        (4, (3, "attempt 3 failed")),
        (99, (3, "attempt 3 failed")),
        (100, (1, "never")),
    ] {
        let run = flow.start(succeeds_at).await.unwrap();
        let (attempts, message) = run.result().await.unwrap();
        assert_eq!((attempts, &*message), expect, "{succeeds_at}");
    }
    // They are counted after the commit that the result came with.
    until("three are counted", || async { engine.admin().metrics().tasks_dead.get() == 3 }).await;
}

async fn an_activity_that_takes_too_long(h: Arc<Harness>) {
    let engine = h.engine().await;
    let slow = |context: TaskContext, beats: bool| async move {
        // It takes longer than the heartbeat's timeout.
        for _ in 0..125 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if !beats {
                futures::future::pending::<()>().await;
            }
            context.heartbeat();
        }
        ok("done".to_owned())
    };
    engine.activity("slow", slow).unwrap();
    let flow = engine
        .workflow("acts", |ctx: Ctx, how: String| async move {
            let activity = ctx.activity::<bool, String>("a", "slow", &(how == "beats"));
            let activity = activity.retry_policy(quick(0));
            let ended = match how.as_str() {
                "timeout" => activity.timeout("50 ms").await,
                _ => activity.heartbeat("2 seconds").await,
            };
            ok(ended.unwrap_or_else(|error| format!("{}: {}", error.name, error.message)))
        })
        .unwrap();
    for (how, expect) in [
        ("timeout", "Timeout: the attempt took longer than 50ms"),
        ("silent", "HeartbeatTimeout: there was no heartbeat for 2s"),
        ("beats", "done"),
    ] {
        assert_eq!(flow.start(how.into()).await.unwrap().result().await.unwrap(), expect);
    }
}

// An activity that runs until it is cancelled.
fn endless(engine: &Engine, counts: &Arc<Counts>) {
    let counts = counts.clone();
    let endless = move |context: TaskContext, (): ()| {
        let counts = counts.clone();
        async move {
            counts.hit("begun");
            context.cancelled().await;
            counts.hit("cancelled");
            ok(1)
        }
    };
    engine.activity("endless", endless).unwrap();
}

async fn an_activity_ends_with_its_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    endless(&engine, &counts);
    let flow = engine
        .workflow("acts", async |ctx: Ctx, (): ()| {
            ok(ctx.activity::<(), u32>("a", "endless", &()).await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until("the activity runs", || async { counts.get("begun") == 1 }).await;
    run.terminate().await.unwrap();
    until("the activity hears of it", || async { counts.get("cancelled") == 1 }).await;
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_TERMINATED");
    no_tasks(&engine).await;
}

async fn no_tasks(engine: &Engine) {
    let none = || async {
        let query = Query::Tasks(TasksQuery::all(Namespace::default_namespace(), 10));
        engine.admin().store().list(query).await.unwrap().tasks().unwrap().is_empty()
    };
    until("no task is left", none).await;
}

async fn an_activity_that_loses_a_race_is_cancelled(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    endless(&engine, &counts);
    let flow = engine
        .workflow("acts", |ctx: Ctx, (): ()| async move {
            let won = tokio::select! { biased;
                found = ctx.activity::<(), u32>("a", "endless", &()) => found?,
                slept = ctx.sleep("short", "50 ms") => { slept?; 0 }
            };
            ctx.event::<()>("go", "go").await?;
            ok(won)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "go").await;
    no_tasks(&engine).await;
    if counts.get("begun") == 1 {
        until("the activity hears of it", || async { counts.get("cancelled") == 1 }).await;
    }
    engine.core().evict_all();
    run.send_event("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 0);
    assert!(event_types(&run).await.contains(&"activity.cancelled".to_owned()));
}

async fn an_activity_waits_for_its_worker(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("acts", async |ctx: Ctx, (): ()| -> Result<u32> {
            Ok(ctx.activity("a", "later", &()).await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    until_asked(&run, "a").await;
    engine.activity("later", async |_: TaskContext, (): ()| ok(5)).unwrap();
    assert_eq!(run.result().await.unwrap(), 5);
}
