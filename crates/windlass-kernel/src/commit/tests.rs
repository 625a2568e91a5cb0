//! Tables for the questions that stores ask a commit.

use uuid::Uuid;

use super::*;
use crate::digest::Sha256Digest;
use crate::draft::{Draft, NewRun};
use crate::ids::{EventId, ModelName, Namespace, RunId, WorkerKey, WorkflowName};
use crate::ledger::{EventType, Stamp};
use crate::rows::Turn;

const NOW: Timestamp = Timestamp::from_micros(1_770_000_000_000_000);

fn run_key(n: u128) -> RunKey {
    RunKey(Uuid::from_u128(n))
}

fn hold(worker: u128, claim_no: u64) -> Hold {
    Hold { worker: WorkerKey(Uuid::from_u128(worker)), claim_no }
}

fn head(next_ordinal: u64) -> Head {
    Head { next_ordinal, hash: Sha256Digest::of(b"head") }
}

/// A commit that creates a run whose turn worker 1 holds.
fn creates(n: u128) -> Commit {
    let new = NewRun {
        run_key: run_key(n),
        namespace: Namespace::default_namespace(),
        workflow: WorkflowName::new("w").unwrap(),
        model: ModelName::new("steps").unwrap(),
        id: RunId::new(format!("run-{n}")).unwrap(),
        generation: 0,
        input: Body::json("{}"),
        parent: None,
        fork: None,
        labels: Default::default(),
        trace: None,
        headers: None,
        on_end: None,
        deadline_at: None,
        turn: Turn::held_by(WorkerKey(Uuid::from_u128(1))),
        caused_by: None,
    };
    let stamp = Stamp { event_id: EventId(Uuid::from_u128(100 + n)), at: NOW };
    Draft::create(new, OnExisting::Return, stamp).unwrap().finish()
}

fn changes(guard: RunGuard, turn: TurnChange, to: Head) -> Commit {
    let cursor = EventId(Uuid::from_u128(50));
    let change = RunChange { turn, ..RunChange::new(guard.run_key(), to, cursor, NOW) };
    Commit::new(Some(guard), None, vec![Op::SetRun(Box::new(change))])
}

fn message(kind: MessageKind, required: bool, body: Option<&str>) -> NewMessage {
    NewMessage {
        run_key: run_key(1),
        message_id: MessageId::new("m").unwrap(),
        kind,
        name: MessageName::new("n").unwrap(),
        body: body.map(|text| Body::json(text.to_owned())),
        caused_by: None,
        sent_at: NOW,
        required,
    }
}

#[test]
fn the_sender_of_a_written_commit_still_holds_its_turn() {
    let held = || RunGuard::Held { run_key: run_key(1), head: head(1), hold: hold(1, 3) };
    let worker = hold(1, 3).worker;
    let free = || RunGuard::Free { run_key: run_key(1), head: head(1), worker };
    let keep = |guard| changes(guard, TurnChange::Keep, head(2));
    let release = |guard| {
        let released = TurnChange::Release { wake: Wake::OnMessage, seen: 0 };
        changes(guard, released, head(2))
    };
    for (what, commit, now, holder, expect) in [
        ("the same hold", keep(held()), head(9), hold(1, 3), true),
        ("a later claim", keep(held()), head(9), hold(1, 4), false),
        ("another worker", keep(held()), head(9), hold(2, 3), false),
        ("kept, nothing since", keep(free()), head(2), hold(1, 7), true),
        ("kept, written since", keep(free()), head(3), hold(1, 7), false),
        ("kept, another worker", keep(free()), head(2), hold(2, 7), false),
        ("released", release(free()), head(2), hold(1, 7), false),
        ("created", creates(1), head(2), hold(1, 1), true),
        ("created, claimed since", creates(1), head(2), hold(1, 2), false),
        ("no guard", Commit::new(None, None, Vec::new()), head(2), hold(1, 1), false),
    ] {
        assert_eq!(commit.still_holds(now, holder), expect, "{what}");
    }
}

#[test]
fn only_causes_that_nothing_proves_are_looked_up() {
    let event = |n: u128, caused_by| Event {
        run_key: run_key(1),
        ordinal: 0,
        event_id: EventId(Uuid::from_u128(n)),
        event_type: EventType::custom("a.b", &Limits::DEFAULT).unwrap(),
        version: 1,
        caused_by,
        payload: bytes::Bytes::new(),
        created_at: NOW,
        hash: Sha256Digest::of(b"event"),
    };
    let append = |n, caused_by, cause| Op::AppendEvent { event: event(n, caused_by), cause };
    let of = |n: u128| CausalRef::event(EventId(Uuid::from_u128(n)));
    let created = creates(1).ops[0].clone();
    use CauseCheck::{Known, LookUp};
    for (what, ops, expect) in [
        ("named by the user", vec![append(5, of(4), LookUp)], vec![of(4)]),
        ("proved by the guard", vec![append(5, of(4), Known)], vec![]),
        ("an event before", vec![append(4, of(3), Known), append(5, of(4), LookUp)], vec![]),
        ("an event after", vec![append(5, of(6), LookUp), append(6, of(5), Known)], vec![of(6)]),
        ("a created run", vec![created, append(5, CausalRef::run(run_key(1)), LookUp)], vec![]),
    ] {
        let wanted = Commit::new(None, None, ops).causes_to_look_up();
        let expect: Vec<_> = expect.into_iter().map(|cause| (run_key(1), cause)).collect();
        assert_eq!(wanted, expect, "{what}");
    }
}

#[test]
fn the_messages_of_a_commit_in_order() {
    let put = |name: &str| {
        let message_id = MessageId::new(name).unwrap();
        Op::PutMessage(Box::new(NewMessage {
            message_id,
            ..message(MessageKind::Event, true, None)
        }))
    };
    let commit = Commit::new(None, None, vec![put("a"), creates(1).ops[0].clone(), put("b")]);
    let found: Vec<&str> = commit.messages().map(|m| m.message_id.as_str()).collect();
    assert_eq!(found, ["a", "b"]);
}

#[test]
fn limits_apply_to_messages_that_a_caller_sends() {
    use MessageKind::{Control, Event};
    for (kind, required, expect) in [
        (Event, true, true),
        (Event, false, false),
        (Control, true, false),
        (Control, false, false),
    ] {
        assert_eq!(message(kind, required, None).is_limited(), expect, "{kind:?} {required}");
    }
}

#[test]
fn a_mailbox_admits_messages_up_to_its_limits() {
    let limits = Limits {
        unread_messages_max: 3,
        unread_bytes_max: 10,
        message_bytes_max: 4,
        ..Limits::DEFAULT
    };
    for (count, bytes, body, expect) in [
        (0, 0, "12", true),
        (2, 0, "12", true),
        (3, 0, "12", false),
        (1, 8, "12", true),
        (1, 9, "12", false),
        // One message always fits, or a run could never receive it.
        (0, 0, "12345678901", true),
    ] {
        let admits =
            Unread { count, bytes }.admits(&message(MessageKind::Event, true, Some(body)), &limits);
        assert_eq!(admits, expect, "{count} {bytes} {body}");
    }
    let wide = Limits { message_bytes_max: 1, ..limits.clone() };
    for (accepted, limits, expect) in [
        (0, &limits, false),
        (1, &limits, false),
        (2, &limits, true),
        (2, &wide, false),
        (3, &wide, true),
        (u64::MAX, &wide, true),
    ] {
        assert_eq!(Unread::may_exceed(accepted, limits), expect, "{accepted}");
    }
}

#[test]
fn an_error_says_what_a_sender_can_do() {
    let of = |kind| Arc::new(Error::new(kind, ErrorCode::StoreUnavailable, "the store is away"));
    let conflict = |found| CommitError::Conflict(Conflict::RunHold { run_key: run_key(1), found });
    let held = "is held by worker 00000000-0000-0000-0000-000000000001 under claim 7 \
                [RUN_HOLD_CONFLICT]";
    for (error, retryable, text) in [
        (CommitError::Unavailable(of(ErrorKind::Unavailable)), true, "the store is away"),
        (CommitError::Invalid(of(ErrorKind::Invalid)), false, "the store is away"),
        (conflict(None), false, "is held by nobody [RUN_HOLD_CONFLICT]"),
        (conflict(Some(hold(1, 7))), false, held),
    ] {
        let shown = error.to_string();
        assert!(shown.contains(text), "{shown}");
        assert_eq!(error.is_retryable(), retryable, "{shown}");
    }
}
