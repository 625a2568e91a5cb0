//! Any text as an expression and as a template: it parses or fails, within the limits, and a parsed
//! expression prints as itself.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use windlass_contracts::{
    diagnostic::Diagnostic,
    dsl::{CHARACTERS_MAX, Expression, Schemas, Scope, Template},
};

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| json!({"a": 1, "b": "x", "c": [1, 2], "d": null, "e": {"f": true}}));
static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    Schemas::new(json!({"properties": {
        "a": {"type": "number"}, "b": {"type": "string"}, "d": {"type": "boolean"},
        "c": {"type": "array", "items": {"type": "number"}},
        "e": {"properties": {"f": {"type": "boolean"}}},
    }}))
});

fuzz_target!(|text: &str| {
    let scope = Scope::new(&DOCUMENT, jiff::Timestamp::UNIX_EPOCH);
    match Expression::parse(text) {
        Ok(parsed) => {
            assert!(text.chars().count() <= CHARACTERS_MAX);
            let printed = parsed.to_string();
            if printed.chars().count() <= CHARACTERS_MAX {
                assert_eq!(Expression::parse(&printed).as_ref(), Ok(&parsed));
            }
            let checked = parsed.check(&SCHEMAS);
            let evaluated = parsed.evaluate(&scope);
            // The document fits the schema, so that a checked expression cannot fail.
            assert!(checked.is_err() || evaluated.is_ok(), "{printed}: {evaluated:?}");
        }
        Err(error) => {
            let _ = Diagnostic::from(error).render(None);
        }
    }
    if let Ok(template) = Template::parse(text) {
        let _ = template.check(&SCHEMAS);
        let _ = template.render(&scope);
        let _ = template.render_key(&scope, 200);
    }
});
