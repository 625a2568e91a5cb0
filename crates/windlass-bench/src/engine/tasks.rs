//! `tasks`: a queue full of bare tasks that do nothing, drained by one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use windlass::kernel::{Body, BoxFuture, Commit, Op};
use windlass::{Options, RetryPolicy, TaskContext, TaskHandler, TaskResult};

use super::engine;
use crate::backend::{Place, Target};
use crate::report::Report;

/// Options of `tasks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many tasks.
    #[arg(long, default_value_t = 50_000)]
    tasks: u64,
    /// How many are held at once.
    #[arg(long, default_value_t = 256)]
    slots: usize,
}

struct Nothing(Arc<AtomicU64>);

impl TaskHandler for Nothing {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Ok(Body::json("null")) })
    }
}

/// Fills the queue, then begins to serve it.
pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let place = Place::new(&args.target)?;
    let result = measure(args, &place).await;
    place.remove().await?;
    result
}

async fn measure(args: &Args, place: &Place) -> anyhow::Result<Report> {
    let opened = place.open("tasks").await?;
    let options = Options { tasks_max: args.slots, ..Options::default() };
    let engine = engine(&opened, options).await?;
    let filling = Instant::now();
    for from in (0..args.tasks).step_by(1_000) {
        let mut ops = Vec::new();
        for _ in from..(from + 1_000).min(args.tasks) {
            let input = RawValue::from_string("1".into())?;
            let task = engine.effect("nothing", None, input, RetryPolicy::none())?;
            ops.push(Op::Enqueue(Box::new(task)));
        }
        let answers = engine.store().commit(vec![Commit::new(None, None, ops)]).await;
        answers.into_iter().try_for_each(|answer| answer.map(|_| ()))?;
    }
    let filled = filling.elapsed();
    let done = Arc::new(AtomicU64::new(0));
    let draining = Instant::now();
    engine.serve_effects("nothing", Arc::new(Nothing(Arc::clone(&done))))?;
    while engine.metrics().tasks_completed.get() < args.tasks {
        tokio::time::sleep(Duration::from_millis(2)).await;
        anyhow::ensure!(draining.elapsed() < Duration::from_secs(600), "the queue does not drain");
    }
    let drained = draining.elapsed();
    while engine.store().health().await?.tasks.held.count > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let claims = engine.metrics().claims.get();
    engine.stop(Duration::from_secs(5)).await?;
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("tasks", args.tasks)
        .put("slots", args.slots)
        .put("tasks_per_s", args.tasks as f64 / drained.as_secs_f64())
        .put("enqueued_per_s", args.tasks as f64 / filled.as_secs_f64())
        .put("claims", claims);
    if done.load(Ordering::Relaxed) != args.tasks {
        report.fail(format!(
            "{} tasks were begun {} times",
            args.tasks,
            done.load(Ordering::Relaxed)
        ));
    }
    Ok(report)
}
