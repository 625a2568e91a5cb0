//! The arguments of a tool: their JSON schema, and checked access to them.

use serde_json::{Map, Value, json};

use super::inner::{Query, Rejected};

/// The maximum length of a text argument, in characters.
const TEXT_CHARS_MAX: usize = 4_096;
/// The maximum length of a list argument.
const LIST_MAX: usize = 32;

/// An argument.
pub(super) struct Argument {
    pub(super) name: &'static str,
    kind: Kind,
    is_required: bool,
    description: &'static str,
}

/// The type of an argument.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Texts,
    Word(&'static [&'static str]),
    Number(i64, i64),
    Flag,
    TextMap,
    Json,
}

/// A text.
pub(super) const fn text(name: &'static str, description: &'static str) -> Argument {
    Argument { name, kind: Kind::Text, is_required: false, description }
}

/// A list of texts.
pub(super) const fn texts(name: &'static str, description: &'static str) -> Argument {
    Argument { name, kind: Kind::Texts, is_required: false, description }
}

/// One of several words.
pub(super) const fn word(
    name: &'static str,
    words: &'static [&'static str],
    description: &'static str,
) -> Argument {
    Argument { name, kind: Kind::Word(words), is_required: false, description }
}

/// A whole number within limits.
pub(super) const fn number(
    name: &'static str,
    min: i64,
    max: i64,
    description: &'static str,
) -> Argument {
    Argument { name, kind: Kind::Number(min, max), is_required: false, description }
}

/// True or false.
pub(super) const fn flag(name: &'static str, description: &'static str) -> Argument {
    Argument { name, kind: Kind::Flag, is_required: false, description }
}

/// A map from text to text.
pub(super) const fn text_map(name: &'static str, description: &'static str) -> Argument {
    Argument { name, kind: Kind::TextMap, is_required: false, description }
}

/// Any JSON.
pub(super) const fn any(name: &'static str, description: &'static str) -> Argument {
    Argument { name, kind: Kind::Json, is_required: false, description }
}

impl Argument {
    /// The same argument, without which the tool cannot be called.
    pub(super) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text => json!({ "type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX }),
            Kind::Texts => json!({
                "type": "array", "maxItems": LIST_MAX,
                "items": { "type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX },
            }),
            Kind::Word(words) => json!({ "type": "string", "enum": words }),
            Kind::Number(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::TextMap => {
                json!({ "type": "object", "additionalProperties": { "type": "string" } })
            }
            Kind::Json => json!({}),
        };
        schema["description"] = self.description.into();
        schema
    }

    /// The rule that a value breaks, if it breaks one.
    fn objection(&self, value: &Value) -> Option<String> {
        let is_text = |value: &Value| {
            let chars = value.as_str().map(|text| text.chars().count());
            chars.is_some_and(|chars| (1..=TEXT_CHARS_MAX).contains(&chars))
        };
        let (holds, expect) = match self.kind {
            Kind::Text => (is_text(value), format!("a text of 1 to {TEXT_CHARS_MAX} characters")),
            Kind::Texts => {
                let items = value.as_array();
                let holds =
                    |items: &Vec<Value>| items.len() <= LIST_MAX && items.iter().all(is_text);
                let expect = format!(
                    "a list of at most {LIST_MAX} texts of 1 to {TEXT_CHARS_MAX} characters"
                );
                (items.is_some_and(holds), expect)
            }
            Kind::Word(words) => {
                let holds = value.as_str().is_some_and(|word| words.contains(&word));
                (holds, format!("one of {}", words.join(", ")))
            }
            Kind::Number(min, max) => {
                let holds = value.as_i64().is_some_and(|number| (min..=max).contains(&number));
                (holds, format!("a whole number from {min} to {max}"))
            }
            Kind::Flag => (value.is_boolean(), "true or false".to_owned()),
            Kind::TextMap => {
                let holds = |map: &Map<String, Value>| map.values().all(Value::is_string);
                (value.as_object().is_some_and(holds), "an object of texts".to_owned())
            }
            Kind::Json => return None,
        };
        (!holds).then_some(expect)
    }
}

/// The JSON schema of the arguments of a tool.
pub(super) fn schema(arguments: &[Argument]) -> Value {
    let properties: Map<String, Value> =
        arguments.iter().map(|argument| (argument.name.to_owned(), argument.schema())).collect();
    let required: Vec<&str> = arguments
        .iter()
        .filter(|argument| argument.is_required)
        .map(|argument| argument.name)
        .collect();
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

/// The arguments of a call, which fit the schema. A null is as good as no argument.
pub(super) struct Arguments<'a>(&'a Map<String, Value>);

impl<'a> Arguments<'a> {
    pub(super) fn check(
        arguments: &[Argument],
        given: &'a Map<String, Value>,
    ) -> Result<Self, Rejected> {
        let known = |name: &str| arguments.iter().find(|argument| argument.name == name);
        for (name, value) in given {
            let Some(argument) = known(name) else {
                let names: Vec<&str> = arguments.iter().map(|argument| argument.name).collect();
                let shown: String = name.chars().take(80).collect();
                let message =
                    format!("unknown argument {shown:?}; the tool takes {}", names.join(", "));
                return Err(Rejected::invalid(message));
            };
            // For an argument of any type, null is a value.
            if value.is_null() {
                continue;
            }
            if let Some(expect) = argument.objection(value) {
                return Err(Rejected::invalid(format!("`{name}` is not {expect}")));
            }
        }
        let missing = |argument: &&Argument| {
            argument.is_required && given.get(argument.name).is_none_or(Value::is_null)
        };
        match arguments.iter().find(missing) {
            Some(argument) => {
                Err(Rejected::invalid(format!("the argument `{}` is missing", argument.name)))
            }
            None => Ok(Self(given)),
        }
    }

    /// A text that the schema requires.
    pub(super) fn text(&self, name: &str) -> &'a str {
        self.optional(name).unwrap_or_default()
    }

    pub(super) fn optional(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).and_then(Value::as_str)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Value::as_i64)
    }

    /// A size, whose limits the schema checks.
    pub(super) fn size(&self, name: &str, default: usize) -> usize {
        self.number(name).and_then(|number| usize::try_from(number).ok()).unwrap_or(default)
    }

    /// The arguments with these names as query parameters. A list becomes a parameter for each item.
    pub(super) fn query(&self, names: &[(&str, &'static str)]) -> Query {
        let mut query = Query::new();
        for (name, parameter) in names {
            let Some(value) = self.0.get(*name) else { continue };
            let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            let texts = items.iter().filter(|item| !item.is_null()).map(|item| match item {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            query.extend(texts.map(|text| (*parameter, text)));
        }
        query
    }

    /// The arguments with these names as a JSON object.
    pub(super) fn body(&self, names: &[(&str, &'static str)]) -> Value {
        let of = |(name, member): &(&str, &'static str)| {
            Some(((*member).to_owned(), self.0.get(*name)?.clone()))
        };
        Value::Object(names.iter().filter_map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fit_their_schema() {
        let arguments = [
            text("workflow", "").required(),
            word("order", &["asc", "desc"], ""),
            texts("status", ""),
            number("pageSize", 1, 50, ""),
            flag("dryRun", ""),
            text_map("labels", ""),
            any("params", ""),
        ];
        for (given, expect) in [
            (json!({ "workflow": "a" }), "fine"),
            (json!({ "workflow": "a", "order": "asc", "status": ["b"], "pageSize": 50 }), "fine"),
            (
                json!({ "workflow": "a", "order": null, "params": null, "labels": {"a": "b"} }),
                "fine",
            ),
            (json!({}), "the argument `workflow` is missing"),
            (json!({ "workflow": null }), "the argument `workflow` is missing"),
            (json!({ "workflow": "" }), "`workflow` is not a text"),
            (json!({ "workflow": 7 }), "`workflow` is not a text"),
            (json!({ "workflow": "a", "order": "up" }), "`order` is not one of asc, desc"),
            (json!({ "workflow": "a", "status": "b" }), "`status` is not a list"),
            (json!({ "workflow": "a", "status": [""] }), "`status` is not a list"),
            (json!({ "workflow": "a", "pageSize": 51 }), "`pageSize` is not a whole number"),
            (json!({ "workflow": "a", "pageSize": 1.5 }), "`pageSize` is not a whole number"),
            (json!({ "workflow": "a", "dryRun": "yes" }), "`dryRun` is not true or false"),
            (json!({ "workflow": "a", "labels": {"a": 1} }), "`labels` is not an object of texts"),
            (json!({ "workflow": "a", "flow": 1 }), "unknown argument \"flow\""),
        ] {
            let found = match Arguments::check(&arguments, given.as_object().unwrap()) {
                Ok(_) => "fine".to_owned(),
                Err(rejected) => rejected.failure["message"].as_str().unwrap().to_owned(),
            };
            assert!(found.starts_with(expect), "{given}: {found}");
        }
    }
}
