//! A sign-up that waits: a mail, a day of patience, and a person who confirms or does not.
//!
//! `cargo run --example signup [STORE]`; the store is a file by default, so that it can be killed.

use serde::{Deserialize, Serialize};
use windlass::{AnyError, Ctx, Engine, ErrorCode, Result};

#[derive(Debug, Serialize, Deserialize)]
struct Confirmation {
    by: String,
}

async fn send_mail(to: &str, text: &str) -> Result<String> {
    println!("mail to {to}: {text}");
    Ok(format!("mail-{}", to.len()))
}

async fn signup(ctx: Ctx, mail: String) -> Result<String> {
    ctx.step("send code", || send_mail(&mail, "please confirm")).retries(3).await?;
    ctx.sleep("let the mail arrive", "20 ms").await?;
    let waited = ctx.event::<Confirmation>("wait for code", "confirmed").timeout("1 day").await;
    match waited {
        Ok(confirmation) => {
            ctx.log().info(format!("confirmed by {}", confirmation.by))?;
            ctx.step("welcome", || send_mail(&mail, "welcome")).await?;
            Ok(format!("{mail} is in"))
        }
        // Nobody answered in time: that is an outcome, not a failure.
        Err(error) if error.code == ErrorCode::EventTimeout => Ok(format!("{mail} did not answer")),
        Err(error) => Err(AnyError::from(error)),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "sqlite://signup.db".into());
    let engine = Engine::open(&store).await?;
    let signups = engine.workflow("signup", signup)?;
    let run =
        signups.start("ann@example.com".into()).id("signup-ann").label("plan", "free").await?;
    if !run.existed() {
        run.send_event("confirmed", &Confirmation { by: "ann".into() }).await?;
    }
    println!("{}", run.result().await?);
    for event in run.events().await? {
        println!("{:3} {}", event.ordinal, event.event_type);
    }
    engine.stop("1 second").await?;
    Ok(())
}
