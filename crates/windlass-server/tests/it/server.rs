//! The server inside a program: merged with other routes, and stopped gracefully.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpListener;
use windlass_server::{Options, ServeOptions};

use crate::harness::{Kind, Server, http_client, open, wait_until, waiting_request};
use crate::sets;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_router_can_be_merged_with_other_routes() {
    let engine = windlass::Engine::open("memory:").await.unwrap();
    let options = Options { base: "/ops/flows".into(), ..open() };
    let api = windlass_server::router(&engine, options).unwrap();
    let own = Router::new()
        .route("/hello", get(|| async { "mine" }))
        .fallback(|| async { "nothing here" });
    let app = own.merge(api);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(windlass_server::serve(listener, app, std::future::pending()));
    let text = async |path: &str| {
        let response = http_client().get(format!("http://{address}{path}")).send().await.unwrap();
        response.text().await.unwrap()
    };
    assert_eq!(text("/hello").await, "mine");
    assert_eq!(text("/other").await, "nothing here");
    assert!(text("/ops/flows/workflows/").await.contains("\"workflows\":[]"));
    assert!(text("/ops/flows/what").await.contains("ROUTE_NOT_FOUND"));
    assert!(text("/ops/flows/openapi.json").await.contains("\"url\": \"/ops/flows\""));
    engine.stop(Duration::from_secs(1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_finishes_requests_and_ends_streams() {
    let options = Options { waits_max: 1, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    server.run("approve", "s", json!({}), "waiting").await;
    let stream =
        server.request(Method::GET, "/workflows/approve/instances/s/live").send().await.unwrap();
    // The request would wait much longer than the timeout of `stop`.
    let waiting = waiting_request(&server, "/workflows/approve/instances/s/result?waitMs=").await;
    server.stop().await;
    let response = waiting.await.unwrap().expect("the request is answered");
    assert_eq!(response.status(), 200);
    let text = stream.text().await.unwrap_or_default();
    assert!(text.contains("event: status"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readyz_fails_before_the_server_stops() {
    let serve = ServeOptions { ready_grace: Duration::from_secs(5), ..ServeOptions::default() };
    let engine = windlass::admin::Options::default();
    let server = Server::start_as(Kind::Sqlite, open(), engine, serve).await;
    let url = |path: &str| server.url(path);
    let (ready, work) = (url("//readyz"), url("/workflows"));
    assert_eq!(http_client().get(&ready).send().await.unwrap().status(), 200);
    let stopping = tokio::spawn(server.stop());
    wait_until("/readyz fails", async || {
        http_client()
            .get(&ready)
            .send()
            .await
            .expect("the server still accepts connections")
            .status()
            == 503
    })
    .await;
    assert_eq!(
        http_client().get(&work).send().await.unwrap().status(),
        200,
        "requests are still served"
    );
    stopping.await.unwrap();
    assert!(http_client().get(&ready).send().await.is_err(), "the server has stopped");
}

#[tokio::test]
async fn the_reference_is_up_to_date() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-reference.md");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let options = Options { tick: true, routes: sets::all().await.unwrap(), ..open() };
    let generated = windlass_server::reference(&options);
    let hint = "docs/http-reference.md is out of date; generate it with: cargo run -p windlass-server \
                --all-features --example reference > docs/http-reference.md";
    if cfg!(all(feature = "agents", feature = "contracts", feature = "webhooks")) {
        assert!(written == generated, "{hint}");
    }
    // Without the feature, the page has more routes than this build.
    let mut lines = written.lines();
    for line in generated.lines() {
        assert!(lines.any(|written| written == line), "{line:?} is missing: {hint}");
    }
}

#[tokio::test]
async fn invalid_options_are_rejected() {
    let engine = windlass::Engine::open("memory:").await.unwrap();
    let options = Options { base: "api".into(), ..open() };
    let error = windlass_server::router(&engine, options).unwrap_err();
    assert_eq!(error.code(), "INVALID_OPTION");
}

#[tokio::test]
async fn the_document_is_complete() {
    let options = Options { tick: true, routes: sets::all().await.unwrap(), ..open() };
    let api: serde_json::Value = serde_json::from_str(&windlass_server::openapi(&options)).unwrap();
    let paths = api["paths"].as_object().unwrap();
    assert!(paths.len() > 25, "{}", paths.len());
    let mut ids = BTreeSet::new();
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str();
            assert!(id.is_some_and(|id| ids.insert(id)), "{method} {path}: {id:?}");
            assert!(operation["summary"].is_string(), "{method} {path} has no summary");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses["default"].is_object(), "{method} {path}");
            assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
        }
    }
    // All referenced schemas exist.
    let text = api.to_string();
    for part in text.split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(api["components"]["schemas"][name].is_object(), "{name} is missing");
    }
}
