//! Activities at hand: one commit settles an activity and takes its run further, and whatever comes in
//! between, the result arrives once.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use windlass::admin::Options;
use windlass::kernel::{
    Draft, HeldItem, Hold, Message, MessageKind, Op, Query, Run, TasksQuery, Wake, WorkerKey,
};
use windlass::machines::{ActivityError, Workflow, WorkflowAction};
use windlass::{Engine, RunStatus, TaskContext};

use crate::harness::{
    Counts, Harness, event_types, ok, on_every_store, until, until_blocked, until_status,
    until_waiting,
};
use crate::machines_fixtures::{Fan, Order, Puppet, serve};

on_every_store!(
    three_activities_take_four_commits,
    a_failure_completes_locally_too,
    one_slot_for_tasks_is_enough,
    fifty_results_at_once_come_once_each,
    a_run_that_is_not_in_memory_gets_a_message,
    a_turn_that_somebody_has_gets_a_message,
    a_result_that_nobody_wants_changes_nothing,
    an_end_calls_off_what_else_is_open,
    a_callback_that_panics_loses_no_result,
    a_paused_run_gets_its_callbacks_after_resume,
    requests_that_come_with_a_result_are_heard,
    a_process_that_drains_leaves_the_run_to_others,
);

// An activity that waits for its permit.
fn serve_gate(engine: &Engine, counts: &Arc<Counts>) -> Arc<Semaphore> {
    let gate = Arc::new(Semaphore::new(0));
    let (counts, permits) = (Arc::clone(counts), Arc::clone(&gate));
    let wait = move |_: TaskContext, n: u64| {
        let (counts, permits) = (Arc::clone(&counts), Arc::clone(&permits));
        async move {
            counts.hit("begun");
            permits.acquire().await?.forget();
            ok(n)
        }
    };
    engine.activity("wait", wait).unwrap();
    gate
}

async fn served(h: &Harness) -> (Engine, Arc<Counts>, Arc<Semaphore>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let gate = serve_gate(&engine, &counts);
    (engine, counts, gate)
}

// A puppet whose activity has begun and whose turn is put away.
async fn puppet(engine: &Engine, counts: &Counts, id: &str) -> windlass::RunHandle<Vec<String>> {
    let puppets = engine.remote_machine::<Puppet>().unwrap();
    let run = puppets.start(false).id(id).await.unwrap();
    let begun = counts.get("begun");
    run.signal("do", &[WorkflowAction::activity("a", "wait", json!(1))]).await.unwrap();
    until("it has begun", || async { counts.get("begun") == begun + 1 }).await;
    until_waiting(engine, &run).await;
    run
}

async fn messages<O>(engine: &Engine, run: &windlass::RunHandle<O>) -> Vec<Message> {
    let query = Query::Messages { run_key: run.run_key(), after: 0, limit: 1_000 };
    let mut messages = engine.admin().store().list(query).await.unwrap().messages().unwrap();
    messages.retain(|message| message.kind == MessageKind::ActivityResult);
    messages
}

async fn task_items(engine: &Engine, run: &Run) -> Vec<windlass::kernel::Task> {
    let query = Query::Tasks(TasksQuery::of_run(run, 100));
    engine.admin().store().list(query).await.unwrap().tasks().unwrap()
}

async fn count_of(run: &windlass::RunHandle<Vec<String>>, event: &str) -> usize {
    event_types(run).await.iter().filter(|found| *found == event).count()
}

async fn three_activities_take_four_commits(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("lamp".into()).id("o").await.unwrap();
    assert_eq!(run.result().await.unwrap(), "lamp reserve charge ship");
    // Each activity is settled by the turn that its result is told in.
    let metrics = engine.admin().metrics();
    assert_eq!(metrics.turns_completed_locally.get(), 3);
    until("all are counted", || async { metrics.tasks_completed.get() == 3 }).await;
    assert_eq!((metrics.turns.get(), metrics.commits.get()), (4, 4));
    assert_eq!(messages(&engine, &run).await, []);
    assert_eq!(run.run().await.unwrap().accepted, 0);
    assert_eq!(task_items(&engine, &run.run().await.unwrap()).await, []);
    let again = orders.start("lamp late-charge".into()).id("again").await.unwrap();
    assert_eq!(again.result().await.unwrap(), "lamp late-charge reserve charge ship");
    let steps = again.steps().await.unwrap();
    let shown: Vec<_> = steps.iter().map(|step| (step.step_key.as_str(), step.attempt)).collect();
    assert_eq!(shown, [("reserve", 1), ("charge", 3), ("ship", 1)]);
}

async fn a_failure_completes_locally_too(h: Arc<Harness>) {
    let (engine, counts) = (h.engine().await, Counts::new());
    serve(&engine, &counts);
    let orders = engine.remote_machine::<Order>().unwrap();
    let run = orders.start("no-reserve".into()).id("o").await.unwrap();
    let error = run.result().await.unwrap_err();
    assert!(error.to_string().contains("Cannot: reserve cannot"), "{error}");
    assert_eq!(
        (
            engine.admin().metrics().turns_completed_locally.get(),
            engine.admin().metrics().commits.get()
        ),
        (1, 2)
    );
    let query = Query::DeadLettersOfRun { run_key: run.run_key(), limit: 10 };
    let letters = engine.admin().store().list(query).await.unwrap().dead_letters().unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(&*letters[0].reason, "reserve cannot");
}

async fn one_slot_for_tasks_is_enough(h: Arc<Harness>) {
    let one = |options| Options { tasks_max: 1, ..options };
    let (engine, counts) = (h.engine_with(one).await, Counts::new());
    serve(&engine, &counts);
    let orders = engine.remote_machine::<Order>().unwrap();
    // A claim may find the only slot taken. Then the engine has a backlog until its next claim, and the
    // tasks of the next run are claimed. Without a backlog each task takes the slot of the one before.
    let figures = || {
        let metrics = engine.admin().metrics();
        (metrics.tasks_claimed.get(), metrics.turns_completed_locally.get())
    };
    for n in 0..ATTEMPTS_MAX {
        let (claimed, completed) = figures();
        let run = orders.start("lamp".into()).id(format!("run-{n}")).await.unwrap();
        assert_eq!(run.result().await.unwrap(), "lamp reserve charge ship");
        until("all is quiet", || async { engine.core().capacity_used().0 == 0 }).await;
        let (claimed_now, completed_now) = figures();
        if claimed_now == claimed {
            assert_eq!(completed_now - completed, 3);
            return;
        }
    }
    panic!("a task of each of {ATTEMPTS_MAX} runs was claimed");
}

/// How many runs may meet a backlog.
const ATTEMPTS_MAX: u32 = 100;

async fn fifty_results_at_once_come_once_each(h: Arc<Harness>) {
    let engine = h.engine().await;
    serve(&engine, &Counts::new());
    let fans = engine.remote_machine::<Fan>().unwrap();
    for n in 0..4 {
        let run = fans.start(50).id(format!("f{n}")).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 50 * 49);
        let over = event_types(&run).await.into_iter().filter(|t| t == "activity.completed");
        assert_eq!(over.count(), 50);
        let sent = messages(&engine, &run).await;
        assert!(sent.iter().all(|message| message.consumed.is_some()));
        assert!(sent.len() >= 49, "they are read together");
    }
    assert_eq!(engine.admin().metrics().replays.get(), 0, "no result costs what is in memory");
}

async fn a_run_that_is_not_in_memory_gets_a_message(h: Arc<Harness>) {
    let (engine, counts, gate) = served(&h).await;
    let run = puppet(&engine, &counts, "p").await;
    engine.core().evict_all();
    gate.add_permits(1);
    until("it is told", || async { count_of(&run, "activity.completed").await == 1 }).await;
    assert_eq!(engine.admin().metrics().turns_completed_locally.get(), 0);
    let sent = messages(&engine, &run).await;
    assert!(sent.len() == 1 && sent[0].consumed.is_some(), "{sent:?}");
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ["start", "signal do", "a=1", "signal end"]);
}

async fn a_turn_that_somebody_has_gets_a_message(h: Arc<Harness>) {
    let (engine, counts, gate) = served(&h).await;
    let store = engine.admin().store();
    let other = WorkerKey(uuid::Uuid::from_u128(7));
    for moved_on in [false, true] {
        let run = puppet(&engine, &counts, &format!("p-{moved_on}")).await;
        let mut held: Option<Hold> = None;
        if moved_on {
            // It is free, and not where it was left.
            let row = run.run().await.unwrap();
            let stamp = engine
                .core()
                .clock()
                .stamp(row.updated_at.plus(std::time::Duration::from_micros(1)));
            let mut draft = Draft::free(&row, other, stamp.at);
            draft.event(windlass_engine::events::MESSAGE_RECEIVED, &json!({}), stamp).unwrap();
            draft.release(Wake::OnMessage, row.seen);
            store.commit(vec![draft.finish()]).await.remove(0).unwrap();
        } else {
            held = store.revoke(run.run_key(), other).await.unwrap().map(|turn| turn.hold);
            assert!(held.is_some());
        }
        gate.add_permits(1);
        until("the result is sent", || async { messages(&engine, &run).await.len() == 1 }).await;
        assert_eq!(task_items(&engine, &run.run().await.unwrap()).await, []);
        if let Some(Hold { worker, claim_no }) = held {
            assert_eq!(count_of(&run, "activity.completed").await, 0);
            let item = HeldItem::Turn { run_key: run.run_key(), worker, claim_no };
            store.release(vec![item]).await.unwrap();
        }
        until("it is told", || async { count_of(&run, "activity.completed").await == 1 }).await;
        run.signal("end", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), ["start", "signal do", "a=1", "signal end"]);
    }
    assert_eq!(engine.admin().metrics().turns_completed_locally.get(), 0);
    assert!(engine.admin().metrics().replays.get() >= 2, "what was in memory was of no use");
}

async fn a_result_that_nobody_wants_changes_nothing(h: Arc<Harness>) {
    let (engine, counts, gate) = served(&h).await;
    let store = engine.admin().store();
    let run = puppet(&engine, &counts, "p").await;
    let row = run.run().await.unwrap();
    let task = task_items(&engine, &row).await.remove(0);
    // Somebody takes the task away and writes no event, so the run is where it was left.
    let other = WorkerKey(uuid::Uuid::from_u128(7));
    let turn = store.revoke(run.run_key(), other).await.unwrap().unwrap();
    let mut draft = Draft::held(&row, turn.hold, row.updated_at);
    draft.op(Op::Settle { task_id: task.task_id }).release(Wake::OnMessage, row.seen);
    store.commit(vec![draft.finish()]).await.remove(0).unwrap();
    assert_eq!(engine.core().load().1, 1);
    gate.add_permits(1);
    until("what is in memory is dropped", || async { engine.core().load() == (0, 0) }).await;
    until("the attempt is over", || async { engine.core().capacity_used().0 == 0 }).await;
    assert_eq!(messages(&engine, &run).await, []);
    assert_eq!(run.run().await.unwrap().head, row.head);
    assert_eq!(engine.admin().metrics().turns_completed_locally.get(), 0);
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ["start", "signal do", "signal end"]);
}

/// An activity beside a child that does not end by itself; the activity's result ends the run.
struct Race;

impl Workflow for Race {
    const TYPE: &'static str = "race";
    type Input = ();
    type Output = u64;

    fn new((): ()) -> Self {
        Self
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![
            WorkflowAction::child("never", "puppet", json!(false)),
            WorkflowAction::activity("wins", "wait", json!(7)),
        ]
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        vec![WorkflowAction::complete(result)]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

async fn an_end_calls_off_what_else_is_open(h: Arc<Harness>) {
    let (engine, counts, gate) = served(&h).await;
    let run = engine.machine::<Race>().unwrap().start(()).id("r").await.unwrap();
    until("it has begun", || async { counts.get("begun") == 1 }).await;
    until_waiting(&engine, &run).await;
    gate.add_permits(1);
    assert_eq!(run.result().await.unwrap(), 7);
    assert_eq!(engine.admin().metrics().turns_completed_locally.get(), 1);
    let root = run.run_key();
    until("the child is called off", || async {
        let query = Query::Tree { root, after: None, limit: 10 };
        let rows = engine.admin().store().list(query).await.unwrap().runs().unwrap();
        rows.len() == 2 && rows.iter().all(|row| row.status.is_ended())
    })
    .await;
    let row = run.run().await.unwrap();
    until("nothing is left", || async { task_items(&engine, &row).await.is_empty() }).await;
}

/// Runs whose machine panics when it is told a result.
static PANICS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

struct Shaky(String);

impl Workflow for Shaky {
    const TYPE: &'static str = "shaky";
    type Input = String;
    type Output = Value;

    fn new(name: String) -> Self {
        Self(name)
    }

    fn on_start(&mut self) -> Vec<WorkflowAction> {
        vec![WorkflowAction::activity("a", "wait", json!(7))]
    }

    fn on_activity_completed(&mut self, _: &str, result: Value) -> Vec<WorkflowAction> {
        assert!(!PANICS.lock().contains(&self.0), "not now");
        vec![WorkflowAction::complete(result)]
    }

    fn on_activity_failed(&mut self, _: &str, error: &ActivityError) -> Vec<WorkflowAction> {
        vec![WorkflowAction::fail(error)]
    }
}

async fn a_callback_that_panics_loses_no_result(h: Arc<Harness>) {
    let (engine, counts, gate) = served(&h).await;
    let name = format!("{:?}", h.kind);
    PANICS.lock().insert(name.clone());
    let run = engine.machine::<Shaky>().unwrap().start(name.clone()).id("s").await.unwrap();
    until("it has begun", || async { counts.get("begun") == 1 }).await;
    until_waiting(&engine, &run).await;
    gate.add_permits(1);
    let reason = until_blocked(&run).await;
    assert!(reason.contains("not now"), "{reason}");
    assert_eq!(engine.admin().metrics().turns_completed_locally.get(), 0);
    let sent = messages(&engine, &run).await;
    assert!(sent.len() == 1 && sent[0].consumed.is_none(), "{sent:?}");
    PANICS.lock().remove(&name);
    run.wake().await.unwrap();
    assert_eq!(run.result().await.unwrap(), 7);
    assert_eq!(counts.get("begun"), 1);
}

async fn a_paused_run_gets_its_callbacks_after_resume(h: Arc<Harness>) {
    let (engine, counts, gate) = served(&h).await;
    let run = puppet(&engine, &counts, "p").await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    until("the turn is put away", || async { engine.core().load().0 == 0 }).await;
    gate.add_permits(1);
    until("the result is sent", || async { messages(&engine, &run).await.len() == 1 }).await;
    assert_eq!(count_of(&run, "activity.completed").await, 0);
    run.resume().await.unwrap();
    until("it is told", || async { count_of(&run, "activity.completed").await == 1 }).await;
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ["start", "signal do", "a=1", "signal end"]);
    assert_eq!(engine.admin().metrics().turns_completed_locally.get(), 0);
}

async fn requests_that_come_with_a_result_are_heard(h: Arc<Harness>) {
    let (engine, counts, gate) = served(&h).await;
    for n in 0..8 {
        let run = puppet(&engine, &counts, &format!("paused-{n}")).await;
        gate.add_permits(1);
        run.pause().await.unwrap();
        until_status(&run, RunStatus::Paused).await;
        run.resume().await.unwrap();
        until("it is told", || async { count_of(&run, "activity.completed").await == 1 }).await;
        run.signal("end", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), ["start", "signal do", "a=1", "signal end"]);

        let run = puppet(&engine, &counts, &format!("cancelled-{n}")).await;
        gate.add_permits(1);
        run.cancel("enough").await.unwrap();
        until("it is told", || async { count_of(&run, "activity.completed").await == 1 }).await;
        run.signal("end", &()).await.unwrap();
        let mut seen = run.result().await.unwrap();
        assert_eq!(seen.remove(4), "signal end");
        seen.sort();
        assert_eq!(seen, ["a=1", "signal cancel", "signal do", "start"]);

        let run = puppet(&engine, &counts, &format!("terminated-{n}")).await;
        gate.add_permits(1);
        run.terminate().await.unwrap();
        until_status(&run, RunStatus::Terminated).await;
        assert!(messages(&engine, &run).await.len() <= 1);

        let run = puppet(&engine, &counts, &format!("restarted-{n}")).await;
        gate.add_permits(1);
        let next = run.restart().await.unwrap();
        assert_ne!(next.run_key(), run.run_key());
        let puppets = engine.remote_machine::<Puppet>().unwrap();
        let next = puppets.get(format!("restarted-{n}")).await.unwrap();
        next.signal("end", &()).await.unwrap();
        assert_eq!(next.result().await.unwrap(), ["start", "signal end"]);
        // A task whose run was lost may have kept its permit.
        until("all attempts are over", || async { engine.core().capacity_used().0 == 0 }).await;
        while let Ok(left) = gate.try_acquire() {
            left.forget();
        }
    }
}

async fn a_process_that_drains_leaves_the_run_to_others(h: Arc<Harness>) {
    let (first, counts, gate) = served(&h).await;
    let run = puppet(&first, &counts, "p").await;
    let stopping = {
        let (h, first) = (Arc::clone(&h), first.clone());
        tokio::spawn(async move { h.stop(&first).await })
    };
    until("it drains", || async { first.is_stopping() }).await;
    gate.add_permits(1);
    stopping.await.unwrap();
    assert_eq!(first.admin().metrics().turns_completed_locally.get(), 0);
    let (second, _, _) = served(&h).await;
    let puppets = second.remote_machine::<Puppet>().unwrap();
    let run = puppets.get(run.id()).await.unwrap();
    assert_eq!(messages(&second, &run).await.len(), 1);
    until("it is told", || async { count_of(&run, "activity.completed").await == 1 }).await;
    run.signal("end", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), ["start", "signal do", "a=1", "signal end"]);
}
