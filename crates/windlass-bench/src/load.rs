//! The load of `store`: many callers, each a run's commits one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use windlass_kernel::{Commit, Store, Timestamp};

use crate::backend::{Opened, Place, Target};
use crate::calibrate::{self, Shape};
use crate::report::{Report, Times};
use crate::script::Author;

/// Options of `store`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many runs.
    #[arg(long, default_value_t = 20_000)]
    runs: u64,
    /// Steps a run.
    #[arg(long, default_value_t = 3)]
    steps: usize,
    /// How many callers at once.
    #[arg(long, default_value_t = 2_000)]
    in_flight: usize,
    /// Leave out the calibration.
    #[arg(long)]
    uncalibrated: bool,
}

/// One load that went through.
struct Driven {
    runs_per_s: f64,
    times: Times,
    batch_avg: f64,
}

/// A short load first, to warm up and to learn the size of the batches; then calibration, load,
/// calibration, so that a machine that slows down meanwhile slows both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Place::new(&args.target)?;
    let author = Arc::new(Author::new(args.steps)?);
    let result = measure(args, &place, &author).await;
    place.remove().await?;
    result
}

async fn measure(args: &Args, place: &Place, author: &Arc<Author>) -> anyhow::Result<Report> {
    let opened = place.open("load").await?;
    let warm_up = (args.runs / 10).clamp(1, 5_000);
    let pilot = drive(&opened, author, args.in_flight, 0, warm_up).await?;
    let calibrated = async |batch_avg: f64, name: &str| -> anyhow::Result<Option<f64>> {
        if args.uncalibrated {
            return Ok(None);
        }
        let batch = (batch_avg.round() as usize).max(1);
        let shape = Shape { runs: args.runs, batch, in_flight: args.in_flight };
        calibrate::runs_per_s(place, name, author, shape).await.map(Some)
    };
    let before = calibrated(pilot.batch_avg, "before").await?;
    let driven = drive(&opened, author, args.in_flight, warm_up, args.runs).await?;
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

/// The load on a fresh store, without a calibration: what an engine's load is compared with.
pub(crate) async fn bare(
    place: &Place,
    name: &str,
    runs: u64,
    steps: usize,
    in_flight: usize,
) -> anyhow::Result<f64> {
    let author = Arc::new(Author::new(steps)?);
    let opened = place.open(&format!("bare_{name}")).await?;
    let warm_up = (runs / 10).clamp(1, 5_000);
    drive(&opened, &author, in_flight, 0, warm_up).await?;
    let driven = drive(&opened, &author, in_flight, warm_up, runs).await?;
    opened.store().close().await?;
    Ok(driven.runs_per_s)
}

async fn drive(
    opened: &Opened,
    author: &Arc<Author>,
    in_flight: usize,
    first: u64,
    runs: u64,
) -> anyhow::Result<Driven> {
    let next = Arc::new(AtomicU64::new(first));
    let callers = u64::try_from(in_flight).unwrap_or(u64::MAX).min(runs);
    let started = Instant::now();
    let handles: Vec<_> = (0..callers)
        .map(|_| {
            let (store, author, next) = (opened.store(), author.clone(), next.clone());
            tokio::spawn(async move { call(&*store, &author, &next, first + runs).await })
        })
        .collect();
    let mut answers = Answers::default();
    for handle in handles {
        let caller = handle.await.context("a caller panicked")??;
        answers.times.extend(caller.times);
        answers.clock.extend(caller.clock);
    }
    let elapsed = started.elapsed();
    // All commits of a transaction are answered with one reading of the store's clock.
    answers.clock.sort_unstable();
    answers.clock.dedup();
    Ok(Driven {
        runs_per_s: runs as f64 / elapsed.as_secs_f64(),
        batch_avg: answers.times.len() as f64 / answers.clock.len().max(1) as f64,
        times: answers.times,
    })
}

/// What a caller was told: how late, and what the store's clock showed.
#[derive(Default)]
struct Answers {
    times: Times,
    clock: Vec<Timestamp>,
}

// One caller: takes the next run until there is none.
async fn call(
    store: &dyn Store,
    author: &Author,
    next: &AtomicU64,
    end: u64,
) -> anyhow::Result<Answers> {
    let mut answers = Answers::default();
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= end {
            return Ok(answers);
        }
        let (mut script, commit) = author.create(n)?;
        answers.send(store, commit).await?;
        for step in 0..author.steps() {
            answers.send(store, author.step(&mut script, step)?).await?;
        }
        answers.send(store, author.complete(&mut script)?).await?;
    }
}

impl Answers {
    async fn send(&mut self, store: &dyn Store, commit: Commit) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut results = store.commit(vec![commit]).await;
        self.times.add(started.elapsed());
        let result = results.pop().ok_or_else(|| anyhow!("a commit without an answer"))?;
        let committed = result.context("a commit of the load failed")?;
        anyhow::ensure!(!committed.repeated, "a commit of the load was written before");
        self.clock.push(committed.now);
        Ok(())
    }
}
