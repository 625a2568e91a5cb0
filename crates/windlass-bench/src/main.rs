//! Benchmarks of Windlass. Most of them compare their result with a calibration on the same
//! machine.
//!
//! docs/benchmarks.md describes the workloads and their figures.

#![allow(clippy::disallowed_methods, reason = "benchmarks need the real clock, tasks and waits")]

mod backend;
mod calibrate;
mod claim;
mod engine;
mod flips;
mod generator;
mod idle;
mod load;
mod records;
mod report;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

use crate::report::Report;

// One thread creates a commit and another drops it. glibc's allocator takes locks for that pattern,
// which costs a fifth of the processor time under load. The `windlass` binary uses the same
// allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Benchmarks of the stores and the engine of Windlass.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
    /// Print one JSON object as the last line.
    #[arg(long, global = true)]
    json: bool,
    /// The number of runtime threads. SQLite's writer is an additional thread.
    #[arg(long, global = true, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

#[derive(Subcommand)]
enum Workload {
    /// Runs of a few steps, written by many concurrent callers directly to the store.
    Store(load::Args),
    /// Writes of records, writers of one record, and the cost of records in a full store.
    Records(records::Args),
    /// The cost of claims on an empty, a full and a crowded store.
    Claim(claim::Args),
    /// The activity of an idle store and engine.
    Idle(idle::Args),
    /// Runs of a few steps through the public API, from many concurrent callers.
    Steps(engine::steps::Args),
    /// Runs of a relay with a few steps, compared with the same load of `steps`.
    Relays(engine::relays::Args),
    /// Runs of an agent with a few local calls, compared with the same load of `steps`.
    Agents(engine::agents::Args),
    /// Calls of many runs in batches, and calls after the end of a rate limit.
    Lanes(engine::lanes::Args),
    /// The process with the provider of `lanes`.
    #[command(hide = true)]
    LanesProvider(engine::lanes::ProviderArgs),
    /// Documents that are created, submitted and approved, compared with the same load of `steps`.
    Contracts(engine::contracts::Args),
    /// Runs of a machine with a few activities, from many concurrent callers.
    Machines(engine::machines::Args),
    /// A queue of empty tasks.
    Tasks(engine::tasks::Args),
    /// A worker process of `tasks`.
    #[command(hide = true)]
    TasksWorker(engine::tasks::WorkerArgs),
    /// A thousand workers, of which some are killed all the time.
    #[command(name = "workers-1000")]
    Workers1000(engine::workers_1000::Args),
    /// The time from scheduling an activity to its start.
    ClaimLatency(engine::claim_latency::Args),
    /// The process of `claim-latency` that serves only the activities.
    #[command(hide = true)]
    ClaimLatencyWorker(engine::claim_latency::WorkerArgs),
    /// How long a cancel request takes to reach the step that runs.
    CancelLatency(engine::cancel_latency::Args),
    /// One run at a time.
    Sequential(engine::sequential::Args),
    /// One run with many waits.
    Waits(engine::waits::Args),
    /// One run with many concurrent steps.
    Fanout(engine::fanout::Args),
    /// How long a tenant waits beside another one with a long queue.
    Fairness(engine::fairness::Args),
    /// A store full of sleeping runs.
    Sleeping(engine::sleeping::Args),
    /// The process that fills the store of `sleeping`.
    #[command(hide = true)]
    SleepingFill(engine::sleeping::FillArgs),
    /// Recovery after a process is killed with runs in flight.
    Recover(engine::recover::Args),
    /// The process that `recover` kills.
    #[command(hide = true)]
    RecoverVictim(engine::recover::VictimArgs),
    /// The promises of docs/reliability.md that have numbers.
    Reach(engine::reach::Args),
    /// The process that a run of `reach abort` aborts.
    #[command(hide = true)]
    ReachAbort(engine::reach::OtherArgs),
    /// The process that sends the events of `reach burst`.
    #[command(hide = true)]
    ReachBurst(engine::reach::OtherArgs),
    /// Flips bits and truncates files: the store must detect it or be unaffected.
    Flips(flips::Args),
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cli.threads.into())
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
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
        Workload::Records(args) => records::run(&args).await,
        Workload::Claim(args) => claim::run(&args).await,
        Workload::Idle(args) => idle::run(&args).await,
        Workload::Steps(args) => engine::steps::run(&args).await,
        Workload::Relays(args) => engine::relays::run(&args).await,
        Workload::Agents(args) => engine::agents::run(&args).await,
        Workload::Lanes(args) => engine::lanes::run(&args).await,
        Workload::LanesProvider(args) => engine::lanes::provider(&args).map(|()| Report::default()),
        Workload::Contracts(args) => engine::contracts::run(&args).await,
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
        Workload::CancelLatency(args) => engine::cancel_latency::run(&args).await,
        Workload::Sequential(args) => engine::sequential::run(&args).await,
        Workload::Waits(args) => engine::waits::run(&args).await,
        Workload::Fanout(args) => engine::fanout::run(&args).await,
        Workload::Fairness(args) => engine::fairness::run(&args).await,
        Workload::Sleeping(args) => engine::sleeping::run(&args).await,
        Workload::SleepingFill(args) => engine::sleeping::fill(&args).await,
        Workload::Recover(args) => engine::recover::run(&args).await,
        Workload::RecoverVictim(args) => {
            engine::recover::victim(&args).await.map(|()| Report::default())
        }
        Workload::Reach(args) => engine::reach::run(&args).await,
        Workload::ReachAbort(args) => {
            engine::reach::victim(&args).await.map(|()| Report::default())
        }
        Workload::ReachBurst(args) => {
            engine::reach::sender(&args).await.map(|()| Report::default())
        }
        Workload::Flips(args) => flips::run(&args).await,
    }
}
