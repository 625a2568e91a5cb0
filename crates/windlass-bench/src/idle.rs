//! `idle`: the activity of a store and its engine while all runs sleep.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use windlass::admin::Options;
use windlass::{Ctx, Engine};

use crate::backend::{Databases, OpenStore, Target};
use crate::report::Report;

/// Options of `idle`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The duration of the measurement in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The number of sleeping runs.
    #[arg(long, default_value_t = 100)]
    runs: u64,
    /// Measure the store without an engine.
    #[arg(long)]
    bare: bool,
}

/// The time in which a store finishes its own work after it was opened.
const SETTLE: Duration = Duration::from_secs(2);
/// The poll interval for PostgreSQL's backends.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Opens a store, waits, and reports its activity.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    Databases::with(&args.target, async |place| watch(args, place).await).await
}

async fn watch(args: &Args, place: &Databases) -> anyhow::Result<Report> {
    let before = threads()?;
    let opened = place.open("idle").await?;
    let wakeups = Arc::new(AtomicU64::new(0));
    let counter = wakeups.clone();
    opened.store().listen(Arc::new(move |_| {
        counter.fetch_add(1, Ordering::Relaxed);
    }));
    let engine = match args.bare {
        true => None,
        false => Some(sleeping(&opened, args.runs).await?),
    };
    tokio::time::sleep(SETTLE).await;
    let (calls_before, cpu_before) = (engine.as_ref().map_or(0, store_calls), cpu_ms());

    let span = Duration::from_secs(args.seconds);
    let mut report = Report::default();
    report.put("store", args.target.name()).put("seconds", args.seconds);
    let minutes = span.as_secs_f64() / 60.0;
    match place {
        Databases::Postgres { .. } => {
            let seen = watch_backends(place, span).await?;
            report
                .put("queries_per_min", seen.queries as f64 / minutes)
                .put("backends", seen.backends);
        }
        _ => {
            // A statement needs at least one wake-up of a thread, so wake-ups are an upper bound.
            let own: BTreeSet<u64> =
                threads()?.into_keys().filter(|id| !before.contains_key(id)).collect();
            let start = switches(&own)?;
            tokio::time::sleep(span).await;
            let end = switches(&own)?;
            report.put("queries_per_min", (end - start) as f64 / minutes).put("threads", own.len());
        }
    }
    report
        .put("wakeups", wakeups.load(Ordering::Relaxed))
        .put("cpu_ms_per_min", (cpu_ms() - cpu_before) / minutes);
    if let Some(engine) = &engine {
        let calls = store_calls(engine) - calls_before;
        report.put("engine_calls_per_min", calls as f64 / minutes).put("sleeping", args.runs);
        if args.target.name() == "sqlite" && calls > 0 {
            report.fail(format!("an idle engine called its embedded store {calls} times"));
        }
        engine.core().shutdown(Duration::from_secs(1)).await?;
    }
    opened.store().close().await?;
    Ok(report)
}

// Starts an engine with runs that sleep for a day.
async fn sleeping(opened: &OpenStore, runs: u64) -> anyhow::Result<Engine> {
    let engine = crate::engine::engine(opened, Options::default()).await?;
    let workflow = engine.workflow("sleeper", |ctx: Ctx, (): ()| async move {
        ctx.sleep("a day", "1 day").await?;
        Ok(())
    })?;
    for _ in 0..runs {
        workflow.start(()).await?;
    }
    while engine.core().load().0 > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(engine)
}

// The number of calls of the engine to its store.
fn store_calls(engine: &Engine) -> u64 {
    let metrics = engine.admin().metrics();
    let counters = [&metrics.claims, &metrics.promotions, &metrics.commits, &metrics.renewals];
    counters.into_iter().map(windlass_engine::Counter::get).sum()
}

// The processor time of this process, with a resolution of 10 ms.
fn cpu_ms() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let field = |n: usize| -> f64 {
        after.split_whitespace().nth(n).and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0)
    };
    (field(11) + field(12)) * 10.0
}

struct BackendActivity {
    queries: u64,
    backends: usize,
}

/// Polls the start time of the last statement of all other backends; each change is a statement.
/// Ignores the monitor itself and backends that are not clients.
async fn watch_backends(place: &Databases, span: Duration) -> anyhow::Result<BackendActivity> {
    let monitor = place.connect().await?;
    let sql = "SELECT pid, query_start::text FROM pg_stat_activity \
               WHERE datname = current_database() AND backend_type = 'client backend' \
               AND pid <> pg_backend_pid()";
    let statement = monitor.prepare(sql).await?;
    let mut last: BTreeMap<i32, Option<String>> = BTreeMap::new();
    let (mut queries, mut first) = (0, true);
    let started = Instant::now();
    while started.elapsed() < span {
        for row in monitor.query(&statement, &[]).await? {
            let (pid, began): (i32, Option<String>) = (row.get(0), row.get(1));
            let changed = last.get(&pid) != Some(&began);
            if changed && !first {
                queries += 1;
            }
            last.insert(pid, began);
        }
        first = false;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(BackendActivity { queries, backends: last.len() })
}

/// The threads of this process, by id, with their names.
fn threads() -> anyhow::Result<BTreeMap<u64, String>> {
    let mut found = BTreeMap::new();
    for entry in
        fs::read_dir("/proc/self/task").context("failed to list the threads of this process")?
    {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if let Ok(id) = entry.file_name().to_string_lossy().parse() {
            found.insert(id, name.trim().to_owned());
        }
    }
    Ok(found)
}

/// The number of voluntary context switches of these threads, which equals their wake-ups.
fn switches(ids: &BTreeSet<u64>) -> anyhow::Result<u64> {
    let mut count = 0;
    for id in ids {
        let status = fs::read_to_string(format!("/proc/self/task/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count += line.context("the count of context switches is missing")?.trim().parse::<u64>()?;
    }
    Ok(count)
}
