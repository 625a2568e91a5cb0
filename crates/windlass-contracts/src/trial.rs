//! Tries one expression: parses it, checks it against schemas, and evaluates it over sample values.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::compile::BYTES_MAX;
use crate::diagnostic::{Diagnostic, Span};
use crate::dsl::{Expression, Schemas, Scope, shorten};
use crate::source;
use crate::types;

/// The values that an expression is tried with.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The document, read as `entity`.
    pub entity: Value,
    /// The person who acts.
    pub actor: Value,
    /// The settings of the tenant.
    pub org: Value,
    /// The variables of the workflow.
    pub context: Value,
    /// The time.
    pub now: Timestamp,
}

impl Sample {
    /// A sample without values.
    pub fn at(now: Timestamp) -> Self {
        let (entity, actor, org, context) = (Value::Null, Value::Null, Value::Null, Value::Null);
        Self { entity, actor, org, context, now }
    }
}

/// The result of a trial.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// The first problem of the text, the types, or the values. With one, the members below that depend on it are
    /// absent.
    pub problems: Vec<Diagnostic>,
    /// The paths that the expression can read, in order of their first use.
    pub paths: Vec<String>,
    /// The type of the result, such as `a boolean`. Absent without schemas.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub result_type: Option<String>,
    /// The evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluated: Option<Evaluated>,
}

/// An evaluation with its explanation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evaluated {
    /// The result. A large value is replaced by its size and digest.
    pub result: Value,
    /// Whether a condition with this result holds. Null counts as false.
    pub is_true: bool,
    /// The paths that were read, with their values.
    pub variables: std::collections::BTreeMap<String, Value>,
    /// The operators that were evaluated, in order. `&&` and `||` skip operands that cannot change the result.
    pub steps: Vec<TrialStep>,
}

/// An operator that was evaluated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrialStep {
    /// Its text with its operands.
    pub text: String,
    /// Its place in the expression, in bytes.
    pub span: Span,
    /// Its result.
    pub result: bool,
}

/// The schemas of a contract for expressions.
pub fn schemas_of(schemas: &types::Schemas) -> Schemas {
    Schemas::new(schemas.document.clone())
        .actor(schemas.actor.clone())
        .org(schemas.org.clone())
        .context(schemas.context.clone())
}

/// Tries an expression. With schemas, names and types are checked before it is evaluated; a condition must be a
/// boolean. Without a sample it is only checked.
pub fn try_expression(
    text: &str,
    schemas: Option<&Schemas>,
    is_condition: bool,
    sample: Option<&Sample>,
) -> Trial {
    let mut trial =
        Trial { problems: Vec::new(), paths: Vec::new(), result_type: None, evaluated: None };
    match run(text, schemas, is_condition, sample, &mut trial) {
        Ok(()) => {}
        Err(problem) => trial.problems.push(problem),
    }
    trial
}

fn run(
    text: &str,
    schemas: Option<&Schemas>,
    is_condition: bool,
    sample: Option<&Sample>,
    trial: &mut Trial,
) -> Result<(), Diagnostic> {
    let expression = Expression::parse(text)?;
    trial.paths = expression.paths().iter().map(ToString::to_string).collect();
    if let Some(schemas) = schemas {
        let found = expression.check(schemas)?;
        trial.result_type = Some(found.to_string());
        if is_condition {
            expression.check_condition(schemas)?;
        }
    }
    let Some(sample) = sample else { return Ok(()) };
    let scope = Scope::new(&sample.entity, sample.now)
        .actor(&sample.actor)
        .org(&sample.org)
        .context(&sample.context);
    let explained = expression.evaluate(&scope)?;
    let steps = explained.steps().iter().map(|step| TrialStep {
        text: text.get(step.span.start..step.span.end).unwrap_or_default().to_owned(),
        span: step.span,
        result: step.result,
    });
    trial.evaluated = Some(Evaluated {
        result: shorten(explained.value()),
        is_true: explained.is_true(),
        variables: explained.variables().clone(),
        steps: steps.collect(),
    });
    Ok(())
}

/// Reads a value of a sample from JSON text, without losing digits.
///
/// # Errors
/// Fails if the text is too long, is not JSON, or has a number that would lose digits.
pub fn read_value(text: &str) -> Result<Value, Diagnostic> {
    source::read(text, BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(entity: Value) -> Sample {
        Sample { entity, ..Sample::at(Timestamp::UNIX_EPOCH) }
    }

    fn invoices() -> Schemas {
        schemas_of(&crate::samples::invoice().schemas)
    }

    #[test]
    fn a_trial_explains_each_operator() {
        let text = "entity.total > 100 && entity.currency == 'EUR'";
        let values = sample(json!({"total": 250, "currency": "USD"}));
        let trial = try_expression(text, Some(&invoices()), true, Some(&values));
        assert_eq!(trial.problems, []);
        assert_eq!(trial.paths, ["entity.total", "entity.currency"]);
        assert_eq!(trial.result_type.as_deref(), Some("a boolean"));
        let found = trial.evaluated.unwrap();
        assert_eq!((&found.result, found.is_true), (&json!(false), false));
        let steps: Vec<(&str, bool)> =
            found.steps.iter().map(|step| (step.text.as_str(), step.result)).collect();
        let expect =
            [("entity.total > 100", true), ("entity.currency == 'EUR'", false), (text, false)];
        assert_eq!(steps, expect);
        assert_eq!(found.variables["entity.currency"], json!("USD"));
    }

    #[test]
    fn the_first_problem_is_reported_and_nothing_is_evaluated() {
        let checked = invoices();
        let long = format!("entity.total > {}", "1".repeat(600));
        for (text, schemas, is_condition, entity, code) in [
            ("entity.total >", Some(&checked), true, json!({}), "EXPRESSION_SYNTAX"),
            ("entity.totl > 1", Some(&checked), true, json!({}), "EXPRESSION_UNKNOWN_NAME"),
            ("entity.total", Some(&checked), true, json!({"total": 1}), "EXPRESSION_TYPE"),
            ("entity.total > 'a'", Some(&checked), false, json!({}), "EXPRESSION_TYPE"),
            ("entity.total > 1", None, true, json!({"total": [1]}), "EXPRESSION_VALUE"),
            (long.as_str(), None, true, json!({}), "EXPRESSION_TOO_LONG"),
        ] {
            let trial = try_expression(text, schemas, is_condition, Some(&sample(entity)));
            let codes: Vec<&str> = trial.problems.iter().map(|one| one.code.as_str()).collect();
            assert_eq!((codes, trial.evaluated), (vec![code], None), "{text:.40}");
        }
    }

    #[test]
    fn without_schemas_or_a_sample_a_trial_does_less() {
        let trial = try_expression("entity.anything == 1", None, true, None);
        assert_eq!((trial.result_type, trial.evaluated), (None, None));
        let trial = try_expression("entity.total", Some(&invoices()), false, None);
        assert_eq!(trial.result_type.as_deref(), Some("a number"));
    }

    #[test]
    fn a_sample_keeps_its_digits() {
        assert_eq!(read_value("{\"total\": 12.50}").unwrap()["total"].to_string(), "12.5");
        let found = read_value("{\"total\": 12345678901234567890.1}").unwrap_err();
        assert_eq!(found.code.as_str(), "JSON_NUMBER_INEXACT");
    }
}
