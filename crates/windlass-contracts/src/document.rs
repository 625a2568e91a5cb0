//! Documents: validation against the schema of a contract, and comparison of two contents.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::codes::{DOCUMENT_INVALID, WORKFLOW_RESULT_INVALID};
use crate::diagnostic::Diagnostic;
use crate::{dsl, source};

/// The most problems that one validation reports.
const PROBLEMS_MAX: usize = 20;

/// The compiled schema of a document type.
#[derive(Debug)]
pub struct Validator(jsonschema::Validator);

impl Validator {
    /// Compiles a schema. The compiler of contracts has refused references to other documents.
    ///
    /// # Errors
    /// Fails if the schema is not a JSON schema.
    pub fn new(schema: &Value) -> Result<Self, Diagnostic> {
        compile(schema).map(Self).map_err(|error| {
            Diagnostic::new(crate::codes::CONTRACT_SCHEMA, error.to_string())
                .at("/schemas/document")
                .help("write a schema of draft 2020-12")
        })
    }

    /// Checks a document.
    ///
    /// # Errors
    /// Returns the first problems: it is not an object, a number would lose digits, or it does not
    /// match the schema.
    pub fn check(&self, document: &Value) -> Result<(), Vec<Diagnostic>> {
        if !document.is_object() {
            let problem = Diagnostic::new(DOCUMENT_INVALID, "a document is a JSON object").at("");
            return Err(vec![problem.help("send the fields of the document in an object")]);
        }
        source::check_numbers(document).map_err(|problem| vec![problem])?;
        let problems: Vec<Diagnostic> = self
            .0
            .iter_errors(document)
            .take(PROBLEMS_MAX)
            .map(|error| {
                let at = error.instance_path().to_string();
                Diagnostic::new(DOCUMENT_INVALID, error.to_string())
                    .at(at)
                    .help("correct the field, or leave it out if the schema does not require it")
            })
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }
}

/// Compiles a schema that asserts its formats. Without that, draft 2020-12 takes `"soon"` for a `date-time`, and
/// the comparison of the field with `now` fails later. Times and dates are those that expressions can read.
fn compile(schema: &Value) -> Result<jsonschema::Validator, jsonschema::ValidationError<'static>> {
    jsonschema::options()
        .should_validate_formats(true)
        .with_format("date-time", |text: &str| dsl::parse_time(text).is_some())
        .with_format("date", |text: &str| dsl::parse_date(text).is_some())
        .build(schema)
}

/// Checks values that a step writes into the context against the schema of the context. Null stands for an absent
/// value and always fits. Variables that the step does not write are not checked.
///
/// The places of problems are below `/<variable>`.
pub(crate) fn check_written(
    schema: &Value,
    written: &Map<String, Value>,
) -> Result<(), Diagnostic> {
    let present: Map<String, Value> = written
        .iter()
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let invalid = |message: String, at: String| {
        Err(Diagnostic::new(WORKFLOW_RESULT_INVALID, message)
            .at(at)
            .help("send the value as the context schema of the contract describes it"))
    };
    let present = Value::Object(present);
    if let Err(problem) = source::check_numbers(&present) {
        return invalid(problem.message, problem.place.pointer.unwrap_or_default());
    }
    let validator = match compile(schema) {
        Ok(validator) => validator,
        Err(error) => {
            return invalid(format!("the context schema is broken: {error}"), String::new());
        }
    };
    // A problem of the whole object is about variables that other steps write.
    let own = |error: &jsonschema::ValidationError<'_>| !error.instance_path().as_str().is_empty();
    match validator.iter_errors(&present).find(own) {
        None => Ok(()),
        Some(error) => invalid(error.to_string(), error.instance_path().to_string()),
    }
}

/// Whether two contents differ outside the immaterial fields, which are dotted paths.
pub fn is_material(before: &Value, after: &Value, immaterial: &BTreeSet<String>) -> bool {
    let reduced = |content: &Value| {
        let mut content = content.clone();
        for field in immaterial {
            remove(&mut content, field);
        }
        content
    };
    reduced(before) != reduced(after)
}

fn remove(content: &mut Value, path: &str) {
    match path.split_once('.') {
        Some((first, rest)) => {
            if let Some(inner) = content.get_mut(first) {
                remove(inner, rest);
            }
        }
        None => {
            if let Value::Object(fields) = content {
                fields.remove(path);
            }
        }
    }
}

/// The change of one field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FieldChange {
    /// The value before; absent if the field is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// The value after; absent if the field was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Value>,
}

/// The changed fields of a document, by dotted path. Objects are compared field by field, all other values
/// as a whole.
pub fn changes(before: &Value, after: &Value) -> BTreeMap<String, FieldChange> {
    let mut found = BTreeMap::new();
    compare("", Some(before), Some(after), &mut found);
    found
}

fn compare(
    path: &str,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut BTreeMap<String, FieldChange>,
) {
    if before == after {
        return;
    }
    if let (Some(Value::Object(old)), Some(Value::Object(new))) = (before, after) {
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for name in names {
            let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            compare(&inner, old.get(name), new.get(name), found);
        }
        return;
    }
    found.insert(path.to_owned(), FieldChange { from: before.cloned(), to: after.cloned() });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_checked_against_their_schema() {
        let schema = json!({
            "type": "object",
            "properties": {"total": {"type": "integer", "minimum": 0}},
            "required": ["total"],
        });
        let validator = Validator::new(&schema).unwrap();
        assert!(validator.check(&json!({"total": 7})).is_ok());
        for (document, at, text) in [
            (json!([]), "", "a JSON object"),
            (json!({"total": -1}), "/total", "less than the minimum"),
            (json!({}), "", "required"),
            (json!({"total": 9_007_199_254_740_993_u64}), "/total", "9007199254740993"),
        ] {
            let problems = validator.check(&document).unwrap_err();
            assert_eq!(problems[0].place.pointer.as_deref(), Some(at), "{problems:?}");
            assert!(problems[0].message.contains(text), "{problems:?}");
        }
    }

    #[test]
    fn a_document_has_the_times_and_dates_that_expressions_read() {
        let schema = json!({"properties": {
            "due": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "from": {"type": ["string", "null"], "format": "email"},
        }});
        let validator = Validator::new(&schema).unwrap();
        let schemas = dsl::Schemas::new(schema);
        let later =
            dsl::Expression::parse("entity.due > now || entity.day > '2026-01-31'").unwrap();
        later.check(&schemas).unwrap();
        for (field, value, fits) in [
            ("due", "2026-01-31T12:00:00Z", true),
            ("due", "2026-01-31T12:00:00.25+02:00", true),
            ("due", "soon", false),
            ("due", "", false),
            ("due", "2026-01-31", false),
            ("due", "2026-01-31T12:00:00", false),
            ("day", "2026-01-31", true),
            ("day", "2026-02-30", false),
            ("day", "20260131", false),
            ("day", "2026-01-31T12:00:00Z", false),
            ("from", "ann@example.com", true),
            ("from", "ann", false),
        ] {
            let document = json!({ field: value });
            let checked = validator.check(&document);
            assert_eq!(checked.is_ok(), fits, "{field} {value}");
            if fits {
                let scope = dsl::Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
                later.evaluate(&scope).unwrap();
            } else {
                assert_eq!(
                    checked.unwrap_err()[0].place.pointer.as_deref(),
                    Some(&*format!("/{field}"))
                );
            }
        }
    }

    #[test]
    fn written_values_fit_the_schema_of_their_variable() {
        let schema = json!({
            "type": "object",
            "properties": {
                "amount": {"$ref": "#/$defs/amount"},
                "by": {"type": "object", "properties": {"name": {"type": "string"}}},
                "due": {"type": "string", "format": "date-time"},
                "other": {"type": "string"},
            },
            "required": ["other"],
            "minProperties": 3,
            "additionalProperties": false,
            "$defs": {"amount": {"type": "number", "maximum": 10}},
        });
        let check = |written: Value, expect: Option<&str>| {
            let found = check_written(&schema, written.as_object().unwrap());
            let place =
                found.as_ref().err().map(|one| one.place.pointer.clone().unwrap_or_default());
            assert_eq!(place.as_deref(), expect, "{written}: {found:?}");
            assert!(found.err().is_none_or(|one| one.code == WORKFLOW_RESULT_INVALID));
        };
        check(json!({"amount": 7}), None);
        check(json!({"amount": null, "by": null}), None);
        check(json!({"amount": "7"}), Some("/amount"));
        check(json!({"amount": 11}), Some("/amount"));
        check(json!({"amount": -9_007_199_254_740_993_i64}), Some("/amount"));
        check(json!({"by": {"name": 5}}), Some("/by/name"));
        check(json!({"due": "soon"}), Some("/due"));
    }

    #[test]
    fn immaterial_fields_do_not_count() {
        let before = json!({"total": 1, "note": "a", "meta": {"tag": 1, "owner": "x"}});
        let immaterial: BTreeSet<String> =
            ["note".to_owned(), "meta.tag".to_owned()].into_iter().collect();
        for (after, expect) in [
            (json!({"total": 1, "note": "b", "meta": {"tag": 2, "owner": "x"}}), false),
            (json!({"total": 1, "meta": {"owner": "x"}}), false),
            (json!({"total": 2, "note": "a", "meta": {"tag": 1, "owner": "x"}}), true),
            (json!({"total": 1, "note": "a", "meta": {"tag": 1, "owner": "y"}}), true),
        ] {
            assert_eq!(is_material(&before, &after, &immaterial), expect, "{after}");
        }
    }

    #[test]
    fn changes_are_listed_by_path() {
        let before = json!({"total": 1, "lines": [1], "meta": {"tag": 1, "old": true}});
        let after = json!({"total": 2, "lines": [1], "meta": {"tag": 1, "new": "x"}});
        let found = changes(&before, &after);
        let paths: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(paths, ["meta.new", "meta.old", "total"]);
        assert_eq!(found["meta.new"], FieldChange { from: None, to: Some(json!("x")) });
        assert_eq!(found["total"], FieldChange { from: Some(json!(1)), to: Some(json!(2)) });
    }
}
