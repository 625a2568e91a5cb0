//! Responses while the store is unreachable.

use std::sync::Arc;

use reqwest::Method;
use serde_json::json;
use windlass_server::ServeOptions;
use windlass_testkit::outage::{Outage, Reach};

use crate::harness::{Kind, Server, assert_error, on_both_stores, open, wait_until};

on_both_stores!(
    a_failed_write_is_rejected_and_never_applied,
    a_write_with_unknown_outcome_is_resolved,
    process_metrics_work_without_the_store,
);

async fn start(kind: Kind) -> (Server, Arc<Outage>) {
    let mut outage = None;
    let options = windlass_server::Options { metrics_open: true, ..open() };
    let engine = windlass::admin::Options::default();
    let server = Server::start_on(kind, options, engine, ServeOptions::default(), |store| {
        let around = Outage::new(store);
        outage = Some(Arc::clone(&around));
        around
    });
    let server = server.await;
    (server, outage.expect("the store is wrapped"))
}

async fn a_failed_write_is_rejected_and_never_applied(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("approve", "before", json!({}), "waiting").await;
    outage.set(Reach::Gone);
    let body = json!({ "id": "lost", "params": {} });
    assert_error(server.post("/workflows/nap/instances", body).await, (503, "STORE_UNAVAILABLE"));
    let body = json!({ "instances": [{ "id": "lost-1" }, { "id": "lost-2" }] });
    assert_error(
        server.post("/workflows/nap/instances/batch", body).await,
        (503, "STORE_UNAVAILABLE"),
    );
    let event = json!({ "type": "approval", "payload": 1 });
    let events = "/workflows/approve/instances/before/events";
    assert_error(server.post(events, event).await, (503, "STORE_UNAVAILABLE"));
    // All responses arrived while the store was unreachable.
    outage.set(Reach::Fine);
    server.run("greet", "after", json!("x"), "complete").await;
    for id in ["lost", "lost-1", "lost-2"] {
        let found = server.get(&format!("/workflows/nap/instances/{id}")).await;
        assert_error(found, (404, "INSTANCE_NOT_FOUND"));
    }
    server.stop().await;
}

async fn a_write_with_unknown_outcome_is_resolved(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("greet", "before", json!("x"), "complete").await;
    outage.set(Reach::Deaf);
    let body = json!({ "id": "lost-reply", "params": "Ann" });
    let create = server.request(Method::POST, "/workflows/greet/instances").json(&body);
    // The client disconnects before the response.
    let create = tokio::spawn(create.send());
    wait_until("the first run is written", async || outage.answers_lost() > 0).await;
    assert!(!create.is_finished(), "the server responded without a result from the store");
    create.abort();
    let lost = outage.answers_lost();
    let create = server.request(Method::POST, "/workflows/greet/instances");
    let create = create.json(&json!({ "id": "waiting-client", "params": "Bob" })).send();
    let back = async {
        wait_until("the second run is written", async || outage.answers_lost() > lost).await;
        outage.set(Reach::Fine);
    };
    let (answer, ()) = futures::future::join(create, back).await;
    assert_eq!(answer.unwrap().status(), 200);
    server.wait_for_status("greet", "lost-reply", "complete").await;
    server.wait_for_status("greet", "waiting-client", "complete").await;
    server.stop().await;
}

async fn process_metrics_work_without_the_store(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("greet", "before", json!("x"), "complete").await;
    let text = async || {
        let response = server.request(Method::GET, "//metrics").send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.text().await.unwrap()
    };
    let with = text().await;
    assert!(with.contains("windlass_store_reached 1"), "{with}");
    assert!(with.contains("windlass_runs{"), "{with}");
    outage.set(Reach::Gone);
    let without = text().await;
    assert!(without.contains("windlass_store_reached 0"), "{without}");
    assert!(without.contains("windlass_http_requests_total{"), "{without}");
    assert!(!without.contains("windlass_runs{"), "old store metrics must not be reported");
    outage.set(Reach::Fine);
    assert!(text().await.contains("windlass_runs{"));
    server.stop().await;
}
