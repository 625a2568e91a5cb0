//! A relay of one step: bytes in, bytes out, and a hook that hears how each run ended.
//!
//! `cargo run --example relay_single [STORE]`

use windlass::relays::{
    HookError, RelayError, RelayStep, RunOutcome, StepOutcome, StepRunner, TerminalHook,
};
use windlass::{Engine, Result};

struct Shout;

impl StepRunner for Shout {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        Ok(StepOutcome::done(step.payload.to_ascii_uppercase()))
    }
}

struct Print(tokio::sync::mpsc::UnboundedSender<()>);

impl TerminalHook for Print {
    async fn on_termination(&self, outcome: &RunOutcome) -> Result<(), HookError> {
        let result = outcome.result.as_deref().map(String::from_utf8_lossy);
        println!("{} {}: {}", outcome.run_id, outcome.status, result.unwrap_or_default());
        let _ = self.0.send(());
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let relay = engine.relay("shout", Shout, Print(told)).build()?;
    relay.start("hello".into()).id("greeting").await?;
    hears.recv().await;
    engine.stop("1 second").await?;
    Ok(())
}
