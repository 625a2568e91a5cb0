//! The server as a process part: embedded beside other routes, and stopped in order.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use reqwest::Method;
use serde_json::json;
use tokio::net::TcpListener;
use windlass_server::ServeOptions;

use crate::harness::{Kind, Server, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_of_a_program_lie_beside_ours() {
    let engine = windlass::Engine::open("memory:").await.unwrap();
    let options = windlass_server::Options { base: "/ops/flows".into(), ..open() };
    let api = windlass_server::router(&engine, options).unwrap();
    let own = Router::new()
        .route("/hello", get(|| async { "mine" }))
        .fallback(|| async { "nothing here" });
    let app = own.merge(api);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(windlass_server::serve(listener, app, std::future::pending()));
    let text = async |path: &str| {
        let response = reqwest::get(format!("http://{address}{path}")).await.unwrap();
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
async fn a_stop_lets_requests_end_and_cuts_streams() {
    let server = Server::start(Kind::Sqlite).await;
    server.run("approve", "s", json!({}), "waiting").await;
    let stream =
        server.request(Method::GET, "/workflows/approve/instances/s/live").send().await.unwrap();
    let wait = server.request(Method::GET, "/workflows/approve/instances/s/result?waitMs=30000");
    let waiting = tokio::spawn(wait.send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let began = std::time::Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let response = waiting.await.unwrap().expect("it was answered");
    assert_eq!(response.status(), 200);
    let text = stream.text().await.unwrap_or_default();
    assert!(text.contains("event: status"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_says_so_before_it_refuses() {
    let serve = ServeOptions { ready_grace: Duration::from_secs(2), ..ServeOptions::default() };
    let engine = windlass::Options::default();
    let server = Server::start_as(Kind::Sqlite, open(), engine, serve).await;
    let url = |path: &str| server.url(path);
    let (ready, work) = (url("//readyz"), url("/workflows"));
    assert_eq!(reqwest::get(&ready).await.unwrap().status(), 200);
    let stopping = tokio::spawn(server.stop());
    let deadline = std::time::Instant::now() + Duration::from_secs(1);
    loop {
        let status = reqwest::get(&ready).await.unwrap().status();
        if status == 503 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "it says {status}");
    }
    assert_eq!(reqwest::get(&work).await.unwrap().status(), 200, "it still answers");
    stopping.await.unwrap();
    assert!(reqwest::get(&ready).await.is_err(), "it has stopped");
}

#[test]
fn the_reference_is_up_to_date() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/http-reference.md");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let options = windlass_server::Options { tick: true, ..open() };
    let said = windlass_server::reference(&options);
    let again = "docs/http-reference.md is not what the handlers say; write it again with: cargo run -p \
                 windlass-server --features webhooks --example reference > docs/http-reference.md";
    if cfg!(feature = "webhooks") {
        assert!(written == said, "{again}");
    }
    // Without the feature, the page has more than the handlers of this build.
    let mut lines = written.lines();
    for line in said.lines() {
        assert!(lines.any(|written| written == line), "{line:?} is not there: {again}");
    }
}

#[tokio::test]
async fn options_that_cannot_work_are_refused() {
    let engine = windlass::Engine::open("memory:").await.unwrap();
    let options = windlass_server::Options { base: "api".into(), ..open() };
    let error = windlass_server::router(&engine, options).unwrap_err();
    assert_eq!(error.code(), "INVALID_OPTION");
}

#[test]
fn the_document_is_complete() {
    let options = windlass_server::Options { tick: true, ..open() };
    let api: serde_json::Value = serde_json::from_str(&windlass_server::openapi(&options)).unwrap();
    let paths = api["paths"].as_object().unwrap();
    assert!(paths.len() > 25, "{}", paths.len());
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            assert!(operation["operationId"].is_string(), "{method} {path}");
            assert!(operation["summary"].is_string(), "{method} {path} says nothing of itself");
            assert!(operation["responses"]["default"].is_object(), "{method} {path}");
        }
    }
    // Every schema that is referred to is there.
    let text = api.to_string();
    for part in text.split("\"#/components/schemas/").skip(1) {
        let name = part.split('"').next().unwrap();
        assert!(api["components"]["schemas"][name].is_object(), "{name} is missing");
    }
}
