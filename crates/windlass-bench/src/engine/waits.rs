//! `waits`: one run with many waits. The cost of a wake-up must not grow.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use windlass::Ctx;
use windlass::admin::Options;

use super::fresh;
use crate::backend::Target;
use crate::report::{Report, Times};

/// Options of `waits`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// The number of waits.
    #[arg(long, default_value_t = 1_000)]
    waits: u64,
    /// Use sleeps instead of events.
    #[arg(long)]
    sleeps: bool,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let (place, _opened, engine) = fresh(&args.target, Options::default()).await?;
    let (sender, mut receiver) = mpsc::unbounded_channel::<u64>();
    let sender = Arc::new(sender);
    let (waits, sleeps) = (args.waits, args.sleeps);
    let workflow = engine.workflow("waits", move |ctx: Ctx, (): ()| {
        let sender = Arc::clone(&sender);
        async move {
            for n in 0..waits {
                if sleeps {
                    ctx.sleep(format!("wait-{n}"), "1 ms").await?;
                } else {
                    ctx.event::<u64>(format!("wait-{n}"), "go").await?;
                }
                let _ = sender.send(n);
            }
            Ok(())
        }
    })?;
    let run = workflow.start(()).await?;
    let mut times = Times::default();
    for n in 0..waits {
        let started = Instant::now();
        if !sleeps {
            run.send_event("go", &n).await?;
        }
        receiver.recv().await;
        times.add(started.elapsed());
    }
    run.result().await?;
    let hundred = 100.0 / waits as f64;
    let first = times.part(0.0, hundred).percentile_ms(0.5);
    let last = times.part(1.0 - hundred, 1.0).percentile_ms(0.5);
    let mut report = Report::default();
    report
        .put("store", args.target.name())
        .put("waits", waits)
        .put("of", if sleeps { "sleeps of 1 ms" } else { "events" })
        .put("first_100_p50_ms", first)
        .put("last_100_p50_ms", last)
        .put("ratio", last / first)
        .put("replays", engine.admin().metrics().replays.get());
    engine.stop(std::time::Duration::from_secs(1)).await?;
    place.remove().await?;
    Ok(report)
}
