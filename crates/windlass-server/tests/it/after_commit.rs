//! Responses when the store fails right after the commit of a request: none of them says that nothing
//! was written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use reqwest::Method;
use serde_json::{Value, json};
use windlass::kernel::{BoxFuture, Commit, CommitError, CommitResults, ErrorKind};
use windlass::{Error, ErrorCode, Store};
use windlass_server::ServeOptions;
use windlass_testkit::gate::{Gate, GatedStore, Pass};
use windlass_testkit::outage::{Outage, Reach};

use crate::harness::{Kind, Server, assert_error, on_both_stores, open, read};

on_both_stores!(
    an_event_that_was_written_is_not_refused,
    a_control_request_that_was_written_is_not_refused,
    a_signal_or_cancel_that_was_written_is_not_refused,
    a_run_that_was_created_is_not_refused,
    a_schedule_that_was_written_is_not_refused,
    a_lost_answer_stays_unknown_when_the_store_closes,
    a_batch_that_was_written_in_part_is_unknown,
);

async fn start(kind: Kind) -> (Server, Arc<Outage>) {
    let mut outage = None;
    let engine = windlass::admin::Options::default();
    let server = Server::start_on(kind, open(), engine, ServeOptions::default(), |store| {
        let around = Outage::new(store);
        outage = Some(Arc::clone(&around));
        around
    });
    let server = server.await;
    (server, outage.expect("the store is wrapped"))
}

/// Sends a request after whose commit nothing can be read. If a turn of the engine commits first, the
/// request finds a blind store before it has written anything; then it is sent again. A handler that
/// reads after its commit fails every time.
async fn last_words(server: &Server, outage: &Outage, request: (Method, &str, Value)) -> Value {
    let (method, path, body) = request;
    let mut tries = 0;
    loop {
        let commits = outage.commits();
        outage.set(Reach::BlindAfterCommit);
        let (status, answer) = read(server.request(method.clone(), path).json(&body)).await;
        outage.set(Reach::Fine);
        assert!(outage.commits() > commits, "{method} {path} wrote nothing: {answer}");
        tries += 1;
        if status == 503 && answer["code"] == "STORE_UNAVAILABLE" && tries < TRIES_MAX {
            continue;
        }
        assert_eq!(status, 200, "{method} {path}: {answer}");
        return answer;
    }
}

const TRIES_MAX: u32 = 20;

async fn an_event_that_was_written_is_not_refused(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("approve", "a", json!({}), "waiting").await;
    let path = "/workflows/approve/instances/a/events";
    let event = json!({ "type": "other", "payload": 1, "id": "one" });
    let answer = last_words(&server, &outage, (Method::POST, path, event)).await;
    assert_eq!(answer["status"]["status"], "waiting", "{answer}");
    let other = json!({ "type": "other", "payload": 2, "id": "one" });
    assert_error(server.post(path, other).await, (409, "EVENT_ID_ALREADY_EXISTS"));
    server.stop().await;
}

async fn a_control_request_that_was_written_is_not_refused(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("nap", "a", json!({}), "waiting").await;
    let at = |action: &str| format!("/workflows/nap/instances/a/{action}");
    let post = |path: String| (Method::POST, path);
    for (action, answered, then) in [
        ("pause", "waiting", "paused"),
        ("resume", "active", "waiting"),
        ("restart", "active", "waiting"),
        ("terminate", "terminated", "terminated"),
        ("restart", "active", "waiting"),
    ] {
        let (method, path) = post(at(action));
        let answer = last_words(&server, &outage, (method, &path, json!({}))).await;
        assert_eq!(answer["ok"], true, "{action}: {answer}");
        assert_eq!(answer["details"]["status"], answered, "{action}: {answer}");
        server.wait_for_status("nap", "a", then).await;
    }
    server.run("charge", "c", json!(0), "errored").await;
    let path = "/workflows/charge/instances/c/retry";
    let answer = last_words(&server, &outage, (Method::POST, path, json!({}))).await;
    assert_eq!(answer["details"]["status"], "active", "{answer}");
    let run = server.wait_for_status("charge", "c", "errored").await;
    assert_eq!(run["meta"]["runNumber"], 1, "{run}");
    server.stop().await;
}

async fn a_signal_or_cancel_that_was_written_is_not_refused(kind: Kind) {
    let (server, outage) = start(kind).await;
    let run = server.run("approve", "a", json!({}), "waiting").await;
    let key = run["meta"]["runKey"].as_str().expect("a key");
    let path = format!("/durable/workflows/{key}/signal");
    let signal = json!({ "signal_type": "other", "payload": 1 });
    let answer = last_words(&server, &outage, (Method::POST, &path, signal)).await;
    assert_eq!(answer["id"], key, "{answer}");
    // Another run: the first one may still work on its signal.
    let run = server.run("approve", "b", json!({}), "waiting").await;
    let key = run["meta"]["runKey"].as_str().expect("a key");
    let path = format!("/durable/workflows/{key}/cancel");
    let answer = last_words(&server, &outage, (Method::POST, &path, json!({}))).await;
    assert_eq!(answer["id"], key, "{answer}");
    server.wait_for_status("approve", "b", "terminated").await;
    server.stop().await;
}

async fn a_run_that_was_created_is_not_refused(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("nap", "before", json!({}), "waiting").await;
    let body = json!({ "id": "a", "params": {} });
    let path = "/workflows/nap/instances?waitMs=60000";
    let answer = last_words(&server, &outage, (Method::POST, path, body)).await;
    assert_eq!((&answer["id"], &answer["details"]["status"]), (&json!("a"), &json!("active")));
    server.wait_for_status("nap", "a", "waiting").await;
    server.stop().await;
}

async fn a_schedule_that_was_written_is_not_refused(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("nap", "before", json!({}), "waiting").await;
    let schedule = json!({ "workflow": "nap", "everyMs": 3_600_000 });
    let path = "/schedules/hourly";
    let answer = last_words(&server, &outage, (Method::PUT, path, schedule)).await;
    assert_eq!(answer["everyMs"], 3_600_000, "{answer}");
    let is_set = async || server.get_ok(path).await["nextAt"].is_string();
    crate::harness::wait_until("the schedule waits for its first firing", is_set).await;
    let other = json!({ "workflow": "nap", "everyMs": 7_200_000 });
    let answer = last_words(&server, &outage, (Method::PUT, path, other)).await;
    assert_eq!(answer["everyMs"], 7_200_000, "{answer}");
    crate::harness::wait_until("the schedule waits again", is_set).await;
    for action in ["pause", "resume"] {
        let path = format!("/schedules/hourly/{action}");
        let answer = last_words(&server, &outage, (Method::POST, &path, json!({}))).await;
        assert_eq!(answer["everyMs"], 7_200_000, "{action}: {answer}");
        let paused = json!(action == "pause");
        let applied = async || server.get_ok("/schedules/hourly").await["paused"] == paused;
        crate::harness::wait_until("the schedule has changed", applied).await;
    }
    // The resumed schedule takes a turn of its own. If that commit comes first, the request finds a blind
    // store before it has written anything, and says so.
    crate::harness::wait_until("the commit of the request is the first", async || {
        outage.set(Reach::BlindAfterCommit);
        let (status, answer) = read(server.request(Method::DELETE, path)).await;
        outage.set(Reach::Fine);
        let is_refused = (status, &answer["code"]) == (503, &json!("STORE_UNAVAILABLE"));
        let is_there = server.get(path).await.0 == 200;
        assert!(is_there == is_refused && (status == 200 || is_refused), "{status}: {answer}");
        !is_there
    })
    .await;
    assert_error(server.get(path).await, (404, "SCHEDULE_NOT_FOUND"));
    server.stop().await;
}

async fn a_lost_answer_stays_unknown_when_the_store_closes(kind: Kind) {
    let (server, outage) = start(kind).await;
    server.run("nap", "before", json!({}), "waiting").await;
    outage.set(Reach::ClosedAfterCommit);
    let body = json!({ "id": "a", "params": {} });
    let answer = server.post("/workflows/nap/instances", body).await;
    outage.set(Reach::Fine);
    assert_error(answer, (503, "STORE_UNKNOWN"));
    let run = server.get_ok("/workflows/nap/instances/a").await;
    assert_eq!(run["id"], "a", "the commit was written: {run}");
    server.stop().await;
}

/// Lets one commit through when it is armed, and refuses the others.
struct OneCommit(AtomicU8);

const IDLE: u8 = 0;
const ARMED: u8 = 1;
const SPENT: u8 = 2;

impl Gate for OneCommit {
    fn pass(&self) -> Pass {
        Pass::Through
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        let order = Ordering::SeqCst;
        let first = self.0.compare_exchange(ARMED, SPENT, order, order).is_ok();
        if first || self.0.load(order) == IDLE {
            return inner.commit(commits);
        }
        let full =
            || Error::new(ErrorKind::Unavailable, ErrorCode::StoreUnavailable, "the disk is full");
        let refuse = |_: &Commit| Err(CommitError::Unavailable(Arc::new(full())));
        Box::pin(std::future::ready(commits.iter().map(refuse).collect()))
    }
}

async fn a_batch_that_was_written_in_part_is_unknown(kind: Kind) {
    let gate = Arc::new(OneCommit(AtomicU8::new(IDLE)));
    let engine = windlass::admin::Options::default();
    let inside = Arc::clone(&gate);
    let around = |store| Arc::new(GatedStore::with_gate(store, Shared(inside))) as Arc<dyn Store>;
    let server = Server::start_on(kind, open(), engine, ServeOptions::default(), around).await;
    server.run("nap", "before", json!({}), "waiting").await;
    let body = json!({ "instances": [{ "id": "a" }, { "id": "b" }, { "id": "c" }] });
    gate.0.store(ARMED, Ordering::SeqCst);
    let answer = server.post("/workflows/nap/instances/batch", body.clone()).await;
    gate.0.store(IDLE, Ordering::SeqCst);
    assert_error(answer, (503, "STORE_UNKNOWN"));
    let rest = server.post_ok("/workflows/nap/instances/batch", body).await;
    assert_eq!(rest["instances"].as_array().map(Vec::len), Some(2), "{rest}");
    server.stop().await;
}

/// A gate that the test keeps.
struct Shared(Arc<OneCommit>);

impl Gate for Shared {
    fn pass(&self) -> Pass {
        self.0.pass()
    }

    fn commit<'a>(
        &'a self,
        inner: &'a dyn Store,
        commits: Vec<Commit>,
    ) -> BoxFuture<'a, CommitResults> {
        self.0.commit(inner, commits)
    }
}
