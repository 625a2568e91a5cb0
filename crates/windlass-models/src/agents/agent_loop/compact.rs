//! Where a conversation can be cut, and the texts of a compaction.

use serde::Deserialize;
use serde_json::Value;
use windlass_kernel::Error;

use crate::agents::transcript::Transcript;
use crate::agents::wire::{Item, user_text};

/// The instruction for the model.
pub(super) const PROMPT: &str = "Summarise this conversation, so that it can go on from your summary alone. \
    Keep the task, all decisions, facts, names and numbers that are still needed, and what is left to do. \
    Write only the summary.";

/// The item that takes the place of the summarised part.
pub(super) fn summary_item(summary: &str) -> Result<Item, Error> {
    user_text(&format!("This is a summary of the conversation so far:\n\n{summary}"))
}

#[derive(Deserialize)]
struct Shape {
    role: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    content: Option<Value>,
}

impl Shape {
    fn of(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn is_from_model(&self) -> bool {
        match (self.role.as_deref(), self.kind.as_deref()) {
            (Some(role), _) => role == "assistant",
            (None, kind) => kind != Some("function_call_output"),
        }
    }

    fn is_tool_result(&self) -> bool {
        self.kind.as_deref() == Some("function_call_output")
            || self
                .content
                .as_ref()
                .and_then(Value::as_array)
                .is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"))
    }
}

/// How many items of a conversation are summarised: about a half of its bytes in the first attempt, a quarter in
/// the second. The rest begins with an answer of the model or a message of the user: a provider refuses results
/// of tools without the calls. None: there is no such place.
pub(super) fn border(transcript: &Transcript, attempt: u32) -> Option<usize> {
    let items: Vec<&str> = transcript.items().map(|item| item.get()).collect();
    let total: usize = items.iter().map(|item| item.len()).sum();
    let target = total >> attempt;
    let (mut bytes, mut before_is_model) = (0, false);
    let mut best = None;
    for (index, item) in items.iter().enumerate() {
        let shape = Shape::of(item)?;
        // A summary of the first message alone makes nothing shorter.
        let fits =
            index > 1 && !shape.is_tool_result() && !(shape.is_from_model() && before_is_model);
        if fits && (bytes <= target || best.is_none()) {
            best = Some(index);
        }
        before_is_model = shape.is_from_model();
        bytes += item.len();
    }
    best
}

/// Whether a response of OpenAI holds a refusal instead of text.
pub(super) fn is_refusal(body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return false };
    let items = body["output"].as_array().into_iter().flatten();
    let mut parts = items.flat_map(|item| item["content"].as_array().into_iter().flatten());
    parts.any(|part| part["type"] == "refusal")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agents::wire::item;

    fn transcript(items: &[Value]) -> Transcript {
        let mut transcript = Transcript::default();
        items.iter().for_each(|value| transcript.push(item(value).unwrap()).unwrap());
        transcript
    }

    #[test]
    fn a_conversation_is_cut_between_turns() {
        let user = json!({ "role": "user", "content": "x".repeat(100) });
        let calls = json!({ "role": "assistant", "content": [{ "type": "tool_use", "id": "a" }] });
        let result = json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": "x".repeat(100) }] });
        let reasoning = json!({ "type": "reasoning", "encrypted_content": "E" });
        let call = json!({ "type": "function_call", "call_id": "a", "arguments": "{}" });
        let output =
            json!({ "type": "function_call_output", "call_id": "a", "output": "x".repeat(100) });
        for (items, attempt, expect) in [
            (vec![&user], 1, None),
            (vec![&user, &calls, &result], 1, None),
            (vec![&user, &calls, &result, &calls, &result], 1, Some(3)),
            (vec![&user, &calls, &result, &calls, &result, &calls, &result], 1, Some(3)),
            (vec![&user, &calls, &result, &calls, &result, &calls, &result, &user], 2, Some(3)),
            (vec![&user, &reasoning, &call, &output, &reasoning, &call, &output], 1, Some(4)),
        ] {
            let items: Vec<Value> = items.into_iter().cloned().collect();
            assert_eq!(border(&transcript(&items), attempt), expect, "{items:?}");
        }
    }

    #[test]
    fn refusals_are_found() {
        let body =
            br#"{"output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}"#;
        assert!(is_refusal(body));
        assert!(!is_refusal(
            br#"{"output":[{"type":"message","content":[{"type":"output_text"}]}]}"#
        ));
    }
}
