//! Tables that are right and wrong, and a property test against brute force.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    diagnostic::Diagnostic,
    dsl::{Schemas, Scope},
};

fn schemas() -> Schemas {
    Schemas::new(json!({"properties": {
        "total": {"type": "integer"},
        "price": {"type": "number"},
        "status": {"enum": ["draft", "open"]},
        "country": {"type": "string"},
        "urgent": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "a": {"type": "integer"}, "b": {"type": "integer"},
    }}))
}

/// A table with the inputs `total`, `status` and `urgent`, whose output is the id of the row.
fn table(policy: &str, rows: &[(&str, Value)]) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|(id, when)| json!({"id": id, "when": when, "then": {"outcome": id}}))
        .collect();
    json!({
        "hitPolicy": policy,
        "inputs": [
            {"name": "total", "path": "entity.total", "type": "integer", "min": 0},
            {"name": "status", "path": "entity.status", "type": "text", "optional": true},
            {"name": "urgent", "path": "entity.urgent", "type": "boolean"},
        ],
        "outputs": [{"name": "outcome", "type": "text"}],
        "rows": rows,
    })
}

fn check(table: &Value) -> Result<(), Diagnostic> {
    let table: DecisionTable = serde_json::from_value(table.clone()).unwrap();
    table.check(&schemas())
}

fn decide(table: &Value, document: &Value) -> Result<Decision, Diagnostic> {
    let table: DecisionTable = serde_json::from_value(table.clone()).unwrap();
    table.decide(&Scope::new(document, jiff::Timestamp::UNIX_EPOCH))
}

#[test]
fn a_table_that_covers_each_input_once_is_accepted() {
    for rows in [
        vec![("all", json!({}))],
        vec![("low", json!({"total": {"below": 10}})), ("high", json!({"total": {"atLeast": 10}}))],
        vec![
            ("zero", json!({"total": {"equals": 0}})),
            ("some", json!({"total": {"above": 0, "atMost": 9}})),
            ("more", json!({"total": {"notIn": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}})),
        ],
        vec![
            ("none", json!({"status": {"absent": true}})),
            ("some", json!({"status": {"absent": false}, "urgent": {"equals": true}})),
            ("open", json!({"status": {"equals": "open"}, "urgent": {"equals": false}})),
            ("rest", json!({"status": {"notIn": ["open"]}, "urgent": {"equals": false}})),
        ],
    ] {
        check(&table("unique", &rows)).unwrap();
        check(&table("first", &rows)).unwrap();
    }
}

#[test]
fn gaps_and_overlaps_have_an_example() {
    for (policy, rows, code, message) in [
        (
            "unique",
            vec![("a", json!({"total": {"below": 10}})), ("b", json!({"total": {"above": 10}}))],
            RULE_GAP,
            r#"no row decides for total = 10, status = "draft", urgent = false"#,
        ),
        (
            "first",
            vec![("a", json!({"status": {"in": ["draft", "open"]}}))],
            RULE_GAP,
            "no row decides for total = 0, status = null, urgent = false",
        ),
        (
            "first",
            vec![("a", json!({"urgent": {"equals": true}})), ("b", json!({"total": {"above": 5}}))],
            RULE_GAP,
            r#"no row decides for total = 0, status = "draft", urgent = false"#,
        ),
        (
            "unique",
            vec![("a", json!({"total": {"atMost": 10}})), ("b", json!({"total": {"atLeast": 10}}))],
            RULE_OVERLAP,
            r#"the rows "a" and "b" both decide for total = 10, status = "draft", urgent = false"#,
        ),
        (
            "first",
            vec![
                ("a", json!({"total": {"below": 5}})),
                ("b", json!({"total": {"atLeast": 5}})),
                ("c", json!({"urgent": {"equals": true}})),
            ],
            RULE_ROW_UNREACHABLE,
            r#"the row "c" never decides: earlier rows match all its inputs"#,
        ),
        (
            "first",
            vec![("a", json!({"total": {"below": 0}})), ("b", json!({}))],
            RULE_ROW_UNREACHABLE,
            r#"the row "a" never decides: its conditions exclude every input"#,
        ),
        (
            "first",
            vec![("a", json!({"status": {"equals": "closed"}})), ("b", json!({}))],
            RULE_ROW_UNREACHABLE,
            r#"the row "a" never decides: its conditions exclude every input"#,
        ),
    ] {
        let found = check(&table(policy, &rows)).unwrap_err();
        assert_eq!((found.code, found.message.as_str()), (code, message));
        assert!(!found.help.is_empty() && found.place.pointer.is_some());
    }
}

#[test]
fn otherwise_closes_gaps() {
    let mut with = table("unique", &[("a", json!({"total": {"below": 10}}))]);
    assert_eq!(check(&with).unwrap_err().code, RULE_GAP);
    with["otherwise"] = json!({"outcome": "rest"});
    check(&with).unwrap();
    let decision = decide(&with, &json!({"total": 10, "urgent": true})).unwrap();
    assert_eq!((decision.row.as_deref(), decision.text("outcome")), (None, Some("rest")));
    let table: DecisionTable = serde_json::from_value(with).unwrap();
    assert_eq!(table.texts("outcome"), Some(["a", "rest"].into()));
    assert_eq!(table.texts("absent"), None);
}

#[test]
fn texts_without_a_list_need_a_row_for_all_others() {
    let table = |condition: Value| {
        json!({
            "hitPolicy": "unique",
            "inputs": [{"name": "country", "path": "entity.country", "type": "text"}],
            "outputs": [{"name": "o", "type": "boolean"}],
            "rows": [
                {"id": "eu", "when": {"country": {"in": ["other", "de"]}}, "then": {"o": true}},
                {"id": "world", "when": {"country": condition}, "then": {"o": false}},
            ],
        })
    };
    check(&table(json!({"notIn": ["de", "other"]}))).unwrap();
    let gap = check(&table(json!({"in": ["us"]}))).unwrap_err();
    assert_eq!(gap.message, r#"no row decides for country = "other1""#);
    let overlap = check(&table(json!({"notIn": ["other"]}))).unwrap_err();
    assert_eq!(overlap.message, r#"the rows "eu" and "world" both decide for country = "de""#);
}

#[test]
fn decimals_have_no_gap_between_neighbours() {
    let table = |scale: u32, above: f64| {
        json!({
            "hitPolicy": "unique",
            "inputs": [{"name": "price", "path": "entity.price", "type": "decimal", "scale": scale}],
            "outputs": [{"name": "o", "type": "number"}],
            "rows": [
                {"id": "low", "when": {"price": {"atMost": 9.99}}, "then": {"o": 1}},
                {"id": "high", "when": {"price": {"atLeast": above}}, "then": {"o": 1.5}},
            ],
        })
    };
    check(&table(2, 10.0)).unwrap();
    assert_eq!(check(&table(3, 10.0)).unwrap_err().message, "no row decides for price = 9.991");
    assert_eq!(check(&table(1, 10.0)).unwrap_err().code, RULE_INVALID);
    assert_eq!(
        decide(&table(2, 10.0), &json!({"price": 9.99})).unwrap().row.as_deref(),
        Some("low")
    );
    let found = decide(&table(2, 10.0), &json!({"price": 9.995})).unwrap_err();
    assert_eq!(found.code, RULE_VALUE);
}

#[test]
fn malformed_tables_are_refused_with_a_place() {
    let base = table("first", &[("a", json!({"total": {"below": 5}})), ("b", json!({}))]);
    let cases: Vec<(&str, Value, &str, &str)> = vec![
        ("/inputs", json!([]), "RULE_INVALID", "/inputs"),
        ("/rows", json!([]), "RULE_INVALID", "/rows"),
        ("/inputs/0/path", json!("entity.x"), "EXPRESSION_UNKNOWN_NAME", "/inputs/0/path"),
        ("/inputs/0/path", json!("entity.total > 1"), "EXPRESSION_SYNTAX", "/inputs/0/path"),
        ("/inputs/0/path", json!(" entity.total"), "EXPRESSION_SYNTAX", "/inputs/0/path"),
        ("/inputs/0/path", json!("entity.country"), "RULE_INVALID", "/inputs/0/type"),
        ("/inputs/0/name", json!("status"), "RULE_INVALID", "/inputs/1/name"),
        ("/inputs/0/name", json!(""), "RULE_INVALID", "/inputs/0/name"),
        ("/inputs/0/scale", json!(2), "RULE_INVALID", "/inputs/0/scale"),
        ("/inputs/0/max", json!(-1), "RULE_INVALID", "/inputs/0/min"),
        ("/inputs/0/min", json!(0.5), "RULE_INVALID", "/inputs/0/min"),
        ("/inputs/1/min", json!(1), "RULE_INVALID", "/inputs/1/min"),
        ("/inputs/1/values", json!(["draft"]), "RULE_INVALID", "/inputs/1/values"),
        ("/inputs/2/values", json!(["x"]), "RULE_INVALID", "/inputs/2/values"),
        ("/outputs/0/name", json!("x"), "RULE_INVALID", "/rows/0/then/outcome"),
        ("/rows/1/id", json!("a"), "RULE_INVALID", "/rows/1/id"),
        ("/rows/1/id", json!("x".repeat(201)), "RULE_TOO_LARGE", "/rows/1/id"),
        ("/rows/1/id", json!("x\u{0}"), "RULE_INVALID", "/rows/1/id"),
        ("/rows/0/when", json!({"x": {"equals": 1}}), "RULE_INVALID", "/rows/0/when/x"),
        ("/rows/0/when/total", json!({}), "RULE_INVALID", "/rows/0/when/total"),
        ("/rows/0/when/total", json!({"equals": "1"}), "RULE_INVALID", "/rows/0/when/total/equals"),
        ("/rows/0/when/total", json!({"in": [null]}), "RULE_INVALID", "/rows/0/when/total/in"),
        ("/rows/0/when/total", json!({"below": 0.5}), "RULE_INVALID", "/rows/0/when/total/below"),
        (
            "/rows/0/when/total",
            json!({"absent": true}),
            "RULE_INVALID",
            "/rows/0/when/total/absent",
        ),
        (
            "/rows/0/when",
            json!({"urgent": {"below": 1}}),
            "RULE_INVALID",
            "/rows/0/when/urgent/below",
        ),
        (
            "/rows/0/when",
            json!({"status": {"absent": true, "equals": "open"}}),
            "RULE_INVALID",
            "/rows/0/when/status/absent",
        ),
        (
            "/rows/0/when/total",
            json!({"in": vec![1; 101]}),
            "RULE_TOO_LARGE",
            "/rows/0/when/total/in",
        ),
        ("/rows/0/then", json!({}), "RULE_INVALID", "/rows/0/then"),
        ("/rows/0/then", json!({"outcome": 1}), "RULE_INVALID", "/rows/0/then/outcome"),
        ("/rows/0/then", json!({"outcome": "a", "y": 1}), "RULE_INVALID", "/rows/0/then/y"),
    ];
    for (pointer, value, code, place) in cases {
        let mut changed = base.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match changed.pointer_mut(parent).unwrap() {
            Value::Object(members) => drop(members.insert(key.to_owned(), value.clone())),
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = value.clone(),
            other => panic!("{other}"),
        }
        let found = check(&changed).unwrap_err();
        let found = (found.code.as_str(), found.place.pointer.as_deref());
        assert_eq!(found, (code, Some(place)), "{pointer} = {value}");
    }
}

#[test]
fn unknown_members_and_inexact_numbers_are_not_read() {
    let base = table("first", &[("a", json!({}))]);
    for (pointer, value) in [
        ("/rows/0/when", json!({"total": {"less": 1}})),
        ("/rows/0/when", json!({"total": {"below": 9_007_199_254_740_993_u64}})),
        ("/hitPolicy", json!("any")),
        ("/rows/0", json!({"id": "a", "then": {}, "wehn": {}})),
    ] {
        let mut changed = base.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        assert!(serde_json::from_value::<DecisionTable>(changed).is_err(), "{pointer}");
    }
}

#[test]
fn limits_are_named() {
    let many: Vec<(String, Value)> = (0..=ROWS_MAX)
        .map(|index| (index.to_string(), json!({"total": {"equals": index}})))
        .collect();
    let rows: Vec<(&str, Value)> =
        many.iter().map(|(id, row)| (id.as_str(), row.clone())).collect();
    let found = check(&table("first", &rows)).unwrap_err();
    assert_eq!(found.code, RULE_TOO_LARGE);
    assert_eq!(found.message, "the table has 201 rows, the limit is 200");
    let mut fits = table("first", &rows[..ROWS_MAX]);
    fits["otherwise"] = json!({"outcome": "x"});
    check(&fits).unwrap();
}

#[test]
fn a_table_that_is_too_complex_is_refused() {
    // Each row constrains two inputs, so that the regions between them multiply.
    let inputs: Vec<Value> = (0..8)
        .map(|index| {
            json!({"name": format!("i{index}"), "path": if index % 2 == 0 { "entity.a" } else { "entity.b" },
                   "type": "integer"})
        })
        .collect();
    let rows: Vec<Value> = (0..200_i64)
        .map(|row| {
            let when: serde_json::Map<String, Value> = (0..8_i64)
                .map(|input| {
                    (format!("i{input}"), json!({"notIn": [row * 7 + input, row * 3 - input]}))
                })
                .collect();
            json!({"id": row.to_string(), "when": when, "then": {"o": true}})
        })
        .collect();
    let table = json!({
        "hitPolicy": "first", "inputs": inputs, "outputs": [{"name": "o", "type": "boolean"}], "rows": rows,
    });
    let found = check(&table).unwrap_err();
    assert_eq!(found.code, RULE_TOO_COMPLEX);
    assert!(found.message.contains("20000000"), "{}", found.message);
}

#[test]
fn a_decision_explains_itself() {
    let table = table(
        "first",
        &[
            ("a", json!({"total": {"below": 5}})),
            ("b", json!({"urgent": {"equals": true}})),
            ("c", json!({})),
        ],
    );
    let decision = decide(&table, &json!({"total": 7, "urgent": true})).unwrap();
    let read: DecisionTable = serde_json::from_value(table).unwrap();
    assert_eq!(
        serde_json::to_value(&decision).unwrap(),
        json!({
            "row": "b",
            "outputs": {"outcome": "b"},
            "inputs": {"total": 7, "status": null, "urgent": true},
            "considered": [{"row": "a", "failed": "total"}, {"row": "b"}],
            "digest": read.digest().unwrap(),
        })
    );
}

#[test]
fn values_outside_the_declared_inputs_are_errors() {
    let table = table("first", &[("a", json!({}))]);
    for document in [
        json!({"total": -1, "urgent": true}),
        json!({"urgent": true}),
        json!({"total": "1", "urgent": true}),
        json!({"total": 9_007_199_254_740_993_u64, "urgent": true}),
        json!({"total": 1, "urgent": null}),
    ] {
        assert_eq!(decide(&table, &document).unwrap_err().code, RULE_VALUE, "{document}");
    }
}

#[test]
fn the_digest_is_that_of_the_canonical_json() {
    let read = |text: &str| serde_json::from_str::<DecisionTable>(text).unwrap().digest().unwrap();
    let one = r#"{"hitPolicy":"first","inputs":[],"outputs":[{"name":"o","type":"number"}],
        "rows":[{"id":"a","when":{"x":{"below":1.50,"above":0}},"then":{"o":1}}]}"#;
    let shuffled = r#"{"rows":[{"then":{"o":1.0},"when":{"x":{"above":0.0,"below":1.5}},"id":"a"}],
        "outputs":[{"type":"number","name":"o"}],"inputs":[],"hitPolicy":"first"}"#;
    assert_eq!(read(one), read(shuffled));
    assert_ne!(read(one), read(&one.replace("1.50", "1.51")));
}

fn condition() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..5).prop_map(|n| json!({"equals": n})),
        (0..5).prop_map(|n| json!({"below": n})),
        (0..5).prop_map(|n| json!({"atLeast": n})),
        (0..5).prop_map(|n| json!({"above": n})),
        (0..4, 0..3).prop_map(|(n, more)| json!({"atLeast": n, "atMost": n + more})),
        prop::collection::vec(0..5, 1..4).prop_map(|values| json!({"in": values})),
        prop::collection::vec(0..5, 1..4).prop_map(|values| json!({"notIn": values})),
        Just(json!({"absent": true})),
        Just(json!({"absent": false})),
    ]
}

fn rows() -> impl Strategy<Value = Vec<Value>> {
    let row = (prop::option::of(condition()), prop::option::of(condition()));
    prop::collection::vec(row, 1..6).prop_map(|rows| {
        rows.into_iter()
            .enumerate()
            .map(|(index, (a, b))| {
                let mut when = serde_json::Map::new();
                when.extend(a.map(|a| ("a".to_owned(), a)));
                when.extend(b.map(|b| ("b".to_owned(), b)));
                json!({"id": index.to_string(), "when": when, "then": {"o": index.to_string()}})
            })
            .collect()
    })
}

/// Whether a condition holds, by its definition.
fn holds(condition: Option<&Value>, value: Option<i64>) -> bool {
    let Some(condition) = condition else { return true };
    if condition["absent"] == json!(true) {
        return value.is_none();
    }
    let Some(value) = value else { return false };
    let bound = |key: &str| condition[key].as_i64();
    let list = |key: &str| condition[key].as_array().map(|list| list.contains(&json!(value)));
    bound("equals").is_none_or(|bound| value == bound)
        && bound("below").is_none_or(|bound| value < bound)
        && bound("atLeast").is_none_or(|bound| value >= bound)
        && bound("atMost").is_none_or(|bound| value <= bound)
        && bound("above").is_none_or(|bound| value > bound)
        && list("in").unwrap_or(true)
        && !list("notIn").unwrap_or(false)
}

proptest! {
    #[test]
    fn the_check_agrees_with_trying_every_input(rows in rows(), unique in any::<bool>()) {
        let input = |name: &str| json!({"name": name, "path": format!("entity.{name}"), "type": "integer",
                                        "min": 0, "max": 4, "optional": true});
        let table = json!({
            "hitPolicy": if unique { "unique" } else { "first" },
            "inputs": [input("a"), input("b")],
            "outputs": [{"name": "o", "type": "text"}],
            "rows": rows,
        });
        let values: Vec<Option<i64>> = (0..5).map(Some).chain([None]).collect();
        let mut decided = vec![false; rows.len()];
        let mut matched = vec![false; rows.len()];
        let (mut gap, mut overlap) = (false, false);
        for a in &values {
            for b in &values {
                let hits: Vec<usize> = rows.iter().enumerate()
                    .filter(|(_, row)| holds(row["when"].get("a"), *a) && holds(row["when"].get("b"), *b))
                    .map(|(index, _)| index)
                    .collect();
                gap |= hits.is_empty();
                overlap |= hits.len() > 1;
                hits.iter().for_each(|index| matched[*index] = true);
                if let Some(first) = hits.first() { decided[*first] = true; }
                let found = decide(&table, &json!({"a": a, "b": b}));
                match (hits.len(), unique) {
                    (0, _) => prop_assert_eq!(found.unwrap_err().code, RULE_GAP),
                    (1, _) | (_, false) => {
                        let expect = hits[0].to_string();
                        prop_assert_eq!(found.unwrap().row, Some(expect));
                    }
                    (_, true) => prop_assert_eq!(found.unwrap_err().code, RULE_OVERLAP),
                }
            }
        }
        let expect = if matched.contains(&false) || (!unique && decided.contains(&false)) {
            Some(RULE_ROW_UNREACHABLE)
        } else if unique && overlap {
            Some(RULE_OVERLAP)
        } else if gap {
            Some(RULE_GAP)
        } else {
            None
        };
        prop_assert_eq!(check(&table).err().map(|found| found.code), expect);
    }
}
