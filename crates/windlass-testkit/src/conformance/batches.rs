//! Many commits in one call: each holds or fails alone, as if written one after the other.

use serde_json::json;
use windlass_kernel::{
    Commit, Delivery, Draft, Hold, OnExisting, Op, Run, RunStatus, StepStatus, Task, TaskGuard,
    Turn, Wake,
};

use crate::events;
use crate::world::World;

async fn codes(world: &World, commits: Vec<Commit>) -> Vec<&'static str> {
    let answers = world.store.commit(commits).await;
    let code = |answer: &Result<_, windlass_kernel::CommitError>| match answer {
        Ok(_) => "ok",
        Err(error) => error.code().as_str(),
    };
    answers.iter().map(code).collect()
}

/// Of a batch, exactly those commits are applied whose guards hold.
pub async fn applies_exactly_what_holds(world: World) {
    let mut runs = Vec::new();
    for n in 0..4 {
        runs.push(world.create_held(&format!("run{n}")).await);
    }
    let bad_hold = |hold: Hold| Hold { claim_no: hold.claim_no + 7, ..hold };
    let commits = vec![
        world.step_commit(&runs[0].0, runs[0].1, "a", "0"),
        world.step_commit(&runs[1].0, bad_hold(runs[1].1), "a", "1"),
        world.step_commit(&runs[2].0, runs[2].1, "a", "2"),
        world.complete_commit(&runs[3].0, runs[3].1),
    ];
    assert_eq!(codes(&world, commits).await, ["ok", "RUN_HOLD_CONFLICT", "ok", "ok"]);
    let mut steps = Vec::new();
    for (run, _) in &runs {
        steps.push(world.load(run.run_key).await.steps.len());
    }
    assert_eq!(steps, [1, 0, 1, 0]);
    assert_eq!(world.run(runs[3].0.run_key).await.status, RunStatus::Complete);
}

/// Two commits of one run in a batch are applied in order; the second builds on the first.
pub async fn two_commits_of_one_run(world: World) {
    let (run, hold) = world.create_held("twice").await;
    let first = world.step_commit(&run, hold, "one", "1");
    let mut next = run.clone();
    first.run_change().unwrap().apply_to(&mut next);
    let second = world.step_commit(&next, hold, "two", "2");
    let rival = world.step_commit(&run, hold, "rival", "3");
    let commits = vec![first, second, rival];
    assert_eq!(codes(&world, commits).await, ["ok", "ok", "RUN_HEAD_CONFLICT"]);
    let loaded = world.load(run.run_key).await;
    assert_eq!(loaded.steps.len(), 2);
    assert_eq!(loaded.run.head.next_ordinal, 3);
}

fn chain(world: &World, run: &Run, hold: Hold, length: usize) -> (Vec<Commit>, Run) {
    let mut run = run.clone();
    let mut commits = Vec::new();
    for n in 0..length {
        let commit = world.step_commit(&run, hold, &format!("s{n}"), "1");
        commit.run_change().unwrap().apply_to(&mut run);
        commits.push(commit);
    }
    (commits, run)
}

/// A chain on predicted heads, with a step that opens and settles within it, and an end.
pub async fn a_chain_of_commits(world: World) {
    let (run, hold) = world.create_held("chain").await;
    let (mut commits, mut last) = chain(&world, &run, hold, 5);
    let mut draft = world.draft(&last, hold);
    draft.open_step(world.step(&last, "slow", StepStatus::Running, None));
    draft.event(events::STEP_RETRIED, &json!({}), world.stamp()).unwrap();
    let task = world.task(Some(&last));
    draft.enqueue(task.clone());
    let commit = draft.finish();
    commit.run_change().unwrap().apply_to(&mut last);
    commits.push(commit);
    let mut draft = world.draft(&last, hold);
    let step = world.step(&last, "slow", StepStatus::Completed, Some("9"));
    draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
    draft.op(Op::Settle { task_id: task.task_id });
    let commit = draft.finish();
    commit.run_change().unwrap().apply_to(&mut last);
    commits.push(commit);
    commits.push(world.complete_commit(&last, hold));
    assert_eq!(codes(&world, commits).await, ["ok"; 8]);

    let loaded = world.load(run.run_key).await;
    assert_eq!((loaded.run.status, loaded.steps.len()), (RunStatus::Complete, 6));
    assert_eq!(loaded.run.head.next_ordinal, 9);
    assert!(loaded.steps.iter().all(|step| step.status == StepStatus::Completed));
    let ordinals: Vec<_> = world.events(run.run_key).await.iter().map(|e| e.ordinal).collect();
    assert_eq!(ordinals, (0..9).collect::<Vec<_>>());
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty(), "the task came and went");
}

/// In a chain, what builds on a commit that failed fails too, and nothing else does.
pub async fn a_commit_on_a_head_that_never_was_fails_alone(world: World) {
    let (run, hold) = world.create_held("broken").await;
    let (mut commits, _) = chain(&world, &run, hold, 4);
    let (other, other_hold) = world.create_held("other").await;
    commits.remove(1);
    commits.insert(1, world.step_commit(&other, other_hold, "x", "1"));
    let expect = ["ok", "ok", "RUN_HEAD_CONFLICT", "RUN_HEAD_CONFLICT"];
    assert_eq!(codes(&world, commits).await, expect);
    assert_eq!(world.load(run.run_key).await.steps.len(), 1);
    assert_eq!(world.load(other.run_key).await.steps.len(), 1);
}

/// A commit that breaks a key of the database fails alone.
pub async fn a_broken_key_fails_alone(world: World) {
    let task = world.task(None);
    world.enqueue(vec![task.clone()]).await;
    let (run, hold) = world.create_held("good").await;
    let (bad, bad_hold) = world.create_held("bad").await;
    let mut draft = world.draft(&bad, bad_hold);
    draft.event(events::ACTIVITY_SCHEDULED, &json!({}), world.stamp()).unwrap();
    draft.enqueue(task);
    let commits = vec![world.step_commit(&run, hold, "one", "1"), draft.finish()];
    assert_eq!(codes(&world, commits).await, ["ok", "STORE_CONSTRAINT"]);
    assert_eq!(world.load(run.run_key).await.steps.len(), 1);
    assert_eq!(world.run(bad.run_key).await, bad);
    assert_eq!(world.events(bad.run_key).await.len(), 1);
}

/// A create that breaks a key beside its run fails alone, and its name stays free.
pub async fn a_create_that_breaks_a_key_leaves_nothing(world: World) {
    let task = world.task(None);
    world.enqueue(vec![task.clone()]).await;
    let (run, hold) = world.create_held("good").await;
    let bad = world.new_run("bad", Turn::ready());
    let mut draft = Draft::create(bad.clone(), OnExisting::Refuse, world.stamp()).unwrap();
    draft.enqueue(task);
    let other = world.new_run("other", Turn::ready());
    let commits = vec![
        world.create_commit(other, OnExisting::Refuse),
        draft.finish(),
        world.step_commit(&run, hold, "one", "1"),
    ];
    assert_eq!(codes(&world, commits).await, ["ok", "STORE_CONSTRAINT", "ok"]);
    assert!(world.store.run_overview_by_key(bad.run_key).await.unwrap().is_none());
    assert_eq!(world.events(bad.run_key).await, []);
    let again = world.create_commit(bad.clone(), OnExisting::Refuse);
    world.ok(again).await;
    assert_eq!(world.events(bad.run_key).await.len(), 1);
}

/// A commit that no store could apply is refused before any store sees it, alone.
pub async fn a_malformed_commit_fails_alone(world: World) {
    let (run, hold) = world.create_held("good").await;
    let (bad, bad_hold) = world.create_held("bad").await;
    let mut twisted = world.step_commit(&bad, bad_hold, "one", "1");
    for op in twisted.ops_mut() {
        if let Op::AppendEvent { event, .. } = op {
            event.ordinal += 1;
        }
    }
    let unguarded =
        Commit::new(None, None, world.step_commit(&bad, bad_hold, "x", "1").ops.to_vec());
    let commits = vec![twisted, world.step_commit(&run, hold, "one", "1"), unguarded];
    assert_eq!(codes(&world, commits).await, ["INVALID_COMMIT", "ok", "INVALID_COMMIT"]);
    assert_eq!(world.run(bad.run_key).await, bad);
}

/// A message before a release in one batch is not lost, nor is one after it.
pub async fn messages_and_releases_in_order(world: World) {
    let (before, before_hold) = world.create_held("before").await;
    let (after, after_hold) = world.create_held("after").await;
    let release = |run: &Run, hold| world.release_commit(run, hold, Wake::OnMessage, 0);
    let send = |run: &Run| world.send_commit(world.message(run.run_key, "m"));
    let commits = vec![
        send(&before),
        release(&before, before_hold),
        release(&after, after_hold),
        send(&after),
    ];
    let answers = world.store.commit(commits).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers[0].messages, [Delivery::Accepted { seq: 1 }]);
    assert_eq!(answers[1].accepted, 1, "the release tells of the message before it");
    assert_eq!(answers[2].accepted, 0);
    assert_eq!(answers[3].messages, [Delivery::Accepted { seq: 1 }]);
    for run in [&before, &after] {
        assert!(world.run(run.run_key).await.turn.ready, "run {} has to wake", run.id);
    }
}

/// In one batch, a run that ends refuses what is sent after its end.
pub async fn a_message_after_the_end_is_refused(world: World) {
    let (run, hold) = world.create_held("ending").await;
    let commits = vec![
        world.send_commit(world.message(run.run_key, "before")),
        world.complete_commit(&run, hold),
        world.send_commit(world.message(run.run_key, "after")),
    ];
    assert_eq!(codes(&world, commits).await, ["ok", "ok", "RUN_TERMINAL"]);
    assert_eq!(world.messages(run.run_key).await.len(), 1);
}

/// Of two creates of one name in one batch, the first makes the run.
pub async fn two_creates_of_one_name(world: World) {
    let new = |turn| world.new_run("twin", turn);
    let first = new(Turn::ready());
    let first_key = first.run_key;
    let commits = vec![
        world.create_commit(first, OnExisting::Return),
        world.create_commit(new(Turn::ready()), OnExisting::Return),
        world.create_commit(new(Turn::ready()), OnExisting::Refuse),
    ];
    let answers = world.store.commit(commits).await;
    let first = answers[0].as_ref().unwrap();
    assert_eq!((first.run_key, first.repeated), (Some(first_key), false));
    let second = answers[1].as_ref().unwrap();
    assert_eq!((second.run_key, second.repeated), (Some(first_key), true));
    assert_eq!(answers[2].as_ref().unwrap_err().code(), "RUN_EXISTS");
}

/// Messages of many commits to one run get numbers without gaps, in order.
pub async fn many_messages_to_one_run(world: World) {
    let (run, _) = world.create_held("mailbox").await;
    let send = |n: usize| world.send_commit(world.message(run.run_key, &format!("m{n}")));
    let mut commits: Vec<_> = (0..50).map(send).collect();
    commits.push(send(7));
    let answers = world.store.commit(commits).await;
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().messages[0]).collect();
    for (n, delivery) in answers[..50].iter().enumerate() {
        assert_eq!(*delivery, Delivery::Accepted { seq: n as u64 + 1 });
    }
    assert_eq!(answers[50], Delivery::Duplicate { seq: 8 });
    assert_eq!(world.run(run.run_key).await.accepted, 50);
    assert_eq!(world.messages(run.run_key).await.len(), 50);
}

/// A thousand commits, every third of which must fail, in one call.
pub async fn a_thousand_commits_with_planted_conflicts(world: World) {
    let mut runs = Vec::new();
    let mut creates = Vec::new();
    for n in 0..1_000 {
        let new = world.new_run(&format!("r{n}"), Turn::held_by(world.worker()));
        runs.push(new.run_key);
        creates.push(world.create_commit(new, OnExisting::Refuse));
    }
    assert!(world.store.commit(creates).await.iter().all(Result::is_ok));
    let loaded = world.store.load(runs.clone()).await.unwrap();
    assert_eq!(loaded.len(), 1_000);
    let commits = loaded.iter().enumerate().map(|(n, loaded)| {
        let mut hold = loaded.run.turn.hold().unwrap();
        if n % 3 == 0 {
            hold.claim_no += 1;
        }
        world.step_commit(&loaded.run, hold, "one", "1")
    });
    let answers = world.store.commit(commits.collect()).await;
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_ok(), n % 3 != 0, "commit {n}: {answer:?}");
    }
    for (n, loaded) in world.store.load(runs).await.unwrap().iter().enumerate() {
        assert_eq!(loaded.steps.len(), usize::from(n % 3 != 0));
        assert_eq!(loaded.run.head.next_ordinal, if n % 3 == 0 { 1 } else { 2 });
    }
}

/// Many commits that settle a task and do nothing else, some of which hold it no more or never did, in one
/// call: each holds or fails alone, and a second sending finds nothing.
pub async fn settled_tasks_with_planted_conflicts(world: World) {
    world.enqueue((0..300).map(|_| world.task(None)).collect()).await;
    let worker = world.worker();
    let tasks = world.claim_tasks(worker, 300).await;
    assert_eq!(tasks.len(), 300);
    let commits = |stale: bool| -> Vec<Commit> {
        let commit = |(n, task): (usize, &Task)| {
            let hold = match n % 10 {
                3 if stale => Hold { worker, claim_no: 7 },
                5 if stale => Hold { worker: world.worker(), claim_no: 1 },
                _ => task.hold().unwrap(),
            };
            let guard = TaskGuard::Held { task_id: task.task_id, hold };
            Commit::new(None, Some(guard), vec![Op::Settle { task_id: task.task_id }])
        };
        tasks.iter().enumerate().map(commit).collect()
    };
    for (n, code) in codes(&world, commits(true)).await.into_iter().enumerate() {
        let expect = if matches!(n % 10, 3 | 5) { "TASK_HOLD_CONFLICT" } else { "ok" };
        assert_eq!(code, expect, "commit {n}");
    }
    for (n, code) in codes(&world, commits(false)).await.into_iter().enumerate() {
        let expect = if matches!(n % 10, 3 | 5) { "ok" } else { "TASK_NOT_FOUND" };
        assert_eq!(code, expect, "commit {n}");
    }
    assert_eq!(world.store.health().await.unwrap().tasks.held.count, 0);
}

/// Used by other checks: a run that is created and released again.
pub(super) async fn idle_run(world: &World, id: &str, wake: Wake) -> Run {
    let (run, hold) = world.create_held(id).await;
    let mut draft: Draft = world.draft(&run, hold);
    draft.event(events::SLEEP_STARTED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Waiting).release(wake, 0);
    world.ok(draft.finish()).await;
    world.run(run.run_key).await
}
