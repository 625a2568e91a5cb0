//! The same commit again, after an answer was lost: written once, answered twice.

use serde_json::json;
use windlass_kernel::{Commit, Delivery, Draft, OnExisting, Op, TaskGuard, Turn, Wake};

use crate::events;
use crate::world::World;

/// A create that was written answers as the creator's own, with its hold.
pub async fn of_a_create(world: World) {
    let new = world.new_run("create", Turn::held_by(world.worker()));
    let run_key = new.run_key;
    let mut draft = Draft::create(new, OnExisting::Refuse, world.stamp()).unwrap();
    draft.send(world.message(run_key, "m"));
    let commit = draft.finish();
    let first = world.ok(commit.clone()).await;
    let second = world.ok(commit).await;
    assert_eq!((first.repeated, second.repeated), (false, true));
    assert_eq!((first.run_key, first.hold), (second.run_key, second.hold));
    assert!(second.hold.is_some());
    assert_eq!(second.messages, [Delivery::Duplicate { seq: 1 }]);
    assert_eq!(world.events(run_key).await.len(), 1);
}

/// A commit of a turn that was written is found by its event.
pub async fn of_a_turn_commit(world: World) {
    let (run, hold) = world.create_held("turn").await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::ACTIVITY_SCHEDULED, &json!({}), world.stamp()).unwrap();
    draft.enqueue(world.task(Some(&run)));
    let commit = draft.finish();
    world.ok(commit.clone()).await;
    let before = world.load(run.run_key).await;
    let again = world.ok(commit).await;
    assert_eq!((again.repeated, again.hold, again.run_key), (true, Some(hold), Some(run.run_key)));
    assert_eq!(world.load(run.run_key).await, before);
    assert_eq!(world.claim_tasks(world.worker(), 10).await.len(), 1);
}

/// It is found however far the run has moved on since, and then the sender holds nothing.
pub async fn of_a_turn_commit_after_others(world: World) {
    let (mut run, hold) = world.create_held("turn").await;
    let lost = world.release_commit(&run, hold, Wake::Now, 0);
    lost.run_change().unwrap().apply_to(&mut run);
    world.ok(lost.clone()).await;
    let next = world.claim_turns(world.worker(), 1).await.remove(0);
    for key in ["one", "two"] {
        let commit = world.step_commit(&run, next.hold, key, "1");
        commit.run_change().unwrap().apply_to(&mut run);
        world.ok(commit).await;
    }
    let again = world.ok(lost).await;
    assert_eq!((again.repeated, again.hold), (true, None));
    assert_eq!(world.run(run.run_key).await.turn.hold(), Some(next.hold));
    assert_eq!(world.events(run.run_key).await.len(), 4);
}

/// A message that was accepted is found by its id.
pub async fn of_a_message(world: World) {
    let (run, _) = world.create_held("mail").await;
    let commit = world.send_commit(world.message(run.run_key, "m"));
    world.ok(commit.clone()).await;
    let again = world.ok(commit).await;
    assert_eq!(again.messages, [Delivery::Duplicate { seq: 1 }]);
    assert_eq!(world.messages(run.run_key).await.len(), 1);
}

/// A settlement that sent a message is found by it; one that left nothing conflicts.
pub async fn of_a_settlement(world: World) {
    let (run, _) = world.create_held("run").await;
    let tasks = vec![world.task(Some(&run)), world.task(None)];
    world.enqueue(tasks).await;
    let tasks = world.claim_tasks(world.worker(), 2).await;
    let settle = |n: usize, message: Option<Op>| {
        let task = &tasks[n];
        let guard = TaskGuard::Held { task_id: task.task_id, hold: task.hold().unwrap() };
        let settle = Op::Settle { task_id: task.task_id };
        Commit::new(None, Some(guard), std::iter::once(settle).chain(message).collect())
    };
    let result = Op::PutMessage(Box::new(world.message(run.run_key, "result-claim1")));
    let commit = settle(0, Some(result));
    assert!(!world.ok(commit.clone()).await.repeated);
    let again = world.ok(commit).await;
    assert!(again.repeated);
    assert_eq!(again.messages, [Delivery::Duplicate { seq: 1 }]);

    let commit = settle(1, None);
    world.ok(commit.clone()).await;
    assert_eq!(world.code(commit).await, "TASK_NOT_FOUND");
}

/// A commit without guards is found by what it enqueued, and enqueues nothing twice.
pub async fn of_an_enqueue(world: World) {
    let task = world.task(None);
    let commit = Commit::new(None, None, vec![Op::Enqueue(Box::new(task))]);
    assert!(!world.ok(commit.clone()).await.repeated);
    assert!(world.ok(commit).await.repeated);
    assert_eq!(world.claim_tasks(world.worker(), 10).await.len(), 1);
}

/// A commit that took a free turn has it still only if nothing was written since.
pub async fn of_a_commit_that_took_a_turn(world: World) {
    let run = world.create(world.new_run("free", Turn::ready())).await;
    let worker = world.worker();
    let take = |release: bool| {
        let mut draft = Draft::free(&run, worker, run.created_at);
        draft.event(events::TIMER_STARTED, &json!({}), world.stamp()).unwrap();
        if release {
            draft.release(Wake::Now, 0);
        }
        draft.finish()
    };
    let released = take(true);
    world.ok(released.clone()).await;
    let turn = world.claim_turns(worker, 1).await.remove(0);
    let again = world.ok(released).await;
    assert_eq!((again.repeated, again.hold), (true, None), "the later claim is not this commit's");
    world.store.release(world.store.held(worker).await.unwrap()).await.unwrap();

    let run = world.run(turn.run_key).await;
    let mut draft = Draft::free(&run, worker, run.created_at);
    draft.event(events::TIMER_FIRED, &json!({}), world.stamp()).unwrap();
    let kept = draft.finish();
    let first = world.ok(kept.clone()).await;
    let again = world.ok(kept).await;
    assert!(again.repeated && again.hold.is_some());
    assert_eq!(again.hold, first.hold);
}

/// The commit that ended a run is found although the run takes nothing any more.
pub async fn of_an_end_that_frees_the_turn(world: World) {
    let (run, hold) = world.create_held("end").await;
    let commit = world.complete_commit(&run, hold);
    world.ok(commit.clone()).await;
    let again = world.ok(commit).await;
    assert_eq!((again.repeated, again.hold), (true, None));
    assert_eq!(world.events(run.run_key).await.len(), 2);
}

/// Another commit at the same place is not the same commit.
pub async fn of_another_commit_is_a_conflict(world: World) {
    let (run, hold) = world.create_held("turn").await;
    let ours = world.step_commit(&run, hold, "one", "1");
    let theirs = world.step_commit(&run, hold, "one", "1");
    world.ok(ours.clone()).await;
    assert_eq!(world.code(theirs).await, "RUN_HEAD_CONFLICT");
    assert!(world.ok(ours).await.repeated);
}
