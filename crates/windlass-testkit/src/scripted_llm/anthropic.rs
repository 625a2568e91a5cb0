//! Messages, stream events and errors in the format of Anthropic.

use serde_json::{Value, json};

use super::script::{Answer, Fail, Tokens};

pub(super) fn message(id: &str, model: &str, answer: &Answer, text: &str, used: Tokens) -> Value {
    let mut content = Vec::new();
    if let Some(thinking) = &answer.thinking {
        let signature = format!("signature-of-{id}");
        content.push(json!({ "type": "thinking", "thinking": thinking, "signature": signature }));
    }
    if answer.text.is_some() {
        content.push(json!({ "type": "text", "text": text }));
    }
    for (index, call) in answer.tools.iter().enumerate() {
        let own = format!("toolu_{}_{index}", id.trim_start_matches("msg_"));
        let call_id = call.id.as_deref().unwrap_or(&own);
        content.push(json!({
            "type": "tool_use", "id": call_id, "name": call.name, "input": object(&call.input),
        }));
    }
    content.extend(answer.blocks.iter().cloned());
    let default = if answer.tools.is_empty() { "end_turn" } else { "tool_use" };
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": answer.stop.as_deref().unwrap_or(default),
        "stop_sequence": null,
        "usage": usage(used),
    })
}

fn object(input: &Value) -> Value {
    if input.is_null() { json!({}) } else { input.clone() }
}

fn usage(used: Tokens) -> Value {
    json!({
        "input_tokens": used.input,
        "output_tokens": used.output,
        "cache_creation_input_tokens": used.cache_write,
        "cache_read_input_tokens": used.cache_read,
        "service_tier": "standard",
    })
}

/// The message as the events of a stream.
pub(super) fn events(message: &Value, chunk_chars: usize) -> Vec<String> {
    let mut start = message.clone();
    start["content"] = json!([]);
    start["stop_reason"] = Value::Null;
    start["usage"]["output_tokens"] = json!(1);
    let mut events = vec![event("message_start", json!({ "message": start })), ping()];
    let blocks = message["content"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, block) in blocks.iter().enumerate() {
        let (begin, deltas) = pieces(block, chunk_chars);
        let with = |mut members: Value| {
            members["index"] = json!(index);
            members
        };
        events.push(event("content_block_start", with(json!({ "content_block": begin }))));
        for delta in deltas {
            events.push(event("content_block_delta", with(json!({ "delta": delta }))));
        }
        events.push(event("content_block_stop", with(json!({}))));
    }
    let stop = json!({ "stop_reason": message["stop_reason"], "stop_sequence": null });
    let used = json!({ "output_tokens": message["usage"]["output_tokens"] });
    events.push(event("message_delta", json!({ "delta": stop, "usage": used })));
    events.push(event("message_stop", json!({})));
    events
}

// A block as it begins, and the deltas that complete it. Blocks of other types come whole.
fn pieces(block: &Value, chunk_chars: usize) -> (Value, Vec<Value>) {
    let mut begin = block.clone();
    let text = |name: &str| chunks(block[name].as_str().unwrap_or_default(), chunk_chars);
    match block["type"].as_str().unwrap_or_default() {
        "text" => {
            begin["text"] = json!("");
            let delta = |piece| json!({ "type": "text_delta", "text": piece });
            (begin, text("text").into_iter().map(delta).collect())
        }
        "thinking" => {
            begin["thinking"] = json!("");
            begin["signature"] = json!("");
            let delta = |piece| json!({ "type": "thinking_delta", "thinking": piece });
            let mut deltas: Vec<Value> = text("thinking").into_iter().map(delta).collect();
            deltas.push(json!({ "type": "signature_delta", "signature": block["signature"] }));
            (begin, deltas)
        }
        "tool_use" => {
            begin["input"] = json!({});
            let delta = |piece| json!({ "type": "input_json_delta", "partial_json": piece });
            let input = block["input"].to_string();
            (begin, chunks(&input, chunk_chars).into_iter().map(delta).collect())
        }
        _ => (begin, Vec::new()),
    }
}

pub(super) fn chunks(text: &str, chars: usize) -> Vec<String> {
    let all: Vec<char> = text.chars().collect();
    all.chunks(chars).map(|chunk| chunk.iter().collect()).collect()
}

fn event(name: &str, mut data: Value) -> String {
    data["type"] = json!(name);
    format!("event: {name}\ndata: {data}\n\n")
}

pub(super) fn ping() -> String {
    event("ping", json!({}))
}

pub(super) fn error_event(fail: &Fail) -> String {
    format!("event: error\ndata: {}\n\n", error(fail, "req_stream"))
}

/// The type of error that belongs to a status.
fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        408 | 504 => "timeout_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

pub(super) fn error(fail: &Fail, request_id: &str) -> Value {
    let kind = fail.kind.as_deref().unwrap_or_else(|| kind(fail.status));
    let message = fail.message.clone().unwrap_or_else(|| format!("scripted {kind}"));
    let mut error = json!({ "type": kind, "message": message });
    if let Some(code) = &fail.code {
        error["details"] = json!({ "error_code": code });
    }
    json!({ "type": "error", "error": error, "request_id": request_id })
}
