//! `reach`: the promises of docs/reliability.md that have numbers: a run that aborts its process,
//! bursts of events from another process, many children, many results at once, many waits.

mod abort;
mod burst;
mod many;

use std::time::{Duration, Instant};

use clap::ValueEnum;

use super::StoreLocation;
use crate::backend::Target;
use crate::report::Report;

pub(crate) use abort::victim;
pub(crate) use burst::sender;

/// How long a condition may take before the workload fails.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(5);

/// Options of `reach`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The promise to try.
    promise: Promise,
    /// The number of runs, events, children, results or waits. Default: that of the promise.
    #[arg(long)]
    count: Option<u64>,
    /// The number of rounds of `burst`.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
}

/// The promises.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Promise {
    /// A run that aborts the process beside 1,000 others: after four restarts it is given up, and
    /// the others finish.
    Abort,
    /// 1,000 events that another process sends in a burst are consumed within a second of the last.
    Burst,
    /// 20,000 long children of one run all begin.
    Children,
    /// 1,600 results of children that arrive at once are settled within two seconds.
    Results,
    /// 2,500 concurrent waits are in the store before the turn is given back.
    Waits,
}

/// Options of the second process.
#[derive(clap::Args)]
pub(crate) struct OtherArgs {
    #[command(flatten)]
    place: StoreLocation,
    /// The number of runs or events.
    #[arg(long)]
    count: u64,
    /// The run that receives events.
    #[arg(long, default_value = "")]
    id: String,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let count = |default| args.count.unwrap_or(default);
    match args.promise {
        Promise::Abort => abort::run(&args.target, count(1_000)).await,
        Promise::Burst => burst::run(&args.target, count(1_000), args.rounds).await,
        Promise::Children => many::children(&args.target, count(20_000)).await,
        Promise::Results => many::results(&args.target, count(1_600)).await,
        Promise::Waits => many::waits(&args.target, count(2_500)).await,
    }
}

/// Waits until a condition holds, and returns how long it took.
async fn until(
    what: &str,
    mut holds: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    while !holds().await? {
        anyhow::ensure!(began.elapsed() < PATIENCE, "timeout: {what}");
        tokio::time::sleep(POLL).await;
    }
    Ok(began.elapsed())
}
