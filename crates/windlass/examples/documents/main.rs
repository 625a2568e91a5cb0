//! Five documents with a lifecycle: an invoice with a fast lane, an order whose first answer wins, an amendment,
//! a delivery that nobody confirms, and a statement that is sent on time.
//!
//!     cargo run -p windlass --all-features --example documents [STORE]

#![allow(clippy::disallowed_methods, reason = "the examples live in the real world")]

mod cases;

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use windlass::contracts::language::approvers::Directory;
use windlass::contracts::language::templates;
use windlass::contracts::language::tokens::Verdict;
use windlass::contracts::language::types::{LifecycleContract, OrgWorkflowDefinition};
use windlass::contracts::{ActionCall, ActionOutcome, Contracts, WEBHOOK_EFFECT};
use windlass::kernel::{Body, BoxFuture, Subject};
use windlass::model::TaskHandler;
use windlass::{Engine, Result, TaskContext, TaskFailure};

/// The slot between the gates `submit` and `approve`, which tenants fill with steps of their own.
const REVIEW: &str = "submitted_to_approved";
/// The slot behind the gate `approve`.
const AFTER: &str = "approved_to_active";

#[tokio::main]
async fn main() -> Result<()> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".into());
    let engine = Engine::open(&store).await?;
    let shop = Shop::open(&engine).await?;
    cases::invoices(&shop).await?;
    cases::orders(&shop, &engine).await?;
    cases::amendment(&shop).await?;
    cases::delivery(&shop).await?;
    cases::statement(&shop).await?;
    engine.stop("5 seconds").await?;
    Ok(())
}

/// The contracts of the example, and what the receiver of webhooks got.
struct Shop {
    contracts: Contracts,
    /// Makes the names of types and documents unique, so that the example can run again on one store.
    run: String,
    sent: Arc<Mutex<Vec<Value>>>,
}

impl Shop {
    async fn open(engine: &Engine) -> Result<Self> {
        let post = |call: &ActionCall<'_>| {
            println!("  {} is posted to the ledger", call.id);
            Ok(ActionOutcome::none())
        };
        let reserve = |_: &ActionCall<'_>| Ok(ActionOutcome::none().result(json!({ "ok": true })));
        let contracts = Contracts::builder()
            .action("ledger.post", Arc::new(post))
            .action("stock.reserve", Arc::new(reserve))
            .webhooks()
            .open(engine)
            .await?;
        let people = json!({"people": {
            "rita": {}, "bob": {}, "fay": {"roles": ["finance_manager"]}, "cleo": {"roles": ["manager"]},
        }});
        let people: Directory = serde_json::from_value(people).expect("a directory");
        contracts.put_directory(&people).await?;
        let sent = Arc::new(Mutex::new(Vec::new()));
        engine.core().serve_effects(WEBHOOK_EFFECT, Arc::new(Portal(Arc::clone(&sent))))?;
        let run = engine.core().clock().now().as_micros().to_string();
        Ok(Self { contracts, run, sent })
    }

    /// Publishes a document type and a definition for it. The type has the lifecycle of the template for invoices.
    async fn publish(&self, kind: &str, is_approved: bool, slots: Value) -> Result<String> {
        let template = templates::all().into_iter().find(|one| one.name == "invoice_approval");
        let mut contract: LifecycleContract = template.expect("the template exists").contract;
        contract.entity_type = format!("{kind}_{}", self.run);
        if !is_approved {
            // Without an obligation, the tenant decides whether people are asked.
            contract.obligations.clear();
        }
        contract.schemas.context = json!({"type": "object", "properties": {
            "reserved": {"type": "boolean"}, "paid": {"type": "boolean"},
        }});
        let name = contract.entity_type.clone();
        self.contracts.publish_type(&contract, &person("olga")).await?;
        let definition =
            json!({"baseRef": {"entityType": name, "envelopeVersion": 1}, "slots": slots});
        let definition: OrgWorkflowDefinition =
            serde_json::from_value(definition).expect("a definition");
        self.contracts.put_draft(&name, &definition).await?;
        self.contracts.publish(&name, &person("dana")).await?;
        Ok(name)
    }

    async fn submit(&self, name: &str, id: &str, content: Value) -> Result<()> {
        self.contracts.create(name, id, &content, &person("rita")).await?;
        self.contracts.act(name, id, "submit", &person("rita"), None).await?;
        Ok(())
    }

    /// Approves the next request of a person.
    async fn approve(&self, by: &str) -> Result<()> {
        loop {
            let inbox = self.contracts.inbox(&person(by), None, 1).await?;
            if let Some(request) = inbox.first() {
                let (by, why) = (person(by), Some("it is correct"));
                let verdict = Verdict::Approved;
                self.contracts
                    .decide_approval(&request.id, verdict, request.digest, &by, why)
                    .await?;
                return Ok(());
            }
            pause().await;
        }
    }

    /// Waits until a document is in a state.
    async fn until(&self, name: &str, id: &str, state: &str) -> Result<()> {
        while self.contracts.document(name, id).await?.row.state != state {
            pause().await;
        }
        Ok(())
    }
}

/// The portal that statements are sent to.
struct Portal(Arc<Mutex<Vec<Value>>>);

impl TaskHandler for Portal {
    fn run(
        &self,
        _: TaskContext,
        input: Body,
    ) -> BoxFuture<'static, std::result::Result<Body, TaskFailure>> {
        let sent = Arc::clone(&self.0);
        Box::pin(async move {
            let input: Value = input
                .read()
                .map_err(|error| TaskFailure::new("BAD_INPUT", error.to_string(), false))?;
            sent.lock().push(input["body"].clone());
            Ok(Body::json("null"))
        })
    }
}

fn person(id: &str) -> Subject {
    Subject::new(id, [""; 0]).expect("an id")
}

async fn pause() {
    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
}

fn invoice(total: u64, vendor: &str) -> Value {
    json!({"id": "i-1", "total": total, "currency": "EUR", "requester": "rita",
           "vendor_class": vendor, "budget_owner": "bob"})
}

/// A node of a slot.
fn node(slot: &str, name: &str, node_type: &str, config: Value) -> Value {
    json!({"id": format!("usr:{slot}:{name}"), "type": node_type, "config": config})
}

/// An edge between two nodes of the slot for reviews.
fn edge(source: &str, target: &str) -> Value {
    let full = |name: &str| format!("usr:{REVIEW}:{name}");
    json!({"id": format!("{source}-{target}"), "source": full(source), "target": full(target)})
}

/// An edge for one outcome.
fn labelled(source: &str, target: &str, label: &str) -> Value {
    let mut edge = edge(source, target);
    edge["label"] = json!(label);
    edge
}

/// An edge with a condition.
fn conditional(source: &str, target: &str, condition: &str) -> Value {
    let mut edge = edge(source, target);
    edge["condition"] = json!(condition);
    edge
}

/// A request to everybody with a role.
fn role(role: &str) -> Value {
    json!({"approvers": {"strategy": "role", "role": role}})
}
