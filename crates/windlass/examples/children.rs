//! Child runs: each is a run of its own, with its own steps, ledger and retries; it ends with its
//! parent.

use windlass::{Ctx, Engine, Result};

async fn chapter(ctx: Ctx, number: u32) -> Result<u32> {
    ctx.sleep("think", "5 ms").await?;
    let words = ctx.step("write", async || Ok(number * 1_000)).await?;
    Ok(words)
}

async fn novel(ctx: Ctx, chapters: u32) -> Result<u32> {
    let mut words = 0;
    for number in 1..=chapters {
        words += ctx.child_named::<_, u32>(format!("chapter {number}"), "chapter", &number).await?;
    }
    Ok(words)
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    engine.workflow("chapter", chapter)?;
    let novels = engine.workflow("novel", novel)?;
    let run = novels.start(3).id("novel-1").await?;
    println!("{} words", run.result().await?);
    for step in run.steps().await? {
        println!("{} {} {}", step.kind, step.name, step.status);
    }
    engine.stop("1 second").await?;
    Ok(())
}
