//! Counters and timings of the engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use windlass_engine::{Measure, Recorder};

use crate::harness::{Counts, Harness, on_every_store, until};
use crate::machines_fixtures::{Order, serve};

on_every_store!(activities_and_dead_letters_are_counted);

#[derive(Clone, Default)]
struct Taken(Arc<Mutex<BTreeMap<String, u32>>>);

impl Recorder for Taken {
    fn record(&self, measure: Measure, of: &str, took: Duration) {
        assert!(took < Duration::from_secs(3_600), "{measure:?} of {of:?} took {took:?}");
        *self.0.lock().entry(format!("{} {of}", measure.name())).or_default() += 1;
    }
}

async fn activities_and_dead_letters_are_counted(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let (metrics, taken) = (engine.admin().metrics(), Taken::default());
    assert!(metrics.set_recorder(taken.clone()));
    assert!(!metrics.set_recorder(Taken::default()), "there is one already");
    // The first activity is told to come back twice; the second fails for good.
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("late-reserve no-charge".into()).id("o-1").await.unwrap();
    run.result().await.unwrap_err();
    until("all is settled", || async {
        metrics.tasks_dead.get() == 1 && metrics.tasks_completed.get() == 1
    })
    .await;
    let counted = [
        ("scheduled", metrics.tasks_scheduled.get(), 2),
        ("begun", metrics.tasks_begun.get(), 4),
        ("completed", metrics.tasks_completed.get(), 1),
        ("failed", metrics.tasks_failed.get(), 3),
        ("retried", metrics.tasks_retried.get(), 2),
        // Both are held from the start; what is tried again is claimed.
        ("claimed", metrics.tasks_claimed.get(), 2),
        ("runs created", metrics.runs_created.get(), 1),
        ("runs failed", metrics.runs_failed.get(), 1),
        ("requeued", metrics.dead_requeued.get(), 0),
    ];
    for (what, count, expect) in counted {
        assert_eq!(count, expect, "{what}");
    }
    until("the run's end is taken down", || async {
        taken.0.lock().contains_key("durable.workflow.duration order")
    })
    .await;
    let taken = taken.0.lock().clone();
    assert_eq!(taken["durable.workflow.duration order"], 1);
    assert_eq!(taken["durable.activity.duration mark"], 4);
    assert_eq!(taken["durable.activity.schedule_to_start_latency mark"], 4);
    assert!(taken["durable.tasks.claim_latency "] >= 1);

    let letter = engine.admin().dead_letters(None, None, 10).await.unwrap().remove(0);
    engine.admin().requeue(letter.task_id, None).await.unwrap();
    assert_eq!(metrics.dead_requeued.get(), 1);
}
