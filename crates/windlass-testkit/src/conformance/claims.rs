//! Claims: in order, only what is asked for, nothing twice.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use windlass_kernel::{
    ClaimFilter, ClaimOrder, ClaimRequest, HeldItem, Hold, Namespace, QueueName, RouteName,
    RunStatus, Task, Turn, Wake, WorkflowName,
};

use super::batches::idle_run;
use crate::events;
use crate::world::{World, route};

fn prioritised(world: &World, priority: i16) -> Task {
    Task { priority, ..world.task(None) }
}

/// Turns come by priority, then resumed before first ones, then by age.
pub async fn by_priority_then_resumed_then_age(world: World) {
    let mut expect = Vec::new();
    let mut make = Vec::new();
    for (rank, id, priority) in [(3, "first-old", 0), (4, "first-new", 0), (0, "high", 5)] {
        let turn = Turn { priority, ..Turn::ready() };
        let run = world.create(world.new_run(id, turn)).await;
        make.push((rank, run.run_key));
        world.advance_ms(5).await;
    }
    for (rank, id) in [(1, "resumed-old"), (2, "resumed-new")] {
        let run = idle_run(&world, id, Wake::Now).await;
        make.push((rank, run.run_key));
        world.advance_ms(5).await;
    }
    let low = Turn { priority: -1, ..Turn::ready() };
    make.push((5, world.create(world.new_run("low", low)).await.run_key));
    make.sort_unstable();
    expect.extend(make.into_iter().map(|(_, key)| key));

    let worker = world.worker();
    let mut found = Vec::new();
    for max in [1, 3, 10] {
        let turns = world.claim_turns(worker, max).await;
        assert!(turns.len() <= max as usize);
        for turn in &turns {
            let run = world.run(turn.run_key).await;
            assert_eq!(run.turn.hold(), Some(turn.hold));
            assert_eq!((turn.head, turn.accepted, turn.reclaims), (run.head, 0, 0));
            assert_eq!((&turn.workflow, turn.status), (&run.workflow, run.status));
            assert!(run.turn.claimed_at.is_some() && !run.turn.ready);
        }
        found.extend(turns.into_iter().map(|turn| turn.run_key));
    }
    assert_eq!(found, expect);
}

/// A run that has begun comes before first turns, however its turn was released: by a commit, a release, a
/// message, a timer or a reaper. One that was claimed and has written nothing is still a first turn.
pub async fn resumed_however_the_turn_came_back(world: World) {
    let worker = world.steady_worker().await;
    let started = async |id: &str| {
        let (run, hold) = world.create_held(id).await;
        assert!(run.started_at.is_none());
        world.ok(world.step_commit(&run, hold, "a", "1")).await;
        let run = world.run(run.run_key).await;
        assert!(run.started_at.is_some(), "its first step starts it");
        (run, hold)
    };
    let item = |run_key, hold: Hold| HeldItem::Turn {
        run_key,
        worker: hold.worker,
        claim_no: hold.claim_no,
    };
    let (reaped, _) = started("reaped").await;
    world.store.reap(worker, 10).await.unwrap();

    // Older than everything that follows, and still behind it.
    let first = world.create(world.new_run("first", Turn::ready())).await;
    let turns = world.claim_turns(world.worker(), 10).await;
    let keys: Vec<_> = turns.iter().map(|turn| turn.run_key).collect();
    assert_eq!(keys, [reaped.run_key, first.run_key]);
    world
        .store
        .release(turns.iter().map(|turn| item(turn.run_key, turn.hold)).collect())
        .await
        .unwrap();
    world.advance_ms(5).await;

    let mut expect = vec![reaped.run_key];
    let (run, hold) = started("released").await;
    world.store.release(vec![item(run.run_key, hold)]).await.unwrap();
    expect.push(run.run_key);
    world.advance_ms(5).await;

    let (run, hold) = started("committed").await;
    world.ok(world.release_commit(&run, hold, Wake::Now, 0)).await;
    expect.push(run.run_key);
    world.advance_ms(5).await;

    let (run, hold) = started("messaged").await;
    world.ok(world.release_commit(&run, hold, Wake::OnMessage, 0)).await;
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    expect.push(run.run_key);
    world.advance_ms(5).await;

    let (run, hold) = started("timed").await;
    let due = world.now().await.plus(Duration::from_millis(5));
    world.ok(world.release_commit(&run, hold, Wake::At(due), 0)).await;
    world.advance_ms(10).await;
    world.store.promote(10).await.unwrap();
    expect.push(run.run_key);

    expect.push(first.run_key);
    let turns = world.claim_turns(world.worker(), 10).await;
    assert_eq!(turns.iter().map(|turn| turn.run_key).collect::<Vec<_>>(), expect);
}

/// A claim for the oldest passes over priorities.
pub async fn oldest_whatever_its_priority(world: World) {
    let mut expect = Vec::new();
    for priority in [-5, 9, 0, 9, -5] {
        let task = prioritised(&world, priority);
        expect.push(task.task_id);
        world.enqueue(vec![task]).await;
        world.advance_ms(5).await;
    }
    let routes = [route("q", "t")];
    let mut found = Vec::new();
    for _ in 0..3 {
        let tasks = world.claim_tasks_of(world.worker(), &routes, 2, ClaimOrder::Oldest).await;
        found.extend(tasks.into_iter().map(|task| task.task_id));
    }
    assert_eq!(found, expect);

    let mut runs = Vec::new();
    for (id, priority) in [("a", 0), ("b", 7)] {
        let turn = Turn { priority, ..Turn::ready() };
        runs.push(world.create(world.new_run(id, turn)).await.run_key);
        world.advance_ms(5).await;
    }
    let request = ClaimRequest {
        worker: world.worker(),
        turns: ClaimFilter { routes: vec![route("default", "w")], max: 1, after: None },
        tasks: ClaimFilter::default(),
        order: ClaimOrder::Oldest,
        offer: Duration::ZERO,
    };
    let turns = world.store.claim(request).await.unwrap().turns;
    assert_eq!(turns[0].run_key, runs[0]);
}

/// Only the asked queues and names are claimed.
pub async fn only_what_is_asked_for(world: World) {
    let place = |queue: &str, name: &str| Task {
        queue: QueueName::new(queue).unwrap(),
        name: RouteName::new(name).unwrap(),
        ..world.task(None)
    };
    let tasks = vec![place("q", "t"), place("q", "u"), place("p", "t"), place("p", "u")];
    let wanted: BTreeSet<_> = [tasks[1].task_id, tasks[2].task_id].into();
    world.enqueue(tasks).await;
    let routes = [route("q", "u"), route("p", "t"), route("p", "nobody"), route("q", "u")];
    let order = ClaimOrder::Priority;
    let found = world.claim_tasks_of(world.worker(), &routes, 10, order).await;
    assert_eq!(found.iter().map(|task| task.task_id).collect::<BTreeSet<_>>(), wanted);
    assert!(world.claim_tasks_of(world.worker(), &[], 10, order).await.is_empty());

    let mut other = world.new_run("other", Turn::ready());
    other.workflow = WorkflowName::new("w2").unwrap();
    world.create(other).await;
    let queue = Turn { queue: QueueName::new("special").unwrap(), ..Turn::ready() };
    world.create(world.new_run("queued", queue)).await;
    assert!(world.claim_turns(world.worker(), 10).await.is_empty());
}

/// A turn or a task that is due later is not claimed.
pub async fn never_a_future_task(world: World) {
    let now = world.now().await;
    let later = now.plus(Duration::from_secs(3_600));
    let due_at = Some(later);
    let task = Task { due_at, ready: false, ..world.task(None) };
    // A task that claims to be ready before its time is not believed.
    let liar = Task { due_at, ready: true, ..world.task(None) };
    world.enqueue(vec![task, liar]).await;
    idle_run(&world, "sleeps", Wake::At(later)).await;
    world.store.promote(100).await.unwrap();
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty());
    assert!(world.claim_turns(world.worker(), 10).await.is_empty());
}

/// Claims at the same time never give one task to two workers, and leave none behind.
pub async fn never_one_task_twice(world: World) {
    world.enqueue((0..300).map(|n| prioritised(&world, n % 3)).collect()).await;
    for n in 0..100 {
        world.create(world.new_run(&format!("r{n}"), Turn::ready())).await;
    }
    let claimer = || async {
        let worker = world.worker();
        let mut tasks = Vec::new();
        let mut turns = Vec::new();
        let mut empty = 0;
        while empty < 3 {
            let request = ClaimRequest {
                worker,
                turns: ClaimFilter { routes: vec![route("default", "w")], max: 5, after: None },
                tasks: ClaimFilter { routes: vec![route("q", "t")], max: 7, after: None },
                order: ClaimOrder::Priority,
                offer: Duration::ZERO,
            };
            let claims = world.store.claim(request).await.unwrap();
            assert!(claims.tasks.len() <= 7 && claims.turns.len() <= 5);
            empty = if claims.tasks.is_empty() && claims.turns.is_empty() { empty + 1 } else { 0 };
            for task in &claims.tasks {
                assert_eq!(task.hold(), Some(Hold { worker, claim_no: 1 }));
            }
            tasks.extend(claims.tasks.into_iter().map(|task| task.task_id));
            turns.extend(claims.turns.into_iter().map(|turn| turn.run_key));
        }
        (tasks, turns)
    };
    let claims = futures::join!(claimer(), claimer(), claimer(), claimer());
    let mut tasks = [claims.0.0, claims.1.0, claims.2.0, claims.3.0].concat();
    let mut turns = [claims.0.1, claims.1.1, claims.2.1, claims.3.1].concat();
    assert_eq!((tasks.len(), turns.len()), (300, 100));
    tasks.sort_unstable();
    tasks.dedup();
    turns.sort_unstable();
    turns.dedup();
    assert_eq!((tasks.len(), turns.len()), (300, 100));
}

/// Tasks come by priority, then by age.
pub async fn tasks_by_priority_and_age(world: World) {
    let mut tasks = Vec::new();
    for priority in [0, 3, 0, 3, i16::MIN, i16::MAX] {
        let task = prioritised(&world, priority);
        world.enqueue(vec![task.clone()]).await;
        world.advance_ms(5).await;
        tasks.push(task);
    }
    let found = world.claim_tasks(world.worker(), 10).await;
    let found: Vec<_> = found.iter().map(|task| task.task_id).collect();
    let expect: Vec<_> = [5, 1, 3, 0, 2, 4].map(|n: usize| tasks[n].task_id).into();
    assert_eq!(found, expect);
}

// (name, priority) as they are enqueued, the order, and what is claimed.
type Routed = (&'static [(&'static str, i16)], ClaimOrder, &'static [usize]);

/// A claim of several routes takes from whichever have something, in one order.
pub async fn several_routes_in_one_order(world: World) {
    let routes = [route("q", "idle"), route("q", "t"), route("q", "u"), route("other", "t")];
    for order in [ClaimOrder::Priority, ClaimOrder::Oldest] {
        assert!(world.claim_tasks_of(world.worker(), &routes, 5, order).await.is_empty());
    }
    let cases: [Routed; 4] = [
        (&[("t", 0), ("t", 0), ("t", 0)], ClaimOrder::Oldest, &[0, 1, 2]),
        (&[("t", 0), ("t", 5), ("t", 0)], ClaimOrder::Priority, &[1, 0, 2]),
        (&[("t", 0), ("u", 5), ("t", 0), ("u", 0)], ClaimOrder::Priority, &[1, 0, 2, 3]),
        (&[("t", 0), ("u", 5), ("t", 7), ("u", 0)], ClaimOrder::Oldest, &[0, 1, 2, 3]),
    ];
    for (enqueued, order, expect) in cases {
        let mut ids = Vec::new();
        for (name, priority) in enqueued {
            let mut task = prioritised(&world, *priority);
            task.name = RouteName::from_stored(*name);
            ids.push(task.task_id);
            world.enqueue(vec![task]).await;
            world.advance_ms(5).await;
        }
        let mut found = Vec::new();
        for max in [2, 10] {
            let tasks = world.claim_tasks_of(world.worker(), &routes, max, order).await;
            found.extend(tasks.into_iter().map(|task| task.task_id));
        }
        assert_eq!(found, expect.iter().map(|n| ids[*n]).collect::<Vec<_>>(), "{enqueued:?}");
    }
}

/// A claim has a limit, and the error names it.
pub async fn too_many_at_once_are_refused(world: World) {
    let request = ClaimRequest {
        worker: world.worker(),
        turns: ClaimFilter { routes: vec![route("default", "w")], max: 1_001, after: None },
        tasks: ClaimFilter::default(),
        order: ClaimOrder::Priority,
        offer: Duration::ZERO,
    };
    let error = world.store.claim(request).await.unwrap_err();
    assert_eq!(error.code(), "INVALID_CLAIM");
    assert!(error.to_string().contains("1000"), "{error}");
}

/// A paused run has no turn to claim, even if it was paused while ready.
pub async fn nothing_of_a_paused_run(world: World) {
    let run = world.create(world.new_run("paused", Turn::ready())).await;
    let worker = world.worker();
    let mut draft = windlass_kernel::Draft::free(&run, worker, run.created_at);
    draft.event(events::WORKFLOW_PAUSED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused).release(Wake::Now, 0);
    world.ok(draft.finish()).await;
    world.store.promote(100).await.unwrap();
    assert!(world.claim_turns(worker, 10).await.is_empty());
    // A holder that pauses, keeps the turn and then dies must not make it ready either.
    let paused = world.run(run.run_key).await;
    let taken = world.store.revoke(run.run_key, worker).await.unwrap().unwrap();
    assert_eq!(taken.hold.claim_no, paused.turn.claim_no + 1);
    let held = world.store.held(worker).await.unwrap();
    assert_eq!(world.store.release(held).await.unwrap(), 1);
    assert!(world.claim_turns(worker, 10).await.is_empty());
}

/// A turn that became ready is left to the worker that gave it back last, as long as the claim says.
pub async fn a_turn_is_left_to_its_last_worker_for_a_while(world: World) {
    let (run, hold) = world.create_held("sticky").await;
    world.ok(world.release_commit(&run, hold, Wake::OnMessage, 0)).await;
    let released = world.run(run.run_key).await;
    assert_eq!(released.turn.last_worker, Some(hold.worker));
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    let fresh = world.create(world.new_run("fresh", Turn::ready())).await;
    let claim = |worker, offer| {
        let request = ClaimRequest {
            worker,
            turns: ClaimFilter { routes: vec![route("default", "w")], max: 10, after: None },
            tasks: ClaimFilter::default(),
            order: ClaimOrder::Priority,
            offer,
        };
        let store = world.store.clone();
        async move {
            let turns = store.claim(request).await.unwrap().turns;
            turns.into_iter().map(|turn| turn.run_key).collect::<Vec<_>>()
        }
    };
    let (other, offer) = (world.worker(), Duration::from_secs(600));
    assert_eq!(claim(other, offer).await, [fresh.run_key], "what nobody had is for everybody");
    world.advance_ms(300_000).await;
    assert_eq!(claim(other, offer).await, []);
    assert_eq!(claim(hold.worker, offer).await, [run.run_key]);

    // The preferred worker claims it at once; every other worker after the offer window.
    let again = world.store.held(hold.worker).await.unwrap();
    world.store.release(again).await.unwrap();
    assert_eq!(
        world.run(run.run_key).await.turn.last_worker,
        None,
        "it was given back without a commit"
    );
    assert_eq!(claim(other, offer).await, [run.run_key]);
    let row = world.run(run.run_key).await;
    let commit = world.release_commit(&row, row.turn.hold().unwrap(), Wake::Now, 1);
    world.ok(commit).await;
    let third = world.worker();
    assert_eq!(claim(third, offer).await, []);
    world.advance_ms(600_000).await;
    assert_eq!(claim(third, offer).await, [run.run_key]);
}

fn of(world: &World, namespace: &str, priority: i16) -> Task {
    Task { namespace: Namespace::new(namespace).unwrap(), ..prioritised(world, priority) }
}

/// Namespaces take turns, also when one has an older, longer and more urgent queue, and a claim begins
/// after the namespace that was served last.
pub async fn namespaces_take_turns(world: World) {
    world.enqueue((0..40).map(|_| of(&world, "big", i16::MAX)).collect()).await;
    world.advance_ms(5).await;
    let mut small: Vec<Task> = (0..3).map(|n| of(&world, "small", n)).collect();
    small[2].name = RouteName::from_stored("u");
    let other = of(&world, "a-third", 0);
    world.enqueue([small.clone(), vec![other]].concat()).await;
    let routes = [route("q", "t"), route("q", "u"), route("q", "nobody")];
    let claim = |max, after: Option<&str>, order| {
        let (routes, after) = (routes.to_vec(), after.map(|name| Namespace::new(name).unwrap()));
        let request = ClaimRequest {
            worker: world.worker(),
            turns: ClaimFilter::default(),
            tasks: ClaimFilter { routes, max, after },
            order,
            offer: Duration::ZERO,
        };
        let store = world.store.clone();
        async move {
            let tasks = store.claim(request).await.unwrap().tasks;
            tasks.into_iter().map(|task| (task.namespace.to_string(), task.task_id)).collect()
        }
    };
    let names = |tasks: &Vec<(String, _)>| {
        tasks.iter().map(|(name, _)| name.clone()).collect::<Vec<String>>()
    };
    let first: Vec<_> = claim(2, Some("big"), ClaimOrder::Priority).await;
    assert_eq!(names(&first), ["small", "a-third"]);
    assert_eq!(first[0].1, small[2].task_id, "the most urgent of its namespace, of any route");
    let second: Vec<_> = claim(3, Some("a-third"), ClaimOrder::Oldest).await;
    assert_eq!(names(&second), ["big", "small", "big"]);
    let third: Vec<_> = claim(1, Some("small"), ClaimOrder::Priority).await;
    assert_eq!(names(&third), ["big"], "after the last one comes the first");
    let fourth: Vec<_> = claim(5, None, ClaimOrder::Priority).await;
    assert_eq!(names(&fourth), ["big", "small", "big", "big", "big"]);
    let rest: Vec<_> = claim(100, Some("small"), ClaimOrder::Priority).await;
    assert_eq!(rest.len(), 33);
}

/// Turns are taken in the same way as tasks, by every worker that claims one at a time.
pub async fn turns_of_namespaces_take_turns(world: World) {
    for (namespace, runs) in [("big", 20), ("small", 2), ("tiny", 1)] {
        for n in 0..runs {
            let mut run = world.new_run(&format!("{namespace}-{n}"), Turn::ready());
            run.namespace = Namespace::new(namespace).unwrap();
            if namespace == "big" {
                run.turn.priority = 9;
            }
            world.create(run).await;
        }
    }
    let mut after = None;
    let mut found = Vec::new();
    for _ in 0..8 {
        let request = ClaimRequest {
            worker: world.worker(),
            turns: ClaimFilter { routes: vec![route("default", "w")], max: 1, after },
            tasks: ClaimFilter::default(),
            order: ClaimOrder::Priority,
            offer: Duration::ZERO,
        };
        let turns = world.store.claim(request).await.unwrap().turns;
        assert_eq!(turns.len(), 1);
        after = Some(turns[0].namespace.clone());
        found.push(turns[0].namespace.to_string());
    }
    assert_eq!(found, ["big", "small", "tiny", "big", "small", "big", "big", "big"]);
}
