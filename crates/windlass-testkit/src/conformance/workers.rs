//! Workers: leases, who may reap, and what reaping does.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use windlass_kernel::{
    Body, Heartbeat, Hold, Limits, MessageKind, Query, Task, Wakeup, WorkerInfo, WorkerKey,
    WorkerStatus,
};

use super::batches::idle_run;
use crate::events;
use crate::world::World;

async fn listed(world: &World) -> Vec<windlass_kernel::Worker> {
    let query = Query::Workers { after: None, limit: 100 };
    world.store.list(query).await.unwrap().workers().unwrap()
}

/// A worker's row has the info of its last renewal.
pub async fn register_and_renew(world: World) {
    let worker = world.worker();
    let first = world.renew(worker).await;
    assert!(!first.lapsed && !first.may_reap && first.control.is_empty());
    world.advance_ms(1_000).await;
    let info = WorkerInfo {
        status: WorkerStatus::Draining,
        note: Some("memory".into()),
        slots: 3,
        load: 2,
        task_slots: 2,
        task_load: 1,
        accepting: false,
        group: "Größe".into(),
        host: "machine-7".into(),
        tasks_completed: 7,
        tasks_failed: 5,
        tasks_took: Duration::from_micros(1_234_567),
        ..world.info(worker)
    };
    let second = world.store.renew(info.clone()).await.unwrap();
    let rows = listed(&world).await;
    assert_eq!((rows.len(), &rows[0].info), (1, &info));
    assert!(rows[0].started_at <= first.now && rows[0].renewed_at > rows[0].started_at);
    assert!(rows[0].renewed_at <= second.now);
    assert_eq!(rows[0].steady_since, rows[0].started_at);
}

/// A worker that is asked to drain learns so when it renews, however often, and is woken.
pub async fn a_drain_request_reaches_its_worker(world: World) {
    let (worker, other) = (world.worker(), world.worker());
    assert!(!world.store.drain_worker(worker).await.unwrap(), "nobody knows it");
    world.renew(worker).await;
    world.renew(other).await;
    let (told, mut wakeups) = futures::channel::mpsc::unbounded();
    world.store.listen(Arc::new(move |wakeup| drop(told.unbounded_send(wakeup))));
    assert!(!world.renew(worker).await.drain);
    assert!(world.store.drain_worker(worker).await.unwrap());
    while wakeups.next().await != Some(Wakeup::Drain(worker)) {}
    assert!(world.store.drain_worker(worker).await.unwrap(), "asking twice is the same");
    let drained = |rows: Vec<windlass_kernel::Worker>| {
        let drained = rows.into_iter().filter(|row| row.drain);
        drained.map(|row| row.info.worker).collect::<Vec<_>>()
    };
    assert_eq!(drained(listed(&world).await), [worker]);
    for status in [WorkerStatus::Active, WorkerStatus::Draining, WorkerStatus::Stopped] {
        let info = WorkerInfo { status, ..world.info(worker) };
        assert!(world.store.renew(info).await.unwrap().drain);
        assert!(!world.renew(other).await.drain);
    }
    assert!(!world.store.drain_worker(worker).await.unwrap(), "it has stopped");
}

/// A worker that renews too late learns it, and must be steady again before it may reap.
pub async fn a_lapsed_lease_is_reported(world: World) {
    let worker = world.steady_worker().await;
    assert!(world.renew(worker).await.may_reap);
    world.advance_ms(30_001).await;
    assert!(!world.store.reap(worker, 10).await.unwrap().permitted, "its own lease has run out");
    let renewed = world.renew(worker).await;
    assert!(renewed.lapsed && !renewed.may_reap);
    world.advance_ms(20_000).await;
    assert!(!world.renew(worker).await.may_reap);
    world.advance_ms(20_000).await;
    assert!(world.renew(worker).await.may_reap);
}

/// Only a worker that has renewed without a gap for a lease may reap.
pub async fn only_a_steady_worker_reaps(world: World) {
    let (run, _) = world.create_held("orphan").await;
    let worker = world.worker();
    assert!(!world.store.reap(worker, 10).await.unwrap().permitted, "it is not even registered");
    world.renew(worker).await;
    world.advance_ms(20_000).await;
    world.renew(worker).await;
    let reaped = world.store.reap(worker, 10).await.unwrap();
    assert!(!reaped.permitted && reaped.turns.is_empty());
    assert!(world.run(run.run_key).await.turn.worker.is_some());
    world.advance_ms(10_000).await;
    world.renew(worker).await;
    let reaped = world.store.reap(worker, 10).await.unwrap();
    assert!(reaped.permitted);
    assert_eq!(reaped.turns, [run.run_key]);
}

/// A newcomer in a fleet that has renewed without a gap for a lease may reap at once, also if each
/// worker of the fleet lived only for seconds. After an outage nobody may.
pub async fn a_newcomer_continues_the_series_of_a_fleet(world: World) {
    let (run, _) = world.create_held("orphan").await;
    let mut last = world.worker();
    world.renew(last).await;
    for _ in 0..4 {
        assert!(!world.store.reap(last, 10).await.unwrap().permitted);
        world.advance_ms(8_000).await;
        // The one before crashed; this one has just started.
        last = world.worker();
        world.renew(last).await;
    }
    let reaped = world.store.reap(last, 10).await.unwrap();
    assert!(reaped.permitted, "the fleet renewed for 32 seconds");
    assert_eq!(reaped.turns, [run.run_key]);
    // Nobody renews for more than half a lease: the store may have been out of reach.
    world.advance_ms(15_001).await;
    let late = world.worker();
    assert!(!world.renew(late).await.may_reap);
}

/// A renewal tells when the first lease of another live worker ends.
pub async fn renewals_tell_the_next_lapse(world: World) {
    let (first, second) = (world.worker(), world.worker());
    assert_eq!(world.renew(first).await.next_lapse, None);
    world.advance_ms(10_000).await;
    let renewed = world.renew(second).await;
    let lease = world.info(first).lease;
    let ends = renewed.next_lapse.expect("the first worker is live");
    assert!(ends > renewed.now && ends <= renewed.now.plus(lease - Duration::from_secs(9)));
    world.advance_ms(25_000).await;
    assert_eq!(world.renew(second).await.next_lapse, None, "the first worker is dead");
}

/// Reaping frees what dead and unknown workers hold, no more than asked, and nothing of the live.
pub async fn reaping_frees_and_counts(world: World) {
    let (dying, unknown, live) = (world.worker(), world.worker(), world.worker());
    world.renew(dying).await;
    let mut tasks = Vec::new();
    for worker in [dying, unknown, live] {
        let run = idle_run(&world, &format!("r{}", tasks.len()), windlass_kernel::Wake::Now).await;
        world.enqueue(vec![world.task(None)]).await;
        let turn = world.claim_turns(worker, 1).await.remove(0);
        assert_eq!(turn.run_key, run.run_key);
        tasks.push((world.claim_tasks(worker, 1).await.remove(0), run));
        world.advance_ms(5).await;
    }
    let reaper = world.worker();
    for _ in 0..4 {
        world.renew(reaper).await;
        world.renew(live).await;
        world.advance_ms(10_001).await;
    }
    world.renew(reaper).await;
    world.renew(live).await;
    let first = world.store.reap(reaper, 1).await.unwrap();
    assert_eq!((first.turns.len(), first.tasks.len()), (1, 1));
    assert_eq!(first.turns, [tasks[0].1.run_key], "the oldest claim is freed first");
    let second = world.store.reap(reaper, 10).await.unwrap();
    assert_eq!(second.turns, [tasks[1].1.run_key]);
    assert_eq!(second.tasks, [tasks[1].0.task_id]);
    let third = world.store.reap(reaper, 10).await.unwrap();
    assert_eq!((third.permitted, third.turns.len(), third.tasks.len()), (true, 0, 0));
    let freed = world.run(tasks[0].1.run_key).await.turn;
    assert_eq!((freed.ready, freed.reclaims, freed.worker), (true, 1, None));
    assert!(freed.due_at.is_some());
    assert!(world.run(tasks[2].1.run_key).await.turn.worker == Some(live));

    world.advance_ms(25 * 3_600_000).await;
    let reaper = world.steady_worker().await;
    world.store.reap(reaper, 10).await.unwrap();
    let left: Vec<WorkerKey> = listed(&world).await.iter().map(|row| row.info.worker).collect();
    assert_eq!(left, [reaper], "rows of workers gone for a day are removed");
}

/// Reclaims count up without progress and start anew with it.
pub async fn progress_resets_reclaims(world: World) {
    let (run, _) = world.create_held("run").await;
    world.enqueue(vec![world.task(None)]).await;
    world.claim_tasks(world.worker(), 1).await;
    let reaper = world.steady_worker().await;
    for expect in 1..=2 {
        world.store.reap(reaper, 10).await.unwrap();
        let ghost = world.worker();
        assert_eq!(world.claim_turns(ghost, 1).await[0].reclaims, expect);
        assert_eq!(world.claim_tasks(ghost, 1).await[0].reclaims, expect);
    }
    world.store.reap(reaper, 10).await.unwrap();
    let turn = world.claim_turns(reaper, 1).await.remove(0);
    assert_eq!(turn.reclaims, 3);
    world.ok(world.step_commit(&run, turn.hold, "one", "1")).await;
    assert_eq!(world.run(run.run_key).await.turn.reclaims, 0);
}

/// A worker finds what its key holds, and gives back what it does not know.
pub async fn holds_are_listed_and_released(world: World) {
    let worker = world.worker();
    let due_at = Some(world.now().await.minus(Duration::from_secs(60)));
    for n in 0..3 {
        idle_run(&world, &format!("r{n}"), windlass_kernel::Wake::Now).await;
        world.enqueue(vec![Task { due_at, ..world.task(None) }]).await;
    }
    let turns = world.claim_turns(worker, 3).await;
    world.claim_tasks(worker, 3).await;
    let held = world.store.held(worker).await.unwrap();
    assert_eq!(held.len(), 6);
    let mut sorted = held.clone();
    sorted.sort_unstable();
    assert_eq!(held, sorted, "turns by run key, then tasks by id");
    assert_eq!(world.store.release(held[1..].to_vec()).await.unwrap(), 5);
    assert_eq!(world.store.held(worker).await.unwrap(), held[..1]);
    let again = world.claim_tasks(world.worker(), 3).await;
    assert!(again.iter().all(|task| task.due_at == due_at), "what is given back keeps its age");
    assert_eq!(turns.len(), 3);
}

/// A sign of life is kept with what it says, from the holder alone, over attempts.
pub async fn heartbeats_of_holders_are_kept(world: World) {
    world.enqueue(vec![world.task(None), world.task(None)]).await;
    let tasks = world.claim_tasks(world.worker(), 2).await;
    let beat = |task: &Task, claim_no: u64, details: Option<&str>| Heartbeat {
        task_id: task.task_id,
        hold: Hold { claim_no, ..task.hold().unwrap() },
        details: details.map(|details| Body::json(details.to_owned())),
    };
    let (first, second) = (&tasks[0], &tasks[1]);
    let beats =
        vec![beat(first, first.claim_no, Some("1")), beat(second, second.claim_no + 1, Some("2"))];
    let before = world.now().await;
    assert_eq!(world.store.heartbeat(beats).await.unwrap(), [true, false]);
    world.advance_ms(1_000).await;
    let again = vec![beat(first, first.claim_no, None)];
    assert_eq!(world.store.heartbeat(again).await.unwrap(), [true]);

    let held = world.store.held(first.worker.unwrap()).await.unwrap();
    assert_eq!(world.store.release(held).await.unwrap(), 2);
    let again = world.claim_tasks(world.worker(), 2).await;
    let found = |of: &Task| again.iter().find(|task| task.task_id == of.task_id).unwrap();
    assert_eq!(found(first).heartbeat, Some(Body::json("1")), "the next attempt can read it");
    assert!(found(first).heartbeat_at.unwrap() >= before.plus(Duration::from_secs(1)));
    assert_eq!((found(second).heartbeat_at, &found(second).heartbeat), (None, &None));
    let stale = vec![beat(first, first.claim_no, Some("9"))];
    assert_eq!(world.store.heartbeat(stale).await.unwrap(), [false], "its hold is over");

    let long = Body::json("1".repeat(Limits::DEFAULT.heartbeat_bytes_max + 1));
    let long = Heartbeat { details: Some(long), ..beat(first, 0, None) };
    let refused = world.store.heartbeat(vec![long]).await.unwrap_err();
    assert_eq!(refused.code(), "INVALID_SIZE");
}

/// Renewal tells a holder of unread control messages, until they are consumed.
pub async fn control_messages_reach_the_holder(world: World) {
    let (run, hold) = world.create_held("run").await;
    let (other, _) = world.create_held("other").await;
    assert!(world.renew(hold.worker).await.control.is_empty());
    let mut control = world.message(run.run_key, "stop");
    control.kind = MessageKind::Control;
    world.ok(world.send_commit(control)).await;
    world.ok(world.send_commit(world.message(run.run_key, "event"))).await;
    let mut elsewhere = world.message(other.run_key, "stop");
    elsewhere.kind = MessageKind::Control;
    world.ok(world.send_commit(elsewhere)).await;
    assert_eq!(world.renew(hold.worker).await.control, [run.run_key]);

    let message = world.load(run.run_key).await.messages.remove(0);
    let mut draft = world.draft(&run, hold);
    let by = windlass_kernel::StepKey::new("control").unwrap();
    let none = serde_json::json!({});
    draft.consume(events::MESSAGE_RECEIVED, &none, &message, by, world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    assert!(world.renew(hold.worker).await.control.is_empty());
}

/// The holds of a worker that has stopped are freed at once.
pub async fn stopped_workers_hold_nothing(world: World) {
    let reaper = world.steady_worker().await;
    let (run, hold) = world.create_held("run").await;
    world.renew(hold.worker).await;
    assert!(world.store.reap(reaper, 10).await.unwrap().turns.is_empty());
    let goodbye = WorkerInfo { status: WorkerStatus::Stopped, ..world.info(hold.worker) };
    world.store.renew(goodbye).await.unwrap();
    assert_eq!(world.store.reap(reaper, 10).await.unwrap().turns, [run.run_key]);
}
