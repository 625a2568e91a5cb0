//! Checks names and types before an expression is saved.

use std::fmt;

use jiff::{Timestamp, civil};

use super::{
    EXPRESSION_TYPE, Error,
    ast::{Expr, Literal, Namespace, Node, Operator, Path, quote},
    error::WithoutHelp,
    schema::{Fault, Kind, Leaf, Schemas},
};
use crate::diagnostic::Span;

/// The type of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Type {
    /// The literal `null`.
    Null,
    /// True or false.
    Bool,
    /// An integer or a fixed decimal.
    Number,
    /// A text.
    Text,
    /// A point in time: a text with the format `date-time`, or `now`.
    Time,
    /// A day of the calendar: a text with the format `date`.
    Date,
    /// A list.
    List(Box<Type>),
    /// An object. No operator accepts it.
    Object,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("a boolean"),
            Self::Number => f.write_str("a number"),
            Self::Text => f.write_str("a text"),
            Self::Time => f.write_str("a time"),
            Self::Date => f.write_str("a date"),
            Self::List(item) => write!(f, "a list (each item is {item})"),
            Self::Object => f.write_str("an object"),
        }
    }
}

pub(crate) fn check(expr: &Expr, schemas: &Schemas) -> Result<Type, Error> {
    Ok(Checker { schemas }.expr(expr)?.kind)
}

/// Checks a path that stands alone, and returns its type.
pub(crate) fn check_path(path: &Path, span: Span, schemas: &Schemas) -> Result<Leaf, Error> {
    Checker { schemas }.path(path, span)
}

/// The day that a text names, if it names one.
pub(crate) fn parse_date(text: &str) -> Option<civil::Date> {
    // The parser accepts other spellings too, which would not be equal as texts.
    let plain = text.len() == 10 && text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    text.parse().ok().filter(|_| plain)
}

/// The time that a text names, if it names one.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

struct Checker<'a> {
    schemas: &'a Schemas,
}

impl Checker<'_> {
    fn expr(&self, expr: &Expr) -> Result<Leaf, Error> {
        let plain = |kind| Ok(Leaf { kind, values: None });
        match &expr.node {
            Node::Literal(literal) => plain(literal_type(literal)),
            Node::List(items) => {
                let Some((first, _)) = items.first() else { return plain(Type::Null) };
                let kind = literal_type(first);
                for (item, span) in items {
                    let other = literal_type(item);
                    if other != kind {
                        return Err(mismatch(
                            *span,
                            format!("a list of {kind} has an item that is {other}"),
                        )
                        .help("give all items one type"));
                    }
                }
                plain(Type::List(Box::new(kind)))
            }
            Node::Path(path) => self.path(path, expr.span),
            Node::Not(operand) => self.condition(operand, "!"),
            Node::And(operands) => self.conditions(operands, "&&"),
            Node::Or(operands) => self.conditions(operands, "||"),
            Node::Compare(left, operator, right) => {
                let (a, b) = (self.expr(left)?, self.expr(right)?);
                let compare = Compare { expr, operator: *operator };
                match operator {
                    Operator::Equal | Operator::NotEqual => {
                        compare.equality((left, &a), (right, &b))?;
                    }
                    Operator::In => compare.membership((left, &a), (right, &b))?,
                    Operator::Contains => compare.membership((right, &b), (left, &a))?,
                    _ => compare.order((left, &a), (right, &b))?,
                }
                plain(Type::Bool)
            }
        }
    }

    fn conditions(&self, operands: &[Expr], operator: &str) -> Result<Leaf, Error> {
        operands.iter().try_for_each(|operand| self.condition(operand, operator).map(|_| ()))?;
        Ok(Leaf { kind: Type::Bool, values: None })
    }

    fn condition(&self, operand: &Expr, operator: &str) -> Result<Leaf, Error> {
        let found = self.expr(operand)?;
        if found.kind == Type::Bool {
            return Ok(found);
        }
        Err(mismatch(operand.span, format!("{operator} needs a boolean, this is {}", found.kind))
            .help("compare the value with something, such as `== true` or `> 0`"))
    }

    fn path(&self, path: &Path, span: Span) -> Result<Leaf, Error> {
        if path.namespace == Namespace::Now {
            return Ok(Leaf { kind: Type::Time, values: None });
        }
        self.schemas.resolve(path).map_err(|fault| explain(path, span, fault))
    }
}

struct Compare<'a> {
    expr: &'a Expr,
    operator: Operator,
}

type Side<'a> = (&'a Expr, &'a Leaf);

impl Compare<'_> {
    fn equality(&self, left: Side<'_>, right: Side<'_>) -> Result<(), Error> {
        match (&left.1.kind, &right.1.kind) {
            (Type::Null, Type::Null) => {
                Err(self.wrong("compares null with null").help("write a field on one side"))
            }
            (Type::Null, _) | (_, Type::Null) => Ok(()),
            (a, b) => {
                if matches!(a, Type::List(_) | Type::Object)
                    || matches!(b, Type::List(_) | Type::Object)
                {
                    let text = format!("cannot compare {a} with {b}");
                    return Err(self.wrong(text).help("lists know `contains` and `in`"));
                }
                self.same_kind(left, right)
            }
        }
    }

    /// Checks that two scalars can be equal.
    fn same_kind(&self, left: Side<'_>, right: Side<'_>) -> Result<(), Error> {
        match (&left.1.kind, &right.1.kind) {
            (Type::Time, _) | (_, Type::Time) => Err(self
                .wrong("cannot test times for equality")
                .help("one time has many spellings; compare with < and >=")),
            (Type::Date, Type::Text) => require_dates(right.0),
            (Type::Text, Type::Date) => require_dates(left.0),
            (a, b) if a != b => Err(self
                .wrong(format!("cannot compare {a} with {b}"))
                .help("compare values of one type; write texts in quotes, and numbers without")),
            _ => {
                require_listed(right.0, left.1)?;
                require_listed(left.0, right.1)
            }
        }
    }

    fn order(&self, left: Side<'_>, right: Side<'_>) -> Result<(), Error> {
        match (&left.1.kind, &right.1.kind) {
            (Type::Number, Type::Number) | (Type::Time, Type::Time) | (Type::Date, Type::Date) => {
                Ok(())
            }
            (Type::Time, Type::Text) => require_times(right.0),
            (Type::Text, Type::Time) => require_times(left.0),
            (Type::Date, Type::Text) => require_dates(right.0),
            (Type::Text, Type::Date) => require_dates(left.0),
            (Type::Text, Type::Text) => Err(self
                .wrong(format!("{} does not order texts", self.operator.as_str()))
                .help("order numbers, or fields whose schema has the format date or date-time")),
            (a, b) => Err(self
                .wrong(format!("cannot order {a} and {b}"))
                .help("order two numbers, two dates or two times")),
        }
    }

    /// Checks `item in list`, and `list contains item` with the sides swapped.
    fn membership(&self, item: Side<'_>, list: Side<'_>) -> Result<(), Error> {
        let operator = self.operator.as_str();
        let Type::List(kind) = &list.1.kind else {
            let found = &list.1.kind;
            let text = format!("{operator} needs a list, this is {found}");
            return Err(mismatch(list.0.span, text).help(
                "write `item in list` or `list contains item`; a list is [1, 2] or a field",
            ));
        };
        if matches!(item.1.kind, Type::Null | Type::List(_) | Type::Object) {
            let found = &item.1.kind;
            return Err(mismatch(item.0.span, format!("{operator} cannot search for {found}"))
                .help("search for a number, a text, a boolean or a date"));
        }
        let items = Leaf { kind: (**kind).clone(), values: None };
        self.same_kind(item, (list.0, &items))
    }

    fn wrong(&self, message: impl Into<String>) -> WithoutHelp {
        mismatch(self.expr.span, message)
    }
}

const fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Number(_) => Type::Number,
        Literal::Text(_) => Type::Text,
    }
}

fn mismatch(span: Span, message: impl Into<String>) -> WithoutHelp {
    Error::new(EXPRESSION_TYPE, span, message)
}

/// The texts that are written in the expression itself; nothing for a path.
fn literal_texts(expr: &Expr) -> Option<Vec<(&str, Span)>> {
    match &expr.node {
        Node::Literal(Literal::Text(text)) => Some(vec![(text, expr.span)]),
        Node::List(items) => Some(
            items
                .iter()
                .filter_map(|(item, span)| match item {
                    Literal::Text(text) => Some((text.as_str(), *span)),
                    _ => None,
                })
                .collect(),
        ),
        _ => None,
    }
}

fn require_dates(expr: &Expr) -> Result<(), Error> {
    require(expr, "a date such as '2026-01-31'", |text| parse_date(text).is_some())
}

fn require_times(expr: &Expr) -> Result<(), Error> {
    require(expr, "a time such as '2026-01-31T12:00:00Z'", |text| parse_time(text).is_some())
}

fn require(expr: &Expr, wanted: &str, accepts: impl Fn(&str) -> bool) -> Result<(), Error> {
    let Some(texts) = literal_texts(expr) else {
        return Err(mismatch(expr.span, format!("expected {wanted}, this is a text"))
            .help("give the field the format date or date-time in the schema"));
    };
    match texts.into_iter().find(|(text, _)| !accepts(text)) {
        None => Ok(()),
        Some((text, span)) => Err(mismatch(span, format!("{} is not {wanted}", quote(text)))
            .help(format!("write {wanted}"))),
    }
}

/// Refuses a literal that the other side can never have.
fn require_listed(expr: &Expr, other: &Leaf) -> Result<(), Error> {
    let (Some(values), Some(texts)) = (&other.values, literal_texts(expr)) else { return Ok(()) };
    match texts.into_iter().find(|(text, _)| !values.contains(*text)) {
        None => Ok(()),
        Some((text, span)) => Err(mismatch(span, format!("the field never is {}", quote(text)))
            .help(format!("the schema lists {}", some_of(values.iter().map(|v| quote(v)))))),
    }
}

/// Joins the first of many names.
fn some_of(names: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN_MAX: usize = 10;
    let more = names.len().saturating_sub(SHOWN_MAX);
    let shown: Vec<String> = names.take(SHOWN_MAX).collect();
    let shown = shown.join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

fn explain(path: &Path, span: Span, fault: Fault) -> Error {
    let fields = &path.fields[..fault.field];
    let mut start = span.start + path.namespace.as_str().len();
    start += fields.iter().map(|field| field.len() + 1).sum::<usize>();
    let name = &path.fields[fault.field];
    let place = Span { start: start + 1, end: start + 1 + name.len() };
    let shown = Path { namespace: path.namespace, fields: path.fields[..=fault.field].to_vec() };
    let code = fault.kind.code();
    match fault.kind {
        Kind::Unknown { known } => {
            let error = Error::new(code, place, format!("{shown} does not exist"));
            if known.is_empty() {
                error.help("the schema declares no fields here")
            } else {
                error.help(format!("known fields: {}", some_of(known.into_iter())))
            }
        }
        Kind::RemoteReference(target) => {
            Error::new(code, place, format!("the schema refers to another document: {target:?}"))
                .help("copy the definition into $defs and refer to it as #/$defs/…")
        }
        Kind::DanglingReference(target) => {
            Error::new(code, place, format!("the schema has no definition {target:?}"))
                .help("add the definition to $defs, or correct the reference")
        }
        Kind::TooManyReferences => Error::new(
            code,
            place,
            format!("the schema of {shown} has more than {} references", super::REFERENCES_MAX),
        )
        .help("check the schema for references in a circle"),
        Kind::Untyped => {
            Error::new(code, place, format!("the schema does not say one type for {shown}"))
                .help("add `type`, and `items` to arrays")
        }
        Kind::NotAnObject => {
            Error::new(code, place, format!("the schema does not say that {shown} is an object"))
                .help("add `\"type\": \"object\"` beside its `properties`")
        }
    }
}
