//! `fanout`: one run with many concurrent steps, whose commits must be grouped.

use std::time::Instant;

use futures::stream::{FuturesUnordered, TryStreamExt as _};
use windlass::admin::Options;
use windlass::{AnyError, Ctx, Limits};

use super::{fresh, rss_mb};
use crate::backend::Target;
use crate::report::Report;

/// Options of `fanout`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of concurrent steps.
    #[arg(long, default_value_t = 10_000)]
    steps: u64,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let limits = Limits { steps_per_run_max: args.steps as usize, ..Limits::DEFAULT };
    let (place, _opened, engine) =
        fresh(&args.target, Options { limits, ..Options::default() }).await?;
    let workflow = engine.workflow("fanout", |ctx: Ctx, steps: u64| async move {
        let all: FuturesUnordered<_> = (0..steps)
            .map(|n| ctx.step(format!("part-{n}"), move || async move { Ok(n) }))
            .collect();
        let parts: Vec<u64> = all.try_collect().await?;
        Ok::<u64, AnyError>(parts.iter().sum())
    })?;
    let started = Instant::now();
    let run = workflow.start(args.steps).await?;
    let sum = run.result().await?;
    let took = started.elapsed();
    anyhow::ensure!(sum == args.steps * (args.steps - 1) / 2, "the sum is {sum}");
    let commits = engine.admin().metrics().commits.get() + 1;
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("steps", args.steps)
        .put("took_ms", took.as_secs_f64() * 1e3)
        .put("steps_per_s", args.steps as f64 / took.as_secs_f64())
        .put("commits", commits)
        .put("rss_mb", rss_mb());
    if commits > args.steps / 10 {
        report.fail(format!("{commits} commits for {} concurrent steps", args.steps));
    }
    engine.stop(std::time::Duration::from_secs(1)).await?;
    place.remove().await?;
    Ok(report)
}
