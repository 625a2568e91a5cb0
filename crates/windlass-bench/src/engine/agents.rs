//! `agents`: runs of an agent with a few local calls, compared with the same load of `steps`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};
use windlass::admin::Options;
use windlass::agents::{Agent, CallResult, Continuation, Workflow};
use windlass::{Engine, WorkflowRef};

use super::{engine, few_steps, rss_mb, steps};
use crate::backend::{Databases, Target};
use crate::report::{Report, Times};

/// Options of `agents`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of runs.
    #[arg(long, default_value_t = 20_000)]
    runs: u64,
    /// Local calls of a run.
    #[arg(long, default_value_t = 3)]
    calls: usize,
    /// The number of concurrent callers.
    #[arg(long, default_value_t = 2_000)]
    in_flight: usize,
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
    let opened = place.open("agents").await?;
    let engine = engine(&opened, Options::default()).await?;
    let agent = adding(&engine, args.calls)?;
    drive(&agent, args, 0, (args.runs / 10).clamp(1, 5_000)).await?;
    let commits = engine.admin().metrics().commits.get();
    let created = engine.admin().metrics().runs_created.get();
    let (runs_per_s, times) = drive(&agent, args, 1_000_000_000, args.runs).await?;
    let created = engine.admin().metrics().runs_created.get() - created;
    let commits = engine.admin().metrics().commits.get() - commits + created;
    let rss = rss_mb();
    engine.stop(std::time::Duration::from_secs(5)).await?;
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("runs", args.runs)
        .put("calls", args.calls)
        .put("in_flight", args.in_flight)
        .put("runs_per_s", runs_per_s)
        .put("calls_per_s", runs_per_s * args.calls as f64)
        .put("p50_ms", times.percentile_ms(0.5))
        .put("p99_ms", times.percentile_ms(0.99))
        .put("commits_per_run", commits as f64 / args.runs as f64)
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
    let workflow = few_steps(&engine, args.calls)?;
    let load = steps::Args {
        target: args.target.clone(),
        runs: args.runs,
        steps: args.calls,
        in_flight: args.in_flight,
        uncalibrated: true,
    };
    steps::drive(&workflow, &load, 0, (args.runs / 10).clamp(1, 5_000)).await?;
    let (rate, _) = steps::drive(&workflow, &load, 1_000_000_000, args.runs).await?;
    engine.stop(std::time::Duration::from_secs(5)).await?;
    Ok(rate)
}

// Like the steps of the other load: each call adds one to a number.
async fn add(workflow: &mut Workflow, next: Continuation) -> CallResult {
    let (n, left): (u64, u64) = (workflow.get("n")?, workflow.get("left")?);
    workflow.set("n", &(n + 1))?;
    workflow.set("left", &(left - 1))?;
    Ok(if left > 1 { next.call("add") } else { next.halt() })
}

fn adding(engine: &Engine, calls: usize) -> anyhow::Result<WorkflowRef<Value, Value>> {
    anyhow::ensure!(calls > 0, "a run has at least one call");
    Ok(engine.agent(Agent::new("load", "add").function("add", add).output("n"))?)
}

async fn drive(
    agent: &WorkflowRef<Value, Value>,
    args: &Args,
    first: u64,
    runs: u64,
) -> anyhow::Result<(f64, Times)> {
    let next = Arc::new(AtomicU64::new(first));
    let calls = args.calls as u64;
    let callers = (args.in_flight as u64).min(runs);
    let started = Instant::now();
    let handles: Vec<_> = (0..callers)
        .map(|_| {
            let (agent, next) = (agent.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut times = Times::default();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= first + runs {
                        return anyhow::Ok(times);
                    }
                    let started = Instant::now();
                    let input = json!({ "n": n, "left": calls });
                    let run = agent.start(input).id(format!("run-{n}")).await?;
                    let sum = run.result().await?;
                    times.add(started.elapsed());
                    anyhow::ensure!(sum == n + calls, "run {n} returned {sum}");
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
