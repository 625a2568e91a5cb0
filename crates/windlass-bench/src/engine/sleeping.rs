//! `sleeping`: the cost of a store full of sleeping runs in memory, at opening and in claims, and
//! the delay of runs that are due. Another process fills the store, so that the memory of this
//! process is that of an engine that only opened it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windlass::admin::Options;
use windlass::kernel::{ClaimFilter, ClaimOrder, ClaimRequest, QueueName, Route, RouteName};
use windlass::{Ctx, Engine, Timestamp, WorkflowRef};

use super::{StoreLocation, engine, rss_mb};
use crate::backend::{Databases, OpenStore, Target};
use crate::generator::now;
use crate::report::{Report, Times};

/// Options of `sleeping`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of runs that sleep for a year.
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// The size of the run cache in megabytes.
    #[arg(long, default_value_t = 64)]
    run_cache_mb: usize,
}

/// Options of the process that fills the store.
#[derive(clap::Args)]
pub(crate) struct FillArgs {
    #[command(flatten)]
    place: StoreLocation,
    #[arg(long)]
    runs: u64,
}

type WakeTimes = Arc<Mutex<Vec<(Timestamp, Timestamp)>>>;

// Sleeps until a time and records when it continued. Both times are of this machine's clock, which
// is also the clock of the store.
fn sleeper(engine: &Engine, woken: &WakeTimes) -> anyhow::Result<WorkflowRef<i64, ()>> {
    let woken = Arc::clone(woken);
    Ok(engine.workflow("sleeper", move |ctx: Ctx, at_us: i64| {
        let woken = Arc::clone(&woken);
        async move {
            let at = Timestamp::from_micros(at_us);
            ctx.sleep_until("until", at).await?;
            woken.lock().push((at, now()));
            Ok(())
        }
    })?)
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| measure(args, place).await).await
}

/// The process that fills the store.
pub(crate) async fn fill(args: &FillArgs) -> anyhow::Result<Report> {
    let opened = args.place.open().await?;
    let engine = engine(&opened, Options::default()).await?;
    let workflow = sleeper(&engine, &WakeTimes::default())?;
    let year = now().plus(Duration::from_secs(360 * 24 * 60 * 60)).as_micros();
    let started = Instant::now();
    let mut n = 0;
    while n < args.runs {
        let chunk = (args.runs - n).min(5_000);
        let batch = (n..n + chunk).map(|n| (format!("sleeper-{n}"), year));
        workflow.start_batch(batch).await?;
        n += chunk;
    }
    while engine.core().load().0 > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut report = Report::default();
    report
        .put("filled_runs_per_s", args.runs as f64 / started.elapsed().as_secs_f64())
        .put("filled_rss_mb", rss_mb())
        .put("filled_in_memory", engine.core().load().1);
    engine.stop(Duration::from_secs(60)).await?;
    Ok(report)
}

async fn measure(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let mut report = Report::default();
    report.put("store", args.target.name()).put("runs", args.runs);
    let woken = WakeTimes::default();
    let options =
        Options { run_cache_bytes_max: args.run_cache_mb * 1024 * 1024, ..Options::default() };
    let empty_ms = claim_ms(&place.open("empty").await?).await?;
    let mut command = place.process_command("sleeping-fill", "sleeping")?;
    let filled = command.args(["--runs", &args.runs.to_string()]).status()?;
    anyhow::ensure!(filled.success(), "failed to fill the store");
    let before = rss_mb();
    let started = Instant::now();
    let opened = place.open("sleeping").await?;
    let engine = engine(&opened, options.clone()).await?;
    let workflow = sleeper(&engine, &woken)?;
    report.put("open_ms", started.elapsed().as_secs_f64() * 1e3);
    tokio::time::sleep(Duration::from_secs(1)).await;
    report.put("rss_mb", rss_mb()).put("rss_mb_more_than_before", rss_mb() - before);
    let full_ms = claim_ms(&opened).await?;
    report
        .put("claim_empty_p50_ms", empty_ms)
        .put("claim_p50_ms", full_ms)
        .put("claim_ratio", full_ms / empty_ms);

    let spread = lateness(&workflow, &woken, 1_000, Duration::from_secs(1)).await?;
    report
        .put("due_1000_in_a_second_p50_ms", spread.percentile_ms(0.5))
        .put("due_1000_in_a_second_p99_ms", spread.percentile_ms(0.99));
    let at_once = lateness(&workflow, &woken, 10_000, Duration::ZERO).await?;
    report.put("due_10000_at_once_last_ms", at_once.percentile_ms(1.0));
    let early = woken.lock().iter().filter(|(at, woke_at)| woke_at < at).count();
    report.put("early", early);
    if early > 0 {
        report.fail(format!("{early} runs continued before their time"));
    }
    engine.stop(Duration::from_secs(5)).await?;
    Ok(report)
}

// The median duration of claiming one ready turn of a workflow that has no worker.
async fn claim_ms(opened: &OpenStore) -> anyhow::Result<f64> {
    let store = opened.store();
    let host = engine(opened, Options { background: false, ..Options::default() }).await?;
    let workflow = host.remote_workflow::<u64, u64>("claimed")?;
    let route = Route { queue: QueueName::new("default")?, name: RouteName::new("claimed")? };
    let mut times = Times::default();
    for n in 0..500 {
        workflow.start(n).id(format!("claimed-{n}")).await?;
        let request = ClaimRequest {
            worker: host.admin().worker(),
            turns: ClaimFilter { routes: vec![route.clone()], max: 1, after: None },
            tasks: ClaimFilter::default(),
            order: ClaimOrder::Priority,
            offer: Duration::ZERO,
        };
        let started = Instant::now();
        let claims = store.claim(request).await?;
        times.add(started.elapsed());
        anyhow::ensure!(claims.turns.len() == 1, "the claim must return one turn");
    }
    Ok(times.percentile_ms(0.5))
}

// The delays of runs that are due within a time span, starting some seconds from now.
async fn lateness(
    workflow: &WorkflowRef<i64, ()>,
    woken: &WakeTimes,
    runs: u64,
    span: Duration,
) -> anyhow::Result<Times> {
    let first = now().plus(Duration::from_secs(5));
    let batch = (0..runs).map(|n| {
        let at = first.plus(span * (n as u32) / (runs as u32));
        (format!("due-{}-{n}", first.as_micros()), at.as_micros())
    });
    woken.lock().clear();
    let handles = workflow.start_batch(batch.collect::<Vec<_>>()).await?;
    for handle in handles {
        handle.result().await?;
    }
    let mut times = Times::default();
    for (at, woke_at) in woken.lock().iter() {
        times.add(woke_at.since(*at));
    }
    Ok(times)
}
