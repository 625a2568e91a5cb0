//! Property tests of the parsers of the server: any text is either read or refused, never a panic.

use proptest::prelude::*;
use windlass::kernel::{
    Collection, Expect, REVISION_MAX, RecordId, RunId, RunKey, Terms, Timestamp, WorkflowName,
    parse_duration,
};
use windlass_engine::Timing;

use crate::cursor;
use crate::depth::is_deeper_than;
use crate::precondition::{etag, expectation, is_known, parse_revision};
use crate::routes::records::parse_term;
use crate::view::{Time, parse_time};

/// Text with the characters that matter to the parsers, and any other.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-+.:/*,0-9a-zA-Z \\[\\]{}\"\\\\%=&?#TZ]{0,80}",
        "\\PC{0,60}",
        proptest::collection::vec(any::<char>(), 0..40).prop_map(|all| all.into_iter().collect()),
    ]
}

/// A field of a cron expression.
fn field(range: std::ops::Range<u32>) -> impl Strategy<Value = String> {
    let end = range.end;
    prop_oneof![
        Just("*".to_owned()),
        range.clone().prop_map(|n| n.to_string()),
        (1..end).prop_map(|step| format!("*/{step}")),
        proptest::collection::btree_set(range.clone(), 1..5)
            .prop_map(|all| { all.iter().map(u32::to_string).collect::<Vec<_>>().join(",") }),
        (range.clone(), range).prop_map(|(a, b)| format!("{}-{}", a.min(b), a.max(b))),
    ]
}

/// Whether a number is in such a field.
fn fits(field: &str, n: i64) -> bool {
    let number = |text: &str| text.parse::<i64>().expect("a number");
    match (field, field.strip_prefix("*/"), field.split_once('-')) {
        ("*", ..) => true,
        (_, Some(step), _) => n % number(step) == 0,
        (_, _, Some((first, last))) => (number(first)..=number(last)).contains(&n),
        (list, ..) => list.split(',').any(|one| number(one) == n),
    }
}

/// A JSON value of at most six levels.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            proptest::collection::hash_map("[a-z\"\\\\]{1,4}", inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(all) => 1 + all.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(all) => 1 + all.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_cursor_is_read_as_it_was_written(kind in "[a-z-]{1,12}", key in text(), other in text()) {
        let written = cursor::encode(&kind, &key);
        prop_assert_eq!(cursor::decode(&kind, &written).ok(), Some(key));
        prop_assert!(cursor::decode("another-listing", &written).is_err());
        // Any other text is refused. A text with the right check sum would have to be guessed.
        prop_assert!(other == written || cursor::decode(&kind, &other).is_err());
    }

    #[test]
    fn the_depth_of_json_is_the_depth_of_its_value(value in json(), space in "[ \n\t]{0,3}") {
        let text = format!("{space}{value}{space}");
        let depth = depth(&value);
        prop_assert!(!is_deeper_than(text.as_bytes(), depth));
        prop_assert!(depth == 0 || is_deeper_than(text.as_bytes(), depth - 1));
    }

    #[test]
    fn any_bytes_have_a_depth(bytes in proptest::collection::vec(any::<u8>(), 0..200), max in 0..10_usize) {
        let opened = bytes.iter().filter(|byte| b"[{".contains(byte)).count();
        prop_assert!(opened > max || !is_deeper_than(&bytes, max));
    }

    #[test]
    fn times_durations_and_ids_never_panic(text in text()) {
        let _ = (parse_time(&text), parse_duration(&text));
        for id in [RunId::new(&text).map(|id| id.to_string()), RunId::composed(&text).map(|id| id.to_string())] {
            prop_assert!(id.is_err() || id.is_ok_and(|id| id == text));
        }
        prop_assert!(WorkflowName::new(&text).is_err() || !text.is_empty());
        if let Ok(key) = text.parse::<RunKey>() {
            prop_assert_eq!(key.to_string().parse::<RunKey>().ok(), Some(key));
        }
    }

    #[test]
    fn a_time_is_read_as_it_was_written(ms in 0..4_102_444_800_000_i64) {
        let time = Timestamp::from_millis(ms);
        prop_assert_eq!(parse_time(&Time(time).to_string()), Some(time));
    }

    #[test]
    fn a_precondition_is_a_tag_that_the_server_wrote(revision in 1..=REVISION_MAX, text in text()) {
        let tag = etag(revision).to_str().unwrap().to_owned();
        prop_assert_eq!(expectation(Some(&tag), None).ok(), Some(Expect::At(revision)));
        let weak = format!("W/{tag}");
        prop_assert!(expectation(Some(&weak), None).is_err());
        for text in [text.clone(), format!("\"{text}\"")] {
            match expectation(Some(&text), None) {
                Ok(Expect::At(read)) => prop_assert!(etag(read) == *text),
                Ok(expect) => prop_assert!(expect == Expect::Present && text == "*"),
                Err(error) => prop_assert!(error.status().is_client_error()),
            }
            prop_assert_eq!(expectation(None, Some(&text)).is_ok(), text == "*");
            prop_assert!(expectation(Some(&text), Some(&text)).is_err());
        }
        if let Ok(read) = parse_revision(&text) {
            prop_assert_eq!(text.parse(), Ok(read));
        }
        let mut headers = axum::http::HeaderMap::new();
        if let Ok(value) = text.parse() {
            headers.insert("if-none-match", value);
            let _ = is_known(&headers, revision);
        }
    }

    #[test]
    fn terms_and_names_of_records_are_read_or_refused(text in text(), value in text()) {
        if let Ok((name, rest)) = parse_term(&text) {
            prop_assert_eq!(format!("{name}:{rest}"), text.clone());
            prop_assert!(!name.contains(':'));
        }
        let mut terms = Terms::default();
        if terms.add(&text, &value).is_ok() {
            let column = terms.to_column();
            prop_assert_eq!(Terms::parse(column.as_deref()).ok(), Some(terms));
        }
        let _ = (Collection::new(&text), RecordId::new(&text));
    }

    #[test]
    fn cron_expressions_are_read_or_refused(expression in text(), time_zone in text()) {
        let limits = windlass::Limits::DEFAULT;
        for time_zone in ["UTC".to_owned(), time_zone] {
            let timing = Timing::Cron { expression: expression.clone(), time_zone };
            if let Err(error) = timing.validate(&limits) {
                prop_assert!(!error.message().is_empty());
            }
        }
    }

    // Expressions of numbers, lists, ranges and steps. The firings of each are in order, and fit its fields.
    #[test]
    fn firings_of_valid_cron_expressions_fit_them(
        minutes in field(0..60),
        hours in field(0..24),
        weekdays in field(0..7),
        start in 0i64..2_000_000_000,
    ) {
        let expression = format!("{minutes} {hours} * * {weekdays}");
        let timing = Timing::Cron { expression, time_zone: "UTC".into() };
        prop_assert!(timing.validate(&windlass::Limits::DEFAULT).is_ok(), "{timing:?}");
        let mut after = Timestamp::from_micros(start * 1_000_000);
        for _ in 0..5 {
            let next = timing.next_after(after, Timestamp::ZERO).expect("a next time");
            prop_assert!(next > after, "{timing:?}");
            let just_before = next.minus(std::time::Duration::from_micros(1)).max(after);
            prop_assert_eq!(timing.next_after(just_before, Timestamp::ZERO).ok(), Some(next));
            let seconds = next.as_micros() / 1_000_000;
            prop_assert_eq!(next.as_micros() % 60_000_000, 0);
            prop_assert!(fits(&minutes, seconds / 60 % 60), "{timing:?} at {next}");
            prop_assert!(fits(&hours, seconds / 3_600 % 24), "{timing:?} at {next}");
            // The epoch was a Thursday.
            prop_assert!(fits(&weekdays, (seconds / 86_400 + 4) % 7), "{timing:?} at {next}");
            after = next;
        }
    }

    #[test]
    fn request_bodies_are_read_or_refused(value in json(), text in text()) {
        for body in [value.to_string(), text] {
            let _ = serde_json::from_str::<crate::routes::instances::CreateInstance>(&body);
            let _ = serde_json::from_str::<crate::routes::events::SendEvent>(&body);
            let _ = serde_json::from_str::<crate::routes::schedules::SetSchedule>(&body);
            let _ = serde_json::from_str::<crate::routes::runs::BulkRequest>(&body);
        }
    }
}
