//! The five documents.

use serde_json::json;
use windlass::contracts::EVENT_TYPE;
use windlass::contracts::language::templates;
use windlass::{Engine, Result};

use crate::{AFTER, REVIEW, Shop, conditional, edge, invoice, labelled, node, pause, person, role};

/// Small invoices of trusted vendors pass without people, large ones need two of them at once.
pub(crate) async fn invoices(shop: &Shop) -> Result<()> {
    println!("A: invoices");
    let template = templates::all().into_iter().find(|one| one.name == "invoice_approval");
    let slots = json!(template.expect("the template exists").definition.slots);
    let name = shop.publish("invoice", true, slots).await?;
    shop.submit(&name, "small", invoice(100, "trusted")).await?;
    shop.until(&name, "small", "active").await?;
    println!("  small is active, and nobody was asked");
    shop.submit(&name, "large", invoice(9_000_000, "new")).await?;
    shop.approve("fay").await?;
    shop.approve("bob").await?;
    shop.until(&name, "large", "active").await?;
    println!("  large is active, approved by fay and bob");
    Ok(())
}

/// The reservation or the payment lets an order go on; a notification alone does not.
pub(crate) async fn orders(shop: &Shop, engine: &Engine) -> Result<()> {
    println!("B: orders");
    let tell = json!({"channel": "in_app", "to": {"strategy": "role", "role": "manager"},
                      "subject": "Order {entity.id}"});
    let reserve =
        json!({"mutation": {"actionType": "stock.reserve"}, "writes": {"reserved": "ok"}});
    let credit = json!({"eventKey": "credit:{entity.id}", "writes": {"paid": "ok"}});
    let accept = "context.reserved == true && entity.total <= 1000 || context.paid == true";
    let nodes = json!([
        node(REVIEW, "split", "parallel_split", json!({})),
        node(REVIEW, "tell", "notification", tell),
        node(REVIEW, "reserve", "action", reserve),
        node(REVIEW, "credit", "wait_event", credit),
        node(REVIEW, "first", "parallel_join", json!({"mode": "any", "accept": accept})),
        node(REVIEW, "payment", "wait_event", json!({"eventKey": "paid:{entity.id}"})),
        node(REVIEW, "go", "script", json!({"writes": {"reserved": "true"}})),
    ]);
    let edges = json!([
        edge("split", "tell"),
        edge("split", "reserve"),
        edge("split", "credit"),
        edge("tell", "first"),
        edge("reserve", "first"),
        edge("credit", "first"),
        edge("first", "go"),
        labelled("first", "payment", "exhausted"),
    ]);
    let slots = json!({REVIEW: {"nodes": nodes, "edges": edges, "exitEdgeMode": "join"}});
    let name = shop.publish("order", false, slots).await?;
    shop.submit(&name, "in-stock", invoice(900, "new")).await?;
    shop.until(&name, "in-stock", "active").await?;
    println!("  in-stock is active, the credit check was cancelled");
    let key = format!("late-{}", shop.run);
    let mut content = invoice(5_000, "new");
    content["id"] = json!(key);
    shop.submit(&name, "late", content).await?;
    // The credit check says no, so the join is exhausted and the order waits for its payment.
    engine.send_by_key(EVENT_TYPE, format!("credit:{key}"), &json!({"ok": false})).await?;
    engine.send_by_key(EVENT_TYPE, format!("paid:{key}"), &json!({})).await?;
    shop.until(&name, "late", "active").await?;
    println!("  late is active after its payment");
    Ok(())
}

/// An edit while people are asked voids their decisions: they approve the new content or nothing.
pub(crate) async fn amendment(shop: &Shop) -> Result<()> {
    println!("C: an amendment");
    let review = node(REVIEW, "review", "approval", role("finance_manager"));
    let name = shop.publish("amended", true, json!({REVIEW: {"nodes": [review]}})).await?;
    shop.submit(&name, "c", invoice(900, "new")).await?;
    let contracts = &shop.contracts;
    let first = loop {
        match contracts.inbox(&person("fay"), None, 1).await?.pop() {
            Some(request) => break request,
            None => pause().await,
        }
    };
    contracts.edit(&name, "c", 1, &invoice(950, "new"), &person("rita"), Some("freight")).await?;
    shop.until(&name, "c", "amended").await?;
    println!("  the request is {:?}", contracts.approval(&first.id).await?.status);
    contracts.act(&name, "c", "submit", &person("rita"), None).await?;
    shop.approve("fay").await?;
    shop.until(&name, "c", "active").await?;
    let diff = contracts.document_diff(&name, "c", 1, 2).await?;
    println!("  active with {}", json!(diff["total"]));
    Ok(())
}

/// A delivery that nobody confirms in time goes to a manager.
pub(crate) async fn delivery(shop: &Shop) -> Result<()> {
    println!("D: a delivery");
    // A real one would wait for 72 hours.
    let wait = json!({"eventKey": "delivery:{entity.id}", "timeout": "50 ms"});
    let tell = json!({"channel": "in_app", "to": {"strategy": "role", "role": "manager"},
                      "subject": "Shipment {entity.id} is unconfirmed"});
    let nodes = json!([
        node(REVIEW, "wait", "wait_event", wait),
        node(REVIEW, "tell", "notification", tell),
        node(REVIEW, "manager", "approval", role("manager")),
        node(REVIEW, "confirmed", "script", json!({"writes": {"paid": "true"}})),
    ]);
    let edges = json!([
        edge("wait", "confirmed"),
        labelled("wait", "tell", "timeout"),
        edge("tell", "manager"),
    ]);
    let slots = json!({REVIEW: {"nodes": nodes, "edges": edges, "exitEdgeMode": "join"}});
    let name = shop.publish("delivery", false, slots).await?;
    let mut content = invoice(10, "new");
    content["id"] = json!(format!("d-{}", shop.run));
    shop.submit(&name, "d", content).await?;
    shop.approve("cleo").await?;
    shop.until(&name, "d", "active").await?;
    println!("  unconfirmed, and accepted by cleo");
    Ok(())
}

/// A statement is made at its time, audited if it is large, and sent to the portal before the run ends.
pub(crate) async fn statement(shop: &Shop) -> Result<()> {
    println!("E: a statement");
    // A real one would have `{"cron": "0 6 1 * *"}`.
    let nodes = json!([
        node(REVIEW, "time", "wait_timer", json!({"for": "50 ms"})),
        node(REVIEW, "size", "condition", json!({})),
        node(REVIEW, "audit", "approval", role("manager")),
        node(REVIEW, "fine", "script", json!({"writes": {"paid": "true"}})),
    ]);
    let edges = json!([
        edge("time", "size"),
        conditional("size", "audit", "entity.total > 500"),
        conditional("size", "fine", "entity.total <= 500"),
    ]);
    let hook = json!({"url": "https://portal.example.org/statements", "await": "delivered",
                      "payloadTemplate": {"total": "entity.total"}});
    let slots = json!({
        REVIEW: {"nodes": nodes, "edges": edges, "exitEdgeMode": "join"},
        AFTER: {"nodes": [node(AFTER, "send", "webhook_out", hook)]},
    });
    let name = shop.publish("statement", false, slots).await?;
    shop.submit(&name, "e", invoice(900, "new")).await?;
    shop.approve("cleo").await?;
    shop.until(&name, "e", "active").await?;
    println!("  audited by cleo, the portal got {}", shop.sent.lock()[0]);
    Ok(())
}
