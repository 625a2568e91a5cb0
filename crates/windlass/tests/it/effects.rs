//! Effects: they exist with their commit, are delivered at least once under one id, and die with
//! their errors.

use std::sync::Arc;

use serde_json::value::RawValue;
use windlass::kernel::{Body, BoxFuture, Commit, Op, Query, RetryLimit, RetryPolicy, TasksQuery};
use windlass::{Ctx, TaskContext, TaskFailure, TaskHandler, TaskResult};

use crate::harness::{Counts, Harness, ok, on_every_store, until};

on_every_store!(effects_are_delivered_and_die_with_their_errors);

struct Mail(Arc<Counts>);

impl TaskHandler for Mail {
    fn run(&self, context: TaskContext, input: Body) -> BoxFuture<'static, TaskResult> {
        let text = String::from_utf8_lossy(&input.bytes).into_owned();
        let times = self.0.hit(&format!("{text} {}", context.idempotency_key()));
        self.0.hit(&text);
        Box::pin(std::future::ready(match (text.as_str(), times) {
            ("\"flaky\"", 2..) | ("\"fine\"", _) => Ok(Body::json("null")),
            _ => Err(TaskFailure {
                name: "Refused".into(),
                message: "the other side refuses".into(),
                retryable: true,
                retry_after: None,
            }),
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
        let task = engine.effect("mail", Some(run.run_key()), input, policy.clone()).unwrap();
        ops.push(Op::Enqueue(Box::new(task)));
    }
    let answers = engine.store().commit(vec![Commit::new(None, None, ops)]).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    let namespace = engine.options().namespace.clone();
    until("all effects are settled", || async {
        let query = TasksQuery::all(namespace.clone(), 10);
        engine.store().list(Query::Tasks(query)).await.unwrap().tasks().unwrap().is_empty()
    })
    .await;
    let times = |text: &str| counts.get(&format!("\"{text}\""));
    assert_eq!((times("fine"), times("flaky"), times("never")), (1, 2, 3));
    let query = Query::DeadLetters { namespace, queue: None, after: None, limit: 10 };
    let dead = engine.store().list(query).await.unwrap().dead_letters().unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].attempt, &*dead[0].reason), (3, "the other side refuses"));
    let errors: Vec<serde_json::Value> = dead[0].errors.as_ref().unwrap().read().unwrap();
    assert_eq!(errors.len(), 3);
}
