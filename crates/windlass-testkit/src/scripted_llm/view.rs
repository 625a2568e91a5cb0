//! The view that rules have of a request: texts, turns and tool results, in the same words for both APIs.

use serde_json::Value;

use super::script::{Api, Op, When};

/// A request as rules see it.
pub(super) struct View {
    pub(super) api: Api,
    pub(super) op: Op,
    pub(super) model: String,
    pub(super) last_text: String,
    pub(super) input_bytes: u64,
    pub(super) custom_id: Option<String>,
    all_text: String,
    turn: usize,
    tool_result: bool,
}

impl View {
    pub(super) fn of(api: Api, op: Op, body: &Value, custom_id: Option<&str>) -> Self {
        let items = match api {
            Api::Anthropic => body.get("messages"),
            Api::Openai => body.get("input"),
        };
        let items = match items {
            Some(Value::Array(items)) => items.as_slice(),
            Some(item) => std::slice::from_ref(item),
            None => &[],
        };
        let mut all_text = String::new();
        for name in ["system", "instructions", "tools"] {
            collect(body.get(name).unwrap_or(&Value::Null), &mut all_text);
        }
        items.iter().for_each(|item| collect(item, &mut all_text));
        let from_model: Vec<bool> = items.iter().map(is_from_model).collect();
        let begins = |at: &usize| from_model[*at] && (*at == 0 || !from_model[at - 1]);
        let last_start = from_model.iter().rposition(|is| *is).map_or(0, |at| at + 1);
        let mut last_text = String::new();
        items[last_start..].iter().for_each(|item| collect(item, &mut last_text));
        Self {
            api,
            op,
            model: body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned(),
            turn: (0..from_model.len()).filter(begins).count(),
            tool_result: items[last_start..].iter().any(has_tool_result),
            input_bytes: all_text.len() as u64,
            last_text: last_text.trim().to_owned(),
            all_text,
            custom_id: custom_id.map(str::to_owned),
        }
    }

    /// A call that is no request for a message.
    pub(super) fn other(api: Api, op: Op) -> Self {
        Self::of(api, op, &Value::Null, None)
    }

    pub(super) fn matches(&self, when: &When) -> bool {
        let op = match when.op {
            None => matches!(self.op, Op::Live | Op::BatchMember),
            Some(op) => op == self.op,
        };
        let model = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => self.model.starts_with(start),
            None => self.model == *pattern,
        };
        let ends = |end: &String| self.custom_id.as_ref().is_some_and(|id| id.ends_with(end));
        op && when.api.is_none_or(|api| api == self.api)
            && when.model.as_ref().is_none_or(model)
            && when.contains.as_ref().is_none_or(|text| self.all_text.contains(text))
            && when.last_contains.as_ref().is_none_or(|text| self.last_text.contains(text))
            && when.turn.is_none_or(|turn| turn == self.turn)
            && when.tool_result.is_none_or(|has| has == self.tool_result)
            && when.custom_id_ends.as_ref().is_none_or(ends)
    }
}

// A message of the assistant, or an output item of a response that was sent back.
fn is_from_model(item: &Value) -> bool {
    let role = item.get("role").and_then(Value::as_str);
    let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
    role == Some("assistant") || role.is_none() && (kind.ends_with("_call") || kind == "reasoning")
}

fn has_tool_result(item: &Value) -> bool {
    let kind = |value: &Value| value.get("type").and_then(Value::as_str).map(str::to_owned);
    let blocks = item.get("content").and_then(Value::as_array);
    kind(item).as_deref() == Some("function_call_output")
        || blocks.is_some_and(|blocks| {
            blocks.iter().any(|block| kind(block).as_deref() == Some("tool_result"))
        })
}

// All texts below a value that a model would read. Names of members and types are no text.
fn collect(value: &Value, into: &mut String) {
    match value {
        Value::String(text) => {
            into.push_str(text);
            into.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
        Value::Object(members) => {
            let skipped = ["type", "role", "id", "tool_use_id", "call_id", "signature", "status"];
            let texts = members.iter().filter(|(name, _)| !skipped.contains(&name.as_str()));
            texts.for_each(|(_, value)| collect(value, into));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_apis_show_the_same_view() {
        let anthropic = json!({ "model": "m", "system": "be brief", "messages": [
            { "role": "user", "content": "weather?" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t1", "name": "w", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "content": "rain" }] },
        ] });
        let openai = json!({ "model": "m", "instructions": "be brief", "input": [
            { "role": "user", "content": [{ "type": "input_text", "text": "weather?" }] },
            { "type": "reasoning", "encrypted_content": "x" },
            { "type": "function_call", "call_id": "t1", "name": "w", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "t1", "output": "rain" },
        ] });
        for (api, body) in [(Api::Anthropic, anthropic), (Api::Openai, openai)] {
            let view = View::of(api, Op::Live, &body, None);
            assert_eq!((view.last_text.as_str(), view.turn, view.tool_result), ("rain", 1, true));
            for (when, expect) in [
                (When::last("rain"), true),
                (When::last("weather"), false),
                (When { contains: Some("brief".into()), ..When::default() }, true),
                (When::turn(1), true),
                (When::turn(0), false),
                (When { model: Some("m*".into()), ..When::default() }, true),
                (When { model: Some("n*".into()), ..When::default() }, false),
                (When { op: Some(Op::GetBatch), ..When::default() }, false),
                (When { op: Some(Op::Live), api: Some(api), ..When::default() }, true),
            ] {
                assert_eq!(view.matches(&when), expect, "{api:?} {when:?}");
            }
        }
        let text = View::of(Api::Openai, Op::Live, &json!({ "input": "hello" }), None);
        assert_eq!((text.last_text.as_str(), text.turn), ("hello", 0));
    }
}
