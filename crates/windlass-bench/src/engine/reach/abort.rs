//! A run that aborts its process beside others.

use std::process::Stdio;
use std::time::{Duration, Instant};

use windlass::admin::Options;
use windlass::{Ctx, Engine, RunStatus, WorkflowRef};

use super::OtherArgs;
use crate::backend::{Databases, Target};
use crate::engine::engine as engine_on;
use crate::report::Report;

/// The run that aborts, among the first ones.
const POISON: &str = "run-7";
const STARTS_MAX: u32 = 20;
/// A process that has aborted must be noticed before the next one may take its runs over.
const LEASE: Duration = Duration::from_secs(3);

/// A short step, so that other runs are in flight when the process aborts.
fn register(engine: &Engine) -> anyhow::Result<WorkflowRef<(), ()>> {
    Ok(engine.workflow("reach-abort", |ctx: Ctx, (): ()| async move {
        let id = ctx.run().id.clone();
        for step in 0..3 {
            let poison = id == POISON && step == 1;
            let body = move || async move {
                if poison {
                    std::process::abort();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                Ok(())
            };
            ctx.step(format!("step-{step}"), body).await?;
        }
        Ok(())
    })?)
}

fn options() -> Options {
    let (lease, renew_every) = (LEASE, LEASE / 6);
    Options { lease, renew_every, scan_every: Duration::from_secs(1), ..Options::default() }
}

/// The process that aborts. It starts the runs, unless they exist, and ends when all have ended.
pub(crate) async fn victim(args: &OtherArgs) -> anyhow::Result<()> {
    let opened = args.place.open().await?;
    let engine = engine_on(&opened, options()).await?;
    let workflow = register(&engine)?;
    let batch = (0..args.count + 1).map(|n| (format!("run-{n}"), ()));
    workflow.start_batch(batch.collect::<Vec<_>>()).await?;
    // The batch leaves out runs that exist.
    for n in 0..=args.count {
        // The run that was given up has an error.
        let _ = workflow.get(format!("run-{n}")).await?.result().await;
    }
    engine.stop(Duration::from_secs(5)).await?;
    Ok(())
}

pub(super) async fn run(target: &Target, count: u64) -> anyhow::Result<Report> {
    Databases::with(target, async |place| measure(target, place, count).await).await
}

async fn measure(target: &Target, place: &Databases, count: u64) -> anyhow::Result<Report> {
    let began = Instant::now();
    let mut aborts = 0;
    loop {
        let mut command = place.process_command("reach-abort", "reach")?;
        command.args(["--count", &count.to_string()]);
        // An abort prints nothing of interest.
        let status = tokio::task::spawn_blocking(move || command.stderr(Stdio::null()).status());
        if status.await??.success() {
            break;
        }
        aborts += 1;
        anyhow::ensure!(aborts < STARTS_MAX, "the run is not given up after {aborts} aborts");
    }
    let took = began.elapsed();
    let opened = place.open("reach").await?;
    let engine = engine_on(&opened, Options { background: false, ..options() }).await?;
    let workflow = register(&engine)?;
    let (mut finished, mut given_up) = (0_u64, Vec::new());
    for n in 0..=count {
        let run = workflow.get(format!("run-{n}")).await?.run().await?;
        match run.status {
            RunStatus::Complete => finished += 1,
            status => given_up.push(format!("{}: {status:?}", run.id)),
        }
    }
    engine.stop(Duration::from_secs(1)).await?;
    let mut report = Report::default();
    report
        .put("store", target.name())
        .put("runs", count + 1)
        .put("aborts", aborts)
        .put("finished", finished)
        .put("given_up", given_up.join(", "))
        .put("secs", took.as_secs_f64());
    if finished != count || aborts > 4 {
        report.fail(format!("{finished} of {count} runs finished after {aborts} aborts"));
    }
    Ok(report)
}
