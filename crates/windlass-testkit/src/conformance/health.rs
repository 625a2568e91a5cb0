//! Health: counts and ages.

use serde_json::json;
use windlass_kernel::{Capped, RunCount, RunStatus, Task, Turn, Wake};

use super::batches::idle_run;
use crate::events;
use crate::world::World;

fn count(world: &World, status: RunStatus, count: u64) -> RunCount {
    let new = world.new_run("x", Turn::ready());
    RunCount { namespace: new.namespace, workflow: new.workflow, status, count }
}

/// Runs are counted by status, whatever way they took.
pub async fn counts_runs_by_status(world: World) {
    assert!(world.store.health().await.unwrap().runs.is_empty());
    let (first, hold) = world.create_held("a").await;
    world.create_held("b").await;
    idle_run(&world, "c", Wake::OnMessage).await;
    world.ok(world.complete_commit(&first, hold)).await;
    let runs = world.store.health().await.unwrap().runs;
    let expect = [
        count(&world, RunStatus::Active, 1),
        count(&world, RunStatus::Waiting, 1),
        count(&world, RunStatus::Complete, 1),
    ];
    assert_eq!(runs, expect);
}

/// Queues are counted by state, with the oldest ready and the next due.
pub async fn counts_and_ages_of_queues(world: World) {
    let now = world.now().await;
    let later = now.plus(std::time::Duration::from_secs(100));
    let old = now.minus(std::time::Duration::from_secs(100));
    let tasks = vec![
        world.task(None),
        Task { due_at: Some(old), ..world.task(None) },
        Task { due_at: Some(later), ready: false, ..world.task(None) },
        world.task(None),
    ];
    world.enqueue(tasks).await;
    idle_run(&world, "sleeps", Wake::At(later)).await;
    idle_run(&world, "waits", Wake::OnMessage).await;
    world.create_held("held").await;
    world.claim_tasks(world.worker(), 1).await;
    world.renew(world.worker()).await;
    let health = world.store.health().await.unwrap();
    let capped = |count| Capped { count, more: false };
    assert_eq!((health.tasks.ready, health.tasks.scheduled), (capped(2), capped(1)));
    assert_eq!((health.tasks.held, health.tasks.scheduled_next), (capped(1), Some(later)));
    assert!(health.tasks.ready_oldest.is_some_and(|at| at >= now), "the old one was claimed");
    for (max, tasks) in [(10, 2), (2, 2), (1, 1)] {
        let counted = world.store.ready_counts(max).await.unwrap();
        assert_eq!(counted.1, tasks, "at most {max} are counted");
    }
    assert_eq!((health.turns.ready, health.turns.scheduled), (capped(0), capped(1)));
    assert_eq!((health.turns.held, health.turns.ready_oldest), (capped(1), None));
    assert_eq!(health.turns.scheduled_next, Some(later));
    assert_eq!((health.workers_live, health.dead_letters), (1, capped(0)));
    world.advance_ms(40_000).await;
    assert_eq!(world.store.health().await.unwrap().workers_live, 0);
}

/// Counts stay right over batches, conflicts, generations and all endings.
pub async fn counts_after_many_changes(world: World) {
    let mut commits = Vec::new();
    for n in 0..40 {
        let (run, hold) = world.create_held(&format!("r{n}")).await;
        let mut wrong = hold;
        wrong.claim_no += u64::from(n % 4 == 0);
        let mut draft = world.draft(&run, wrong);
        let body = windlass_kernel::Body::json("1");
        let end = match n % 3 {
            0 => (events::WORKFLOW_COMPLETED, windlass_kernel::End::Complete(body)),
            1 => (events::WORKFLOW_FAILED, windlass_kernel::End::Errored(body)),
            _ => (events::WORKFLOW_TERMINATED, windlass_kernel::End::Terminated(None)),
        };
        draft.end(end.0, &json!({}), end.1, world.stamp()).unwrap();
        if n % 5 == 0 {
            let mut next = world.new_run(&format!("r{n}"), Turn::ready());
            next.generation = 1;
            draft.also_create(next, world.stamp()).unwrap();
        }
        commits.push(draft.finish());
    }
    let answers = world.store.commit(commits).await;
    let held = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
    assert_eq!(held, 30);
    let mut expect = std::collections::BTreeMap::new();
    *expect.entry(RunStatus::Active).or_insert(0) += 10;
    for (n, answer) in answers.iter().enumerate() {
        if answer.is_ok() {
            let status = [RunStatus::Complete, RunStatus::Errored, RunStatus::Terminated][n % 3];
            *expect.entry(status).or_insert(0) += 1;
            *expect.entry(RunStatus::Active).or_insert(0) += u64::from(n % 5 == 0);
        }
    }
    let expect: Vec<_> = expect.into_iter().map(|(status, n)| count(&world, status, n)).collect();
    assert_eq!(world.store.health().await.unwrap().runs, expect);
}
