//! Two processes on one PostgreSQL: one starts runs, the other serves them.
//!
//! `two_processes serve postgres://…` in one terminal, `two_processes start postgres://…` in
//! another. Start a second server and kill the first: the runs go on.

use std::time::Duration;

use windlass::{AnyError, Ctx, Engine, Result};

async fn square(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.sleep("wait", "100 ms").await?;
    let squared = ctx.step("square", async || Ok(n * n)).await?;
    Ok(squared)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (role, store) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    if !store.starts_with("postgres") {
        return Err(AnyError::msg(
            "usage: two_processes serve|start postgres://USER@HOST/DATABASE",
        ));
    }
    let engine = Engine::builder().worker_name(&role).open(&store).await?;
    match role.as_str() {
        "serve" => {
            engine.workflow("square", square)?;
            println!("serving");
            tokio::signal::ctrl_c().await?;
        }
        _ => {
            let squares = engine.remote_workflow::<u64, u64>("square")?;
            for n in 1..=5_u64 {
                let run = squares.start(n).await?;
                println!("{n} squared is {}", run.result().await?);
            }
        }
    }
    engine.stop(Duration::from_secs(5)).await?;
    Ok(())
}
