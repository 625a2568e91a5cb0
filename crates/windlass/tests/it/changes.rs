//! Code that changed under a run, and code that waits for what is not durable: the run waits with a
//! reason, nothing is lost, and the right code carries it on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use windlass::kernel::LogLevel;
use windlass::{Ctx, Engine, Result, RunHandle, RunStatus, WorkflowRef};

use crate::harness::{
    Harness, completed, event_types, ok, on_every_store, until, until_asked, until_blocked,
    until_waiting,
};

on_every_store!(
    changed_code_is_noticed_and_the_right_code_goes_on,
    a_timer_of_tokio_is_foreign,
    a_step_in_a_spawned_task_is_foreign,
    a_workflow_that_waits_for_nothing_is_stuck_with_its_steps_kept,
    a_panic_outside_steps_blocks_the_run,
    a_step_inside_a_step_is_refused,
    a_bad_label_of_a_child_fails_the_step,
);

type Flow = fn(Ctx) -> BoxFuture<'static, Result<u32>>;

// The code that the runs are begun with.
fn original(ctx: Ctx) -> BoxFuture<'static, Result<u32>> {
    async move {
        let a = ctx.step("a", async || ok(1)).await?;
        let b = ctx.step("b", async || ok(2)).await?;
        ctx.event::<()>("go", "go").await?;
        Ok(a + b)
    }
    .boxed()
}

fn changes() -> Vec<(&'static str, &'static str, Flow)> {
    async fn tail(ctx: &Ctx, first: &str, second: &str) -> Result<u32> {
        let a = ctx.step(first, async || ok(1)).await?;
        let b = ctx.step(second, async || ok(2)).await?;
        ctx.event::<()>("go", "go").await?;
        Ok(a + b)
    }
    vec![
        ("rename", "NON_DETERMINISM", |ctx| async move { tail(&ctx, "a", "c").await }.boxed()),
        ("swap", "NON_DETERMINISM", |ctx| async move { tail(&ctx, "b", "a").await }.boxed()),
        ("insert", "NON_DETERMINISM", |ctx| {
            async move {
                ctx.step("new", async || ok(())).await?;
                tail(&ctx, "a", "b").await
            }
            .boxed()
        }),
        ("remove", "NON_DETERMINISM", |ctx| {
            async move {
                ctx.step("b", async || ok(2)).await?;
                ctx.event::<()>("go", "go").await?;
                Ok(0)
            }
            .boxed()
        }),
        ("remove the wait", "NON_DETERMINISM", |ctx| {
            async move {
                ctx.step("a", async || ok(1)).await?;
                ctx.step("b", async || ok(2)).await?;
                ctx.step("more", async || ok(2)).await?;
                Ok(0)
            }
            .boxed()
        }),
        ("early return", "NON_DETERMINISM", |ctx| {
            async move { Ok(ctx.step("a", async || ok(1)).await?) }.boxed()
        }),
        ("return instead of the wait", "NON_DETERMINISM", |ctx| {
            async move {
                ctx.step("a", async || ok(1)).await?;
                Ok(ctx.step("b", async || ok(2)).await?)
            }
            .boxed()
        }),
        ("other kind", "NON_DETERMINISM", |ctx| {
            async move {
                ctx.step("a", async || ok(1)).await?;
                ctx.sleep("b", "1 ms").await?;
                Ok(0)
            }
            .boxed()
        }),
        ("other type", "RESULT_UNREADABLE", |ctx| {
            async move {
                let text: String = ctx.step("a", async || ok(String::new())).await?;
                Ok(text.len() as u32)
            }
            .boxed()
        }),
    ]
}

fn register(engine: &Engine, flow: Flow) -> WorkflowRef<(), u32> {
    engine.workflow("flow", move |ctx: Ctx, (): ()| flow(ctx)).unwrap()
}

async fn system_lines<O>(run: &RunHandle<O>) -> usize {
    let lines = run.logs().await.unwrap();
    let ours = |line: &&windlass::kernel::LogLine| {
        &*line.category == "system" && line.level == LogLevel::Error
    };
    lines.iter().filter(ours).count()
}

async fn changed_code_is_noticed_and_the_right_code_goes_on(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flows = register(&engine, original);
    for (name, ..) in changes() {
        let run = flows.start(()).id(name.replace(' ', "-")).await.unwrap();
        until_asked(&run, "go").await;
    }
    h.stop(&engine).await;
    for (name, code, changed) in changes() {
        let engine = h.engine().await;
        let flows = register(&engine, changed);
        let other = engine.workflow("other", async |_: Ctx, (): ()| ok(7)).unwrap();
        let run = flows.get(name.replace(' ', "-")).await.unwrap();
        let before = event_types(&run).await;
        run.wake().await.unwrap();
        let reason = until_blocked(&run).await;
        assert!(reason.contains(code), "{name}: {reason}");
        let why = engine.core().why(run.run_key()).await.unwrap();
        assert_eq!(why.reasons[0].code, windlass::Why::Blocked, "{name}: {why:?}");
        assert!(!why.moving && why.reasons[0].text.contains(code), "{name}: {why:?}");
        if name == "rename" {
            let both =
                why.reasons[0].text.contains("\"b\"") && why.reasons[0].text.contains("\"c\"");
            assert!(both, "both names are told: {why:?}");
        }
        let status = run.status().await.unwrap().status;
        assert_eq!(status, RunStatus::Waiting, "{name}");
        let added = event_types(&run).await.split_off(before.len());
        assert_eq!(added, ["message.received", "workflow.blocked"], "{name}");
        assert_eq!(system_lines(&run).await, 1, "{name}");
        assert_eq!(other.start(()).await.unwrap().result().await.unwrap(), 7);
        h.stop(&engine).await;
    }
    let engine = h.engine().await;
    let flows = register(&engine, original);
    for (name, ..) in changes() {
        let run = flows.get(name.replace(' ', "-")).await.unwrap();
        run.wake().await.unwrap();
        until("it waits again", || async { run.status().await.unwrap().blocked.is_none() }).await;
        run.send_event("go", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 3, "{name}");
        assert_eq!(completed(&run).await, ["a", "b", "go"], "{name}");
        assert_eq!(run.status().await.unwrap().blocked, None);
    }
}

async fn a_timer_of_tokio_is_foreign(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("timer", |ctx: Ctx, (): ()| async move {
            let begun = AtomicBool::new(false);
            let body = async || {
                begun.store(true, Ordering::Release);
                futures::future::pending::<()>().await;
                ok(())
            };
            // Until the step has begun: then only the timer wakes the code.
            let timer = async {
                while !begun.load(Ordering::Acquire) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! { biased; () = timer => {}, done = ctx.step("slow", body) => done? }
            ok(())
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let reason = until_blocked(&run).await;
    assert!(reason.contains("FOREIGN_WAKE"), "{reason}");
    // A parked run that is woken from outside is caught when it is next looked at.
    let parked = engine
        .workflow("parked", |ctx: Ctx, (): ()| async move {
            let timer = tokio::time::sleep(Duration::from_millis(20));
            tokio::select! { biased; () = timer => {}, slept = ctx.sleep("s", "1 day") => slept? }
            ok(())
        })
        .unwrap();
    let run = parked.start(()).await.unwrap();
    until_waiting(&engine, &run).await;
    until("the timer has fired and the run is blocked", || async {
        run.wake().await.unwrap();
        run.status().await.unwrap().blocked.is_some()
    })
    .await;
    let reason = until_blocked(&run).await;
    assert!(reason.contains("FOREIGN_WAKE"), "{reason}");
}

async fn a_step_in_a_spawned_task_is_foreign(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("spawned", |ctx: Ctx, (): ()| async move {
            let other = ctx.clone();
            tokio::spawn(async move { other.step("there", async || ok(())).await });
            let body = async || {
                futures::future::pending::<()>().await;
                ok(())
            };
            ok(ctx.step("here", body).await?)
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let reason = until_blocked(&run).await;
    assert!(reason.contains("FOREIGN_TASK") && reason.contains("there"), "{reason}");
}

async fn a_workflow_that_waits_for_nothing_is_stuck_with_its_steps_kept(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("stuck", |ctx: Ctx, (): ()| async move {
            ctx.step("done", async || ok(())).await?;
            futures::future::pending::<()>().await;
            ok(())
        })
        .unwrap();
    let run = flow.start(()).await.unwrap();
    let reason = until_blocked(&run).await;
    assert!(reason.contains("FOREIGN_WAIT"), "{reason}");
    assert_eq!(completed(&run).await, ["done"]);
    // It can be ended by hand.
    run.terminate().await.unwrap();
    assert_eq!(run.result().await.unwrap_err().code(), "RUN_TERMINATED");
}

async fn a_panic_outside_steps_blocks_the_run(h: Arc<Harness>) {
    let options = |mut options: windlass::admin::Options| {
        options.blocked_retry = Duration::from_millis(50);
        options
    };
    let engine = h.engine_with(options).await;
    let counts = crate::harness::Counts::new();
    let inner = counts.clone();
    let flow = engine
        .workflow("panics", move |ctx: Ctx, (): ()| {
            let counts = inner.clone();
            async move {
                ctx.step("once", async || ok(counts.hit("body"))).await?;
                assert!(counts.hit("root") > 3, "not \0 yet");
                ok(())
            }
        })
        .unwrap();
    // It is tried again now and then, and a cause that goes away lets it go on.
    let run = flow.start(()).await.unwrap();
    run.result().await.unwrap();
    assert_eq!((counts.get("body"), counts.get("root")), (1, 4));
    // The same reason is written once.
    let blocked = event_types(&run).await;
    assert_eq!(blocked.iter().filter(|t| *t == "workflow.blocked").count(), 1);
    assert_eq!(system_lines(&run).await, 1);
}

async fn a_step_inside_a_step_is_refused(h: Arc<Harness>) {
    let engine = h.engine().await;
    let flow = engine
        .workflow("nested", |ctx: Ctx, (): ()| async move {
            let inner = ctx.clone();
            let body = || {
                let ctx = inner.clone();
                async move {
                    let error = ctx.step("inner", async || ok(())).await.unwrap_err();
                    ok(error.code.to_string())
                }
            };
            ok(ctx.step("outer", body).await?)
        })
        .unwrap();
    assert_eq!(flow.start(()).await.unwrap().result().await.unwrap(), "NESTED_STEP");
}

async fn a_bad_label_of_a_child_fails_the_step(h: Arc<Harness>) {
    let engine = h.engine().await;
    let child = engine.workflow("child", async |_: Ctx, (): ()| ok(())).unwrap();
    let flow = engine
        .workflow("labels", move |ctx: Ctx, (): ()| {
            let child = child.clone();
            async move {
                for (key, value) in [("k", "v".repeat(257)), ("", "v".into()), ("k\0", "v".into())]
                {
                    let refused = ctx.child("child", &child, &()).label(key, value).await;
                    assert_eq!(refused.unwrap_err().code, "INVALID_LABEL");
                }
                ok(ctx.child("child", &child, &()).label("k", "v".repeat(256)).await?)
            }
        })
        .unwrap();
    flow.start(()).await.unwrap().result().await.unwrap();
}
