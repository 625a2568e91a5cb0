//! The words for steps that clients of the API know, whatever the model calls them.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::machines::{ActivityError, Workflow, WorkflowAction};
use windlass::relays::{NoopTerminalHook, Step, StepError, StepOutcome, StepRunner};

use crate::durable::until;
use crate::harness::{Kind, Server, on_both_stores};
use crate::live::{heard, kinds};

on_both_stores!(
    steps_of_every_model_have_the_words_of_the_specification,
    a_step_in_retry_is_told_with_all_its_fields,
    steps_of_a_relay_are_told_live,
    a_relay_that_waits_and_works_is_told_as_such,
);

/// Rests for an hour.
struct Sleeper;

impl Workflow for Sleeper {
    const TYPE: &'static str = "sleeper";
    type Input = Value;
    type Output = Value;

    fn new(_: Value) -> Self {
        Self
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![WorkflowAction::timer("rest", Duration::from_secs(3_600))]
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![]
    }

    fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> {
        vec![]
    }
}

/// Remembers something, then waits an hour for the second step.
struct Slow;

impl StepRunner for Slow {
    async fn run_step(&self, step: &Step) -> Result<StepOutcome, StepError> {
        let payload = step.payload.clone();
        if step.step_number > 0 {
            return Ok(StepOutcome::done(payload));
        }
        step.memo("answer", || async { Ok::<_, StepError>(42) }).await?;
        Ok(StepOutcome::ContinueAfter { payload, delay: Duration::from_secs(3_600) })
    }
}

/// Is put off for a moment, works until it is let go, and then waits for a signal.
struct Works(Arc<Notify>);

impl StepRunner for Works {
    async fn run_step(&self, step: &Step) -> Result<StepOutcome, StepError> {
        let payload = step.payload.clone();
        match step.step_number {
            0 => Ok(StepOutcome::ContinueAfter { payload, delay: Duration::from_millis(20) }),
            1 => {
                self.0.notified().await;
                let timeout = Some(Duration::from_secs(3_600));
                Ok(StepOutcome::ContinueOnSignal { payload, signal: "go".into(), timeout })
            }
            _ => Ok(StepOutcome::done(payload)),
        }
    }
}

async fn start(kind: Kind) -> Server {
    let server = Server::start(kind).await;
    server.engine.machine::<Sleeper>().unwrap();
    server.engine.relay("slow", Slow, NoopTerminalHook).build().unwrap();
    server
}

#[track_caller]
fn spoken(step: &Value, expect: (&str, &str), own: (&str, &str)) {
    let words = (step["type"].as_str().unwrap(), step["status"].as_str().unwrap());
    assert_eq!(words, expect, "{step}");
    let words = (step["kind"].as_str().unwrap(), step["state"].as_str().unwrap());
    assert_eq!(words, own, "{step}");
}

async fn steps_of_every_model_have_the_words_of_the_specification(kind: Kind) {
    let server = start(kind).await;
    for (workflow, expect, own) in [
        ("approve", ("waitForEvent", "waiting"), ("event", "waiting")),
        ("nap", ("sleep", "waiting"), ("sleep", "waiting")),
        ("family", ("do", "waiting"), ("child", "waiting")),
        ("outside", ("do", "pending"), ("activity", "pending")),
        ("sleeper", ("sleep", "waiting"), ("timer", "waiting")),
    ] {
        let run = server.run(workflow, "w-1", json!({}), "waiting").await;
        spoken(&run["meta"]["currentStep"], expect, own);
        let history = server.ok(&format!("/workflows/{workflow}/instances/w-1/history")).await;
        spoken(&history["steps"][0], expect, own);
        let key = run["meta"]["runKey"].as_str().unwrap();
        let run = server.ok(&format!("/runs/{key}")).await;
        spoken(&run["meta"]["currentStep"], expect, own);
    }
    server.run("slow", "w-1", json!({}), "waiting").await;
    let history = server.ok("/workflows/slow/instances/w-1/history").await;
    let steps = history["steps"].as_array().unwrap();
    let of = |kind: &str| steps.iter().find(|step| step["kind"] == kind).unwrap();
    spoken(of("memo"), ("do", "completed"), ("memo", "completed"));
    spoken(of("relay"), ("do", "completed"), ("relay", "completed"));
    server.stop().await;
}

async fn a_step_in_retry_is_told_with_all_its_fields(kind: Kind) {
    let server = start(kind).await;
    let run = server.run("charge", "c-1", json!(3), "waiting").await;
    let step = run["meta"]["currentStep"].clone();
    spoken(&step, ("do", "waiting"), ("do", "waiting"));
    assert_eq!((&step["stepKey"], &step["name"]), (&json!("pay"), &json!("pay")));
    assert_eq!((&step["attempts"], &step["maxAttempts"]), (&json!(1), &json!(4)));
    assert_eq!(step["timeoutMs"], 600_000);
    assert!(step["nextRetryAt"].as_str().unwrap() > run["meta"]["updatedAt"].as_str().unwrap());
    assert_eq!((&step["wakeAt"], &step["waitEventType"]), (&Value::Null, &Value::Null));
    assert!(step["error"]["message"].as_str().unwrap().contains("declined"), "{step}");
    assert!(step["error"]["name"].is_string(), "{step}");
    server.stop().await;
}

async fn steps_of_a_relay_are_told_live(kind: Kind) {
    let server = start(kind).await;
    server.run("slow", "w-1", json!({}), "waiting").await;
    let stream = server.request(Method::GET, "/workflows/slow/instances/w-1/live");
    let told = heard(stream.send().await.unwrap(), |told| {
        told.iter().any(|one| one.data["type"] == "relay.step_completed")
    })
    .await;
    let steps = kinds(&told, "step");
    let of = |kind: &str| steps.iter().find(|step| step["kind"] == kind).cloned();
    assert_eq!(of("relay").expect("the step is told")["stepKey"], "0");
    assert_eq!(of("memo").expect("its memo is told")["stepKey"], "0/answer");
    server.stop().await;
}

async fn a_relay_that_waits_and_works_is_told_as_such(kind: Kind) {
    let server = start(kind).await;
    let go = Arc::new(Notify::new());
    let relay = server.engine.relay("works", Works(Arc::clone(&go)), NoopTerminalHook);
    let relay = relay.build().unwrap();
    let put_off = server.run("slow", "w-1", json!({}), "waiting").await;
    let step = &put_off["meta"]["currentStep"];
    spoken(step, ("do", "waiting"), ("relay", "waiting"));
    assert!(step["wakeAt"].is_string() && step["nextRetryAt"].is_null(), "{step}");

    server.run("works", "w-1", json!({}), "waiting").await;
    let current = async || {
        let run = server.ok("/workflows/works/instances/w-1").await;
        (run["meta"]["currentStep"].clone(), run["details"].clone())
    };
    // The row says that it waits until a time that has passed.
    until("it works", async || current().await.0["state"] == "running").await;
    let (step, details) = current().await;
    spoken(&step, ("do", "pending"), ("relay", "running"));
    for field in ["wakeAt", "nextRetryAt", "waitEventType"] {
        assert!(step[field].is_null(), "{step}");
    }
    assert!(details["cancelling"].is_null(), "{details}");
    let history = server.ok("/workflows/works/instances/w-1/history").await;
    spoken(&history["steps"][1], ("do", "pending"), ("relay", "running"));
    let why = server.ok("/workflows/works/instances/w-1/why").await.to_string();
    assert!(why.contains("is being done, attempt 1 of 3"), "{why}");

    go.notify_one();
    until("it waits for the signal", async || current().await.0["waitEventType"] == "go").await;
    let (step, _) = current().await;
    spoken(&step, ("do", "waiting"), ("relay", "waiting"));
    assert!(step["wakeAt"].is_string() && step["nextRetryAt"].is_null(), "{step}");

    // Who cancels waits for a step that does not watch its token, and meanwhile everybody sees it.
    server.run("works", "w-2", json!({}), "waiting").await;
    let details = async || server.ok("/workflows/works/instances/w-2").await["details"].clone();
    let at_work = async || server.ok("/workflows/works/instances/w-2").await;
    until("it works", async || at_work().await["meta"]["currentStep"]["state"] == "running").await;
    let cancel = tokio::spawn(async move { relay.cancel("w-2").await.unwrap() });
    until("it is cancelling", async || details().await["cancelling"] == true).await;
    go.notify_one();
    assert!(cancel.await.unwrap());
    let details = details().await;
    assert_eq!((&details["status"], &details["cancelling"]), (&json!("terminated"), &Value::Null));
    server.stop().await;
}
