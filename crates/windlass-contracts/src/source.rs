//! Reads JSON text without losing anything, and finds the place of a value in it.

use std::{collections::BTreeSet, ops::Range};

use serde_json::Value;

use crate::{
    diagnostic::{Code, Diagnostic, pointer_join},
    number::Decimal,
};

/// The text is not JSON.
pub const JSON_INVALID: Code = Code::new("JSON_INVALID");
/// The text is larger than the limit of the caller.
pub const JSON_TOO_LARGE: Code = Code::new("JSON_TOO_LARGE");
/// An object has a key twice.
pub const JSON_DUPLICATE_KEY: Code = Code::new("JSON_DUPLICATE_KEY");
/// A number would lose digits, or has more digits than a number may have.
pub const JSON_NUMBER_INEXACT: Code = Code::new("JSON_NUMBER_INEXACT");

/// The codes of this module.
pub const CODES: &[Code] = &[JSON_INVALID, JSON_TOO_LARGE, JSON_DUPLICATE_KEY, JSON_NUMBER_INEXACT];

/// Reads JSON text of at most `bytes_max` bytes.
///
/// Refuses what other readers silently change: a number that would lose digits and a key that an
/// object has twice.
pub fn read(text: &str, bytes_max: usize) -> Result<Value, Diagnostic> {
    if text.len() > bytes_max {
        let found = format!("the JSON has {} bytes, the limit is {bytes_max}", text.len());
        return Err(Diagnostic::new(JSON_TOO_LARGE, found).help("send less, or split the input"));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let at = offset(text, error.line(), error.column());
        Diagnostic::new(JSON_INVALID, format!("the text is not JSON: {error}"))
            .span(at..at)
            .help("correct the text at this place")
    })?;
    let mut found = None;
    Walk::new(text).value(&mut |event, pointer, span| {
        if found.is_none() {
            found = problem(event, &text[span.clone()], pointer, span);
        }
    });
    found.map_or(Ok(value), Err)
}

/// Checks the numbers of a value that another reader has parsed.
///
/// This refuses every number that may have lost digits. It cannot see digits that the other reader
/// has dropped already; [`read`] can.
pub fn check_numbers(value: &Value) -> Result<(), Diagnostic> {
    fn walk(value: &Value, pointer: &mut String) -> Result<(), Diagnostic> {
        let length = pointer.len();
        match value {
            Value::Number(number) => {
                Decimal::from_json(number).map_err(|error| {
                    Diagnostic::new(JSON_NUMBER_INEXACT, error.to_string())
                        .at(pointer.as_str())
                        .help("write it as a text")
                })?;
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    *pointer = pointer_join(pointer, index);
                    walk(item, pointer)?;
                    pointer.truncate(length);
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    *pointer = pointer_join(pointer, key);
                    walk(member, pointer)?;
                    pointer.truncate(length);
                }
            }
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
        Ok(())
    }
    walk(value, &mut String::new())
}

/// Finds the bytes of the value that a JSON pointer names. Returns nothing if the text is not JSON
/// or has no such value.
pub fn locate(text: &str, pointer: &str) -> Option<Range<usize>> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let mut found = None;
    Walk::new(text).value(&mut |event, at, span| {
        if !matches!(event, Event::Duplicate) && at == pointer {
            found = Some(span);
        }
    });
    found
}

fn problem(event: Event, raw: &str, pointer: &str, span: Range<usize>) -> Option<Diagnostic> {
    let found = match event {
        Event::Number => {
            let error = raw.parse::<Decimal>().err()?;
            Diagnostic::new(JSON_NUMBER_INEXACT, error.to_string()).help("write it as a text")
        }
        Event::Duplicate => {
            Diagnostic::new(JSON_DUPLICATE_KEY, format!("the object has the key {raw} twice"))
                .help("remove one of them")
        }
        Event::Other => return None,
    };
    Some(found.at(pointer).span(span))
}

/// The byte offset of a line and a column as `serde_json` counts them.
pub(crate) fn offset(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let at = (start + column.saturating_sub(1)).min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default()
}

#[derive(Clone, Copy)]
enum Event {
    Number,
    Duplicate,
    Other,
}

/// Visits the values of a text that is known to be JSON, so that the depth is limited and every
/// token is complete.
struct Walk<'a> {
    bytes: &'a [u8],
    text: &'a str,
    at: usize,
    pointer: String,
}

type Visit<'v> = dyn FnMut(Event, &str, Range<usize>) + 'v;

impl<'a> Walk<'a> {
    fn new(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), text, at: 0, pointer: String::new() }
    }

    fn value(&mut self, visit: &mut Visit<'_>) {
        self.space();
        let start = self.at;
        let event = match self.peek() {
            b'{' => {
                self.object(visit);
                Event::Other
            }
            b'[' => {
                self.array(visit);
                Event::Other
            }
            b'"' => {
                self.string();
                Event::Other
            }
            first => {
                while !matches!(self.peek(), b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n' | 0)
                {
                    self.at += 1;
                }
                if first == b'-' || first.is_ascii_digit() { Event::Number } else { Event::Other }
            }
        };
        visit(event, &self.pointer, start..self.at);
    }

    fn object(&mut self, visit: &mut Visit<'_>) {
        let length = self.pointer.len();
        let mut keys = BTreeSet::new();
        self.at += 1;
        loop {
            self.space();
            match self.peek() {
                b',' => self.at += 1,
                b'"' => {
                    let start = self.at;
                    self.string();
                    let raw = &self.text[start..self.at];
                    let key: String = serde_json::from_str(raw).unwrap_or_default();
                    self.pointer = pointer_join(&self.pointer, &key);
                    if !keys.insert(key) {
                        visit(Event::Duplicate, &self.pointer, start..self.at);
                    }
                    self.space();
                    self.at += 1;
                    self.value(visit);
                    self.pointer.truncate(length);
                }
                _ => {
                    self.at += 1;
                    return;
                }
            }
        }
    }

    fn array(&mut self, visit: &mut Visit<'_>) {
        let length = self.pointer.len();
        let mut index = 0_usize;
        self.at += 1;
        loop {
            self.space();
            match self.peek() {
                b',' => self.at += 1,
                b']' | 0 => {
                    self.at += 1;
                    return;
                }
                _ => {
                    self.pointer = pointer_join(&self.pointer, index);
                    self.value(visit);
                    self.pointer.truncate(length);
                    index += 1;
                }
            }
        }
    }

    fn string(&mut self) {
        self.at += 1;
        while self.peek() != b'"' {
            self.at += if self.peek() == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
    }

    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
    }

    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<(), (&str, Option<&str>)>) {
        let found = read(text, 1_000);
        let found = found.as_ref().map(|_| ()).map_err(|found| {
            assert!(found.place.span.is_some_and(|span| span.end <= text.len()));
            (found.code.as_str(), found.place.pointer.as_deref())
        });
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn reading_refuses_values_that_would_change() {
        check(r#"{"a": [1, -2.50, 1e3, "9007199254740993", true, null], "b": {}}"#, Ok(()));
        check("9007199254740991", Ok(()));
        check("9007199254740993", Err(("JSON_NUMBER_INEXACT", Some(""))));
        check(
            r#"{"a": [{"b/c": 0.10000000000000000001}]}"#,
            Err(("JSON_NUMBER_INEXACT", Some("/a/0/b~1c"))),
        );
        check("[1, 1e300]", Err(("JSON_NUMBER_INEXACT", Some("/1"))));
        check(r#"{"a": 1, "\u0061": 2}"#, Err(("JSON_DUPLICATE_KEY", Some("/a"))));
        check(r#"{"a": }"#, Err(("JSON_INVALID", None)));
        check("", Err(("JSON_INVALID", None)));
        check(&"[".repeat(900), Err(("JSON_INVALID", None)));
    }

    #[test]
    fn reading_names_the_limit_of_size() {
        let found = read("[1, 2, 3]", 8).unwrap_err();
        assert_eq!(found.code, JSON_TOO_LARGE);
        assert_eq!(found.message, "the JSON has 9 bytes, the limit is 8");
    }

    #[test]
    fn numbers_of_parsed_values_are_checked_too() {
        let value = serde_json::json!({"a": [1, {"b": 9_007_199_254_740_993_u64}]});
        let found = check_numbers(&value).unwrap_err();
        assert_eq!(found.place.pointer.as_deref(), Some("/a/1/b"));
        assert!(found.message.contains("9007199254740993"), "{}", found.message);
        assert_eq!(check_numbers(&serde_json::json!([0.1, -3, 12.5])), Ok(()));
    }

    #[test]
    fn places_are_found() {
        let text = r#" {"a": [10, {"b\n/": "x]\"}"}], "c":true} "#;
        for (pointer, expect) in [
            ("/a/0", Some("10")),
            ("/a/1/b\n~1", Some(r#""x]\"}""#)),
            ("/c", Some("true")),
            ("/a/2", None),
        ] {
            assert_eq!(locate(text, pointer).map(|span| &text[span]), expect, "{pointer}");
        }
        assert_eq!(locate(text, ""), Some(1..text.len() - 1));
        assert_eq!(locate("[1", "/0"), None);
    }
}
