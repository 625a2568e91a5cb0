//! Machines that are read back: told the same again, restored from a snapshot, or blocked because the
//! code has changed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::machines::{ActivityError, ActivityOptions, Workflow, WorkflowAction, WorkflowError};
use windlass::{AnyError, RunStatus, TaskContext};

use crate::harness::{
    Counts, Harness, event_types, ok, on_every_store, until, until_asked, until_status,
    until_waiting,
};
use crate::machines_fixtures::{CALLS, Order, Puppet, quick, serve, serve_activities};

on_every_store!(
    a_run_goes_on_in_the_next_process,
    callbacks_are_replayed_in_order,
    a_snapshot_spares_the_past,
    a_child_is_asked_for_again,
    changed_code_blocks_the_run_until_it_agrees,
    a_retried_run_keeps_what_was_done,
    a_retried_run_with_snapshots_keeps_what_was_done,
    activities_survive_their_process,
);

async fn a_run_goes_on_in_the_next_process(h: Arc<Harness>) {
    let counts = Counts::new();
    let first = h.engine().await;
    let orders = first.machine::<Order>().unwrap();
    let run = orders.start("lamp".into()).id("o").await.unwrap();
    // Nobody serves its activities here.
    until_asked(&run, "reserve").await;
    h.stop(&first).await;
    let second = h.engine().await;
    serve(&second, &counts);
    let run = second.remote_machine::<Order>().unwrap().get("o").await.unwrap();
    assert_eq!(run.result().await.unwrap(), "lamp reserve charge ship");
    assert_eq!((counts.get("reserve"), counts.get("charge"), counts.get("ship")), (1, 1, 1));
}

// Things that happen between two reads of the run: results, failures, timers, signals, cancellations.
async fn busy_past(run: &windlass::RunHandle<Vec<String>>) {
    let hour = Duration::from_secs(3_600);
    let fails = ActivityOptions::retrying(quick(0));
    let actions = [
        WorkflowAction::activity("a", "double", json!(1)),
        WorkflowAction::activity_with("b", "mark", json!(["b", "no-b"]), fails),
        WorkflowAction::timer("t", Duration::from_millis(5)),
        WorkflowAction::timer("never", hour),
        WorkflowAction::activity("open", "nobody", Value::Null),
        WorkflowAction::activity("off", "nobody", Value::Null),
    ];
    run.signal("do", &actions).await.unwrap();
    let over = |types: Vec<String>| {
        let over = ["activity.completed", "activity.failed", "timer.fired"];
        types.iter().filter(|t| over.contains(&t.as_str())).count()
    };
    until("all of it is over", || async { over(event_types(run).await) == 3 }).await;
    let cancel = [
        WorkflowAction::CancelTimer { timer_id: "never".into() },
        WorkflowAction::CancelActivity { activity_id: "off".into() },
        WorkflowAction::activity("a", "double", json!(21)),
    ];
    run.signal("do", &cancel).await.unwrap();
    until("all of it is over", || async { over(event_types(run).await) == 4 }).await;
}

async fn callbacks_are_replayed_in_order(h: Arc<Harness>) {
    replays_the_same(h, false).await;
}

async fn replays_the_same(h: Arc<Harness>, snapshots: bool) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(snapshots).id("p").await.unwrap();
    busy_past(&run).await;
    until_waiting(&engine, &run).await;
    engine.core().evict_all();
    run.signal("again", &()).await.unwrap();
    until_waiting(&engine, &run).await;
    h.stop(&engine).await;

    let engine = h.engine().await;
    serve(&engine, &counts);
    let run = engine.remote_machine::<Puppet>().unwrap().get("p").await.unwrap();
    // The id is in use; the timer's is free again.
    let timer = WorkflowAction::timer("t", Duration::from_millis(1));
    run.signal("do", &[timer]).await.unwrap();
    until("it fires again", || async {
        assert_eq!(run.status().await.unwrap().blocked, None);
        event_types(&run).await.iter().filter(|t| *t == "timer.fired").count() == 2
    })
    .await;
    run.signal("end", &()).await.unwrap();
    let seen = run.result().await.unwrap();
    assert_eq!(seen[..2], ["start", "signal do"]);
    let mut three = seen[2..5].to_vec();
    three.sort();
    assert_eq!(three, ["a=2", "b!Cannot", "timer t"]);
    let rest = ["signal do", "a=42", "signal again", "signal do", "timer t", "signal end"];
    assert_eq!(seen[5..], rest);
    assert_eq!(counts.get("b"), 1, "nothing is done again");
    assert_eq!(run.status().await.unwrap().blocked, None);
    h.stop(&engine).await;
}

async fn a_snapshot_spares_the_past(h: Arc<Harness>) {
    replays_the_same(Arc::clone(&h), true).await;
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    for snapshots in [true, false] {
        let counted = format!("{:?} {snapshots}", h.kind);
        let run = puppets.start(snapshots).id(format!("s-{snapshots}")).await.unwrap();
        for _ in 0..5 {
            run.signal("counted", &json!({ "counted": counted })).await.unwrap();
        }
        until_waiting(&engine, &run).await;
        until("all are told", || async {
            event_types(&run).await.iter().filter(|t| *t == "signal.received").count() == 5
        })
        .await;
        until_waiting(&engine, &run).await;
        let before = CALLS.lock()[&counted];
        engine.core().evict_all();
        run.signal("end", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap().len(), 7);
        let told_again = CALLS.lock()[&counted] - before;
        assert_eq!(told_again, if snapshots { 0 } else { 5 });
    }
}

async fn a_child_is_asked_for_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(false).id("p").await.unwrap();
    run.signal("do", &[WorkflowAction::child("c", "puppet", json!(false))]).await.unwrap();
    until_asked(&run, "child/c").await;
    until_waiting(&engine, &run).await;
    engine.core().evict_all();
    let child = run.steps().await.unwrap().remove(0).input.unwrap();
    let child: Value = child.read().unwrap();
    let query = windlass::kernel::Query::Tree { root: run.run_key(), after: None, limit: 10 };
    let tree = engine.admin().store().list(query).await.unwrap().runs().unwrap();
    assert!(tree.iter().any(|row| row.id.as_str() == child["id"]), "{child}");
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ["start", "signal do", "signal end"]);
    assert_eq!(run.status().await.unwrap().blocked, None);
}

/// A machine whose code changes from one build to the next.
struct Changing<const BUILD: u8> {
    signals: u32,
}

impl<const BUILD: u8> Workflow for Changing<BUILD> {
    const TYPE: &'static str = "changing";
    type Input = ();
    type Output = u8;

    fn new((): ()) -> Self {
        Self { signals: 0 }
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        let activity = |id: &str, n: u64| WorkflowAction::activity(id, "double", json!(n));
        match BUILD {
            0 | 1 => vec![activity("a", 1)],
            2 => vec![activity("a", 2)],
            3 => vec![activity("other", 1)],
            4 => vec![],
            5 => vec![WorkflowAction::timer("a", Duration::from_secs(1)), activity("a", 1)],
            _ => vec![WorkflowAction::complete(json!(BUILD))],
        }
    }

    fn on_activity_completed(&mut self, _: &str, _: Value) -> Vec<WorkflowAction> {
        vec![]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }

    fn on_signal(&mut self, _: &windlass::machines::WorkflowSignal) -> Vec<WorkflowAction> {
        self.signals += 1;
        match self.signals {
            1 => vec![],
            _ => vec![WorkflowAction::complete(json!(BUILD))],
        }
    }

    fn result(&self) -> Option<Result<u8, WorkflowError>> {
        None
    }
}

async fn reopened<const BUILD: u8>(
    h: &Arc<Harness>,
) -> (windlass::Engine, windlass::RunHandle<u8>) {
    let engine = h.engine().await;
    serve_activities(&engine, &Counts::new());
    let run = engine.machine::<Changing<BUILD>>().unwrap().get("c").await.unwrap();
    run.wake().await.unwrap();
    (engine, run)
}

async fn blocked_with<const BUILD: u8>(h: &Arc<Harness>, expect: &str) {
    let (engine, run) = reopened::<BUILD>(h).await;
    until(expect, || async {
        let blocked = run.status().await.unwrap().blocked;
        blocked.is_some_and(|reason| reason.contains(expect))
    })
    .await;
    until_waiting(&engine, &run).await;
    h.stop(&engine).await;
}

async fn changed_code_blocks_the_run_until_it_agrees(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve_activities(&engine, &Counts::new());
    let run = engine.machine::<Changing<1>>().unwrap().start(()).id("c").await.unwrap();
    run.signal("one", &()).await.unwrap();
    until("both are told", || async {
        let types = event_types(&run).await;
        let told = |t: &&String| ["signal.received", "activity.completed"].contains(&t.as_str());
        types.iter().filter(told).count() == 2
    })
    .await;
    until_waiting(&engine, &run).await;
    h.stop(&engine).await;

    blocked_with::<2>(&h, "with another type (\"double\") or another input").await;
    blocked_with::<3>(&h, "asks for activity \"other\", which the record does not have").await;
    blocked_with::<4>(&h, "over next, and the code has not asked for it").await;
    blocked_with::<5>(&h, "asks for timer \"timer/a\", which the record does not have").await;
    blocked_with::<6>(&h, "the code completes the run, where the record goes on").await;

    let (engine, run) = reopened::<0>(&h).await;
    run.signal("two", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 0, "a build that agrees carries it on");
    drop(engine);
}

async fn a_retried_run_keeps_what_was_done(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    engine.machine::<Order>().unwrap();
    let moody = {
        let counts = Arc::clone(&counts);
        move |_: TaskContext, (id, text): (String, String)| {
            let counts = Arc::clone(&counts);
            async move {
                let times = counts.hit(&id);
                match id == "charge" && times <= 3 {
                    true => Err(AnyError::msg("no money")),
                    false => ok(format!("{text} {id}")),
                }
            }
        }
    };
    engine.activity("mark", moody.clone()).unwrap();
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("lamp".into()).id("o").await.unwrap();
    until_status(&run, RunStatus::Errored).await;
    let again = run.retry().await.unwrap();
    assert_eq!(again.result().await.unwrap(), "lamp reserve charge ship");
    assert_eq!((counts.get("reserve"), counts.get("charge"), counts.get("ship")), (1, 4, 1));
    assert_eq!(again.run().await.unwrap().generation, 1);

    // A machine that is loaded in its second generation also receives the results of the first one.
    h.stop(&engine).await;
    let engine = h.engine().await;
    let orders = engine.machine::<Order>().unwrap();
    engine.activity("mark", moody).unwrap();
    let other = orders.start("no-ship".into()).id("other").await.unwrap();
    assert_eq!(other.result().await.unwrap(), "no-ship reserve charge ship");
}

async fn a_retried_run_with_snapshots_keeps_what_was_done(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(true).id("p").await.unwrap();
    let start = [WorkflowAction::activity("a", "double", json!(4))];
    run.signal("do", &start).await.unwrap();
    until("it is over", || async {
        event_types(&run).await.contains(&"activity.completed".to_owned())
    })
    .await;
    run.signal("do", &[WorkflowAction::fail(WorkflowError::new("no"))]).await.unwrap();
    until_status(&run, RunStatus::Errored).await;
    let again = run.retry().await.unwrap();
    let find = || async { puppets.get("p").await.unwrap() };
    let run = find().await;
    assert_eq!(again.run_key(), run.run_key());
    // It begins anew, and is told what was done as soon as it asks for it.
    run.signal("do", &start).await.unwrap();
    until_waiting(&engine, &again).await;
    until("it was told", || async {
        event_types(&run).await.contains(&"signal.received".to_owned())
    })
    .await;
    until_waiting(&engine, &again).await;
    engine.core().evict_all();
    run.signal("do", &[WorkflowAction::activity("a", "double", json!(5))]).await.unwrap();
    until("it is done", || async {
        event_types(&run).await.contains(&"activity.started".to_owned())
    })
    .await;
    run.signal("end", &()).await.unwrap();
    let expect = ["start", "signal do", "a=8", "signal do", "a=10", "signal end"];
    assert_eq!(run.result().await.unwrap(), expect);
}

async fn activities_survive_their_process(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let hang =
        async |_: TaskContext, (): ()| -> windlass::Result<u32> { std::future::pending().await };
    engine.activity("hang", hang).unwrap();
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(false).id("p").await.unwrap();
    run.signal("do", &[WorkflowAction::activity("a", "hang", Value::Null)]).await.unwrap();
    until("it runs", || async { engine.admin().metrics().tasks_begun.get() > 0 }).await;
    h.stop_within(&engine, Duration::from_millis(10)).await;
    let engine = h.engine().await;
    serve(&engine, &counts);
    engine.activity("hang", async |_: TaskContext, (): ()| ok(7)).unwrap();
    let run = engine.remote_machine::<Puppet>().unwrap().get("p").await.unwrap();
    until("it is over", || async {
        event_types(&run).await.contains(&"activity.completed".to_owned())
    })
    .await;
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ["start", "signal do", "a=7", "signal end"]);
}
