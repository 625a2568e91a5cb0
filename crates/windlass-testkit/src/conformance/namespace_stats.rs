//! Counts of one namespace: what there is now, and what was done lately.

use std::time::Duration;

use windlass_kernel::{
    Body, BreakerRow, BreakerStatus, Capped, Commit, DeadLetter, DeadLetterCount, Figures,
    LimitKey, Namespace, Op, RouteName, RunCount, RunStatus, Task, TaskCount, TaskGuard, TaskStat,
    Timestamp, Turn, Wake, WorkflowName,
};

use super::batches::idle_run;
use crate::world::{World, route};

fn breaker(namespace: &Namespace, key: &str, status: BreakerStatus) -> BreakerRow {
    BreakerRow {
        namespace: namespace.clone(),
        key: LimitKey::new(key).unwrap(),
        status,
        retry_at: None,
        data: Body::json("{}"),
        version: 1,
        updated_at: Timestamp::ZERO,
    }
}

async fn bury(world: &World, task: &Task) -> DeadLetter {
    let letter = DeadLetter {
        task_id: task.task_id,
        namespace: task.namespace.clone(),
        run_key: None,
        step_key: None,
        kind: task.kind.clone(),
        queue: task.queue.clone(),
        name: task.name.clone(),
        attempt: 1,
        body: None,
        errors: None,
        reason: "no".into(),
        dead_at: task.created_at,
        requeues: 0,
        requeued_at: None,
    };
    let guard = TaskGuard::Held { task_id: task.task_id, hold: task.hold().unwrap() };
    let ops = vec![Op::Settle { task_id: task.task_id }, Op::DeadLetter(Box::new(letter.clone()))];
    world.ok(Commit::new(None, Some(guard), ops)).await;
    letter
}

/// Everything of the namespace, and nothing of another.
pub async fn counts_what_a_namespace_has(world: World) {
    let own = Namespace::default_namespace();
    let empty = world.store.namespace_stats(own.clone()).await.unwrap();
    assert!(empty.runs.is_empty() && empty.tasks.is_empty() && empty.letters.is_empty());
    assert_eq!((empty.letters_open, empty.breakers_open.len()), (Capped::default(), 0));

    let now = world.now().await;
    let (old, later) = (now.minus(Duration::from_secs(9)), now.plus(Duration::from_secs(100)));
    let other = Namespace::new("other").unwrap();
    world.enqueue((0..3).map(|_| world.task(None)).collect()).await;
    let mut claimed = world.claim_tasks(world.worker(), 3).await;
    let letter = bury(&world, &claimed.remove(0)).await;
    bury(&world, &claimed.remove(0)).await;
    let again = Task::new(letter.task_id, own.clone(), "t", route("q", "t"), now);
    let again = Task { due_at: Some(later), ready: false, priority: 7, ..again };
    let requeue = Op::Requeue { task_id: letter.task_id, at: now };
    world.ok(Commit::new(None, None, vec![requeue, Op::Enqueue(Box::new(again))])).await;
    let elsewhere = Task { namespace: other.clone(), ..world.task(None) };
    let aged = |due_at| Task { due_at: Some(due_at), ..world.task(None) };
    world.enqueue(vec![elsewhere, aged(now.minus(Duration::from_secs(5))), aged(old)]).await;
    for (key, status) in
        [("c", BreakerStatus::HalfOpen), ("a", BreakerStatus::Open), ("b", BreakerStatus::Closed)]
    {
        assert!(world.store.swap_breaker(breaker(&own, key, status)).await.unwrap());
    }
    assert!(world.store.swap_breaker(breaker(&other, "d", BreakerStatus::Open)).await.unwrap());
    world.create(world.new_run("new", Turn::ready())).await;
    idle_run(&world, "waits", Wake::OnMessage).await;
    let mut foreign = world.new_run("foreign", Turn::ready());
    foreign.namespace = other.clone();
    world.create(foreign).await;

    let namespace_stats = world.store.namespace_stats(own.clone()).await.unwrap();
    let workflow: WorkflowName = world.new_run("x", Turn::ready()).workflow;
    let count =
        |status| RunCount { namespace: own.clone(), workflow: workflow.clone(), status, count: 1 };
    assert_eq!(namespace_stats.runs, [count(RunStatus::Active), count(RunStatus::Waiting)]);
    assert_eq!(namespace_stats.runs_new, [(workflow, 1)]);
    let (queue, name) = (letter.queue.clone(), letter.name.clone());
    let kind = |priority| TaskCount {
        queue: queue.clone(),
        name: name.clone(),
        priority,
        ready: 0,
        scheduled: 0,
        held: 0,
        ready_oldest: None,
    };
    let plain = TaskCount { ready: 2, held: 1, ready_oldest: Some(old), ..kind(0) };
    assert_eq!(namespace_stats.tasks, [plain, TaskCount { scheduled: 1, ..kind(7) }]);
    assert_eq!(namespace_stats.letters, [DeadLetterCount { queue, name, count: 2 }]);
    assert_eq!(namespace_stats.letters_open, Capped { count: 1, more: false });
    assert_eq!(namespace_stats.breakers, Capped { count: 3, more: false });
    let open: Vec<&str> = namespace_stats.breakers_open.iter().map(LimitKey::as_str).collect();
    assert_eq!(open, ["a", "c"]);
    assert!(namespace_stats.now >= now);
    assert_eq!(world.store.namespace_stats(other).await.unwrap().tasks.len(), 1);
}

fn figures(stats: &[TaskStat], name: &str) -> Figures {
    let mut figures = Figures::default();
    for stat in stats.iter().filter(|stat| stat.name.as_str() == name) {
        figures.add(stat.field, stat.value);
    }
    figures
}

/// The counters cover the last hour of the store's clock.
pub async fn figures_are_added_up_for_an_hour(world: World) {
    let namespace = Namespace::default_namespace();
    let mut one = Figures::default();
    one.attempt(true, Duration::from_millis(3), Duration::from_millis(40));
    let rows = |minute, namespace: &Namespace, name: &str| -> Vec<TaskStat> {
        let row = |(field, value)| TaskStat {
            minute,
            namespace: namespace.clone(),
            name: RouteName::new(name).unwrap(),
            field,
            value,
        };
        one.fields().map(row).collect()
    };
    let stat = |stats| world.store.add_task_stats(stats);
    let told = || async { world.store.task_stats(namespace.clone()).await.unwrap() };
    let minute = TaskStat::minute_of(world.now().await);
    let mut first = rows(minute, &namespace, "a");
    first.extend(rows(minute, &namespace, "b"));
    first.extend(rows(minute, &namespace, "a"));
    first.extend(rows(minute, &Namespace::new("other").unwrap(), "a"));
    stat(first).await.unwrap();
    stat(rows(minute, &namespace, "a")).await.unwrap();
    stat(rows(minute - TaskStat::MINUTES, &namespace, "a")).await.unwrap();
    let (a, b) = (figures(&told().await, "a"), figures(&told().await, "b"));
    assert_eq!((a.completed(), a.took_us(), b.completed()), (3, 120_000, 1));
    assert_eq!((a.waited_ms_avg(), a.took_ms_p99()), (3.0, b.took_ms_p99()));

    world.advance_ms(59 * 60_000).await;
    assert_eq!(figures(&told().await, "a").completed(), 3);
    world.advance_ms(60_000).await;
    assert!(told().await.is_empty(), "an hour is over");
    let minute = TaskStat::minute_of(world.now().await);
    stat(rows(minute, &namespace, "a")).await.unwrap();
    assert_eq!(figures(&told().await, "a").completed(), 1);
    let many = vec![rows(minute, &namespace, "a").remove(0); 10_001];
    assert_eq!(stat(many).await.unwrap_err().code(), "INVALID_SIZE");
}

/// Many processes count at once, in any order, and nothing is lost.
pub async fn figures_of_many_at_once(world: World) {
    let namespace = Namespace::default_namespace();
    let minute = TaskStat::minute_of(world.now().await);
    let row = |name: &str| TaskStat {
        minute,
        namespace: namespace.clone(),
        name: RouteName::new(name).unwrap(),
        field: 0,
        value: 1,
    };
    let calls = (0..20).map(|n| {
        let mut rows: Vec<TaskStat> = ["a", "b", "c", "d"].map(row).to_vec();
        rows.rotate_left(n % 4);
        world.store.add_task_stats(rows)
    });
    for answer in futures::future::join_all(calls).await {
        answer.unwrap();
    }
    let told = world.store.task_stats(namespace).await.unwrap();
    assert_eq!(told.iter().map(|stat| stat.value).collect::<Vec<_>>(), [20, 20, 20, 20]);
}
