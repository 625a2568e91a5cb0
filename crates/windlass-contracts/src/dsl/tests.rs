//! Tables of inputs and expectations, the acceptance cases, and property tests.

mod acceptance;
mod property;

use serde_json::{Value, json};

use super::*;

pub(super) fn schemas() -> Schemas {
    Schemas::new(json!({
        "type": "object",
        "required": ["total"],
        "properties": {
            "total": {"type": "integer"},
            "rate": {"type": ["number", "null"]},
            "note": {"type": "string"},
            "urgent": {"type": "boolean"},
            "status": {"enum": ["draft", "open", null]},
            "due": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "days": {"type": "array", "items": {"type": "string", "format": "date"}},
            "lines": {"type": "array", "items": {"type": "object"}},
            "untyped": {},
            "loose": {"properties": {"x": {"type": "integer"}}},
            "wide": {"type": ["object", "integer"], "properties": {"x": {"type": "integer"}}},
            "maybe": {"type": ["object", "null"], "properties": {"x": {"type": "integer"}}},
            "either": {"type": ["string", "number"]},
            "bare_list": {"type": "array"},
            "in": {"type": "boolean"},
            "customer": {"$ref": "#/$defs/customer"},
            "optional": {"anyOf": [{"$ref": "#/$defs/customer"}, {"type": "null"}]},
            "merged": {"allOf": [{"properties": {"a": {"const": 1}}}, {"$ref": "#/$defs/customer"}]},
            "remote": {"$ref": "https://example.com/schema.json"},
            "dangling": {"$ref": "#/$defs/absent"},
            "circle": {"$ref": "#/$defs/circle"},
            "circle_of_parts": {"$ref": "#/$defs/parts"},
        },
        "$defs": {
            "customer": {"type": "object", "properties": {
                "name": {"type": "string"},
                "limit": {"type": "number"},
                "parent": {"$ref": "#/$defs/customer"},
            }},
            "circle": {"$ref": "#/$defs/circle"},
            "parts": {"allOf": [{"$ref": "#/$defs/parts"}, {"$ref": "#/$defs/parts"}]},
        },
    }))
    .actor(json!({"properties": {
        "id": {"type": "string"},
        "roles": {"type": "array", "items": {"type": "string"}},
    }}))
    .org(json!({"properties": {"limits": {"type": "array", "items": {"type": "number"}}}}))
    .context(json!({"properties": {"count": {"type": "integer"}}}))
}

/// The code and the text of the place, or nothing.
fn found(error: &Error, text: &str) -> (&'static str, String) {
    let span = error.span();
    (error.code().as_str(), text[span.start..span.end].to_owned())
}

fn expect_parse(text: &str, expect: Result<&str, (&str, &str)>) {
    let parsed = Expression::parse(text);
    match (&parsed, expect) {
        (Ok(parsed), Ok(printed)) => assert_eq!(parsed.to_string(), printed, "{text}"),
        (Err(error), Err((code, place))) => {
            assert_eq!(found(error, text), (code, place.to_owned()), "{text}: {error}");
        }
        _ => panic!("{text}: {parsed:?}"),
    }
}

#[test]
fn expressions_print_with_the_parentheses_that_they_need() {
    for (text, printed) in [
        ("entity.a", "entity.a"),
        ("now", "now"),
        ("  entity.a==1 ", "entity.a == 1"),
        ("entity.a\n&&\tentity.b", "entity.a && entity.b"),
        ("((entity.a))", "entity.a"),
        ("!entity.a", "!entity.a"),
        ("!(entity.a)", "!entity.a"),
        ("!(!entity.a)", "!(!entity.a)"),
        ("!(entity.a == 1)", "!(entity.a == 1)"),
        ("!entity.a == true", "!entity.a == true"),
        ("true && false || null == org.x", "true && false || null == org.x"),
        ("true || false && true", "true || false && true"),
        ("(true || false) && true", "(true || false) && true"),
        ("(true && false) && true", "(true && false) && true"),
        ("true && false && true", "true && false && true"),
        ("(entity.a > 1) == (entity.b > 2)", "(entity.a > 1) == (entity.b > 2)"),
        ("entity.a in ['x' , 'y\\'\\\\']", "entity.a in ['x', 'y\\'\\\\']"),
        ("actor.roles contains 'ä€😀'", "actor.roles contains 'ä€😀'"),
        ("entity.in in entity.contains", "entity.in in entity.contains"),
        ("entity.a > -0.50", "entity.a > -0.5"),
        ("entity.now.null", "entity.now.null"),
        ("[true, 1, 'x'] contains 1", "[true, 1, 'x'] contains 1"),
    ] {
        expect_parse(text, Ok(printed));
    }
}

#[test]
fn syntax_errors_have_a_place() {
    const SYNTAX: &str = "EXPRESSION_SYNTAX";
    for (text, place) in [
        ("", ""),
        ("   ", ""),
        ("entity.a &&", ""),
        ("&& entity.a", "&&"),
        ("entity.a entity.b", "entity"),
        ("entity.a = 1", "="),
        ("entity.a & entity.b", "&"),
        ("entity.a + 1", "+"),
        ("entity.a == \"x\"", "\""),
        ("entity.a == 'x", "'x"),
        ("entity.a == 'x\\'", "'x\\'"),
        ("entity.a == '\\n'", "\\"),
        ("entity.a == 'a\u{7}'", "\u{7}"),
        ("entity.a == 01", "01"),
        ("entity.a == 1.", "."),
        ("entity.a == .5", "."),
        ("entity.a == 1e3", "e"),
        ("entity.a == 0x1", "x"),
        ("entity.a == - 1", "-"),
        ("entity.a == --1", "-"),
        ("!!entity.a", "!"),
        ("!", ""),
        ("(entity.a", ""),
        ("entity.a)", ")"),
        ("()", ")"),
        ("entity", "entity"),
        ("entity.", ""),
        ("entity..a", "."),
        ("entity .a", "."),
        ("entity. a", "."),
        ("entity.1", "1"),
        ("entity.a.'b'", "'b'"),
        ("entity['a']", "entity"),
        ("entity.a in []", "]"),
        ("entity.a in [1,]", "]"),
        ("entity.a in [1 2]", "2"),
        ("entity.a in [entity.b]", "entity"),
        ("entity.a in [null]", "null"),
        ("entity.a in [[1]]", "["),
        ("entity.a in [1", ""),
        ("entity.ä == 1", "ä"),
        ("еntity.a == 1", "е"),
        ("entity.a\u{a0}== 1", "\u{a0}"),
        ("entity.a \0", "\0"),
    ] {
        expect_parse(text, Err((SYNTAX, place)));
    }
}

#[test]
fn names_numbers_and_chains_have_codes_of_their_own() {
    for (text, code, place) in [
        ("user.a", "EXPRESSION_UNKNOWN_NAME", "user"),
        ("Entity.a", "EXPRESSION_UNKNOWN_NAME", "Entity"),
        ("now.x", "EXPRESSION_UNKNOWN_NAME", "."),
        ("len(entity.a)", "EXPRESSION_UNKNOWN_NAME", "len"),
        ("entity.a == 9007199254740993", "EXPRESSION_NUMBER", "9007199254740993"),
        ("entity.a == 0.1234567890123456", "EXPRESSION_NUMBER", "0.1234567890123456"),
        ("entity.a < entity.b < 3", "EXPRESSION_CHAINED_COMPARISON", "<"),
        ("entity.a == entity.b != true", "EXPRESSION_CHAINED_COMPARISON", "!="),
        ("entity.a in entity.b in entity.c", "EXPRESSION_CHAINED_COMPARISON", "in"),
    ] {
        expect_parse(text, Err((code, place)));
    }
}

#[test]
fn every_error_of_syntax_says_what_to_do_or_what_was_expected() {
    for text in ["entity.a = 1", "entity.a == \"x\"", "entity.a + 1", "entity.a < 1 < 2", "!!true"]
    {
        let error = Expression::parse(text).unwrap_err();
        let found = crate::diagnostic::Diagnostic::from(error);
        assert!(!found.help.is_empty(), "{found}");
        assert!(found.render(None).contains('^'), "{found}");
    }
}

fn expect_type(text: &str, expect: Result<Type, (&str, &str)>) {
    let checked = Expression::parse(text).unwrap().check(&schemas());
    match (&checked, &expect) {
        (Err(error), Err((code, place))) => {
            assert_eq!(found(error, text), (*code, (*place).to_owned()), "{text}: {error}");
        }
        (Ok(checked), Ok(expect)) => assert_eq!(checked, expect, "{text}"),
        _ => panic!("{text}: {checked:?}"),
    }
}

#[test]
fn types_are_inferred() {
    let list = |item| Type::List(Box::new(item));
    for (text, expect) in [
        ("entity.total", Type::Number),
        ("entity.rate", Type::Number),
        ("entity.status", Type::Text),
        ("entity.due", Type::Time),
        ("now", Type::Time),
        ("entity.day", Type::Date),
        ("entity.tags", list(Type::Text)),
        ("entity.lines", list(Type::Object)),
        ("entity.customer", Type::Object),
        ("entity.customer.parent.parent.name", Type::Text),
        ("entity.optional.limit", Type::Number),
        ("entity.merged.a", Type::Number),
        ("entity.merged.name", Type::Text),
        ("'x'", Type::Text),
        ("null", Type::Null),
        ("[1, 2]", list(Type::Number)),
        ("entity.in", Type::Bool),
        ("!entity.urgent", Type::Bool),
        ("entity.total > 10.5 && entity.urgent || context.count == 1", Type::Bool),
        ("entity.note == null", Type::Bool),
        ("null != entity.customer", Type::Bool),
        ("entity.tags == null", Type::Bool),
        ("entity.status == 'open'", Type::Bool),
        ("entity.status in ['open', 'draft']", Type::Bool),
        ("entity.due < now", Type::Bool),
        ("entity.due >= '2026-01-31T12:00:00+02:00'", Type::Bool),
        ("entity.day > '2026-01-31'", Type::Bool),
        ("entity.day == '2026-01-31'", Type::Bool),
        ("entity.days contains '2026-01-31'", Type::Bool),
        ("entity.day in entity.days", Type::Bool),
        ("entity.total in org.limits", Type::Bool),
        ("actor.roles contains entity.note", Type::Bool),
        ("entity.urgent == (entity.total > 5)", Type::Bool),
    ] {
        expect_type(text, Ok(expect));
    }
}

#[test]
fn wrong_types_have_a_place() {
    const TYPE: &str = "EXPRESSION_TYPE";
    for (text, place) in [
        ("entity.total > 'x'", "entity.total > 'x'"),
        ("true && entity.note == 1", "entity.note == 1"),
        ("entity.total && true", "entity.total"),
        ("true || entity.note", "entity.note"),
        ("!entity.total", "entity.total"),
        ("!entity.total == 5", "entity.total"),
        ("entity.note > 'a'", "entity.note > 'a'"),
        ("entity.urgent > false", "entity.urgent > false"),
        ("entity.due == now", "entity.due == now"),
        ("entity.due < '2026-01-31'", "'2026-01-31'"),
        ("entity.due < entity.day", "entity.due < entity.day"),
        ("entity.due < entity.note", "entity.note"),
        ("entity.day < 'tomorrow'", "'tomorrow'"),
        ("entity.day == '20260131'", "'20260131'"),
        ("entity.day in ['2026-01-31', '2026-02-30']", "'2026-02-30'"),
        ("entity.status == 'aproved'", "'aproved'"),
        ("entity.status in ['open', 'closed']", "'closed'"),
        ("entity.tags == 'a'", "entity.tags == 'a'"),
        ("entity.customer == entity.optional", "entity.customer == entity.optional"),
        ("entity.note contains 'a'", "entity.note"),
        ("entity.note in 'abc'", "'abc'"),
        ("entity.tags contains 1", "entity.tags contains 1"),
        ("entity.total in ['a']", "entity.total in ['a']"),
        ("entity.tags in [1]", "entity.tags"),
        ("null in entity.tags", "null"),
        ("entity.total > null", "entity.total > null"),
        ("null == null", "null == null"),
        ("[1, 'a'] contains 1", "'a'"),
        ("now in entity.tags", "now in entity.tags"),
    ] {
        expect_type(text, Err((TYPE, place)));
    }
}

#[test]
fn unknown_names_and_unusable_schemas_have_a_place() {
    for (text, code, place) in [
        ("entity.totl > 1", "EXPRESSION_UNKNOWN_NAME", "totl"),
        ("entity.customer.naem == 'x'", "EXPRESSION_UNKNOWN_NAME", "naem"),
        ("true && entity.note.x == 'x'", "EXPRESSION_UNKNOWN_NAME", "x"),
        ("actor.total == 1", "EXPRESSION_UNKNOWN_NAME", "total"),
        ("entity.remote.x == 1", "SCHEMA_REMOTE_REF", "x"),
        ("entity.remote == 1", "SCHEMA_REMOTE_REF", "remote"),
        ("entity.dangling == 1", "SCHEMA_UNSUPPORTED", "dangling"),
        ("entity.circle == 1", "SCHEMA_UNSUPPORTED", "circle"),
        ("entity.circle_of_parts.x == 1", "SCHEMA_UNSUPPORTED", "x"),
        ("entity.untyped == 1", "SCHEMA_UNSUPPORTED", "untyped"),
        ("entity.loose.x == 1", "SCHEMA_UNSUPPORTED", "loose"),
        ("entity.wide.x == 1", "SCHEMA_UNSUPPORTED", "wide"),
        ("entity.loose == null", "SCHEMA_UNSUPPORTED", "loose"),
        ("entity.either == 1", "SCHEMA_UNSUPPORTED", "either"),
        ("entity.bare_list contains 1", "SCHEMA_UNSUPPORTED", "bare_list"),
    ] {
        expect_type(text, Err((code, place)));
    }
    expect_type("entity.maybe.x == 1", Ok(Type::Bool));
    let error = Expression::parse("entity.customer.x").unwrap().check(&schemas()).unwrap_err();
    let help = crate::diagnostic::Diagnostic::from(error).help;
    assert_eq!(help, "known fields: limit, name, parent");
}

#[test]
fn conditions_are_booleans() {
    let check = |text: &str| Expression::parse(text).unwrap().check_condition(&schemas());
    assert_eq!(check("entity.urgent"), Ok(()));
    assert_eq!(check("entity.total").unwrap_err().code(), EXPRESSION_TYPE);
    assert_eq!(check("null").unwrap_err().code(), EXPRESSION_TYPE);
}

#[test]
fn remote_references_are_refused_wherever_they_are() {
    let found = schemas().check().unwrap_err();
    assert_eq!(found.code, SCHEMA_REMOTE_REF);
    assert_eq!(found.place.pointer.as_deref(), Some("/entity/properties/remote/$ref"));
    for (schema, ok) in [
        (json!({"properties": {"$ref": {"type": "string"}}}), true),
        (json!({"const": {"$ref": "other.json"}}), true),
        (json!({"allOf": [{"not": {"$ref": "other.json#/a"}}]}), false),
        (json!({"$defs": {"enum": {"$dynamicRef": "x"}}}), false),
        (json!({"$ref": "#/$defs/a"}), true),
    ] {
        let schemas = Schemas::default().context(schema.clone());
        assert_eq!(schemas.check().is_ok(), ok, "{schema}");
    }
}

fn document() -> Value {
    json!({
        "total": 250, "rate": 0.1, "note": "it's", "urgent": true, "status": "open",
        "due": "2026-01-31T12:00:00+02:00", "day": "2026-01-31", "tags": ["a", null, "b"],
        "customer": {"name": "N", "limit": 250.0}, "nothing": null, "mixed": [1, "a"],
        "big": 9_007_199_254_740_993_u64, "bigs": [9_007_199_254_740_993_u64], "empty": [],
    })
}

fn evaluate(text: &str) -> Result<Explained, Error> {
    let (entity, actor) = (document(), json!({"id": "u1", "roles": ["cfo"]}));
    let (org, context) = (json!({"limits": [100, 250]}), json!({"count": 2}));
    let now = "2026-01-31T10:00:01Z".parse().unwrap();
    let scope = Scope::new(&entity, now).actor(&actor).org(&org).context(&context);
    Expression::parse(text).unwrap().evaluate(&scope)
}

#[test]
fn expressions_evaluate() {
    for (text, expect) in [
        ("entity.total > 100", json!(true)),
        ("entity.total >= 250 && entity.total <= 250.0", json!(true)),
        ("entity.total < 250 || entity.total > 250", json!(false)),
        ("entity.rate == 0.10", json!(true)),
        ("entity.rate < 0.1000001", json!(true)),
        ("entity.customer.limit == entity.total", json!(true)),
        ("entity.note == 'it\\'s'", json!(true)),
        ("entity.status != 'draft'", json!(true)),
        ("entity.status in ['draft', 'open']", json!(true)),
        ("entity.tags contains 'b'", json!(true)),
        ("entity.tags contains 'c'", json!(false)),
        ("entity.empty contains 'c'", json!(false)),
        ("entity.total in org.limits", json!(true)),
        ("actor.roles contains 'cfo' && context.count == 2", json!(true)),
        ("entity.due < now", json!(true)),
        ("now < entity.due", json!(false)),
        ("entity.due <= '2026-01-31T10:00:00Z'", json!(true)),
        ("entity.day < '2026-02-01'", json!(true)),
        ("entity.urgent", json!(true)),
        ("!entity.urgent", json!(false)),
        ("!(entity.total > 100)", json!(false)),
        ("entity.urgent == (entity.total > 5)", json!(true)),
        ("entity.total", json!(250)),
        ("entity.rate", json!(0.1)),
        ("now", json!("2026-01-31T10:00:01Z")),
        ("entity.customer", json!({"name": "N", "limit": 250.0})),
        ("['a', 'b']", json!(["a", "b"])),
        ("entity.absent", json!(null)),
    ] {
        assert_eq!(evaluate(text).map(|found| found.value), Ok(expect), "{text}");
    }
}

#[test]
fn a_comparison_with_null_is_false_and_only_null_itself_tests_for_it() {
    for (text, expect) in [
        ("entity.nothing == 1", false),
        ("entity.nothing != 1", false),
        ("entity.nothing > 1", false),
        ("entity.nothing <= 1", false),
        ("entity.nothing == entity.absent", false),
        ("entity.nothing != entity.absent", false),
        ("entity.absent in ['a']", false),
        ("entity.absent contains 'a'", false),
        ("entity.tags contains entity.absent", false),
        ("entity.absent.deeper.still == 1", false),
        ("!(entity.nothing == 1)", true),
        ("entity.nothing == null", true),
        ("null == entity.absent.deeper", true),
        ("entity.nothing != null", false),
        ("entity.total != null", true),
        ("entity.total == null", false),
        ("entity.customer != null", true),
        ("entity.absent || entity.total == 250", true),
        ("!entity.absent", true),
        ("org.absent == null && context.x.y == null", true),
    ] {
        assert_eq!(evaluate(text).map(|found| found.is_true()), Ok(expect), "{text}");
    }
}

#[test]
fn values_of_the_wrong_type_are_errors_and_not_false() {
    for (text, place) in [
        ("entity.total == 'x'", "entity.total == 'x'"),
        ("entity.note > 1", "entity.note > 1"),
        ("entity.note < now", "entity.note < now"),
        ("entity.day < now", "entity.day < now"),
        ("entity.note && true", "entity.note"),
        ("!entity.note", "entity.note"),
        ("entity.note contains 'a'", "entity.note contains 'a'"),
        ("entity.mixed contains 'a'", "entity.mixed contains 'a'"),
        ("entity.note.x == 1", "entity.note.x"),
        ("entity.tags.x == 1", "entity.tags.x"),
        ("now == entity.due", "now == entity.due"),
        ("entity.big > 1", "entity.big"),
        ("entity.bigs contains 1", "entity.bigs contains 1"),
        ("entity.customer == entity.customer", "entity.customer == entity.customer"),
    ] {
        let error = evaluate(text).unwrap_err();
        assert_eq!(found(&error, text), ("EXPRESSION_VALUE", place.to_owned()), "{error}");
    }
}

#[test]
fn a_list_has_a_limit() {
    let list: Vec<usize> = (0..=LIST_ITEMS_MAX).collect();
    let document = json!({"list": list, "fits": list[1..]});
    let scope = Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
    let evaluate = |text| Expression::parse(text).unwrap().evaluate(&scope);
    assert!(evaluate("entity.fits contains 10000").unwrap().is_true());
    let error = evaluate("entity.list contains 1").unwrap_err();
    assert_eq!(error.message(), "the list has 10001 items, the limit is 10000");
}

#[test]
fn evidence_has_the_variables_that_were_read() {
    let explained = evaluate("entity.total > 1000 && entity.urgent || actor.id == 'u1'").unwrap();
    assert_eq!(
        serde_json::to_value(&explained).unwrap(),
        json!({
            "expression": "entity.total > 1000 && entity.urgent || actor.id == 'u1'",
            "variables": {"entity.total": 250, "actor.id": "u1"},
            "result": true,
        })
    );
    assert_eq!(
        explained.to_string(),
        "entity.total > 1000 && entity.urgent || actor.id == 'u1': true\n  \
         entity.total > 1000: false\n  \
         entity.total > 1000 && entity.urgent: false\n  \
         actor.id == 'u1': true\n  \
         where actor.id = 'u1'\n  \
         where entity.total = 250\n"
    );
}

#[test]
fn evidence_omits_large_values() {
    let document = json!({"note": "x".repeat(EVIDENCE_VALUE_BYTES_MAX)});
    let scope = Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
    let explained = Expression::parse("entity.note").unwrap().evaluate(&scope).unwrap();
    assert_eq!(explained.value(), &document["note"]);
    let evidence = serde_json::to_value(&explained).unwrap();
    for omitted in [&evidence["variables"]["entity.note"], &evidence["result"]] {
        assert_eq!(omitted["$omitted"]["bytes"], json!(EVIDENCE_VALUE_BYTES_MAX + 2));
    }
}

#[test]
fn expressions_are_texts_in_json() {
    let read: Expression = serde_json::from_str(r#""entity.a  ==  'é'""#).unwrap();
    assert_eq!(read, Expression::parse("entity.a == 'é'").unwrap());
    assert_eq!(serde_json::to_string(&read).unwrap(), r#""entity.a  ==  'é'""#);
    assert!(serde_json::from_str::<Expression>(r#""entity.a ==""#).is_err());
    let paths: Vec<String> = Expression::parse("entity.a == now || !entity.b && entity.a in [1]")
        .unwrap()
        .paths()
        .into_iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(paths, ["entity.a", "now", "entity.b"]);
}

#[test]
fn templates_parse_check_and_render() {
    let entity = document();
    let scope = Scope::new(&entity, jiff::Timestamp::UNIX_EPOCH);
    for (text, expect) in [
        ("", Ok("")),
        ("plain ä", Ok("plain ä")),
        ("{entity.total}", Ok("250")),
        ("a{entity.note}b{entity.urgent}", Ok("ait'sbtrue")),
        ("{{entity.total}}", Ok("{entity.total}")),
        ("{{{entity.rate}}}", Ok("{0.1}")),
        ("at {now}", Ok("at 1970-01-01T00:00:00Z")),
        ("{entity.absent}", Err("TEMPLATE_EMPTY_VALUE")),
        ("{entity.tags}", Err("EXPRESSION_VALUE")),
        ("{entity.big}", Err("EXPRESSION_VALUE")),
        ("{", Err("TEMPLATE_SYNTAX")),
        ("}", Err("TEMPLATE_SYNTAX")),
        ("{entity.total", Err("TEMPLATE_SYNTAX")),
        ("{ entity.total }", Err("TEMPLATE_SYNTAX")),
        ("{}", Err("EXPRESSION_SYNTAX")),
        ("{entity.total > 1}", Err("EXPRESSION_SYNTAX")),
        ("{'x'}", Err("EXPRESSION_SYNTAX")),
        ("{(entity.total)}", Err("EXPRESSION_SYNTAX")),
        ("{secret.x}", Err("EXPRESSION_UNKNOWN_NAME")),
    ] {
        let rendered = Template::parse(text).and_then(|template| template.render(&scope));
        let rendered = rendered.as_deref().map_err(|error| {
            assert!(error.span().end <= text.len(), "{error:?}");
            error.code().as_str()
        });
        assert_eq!(rendered, expect, "{text}");
    }
}

#[test]
fn templates_are_checked_against_the_schema() {
    for (text, expect) in [
        ("{entity.total} {now} {entity.customer.name}", None),
        ("pod:{entity.shipment}", Some(("EXPRESSION_UNKNOWN_NAME", "shipment"))),
        ("ä {entity.tags}", Some(("EXPRESSION_TYPE", "entity.tags"))),
        ("{entity.customer}", Some(("EXPRESSION_TYPE", "entity.customer"))),
    ] {
        let checked = Template::parse(text).unwrap().check(&schemas());
        let expect = expect.map(|(code, place)| (code, place.to_owned()));
        assert_eq!(checked.err().map(|error| found(&error, text)), expect, "{text}");
    }
}

#[test]
fn templates_have_limits() {
    let parse = |text: &str| Template::parse(text).map_err(|error| error.code().as_str());
    assert!(parse(&"ä".repeat(500)).is_ok());
    assert_eq!(parse(&"ä".repeat(501)), Err("TEMPLATE_TOO_LONG"));
    assert!(parse(&"{entity.a}".repeat(20)).is_ok());
    assert_eq!(parse(&"{entity.a}".repeat(21)), Err("EXPRESSION_TOO_MANY_DEREFERENCES"));

    let document = json!({"a": "é".repeat(100), "b": "x".repeat(1_000_000)});
    let scope = Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
    assert!(parse(&"{entity.a}".repeat(20)).unwrap().render(&scope).is_ok());
    let longer = parse(&format!("{}x", "{entity.a}".repeat(20))).unwrap();
    assert_eq!(longer.literal_characters(), 1);
    for (template, max) in [(longer, 2_000), (parse("{entity.b}").unwrap(), 2_000)] {
        let error = template.render(&scope).unwrap_err();
        assert_eq!(error.code(), TEMPLATE_RESULT_TOO_LONG);
        assert!(error.message().contains(&max.to_string()), "{error}");
    }
    let key = parse("k:{entity.a}").unwrap().render_key(&scope, 602);
    assert_eq!(key.map(|key| key.len()), Ok(602));
    let error = parse("k:{entity.a}").unwrap().render_key(&scope, 601).unwrap_err();
    assert_eq!(error.message(), "the rendered text has more than 601 characters");
}
