//! Many children, many results at once, and many waits of one run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use windlass::admin::Options;
use windlass::{Ctx, Engine, RunStatus};

use super::until;
use crate::backend::Target;
use crate::engine::fresh;
use crate::report::Report;

/// The promise for results that arrive at once.
const SETTLED: Duration = Duration::from_secs(2);
/// Long enough to start all children and to pause their parent.
const CHILD_SLEEP: Duration = Duration::from_secs(20);

/// Starts children that wait for long, and counts those that began.
pub(super) async fn children(target: &Target, count: u64) -> anyhow::Result<Report> {
    let (place, _opened, engine) = fresh(target, Options::default()).await?;
    let begun = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&begun);
    let child = engine.workflow("long-child", move |ctx: Ctx, (): ()| {
        let counter = Arc::clone(&counter);
        async move {
            let begin = move || {
                counter.fetch_add(1, Ordering::Relaxed);
                async { Ok(()) }
            };
            ctx.step("begin", begin).await?;
            ctx.sleep("long", "1 hour").await?;
            Ok(())
        }
    })?;
    let parent = engine.workflow("parent", move |ctx: Ctx, (): ()| {
        let child = child.clone();
        async move {
            try_join_all((0..count).map(|n| ctx.child(format!("child-{n}"), &child, &()))).await?;
            Ok(())
        }
    })?;
    let run = parent.start(()).await?;
    let took = until("all children begin", async || Ok(begun.load(Ordering::Relaxed) >= count));
    let took = took.await;
    let mut report = Report::default();
    report
        .put("store", target.name())
        .put("children", count)
        .put("begun", begun.load(Ordering::Relaxed))
        .put("secs", took.as_ref().map_or(0.0, Duration::as_secs_f64));
    if let Err(error) = took {
        report.fail(error.to_string());
    }
    run.terminate().await?;
    stop(&engine).await?;
    place.remove().await?;
    Ok(report)
}

/// Lets all children of a paused run end, resumes it, and measures until it has all results.
pub(super) async fn results(target: &Target, count: u64) -> anyhow::Result<Report> {
    let (place, _opened, engine) = fresh(target, Options::default()).await?;
    let ended = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&ended);
    let child = engine.workflow("short-child", move |ctx: Ctx, (): ()| {
        let counter = Arc::clone(&counter);
        async move {
            ctx.sleep("until the parent is paused", CHILD_SLEEP).await?;
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(1_u64)
        }
    })?;
    let parent = engine.workflow("parent", move |ctx: Ctx, (): ()| {
        let child = child.clone();
        async move {
            let results = (0..count).map(|n| ctx.child(format!("child-{n}"), &child, &()));
            Ok(try_join_all(results).await?.iter().sum::<u64>())
        }
    })?;
    let run = parent.start(()).await?;
    until("all children are in the store", async || Ok(run.steps().await?.len() as u64 == count))
        .await?;
    run.pause().await?;
    anyhow::ensure!(ended.load(Ordering::Relaxed) == 0, "children ended before the pause");
    until("all children end", async || Ok(ended.load(Ordering::Relaxed) >= count)).await?;
    // The last results are being committed.
    until("all results have arrived", async || {
        let completed = engine.admin().metrics().runs_completed.get();
        Ok(completed >= count)
    })
    .await?;
    let began = Instant::now();
    run.resume().await?;
    let sum = run.result().await?;
    let took = began.elapsed();
    let mut report = Report::default();
    report
        .put("store", target.name())
        .put("results", count)
        .put("sum", sum)
        .put("resume_to_end_ms", took.as_secs_f64() * 1e3);
    if sum != count || took > SETTLED {
        report.fail(format!("{sum} of {count} results took {took:?}"));
    }
    stop(&engine).await?;
    place.remove().await?;
    Ok(report)
}

/// Begins many waits at once and counts those in the store when the run is first seen waiting.
pub(super) async fn waits(target: &Target, count: u64) -> anyhow::Result<Report> {
    let (place, _opened, engine) = fresh(target, Options::default()).await?;
    let workflow = engine.workflow("many-waits", move |ctx: Ctx, (): ()| async move {
        let wait = |n| ctx.event::<u64>(format!("wait-{n}"), format!("go-{n}"));
        Ok(try_join_all((0..count).map(wait)).await?.len())
    })?;
    let began = Instant::now();
    let run = workflow.start(()).await?;
    until("the turn is given back", async || Ok(run.run().await?.status == RunStatus::Waiting))
        .await?;
    let took = began.elapsed();
    let found = run.steps().await?.len() as u64;
    let mut report = Report::default();
    report
        .put("store", target.name())
        .put("waits", count)
        .put("in_store", found)
        .put("start_to_waiting_ms", took.as_secs_f64() * 1e3);
    if found != count {
        report.fail(format!("{found} of {count} waits were in the store"));
    }
    run.terminate().await?;
    stop(&engine).await?;
    place.remove().await?;
    Ok(report)
}

async fn stop(engine: &Engine) -> anyhow::Result<()> {
    Ok(engine.stop(Duration::from_secs(1)).await?)
}
