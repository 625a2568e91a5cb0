//! `cancel_latency`: the time from a cancel request to the token of the step that runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windlass::Engine;
use windlass::admin::Options;
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, RunSpec, StepOutcome, StepRunner};

use super::claim_latency::commit_ms;
use super::engine;
use crate::backend::{Databases, Target};
use crate::report::{Report, Times};

/// Options of `cancel_latency`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many runs are cancelled one after the other.
    #[arg(long, default_value_t = 100)]
    runs: usize,
    /// How many runs are cancelled at once.
    #[arg(long, default_value_t = 500)]
    many: usize,
}

/// Cancels runs from the engine that serves them, from another one, and many at once.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let before = commit_ms(place, "before").await?;
    let opened = place.open("cancel_latency").await?;
    let serves = engine(&opened, Options::default()).await?;
    let beside = match opened.is_shared() {
        true => Some(place.open("cancel_latency").await?),
        false => None,
    };
    // A store of one process is shared by both engines.
    let asks = engine(beside.as_ref().unwrap_or(&opened), Options::default()).await?;
    let mut report = Report::default();
    report.put("store", args.target.name());
    let mut there_ms = 0.0;
    for (name, asks, rounds, at_once) in [
        ("here", &serves, args.runs, 1),
        ("there", &asks, args.runs, 1),
        ("many", &asks, 3, args.many),
    ] {
        let times = cancel(name, &serves, asks, rounds, at_once).await?;
        there_ms = if name == "there" { times.percentile_ms(0.5) } else { there_ms };
        report
            .put(&format!("{name}_cancel_to_token_p50_ms"), times.percentile_ms(0.5))
            .put(&format!("{name}_cancel_to_token_max_ms"), times.percentile_ms(1.0));
    }
    asks.stop(Duration::from_secs(5)).await?;
    serves.stop(Duration::from_secs(5)).await?;
    let commit_ms = f64::midpoint(before, commit_ms(place, "after").await?);
    report
        .put("commit_ms", commit_ms)
        .put("there_cancel_to_token_in_commits", there_ms / commit_ms);
    Ok(report)
}

/// Which runs have begun, and when their tokens fired.
#[derive(Default)]
struct Seen {
    begun: usize,
    fired: HashMap<String, Instant>,
}

struct UntilCancelled(Arc<Mutex<Seen>>);

impl StepRunner for UntilCancelled {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        self.0.lock().begun += 1;
        step.cancel_token.cancelled().await;
        self.0.lock().fired.insert(step.run_id.clone(), Instant::now());
        Ok(StepOutcome::done(""))
    }
}

async fn cancel(
    name: &str,
    serves: &Engine,
    asks: &Engine,
    rounds: usize,
    at_once: usize,
) -> anyhow::Result<Times> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let relay = serves.relay(name, UntilCancelled(Arc::clone(&seen)), NoopTerminalHook).build()?;
    let cancels = asks.remote_relay(name)?;
    let mut times = Times::default();
    for round in 0..rounds {
        let ids: Vec<String> = (0..at_once).map(|n| format!("{round}-{n}")).collect();
        let specs = ids.iter().map(|id| RunSpec::new("").id(id)).collect();
        relay.group(format!("g{round}")).start(specs).await?;
        while seen.lock().begun < (round + 1) * at_once {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let mut handles = Vec::new();
        for id in &ids {
            handles.push(cancels.get(id).await?);
        }
        let asked = Instant::now();
        let cancelled = handles.iter().map(|run| run.cancel("measured"));
        for cancelled in futures::future::join_all(cancelled).await {
            anyhow::ensure!(cancelled?, "a run ended before it was cancelled");
        }
        let seen = seen.lock();
        for id in &ids {
            let fired = seen.fired.get(id);
            anyhow::ensure!(fired.is_some(), "the token of {id} did not fire");
            fired.into_iter().for_each(|fired| times.add(*fired - asked));
        }
    }
    Ok(times)
}
