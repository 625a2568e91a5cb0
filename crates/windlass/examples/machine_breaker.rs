//! A circuit breaker: after three failures nobody calls for a while, then one call is tried.

#![allow(clippy::disallowed_methods, reason = "the program itself lives in the real world")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::machines::{
    Activity, ActivityContext, ActivityError, ActivityOptions, CircuitBreakerConfig, Workflow,
    WorkflowAction,
};
use windlass::{Engine, Result};

struct Lookup {
    name: String,
}

impl Workflow for Lookup {
    const TYPE: &'static str = "lookup";
    type Input = String;
    type Output = String;

    fn new(name: String) -> Self {
        Self { name }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let breaker = CircuitBreakerConfig {
            failure_threshold: 3,
            success_threshold: 1,
            key: Some("external:directory".into()),
            ..CircuitBreakerConfig::default()
        };
        let options = ActivityOptions::default()
            .retries(3)
            .retry_delay("10 ms")
            .circuit_breaker(breaker.reset_timeout("200 ms"));
        vec![WorkflowAction::activity_with("ask", "directory", json!(self.name), options)]
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(result)]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

/// Does not answer the first three calls.
struct Directory {
    calls: Arc<AtomicU32>,
}

impl Activity for Directory {
    const TYPE: &'static str = "directory";
    type Input = String;
    type Output = String;

    async fn execute(&self, _: &ActivityContext, name: String) -> Result<String, ActivityError> {
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0..3 => Err(ActivityError::new("the directory does not answer")),
            _ => Ok(format!("{name} is in room 7")),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    let calls = Arc::new(AtomicU32::new(0));
    engine.machine_activity(Directory { calls: Arc::clone(&calls) })?;
    let lookups = engine.machine::<Lookup>()?;
    let ann = lookups.start("Ann".into()).id("ann").await?;
    while calls.load(Ordering::Relaxed) < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let bob = lookups.start("Bob".into()).id("bob").await?;
    println!("{}", ann.result().await?);
    println!("{}", bob.result().await?);
    for breaker in engine.admin().breakers(None, 10).await? {
        println!("{} is {}", breaker.key, breaker.status);
    }
    println!("{} calls", calls.load(Ordering::Relaxed));
    engine.stop("1 second").await?;
    Ok(())
}
