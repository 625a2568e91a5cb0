//! A schedule: every second here, or by a cron expression in a time zone.

#![allow(clippy::disallowed_methods, reason = "the program itself lives in the real world")]

use std::time::Duration;

use windlass::{Ctx, Engine, Result};

async fn report(ctx: Ctx, team: String) -> Result<String> {
    let firing = ctx.run().id.clone();
    let line = async || Ok(format!("report for {team}, {firing}"));
    let line = ctx.step("write", line).await?;
    println!("{line}");
    Ok(line)
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    let reports = engine.workflow("report", report)?;

    reports
        .schedule("nightly", &"sales".into())
        .cron("0 3 * * *")
        .time_zone("Europe/Berlin")
        .await?;
    reports.schedule("often", &"ops".into()).every("1 second").await?;

    tokio::time::sleep(Duration::from_millis(2_500)).await;
    for schedule in engine.admin().schedules().await? {
        println!("{}: last {:?}, next {:?}", schedule.name, schedule.last_at, schedule.next_at);
    }
    engine.admin().delete_schedule("often").await?;
    engine.stop("1 second").await?;
    Ok(())
}
