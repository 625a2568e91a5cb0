//! Workers, tasks, dead letters, breakers and health, against the real server on both stores.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::{Commit, Op};
use windlass::machines::{
    ActivityError, ActivityOptions, CircuitBreakerConfig, Workflow, WorkflowAction, WorkflowError,
};
use windlass::outbound::Policy;
use windlass::webhooks::{WEBHOOK_EFFECT, Webhook, WebhookOptions, Webhooks};
use windlass::{AnyError, Engine, RetryPolicy, TaskContext};

use crate::support::{Server, postgres, sqlite_in, wait_until};

/// Calls an activity that has no worker, or one that fails behind a circuit breaker.
struct Caller(String);

impl Workflow for Caller {
    const TYPE: &'static str = "caller";
    type Input = String;
    type Output = Value;

    fn new(activity: String) -> Self {
        Self(activity)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let breaker = CircuitBreakerConfig {
            failure_threshold: 1,
            reset_timeout: Duration::from_secs(600),
            ..CircuitBreakerConfig::default()
        };
        let options = ActivityOptions {
            circuit_breaker: Some(breaker),
            ..ActivityOptions::retrying(RetryPolicy::none())
        };
        vec![WorkflowAction::activity_with("a", self.0.as_str(), json!(7), options)]
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(result)]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(WorkflowError::from(error))]
    }
}

/// Starts an HTTP server that answers 410 Gone. Returns its URL.
async fn gone() -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4_096];
            let _ = stream.read(&mut head).await;
            let answer = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(answer).await;
        }
    });
    url
}

/// Sends a webhook to an endpoint that answers 410 Gone, which disables it. Returns its URL.
async fn disable(engine: &Engine) -> String {
    let url = gone().await;
    let secret = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD".parse().unwrap();
    let options = WebhookOptions {
        policy: Policy {
            plain_http: true,
            allow: vec!["127.0.0.1".parse().unwrap()],
            ..Policy::default()
        },
        secrets: [("default".to_owned(), vec![secret])].into(),
        ..WebhookOptions::default()
    };
    let webhooks = Webhooks::new(engine, options).unwrap();
    webhooks.serve(engine).unwrap();
    let webhook = Webhook::new(url.as_str(), "a", &1).unwrap();
    let input = serde_json::value::to_raw_value(&webhook).unwrap();
    let task = engine.core().effect(WEBHOOK_EFFECT, None, input, RetryPolicy::none()).unwrap();
    let commit = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
    assert!(engine.admin().store().commit(vec![commit]).await[0].is_ok());
    while webhooks.disabled(engine.namespace()).await.unwrap().is_empty()
        || engine.admin().dead_letters(None, None, 1).await.unwrap().is_empty()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for letter in engine.admin().dead_letters(None, None, 10).await.unwrap() {
        engine.admin().delete_dead_letters(vec![letter.task_id]).await.unwrap();
    }
    url
}

/// Adds a dead letter, an open breaker, a pending task and a disabled endpoint to a store. Returns
/// the endpoint.
fn fill(store: &str) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = Engine::open(store).await.unwrap();
        let url = disable(&engine).await;
        let callers = engine.machine::<Caller>().unwrap();
        let fail =
            async |_: TaskContext, _: Value| Err::<Value, AnyError>(AnyError::msg("out of order"));
        engine.activity("dial", fail).unwrap();
        let run = callers.start("dial".into()).id("c-1").await.unwrap();
        run.result().await.unwrap_err();
        let waits = callers.start("nobody".into()).id("c-2").await.unwrap();
        while engine.admin().store().health().await.unwrap().tasks.ready.count == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(waits);
        engine.stop(Duration::from_secs(5)).await.unwrap();
        url
    })
}

fn check_admin_commands(store: &str) {
    let endpoint = fill(store);
    let server = Server::start(store);
    let json = |args: &[&str]| server.run(&[args, &["-o", "json"]].concat()).expect(0).json();

    let health = json(&["health"]);
    assert_eq!((&health["status"], &health["dlq_size"]), (&json!("degraded"), &json!(1)));
    let output = server.run(&["health"]).expect(0);
    assert!(
        output.stdout.contains("degraded") && output.stdout.contains("activity:dial"),
        "{output:?}"
    );

    let tasks = json(&["tasks", "list", "--state", "pending"]);
    assert_eq!(
        (&tasks["total"], &tasks["tasks"][0]["activity_type"]),
        (&json!(1), &json!("nobody"))
    );
    assert!(server.run(&["tasks", "list"]).expect(0).stdout.contains("nobody"));
    let output = server.run(&["tasks", "list", "--type", "other"]).expect(0);
    assert!(output.stdout.is_empty() && output.stderr.contains("no tasks"), "{output:?}");
    server.run(&["tasks", "list", "--state", "dead"]).expect(2);
    let stats = json(&["tasks", "stats"]);
    assert_eq!(stats["by_activity_type"]["dial"]["failed_last_hour"], 1, "{stats}");
    let output = server.run(&["tasks", "stats"]).expect(0);
    assert!(output.stdout.contains("dial") && output.stdout.contains("P99 MS"), "{output:?}");

    let breakers = json(&["breakers", "list"]);
    assert_eq!(breakers["circuit_breakers"][0]["state"], "open");
    assert!(server.run(&["breakers", "list"]).expect(0).stdout.contains("activity:dial"));
    let output = server.run(&["breakers", "reset", "activity:dial"]).expect(0);
    assert_eq!(output.stdout.trim(), "activity:dial is closed");
    server.run(&["breakers", "reset", "none"]).expect(3);

    let letters = json(&["dlq", "list"]);
    let id = letters["entries"][0]["id"].as_str().unwrap().to_owned();
    let output = server.run(&["dlq", "list", "--type", "dial"]).expect(0);
    assert!(output.stdout.contains(&id) && output.stdout.contains("out of order"), "{output:?}");
    let lines = server.run(&["dlq", "list", "-o", "jsonl"]).expect(0).stdout;
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let output = server.run(&["dlq", "requeue", &id]).expect(0);
    assert!(output.stdout.contains("its run continues as"), "{output:?}");
    server.run(&["dlq", "requeue", &id]).expect(1);
    let output = server.run(&["dlq", "purge", "--older-than", "1 hour"]).expect(0);
    assert_eq!(output.stdout.trim(), "deleted 0 dead letters");
    let output = server.run(&["dlq", "purge", "--older-than", "soon"]).expect(1);
    assert!(output.stderr.contains("RFC 3339"), "{output:?}");
    server.run(&["dlq", "delete", &id]).expect(0);
    server.run(&["dlq", "delete", &id]).expect(3);

    assert_eq!(json(&["webhooks", "list"])["endpoints"][0]["url"], endpoint.as_str());
    assert!(server.run(&["webhooks", "list"]).expect(0).stdout.contains(&endpoint));
    server.run(&["webhooks", "enable", &endpoint]).expect(0);
    let output = server.run(&["webhooks", "enable", &endpoint]).expect(3);
    assert!(output.stderr.contains("ENDPOINT_NOT_FOUND"), "{output:?}");

    server.run(&["runs", "create", "order/o-1"]).expect(0);
    let output = server.run(&["runs", "cancel", "order/o-1", "--reason", "no more"]).expect(0);
    assert!(output.stdout.contains("cancellation of order/o-1 requested"), "{output:?}");
    let run = server.run(&["runs", "watch", "order/o-1"]).expect(4);
    assert!(run.stderr.contains("no more") || run.stdout.contains("terminated"), "{run:?}");
    let output = server.run(&["runs", "cancel", "order/o-1"]).expect(1);
    assert!(output.stderr.contains("INSTANCE_TERMINAL"), "{output:?}");

    let workers = json(&["workers", "list", "--status", "active"]);
    let id = workers["workers"][0]["id"].as_str().unwrap().to_owned();
    assert!(server.run(&["workers", "list"]).expect(0).stdout.contains(&id));
    assert!(server.run(&["workers", "get", &id]).expect(0).stdout.contains("max_concurrency"));
    server.run(&["workers", "get", "nobody"]).expect(3);
    server.run(&["workers", "drain", &id]).expect(0);
    wait_until("the worker has stopped", || json(&["workers", "get", &id])["status"] == "stopped");
    let output = server.run(&["health"]).expect(1);
    assert!(output.stdout.contains("unhealthy"), "{output:?}");
    let output = server.run(&["workers", "drain", &id]).expect(1);
    assert!(output.stderr.contains("WORKER_STOPPED"), "{output:?}");
}

#[test]
fn admin_commands_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    check_admin_commands(&sqlite_in(folder.path(), "app.db"));
}

#[test]
fn admin_commands_postgres() {
    let database = postgres();
    check_admin_commands(&database.url);
}
