//! Commits of a turn, and the guards that refuse them.

use serde_json::json;
use windlass_kernel::{
    Body, Commit, CommitError, Conflict, DeadLetter, Delivery, Draft, End, Hold, LogId, LogLevel,
    LogLine, MessageKind, OnExisting, Op, Query, Reschedule, RunStatus, StepKey, StepKind,
    StepStatus, Task, TaskGuard, TasksQuery, Timestamp, Turn, Wake,
};

use crate::events;
use crate::world::World;

/// The life of a run: created held, three steps, an end.
pub async fn a_run_from_start_to_end(world: World) {
    let (mut run, hold) = world.create_held("life").await;
    for key in ["one", "two", "three"] {
        let commit = world.step_commit(&run, hold, key, "1");
        let change = commit.run_change().unwrap().clone();
        let answer = world.ok(commit).await;
        assert_eq!((answer.hold, answer.repeated), (Some(hold), false));
        change.apply_to(&mut run);
    }
    let mut draft = world.draft(&run, hold);
    draft.log(LogLine {
        log_id: LogId(world.key()),
        run_key: run.run_key,
        step_key: None,
        attempt: Some(1),
        level: LogLevel::Info,
        category: "workflow".into(),
        message: "almost done".into(),
        data: Some(Body::json("{\"n\":3}")),
        replay: false,
        created_at: run.created_at,
    });
    draft.state(Body::bytes("snapshot"), world.stamp());
    let end = End::Complete(Body::json("\"done\""));
    draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, world.stamp()).unwrap();
    assert_eq!(world.ok(draft.finish()).await.hold, None, "an ended run is held by nobody");

    let loaded = world.load(run.run_key).await;
    let stored = loaded.run;
    assert_eq!((stored.status, stored.output), (RunStatus::Complete, Some(Body::json("\"done\""))));
    assert_eq!(stored.state, Some(Body::bytes("snapshot")));
    assert!(stored.started_at.is_some() && stored.ended_at.is_some());
    assert_eq!((stored.turn.ready, stored.turn.due_at, stored.turn.worker), (false, None, None));
    assert_eq!(stored.turn.claim_no, hold.claim_no + 1);
    let keys: Vec<_> = loaded.steps.iter().map(|step| step.step_key.as_str()).collect();
    assert_eq!(keys, ["one", "two", "three"]);
    assert!(loaded.steps.iter().all(|step| step.result == Some(Body::json("1"))));
    let types: Vec<_> = world.events(run.run_key).await;
    let types: Vec<_> = types.iter().map(|event| event.event_type.as_str()).collect();
    let step = "step.completed";
    assert_eq!(types, ["workflow.enqueued", step, step, step, "workflow.completed"]);
}

/// A commit decided from an old head conflicts, names the head, and leaves nothing.
pub async fn a_stale_head_writes_nothing(world: World) {
    let (run, hold) = world.create_held("stale").await;
    world.ok(world.step_commit(&run, hold, "one", "1")).await;
    let before = world.load(run.run_key).await;

    let mut draft = world.draft(&run, hold);
    let step = world.step(&run, "two", StepStatus::Completed, Some("2"));
    draft.step(events::STEP_COMPLETED, &json!({}), step, world.stamp()).unwrap();
    draft.enqueue(world.task(Some(&run)));
    let (other, _) = world.create_held("other").await;
    draft.send(world.message(other.run_key, "m"));
    let answer = world.commit(draft.finish()).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::RunHead { run_key: run.run_key, found: before.run.head });

    assert_eq!(world.load(run.run_key).await, before);
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty());
    assert!(world.messages(other.run_key).await.is_empty());
    assert_eq!(world.run(other.run_key).await.accepted, 0);
}

/// A commit under a hold that is not the current one conflicts and names who holds.
pub async fn a_foreign_hold_writes_nothing(world: World) {
    let (run, hold) = world.create_held("held").await;
    let foreign = Hold { worker: world.worker(), claim_no: hold.claim_no };
    let stale = Hold { claim_no: hold.claim_no + 1, ..hold };
    for wrong in [foreign, stale] {
        let answer = world.commit(world.step_commit(&run, wrong, "one", "1")).await;
        let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
        assert_eq!(conflict, Conflict::RunHold { run_key: run.run_key, found: Some(hold) });
    }
    assert!(world.load(run.run_key).await.steps.is_empty());
}

/// Runs and tasks that do not exist are named as such.
pub async fn a_missing_run_and_task(world: World) {
    let (run, hold) = world.create_held("there").await;
    let mut ghost = run.clone();
    ghost.run_key = windlass_kernel::RunKey(world.key());
    let answer = world.commit(world.step_commit(&ghost, hold, "one", "1")).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::RunMissing { run_key: ghost.run_key });

    let task_id = world.task(None).task_id;
    let guard = TaskGuard::Held { task_id, hold };
    let answer = world.commit(Commit::new(None, Some(guard), vec![Op::Settle { task_id }])).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::TaskMissing { task_id });
}

/// A turn that nobody holds can be taken by the commit itself, to keep it or to give it back.
pub async fn a_free_turn_can_be_taken(world: World) {
    let run = world.create(world.new_run("free", Turn::ready())).await;
    let worker = world.worker();
    let mut draft = Draft::free(&run, worker, run.created_at);
    draft.event(events::WORKFLOW_PAUSED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused).release(Wake::Now, 0);
    let answer = world.ok(draft.finish()).await;
    assert_eq!(answer.hold, None);
    let paused = world.run(run.run_key).await;
    assert_eq!((paused.status, paused.turn.ready), (RunStatus::Paused, false));
    assert_eq!(paused.turn.claim_no, 2, "taking and giving back are two changes of hands");

    let mut draft = Draft::free(&paused, worker, run.created_at);
    draft.event(events::WORKFLOW_RESUMED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Active);
    let answer = world.ok(draft.finish()).await;
    let hold = Hold { worker, claim_no: 3 };
    assert_eq!(answer.hold, Some(hold));
    let taken = world.run(run.run_key).await;
    assert_eq!(taken.turn.hold(), Some(hold));
    assert!(!taken.turn.ready && taken.turn.claimed_at.is_some());
    world.ok(world.complete_commit(&taken, hold)).await;
}

/// A turn that somebody holds cannot be taken by a commit.
pub async fn a_held_turn_is_not_free(world: World) {
    let (run, hold) = world.create_held("held").await;
    let mut draft = Draft::free(&run, world.worker(), run.created_at);
    draft.event(events::WORKFLOW_PAUSED, &json!({}), world.stamp()).unwrap();
    let answer = world.commit(draft.finish()).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::RunHold { run_key: run.run_key, found: Some(hold) });
    assert_eq!(world.run(run.run_key).await, run);
}

/// An activity's settlement and its message are one commit; a second settlement conflicts.
pub async fn a_task_and_its_message_settle_together(world: World) {
    let (run, hold) = world.create_held("activity").await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::ACTIVITY_SCHEDULED, &json!({}), world.stamp()).unwrap();
    let task = world.task(Some(&run));
    draft.enqueue(task.clone()).release(Wake::OnMessage, 0);
    world.ok(draft.finish()).await;

    let worker = world.worker();
    let claimed = world.claim_tasks(worker, 10).await;
    assert_eq!(claimed.len(), 1);
    let claimed = &claimed[0];
    assert_eq!((claimed.task_id, &claimed.body), (task.task_id, &task.body));
    assert_eq!(claimed.hold(), Some(Hold { worker, claim_no: 1 }));
    let guard = TaskGuard::Held { task_id: task.task_id, hold: claimed.hold().unwrap() };
    let settle = |id: &str| {
        let mut message = world.message(run.run_key, id);
        message.kind = MessageKind::ActivityResult;
        let ops = vec![Op::Settle { task_id: task.task_id }, Op::PutMessage(Box::new(message))];
        Commit::new(None, Some(guard), ops)
    };
    let answer = world.ok(settle("first")).await;
    assert_eq!(answer.messages, [Delivery::Accepted { seq: 1 }]);
    assert_eq!(world.code(settle("second")).await, "TASK_NOT_FOUND");
    let loaded = world.load(run.run_key).await;
    assert_eq!((loaded.messages.len(), loaded.run.accepted), (1, 1));
    assert!(loaded.run.turn.ready, "the result wakes the run");
}

/// A step with a result is never written again.
pub async fn a_settled_step_is_final(world: World) {
    let (mut run, hold) = world.create_held("final").await;
    let commit = world.step_commit(&run, hold, "one", "1");
    commit.run_change().unwrap().apply_to(&mut run);
    world.ok(commit).await;
    assert_eq!(world.code(world.step_commit(&run, hold, "one", "2")).await, "STEP_SETTLED");
    let loaded = world.load(run.run_key).await;
    assert_eq!(loaded.steps[0].result, Some(Body::json("1")));
    assert_eq!(loaded.run.head, run.head);
}

/// A step without a result is replaced, but stays the step that it was.
pub async fn an_open_step_is_replaced(world: World) {
    let (mut run, hold) = world.create_held("open").await;
    let mut step = world.step(&run, "one", StepStatus::Waiting, None);
    step.due_at = Some(Timestamp::from_micros(5));
    step.wait_for = Some("approved".into());
    step.error = Some(Body::json("\"first try\""));
    let mut draft = world.draft(&run, hold);
    draft.step(events::STEP_RETRIED, &json!({}), step.clone(), world.stamp()).unwrap();
    let commit = draft.finish();
    commit.run_change().unwrap().apply_to(&mut run);
    world.ok(commit).await;
    assert_eq!(world.load(run.run_key).await.steps, [step.clone()]);

    let mut done = world.step(&run, "one", StepStatus::Completed, Some("1"));
    (done.attempt, done.updated_at) = (2, Timestamp::from_micros(7));
    (done.name, done.kind, done.position) = ("renamed".into(), StepKind::from_static("sleep"), 99);
    let mut draft = world.draft(&run, hold);
    draft.step(events::STEP_COMPLETED, &json!({}), done.clone(), world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    (done.name, done.kind, done.position) = (step.name, step.kind, step.position);
    assert_eq!(world.load(run.run_key).await.steps, [done]);
}

/// Nothing is written to a run that has ended.
pub async fn an_ended_run_takes_nothing(world: World) {
    let (run, hold) = world.create_held("ended").await;
    world.ok(world.complete_commit(&run, hold)).await;
    let ended = world.load(run.run_key).await;
    assert_eq!(
        world.code(world.step_commit(&ended.run, hold, "x", "1")).await,
        "RUN_HOLD_CONFLICT"
    );
    let mut draft = Draft::free(&ended.run, world.worker(), run.created_at);
    draft.event(events::WORKFLOW_RESUMED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Active);
    assert_eq!(world.code(draft.finish()).await, "RUN_TERMINAL");
    assert_eq!(world.store.revoke(run.run_key, world.worker()).await.unwrap(), None);
    assert!(world.claim_turns(world.worker(), 10).await.is_empty());
    assert_eq!(world.load(run.run_key).await, ended);
}

/// A turn can call off its own run's tasks, held or not, and nobody else's.
pub async fn a_run_settles_its_own_tasks(world: World) {
    let (run, hold) = world.create_held("own").await;
    let (other, _) = world.create_held("other").await;
    let tasks = [Some(&run), Some(&run), Some(&other), None].map(|run| world.task(run));
    world.enqueue(tasks.to_vec()).await;
    let held = world.claim_tasks(world.worker(), 1).await.remove(0);
    assert_eq!(held.task_id, tasks[0].task_id);
    let mut draft = world.draft(&run, hold);
    draft.event(events::ACTIVITY_CANCELLED, &json!({}), world.stamp()).unwrap();
    for task in &tasks {
        draft.op(Op::Settle { task_id: task.task_id });
    }
    draft.op(Op::Settle { task_id: world.task(None).task_id });
    world.ok(draft.finish()).await;
    let guard = TaskGuard::Held { task_id: held.task_id, hold: held.hold().unwrap() };
    let late = Commit::new(None, Some(guard), vec![Op::Settle { task_id: held.task_id }]);
    assert_eq!(world.code(late).await, "TASK_NOT_FOUND");
    let mut left: Vec<_> = world.claim_tasks(world.worker(), 10).await;
    left.sort_by_key(|task| task.task_id);
    let left: Vec<_> = left.iter().map(|task| task.task_id).collect();
    assert_eq!(left, [tasks[2].task_id, tasks[3].task_id]);
}

/// A commit does not both enqueue a task and remove it; a draft takes such a task back.
pub async fn a_task_is_not_enqueued_and_settled_at_once(world: World) {
    let (run, hold) = world.create_held("both").await;
    let task = world.task(Some(&run));
    let mut draft = world.draft(&run, hold);
    draft.event(events::ACTIVITY_CANCELLED, &json!({}), world.stamp()).unwrap();
    draft.enqueue(task.clone());
    let mut both = draft.finish();
    both.ops_mut().push(Op::Settle { task_id: task.task_id });
    assert_eq!(world.code(both).await, "INVALID_COMMIT");
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty());

    let mut draft = world.draft(&run, hold);
    draft.event(events::ACTIVITY_CANCELLED, &json!({}), world.stamp()).unwrap();
    draft.enqueue(task.clone()).settle(task.task_id);
    world.ok(draft.finish()).await;
    assert!(world.claim_tasks(world.worker(), 10).await.is_empty());
}

/// The commit that ends a run begins nothing for its steps, and still enqueues its effects.
pub async fn an_end_begins_nothing(world: World) {
    let (run, hold) = world.create_held("last").await;
    let mut activity = world.task(Some(&run));
    activity.step_key = Some(StepKey::new("a").unwrap());
    let mut effect = activity.clone();
    (effect.task_id, effect.kind) = (world.task(None).task_id, windlass_kernel::EFFECT.into());
    let of_engine = world.task(Some(&run));
    let mut draft = world.draft(&run, hold);
    draft.enqueue(activity).enqueue(effect.clone()).enqueue(of_engine.clone());
    let end = End::Complete(Body::json("1"));
    draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    let mut left: Vec<_> =
        world.claim_tasks(world.worker(), 10).await.iter().map(|task| task.task_id).collect();
    left.sort_unstable();
    let mut expect = [effect.task_id, of_engine.task_id];
    expect.sort_unstable();
    assert_eq!(left, expect);
}

/// A task that nothing was done with keeps the count of workers that it was taken away from.
pub async fn untried_tasks_keep_their_reclaims(world: World) {
    let task = world.task(None);
    world.enqueue(vec![task.clone()]).await;
    world.claim_tasks(world.worker(), 1).await;
    let reaper = world.steady_worker().await;
    assert_eq!(world.store.reap(reaper, 10).await.unwrap().tasks, [task.task_id]);
    for (untried, reclaims) in [(true, 1), (false, 0)] {
        let claimed = world.claim_tasks(reaper, 1).await.remove(0);
        assert_eq!(claimed.reclaims, 1);
        let change = Reschedule {
            task_id: task.task_id,
            wake: Wake::Now,
            attempt: claimed.attempt,
            errors: None,
            untried,
        };
        let guard = TaskGuard::Held { task_id: task.task_id, hold: claimed.hold().unwrap() };
        world.ok(Commit::new(None, Some(guard), vec![Op::Reschedule(Box::new(change))])).await;
        let tasks = Query::Tasks(TasksQuery::all(task.namespace.clone(), 10));
        let tasks = world.store.list(tasks).await.unwrap().tasks().unwrap();
        assert_eq!(tasks[0].reclaims, reclaims);
    }
}

/// A task that failed is given back with its history, to be tried later.
pub async fn retries_of_a_task(world: World) {
    let task = world.task(None);
    world.enqueue(vec![task.clone()]).await;
    let worker = world.worker();
    let claimed = world.claim_tasks(worker, 1).await.remove(0);
    let due = world.now().await.plus(std::time::Duration::from_secs(10));
    let change = Reschedule {
        task_id: task.task_id,
        wake: Wake::At(due),
        attempt: 1,
        errors: Some(Body::json("[\"boom\"]")),
        untried: false,
    };
    let guard = TaskGuard::Held { task_id: task.task_id, hold: claimed.hold().unwrap() };
    let commit = Commit::new(None, Some(guard), vec![Op::Reschedule(Box::new(change))]);
    world.ok(commit.clone()).await;
    assert!(world.claim_tasks(worker, 1).await.is_empty(), "it is not due yet");
    assert_eq!(world.code(commit).await, "TASK_HOLD_CONFLICT");

    world.advance_ms(10_001).await;
    world.store.promote(100).await.unwrap();
    let again = world.claim_tasks(worker, 1).await.remove(0);
    assert_eq!((again.attempt, again.errors), (1, Some(Body::json("[\"boom\"]"))));
    assert_eq!(again.claim_no, claimed.claim_no + 2);
}

/// A task that is given up becomes a dead letter in the commit that removes it.
pub async fn dead_letters(world: World) {
    let task = world.task(None);
    world.enqueue(vec![task.clone()]).await;
    let claimed = world.claim_tasks(world.worker(), 1).await.remove(0);
    let letter = DeadLetter {
        task_id: task.task_id,
        namespace: task.namespace.clone(),
        run_key: None,
        step_key: None,
        kind: task.kind.clone(),
        queue: task.queue.clone(),
        name: task.name.clone(),
        attempt: 5,
        body: task.body.clone(),
        errors: Some(Body::json("[\"a\",\"b\"]")),
        reason: "retries exhausted".into(),
        dead_at: task.created_at,
        requeues: 0,
        requeued_at: None,
    };
    let guard = TaskGuard::Held { task_id: task.task_id, hold: claimed.hold().unwrap() };
    let letter_op = Op::DeadLetter(Box::new(letter.clone()));
    let ops = vec![Op::Settle { task_id: task.task_id }, letter_op];
    let commit = Commit::new(None, Some(guard), ops);
    world.ok(commit.clone()).await;
    // A zombie that gives the same task up must not take its successor's letter for its own.
    assert_eq!(world.code(commit).await, "TASK_NOT_FOUND");
    let namespace = task.namespace.clone();
    let query = Query::DeadLetters { namespace, queue: None, after: None, limit: 10 };
    let letters = world.store.list(query).await.unwrap().dead_letters().unwrap();
    assert_eq!(letters, std::slice::from_ref(&letter));
    let of_run = |run_key, limit| world.store.list(Query::DeadLettersOfRun { run_key, limit });
    let run_key = windlass_kernel::RunKey(world.key());
    assert_eq!(of_run(run_key, 10).await.unwrap().dead_letters().unwrap(), []);
    for _ in 0..2 {
        let (task_id, kind) = (windlass_kernel::TaskId(world.key()), "activity".into());
        let of = DeadLetter { task_id, kind, run_key: Some(run_key), ..letter.clone() };
        world.ok(Commit::new(None, None, vec![Op::DeadLetter(Box::new(of))])).await;
    }
    let found = of_run(run_key, 10).await.unwrap().dead_letters().unwrap();
    assert!(found.len() == 2 && found[0].task_id < found[1].task_id, "{found:?}");
    assert_eq!(of_run(run_key, 1).await.unwrap().dead_letters().unwrap(), found[..1]);
    let gone = found.iter().map(|letter| letter.task_id).collect();
    world.store.delete_dead_letters(letter.namespace.clone(), gone).await.unwrap();

    // Requeued once, and then no more; the count stays when it is given up again.
    let at = task.created_at;
    let requeue = |task: &Task| {
        let again = Op::Enqueue(Box::new(task.clone()));
        Commit::new(None, None, vec![Op::Requeue { task_id: task.task_id, at }, again])
    };
    world.ok(requeue(&task)).await;
    let one = || Query::DeadLetter { task_id: task.task_id };
    let found = world.store.list(one()).await.unwrap().dead_letters().unwrap().remove(0);
    assert_eq!((found.requeues, found.requeued_at), (1, Some(at)));
    assert_eq!(world.store.health().await.unwrap().dead_letters.count, 0);
    let once = Op::Requeue { task_id: task.task_id, at };
    let twice = Commit::new(None, None, vec![once.clone(), once.clone()]);
    assert_eq!(world.code(twice).await, "INVALID_COMMIT");
    let other = Commit::new(None, None, vec![once]);
    assert_eq!(world.code(other.clone()).await, "DEAD_LETTER_NOT_FOUND");
    let claimed = world.claim_tasks(world.worker(), 1).await.remove(0);
    let guard = TaskGuard::Held { task_id: task.task_id, hold: claimed.hold().unwrap() };
    let again = DeadLetter { attempt: 6, ..letter.clone() };
    let ops = vec![Op::Settle { task_id: task.task_id }, Op::DeadLetter(Box::new(again.clone()))];
    world.ok(Commit::new(None, Some(guard), ops)).await;
    let found = world.store.list(one()).await.unwrap().dead_letters().unwrap();
    assert_eq!(found, [DeadLetter { requeues: 1, ..again }]);

    // Deleted in its own namespace alone, once.
    let elsewhere = windlass_kernel::Namespace::new("elsewhere").unwrap();
    let delete = |namespace| world.store.delete_dead_letters(namespace, vec![task.task_id]);
    assert_eq!(delete(elsewhere).await.unwrap(), 0);
    assert_eq!(delete(task.namespace.clone()).await.unwrap(), 1);
    assert_eq!(delete(task.namespace.clone()).await.unwrap(), 0);
    assert_eq!(world.code(other).await, "DEAD_LETTER_NOT_FOUND");
}

/// The commit that ends a run enqueues what the run says, under an id that follows from its key.
pub async fn an_end_enqueues_what_the_run_says(world: World) {
    let mut new = world.new_run("told", Turn::held_by(world.worker()));
    new.on_end = Some(r#"{"queue":"effects","name":"hook","body":{"k":1}}"#.into());
    let run = world.create(new).await;
    let hold = run.turn.hold().unwrap();
    let stale = world.complete_commit(&run, hold);
    let run = {
        world.ok(world.step_commit(&run, hold, "a", "1")).await;
        world.run(run.run_key).await
    };
    assert_eq!(world.code(stale).await, "RUN_HEAD_CONFLICT");
    let tasks = || async {
        let query = TasksQuery::of_run(&run, 10);
        world.store.list(Query::Tasks(query)).await.unwrap().tasks().unwrap()
    };
    assert_eq!(tasks().await, []);
    world.ok(world.complete_commit(&run, hold)).await;
    let found = tasks().await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].task_id, windlass_kernel::end_task_id(run.run_key));
    assert_eq!((found[0].queue.as_str(), found[0].name.as_str()), ("effects", "hook"));
    assert_eq!((&*found[0].kind, found[0].run_key), ("effect", Some(run.run_key)));
    assert_eq!(found[0].body, Some(Body::json(r#"{"k":1}"#)));
    let events = world.events(run.run_key).await;
    let types: Vec<_> = events.iter().map(|event| event.event_type.as_str()).collect();
    assert_eq!(types[2..], ["hook.enqueued", "workflow.completed"]);
}

/// A commit that takes the free turn of an ended run and creates a run that exists conflicts with
/// the latter: guards come before refusals.
pub async fn a_run_that_exists_is_named_before_an_end(world: World) {
    let (run, hold) = world.create_held("ended").await;
    world.ok(world.complete_commit(&run, hold)).await;
    let ended = world.run(run.run_key).await;
    world.create(world.new_run("exists", Turn::ready())).await;
    let mut draft = Draft::free(&ended, world.worker(), world.now().await);
    draft.event(events::SLEEP_STARTED, &json!({}), world.stamp()).unwrap();
    let create = world.create_commit(world.new_run("exists", Turn::ready()), OnExisting::Refuse);
    for op in create.ops.iter() {
        draft.op(op.clone());
    }
    assert_eq!(world.code(draft.finish()).await, "RUN_EXISTS");
}
