//! Evaluates expressions over JSON values.

use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap};

use jiff::Timestamp;
use serde_json::Value;

use super::{
    EXPRESSION_VALUE, Error, LIST_ITEMS_MAX,
    ast::{Expr, Literal, Namespace, Node, Operator, Path},
    check::{parse_date, parse_time},
    explain::{self, Explained, Step},
};
use crate::{diagnostic::Span, number::Decimal};

static NULL: Value = Value::Null;

/// The values that an expression reads.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    entity: &'a Value,
    actor: &'a Value,
    org: &'a Value,
    context: &'a Value,
    now: Timestamp,
}

impl<'a> Scope<'a> {
    /// The document and the time. The other namespaces are empty.
    pub fn new(entity: &'a Value, now: Timestamp) -> Self {
        Self { entity, actor: &NULL, org: &NULL, context: &NULL, now }
    }

    /// Sets the person that acts.
    #[must_use]
    pub fn actor(mut self, value: &'a Value) -> Self {
        self.actor = value;
        self
    }

    /// Sets the settings of the organisation.
    #[must_use]
    pub fn org(mut self, value: &'a Value) -> Self {
        self.org = value;
        self
    }

    /// Sets the values that the workflow has collected.
    #[must_use]
    pub fn context(mut self, value: &'a Value) -> Self {
        self.context = value;
        self
    }

    /// The time of the evaluation.
    pub fn now(&self) -> Timestamp {
        self.now
    }
}

/// A value while it is compared.
#[derive(Debug, Clone)]
pub(crate) enum Operand<'a> {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(Cow<'a, str>),
    Time(Timestamp),
    List(&'a [Value]),
    Literals(&'a [(Literal, Span)]),
    Object(&'a Value),
}

impl<'a> Operand<'a> {
    fn of_literal(literal: &'a Literal) -> Self {
        match literal {
            Literal::Null => Self::Null,
            Literal::Bool(value) => Self::Bool(*value),
            Literal::Number(value) => Self::Number(*value),
            Literal::Text(value) => Self::Text(Cow::Borrowed(value)),
        }
    }

    /// Fails with the reason if a number could lose digits.
    fn of_json(value: &'a Value) -> Result<Self, String> {
        Ok(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(value) => {
                Self::Number(Decimal::from_json(value).map_err(|error| error.to_string())?)
            }
            Value::String(value) => Self::Text(Cow::Borrowed(value)),
            Value::Array(items) => Self::List(items),
            Value::Object(_) => Self::Object(value),
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(value) => Value::Number(value.to_json()),
            Self::Text(value) => Value::String(value.clone().into_owned()),
            Self::Time(value) => Value::String(value.to_string()),
            Self::List(items) => Value::Array(items.to_vec()),
            Self::Literals(items) => {
                items.iter().map(|(item, _)| Self::of_literal(item).to_json()).collect()
            }
            Self::Object(value) => (*value).clone(),
        }
    }

    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::Time(_) => "a time",
            Self::List(_) | Self::Literals(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Reads a path. An absent value is null.
///
/// # Errors
/// Fails with the reason if a value on the way is not an object, or if a number could lose digits.
pub(crate) fn read<'a>(path: &Path, scope: &Scope<'a>) -> Result<Operand<'a>, String> {
    let mut here = match path.namespace {
        Namespace::Entity => scope.entity,
        Namespace::Actor => scope.actor,
        Namespace::Org => scope.org,
        Namespace::Context => scope.context,
        Namespace::Now => return Ok(Operand::Time(scope.now)),
    };
    for field in &path.fields {
        here = match here {
            Value::Object(members) => members.get(field).unwrap_or(&NULL),
            Value::Null => return Ok(Operand::Null),
            other => {
                let found = Operand::of_json(other)?.kind();
                return Err(format!("{path} cannot be read: {field} is below {found}"));
            }
        };
    }
    Operand::of_json(here).map_err(|reason| format!("{path}: {reason}"))
}

pub(crate) fn evaluate(expr: &Expr, text: &str, scope: &Scope<'_>) -> Result<Explained, Error> {
    let mut run = Run { scope, variables: BTreeMap::new(), steps: Vec::new() };
    let value = run.expr(expr)?.to_json();
    Ok(Explained { expression: text.to_owned(), variables: run.variables, value, steps: run.steps })
}

struct Run<'a, 's> {
    scope: &'s Scope<'a>,
    variables: BTreeMap<String, Value>,
    steps: Vec<Step>,
}

impl<'a> Run<'a, '_> {
    fn expr<'e>(&mut self, expr: &'e Expr) -> Result<Operand<'e>, Error>
    where
        'a: 'e,
    {
        let result = match &expr.node {
            Node::Literal(literal) => return Ok(Operand::of_literal(literal)),
            Node::List(items) => return Ok(Operand::Literals(items)),
            Node::Path(path) => {
                let found = read(path, self.scope).map_err(|reason| wrong(expr.span, reason))?;
                self.variables.entry(path.to_string()).or_insert_with(|| explain::keep(&found));
                return Ok(found);
            }
            Node::Not(operand) => !self.condition(operand)?,
            Node::And(operands) => self.first(operands, false)?,
            Node::Or(operands) => self.first(operands, true)?,
            Node::Compare(left, operator, right) => {
                let (a, b) = (self.expr(left)?, self.expr(right)?);
                let is_null = |side: &Expr| matches!(side.node, Node::Literal(Literal::Null));
                match (operator, is_null(left) || is_null(right)) {
                    (Operator::Equal, true) => matches!((&a, &b), (Operand::Null, Operand::Null)),
                    (Operator::NotEqual, true) => {
                        !matches!((&a, &b), (Operand::Null, Operand::Null))
                    }
                    _ => compare(&a, *operator, &b).map_err(|reason| wrong(expr.span, reason))?,
                }
            }
        };
        self.steps.push(Step { span: expr.span, result });
        Ok(Operand::Bool(result))
    }

    /// Evaluates operands until one has the value that decides. Returns whether one had it if it is
    /// true, and whether none had it if it is false.
    fn first(&mut self, operands: &[Expr], decides: bool) -> Result<bool, Error> {
        for operand in operands {
            if self.condition(operand)? == decides {
                return Ok(decides);
            }
        }
        Ok(!decides)
    }

    fn condition(&mut self, operand: &Expr) -> Result<bool, Error> {
        match self.expr(operand)? {
            Operand::Bool(value) => Ok(value),
            Operand::Null => Ok(false),
            other => {
                let found = format!("expected a boolean, this is {}", other.kind());
                Err(wrong(operand.span, found))
            }
        }
    }
}

fn wrong(span: Span, reason: String) -> Error {
    Error::new(EXPRESSION_VALUE, span, reason).help("correct the value to fit its schema")
}

fn compare(left: &Operand<'_>, operator: Operator, right: &Operand<'_>) -> Result<bool, String> {
    if matches!(left, Operand::Null) || matches!(right, Operand::Null) {
        return Ok(false);
    }
    match operator {
        Operator::Equal => equal(left, right),
        Operator::NotEqual => equal(left, right).map(|equal| !equal),
        Operator::Greater => order(left, right).map(Ordering::is_gt),
        Operator::GreaterEqual => order(left, right).map(Ordering::is_ge),
        Operator::Less => order(left, right).map(Ordering::is_lt),
        Operator::LessEqual => order(left, right).map(Ordering::is_le),
        Operator::In => search(right, left),
        Operator::Contains => search(left, right),
    }
}

fn equal(left: &Operand<'_>, right: &Operand<'_>) -> Result<bool, String> {
    match (left, right) {
        (Operand::Bool(left), Operand::Bool(right)) => Ok(left == right),
        (Operand::Number(left), Operand::Number(right)) => Ok(left == right),
        (Operand::Text(left), Operand::Text(right)) => Ok(left == right),
        _ => Err(format!("cannot compare {} with {}", left.kind(), right.kind())),
    }
}

fn order(left: &Operand<'_>, right: &Operand<'_>) -> Result<Ordering, String> {
    let time = |operand: &Operand<'_>| match operand {
        Operand::Time(time) => Some(*time),
        Operand::Text(text) => parse_time(text),
        _ => None,
    };
    let date = |operand: &Operand<'_>| match operand {
        Operand::Text(text) => parse_date(text),
        _ => None,
    };
    if let (Operand::Number(left), Operand::Number(right)) = (left, right) {
        return Ok(left.cmp(right));
    }
    if let (Some(left), Some(right)) = (date(left), date(right)) {
        return Ok(left.cmp(&right));
    }
    if let (Some(left), Some(right)) = (time(left), time(right)) {
        return Ok(left.cmp(&right));
    }
    let (left, right) = (explain::show(left), explain::show(right));
    Err(format!("cannot order {left} and {right}: they are not two numbers, dates or times"))
}

fn search(list: &Operand<'_>, item: &Operand<'_>) -> Result<bool, String> {
    let mut found = false;
    match list {
        Operand::List(items) if items.len() > LIST_ITEMS_MAX => {
            let length = items.len();
            return Err(format!("the list has {length} items, the limit is {LIST_ITEMS_MAX}"));
        }
        Operand::List(items) => {
            for other in *items {
                let other = Operand::of_json(other)?;
                found |= !matches!(other, Operand::Null) && equal(&other, item)?;
            }
        }
        Operand::Literals(items) => {
            for (other, _) in *items {
                found |= equal(&Operand::of_literal(other), item)?;
            }
        }
        other => return Err(format!("expected a list, this is {}", other.kind())),
    }
    Ok(found)
}
