//! The load for every peer: runs of three steps, concurrent or sequential, with the arguments and
//! figures of `windlass-bench steps` and `sequential`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use serde_json::{Map, Value, json};

// Same allocator as Windlass, for a fair comparison.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Steps of a run. Not an option, because some peers have the number of steps in their types.
pub const STEPS: u64 = 3;
/// The time limit of one run.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);
/// The number of the first measured run; lower numbers are the warm-up.
const MEASURED: u64 = 1_000_000_000;

/// The command line of a peer program.
#[derive(Parser)]
pub struct Args {
    #[command(subcommand)]
    load: Load,
    /// The data location: an empty directory, or the address of an empty database.
    #[arg(long, global = true, default_value = "")]
    place: String,
}

#[derive(Subcommand)]
enum Load {
    /// Concurrent callers; each starts a run and waits for its result.
    Steps {
        /// The number of runs.
        #[arg(long, default_value_t = 2_000)]
        runs: u64,
        /// The number of callers.
        #[arg(long, default_value_t = 100)]
        in_flight: u64,
    },
    /// One run at a time.
    Sequential {
        /// The number of runs.
        #[arg(long, default_value_t = 200)]
        runs: u64,
    },
}

/// A peer that is ready to run.
pub trait Peer: Send + Sync + 'static {
    /// Starts run `n` and waits for its result, which is `n` plus one for each step.
    fn run(&self, n: u64) -> impl Future<Output = anyhow::Result<u64>> + Send;
}

impl Args {
    /// Parses the command line.
    #[must_use]
    pub fn read() -> Self {
        Self::parse()
    }

    /// The data location.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The maximum number of concurrent runs, for peers that configure their workers.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        match self.load {
            Load::Steps { in_flight, .. } => usize::try_from(in_flight).unwrap_or(usize::MAX),
            Load::Sequential { .. } => 1,
        }
    }
}

/// Runs a future on a runtime with the same number of threads as `windlass-bench`.
///
/// # Errors
///
/// If the system cannot create threads.
pub fn block_on<T>(body: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let result = runtime.block_on(body);
    // Workers of a peer may never end.
    runtime.shutdown_background();
    result
}

/// Runs the load and prints the figures as one JSON object.
///
/// # Errors
///
/// If a run fails, returns a wrong result, or exceeds [`TIME_LIMIT`].
pub async fn measure(args: &Args, peer: impl Peer) -> anyhow::Result<()> {
    let peer = Arc::new(peer);
    let mut report = Map::new();
    let (runs_per_s, mut times) = match args.load {
        Load::Steps { runs, in_flight } => {
            drive(&peer, 0, (runs / 10).clamp(1, 5_000), in_flight).await?;
            drive(&peer, MEASURED, runs, in_flight).await?
        }
        Load::Sequential { runs } => drive(&peer, MEASURED, runs, 1).await?,
    };
    times.sort_unstable();
    report.insert("runs_per_s".to_owned(), json!(runs_per_s));
    report.insert("p50_ms".to_owned(), json!(percentile_ms(&times, 0.5)));
    report.insert("p99_ms".to_owned(), json!(percentile_ms(&times, 0.99)));
    println!("{}", Value::Object(report));
    Ok(())
}

async fn drive<P: Peer>(
    peer: &Arc<P>,
    first: u64,
    runs: u64,
    in_flight: u64,
) -> anyhow::Result<(f64, Vec<Duration>)> {
    let next = Arc::new(AtomicU64::new(first));
    let started = Instant::now();
    let callers: Vec<_> = (0..in_flight.min(runs))
        .map(|_| tokio::spawn(call(Arc::clone(peer), Arc::clone(&next), first + runs)))
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.context("a caller panicked")??);
    }
    Ok((runs as f64 / started.elapsed().as_secs_f64(), times))
}

async fn call<P: Peer>(
    peer: Arc<P>,
    next: Arc<AtomicU64>,
    end: u64,
) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        if n >= end {
            return Ok(times);
        }
        let begun = Instant::now();
        let sum = tokio::time::timeout(TIME_LIMIT, peer.run(n))
            .await
            .with_context(|| format!("run {n} timed out after {TIME_LIMIT:?}"))?
            .with_context(|| format!("run {n} failed"))?;
        times.push(begun.elapsed());
        ensure!(sum == n + STEPS, "run {n} returned {sum} instead of {}", n + STEPS);
    }
}

fn percentile_ms(sorted: &[Duration], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Adds(u64);

    impl Peer for Adds {
        async fn run(&self, n: u64) -> anyhow::Result<u64> {
            Ok(n + self.0)
        }
    }

    #[test]
    fn every_run_is_executed_and_timed_once() {
        let (_, times) = block_on(drive(&Arc::new(Adds(STEPS)), MEASURED, 50, 7)).unwrap();
        assert_eq!(times.len(), 50);
    }

    #[test]
    fn a_wrong_result_is_an_error() {
        let error = block_on(drive(&Arc::new(Adds(1)), MEASURED, 3, 1)).unwrap_err();
        assert!(error.to_string().contains("returned 1000000001"), "{error}");
    }

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let times: Vec<Duration> = (1..=10).map(Duration::from_millis).collect();
        for (share, expect) in [(0.5, 5.0), (0.99, 10.0), (0.0, 1.0)] {
            assert!((percentile_ms(&times, share) - expect).abs() < 1e-9);
        }
    }
}
