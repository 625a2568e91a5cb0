//! The smallest durable program: kill it whenever you like and start it again.

use windlass::{Ctx, Engine, Result};

async fn hello(ctx: Ctx, name: String) -> Result<String> {
    let text = ctx.step("compose", async || Ok(format!("Hello, {name}!"))).await?;
    ctx.sleep("pause for effect", "50 ms").await?;
    Ok(ctx.step("shout", async || Ok(text.to_uppercase())).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let engine = Engine::open("sqlite://hello.db").await?;
    let hellos = engine.workflow("hello", hello)?;
    let run = hellos.start("world".into()).id("hello-world").await?;
    println!("{}", run.result().await?);
    engine.stop("1 second").await?;
    Ok(())
}
