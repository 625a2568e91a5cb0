//! Timers: never early on the store's clock, never lost.

use std::time::Duration;

use serde_json::json;
use windlass_kernel::{RunStatus, Task, Timestamp, Wake};

use super::batches::idle_run;
use crate::events;
use crate::world::World;

async fn in_seconds(world: &World, seconds: u64) -> Timestamp {
    world.now().await.plus(Duration::from_secs(seconds))
}

/// A turn that sleeps becomes ready when the store's clock shows its time, and not before.
pub async fn become_ready_when_due_and_not_before(world: World) {
    let due = in_seconds(&world, 60).await;
    let run = idle_run(&world, "sleeps", Wake::At(due)).await;
    assert_eq!((run.turn.ready, run.turn.due_at), (false, Some(due)));
    world.advance_ms(50_000).await;
    let promoted = world.store.promote(100).await.unwrap();
    assert_eq!((promoted.turns, promoted.next_due), (0, Some(due)));
    world.advance_ms(10_000).await;
    let promoted = world.store.promote(100).await.unwrap();
    assert_eq!((promoted.turns, promoted.tasks, promoted.next_due), (1, 0, None));
    assert!(promoted.now >= due);
    assert_eq!(world.store.promote(100).await.unwrap().turns, 0, "a timer fires once");
    let run = world.run(run.run_key).await;
    assert_eq!((run.turn.ready, run.turn.due_at), (true, Some(due)));
    assert_eq!(world.claim_turns(world.worker(), 10).await.len(), 1);
}

/// A time that has passed makes a turn ready at once.
pub async fn past_times_are_ready_at_once(world: World) {
    let past = world.now().await.minus(Duration::from_secs(5));
    let run = idle_run(&world, "late", Wake::At(past)).await;
    assert_eq!((run.turn.ready, run.turn.due_at), (true, Some(past)));
    assert_eq!(world.claim_turns(world.worker(), 10).await.len(), 1);
}

/// A promotion tells when to come back.
pub async fn the_next_due_time_is_returned(world: World) {
    assert_eq!(world.store.promote(10).await.unwrap().next_due, None);
    let late = in_seconds(&world, 100).await;
    let early = in_seconds(&world, 50).await;
    idle_run(&world, "late", Wake::At(late)).await;
    assert_eq!(world.store.promote(10).await.unwrap().next_due, Some(late));
    let task = Task { due_at: Some(early), ready: false, ..world.task(None) };
    world.enqueue(vec![task]).await;
    assert_eq!(world.store.promote(10).await.unwrap().next_due, Some(early));
    world.advance_ms(51_000).await;
    let promoted = world.store.promote(10).await.unwrap();
    assert_eq!((promoted.tasks, promoted.next_due), (1, Some(late)));
}

/// The timer of a paused run keeps its time and does not fire.
pub async fn of_paused_runs_wait(world: World) {
    let due = in_seconds(&world, 10).await;
    let (run, hold) = world.create_held("paused").await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::WORKFLOW_PAUSED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused).release(Wake::At(due), 0);
    world.ok(draft.finish()).await;
    world.advance_ms(20_000).await;
    let promoted = world.store.promote(10).await.unwrap();
    assert_eq!((promoted.turns, promoted.next_due), (0, None));
    let run = world.run(run.run_key).await;
    assert_eq!((run.turn.ready, run.turn.due_at), (false, Some(due)));
}

/// A promotion does no more than asked, takes the oldest first, and says that there is more.
pub async fn a_limit_cuts_a_promotion_short(world: World) {
    let mut due = Vec::new();
    for seconds in [30, 10, 20] {
        let at = in_seconds(&world, seconds).await;
        due.push(idle_run(&world, &format!("s{seconds}"), Wake::At(at)).await);
    }
    world.advance_ms(31_000).await;
    let promoted = world.store.promote(2).await.unwrap();
    assert_eq!((promoted.turns, promoted.next_due), (2, due[0].turn.due_at));
    assert!(promoted.next_due.unwrap() <= promoted.now);
    let turns = world.claim_turns(world.worker(), 10).await;
    let keys: Vec<_> = turns.iter().map(|turn| turn.run_key).collect();
    assert_eq!(keys, [due[1].run_key, due[2].run_key]);
}

/// The same for tasks.
pub async fn of_tasks(world: World) {
    let at = in_seconds(&world, 10).await;
    let task = Task { due_at: Some(at), ready: false, ..world.task(None) };
    world.enqueue(vec![task.clone()]).await;
    assert_eq!(world.store.promote(10).await.unwrap().tasks, 0);
    world.advance_ms(10_001).await;
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty(), "a claim promotes nothing");
    assert_eq!(world.store.promote(10).await.unwrap().tasks, 1);
    let claimed = world.claim_tasks(world.worker(), 10).await.remove(0);
    assert_eq!((claimed.task_id, claimed.due_at), (task.task_id, Some(at)));
}
