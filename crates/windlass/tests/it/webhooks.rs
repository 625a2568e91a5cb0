//! Webhooks on every store: signed, delivered under one id, retried, dead with their errors, and
//! silent towards endpoints that are gone.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use windlass::kernel::{Commit, DeadLetter, Namespace, Op, Query, RetryPolicy, Task, TasksQuery};
use windlass::machines::{ActivityError, Workflow, WorkflowAction};
use windlass::outbound::Policy;
use windlass::relays::{NoopTerminalHook, RelayError, RelayStep, RunSpec, StepOutcome, StepRunner};
use windlass::webhooks::{Secret, WEBHOOK_EFFECT, Webhook, WebhookOptions, Webhooks, verify};
use windlass::{Attempt, Ctx, Engine, RunKey};

use crate::harness::{Harness, ok, on_every_store, until};
use crate::receiver::{Receiver, answer};
use crate::relay_calls::RelayCalls as _;

const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

on_every_store!(
    a_webhook_is_signed_with_every_secret_of_its_set,
    a_namespace_with_secrets_of_its_own_uses_them_alone,
    another_implementation_verifies_what_is_sent,
    failures_are_retried_under_one_id_and_die_with_their_errors,
    a_busy_receiver_is_called_again_after_retry_after,
    a_gone_endpoint_is_left_alone_by_every_process_until_it_is_enabled,
    an_invalid_webhook_is_a_dead_letter_at_once,
    runs_of_every_model_send_webhooks,
);

fn secrets(texts: &[&str]) -> Vec<Secret> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn options() -> WebhookOptions {
    let sets = [("default", &[NEW, OLD][..]), ("billing", &[OLD])];
    WebhookOptions {
        policy: Policy {
            plain_http: true,
            allow: vec!["127.0.0.1".parse().unwrap()],
            ..Policy::default()
        },
        secrets: sets.into_iter().map(|(name, set)| (name.to_owned(), secrets(set))).collect(),
        ..WebhookOptions::default()
    }
}

/// An engine that delivers webhooks, and a run that they can belong to.
async fn sender(h: &Harness) -> (Engine, Webhooks, RunKey) {
    let engine = h.engine().await;
    let webhooks = Webhooks::new(&engine, options()).unwrap();
    webhooks.serve(&engine).unwrap();
    let flow = engine.workflow("sender", |_: Ctx, (): ()| async { ok(()) }).unwrap();
    let run = flow.start(()).await.unwrap();
    run.result().await.unwrap();
    (engine, webhooks, run.run_key())
}

async fn enqueue(engine: &Engine, task: Task) {
    let commit = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
    let answers = engine.admin().store().commit(vec![commit]).await;
    assert!(answers[0].is_ok(), "{answers:?}");
}

/// The effect of a webhook with delays that a test can wait for.
fn quick(engine: &Engine, webhook: &Webhook, retries: usize) -> Task {
    let input = serde_json::value::to_raw_value(webhook).unwrap();
    let policy = match retries {
        0 => RetryPolicy::none(),
        _ => RetryPolicy::listed(vec![Duration::from_millis(2); retries]),
    };
    engine.core().effect(WEBHOOK_EFFECT, None, input, policy).unwrap()
}

async fn tasks(engine: &Engine) -> Vec<Task> {
    let query = TasksQuery::all(engine.namespace().clone(), 100);
    engine.admin().store().list(Query::Tasks(query)).await.unwrap().tasks().unwrap()
}

async fn dead(engine: &Engine) -> Vec<DeadLetter> {
    until("all effects are settled", || async { tasks(engine).await.is_empty() }).await;
    let namespace = engine.namespace().clone();
    let query = Query::DeadLetters { namespace, queue: None, after: None, limit: 100 };
    engine.admin().store().list(query).await.unwrap().dead_letters().unwrap()
}

async fn a_webhook_is_signed_with_every_secret_of_its_set(h: Arc<Harness>) {
    let (engine, _, run_key) = sender(&h).await;
    let receiver = Receiver::start([answer("204 No Content", "", "")]).await;
    let data = json!({ "amount": 12, "name": "Ünal" });
    let mut webhook = Webhook::new(receiver.url(), "invoice.paid", &data).unwrap();
    webhook.headers.insert("x-tenant".into(), "acme".into());
    let task = webhook.effect(&engine, Some(run_key)).unwrap();
    let id = task.task_id.to_string();
    let body = String::from_utf8_lossy(&task.body.as_ref().unwrap().bytes).into_owned();
    assert!(body.contains("\"backoff\":\"listed\"") && !body.contains("whsec"), "{body}");
    enqueue(&engine, task).await;
    webhook.secret = Some("billing".into());
    webhook.timestamp = Some("2026-11-16T08:00:00Z".into());
    until("the first has come", || async { receiver.requests().len() == 1 }).await;
    enqueue(&engine, webhook.effect(&engine, None).unwrap()).await;
    assert_eq!(dead(&engine).await, []);
    let requests = receiver.requests();
    let [first, second] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!(first.header("webhook-id"), id);
    assert_eq!(first.header("x-tenant"), "acme");
    assert_eq!(first.header("content-type"), "application/json");
    assert_eq!(first.header("webhook-signature").split(' ').count(), 2);
    let posted = first.json();
    assert_eq!((&posted["type"], &posted["data"]), (&json!("invoice.paid"), &data));
    let at: jiff::Timestamp = posted["timestamp"].as_str().unwrap().parse().unwrap();
    let made = engine.core().clock().now().as_millis() - at.as_millisecond();
    assert!((0..60_000).contains(&made), "{posted}");
    for known in [&[NEW][..], &[OLD], &[OLD, NEW]] {
        verify(&secrets(known), &first.headers, &first.body).unwrap();
    }
    verify(&secrets(&[OLD]), &second.headers, &second.body).unwrap();
    verify(&secrets(&[NEW]), &second.headers, &second.body).unwrap_err();
    assert_eq!(second.json()["timestamp"], "2026-11-16T08:00:00Z");
    assert_eq!(engine.admin().metrics().webhooks_delivered.get(), 2);
}

async fn a_namespace_with_secrets_of_its_own_uses_them_alone(h: Arc<Harness>) {
    h.expect_no_runs();
    let engine = h.engine().await;
    let own = [("default".to_owned(), secrets(&[NEW]))].into();
    let mut options = options();
    options.secrets.insert("default".to_owned(), secrets(&[OLD]));
    options.namespaces.insert("tenant-a".to_owned(), own);
    Webhooks::new(&engine, options).unwrap().serve(&engine).unwrap();
    let receiver = Receiver::start([answer("204 No Content", "", "")]).await;
    let mut webhook = Webhook::new(receiver.url(), "invoice.paid", &json!(1)).unwrap();
    let core = |name: &str| engine.core().in_namespace(Namespace::new(name).unwrap());
    let send = async |name: &str, webhook: &Webhook| {
        let input = serde_json::value::to_raw_value(webhook).unwrap();
        let task = core(name).effect(WEBHOOK_EFFECT, None, input, RetryPolicy::none()).unwrap();
        enqueue(&engine, task).await;
    };
    for (n, name) in ["default", "tenant-a", "tenant-b"].into_iter().enumerate() {
        send(name, &webhook).await;
        until("it has come", || async { receiver.requests().len() == n + 1 }).await;
    }
    let requests = receiver.requests();
    for (request, known, foreign) in
        [(&requests[0], OLD, NEW), (&requests[1], NEW, OLD), (&requests[2], OLD, NEW)]
    {
        verify(&secrets(&[known]), &request.headers, &request.body).unwrap();
        verify(&secrets(&[foreign]), &request.headers, &request.body).unwrap_err();
    }
    // A set of another namespace is unknown to it: nothing is sent.
    webhook.secret = Some("billing".into());
    send("tenant-a", &webhook).await;
    let query = Query::DeadLetters {
        namespace: Namespace::new("tenant-a").unwrap(),
        queue: None,
        after: None,
        limit: 10,
    };
    until("it is given up", || async {
        let letters = engine.admin().store().list(query.clone()).await.unwrap();
        letters.dead_letters().unwrap().len() == 1
    })
    .await;
    assert_eq!(receiver.requests().len(), 3, "nothing was signed with a foreign secret");
}

// The answer of the verifier of tests/standardwebhooks, which shares no code with the sender.
fn verified_elsewhere(request: &crate::receiver::Request, body: &[u8], secret: &str) -> bool {
    let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"]
        .map(|name| (name.to_owned(), json!(request.header(name))));
    let headers: serde_json::Map<String, serde_json::Value> = headers.into_iter().collect();
    let signed = json!({ "headers": headers, "body": BASE64_STANDARD.encode(body) });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), signed.to_string()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/standardwebhooks/stdlib.py");
    let mut python = std::process::Command::new("python3");
    let ran = python.arg(script).arg(file.path()).arg(secret).output().expect("python3 runs");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() || said.trim() == "no signature fits", "{said}");
    ran.status.success()
}

async fn another_implementation_verifies_what_is_sent(h: Arc<Harness>) {
    let (engine, ..) = sender(&h).await;
    let receiver = Receiver::start([answer("204 No Content", "", "")]).await;
    let data = json!({ "amount": 12, "name": "Ünal", "note": "\u{1f9f5} \n" });
    let webhook = Webhook::new(receiver.url(), "invoice.paid", &data).unwrap();
    let billing = Webhook { secret: Some("billing".into()), ..webhook.clone() };
    enqueue(&engine, webhook.effect(&engine, None).unwrap()).await;
    until("the first has come", || async { receiver.requests().len() == 1 }).await;
    enqueue(&engine, billing.effect(&engine, None).unwrap()).await;
    assert_eq!(dead(&engine).await, []);
    let requests = receiver.requests();
    let [rotating, single] = &requests[..] else { panic!("{requests:?}") };
    // While secrets rotate, a receiver with either of them is content.
    assert!(verified_elsewhere(rotating, &rotating.body, NEW));
    assert!(verified_elsewhere(rotating, &rotating.body, OLD));
    assert!(verified_elsewhere(single, &single.body, OLD));
    assert!(!verified_elsewhere(single, &single.body, NEW));
    let mut changed = rotating.body.to_vec();
    changed.push(b' ');
    assert!(!verified_elsewhere(rotating, &changed, NEW));
    assert!(!verified_elsewhere(single, &rotating.body, OLD));
}

async fn failures_are_retried_under_one_id_and_die_with_their_errors(h: Arc<Harness>) {
    let (engine, ..) = sender(&h).await;
    let moved = answer("302 Found", "location: http://127.0.0.1:1/\r\n", "");
    let down = answer("500 Oops", "", &"x".repeat(3_000));
    let flaky = Receiver::start([&down, &moved, &answer("200 OK", "", "")]).await;
    let webhook = Webhook::new(flaky.url(), "a", &1).unwrap();
    enqueue(&engine, quick(&engine, &webhook, 5)).await;
    assert_eq!(dead(&engine).await, []);
    let requests = flaky.requests();
    assert_eq!(requests.len(), 3);
    let ids: Vec<&str> = requests.iter().map(|request| request.header("webhook-id")).collect();
    assert!(ids.iter().all(|id| *id == ids[0] && !id.is_empty()), "{ids:?}");
    assert!(requests.iter().all(|request| request.body == requests[0].body));
    let broken = Receiver::start([down]).await;
    let webhook = Webhook::new(broken.url(), "a", &1).unwrap();
    enqueue(&engine, quick(&engine, &webhook, 2)).await;
    let dead = dead(&engine).await;
    assert_eq!((dead.len(), dead[0].attempt, broken.requests().len()), (1, 3, 3));
    let errors: Vec<serde_json::Value> = dead[0].errors.as_ref().unwrap().read().unwrap();
    assert_eq!(errors.len(), 3);
    for error in errors {
        assert_eq!(error["name"], "WEBHOOK_STATUS");
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("500") && text.matches('x').count() == 500, "{text}");
    }
    assert_eq!(engine.admin().metrics().webhooks_failed.get(), 5);
}

async fn a_busy_receiver_is_called_again_after_retry_after(h: Arc<Harness>) {
    let (engine, ..) = sender(&h).await;
    let busy = Receiver::start([answer("429 Slow", "retry-after: 3600\r\n", "")]).await;
    let webhook = Webhook::new(busy.url(), "a", &1).unwrap();
    enqueue(&engine, quick(&engine, &webhook, 5)).await;
    let failed = || async { tasks(&engine).await.iter().any(|task| task.attempt == 1) };
    until("it is put off", failed).await;
    let tasks = tasks(&engine).await;
    let wait = tasks[0].due_at.unwrap().since(engine.core().clock().now());
    assert!(wait > Duration::from_secs(3_500), "{wait:?}");
    assert_eq!(busy.requests().len(), 1);
}

async fn a_gone_endpoint_is_left_alone_by_every_process_until_it_is_enabled(h: Arc<Harness>) {
    let (engine, webhooks, _) = sender(&h).await;
    let gone = Receiver::start([answer("410 Gone", "", ""), answer("200 OK", "", "")]).await;
    // The query is not shown.
    let url = |token: &str| format!("{}?token={token}", gone.url());
    let webhook = Webhook::new(url("hush"), "a", &1).unwrap();
    let task = quick(&engine, &webhook, 5);
    let id = task.task_id.to_string();
    enqueue(&engine, task).await;
    let letters = dead(&engine).await;
    assert_eq!((letters.len(), letters[0].attempt), (1, 1));
    // A process that knows nothing of it but what the store tells.
    h.stop(&engine).await;
    drop((engine, webhooks));
    let (engine, webhooks, _) = sender(&h).await;
    let namespace = engine.namespace().clone();
    let disabled = webhooks.disabled(&namespace).await.unwrap();
    assert_eq!((disabled[0].url.as_str(), disabled[0].webhook_id.as_str()), (&*gone.url(), &*id));
    enqueue(&engine, quick(&engine, &webhook, 5)).await;
    let letters = dead(&engine).await;
    assert_eq!(letters.len(), 2);
    assert!(letters[1].reason.contains("disabled"), "{letters:?}");
    assert_eq!(gone.requests().len(), 1);
    let other = windlass::kernel::Namespace::new("other").unwrap();
    assert_eq!(webhooks.disabled(&other).await.unwrap(), []);
    // One of another run differs by its query alone, and is another endpoint.
    let other = Webhook::new(url("other"), "a", &1).unwrap();
    enqueue(&engine, quick(&engine, &other, 5)).await;
    assert_eq!((dead(&engine).await.len(), gone.requests().len()), (2, 2));
    assert!(!webhooks.enable(&namespace, &url("other")).await.unwrap());
    assert!(webhooks.enable(&namespace, &url("hush")).await.unwrap());
    assert!(!webhooks.enable(&namespace, &url("hush")).await.unwrap());
    enqueue(&engine, quick(&engine, &webhook, 5)).await;
    assert_eq!((dead(&engine).await.len(), gone.requests().len()), (2, 3));
    // The URL that is shown stands for all that are shown as it.
    let all = Receiver::start([answer("410 Gone", "", "")]).await;
    for token in ["a", "b"] {
        let url = format!("{}?token={token}", all.url());
        enqueue(&engine, quick(&engine, &Webhook::new(url, "a", &1).unwrap(), 5)).await;
        dead(&engine).await;
    }
    assert_eq!(webhooks.disabled(&namespace).await.unwrap().len(), 2);
    assert!(webhooks.enable(&namespace, &all.url()).await.unwrap());
    assert_eq!(webhooks.disabled(&namespace).await.unwrap(), []);
}

async fn an_invalid_webhook_is_a_dead_letter_at_once(h: Arc<Harness>) {
    let (engine, ..) = sender(&h).await;
    let good = Webhook::new("https://example.com/", "a", &1).unwrap();
    let to = |url: &str| Webhook { url: url.into(), ..good.clone() };
    let header = |name: &str| Webhook {
        headers: [(name.to_owned(), "x".to_owned())].into(),
        ..good.clone()
    };
    assert!(header("webhook-id").effect(&engine, None).is_err());
    assert!(Webhook { event_type: String::new(), ..good.clone() }.effect(&engine, None).is_err());
    for (webhook, expect) in [
        (to("http://10.0.0.1/"), "ADDRESS_REFUSED"),
        (to("https://user:pass@example.com/"), "INVALID_URL"),
        (header("Webhook-Signature"), "INVALID_WEBHOOK"),
        (header("Host"), "INVALID_HEADER"),
    ] {
        let task = quick(&engine, &webhook, 5);
        let id = task.task_id;
        enqueue(&engine, task).await;
        let letters = dead(&engine).await;
        let letter = letters.iter().find(|letter| letter.task_id == id).unwrap();
        let errors: Vec<serde_json::Value> = letter.errors.as_ref().unwrap().read().unwrap();
        assert_eq!((errors.len(), &errors[0]["name"]), (1, &json!(expect)));
    }
    // Another process may have the secret.
    let unknown = Webhook { secret: Some("payments".into()), ..to("http://127.0.0.1:1/") };
    enqueue(&engine, quick(&engine, &unknown, 1)).await;
    let letters = dead(&engine).await;
    let letter = letters.iter().find(|letter| letter.reason.contains("\"payments\"")).unwrap();
    assert_eq!(letter.attempt, 2);
}

fn paid(url: &str, by: &str) -> Webhook {
    Webhook::new(url, "invoice.paid", &by).unwrap()
}

struct Pays(String);

impl Workflow for Pays {
    const TYPE: &'static str = "pays-machine";
    type Input = String;
    type Output = serde_json::Value;

    fn new(url: String) -> Self {
        Self(url)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let webhook = json!(paid(&self.0, "machine"));
        let effect = WorkflowAction::effect(WEBHOOK_EFFECT, webhook, RetryPolicy::webhooks());
        vec![effect, WorkflowAction::complete(json!(null))]
    }

    fn on_activity_completed(&mut self, _: &str, _: serde_json::Value) -> Vec<WorkflowAction> {
        vec![]
    }

    fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> {
        vec![]
    }
}

struct PaysStep;

impl StepRunner for PaysStep {
    async fn run_step(&self, step: &RelayStep) -> Result<StepOutcome, RelayError> {
        let url = String::from_utf8(step.payload.to_vec()).unwrap();
        let webhook = paid(&url, "relay");
        let enqueued = step.effects.enqueue(WEBHOOK_EFFECT, &webhook, RetryPolicy::webhooks());
        enqueued.map_err(RelayError::permanent)?;
        Ok(StepOutcome::done(""))
    }
}

async fn runs_of_every_model_send_webhooks(h: Arc<Harness>) {
    let (engine, ..) = sender(&h).await;
    let receiver = Receiver::start([answer("204 No Content", "", "")]).await;
    let flow = |ctx: Ctx, url: String| async move {
        let tell = async |attempt: Attempt| {
            attempt.enqueue(WEBHOOK_EFFECT, &paid(&url, "steps"), RetryPolicy::webhooks())?;
            Ok(())
        };
        ok(ctx.step_with("tell", tell).await?)
    };
    let run = engine.workflow("pays", flow).unwrap().start(receiver.url()).await.unwrap();
    run.result().await.unwrap();
    let machine = engine.machine::<Pays>().unwrap().start(receiver.url()).await.unwrap();
    machine.result().await.unwrap();
    let relay = engine.relay("pays-relay", PaysStep, NoopTerminalHook).build().unwrap();
    let submitted = relay.submit(RunSpec::new(receiver.url())).await.unwrap();
    relay.wait(&submitted.run_id).await.unwrap();
    assert_eq!(dead(&engine).await, []);
    let requests = receiver.requests();
    for (by, run_key) in
        [("steps", run.run_key()), ("machine", machine.run_key()), ("relay", submitted.run_key)]
    {
        let request = requests.iter().find(|request| request.json()["data"] == by).unwrap();
        verify(&secrets(&[NEW]), &request.headers, &request.body).unwrap();
        let query = Query::Events { run_key, from: 0, limit: 100 };
        let events = engine.admin().store().list(query).await.unwrap().events().unwrap();
        let told = events.iter().find(|event| event.event_type.as_str() == "effect.enqueued");
        let summary = told.unwrap().payload_json().unwrap();
        assert_eq!(summary["task_id"], request.header("webhook-id"), "{by}");
        assert_eq!(summary["name"], WEBHOOK_EFFECT);
    }
    assert_eq!(requests.len(), 3);
}
