//! A machine that waits, is signalled, and cleans up when it is cancelled.

use serde_json::{Value, json};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, Workflow, WorkflowAction, WorkflowSignal,
    signal_types,
};
use windlass::{Engine, Result};

/// Holds a table until the guests come, an hour is over, or somebody cancels.
struct Reservation {
    table: u32,
}

impl Workflow for Reservation {
    const TYPE: &'static str = "reservation";
    type Input = u32;
    type Output = String;

    fn new(table: u32) -> Self {
        Self { table }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![WorkflowAction::timer("hold", "1 hour")]
    }

    fn on_timer_fired(&mut self, _: &str) -> Vec<WorkflowAction> {
        vec![WorkflowAction::activity("release", "release_table", json!(self.table))]
    }

    fn on_signal(&mut self, signal: &WorkflowSignal) -> Vec<WorkflowAction> {
        let stop = WorkflowAction::CancelTimer { timer_id: "hold".into() };
        match signal.signal_type.as_str() {
            "arrived" => {
                let text = format!("table {} seats {}", self.table, signal.payload);
                vec![stop, WorkflowAction::complete(json!(text))]
            }
            signal_types::CANCEL => {
                let release =
                    WorkflowAction::activity("release", "release_table", json!(self.table));
                vec![stop, release]
            }
            _ => vec![],
        }
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(result)]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

struct ReleaseTable;

impl Activity for ReleaseTable {
    const TYPE: &'static str = "release_table";
    type Input = u32;
    type Output = String;

    async fn execute(&self, _: &ActivityContext, table: u32) -> Result<String, ActivityError> {
        Ok(format!("table {table} is free again"))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    engine.machine_activity(ReleaseTable)?;
    let reservations = engine.machine::<Reservation>()?;
    let ann = reservations.start(1).id("ann").await?;
    let bob = reservations.start(2).id("bob").await?;
    ann.signal("arrived", &4).await?;
    bob.cancel("the guests are ill").await?;
    println!("{}", ann.result().await?);
    println!("{}", bob.result().await?);
    engine.stop("1 second").await?;
    Ok(())
}
