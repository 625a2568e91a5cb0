//! Reads types from JSON schemas. Only references inside the same schema are followed.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{
    REFERENCES_MAX, SCHEMA_REMOTE_REF, SCHEMA_UNSUPPORTED,
    ast::{Namespace, Path},
    check::Type,
};
use crate::diagnostic::{Code, Diagnostic, pointer_join};

/// The JSON schemas of the namespaces, against which expressions are checked.
///
/// A namespace without a schema has no fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schemas {
    entity: Value,
    actor: Value,
    org: Value,
    context: Value,
}

impl Schemas {
    /// The schema of the document. The other namespaces have no fields.
    pub fn new(entity: Value) -> Self {
        Self { entity, ..Self::default() }
    }

    /// Sets the schema of `actor`.
    #[must_use]
    pub fn actor(mut self, schema: Value) -> Self {
        self.actor = schema;
        self
    }

    /// Sets the schema of `org`.
    #[must_use]
    pub fn org(mut self, schema: Value) -> Self {
        self.org = schema;
        self
    }

    /// Sets the schema of `context`.
    #[must_use]
    pub fn context(mut self, schema: Value) -> Self {
        self.context = schema;
        self
    }

    /// Refuses schemas that refer to other documents, wherever the reference is.
    ///
    /// # Errors
    /// Fails with the place of the first such reference, below `/entity`, `/actor`, `/org` or
    /// `/context`.
    pub fn check(&self) -> Result<(), Diagnostic> {
        Namespace::ALL
            .into_iter()
            .try_for_each(|namespace| walk(self.of(namespace), &format!("/{}", namespace.as_str())))
    }

    fn of(&self, namespace: Namespace) -> &Value {
        match namespace {
            Namespace::Entity => &self.entity,
            Namespace::Actor => &self.actor,
            Namespace::Org => &self.org,
            Namespace::Context => &self.context,
            Namespace::Now => &Value::Null,
        }
    }

    /// The type of a path.
    pub(crate) fn resolve(&self, path: &Path) -> Result<Leaf, Fault> {
        let mut reader = Reader { root: self.of(path.namespace), references: 0 };
        let mut here = reader.root;
        for (index, field) in path.fields.iter().enumerate() {
            let fault = |kind| Fault { field: index, kind };
            here = match reader.property(here, field).map_err(fault)? {
                // Without a type, a document with a number here would fit the schema. The document itself is
                // always an object.
                Some(_) if index > 0 && !reader.is_object(here).map_err(fault)? => {
                    return Err(Fault { field: index - 1, kind: Kind::NotAnObject });
                }
                Some(found) => found,
                None => {
                    let known = reader.names(here).map_err(fault)?;
                    return Err(fault(Kind::Unknown { known }));
                }
            };
        }
        let fault = |kind| Fault { field: path.fields.len().saturating_sub(1), kind };
        reader.leaf(here).map_err(fault)
    }
}

fn walk(schema: &Value, pointer: &str) -> Result<(), Diagnostic> {
    match schema {
        Value::Object(members) => members.iter().try_for_each(|(key, member)| {
            let at = pointer_join(pointer, key);
            match (key.as_str(), member) {
                ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target))
                    if !target.starts_with('#') =>
                {
                    Err(Diagnostic::new(
                        SCHEMA_REMOTE_REF,
                        format!("the schema refers to another document: {target:?}"),
                    )
                    .at(at)
                    .help("copy the definition into $defs and refer to it as #/$defs/…"))
                }
                ("const" | "enum" | "default" | "examples", _) => Ok(()),
                // The keys of these are names of the user, not keywords.
                (
                    "properties" | "patternProperties" | "$defs" | "definitions"
                    | "dependentSchemas",
                    Value::Object(named),
                ) => named
                    .iter()
                    .try_for_each(|(name, member)| walk(member, &pointer_join(&at, name))),
                _ => walk(member, &at),
            }
        }),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| walk(item, &pointer_join(pointer, index))),
        _ => Ok(()),
    }
}

/// The type of a field, and the values that it can have if the schema lists them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Leaf {
    pub(crate) kind: Type,
    pub(crate) values: Option<BTreeSet<String>>,
}

/// A path that the schema does not explain.
pub(crate) struct Fault {
    /// The index of the field at which the problem is.
    pub(crate) field: usize,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Unknown {
        known: Vec<String>,
    },
    RemoteReference(String),
    DanglingReference(String),
    TooManyReferences,
    Untyped,
    /// A field below it is read, and the schema does not say that it is an object.
    NotAnObject,
}

impl Kind {
    pub(crate) const fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } => super::EXPRESSION_UNKNOWN_NAME,
            Self::RemoteReference(_) => SCHEMA_REMOTE_REF,
            Self::DanglingReference(_)
            | Self::TooManyReferences
            | Self::Untyped
            | Self::NotAnObject => SCHEMA_UNSUPPORTED,
        }
    }
}

struct Reader<'a> {
    root: &'a Value,
    references: usize,
}

const ALTERNATIVES: [&str; 2] = ["anyOf", "oneOf"];

impl<'a> Reader<'a> {
    /// Follows `$ref`.
    fn follow(&mut self, mut schema: &'a Value) -> Result<&'a Value, Kind> {
        while let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            self.references += 1;
            if self.references > REFERENCES_MAX {
                return Err(Kind::TooManyReferences);
            }
            let Some(fragment) = target.strip_prefix('#') else {
                return Err(Kind::RemoteReference(target.to_owned()));
            };
            schema = self
                .root
                .pointer(fragment)
                .ok_or_else(|| Kind::DanglingReference(target.to_owned()))?;
        }
        Ok(schema)
    }

    /// The alternatives of a schema that must be searched as if they were the schema itself: all
    /// parts of `allOf`, and the only part of `anyOf` or `oneOf` that is not null.
    fn parts(&mut self, schema: &'a Value) -> Result<Vec<&'a Value>, Kind> {
        let list = |key| schema.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut found: Vec<&Value> = list("allOf").iter().collect();
        for key in ALTERNATIVES {
            let mut others = Vec::new();
            for item in list(key) {
                if self.follow(item)?.get("type").and_then(Value::as_str) != Some("null") {
                    others.push(item);
                }
            }
            match others[..] {
                [] => {}
                [only] => found.push(only),
                _ => return Err(Kind::Untyped),
            }
        }
        self.references += found.len();
        if self.references > REFERENCES_MAX { Err(Kind::TooManyReferences) } else { Ok(found) }
    }

    fn property(&mut self, schema: &'a Value, name: &str) -> Result<Option<&'a Value>, Kind> {
        let schema = self.follow(schema)?;
        if let Some(found) = schema.get("properties").and_then(|named| named.get(name)) {
            return Ok(Some(found));
        }
        for part in self.parts(schema)? {
            if let Some(found) = self.property(part, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Whether the schema accepts nothing but objects and null.
    fn is_object(&self, schema: &'a Value) -> Result<bool, Kind> {
        // The references are counted when the path goes on.
        Reader { ..*self }.is_object_within(schema)
    }

    fn is_object_within(&mut self, schema: &'a Value) -> Result<bool, Kind> {
        let schema = self.follow(schema)?;
        if let Some(members) = schema.as_object()
            && members.contains_key("type")
        {
            return Ok(type_name(members) == Some("object"));
        }
        for part in self.parts(schema)? {
            if self.is_object_within(part)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn names(&mut self, schema: &'a Value) -> Result<Vec<String>, Kind> {
        let named = self.follow(schema)?.get("properties").and_then(Value::as_object);
        Ok(named.map(|named| named.keys().cloned().collect()).unwrap_or_default())
    }

    fn leaf(&mut self, schema: &'a Value) -> Result<Leaf, Kind> {
        let schema = self.follow(schema)?;
        let Some(members) = schema.as_object() else { return Err(Kind::Untyped) };
        if let Some(name) = type_name(members) {
            let kind = match name {
                "boolean" => Type::Bool,
                "integer" | "number" => Type::Number,
                "object" => Type::Object,
                "array" => {
                    let items = members.get("items").ok_or(Kind::Untyped)?;
                    self.references += 1;
                    if self.references > REFERENCES_MAX {
                        return Err(Kind::TooManyReferences);
                    }
                    Type::List(Box::new(self.leaf(items)?.kind))
                }
                "string" => match members.get("format").and_then(Value::as_str) {
                    Some("date-time") => Type::Time,
                    Some("date") => Type::Date,
                    _ => Type::Text,
                },
                _ => return Err(Kind::Untyped),
            };
            let values = if kind == Type::Text { text_values(members) } else { None };
            return Ok(Leaf { kind, values });
        }
        let mut parts = self.parts(schema)?.into_iter();
        loop {
            match parts.next() {
                None => return Err(Kind::Untyped),
                Some(part) => match self.leaf(part) {
                    Err(Kind::Untyped) => {}
                    other => return other,
                },
            }
        }
    }
}

/// The one type that is not null. Without `type`, listed values tell it.
fn type_name(members: &Map<String, Value>) -> Option<&str> {
    match members.get("type") {
        Some(Value::String(name)) => return Some(name),
        Some(Value::Array(names)) => {
            let mut names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            let only = names.next();
            return if names.next().is_some() { None } else { only };
        }
        _ => {}
    }
    let listed: Vec<&Value> = match (members.get("const"), members.get("enum")) {
        (Some(value), _) => vec![value],
        (None, Some(Value::Array(values))) => values.iter().collect(),
        _ => return None,
    };
    let mut names = listed.into_iter().filter(|value| !value.is_null()).map(|value| match value {
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) | Value::Null => "object",
    });
    let first = names.next()?;
    names.all(|name| name == first).then_some(first)
}

fn text_values(members: &Map<String, Value>) -> Option<BTreeSet<String>> {
    let texts = |values: &[Value]| {
        values.iter().filter_map(Value::as_str).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    match (members.get("const"), members.get("enum")) {
        (Some(value), _) => Some(texts(std::slice::from_ref(value))),
        (None, Some(Value::Array(values))) => Some(texts(values)),
        _ => None,
    }
}
