//! An activity that fails, is tried again, and goes on where its last attempt said it was.

use serde_json::{Value, json};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, Workflow, WorkflowAction,
};
use windlass::{Engine, Result};

struct Import;

impl Workflow for Import {
    const TYPE: &'static str = "import";
    type Input = u64;
    type Output = u64;

    fn new(_: u64) -> Self {
        Self
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let options = ActivityOptions::default()
            .retries(4)
            .retry_delay("10 ms")
            .non_retryable(["FileMissing"])
            .start_to_close_timeout("1 minute")
            .heartbeat_timeout("10 seconds");
        vec![WorkflowAction::activity_with("copy", "copy_lines", json!(10), options)]
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(result)]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

/// Loses its connection every four lines.
struct CopyLines;

impl Activity for CopyLines {
    const TYPE: &'static str = "copy_lines";
    type Input = u64;
    type Output = u64;

    async fn execute(&self, ctx: &ActivityContext, lines: u64) -> Result<u64, ActivityError> {
        let from = ctx.last_heartbeat().and_then(|said| said.as_u64()).unwrap_or(0);
        println!("attempt {} of {} begins at line {from}", ctx.attempt, ctx.max_attempts);
        for line in from..lines {
            if line == from + 4 {
                return Err(ActivityError::new("the connection is gone").named("Disconnected"));
            }
            ctx.heartbeat(Some(json!(line + 1))).await?;
        }
        Ok(lines)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    engine.machine_activity(CopyLines)?;
    let imports = engine.machine::<Import>()?;
    let run = imports.start(10).id("import-1").await?;
    println!("{} lines copied", run.result().await?);
    engine.stop("1 second").await?;
    Ok(())
}
