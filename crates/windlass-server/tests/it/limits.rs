//! Limits on concurrent requests and on the size of responses.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use windlass::Ctx;
use windlass::admin::Admission;
use windlass::kernel::{BoxFuture, Namespace};
use windlass_server::auth::{
    Auth, Authorize, Caller, Denied, KeyStore, Keys, MemoryKeys, NewKey, Scope, Target,
};
use windlass_server::{Options, ServeOptions};

use crate::harness::{
    Kind, Server, WAIT_MAX, assert_error, http_client, on_both_stores, open, read, read_response,
    wait_until, waiting_request,
};

on_both_stores!(pages_are_limited_by_bytes);

/// A hook that lets requests to create runs of the workflow `nap` wait until it is opened.
#[derive(Default)]
struct Gate(tokio::sync::watch::Sender<bool>);

impl Authorize for Gate {
    fn request<'a>(
        &'a self,
        _: &'a axum::http::request::Parts,
    ) -> BoxFuture<'a, Result<Option<Caller>, Denied>> {
        let caller = Caller::everything(Namespace::default_namespace());
        Box::pin(std::future::ready(Ok(Some(caller))))
    }

    fn create<'a>(
        &'a self,
        _: &'a Caller,
        target: &'a Target<'a>,
    ) -> BoxFuture<'a, Result<(), Denied>> {
        // Only after the body was received.
        let is_gated = target.workflow == Some("nap") && target.params.is_some();
        Box::pin(async move {
            if is_gated {
                let _ = self.0.subscribe().wait_for(|open| *open).await;
            }
            Ok(())
        })
    }
}

/// A server that serves one request at a time, and a request that holds its only permit until the
/// gate is opened.
async fn busy_server(options: Options, query: &str) -> (Server, Arc<Gate>, RunningRequest) {
    let gate = Arc::new(Gate::default());
    let authorize: Option<Arc<dyn Authorize>> = Some(Arc::clone(&gate) as _);
    let options = Options { requests_max: 1, auth: Auth::Hooks, authorize, ..options };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let path = format!("/workflows/nap/instances{query}");
    let send = || tokio::spawn(server.request(Method::POST, &path).json(&json!({})).send());
    let mut request = send();
    wait_until("the server is busy", async || {
        // A request of the check below held the only permit when this one came.
        if request.is_finished() {
            request = send();
        }
        server.get("/workflows").await.0 == 429 && !request.is_finished()
    })
    .await;
    (server, gate, request)
}

type RunningRequest = tokio::task::JoinHandle<reqwest::Result<reqwest::Response>>;

/// A request whose body does not come.
async fn send_incomplete_request(server: &Server, query: &str) -> TcpStream {
    let head = format!(
        "POST /api/workflows/greet/instances{query} HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
    );
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_do_not_lock_others_out() {
    let options = Options { requests_max: 2, waits_max: 1, ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let mut sockets = Vec::new();
    for query in ["", "?waitMs=1000"].repeat(8) {
        sockets.push(send_incomplete_request(&server, query).await);
    }
    // The permits are only taken for the moment in which a request is authenticated.
    wait_until("a request is served", async || server.get("/workflows").await.0 == 200).await;
    for _ in 0..20 {
        assert_eq!(server.get("/workflows").await.0, 200);
        let path = "/workflows/greet/instances?waitMs=60000";
        assert_eq!(server.post_ok(path, json!({})).await["details"]["status"], "complete");
    }
    assert!(!sockets.iter().any(is_answered), "the slow requests are not refused either");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bytes_of_all_bodies_are_limited() {
    let gate = Arc::new(Gate::default());
    let authorize: Option<Arc<dyn Authorize>> = Some(Arc::clone(&gate) as _);
    let options =
        Options { bodies_bytes_max: 4_096, auth: Auth::Hooks, authorize, ..Options::default() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let post = |workflow: &str, bytes: usize| {
        let path = format!("/workflows/{workflow}/instances");
        let body = json!({ "params": "x".repeat(bytes) });
        server.request(Method::POST, &path).json(&body).send()
    };
    // A request that waits for the gate keeps its body in memory.
    let mut held = tokio::spawn(post("nap", 3_000));
    let mut refused = None;
    wait_until("another body is refused", async || {
        // A body of the check below was in memory when this one came.
        if held.is_finished() {
            held = tokio::spawn(post("nap", 3_000));
        }
        refused = Some(post("greet", 2_000).await.unwrap());
        refused.as_ref().is_some_and(|response| response.status() == 429)
    })
    .await;
    let refused = refused.expect("a response");
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_error(read_response(refused).await, (429, "TOO_MANY_REQUESTS"));
    assert_eq!(post("greet", 100).await.unwrap().status(), 200, "a small body fits");
    gate.0.send_replace(true);
    assert_eq!(held.await.unwrap().unwrap().status(), 200);
    assert_eq!(post("greet", 2_000).await.unwrap().status(), 200);
    server.stop().await;
}

fn is_answered(socket: &TcpStream) -> bool {
    let read = socket.try_read(&mut [0; 1]);
    !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_sends_retry_after_and_answers_probes() {
    let options = Options { metrics_open: true, ..open() };
    let (server, gate, request) = busy_server(options, "").await;
    let busy = server.request(Method::GET, "/workflows").send().await.unwrap();
    assert_eq!(busy.headers()["retry-after"], "1");
    assert_error(read_response(busy).await, (429, "SERVER_BUSY"));
    for path in ["//healthz", "//readyz", "//metrics"] {
        let status = server.request(Method::GET, path).send().await.unwrap().status();
        assert_eq!(status, 200, "{path}");
    }
    gate.0.send_replace(true);
    assert_eq!(request.await.unwrap().unwrap().status(), 200);
    wait_until("the server is free again", async || server.get("/workflows").await.0 == 200).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_wait_to_be_accepted() {
    let serve = ServeOptions { connections_max: 1, ..ServeOptions::default() };
    let server =
        Server::start_as(Kind::Sqlite, open(), windlass::admin::Options::default(), serve).await;
    let name = windlass::kernel::WorkflowName::new("nap").unwrap();
    let run = windlass_engine::StartRun::new(
        name,
        windlass::kernel::ModelName::new("steps").unwrap(),
        windlass::kernel::Body::json("{}"),
    );
    let run = server.engine.core().start_run(run).await.unwrap();
    // A live stream: the connection is never idle.
    let mut first = TcpStream::connect(server.address).await.unwrap();
    let ask = format!(
        "GET /api/workflows/nap/instances/{}/live HTTP/1.1\r\nhost: localhost\r\n\r\n",
        run.id
    );
    first.write_all(ask.as_bytes()).await.unwrap();
    let mut answer = [0; 4096];
    let length = first.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
    let mut second = TcpStream::connect(server.address).await.unwrap();
    let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    second.write_all(ask).await.unwrap();
    // The first one receives the events of the run, and the second one no response.
    for _ in 0..3 {
        let event = windlass::kernel::MessageName::new("other").unwrap();
        server.engine.core().send_event(run.run_key, event, None, None).await.unwrap();
        let read = tokio::time::timeout(WAIT_MAX, first.read(&mut answer));
        assert!(read.await.expect("the stream goes on").unwrap() > 0);
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
async fn idle_connections_give_way_to_new_ones() {
    let serve = ServeOptions {
        connections_max: 32,
        head_timeout: Duration::from_secs(3_600),
        ..ServeOptions::default()
    };
    let server =
        Server::start_as(Kind::Sqlite, open(), windlass::admin::Options::default(), serve).await;
    let mut idle = Vec::new();
    for n in 0..200 {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        if n % 2 == 0 {
            // An incomplete head. The server may have closed the connection already.
            let _ = socket.write_all(b"GET /healthz HTTP/1.1\r\nhost").await;
        }
        idle.push(socket);
    }
    for _ in 0..10 {
        let response = http_client().get(server.url("//healthz")).send().await.unwrap();
        assert_eq!(response.status(), 200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_head_must_arrive_in_time() {
    let serve =
        ServeOptions { head_timeout: Duration::from_millis(100), ..ServeOptions::default() };
    let server =
        Server::start_as(Kind::Sqlite, open(), windlass::admin::Options::default(), serve).await;
    for sent in ["", "GET /healthz HTTP/1.1\r\nhost: loc"] {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(WAIT_MAX, socket.read_to_end(&mut answer)).await;
        closed.expect("the server closes the connection").unwrap();
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_with_too_many_requests_in_progress_gets_429() {
    let serve = ServeOptions { connections_per_address_max: 1, ..ServeOptions::default() };
    let options = Options { waits_max: 1, ..open() };
    let server =
        Server::start_as(Kind::Sqlite, options, windlass::admin::Options::default(), serve).await;
    // Not over HTTP: a client that opens a second connection has its first one closed by this limit.
    let naps = server.engine.remote_workflow::<Value, ()>("nap").unwrap();
    naps.start(json!({})).id("w").await.unwrap();
    let path = "/workflows/nap/instances/w/result?waitMs=60000";
    let send = || tokio::spawn(server.request(Method::GET, path).send());
    let mut waiting = send();
    let mut answer = String::new();
    wait_until("the waiting request holds the connection", async || {
        // A request of the check below held the connection when this one came.
        if waiting.is_finished() {
            waiting = send();
        }
        answer.clear();
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let _ = socket.write_all(ask).await;
        let _ = socket.read_to_string(&mut answer).await;
        answer.starts_with("HTTP/1.1 429") && !waiting.is_finished()
    })
    .await;
    assert!(
        answer.contains("TOO_MANY_CONNECTIONS") && answer.contains("retry-after: 1"),
        "{answer}"
    );
    waiting.abort();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_has_its_own_limits() {
    let keys: Arc<dyn KeyStore> = Arc::new(MemoryKeys::default());
    let options = Options {
        auth: Auth::Credentials { keys: Some(Arc::clone(&keys)), jwt: None },
        waits_per_credential_max: 1,
        streams_per_credential_max: 1,
        ..Options::default()
    };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let now = || windlass::Timestamp::from_millis(1_700_000_000_000);
    let issue = async |name: &str| {
        let issuer = Keys::new(Arc::clone(&keys), Arc::new(now));
        let issuing = issuer.create(NewKey {
            name: name.into(),
            namespace: Namespace::default_namespace(),
            scopes: vec![Scope::Admin],
            subject: None,
            created_by: None,
            expires_in: None,
        });
        issuing.await.unwrap().key
    };
    let (one, other) = (issue("one").await, issue("other").await);
    let ask = |key: &str, method: Method, path: &str| {
        server.request(method, &format!("/workflows/nap/instances{path}")).bearer_auth(key)
    };
    read(ask(&one, Method::POST, "").json(&json!({ "id": "w" }))).await;
    let streams: Vec<_> = [&one, &other].map(|key| ask(key, Method::GET, "/w/live").send()).into();
    let streams = futures::future::join_all(streams).await;
    assert!(streams.iter().all(|stream| stream.as_ref().unwrap().status() == 200));
    let refused = ask(&one, Method::GET, "/w/live").send().await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "5");
    assert_error(read_response(refused).await, (429, "TOO_MANY_STREAMS"));

    let send = || tokio::spawn(ask(&one, Method::GET, "/w/result?waitMs=60000").send());
    let mut waiting = send();
    wait_until("the first credential waits", async || {
        // A request of the check below held the permit when this one came.
        if waiting.is_finished() {
            waiting = send();
        }
        let refused = read(ask(&one, Method::GET, "/w/result?waitMs=0")).await.0 == 429;
        refused && !waiting.is_finished()
    })
    .await;
    let refused = ask(&one, Method::GET, "/w/result?waitMs=0").send().await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_error(read_response(refused).await, (429, "TOO_MANY_WAITS"));
    assert_eq!(read(ask(&other, Method::GET, "/w/result?waitMs=0")).await.0, 200);
    waiting.abort();
    drop(streams);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priority_and_start_time_of_clients_are_bounded() {
    let options =
        Options { priority_max: 10, start_ahead_max: Duration::from_secs(3_600), ..open() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let path = "/workflows/nap/instances";
    for (body, code) in [
        (json!({ "priority": 11 }), "INVALID_SIZE"),
        (json!({ "priority": -11 }), "INVALID_SIZE"),
        (json!({ "priority": 32_767 }), "INVALID_SIZE"),
        (json!({ "delayMs": 3_600_001 }), "INVALID_DURATION"),
        (json!({ "startAt": "2999-01-01T00:00:00Z" }), "INVALID_TIME"),
    ] {
        assert_error(server.post(path, body).await, (400, code));
    }
    for body in [json!({ "priority": 10 }), json!({ "priority": -10 }), json!({ "delayMs": 1 })] {
        server.post_ok(path, body).await;
    }
    server.post_ok(path, json!({ "id": "old", "startAt": "1970-01-01T00:00:00Z" })).await;
    let run = windlass::kernel::RunId::new("old").unwrap();
    let workflow = windlass::kernel::WorkflowName::new("nap").unwrap();
    let run = server.engine.core().find_run(&workflow, &run).await.unwrap().unwrap();
    let due = run.turn.due_at.unwrap_or(run.created_at);
    assert!(run.created_at.since(due) < Duration::from_secs(60), "due at {due}");
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
    assert_error(read_response(refusal).await, (429, "OVERLOADED"));
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
    let options = Options { waits_max: 1, ..open() };
    let (server, gate, request) = busy_server(options, "?waitMs=1").await;
    assert_error(server.get("/workflows").await, (429, "SERVER_BUSY"));
    gate.0.send_replace(true);
    assert_eq!(request.await.unwrap().unwrap().status(), 200);
    server.run("approve", "w", json!({}), "waiting").await;
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
