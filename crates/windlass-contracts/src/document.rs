//! Documents: validation against the schema of a contract, and comparison of two contents.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::codes::DOCUMENT_INVALID;
use crate::diagnostic::Diagnostic;
use crate::source;

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
        jsonschema::validator_for(schema).map(Self).map_err(|error| {
            Diagnostic::new(crate::codes::CONTRACT_SCHEMA, error.to_string())
                .at("/schemas/document")
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
            return Err(vec![problem]);
        }
        source::check_numbers(document).map_err(|problem| vec![problem])?;
        let problems: Vec<Diagnostic> = self
            .0
            .iter_errors(document)
            .take(PROBLEMS_MAX)
            .map(|error| {
                let at = error.instance_path().to_string();
                Diagnostic::new(DOCUMENT_INVALID, error.to_string()).at(at)
            })
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
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
