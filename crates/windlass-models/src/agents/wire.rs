//! The wire formats of providers as pure functions: items of a conversation, tool calls, summaries.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
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
            match (self, kind_of(&block)?.as_str()) {
                (Self::AnthropicMessages, "tool_use") => {
                    let block: ToolUseBlock = read_block(&block)?;
                    uses.push(ToolUse {
                        id: block.id.unwrap_or_default(),
                        name: block.name.unwrap_or_default(),
                        input: block.input.unwrap_or(Value::Null),
                    });
                }
                (Self::OpenaiResponses, "function_call") => {
                    let block: FunctionCall = read_block(&block)?;
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
            match (self, kind_of(&block)?.as_str()) {
                (Self::AnthropicMessages, "text") => {
                    let block: TextBlock = read_block(&block)?;
                    text.push_str(&block.text.unwrap_or_default());
                }
                (Self::OpenaiResponses, "message") => {
                    let parts = read_block::<MessageItem>(&block)?.content.unwrap_or_default();
                    let parts = parts.iter().filter(|part| part["type"] == "output_text");
                    parts.for_each(|part| text.push_str(part["text"].as_str().unwrap_or_default()));
                }
                _ => {}
            }
        }
        Ok(text)
    }

    /// Numbers about a request with these parameters, for the ledger. `items` is the length of its transcript:
    /// the body of a long conversation is not parsed for it.
    pub(crate) fn summarise_request(
        self,
        params: &[(String, Item)],
        items: Option<usize>,
    ) -> Map<String, Value> {
        let param =
            |name: &str| params.iter().find(|(known, _)| known == name).map(|(_, v)| v.get());
        let count = |name: &str| {
            let items =
                param(name).and_then(|raw| serde_json::from_str::<Vec<&RawValue>>(raw).ok());
            items.map(|items| items.len())
        };
        let (system, max_tokens) = match self {
            Self::AnthropicMessages => ("system", "max_tokens"),
            Self::OpenaiResponses => ("instructions", "max_output_tokens"),
        };
        let max_tokens = param(max_tokens).and_then(|raw| serde_json::from_str::<u64>(raw).ok());
        let found = [
            ("messages", items.or_else(|| count(self.items_member())).map(Value::from)),
            ("tools", count("tools").map(Value::from)),
            ("max_tokens", max_tokens.map(Value::from)),
            ("system_bytes", param(system).map(|system| system.len().into())),
        ];
        let known = |(name, value): (&str, Option<Value>)| Some((name.to_owned(), value?));
        found.into_iter().filter_map(known).collect()
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

// The members of a block depend on its kind: `content` is a list in a message and an object in the result of a
// tool that the provider runs. So the kind is read first, and the other members of known kinds only.
#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type", default)]
    kind: String,
}

#[derive(Deserialize)]
struct ToolUseBlock {
    id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
}

#[derive(Deserialize)]
struct FunctionCall {
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct TextBlock {
    text: Option<String>,
}

#[derive(Deserialize)]
struct MessageItem {
    content: Option<Vec<Value>>,
}

fn kind_of(block: &RawValue) -> Result<String, Error> {
    read_block::<Kind>(block).map(|block| block.kind)
}

fn read_block<'a, T: Deserialize<'a>>(block: &'a RawValue) -> Result<T, Error> {
    serde_json::from_str(block.get()).map_err(unreadable)
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

/// Blocks whose members have other types than those of texts, calls and messages.
#[cfg(test)]
pub(crate) const OTHER_BLOCKS: [&str; 6] = [
    r#"{"type":"code_execution_tool_result","tool_use_id":"s","content":{"type":"code_execution_result","stdout":"1"}}"#,
    r#"{"type":"web_search_tool_result","tool_use_id":"s","content":{"type":"web_search_tool_result_error","error_code":"max_uses_exceeded"}}"#,
    r#"{"type":"server_tool_use","id":7,"name":{"n":1},"input":"x"}"#,
    r#"{"type":"mcp_call","id":"m","arguments":{"a":1},"name":null,"content":"text"}"#,
    r#"{"type":"future","text":["a"],"id":{},"call_id":[]}"#,
    r#"{"no":"type","text":1}"#,
];

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

    // Blocks of tools that the provider runs have members of other types under the same names.
    #[test]
    fn blocks_of_other_kinds_are_not_looked_into() {
        let (anthropic, openai) = (WireFormat::AnthropicMessages, WireFormat::OpenaiResponses);
        for block in OTHER_BLOCKS {
            let body = format!(
                r#"{{"content":[{block},{{"type":"text","text":"a"}},{{"type":"tool_use","id":"t","name":"n","input":{{}}}}]}}"#
            );
            assert_eq!(anthropic.text(body.as_bytes()).unwrap(), "a", "{block}");
            assert_eq!(anthropic.tool_uses(body.as_bytes()).unwrap().len(), 1, "{block}");
            let body = format!(
                r#"{{"output":[{block},{{"type":"message","content":[{{"type":"output_text","text":"a"}}]}}]}}"#
            );
            assert_eq!(openai.text(body.as_bytes()).unwrap(), "a", "{block}");
            assert_eq!(openai.tool_uses(body.as_bytes()).unwrap().len(), 0, "{block}");
        }
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
        let anthropic = WireFormat::AnthropicMessages;
        assert_eq!(
            Value::Object(anthropic.summarise_request(&params, Some(2))),
            json!({ "messages": 2 })
        );
        let raw = |value: Value| item(&value).unwrap();
        let params = [
            ("max_tokens".to_owned(), raw(json!(9))),
            ("messages".to_owned(), raw(json!([1, 2, 3]))),
            ("system".to_owned(), raw(json!("abc"))),
            ("tools".to_owned(), raw(json!([{ "name": "t" }]))),
        ];
        let expect = json!({ "messages": 3, "tools": 1, "max_tokens": 9, "system_bytes": 5 });
        assert_eq!(Value::Object(anthropic.summarise_request(&params, None)), expect);
    }
}
