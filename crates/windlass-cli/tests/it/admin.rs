//! Workers, tasks, dead letters, breakers and health, against the real server on both stores.

use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::{Commit, Op};
use windlass::machines::{
    ActivityError, ActivityOptions, CircuitBreakerConfig, Workflow, WorkflowAction, WorkflowError,
};
use windlass::outbound::Policy;
use windlass::webhooks::{WEBHOOK_EFFECT, Webhook, WebhookOptions, Webhooks};
use windlass::{BoxError, Engine, RetryPolicy, TaskContext};

use crate::support::{Server, postgres, sqlite_in, until};

/// Calls an activity that nobody serves, or one that fails behind a breaker.
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

/// Says to whoever asks that it is gone.
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

/// Has a webhook sent to an endpoint that is gone. Gives the endpoint.
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
    let task = engine.effect(WEBHOOK_EFFECT, None, input, RetryPolicy::none()).unwrap();
    let commit = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
    assert!(engine.store().commit(vec![commit]).await[0].is_ok());
    while webhooks.disabled(engine.namespace()).await.unwrap().is_empty()
        || engine.dead_letters(None, None, 1).await.unwrap().is_empty()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for letter in engine.dead_letters(None, None, 10).await.unwrap() {
        engine.delete_dead_letters(vec![letter.task_id]).await.unwrap();
    }
    url
}

/// Leaves a dead letter, an open breaker, a task that waits and a disabled endpoint in a store. Gives the
/// endpoint.
fn fill(store: &str) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = Engine::open(store).await.unwrap();
        let url = disable(&engine).await;
        let callers = engine.machine::<Caller>().unwrap();
        let fail = async |_: TaskContext, _: Value| Err::<Value, BoxError>("out of order".into());
        engine.activity("dial", fail).unwrap();
        let run = callers.start("dial".into()).id("c-1").await.unwrap();
        run.result().await.unwrap_err();
        let waits = callers.start("nobody".into()).id("c-2").await.unwrap();
        while engine.store().health().await.unwrap().tasks.ready.count == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        drop(waits);
        engine.stop(Duration::from_secs(5)).await.unwrap();
        url
    })
}

fn looked_after(store: &str) {
    let endpoint = fill(store);
    let server = Server::start(store);
    let json = |args: &[&str]| server.say(&[args, &["-o", "json"]].concat()).expect(0).json();

    let health = json(&["health"]);
    assert_eq!((&health["status"], &health["dlq_size"]), (&json!("degraded"), &json!(1)));
    let said = server.say(&["health"]).expect(0);
    assert!(said.out.contains("degraded") && said.out.contains("activity:dial"), "{said:?}");

    let tasks = json(&["tasks", "list", "--state", "pending"]);
    assert_eq!(
        (&tasks["total"], &tasks["tasks"][0]["activity_type"]),
        (&json!(1), &json!("nobody"))
    );
    assert!(server.say(&["tasks", "list"]).expect(0).out.contains("nobody"));
    let said = server.say(&["tasks", "list", "--type", "other"]).expect(0);
    assert!(said.out.is_empty() && said.err.contains("no tasks"), "{said:?}");
    server.say(&["tasks", "list", "--state", "dead"]).expect(2);
    let stats = json(&["tasks", "stats"]);
    assert_eq!(stats["by_activity_type"]["dial"]["failed_last_hour"], 1, "{stats}");
    let said = server.say(&["tasks", "stats"]).expect(0);
    assert!(said.out.contains("dial") && said.out.contains("P99 MS"), "{said:?}");

    let breakers = json(&["breakers", "list"]);
    assert_eq!(breakers["circuit_breakers"][0]["state"], "open");
    assert!(server.say(&["breakers", "list"]).expect(0).out.contains("activity:dial"));
    let said = server.say(&["breakers", "reset", "activity:dial"]).expect(0);
    assert_eq!(said.out.trim(), "activity:dial is closed");
    server.say(&["breakers", "reset", "none"]).expect(3);

    let letters = json(&["dlq", "list"]);
    let id = letters["entries"][0]["id"].as_str().unwrap().to_owned();
    let said = server.say(&["dlq", "list", "--type", "dial"]).expect(0);
    assert!(said.out.contains(&id) && said.out.contains("out of order"), "{said:?}");
    let lines = server.say(&["dlq", "list", "-o", "jsonl"]).expect(0).out;
    assert_eq!(lines.lines().count(), 1, "{lines}");
    let said = server.say(&["dlq", "requeue", &id]).expect(0);
    assert!(said.out.contains("its run goes on as"), "{said:?}");
    server.say(&["dlq", "requeue", &id]).expect(1);
    let said = server.say(&["dlq", "purge", "--older-than", "1 hour"]).expect(0);
    assert_eq!(said.out.trim(), "0 dead letters are deleted");
    let said = server.say(&["dlq", "purge", "--older-than", "soon"]).expect(1);
    assert!(said.err.contains("RFC 3339"), "{said:?}");
    server.say(&["dlq", "delete", &id]).expect(0);
    server.say(&["dlq", "delete", &id]).expect(3);

    assert_eq!(json(&["webhooks", "list"])["endpoints"][0]["url"], endpoint.as_str());
    assert!(server.say(&["webhooks", "list"]).expect(0).out.contains(&endpoint));
    server.say(&["webhooks", "enable", &endpoint]).expect(0);
    let said = server.say(&["webhooks", "enable", &endpoint]).expect(3);
    assert!(said.err.contains("ENDPOINT_NOT_FOUND"), "{said:?}");

    server.say(&["runs", "create", "order/o-1"]).expect(0);
    let said = server.say(&["runs", "cancel", "order/o-1", "--reason", "no more"]).expect(0);
    assert!(said.out.contains("is asked to end"), "{said:?}");
    let run = server.say(&["runs", "watch", "order/o-1"]).expect(4);
    assert!(run.err.contains("no more") || run.out.contains("terminated"), "{run:?}");
    let said = server.say(&["runs", "cancel", "order/o-1"]).expect(1);
    assert!(said.err.contains("INSTANCE_TERMINAL"), "{said:?}");

    let workers = json(&["workers", "list", "--status", "active"]);
    let id = workers["workers"][0]["id"].as_str().unwrap().to_owned();
    assert!(server.say(&["workers", "list"]).expect(0).out.contains(&id));
    assert!(server.say(&["workers", "get", &id]).expect(0).out.contains("max_concurrency"));
    server.say(&["workers", "get", "nobody"]).expect(3);
    server.say(&["workers", "drain", &id]).expect(0);
    until("it has stopped", || json(&["workers", "get", &id])["status"] == "stopped");
    let said = server.say(&["health"]).expect(1);
    assert!(said.out.contains("unhealthy"), "{said:?}");
    let said = server.say(&["workers", "drain", &id]).expect(1);
    assert!(said.err.contains("WORKER_STOPPED"), "{said:?}");
}

#[test]
fn a_system_on_sqlite_is_looked_after() {
    let folder = tempfile::tempdir().unwrap();
    looked_after(&sqlite_in(folder.path(), "app.db"));
}

#[test]
fn a_system_on_postgres_is_looked_after() {
    let database = postgres();
    looked_after(&database.url);
}
