//! `claim_latency`: the time from scheduling an activity to its start.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use windlass::admin::Options;

use super::machines::{self, ActivityChain, TimedActivity, drive, serve};
use super::{StoreLocation, engine};
use crate::backend::{Databases, Target};
use crate::load;
use crate::report::{Report, Times};

/// Options of `claim_latency`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of sequential runs of three activities.
    #[arg(long, default_value_t = 500)]
    idle: u64,
    /// The number of concurrent runs of three activities.
    #[arg(long, default_value_t = 3_000)]
    loaded: u64,
}

/// Options of the process that serves only the activities.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    place: StoreLocation,
}

/// Measures one caller, then many.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let before = commit_ms(place, "before").await?;
    let opened = place.open("claim_latency").await?;
    let engine = engine(&opened, Options::default()).await?;
    let (few, waited) = serve(&engine)?;
    let mut report = Report::default();
    report.put("store", args.target.name());
    let mut idle = 0.0;
    let cases = [("idle", args.idle, 1), ("loaded", args.loaded, 500)];
    for (n, (name, runs, in_flight)) in cases.into_iter().enumerate() {
        let with = runs_of(args, runs, in_flight);
        let first = 1_000_000_000 * (n as u64 + 1);
        drive(&few, &with, first, (runs / 10).max(1)).await?;
        *waited.lock() = Times::default();
        let (runs_per_s, times) = drive(&few, &with, first + 100_000_000, runs).await?;
        let waited = waited.lock();
        if in_flight == 1 {
            idle = waited.percentile_ms(0.5);
        }
        report
            .put(&format!("{name}_runs_per_s"), runs_per_s)
            .put(&format!("{name}_schedule_to_start_p50_ms"), waited.percentile_ms(0.5))
            .put(&format!("{name}_schedule_to_start_p99_ms"), waited.percentile_ms(0.99))
            .put(&format!("{name}_run_p50_ms"), times.percentile_ms(0.5));
    }
    engine.stop(Duration::from_secs(5)).await?;
    let across = match opened.is_shared() {
        true => Some(measure_two_processes(args, place).await?),
        false => None,
    };
    let commit_ms = f64::midpoint(before, commit_ms(place, "after").await?);
    report.put("commit_ms", commit_ms).put("idle_schedule_to_start_in_commits", idle / commit_ms);
    if let Some([p50_ms, p99_ms]) = across {
        report
            .put("across_schedule_to_start_p50_ms", p50_ms)
            .put("across_schedule_to_start_p99_ms", p99_ms)
            .put("across_schedule_to_start_in_commits", p50_ms / commit_ms);
    }
    Ok(report)
}

fn runs_of(args: &Args, runs: u64, in_flight: usize) -> machines::Args {
    machines::Args {
        target: args.target.clone(),
        runs,
        activities: 3,
        in_flight,
        uncalibrated: true,
    }
}

/// Measures one caller while this process serves the machine and another process serves its
/// activities, so that each must notify the other. Returns the median and the 99th percentile of
/// the time from scheduling to start.
async fn measure_two_processes(args: &Args, place: &Databases) -> anyhow::Result<[f64; 2]> {
    let name = "across";
    let opened = place.open(name).await?;
    let engine = engine(&opened, Options::default()).await?;
    let few = engine.machine::<ActivityChain>()?;
    let mut command = place.process_command("claim-latency-worker", name)?;
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.context("failed to start the worker process")?;
    let mut worker_input =
        child.stdin.take().context("the worker process has no standard input")?;
    let mut lines =
        BufReader::new(child.stdout.take().context("the worker process has no standard output")?)
            .lines();
    lines.next().context("the worker process ended early")??;
    drive(&few, &runs_of(args, args.idle, 1), 3_000_000_000, (args.idle / 10).max(1)).await?;
    worker_input.write_all(b"reset\n")?;
    drive(&few, &runs_of(args, args.idle, 1), 4_000_000_000, args.idle).await?;
    drop(worker_input);
    let line = lines.next().context("the worker process ended early")??;
    child.wait()?;
    engine.stop(Duration::from_secs(5)).await?;
    let figures: (u64, f64, f64) = serde_json::from_str(&line)?;
    let asked = args.idle * 3;
    // The last activities of the warm-up may be counted late.
    anyhow::ensure!(figures.0 >= asked, "{asked} activities were started {} times", figures.0);
    Ok([figures.1, figures.2])
}

/// The process that serves only the activities. A line on standard input resets its times; at the
/// end of the input it prints them.
pub(crate) async fn process(args: &WorkerArgs) -> anyhow::Result<()> {
    let opened = args.place.open().await?;
    let engine = engine(&opened, Options::default()).await?;
    let waited = Arc::new(parking_lot::Mutex::new(Times::default()));
    engine.machine_activity(TimedActivity(Arc::clone(&waited)))?;
    println!("ready");
    let (mut lines, mut line) = (std::io::stdin().lock(), String::new());
    lines.read_line(&mut line)?;
    *waited.lock() = Times::default();
    lines.read_line(&mut line)?;
    engine.stop(Duration::from_secs(5)).await?;
    let waited = waited.lock();
    let figures = (waited.len(), waited.percentile_ms(0.5), waited.percentile_ms(0.99));
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

/// The duration of one sequential commit.
pub(super) async fn commit_ms(place: &Databases, name: &str) -> anyhow::Result<f64> {
    let (runs, steps) = (200, 3);
    let runs_per_s = load::bare_store_rate(place, name, runs, steps, 1).await?;
    Ok(1e3 / (runs_per_s * (steps + 2) as f64))
}
