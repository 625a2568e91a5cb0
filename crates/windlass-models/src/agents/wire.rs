//! The wire formats of providers as pure functions: items of a conversation, tool calls, summaries.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use windlass_kernel::{Error, ErrorCode};

use super::env::invalid;
use super::provider::WireFormat;
use super::request::{ToolResult, ToolUse};

/// One item of a conversation, in the provider's own JSON.
pub type Item = Box<RawValue>;

impl WireFormat {
    /// The member of a request that holds the items of the conversation.
    pub const fn items_member(self) -> &'static str {
        match self {
            Self::AnthropicMessages => "messages",
            Self::OpenaiResponses => "input",
        }
    }

    /// The definition of a tool in a request.
    pub fn tool_definition(self, name: &str, description: &str, schema: &Value) -> Value {
        match self {
            Self::AnthropicMessages => {
                json!({ "name": name, "description": description, "input_schema": schema })
            }
            Self::OpenaiResponses => json!({
                "type": "function", "name": name, "description": description, "parameters": schema,
            }),
        }
    }

    /// The items with which the results of tool calls go back to the model.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ProviderFailed`] if a result cannot be written as JSON.
    pub fn tool_result_items(self, results: &[ToolResult]) -> Result<Vec<Item>, Error> {
        match self {
            Self::AnthropicMessages => {
                let block = |result: &ToolResult| {
                    let mut block = json!({
                        "type": "tool_result", "tool_use_id": result.tool_use_id,
                        "content": text_of(&result.content),
                    });
                    if result.is_error {
                        block["is_error"] = true.into();
                    }
                    block
                };
                let blocks: Vec<Value> = results.iter().map(block).collect();
                Ok(vec![item(&json!({ "role": "user", "content": blocks }))?])
            }
            Self::OpenaiResponses => {
                let output = |result: &ToolResult| {
                    item(&json!({
                        "type": "function_call_output", "call_id": result.tool_use_id,
                        "output": text_of(&result.content),
                    }))
                };
                results.iter().map(output).collect()
            }
        }
    }

    /// The items that a response adds to its conversation, byte for byte.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ProviderFailed`] if the body is not a response of this format.
    pub fn response_items(self, body: &[u8]) -> Result<Vec<Item>, Error> {
        match self {
            Self::AnthropicMessages => {
                let content = raw_member(body, "content")?;
                let text = format!("{{\"role\":\"assistant\",\"content\":{}}}", content.get());
                let item = RawValue::from_string(text).map_err(unreadable)?;
                Ok(vec![item])
            }
            Self::OpenaiResponses => {
                let output = raw_member(body, "output")?;
                serde_json::from_str(output.get()).map_err(unreadable)
            }
        }
    }

    /// The content blocks or output items of a response.
    pub(crate) fn content(self, body: &[u8]) -> Result<Vec<Item>, Error> {
        let member = match self {
            Self::AnthropicMessages => "content",
            Self::OpenaiResponses => "output",
        };
        serde_json::from_str(raw_member(body, member)?.get()).map_err(unreadable)
    }

    /// The tool calls that a response asks for.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ProviderFailed`] if the body is not a response of this format.
    pub fn tool_uses(self, body: &[u8]) -> Result<Vec<ToolUse>, Error> {
        let mut uses = Vec::new();
        for block in self.content(body)? {
            let block: Block = serde_json::from_str(block.get()).map_err(unreadable)?;
            match (self, block.kind.as_str()) {
                (Self::AnthropicMessages, "tool_use") => uses.push(ToolUse {
                    id: block.id.unwrap_or_default(),
                    name: block.name.unwrap_or_default(),
                    input: block.input.unwrap_or(Value::Null),
                }),
                (Self::OpenaiResponses, "function_call") => {
                    let arguments = block.arguments.unwrap_or_default();
                    // Arguments that are not JSON stay a text: no tool accepts it, and the model reads why.
                    let input = serde_json::from_str(&arguments).unwrap_or(Value::from(arguments));
                    let (id, name) = (block.call_id, block.name);
                    uses.push(ToolUse {
                        id: id.unwrap_or_default(),
                        name: name.unwrap_or_default(),
                        input,
                    });
                }
                _ => {}
            }
        }
        Ok(uses)
    }

    /// The text of a response: all its text blocks, one after the other.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::ProviderFailed`] if the body is not a response of this format.
    pub fn text(self, body: &[u8]) -> Result<String, Error> {
        let mut text = String::new();
        for block in self.content(body)? {
            let block: Block = serde_json::from_str(block.get()).map_err(unreadable)?;
            match (self, block.kind.as_str()) {
                (Self::AnthropicMessages, "text") => text.push_str(&block.text.unwrap_or_default()),
                (Self::OpenaiResponses, "message") => {
                    let parts = block.content.unwrap_or_default();
                    let parts = parts.iter().filter(|part| part["type"] == "output_text");
                    parts.for_each(|part| text.push_str(part["text"].as_str().unwrap_or_default()));
                }
                _ => {}
            }
        }
        Ok(text)
    }

    /// Numbers about a request, for the ledger.
    pub(crate) fn summarise_request(self, body: &[u8]) -> Value {
        let Ok(request) = serde_json::from_slice::<RequestView<'_>>(body) else { return json!({}) };
        let count = |items: Option<&RawValue>| {
            let items =
                items.and_then(|raw| serde_json::from_str::<Vec<&RawValue>>(raw.get()).ok());
            items.map(|items| items.len())
        };
        let (items, system, max_tokens) = match self {
            Self::AnthropicMessages => (request.messages, request.system, request.max_tokens),
            Self::OpenaiResponses => {
                (request.input, request.instructions, request.max_output_tokens)
            }
        };
        json!({
            "messages": count(items), "tools": count(request.tools), "max_tokens": max_tokens,
            "system_bytes": system.map(|system| system.get().len()),
        })
    }
}

/// A message of a user with a text, as every provider reads it.
///
/// # Errors
///
/// Never for a valid text; the signature is the one of its siblings.
pub fn user_text(text: &str) -> Result<Item, Error> {
    item(&json!({ "role": "user", "content": text }))
}

pub(crate) fn item(value: &Value) -> Result<Item, Error> {
    serde_json::value::to_raw_value(value).map_err(unreadable)
}

/// Joins parameters and items to the body of a request. Equal arguments give equal bytes, so that
/// the prompt cache of a provider hits.
pub(crate) fn request_body<'a>(
    params: &[(String, Item)],
    items: Option<(&str, impl Iterator<Item = &'a RawValue>)>,
) -> Bytes {
    let mut body = Vec::new();
    body.push(b'{');
    let name = |body: &mut Vec<u8>, name: &str| {
        if body.len() > 1 {
            body.push(b',');
        }
        body.extend_from_slice(Value::from(name).to_string().as_bytes());
        body.push(b':');
    };
    for (key, value) in params {
        name(&mut body, key);
        body.extend_from_slice(value.get().as_bytes());
    }
    if let Some((member, items)) = items {
        name(&mut body, member);
        body.push(b'[');
        for (index, item) in items.enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(item.get().as_bytes());
        }
        body.push(b']');
    }
    body.push(b'}');
    body.into()
}

// Content that is not text goes to the model as JSON.
fn text_of(content: &Value) -> Value {
    match content {
        Value::String(_) => content.clone(),
        other => other.to_string().into(),
    }
}

#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type", default)]
    kind: String,
    id: Option<String>,
    call_id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
    arguments: Option<String>,
    text: Option<String>,
    content: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct RequestView<'a> {
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    max_tokens: Option<u64>,
    max_output_tokens: Option<u64>,
}

fn raw_member(body: &[u8], name: &str) -> Result<Item, Error> {
    let mut members: std::collections::BTreeMap<String, Item> =
        serde_json::from_slice(body).map_err(unreadable)?;
    members.remove(name).filter(|raw| raw.get().starts_with('[')).ok_or_else(|| {
        let message = format!("the provider's response has no list {name:?}");
        invalid(ErrorCode::ProviderFailed, message)
    })
}

fn unreadable(source: serde_json::Error) -> Error {
    let message = "the provider's response is not JSON of the expected format";
    invalid(ErrorCode::ProviderFailed, message).with_source(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANTHROPIC: &str = r#"{"id":"m","content":[{"type":"thinking","signature":"S=="},
        {"type":"text","text":"a"},{"type":"future","x":1.50},{"type":"tool_use","id":"t1","name":"add","input":{"b":2,"a":1}}]}"#;
    const OPENAI: &str = r#"{"output":[{"type":"reasoning","encrypted_content":"E"},
        {"type":"message","content":[{"type":"output_text","text":"a"}]},
        {"type":"function_call","call_id":"t1","name":"add","arguments":"{\"a\":1,\"b\":2}"},
        {"type":"function_call","call_id":"t2","name":"add","arguments":"{"}]}"#;

    #[test]
    fn reads_responses_of_both_formats() {
        let anthropic = WireFormat::AnthropicMessages;
        let openai = WireFormat::OpenaiResponses;
        assert_eq!(anthropic.text(ANTHROPIC.as_bytes()).unwrap(), "a");
        assert_eq!(openai.text(OPENAI.as_bytes()).unwrap(), "a");
        let uses = anthropic.tool_uses(ANTHROPIC.as_bytes()).unwrap();
        assert_eq!((uses[0].id.as_str(), uses[0].input["b"].as_i64()), ("t1", Some(2)));
        let uses = openai.tool_uses(OPENAI.as_bytes()).unwrap();
        assert_eq!(uses[0].input, json!({"a": 1, "b": 2}));
        assert_eq!(uses[1].input, json!("{"));
    }

    #[test]
    fn blocks_go_back_byte_for_byte() {
        let items = WireFormat::AnthropicMessages.response_items(ANTHROPIC.as_bytes()).unwrap();
        assert!(items[0].get().contains(r#"{"type":"future","x":1.50}"#), "{}", items[0]);
        assert!(items[0].get().contains(r#""input":{"b":2,"a":1}"#), "{}", items[0]);
        let items = WireFormat::OpenaiResponses.response_items(OPENAI.as_bytes()).unwrap();
        assert_eq!(items[0].get(), r#"{"type":"reasoning","encrypted_content":"E"}"#);
    }

    #[test]
    fn bad_responses_are_errors() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"content":"text"}"#,
            r#"{"content":[{"type":7}]}"#,
            r#"{"error":1}"#,
        ] {
            let format = WireFormat::AnthropicMessages;
            let found = format.tool_uses(body.as_bytes()).unwrap_err();
            assert_eq!(found.code(), "PROVIDER_FAILED", "{body}");
        }
    }

    #[test]
    fn equal_requests_are_equal_bytes() {
        let params = vec![("model".to_owned(), item(&json!("m")).unwrap())];
        let items = [user_text("hi").unwrap(), user_text("ho").unwrap()];
        let build = || request_body(&params, Some(("messages", items.iter().map(|item| &**item))));
        let expect = r#"{"model":"m","messages":[{"content":"hi","role":"user"},{"content":"ho","role":"user"}]}"#;
        assert_eq!(build(), expect.as_bytes());
        let summary = WireFormat::AnthropicMessages.summarise_request(&build());
        assert_eq!(summary["messages"], 2);
    }
}
