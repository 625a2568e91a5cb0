//! Requests that are too large, too deep, too slow, incomplete, or invalid.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass_server::{Options, ServeOptions};

use crate::harness::{
    Kind, Server, WAIT_MAX, assert_error, on_both_stores, open, read, waiting_request,
};

on_both_stores!(
    invalid_bodies,
    unknown_routes,
    lists_are_rejected_as_bodies,
    errors_name_the_invalid_parameter,
);

const CREATE: &str = "/workflows/greet/instances";

async fn invalid_bodies(kind: Kind) {
    let server = Server::start(kind).await;
    let post = |kind: &str, body: String| {
        read(server.request(Method::POST, CREATE).header("content-type", kind).body(body))
    };
    let json_kind = "application/json";
    assert_error(post(json_kind, "{".into()).await, (400, "INVALID_BODY"));
    assert_eq!(post(json_kind, String::new()).await.0, 200, "the body is optional");
    assert_error(post(json_kind, " ".into()).await, (400, "INVALID_BODY"));
    assert_error(post(json_kind, "\u{0}".into()).await, (400, "INVALID_BODY"));
    assert_error(post("text/plain", "{}".into()).await, (415, "UNSUPPORTED_MEDIA_TYPE"));
    assert_error(
        post("application/x-www-form-urlencoded", "id=1".into()).await,
        (415, "UNSUPPORTED_MEDIA_TYPE"),
    );
    let deep = |depth: usize| format!("{{\"params\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert_error(post(json_kind, deep(65)).await, (400, "INVALID_DEPTH"));
    assert_error(post(json_kind, deep(1_000_000)).await, (400, "INVALID_DEPTH"));
    let (status, _) = post("application/json; charset=utf-8", deep(64)).await;
    assert_eq!(status, 200);
    let large = format!("{{\"params\":\"{}\"}}", "x".repeat(2 * 1024 * 1024));
    assert_error(post(json_kind, large.clone()).await, (413, "BODY_TOO_LARGE"));
    let chunks =
        futures::stream::iter((0..300).map(|_| Ok::<_, std::io::Error>(vec![b' '; 16 * 1024])));
    let request = server.request(Method::POST, CREATE).header("content-type", json_kind);
    assert_error(
        read(request.body(reqwest::Body::wrap_stream(chunks))).await,
        (413, "BODY_TOO_LARGE"),
    );
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
    assert_error(
        read(request.header("content-type", json_kind).body(batch)).await,
        (413, "BODY_TOO_LARGE"),
    );
    server.stop().await;
}

async fn unknown_routes(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "here", json!("x"), "complete").await;
    assert_error(server.get("/nothing").await, (404, "ROUTE_NOT_FOUND"));
    assert_error(
        server.get("/workflows/greet/instances/here/nothing").await,
        (404, "ROUTE_NOT_FOUND"),
    );
    assert_error(server.post("/_runner/tick", json!({})).await, (404, "ROUTE_NOT_FOUND"));
    assert_error(read(server.request(Method::DELETE, CREATE)).await, (405, "METHOD_NOT_ALLOWED"));
    let patched = server.request(Method::PATCH, "/workflows").send().await.unwrap();
    assert_eq!(patched.headers()["allow"], "GET, HEAD");
    assert_error(crate::harness::read_response(patched).await, (405, "METHOD_NOT_ALLOWED"));
    for path in ["/runs?label=a:%00", "/runs?label=%00:a", "/workflows/greet/instances?label=%00:"]
    {
        assert_error(server.get(path).await, (400, "INVALID_LABEL"));
    }
    let response = server.request(Method::HEAD, "/workflows").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let request = server.request(Method::GET, "/workflows").header("x-request-id", "my-id.1");
    assert_eq!(request.send().await.unwrap().headers()["x-request-id"], "my-id.1");
    let request = server.request(Method::GET, "/workflows").header("x-request-id", "a b");
    assert_ne!(request.send().await.unwrap().headers()["x-request-id"], "a b");
    server.stop().await;
}

/// Sends bytes and returns the answer. The client leaves the connection open: the server closes it.
async fn exchange(server: &Server, request: &[u8]) -> String {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let _ = socket.write_all(request).await;
    until_closed(&mut socket).await
}

async fn until_closed(socket: &mut (impl AsyncRead + Unpin)) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(WAIT_MAX, socket.read_to_end(&mut answer)).await;
    let _ = read.expect("the server closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn start_with_short_timeouts() -> Server {
    let timeout = Duration::from_secs(2);
    let wait_max = Duration::from_secs(3_600);
    let options = Options { request_timeout: timeout, wait_max, ..open() };
    let serve = ServeOptions {
        idle_timeout: timeout,
        shutdown_timeout: Duration::from_secs(2),
        ..ServeOptions::default()
    };
    Server::start_as(Kind::Sqlite, options, windlass::admin::Options::default(), serve).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_idle_connections_are_closed() {
    let server = start_with_short_timeouts().await;
    // The head never ends, and its next line always comes in time.
    let (mut reader, mut writer) = TcpStream::connect(server.address).await.unwrap().into_split();
    let endless = tokio::spawn(async move {
        let mut line: &[u8] = b"GET /api/workflows HTTP/1.1\r\n";
        while writer.write_all(line).await.is_ok() {
            line = b"a: b\r\n";
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let answer = until_closed(&mut reader).await;
    assert!(!answer.contains("200 OK"), "{answer}");
    endless.abort();
    let large = format!("GET /healthz HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n", "x".repeat(200_000));
    let answer = exchange(&server, large.as_bytes()).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let whole: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = exchange(&server, whole).await;
    assert!(answer.contains("200 OK"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_body_times_out() {
    let server = start_with_short_timeouts().await;
    let head = format!(
        "POST /api{CREATE} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{\"id\":"
    );
    let answer = exchange(&server, head.as_bytes()).await;
    assert!(answer.contains("REQUEST_TIMEOUT"), "{answer}");
    // The client closes the connection within the body.
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
async fn waits_and_streams_are_limited() {
    let options = Options { waits_max: 1, streams_max: 1, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    server.run("approve", "w", json!({}), "waiting").await;
    let wait = "/workflows/approve/instances/w/result?waitMs=";
    let first = waiting_request(&server, wait).await;
    let second = server.request(Method::GET, &format!("{wait}1")).send().await.unwrap();
    assert_eq!(second.headers()["retry-after"], "1");
    assert_error(crate::harness::read_response(second).await, (429, "TOO_MANY_WAITS"));
    assert_eq!(server.get("/workflows/approve/instances/w/result").await.0, 200);
    let live = "/workflows/approve/instances/w/live";
    let stream = server.request(Method::GET, live).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert_error(server.get(live).await, (429, "TOO_MANY_STREAMS"));
    drop(stream);
    server.post_ok("/workflows/approve/instances/w/terminate", json!({})).await;
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_do_not_cause_internal_errors() {
    let server = start_with_short_timeouts().await;
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
    let requests = (0..300).map(|_| {
        let path: String =
            (0..next() % 6).map(|_| format!("/{}", words[next() % words.len()])).collect();
        let body = bodies[next() % bodies.len()];
        let length = if next() % 4 == 0 { next() % 50 } else { body.len() };
        format!(
            "{} /api{path}?{}={} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}",
            methods[next() % methods.len()],
            ["pageSize", "cursor", "status", "label", "waitMs"][next() % 5],
            ["1", "-1", "x", "", "%00", "99999999999999999999"][next() % 6],
        )
    });
    // A request without the whole of its body takes until its timeout.
    // The stream of hints has no end.
    let ends = |request: &String| {
        !["GET /api/live?", "GET /api/live/?"].iter().any(|start| request.starts_with(start))
    };
    let requests: Vec<String> = requests.filter(ends).collect();
    for some in requests.chunks(25) {
        let exchanges = some.iter().map(|request| exchange(&server, request.as_bytes()));
        for (request, answer) in some.iter().zip(join_all(exchanges).await) {
            assert!(!answer.contains(" 500 "), "{request}\n{answer}");
        }
    }
    server.stop().await;
}

async fn lists_are_rejected_as_bodies(kind: Kind) {
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
        assert_error(server.post(path, body).await, (400, "INVALID_BODY"));
    }
    server.stop().await;
}

async fn errors_name_the_invalid_parameter(kind: Kind) {
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
async fn wait_ms_does_not_extend_the_body_timeout() {
    let server = start_with_short_timeouts().await;
    let head = "POST /api/workflows/greet/instances?waitMs=3600000 HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let answer = exchange(&server, head.as_bytes()).await;
    assert!(answer.contains("408"), "{answer}");
    // The request timeout does not apply to a request that waits.
    server.run("approve", "w", json!({}), "waiting").await;
    let (status, body) = server.get("/workflows/approve/instances/w/result?waitMs=3000").await;
    assert_eq!((status, &body["done"]), (200, &json!(false)), "{body}");
    server.stop().await;
}
