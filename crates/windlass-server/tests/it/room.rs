//! How much the server takes on at once, and how much it sends in one answer.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass::{Admission, BoxError, Ctx};
use windlass_server::{Options, ServeOptions};

use crate::harness::{Kind, Server, on_both_stores, open, read_response, refused};

on_both_stores!(pages_end_by_their_bytes);

/// A request whose body does not come: it holds its place until it times out.
async fn unfinished(server: &Server) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /api/workflows/greet/instances HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_says_when_to_come_back_and_still_says_how_it_is() {
    let options = Options { requests_max: 1, metrics_open: true, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let socket = unfinished(&server).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let busy = server.request(Method::GET, "/workflows").send().await.unwrap();
    assert_eq!(busy.headers()["retry-after"], "1");
    refused(read_response(busy).await, (503, "SERVER_BUSY"));
    for path in ["//healthz", "//readyz", "//metrics"] {
        let status = server.request(Method::GET, path).send().await.unwrap().status();
        assert_eq!(status, 200, "{path}");
    }
    drop(socket);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while server.get("/workflows").await.0 != 200 {
        assert!(std::time::Instant::now() < deadline, "the place is not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_bound_wait_to_be_accepted() {
    let serve = ServeOptions { connections_max: 1, ..ServeOptions::default() };
    let server = Server::start_as(Kind::Sqlite, open(), windlass::Options::default(), serve).await;
    let first = TcpStream::connect(server.address).await.unwrap();
    // The first is accepted before the second can be.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut second = TcpStream::connect(server.address).await.unwrap();
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    second.write_all(ask).await.unwrap();
    let mut answer = String::new();
    let early =
        tokio::time::timeout(Duration::from_millis(500), second.read_to_string(&mut answer)).await;
    assert!(early.is_err(), "it was answered beside the first: {answer}");
    drop(first);
    let late = tokio::time::timeout(Duration::from_secs(20), second.read_to_string(&mut answer));
    late.await.expect("it is answered when there is room").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_behind_refuses_new_runs_for_now() {
    let engine = windlass::Options {
        background: false,
        admission: Some(Admission { max_queue_ratio: 0.000_001 }),
        ..windlass::Options::default()
    };
    let server = Server::start_as(Kind::Sqlite, open(), engine, ServeOptions::default()).await;
    let path = "/workflows/greet/instances";
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let refusal = loop {
        let response = server.request(Method::POST, path).json(&json!({})).send().await.unwrap();
        if response.status() != 200 {
            break response;
        }
        assert!(std::time::Instant::now() < deadline, "it takes everything");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(refusal.headers()["retry-after"], "1");
    refused(read_response(refusal).await, (503, "OVERLOADED"));
    server.stop().await;
}

async fn pages_end_by_their_bytes(kind: Kind) {
    let server = Server::start(kind).await;
    server
        .engine
        .workflow("large", async |ctx: Ctx, _: Value| -> windlass::Result<String> {
            for n in 0..10 {
                let body = async || Ok::<_, BoxError>("x".repeat(1_000_000));
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
            let page = server.ok(&query).await;
            assert!(page.to_string().len() < 10 * 1024 * 1024, "{path} has a page too large");
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
async fn a_client_that_does_not_read_is_hung_up_on() {
    let serve =
        ServeOptions { write_timeout: Duration::from_millis(300), ..ServeOptions::default() };
    let server = Server::start_as(Kind::Sqlite, open(), windlass::Options::default(), serve).await;
    server
        .engine
        .workflow("large", async |_: Ctx, _: Value| -> windlass::Result<String> {
            Ok("y".repeat(1_000_000))
        })
        .unwrap();
    server.run("large", "l", json!({}), "complete").await;
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let ask = "GET /api/workflows/large/instances/l HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // More than the buffers between the two hold.
    for _ in 0..30 {
        let _ = socket.write_all(ask.as_bytes()).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut answer));
    let read = read.await.expect("the server has closed it");
    assert!(read.is_err() || answer.len() < 29_000_000, "all of it came: {}", answer.len());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_takes_a_place_among_requests_until_it_waits() {
    let options = Options { requests_max: 1, waits_max: 1, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    server.run("approve", "w", json!({}), "waiting").await;
    // What has not been read takes a place, whatever it will wait for.
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /api/workflows/greet/instances?waitMs=1 HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    refused(server.get("/workflows").await, (503, "SERVER_BUSY"));
    drop(socket);
    tokio::time::sleep(Duration::from_millis(300)).await;
    // What waits for a run takes none.
    let path = "/workflows/approve/instances/w/result?waitMs=20000";
    let waiting = tokio::spawn(server.request(Method::GET, path).send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.get("/workflows").await.0, 200);
    refused(server.get(path).await, (429, "TOO_MANY_WAITS"));
    server.posted("/workflows/approve/instances/w/terminate", json!({})).await;
    assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    server.stop().await;
}

#[test]
fn waits_leave_connections_to_others() {
    let (options, serve) = (Options::default(), ServeOptions::default());
    let most = options.requests_max + options.waits_max + options.streams_max;
    assert!(most < serve.connections_max, "{most}");
}
