//! The smallest durable program: kill it whenever you like and start it again.

use windlass::{BoxError, Ctx, Engine, Result};

async fn hello(ctx: Ctx, name: String) -> Result<String> {
    let greeting =
        ctx.step("compose", async || Ok::<_, BoxError>(format!("Hello, {name}!"))).await?;
    ctx.sleep("pause for effect", "50 ms").await?;
    ctx.step("shout", async || Ok::<_, BoxError>(greeting.to_uppercase())).await.map_err(Into::into)
}

#[tokio::main]
async fn main() -> Result<()> {
    let engine = Engine::open("sqlite://hello.db").await?;
    let hellos = engine.workflow("hello", hello)?;
    let run = hellos.start("world".into()).id("hello-world").await?;
    println!("{}", run.result().await?);
    engine.stop(std::time::Duration::from_secs(1)).await?;
    Ok(())
}
