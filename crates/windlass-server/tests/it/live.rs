//! Live streams: their events, and resuming after a disconnect.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};
use windlass::Ctx;
use windlass::kernel::Namespace;
use windlass_server::Options;
use windlass_server::auth::{Auth, KeyStore, Keys, MemoryKeys, NewKey, Scope};

use crate::harness::{Kind, Server, assert_error, on_both_stores};

on_both_stores!(
    a_stream_follows_a_run_to_its_end,
    a_stream_resumes_after_a_disconnect,
    log_lines_resume_after_a_disconnect,
    a_client_that_received_the_end_gets_204,
);

#[derive(Clone, Debug)]
pub(crate) struct StreamEvent {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// Reads events until `enough` returns true, or the stream ends.
pub(crate) async fn read_events(
    mut response: Response,
    enough: impl Fn(&[StreamEvent]) -> bool,
) -> Vec<StreamEvent> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let mut received = Vec::new();
    while let Ok(Ok(Some(chunk))) =
        tokio::time::timeout(Duration::from_secs(20), response.chunk()).await
    {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some(end) = text.find("\n\n") {
            let block: String = text.drain(..end + 2).collect();
            let field = |name: &str| {
                let line =
                    block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                line.unwrap_or_default().to_owned()
            };
            if block.starts_with(':') {
                continue;
            }
            let data = serde_json::from_str(&field("data")).expect("data is JSON");
            received.push(StreamEvent { id: field("id"), kind: field("event"), data });
            if enough(&received) {
                return received;
            }
        }
    }
    received
}

pub(crate) fn kinds(received: &[StreamEvent], kind: &str) -> Vec<Value> {
    received.iter().filter(|one| one.kind == kind).map(|one| one.data.clone()).collect()
}

async fn a_stream_follows_a_run_to_its_end(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "live-1", json!({}), "waiting").await;
    let at = "/workflows/approve/instances/live-1";
    let stream = server.request(Method::GET, &format!("{at}/live")).send().await.unwrap();
    let reader = tokio::spawn(read_events(stream, |_| false));
    for n in 0..2 {
        server.post_ok(&format!("{at}/events"), json!({ "type": "approval", "payload": n })).await;
    }
    let received = tokio::time::timeout(Duration::from_secs(30), reader)
        .await
        .expect("the stream ends")
        .unwrap();
    let ledger = server.get_ok(&format!("{at}/ledger")).await;
    let hashes =
        |events: &[Value]| events.iter().map(|event| event["hash"].clone()).collect::<Vec<_>>();
    assert_eq!(hashes(&kinds(&received, "event")), hashes(ledger["events"].as_array().unwrap()));
    let steps = kinds(&received, "step");
    assert!(steps.iter().any(|step| step["stepKey"] == "second" && step["status"] == "completed"));
    let statuses = kinds(&received, "status");
    assert_eq!(statuses.last().unwrap()["details"]["status"], "complete");
    let last = received.last().unwrap();
    assert_eq!((last.kind.as_str(), &last.data["details"]["output"]), ("end", &json!([0, 1])));

    server.run("greet", "live-2", json!("Ann"), "complete").await;
    let stream = server.request(Method::GET, "/workflows/greet/instances/live-2/live").send().await;
    let received = read_events(stream.unwrap(), |_| false).await;
    assert_eq!(kinds(&received, "log")[0]["message"], "greeting");
    assert_error(
        server.get("/workflows/greet/instances/nobody/live").await,
        (404, "INSTANCE_NOT_FOUND"),
    );
    server.stop().await;
}

async fn a_stream_resumes_after_a_disconnect(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "cut", json!({}), "waiting").await;
    let path = "/workflows/approve/instances/cut/live";
    let first = server.request(Method::GET, path).send().await.unwrap();
    let events =
        |received: &[StreamEvent]| received.iter().filter(|one| one.kind == "event").count();
    let first = read_events(first, |received| events(received) == 2).await;
    let last = first.last().unwrap();
    for n in 0..2 {
        let body = json!({ "type": "approval", "payload": n });
        server.post_ok("/workflows/approve/instances/cut/events", body).await;
    }
    let request = server.request(Method::GET, path).header("last-event-id", &last.id);
    let second = read_events(request.send().await.unwrap(), |_| false).await;
    let ordinals: Vec<u64> = kinds(&first, "event")
        .iter()
        .chain(&kinds(&second, "event"))
        .map(|event| event["ordinal"].as_u64().unwrap())
        .collect();
    let whole = server.get_ok("/workflows/approve/instances/cut/ledger").await;
    let count = whole["events"].as_array().unwrap().len() as u64;
    assert_eq!(ordinals, (0..count).collect::<Vec<_>>(), "no event is missing or repeated");
    assert_eq!(second.last().unwrap().kind, "end");

    let request = server.request(Method::GET, path).header("last-event-id", "nonsense");
    assert_error(crate::harness::read(request).await, (400, "INVALID_CURSOR"));

    // After a restart, the stream continues with the next generation.
    let restarted =
        read_events(server.request(Method::GET, path).send().await.unwrap(), |_| false).await;
    let end = restarted.last().unwrap().id.clone();
    server.post_ok("/workflows/approve/instances/cut/restart", json!({})).await;
    let request = server.request(Method::GET, path).header("last-event-id", end);
    let received =
        read_events(request.send().await.unwrap(), |received| events(received) == 1).await;
    assert_eq!(kinds(&received, "event")[0]["ordinal"], 0);
    assert_eq!(kinds(&received, "status").last().unwrap()["runNumber"], 1);
    server.stop().await;
}

async fn log_lines_resume_after_a_disconnect(kind: Kind) {
    let server = Server::start(kind).await;
    let chatty = async |ctx: Ctx, _: Value| -> windlass::Result<()> {
        for n in 0..5 {
            ctx.log().info(format!("line {n}"))?;
        }
        let _: Value = ctx.event("wait", "go").await?;
        Ok(ctx.log().info("line 5")?)
    };
    server.engine.workflow("chatty", chatty).unwrap();
    server.run("chatty", "c", json!({}), "waiting").await;
    let path = "/workflows/chatty/instances/c/live";
    let logs = |received: &[StreamEvent]| received.iter().filter(|one| one.kind == "log").count();
    let first = read_events(server.request(Method::GET, path).send().await.unwrap(), |received| {
        logs(received) == 3
    })
    .await;
    server.post_ok("/workflows/chatty/instances/c/events", json!({ "type": "go" })).await;
    let request =
        server.request(Method::GET, path).header("last-event-id", &first.last().unwrap().id);
    let second = read_events(request.send().await.unwrap(), |_| false).await;
    let lines: Vec<String> = (kinds(&first, "log").iter().chain(&kinds(&second, "log")))
        .filter(|line| line["isReplay"] == false)
        .map(|line| line["message"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["line 0", "line 1", "line 2", "line 3", "line 4", "line 5"]);
    server.stop().await;
}

async fn a_client_that_received_the_end_gets_204(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "g", json!("Ann"), "complete").await;
    let path = "/workflows/greet/instances/g/live";
    let all = read_events(server.request(Method::GET, path).send().await.unwrap(), |_| false).await;
    let (last, before) = (&all[all.len() - 1], &all[all.len() - 2]);
    assert_eq!(last.kind, "end");
    let request = server.request(Method::GET, path).header("last-event-id", &last.id);
    assert_eq!(request.send().await.unwrap().status(), 204);
    // A client that disconnected before the end still receives it.
    let request = server.request(Method::GET, path).header("last-event-id", &before.id);
    let rest = read_events(request.send().await.unwrap(), |_| false).await;
    assert_eq!(rest.last().unwrap().kind, "end");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_when_its_credential_expires() {
    let store: Arc<dyn KeyStore> = Arc::new(MemoryKeys::default());
    let auth = Auth::Credentials { keys: Some(Arc::clone(&store)), jwt: None };
    let options = Options { auth, recheck_every: Duration::from_millis(200), ..Options::default() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let naps = server.engine.remote_workflow::<Value, ()>("nap").unwrap();
    let run = naps.start(json!({})).id("n").await.unwrap();
    let engine = server.engine.clone();
    let keys = Keys::new(store, Arc::new(move || engine.core().clock().now()));
    let key = async |expires_in: Option<Duration>| {
        let (name, namespace) = ("test".into(), Namespace::default_namespace());
        keys.create(NewKey {
            name,
            namespace,
            scopes: vec![Scope::Read],
            subject: None,
            created_by: None,
            expires_in,
        })
        .await
        .unwrap()
    };
    let follow = async |key: &str| {
        let path = "/workflows/nap/instances/n/live";
        server.request(Method::GET, path).bearer_auth(key).send().await.unwrap()
    };
    let lasting = key(None).await;
    let stays = follow(&lasting.key).await;
    let ends = follow(&key(Some(Duration::from_millis(700))).await.key).await;
    let received =
        tokio::time::timeout(Duration::from_secs(20), read_events(ends, |_| false)).await;
    assert!(!kinds(&received.expect("the stream ends"), "status").is_empty());
    // A stream with a valid key continues: it shows what happens later.
    let ended = |received: &[StreamEvent]| received.iter().any(|one| one.kind == "end");
    run.terminate().await.unwrap();
    assert!(ended(&read_events(stays, ended).await));
    server.stop().await;
}
