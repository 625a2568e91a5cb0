//! Features of machines: activities, timers, children, signals, and how its runs end.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::kernel::{Query, TasksQuery, WorkflowName};
use windlass::machines::WorkflowAction;
use windlass::{Ctx, Engine, RunStatus, TaskContext};

use crate::harness::{
    Counts, Harness, event_types, fence, ok, on_every_store, until, until_asked, until_blocked,
    until_status, until_waiting,
};
use crate::machines_fixtures::{Fan, Order, Puppet, serve};

on_every_store!(
    activities_one_after_the_other,
    many_at_once,
    a_failure_ends_the_run,
    timers_fire_and_are_cancelled,
    an_activity_is_called_off,
    signals_come_in_order,
    a_child_of_another_model,
    ids_can_be_used_again,
    a_cancelled_run_gets_one_signal_and_is_then_terminated,
    a_shut_down_run_finishes_what_it_began,
    misuse_blocks_the_run,
    a_paused_run_gets_no_callbacks,
    an_activity_cancelled_in_its_turn_never_starts,
    nothing_outlives_a_run_that_ends_in_the_same_turn,
    a_cancelled_run_that_cannot_hear_is_terminated,
);

async fn puppet(engine: &Engine, id: &str) -> windlass::RunHandle<Vec<String>> {
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    puppets.start(false).id(id).await.unwrap()
}

async fn told(run: &windlass::RunHandle<Vec<String>>, actions: &[WorkflowAction]) {
    run.signal("do", &actions).await.unwrap();
}

async fn ended(run: &windlass::RunHandle<Vec<String>>) -> Vec<String> {
    run.signal("end", &()).await.unwrap();
    run.result().await.unwrap()
}

async fn activities_one_after_the_other(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("lamp late-charge".into()).id("o1").await.unwrap();
    assert_eq!(run.result().await.unwrap(), "lamp late-charge reserve charge ship");
    assert_eq!((counts.get("reserve"), counts.get("charge"), counts.get("ship")), (1, 3, 1));
    let types = event_types(&run).await;
    assert_eq!(
        types,
        [
            "workflow.enqueued",
            "activity.scheduled",
            "activity.started",
            "activity.completed",
            "activity.scheduled",
            "activity.retried",
            "activity.retried",
            "activity.started",
            "activity.completed",
            "activity.scheduled",
            "activity.started",
            "activity.completed",
            "workflow.completed",
        ]
    );
    let steps = run.steps().await.unwrap();
    let shown: Vec<_> = steps.iter().map(|step| (step.step_key.as_str(), step.attempt)).collect();
    assert_eq!(shown, [("reserve", 1), ("charge", 3), ("ship", 1)]);
    assert_eq!(
        engine.core().model_of(&WorkflowName::new("order").unwrap()).unwrap().as_str(),
        "machines"
    );
    let again = orders.start("lamp late-charge".into()).id("o1").await.unwrap();
    assert!(again.existed());
    let found = orders.get("o1").await.unwrap();
    assert_eq!(found.status().await.unwrap().status, RunStatus::Complete);
}

async fn many_at_once(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let fans = engine.remote_machine::<Fan>().unwrap();
    let run = fans.start(300).id("f").await.unwrap();
    assert_eq!(run.result().await.unwrap(), 300 * 299);
    let one = fans.start(1).id("g").await.unwrap();
    assert_eq!(one.result().await.unwrap(), 0);
}

async fn a_failure_ends_the_run(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("no-charge".into()).id("o").await.unwrap();
    let error = run.result().await.unwrap_err();
    assert!(error.to_string().contains("Cannot: charge cannot"), "{error}");
    assert_eq!((counts.get("charge"), counts.get("ship")), (1, 0));
    let types = event_types(&run).await;
    assert_eq!(types[types.len() - 2..], ["activity.failed", "workflow.failed"]);
    let status = run.status().await.unwrap();
    assert_eq!(status.status, RunStatus::Errored);
    assert_eq!(status.error.unwrap().0, "Cannot");
}

async fn timers_fire_and_are_cancelled(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let run = puppet(&engine, "p").await;
    let long = Duration::from_secs(3_600);
    let actions = [
        WorkflowAction::timer("short", Duration::from_millis(20)),
        WorkflowAction::timer("never", long),
        WorkflowAction::timer("long", long),
    ];
    told(&run, &actions).await;
    until("it fires", || async { event_types(&run).await.contains(&"timer.fired".to_owned()) })
        .await;
    let cancel = |id: &str| WorkflowAction::CancelTimer { timer_id: id.into() };
    told(&run, &[cancel("never"), cancel("short"), cancel("unknown")]).await;
    until("it is cancelled", || async {
        event_types(&run).await.contains(&"timer.cancelled".to_owned())
    })
    .await;
    assert_eq!(ended(&run).await, ["start", "signal do", "timer short", "signal do", "signal end"]);
    let timers = event_types(&run).await.into_iter().filter(|t| t.starts_with("timer."));
    // The last one is cancelled by the end of the run.
    let expect = [
        "timer.started",
        "timer.started",
        "timer.started",
        "timer.fired",
        "timer.cancelled",
        "timer.cancelled",
    ];
    assert_eq!(timers.collect::<Vec<_>>(), expect);
}

// An activity that runs until it is cancelled.
fn serve_endless(engine: &Engine, counts: &Arc<Counts>) {
    let counts = Arc::clone(counts);
    let endless = move |context: TaskContext, (): ()| {
        let counts = Arc::clone(&counts);
        async move {
            counts.hit("begun");
            context.cancelled().await;
            counts.hit("cancelled");
            ok(())
        }
    };
    engine.activity("endless", endless).unwrap();
}

async fn an_activity_is_called_off(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    serve_endless(&engine, &counts);
    let run = puppet(&engine, "p").await;
    told(&run, &[WorkflowAction::activity("a", "endless", Value::Null)]).await;
    until("it runs", || async { counts.get("begun") == 1 }).await;
    told(&run, &[WorkflowAction::CancelActivity { activity_id: "a".into() }]).await;
    until("it hears of it", || async { counts.get("cancelled") == 1 }).await;
    assert_eq!(ended(&run).await, ["start", "signal do", "signal do", "signal end"]);
    assert!(event_types(&run).await.contains(&"activity.cancelled".to_owned()));
    let tasks = Query::Tasks(TasksQuery::of_run(&run.run().await.unwrap(), 10));
    assert!(engine.admin().store().list(tasks).await.unwrap().tasks().unwrap().is_empty());
}

async fn signals_come_in_order(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let run = puppet(&engine, "p").await;
    let mut expect = vec!["start".to_owned()];
    for n in 0..20 {
        run.signal(format!("s{n}"), &n).await.unwrap();
        expect.push(format!("signal s{n}"));
    }
    run.signal_once("once", &1, "m1").await.unwrap();
    run.signal_once("once", &1, "m1").await.unwrap();
    // The event of other clients is a signal to a machine.
    run.send_event("event", &1).await.unwrap();
    expect.extend(["signal once", "signal event", "signal end"].map(str::to_owned));
    assert_eq!(ended(&run).await, expect);
    let received = event_types(&run).await.into_iter().filter(|t| t == "signal.received");
    assert_eq!(received.count(), 23);
    let error = run.signal("late", &1).await.unwrap_err();
    assert_eq!(error.code(), "RUN_TERMINAL");
}

async fn a_child_of_another_model(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let upper = async |ctx: Ctx, text: String| {
        if text.is_empty() {
            return Err::<String, _>(windlass::AnyError::msg("nothing"));
        }
        let big = text.repeat(40_000);
        Ok(ctx.step("up", async || ok(big.to_uppercase())).await?)
    };
    engine.workflow("upper", upper).unwrap();
    let run = puppet(&engine, "p").await;
    told(
        &run,
        &[
            WorkflowAction::child("ok", "upper", json!("ab")),
            WorkflowAction::child("empty", "upper", json!("")),
            WorkflowAction::child("machine", "fan", json!(2)),
        ],
    )
    .await;
    until("all are over", || async {
        let types = event_types(&run).await;
        types.iter().filter(|t| *t == "child.completed" || *t == "child.failed").count() == 3
    })
    .await;
    let mut seen = ended(&run).await;
    seen.sort();
    assert_eq!(seen[0], "child empty!Error");
    assert_eq!(seen[1], "child machine=2");
    assert_eq!(seen[2], format!("child ok=\"{}\"", "AB".repeat(40_000)), "large results too");
}

async fn ids_can_be_used_again(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let run = puppet(&engine, "p").await;
    for n in 0..3_u64 {
        told(&run, &[WorkflowAction::activity("a", "double", json!(n))]).await;
        until("it is over", || async {
            let types = event_types(&run).await;
            types.iter().filter(|t| *t == "activity.completed").count() as u64 == n + 1
        })
        .await;
    }
    let seen = ended(&run).await;
    let seen: Vec<_> = seen.iter().filter(|told| told.starts_with("a=")).collect();
    assert_eq!(seen, ["a=0", "a=2", "a=4"]);
    let steps = run.steps().await.unwrap();
    let keys: Vec<_> = steps.iter().map(|step| step.step_key.as_str()).collect();
    assert_eq!(keys, ["a", "a#2", "a#3"]);
}

async fn a_cancelled_run_gets_one_signal_and_is_then_terminated(h: Arc<Harness>) {
    let short =
        |options| windlass::admin::Options { cancel_grace: Duration::from_millis(300), ..options };
    let (engine, counts) = (h.engine_with(short).await, Counts::new());
    serve(&engine, &counts);
    serve_endless(&engine, &counts);
    let quick = puppet(&engine, "quick").await;
    quick.signal("cancel", &json!({})).await.unwrap();
    assert_eq!(ended(&quick).await, ["start", "signal cancel", "signal end"]);

    let slow = puppet(&engine, "slow").await;
    told(&slow, &[WorkflowAction::activity("a", "endless", Value::Null)]).await;
    until("it runs", || async { counts.get("begun") == 1 }).await;
    slow.cancel("enough").await.unwrap();
    slow.cancel("really").await.unwrap();
    let status = until_status(&slow, RunStatus::Terminated).await;
    assert_eq!(status.error.unwrap(), ("Cancelled".into(), "enough".into()));
    let types = event_types(&slow).await;
    let signals = types.iter().filter(|t| *t == "signal.received").count();
    assert_eq!(signals, 2, "the second request is no signal: {types:?}");
    until("the activity hears of it", || async { counts.get("cancelled") == 1 }).await;
}

async fn a_shut_down_run_finishes_what_it_began(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let run = puppet(&engine, "p").await;
    told(&run, &[WorkflowAction::activity("a", "later", json!(1))]).await;
    until_asked(&run, "a").await;
    run.shutdown().await.unwrap();
    told(
        &run,
        &[
            WorkflowAction::activity("b", "later", json!(1)),
            WorkflowAction::timer("t", Duration::from_secs(1)),
        ],
    )
    .await;
    until("it was told", || async {
        event_types(&run).await.iter().filter(|t| *t == "signal.received").count() == 3
    })
    .await;
    assert_eq!(run.status().await.unwrap().status, RunStatus::Waiting);
    engine.activity("later", async |_: TaskContext, n: u32| ok(n)).unwrap();
    let status = until_status(&run, RunStatus::Terminated).await;
    assert_eq!(status.error.unwrap().1, "it was shut down");
    let types = event_types(&run).await;
    assert!(types.contains(&"activity.completed".to_owned()), "{types:?}");
    assert_eq!(types.iter().filter(|t| *t == "activity.scheduled").count(), 1);
    let logs = run.logs().await.unwrap();
    assert!(logs[0].message.contains("activity \"b\" is not begun"), "{:?}", logs[0].message);
    assert_eq!(logs.len(), 2);
}

async fn misuse_blocks_the_run(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let hour = Duration::from_secs(3_600);
    let cases: [(&str, Vec<WorkflowAction>, &str); 5] = [
        (
            "twice",
            vec![WorkflowAction::timer("t", hour), WorkflowAction::timer("t", hour)],
            "there is a timer \"t\" already",
        ),
        ("name", vec![WorkflowAction::activity("a#2", "double", json!(1))], "cannot be the id"),
        (
            "after",
            vec![WorkflowAction::complete(json!([])), WorkflowAction::None],
            "an action follows the one that ends the run",
        ),
        (
            "both",
            vec![WorkflowAction::timer("t", hour), WorkflowAction::complete(json!([]))],
            "also begins something",
        ),
        (
            "large",
            vec![WorkflowAction::activity("a", "double", json!("x".repeat(600_000)))],
            "at most 524288 are allowed",
        ),
    ];
    for (id, actions, expect) in cases {
        let run = puppet(&engine, id).await;
        run.signal("first", &()).await.unwrap();
        told(&run, &actions).await;
        let reason = until_blocked(&run).await;
        assert!(reason.contains(expect), "{id}: {reason}");
    }
    let run = puppet(&engine, "panic").await;
    run.signal("panic", &()).await.unwrap();
    let reason = until_blocked(&run).await;
    assert!(reason.contains("panicked in on_signal"), "{reason}");
    assert!(reason.contains("the strings are torn"), "{reason}");
}

async fn a_paused_run_gets_no_callbacks(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let run = puppet(&engine, "p").await;
    until_waiting(&engine, &run).await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    run.signal("quiet", &()).await.unwrap();
    fence(&engine).await;
    assert!(!event_types(&run).await.contains(&"signal.received".to_owned()));
    run.resume().await.unwrap();
    assert_eq!(ended(&run).await, ["start", "signal quiet", "signal end"]);
}

async fn tasks_left(engine: &Engine, run: &windlass::RunHandle<Vec<String>>) -> usize {
    let tasks = Query::Tasks(TasksQuery::of_run(&run.run().await.unwrap(), 10));
    engine.admin().store().list(tasks).await.unwrap().tasks().unwrap().len()
}

// An activity that counts how often it is begun.
fn serve_counted(engine: &Engine, counts: &Arc<Counts>) {
    let counts = Arc::clone(counts);
    let counted = move |_: TaskContext, id: String| {
        counts.hit(&id);
        async { ok(()) }
    };
    engine.activity("counted", counted).unwrap();
}

async fn an_activity_cancelled_in_its_turn_never_starts(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    serve_counted(&engine, &counts);
    let run = puppet(&engine, "p").await;
    let actions = [
        WorkflowAction::activity("a", "counted", json!("off")),
        WorkflowAction::CancelActivity { activity_id: "a".into() },
        WorkflowAction::activity("b", "counted", json!("on")),
    ];
    told(&run, &actions).await;
    until("the other one is over", || async {
        event_types(&run).await.contains(&"activity.completed".to_owned())
    })
    .await;
    assert_eq!(ended(&run).await, ["start", "signal do", "b=null", "signal end"]);
    assert_eq!(counts.get("off"), 0);
    assert_eq!(tasks_left(&engine, &run).await, 0);
    let types = event_types(&run).await;
    assert!(types.contains(&"activity.cancelled".to_owned()), "{types:?}");
}

async fn nothing_outlives_a_run_that_ends_in_the_same_turn(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    let run = puppet(&engine, "p").await;
    // Both are told in the first turn, for nobody serves the machine before.
    told(&run, &[WorkflowAction::activity("a", "counted", json!("late"))]).await;
    run.signal("end", &()).await.unwrap();
    serve_counted(&engine, &counts);
    serve(&engine, &counts);
    assert_eq!(run.result().await.unwrap(), ["start", "signal do", "signal end"]);
    // A later task of the queue has begun, so this one would have begun too.
    let next = puppet(&engine, "next").await;
    told(&next, &[WorkflowAction::activity("a", "counted", json!("next"))]).await;
    until("the next one is begun", || async { counts.get("next") == 1 }).await;
    assert_eq!(counts.get("late"), 0);
    until("only the engine's own tasks were left", || async {
        tasks_left(&engine, &run).await == 0
    })
    .await;
}

async fn a_cancelled_run_that_cannot_hear_is_terminated(h: Arc<Harness>) {
    let short =
        |options| windlass::admin::Options { cancel_grace: Duration::from_millis(300), ..options };
    let engine = h.engine_with(short).await;
    let unserved = puppet(&engine, "unserved").await;
    unserved.cancel("nobody is there").await.unwrap();
    until_status(&unserved, RunStatus::Terminated).await;
    serve(&engine, &Counts::new());
    let (paused, torn) = (puppet(&engine, "paused").await, puppet(&engine, "torn").await);
    paused.pause().await.unwrap();
    until_status(&paused, RunStatus::Paused).await;
    torn.signal("panic", &()).await.unwrap();
    until_blocked(&torn).await;
    for run in [&paused, &torn] {
        run.cancel("enough").await.unwrap();
        let status = until_status(run, RunStatus::Terminated).await;
        assert_eq!(status.error.unwrap(), ("Cancelled".into(), "enough".into()));
    }
    assert!(!event_types(&paused).await.contains(&"signal.received".to_owned()));
}
