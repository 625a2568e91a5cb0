//! Messages: numbered, idempotent, never lost, refused by what has ended.

use serde_json::json;
use windlass_kernel::{
    Body, CausalRef, Consumed, Delivery, Draft, Limits, MessageKind, NewMessage, OnExisting, Op,
    RunKey, RunStatus, StepKey, Turn, Wake,
};

use super::batches::idle_run;
use crate::events;
use crate::world::World;

/// Messages get numbers in the order of acceptance and come back whole.
pub async fn are_numbered_and_read_in_order(world: World) {
    let (run, _) = world.create_held("mail").await;
    for (n, kind) in MessageKind::ALL.iter().enumerate() {
        let mut message = world.message(run.run_key, &format!("m{n}"));
        message.kind = *kind;
        message.body = (n % 2 == 0).then(|| Body::bytes(vec![0, 255, n as u8]));
        message.caused_by = (n % 2 == 1).then(|| CausalRef::run(run.run_key));
        let answer = world.ok(world.send_commit(message)).await;
        assert_eq!(answer.messages, [Delivery::Accepted { seq: n as u64 + 1 }]);
        assert_eq!((answer.run_key, answer.hold, answer.accepted), (None, None, 0));
    }
    let messages = world.load(run.run_key).await.messages;
    assert_eq!(messages, world.messages(run.run_key).await);
    for (n, message) in messages.iter().enumerate() {
        assert_eq!((message.seq, message.kind), (n as u64 + 1, MessageKind::ALL[n]));
        assert_eq!(message.body, (n % 2 == 0).then(|| Body::bytes(vec![0, 255, n as u8])));
        assert_eq!(message.caused_by, (n % 2 == 1).then(|| CausalRef::run(run.run_key)));
        assert_eq!(message.consumed, None);
    }
}

/// A second message with the same id is the first one, also after the run has ended.
pub async fn are_idempotent_by_id(world: World) {
    let (run, hold) = world.create_held("mail").await;
    let send = || world.send_commit(world.message(run.run_key, "once"));
    assert_eq!(world.ok(send()).await.messages, [Delivery::Accepted { seq: 1 }]);
    assert_eq!(world.ok(send()).await.messages, [Delivery::Duplicate { seq: 1 }]);
    world.ok(world.complete_commit(&run, hold)).await;
    assert_eq!(world.ok(send()).await.messages, [Delivery::Duplicate { seq: 1 }]);
    assert_eq!(world.messages(run.run_key).await.len(), 1);
    assert_eq!(world.run(run.run_key).await.accepted, 1);
}

/// A run that has ended takes no message, and the sender learns how it ended.
pub async fn are_refused_by_ended_runs(world: World) {
    let (run, hold) = world.create_held("ended").await;
    world.ok(world.complete_commit(&run, hold)).await;
    let commit = world.send_commit(world.message(run.run_key, "late"));
    assert_eq!(world.code(commit).await, "RUN_TERMINAL");
    let nobody = world.message(RunKey(world.key()), "lost");
    assert_eq!(world.code(world.send_commit(nobody)).await, "RUN_NOT_FOUND");
    assert!(world.messages(run.run_key).await.is_empty());
}

/// A result that nobody waits for any more is dropped, and the commit that carries it holds.
pub async fn are_dropped_unless_required(world: World) {
    let (parent, parent_hold) = world.create_held("parent").await;
    let (child, hold) = world.create_held("child").await;
    world.ok(world.complete_commit(&parent, parent_hold)).await;
    let mut draft = world.draft(&child, hold);
    for (n, to) in [parent.run_key, RunKey(world.key())].into_iter().enumerate() {
        let mut message = world.message(to, &format!("result{n}"));
        message.required = false;
        draft.send(message);
    }
    let end = windlass_kernel::End::Complete(Body::json("1"));
    draft.end(events::WORKFLOW_COMPLETED, &json!({}), end, world.stamp()).unwrap();
    let answer = world.ok(draft.finish()).await;
    assert_eq!(answer.messages, [Delivery::Dropped, Delivery::Dropped]);
    assert_eq!(world.run(child.run_key).await.status, RunStatus::Complete);
    assert!(world.messages(parent.run_key).await.is_empty());
}

/// A message readies a turn that nobody holds, whatever it was waiting for.
pub async fn wake_an_unheld_turn(world: World) {
    let far = world.now().await.plus(std::time::Duration::from_secs(86_400));
    for (id, wake) in [("waits", Wake::OnMessage), ("sleeps", Wake::At(far))] {
        let run = idle_run(&world, id, wake).await;
        assert!(!run.turn.ready);
        let answer = world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
        let woken = world.run(run.run_key).await;
        assert!(woken.turn.ready && woken.turn.due_at.is_some_and(|due| due <= answer.now));
        assert_eq!(woken.turn.claim_no, run.turn.claim_no, "a message does not change the holder");
        let claimed = world.claim_turns(world.worker(), 1).await;
        assert_eq!((claimed[0].run_key, claimed[0].accepted), (run.run_key, 1));
    }
    // A commit that creates a run can leave messages in its mailbox.
    let new = world.new_run("born", Turn { ready: false, ..Turn::ready() });
    let run_key = new.run_key;
    let mut draft = Draft::create(new, OnExisting::Refuse, world.stamp()).unwrap();
    draft.send(world.message(run_key, "first"));
    let answer = world.ok(draft.finish()).await;
    assert_eq!((answer.accepted, answer.messages), (1, vec![Delivery::Accepted { seq: 1 }]));
    assert!(world.run(run_key).await.turn.ready);
}

/// A message that arrives while the turn is held readies it at the release that did not see it.
pub async fn are_not_lost_while_the_turn_is_held(world: World) {
    let (run, hold) = world.create_held("busy").await;
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    let held = world.run(run.run_key).await;
    assert_eq!((held.turn.ready, held.turn.hold()), (false, Some(hold)));

    let blind = world.release_commit(&held, hold, Wake::OnMessage, 0);
    assert_eq!(world.ok(blind).await.accepted, 1);
    let released = world.run(run.run_key).await;
    assert_eq!((released.turn.ready, released.seen, released.accepted), (true, 0, 1));

    let claimed = world.claim_turns(world.worker(), 1).await.remove(0);
    let seen = world.release_commit(&released, claimed.hold, Wake::OnMessage, 1);
    world.ok(seen).await;
    let released = world.run(run.run_key).await;
    assert_eq!((released.turn.ready, released.seen), (false, 1));
}

/// A paused run accepts messages and is not woken by them.
pub async fn do_not_wake_a_paused_run(world: World) {
    let (run, hold) = world.create_held("paused").await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::WORKFLOW_PAUSED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused).release(Wake::OnMessage, 0);
    world.ok(draft.finish()).await;
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    let paused = world.run(run.run_key).await;
    assert_eq!((paused.accepted, paused.turn.ready), (1, false));
    assert!(world.claim_turns(world.worker(), 1).await.is_empty());

    let worker = world.worker();
    let mut draft = Draft::free(&paused, worker, run.created_at);
    draft.event(events::WORKFLOW_RESUMED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Waiting).release(Wake::OnMessage, 0);
    world.ok(draft.finish()).await;
    assert!(world.run(run.run_key).await.turn.ready, "the message was waiting");
}

/// A request of control wakes a paused run, so that a request to go on is never lost.
pub async fn of_control_wake_a_paused_run(world: World) {
    let (run, hold) = world.create_held("paused").await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::WORKFLOW_PAUSED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused).release(Wake::OnMessage, 0);
    world.ok(draft.finish()).await;
    let control = NewMessage { kind: MessageKind::Control, ..world.message(run.run_key, "m") };
    world.ok(world.send_commit(control)).await;
    let now = world.now().await;
    let woken = world.run(run.run_key).await;
    assert_eq!((woken.status, woken.turn.ready), (RunStatus::Paused, true));
    assert!(woken.turn.due_at.is_some_and(|at| at <= now));
    let claimed = world.claim_turns(world.worker(), 1).await.remove(0);
    assert_eq!((claimed.status, claimed.accepted), (RunStatus::Paused, 1));
    world.ok(world.release_commit(&woken, claimed.hold, Wake::OnMessage, 1)).await;
    assert!(!world.run(run.run_key).await.turn.ready);
}

/// A run whose start is delayed keeps its start: messages do not wake it, except for control
/// messages, and no release before the start changes the due time.
pub async fn do_not_start_a_delayed_run(world: World) {
    let start = world.now().await.plus(std::time::Duration::from_secs(3_600));
    let run = world.create(world.new_run("later", Turn::due_at(start))).await;
    let (key, worker) = (run.run_key, world.worker());
    world.ok(world.send_commit(world.message(key, "m1"))).await;
    let waits = world.run(key).await;
    assert_eq!((waits.accepted, waits.turn.ready, waits.turn.due_at), (1, false, Some(start)));
    assert!(world.claim_turns(worker, 1).await.is_empty());

    let control = NewMessage { kind: MessageKind::Control, ..world.message(key, "m2") };
    world.ok(world.send_commit(control)).await;
    let woken = world.run(key).await;
    assert_eq!((woken.turn.ready, woken.turn.due_at), (true, Some(start)));
    assert_eq!(world.claim_turns(worker, 1).await.len(), 1);
    assert_eq!(world.store.release(world.store.held(worker).await.unwrap()).await.unwrap(), 1);
    assert_eq!(world.run(key).await.turn.due_at, Some(start));

    // A release that has not seen all messages leaves the turn to any worker.
    for (seen, ready) in [(1, true), (2, false)] {
        let other = world.worker();
        let claimed = world.claim_turns(other, 1).await.remove(0);
        let mut draft = world.draft(&world.run(key).await, claimed.hold);
        draft.keep_unstarted().release(Wake::At(start), seen);
        world.ok(draft.finish()).await;
        let turn = world.run(key).await.turn;
        assert_eq!((turn.ready, turn.due_at, turn.last_worker), (ready, Some(start), None));
    }
    assert_eq!(world.run(key).await.started_at, None);
    assert!(world.claim_turns(worker, 1).await.is_empty());
}

/// A turn that pauses its run with messages unread stays ready, and so does one that is taken from
/// its holder: among the messages may be the request to go on.
pub async fn unread_keep_a_paused_turn_ready(world: World) {
    let (run, hold) = world.create_held("paused").await;
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    let mut draft = world.draft(&run, hold);
    draft.event(events::WORKFLOW_PAUSED, &json!({}), world.stamp()).unwrap();
    draft.status(RunStatus::Paused).release(Wake::OnMessage, 0);
    world.ok(draft.finish()).await;
    let worker = world.worker();
    let claimed = world.claim_turns(worker, 1).await;
    assert_eq!(claimed.len(), 1, "one message was not seen");
    assert_eq!(world.store.release(world.store.held(worker).await.unwrap()).await.unwrap(), 1);
    let claimed = world.claim_turns(worker, 1).await.remove(0);
    let paused = world.run(run.run_key).await;
    world.ok(world.release_commit(&paused, claimed.hold, Wake::OnMessage, 1)).await;
    assert!(world.claim_turns(worker, 1).await.is_empty(), "it has seen everything");
}

/// A message is consumed once, by a commit of the turn.
pub async fn are_consumed_once(world: World) {
    let (mut run, hold) = world.create_held("consumer").await;
    world.ok(world.send_commit(world.message(run.run_key, "m"))).await;
    let message = world.load(run.run_key).await.messages.remove(0);
    let by = StepKey::new("wait").unwrap();
    let mut draft = world.draft(&run, hold);
    let stamp = world.stamp();
    draft.consume(events::EVENT_CONSUMED, &json!({}), &message, by.clone(), stamp).unwrap();
    let commit = draft.finish();
    commit.run_change().unwrap().apply_to(&mut run);
    world.ok(commit).await;
    assert!(world.load(run.run_key).await.messages.is_empty());
    let stored = world.messages(run.run_key).await.remove(0);
    assert_eq!(stored.consumed, Some(Consumed { by: by.clone(), at: stamp.at }));

    for seq in [1, 2] {
        let mut draft = world.draft(&run, hold);
        draft.event(events::EVENT_CONSUMED, &json!({}), world.stamp()).unwrap();
        let run_key = run.run_key;
        draft.op(Op::ConsumeMessage { run_key, seq, by: by.clone(), at: stamp.at });
        assert_eq!(world.code(draft.finish()).await, "MESSAGE_CONSUMED");
    }
    assert_eq!(world.run(run.run_key).await.head, run.head);
}

/// Many senders at once: every message gets its own number, none is lost.
pub async fn of_many_senders_at_once(world: World) {
    let (run, _) = world.create_held("popular").await;
    let sends = (0..200).map(|n| {
        let commit = world.send_commit(world.message(run.run_key, &format!("m{n}")));
        world.commit(commit)
    });
    let answers = futures::future::join_all(sends).await;
    let mut seqs: Vec<u64> = answers
        .into_iter()
        .map(|answer| match answer.unwrap().messages[..] {
            [Delivery::Accepted { seq }] => seq,
            ref other => panic!("{other:?}"),
        })
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=200).collect::<Vec<_>>());
}

/// However sends and releases interleave, a run with unread messages is ready or held.
pub async fn between_load_and_release_never_lost(world: World) {
    let run = idle_run(&world, "race", Wake::Now).await;
    let sender = async {
        for n in 0..150 {
            let commit = world.send_commit(world.message(run.run_key, &format!("m{n}")));
            world.ok(commit).await;
        }
    };
    let reader = async {
        let worker = world.worker();
        let mut read = 0;
        let mut idle = 0;
        while read < 150 {
            let Some(turn) = world.claim_turns(worker, 1).await.pop() else {
                idle += 1;
                assert!(idle < 20_000, "{read} messages were read and the run is not ready");
                let loaded = world.load(run.run_key).await;
                if loaded.run.accepted > loaded.run.seen {
                    let turn = &loaded.run.turn;
                    assert!(turn.ready || turn.worker.is_some(), "a wake-up was lost: {turn:?}");
                }
                continue;
            };
            let loaded = world.load(run.run_key).await;
            let mut draft = world.draft(&loaded.run, turn.hold);
            for message in &loaded.messages {
                let by = StepKey::new("reader").unwrap();
                draft
                    .consume(events::EVENT_CONSUMED, &json!({}), message, by, world.stamp())
                    .unwrap();
                read += 1;
            }
            draft.event(events::EVENT_AWAITED, &json!({}), world.stamp()).unwrap();
            draft.release(Wake::OnMessage, loaded.run.accepted);
            world.ok(draft.finish()).await;
        }
    };
    futures::join!(sender, reader);
    let messages = world.messages(run.run_key).await;
    assert_eq!(messages.len(), 150);
    assert!(messages.iter().all(|message| message.consumed.is_some()));
}

/// A run with too many unread bytes refuses messages of callers until it has consumed some. Control
/// messages, results and repeated messages are not refused.
pub async fn are_refused_above_the_limits(world: World) {
    let limits = Limits::DEFAULT;
    let (run, hold) = world.create_held("mail").await;
    let large = |id: &str| {
        let body = Some(Body::bytes(vec![7; limits.message_bytes_max]));
        NewMessage { body, ..world.message(run.run_key, id) }
    };
    let most = limits.unread_bytes_max / limits.message_bytes_max;
    for n in 0..most {
        world.ok(world.send_commit(large(&format!("m{n}")))).await;
    }
    assert_eq!(world.code(world.send_commit(large("above"))).await, "MESSAGES_LIMIT");
    let small = || world.send_commit(world.message(run.run_key, "small"));
    assert_eq!(world.code(small()).await, "MESSAGES_LIMIT");
    let repeated = world.ok(world.send_commit(large("m3"))).await;
    assert_eq!(repeated.messages, [Delivery::Duplicate { seq: 4 }]);
    let control = NewMessage { kind: MessageKind::Control, ..world.message(run.run_key, "pause") };
    let result = NewMessage { required: false, ..large("result") };
    world.ok(world.send_commit(control)).await;
    world.ok(world.send_commit(result)).await;
    // Another run is not affected.
    let (other, _) = world.create_held("other").await;
    world.ok(world.send_commit(world.message(other.run_key, "m"))).await;

    let run = world.run(run.run_key).await;
    let mut draft = world.draft(&run, hold);
    for message in world.messages(run.run_key).await.iter().take(2) {
        let by = StepKey::new(format!("wait{}", message.seq)).unwrap();
        draft.consume(events::EVENT_CONSUMED, &json!({}), message, by, world.stamp()).unwrap();
    }
    world.ok(draft.finish()).await;
    world.ok(small()).await;
    assert_eq!(world.code(world.send_commit(large("above"))).await, "MESSAGES_LIMIT");
}
