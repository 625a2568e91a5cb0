//! `claim_latency`: how long an activity waits from being asked for to being begun.

use std::time::Duration;

use windlass::Options;

use super::engine;
use super::machines::{self, drive, serve};
use crate::backend::{Place, Target};
use crate::load;
use crate::report::{Report, Times};

/// Options of `claim_latency`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many runs of three activities, one run at a time.
    #[arg(long, default_value_t = 500)]
    idle: u64,
    /// How many runs of three activities under load.
    #[arg(long, default_value_t = 3_000)]
    loaded: u64,
}

/// One caller, then many.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Place::new(&args.target)?;
    let result = measure(args, &place).await;
    place.remove().await?;
    result
}

async fn measure(args: &Args, place: &Place) -> anyhow::Result<Report> {
    let before = commit_ms(place, "before").await?;
    let opened = place.open("claim_latency").await?;
    let engine = engine(&opened, Options::default()).await?;
    let (few, waited) = serve(&engine)?;
    let mut report = Report::default();
    report.put("store", args.target.name());
    let mut idle = 0.0;
    let cases = [("idle", args.idle, 1), ("loaded", args.loaded, 500)];
    for (n, (name, runs, in_flight)) in cases.into_iter().enumerate() {
        let with = machines::Args {
            target: args.target.clone(),
            runs,
            activities: 3,
            in_flight,
            uncalibrated: true,
        };
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
    let commit_ms = f64::midpoint(before, commit_ms(place, "after").await?);
    report.put("commit_ms", commit_ms).put("idle_schedule_to_start_in_commits", idle / commit_ms);
    Ok(report)
}

/// What one commit takes when there is one at a time.
async fn commit_ms(place: &Place, name: &str) -> anyhow::Result<f64> {
    let (runs, steps) = (200, 3);
    let runs_per_s = load::bare(place, name, runs, steps, 1).await?;
    Ok(1e3 / (runs_per_s * (steps + 2) as f64))
}
