//! Server-sent events: what is told, and going on where the last connection ended.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, Response};
use serde_json::{Value, json};
use windlass::Ctx;
use windlass::kernel::Namespace;
use windlass_server::Options;
use windlass_server::auth::{Auth, KeyStore, Keys, MemoryKeys, NewKey, Scope};

use crate::harness::{Kind, Server, on_both_stores, refused};

on_both_stores!(
    a_run_is_followed_to_its_end,
    a_stream_goes_on_where_it_was_cut,
    log_lines_go_on_where_they_were_cut,
    a_client_that_knows_the_end_is_told_to_stay_away,
);

#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

/// Reads events until `enough` says so, or the stream ends.
pub(crate) async fn heard(mut response: Response, enough: impl Fn(&[Told]) -> bool) -> Vec<Told> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let mut told = Vec::new();
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
            told.push(Told { id: field("id"), kind: field("event"), data });
            if enough(&told) {
                return told;
            }
        }
    }
    told
}

pub(crate) fn kinds(told: &[Told], kind: &str) -> Vec<Value> {
    told.iter().filter(|one| one.kind == kind).map(|one| one.data.clone()).collect()
}

async fn a_run_is_followed_to_its_end(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "live-1", json!({}), "waiting").await;
    let at = "/workflows/approve/instances/live-1";
    let stream = server.request(Method::GET, &format!("{at}/live")).send().await.unwrap();
    let reader = tokio::spawn(heard(stream, |_| false));
    for n in 0..2 {
        server.posted(&format!("{at}/events"), json!({ "type": "approval", "payload": n })).await;
    }
    let told =
        tokio::time::timeout(Duration::from_secs(30), reader).await.expect("it ends").unwrap();
    let ledger = server.ok(&format!("{at}/ledger")).await;
    let hashes =
        |events: &[Value]| events.iter().map(|event| event["hash"].clone()).collect::<Vec<_>>();
    assert_eq!(hashes(&kinds(&told, "event")), hashes(ledger["events"].as_array().unwrap()));
    let steps = kinds(&told, "step");
    assert!(steps.iter().any(|step| step["stepKey"] == "second" && step["status"] == "completed"));
    let statuses = kinds(&told, "status");
    assert_eq!(statuses.last().unwrap()["details"]["status"], "complete");
    let last = told.last().unwrap();
    assert_eq!((last.kind.as_str(), &last.data["details"]["output"]), ("end", &json!([0, 1])));

    server.run("greet", "live-2", json!("Ann"), "complete").await;
    let stream = server.request(Method::GET, "/workflows/greet/instances/live-2/live").send().await;
    let told = heard(stream.unwrap(), |_| false).await;
    assert_eq!(kinds(&told, "log")[0]["message"], "greeting");
    refused(
        server.get("/workflows/greet/instances/nobody/live").await,
        (404, "INSTANCE_NOT_FOUND"),
    );
    server.stop().await;
}

async fn a_stream_goes_on_where_it_was_cut(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("approve", "cut", json!({}), "waiting").await;
    let path = "/workflows/approve/instances/cut/live";
    let first = server.request(Method::GET, path).send().await.unwrap();
    let events = |told: &[Told]| told.iter().filter(|one| one.kind == "event").count();
    let first = heard(first, |told| events(told) == 2).await;
    let last = first.last().unwrap();
    for n in 0..2 {
        let body = json!({ "type": "approval", "payload": n });
        server.posted("/workflows/approve/instances/cut/events", body).await;
    }
    let request = server.request(Method::GET, path).header("last-event-id", &last.id);
    let second = heard(request.send().await.unwrap(), |_| false).await;
    let ordinals: Vec<u64> = kinds(&first, "event")
        .iter()
        .chain(&kinds(&second, "event"))
        .map(|event| event["ordinal"].as_u64().unwrap())
        .collect();
    let whole = server.ok("/workflows/approve/instances/cut/ledger").await;
    let count = whole["events"].as_array().unwrap().len() as u64;
    assert_eq!(ordinals, (0..count).collect::<Vec<_>>(), "none twice, none left out");
    assert_eq!(second.last().unwrap().kind, "end");

    let request = server.request(Method::GET, path).header("last-event-id", "nonsense");
    refused(crate::harness::read(request).await, (400, "INVALID_CURSOR"));

    // A restart goes on in the next generation.
    let restarted = heard(server.request(Method::GET, path).send().await.unwrap(), |_| false).await;
    let end = restarted.last().unwrap().id.clone();
    server.posted("/workflows/approve/instances/cut/restart", json!({})).await;
    let request = server.request(Method::GET, path).header("last-event-id", end);
    let told = heard(request.send().await.unwrap(), |told| events(told) == 1).await;
    assert_eq!(kinds(&told, "event")[0]["ordinal"], 0);
    assert_eq!(kinds(&told, "status").last().unwrap()["runNumber"], 1);
    server.stop().await;
}

async fn log_lines_go_on_where_they_were_cut(kind: Kind) {
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
    let logs = |told: &[Told]| told.iter().filter(|one| one.kind == "log").count();
    let first =
        heard(server.request(Method::GET, path).send().await.unwrap(), |told| logs(told) == 3)
            .await;
    server.posted("/workflows/chatty/instances/c/events", json!({ "type": "go" })).await;
    let request =
        server.request(Method::GET, path).header("last-event-id", &first.last().unwrap().id);
    let second = heard(request.send().await.unwrap(), |_| false).await;
    let lines: Vec<String> = (kinds(&first, "log").iter().chain(&kinds(&second, "log")))
        .filter(|line| line["isReplay"] == false)
        .map(|line| line["message"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["line 0", "line 1", "line 2", "line 3", "line 4", "line 5"]);
    server.stop().await;
}

async fn a_client_that_knows_the_end_is_told_to_stay_away(kind: Kind) {
    let server = Server::start(kind).await;
    server.run("greet", "g", json!("Ann"), "complete").await;
    let path = "/workflows/greet/instances/g/live";
    let all = heard(server.request(Method::GET, path).send().await.unwrap(), |_| false).await;
    let (last, before) = (&all[all.len() - 1], &all[all.len() - 2]);
    assert_eq!(last.kind, "end");
    let request = server.request(Method::GET, path).header("last-event-id", &last.id);
    assert_eq!(request.send().await.unwrap().status(), 204);
    // Whoever was cut off before the end has not heard it.
    let request = server.request(Method::GET, path).header("last-event-id", &before.id);
    let rest = heard(request.send().await.unwrap(), |_| false).await;
    assert_eq!(rest.last().unwrap().kind, "end");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ends_with_its_credential() {
    let store: Arc<dyn KeyStore> = Arc::new(MemoryKeys::default());
    let auth = Auth::Credentials { keys: Some(Arc::clone(&store)), jwt: None };
    let options = Options { auth, recheck_every: Duration::from_millis(200), ..Options::default() };
    let server = Server::start_with(Kind::Sqlite, options).await;
    let naps = server.engine.remote_workflow::<Value, ()>("nap").unwrap();
    naps.start(json!({})).id("n").await.unwrap();
    let engine = server.engine.clone();
    let keys = Keys::new(store, Arc::new(move || engine.clock().now()));
    let key = async |expires_in: Option<Duration>| {
        let (name, namespace) = ("test".into(), Namespace::default_namespace());
        keys.make(NewKey { name, namespace, scopes: vec![Scope::Read], expires_in }).await.unwrap()
    };
    let follow = async |key: &str| {
        let path = "/workflows/nap/instances/n/live";
        server.request(Method::GET, path).bearer_auth(key).send().await.unwrap()
    };
    let lasting = key(None).await;
    let stays = follow(&lasting.key).await;
    let ends = follow(&key(Some(Duration::from_millis(700))).await.key).await;
    let told = tokio::time::timeout(Duration::from_secs(20), heard(ends, |_| false)).await;
    assert!(!kinds(&told.expect("it ends"), "status").is_empty());
    let stays = tokio::time::timeout(Duration::from_secs(1), stays.bytes()).await;
    assert!(stays.is_err(), "one with a good key goes on");
    server.stop().await;
}
