//! `sleeping`: a store full of runs that sleep. What they cost in memory, at opening and in claims,
//! and how late those are that are due. Another process fills the store, so that the memory of this
//! one is that of an engine which has opened it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use windlass::kernel::{ClaimOrder, ClaimRequest, QueueName, Route, RouteName, Want};
use windlass::{BoxError, Ctx, Engine, Options, Timestamp, WorkflowRef};

use super::{Elsewhere, engine, rss_mb};
use crate::backend::{Opened, Place, Target};
use crate::report::{Report, Times};
use crate::script::now;

/// Options of `sleeping`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many runs sleep for a year.
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// How many megabytes of them may stay in memory.
    #[arg(long, default_value_t = 64)]
    sticky_mb: usize,
}

/// What the process that fills the store gets.
#[derive(clap::Args)]
pub(crate) struct FillArgs {
    #[command(flatten)]
    place: Elsewhere,
    #[arg(long)]
    runs: u64,
}

type Woken = Arc<Mutex<Vec<(Timestamp, Timestamp)>>>;

// Sleeps until a time and notes when it went on; the two are compared on this machine's clock,
// which is the store's here.
fn sleeper(engine: &Engine, woken: &Woken) -> anyhow::Result<WorkflowRef<i64, ()>> {
    let woken = Arc::clone(woken);
    Ok(engine.workflow("sleeper", move |ctx: Ctx, at_us: i64| {
        let woken = Arc::clone(&woken);
        async move {
            let at = Timestamp::from_micros(at_us);
            ctx.sleep_until("until", at).await?;
            woken.lock().push((at, now()));
            Ok::<_, BoxError>(())
        }
    })?)
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Place::new(&args.target)?;
    let result = measure(args, &place).await;
    place.remove().await?;
    result
}

/// The process that fills the store.
pub(crate) async fn fill(args: &FillArgs) -> anyhow::Result<Report> {
    let opened = args.place.open().await?;
    let engine = engine(&opened, Options::default()).await?;
    let workflow = sleeper(&engine, &Woken::default())?;
    let year = now().plus(Duration::from_secs(360 * 24 * 60 * 60)).as_micros();
    let begun = Instant::now();
    let mut n = 0;
    while n < args.runs {
        let chunk = (args.runs - n).min(5_000);
        let batch = (n..n + chunk).map(|n| (format!("sleeper-{n}"), year));
        workflow.start_batch(batch).await?;
        n += chunk;
    }
    while engine.load().0 > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut report = Report::default();
    report
        .put("filled_runs_per_s", args.runs as f64 / begun.elapsed().as_secs_f64())
        .put("filled_rss_mb", rss_mb())
        .put("filled_in_memory", engine.load().1);
    engine.stop(Duration::from_secs(60)).await?;
    Ok(report)
}

async fn measure(args: &Args, place: &Place) -> anyhow::Result<Report> {
    let mut report = Report::default();
    report.put("store", args.target.name()).put("runs", args.runs);
    let woken = Woken::default();
    let options = Options { sticky_bytes_max: args.sticky_mb * 1024 * 1024, ..Options::default() };
    let empty_ms = claim_ms(&place.open("empty").await?).await?;
    let mut command = place.elsewhere("sleeping-fill", "sleeping")?;
    let filled = command.args(["--runs", &args.runs.to_string()]).status()?;
    anyhow::ensure!(filled.success(), "the store was not filled");
    let before = rss_mb();
    let begun = Instant::now();
    let opened = place.open("sleeping").await?;
    let engine = engine(&opened, options.clone()).await?;
    let workflow = sleeper(&engine, &woken)?;
    report.put("open_ms", begun.elapsed().as_secs_f64() * 1e3);
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
    let early = woken.lock().iter().filter(|(at, went_on)| went_on < at).count();
    report.put("early", early);
    if early > 0 {
        report.fail(format!("{early} runs went on before their time"));
    }
    engine.stop(Duration::from_secs(5)).await?;
    Ok(report)
}

// The median of claims of one turn that is ready, of a workflow that nobody serves.
async fn claim_ms(opened: &Opened) -> anyhow::Result<f64> {
    let store = opened.store();
    let host = engine(opened, Options { background: false, ..Options::default() }).await?;
    let workflow = host.remote_workflow::<u64, u64>("claimed")?;
    let route = Route { queue: QueueName::new("default")?, name: RouteName::new("claimed")? };
    let mut times = Times::default();
    for n in 0..500 {
        workflow.start(n).id(format!("claimed-{n}")).await?;
        let request = ClaimRequest {
            worker: host.worker(),
            turns: Want { routes: vec![route.clone()], max: 1 },
            tasks: Want::default(),
            order: ClaimOrder::Priority,
        };
        let begun = Instant::now();
        let claims = store.claim(request).await?;
        times.add(begun.elapsed());
        anyhow::ensure!(claims.turns.len() == 1, "there is one turn to claim");
    }
    Ok(times.percentile_ms(0.5))
}

// How late runs go on that are due within a span, some seconds from now.
async fn lateness(
    workflow: &WorkflowRef<i64, ()>,
    woken: &Woken,
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
    for (at, went_on) in woken.lock().iter() {
        times.add(went_on.since(*at));
    }
    Ok(times)
}
