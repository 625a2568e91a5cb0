//! `fairness`: how long a tenant waits beside another one with a long queue.

use std::time::{Duration, Instant};

use windlass::admin::Options;
use windlass::{Ctx, WorkflowRef};

use super::engine;
use crate::backend::{Databases, Target};
use crate::report::{Report, Times};

/// Runs that are started at once while the queue is filled.
const FILLED_AT_ONCE: usize = 1_000;
/// Runs of the small tenant before the measurement.
const WARM_UP: u64 = 10;

/// Options of `fairness`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of queued runs of the big tenant.
    #[arg(long, default_value_t = 100_000)]
    queued: u64,
    /// The number of measured runs of the small tenant.
    #[arg(long, default_value_t = 200)]
    runs: u64,
    /// How many runs the process works on at once. More than that waits in the store.
    #[arg(long, default_value_t = 100)]
    slots: usize,
    /// How long the step of a run takes.
    #[arg(long, default_value_t = 100)]
    step_ms: u64,
    /// The pause between two runs of the small tenant.
    #[arg(long, default_value_t = 20)]
    pause_ms: u64,
    /// The most that the p99 may grow by.
    #[arg(long, default_value_t = 2.0)]
    ratio_max: f64,
}

/// Measures the small tenant alone, then beside the big one.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let (alone, _) = measure_small(args, place, "alone").await?;
    fill(args, place, "beside").await?;
    let (beside, left) = measure_small(args, place, "beside").await?;
    let ratio = beside.percentile_ms(0.99) / alone.percentile_ms(0.99);
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("queued", args.queued)
        .put("queued_at_the_end", left)
        .put("alone_p50_ms", alone.percentile_ms(0.5))
        .put("alone_p99_ms", alone.percentile_ms(0.99))
        .put("beside_p50_ms", beside.percentile_ms(0.5))
        .put("beside_p99_ms", beside.percentile_ms(0.99))
        .put("p99_ratio", ratio);
    if ratio > args.ratio_max {
        report.fail(format!("the p99 grew to {ratio:.2} times; at most {}", args.ratio_max));
    }
    Ok(report)
}

// Queues the runs of the big tenant. This engine serves no workflow.
async fn fill(args: &Args, place: &Databases, name: &str) -> anyhow::Result<()> {
    let opened = place.open(name).await?;
    let engine = engine(&opened, Options::default()).await?;
    let workflow: WorkflowRef<u64, u64> = engine.in_namespace("big")?.remote_workflow("work")?;
    for first in (0..args.queued).step_by(FILLED_AT_ONCE) {
        let last = args.queued.min(first + FILLED_AT_ONCE as u64);
        let starts = (first..last).map(|n| workflow.start(n).id(format!("big-{n}")));
        let starts = starts.map(std::future::IntoFuture::into_future);
        futures::future::try_join_all(starts).await?;
    }
    engine.stop(Duration::from_secs(5)).await?;
    Ok(())
}

// Serves both tenants and starts the runs of the small one, one after the other. Returns the times from
// start to result, and how many runs are still queued.
async fn measure_small(
    args: &Args,
    place: &Databases,
    name: &str,
) -> anyhow::Result<(Times, String)> {
    let opened = place.open(name).await?;
    let options = Options { turns_max: args.slots, ..Options::default() };
    let engine = engine(&opened, options).await?;
    let step = Duration::from_millis(args.step_ms);
    engine.workflow("work", move |ctx: Ctx, n: u64| async move {
        let work = async || {
            tokio::time::sleep(step).await;
            Ok(n)
        };
        Ok(ctx.step("work", work).await?)
    })?;
    let workflow: WorkflowRef<u64, u64> = engine.in_namespace("small")?.remote_workflow("work")?;
    let mut times = Times::default();
    for n in 0..WARM_UP + args.runs {
        let started = Instant::now();
        let result = workflow.start(n).id(format!("small-{n}")).await?.result().await?;
        anyhow::ensure!(result == n, "run {n} returned {result}");
        if n >= WARM_UP {
            times.add(started.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(args.pause_ms)).await;
    }
    let left = opened.store().health().await?.turns.ready.to_string();
    engine.stop(Duration::from_secs(5)).await?;
    Ok((times, left))
}
