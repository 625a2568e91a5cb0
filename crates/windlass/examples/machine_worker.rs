//! A worker process of its own: it serves one activity on a queue, and no workflow.
//!
//! `machine_worker postgres://USER@HOST/DATABASE photos` beside a process whose machine schedules the
//! activity `develop` on the queue `photos`. Start as many as there is work for; kill one, or freeze it
//! with SIGSTOP: another does the work, and the frozen one's result is refused.

#![allow(clippy::disallowed_methods, reason = "activities live in the real world")]

use std::time::Duration;

use windlass::machines::{Activity, ActivityContext, ActivityError};
use windlass::{Engine, Result};

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
        return Err("usage: machine_worker postgres://USER@HOST/DATABASE QUEUE".into());
    }
    let engine = Engine::builder().worker_name("worker").open(&store).await?;
    engine.register_activity_on(&queue, Develop)?;
    println!("serving {queue}");
    tokio::signal::ctrl_c().await?;
    engine.stop(Duration::from_secs(5)).await?;
    Ok(())
}
