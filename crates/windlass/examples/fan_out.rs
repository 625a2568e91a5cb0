//! Concurrent steps: `join!` for a few, `FuturesUnordered` for many. Each is recorded by itself,
//! and their commits are grouped.

#![allow(clippy::disallowed_methods, reason = "bodies of steps live in the real world")]

use std::time::Duration;

use futures::stream::{FuturesUnordered, TryStreamExt};
use windlass::{AnyError, Ctx, Engine, Result};

async fn price(shop: &str, item: u64) -> Result<u64> {
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(100 + item * shop.len() as u64)
}

async fn compare(ctx: Ctx, item: u64) -> Result<String> {
    let (near, far) = tokio::try_join!(
        ctx.step("near", || price("corner", item)),
        ctx.step("far", || price("mall", item)),
    )?;
    let offers: FuturesUnordered<_> = (0..20_u64)
        .map(|n| ctx.step(format!("online-{n}"), move || price("web", item + n)))
        .collect();
    let online: Vec<u64> = offers.try_collect().await?;
    let best = online.into_iter().chain([near, far]).min().ok_or_else(|| AnyError::msg("none"))?;
    Ok(format!("item {item}: {best}"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    let compares = engine.workflow("compare", compare)?;
    let run = compares.start(7).await?;
    println!("{}", run.result().await?);
    println!("{} commits", engine.admin().metrics().commits.get());
    engine.stop("1 second").await?;
    Ok(())
}
