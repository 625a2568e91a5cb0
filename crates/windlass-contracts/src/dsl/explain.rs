//! The record of an evaluation: evidence for programs, an explanation for people.

use std::{collections::BTreeMap, fmt};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};
use serde_json::{Value, json};
use windlass_kernel::digest::Sha256Digest;

use super::{EVIDENCE_VALUE_BYTES_MAX, ast::quote, eval::Operand};
use crate::diagnostic::Span;

/// The result of an evaluation, and how it came about.
///
/// It serialises as evidence: `{expression, variables, result}`. A variable that is larger than
/// [`EVIDENCE_VALUE_BYTES_MAX`] is replaced by `{"$omitted": {bytes, digest}}`.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained {
    pub(crate) expression: String,
    pub(crate) variables: BTreeMap<String, Value>,
    pub(crate) value: Value,
    pub(crate) steps: Vec<Step>,
}

/// One operator that was evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The place of the operator and its operands in the expression.
    pub span: Span,
    /// Its result.
    pub result: bool,
}

impl Explained {
    /// The expression as it was written.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// The paths that were read, with their values.
    pub fn variables(&self) -> &BTreeMap<String, Value> {
        &self.variables
    }

    /// The result.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Whether the result is true. Null counts as false.
    pub fn is_true(&self) -> bool {
        self.value == Value::Bool(true)
    }

    /// The operators that were evaluated, in order. `&&` and `||` skip operands that cannot change
    /// the result.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

impl Serialize for Explained {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("Explained", 3)?;
        out.serialize_field("expression", &self.expression)?;
        out.serialize_field("variables", &self.variables)?;
        out.serialize_field("result", &shorten(&self.value))?;
        out.end()
    }
}

/// Writes the steps and the variables for people. Texts are quoted, so that no value can be
/// mistaken for a part of the expression.
impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.expression, show_json(&self.value))?;
        for step in &self.steps {
            let part = &self.expression[step.span.start..step.span.end];
            if part != self.expression {
                writeln!(f, "  {part}: {}", step.result)?;
            }
        }
        for (path, value) in &self.variables {
            writeln!(f, "  where {path} = {}", show_json(value))?;
        }
        Ok(())
    }
}

/// The form in which evidence keeps a value.
pub(crate) fn keep(operand: &Operand<'_>) -> Value {
    shorten(&operand.to_json())
}

pub(crate) fn shorten(value: &Value) -> Value {
    let text = value.to_string();
    if text.len() <= EVIDENCE_VALUE_BYTES_MAX {
        return value.clone();
    }
    json!({"$omitted": {"bytes": text.len(), "digest": Sha256Digest::of(text.as_bytes())}})
}

pub(crate) fn show(operand: &Operand<'_>) -> String {
    show_json(&keep(operand))
}

fn show_json(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(show_json).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}
