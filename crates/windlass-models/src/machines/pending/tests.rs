//! Tables of what a machine may ask for, live, on replay, and after an earlier generation.

use serde_json::json;

use super::*;
use crate::fixtures;
use crate::machines::CircuitBreakerConfig;

fn pending() -> Pending {
    Pending::new(Limits { steps_per_run_max: 5, sleep_days_max: 3, ..Limits::DEFAULT })
}

fn activity(id: &str) -> WorkflowAction {
    WorkflowAction::activity(id, "pay", json!({ "n": 1 }))
}

fn timer(id: &str) -> WorkflowAction {
    WorkflowAction::timer(id, Duration::from_secs(1))
}

fn child(id: &str) -> WorkflowAction {
    WorkflowAction::child(id, "order", json!(null))
}

fn effect(input: i32) -> WorkflowAction {
    WorkflowAction::effect(
        "mail",
        json!(input),
        RetryPolicy::constant(windlass_kernel::RetryLimit::Times(1), Duration::from_secs(1)),
    )
}

fn cancel(id: &str) -> WorkflowAction {
    WorkflowAction::CancelActivity { activity_id: id.into() }
}

fn cancel_timer(id: &str) -> WorkflowAction {
    WorkflowAction::CancelTimer { timer_id: id.into() }
}

fn complete() -> WorkflowAction {
    WorkflowAction::complete(json!(1))
}

fn fail() -> WorkflowAction {
    WorkflowAction::fail(WorkflowError::new("no"))
}

fn show(planned: &Planned) -> String {
    match planned {
        Planned::Activity { key, .. } => format!("activity {key}"),
        Planned::Timer { key, .. } => format!("timer {key}"),
        Planned::Child { key, .. } => format!("child {key}"),
        Planned::Cancel { key, .. } => format!("cancel {key}"),
        Planned::Effect { key, .. } => format!("effect {key}"),
        Planned::Request { key, .. } => format!("request {key}"),
        Planned::Records { key, .. } => format!("records {key}"),
        Planned::EffectCarried { key } => format!("carried {key}"),
        Planned::HeldBack { what } => format!("held back {what}"),
        Planned::End(Ended::Returned(Ok(_))) => "completes".to_owned(),
        Planned::End(Ended::Returned(Err(_))) => "fails".to_owned(),
        Planned::End(Ended::Continued(_)) => "continues".to_owned(),
    }
}

fn plan(pending: &mut Pending, actions: Vec<WorkflowAction>) -> Result<String, Error> {
    let planned = pending.plan(Answer { actions, end: None, snapshot: None })?;
    Ok(planned.iter().map(show).collect::<Vec<_>>().join(", "))
}

/// The result of the actions. An expectation that begins with `!` is part of an error's message.
#[track_caller]
fn check(pending: &mut Pending, actions: Vec<WorkflowAction>, expect: &str) {
    let found = plan(pending, actions);
    match (expect.strip_prefix('!'), found) {
        (None, found) => assert_eq!(found.expect("the actions are valid"), expect),
        (Some(part), found) => {
            let message = found.expect_err("the actions are refused").message().to_owned();
            assert!(message.contains(part), "{message:?} does not contain {part:?}");
        }
    }
}

#[test]
fn an_id_names_one_thing_at_a_time_and_can_be_used_again() {
    let mut pending = pending();
    check(
        &mut pending,
        vec![activity("a"), timer("a"), child("a")],
        "activity a, timer timer/a, child child/a",
    );
    check(&mut pending, vec![activity("a")], "!there is an activity \"a\" already");
    check(&mut pending, vec![timer("a")], "!there is a timer \"a\" already");
    pending.open.remove("a");
    check(&mut pending, vec![activity("a")], "activity a#2");
    check(&mut pending, vec![cancel("a")], "cancel a#2");
    check(&mut pending, vec![cancel("a"), cancel("unknown")], "");
    check(&mut pending, vec![cancel_timer("a"), timer("a")], "cancel timer/a, timer timer/a#2");
    check(&mut pending, vec![WorkflowAction::None], "");
}

#[test]
fn a_timeout_below_a_millisecond_is_refused() {
    let with = |set: fn(&mut ActivityOptions)| {
        let mut options = ActivityOptions::default();
        set(&mut options);
        vec![WorkflowAction::activity_with("a", "t", Value::Null, options)]
    };
    for (set, name) in [
        (
            (|o| o.schedule_to_start_timeout = Some(Duration::from_micros(999)))
                as fn(&mut ActivityOptions),
            "schedule_to_start_timeout is 999µs",
        ),
        (|o| o.start_to_close_timeout = Some(Duration::ZERO), "start_to_close_timeout is 0ns"),
        (|o| o.heartbeat_timeout = Some(Duration::from_nanos(1)), "heartbeat_timeout is 1ns"),
        (
            |o| o.schedule_to_close_timeout = Some(Duration::from_micros(1)),
            "schedule_to_close_timeout is 1µs",
        ),
    ] {
        check(&mut pending(), with(set), &format!("!{name}; use at least 1 ms"));
    }
    let least = with(|o| o.heartbeat_timeout = Some(Duration::from_millis(1)));
    check(&mut pending(), least, "activity a");
}

#[test]
fn a_next_generation_is_an_end() {
    let next = || WorkflowAction::continue_as_new(Value::Null);
    check(&mut pending(), vec![effect(1), next()], "effect effect/mail, continues");
    check(&mut pending(), vec![next(), timer("t")], "!an action follows the one that ends");
    check(&mut pending(), vec![activity("a"), next()], "!also begins something");
    let large = WorkflowAction::continue_as_new(Value::String("x".repeat(2 << 20)));
    check(&mut pending(), vec![large], "!the next generation's input");
}

#[test]
fn effects_of_one_name_are_numbered() {
    let mut pending = pending();
    check(&mut pending, vec![effect(1), effect(1)], "effect effect/mail, effect effect/mail#2");
    assert!(pending.open.is_empty(), "nobody waits for an effect");
}

#[test]
fn the_end_comes_last_and_begins_nothing() {
    check(&mut pending(), vec![complete()], "completes");
    check(&mut pending(), vec![fail()], "fails");
    check(&mut pending(), vec![effect(1), complete()], "effect effect/mail, completes");
    check(&mut pending(), vec![complete(), timer("t")], "!an action follows the one that ends");
    check(&mut pending(), vec![complete(), complete()], "!an action follows the one that ends");
    for begins in [activity("a"), timer("t"), child("c")] {
        check(&mut pending(), vec![begins, complete()], "!also begins something");
    }
    let end = Some(Ok(Body::json("1")));
    let answer = Answer { actions: vec![fail()], end, snapshot: None };
    let planned = pending().plan(answer).expect("one end is enough");
    assert_eq!(planned.iter().map(show).collect::<Vec<_>>(), ["fails"], "the action's end wins");
}

#[test]
fn a_run_that_shuts_down_begins_nothing_new() {
    let mut pending = pending();
    check(&mut pending, vec![activity("a")], "activity a");
    pending.shutdown = true;
    let begins = vec![activity("b"), timer("t"), child("c"), cancel("a"), effect(1), complete()];
    let expect = "held back activity \"b\", held back timer \"t\", held back child \"c\", cancel a, \
                  effect effect/mail, completes";
    check(&mut pending, begins, expect);
    assert!(!pending.is_working());
}

#[test]
fn activities_children_and_effects_count_as_steps_and_timers_do_not() {
    let mut pending = pending();
    check(&mut pending, (0..9).map(|n| timer(&n.to_string())).collect(), &timers(9));
    check(
        &mut pending,
        vec![activity("a"), activity("b"), child("c"), effect(1)],
        "activity a, activity b, child child/c, effect effect/mail",
    );
    check(&mut pending, vec![activity("d")], "activity d");
    check(&mut pending, vec![activity("e")], "!would be number 6; a run has at most 5");
}

fn timers(count: u32) -> String {
    (0..count).map(|n| format!("timer timer/{n}")).collect::<Vec<_>>().join(", ")
}

#[test]
fn ids_and_options_are_checked() {
    for id in ["", "a#b", "a\0", &"x".repeat(201), "timer/a", "child/a", "effect/a"] {
        check(&mut pending(), vec![activity(id)], "!cannot be the id of an activity");
    }
    check(&mut pending(), vec![timer("timer/a")], "timer timer/timer/a");
    check(&mut pending(), vec![timer("a#b")], "!cannot be the id of a timer");
    let long = WorkflowAction::timer("t", Duration::from_secs(3 * 86_400 + 1));
    check(&mut pending(), vec![long], "!at most 3 days are allowed");
    let longest = WorkflowAction::timer("t", Duration::from_secs(3 * 86_400));
    check(&mut pending(), vec![longest], "timer timer/t");
    check(
        &mut pending(),
        vec![WorkflowAction::timer("t", "soon")],
        "!timer \"t\": \"soon\" is not a",
    );
    let pay = |options| vec![WorkflowAction::activity_with("a", "pay", json!(1), options)];
    let options = ActivityOptions::default;
    check(
        &mut pending(),
        pay(options().start_to_close_timeout("1 minute").retry_delay("1s")),
        "activity a",
    );
    for (wrong, expect) in [
        (options().retry_delay("soon"), "!retry_delay: \"soon\" is not a duration"),
        (options().schedule_to_start_timeout(-1), "!schedule_to_start_timeout: \"-1 ms\""),
        (options().start_to_close_timeout("1 month"), "!start_to_close_timeout: \"1 month\""),
        (
            options().heartbeat_timeout("").start_to_close_timeout("x"),
            "!heartbeat_timeout: the duration",
        ),
        (options().schedule_to_close_timeout(u64::MAX), "!schedule_to_close_timeout: "),
    ] {
        check(&mut pending(), pay(wrong), expect);
    }
    let breaker = CircuitBreakerConfig::default;
    for (wrong, expect) in [
        (breaker().reset_timeout("soon"), "!circuit breaker, reset_timeout: \"soon\""),
        (breaker().window_size("soon"), "!circuit breaker, window_size: \"soon\""),
    ] {
        check(&mut pending(), pay(options().circuit_breaker(wrong)), expect);
    }
    let queue = ActivityOptions { queue: String::new(), ..ActivityOptions::default() };
    let action = WorkflowAction::activity_with("a", "pay", json!(1), queue);
    assert!(plan(&mut pending(), vec![action]).is_err());
}

// The row of something that a machine asked for.
fn row(key: &str, kind: Kind, status: StepStatus, spec: &str) -> Step {
    let input = (kind != Kind::Timer).then(|| Body::json(spec.to_owned()));
    Step { input, ..fixtures::step(key, kind.as_str(), status) }
}

const PAY: &str = r#"{"type":"pay","input":{"n":1}}"#;
const PAY_OTHER: &str = r#"{"type":"pay","input":{"n":2}}"#;
const REFUND: &str = r#"{"type":"refund","input":{"n":1}}"#;
const MAIL: &str = r#"{"type":"mail","input":1}"#;

fn replay(carried: Vec<Step>, record: Vec<Step>) -> Pending {
    let mut pending = pending();
    pending.begin_replay(carried, record);
    assert!(pending.is_replaying());
    pending
}

fn paid(status: StepStatus) -> Step {
    row("a", Kind::Activity, status, PAY)
}

#[test]
fn a_replay_must_ask_for_what_the_record_has() {
    use StepStatus::{Cancelled, Completed, Pending as Open, Waiting};
    let check = |record: Vec<Step>, actions, expect: &str| {
        check(&mut replay(Vec::new(), record), actions, expect)
    };
    check(vec![paid(Completed)], vec![activity("a")], "");
    check(vec![paid(Open)], vec![activity("a")], "");
    check(
        vec![],
        vec![activity("a")],
        "!the code asks for activity \"a\", which the record does not have",
    );
    check(
        vec![row("a", Kind::Child, Open, PAY)],
        vec![activity("a")],
        "!which is a child in the record",
    );
    check(
        vec![row("a", Kind::Activity, Open, PAY_OTHER)],
        vec![activity("a")],
        "!or another input",
    );
    check(
        vec![row("a", Kind::Activity, Open, REFUND)],
        vec![activity("a")],
        "!another type (\"refund\")",
    );
    check(
        vec![paid(Open)],
        vec![complete()],
        "!the code completes the run, where the record goes on",
    );
    check(vec![paid(Open)], vec![fail()], "!the code fails the run, where the record goes on");
    check(vec![paid(Cancelled)], vec![activity("a"), cancel("a")], "");
    check(vec![paid(Completed)], vec![activity("a"), cancel("a")], "!and the record does not");
    check(vec![row("timer/t", Kind::Timer, Waiting, "")], vec![timer("t")], "");
    check(vec![row("effect/mail", Kind::Effect, Completed, MAIL)], vec![effect(1)], "");
    check(
        vec![row("effect/mail", Kind::Effect, Completed, MAIL)],
        vec![effect(2)],
        "!or another input",
    );
    check(vec![], vec![effect(1)], "!which the record does not have");
}

#[test]
fn a_replayed_activity_has_the_timeouts_of_its_record() {
    let recorded = r#"{"type":"pay","input":{"n":1},"options":{"heartbeat_timeout_ms":7000}}"#;
    let row = row("a", Kind::Activity, StepStatus::Pending, recorded);
    let mut pending = replay(Vec::new(), vec![row]);
    check(&mut pending, vec![activity("a")], "");
    let options = pending.open["a"].options.clone().expect("an activity has options");
    assert_eq!(options.heartbeat_timeout, Some(Duration::from_secs(7)));
}

#[test]
fn the_end_of_a_replay_compares_the_record_with_the_open_entries() {
    use StepStatus::{Completed, Pending as Open};
    let mail = || row("effect/mail", Kind::Effect, Completed, MAIL);
    // The record, the actions, the keys that were completed meanwhile, and the error.
    let check = |record: Vec<Step>, actions: Vec<WorkflowAction>, over: &[&str], expect: &str| {
        let mut pending = replay(Vec::new(), record);
        plan(&mut pending, actions).expect("the actions are in the record");
        over.iter().for_each(|key| drop(pending.open.remove(*key)));
        let ended = pending.end_replay();
        match expect {
            "" => ended.expect("the record fits"),
            part => {
                let message = ended.expect_err("the record does not fit").message().to_owned();
                assert!(message.contains(part), "{message:?} does not contain {part:?}");
            }
        }
        assert!(!pending.is_replaying());
    };
    check(vec![paid(Completed)], vec![activity("a")], &["a"], "");
    check(vec![paid(Open)], vec![activity("a")], &[], "");
    check(vec![paid(Open)], vec![], &[], "\"a\", which the code has not asked for");
    check(vec![paid(Completed)], vec![activity("a")], &[], "and the code still waits for it");
    check(vec![mail()], vec![effect(1)], &[], "");
    check(
        vec![mail()],
        vec![],
        &[],
        "has effect \"effect/mail\", which the code has not asked for",
    );
    let second = row("effect/mail#2", Kind::Effect, Completed, MAIL);
    check(vec![mail(), second], vec![effect(1)], &[], "has effect \"effect/mail#2\"");
}

fn carried(steps: Vec<Step>) -> Pending {
    let mut pending = replay(steps, Vec::new());
    pending.end_replay().expect("the record is empty");
    pending
}

#[test]
fn a_result_of_an_earlier_generation_is_used_again() {
    use StepStatus::{Cancelled, Completed};
    let mut pending = carried(vec![paid(Completed)]);
    check(&mut pending, vec![activity("a")], "");
    let (entry, step) = pending.next_carried().expect("the result is there");
    assert_eq!((&*entry.id, step.step_key.as_str()), ("a", "a"));
    assert!(pending.next_carried().is_none());
    check(&mut pending, vec![activity("a")], "activity a#2");

    check(&mut carried(vec![paid(Cancelled)]), vec![activity("a")], "activity a#2");
    let other = row("a", Kind::Activity, Completed, PAY_OTHER);
    check(&mut carried(vec![other]), vec![activity("a")], "!or another input");

    let mut pending = carried(vec![paid(Completed)]);
    check(&mut pending, vec![activity("a"), cancel("a")], "");
    assert!(pending.next_carried().is_none(), "the machine has cancelled it");

    let mail = || row("effect/mail", Kind::Effect, Completed, MAIL);
    check(&mut carried(vec![mail()]), vec![effect(1)], "carried effect/mail");
    check(&mut carried(vec![mail()]), vec![effect(2)], "effect effect/mail#2");
}

#[test]
fn results_of_an_earlier_generation_come_in_the_order_of_their_record() {
    let at = |key: &str, secs: i64| Step {
        updated_at: Timestamp::from_millis(secs * 1_000),
        ..row(key, Kind::Activity, StepStatus::Completed, PAY)
    };
    let mut pending = carried(vec![at("a", 9), at("b", 7), at("c", 8)]);
    check(&mut pending, vec![activity("a"), activity("b"), activity("c")], "");
    let order: Vec<String> =
        std::iter::from_fn(|| pending.next_carried().map(|(entry, _)| entry.id)).collect();
    assert_eq!(order, ["b", "c", "a"]);
}

#[test]
fn a_snapshot_knows_its_rows() {
    use StepStatus::{Completed, Pending as Open};
    let of = |key: &str, status| row(key, Kind::Activity, status, PAY);
    let mut pending = pending();
    let earlier = vec![of("delivered", Completed), of("pending", Completed)];
    let rows = vec![of("open", Open), of("over#3", Completed)];
    pending.restore(earlier, rows, &["delivered".to_owned()]);
    assert_eq!(pending.open.keys().map(|key| &**key).collect::<Vec<_>>(), ["open"]);
    check(&mut pending, vec![activity("open")], "!there is an activity \"open\" already");
    check(&mut pending, vec![activity("over")], "activity over#4");
    check(&mut pending, vec![activity("pending")], "");
    check(&mut pending, vec![activity("delivered")], "!would be number 6");
    assert!(pending.is_working());
}

#[test]
fn a_snapshot_counts_occurrences_and_steps_whatever_the_order_of_its_rows() {
    let of = |key: &str, kind| row(key, kind, StepStatus::Completed, PAY);
    let mut pending = pending();
    let rows = vec![
        of("over#3", Kind::Activity),
        of("over", Kind::Activity),
        of("timer/t", Kind::Timer),
        of("timer/t#2", Kind::Timer),
    ];
    pending.restore(Vec::new(), rows, &[]);
    check(&mut pending, vec![activity("over")], "activity over#4");
    check(&mut pending, vec![timer("t")], "timer timer/t#3");
    check(&mut pending, vec![activity("b"), activity("c")], "activity b, activity c");
    check(&mut pending, vec![activity("d")], "!would be number 6");
}

#[test]
fn timers_are_no_work() {
    let mut pending = pending();
    check(&mut pending, vec![timer("t")], "timer timer/t");
    assert!(!pending.is_working());
    check(&mut pending, vec![child("c")], "child child/c");
    assert!(pending.is_working());
}

#[test]
fn keys_and_ids_belong_together() {
    let cases = [
        (Kind::Activity, "a", 1, "a"),
        (Kind::Activity, "a", 2, "a#2"),
        (Kind::Timer, "a", 1, "timer/a"),
        (Kind::Child, "a", 12, "child/a#12"),
        (Kind::Effect, "a", 1, "effect/a"),
    ];
    for (kind, id, number, key) in cases {
        assert_eq!(&*key_of(kind, id, number), key);
        assert_eq!((id_of(key), occurrence(key)), (id, number));
    }
}

fn ask(id: &str) -> WorkflowAction {
    WorkflowAction::request(id, windlass_kernel::request::Request::to("ann"))
}

fn write(id: &str, count: u32) -> WorkflowAction {
    let put = |n| windlass_engine::RecordChange::put("carts", format!("c-{n}"), &n, 1).unwrap();
    WorkflowAction::write_records(id, (0..count).map(put))
}

#[test]
fn requests_and_writes_of_records_are_asked_for_once() {
    let mut pending = Pending::new(Limits::DEFAULT);
    check(&mut pending, vec![ask("a"), write("w", 2)], "request request/a, records records/w");
    check(&mut pending, vec![ask("a")], "!there is a request \"a\" already");
    check(&mut pending, vec![write("w", 1)], "!there is a write of records \"w\" already");
    let withdraw = || WorkflowAction::WithdrawRequest { request_id: "a".into() };
    check(&mut pending, vec![withdraw()], "cancel request/a");
    check(&mut pending, vec![withdraw()], "");
    check(&mut pending, vec![ask("a")], "request request/a#2");
    check(&mut pending, vec![ask("b"), complete()], "!also begins something");
    check(&mut pending, vec![write("x", 0)], "!changes no record");
    check(&mut pending, vec![write("x", 65)], "!at most 64 records");
    let title = windlass_kernel::request::Request::to("ann").title("x".repeat(201));
    check(&mut pending, vec![WorkflowAction::request("c", title)], "!at most 200");
    let activity = WorkflowAction::activity("request/a", "t", json!(1));
    check(&mut pending, vec![activity], "!cannot be the id of an activity");
}
