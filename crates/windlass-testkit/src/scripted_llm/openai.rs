//! Responses, stream events and errors in the format of OpenAI.

use serde_json::{Value, json};

use super::anthropic::chunks;
use super::script::{Answer, Fail, Tokens};

pub(super) fn response(
    id: &str,
    model: &str,
    created_at: i64,
    (answer, text, used): (&Answer, &str, Tokens),
) -> Value {
    let mut output = Vec::new();
    let own = id.trim_start_matches("resp_");
    if let Some(thinking) = &answer.thinking {
        output.push(json!({
            "id": format!("rs_{own}"), "type": "reasoning",
            "summary": [{ "type": "summary_text", "text": thinking }],
            "encrypted_content": format!("encrypted-{own}"),
        }));
    }
    if answer.text.is_some() {
        let part = match answer.stop.as_deref() {
            Some("refusal") => json!({ "type": "refusal", "refusal": text }),
            _ => json!({ "type": "output_text", "text": text, "annotations": [] }),
        };
        output.push(json!({
            "id": format!("msg_{own}"), "type": "message", "role": "assistant",
            "status": "completed", "content": [part],
        }));
    }
    for (index, call) in answer.tools.iter().enumerate() {
        let input = if call.input.is_null() { json!({}) } else { call.input.clone() };
        let call_id = call.id.clone().unwrap_or_else(|| format!("call_{own}_{index}"));
        output.push(json!({
            "id": format!("fc_{own}_{index}"), "type": "function_call", "status": "completed",
            "call_id": call_id, "name": call.name, "arguments": input.to_string(),
        }));
    }
    output.extend(answer.blocks.iter().cloned());
    let reason = match answer.stop.as_deref() {
        Some("max_tokens" | "model_context_window_exceeded") => Some("max_output_tokens"),
        _ => None,
    };
    json!({
        "id": id,
        "object": "response",
        "created_at": created_at,
        "model": model,
        "status": if reason.is_some() { "incomplete" } else { "completed" },
        "output": output,
        "error": null,
        "incomplete_details": reason.map(|reason| json!({ "reason": reason })),
        "usage": usage(used),
    })
}

fn usage(used: Tokens) -> Value {
    let input = used.input + used.cache_write + used.cache_read;
    json!({
        "input_tokens": input,
        "input_tokens_details": { "cached_tokens": used.cache_read },
        "output_tokens": used.output,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": input + used.output,
    })
}

/// The same response before it is finished.
pub(super) fn unfinished(response: &Value, status: &str) -> Value {
    let mut response = response.clone();
    response["status"] = json!(status);
    response["output"] = json!([]);
    response["usage"] = Value::Null;
    response["incomplete_details"] = Value::Null;
    response
}

/// The response as the events of a stream.
pub(super) fn events(response: &Value, chunk_chars: usize) -> Vec<String> {
    let mut events = Events(Vec::new());
    let begun = unfinished(response, "in_progress");
    events.push("response.created", json!({ "response": begun }));
    events.push("response.in_progress", json!({ "response": begun }));
    let items = response["output"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, item) in items.iter().enumerate() {
        let at = json!({ "output_index": index, "item_id": item["id"] });
        events.push("response.output_item.added", join(&at, json!({ "item": item })));
        match item["type"].as_str().unwrap_or_default() {
            "message" => events.texts(item, &at, chunk_chars),
            "function_call" => {
                let arguments = item["arguments"].as_str().unwrap_or_default();
                for piece in chunks(arguments, chunk_chars) {
                    let delta = join(&at, json!({ "delta": piece }));
                    events.push("response.function_call_arguments.delta", delta);
                }
                let done = join(&at, json!({ "arguments": arguments }));
                events.push("response.function_call_arguments.done", done);
            }
            "reasoning" => {
                let summary = item["summary"][0]["text"].as_str().unwrap_or_default();
                for piece in chunks(summary, chunk_chars) {
                    let delta = join(&at, json!({ "summary_index": 0, "delta": piece }));
                    events.push("response.reasoning_summary_text.delta", delta);
                }
            }
            _ => {}
        }
        events.push("response.output_item.done", join(&at, json!({ "item": item })));
    }
    let last = match response["status"].as_str() {
        Some("incomplete") => "response.incomplete",
        Some("failed") => "response.failed",
        _ => "response.completed",
    };
    events.push(last, json!({ "response": response }));
    events.0
}

struct Events(Vec<String>);

impl Events {
    fn push(&mut self, name: &str, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.0.len());
        self.0.push(format!("event: {name}\ndata: {data}\n\n"));
    }

    fn texts(&mut self, item: &Value, at: &Value, chunk_chars: usize) {
        let parts = item["content"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (index, part) in parts.iter().enumerate() {
            let at = join(at, json!({ "content_index": index }));
            self.push("response.content_part.added", join(&at, json!({ "part": part })));
            let text = part["text"].as_str().unwrap_or_default();
            for piece in chunks(text, chunk_chars) {
                self.push("response.output_text.delta", join(&at, json!({ "delta": piece })));
            }
            self.push("response.output_text.done", join(&at, json!({ "text": text })));
            self.push("response.content_part.done", join(&at, json!({ "part": part })));
        }
    }
}

fn join(one: &Value, other: Value) -> Value {
    let mut all = one.clone();
    if let (Value::Object(all), Value::Object(other)) = (&mut all, other) {
        all.extend(other);
    }
    all
}

pub(super) fn ping() -> String {
    ": keep-alive\n\n".to_owned()
}

pub(super) fn error_event(fail: &Fail) -> String {
    let error = &error(fail)["error"];
    let data = json!({
        "type": "error", "code": error["code"], "message": error["message"], "param": null,
    });
    format!("event: error\ndata: {data}\n\n")
}

pub(super) fn error(fail: &Fail) -> Value {
    let kind = fail.kind.as_deref().unwrap_or(match fail.status {
        429 => "requests",
        400..=499 => "invalid_request_error",
        _ => "server_error",
    });
    let code = match (fail.code.as_deref(), fail.status) {
        (Some("enforced_spend_limit_reached"), _) => Some("insufficient_quota"),
        (Some(code), _) => Some(code),
        (None, 401) => Some("invalid_api_key"),
        (None, 429) => Some("rate_limit_exceeded"),
        (None, _) => None,
    };
    let kind = if code == Some("insufficient_quota") { "insufficient_quota" } else { kind };
    let message = fail.message.clone().unwrap_or_else(|| format!("scripted {kind}"));
    json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
}
