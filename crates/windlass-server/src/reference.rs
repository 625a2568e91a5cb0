//! Generates the HTTP reference (Markdown) from the OpenAPI document and the route table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::options::Options;
use crate::router::{openapi, route_list};
use crate::table::Access;

const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The HTTP reference as Markdown: the access, parameters and responses of every route.
pub fn reference(options: &Options) -> String {
    let api: Value = serde_json::from_str(&openapi(options)).unwrap_or_default();
    let scopes = scopes(options);
    let mut text = String::from(
        "# HTTP reference\n\n\
         This page is generated from the OpenAPI document with\n\
         `cargo run -p windlass-server --all-features --example reference`; a test compares them.\n\
         [The HTTP API](http.md) describes what all routes have in common.\n\n\
         Paths are relative to the base path, `/api` by default. All errors have the shape\n\
         [Failure](#failure).\n",
    );
    let mut tags: BTreeMap<&str, Vec<(&str, &str, &Value)>> = BTreeMap::new();
    for (path, item) in members(&api["paths"]) {
        for method in METHODS {
            let operation = &item[method];
            if operation.is_object() {
                let tag = operation["tags"][0].as_str().unwrap_or("other");
                tags.entry(tag).or_default().push((path, method, operation));
            }
        }
    }
    for (tag, operations) in tags {
        let _ = write!(text, "\n## Routes: {tag}\n");
        for (path, method, operation) in operations {
            let method = method.to_ascii_uppercase();
            let scope = scopes.get(&(method.clone(), path.to_owned()));
            write_route(&mut text, &method, path, scope.map_or("", String::as_str), operation);
        }
    }
    text.push_str("\n## Types\n");
    for (name, schema) in members(&api["components"]["schemas"]) {
        let _ = write!(text, "\n### {name}\n\n");
        write_description(&mut text, schema);
        write_fields(&mut text, schema);
    }
    text
}

/// The access that each route requires, by method and path without the base.
fn scopes(options: &Options) -> BTreeMap<(String, String), String> {
    let entries = route_list(options).into_iter().filter_map(|entry| {
        let path = entry.path.strip_prefix(&options.base)?;
        let needs = match entry.access {
            Access::Public => "no credential".to_owned(),
            Access::Credential => "a credential".to_owned(),
            Access::Scope(scope) => format!("the scope `{}`", scope.as_str()),
            Access::Operator => "the scope `admin` in the namespace of the server".to_owned(),
        };
        Some(((entry.method.to_string(), path.to_owned()), needs))
    });
    entries.collect()
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

fn write_route(text: &mut String, method: &str, path: &str, needs: &str, operation: &Value) {
    let _ = write!(text, "\n### {method} {path}\n\n");
    for part in ["summary", "description"] {
        if let Some(paragraph) = operation[part].as_str() {
            let _ = write!(text, "{}\n\n", paragraph.trim());
        }
    }
    let _ = writeln!(text, "Requires {needs}.");
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !parameters.is_empty() {
        text.push_str("\n| parameter | in | type | meaning |\n|---|---|---|---|\n");
    }
    for parameter in parameters {
        let name = parameter["name"].as_str().unwrap_or_default();
        let place = parameter["in"].as_str().unwrap_or_default();
        let schema = type_of(&parameter["schema"]);
        let meaning = description(parameter, &parameter["schema"]);
        let _ = writeln!(text, "| `{name}` | {place} | {schema} | {meaning} |");
    }
    let body = &operation["requestBody"]["content"]["application/json"]["schema"];
    if !body.is_null() {
        let _ = write!(text, "\nThe body is {}.\n", type_of(body));
    }
    for (status, answer) in members(&operation["responses"]) {
        if status == "default" {
            continue;
        }
        let what = match members(&answer["content"]).next() {
            Some(("application/json", content)) => type_of(&content["schema"]),
            Some((kind, _)) => format!("`{kind}`"),
            None => answer["description"].as_str().unwrap_or_default().to_owned(),
        };
        let _ = write!(text, "\n{status}: {what}.\n");
    }
}

fn write_description(text: &mut String, schema: &Value) {
    if let Some(description) = schema["description"].as_str() {
        let _ = writeln!(text, "{}", description.trim());
    }
}

/// Writes the fields of a type, including those of its `allOf` parts.
fn write_fields(text: &mut String, schema: &Value) {
    let parts = schema["allOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    for part in parts.iter().filter(|part| part["$ref"].is_string()) {
        let _ = write!(text, "\nIt has the fields of {}, and these:\n", type_of(part));
    }
    let own = std::iter::once(schema).chain(parts);
    let own: Vec<&Value> = own.filter(|part| part["properties"].is_object()).collect();
    if own.is_empty() {
        if parts.is_empty() {
            let _ = write!(text, "\nIt is {}.\n", type_of(schema));
        }
        return;
    }
    text.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    for part in own {
        let required = part["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (name, field) in members(&part["properties"]) {
            let must = if required.iter().any(|one| one == name) { "" } else { ", optional" };
            let kind = type_of(field);
            let meaning = description(field, field);
            let _ = writeln!(text, "| `{name}` | {kind}{must} | {meaning} |");
        }
    }
}

/// The description of a parameter or field with its limits, on one line.
fn description(described: &Value, schema: &Value) -> String {
    // The description of a nullable field is on one of its `oneOf` choices.
    let choices = described["oneOf"].as_array().map(Vec::as_slice).unwrap_or_default();
    let candidates = std::iter::once(described).chain(choices);
    let text = candidates.into_iter().find_map(|one| one["description"].as_str());
    let mut text = text.unwrap_or_default().replace('\n', " ");
    if let Some(chars) = schema["maxLength"].as_u64() {
        let _ = write!(text, " At most {chars} characters.");
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        let _ = write!(text, " Pattern `{pattern}`.");
    }
    text.trim().replace('|', "\\|")
}

fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_ascii_lowercase());
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" or ");
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        return choices.iter().map(type_of).collect::<Vec<_>>().join(" or ");
    }
    let words: Vec<&str> = match &schema["type"] {
        Value::String(word) => vec![word],
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
        _ => return "any JSON".to_owned(),
    };
    let names = words.into_iter().map(|word| match word {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", type_of(&schema["additionalProperties"]))
        }
        "string" => match schema["format"].as_str() {
            Some("date-time") => "time".to_owned(),
            Some("uuid") => "UUID".to_owned(),
            _ => "text".to_owned(),
        },
        other => other.to_owned(),
    });
    names.collect::<Vec<_>>().join(" or ")
}
