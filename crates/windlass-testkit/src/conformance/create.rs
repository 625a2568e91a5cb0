//! Creating runs: once a name, with events and labels.

use windlass_kernel::{
    Body, CausalRef, CommitError, Conflict, Draft, OnExisting, Query, RunStatus, Sha256Digest,
    Timestamp, Turn,
};

use crate::events;
use crate::world::World;

/// A create writes the run, its first event and its labels, and the turn that it states.
pub async fn writes_run_event_and_labels(world: World) {
    let mut new = world.new_run("order-1", Turn::ready());
    new.labels = [("team".to_owned(), "a".to_owned()), ("漢".to_owned(), String::new())].into();
    new.fork = Some("lhs".into());
    new.trace = Some("00-abc-def-01".into());
    new.headers = Some(r#"{"who":"漢"}"#.into());
    new.on_end = Some(r#"{"queue":"effects","name":"hook","body":{}}"#.into());
    new.deadline_at = Some(Timestamp::from_micros(9_000_000_000_000_000));
    let run_key = new.run_key;
    let answer = world.ok(world.create_commit(new.clone(), OnExisting::Refuse)).await;
    assert_eq!((answer.run_key, answer.repeated, answer.accepted), (Some(run_key), false, 0));
    assert_eq!(answer.hold, None);

    let run = world.run(run_key).await;
    assert_eq!((run.namespace, run.workflow, run.id), (new.namespace, new.workflow, new.id));
    assert_eq!((run.labels, run.fork, run.trace), (new.labels, new.fork, new.trace));
    assert_eq!((run.headers, run.on_end), (new.headers, new.on_end));
    assert_eq!((run.generation, run.status), (0, RunStatus::Active));
    assert_eq!((run.input, run.input_hash), (Body::json("{}"), Sha256Digest::of(b"{}")));
    assert_eq!((run.output, run.error, run.state), (None, None, None));
    assert_eq!((run.root, run.parent, run.deadline_at), (run_key, None, new.deadline_at));
    assert_eq!((run.started_at, run.ended_at, run.retention_until), (None, None, None));
    assert_eq!((run.accepted, run.seen), (0, 0));
    assert!(run.turn.ready && run.turn.due_at.is_some_and(|due| due <= answer.now));
    assert_eq!((run.turn.worker, run.turn.claim_no, run.turn.reclaims), (None, 0, 0));

    let events = world.events(run_key).await;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].ordinal, events[0].event_type.as_str()), (0, "workflow.enqueued"));
    assert_eq!(events[0].caused_by, CausalRef::run(run_key));
    assert_eq!((run.head.next_ordinal, run.head.hash), (1, events[0].hash));
    assert_eq!(run.cursor, events[0].event_id);
}

/// The same id and the same input is the same run, also when it has moved on or ended.
pub async fn is_idempotent_on_id_and_input(world: World) {
    let (run, hold) = world.create_held("same").await;
    for ended in [false, true] {
        if ended {
            world.ok(world.complete_commit(&run, hold)).await;
        }
        let again = world.new_run("same", Turn::held_by(world.worker()));
        let other_key = again.run_key;
        let answer = world.ok(world.create_commit(again, OnExisting::Return)).await;
        assert_eq!((answer.run_key, answer.repeated), (Some(run.run_key), true));
        assert_eq!(answer.hold, None, "the second creator does not hold the first one's turn");
        assert!(world.store.load(vec![other_key]).await.unwrap().is_empty());
    }
    assert_eq!(world.events(run.run_key).await.len(), 2);
}

/// The same id with another input is a conflict that names the run.
pub async fn refuses_another_input(world: World) {
    let (run, _) = world.create_held("same").await;
    let mut other = world.new_run("same", Turn::ready());
    other.input = Body::json("{ }");
    let answer = world.commit(world.create_commit(other, OnExisting::Return)).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::RunExists { run_key: run.run_key, same_input: false });
}

/// A create that must not find a run conflicts, even with the same input.
pub async fn that_must_not_exist(world: World) {
    let (run, _) = world.create_held("same").await;
    let again = world.new_run("same", Turn::ready());
    let answer = world.commit(world.create_commit(again, OnExisting::Refuse)).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::RunExists { run_key: run.run_key, same_input: true });
    assert_eq!(CommitError::Conflict(conflict).code(), "RUN_EXISTS");
}

/// A turn can create a child, and the next generation of its own run.
pub async fn of_children_and_generations(world: World) {
    let (run, hold) = world.create_held("parent").await;
    let mut draft = world.draft(&run, hold);
    let fork =
        draft.event(events::FORK_JOIN_STARTED, &serde_json::json!({}), world.stamp()).unwrap();
    let mut child = world.new_run("child", Turn::ready());
    child.parent = Some((run.root, run.run_key));
    child.caused_by = Some(CausalRef::event(fork));
    let child_key = draft.also_create(child, world.stamp()).unwrap();
    let mut next = world.new_run("parent", Turn::ready());
    next.generation = 1;
    next.caused_by = Some(CausalRef::event(fork));
    let next_key = draft.also_create(next, world.stamp()).unwrap();
    world.ok(draft.finish()).await;

    let child = world.run(child_key).await;
    assert_eq!((child.parent, child.root), (Some(run.run_key), run.run_key));
    assert_eq!(world.events(child_key).await[0].caused_by, CausalRef::event(fork));
    let found = world.store.find(run.namespace.clone(), run.workflow.clone(), run.id.clone());
    assert_eq!(found.await.unwrap().unwrap().run_key, next_key, "find gives the newest generation");
    let query = Query::Tree { root: run.run_key, after: None, limit: 10 };
    let tree = world.store.list(query).await.unwrap().runs().unwrap();
    let keys: Vec<_> = tree.iter().map(|run| run.run_key).collect();
    assert_eq!(keys, [run.run_key, child_key]);
}

/// A child whose name exists fails its parent's whole commit.
pub async fn of_a_child_that_exists_writes_nothing(world: World) {
    let (other, _) = world.create_held("child").await;
    let (run, hold) = world.create_held("parent").await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::FORK_JOIN_STARTED, &serde_json::json!({}), world.stamp()).unwrap();
    draft.also_create(world.new_run("child", Turn::ready()), world.stamp()).unwrap();
    let answer = world.commit(draft.finish()).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::RunExists { run_key: other.run_key, same_input: true });
    // Nor can a commit create two of one name.
    let mut draft = world.draft(&run, hold);
    draft.event(events::FORK_JOIN_STARTED, &serde_json::json!({}), world.stamp()).unwrap();
    for _ in 0..2 {
        draft.also_create(world.new_run("twin", Turn::ready()), world.stamp()).unwrap();
    }
    assert_eq!(world.code(draft.finish()).await, "INVALID_COMMIT");
    assert_eq!(world.run(run.run_key).await, run);
    assert_eq!(world.events(run.run_key).await.len(), 1);
}

/// Returning what exists is for the guarded run alone: a further run that exists is a conflict.
pub async fn that_returns_is_not_for_children(world: World) {
    let (other, _) = world.create_held("child").await;
    let parent = world.new_run("parent", Turn::ready());
    let parent_key = parent.run_key;
    let mut draft = Draft::create(parent, OnExisting::Return, world.stamp()).unwrap();
    draft.also_create(world.new_run("child", Turn::ready()), world.stamp()).unwrap();
    let answer = world.commit(draft.finish()).await;
    let Err(CommitError::Conflict(conflict)) = answer else { panic!("{answer:?}") };
    assert_eq!(conflict, Conflict::RunExists { run_key: other.run_key, same_input: true });
    assert!(world.store.load(vec![parent_key]).await.unwrap().is_empty());
}

/// A run can be created to start later.
pub async fn with_a_later_due_time(world: World) {
    let due = world.now().await.plus(std::time::Duration::from_secs(3_600));
    let new = world.new_run("later", Turn::due_at(due));
    let draft = Draft::create(new, OnExisting::Refuse, world.stamp()).unwrap();
    let run_key = world.ok(draft.finish()).await.run_key.unwrap();
    let run = world.run(run_key).await;
    assert_eq!((run.turn.ready, run.turn.due_at), (false, Some(due)));
    assert!(world.claim_turns(world.worker(), 10).await.is_empty());
}
