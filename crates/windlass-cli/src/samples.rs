//! The sample workflows of `windlass dev`.

mod ask;
pub(crate) mod documents;

use std::time::Duration;

use futures::stream::{FuturesUnordered, TryStreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
use windlass::requests::Request;
use windlass::{AnyError, Ctx, Engine, Result};

pub(crate) use ask::Llm;

pub(crate) fn register(engine: &Engine, llm: &Llm) -> Result<(), windlass::Error> {
    engine.workflow("hello", hello)?;
    engine.workflow("order", order)?;
    engine.workflow("flaky", flaky)?;
    engine.workflow("fan-out", fan_out)?;
    engine.workflow("expense", expense)?;
    engine.machine_activity(Weigh)?;
    engine.machine::<Parcel>()?;
    ask::register(engine, llm)
}

/// Two steps with a short sleep between them.
async fn hello(ctx: Ctx, name: Option<String>) -> Result<String> {
    let name = name.unwrap_or_else(|| "world".to_owned());
    ctx.log().info(format!("greeting {name}"))?;
    let text = ctx.step("compose", async || Ok(format!("Hello, {name}!"))).await?;
    ctx.sleep("pause for effect", "2 seconds").await?;
    Ok(ctx.step("shout", async || Ok(text.to_uppercase())).await?)
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default)]
struct Expense {
    amount: u32,
    purpose: String,
    by: Option<String>,
}

impl Default for Expense {
    fn default() -> Self {
        Self { amount: 120, purpose: "train tickets".to_owned(), by: None }
    }
}

/// Asks somebody with the role `approver` and pays if they approve.
async fn expense(ctx: Ctx, expense: Option<Expense>) -> Result<String> {
    let expense = expense.unwrap_or_default();
    let mut request = Request::to("role:approver")
        .title(format!("Pay {} for {}", expense.amount, expense.purpose))
        .about_snapshot(&expense)
        .due("3 days");
    if let Some(by) = &expense.by {
        request = request.requester(by);
    }
    let outcome = ctx.request("approval", request).await?;
    if !outcome.is_approved() {
        return Ok(format!("not paid: the request is {}", outcome.status));
    }
    let amount = expense.amount;
    Ok(ctx.step("pay", async || Ok(format!("paid {amount}"))).await?)
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(default)]
struct Order {
    item: String,
    quantity: u32,
}

impl Default for Order {
    fn default() -> Self {
        Self { item: "lamp".to_owned(), quantity: 1 }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Approval {
    approved: bool,
}

/// Charges, sleeps for a moment, waits for an approval, and ships.
async fn order(ctx: Ctx, order: Option<Order>) -> Result<String> {
    let order = order.unwrap_or_default();
    let (item, quantity) = (order.item, order.quantity);
    let charge = ctx
        .step_with("charge", |attempt| async move {
            // A payment service would use the key to charge only once, even if the step is retried.
            Ok(attempt.idempotency_key)
        })
        .await?;
    ctx.log().category("payments").info(format!("charged {quantity} {item} under {charge}"))?;
    ctx.sleep("settle", "3 seconds").await?;
    let approval: Approval = ctx.event("approval", "approval").timeout("1 day").await?;
    if !approval.approved {
        return Err(AnyError::msg("the order was not approved"));
    }
    let shipped = format!("{quantity} {item}");
    Ok(ctx.step("ship", async || Ok(format!("shipped {shipped}"))).await?)
}

/// Fails twice and then succeeds: retries are durable, with a delay that doubles.
async fn flaky(ctx: Ctx, failures: Option<u32>) -> Result<String> {
    let failures = failures.unwrap_or(2);
    let tries = ctx
        .step_with("call a service that is down", |attempt| async move {
            if attempt.number <= failures {
                let message = format!("connection refused (attempt {})", attempt.number);
                return Err(AnyError::msg(message));
            }
            Ok(attempt.number)
        })
        .retries(5)
        .delay("1 second")
        .await?;
    Ok(format!("it worked at attempt {tries}"))
}

/// Runs many steps concurrently; each result is recorded separately.
async fn fan_out(ctx: Ctx, width: Option<u32>) -> Result<u64> {
    let width = width.unwrap_or(20).min(500);
    let squares: FuturesUnordered<_> = (0..width)
        .map(|n| {
            ctx.step(format!("square-{n}"), move || async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Ok(u64::from(n) * u64::from(n))
            })
        })
        .collect();
    let squares: Vec<u64> = squares.try_collect().await?;
    Ok(squares.into_iter().sum())
}

/// A state machine: an activity weighs the parcel, then a child run greets the recipient.
struct Parcel {
    to: String,
    grams: u64,
}

impl Workflow for Parcel {
    const TYPE: &'static str = "parcel";
    type Input = Option<String>;
    type Output = Value;

    fn new(to: Option<String>) -> Self {
        Self { to: to.unwrap_or_else(|| "world".to_owned()), grams: 0 }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![WorkflowAction::activity("weigh", Weigh::TYPE, json!(self.to))]
    }

    fn on_activity_completed(&mut self, _: &str, grams: Value) -> Vec<WorkflowAction> {
        self.grams = grams.as_u64().unwrap_or_default();
        vec![WorkflowAction::child("greet", "hello", json!(self.to))]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }

    fn on_child_completed(&mut self, _: &str, greeting: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(json!({ "grams": self.grams, "greeting": greeting }))]
    }
}

struct Weigh;

impl Activity for Weigh {
    const TYPE: &'static str = "weigh";
    type Input = String;
    type Output = u64;

    async fn execute(&self, _: &ActivityContext, to: String) -> Result<u64, ActivityError> {
        Ok(100 + to.len() as u64)
    }
}
