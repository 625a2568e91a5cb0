//! The ledger: ordinals, causes, reading, verification.

use serde_json::json;
use windlass::admin::{Anchor, verify_store};
use windlass_kernel::{
    Body, CausalRef, Draft, End, Event, EventId, Limits, Namespace, OnExisting, Query, RunKey,
    StepStatus, Turn, Wake,
};

use crate::events;
use crate::world::World;

/// A commit can append events and change nothing else.
pub async fn events_only(world: World) {
    let (run, hold) = world.create_held("run").await;
    let mut draft = world.draft(&run, hold);
    for n in 0..3 {
        draft
            .event(events::TIMER_STARTED, &json!({ "n": n, "text": "é漢\u{0}" }), world.stamp())
            .unwrap();
    }
    let commit = draft.finish();
    let change = commit.run_change().unwrap().clone();
    world.ok(commit).await;
    let stored = world.run(run.run_key).await;
    assert_eq!((stored.head, stored.cursor), (change.head, change.cursor));
    assert_eq!((stored.status, stored.turn.hold()), (run.status, Some(hold)));
    let events = world.events(run.run_key).await;
    let ordinals: Vec<_> = events.iter().map(|event| event.ordinal).collect();
    assert_eq!(ordinals, [0, 1, 2, 3]);
    for pair in events.windows(2) {
        assert_eq!(pair[1].caused_by, CausalRef::event(pair[0].event_id));
    }
    let payload = events[3].payload_json().unwrap();
    assert_eq!(payload, json!({ "n": 2, "text": "é漢\u{0}" }));
}

/// Events are found by run from an ordinal, by id, and by root across runs.
pub async fn events_by_run_by_id_and_by_root(world: World) {
    let (run, hold) = world.create_held("root").await;
    let mut draft = world.draft(&run, hold);
    let fork = draft.event(events::FORK_JOIN_STARTED, &json!({}), world.stamp()).unwrap();
    let mut child = world.new_run("child", Turn::ready());
    child.parent = Some((run.run_key, run.run_key));
    child.caused_by = Some(CausalRef::event(fork));
    let child_key = draft.also_create(child, world.stamp()).unwrap();
    draft.event(events::CHILD_STARTED, &json!({}), world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    world.create_held("unrelated").await;

    let list = async |query: Query| world.store.list(query).await.unwrap().events().unwrap();
    let all = world.events(run.run_key).await;
    let query = Query::Events { run_key: run.run_key, from: 1, limit: 1 };
    assert_eq!(list(query).await, all[1..2]);
    assert_eq!(list(Query::Event { event_id: fork }).await, all[1..2]);
    assert!(list(Query::Event { event_id: EventId(world.key()) }).await.is_empty());

    let mut after = None;
    let mut found: Vec<Event> = Vec::new();
    loop {
        let page = list(Query::RootEvents { root: run.run_key, after, limit: 2 }).await;
        let Some(last) = page.last() else { break };
        after = Some((last.created_at, last.event_id));
        found.extend(page);
    }
    let mut expect = [all, world.events(child_key).await].concat();
    expect.sort_by_key(|event| (event.created_at, event.event_id));
    assert_eq!(found, expect);
    assert_eq!(found.len(), 4);
}

/// A cause may be an event or a run that is durable, or an event of the same commit.
pub async fn causes_that_are_there(world: World) {
    let (other, _) = world.create_held("other").await;
    let (run, hold) = world.create_held("run").await;
    let limits = Limits::DEFAULT;
    let mut draft = world.draft(&run, hold);
    let first = draft.record_event("a.b", 1, &json!(1), world.stamp(), &limits).unwrap();
    let second = draft.record_event("a.c", 1, &json!(2), world.stamp(), &limits).unwrap();
    for cause in [
        CausalRef::event(first),
        CausalRef::event(other.cursor),
        CausalRef::run(other.run_key),
        CausalRef::run(run.run_key),
    ] {
        let stamp = world.stamp();
        draft.record_event_caused_by("a.d", 1, &json!(3), cause, stamp, &limits).unwrap();
    }
    world.ok(draft.finish()).await;
    let events = world.events(run.run_key).await;
    assert_eq!(events[2].caused_by, CausalRef::event(first));
    assert_eq!(events[2].event_id, second);
    assert_eq!(events[4].caused_by, CausalRef::event(other.cursor));
}

/// A cause that is nowhere, or in another namespace, fails the commit.
pub async fn causes_that_are_not_there(world: World) {
    let mut foreign = world.new_run("foreign", Turn::ready());
    foreign.namespace = Namespace::new("elsewhere").unwrap();
    let foreign = world.create(foreign).await;
    let (run, hold) = world.create_held("run").await;
    for cause in [
        CausalRef::event(EventId(world.key())),
        CausalRef::run(RunKey(world.key())),
        CausalRef::event(foreign.cursor),
        CausalRef::run(foreign.run_key),
    ] {
        let mut draft = world.draft(&run, hold);
        let stamp = world.stamp();
        let limits = &Limits::DEFAULT;
        draft.record_event_caused_by("a.b", 1, &json!(1), cause, stamp, limits).unwrap();
        assert_eq!(world.code(draft.finish()).await, "CAUSE_NOT_FOUND");

        let mut new = world.new_run("caused", Turn::ready());
        new.caused_by = Some(cause);
        let commit = world.create_commit(new, OnExisting::Refuse);
        assert_eq!(world.code(commit).await, "CAUSE_NOT_FOUND");
    }
    assert_eq!(world.events(run.run_key).await.len(), 1);
}

/// Custom events keep their name, version and payload.
pub async fn custom_events(world: World) {
    let (run, hold) = world.create_held("run").await;
    let mut draft = world.draft(&run, hold);
    let payload = json!({"b": [1, 2.5, null], "a": {"seals": [1]}});
    let limits = Limits::DEFAULT;
    draft.record_event("ticket.classified", 7, &payload, world.stamp(), &limits).unwrap();
    world.ok(draft.finish()).await;
    let event = world.events(run.run_key).await.remove(1);
    assert_eq!((event.event_type.as_str(), event.version), ("ticket.classified", 7));
    assert_eq!(event.payload_json().unwrap(), payload);
    assert!(windlass_kernel::canonical::is_canonical(&event.payload));
}

/// Runs that ended in every way, with steps and messages, and one that is still going.
pub(super) async fn varied(world: &World) -> Vec<RunKey> {
    let mut keys = Vec::new();
    for (n, ending) in ["complete", "errored", "terminated", "going"].into_iter().enumerate() {
        let (mut run, hold) = world.create_held(ending).await;
        let commit = world.step_commit(&run, hold, "one", "{\"a\":1}");
        commit.run_change().unwrap().apply_to(&mut run);
        world.ok(commit).await;
        world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
        let message = world.load(run.run_key).await.messages.remove(0);
        let mut draft = world.draft(&run, hold);
        let by = windlass_kernel::StepKey::new("wait").unwrap();
        draft.consume(events::EVENT_CONSUMED, &json!({}), &message, by, world.stamp()).unwrap();
        let mut failed = world.step(&run, "two", StepStatus::Errored, None);
        failed.error = Some(Body::json("\"boom\""));
        draft.step(events::STEP_FAILED, &json!({}), failed, world.stamp()).unwrap();
        let body = Body::json("\"end\"");
        let end = match n {
            0 => Some((events::WORKFLOW_COMPLETED, End::Complete(body))),
            1 => Some((events::WORKFLOW_FAILED, End::Errored(body))),
            2 => Some((events::WORKFLOW_TERMINATED, End::Terminated(None))),
            _ => None,
        };
        match end {
            Some((event_type, end)) => {
                draft.end(event_type, &json!({}), end, world.stamp()).unwrap();
            }
            None => {
                draft.release(Wake::OnMessage, 1);
            }
        }
        world.ok(draft.finish()).await;
        keys.push(run.run_key);
    }
    keys
}

/// Ledgers written through drafts verify, and their heads can serve as anchors.
pub async fn the_chain_verifies(world: World) {
    let keys = varied(&world).await;
    let report = verify_store(&*world.store, &[]).await.unwrap();
    assert_eq!((report.runs, report.flaws.len()), (4, 0), "{:?}", report.flaws);
    assert_eq!(report.events, 4 * 4 + 3);
    let anchors: Vec<Anchor> = report.anchors.clone();
    assert_eq!(anchors.len(), 4);
    let report = verify_store(&*world.store, &anchors).await.unwrap();
    assert!(report.flaws.is_empty(), "{:?}", report.flaws);

    // A run goes on: the old anchor still lies on its chain.
    let going = world.run(keys[3]).await;
    let mut draft = Draft::free(&going, world.worker(), going.created_at);
    draft.event(events::TIMER_STARTED, &json!({}), world.stamp()).unwrap();
    world.ok(draft.finish()).await;
    let report = verify_store(&*world.store, &anchors).await.unwrap();
    assert!(report.flaws.is_empty(), "{:?}", report.flaws);

    // An anchor of what is not there any more is named.
    let mut ahead = anchors.clone();
    ahead[0].next_ordinal += 1;
    ahead[1].run_key = RunKey(world.key());
    ahead[2].hash = ahead[1].hash;
    let report = verify_store(&*world.store, &ahead).await.unwrap();
    let mut named: Vec<_> = report.flaws.iter().map(|flaw| flaw.run_key).collect();
    named.sort_unstable();
    let mut expect = vec![ahead[0].run_key, ahead[1].run_key, ahead[2].run_key];
    expect.sort_unstable();
    assert_eq!(named, expect, "{:?}", report.flaws);
}

/// No two events have one id, in one run or in two.
pub async fn event_ids_are_unique(world: World) {
    let (run, hold) = world.create_held("run").await;
    let (other, _) = world.create_held("other").await;
    for taken in [run.cursor, other.cursor] {
        let mut draft = world.draft(&run, hold);
        let stamp = windlass_kernel::Stamp { event_id: taken, ..world.stamp() };
        draft.event(events::TIMER_STARTED, &json!({}), stamp).unwrap();
        assert_eq!(world.code(draft.finish()).await, "STORE_CONSTRAINT");
    }
    let mut draft = world.draft(&run, hold);
    let stamp = world.stamp();
    for _ in 0..2 {
        draft.event(events::TIMER_STARTED, &json!({}), stamp).unwrap();
    }
    assert_eq!(world.code(draft.finish()).await, "STORE_CONSTRAINT");
    assert_eq!(world.events(run.run_key).await.len(), 1);
}
