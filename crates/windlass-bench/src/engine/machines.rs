//! `machines`: runs of a state machine with a few activities each, from many callers at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, MachineRef, Workflow, WorkflowAction,
};
use windlass::{Engine, Options};

use super::{engine, rss_mb};
use crate::backend::{Place, Target};
use crate::load;
use crate::report::{Report, Times};

/// Options of `machines`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) target: Target,
    /// How many runs.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) runs: u64,
    /// Activities a run, one after the other.
    #[arg(long, default_value_t = 3)]
    pub(crate) activities: u64,
    /// How many callers at once.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) in_flight: usize,
    /// Leave out the comparison with the bare store.
    #[arg(long)]
    pub(crate) uncalibrated: bool,
}

/// A few activities, one after the other.
pub(crate) struct Few {
    sum: u64,
    left: u64,
}

impl Few {
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

impl Workflow for Few {
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

/// Gives one, and notes how long it took from being asked for to being begun.
pub(crate) struct One(pub(crate) Arc<parking_lot::Mutex<Times>>);

impl Activity for One {
    const TYPE: &'static str = "one";
    type Input = u64;
    type Output = u64;

    async fn execute(&self, _: &ActivityContext, asked: u64) -> Result<u64, ActivityError> {
        let waited = clock_us().saturating_sub(asked);
        self.0.lock().add(std::time::Duration::from_micros(waited));
        Ok(1)
    }
}

// A machine's callbacks are pure; this one only carries the time to whoever measures. That may be another
// process of the same machine, so it is the machine's clock.
fn clock_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// The bare store before and after, so that a machine that slows down meanwhile slows both.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Place::new(&args.target)?;
    let result = measure(args, &place).await;
    place.remove().await?;
    result
}

/// Registers the machine and its activity; the times are from asked for to begun.
pub(crate) fn serve(
    engine: &Engine,
) -> anyhow::Result<(MachineRef<Few>, Arc<parking_lot::Mutex<Times>>)> {
    let waited = Arc::new(parking_lot::Mutex::new(Times::default()));
    engine.register_activity(One(Arc::clone(&waited)))?;
    Ok((engine.machine::<Few>()?, waited))
}

async fn measure(args: &Args, place: &Place) -> anyhow::Result<Report> {
    let steps = args.activities as usize;
    let bare = async |name: &str| -> anyhow::Result<Option<f64>> {
        match args.uncalibrated {
            true => Ok(None),
            false => load::bare(place, name, args.runs, steps, args.in_flight).await.map(Some),
        }
    };
    let before = bare("before").await?;
    let opened = place.open("machines").await?;
    let engine = engine(&opened, Options::default()).await?;
    let (machines, waited) = serve(&engine)?;
    drive(&machines, args, 0, (args.runs / 10).clamp(1, 2_000)).await?;
    let (commits, at_hand) = counted(&engine);
    *waited.lock() = Times::default();
    let (runs_per_s, times) = drive(&machines, args, 1_000_000_000, args.runs).await?;
    let (commits, at_hand) = {
        let (now, now_at_hand) = counted(&engine);
        (now - commits, now_at_hand - at_hand)
    };
    let (replays, rss) = (engine.metrics().replays.get(), rss_mb());
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
        .put("at_hand_per_run", at_hand as f64 / args.runs as f64)
        .put("replays", replays)
        .put("rss_mb", rss);
    if let (Some(before), Some(after)) = (before, after) {
        let mean = (before + after) / 2.0;
        report.put("store_runs_per_s", mean).put("ratio", runs_per_s / mean);
    }
    Ok(report)
}

/// Starts runs from many callers and waits for each.
pub(crate) async fn drive(
    machines: &MachineRef<Few>,
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
                    let begun = Instant::now();
                    let run = machines.start((n, activities)).id(format!("run-{n}")).await?;
                    let sum = run.result().await?;
                    times.add(begun.elapsed());
                    anyhow::ensure!(sum == n + activities, "run {n} gave {sum}");
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

// Commits of turns so far, and how many of them settled an activity.
fn counted(engine: &Engine) -> (u64, u64) {
    (engine.metrics().commits.get(), engine.metrics().turns_at_hand.get())
}
