//! Acceptance cases 13 to 16.

use serde_json::json;

use super::*;
use crate::{diagnostic::Diagnostic, source};

fn code(text: &str) -> &'static str {
    Expression::parse(text).unwrap_err().code().as_str()
}

#[test]
fn case_13_limits_are_enforced_while_parsing() {
    let nots = |count| "!!(".repeat(count);
    let parentheses = |count| format!("{}entity.a{}", "(".repeat(count), ")".repeat(count));
    // Each operator `!(…)` adds one level to the value inside.
    let deep =
        |depth: usize| format!("{}entity.a{}", "!(".repeat(depth - 1), ")".repeat(depth - 1));
    let steps = |count: usize| format!("entity{}", ".a".repeat(count));

    assert_eq!(code(&nots(10_000)), "EXPRESSION_TOO_LONG");
    assert_eq!(code(&nots(100)), "EXPRESSION_SYNTAX");
    assert_eq!(code(&parentheses(10_000)), "EXPRESSION_TOO_LONG");
    assert_eq!(code(&"(".repeat(10_000)), "EXPRESSION_TOO_LONG");
    assert_eq!(code(&"(".repeat(500)), "EXPRESSION_TOO_DEEP");
    assert_eq!(code(&"(".repeat(1_000_000)), "EXPRESSION_TOO_LONG");
    assert!(Expression::parse(&parentheses(10)).is_ok());
    assert_eq!(code(&parentheses(11)), "EXPRESSION_TOO_DEEP");

    assert!(Expression::parse(&deep(10)).is_ok());
    assert_eq!(code(&deep(11)), "EXPRESSION_TOO_DEEP");
    let long_chain = vec!["true"; 62].join(" && ");
    assert!(Expression::parse(&long_chain).is_ok());

    assert!(Expression::parse(&steps(20)).is_ok());
    assert_eq!(code(&steps(21)), "EXPRESSION_TOO_MANY_DEREFERENCES");
    let spread = ["entity.a.b"; 10].join(" && ");
    assert!(Expression::parse(&spread).is_ok());
    assert_eq!(code(&format!("{spread} && org.x")), "EXPRESSION_TOO_MANY_DEREFERENCES");

    let text = |length: usize| format!("'{}'", "é".repeat(length - 2));
    assert!(Expression::parse(&text(500)).is_ok());
    assert_eq!(code(&text(501)), "EXPRESSION_TOO_LONG");
}

#[test]
fn case_13_an_error_keeps_no_more_of_the_text_than_the_limit() {
    let error = Expression::parse(&"(".repeat(1_000_000)).unwrap_err();
    let found = Diagnostic::from(error);
    assert_eq!(found.place.expression.map(|text| text.len()), Some(CHARACTERS_MAX));
    assert!(found.message.contains("500"), "{}", found.message);
    assert_eq!(found.place.span.map(|span| span.start), Some(500));
}

#[test]
fn case_14_wrong_types_and_names_have_a_span() {
    let schemas = schemas();
    for (text, code, place) in [
        ("entity.total > 'x'", "EXPRESSION_TYPE", "entity.total > 'x'"),
        ("entity.unknown == 1", "EXPRESSION_UNKNOWN_NAME", "unknown"),
        ("entity.total < entity.rate < context.count", "EXPRESSION_CHAINED_COMPARISON", "<"),
        ("now.x", "EXPRESSION_UNKNOWN_NAME", "."),
    ] {
        let error = Expression::parse(text).and_then(|parsed| parsed.check(&schemas)).unwrap_err();
        assert_eq!(found(&error, text), (code, place.to_owned()), "{text}");
    }
}

#[test]
fn case_15_values_are_data_and_never_syntax() {
    const HOSTILE: &str = "' || true || '";
    let document = json!({"note": HOSTILE, "id": "{entity.note}", "part": "a:b/%'"});
    let scope = Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
    let evaluate = |text| Expression::parse(text).unwrap().evaluate(&scope).unwrap();

    let explained = evaluate("entity.note == ''");
    assert!(!explained.is_true());
    assert!(explained.to_string().contains(r"where entity.note = '\' || true || \''"));
    assert_eq!(explained.variables()["entity.note"], json!(HOSTILE));
    assert!(evaluate(r"entity.note == '\' || true || \''").is_true());

    let render = |text| Template::parse(text).unwrap().render(&scope).unwrap();
    assert_eq!(render("n={entity.note};"), "n=' || true || ';");
    assert_eq!(render("{entity.id}"), "{entity.note}");

    let key = |text| Template::parse(text).unwrap().render_key(&scope, 200).unwrap();
    assert_eq!(key("pod:{entity.note}"), "pod:%27%20%7C%7C%20true%20%7C%7C%20%27");
    assert_eq!(key("pod:{entity.part}:x"), "pod:a%3Ab%2F%25%27:x");
    let empty = json!({"a": ""});
    let error = Template::parse("pod:{entity.a}")
        .unwrap()
        .render_key(&Scope::new(&empty, jiff::Timestamp::UNIX_EPOCH), 200)
        .unwrap_err();
    assert_eq!(error.code(), TEMPLATE_EMPTY_VALUE);
}

#[test]
fn case_16_a_number_that_would_lose_digits_is_refused() {
    let text = r#"{"total": 9007199254740993}"#;
    let found = source::read(text, 1_000).unwrap_err();
    assert_eq!(found.code, source::JSON_NUMBER_INEXACT);
    assert_eq!(found.place.pointer.as_deref(), Some("/total"));
    assert!(found.message.contains("9007199254740993"), "{}", found.message);

    let document: Value = serde_json::from_str(text).unwrap();
    let scope = Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
    for text in ["entity.total == 9007199254740991", "entity.total > 1", "entity.total"] {
        let error = Expression::parse(text).unwrap().evaluate(&scope).unwrap_err();
        assert_eq!(error.code(), EXPRESSION_VALUE);
        assert!(error.message().contains("9007199254740993"), "{error}");
    }
    assert!(Template::parse("{entity.total}").unwrap().render(&scope).is_err());
}
