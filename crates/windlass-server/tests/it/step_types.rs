//! The step types and statuses of the API, for every model.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::machines::{ActivityError, Workflow, WorkflowAction};
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, StepOutcome, StepRunner};

use crate::harness::{Kind, Server, on_both_stores, wait_until};
use crate::live::{kinds, read_events};

on_both_stores!(
    steps_of_every_model_have_the_specified_types,
    a_retrying_step_has_all_fields,
    live_streams_include_relay_steps,
    the_states_of_a_relay_step,
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

/// Stores a memo, then delays the second step by an hour.
struct Slow;

impl StepRunner for Slow {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let payload = step.payload.clone();
        if step.step_number > 0 {
            return Ok(StepOutcome::done(payload));
        }
        step.memo("answer", || async { Ok::<_, RelayError>(42) }).await?;
        Ok(StepOutcome::ContinueAfter { payload, delay: Duration::from_secs(3_600) })
    }
}

/// Delays a step, runs one until it is notified, and then waits for a signal.
struct Works(Arc<Notify>);

impl StepRunner for Works {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
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
fn assert_step(step: &Value, expect: (&str, &str), own: (&str, &str)) {
    let words = (step["type"].as_str().unwrap(), step["status"].as_str().unwrap());
    assert_eq!(words, expect, "{step}");
    let words = (step["kind"].as_str().unwrap(), step["state"].as_str().unwrap());
    assert_eq!(words, own, "{step}");
}

async fn steps_of_every_model_have_the_specified_types(kind: Kind) {
    let server = start(kind).await;
    for (workflow, expect, own) in [
        ("approve", ("waitForEvent", "waiting"), ("event", "waiting")),
        ("nap", ("sleep", "waiting"), ("sleep", "waiting")),
        ("family", ("do", "waiting"), ("child", "waiting")),
        ("outside", ("do", "pending"), ("activity", "pending")),
        ("sleeper", ("sleep", "waiting"), ("timer", "waiting")),
    ] {
        let run = server.run(workflow, "w-1", json!({}), "waiting").await;
        assert_step(&run["meta"]["currentStep"], expect, own);
        let history = server.get_ok(&format!("/workflows/{workflow}/instances/w-1/history")).await;
        assert_step(&history["steps"][0], expect, own);
        let key = run["meta"]["runKey"].as_str().unwrap();
        let run = server.get_ok(&format!("/runs/{key}")).await;
        assert_step(&run["meta"]["currentStep"], expect, own);
    }
    server.run("slow", "w-1", json!({}), "waiting").await;
    let history = server.get_ok("/workflows/slow/instances/w-1/history").await;
    let steps = history["steps"].as_array().unwrap();
    let of = |kind: &str| steps.iter().find(|step| step["kind"] == kind).unwrap();
    assert_step(of("memo"), ("do", "completed"), ("memo", "completed"));
    assert_step(of("relay"), ("do", "completed"), ("relay", "completed"));
    server.stop().await;
}

async fn a_retrying_step_has_all_fields(kind: Kind) {
    let server = start(kind).await;
    let run = server.run("charge", "c-1", json!(3), "waiting").await;
    let step = run["meta"]["currentStep"].clone();
    assert_step(&step, ("do", "waiting"), ("do", "waiting"));
    assert_eq!((&step["stepKey"], &step["name"]), (&json!("pay"), &json!("pay")));
    assert_eq!((&step["attempts"], &step["maxAttempts"]), (&json!(1), &json!(4)));
    assert_eq!(step["timeoutMs"], 600_000);
    assert!(step["nextRetryAt"].as_str().unwrap() > run["meta"]["updatedAt"].as_str().unwrap());
    assert_eq!((&step["wakeAt"], &step["waitEventType"]), (&Value::Null, &Value::Null));
    assert!(step["error"]["message"].as_str().unwrap().contains("declined"), "{step}");
    assert!(step["error"]["name"].is_string(), "{step}");
    server.stop().await;
}

async fn live_streams_include_relay_steps(kind: Kind) {
    let server = start(kind).await;
    server.run("slow", "w-1", json!({}), "waiting").await;
    let stream = server.request(Method::GET, "/workflows/slow/instances/w-1/live");
    let events = read_events(stream.send().await.unwrap(), |events| {
        events.iter().any(|one| one.data["type"] == "relay.step_completed")
    })
    .await;
    let steps = kinds(&events, "step");
    let of = |kind: &str| steps.iter().find(|step| step["kind"] == kind).cloned();
    assert_eq!(of("relay").expect("the stream includes the step")["stepKey"], "0");
    assert_eq!(of("memo").expect("the stream includes the memo")["stepKey"], "0/answer");
    server.stop().await;
}

async fn the_states_of_a_relay_step(kind: Kind) {
    let server = start(kind).await;
    let go = Arc::new(Notify::new());
    let relay = server.engine.relay("works", Works(Arc::clone(&go)), NoopTerminalHook);
    let relay = relay.build().unwrap();
    let put_off = server.run("slow", "w-1", json!({}), "waiting").await;
    let step = &put_off["meta"]["currentStep"];
    assert_step(step, ("do", "waiting"), ("relay", "waiting"));
    assert!(step["wakeAt"].is_string() && step["nextRetryAt"].is_null(), "{step}");

    server.run("works", "w-1", json!({}), "waiting").await;
    let current = async || {
        let run = server.get_ok("/workflows/works/instances/w-1").await;
        (run["meta"]["currentStep"].clone(), run["details"].clone())
    };
    // The row still says that the step waits until a time that has passed.
    wait_until("the step runs", async || current().await.0["state"] == "running").await;
    let (step, details) = current().await;
    assert_step(&step, ("do", "pending"), ("relay", "running"));
    for field in ["wakeAt", "nextRetryAt", "waitEventType"] {
        assert!(step[field].is_null(), "{step}");
    }
    assert!(details["cancelling"].is_null(), "{details}");
    let history = server.get_ok("/workflows/works/instances/w-1/history").await;
    assert_step(&history["steps"][1], ("do", "pending"), ("relay", "running"));
    let why = server.get_ok("/workflows/works/instances/w-1/why").await.to_string();
    assert!(why.contains("is being executed, attempt 1 of 3"), "{why}");

    go.notify_one();
    wait_until("the step waits for the signal", async || {
        current().await.0["waitEventType"] == "go"
    })
    .await;
    let (step, _) = current().await;
    assert_step(&step, ("do", "waiting"), ("relay", "waiting"));
    assert!(step["wakeAt"].is_string() && step["nextRetryAt"].is_null(), "{step}");

    // A cancellation waits for a step that ignores its token; the API shows the pending
    // cancellation.
    server.run("works", "w-2", json!({}), "waiting").await;
    let details = async || server.get_ok("/workflows/works/instances/w-2").await["details"].clone();
    let at_work = async || server.get_ok("/workflows/works/instances/w-2").await;
    wait_until("the step runs", async || {
        at_work().await["meta"]["currentStep"]["state"] == "running"
    })
    .await;
    let cancelled = relay.get("w-2").await.unwrap();
    let cancel = tokio::spawn(async move { cancelled.cancel("cancelled").await.unwrap() });
    wait_until("the run is cancelling", async || details().await["cancelling"] == true).await;
    go.notify_one();
    assert!(cancel.await.unwrap());
    let details = details().await;
    assert_eq!((&details["status"], &details["cancelling"]), (&json!("terminated"), &Value::Null));
    server.stop().await;
}
