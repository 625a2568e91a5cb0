//! The content of calls in the form of the GenAI conventions: messages with parts, as JSON text.

use serde_json::{Value, json};
use tracing::Span;

use crate::agents::provider::WireFormat;

/// How many bytes of content one attribute has at most. The rest is cut off.
const BYTES_MAX: usize = 64 * 1024;

/// Records a value as an attribute.
pub(super) fn record(span: &Span, name: &'static str, value: &Value) {
    let text = match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    if text.len() <= BYTES_MAX {
        span.record(name, text.as_str());
        return;
    }
    let end = text.floor_char_boundary(BYTES_MAX);
    span.record(name, format!("{}…", &text[..end]).as_str());
}

/// Records the content of a request.
pub(super) fn request(span: &Span, format: WireFormat, body: &Value) {
    let (system, messages) = match format {
        WireFormat::AnthropicMessages => ("system", "messages"),
        WireFormat::OpenaiResponses => ("instructions", "input"),
    };
    if let Some(system) = body.get(system) {
        record(span, "gen_ai.system_instructions", &parts(system));
    }
    if let Some(messages) = body.get(messages) {
        let messages = match messages {
            Value::Array(items) => items.iter().map(message).collect(),
            text => json!([{ "role": "user", "parts": parts(text) }]),
        };
        record(span, "gen_ai.input.messages", &messages);
    }
    if let Some(tools) = body.get("tools") {
        record(span, "gen_ai.tool.definitions", tools);
    }
}

/// Records the content of a response.
pub(super) fn response(span: &Span, format: WireFormat, body: &[u8], stop: Option<&str>) {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
    let parts: Vec<Value> = match format {
        WireFormat::AnthropicMessages => list(&body["content"]).iter().map(part).collect(),
        WireFormat::OpenaiResponses => list(&body["output"])
            .iter()
            .flat_map(|item| match item["type"].as_str() {
                Some("message") => list(&item["content"]).iter().map(part).collect(),
                _ => vec![part(item)],
            })
            .collect(),
    };
    let message = json!([{ "role": "assistant", "parts": parts, "finish_reason": stop }]);
    record(span, "gen_ai.output.messages", &message);
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

// An item of a conversation. OpenAI has calls of tools and their results beside the messages.
fn message(item: &Value) -> Value {
    match item.get("content") {
        Some(content) if item.get("role").is_some() => {
            json!({ "role": item["role"], "parts": parts(content) })
        }
        _ => {
            let role = match item["type"].as_str() {
                Some("function_call_output") => "tool",
                _ => "assistant",
            };
            json!({ "role": role, "parts": [part(item)] })
        }
    }
}

fn parts(content: &Value) -> Value {
    match content {
        Value::Array(blocks) => blocks.iter().map(part).collect(),
        text => json!([{ "type": "text", "content": text }]),
    }
}

// Blocks of kinds that are not known stay as they are.
fn part(block: &Value) -> Value {
    match block["type"].as_str().unwrap_or_default() {
        "text" | "input_text" | "output_text" => {
            json!({ "type": "text", "content": block["text"] })
        }
        "thinking" => json!({ "type": "reasoning", "content": block["thinking"] }),
        "tool_use" => json!({
            "type": "tool_call", "id": block["id"], "name": block["name"],
            "arguments": block["input"],
        }),
        "function_call" => json!({
            "type": "tool_call", "id": block["call_id"], "name": block["name"],
            "arguments": block["arguments"],
        }),
        "tool_result" => json!({
            "type": "tool_call_response", "id": block["tool_use_id"], "response": block["content"],
        }),
        "function_call_output" => json!({
            "type": "tool_call_response", "id": block["call_id"], "response": block["output"],
        }),
        _ => block.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_both_formats_become_messages() {
        for (item, expect) in [
            (
                json!({ "role": "user", "content": "hello" }),
                json!({ "role": "user", "parts": [{ "type": "text", "content": "hello" }] }),
            ),
            (
                json!({ "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "s" },
                    { "type": "tool_use", "id": "t", "name": "add", "input": { "a": 1 } },
                ] }),
                json!({ "role": "assistant", "parts": [
                    { "type": "reasoning", "content": "hm" },
                    { "type": "tool_call", "id": "t", "name": "add", "arguments": { "a": 1 } },
                ] }),
            ),
            (
                json!({ "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t", "content": "2" },
                ] }),
                json!({ "role": "user", "parts": [
                    { "type": "tool_call_response", "id": "t", "response": "2" },
                ] }),
            ),
            (
                json!({ "type": "function_call", "call_id": "c", "name": "add", "arguments": "{}" }),
                json!({ "role": "assistant", "parts": [
                    { "type": "tool_call", "id": "c", "name": "add", "arguments": "{}" },
                ] }),
            ),
            (
                json!({ "type": "function_call_output", "call_id": "c", "output": "2" }),
                json!({ "role": "tool", "parts": [
                    { "type": "tool_call_response", "id": "c", "response": "2" },
                ] }),
            ),
            (
                json!({ "role": "user", "content": [{ "type": "image", "source": {} }] }),
                json!({ "role": "user", "parts": [{ "type": "image", "source": {} }] }),
            ),
        ] {
            assert_eq!(message(&item), expect);
        }
    }
}
