//! The tree of an expression, and how it prints.

use std::fmt;

use crate::{diagnostic::Span, number::Decimal};

/// The names that an expression can start a path with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespace {
    /// The document.
    Entity,
    /// The person that acts.
    Actor,
    /// The settings of the organisation.
    Org,
    /// The values that the workflow has collected.
    Context,
    /// The time of the evaluation. It has no fields.
    Now,
}

impl Namespace {
    pub(crate) const ALL: [Self; 5] =
        [Self::Entity, Self::Actor, Self::Org, Self::Context, Self::Now];

    /// The name as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Entity => "entity",
            Self::Actor => "actor",
            Self::Org => "org",
            Self::Context => "context",
            Self::Now => "now",
        }
    }
}

/// A namespace and the fields below it, for example `entity.customer.name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    pub(crate) namespace: Namespace,
    pub(crate) fields: Vec<String>,
}

impl Path {
    /// The namespace that the path starts with.
    pub fn namespace(&self) -> Namespace {
        self.namespace
    }

    /// The fields, from the outermost to the innermost. Empty for `now`.
    pub fn fields(&self) -> &[String] {
        &self.fields
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.namespace.as_str())?;
        self.fields.iter().try_for_each(|field| write!(f, ".{field}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(value) => f.write_str(&quote(value)),
        }
    }
}

/// Writes a text as a literal. Control characters, which a literal cannot hold, print as `\u{…}`.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        match c {
            '\'' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    In,
    Contains,
}

impl Operator {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::In => "in",
            Self::Contains => "contains",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Expr {
    pub(crate) node: Node,
    pub(crate) span: Span,
    /// A value has depth 1, an operator one more than its deepest operand.
    pub(crate) depth: usize,
}

#[derive(Debug, Clone)]
pub(crate) enum Node {
    Literal(Literal),
    List(Vec<(Literal, Span)>),
    Path(Path),
    Not(Box<Expr>),
    Compare(Box<Expr>, Operator, Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
}

impl Expr {
    /// The strength with which the expression holds together; operands need at least the strength
    /// of their place or parentheses.
    const fn strength(&self) -> u8 {
        match self.node {
            Node::Or(_) => 1,
            Node::And(_) => 2,
            Node::Compare(..) => 3,
            Node::Not(_) => 4,
            Node::Literal(_) | Node::List(_) | Node::Path(_) => 5,
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, least: u8) -> fmt::Result {
        if self.strength() < least { write!(f, "({self})") } else { write!(f, "{self}") }
    }

    pub(crate) fn visit_paths<'a>(&'a self, visit: &mut impl FnMut(&'a Path)) {
        match &self.node {
            Node::Literal(_) | Node::List(_) => {}
            Node::Path(path) => visit(path),
            Node::Not(operand) => operand.visit_paths(visit),
            Node::Compare(left, _, right) => {
                left.visit_paths(visit);
                right.visit_paths(visit);
            }
            Node::And(operands) | Node::Or(operands) => {
                operands.iter().for_each(|operand| operand.visit_paths(visit));
            }
        }
    }

    /// Whether two trees are equal apart from their places.
    pub(crate) fn same(&self, other: &Self) -> bool {
        let all_same = |left: &[Self], right: &[Self]| {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| left.same(right))
        };
        match (&self.node, &other.node) {
            (Node::Literal(left), Node::Literal(right)) => left == right,
            (Node::List(left), Node::List(right)) => {
                left.iter().map(|(item, _)| item).eq(right.iter().map(|(item, _)| item))
            }
            (Node::Path(left), Node::Path(right)) => left == right,
            (Node::Not(left), Node::Not(right)) => left.same(right),
            (Node::Compare(a, left, b), Node::Compare(c, right, d)) => {
                left == right && a.same(c) && b.same(d)
            }
            (Node::And(left), Node::And(right)) | (Node::Or(left), Node::Or(right)) => {
                all_same(left, right)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.strength();
        let join = |f: &mut fmt::Formatter<'_>, operands: &[Self], operator: &str| {
            for (index, operand) in operands.iter().enumerate() {
                if index > 0 {
                    f.write_str(operator)?;
                }
                operand.write(f, own + 1)?;
            }
            Ok(())
        };
        match &self.node {
            Node::Literal(literal) => literal.fmt(f),
            Node::List(items) => {
                f.write_str("[")?;
                for (index, (item, _)) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Node::Path(path) => path.fmt(f),
            Node::Not(operand) => {
                f.write_str("!")?;
                operand.write(f, own + 1)
            }
            Node::Compare(left, operator, right) => {
                left.write(f, own + 1)?;
                write!(f, " {} ", operator.as_str())?;
                right.write(f, own + 1)
            }
            Node::And(operands) => join(f, operands, " && "),
            Node::Or(operands) => join(f, operands, " || "),
        }
    }
}
