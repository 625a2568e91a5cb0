//! `relays`: runs of a relay with a few steps, compared with the same load of `steps`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use bytes::Bytes;
use windlass::admin::Options;
use windlass::relays::{
    HookError, NoopTerminalHook, RelayError, RelayStep, RunOutcome, RunSpec, StepOutcome,
    StepRunner, TerminalHook,
};
use windlass::{Engine, WorkflowRef};

use super::{engine, few_steps, rss_mb, steps};
use crate::backend::{Databases, Target};
use crate::report::{Report, Times};

/// Options of `relays`.
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
    /// Call a terminal hook for each run; measures until all hooks were called.
    #[arg(long)]
    hook: bool,
    /// Omit the comparison with `steps`.
    #[arg(long)]
    uncalibrated: bool,
}

/// Measures the same load of `steps` before and after, so that a slower machine affects both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let before = match args.uncalibrated {
        true => None,
        false => Some(steps_rate(args, place, "before").await?),
    };
    let opened = place.open("relays").await?;
    let engine = engine(&opened, Options::default()).await?;
    let hook_calls = Arc::new(AtomicU64::new(0));
    let relay = relay(&engine, args, &hook_calls)?;
    drive(&relay, args, 0, (args.runs / 10).clamp(1, 5_000), &hook_calls).await?;
    let commits = engine.admin().metrics().commits.get();
    let created = engine.admin().metrics().runs_created.get();
    let (runs_per_s, times) = drive(&relay, args, 1_000_000_000, args.runs, &hook_calls).await?;
    let created = engine.admin().metrics().runs_created.get() - created;
    let commits = engine.admin().metrics().commits.get() - commits + created;
    let (replays, rss) = (engine.admin().metrics().replays.get(), rss_mb());
    engine.stop(std::time::Duration::from_secs(5)).await?;
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("runs", args.runs)
        .put("steps", args.steps)
        .put("in_flight", args.in_flight)
        .put("hook", args.hook)
        .put("runs_per_s", runs_per_s)
        .put("steps_per_s", runs_per_s * args.steps as f64)
        .put("p50_ms", times.percentile_ms(0.5))
        .put("p99_ms", times.percentile_ms(0.99))
        .put("commits_per_run", commits as f64 / args.runs as f64)
        .put("replays", replays)
        .put("rss_mb", rss);
    if let Some(before) = before {
        let after = steps_rate(args, place, "after").await?;
        let mean = (before + after) / 2.0;
        report.put("steps_runs_per_s", mean).put("ratio", runs_per_s / mean);
    }
    Ok(report)
}

async fn steps_rate(args: &Args, place: &Databases, name: &str) -> anyhow::Result<f64> {
    let opened = place.open(name).await?;
    let engine = engine(&opened, Options::default()).await?;
    let workflow = few_steps(&engine, args.steps)?;
    let load = steps::Args {
        target: args.target.clone(),
        runs: args.runs,
        steps: args.steps,
        in_flight: args.in_flight,
        uncalibrated: true,
    };
    steps::drive(&workflow, &load, 0, (args.runs / 10).clamp(1, 5_000)).await?;
    let (rate, _) = steps::drive(&workflow, &load, 1_000_000_000, args.runs).await?;
    engine.stop(std::time::Duration::from_secs(5)).await?;
    Ok(rate)
}

// Like the steps of the other load: each adds one to a number.
struct Add {
    steps: u32,
}

impl StepRunner for Add {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let n: u64 = serde_json::from_slice(&step.payload).map_err(RelayError::permanent)?;
        let sum = (n + 1).to_string();
        Ok(match step.step_number + 1 {
            done if done == self.steps => StepOutcome::done(sum),
            _ => StepOutcome::next(sum),
        })
    }
}

struct Count(Arc<AtomicU64>);

impl TerminalHook for Count {
    async fn on_termination(&self, _: &RunOutcome) -> Result<(), HookError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn relay(
    engine: &Engine,
    args: &Args,
    hook_calls: &Arc<AtomicU64>,
) -> anyhow::Result<WorkflowRef<Bytes, Bytes>> {
    let runner = Add { steps: u32::try_from(args.steps)? };
    Ok(match args.hook {
        true => engine.relay("load", runner, Count(Arc::clone(hook_calls))).build()?,
        false => engine.relay("load", runner, NoopTerminalHook).build()?,
    })
}

async fn drive(
    relay: &WorkflowRef<Bytes, Bytes>,
    args: &Args,
    first: u64,
    runs: u64,
    hook_calls: &AtomicU64,
) -> anyhow::Result<(f64, Times)> {
    let next = Arc::new(AtomicU64::new(first));
    let steps = args.steps as u64;
    let callers = (args.in_flight as u64).min(runs);
    let calls_before = hook_calls.load(Ordering::Relaxed);
    let started = Instant::now();
    let handles: Vec<_> = (0..callers)
        .map(|_| {
            let (relay, next) = (relay.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut times = Times::default();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= first + runs {
                        return anyhow::Ok(times);
                    }
                    let started = Instant::now();
                    let spec = RunSpec::new(n.to_string()).id(format!("run-{n}"));
                    let run = relay.start_from(spec).await?;
                    let ended = run.finished().await?;
                    times.add(started.elapsed());
                    let expect = (n + steps).to_string();
                    let right = ended.result.as_deref() == Some(expect.as_bytes());
                    anyhow::ensure!(right, "run {n} returned {ended:?}");
                }
            })
        })
        .collect();
    let mut times = Times::default();
    for handle in handles {
        times.extend(handle.await.context("a caller panicked")??);
    }
    while args.hook && hook_calls.load(Ordering::Relaxed) - calls_before < runs {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    Ok((runs as f64 / started.elapsed().as_secs_f64(), times))
}
