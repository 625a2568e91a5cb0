//! Readiness while the store refuses writes or has closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use windlass::Store;
use windlass::kernel::{BoxFuture, Commit, CommitResults};
use windlass_server::{Options, ServeOptions};
use windlass_testkit::gate::{Gate, GatedStore, Pass};
use windlass_testkit::outage::{Outage, Reach};

use crate::harness::{Kind, Server, assert_error, on_both_stores, open, wait_until};

on_both_stores!(
    a_store_that_refuses_writes_is_not_ready,
    a_store_with_room_for_small_rows_only_is_not_ready,
    a_closed_store_is_not_ready,
    readiness_does_not_use_the_store,
    a_probe_that_panics_starts_again,
);

async fn start(kind: Kind, probe_every: Duration) -> (Server, Arc<Outage>) {
    let mut outage = None;
    let options = Options { metrics_open: true, probe_every, ..open() };
    let engine = windlass::admin::Options::default();
    let server = Server::start_on(kind, options, engine, ServeOptions::default(), |store| {
        let around = Outage::new(store);
        outage = Some(Arc::clone(&around));
        around
    });
    let server = server.await;
    (server, outage.expect("the store is wrapped"))
}

async fn metrics(server: &Server) -> String {
    server.request(Method::GET, "//metrics").send().await.unwrap().text().await.unwrap()
}

async fn a_store_that_refuses_writes_is_not_ready(kind: Kind) {
    let (server, outage) = start(kind, Duration::from_millis(20)).await;
    server.run("greet", "before", json!("x"), "complete").await;
    assert_eq!(server.get("//readyz").await, (200, json!({ "status": "ready" })));
    assert!(metrics(&server).await.contains("windlass_store_writable 1"));
    assert_eq!(server.get_ok("/durable/health").await["status"], "healthy");
    outage.set(Reach::ReadOnly);
    wait_until("/readyz fails", async || server.get("//readyz").await.0 == 503).await;
    assert_error(server.get("//readyz").await, (503, "STORE_UNAVAILABLE"));
    let text = metrics(&server).await;
    assert!(text.contains("windlass_store_writable 0"), "{text}");
    assert!(text.contains("windlass_store_reached 1"), "the store can be read: {text}");
    let health = server.get_ok("/durable/health").await;
    assert_eq!(health["status"], "unhealthy", "{health}");
    assert_eq!(server.get("//healthz").await.0, 200, "the process is alive");
    outage.set(Reach::Fine);
    wait_until("/readyz succeeds again", async || server.get("//readyz").await.0 == 200).await;
    server.stop().await;
}

async fn a_store_with_room_for_small_rows_only_is_not_ready(kind: Kind) {
    let (server, outage) = start(kind, Duration::from_millis(20)).await;
    server.run("greet", "before", json!("x"), "complete").await;
    outage.set(Reach::NearlyFull);
    let path = "/workflows/greet/instances";
    assert_error(server.post(path, json!({})).await, (503, "STORE_UNAVAILABLE"));
    wait_until("/readyz fails", async || server.get("//readyz").await.0 == 503).await;
    outage.set(Reach::Fine);
    wait_until("/readyz succeeds again", async || server.get("//readyz").await.0 == 200).await;
    server.stop().await;
}

async fn a_closed_store_is_not_ready(kind: Kind) {
    let (server, outage) = start(kind, Duration::from_millis(20)).await;
    server.run("greet", "before", json!("x"), "complete").await;
    outage.set(Reach::Closed);
    wait_until("/readyz says that the store is closed", async || {
        let (status, body) = server.get("//readyz").await;
        (status, body["code"].as_str()) == (503, Some("STORE_CLOSED"))
    })
    .await;
    outage.set(Reach::Fine);
    server.stop().await;
}

/// Panics when a setting is written, while it is armed.
struct PanickingProbe(Arc<AtomicBool>);

impl Gate for PanickingProbe {
    fn pass(&self) -> Pass {
        Pass::Through
    }

    fn pass_setting(&self, _: usize) -> Pass {
        assert!(!self.0.load(Ordering::Acquire), "the store");
        Pass::Through
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        inner.commit(commits)
    }
}

async fn a_probe_that_panics_starts_again(kind: Kind) {
    let armed = Arc::new(AtomicBool::new(false));
    let options = Options { probe_every: Duration::from_millis(20), ..open() };
    let engine = windlass::admin::Options::default();
    let gate = PanickingProbe(Arc::clone(&armed));
    let server = Server::start_on(kind, options, engine, ServeOptions::default(), |store| {
        Arc::new(GatedStore::with_gate(store, gate))
    });
    let server = server.await;
    assert_eq!(server.get("//readyz").await.0, 200);
    armed.store(true, Ordering::Release);
    wait_until("/readyz fails", async || server.get("//readyz").await.0 == 503).await;
    armed.store(false, Ordering::Release);
    wait_until("/readyz succeeds again", async || server.get("//readyz").await.0 == 200).await;
    server.stop().await;
}

async fn readiness_does_not_use_the_store(kind: Kind) {
    let (server, outage) = start(kind, Duration::from_secs(3_600)).await;
    assert_eq!(server.get("//readyz").await.0, 200);
    let calls = outage.calls();
    outage.set(Reach::Gone);
    // Only the next probe would notice, and it is an hour away.
    for _ in 0..100 {
        assert_eq!(server.get("//readyz").await.0, 200);
    }
    outage.set(Reach::Fine);
    assert!(outage.calls() - calls < 100, "100 probes made {} calls", outage.calls() - calls);
    server.stop().await;
}
