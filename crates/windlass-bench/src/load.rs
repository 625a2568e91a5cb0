//! `store`: many callers, each of which sends the commits of its runs in sequence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use windlass_kernel::{Commit, Store, Timestamp};

use crate::backend::{Databases, OpenStore, Target};
use crate::calibrate::{self, Shape};
use crate::generator::RunGenerator;
use crate::report::{Report, Times};

/// Options of `store`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of runs.
    #[arg(long, default_value_t = 20_000)]
    runs: u64,
    /// Steps of a run.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// The number of concurrent callers.
    #[arg(long, default_value_t = 2_000)]
    in_flight: usize,
    /// Omit the calibration.
    #[arg(long)]
    uncalibrated: bool,
}

/// The result of a load.
struct LoadResult {
    runs_per_s: f64,
    times: Times,
    batch_avg: f64,
}

/// Runs a short load to warm up and to find the batch size, then calibration, load, calibration, so
/// that a slower machine affects both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Databases::new(&args.target)?;
    let generator = Arc::new(RunGenerator::new(args.steps)?);
    let result = measure(args, &place, &generator).await;
    place.remove().await?;
    result
}

async fn measure(
    args: &Args,
    place: &Databases,
    generator: &Arc<RunGenerator>,
) -> anyhow::Result<Report> {
    let opened = place.open("load").await?;
    let warm_up = (args.runs / 10).clamp(1, 5_000);
    let pilot = drive(&opened, generator, args.in_flight, 0, warm_up).await?;
    let calibrated = async |batch_avg: f64, name: &str| -> anyhow::Result<Option<f64>> {
        if args.uncalibrated {
            return Ok(None);
        }
        let batch = (batch_avg.round() as usize).max(1);
        let shape = Shape { runs: args.runs, batch, in_flight: args.in_flight };
        calibrate::runs_per_s(place, name, generator, shape).await.map(Some)
    };
    let before = calibrated(pilot.batch_avg, "before").await?;
    let driven = drive(&opened, generator, args.in_flight, warm_up, args.runs).await?;
    let after = calibrated(driven.batch_avg, "after").await?;
    opened.store().close().await?;

    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("runs", args.runs)
        .put("steps", args.steps)
        .put("in_flight", args.in_flight)
        .put("runs_per_s", driven.runs_per_s)
        .put("steps_per_s", driven.runs_per_s * args.steps as f64)
        .put("commits_per_s", driven.runs_per_s * (args.steps + 2) as f64)
        .put("p50_ms", driven.times.percentile_ms(0.5))
        .put("p99_ms", driven.times.percentile_ms(0.99))
        .put("batch_avg", driven.batch_avg);
    if let (Some(before), Some(after)) = (before, after) {
        let mean = (before + after) / 2.0;
        report
            .put("calibration_before_runs_per_s", before)
            .put("calibration_after_runs_per_s", after)
            .put("calibration_runs_per_s", mean)
            .put("ratio", driven.runs_per_s / mean);
    }
    Ok(report)
}

/// The load on a new store, without calibration. Loads of the engine are compared with it.
pub(crate) async fn bare_store_rate(
    place: &Databases,
    name: &str,
    runs: u64,
    steps: usize,
    in_flight: usize,
) -> anyhow::Result<f64> {
    let generator = Arc::new(RunGenerator::new(steps)?);
    let opened = place.open(&format!("bare_{name}")).await?;
    let warm_up = (runs / 10).clamp(1, 5_000);
    drive(&opened, &generator, in_flight, 0, warm_up).await?;
    let driven = drive(&opened, &generator, in_flight, warm_up, runs).await?;
    opened.store().close().await?;
    Ok(driven.runs_per_s)
}

async fn drive(
    opened: &OpenStore,
    generator: &Arc<RunGenerator>,
    in_flight: usize,
    first: u64,
    runs: u64,
) -> anyhow::Result<LoadResult> {
    let next = Arc::new(AtomicU64::new(first));
    let callers = u64::try_from(in_flight).unwrap_or(u64::MAX).min(runs);
    let started = Instant::now();
    let handles: Vec<_> = (0..callers)
        .map(|_| {
            let (store, generator, next) = (opened.store(), generator.clone(), next.clone());
            tokio::spawn(async move { call(&*store, &generator, &next, first + runs).await })
        })
        .collect();
    let mut results = CommitResults::default();
    for handle in handles {
        let caller = handle.await.context("a caller panicked")??;
        results.times.extend(caller.times);
        results.clock.extend(caller.clock);
    }
    let elapsed = started.elapsed();
    // All commits of a transaction return the same time of the store's clock.
    results.clock.sort_unstable();
    results.clock.dedup();
    Ok(LoadResult {
        runs_per_s: runs as f64 / elapsed.as_secs_f64(),
        batch_avg: results.times.len() as f64 / results.clock.len().max(1) as f64,
        times: results.times,
    })
}

/// The duration of each commit, and the returned times of the store's clock.
#[derive(Default)]
struct CommitResults {
    times: Times,
    clock: Vec<Timestamp>,
}

// One caller: executes runs until there are no more.
async fn call(
    store: &dyn Store,
    generator: &RunGenerator,
    next: &AtomicU64,
    end: u64,
) -> anyhow::Result<CommitResults> {
    let mut results = CommitResults::default();
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= end {
            return Ok(results);
        }
        let (mut run, commit) = generator.create(n)?;
        results.send(store, commit).await?;
        for step in 0..generator.steps() {
            results.send(store, generator.step(&mut run, step)?).await?;
        }
        results.send(store, generator.complete(&mut run)?).await?;
    }
}

impl CommitResults {
    async fn send(&mut self, store: &dyn Store, commit: Commit) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut results = store.commit(vec![commit]).await;
        self.times.add(started.elapsed());
        let result = results.pop().ok_or_else(|| anyhow!("a commit has no result"))?;
        let committed = result.context("commit failed")?;
        anyhow::ensure!(!committed.repeated, "a commit was written twice");
        self.clock.push(committed.now);
        Ok(())
    }
}
