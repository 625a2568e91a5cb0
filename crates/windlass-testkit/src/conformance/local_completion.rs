//! A task that is settled by the commit that takes its run's turn: one commit under both guards.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use windlass_kernel::{
    Body, Commit, CommitError, Conflict, DeadLetter, Draft, Hold, Op, Query, Run, RunStatus,
    StepStatus, Task, TaskGuard, TasksQuery, Wake, Wakeup, WorkerKey,
};

use crate::events;
use crate::world::{World, route};

// A run that waits for a task, and the task, claimed.
async fn waiting(world: &World, id: &str, worker: WorkerKey) -> (Run, Task) {
    let (mut run, hold) = world.create_held(id).await;
    let mut draft = world.draft(&run, hold);
    let step = world.step(&run, "a", StepStatus::Pending, None);
    draft.step(events::ACTIVITY_SCHEDULED, &json!({}), step, world.stamp()).unwrap();
    draft.enqueue(world.task(Some(&run))).release(Wake::OnMessage, 0);
    let commit = draft.finish();
    commit.run_change().unwrap().apply_to(&mut run);
    world.ok(commit).await;
    (run, world.claim_tasks(worker, 1).await.remove(0))
}

fn guard(task: &Task) -> TaskGuard {
    TaskGuard::Held { task_id: task.task_id, hold: task.hold().unwrap() }
}

// The result of the task, and the next one, which the same worker holds.
fn settle(world: &World, run: &Run, worker: WorkerKey, guard: TaskGuard) -> Draft {
    let mut draft = Draft::free(run, worker, run.updated_at);
    let step = world.step(run, "a", StepStatus::Completed, Some("1"));
    draft.event(events::ACTIVITY_STARTED, &json!({}), world.stamp()).unwrap();
    draft.step(events::ACTIVITY_COMPLETED, &json!({}), step, world.stamp()).unwrap();
    draft.guard_task(guard).op(Op::Settle { task_id: guard.task_id() });
    let next = Task { worker: Some(worker), ready: false, claim_no: 1, ..world.task(Some(run)) };
    draft.enqueue(next);
    draft
}

fn released(mut draft: Draft, seen: u64) -> Commit {
    draft.status(RunStatus::Waiting).release(Wake::OnMessage, seen);
    draft.finish()
}

async fn tasks(world: &World, run: &Run) -> Vec<Task> {
    let query = Query::Tasks(TasksQuery::of_run(run, 10));
    world.store.list(query).await.unwrap().tasks().unwrap()
}

async fn conflict(world: &World, commit: Commit) -> Conflict {
    match world.commit(commit).await {
        Err(CommitError::Conflict(conflict)) => conflict,
        other => panic!("{other:?}"),
    }
}

/// If either guard fails, it is the one that is named, and neither the run nor the task changes.
pub async fn one_failed_guard_writes_nothing(world: World) {
    let (worker, other) = (world.worker(), world.worker());
    let (run, task) = waiting(&world, "hand", worker).await;
    let (run_key, task_id) = (run.run_key, task.task_id);
    let before = (world.load(run_key).await, tasks(&world, &run).await);
    let same = async || assert_eq!((world.load(run_key).await, tasks(&world, &run).await), before);

    let foreign = TaskGuard::Held { task_id, hold: Hold { worker: other, ..task.hold().unwrap() } };
    let commit = released(settle(&world, &run, worker, foreign), 0);
    let found = conflict(&world, commit).await;
    assert_eq!(found, Conflict::TaskHold { task_id, found: task.hold() });
    same().await;

    // The run is named before the task.
    let mut ahead = run.clone();
    ahead.head.next_ordinal += 1;
    for guard in [guard(&task), foreign] {
        let commit = released(settle(&world, &ahead, worker, guard), 0);
        let found = conflict(&world, commit).await;
        assert_eq!(found, Conflict::RunHead { run_key, found: run.head });
        same().await;
    }

    // Somebody has the turn; when it is free again, the same commit holds.
    world.ok(world.send_commit(world.message(run_key, "m"))).await;
    let turn = world.claim_turns(other, 1).await.remove(0);
    let commit = released(settle(&world, &run, worker, guard(&task)), 0);
    let found = conflict(&world, commit.clone()).await;
    assert_eq!(found, Conflict::RunHold { run_key, found: Some(turn.hold) });
    assert_eq!(tasks(&world, &run).await, before.1);
    world.store.release(world.store.held(other).await.unwrap()).await.unwrap();
    let answer = world.ok(commit).await;
    assert_eq!((answer.repeated, answer.hold, answer.accepted), (false, None, 1));
    let loaded = world.load(run_key).await;
    assert_eq!(loaded.steps[0].result, Some(Body::json("1")));
    assert!(loaded.run.turn.ready, "the message was not read");
    assert_eq!(loaded.run.turn.claim_no, turn.hold.claim_no + 3, "released, taken, released");
    let left = tasks(&world, &run).await;
    assert_eq!(left.len(), 1);
    assert!(left[0].task_id != task_id && left[0].worker == Some(worker), "{left:?}");

    // It is gone, so nothing is written once more.
    let commit = released(settle(&world, &loaded.run, worker, guard(&task)), 1);
    assert_eq!(conflict(&world, commit).await, Conflict::TaskMissing { task_id });
    assert_eq!(world.load(run_key).await, loaded);
}

/// After a lost answer the commit is found by its event: written once, whether it kept the turn, gave
/// it back or ended the run, and whatever it left of the task.
pub async fn a_lost_answer_is_found(world: World) {
    let worker = world.worker();
    for ends in ["kept", "released", "ended"] {
        let (run, task) = waiting(&world, ends, worker).await;
        let mut draft = settle(&world, &run, worker, guard(&task));
        draft.op(Op::DeadLetter(Box::new(letter(&task))));
        let commit = match ends {
            "kept" => draft.finish(),
            "released" => released(draft, 0),
            _ => {
                let end = windlass_kernel::End::Complete(Body::json("1"));
                draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, world.stamp()).unwrap();
                draft.finish()
            }
        };
        let first = world.ok(commit.clone()).await;
        let written = (world.load(run.run_key).await, tasks(&world, &run).await);
        let again = world.ok(commit).await;
        assert_eq!((first.repeated, again.repeated), (false, true), "{ends}");
        assert_eq!(first.hold, again.hold, "{ends}");
        assert_eq!(first.hold.map(|hold| hold.worker), (ends == "kept").then_some(worker));
        assert_eq!((world.load(run.run_key).await, tasks(&world, &run).await), written);
    }
}

fn letter(task: &Task) -> DeadLetter {
    DeadLetter {
        task_id: task.task_id,
        namespace: task.namespace.clone(),
        run_key: task.run_key,
        step_key: None,
        kind: task.kind.clone(),
        queue: task.queue.clone(),
        name: task.name.clone(),
        attempt: 1,
        body: task.body.clone(),
        errors: None,
        reason: "no".into(),
        dead_at: task.created_at,
        requeues: 0,
        requeued_at: None,
    }
}

/// The store notifies of a turn that was ready, was taken and is ready again: a worker that tried to claim it
/// meanwhile found it locked.
pub async fn a_turn_that_stays_ready_sends_a_wakeup(world: World) {
    let worker = world.worker();
    let (run, task) = waiting(&world, "told", worker).await;
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    let heard: Arc<Mutex<Vec<Wakeup>>> = Arc::default();
    let sink = heard.clone();
    world.store.listen(Arc::new(move |wakeup| sink.lock().unwrap().push(wakeup)));
    let heard_turn = || heard.lock().unwrap().contains(&Wakeup::Turn(route("default", "w")));
    world.ok(released(settle(&world, &run, worker, guard(&task)), 0)).await;
    for _ in 0..30_000 {
        if heard_turn() {
            return;
        }
        world.now().await;
        #[allow(clippy::disallowed_methods, reason = "real threads ring the bell here")]
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("no wake-up was sent; received {:?}", heard.lock().unwrap());
}
