//! A state machine with two activities, one after the other.

use serde_json::{Value, json};
use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
use windlass::{Engine, Result};

struct Greeting {
    name: String,
}

impl Workflow for Greeting {
    const TYPE: &'static str = "greeting";
    type Input = String;
    type Output = String;

    fn new(name: String) -> Self {
        Self { name }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![WorkflowAction::activity("compose", "say", json!(format!("hello, {}", self.name)))]
    }

    fn on_activity_completed(&mut self, activity_id: &str, result: Value) -> Vec<WorkflowAction> {
        match activity_id {
            "compose" => vec![WorkflowAction::activity("repeat", "say", result)],
            _ => vec![WorkflowAction::complete(result)],
        }
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

struct Say;

impl Activity for Say {
    const TYPE: &'static str = "say";
    type Input = String;
    type Output = String;

    async fn execute(&self, ctx: &ActivityContext, text: String) -> Result<String, ActivityError> {
        println!("{}: {text}", ctx.activity_id);
        Ok(format!("{text}!"))
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    engine.machine_activity(Say)?;
    let greetings = engine.machine::<Greeting>()?;
    let run = greetings.start("world".into()).id("greeting-1").await?;
    println!("{}", run.result().await?);
    engine.stop("1 second").await?;
    Ok(())
}
