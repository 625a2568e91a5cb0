//! Requests that are too large, too deep, too slow, cut off, or simply wrong.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass_server::{Options, ServeOptions};

use crate::harness::{Kind, Server, on_both_stores, open, read, refused};

on_both_stores!(
    bodies_that_are_wrong,
    routes_that_are_not_there,
    lists_are_no_objects,
    queries_that_are_wrong_are_named,
);

const CREATE: &str = "/workflows/greet/instances";

async fn bodies_that_are_wrong(kind: Kind) {
    let server = Server::start(kind).await;
    let post = |kind: &str, body: String| {
        read(server.request(Method::POST, CREATE).header("content-type", kind).body(body))
    };
    let json_kind = "application/json";
    refused(post(json_kind, "{".into()).await, (400, "INVALID_BODY"));
    assert_eq!(post(json_kind, String::new()).await.0, 200, "all of it may be left out");
    refused(post(json_kind, " ".into()).await, (400, "INVALID_BODY"));
    refused(post(json_kind, "\u{0}".into()).await, (400, "INVALID_BODY"));
    refused(post("text/plain", "{}".into()).await, (415, "UNSUPPORTED_MEDIA_TYPE"));
    refused(
        post("application/x-www-form-urlencoded", "id=1".into()).await,
        (415, "UNSUPPORTED_MEDIA_TYPE"),
    );
    let deep = |depth: usize| format!("{{\"params\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    refused(post(json_kind, deep(65)).await, (400, "INVALID_DEPTH"));
    refused(post(json_kind, deep(1_000_000)).await, (400, "INVALID_DEPTH"));
    let (status, _) = post("application/json; charset=utf-8", deep(64)).await;
    assert_eq!(status, 200);
    let large = format!("{{\"params\":\"{}\"}}", "x".repeat(2 * 1024 * 1024));
    refused(post(json_kind, large.clone()).await, (413, "BODY_TOO_LARGE"));
    let chunks =
        futures::stream::iter((0..300).map(|_| Ok::<_, std::io::Error>(vec![b' '; 16 * 1024])));
    let request = server.request(Method::POST, CREATE).header("content-type", json_kind);
    refused(read(request.body(reqwest::Body::wrap_stream(chunks))).await, (413, "BODY_TOO_LARGE"));
    let batch =
        format!("{{\"instances\":[{{\"id\":\"a\",\"params\":\"{}\"}}]}}", "x".repeat(900_000));
    let request = server.request(Method::POST, &format!("{CREATE}/batch"));
    let (status, body) = read(request.header("content-type", json_kind).body(batch)).await;
    assert_eq!(status, 200, "{body}");
    let batch = format!(
        "{{\"instances\":[{{\"id\":\"a\",\"params\":\"{}\"}}]}}",
        "x".repeat(8 * 1024 * 1024)
    );
    let request = server.request(Method::POST, &format!("{CREATE}/batch"));
    refused(
        read(request.header("content-type", json_kind).body(batch)).await,
        (413, "BODY_TOO_LARGE"),
    );
    server.stop().await;
}

async fn routes_that_are_not_there(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "here", json!("x"), "complete").await;
    refused(server.get("/nothing").await, (404, "ROUTE_NOT_FOUND"));
    refused(server.get("/workflows/greet/instances/here/nothing").await, (404, "ROUTE_NOT_FOUND"));
    refused(server.post("/_runner/tick", json!({})).await, (404, "ROUTE_NOT_FOUND"));
    refused(read(server.request(Method::DELETE, CREATE)).await, (405, "METHOD_NOT_ALLOWED"));
    let patched = server.request(Method::PATCH, "/workflows").send().await.unwrap();
    assert_eq!(patched.headers()["allow"], "GET, HEAD");
    refused(crate::harness::read_response(patched).await, (405, "METHOD_NOT_ALLOWED"));
    for path in ["/runs?label=a:%00", "/runs?label=%00:a", "/workflows/greet/instances?label=%00:"]
    {
        refused(server.get(path).await, (400, "INVALID_LABEL"));
    }
    let response = server.request(Method::HEAD, "/workflows").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let request = server.request(Method::GET, "/workflows").header("x-request-id", "my-id.1");
    assert_eq!(request.send().await.unwrap().headers()["x-request-id"], "my-id.1");
    let request = server.request(Method::GET, "/workflows").header("x-request-id", "a b");
    assert_ne!(request.send().await.unwrap().headers()["x-request-id"], "a b");
    server.stop().await;
}

/// Sends bytes and answers what comes back until the server hangs up.
async fn exchange(server: &Server, pieces: &[&[u8]], pause: Duration) -> (String, Duration) {
    let began = Instant::now();
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    for piece in pieces {
        if socket.write_all(piece).await.is_err() {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer).await;
    (String::from_utf8_lossy(&answer).into_owned(), began.elapsed())
}

async fn impatient() -> Server {
    let options = Options { request_timeout: Duration::from_millis(700), ..open() };
    let serve = ServeOptions {
        idle_timeout: Duration::from_millis(700),
        shutdown_timeout: Duration::from_secs(2),
        ..ServeOptions::default()
    };
    Server::start_as(Kind::Sqlite, options, windlass::Options::default(), serve).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_idle_connections_are_closed() {
    let server = impatient().await;
    let slow: Vec<&[u8]> = vec![b"GET /api/workflows HTTP/1.1\r\n", b"host: x\r\n", b"a: b\r\n"];
    let (answer, took) = exchange(&server, &slow, Duration::from_millis(400)).await;
    assert!(!answer.contains("200 OK") && took < Duration::from_secs(5), "{took:?} {answer}");
    let large = format!("GET /healthz HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n", "x".repeat(200_000));
    let (answer, _) = exchange(&server, &[large.as_bytes()], Duration::ZERO).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let whole: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let (answer, took) = exchange(&server, &[whole], Duration::ZERO).await;
    assert!(answer.contains("200 OK") && took < Duration::from_secs(5), "{took:?} {answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let server = impatient().await;
    let head = format!(
        "POST /api{CREATE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{\"id\":"
    );
    let (answer, took) = exchange(&server, &[head.as_bytes()], Duration::ZERO).await;
    assert!(
        answer.contains("REQUEST_TIMEOUT") && took < Duration::from_secs(5),
        "{took:?} {answer}"
    );
    // Cut off in the middle.
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut answer = String::new();
    let _ = socket.read_to_string(&mut answer).await;
    assert!(answer.is_empty() || answer.contains("INVALID_BODY"), "{answer}");
    assert_eq!(server.get("/workflows").await.0, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_room_for_so_many_and_no_more() {
    let options = Options { waits_max: 1, streams_max: 1, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    server.run("approve", "w", json!({}), "waiting").await;
    let wait = "/workflows/approve/instances/w/result?waitMs=3000";
    let first = tokio::spawn(server.request(Method::GET, wait).send());
    tokio::time::sleep(Duration::from_millis(300)).await;
    let second = server.request(Method::GET, wait).send().await.unwrap();
    assert_eq!(second.headers()["retry-after"], "1");
    refused(crate::harness::read_response(second).await, (429, "TOO_MANY_WAITS"));
    assert_eq!(server.get("/workflows/approve/instances/w/result").await.0, 200);
    let live = "/workflows/approve/instances/w/live";
    let stream = server.request(Method::GET, live).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    refused(server.get(live).await, (429, "TOO_MANY_STREAMS"));
    drop(stream);
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_are_answered_or_hung_up_on() {
    let server = impatient().await;
    let mut seed = 7_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    let methods = ["GET", "POST", "PUT", "DELETE", "BREW", ""];
    let words = [
        "workflows",
        "greet",
        "instances",
        "%ff",
        "..",
        "batch",
        "runs",
        "keys",
        "{x}",
        "live",
        "",
    ];
    let bodies =
        ["", "{}", "[", "{\"id\":\"a\"}", "null", "\u{1}", "{\"action\":1}", "\"\\ud800\""];
    for _ in 0..300 {
        let path: String =
            (0..next() % 6).map(|_| format!("/{}", words[next() % words.len()])).collect();
        let body = bodies[next() % bodies.len()];
        let length = if next() % 4 == 0 { next() % 50 } else { body.len() };
        let request = format!(
            "{} /api{path}?{}={} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
            methods[next() % methods.len()],
            ["pageSize", "cursor", "status", "label", "waitMs"][next() % 5],
            ["1", "-1", "x", "", "%00", "99999999999999999999"][next() % 6],
        );
        let (answer, took) = exchange(&server, &[request.as_bytes()], Duration::ZERO).await;
        assert!(!answer.contains(" 500 ") && took < Duration::from_secs(10), "{request}\n{answer}");
    }
    server.stop().await;
}

async fn lists_are_no_objects(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "l-1", json!({}), "waiting").await;
    for (path, body) in [
        (CREATE, json!(["an-id", null, {}, {}, 0, null, null])),
        ("/workflows/greet/instances/batch", json!([[["a"]]])),
        ("/workflows/approve/instances/l-1/events", json!(["approval", 1, "x"])),
        ("/workflows/approve/instances/l-1/terminate", json!(["because"])),
        ("/runs/bulk", json!(["terminate", {}, false, 1, null])),
        ("/keys", json!(["a", ["read"], null, null])),
    ] {
        refused(server.post(path, body).await, (400, "INVALID_BODY"));
    }
    server.stop().await;
}

async fn queries_that_are_wrong_are_named(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "q", json!("x"), "complete").await;
    for (path, code, named) in [
        ("/runs?pageSize=x", "INVALID_QUERY", "pageSize"),
        ("/runs?order=up", "INVALID_QUERY", "order"),
        ("/workflows/greet/instances/q/history?includeLogs=maybe", "INVALID_QUERY", "includeLogs"),
        ("/workflows/greet/instances/q/result?waitMs=-1", "INVALID_QUERY", "waitMs"),
        ("/runs?createdFrom=99999-01-01T00:00:00Z", "INVALID_TIME", "createdFrom"),
        ("/runs?createdFrom=9999-12-31T23:59:59Z", "INVALID_TIME", "out of range"),
        (
            "/workflows/greet/instances/q/history?includeLogs=true&logCategory=%00",
            "INVALID_TEXT",
            "logCategory",
        ),
        ("/workflows/greet/instances/q/history?logCategory=%00", "INVALID_TEXT", "NUL"),
    ] {
        let (status, body) = server.get(path).await;
        assert_eq!((status, body["code"].as_str().unwrap()), (400, code), "{path}: {body}");
        assert!(body["message"].as_str().unwrap().contains(named), "{path}: {body}");
    }
    let live = "/workflows/greet/instances/q/live";
    let request = server.request(Method::GET, live).header("last-event-id", "x");
    let (status, body) = read(request).await;
    assert_eq!((status, body["code"].as_str().unwrap()), (400, "INVALID_CURSOR"), "{body}");
    assert!(body["message"].as_str().unwrap().contains("Last-Event-ID"), "{body}");
    for path in ["//healthz/", "//readyz/", "//metrics/"] {
        let status = server.request(Method::GET, path).send().await.unwrap().status();
        assert_eq!(status, 200, "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_gives_a_body_no_more_time() {
    let server = impatient().await;
    let head = "POST /api/workflows/greet/instances?waitMs=30000 HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let pieces = [head.as_bytes()];
    let exchange = exchange(&server, &pieces, Duration::ZERO);
    let (answer, _) = tokio::time::timeout(Duration::from_secs(15), exchange)
        .await
        .expect("the body is waited for as long as any");
    assert!(answer.contains("408"), "{answer}");
    // Who waits is not cut off.
    server.run("approve", "w", json!({}), "waiting").await;
    let (status, body) = server.get("/workflows/approve/instances/w/result?waitMs=2000").await;
    assert_eq!((status, &body["done"]), (200, &json!(false)), "{body}");
    server.stop().await;
}
