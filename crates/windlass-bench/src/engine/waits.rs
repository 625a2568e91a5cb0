//! `waits`: one run with many waits. A wake-up must cost the same however many came before.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use windlass::{BoxError, Ctx, Options};

use super::fresh;
use crate::backend::Target;
use crate::report::{Report, Times};

/// Options of `waits`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How many waits.
    #[arg(long, default_value_t = 1_000)]
    waits: u64,
    /// Sleeps instead of events.
    #[arg(long)]
    sleeps: bool,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<Report> {
    let (place, _opened, engine) = fresh(&args.target, Options::default()).await?;
    let (told, mut heard) = mpsc::unbounded_channel::<u64>();
    let told = Arc::new(told);
    let (waits, sleeps) = (args.waits, args.sleeps);
    let workflow = engine.workflow("waits", move |ctx: Ctx, (): ()| {
        let told = Arc::clone(&told);
        async move {
            for n in 0..waits {
                if sleeps {
                    ctx.sleep(format!("wait-{n}"), "1 ms").await?;
                } else {
                    ctx.event::<u64>(format!("wait-{n}"), "go").await?;
                }
                let _ = told.send(n);
            }
            Ok::<_, BoxError>(())
        }
    })?;
    let run = workflow.start(()).await?;
    let mut times = Times::default();
    for n in 0..waits {
        let begun = Instant::now();
        if !sleeps {
            run.send_event("go", &n).await?;
        }
        heard.recv().await;
        times.add(begun.elapsed());
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
        .put("replays", engine.metrics().replays.get());
    engine.stop(std::time::Duration::from_secs(1)).await?;
    place.remove().await?;
    Ok(report)
}
