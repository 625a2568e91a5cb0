//! State and messages of models: sealed by the events of the commit that writes them.

use serde_json::json;
use windlass::admin::verify_store;
use windlass_kernel::ledger::{SealOf, seals_of};
use windlass_kernel::{
    Body, CONSUMED_MAX, CausalRef, Draft, Event, Limits, Message, NewEvent, OnExisting, StepKey,
    StepStatus, Turn,
};

use crate::events;
use crate::world::World;

fn states(events: &[Event]) -> Vec<&str> {
    let sealed = |event: &&Event| seals_of(event).unwrap().iter().any(|s| s.of == SealOf::State);
    events.iter().filter(sealed).map(|event| event.event_type.as_str()).collect()
}

async fn assert_verified(world: &World) {
    let report = verify_store(&*world.store, &[]).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.flaws);
}

/// The last event of the engine in a commit seals the state that the commit writes.
pub async fn is_sealed_by_an_event_that_is_written_anyway(world: World) {
    let (mut run, hold) = world.create_held("run").await;
    let mut draft = world.draft(&run, hold);
    draft.state(Body::json("{\"a\":1}"), world.stamp());
    draft.event(events::TIMER_STARTED, &json!({ "zz": 1 }), world.stamp()).unwrap();
    let step = world.step(&run, "one", StepStatus::Completed, Some("1"));
    draft.step(events::STEP_COMPLETED, &json!({ "key": "one" }), step, world.stamp()).unwrap();
    let limits = Limits::DEFAULT;
    draft.record_event("mine.done", 1, &json!({ "seals": [] }), world.stamp(), &limits).unwrap();
    // A later state of the same commit replaces it.
    draft.state(Body::bytes("two"), world.stamp());
    let commit = draft.finish();
    commit.run_change().unwrap().apply_to(&mut run);
    world.ok(commit).await;
    let events = world.events(run.run_key).await;
    assert_eq!(events.len(), 4, "no event is added");
    assert_eq!(states(&events), ["step.completed"]);
    assert_verified(&world).await;

    // A commit without an event of the engine gets one.
    let mut draft = world.draft(&run, hold);
    draft.record_event("mine.more", 1, &json!({}), world.stamp(), &limits).unwrap();
    draft.state(Body::json("3"), world.stamp());
    world.ok(draft.finish()).await;
    let events = world.events(run.run_key).await;
    assert_eq!(states(&events), ["step.completed", "workflow.saved"]);
    assert_verified(&world).await;
}

/// New runs seal the state that they begin with.
pub async fn of_a_new_run_is_sealed(world: World) {
    let new = world.new_run("first", Turn::held_by(world.worker()));
    let first = new.run_key;
    let mut draft = Draft::create(new, OnExisting::Refuse, world.stamp()).unwrap();
    draft.state(Body::json("1"), world.stamp());
    let mut child = world.new_run("child", Turn::ready());
    child.parent = Some((first, first));
    let state = Some(Body::json("2"));
    let child = draft.also_create_with_state(child, state, world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    for run_key in [first, child] {
        assert_eq!(states(&world.events(run_key).await), ["workflow.enqueued"]);
    }
    assert_verified(&world).await;
}

/// One event consumes many messages, seals all of them and stays small.
pub async fn many_messages_are_consumed_by_one_event(world: World) {
    let (run, hold) = world.create_held("run").await;
    for n in 0..60 {
        world.ok(world.send_commit(world.message(run.run_key, &format!("m{n}")))).await;
    }
    let messages = world.load(run.run_key).await.messages;
    let by = StepKey::new("join").unwrap();
    let mut draft = world.draft(&run, hold);
    let (into, alone) = messages.split_at(40);
    let step = world.step(&run, "join", StepStatus::Completed, Some("1"));
    draft
        .consume_all_into_step(events::STEP_COMPLETED, &json!({}), into, step, world.stamp())
        .unwrap();
    draft.consume_all(events::MESSAGE_RECEIVED, &json!({}), alone, by, world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    assert!(world.load(run.run_key).await.messages.is_empty(), "all of them are consumed");
    let events = world.events(run.run_key).await;
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| event.payload.len() < 1_000));
    assert_verified(&world).await;

    let (run, hold) = world.create_held("wide").await;
    let wide = vec![Message { run_key: run.run_key, ..messages[0].clone() }; CONSUMED_MAX + 1];
    let by = StepKey::new("join").unwrap();
    let mut draft = world.draft(&run, hold);
    let refused = draft.consume_all(events::MESSAGE_RECEIVED, &json!({}), &wide, by, world.stamp());
    assert!(refused.unwrap_err().to_string().contains("at most 1024"));
}

/// Events of models have the version and the cause that the model names.
pub async fn events_of_models_have_a_version_and_a_cause(world: World) {
    let (other, _) = world.create_held("other").await;
    let (run, hold) = world.create_held("run").await;
    let cause = CausalRef::event(other.cursor);
    let mut draft = world.draft(&run, hold);
    let event = NewEvent::new(events::TIMER_STARTED).version(3).caused_by(cause);
    draft.event(event, &json!({}), world.stamp()).unwrap();
    let zero = NewEvent::new(events::TIMER_STARTED).version(0);
    let refused = draft.event(zero, &json!({}), world.stamp()).unwrap_err();
    assert_eq!(refused.code().as_str(), "INVALID_EVENT_VERSION");
    world.ok(draft.finish()).await;
    let event = world.events(run.run_key).await.remove(1);
    assert_eq!((event.version, event.caused_by), (3, cause));
    assert_verified(&world).await;

    let run = world.run(run.run_key).await;
    let missing = CausalRef::run(windlass_kernel::RunKey(world.key()));
    let mut draft = world.draft(&run, hold);
    let event = NewEvent::new(events::TIMER_STARTED).caused_by(missing);
    draft.event(event, &json!({}), world.stamp()).unwrap();
    assert_eq!(world.code(draft.finish()).await, "CAUSE_NOT_FOUND");
}
