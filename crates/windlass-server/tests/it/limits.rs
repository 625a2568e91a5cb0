//! Limits on concurrent requests and on the size of responses.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass::Ctx;
use windlass::admin::Admission;
use windlass_server::{Options, ServeOptions};

use crate::harness::{
    Kind, Server, WAIT_MAX, assert_error, on_both_stores, open, read_response, wait_until,
    waiting_request,
};

on_both_stores!(pages_are_limited_by_bytes);

/// A request whose body does not come, on a server that serves one request at a time: the others
/// are refused from now on until this one times out.
async fn send_incomplete_request(server: &Server, query: &str) -> TcpStream {
    let head = format!(
        "POST /api/workflows/greet/instances{query} HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    let send = async || {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        socket
    };
    let mut socket = send().await;
    wait_until("the server is busy", async || {
        // One of the requests below was being served when it came.
        if is_answered(&socket) {
            socket = send().await;
        }
        server.get("/workflows").await.0 == 503 && !is_answered(&socket)
    })
    .await;
    socket
}

fn is_answered(socket: &TcpStream) -> bool {
    let read = socket.try_read(&mut [0; 1]);
    !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_sends_retry_after_and_answers_probes() {
    let options = Options { requests_max: 1, metrics_open: true, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let socket = send_incomplete_request(&server, "").await;
    let busy = server.request(Method::GET, "/workflows").send().await.unwrap();
    assert_eq!(busy.headers()["retry-after"], "1");
    assert_error(read_response(busy).await, (503, "SERVER_BUSY"));
    for path in ["//healthz", "//readyz", "//metrics"] {
        let status = server.request(Method::GET, path).send().await.unwrap().status();
        assert_eq!(status, 200, "{path}");
    }
    drop(socket);
    wait_until("the server is free again", async || server.get("/workflows").await.0 == 200).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_wait_to_be_accepted() {
    let serve = ServeOptions { connections_max: 1, ..ServeOptions::default() };
    let server =
        Server::start_as(Kind::Sqlite, open(), windlass::admin::Options::default(), serve).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    let mut ask_first = async || {
        first.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 4096];
        let length = first.read(&mut answer).await.unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
    };
    ask_first().await;
    let mut second = TcpStream::connect(server.address).await.unwrap();
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    second.write_all(ask).await.unwrap();
    // The server answers the first many times, and the second not once.
    for _ in 0..100 {
        ask_first().await;
    }
    assert!(!is_answered(&second), "the second connection was served too early");
    drop(first);
    let mut answer = String::new();
    let late = tokio::time::timeout(WAIT_MAX, second.read_to_string(&mut answer));
    late.await.expect("the second connection is served after the first closes").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_engine_rejects_new_runs() {
    let engine = windlass::admin::Options {
        background: false,
        admission: Some(Admission { max_queue_ratio: 0.000_001 }),
        ..windlass::admin::Options::default()
    };
    let server = Server::start_as(Kind::Sqlite, open(), engine, ServeOptions::default()).await;
    let path = "/workflows/greet/instances";
    let mut refusal = None;
    wait_until("a new run is rejected", async || {
        let response = server.request(Method::POST, path).json(&json!({})).send().await.unwrap();
        refusal = (response.status() != 200).then_some(response);
        refusal.is_some()
    })
    .await;
    let refusal = refusal.expect("the wait above ended with a rejection");
    assert_eq!(refusal.headers()["retry-after"], "1");
    assert_error(read_response(refusal).await, (503, "OVERLOADED"));
    server.stop().await;
}

async fn pages_are_limited_by_bytes(kind: Kind) {
    let server = Server::start(kind).await;
    server
        .engine
        .workflow("large", async |ctx: Ctx, _: Value| -> windlass::Result<String> {
            for n in 0..10 {
                let body = async || Ok("x".repeat(1_000_000));
                ctx.step(format!("s-{n}"), body).await?;
            }
            Ok("y".repeat(1_000_000))
        })
        .unwrap();
    for n in 0..10 {
        server.run("large", &format!("l-{n}"), json!({}), "complete").await;
    }
    let ids = async |path: &str, rows: &str, id: &str, cursor: &str, parameter: &str| {
        let mut found: Vec<String> = Vec::new();
        let (mut query, mut pages) = (path.to_owned(), 0);
        loop {
            let page = server.get_ok(&query).await;
            assert!(page.to_string().len() < 10 * 1024 * 1024, "a page of {path} is too large");
            let page_rows = page[rows].as_array().unwrap();
            assert!(!page_rows.is_empty());
            found.extend(page_rows.iter().map(|row| row[id].as_str().unwrap().to_owned()));
            pages += 1;
            match page[cursor].as_str() {
                Some(next) => query = format!("{path}&{parameter}={next}"),
                None => break,
            }
        }
        found.sort();
        found.dedup();
        (found.len(), pages)
    };
    let runs =
        ids("/workflows/large/instances?pageSize=100", "instances", "id", "cursor", "cursor");
    assert_eq!(runs.await, (10, 2));
    let path = "/workflows/large/instances/l-0/history?pageSize=100";
    for order in ["asc", "desc"] {
        let path = format!("{path}&order={order}");
        let steps = ids(&path, "steps", "stepKey", "stepsCursor", "stepsCursor");
        assert_eq!(steps.await, (10, 2), "{order}");
    }
    let all = ids("/durable/workflows?limit=100", "workflows", "id", "cursor", "cursor");
    assert_eq!(all.await, (10, 2));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_disconnected() {
    let serve =
        ServeOptions { write_timeout: Duration::from_millis(300), ..ServeOptions::default() };
    let server =
        Server::start_as(Kind::Sqlite, open(), windlass::admin::Options::default(), serve).await;
    server
        .engine
        .workflow("large", async |_: Ctx, _: Value| -> windlass::Result<String> {
            Ok("y".repeat(1_000_000))
        })
        .unwrap();
    server.run("large", "l", json!({}), "complete").await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let ask = "GET /api/workflows/large/instances/l HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // The answers fill the buffers between the two, then the requests do. A write fails only when
    // the server has closed the connection.
    let unread = async { while socket.write_all(ask.as_bytes()).await.is_ok() {} };
    tokio::time::timeout(WAIT_MAX, unread).await.expect("the server closes the connection");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_holds_its_permit_until_the_wait_begins() {
    let options = Options { requests_max: 1, waits_max: 1, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    server.run("approve", "w", json!({}), "waiting").await;
    // A request whose body is incomplete holds a permit, even with `waitMs`.
    let socket = send_incomplete_request(&server, "?waitMs=1").await;
    assert_error(server.get("/workflows").await, (503, "SERVER_BUSY"));
    drop(socket);
    wait_until("the server is free again", async || server.get("/workflows").await.0 == 200).await;
    // A request that waits for a run holds none.
    let path = "/workflows/approve/instances/w/result?waitMs=";
    let waiting = waiting_request(&server, path).await;
    assert_eq!(server.get("/workflows").await.0, 200);
    assert_error(server.get(&format!("{path}1")).await, (429, "TOO_MANY_WAITS"));
    server.post_ok("/workflows/approve/instances/w/terminate", json!({})).await;
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    server.stop().await;
}

#[test]
fn default_limits_leave_connections_for_probes() {
    let (options, serve) = (Options::default(), ServeOptions::default());
    let most = options.requests_max + options.waits_max + options.streams_max;
    assert!(most < serve.connections_max, "{most}");
}
