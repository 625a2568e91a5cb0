//! Receipts of effects: written by the commit that settles the effect, updated by a requeue, deleted later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use windlass::admin::Options;
use windlass::kernel::{
    Body, BoxFuture, Collection, Namespace, Query, RecordFound, RecordId, RecordKey, RetryLimit,
    RetryPolicy, TasksQuery,
};
use windlass::machines::{ActivityError, Workflow, WorkflowAction};
use windlass::model::{TaskHandler, TaskResult};
use windlass::{
    Ctx, Engine, Receipt, ReceiptOutcome, Result, RunHandle, StepTx, TaskContext, TaskFailure,
};

use crate::harness::{Harness, on_every_store, until};

on_every_store!(
    an_effect_leaves_a_receipt_if_it_asks_for_one,
    an_effect_of_a_machine_leaves_a_receipt_if_it_asks_for_one,
    a_dead_effect_leaves_a_receipt_that_a_requeue_updates,
    receipts_are_deleted_some_time_after_the_end_of_the_run,
    rows_of_removed_records_are_deleted_some_time_later,
);

/// Delivers mail while it is on.
struct Mail(Arc<AtomicBool>);

impl TaskHandler for Mail {
    fn run(&self, _: TaskContext, _: Body) -> BoxFuture<'static, TaskResult> {
        let on = self.0.load(Ordering::Relaxed);
        let refused = || TaskFailure::new("Refused", "the other side refuses", true);
        Box::pin(std::future::ready(if on { Ok(Body::json("null")) } else { Err(refused()) }))
    }
}

// Runs a workflow that enqueues one effect with a receipt and one without.
async fn enqueue(engine: &Engine, on: bool) -> (RunHandle<()>, Arc<AtomicBool>) {
    let on = Arc::new(AtomicBool::new(on));
    engine.serve_effects("mail", Arc::new(Mail(Arc::clone(&on)))).unwrap();
    let send = async |ctx: Ctx, (): ()| -> Result<()> {
        let send = async |tx: StepTx| {
            let delay = Duration::from_millis(5);
            let retry = || RetryPolicy::constant(RetryLimit::Times(1), delay);
            tx.enqueue_with_receipt("mail", "paid", retry())?;
            tx.enqueue("mail", "thanks", retry())?;
            Ok(())
        };
        Ok(ctx.step_tx("send", send).await?)
    };
    let run = engine.workflow("send", send).unwrap().start(()).await.unwrap();
    run.result().await.unwrap();
    (run, on)
}

// The receipt of the run's effect, once it has an outcome.
async fn receipt(engine: &Engine, run: &RunHandle<()>, outcome: ReceiptOutcome) -> Receipt {
    let read = async || engine.receipts(run.run_key(), None, 10).await.unwrap();
    until("the receipt has its outcome", async || {
        read().await.first().is_some_and(|receipt| receipt.outcome == outcome)
    })
    .await;
    let mut receipts = read().await;
    assert_eq!(receipts.len(), 1, "only one of the effects asks for a receipt");
    receipts.remove(0)
}

async fn an_effect_leaves_a_receipt_if_it_asks_for_one(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (run, _) = enqueue(&engine, true).await;
    let receipt = receipt(&engine, &run, ReceiptOutcome::Delivered).await;
    assert_eq!((&*receipt.name, receipt.run_key), ("mail", Some(run.run_key())));
    assert_eq!((receipt.attempts, receipt.requeues, &receipt.error), (1, 0, &None));
    assert!(receipt.enqueued_at <= receipt.settled_at);
    assert_eq!(engine.receipt(receipt.task_id).await.unwrap(), Some(receipt.clone()));
    let other = engine.in_namespace("other").unwrap();
    assert_eq!(other.receipt(receipt.task_id).await.unwrap(), None);
}

/// Sends two mails and ends.
struct Sends;

impl Workflow for Sends {
    const TYPE: &'static str = "sends";
    type Input = ();
    type Output = Value;

    fn new((): ()) -> Self {
        Self
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let none = RetryPolicy::none;
        vec![
            WorkflowAction::effect_with_receipt("mail", json!("paid"), none()),
            WorkflowAction::effect("mail", json!("thanks"), none()),
            WorkflowAction::complete(json!("sent")),
        ]
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        Vec::new()
    }

    fn on_activity_failed(&mut self, _: &str, _: &ActivityError) -> Vec<WorkflowAction> {
        Vec::new()
    }
}

async fn an_effect_of_a_machine_leaves_a_receipt_if_it_asks_for_one(h: Arc<Harness>) {
    let engine = h.engine().await;
    let on = Arc::new(AtomicBool::new(true));
    engine.serve_effects("mail", Arc::new(Mail(on))).unwrap();
    let run = engine.machine::<Sends>().unwrap().start(()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!("sent"));
    until("both effects are settled", async || {
        let query = TasksQuery::all(engine.namespace().clone(), 10);
        let tasks = engine.admin().store().list(Query::Tasks(query)).await.unwrap();
        tasks.tasks().unwrap().iter().all(|task| task.name.as_str() != "mail")
    })
    .await;
    let receipts = engine.receipts(run.run_key(), None, 10).await.unwrap();
    assert_eq!(receipts.len(), 1, "only one of the effects asks for a receipt: {receipts:?}");
    assert_eq!(receipts[0].outcome, ReceiptOutcome::Delivered);
}

async fn a_dead_effect_leaves_a_receipt_that_a_requeue_updates(h: Arc<Harness>) {
    let engine = h.engine().await;
    let (run, on) = enqueue(&engine, false).await;
    let dead = receipt(&engine, &run, ReceiptOutcome::Dead).await;
    assert_eq!((dead.attempts, dead.requeues), (2, 0));
    let error = dead.error.expect("the last error");
    assert_eq!((&*error.name, &*error.message), ("Refused", "the other side refuses"));
    on.store(true, Ordering::Relaxed);
    engine.admin().requeue(dead.task_id, None).await.unwrap();
    let delivered = receipt(&engine, &run, ReceiptOutcome::Delivered).await;
    assert_eq!((delivered.attempts, delivered.requeues, delivered.error), (3, 1, None));
    assert_eq!(delivered.enqueued_at, dead.enqueued_at);
    assert!(delivered.settled_at > dead.settled_at);
}

async fn receipts_are_deleted_some_time_after_the_end_of_the_run(h: Arc<Harness>) {
    let retention = Duration::from_secs(1);
    let set = |options| Options { receipt_retention: retention, ..options };
    let engine = h.engine_with(set).await;
    let (run, _) = enqueue(&engine, true).await;
    receipt(&engine, &run, ReceiptOutcome::Delivered).await;
    until("the receipt is deleted", async || {
        engine.receipts(run.run_key(), None, 10).await.unwrap().is_empty()
    })
    .await;
}

// The engine removes its own records without a caller, so it also deletes their rows without a policy.
async fn rows_of_removed_records_are_deleted_some_time_later(h: Arc<Harness>) {
    let second = Duration::from_secs(1);
    let engine = h
        .engine_with(|options| Options {
            receipt_retention: second,
            removed_record_retention: second,
            sweep_every: second,
            ..options
        })
        .await;
    let carts = engine.records::<u32>("carts");
    carts.put("c-7", &1).expect_absent().send().await.unwrap();
    assert_eq!(carts.remove("c-7", 1).await.unwrap(), 2);
    let (run, _) = enqueue(&engine, true).await;
    let receipt = receipt(&engine, &run, ReceiptOutcome::Delivered).await;
    let row = async |collection: &str, id: &str| {
        let key = RecordKey {
            namespace: Namespace::default_namespace(),
            collection: Collection::new(collection).unwrap(),
            id: RecordId::new(id).unwrap(),
        };
        engine.admin().store().records(vec![key]).await.unwrap().remove(0)
    };
    let task_id = receipt.task_id.to_string();
    assert!(row("windlass.receipts", &task_id).await.is_some());
    until("the row of the receipt is deleted", async || {
        row("windlass.receipts", &task_id).await.is_none()
    })
    .await;
    // Revisions of applications never repeat by default.
    let cart = row("carts", "c-7").await.map(|record| record.found());
    assert_eq!(cart, Some(RecordFound::Removed(2)));
    let options = Options {
        shared: true,
        removed_record_retention_of_applications: Some(second),
        sweep_every: second,
        ..Options::default()
    };
    let store = Arc::clone(engine.admin().store());
    // Stopping it would close the store, which the first engine still uses.
    let _beside = windlass::Builder::from(options).start(store).await.unwrap();
    until("the row of the cart is deleted", async || row("carts", "c-7").await.is_none()).await;
    assert_eq!(carts.put("c-7", &2).expect_absent().send().await.unwrap(), 1);
}
