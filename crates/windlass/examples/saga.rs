//! A saga: what was done is undone, in reverse, if a later step fails for good.

use windlass::{AnyError, Ctx, Engine, NonRetryable, Result};

async fn book(what: &str, trip: &str) -> Result<String> {
    if what == "car" && trip.contains("island") {
        return Err(NonRetryable::new("there are no cars on the island").named("NoCar").into());
    }
    println!("booked {what}");
    Ok(format!("{what}-for-{trip}"))
}

async fn cancel(booking: &str) -> Result<()> {
    println!("cancelled {booking}");
    Ok(())
}

async fn trip(ctx: Ctx, trip: String) -> Result<Vec<String>> {
    let mut booked: Vec<String> = Vec::new();
    for what in ["flight", "hotel", "car"] {
        match ctx.step(format!("book {what}"), || book(what, &trip)).retries(2).await {
            Ok(booking) => booked.push(booking),
            Err(failure) => {
                // Undoing must succeed some day, so it is tried for ever.
                for booking in booked.iter().rev() {
                    let key = format!("cancel {booking}");
                    ctx.step(key, || cancel(booking))
                        .retries(windlass::RetryLimit::Forever)
                        .await?;
                }
                return Err(AnyError::from(failure));
            }
        }
    }
    Ok(booked)
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    let trips = engine.workflow("trip", trip)?;
    println!("{:?}", trips.start("mountains".into()).await?.result().await?);
    let failed = trips.start("island".into()).await?.result().await;
    println!("{}", failed.expect_err("the island has no cars"));
    engine.stop("1 second").await?;
    Ok(())
}
