//! Machines that continue as new, attempts that fail before one that works, letters of live runs, and
//! activities that another process cancels.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::admin::Options;
use windlass::machines::{ActivityError, Workflow, WorkflowAction, WorkflowSignal};
use windlass::{ErrorCode, RunStatus, TaskContext};

use crate::harness::{Counts, Harness, ok, on_every_store, until, until_status};
use crate::machines_activity_retry::{asks_for, dead, options};
use crate::machines_fixtures::{Order, Puppet, serve};

on_every_store!(
    a_machine_continues_as_new,
    unread_signals_go_along,
    a_cancelled_run_does_not_continue,
    failed_attempts_stay_in_the_ledger,
    letters_of_live_and_complete_runs_are_not_requeued,
    a_cancel_reaches_a_worker_without_heartbeats,
);

/// Doubles numbers, two in each generation; the result is the number of all of them.
struct Rounds {
    done: u64,
    all: u64,
}

impl Rounds {
    fn next(&self) -> Vec<WorkflowAction> {
        vec![WorkflowAction::activity("n", "double", json!(self.done))]
    }
}

impl Workflow for Rounds {
    const TYPE: &'static str = "rounds";
    type Input = (u64, u64);
    type Output = u64;

    fn new((done, all): (u64, u64)) -> Self {
        Self { done, all }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        self.next()
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        assert_eq!(result, json!(self.done * 2), "a result of another generation");
        self.done += 1;
        match self.done {
            done if done == self.all => vec![WorkflowAction::complete(json!(done))],
            done if done % 2 == 0 => {
                vec![WorkflowAction::continue_as_new(json!((done, self.all)))]
            }
            _ => self.next(),
        }
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }

    fn on_signal(&mut self, _: &WorkflowSignal) -> Vec<WorkflowAction> {
        vec![]
    }
}

async fn a_machine_continues_as_new(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let rounds = engine.machine::<Rounds>().unwrap();
    let run = rounds.start((0, 7)).id("r").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 7);
    let newest = rounds.get("r").await.unwrap().status().await.unwrap();
    assert_eq!((newest.generation, newest.status), (3, RunStatus::Complete));
}

async fn unread_signals_go_along(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let run = engine.remote_machine::<Puppet>().unwrap().start(false).id("p").await.unwrap();
    until("it waits", || async { run.status().await.unwrap().status == RunStatus::Waiting }).await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    let begins = WorkflowAction::activity("a", "unserved", Value::Null);
    run.signal("do", &[begins]).await.unwrap();
    run.signal("do", &[WorkflowAction::continue_as_new(json!(true))]).await.unwrap();
    run.signal("note", &()).await.unwrap();
    run.resume().await.unwrap();
    let next = || async { engine.remote_machine::<Puppet>().unwrap().get("p").await.unwrap() };
    until("it continues", || async { next().await.status().await.unwrap().generation == 1 }).await;
    next().await.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ["start", "signal note", "signal end"]);
}

async fn a_cancelled_run_does_not_continue(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let run = engine.remote_machine::<Puppet>().unwrap().start(false).id("p").await.unwrap();
    run.signal("cancel", &json!({ "reason": "no longer needed" })).await.unwrap();
    run.signal("do", &[WorkflowAction::continue_as_new(json!(false))]).await.unwrap();
    let status = until_status(&run, RunStatus::Terminated).await;
    assert_eq!(status.generation, 0);
    let error = run.result().await.unwrap_err();
    assert!(error.to_string().contains("no longer needed"), "{error}");
}

async fn failed_attempts_stay_in_the_ledger(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("late-charge".into()).await.unwrap();
    run.result().await.unwrap();
    let events = run.events().await.unwrap();
    let of_charge = events.iter().filter_map(|event| {
        let payload = event.payload_json().unwrap();
        (payload["key"] == "charge")
            .then(|| format!("{} {}", event.event_type.as_str(), payload["attempt"]))
    });
    let found: Vec<String> = of_charge.collect();
    let expect = [
        "activity.scheduled null",
        "activity.retried 1",
        "activity.retried 2",
        "activity.started 3",
        "activity.completed 3",
    ];
    assert_eq!(found, expect);
    let logs = run.logs().await.unwrap();
    let told =
        logs.iter().filter(|line| &*line.message == "attempt 1 failed: ActivityError: not yet");
    assert_eq!(told.count(), 1, "{logs:?}");
}

async fn letters_of_live_and_complete_runs_are_not_requeued(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let run = asks_for(&engine, "p", "mark", json!(["a", "no-a"]), options(0)).await;
    until("its activity is given up", || async { dead(&engine).await.len() == 1 }).await;
    let letter = dead(&engine).await.remove(0).task_id;
    for (status, instead) in [
        (RunStatus::Waiting, "let the workflow schedule the work again"),
        (RunStatus::Complete, "restart the run to do all of it again"),
    ] {
        if status == RunStatus::Complete {
            run.signal("end", &()).await.unwrap();
        }
        until_status(&run, status).await;
        let error = engine.admin().requeue(letter, None).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::RunNotErrored);
        assert!(error.message().contains(instead), "{error}");
    }
}

async fn a_cancel_reaches_a_worker_without_heartbeats(h: Arc<Harness>) {
    // No scan comes to its help within this test.
    let scan_every = Duration::from_secs(600);
    let (first, second) = h.two_engines(|options| Options { scan_every, ..options }).await;
    let counts = Counts::new();
    first.machine::<Puppet>().unwrap();
    let deaf = {
        let counts = Arc::clone(&counts);
        move |context: TaskContext, (): ()| {
            let counts = Arc::clone(&counts);
            async move {
                counts.hit("begun");
                while !context.is_cancelled() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                counts.hit("heard");
                ok(1)
            }
        }
    };
    second.activity("deaf", deaf).unwrap();
    let run = asks_for(&first, "p", "deaf", Value::Null, options(0)).await;
    until("it runs", || async { counts.get("begun") == 1 }).await;
    let cancel = WorkflowAction::CancelActivity { activity_id: "a".into() };
    run.signal("do", &[cancel]).await.unwrap();
    until("it hears of it", || async { counts.get("heard") == 1 }).await;
    run.signal("end", &()).await.unwrap();
    run.result().await.unwrap();
}
