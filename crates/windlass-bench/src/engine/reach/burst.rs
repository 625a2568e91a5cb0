//! Bursts of events from another process.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use windlass::admin::Options;
use windlass::{Ctx, Engine, WorkflowRef};

use super::{OtherArgs, until};
use crate::backend::{Databases, Target};
use crate::engine::{engine as engine_on, fresh};
use crate::report::{Report, Times};

/// The promise: from the last send to the end of the run.
const PROMISED: Duration = Duration::from_secs(1);

fn register(engine: &Engine) -> anyhow::Result<WorkflowRef<u64, u64>> {
    Ok(engine.workflow("reach-burst", |ctx: Ctx, count: u64| async move {
        let mut sum = 0;
        for n in 0..count {
            sum += ctx.event::<u64>(format!("event-{n}"), "go").await?;
        }
        Ok(sum)
    })?)
}

/// Sends the events concurrently, and prints the time of the last answer.
pub(crate) async fn sender(args: &OtherArgs) -> anyhow::Result<()> {
    let opened = args.place.open().await?;
    let engine = engine_on(&opened, Options { background: false, ..Options::default() }).await?;
    let workflow = engine.remote_workflow::<u64, u64>("reach-burst")?;
    let run = workflow.get(&args.id).await?;
    let sends = (0..args.count).map(|_| run.send_event("go", &1_u64));
    futures::future::try_join_all(sends).await?;
    println!("{}", since_epoch()?.as_micros());
    engine.stop(Duration::from_secs(1)).await?;
    Ok(())
}

fn since_epoch() -> anyhow::Result<Duration> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.context("the clock is before 1970")
}

pub(super) async fn run(target: &Target, count: u64, rounds: u32) -> anyhow::Result<Report> {
    anyhow::ensure!(target.name() == "postgres", "only PostgreSQL has several processes");
    let (place, _opened, engine) = fresh(target, Options::default()).await?;
    let result = measure(target, &place, &engine, count, rounds).await;
    engine.stop(Duration::from_secs(1)).await?;
    place.remove().await?;
    result
}

async fn measure(
    target: &Target,
    place: &Databases,
    engine: &Engine,
    count: u64,
    rounds: u32,
) -> anyhow::Result<Report> {
    let workflow = register(engine)?;
    let (mut times, mut sends, mut late) = (Times::default(), Times::default(), 0);
    for _ in 0..rounds {
        let run = workflow.start(count).await?;
        until("the run waits for its first event", async || Ok(!run.steps().await?.is_empty()))
            .await?;
        let mut command = place.process_command("reach-burst", "engine")?;
        command.args(["--count", &count.to_string(), "--id", run.id()]);
        let began = Instant::now();
        let sending = tokio::task::spawn_blocking(move || command.output());
        let sum = run.result().await?;
        let ended = since_epoch()?;
        let output = sending.await??;
        anyhow::ensure!(output.status.success(), "the sender failed: {output:?}");
        anyhow::ensure!(sum == count, "{sum} of {count} events were consumed");
        let last_send = String::from_utf8_lossy(&output.stdout).trim().parse()?;
        let took = ended.saturating_sub(Duration::from_micros(last_send));
        late += u32::from(took > PROMISED);
        sends.add(began.elapsed());
        times.add(took);
    }
    let mut report = Report::default();
    report
        .put("store", target.name())
        .put("events", count)
        .put("rounds", rounds)
        .put("sender_process_p50_ms", sends.percentile_ms(0.5))
        .put("after_last_send_p50_ms", times.percentile_ms(0.5))
        .put("after_last_send_max_ms", times.percentile_ms(1.0))
        .put("rounds_later_than_a_second", late);
    if late > 0 {
        report.fail(format!("{late} of {rounds} rounds took longer than a second"));
    }
    Ok(report)
}
