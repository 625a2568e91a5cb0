//! Expressions and templates: small, typed, total languages over a document and its surroundings.
//!
//! An [`Expression`] reads `entity`, `actor`, `org`, `context` and `now`, compares values and
//! combines the results. It cannot loop, build texts or call anything. A [`Template`] is a text with
//! `{path}` in it, and nothing else.
//!
//! ```
//! use serde_json::json;
//! use windlass_contracts::dsl::{Expression, Schemas, Scope, Type};
//!
//! let schemas = Schemas::new(json!({"properties": {"total": {"type": "number"}}}));
//! let rule = Expression::parse("entity.total > 100")?;
//! assert_eq!(rule.check(&schemas)?, Type::Bool);
//!
//! let document = json!({"total": 250});
//! let explained = rule.evaluate(&Scope::new(&document, jiff::Timestamp::UNIX_EPOCH))?;
//! assert!(explained.is_true());
//! assert_eq!(
//!     serde_json::to_value(&explained).unwrap(),
//!     json!({"expression": "entity.total > 100", "variables": {"entity.total": 250}, "result": true}),
//! );
//! # Ok::<(), windlass_contracts::dsl::Error>(())
//! ```

mod ast;
mod check;
mod error;
mod eval;
mod explain;
mod lex;
mod parse;
mod schema;
mod template;

use std::{borrow::Cow, fmt, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use ast::{Namespace, Path};
pub use check::Type;
pub use error::{
    CODES, EXPRESSION_CHAINED_COMPARISON, EXPRESSION_NUMBER, EXPRESSION_SYNTAX,
    EXPRESSION_TOO_DEEP, EXPRESSION_TOO_LONG, EXPRESSION_TOO_MANY_DEREFERENCES, EXPRESSION_TYPE,
    EXPRESSION_UNKNOWN_NAME, EXPRESSION_VALUE, Error, SCHEMA_REMOTE_REF, SCHEMA_UNSUPPORTED,
    TEMPLATE_EMPTY_VALUE, TEMPLATE_RESULT_TOO_LONG, TEMPLATE_SYNTAX, TEMPLATE_TOO_LONG,
};
pub use eval::Scope;
pub use explain::{Explained, Step};
pub use schema::Schemas;
pub use template::Template;

pub(crate) use check::{parse_date, parse_time};
pub(crate) use eval::{Operand, read};
pub(crate) use explain::shorten;
use schema::Leaf;

/// The most characters of an expression, and of a template.
pub const CHARACTERS_MAX: usize = 500;
/// The deepest nesting of operators, and of parentheses.
pub const DEPTH_MAX: usize = 10;
/// The most steps `.name` in one expression or template.
pub const DEREFERENCES_MAX: usize = 20;
/// The most items of a list that `in` and `contains` search.
pub const LIST_ITEMS_MAX: usize = 10_000;
/// The most `$ref` that the check of one path follows.
pub const REFERENCES_MAX: usize = 16;
/// The largest value, in bytes of JSON, that evidence keeps whole.
pub const EVIDENCE_VALUE_BYTES_MAX: usize = 1_024;
/// The most characters that a template renders to.
pub const RENDERED_CHARACTERS_MAX: usize = 2_000;

/// The type of a path that stands alone.
pub(crate) fn path_type(text: &str, schemas: &Schemas) -> Result<Leaf, Error> {
    let path = parse::parse_path(text)?;
    check::check_path(&path, (0..text.len()).into(), schemas).map_err(|error| error.of(text))
}

/// The value of a path that stands alone. The inner error is the reason why the value is not
/// usable.
pub(crate) fn read_path(
    text: &str,
    scope: &Scope<'_>,
) -> Result<Result<serde_json::Value, String>, Error> {
    Ok(read(&parse::parse_path(text)?, scope).map(|value| value.to_json()))
}

/// A parsed expression. It has passed the limits of length, depth and dereferences.
///
/// Two expressions are equal if they have the same structure; spaces do not count.
#[derive(Debug, Clone)]
pub struct Expression {
    text: String,
    root: ast::Expr,
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// Fails with the place of the first problem, or with the limit that the text exceeds.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self { root: parse::parse(text)?, text: text.to_owned() })
    }

    /// Checks all names and types against the schemas, and returns the type of the result.
    ///
    /// # Errors
    /// Fails with the place of the first unknown name or wrong type.
    pub fn check(&self, schemas: &Schemas) -> Result<Type, Error> {
        check::check(&self.root, schemas).map_err(|error| error.of(&self.text))
    }

    /// Checks an expression that decides something: its type must be boolean.
    ///
    /// # Errors
    /// As [`Self::check`], and if the result is not a boolean.
    pub fn check_condition(&self, schemas: &Schemas) -> Result<(), Error> {
        match self.check(schemas)? {
            Type::Bool => Ok(()),
            other => Err(Error::new(
                EXPRESSION_TYPE,
                self.root.span,
                format!("a condition must be a boolean, this is {other}"),
            )
            .help("compare the value with something")
            .of(&self.text)),
        }
    }

    /// Evaluates the expression.
    ///
    /// An absent field is null. A comparison with null is false; only `== null` and `!= null` test
    /// for it. `&&` and `||` stop at the first operand that decides.
    ///
    /// # Errors
    /// Fails if a value is not of the type that the operator needs, which values that fit the checked
    /// schemas never cause (the formats `date` and `date-time` are part of the schema), if a list has
    /// more than [`LIST_ITEMS_MAX`] items, or if a number could lose digits.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Result<Explained, Error> {
        eval::evaluate(&self.root, &self.text, scope).map_err(|error| error.of(&self.text))
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The paths that the expression can read, each once, in order of their first use.
    pub fn paths(&self) -> Vec<&Path> {
        let mut found = Vec::new();
        self.root.visit_paths(&mut |path| {
            if !found.contains(&path) {
                found.push(path);
            }
        });
        found
    }
}

/// Writes the expression with the spaces and the parentheses that it needs, no more.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.root.same(&other.root)
    }
}

impl Eq for Expression {}

impl FromStr for Expression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl JsonSchema for Expression {
    fn schema_name() -> Cow<'static, str> {
        "Expression".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": CHARACTERS_MAX,
            "description": "An expression over entity, actor, org, context and now.",
        })
    }
}

#[cfg(test)]
mod tests;
