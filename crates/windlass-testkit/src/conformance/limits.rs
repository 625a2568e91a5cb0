//! Limits: how many may hold under a key at once.

use std::time::Duration;

use windlass_kernel::{
    Capped, ClaimFilter, ClaimOrder, ClaimRequest, Commit, LimitKey, LimitState, Namespace, Op,
    Query, Task, TaskGuard, Turn, Wake,
};

use super::batches::idle_run;
use crate::world::{World, route};

fn key(text: &str) -> LimitKey {
    LimitKey::new(text).unwrap()
}

fn limited(world: &World, text: &str) -> Task {
    Task { limit_key: Some(key(text)), ..world.task(None) }
}

async fn set(world: &World, text: &str, slots: Option<u32>) {
    let namespace = Namespace::default_namespace();
    world.store.set_limit(namespace, key(text), slots).await.unwrap();
}

/// A claim takes no more under a key than it has slots, and passes over what is full.
pub async fn hold_back_claims(world: World) {
    set(&world, "api", Some(2)).await;
    let mut tasks: Vec<Task> = (0..5).map(|_| limited(&world, "api")).collect();
    tasks.push(limited(&world, "unlimited"));
    tasks.push(world.task(None));
    world.enqueue(tasks).await;
    let first = world.claim_tasks(world.worker(), 10).await;
    assert_eq!(first.len(), 4, "two under the limit, and the two that have none");
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty());
    set(&world, "api", Some(3)).await;
    assert_eq!(world.claim_tasks(world.worker(), 10).await.len(), 1);
    set(&world, "api", Some(0)).await;
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty());
    set(&world, "api", None).await;
    assert_eq!(world.claim_tasks(world.worker(), 10).await.len(), 2);
}

/// Behind the long queue of a full limit, a claim for the oldest takes the oldest, whatever its priority.
pub async fn do_not_let_urgent_work_starve_the_oldest(world: World) {
    set(&world, "full", Some(0)).await;
    set(&world, "free", Some(1)).await;
    // They come first in the order of priority, so a claim looks at each limit by itself.
    let task = |_| Task { priority: 20, ..limited(&world, "full") };
    world.enqueue((0..150).map(task).collect()).await;
    world.advance_ms(5).await;
    let oldest = Task { priority: -5, ..limited(&world, "free") };
    world.enqueue(vec![oldest.clone()]).await;
    let turn =
        |text: &str, priority| Turn { limit_key: Some(key(text)), priority, ..Turn::ready() };
    for n in 0..120 {
        world.create(world.new_run(&format!("full-{n}"), turn("full", 20))).await;
    }
    set(&world, "turns", Some(1)).await;
    let run = world.create(world.new_run("oldest", turn("turns", -5))).await.run_key;
    world.advance_ms(5).await;
    world.create(world.new_run("urgent", turn("turns", 9))).await;
    let urgent = |_| Task { priority: 9, ..limited(&world, "free") };
    world.enqueue((0..3).map(urgent).collect()).await;
    let claim = async |order| {
        let request = ClaimRequest {
            worker: world.worker(),
            turns: ClaimFilter { routes: vec![route("default", "w")], max: 1, after: None },
            tasks: ClaimFilter { routes: vec![route("q", "t")], max: 1, after: None },
            order,
            offer: Duration::ZERO,
        };
        world.store.claim(request).await.unwrap()
    };
    let claims = claim(ClaimOrder::Oldest).await;
    let tasks: Vec<_> = claims.tasks.iter().map(|task| task.task_id).collect();
    let turns: Vec<_> = claims.turns.iter().map(|turn| turn.run_key).collect();
    assert_eq!((tasks, turns), (vec![oldest.task_id], vec![run]));
}

/// Slots come back when a holder settles, gives back or is reaped.
pub async fn come_back_after_settling_and_reaping(world: World) {
    set(&world, "api", Some(1)).await;
    world.enqueue((0..3).map(|_| limited(&world, "api")).collect()).await;
    let first = world.claim_tasks(world.worker(), 10).await.remove(0);
    let guard = TaskGuard::Held { task_id: first.task_id, hold: first.hold().unwrap() };
    world.ok(Commit::new(None, Some(guard), vec![Op::Settle { task_id: first.task_id }])).await;

    let second = world.claim_tasks(world.worker(), 10).await;
    assert_eq!(second.len(), 1);
    let held = world.store.held(second[0].worker.unwrap()).await.unwrap();
    world.store.release(held).await.unwrap();

    assert_eq!(world.claim_tasks(world.worker(), 10).await.len(), 1);
    let reaper = world.steady_worker().await;
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty(), "the dead still hold");
    assert_eq!(world.store.reap(reaper, 10).await.unwrap().tasks.len(), 1);
    assert_eq!(world.claim_tasks(world.worker(), 10).await.len(), 1);
}

/// Turns and tasks under one key share its slots.
pub async fn are_shared_by_turns_and_tasks(world: World) {
    set(&world, "tenant", Some(2)).await;
    for n in 0..2 {
        let turn = Turn { limit_key: Some(key("tenant")), ..Turn::ready() };
        world.create(world.new_run(&format!("r{n}"), turn)).await;
    }
    world.enqueue((0..2).map(|_| limited(&world, "tenant")).collect()).await;
    assert_eq!(world.claim_turns(world.worker(), 1).await.len(), 1);
    let request = ClaimRequest {
        worker: world.worker(),
        turns: ClaimFilter { routes: vec![route("default", "w")], max: 10, after: None },
        tasks: ClaimFilter { routes: vec![route("q", "t")], max: 10, after: None },
        order: ClaimOrder::Priority,
        offer: Duration::ZERO,
    };
    let claims = world.store.claim(request).await.unwrap();
    assert_eq!((claims.turns.len(), claims.tasks.len()), (1, 0), "turns are taken first");
    assert_eq!(idle_run(&world, "free", Wake::Now).await.turn.limit_key, None);
    assert_eq!(world.claim_turns(world.worker(), 10).await.len(), 1);
}

/// Limits list with how many hold under them, each in its own namespace.
pub async fn are_listed_with_their_holders(world: World) {
    for (text, slots) in [("b", 5), ("a", 2), ("c", 1)] {
        set(&world, text, Some(slots)).await;
    }
    let other = Namespace::new("other").unwrap();
    world.store.set_limit(other, key("a"), Some(9)).await.unwrap();
    world.enqueue((0..3).map(|_| limited(&world, "b")).collect()).await;
    world.claim_tasks(world.worker(), 10).await;
    let page = |after: Option<&str>| Query::Limits {
        namespace: Namespace::default_namespace(),
        after: after.map(key),
        limit: 2,
    };
    world.enqueue((0..2).map(|_| limited(&world, "b")).collect()).await;
    let turn = Turn { limit_key: Some(key("b")), ..Turn::ready() };
    world.create(world.new_run("waiting", turn)).await;
    let state = |text: &str, slots, held, waiting| LimitState {
        key: key(text),
        slots,
        held,
        waiting: Capped::new(waiting),
    };
    let first = world.store.list(page(None)).await.unwrap().limits().unwrap();
    assert_eq!(first, [state("a", 2, 0, 0), state("b", 5, 3, 3)]);
    let second = world.store.list(page(Some("b"))).await.unwrap().limits().unwrap();
    assert_eq!(second, [state("c", 1, 0, 0)]);
}

/// Claims at the same time never exceed a limit.
pub async fn never_exceeded_by_concurrent_claims(world: World) {
    set(&world, "api", Some(7)).await;
    world.enqueue((0..60).map(|_| limited(&world, "api")).collect()).await;
    let claims = (0..8).map(|_| world.claim_tasks(world.worker(), 5));
    let claims: Vec<Vec<Task>> = futures::future::join_all(claims).await;
    assert_eq!(claims.iter().map(Vec::len).sum::<usize>(), 7);
}

/// Rows that stand behind many rows of full limits are claimed, in their order.
pub async fn let_claims_see_past_a_long_queue(world: World) {
    for (text, slots) in [("full", Some(0)), ("one", Some(1)), ("open", None)] {
        set(&world, text, slots).await;
    }
    world.enqueue((0..700).map(|_| limited(&world, "full")).collect()).await;
    world.advance_ms(5).await;
    let mut expect = Vec::new();
    for text in ["one", "open", "one", "open", "full"] {
        let task = limited(&world, text);
        expect.push(task.task_id);
        world.enqueue(vec![task]).await;
        world.advance_ms(5).await;
    }
    let plain = world.task(None);
    world.enqueue(vec![plain.clone()]).await;
    let worker = world.worker();
    let found: Vec<_> = world.claim_tasks(worker, 3).await.iter().map(|t| t.task_id).collect();
    assert_eq!(found, [expect[0], expect[1], expect[3]]);
    let oldest = world.claim_tasks_of(worker, &[route("q", "t")], 10, ClaimOrder::Oldest).await;
    assert_eq!(oldest.iter().map(|task| task.task_id).collect::<Vec<_>>(), [plain.task_id]);
    set(&world, "one", Some(2)).await;
    let found = world.claim_tasks_of(worker, &[route("q", "t")], 10, ClaimOrder::Oldest).await;
    assert_eq!(found.iter().map(|task| task.task_id).collect::<Vec<_>>(), [expect[2]]);
}
