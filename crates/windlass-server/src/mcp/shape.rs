//! Results of tools: large values become a short note, because a model pays for each word it reads.

use serde_json::{Value, json};

/// How much of a value a note shows, in characters.
const START_CHARS: usize = 200;

/// Members that hold values of users.
const BODIES: [&str; 10] = [
    "about",
    "answer",
    "error_history",
    "errorBody",
    "input",
    "output",
    "params",
    "payload",
    "result",
    "schema",
];

/// Replaces each value of a user above `max` bytes by a note, and cuts other texts above it.
pub(super) fn shorten(value: &mut Value, max: usize) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                let bytes = if BODIES.contains(&name.as_str()) { len(member) } else { 0 };
                match bytes > max {
                    true => *member = note(member, bytes),
                    false => shorten(member, max),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| shorten(item, max)),
        Value::String(text) if text.len() > max => {
            let bytes = text.len();
            let kept = text.floor_char_boundary(max);
            text.truncate(kept);
            text.push_str(&format!("… (cut, {bytes} bytes in all)"));
        }
        _ => {}
    }
}

fn note(value: &Value, bytes: usize) -> Value {
    let start: String = value.to_string().chars().take(START_CHARS).collect();
    json!({ "omitted": true, "bytes": bytes, "start": start })
}

fn len(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(number) => number.to_string().len(),
        // Escapes count a little less than they take.
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| len(item) + 1).sum::<usize>() + 2,
        Value::Object(members) => {
            members.iter().map(|(name, member)| name.len() + len(member) + 4).sum::<usize>() + 2
        }
    }
}

/// A part of a text that begins at a byte, of at most `length` bytes. Both ends move to the border of a
/// character.
pub(super) fn part(text: &str, offset: usize, length: usize) -> Value {
    let from = text.floor_char_boundary(offset.min(text.len()));
    let mut to = text.floor_char_boundary(from.saturating_add(length).min(text.len()));
    if to == from && from < text.len() {
        to = text.ceil_char_boundary(from + 1);
    }
    let mut shown = json!({ "text": &text[from..to], "offset": from, "bytes": text.len() });
    if to < text.len() {
        shown["nextOffset"] = to.into();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_values_become_notes() {
        let long = "é".repeat(100);
        let mut value = json!({
            "id": "a", "details": { "output": { "text": long.as_str() }, "status": "complete" },
            "rows": [{ "params": [1, 2], "name": long.as_str() }],
        });
        shorten(&mut value, 64);
        let output = &value["details"]["output"];
        assert_eq!((&output["omitted"], &output["bytes"]), (&json!(true), &json!(212)));
        assert!(output["start"].as_str().unwrap().starts_with(r#"{"text":"éé"#));
        assert_eq!(value["details"]["status"], "complete");
        assert_eq!(value["rows"][0]["params"], json!([1, 2]));
        let name = value["rows"][0]["name"].as_str().unwrap();
        assert_eq!(name, format!("{}… (cut, 200 bytes in all)", "é".repeat(32)));
    }

    #[test]
    fn parts_join_to_the_text() {
        for (text, length) in [("", 5), ("abc", 1), ("aéé漢字b", 1), ("aéé漢字b", 4), ("abc", 9)]
        {
            let (mut joined, mut offset) = (String::new(), 0);
            loop {
                let shown = part(text, offset, length);
                joined.push_str(shown["text"].as_str().unwrap());
                match shown["nextOffset"].as_u64() {
                    Some(next) => offset = usize::try_from(next).unwrap(),
                    None => break,
                }
            }
            assert_eq!(joined, text, "{length}");
        }
        assert_eq!(part("abc", 99, 5), json!({ "text": "", "offset": 3, "bytes": 3 }));
    }
}
