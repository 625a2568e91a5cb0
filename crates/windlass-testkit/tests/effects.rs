//! Effects in virtual time: whichever commit was the last before a crash, each exists if and only if the
//! commit does that it tells of.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass_engine::{Engine, TaskContext, TaskHandler, TaskResult};
use windlass_kernel::{
    Body, BoxFuture, Error, Event, Query, RetryPolicy, RunKey, Store, TasksQuery,
};
use windlass_models::AnyError;
use windlass_models::machines::{self, Workflow, WorkflowAction, WorkflowError};
use windlass_models::steps::{self, Attempt, Ctx};
use windlass_testkit::{Probe, Told, every_crash_of};

async fn enqueued(store: &dyn Store, run_key: RunKey) -> Result<Vec<Event>, Error> {
    let query = Query::Events { run_key, from: 0, limit: 1_000 };
    let mut events = store.list(query).await?.events()?;
    events.retain(|event| event.event_type.as_str() == "effect.enqueued");
    Ok(events)
}

/// Delivers what the ledger of its run knows of, and tells the probe what it delivered.
struct Mail(Arc<dyn Store>, Probe);

impl TaskHandler for Mail {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let (store, probe) = (Arc::clone(&self.0), self.1.clone());
        Box::pin(async move {
            let run_key = context.run_key.expect("an effect of a run");
            let events = enqueued(&*store, run_key).await.unwrap();
            let id = json!(context.task_id);
            let known = events.iter().any(|event| event.payload_json().unwrap()["task_id"] == id);
            assert!(known, "{id} is delivered, and no commit has enqueued it");
            probe.ran(format!("mail {}", input.read::<String>().unwrap()));
            Ok(Body::json("null"))
        })
    }
}

// The effects that the ledger has as enqueued, after all of them were delivered.
async fn delivered(engine: &Engine, probe: &Probe, run_key: RunKey) -> Told {
    let text = |error: Error| error.to_string();
    loop {
        let query = Query::Tasks(TasksQuery::all(engine.namespace().clone(), 100));
        let tasks = engine.store().list(query).await.map_err(text)?.tasks().map_err(text)?;
        if tasks.is_empty() {
            break;
        }
        engine.env().sleep(Duration::from_millis(100)).await;
    }
    let mut told = Vec::new();
    for event in enqueued(&**engine.store(), run_key).await.map_err(text)? {
        let summary = event.payload_json().map_err(text)?;
        assert_eq!(summary["name"], "mail");
        assert!(summary["input_bytes"].as_u64().unwrap() > 2, "{summary}");
        told.push(summary["key"].clone());
    }
    for word in ["first", "second", "last"] {
        assert!(probe.count(format!("mail {word}")) > 0, "{word} was not delivered");
    }
    assert_eq!(probe.count("mail never"), 0);
    Ok(told.into())
}

fn steps_of(engine: &Engine, probe: &Probe) -> BoxFuture<'static, Told> {
    let mail = Mail(Arc::clone(engine.store()), probe.clone());
    engine.serve_effects("mail", Arc::new(mail)).unwrap();
    let (seen, engine, told) = (probe.clone(), engine.clone(), probe.clone());
    let flow = move |ctx: Ctx, (): ()| {
        let probe = seen.clone();
        async move {
            let send = |key: &'static str, words: &'static [&'static str]| {
                let probe = probe.clone();
                ctx.step_with(key, move |attempt: Attempt| {
                    probe.ran(key);
                    async move {
                        if attempt.number == 1 && key == "a" {
                            // A failed attempt enqueues nothing.
                            attempt.enqueue("mail", "never", RetryPolicy::none())?;
                            return Err::<(), AnyError>(AnyError::msg("not yet"));
                        }
                        for word in words {
                            attempt.enqueue("mail", word, RetryPolicy::none())?;
                        }
                        Ok(())
                    }
                })
            };
            send("a", &["first", "second"]).await?;
            ctx.sleep("nap", "1 hour").await?;
            send("b", &["last"]).await?;
            Ok(())
        }
    };
    let flow = steps::register(&engine, "sends", flow).unwrap();
    Box::pin(async move {
        let run = flow.start(()).id("sends").await.map_err(|error| error.to_string())?;
        run.result().await.map_err(|error| error.to_string())?;
        delivered(&engine, &told, run.run_key()).await
    })
}

#[test]
fn a_crash_at_any_commit_neither_loses_nor_invents_an_effect_of_a_step() {
    let report = every_crash_of(steps_of);
    assert_eq!(report.output, json!(["a", "a", "b"]), "{report:?}");
    assert!(report.commits >= 6 && report.bodies_again > 0, "{report:?}");
}

/// Sends something when it begins, when its timer has fired, and with its end.
struct Sends(u32);

fn mail(word: &str) -> WorkflowAction {
    WorkflowAction::effect("mail", json!(word), RetryPolicy::none())
}

impl Workflow for Sends {
    const TYPE: &'static str = "sends";
    type Input = ();
    type Output = Value;

    fn new((): ()) -> Self {
        Self(0)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![mail("first"), WorkflowAction::timer("nap", Duration::from_secs(60))]
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![]
    }

    fn on_activity_failed(
        &mut self,
        _: &str,
        error: &machines::ActivityError,
    ) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }

    fn on_timer_fired(&mut self, _: &str) -> Vec<WorkflowAction> {
        self.0 += 1;
        match self.0 {
            1 => vec![mail("second"), WorkflowAction::timer("nap", Duration::from_secs(60))],
            _ => vec![mail("last"), WorkflowAction::complete(json!("sent"))],
        }
    }

    fn is_completed(&self) -> bool {
        false
    }

    fn result(&self) -> Option<Result<Value, WorkflowError>> {
        None
    }
}

#[test]
fn a_crash_at_any_commit_neither_loses_nor_invents_an_effect_of_a_machine() {
    let report = every_crash_of(|engine: &Engine, probe: &Probe| -> BoxFuture<'static, Told> {
        let handler = Mail(Arc::clone(engine.store()), probe.clone());
        engine.serve_effects("mail", Arc::new(handler)).unwrap();
        let sends = machines::register::<Sends>(engine).unwrap();
        let (engine, probe) = (engine.clone(), probe.clone());
        Box::pin(async move {
            let run = sends.start(()).id("sends").await.map_err(|error| error.to_string())?;
            run.result().await.map_err(|error| error.to_string())?;
            delivered(&engine, &probe, run.run_key()).await
        })
    });
    assert_eq!(report.output, json!(["effect/mail", "effect/mail#2", "effect/mail#3"]));
    assert!(report.commits >= 4, "{report:?}");
}
