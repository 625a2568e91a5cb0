//! Extract, transform, load: one run a file, started, waited for and counted as a group.
//!
//! `cargo run --example relay_etl [STORE]`

use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, RunSpec, StepOutcome, StepRunner};
use windlass::{Engine, Result};

struct Etl;

impl StepRunner for Etl {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let text = String::from_utf8_lossy(&step.payload).into_owned();
        match step.step_number {
            // Extract: a file's rows.
            0 => {
                Ok(StepOutcome::next((1..=3).map(|n| format!("{text},{n}\n")).collect::<String>()))
            }
            // Transform: a file without a name is the sender's mistake, and no matter for operators.
            1 if text.starts_with(',') => {
                Ok(StepOutcome::Fail { reason: "the file has no name".into() })
            }
            1 => {
                let number = |line: &str| line.split_once(',')?.1.parse::<u32>().ok();
                let sum: u32 = text.lines().filter_map(number).sum();
                Ok(StepOutcome::next(sum.to_string()))
            }
            // Load.
            _ => Ok(StepOutcome::done(format!("{} loaded {text}", step.headers["file"]))),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    let relay = engine.relay("etl", Etl, NoopTerminalHook).concurrency(8).build()?;
    let night = relay.group("night-1");
    let files = ["a.csv", "b.csv", "", "c.csv"];
    let specs = files
        .iter()
        .enumerate()
        .map(|(n, file)| RunSpec::new(*file).id(format!("night-1-{n}")).header("file", *file));
    night.start(specs.collect()).await?;
    let counts = night.wait_all().await?;
    println!("{} files: {} loaded, {} failed", counts.total(), counts.succeeded, counts.failed);
    let failed = relay.get("night-1-2").await?.finished().await?;
    println!("night-1-2: {}", failed.error.unwrap_or_default());
    engine.stop("1 second").await?;
    Ok(())
}
