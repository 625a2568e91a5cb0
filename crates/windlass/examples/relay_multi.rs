//! A relay that is killed after its first step and goes on at the second in a new process.
//!
//! `relay_multi sqlite://relay.db crash` ends without a word to anybody while step 1 runs;
//! `relay_multi sqlite://relay.db` carries the run on: step 0 is not run again.

use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};
use windlass::{Engine, Result};

struct Report {
    crash: bool,
}

impl StepRunner for Report {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        println!("step {} runs", step.step_number);
        let text = String::from_utf8_lossy(&step.payload).into_owned();
        match step.step_number {
            0 => Ok(StepOutcome::next(format!("{text}, gathered"))),
            // As if the power failed: what step 0 gave is in the store.
            1 if self.crash => std::process::exit(9),
            1 => Ok(StepOutcome::next(format!("{text}, checked"))),
            _ => Ok(StepOutcome::done(format!("{text}, written"))),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let store = args.next().unwrap_or_else(|| "sqlite://relay.db".into());
    let crash = args.next().is_some_and(|word| word == "crash");
    let engine = Engine::open(&store).await?;
    let relay = engine.relay("report", Report { crash }, NoopTerminalHook).build()?;
    // A second start with this id and this input finds the run.
    let run = relay.start("figures".into()).id("report-1").await?;
    println!("{}", String::from_utf8_lossy(&run.result().await?));
    engine.stop("1 second").await?;
    Ok(())
}
