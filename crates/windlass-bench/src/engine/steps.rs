//! `steps`: runs of a few steps through the public API, from many concurrent callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use windlass::WorkflowRef;
use windlass::admin::Options;

use super::{engine, few_steps, rss_mb};
use crate::backend::{Databases, Target};
use crate::load;
use crate::report::{Report, Times};

/// Options of `steps`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The number of runs.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) runs: u64,
    /// Steps of a run.
    #[arg(long, default_value_t = 3)]
    pub(crate) steps: usize,
    /// The number of concurrent callers.
    #[arg(long, default_value_t = 2_000)]
    pub(crate) in_flight: usize,
    /// Omit the comparison with the bare store.
    #[arg(long)]
    pub(crate) uncalibrated: bool,
}

/// Measures the bare store before and after, so that a slower machine affects both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let bare = async |name: &str| -> anyhow::Result<Option<f64>> {
        match args.uncalibrated {
            true => Ok(None),
            false => load::bare_store_rate(place, name, args.runs, args.steps, args.in_flight)
                .await
                .map(Some),
        }
    };
    let before = bare("before").await?;
    let opened = place.open("steps").await?;
    let engine = engine(&opened, Options::default()).await?;
    let workflow = few_steps(&engine, args.steps)?;
    drive(&workflow, args, 0, (args.runs / 10).clamp(1, 5_000)).await?;
    let commits = engine.admin().metrics().commits.get();
    let created = engine.admin().metrics().runs_created.get();
    let (runs_per_s, times) = drive(&workflow, args, 1_000_000_000, args.runs).await?;
    let created = engine.admin().metrics().runs_created.get() - created;
    let commits = engine.admin().metrics().commits.get() - commits + created;
    let (replays, rss) = (engine.admin().metrics().replays.get(), rss_mb());
    engine.stop(std::time::Duration::from_secs(5)).await?;
    let after = bare("after").await?;

    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("runs", args.runs)
        .put("steps", args.steps)
        .put("in_flight", args.in_flight)
        .put("runs_per_s", runs_per_s)
        .put("steps_per_s", runs_per_s * args.steps as f64)
        .put("p50_ms", times.percentile_ms(0.5))
        .put("p99_ms", times.percentile_ms(0.99))
        .put("commits_per_run", commits as f64 / args.runs as f64)
        .put("replays", replays)
        .put("rss_mb", rss);
    if let (Some(before), Some(after)) = (before, after) {
        let mean = (before + after) / 2.0;
        report.put("store_runs_per_s", mean).put("ratio", runs_per_s / mean);
    }
    Ok(report)
}

pub(crate) async fn drive(
    workflow: &WorkflowRef<u64, u64>,
    args: &Args,
    first: u64,
    runs: u64,
) -> anyhow::Result<(f64, Times)> {
    let next = Arc::new(AtomicU64::new(first));
    let steps = args.steps as u64;
    let callers = (args.in_flight as u64).min(runs);
    let started = Instant::now();
    let handles: Vec<_> = (0..callers)
        .map(|_| {
            let (workflow, next) = (workflow.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut times = Times::default();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= first + runs {
                        return anyhow::Ok(times);
                    }
                    let started = Instant::now();
                    let run = workflow.start(n).id(format!("run-{n}")).await?;
                    let sum = run.result().await?;
                    times.add(started.elapsed());
                    anyhow::ensure!(sum == n + steps, "run {n} returned {sum}");
                }
            })
        })
        .collect();
    let mut times = Times::default();
    for handle in handles {
        times.extend(handle.await.context("a caller panicked")??);
    }
    Ok((runs as f64 / started.elapsed().as_secs_f64(), times))
}
