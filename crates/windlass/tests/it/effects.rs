//! Effects: they exist with their commit, are delivered at least once under one id, and die with
//! their errors.

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use windlass::kernel::{Body, BoxFuture, Commit, Op, Query, RetryLimit, RetryPolicy, TasksQuery};
use windlass::machines::{Activity, ActivityContext, ActivityError, Workflow, WorkflowAction};
use windlass::model::{TaskHandler, TaskResult};
use windlass::{
    AnyError, Attempt, Ctx, Engine, RunHandle, SqlValue, StepTx, TaskContext, TaskFailure,
};

use crate::harness::{
    Counts, Harness, Kind, ok, on_every_store, until, until_blocked, until_waiting,
};

on_every_store!(
    effects_are_delivered_and_die_with_their_errors,
    effects_of_a_step_go_with_its_record,
    a_machine_enqueues_its_effects_once_over_all_processes_and_generations,
);

struct Mail(Arc<Counts>);

impl TaskHandler for Mail {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let text = String::from_utf8_lossy(&input.bytes).into_owned();
        let times = self.0.hit(&format!("{text} {}", context.idempotency_key()));
        self.0.hit(&text);
        Box::pin(std::future::ready(match (text.as_str(), times) {
            ("\"flaky\"", 2..) | ("\"fine\"", _) => Ok(Body::json("null")),
            _ => Err(TaskFailure::new("Refused", "the other side refuses", true)),
        }))
    }
}

async fn effects_are_delivered_and_die_with_their_errors(h: Arc<Harness>) {
    let engine = h.engine().await;
    let counts = Counts::new();
    let flow = engine.workflow("sender", |_: Ctx, (): ()| async { ok(()) }).unwrap();
    let run = flow.start(()).await.unwrap();
    run.result().await.unwrap();
    engine.serve_effects("mail", Arc::new(Mail(counts.clone()))).unwrap();
    let policy = RetryPolicy::constant(RetryLimit::Times(2), std::time::Duration::from_millis(5));
    let mut ops = Vec::new();
    for text in ["fine", "flaky", "never"] {
        let input = RawValue::from_string(format!("\"{text}\"")).unwrap();
        let task =
            engine.core().effect("mail", Some(run.run_key()), input, policy.clone()).unwrap();
        ops.push(Op::Enqueue(Box::new(task)));
    }
    let answers = engine.admin().store().commit(vec![Commit::new(None, None, ops)]).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    let namespace = engine.admin().options().namespace.clone();
    until("all effects are settled", || async {
        let query = TasksQuery::all(namespace.clone(), 10);
        engine.admin().store().list(Query::Tasks(query)).await.unwrap().tasks().unwrap().is_empty()
    })
    .await;
    let times = |text: &str| counts.get(&format!("\"{text}\""));
    assert_eq!((times("fine"), times("flaky"), times("never")), (1, 2, 3));
    let query = Query::DeadLetters { namespace, queue: None, after: None, limit: 10 };
    let dead = engine.admin().store().list(query).await.unwrap().dead_letters().unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].attempt, &*dead[0].reason), (3, "the other side refuses"));
    let errors: Vec<serde_json::Value> = dead[0].errors.as_ref().unwrap().read().unwrap();
    assert_eq!(errors.len(), 3);
}

// The words that a run's ledger says were enqueued, by the part of the run that wanted them.
async fn enqueued<O>(run: &RunHandle<O>) -> Vec<String> {
    let mut events = run.events().await.unwrap();
    events.retain(|event| event.event_type.as_str() == "effect.enqueued");
    let key = |event: &windlass::kernel::Event| event.payload_json().unwrap()["key"].clone();
    events.iter().map(|event| key(event).as_str().unwrap().to_owned()).collect()
}

async fn settled(engine: &Engine) {
    until("all effects are settled", || async {
        let query = TasksQuery::all(engine.namespace().clone(), 10);
        engine.admin().store().list(Query::Tasks(query)).await.unwrap().tasks().unwrap().is_empty()
    })
    .await;
}

async fn effects_of_a_step_go_with_its_record(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    engine.serve_effects("mail", Arc::new(Mail(counts.clone()))).unwrap();
    let insert = match h.kind {
        Kind::Memory => None,
        Kind::Sqlite => Some("INSERT INTO app_sent VALUES (?1)"),
        Kind::Postgres => Some("INSERT INTO app_sent VALUES ($1)"),
    };
    if insert.is_some() {
        h.sql("CREATE TABLE app_sent (word text PRIMARY KEY)").await;
    }
    let flow = move |ctx: Ctx, (): ()| async move {
        let none = RetryPolicy::none;
        let tell = async |attempt: Attempt| {
            attempt.enqueue("mail", "fine", none())?;
            match attempt.number {
                1 => Err::<(), AnyError>(AnyError::msg("not yet")),
                _ => Ok(()),
            }
        };
        ctx.step_with("tell", tell).delay("1 millisecond").await?;
        let too_large = async |attempt: Attempt| {
            let error = attempt.enqueue("mail", &"x".repeat(2_000_000), none()).unwrap_err();
            for _ in 0..256 {
                attempt.enqueue("mail", "fine", none())?;
            }
            let many = attempt.enqueue("mail", "fine", none()).unwrap_err();
            // None of this is kept: the attempt fails.
            Err::<(), _>(AnyError::msg(format!("{} {}", error.code(), many.code())))
        };
        let refused = ctx.step_with("too-large", too_large).retries(0).await.unwrap_err();
        assert!(refused.to_string().contains("INVALID_SIZE INVALID_SIZE"), "{refused}");
        let Some(insert) = insert else { return ok(()) };
        for key in ["keep", "twice"] {
            let keep = async |tx: StepTx| {
                tx.execute(insert, [SqlValue::Text("word".into())]);
                tx.enqueue("mail", "fine", none())?;
                ok(())
            };
            let kept = ctx.step_tx(key, keep).await;
            assert_eq!(kept.is_ok(), key == "keep", "a second row leaves neither itself nor mail");
        }
        ok(())
    };
    let run = engine.workflow("sends", flow).unwrap().start(()).await.unwrap();
    run.result().await.unwrap();
    settled(&engine).await;
    let expect = if insert.is_some() { vec!["tell", "keep"] } else { vec!["tell"] };
    assert_eq!(enqueued(&run).await, expect);
    assert_eq!(counts.get("\"fine\""), expect.len() as u32);
}

/// Sends a word, has an activity done that fails at first, and sends another with its end.
struct Sends<const OTHER: bool>;

fn mail(word: &str) -> WorkflowAction {
    WorkflowAction::effect("mail", json!(word), RetryPolicy::none())
}

impl<const OTHER: bool> Workflow for Sends<OTHER> {
    const TYPE: &'static str = "sends";
    type Input = ();
    type Output = Value;

    fn new((): ()) -> Self {
        Self
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let first = if OTHER { "flaky" } else { "fine" };
        // Twice the same is two effects.
        vec![mail(first), mail("fine"), WorkflowAction::activity("work", "work", json!(null))]
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![mail("fine"), WorkflowAction::complete(json!("sent"))]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

/// Fails the first time.
struct Work(Arc<Counts>);

impl Activity for Work {
    const TYPE: &'static str = "work";
    type Input = ();
    type Output = ();

    async fn execute(&self, _: &ActivityContext, (): ()) -> Result<(), ActivityError> {
        match self.0.hit("work") {
            1 => Err(ActivityError::non_retryable("not yet")),
            _ => Ok(()),
        }
    }
}

async fn a_machine_enqueues_its_effects_once_over_all_processes_and_generations(h: Arc<Harness>) {
    let counts = Counts::new();
    let engine = h.engine().await;
    let sends = engine.machine::<Sends<false>>().unwrap();
    let run = sends.start(()).id("sends").await.unwrap();
    until_waiting(&engine, &run).await;
    assert_eq!(enqueued(&run).await, ["effect/mail", "effect/mail#2"]);
    h.stop(&engine).await;
    // Another build wants another effect: it is not enqueued behind the record's back.
    let engine = h.engine().await;
    engine.serve_effects("mail", Arc::new(Mail(counts.clone()))).unwrap();
    engine.machine_activity(Work(counts.clone())).unwrap();
    let other = engine.machine::<Sends<true>>().unwrap();
    let run = other.get("sends").await.unwrap();
    let reason = until_blocked(&run).await;
    assert!(reason.contains("effect \"effect/mail\""), "{reason}");
    h.stop(&engine).await;
    // The build that agrees reads the run back, and enqueues nothing again.
    let engine = h.engine().await;
    engine.serve_effects("mail", Arc::new(Mail(counts.clone()))).unwrap();
    engine.machine_activity(Work(counts.clone())).unwrap();
    let sends = engine.machine::<Sends<false>>().unwrap();
    let run = sends.get("sends").await.unwrap();
    run.wake().await.unwrap();
    run.result().await.unwrap_err();
    assert_eq!(enqueued(&run).await, ["effect/mail", "effect/mail#2"]);
    // Nor does the next generation, which begins at the beginning.
    let again = run.retry().await.unwrap();
    assert_eq!(again.result().await.unwrap(), json!("sent"));
    assert_eq!(enqueued(&again).await, ["effect/mail#3"]);
    settled(&engine).await;
    assert_eq!(counts.get("\"fine\""), 3);
}
