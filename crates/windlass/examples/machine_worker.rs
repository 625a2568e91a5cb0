//! A worker process of its own: it serves one activity on a queue, and no workflow.
//!
//! `machine_worker postgres://USER@HOST/DATABASE photos` beside a process whose machine schedules the
//! activity `develop` on the queue `photos`. Start as many as there is work for; kill one, or freeze it
//! with SIGSTOP: another does the work, and the frozen one's result is refused. Asked to stop with Ctrl-C
//! or SIGTERM, it takes nothing new and finishes what it has begun. A third argument is its lease in
//! seconds: how soon others take what a dead or frozen worker held.

#![allow(clippy::disallowed_methods, reason = "activities live in the real world")]

use std::time::Duration;

use windlass::admin::Options;
use windlass::machines::{Activity, ActivityContext, ActivityError};
use windlass::{AnyError, Result};

struct Develop;

impl Activity for Develop {
    const TYPE: &'static str = "develop";
    /// How long it takes, in milliseconds.
    type Input = u64;
    type Output = String;

    async fn execute(&self, ctx: &ActivityContext, millis: u64) -> Result<String, ActivityError> {
        println!("attempt {} of {} begins", ctx.attempt, ctx.activity_id);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        println!("attempt {} of {} is over", ctx.attempt, ctx.activity_id);
        Ok(format!("developed by process {}", std::process::id()))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (store, queue) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    if !store.starts_with("postgres") || queue.is_empty() {
        return Err(AnyError::msg(
            "usage: machine_worker postgres://USER@HOST/DATABASE QUEUE [LEASE]",
        ));
    }
    let lease = Duration::from_secs(args.next().unwrap_or_else(|| "30".into()).parse()?);
    let options = Options { lease, renew_every: lease / 6, shared: true, ..Options::default() };
    let engine = windlass::Builder::from(options).worker_name("worker").open(&store).await?;
    engine.machine_activity_on(&queue, Develop)?;
    println!("serving {queue}");
    asked_to_stop().await?;
    engine.stop(Duration::from_secs(5)).await?;
    println!("stopped");
    Ok(())
}

#[cfg(unix)]
async fn asked_to_stop() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        _ = terminated.recv() => Ok(()),
    }
}

#[cfg(not(unix))]
async fn asked_to_stop() -> Result<()> {
    Ok(tokio::signal::ctrl_c().await?)
}
