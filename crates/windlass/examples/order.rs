//! Step-scoped SQL: the application's own rows are written in the same transaction that records the
//! step, so they are there if and only if the step is.
//!
//! `cargo run --example order [STORE]`, with a file or PostgreSQL; there is no SQL in memory.

use windlass::{Ctx, Engine, Result, SqlValue};

async fn order(ctx: Ctx, (item, postgres): (String, bool)) -> Result<String> {
    // The table is the application's; a real program makes it with its own migrations.
    ctx.step_tx("make table", |tx| async move {
        tx.execute("CREATE TABLE IF NOT EXISTS shop_orders (id text PRIMARY KEY, item text)", []);
        Ok(())
    })
    .await?;
    let id = ctx.run().id.clone();
    let insert = match postgres {
        true => "INSERT INTO shop_orders VALUES ($1, $2)",
        false => "INSERT INTO shop_orders VALUES (?1, ?2)",
    };
    ctx.step_tx("write order", |tx| {
        let (id, item) = (id.clone(), item.clone());
        async move {
            tx.execute(insert, [SqlValue::Text(id), SqlValue::Text(item)]);
            Ok(())
        }
    })
    .await?;
    // A unique violation is a failure that no retry can help, and the code can catch it.
    let again = ctx
        .step_tx("write it twice", |tx| {
            let (id, item) = (id.clone(), item.clone());
            async move {
                tx.execute(insert, [SqlValue::Text(id), SqlValue::Text(item)]);
                Ok(())
            }
        })
        .await;
    Ok(format!("{item}: once, and then {}", again.expect_err("the key is taken").name))
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "sqlite://order.db".into());
    let engine = Engine::open(&store).await?;
    let orders = engine.workflow("order", order)?;
    let postgres = store.starts_with("postgres");
    let run = orders.start(("a lamp".into(), postgres)).await?;
    println!("{}", run.result().await?);
    engine.stop("1 second").await?;
    Ok(())
}
