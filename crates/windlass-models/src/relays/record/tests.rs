//! Tables of the outcomes that can be recorded, and of what follows from one.

use super::*;
use crate::fixtures;

fn limits() -> Limits {
    Limits {
        step_bytes_max: 1_000,
        output_bytes_max: 2_000,
        input_bytes_max: 3_000,
        steps_per_run_max: 3,
        sleep_days_max: 2,
        ..Limits::DEFAULT
    }
}

fn bytes(len: usize) -> Bytes {
    Bytes::from(vec![b'x'; len])
}

fn after(delay: Duration) -> StepOutcome {
    StepOutcome::ContinueAfter { payload: bytes(1), delay }
}

fn on_signal(signal: &str, timeout: Option<Duration>) -> StepOutcome {
    StepOutcome::ContinueOnSignal { payload: bytes(1), signal: signal.into(), timeout }
}

const DAY: Duration = Duration::from_secs(86_400);

#[test]
fn an_outcome_that_cannot_be_stored_is_a_permanent_error() {
    #[track_caller]
    fn check_with(run: &Run, outcome: StepOutcome, number: u32, expect: &str) {
        let (checked, sent) = (check(outcome.clone(), number, run, &limits()), outcome);
        match (checked, expect) {
            (Ok(found), "") => assert_eq!(found, sent),
            (Err(error), part) if !part.is_empty() => {
                assert!(error.is_permanent());
                assert!(error.message().contains(part), "{}", error.message());
            }
            (found, expect) => panic!("{found:?} is not {expect:?}"),
        }
    }
    let run = fixtures::run();
    let check = |outcome, number, expect: &str| check_with(&run, outcome, number, expect);
    check(StepOutcome::next(bytes(1_000)), 0, "");
    check(StepOutcome::next(bytes(1_001)), 0, "the payload of step 0 has 1001 bytes; at most 1000");
    check(StepOutcome::done(bytes(2_000)), 0, "");
    check(StepOutcome::done(bytes(2_001)), 0, "the result of step 0 has 2001 bytes; at most 2000");
    check(StepOutcome::next(bytes(1)), 1, "");
    check(StepOutcome::next(bytes(1)), 2, "at most 3 steps");
    check(StepOutcome::done(bytes(1)), 2, "");
    check(StepOutcome::continue_as_new(bytes(3_000)), 2, "");
    check(StepOutcome::continue_as_new(bytes(3_001)), 2, "has 3001 bytes; at most 3000");
    check(StepOutcome::Fail { reason: "no".into() }, 2, "");
    check(StepOutcome::Cancel { reason: "no".into() }, 2, "");
    check(after(2 * DAY), 0, "");
    check(after(2 * DAY + Duration::from_nanos(1)), 0, "at most 2 days");
    check(on_signal("go", None), 0, "");
    check(on_signal("go", Some(2 * DAY)), 0, "");
    check(on_signal("go", Some(3 * DAY)), 0, "at most 2 days");
    let (none, nul) = (on_signal("", None), on_signal("\0", None));
    assert!(super::check(none, 0, &run, &limits()).is_err());
    assert!(super::check(nul, 0, &run, &limits()).is_err());

    // A parent stores a result that is not JSON in Base64.
    let child = Run { parent: Some(run.run_key), ..fixtures::run() };
    let most = 1_000 / 4 * 3 - 64;
    check_with(&child, StepOutcome::done(bytes(most)), 0, "");
    check_with(&child, StepOutcome::done(bytes(most + 1)), 0, "of a child run at most 686");
    let json = Bytes::from(format!("\"{}\"", "x".repeat(1_500)));
    check_with(&child, StepOutcome::done(json), 0, "");
}

#[test]
fn a_body_is_json_only_if_the_run_is_and_the_bytes_are() {
    let check = |bytes: &'static [u8], json: bool, expect: Encoding| {
        let stored = body(&Bytes::from_static(bytes), json);
        assert_eq!((stored.encoding, &*stored.bytes), (expect, bytes));
    };
    check(b"{\"a\":1}", true, Encoding::Json);
    check(b"{\"a\":1}", false, Encoding::Bytes);
    check(b"{\"a\":", true, Encoding::Bytes);
    check(b"1 2", true, Encoding::Bytes);
    check(b"\"\xff\"", true, Encoding::Bytes);
    check(b"", true, Encoding::Bytes);
}

#[test]
fn the_next_step_waits_as_the_outcome_says() {
    let now = Timestamp::from_millis(1_000);
    // The outcome, when the next step is due, its signal, and what the event says.
    let check = |outcome: StepOutcome, due_ms: Option<i64>, wait_for: Option<&str>, event: &str| {
        let mut payload = Completed::of(4, 2, Some(7));
        let open = next_open(&outcome, now, &mut payload);
        assert_eq!(open.due.map(Timestamp::as_millis), due_ms);
        assert_eq!(open.wait_for.as_deref(), wait_for);
        assert_eq!((open.attempt, open.stored), (0, None));
        assert_eq!(serde_json::to_string(&payload).expect("JSON"), event);
    };
    let second = Duration::from_secs(1);
    check(StepOutcome::next(bytes(1)), None, None, r#"{"attempt":2,"step":4,"took_us":7}"#);
    check(after(Duration::ZERO), None, None, r#"{"attempt":2,"step":4,"took_us":7}"#);
    check(
        after(second),
        Some(2_000),
        None,
        r#"{"attempt":2,"delay_ms":1000,"step":4,"took_us":7}"#,
    );
    let event = r#"{"attempt":2,"signal":"go","step":4,"took_us":7}"#;
    check(on_signal("go", None), None, Some("go"), event);
    check(on_signal("go", Some(second)), Some(2_000), Some("go"), event);
}

#[test]
fn some_verdicts_end_the_run_without_a_result() {
    let (name, message, errors) = (String::new(), String::new(), Vec::new());
    let retry = Verdict::Retry { name, message, errors, delay: DAY };
    let (name, message, errors) = (String::new(), String::new(), Vec::new());
    let dead = Verdict::Dead { name, message, errors };
    let reason = || "no".to_owned();
    // The verdict, whether it is a retry, and whether it is final.
    let cases = [
        (retry, true, false),
        (dead, false, true),
        (Verdict::Outcome(StepOutcome::next(bytes(1))), false, false),
        (Verdict::Outcome(StepOutcome::done(bytes(1))), false, false),
        (Verdict::Outcome(StepOutcome::Fail { reason: reason() }), false, true),
        (Verdict::Outcome(StepOutcome::Cancel { reason: reason() }), false, true),
    ];
    for (place, (verdict, is_retry, is_final)) in cases.into_iter().enumerate() {
        assert_eq!((verdict.is_retry(), verdict.is_final()), (is_retry, is_final), "{place}");
    }
}

#[test]
fn a_stored_error_has_a_name_a_bounded_message_its_step_and_earlier_errors() {
    let read = |body: Body| body.read::<Value>().expect("JSON");
    let error = read(error_body("Fail", "no", 3, &[]).expect("JSON"));
    assert_eq!(error, json!({ "name": "Fail", "message": "no", "step": "3" }));
    let earlier = [json!({ "name": "A" })];
    let error = read(error_body("Fail", &"é".repeat(20_000), 3, &earlier).expect("JSON"));
    assert_eq!(error["errors"], json!(earlier));
    let chars = error["message"].as_str().map(|text| text.chars().count());
    assert_eq!(chars, Some(REASON_CHARS_MAX));
}

#[test]
fn only_an_outcome_that_goes_on_has_a_payload() {
    let check = |outcome: StepOutcome, expect: Option<usize>| {
        assert_eq!(payload_len(&outcome), expect);
        assert_eq!(payload_of(outcome).map(|payload| payload.len()), expect);
    };
    check(StepOutcome::next(bytes(5)), Some(5));
    check(after(DAY), Some(1));
    check(on_signal("go", None), Some(1));
    check(StepOutcome::done(bytes(5)), None);
    check(StepOutcome::Fail { reason: "no".into() }, None);
    check(StepOutcome::Cancel { reason: "no".into() }, None);
}
