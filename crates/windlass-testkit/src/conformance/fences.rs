//! Fences: a worker that has lost a hold can never write under it again.

use windlass_kernel::{
    Commit, CommitError, Conflict, HeldItem, Op, Reschedule, RunKey, Task, TaskGuard, Wake,
};

use super::batches::idle_run;
use crate::world::World;

fn settle(task: &Task) -> Commit {
    let guard = TaskGuard::Held { task_id: task.task_id, hold: task.hold().unwrap() };
    Commit::new(None, Some(guard), vec![Op::Settle { task_id: task.task_id }])
}

/// A commit about a task that nobody holds fails once somebody has claimed it, also after it was
/// released again or settled.
pub async fn of_unheld_tasks(world: World) {
    let tasks: Vec<Task> = (0..4).map(|_| world.task(None)).collect();
    world.enqueue(tasks.clone()).await;
    let unheld =
        |task: &Task, op: Op| Commit::new(None, Some(TaskGuard::unchanged(task)), vec![op]);
    let settle_unheld = |task: &Task| unheld(task, Op::Settle { task_id: task.task_id });
    assert_eq!(TaskGuard::unchanged(&tasks[0]).worker(), None);
    world.ok(settle_unheld(&tasks[0])).await;
    assert_eq!(world.code(settle_unheld(&tasks[0])).await, "TASK_NOT_FOUND");

    let change = Reschedule {
        task_id: tasks[1].task_id,
        wake: Wake::At(world.now().await.plus(std::time::Duration::from_secs(60))),
        attempt: 0,
        errors: None,
        untried: true,
    };
    world.ok(unheld(&tasks[1], Op::Reschedule(Box::new(change)))).await;
    assert_eq!(world.code(settle_unheld(&tasks[1])).await, "TASK_HOLD_CONFLICT");

    let claimed = world.claim_tasks(world.worker(), 10).await;
    let ids: Vec<_> = claimed.iter().map(|task| task.task_id).collect();
    assert_eq!(ids, [tasks[2].task_id, tasks[3].task_id], "the others are settled or scheduled");
    assert_eq!(world.code(settle_unheld(&tasks[2])).await, "TASK_HOLD_CONFLICT");
    let hold = claimed[0].hold().unwrap();
    let answer = world.commit(settle_unheld(&Task { claim_no: hold.claim_no, ..tasks[2].clone() }));
    let Err(CommitError::Conflict(conflict)) = answer.await else { panic!("it is held") };
    assert_eq!(conflict, Conflict::TaskHold { task_id: tasks[2].task_id, found: Some(hold) });
    let item = HeldItem::Task {
        task_id: tasks[3].task_id,
        worker: hold.worker,
        claim_no: claimed[1].claim_no,
    };
    assert_eq!(world.store.release(vec![item]).await.unwrap(), 1);
    assert_eq!(world.code(settle_unheld(&tasks[3])).await, "TASK_HOLD_CONFLICT");
    world.ok(settle_unheld(&Task { claim_no: claimed[1].claim_no + 1, ..tasks[3].clone() })).await;
    world.ok(settle(&claimed[0])).await;
    let keeps = Commit::new(None, Some(TaskGuard::unchanged(&tasks[1])), Vec::new());
    assert_eq!(world.code(keeps).await, "INVALID_COMMIT", "nobody would keep the task");
}

/// A released turn is nobody's, and its last holder's commits conflict.
pub async fn after_release(world: World) {
    let (run, hold) = world.create_held("run").await;
    let held = world.store.held(hold.worker).await.unwrap();
    let item =
        HeldItem::Turn { run_key: run.run_key, worker: hold.worker, claim_no: hold.claim_no };
    assert_eq!(held, [item]);
    assert_eq!(world.store.release(held.clone()).await.unwrap(), 1);
    assert_eq!(world.store.release(held).await.unwrap(), 0, "a hold is given back once");
    let freed = world.run(run.run_key).await;
    assert!(freed.turn.ready && freed.turn.due_at.is_some());
    assert_eq!((freed.turn.worker, freed.turn.claim_no), (None, hold.claim_no + 1));
    assert_eq!((freed.turn.reclaims, freed.turn.claimed_at), (0, None));
    assert_eq!(world.code(world.step_commit(&run, hold, "x", "1")).await, "RUN_HOLD_CONFLICT");
}

/// A reaped turn is somebody else's, and the zombie's commits conflict.
pub async fn after_reaping(world: World) {
    let (run, hold) = world.create_held("run").await;
    let reaper = world.steady_worker().await;
    assert_eq!(world.store.reap(reaper, 10).await.unwrap().turns, [run.run_key]);
    assert_eq!(world.code(world.step_commit(&run, hold, "x", "1")).await, "RUN_HOLD_CONFLICT");
    let turn = world.claim_turns(reaper, 1).await.remove(0);
    assert_eq!((turn.hold.claim_no, turn.reclaims), (hold.claim_no + 2, 1));
    assert_eq!(world.code(world.step_commit(&run, hold, "x", "1")).await, "RUN_HOLD_CONFLICT");
    world.ok(world.step_commit(&run, turn.hold, "x", "1")).await;
}

/// A revoked turn belongs to the revoker at once.
pub async fn after_revocation(world: World) {
    let (run, hold) = world.create_held("run").await;
    let worker = world.worker();
    let turn = world.store.revoke(run.run_key, worker).await.unwrap().unwrap();
    assert_eq!((turn.hold.worker, turn.hold.claim_no), (worker, hold.claim_no + 1));
    assert_eq!((turn.head, turn.run_key), (run.head, run.run_key));
    assert_eq!(world.code(world.step_commit(&run, hold, "x", "1")).await, "RUN_HOLD_CONFLICT");
    assert!(world.store.held(hold.worker).await.unwrap().is_empty());
    world.ok(world.complete_commit(&run, turn.hold)).await;
}

/// The same worker that claims again has another hold: its first life's commits conflict.
pub async fn after_claiming_again(world: World) {
    let (run, first) = world.create_held("run").await;
    world.store.release(world.store.held(first.worker).await.unwrap()).await.unwrap();
    let turn = world.claim_turns(first.worker, 1).await.remove(0);
    assert_eq!(turn.hold.worker, first.worker);
    assert_eq!(turn.hold.claim_no, first.claim_no + 2);
    assert_eq!(world.code(world.step_commit(&run, first, "x", "1")).await, "RUN_HOLD_CONFLICT");
    world.ok(world.step_commit(&run, turn.hold, "x", "1")).await;
}

/// The same for tasks.
pub async fn of_tasks_after_reaping_and_release(world: World) {
    world.enqueue(vec![world.task(None), world.task(None)]).await;
    let dead = world.worker();
    let tasks = world.claim_tasks(dead, 2).await;
    let reaper = world.steady_worker().await;
    let mut reaped = world.store.reap(reaper, 10).await.unwrap().tasks;
    reaped.sort_unstable();
    assert_eq!(reaped, [tasks[0].task_id, tasks[1].task_id]);
    assert_eq!(world.code(settle(&tasks[0])).await, "TASK_HOLD_CONFLICT");
    let again = world.claim_tasks(reaper, 2).await;
    assert_eq!(again.len(), 2);
    for task in &again {
        assert_eq!((task.claim_no, task.reclaims, task.attempt), (3, 1, 0));
    }
    assert_eq!(world.code(settle(&tasks[0])).await, "TASK_HOLD_CONFLICT");
    world.ok(settle(&again[0])).await;
    assert_eq!(world.code(settle(&tasks[0])).await, "TASK_NOT_FOUND");
    let held = world.store.held(reaper).await.unwrap();
    assert_eq!(world.store.release(held).await.unwrap(), 1);
    assert_eq!(world.code(settle(&again[1])).await, "TASK_HOLD_CONFLICT");
    assert_eq!(world.claim_tasks(reaper, 2).await.len(), 1);
}

/// A task that was given back is no longer its last holder's.
pub async fn of_tasks_after_reschedule(world: World) {
    world.enqueue(vec![world.task(None)]).await;
    let worker = world.worker();
    let task = world.claim_tasks(worker, 1).await.remove(0);
    let change = Reschedule {
        task_id: task.task_id,
        wake: Wake::Now,
        attempt: 1,
        errors: None,
        untried: false,
    };
    let guard = TaskGuard::Held { task_id: task.task_id, hold: task.hold().unwrap() };
    world.ok(Commit::new(None, Some(guard), vec![Op::Reschedule(Box::new(change))])).await;
    assert_eq!(world.code(settle(&task)).await, "TASK_HOLD_CONFLICT");
    let again = world.claim_tasks(worker, 1).await.remove(0);
    assert_eq!(world.code(settle(&task)).await, "TASK_HOLD_CONFLICT");
    world.ok(settle(&again)).await;
}

/// There is nothing to revoke of a run that has ended or never was.
pub async fn revoke_of_ended_and_unknown_runs(world: World) {
    let (run, hold) = world.create_held("run").await;
    world.ok(world.complete_commit(&run, hold)).await;
    for run_key in [run.run_key, RunKey(world.key())] {
        assert_eq!(world.store.revoke(run_key, world.worker()).await.unwrap(), None);
    }
}

/// A sleeping run whose turn was taken and given back is ready now, not at some later time.
pub async fn of_a_sleeping_run_that_is_revoked(world: World) {
    let later = world.now().await.plus(std::time::Duration::from_secs(60));
    let run = idle_run(&world, "sleeps", Wake::At(later)).await;
    let worker = world.worker();
    world.store.revoke(run.run_key, worker).await.unwrap().unwrap();
    world.store.release(world.store.held(worker).await.unwrap()).await.unwrap();
    let turn = world.run(run.run_key).await.turn;
    let now = world.now().await;
    assert!(turn.ready && turn.due_at.is_some_and(|due_at| due_at <= now), "{turn:?}");
}
