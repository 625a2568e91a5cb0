//! Tries an expression: checks it against the schemas of a document type, and evaluates it with an explanation.

use axum::body::Bytes;
use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use windlass::ErrorCode;
use windlass::contracts::Contracts;
use windlass::contracts::language::trial::{Sample, read_value, schemas_of, try_expression};

use super::{Answer, body, of, ok};
use crate::error::ApiError;
use crate::extract::CallerEngine;
use crate::view::parse_time;

/// An expression and the values to try it with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = ExpressionQuestion)]
pub(super) struct Question {
    /// The expression.
    expression: String,
    /// Names and types are checked against the contract of this document type.
    r#type: Option<String>,
    /// The version of the contract; the newest without it.
    version: Option<u32>,
    /// Whether the result has to be a boolean.
    #[serde(default)]
    condition: bool,
    /// The document. Without it the expression is only checked.
    #[schema(value_type = Option<Value>)]
    entity: Option<Box<RawValue>>,
    /// The person who acts.
    #[schema(value_type = Option<Value>)]
    actor: Option<Box<RawValue>>,
    /// The settings of the namespace without it.
    #[schema(value_type = Option<Value>)]
    org: Option<Box<RawValue>>,
    /// The values that the run has collected.
    #[schema(value_type = Option<Value>)]
    context: Option<Box<RawValue>>,
    /// The time of the server without it.
    now: Option<String>,
}

/// Answers 200 also for an expression with a problem: the problem is the result.
pub(super) async fn evaluate(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    bytes: Bytes,
) -> Answer {
    let question: Question = body(&bytes)?;
    let contracts = of(&contracts, &engine);
    let schemas = match &question.r#type {
        Some(name) => {
            let contract = contracts.contract(name, question.version).await?;
            Some(schemas_of(&contract.schemas))
        }
        None if question.version.is_some() => {
            let message = "`version` is the version of a contract; send `type` with it";
            return Err(ApiError::invalid(ErrorCode::InvalidBody, message));
        }
        None => None,
    };
    let sample = sample(&contracts, &engine, &question).await?;
    let (text, condition) = (&question.expression, question.condition);
    ok(&try_expression(text, schemas.as_ref(), condition, sample.as_ref()))
}

async fn sample(
    contracts: &Contracts,
    CallerEngine(engine): &CallerEngine,
    question: &Question,
) -> Result<Option<Sample>, ApiError> {
    let Some(entity) = &question.entity else { return Ok(None) };
    let now = match &question.now {
        None => engine.clock().now(),
        Some(text) => parse_time(text).ok_or_else(|| {
            let shown: String = text.chars().take(80).collect();
            let message = format!("`now` is {shown:?}, which is no time (RFC 3339)");
            ApiError::invalid(ErrorCode::InvalidBody, message)
        })?,
    };
    let now = jiff::Timestamp::from_microsecond(now.as_micros()).map_err(|_| {
        ApiError::invalid(ErrorCode::InvalidBody, "`now` is outside the supported range")
    })?;
    let org = match &question.org {
        Some(org) => value("org", org)?,
        None => contracts.settings().await?,
    };
    let optional = |name: &str, raw: &Option<Box<RawValue>>| match raw {
        Some(raw) => value(name, raw),
        None => Ok(Value::Null),
    };
    Ok(Some(Sample {
        entity: value("entity", entity)?,
        actor: optional("actor", &question.actor)?,
        org,
        context: optional("context", &question.context)?,
        now,
    }))
}

// The text, so that a number that would lose digits is refused and not changed.
fn value(name: &str, raw: &RawValue) -> Result<Value, ApiError> {
    read_value(raw.get()).map_err(|problem| {
        ApiError::invalid(ErrorCode::InvalidBody, format!("`{name}`: {}", problem.message))
    })
}
