//! Templates: a text with `{path}` in it. A value is inserted as it is and never read again.

use std::{borrow::Cow, fmt, fmt::Write as _};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{
    CHARACTERS_MAX, DEREFERENCES_MAX, EXPRESSION_TOO_MANY_DEREFERENCES, EXPRESSION_TYPE,
    EXPRESSION_VALUE, Error, Operand, RENDERED_CHARACTERS_MAX, Scope, TEMPLATE_EMPTY_VALUE,
    TEMPLATE_RESULT_TOO_LONG, TEMPLATE_SYNTAX, TEMPLATE_TOO_LONG, Type, ast::Path,
    check::check_path, parse::parse_path, read, schema::Schemas,
};
use crate::diagnostic::Span;

/// A text with `{path}` in it. `{{` and `}}` stand for braces.
///
/// ```
/// use serde_json::json;
/// use windlass_contracts::dsl::{Scope, Template};
///
/// let template = Template::parse("Order {entity.id} has {{braces}}")?;
/// let document = json!({"id": "{entity.secret}"});
/// let scope = Scope::new(&document, jiff::Timestamp::UNIX_EPOCH);
/// assert_eq!(template.render(&scope)?, "Order {entity.secret} has {braces}");
/// # Ok::<(), windlass_contracts::dsl::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

/// The advice for a value that a template cannot insert.
const FILL_IN: &str = "fill in the field, or take it out of the template";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Path, Span),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Fails with the place of a brace without its partner, a wrong path, or the limit that the text
    /// exceeds.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let parts = parse(text).map_err(|error| error.of(text))?;
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Checks that all paths exist and have a type that can be written.
    ///
    /// # Errors
    /// Fails with the place of the first path that the schemas do not have, or that is a list or an
    /// object.
    pub fn check(&self, schemas: &Schemas) -> Result<(), Error> {
        self.paths().try_for_each(|(path, span)| {
            let found = check_path(path, span, schemas).map_err(|error| error.of(&self.text))?;
            match found.kind {
                Type::List(_) | Type::Object | Type::Null => Err(Error::new(
                    EXPRESSION_TYPE,
                    span,
                    format!("a template cannot insert {}", found.kind),
                )
                .help("insert a number, a text, a boolean, a date or a time")
                .of(&self.text)),
                _ => Ok(()),
            }
        })
    }

    /// Inserts the values.
    ///
    /// # Errors
    /// Fails if a value is absent, is a list or an object, or could lose digits, and if the result
    /// has more than [`RENDERED_CHARACTERS_MAX`] characters.
    pub fn render(&self, scope: &Scope<'_>) -> Result<String, Error> {
        self.insert(scope, RENDERED_CHARACTERS_MAX, |out, value| out.push_str(value))
    }

    /// Inserts the values into a key of at most `characters_max` characters.
    ///
    /// Characters of values other than ASCII letters, digits, `-`, `_` and `.` are percent-encoded,
    /// so that a value cannot contain a separator such as `:` or `/`.
    ///
    /// # Errors
    /// As [`Self::render`], and if a value is an empty text.
    pub fn render_key(&self, scope: &Scope<'_>, characters_max: usize) -> Result<String, Error> {
        self.insert(scope, characters_max, |out, value| {
            for byte in value.bytes() {
                if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
                    out.push(char::from(byte));
                } else {
                    let _ = write!(out, "%{byte:02X}");
                }
            }
        })
        .and_then(|key| match self.paths().find(|(path, _)| is_empty(path, scope)) {
            None => Ok(key),
            Some((path, span)) => {
                let found = format!("{path} is empty, and a part of a key");
                Err(Error::new(TEMPLATE_EMPTY_VALUE, span, found).help(FILL_IN).of(&self.text))
            }
        })
    }

    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The number of characters that every result has, whatever the values are.
    pub fn literal_characters(&self) -> usize {
        self.parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.chars().count(),
                Part::Path(..) => 0,
            })
            .sum()
    }

    fn paths(&self) -> impl Iterator<Item = (&Path, Span)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Path(path, span) => Some((path, *span)),
        })
    }

    fn insert(
        &self,
        scope: &Scope<'_>,
        characters_max: usize,
        add: impl Fn(&mut String, &str),
    ) -> Result<String, Error> {
        let mut out = String::new();
        let mut characters = 0;
        for part in &self.parts {
            let (piece, span) = match part {
                Part::Text(text) => (Cow::Borrowed(text.as_str()), None),
                Part::Path(path, span) => {
                    let value = value(path, scope).map_err(|(code, text)| {
                        Error::new(code, *span, text).help(FILL_IN).of(&self.text)
                    })?;
                    (Cow::Owned(value), Some(*span))
                }
            };
            let from = out.len();
            // A long value is refused before it is copied.
            if piece.len() <= 4 * characters_max {
                match span {
                    None => out.push_str(&piece),
                    Some(_) => add(&mut out, &piece),
                }
                characters += out[from..].chars().count();
            } else {
                characters = usize::MAX;
            }
            if characters > characters_max {
                return Err(Error::new(
                    TEMPLATE_RESULT_TOO_LONG,
                    span.unwrap_or(Span { start: 0, end: self.text.len() }),
                    format!("the rendered text has more than {characters_max} characters"),
                )
                .help("shorten the template, or the values that it inserts")
                .of(&self.text));
            }
        }
        Ok(out)
    }
}

fn is_empty(path: &Path, scope: &Scope<'_>) -> bool {
    matches!(read(path, scope), Ok(Operand::Text(text)) if text.is_empty())
}

fn value(path: &Path, scope: &Scope<'_>) -> Result<String, (crate::diagnostic::Code, String)> {
    match read(path, scope).map_err(|reason| (EXPRESSION_VALUE, reason))? {
        Operand::Null => Err((TEMPLATE_EMPTY_VALUE, format!("{path} has no value"))),
        Operand::Bool(value) => Ok(value.to_string()),
        Operand::Number(value) => Ok(value.to_string()),
        Operand::Text(value) => Ok(value.into_owned()),
        Operand::Time(value) => Ok(value.to_string()),
        other => Err((EXPRESSION_VALUE, format!("{path} is {}, which has no text", other.kind()))),
    }
}

fn parse(text: &str) -> Result<Vec<Part>, Error> {
    if let Some((at, _)) = text.char_indices().nth(CHARACTERS_MAX) {
        let found = format!("the template has more than {CHARACTERS_MAX} characters");
        return Err(Error::new(TEMPLATE_TOO_LONG, (at..at).into(), found)
            .help("shorten it, or let a field of the document have a part of the text"));
    }
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut dereferences = 0;
    let mut at = 0;
    while let Some(found) = text[at..].find(['{', '}']) {
        plain.push_str(&text[at..at + found]);
        at += found;
        let rest = &text[at..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            plain.push_str(&rest[..1]);
            at += 2;
            continue;
        }
        if rest.starts_with('}') {
            return Err(Error::new(TEMPLATE_SYNTAX, (at..at + 1).into(), "} has no {")
                .help("write }} for a brace"));
        }
        let Some(length) = rest.find('}') else {
            return Err(Error::new(TEMPLATE_SYNTAX, (at..at + 1).into(), "{ has no }")
                .help("write {{ for a brace"));
        };
        let inner = &rest[1..length];
        if inner.trim() != inner {
            let span = at..at + length + 1;
            return Err(Error::new(TEMPLATE_SYNTAX, span.into(), "a path has spaces")
                .help("write it as {entity.total}"));
        }
        let path = parse_path(inner).map_err(|error| error.shift(at + 1))?;
        dereferences += path.fields().len();
        let span = Span { start: at + 1, end: at + length };
        if dereferences > DEREFERENCES_MAX {
            let found = format!("the template has more than {DEREFERENCES_MAX} dereferences");
            return Err(Error::new(EXPRESSION_TOO_MANY_DEREFERENCES, span, found)
                .help("insert fewer fields, or fields that are less deep"));
        }
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(Part::Path(path, span));
        at += length + 1;
    }
    plain.push_str(&text[at..]);
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl JsonSchema for Template {
    fn schema_name() -> Cow<'static, str> {
        "Template".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": CHARACTERS_MAX,
            "description": "A text with {path} in it.",
        })
    }
}
