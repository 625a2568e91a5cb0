//! Tests of the approvers: the people that are asked, the people that are left out, and the reasons.

use serde_json::{Value, json};

use super::*;
use crate::{diagnostic::Diagnostic, dsl::Scope, types::ApproverSpec};

const NOW: &str = "2026-06-15T12:00:00Z";

fn directory() -> Directory {
    serde_json::from_value(json!({
        "people": {
            "ann": {"roles": ["clerk", "cfo"], "manager": "eve"},
            "ben": {"roles": ["clerk"], "manager": "ann"},
            "cat": {"roles": ["clerk"], "manager": "ben", "available": false},
            "dan": {"manager": "cat"},
            "eve": {},
            "gone": {"roles": ["clerk"], "active": false},
            "x": {"manager": "y"}, "y": {"manager": "z"}, "z": {"manager": "y"},
            "lost": {"manager": "nobody"},
        },
    }))
    .unwrap()
}

struct Case {
    spec: Value,
    requester: &'static str,
    editors: &'static [&'static str],
    counter: u64,
    delegations: Value,
    entity: Value,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            spec: json!({"strategy": "role", "role": "clerk"}),
            requester: "dan",
            editors: &[],
            counter: 0,
            delegations: json!([]),
            entity: json!({"total": 5, "owner": "ben", "owners": ["ben", "eve"], "number": 1}),
        }
    }
}

fn run(case: &Case) -> Result<Resolution, Diagnostic> {
    let spec: ApproverSpec = serde_json::from_value(case.spec.clone()).unwrap();
    let mut directory = directory();
    directory.delegations = serde_json::from_value(case.delegations.clone()).unwrap();
    let table = json!({
        "hitPolicy": "unique",
        "inputs": [{"name": "total", "path": "entity.total", "type": "integer"}],
        "outputs": [{"name": "outcome", "type": "text"}],
        "rows": [
            {"id": "low", "when": {"total": {"below": 10}}, "then": {"outcome": "ben"}},
            {"id": "high", "when": {"total": {"atLeast": 10}}, "then": {"outcome": "role:cfo"}},
        ],
    });
    let rules = [("level".to_owned(), serde_json::from_value(table).unwrap())].into();
    let editors = case.editors.iter().map(|editor| (*editor).to_owned()).collect();
    resolve(
        &spec,
        &directory,
        &Request {
            requester: case.requester,
            editors: &editors,
            counter: case.counter,
            scope: Scope::new(&case.entity, NOW.parse().unwrap()),
            rules: &rules,
        },
    )
}

/// The people who are asked; `a for b` is a delegate.
fn asked(case: &Case) -> Vec<String> {
    let found = run(case).unwrap();
    let show = |asked: Asked| match asked.on_behalf_of {
        None => asked.person,
        Some(other) => format!("{} for {other}", asked.person),
    };
    found.asked.into_iter().map(show).collect()
}

fn code(case: &Case) -> (&'static str, String) {
    let found = run(case).unwrap_err();
    (found.code.as_str(), found.message)
}

fn delegation(from: &str, to: &str) -> Value {
    json!({"from": from, "to": to, "starts": "2026-06-01T00:00:00Z", "ends": "2026-07-01T00:00:00Z"})
}

#[test]
fn direct_people_are_asked_once_each() {
    let spec = json!({"strategy": "direct", "users": ["eve", "ben", "eve"]});
    assert_eq!(asked(&Case { spec, ..Case::default() }), ["eve", "ben"]);
    let spec = json!({"strategy": "direct", "users": ["nobody"]});
    let (code, message) = code(&Case { spec, ..Case::default() });
    assert_eq!(code, "APPROVER_UNKNOWN");
    assert_eq!(message, "\"nobody\" is not in the directory");
}

#[test]
fn all_active_people_of_a_role_are_asked() {
    assert_eq!(asked(&Case::default()), ["ann", "ben", "cat"]);
    let spec = json!({"strategy": "role", "role": "king"});
    assert_eq!(code(&Case { spec, ..Case::default() }).0, "APPROVER_UNKNOWN");
}

#[test]
fn the_round_robin_follows_the_counter_among_those_who_may_decide() {
    let spec = json!({"strategy": "role", "role": "clerk", "pick": "round_robin"});
    for (counter, editors, expect) in [
        (0, &[][..], "ann"),
        (1, &[], "ben"),
        (2, &[], "cat"),
        (3, &[], "ann"),
        (u64::MAX, &[], "ann"),
        (0, &["ann"], "ben"),
        (1, &["ann"], "cat"),
        (2, &["ann"], "ben"),
    ] {
        let case = Case { spec: spec.clone(), counter, editors, ..Case::default() };
        assert_eq!(asked(&case), [expect], "{counter} {editors:?}");
    }
}

#[test]
fn the_first_available_person_is_asked() {
    let spec = json!({"strategy": "role", "role": "clerk", "pick": "first_available"});
    let case =
        |editors, delegations| Case { spec: spec.clone(), editors, delegations, ..Case::default() };
    assert_eq!(asked(&case(&[], json!([]))), ["ann"]);
    assert_eq!(asked(&case(&["ann"], json!([]))), ["ben"]);
    // A delegate makes an unavailable person reachable.
    assert_eq!(asked(&case(&["ann", "ben"], json!([delegation("cat", "eve")]))), ["eve for cat"]);
    let (code, message) = code(&case(&["ann", "ben"], json!([])));
    assert_eq!(code, "APPROVER_NONE");
    assert_eq!(
        message,
        "nobody is left to ask: ann edited the document, ben edited the document, cat is not available"
    );
}

#[test]
fn managers_are_found_by_level() {
    for (requester, levels, editors, expect) in [
        ("dan", 1, &[][..], Ok("cat")),
        ("dan", 2, &[], Ok("ben")),
        ("dan", 4, &[], Ok("eve")),
        // An excluded manager is passed over.
        ("dan", 1, &["cat", "ben"], Ok("ann")),
        ("dan", 5, &[], Err("APPROVER_NONE")),
        ("eve", 1, &[], Err("APPROVER_NONE")),
        ("dan", 4, &["eve"], Err("APPROVER_NONE")),
        ("dan", 0, &[], Err("APPROVER_LIMIT")),
        ("dan", 21, &[], Err("APPROVER_LIMIT")),
        ("x", 2, &[], Ok("z")),
        ("x", 3, &[], Err("APPROVER_MANAGER_CYCLE")),
        ("x", 1, &["y", "z"], Err("APPROVER_MANAGER_CYCLE")),
        ("lost", 1, &[], Err("APPROVER_UNKNOWN")),
    ] {
        let spec = json!({"strategy": "org_chart", "levels": levels});
        let case = Case { spec, requester, editors, ..Case::default() };
        let found = run(&case);
        let found = found.as_ref().map(|found| found.asked[0].person.as_str());
        let found = found.map_err(|found| found.code.as_str());
        assert_eq!(found, expect, "{requester} {levels} {editors:?}");
    }
    let spec = json!({"strategy": "org_chart", "levels": 9});
    let found = run(&Case { spec, requester: "x", ..Case::default() }).unwrap_err();
    assert_eq!(found.path, ["x", "y", "z", "y"]);
}

#[test]
fn a_manager_of_another_person_comes_from_an_expression() {
    let spec = json!({"strategy": "org_chart", "of": "entity.owner"});
    let found = run(&Case { spec, ..Case::default() }).unwrap();
    assert_eq!(
        serde_json::to_value(&found).unwrap(),
        json!({
            "asked": [{"person": "ann", "reason": {"kind": "manager", "of": "ben", "level": 1}}],
            "evidence": {"expression": "entity.owner", "variables": {"entity.owner": "ben"}, "result": "ben"},
        })
    );
    let spec = json!({"strategy": "org_chart", "of": "entity.owners"});
    assert_eq!(code(&Case { spec, ..Case::default() }).0, "APPROVER_VALUE");
}

#[test]
fn rules_and_expressions_name_people() {
    let spec = json!({"strategy": "rule", "rule": "level"});
    let case = Case { spec: spec.clone(), ..Case::default() };
    assert_eq!(asked(&case), ["ben"]);
    assert_eq!(run(&case).unwrap().evidence.unwrap()["row"], json!("low"));
    let entity = json!({"total": 10});
    assert_eq!(asked(&Case { spec, entity, ..Case::default() }), ["ann"]);
    let spec = json!({"strategy": "rule", "rule": "absent"});
    assert_eq!(code(&Case { spec, ..Case::default() }).0, "APPROVER_UNKNOWN");

    for (expression, expect) in [
        ("entity.owner", Ok(vec!["ben"])),
        ("entity.owners", Ok(vec!["ben", "eve"])),
        ("entity.number", Err("APPROVER_VALUE")),
        ("entity.absent", Err("APPROVER_VALUE")),
        ("entity.", Err("EXPRESSION_SYNTAX")),
    ] {
        let spec = json!({"strategy": "expression", "expression": expression});
        let found = run(&Case { spec, ..Case::default() });
        let found = match &found {
            Ok(found) => Ok(found.asked.iter().map(|asked| asked.person.as_str()).collect()),
            Err(found) => Err(found.code.as_str()),
        };
        assert_eq!(found, expect, "{expression}");
    }
}

#[test]
fn the_requester_and_editors_are_never_asked_on_any_route() {
    let specs = [
        json!({"strategy": "direct", "users": ["ann", "ben"]}),
        json!({"strategy": "role", "role": "clerk"}),
        json!({"strategy": "role", "role": "clerk", "pick": "round_robin"}),
        json!({"strategy": "role", "role": "clerk", "pick": "first_available"}),
        json!({"strategy": "org_chart", "of": "entity.owner"}),
        json!({"strategy": "rule", "rule": "level"}),
        json!({"strategy": "expression", "expression": "entity.owners"}),
    ];
    let everybody = ["ann", "ben", "cat", "dan", "eve"];
    // All delegations to the requester and to the editor, and from them to somebody else.
    let mut delegations: Vec<Value> = Vec::new();
    for person in everybody {
        delegations.push(delegation(person, "ann"));
        delegations.push(delegation(person, "ben"));
    }
    for spec in specs {
        for counter in 0..4 {
            for delegations in [json!([]), json!(delegations), json!([delegation("ben", "eve")])] {
                let case = Case {
                    spec: spec.clone(),
                    requester: "ann",
                    editors: &["ben"],
                    counter,
                    delegations,
                    ..Case::default()
                };
                let found = run(&case).map(|found| found.asked).unwrap_or_default();
                for asked in found {
                    for excluded in ["ann", "ben"] {
                        assert_ne!(asked.person, excluded, "{spec}");
                        assert_ne!(asked.on_behalf_of.as_deref(), Some(excluded), "{spec}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_delegation_has_an_end_and_no_chain() {
    let spec = json!({"strategy": "direct", "users": ["ann"]});
    let case = |delegations| Case { spec: spec.clone(), delegations, ..Case::default() };
    assert_eq!(asked(&case(json!([delegation("ann", "eve")]))), ["eve for ann"]);
    assert_eq!(
        asked(&case(json!([delegation("ann", "eve"), delegation("eve", "ben")]))),
        ["eve for ann"]
    );
    for (starts, ends) in
        [("2026-06-01T00:00:00Z", NOW), ("2026-06-15T12:00:01Z", "2027-01-01T00:00:00Z")]
    {
        let over = json!([{"from": "ann", "to": "eve", "starts": starts, "ends": ends}]);
        assert_eq!(asked(&case(over)), ["ann"]);
    }
    let without_end = json!({"from": "ann", "to": "eve"});
    assert!(serde_json::from_value::<Delegation>(without_end).is_err());
}

#[test]
fn a_delegation_to_an_excluded_person_has_no_effect() {
    for to in ["dan", "ben", "gone", "nobody"] {
        let case = Case {
            spec: json!({"strategy": "direct", "users": ["ann"]}),
            editors: &["ben"],
            delegations: json!([delegation("ann", to)]),
            ..Case::default()
        };
        let found = run(&case).unwrap();
        assert_eq!(
            serde_json::to_value(&found).unwrap(),
            json!({
                "asked": [{"person": "ann", "reason": {"kind": "direct"}}],
                "skipped": [{"person": "ann", "why": "delegate_excluded"}],
            }),
            "{to}"
        );
    }
}

#[test]
fn a_delegate_who_is_asked_too_decides_once() {
    for users in [json!(["ann", "eve"]), json!(["eve", "ann"])] {
        let case = Case {
            spec: json!({"strategy": "direct", "users": users}),
            delegations: json!([delegation("ann", "eve")]),
            ..Case::default()
        };
        assert_eq!(asked(&case), ["eve"]);
    }
}

#[test]
fn the_number_of_people_has_a_limit() {
    let spec = json!({"strategy": "direct", "users": vec!["ann"; 101]});
    let (code, message) = code(&Case { spec, ..Case::default() });
    assert_eq!(code, "APPROVER_LIMIT");
    assert_eq!(message, "101 people would be asked, the limit is 100");
    let delegations = json!(vec![delegation("ann", "eve"); DELEGATIONS_MAX + 1]);
    let found = run(&Case { delegations, ..Case::default() }).unwrap_err();
    assert_eq!(found.message, "the directory has 10001 delegations, the limit is 10000");
}
