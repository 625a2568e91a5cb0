//! What clients are told while the store is out of reach.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use windlass_server::ServeOptions;
use windlass_testkit::outage::{Outage, Reach};

use crate::harness::{Kind, Server, on_both_stores, open, refused};

on_both_stores!(
    what_was_not_written_is_refused_at_once_and_never_done,
    what_may_have_been_written_is_found_out,
    metrics_of_the_process_are_there_without_the_store,
);

async fn start(kind: Kind) -> (Server, Arc<Outage>) {
    let mut outage = None;
    let options = windlass_server::Options { metrics_open: true, ..open() };
    let engine = windlass::Options::default();
    let server = Server::start_on(kind, options, engine, ServeOptions::default(), |store| {
        let around = Outage::new(store);
        outage = Some(Arc::clone(&around));
        around
    });
    let server = server.await;
    (server, outage.expect("there is a store"))
}

async fn what_was_not_written_is_refused_at_once_and_never_done(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("approve", "before", json!({}), "waiting").await;
    outage.set(Reach::Gone);
    let began = Instant::now();
    let body = json!({ "id": "lost", "params": {} });
    refused(server.post("/workflows/nap/instances", body).await, (503, "STORE_UNAVAILABLE"));
    let body = json!({ "instances": [{ "id": "lost-1" }, { "id": "lost-2" }] });
    refused(server.post("/workflows/nap/instances/batch", body).await, (503, "STORE_UNAVAILABLE"));
    let event = json!({ "type": "approval", "payload": 1 });
    let events = "/workflows/approve/instances/before/events";
    refused(server.post(events, event).await, (503, "STORE_UNAVAILABLE"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    outage.set(Reach::Fine);
    server.run("greet", "after", json!("x"), "complete").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for id in ["lost", "lost-1", "lost-2"] {
        let found = server.get(&format!("/workflows/nap/instances/{id}")).await;
        refused(found, (404, "INSTANCE_NOT_FOUND"));
    }
    server.stop().await;
}

async fn what_may_have_been_written_is_found_out(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("greet", "before", json!("x"), "complete").await;
    outage.set(Reach::Deaf);
    let body = json!({ "id": "deaf", "params": "Ann" });
    let create = server.request(Method::POST, "/workflows/greet/instances").json(&body);
    // The one who asks goes before there is an answer.
    assert!(create.timeout(Duration::from_millis(300)).send().await.is_err());
    let create = server.request(Method::POST, "/workflows/greet/instances");
    let create = create.json(&json!({ "id": "patient", "params": "Bob" })).send();
    let back = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        outage.set(Reach::Fine);
    };
    let (answer, ()) = futures::future::join(create, back).await;
    assert_eq!(answer.unwrap().status(), 200);
    server.until("greet", "deaf", "complete").await;
    server.until("greet", "patient", "complete").await;
    server.stop().await;
}

async fn metrics_of_the_process_are_there_without_the_store(kind: Kind) {
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
    assert!(!without.contains("windlass_runs{"), "what was known before is no longer told");
    outage.set(Reach::Fine);
    assert!(text().await.contains("windlass_runs{"));
    server.stop().await;
}
