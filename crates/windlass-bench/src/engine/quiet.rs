//! `quiet`: what an engine does when there is nothing to do, with runs that sleep for a day.

use std::time::Duration;

use windlass::{BoxError, Ctx, Options};

use super::fresh;
use crate::backend::Target;
use crate::report::Report;

/// Options of `quiet`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// For how many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many runs sleep meanwhile.
    #[arg(long, default_value_t = 100)]
    runs: u64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let (place, _opened, engine) = fresh(&args.target, Options::default()).await?;
    let workflow = engine.workflow("sleeper", |ctx: Ctx, (): ()| async move {
        ctx.sleep("a day", "1 day").await?;
        Ok::<_, BoxError>(())
    })?;
    for _ in 0..args.runs {
        workflow.start(()).await?;
    }
    while engine.load().0 > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = |engine: &windlass::Engine| {
        let metrics = engine.metrics();
        metrics.claims.get()
            + metrics.promotions.get()
            + metrics.commits.get()
            + metrics.renewals.get()
    };
    let (before, cpu_before) = (asked(&engine), cpu_ms());
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let (calls, cpu) = (asked(&engine) - before, cpu_ms() - cpu_before);
    let minutes = args.seconds as f64 / 60.0;
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("seconds", args.seconds)
        .put("sleeping", args.runs)
        .put("calls_per_minute", calls as f64 / minutes)
        .put("cpu_ms_per_minute", cpu / minutes);
    if args.target.name() == "sqlite" && calls > 0 {
        report.fail(format!("an idle engine asked its embedded store {calls} times"));
    }
    engine.stop(Duration::from_secs(1)).await?;
    place.remove().await?;
    Ok(report)
}

// Of this process, from its start, in ticks of 10 ms.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let field = |n: usize| -> f64 {
        after.split_whitespace().nth(n).and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0)
    };
    (field(11) + field(12)) * 10.0
}
