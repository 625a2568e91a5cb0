//! Workloads of Windlass, each measured against a calibration of the same run.
//!
//! docs/benchmarks.md says how each is run and what its figures mean.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark lives in the real world: it reads clocks, starts tasks and waits"
)]

mod backend;
mod calibrate;
mod claim;
mod engine;
mod flips;
mod idle;
mod load;
mod report;
mod script;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::report::Report;

// A commit is made by one thread and dropped by another, which the allocator of glibc pays for with
// locks: a fifth of the processor time of a load. The binary `windlass` has the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures Windlass's stores and engine.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
    /// Print one JSON object as the last line.
    #[arg(long, global = true)]
    json: bool,
    /// Threads of the runtime. SQLite's writer is a thread beside them.
    #[arg(long, global = true, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

#[derive(Subcommand)]
enum Workload {
    /// Runs of a few steps, committed step by step by many callers at once.
    Store(load::Args),
    /// Claims from an empty, a full and a crowded store, and whether they drift.
    Claim(claim::Args),
    /// What a store and an engine do when there is nothing to do.
    Idle(idle::Args),
    /// Runs of a few steps through the public API, from many callers at once.
    Steps(engine::steps::Args),
    /// Runs of a few steps of a relay, beside the same load of `steps`.
    Relays(engine::relays::Args),
    /// Runs of a machine with a few activities, from many callers at once.
    Machines(engine::machines::Args),
    /// A queue full of tasks that do nothing.
    Tasks(engine::tasks::Args),
    /// A process of `tasks`.
    #[command(hide = true)]
    TasksWorker(engine::tasks::WorkerArgs),
    /// A thousand workers, some of which die all the time.
    #[command(name = "workers-1000")]
    Workers1000(engine::workers_1000::Args),
    /// How long activities wait before they are begun.
    ClaimLatency(engine::claim_latency::Args),
    /// The process of `claim-latency` that serves only the activities.
    #[command(hide = true)]
    ClaimLatencyWorker(engine::claim_latency::WorkerArgs),
    /// One run at a time.
    Sequential(engine::sequential::Args),
    /// One run with many waits.
    Waits(engine::waits::Args),
    /// One run with many concurrent steps.
    Fanout(engine::fanout::Args),
    /// A store full of runs that sleep.
    Sleeping(engine::sleeping::Args),
    /// The process that fills the store of `sleeping`.
    #[command(hide = true)]
    SleepingFill(engine::sleeping::FillArgs),
    /// A process is killed with runs in flight.
    Recover(engine::recover::Args),
    /// The process that `recover` kills.
    #[command(hide = true)]
    RecoverVictim(engine::recover::VictimArgs),
    /// Flipped bits and cut files: each is noticed, or changes nothing.
    Flips(flips::Args),
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cli.threads.into())
        .enable_all()
        .build()
        .context("the runtime does not start")?;
    let report = runtime.block_on(run(cli.workload))?;
    report.print(cli.json);
    if report.failed() {
        std::process::exit(1);
    }
    Ok(())
}

async fn run(workload: Workload) -> anyhow::Result<Report> {
    match workload {
        Workload::Store(args) => load::run(&args).await,
        Workload::Claim(args) => claim::run(&args).await,
        Workload::Idle(args) => idle::run(&args).await,
        Workload::Steps(args) => engine::steps::run(&args).await,
        Workload::Relays(args) => engine::relays::run(&args).await,
        Workload::Machines(args) => engine::machines::run(&args).await,
        Workload::Tasks(args) => engine::tasks::run(&args).await,
        Workload::TasksWorker(args) => {
            engine::tasks::process(&args).await.map(|()| Report::default())
        }
        Workload::Workers1000(args) => engine::workers_1000::run(&args).await,
        Workload::ClaimLatency(args) => engine::claim_latency::run(&args).await,
        Workload::ClaimLatencyWorker(args) => {
            engine::claim_latency::process(&args).await.map(|()| Report::default())
        }
        Workload::Sequential(args) => engine::sequential::run(&args).await,
        Workload::Waits(args) => engine::waits::run(&args).await,
        Workload::Fanout(args) => engine::fanout::run(&args).await,
        Workload::Sleeping(args) => engine::sleeping::run(&args).await,
        Workload::SleepingFill(args) => engine::sleeping::fill(&args).await,
        Workload::Recover(args) => engine::recover::run(&args).await,
        Workload::RecoverVictim(args) => {
            engine::recover::victim(&args).await.map(|()| Report::default())
        }
        Workload::Flips(args) => flips::run(&args).await,
    }
}
