//! Retention: whole trees of ended runs are deleted, and nothing else is.

use std::time::Duration;

use windlass_kernel::{
    CausalRef, Commit, CommitError, DeadLetter, DeleteTrees, Deleted, Hold, NewRun, OnExisting, Op,
    Query, Refusal, Run, RunChange, RunKey, RunsQuery, TaskGuard, Turn,
};

use crate::world::World;

const HOUR: Duration = Duration::from_secs(3600);

async fn delete(world: &World, roots: &[RunKey], keep_ledger: bool) -> Deleted {
    let request =
        DeleteTrees { roots: roots.to_vec(), ended_for: HOUR, keep_ledger, keep_for_newer: false };
    world.store.delete_trees(request).await.unwrap()
}

// As if the generations of these roots read the rows of those before them.
async fn delete_unread(world: &World, roots: &[RunKey]) -> Vec<RunKey> {
    let request = DeleteTrees {
        roots: roots.to_vec(),
        ended_for: HOUR,
        keep_ledger: false,
        keep_for_newer: true,
    };
    world.store.delete_trees(request).await.unwrap().roots
}

// A run that has taken a step, a message and a log line, and has ended if asked.
async fn run_of(world: &World, new: NewRun, ends: bool) -> Run {
    let turn = Turn::held_by(world.worker());
    let mut run = world.create(NewRun { turn, ..new }).await;
    let hold = run.turn.hold().unwrap();
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    let commit = world.step_commit(&run, hold, "one", "1");
    commit.run_change().unwrap().apply_to(&mut run);
    world.ok(commit).await;
    if ends {
        world.ok(world.complete_commit(&run, hold)).await;
    }
    world.run(run.run_key).await
}

// An ended run whose end says something else than the world's clock, which stands still for stamps.
async fn ended_with(world: &World, id: &str, edit: impl FnOnce(&mut RunChange)) -> Run {
    let (run, hold) = world.create_held(id).await;
    end_with(world, &run, hold, edit).await;
    world.run(run.run_key).await
}

async fn end_with(world: &World, run: &Run, hold: Hold, edit: impl FnOnce(&mut RunChange)) {
    let mut commit = world.complete_commit(run, hold);
    let change = commit.ops_mut().iter_mut().find_map(|op| match op {
        Op::SetRun(change) => Some(change),
        _ => None,
    });
    edit(change.expect("an end changes its run"));
    world.ok(commit).await;
}

async fn end_now(world: &World, run: &Run) {
    let now = world.now().await;
    let hold = run.turn.hold().expect("the turn is held");
    end_with(world, run, hold, |change| change.ended_at = Some(now)).await;
}

fn labelled(world: &World, id: &str) -> NewRun {
    let mut new = world.new_run(id, Turn::ready());
    new.labels = [("team".to_owned(), "a".to_owned())].into();
    new
}

async fn child_of(world: &World, parent: &Run, id: &str, ends: bool) -> Run {
    let mut new = world.new_run(id, Turn::ready());
    new.parent = Some((parent.root, parent.run_key));
    new.caused_by = Some(CausalRef::event(parent.cursor));
    run_of(world, new, ends).await
}

async fn is_gone(world: &World, run_key: RunKey) -> bool {
    world.store.load(vec![run_key]).await.unwrap().is_empty()
}

async fn counted(world: &World) -> u64 {
    let health = world.store.health().await.unwrap();
    health.runs.iter().map(|count| count.count).sum()
}

/// A tree goes with everything that belongs to its runs, and is counted no more.
pub async fn deletes_whole_trees_that_are_over(world: World) {
    let root = run_of(&world, labelled(&world, "root"), true).await;
    let child = child_of(&world, &root, "child", true).await;
    let other = run_of(&world, labelled(&world, "other"), true).await;
    assert_eq!(counted(&world).await, 3);
    assert_eq!(delete(&world, &[root.run_key], false).await, Deleted::default(), "too early");
    world.advance_ms(3_600_001).await;
    // A child is no root, and an unknown key is nothing.
    let deleted = delete(&world, &[child.run_key, root.run_key, RunKey(world.key())], false).await;
    assert_eq!(deleted, Deleted { roots: vec![root.run_key], runs: 2 });
    for run_key in [root.run_key, child.run_key] {
        assert!(is_gone(&world, run_key).await);
        assert!(world.events(run_key).await.is_empty());
        assert!(world.messages(run_key).await.is_empty());
        let steps = Query::Steps { run_key, after: None, limit: 10 };
        assert!(world.store.list(steps).await.unwrap().steps().unwrap().is_empty());
    }
    let mut query = RunsQuery::all(root.namespace.clone(), 10);
    query.label = Some(("team".to_owned(), "a".to_owned()));
    let left = world.store.list(Query::Runs(query)).await.unwrap().runs().unwrap();
    assert_eq!(left.iter().map(|run| run.run_key).collect::<Vec<_>>(), [other.run_key]);
    assert_eq!(counted(&world).await, 1);
    assert!(!is_gone(&world, other.run_key).await);
    // The name is free again.
    let again = world.create(labelled(&world, "root")).await;
    assert_eq!(again.generation, root.generation);
}

/// A live run, a pending task, a late end and an own time each keep the whole tree.
pub async fn spares_what_is_not_over(world: World) {
    let live = run_of(&world, labelled(&world, "live"), false).await;
    let parent = run_of(&world, labelled(&world, "parent"), true).await;
    child_of(&world, &parent, "live-child", false).await;
    let worked = run_of(&world, labelled(&world, "worked"), true).await;
    world.enqueue(vec![world.task(Some(&worked))]).await;
    let until = world.now().await.plus(3 * HOUR);
    let kept = ended_with(&world, "kept", |change| change.retention_until = Some(until)).await;
    world.advance_ms(3_600_001).await;
    let now = world.now().await;
    let late = ended_with(&world, "late", |change| change.ended_at = Some(now)).await;
    let roots = [&live, &parent, &worked, &kept, &late].map(|run| run.run_key);
    assert_eq!(delete(&world, &roots, false).await, Deleted::default());
    for run_key in roots {
        assert!(!is_gone(&world, run_key).await);
        assert!(!world.events(run_key).await.is_empty());
    }
    world.advance_ms(2 * 3_600_000).await;
    let deleted = delete(&world, &roots, false).await;
    assert_eq!(deleted.roots, [kept.run_key, late.run_key]);
}

/// Asked to keep the ledger, it keeps the events and deletes the rest.
pub async fn keeps_the_ledger_if_asked(world: World) {
    let run = run_of(&world, labelled(&world, "proof"), true).await;
    let letter = DeadLetter {
        task_id: world.task(None).task_id,
        namespace: run.namespace.clone(),
        run_key: Some(run.run_key),
        step_key: None,
        kind: "activity".into(),
        queue: run.turn.queue.clone(),
        name: world.task(None).name,
        attempt: 1,
        body: None,
        errors: None,
        reason: "gone".into(),
        dead_at: world.now().await,
        requeues: 0,
        requeued_at: None,
    };
    let task = world.task(None);
    world.enqueue(vec![task.clone()]).await;
    let claimed = world.claim_tasks(world.worker(), 1).await.remove(0);
    let guard = TaskGuard::Held { task_id: claimed.task_id, hold: claimed.hold().unwrap() };
    let letter = DeadLetter { task_id: claimed.task_id, ..letter };
    let ops = vec![Op::DeadLetter(Box::new(letter)), Op::Settle { task_id: claimed.task_id }];
    world.ok(Commit::new(None, Some(guard), ops)).await;
    let events = world.events(run.run_key).await;
    world.advance_ms(3_600_001).await;
    assert_eq!(delete(&world, &[run.run_key], true).await.runs, 1);
    assert!(is_gone(&world, run.run_key).await);
    assert_eq!(world.events(run.run_key).await, events);
    assert!(world.messages(run.run_key).await.is_empty());
    let letters = Query::DeadLetters {
        namespace: run.namespace.clone(),
        queue: None,
        after: None,
        limit: 10,
    };
    assert!(world.store.list(letters).await.unwrap().dead_letters().unwrap().is_empty());
}

/// The newest generation is what a name means, so it goes last.
pub async fn keeps_later_generations_until_the_earlier_are_gone(world: World) {
    let first = run_of(&world, labelled(&world, "again"), true).await;
    let mut new = labelled(&world, "again");
    new.generation = first.generation + 1;
    new.caused_by = Some(CausalRef::event(first.cursor));
    let second = run_of(&world, new, true).await;
    world.advance_ms(3_600_001).await;
    assert_eq!(delete(&world, &[second.run_key], false).await, Deleted::default());
    let both = [first.run_key, second.run_key];
    assert_eq!(delete(&world, &both, false).await.roots, both);
}

/// Asked for it, it keeps a tree that a newer generation may read: while the root of that one, or a run of its
/// tree, is not over. A generation cannot follow a run that is deleted.
pub async fn keeps_earlier_generations_for_the_newer_if_asked(world: World) {
    let first = run_of(&world, labelled(&world, "read"), true).await;
    let child = child_of(&world, &first, "read-child", true).await;
    let alone = run_of(&world, labelled(&world, "alone"), true).await;
    world.advance_ms(3_600_001).await;
    let generation = |after: &Run| {
        let mut new = labelled(&world, "read");
        new.generation = after.generation + 1;
        new.caused_by = Some(CausalRef::event(after.cursor));
        new
    };
    let second = run_of(&world, generation(&first), false).await;
    let roots = [first.run_key, alone.run_key, second.run_key];
    assert_eq!(delete_unread(&world, &roots).await, [alone.run_key], "the second lives");
    end_now(&world, &second).await;
    assert_eq!(delete_unread(&world, &roots).await, [], "the second has just ended");
    let second = world.run(second.run_key).await;
    let late = child_of(&world, &second, "late-child", false).await;
    world.advance_ms(3_600_001).await;
    assert_eq!(delete_unread(&world, &roots).await, [], "a run of the second tree lives");
    assert!(!is_gone(&world, first.run_key).await && !is_gone(&world, child.run_key).await);
    end_now(&world, &late).await;
    assert_eq!(delete_unread(&world, &roots).await, [], "the run of its tree has just ended");
    world.advance_ms(3_600_001).await;
    assert_eq!(delete_unread(&world, &roots).await, [first.run_key, second.run_key]);
    let follows = world.create_commit(generation(&second), OnExisting::Refuse);
    let refused = world.commit(follows).await.unwrap_err();
    assert!(matches!(refused, CommitError::Refused(Refusal::CauseMissing { .. })), "{refused:?}");
}

/// Roots that are over are listed by key, page by page.
pub async fn lists_what_is_over(world: World) {
    let mut over = Vec::new();
    for n in 0..5 {
        let run = run_of(&world, labelled(&world, &format!("over-{n}")), true).await;
        child_of(&world, &run, &format!("child-{n}"), true).await;
        over.push(run.run_key);
    }
    let live = run_of(&world, labelled(&world, "live"), false).await;
    world.advance_ms(3_600_001).await;
    let fresh = world.create_commit(world.new_run("fresh", Turn::ready()), OnExisting::Refuse);
    world.ok(fresh).await;
    let now = world.now().await;
    ended_with(&world, "late", |change| change.ended_at = Some(now)).await;
    let page = |after: Option<RunKey>, limit: u32| {
        let query = Query::Expired {
            namespace: live.namespace.clone(),
            workflow: live.workflow.clone(),
            ended_for: HOUR,
            after,
            limit,
        };
        let store = world.store.clone();
        async move { store.list(query).await.unwrap().run_keys().unwrap() }
    };
    assert_eq!(page(None, 100).await, over);
    assert_eq!(page(None, 2).await, over[..2]);
    assert_eq!(page(Some(over[1]), 2).await, over[2..4]);
    assert_eq!(page(Some(over[4]), 2).await, []);
}
