//! Relays whose steps run behind a URL, and the webhook that tells how they ended.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;
use windlass::kernel::{Query, RetryPolicy, TasksQuery};
use windlass::outbound::Policy;
use windlass::relays::{
    HttpRunner, HttpRunnerOptions, NoopTerminalHook, RunSpec, RunState, TerminalStatus,
};
use windlass::webhooks::{Secret, WebhookOptions, WebhookTerminalHook, Webhooks, verify};
use windlass::{Engine, ErrorCode, ErrorKind};

use crate::harness::{Harness, on_every_store, until};
use crate::receiver::{Receiver, answer};
use crate::relay_calls::{Relay, RelayCalls as _};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

on_every_store!(
    steps_run_behind_a_url,
    a_signal_is_waited_for_and_handed_on,
    transient_answers_are_retried_and_permanent_ones_are_dead_letters,
    cancelling_closes_the_request,
    the_end_is_sent_by_webhook,
    a_callback_that_is_gone_is_sent_again_under_its_id,
    an_end_that_nobody_here_can_sign_is_left_to_others,
);

fn secrets() -> Vec<Secret> {
    vec![SECRET.parse().unwrap()]
}

fn ours() -> Policy {
    let allow = vec!["127.0.0.1".parse().unwrap()];
    Policy { plain_http: true, allow, ..Policy::default() }
}

fn runner(url: String) -> HttpRunner {
    let options = HttpRunnerOptions { policy: ours(), ..HttpRunnerOptions::new(url, secrets()) };
    HttpRunner::new(options).unwrap()
}

fn relay(engine: &Engine, url: String) -> Relay {
    let policy = RetryPolicy::listed(vec![Duration::from_millis(2); 2]);
    engine.relay("r", runner(url), NoopTerminalHook).retry_policy(policy).build().unwrap()
}

fn outcome(value: &Value) -> String {
    answer("200 OK", "", &value.to_string())
}

async fn steps_run_behind_a_url(h: Arc<Harness>) {
    let receiver = Receiver::answering(|_, request| {
        let asked = request.json();
        outcome(&match asked["step"].as_u64().unwrap() {
            0 => json!({ "outcome": "continue", "payload": { "seen": asked["payload"] } }),
            1 => {
                let bytes = BASE64_STANDARD.encode(b"\xff\x00");
                json!({ "outcome": "continue_after", "delay_ms": 5, "payload_base64": bytes })
            }
            _ => json!({ "outcome": "succeed", "result": [1, "ä"] }),
        })
    })
    .await;
    let engine = h.engine().await;
    let relay = relay(&engine, receiver.url());
    let spec = RunSpec::new("{\"a\": 1.0}").id("r-1").header("tenant", "acme");
    relay.submit(spec).await.unwrap();
    let ended = relay.wait("r-1").await.unwrap();
    assert_eq!(ended.status, TerminalStatus::Succeeded);
    assert_eq!(ended.result.as_deref(), Some("[1,\"ä\"]".as_bytes()));
    let requests = receiver.requests();
    let asked: Vec<Value> = requests.iter().map(|request| request.json()).collect();
    let headers =
        |step: &str| json!({ "tenant": "acme", "workflow.run_id": "r-1", "workflow.step": step });
    let info = relay.status("r-1").await.unwrap().unwrap();
    let common = |step: u32| {
        json!({ "namespace": engine.namespace(), "run_id": "r-1", "run_key": info.run_key,
                "generation": 0, "workflow": "r", "step": step, "attempt": 1,
                "headers": headers(&step.to_string()) })
    };
    let with = |mut value: Value, field: &str, of: Value| {
        value[field] = of;
        value
    };
    assert_eq!(asked[0], with(common(0), "payload", json!({ "a": 1.0 })));
    assert_eq!(asked[1], with(common(1), "payload", json!({ "seen": { "a": 1.0 } })));
    assert_eq!(asked[2], with(common(2), "payload_base64", json!("/wA=")));
    for (step, request) in requests.iter().enumerate() {
        assert_eq!(request.header("webhook-id"), format!("{}-{step}", info.run_key));
        verify(&secrets(), &request.headers, &request.body).unwrap();
    }
}

async fn a_signal_is_waited_for_and_handed_on(h: Arc<Harness>) {
    let receiver = Receiver::answering(|_, request| {
        let asked = request.json();
        outcome(&match asked["step"].as_u64().unwrap() {
            0 => json!({ "outcome": "continue_on_signal", "signal": "go", "payload": 1 }),
            1 => json!({ "outcome": "continue_on_signal", "signal": "never", "timeout_ms": 5,
                         "payload": asked["signal"] }),
            _ => json!({ "outcome": "succeed", "result": [asked["payload"], asked["signal"]] }),
        })
    })
    .await;
    let engine = h.engine().await;
    let relay = relay(&engine, receiver.url());
    relay.submit(RunSpec::new("null").id("s")).await.unwrap();
    until("it waits for the signal", || async {
        relay.status("s").await.unwrap().unwrap().state == RunState::AwaitingSignal
    })
    .await;
    relay.signal("s", "go", "{\"by\":\"ann\"}").await.unwrap();
    let ended = relay.wait("s").await.unwrap();
    let result: Value = serde_json::from_slice(&ended.result.unwrap()).unwrap();
    let received = json!({ "status": "received", "payload": { "by": "ann" } });
    assert_eq!(result, json!([received, { "status": "timed_out" }]));
}

async fn transient_answers_are_retried_and_permanent_ones_are_dead_letters(h: Arc<Harness>) {
    let transient = json!({ "outcome": "error", "kind": "transient", "message": "later",
                            "retry_after_ms": 1 });
    let permanent = json!({ "outcome": "error", "kind": "permanent", "message": "never" });
    let hurried = json!({ "outcome": "error", "kind": "permanent", "message": "x",
                          "retry_after_ms": 1 });
    let declined = json!({ "outcome": "error", "kind": "transient", "name": "CardDeclined",
                           "message": "no money" });
    let done = outcome(&json!({ "outcome": "succeed" }));
    let busy = answer("503 Busy", "retry-after: 0\r\n", "");
    let verdict = json!({ "outcome": "fail", "reason": "no stock" });
    let cases: Vec<(Vec<String>, TerminalStatus, usize, &str)> = vec![
        (vec![busy.clone(), outcome(&transient), done.clone()], TerminalStatus::Succeeded, 3, ""),
        (vec![busy], TerminalStatus::Failed, 3, "503"),
        // A runner that died while it answered: with what was to come, with nothing, and without saying
        // how much there is.
        (
            vec![
                answer("200 OK", "", "").replace("length: 0", "length: 9"),
                String::new(),
                done.clone(),
            ],
            TerminalStatus::Succeeded,
            3,
            "",
        ),
        (
            vec![
                answer("200 OK", "", ""),
                "HTTP/1.1 200 OK\r\n\r\n{\"outcome\": \"su".into(),
                done,
            ],
            TerminalStatus::Succeeded,
            3,
            "",
        ),
        (vec![outcome(&permanent)], TerminalStatus::Failed, 1, "never"),
        (vec![outcome(&hurried)], TerminalStatus::Failed, 1, "retry_after_ms does not belong"),
        (vec![outcome(&declined)], TerminalStatus::Failed, 1, "no money"),
        (
            vec![answer("404 Not Found", "", "nobody here")],
            TerminalStatus::Failed,
            1,
            "nobody here",
        ),
        (vec![answer("302 Found", "location: /x\r\n", "")], TerminalStatus::Failed, 1, "302"),
        (vec![answer("200 OK", "", "<html>")], TerminalStatus::Failed, 1, "does not read"),
        (vec![outcome(&json!({}))], TerminalStatus::Failed, 1, "has no outcome"),
        (vec![outcome(&json!({ "outcome": "fail" }))], TerminalStatus::Failed, 1, "needs reason"),
        (
            vec![outcome(&json!({ "outcome": "fail", "reason": "x", "delay_ms": 1 }))],
            TerminalStatus::Failed,
            1,
            "delay_ms does not belong",
        ),
        (vec![outcome(&json!({ "outcome": "jump" }))], TerminalStatus::Failed, 1, "no outcome"),
        (vec![outcome(&json!({ "outcom": "fail" }))], TerminalStatus::Failed, 1, "outcom"),
        (vec![outcome(&verdict)], TerminalStatus::Failed, 1, "no stock"),
        (
            vec![outcome(&json!({ "outcome": "cancel", "reason": "enough" }))],
            TerminalStatus::Cancelled,
            1,
            "enough",
        ),
    ];
    let engine = h.engine().await;
    let policy = RetryPolicy::listed(vec![Duration::from_millis(2); 2]);
    let (count, policy) = (cases.len(), policy.with_non_retryable(["CardDeclined"]));
    for (nth, (answers, status, attempts, expect)) in cases.into_iter().enumerate() {
        let receiver = Receiver::start(answers).await;
        let relay = engine
            .relay(format!("r{nth}"), runner(receiver.url()), NoopTerminalHook)
            .retry_policy(policy.clone())
            .build()
            .unwrap();
        relay.submit(RunSpec::new("1").id("x")).await.unwrap();
        let ended = relay.wait("x").await.unwrap();
        assert_eq!(ended.status, status, "{nth} {ended:?}");
        assert!(ended.error.unwrap_or_default().contains(expect), "{nth} {expect}");
        let requests = receiver.requests();
        assert_eq!(requests.len(), attempts, "{nth}");
        let ids: Vec<&str> = requests.iter().map(|r| r.header("webhook-id")).collect();
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(requests[attempts - 1].json()["attempt"], attempts);
    }
    let namespace = engine.namespace().clone();
    let query = Query::DeadLetters { namespace, queue: None, after: None, limit: 100 };
    let dead = engine.admin().store().list(query).await.unwrap().dead_letters().unwrap();
    // Three runs succeeded, and two ended by a verdict.
    assert_eq!(dead.len(), count - 5);
}

async fn cancelling_closes_the_request(h: Arc<Harness>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let engine = h.engine().await;
    let relay = relay(&engine, url);
    relay.submit(RunSpec::new("1").id("c")).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut bytes = [0; 1024];
    assert!(stream.read(&mut bytes).await.unwrap() > 0);
    let closed = async { while let Ok(1..) = stream.read(&mut bytes).await {} };
    let (cancelled, ()) = tokio::join!(relay.cancel("c"), closed);
    assert!(cancelled.unwrap());
    assert_eq!(relay.wait("c").await.unwrap().status, TerminalStatus::Cancelled);
}

async fn the_end_is_sent_by_webhook(h: Arc<Harness>) {
    let steps = Receiver::answering(|_, request| {
        let asked = request.json();
        outcome(&match asked["payload"].as_str().unwrap() {
            "bytes" => json!({ "outcome": "succeed", "result_base64": "/wA=" }),
            "fail" => json!({ "outcome": "fail", "reason": "no stock" }),
            _ => json!({ "outcome": "succeed", "result": { "a": 1 } }),
        })
    })
    .await;
    let told = Receiver::start([answer("200 OK", "", "")]).await;
    let engine = h.engine().await;
    let options = WebhookOptions {
        policy: ours(),
        secrets: [("default".to_owned(), secrets())].into(),
        ..WebhookOptions::default()
    };
    let hook = WebhookTerminalHook::new(Webhooks::new(&engine, options).unwrap());
    let relay = engine.relay("r", runner(steps.url()), hook.clone()).build().unwrap();
    let spec = |id: &str, input: &str| RunSpec::new(format!("\"{input}\"")).id(id);
    let callback = |spec: RunSpec| spec.header("callback_url", told.url());
    relay.submit(spec("quiet", "json")).await.unwrap();
    relay.wait("quiet").await.unwrap();
    for (nth, input) in ["json", "bytes", "fail"].into_iter().enumerate() {
        relay.submit(callback(spec(input, input))).await.unwrap();
        until("it is told", || async { told.requests().len() == nth + 1 }).await;
    }
    let requests = told.requests();
    let mut ids = std::collections::BTreeSet::new();
    for request in &requests {
        verify(&secrets(), &request.headers, &request.body).unwrap();
        ids.insert(request.header("webhook-id").to_owned());
    }
    assert_eq!(ids.len(), 3);
    let posted: Vec<Value> = requests.iter().map(|request| request.json()).collect();
    let types: Vec<&str> = posted.iter().map(|posted| posted["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["run.succeeded", "run.succeeded", "run.failed"]);
    let data = &posted[0]["data"];
    assert_eq!((&data["run_id"], &data["workflow"]), (&json!("json"), &json!("r")));
    assert_eq!(data["namespace"], json!(engine.namespace()));
    assert_eq!((&data["status"], &data["result"]), (&json!("succeeded"), &json!({ "a": 1 })));
    assert_eq!(data["headers"]["callback_url"], told.url());
    assert_eq!(posted[1]["data"]["result_base64"], "/wA=");
    assert_eq!(posted[1]["data"].get("result"), None);
    assert!(posted[2]["data"]["error"].as_str().unwrap().contains("no stock"), "{}", posted[2]);
    for (url, code) in
        [("http://10.0.0.1/", "ADDRESS_REFUSED"), ("ftp://example.com/", "INVALID_URL")]
    {
        let refused = relay.submit(spec("bad", "x").header("callback_url", url)).await;
        assert_eq!(refused.unwrap_err().code(), code);
        assert_eq!(relay.status("bad").await.unwrap(), None);
    }
    // Nobody could ever sign it.
    let unsigned = hook.secret("missing");
    let other = engine.relay("unsigned", runner(steps.url()), unsigned).build().unwrap();
    let refused = other.submit(callback(spec("bad", "x"))).await.unwrap_err();
    assert_eq!(refused.code(), "WEBHOOK_SECRET_UNKNOWN");
    assert_eq!(told.requests().len(), 3);
}

async fn a_callback_that_is_gone_is_sent_again_under_its_id(h: Arc<Harness>) {
    let steps = Receiver::start([outcome(&json!({ "outcome": "succeed", "result": 1 }))]).await;
    let told = Receiver::answering(|_, request| match request.line.contains("run=a") {
        true => answer("410 Gone", "", ""),
        false => answer("200 OK", "", ""),
    })
    .await;
    let engine = h.engine().await;
    let options = WebhookOptions {
        policy: ours(),
        secrets: [("default".to_owned(), secrets())].into(),
        ..WebhookOptions::default()
    };
    let webhooks = Webhooks::new(&engine, options).unwrap();
    let hook = WebhookTerminalHook::new(webhooks.clone());
    let relay = engine.relay("r", runner(steps.url()), hook).build().unwrap();
    let submit = async |id: &str| {
        let spec = RunSpec::new("1").id(id);
        let spec = spec.header("callback_url", format!("{}?run={id}", told.url()));
        relay.submit(spec).await.unwrap();
    };
    submit("a").await;
    until("it is a dead letter", || async {
        engine.admin().dead_letters(None, None, 10).await.unwrap().len() == 1
    })
    .await;
    let letter = engine.admin().dead_letters(None, None, 10).await.unwrap().remove(0);
    assert!(letter.reason.contains("WEBHOOK_GONE"), "{letter:?}");
    // One run's callback is gone; another's on the same path is not.
    submit("b").await;
    until("the other is told", || async { told.requests().len() == 2 }).await;
    assert_eq!(engine.admin().dead_letters(None, None, 10).await.unwrap().len(), 1);
    // Requeued while it is disabled, it dies again without being sent; enabled, it is sent.
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    until("it has died again", || async {
        let letter = engine.core().dead_letter(letter.task_id).await.unwrap();
        letter.requeues == 1 && letter.requeued_at.is_none()
    })
    .await;
    assert_eq!(told.requests().len(), 2);
    let namespace = engine.namespace();
    assert_eq!(webhooks.disabled(namespace).await.unwrap()[0].url, told.url());
    assert!(webhooks.enable(namespace, &told.url()).await.unwrap());
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    until("it is told again", || async { told.requests().len() == 3 }).await;
    let requests = told.requests();
    let id = |nth: usize| requests[nth].header("webhook-id").to_owned();
    assert_eq!((id(0), id(2)), (letter.task_id.to_string(), letter.task_id.to_string()));
}

async fn an_end_that_nobody_here_can_sign_is_left_to_others(h: Arc<Harness>) {
    let steps = Receiver::start([outcome(&json!({ "outcome": "succeed", "result": 1 }))]).await;
    let told = Receiver::start([answer("200 OK", "", "")]).await;
    let serve = |engine: &Engine, sets: &[&str]| {
        let secrets = sets.iter().map(|set| ((*set).to_owned(), secrets())).collect();
        let options = WebhookOptions { policy: ours(), secrets, ..WebhookOptions::default() };
        let hook = WebhookTerminalHook::new(Webhooks::new(engine, options).unwrap());
        engine.relay("r", runner(steps.url()), hook).build().unwrap()
    };
    let engine = h.engine().await;
    let relay = serve(&engine, &[]);
    // A start in this process fails at once, and a retry does not help.
    let with = |id: &str| RunSpec::new("1").id(id).header("callback_url", told.url());
    let refused = relay.submit(with("here")).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.kind()),
        (ErrorCode::WebhookSecretUnknown, ErrorKind::Refused)
    );
    h.stop(&engine).await;
    // The process that starts the run has no hook, and the process that ends it has no secret.
    let asks = h.engine().await;
    let remote = asks.remote_relay("r").unwrap();
    remote.submit(with("told")).await.unwrap();
    remote.submit(RunSpec::new("1").id("quiet")).await.unwrap();
    h.stop(&asks).await;
    let engine = h.engine().await;
    let relay = serve(&engine, &[]);
    for id in ["told", "quiet"] {
        relay.wait(id).await.unwrap();
    }
    let tasks = async |engine: &Engine| {
        let query = Query::Tasks(TasksQuery::all(engine.namespace().clone(), 10));
        engine.admin().store().list(query).await.unwrap().tasks().unwrap()
    };
    until("it is put off, and what nobody wants is done", || async {
        matches!(&tasks(&engine).await[..], [task] if task.due_at.is_some() && task.worker.is_none())
    })
    .await;
    assert_eq!(tasks(&engine).await[0].attempt, 0);
    h.stop(&engine).await;
    let engine = h.engine().await;
    serve(&engine, &["default"]);
    until("it is told", || async { told.requests().len() == 1 }).await;
    assert_eq!(engine.admin().dead_letters(None, None, 10).await.unwrap(), []);
}
