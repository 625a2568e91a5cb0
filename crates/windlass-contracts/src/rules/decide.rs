//! Applies a table to a document.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use windlass_kernel::digest::Sha256Digest;

use super::{
    DecisionTable, HitPolicy, Input, RULE_GAP, RULE_OVERLAP, RULE_VALUE, Row,
    domain::{Point, domain, point, set},
};
use crate::{
    diagnostic::{Diagnostic, pointer_join},
    dsl::{self, Scope},
};

/// The answer of a table and how it came about. It serialises as evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Decision {
    /// The row that decided, or nothing if `otherwise` did.
    pub row: Option<String>,
    /// The outputs.
    pub outputs: BTreeMap<String, Value>,
    /// The values of the inputs.
    pub inputs: BTreeMap<String, Value>,
    /// The rows that were tried, in order.
    pub considered: Vec<Considered>,
    /// The digest of the table.
    pub digest: Sha256Digest,
}

/// A row that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Considered {
    /// The id of the row.
    pub row: String,
    /// The first input whose condition did not hold, or nothing if the row matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Decision {
    /// The text of an output.
    pub fn text(&self, output: &str) -> Option<&str> {
        self.outputs.get(output)?.as_str()
    }
}

pub(super) fn decide(table: &DecisionTable, scope: &Scope<'_>) -> Result<Decision, Diagnostic> {
    let mut inputs = BTreeMap::new();
    let mut points = BTreeMap::new();
    for (index, input) in table.inputs.iter().enumerate() {
        let (value, point) = value(input, scope, &format!("/inputs/{index}"))?;
        inputs.insert(input.name.clone(), dsl::shorten(&value));
        points.insert(input.name.as_str(), point);
    }
    let mut considered = Vec::new();
    let mut found: Option<&Row> = None;
    for (index, row) in table.rows.iter().enumerate() {
        let failed = failed(table, row, &points, &format!("/rows/{index}/when"))?;
        considered.push(Considered { row: row.id.clone(), failed: failed.map(str::to_owned) });
        match (failed, found) {
            (Some(_), _) => {}
            (None, Some(earlier)) => {
                let text = format!("the rows {:?} and {:?} both match", earlier.id, row.id);
                return Err(Diagnostic::new(RULE_OVERLAP, text)
                    .at(format!("/rows/{index}"))
                    .help("check the table before it is used"));
            }
            (None, None) => {
                found = Some(row);
                if table.hit_policy == HitPolicy::First {
                    break;
                }
            }
        }
    }
    let outputs = match (found, &table.otherwise) {
        (Some(row), _) => row.then.clone(),
        (None, Some(otherwise)) => otherwise.clone(),
        (None, None) => {
            let values: Vec<String> =
                inputs.iter().map(|(name, value)| format!("{name} = {value}")).collect();
            let text = format!("no row decides for {}", values.join(", "));
            return Err(Diagnostic::new(RULE_GAP, text)
                .at("/rows")
                .help("check the table before it is used"));
        }
    };
    let row = found.map(|row| row.id.clone());
    Ok(Decision { row, outputs, inputs, considered, digest: table.digest()? })
}

fn value(input: &Input, scope: &Scope<'_>, pointer: &str) -> Result<(Value, Point), Diagnostic> {
    let wrong = |text: String| {
        Diagnostic::new(RULE_VALUE, format!("the input {:?}: {text}", input.name))
            .at(pointer)
            .help(format!("correct {}, or widen the input of the table", input.path))
    };
    let value = dsl::read_path(&input.path, scope)
        .map_err(|error| Diagnostic::from(error).at(pointer_join(pointer, "path")))?
        .map_err(wrong)?;
    let point = point(&value, input).map_err(wrong)?;
    // The texts that the schema lists are not known here; the schema of the document says them.
    let all = domain(input, None, pointer)?;
    if all.has(&point) {
        return Ok((value, point));
    }
    let text = match point {
        Point::Absent => format!("{} is absent, but the input is not optional", input.path),
        _ => format!("{} is outside the declared values", dsl::shorten(&value)),
    };
    Err(wrong(text))
}

/// The first input of a row whose condition does not hold.
fn failed<'a>(
    table: &'a DecisionTable,
    row: &Row,
    points: &BTreeMap<&str, Point>,
    pointer: &str,
) -> Result<Option<&'a str>, Diagnostic> {
    for input in &table.inputs {
        let Some(condition) = row.when.get(&input.name) else { continue };
        let set = set(condition, input, &pointer_join(pointer, &input.name))?;
        if !points.get(input.name.as_str()).is_some_and(|point| set.has(point)) {
            return Ok(Some(&input.name));
        }
    }
    Ok(None)
}
