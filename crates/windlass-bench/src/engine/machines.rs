//! `machines`: runs of a state machine with a few activities, from many concurrent callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};
use windlass::admin::Options;
use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
use windlass::{Engine, WorkflowRef};

use super::{engine, rss_mb};
use crate::backend::{Databases, Target};
use crate::load;
use crate::report::{Report, Times};

/// Options of `machines`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The number of runs.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) runs: u64,
    /// The number of sequential activities of a run.
    #[arg(long, default_value_t = 3)]
    pub(crate) activities: u64,
    /// The number of concurrent callers.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) in_flight: usize,
    /// Omit the comparison with the bare store.
    #[arg(long)]
    pub(crate) uncalibrated: bool,
}

/// A machine that executes a few activities in sequence.
pub(crate) struct ActivityChain {
    sum: u64,
    left: u64,
}

impl ActivityChain {
    fn next(&mut self) -> Vec<WorkflowAction> {
        match self.left {
            0 => vec![WorkflowAction::complete(json!(self.sum))],
            left => {
                self.left -= 1;
                vec![WorkflowAction::activity(format!("a{left}"), "one", json!(clock_us()))]
            }
        }
    }
}

impl Workflow for ActivityChain {
    const TYPE: &'static str = "few";
    type Input = (u64, u64);
    type Output = u64;

    fn new((sum, left): (u64, u64)) -> Self {
        Self { sum, left }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        self.next()
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        self.sum += result.as_u64().unwrap_or_default();
        self.next()
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

/// An activity that returns 1 and records the time from its scheduling to its start.
pub(crate) struct TimedActivity(pub(crate) Arc<parking_lot::Mutex<Times>>);

impl Activity for TimedActivity {
    const TYPE: &'static str = "one";
    type Input = u64;
    type Output = u64;

    async fn execute(&self, _: &ActivityContext, asked: u64) -> Result<u64, ActivityError> {
        let waited = clock_us().saturating_sub(asked);
        self.0.lock().add(std::time::Duration::from_micros(waited));
        Ok(1)
    }
}

// Callbacks of a machine should be pure; this one only passes a time to the measurement. Uses the
// system clock, because the activity may run in another process.
fn clock_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// Measures the bare store before and after, so that a slower machine affects both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

/// The registered machine, and the times from scheduling its activities to their start.
type Served = (WorkflowRef<(u64, u64), u64>, Arc<parking_lot::Mutex<Times>>);

/// Registers the machine and its activity.
pub(crate) fn serve(engine: &Engine) -> anyhow::Result<Served> {
    let waited = Arc::new(parking_lot::Mutex::new(Times::default()));
    engine.machine_activity(TimedActivity(Arc::clone(&waited)))?;
    Ok((engine.machine::<ActivityChain>()?, waited))
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let steps = args.activities as usize;
    let bare = async |name: &str| -> anyhow::Result<Option<f64>> {
        match args.uncalibrated {
            true => Ok(None),
            false => {
                load::bare_store_rate(place, name, args.runs, steps, args.in_flight).await.map(Some)
            }
        }
    };
    let before = bare("before").await?;
    let opened = place.open("machines").await?;
    let engine = engine(&opened, Options::default()).await?;
    let (machines, waited) = serve(&engine)?;
    drive(&machines, args, 0, (args.runs / 10).clamp(1, 2_000)).await?;
    let (commits, local) = counted(&engine);
    *waited.lock() = Times::default();
    let (runs_per_s, times) = drive(&machines, args, 1_000_000_000, args.runs).await?;
    let (commits, local) = {
        let (now, now_local) = counted(&engine);
        (now - commits, now_local - local)
    };
    let (replays, rss) = (engine.admin().metrics().replays.get(), rss_mb());
    engine.stop(std::time::Duration::from_secs(5)).await?;
    let after = bare("after").await?;

    let mut report = Report::default();
    let waited = waited.lock();
    report
        .put("store", args.target.name())
        .put("runs", args.runs)
        .put("activities", args.activities)
        .put("in_flight", args.in_flight)
        .put("runs_per_s", runs_per_s)
        .put("activities_per_s", runs_per_s * args.activities as f64)
        .put("p50_ms", times.percentile_ms(0.5))
        .put("p99_ms", times.percentile_ms(0.99))
        .put("schedule_to_start_p50_ms", waited.percentile_ms(0.5))
        .put("schedule_to_start_p99_ms", waited.percentile_ms(0.99))
        .put("turn_commits_per_run", commits as f64 / args.runs as f64)
        .put("at_hand_per_run", local as f64 / args.runs as f64)
        .put("replays", replays)
        .put("rss_mb", rss);
    if let (Some(before), Some(after)) = (before, after) {
        let mean = (before + after) / 2.0;
        report.put("store_runs_per_s", mean).put("ratio", runs_per_s / mean);
    }
    Ok(report)
}

/// Starts runs from concurrent callers and waits for each.
pub(crate) async fn drive(
    machines: &WorkflowRef<(u64, u64), u64>,
    args: &Args,
    first: u64,
    runs: u64,
) -> anyhow::Result<(f64, Times)> {
    let next = Arc::new(AtomicU64::new(first));
    let activities = args.activities;
    let callers = (args.in_flight as u64).min(runs);
    let started = Instant::now();
    let handles: Vec<_> = (0..callers)
        .map(|_| {
            let (machines, next) = (machines.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut times = Times::default();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= first + runs {
                        return anyhow::Ok(times);
                    }
                    let started = Instant::now();
                    let run = machines.start((n, activities)).id(format!("run-{n}")).await?;
                    let sum = run.result().await?;
                    times.add(started.elapsed());
                    anyhow::ensure!(sum == n + activities, "run {n} returned {sum}");
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

// The number of turn commits, and of those that completed an activity locally.
fn counted(engine: &Engine) -> (u64, u64) {
    (engine.admin().metrics().commits.get(), engine.admin().metrics().turns_completed_locally.get())
}
