//! Escapes characters in foreign text that would control the terminal.

use std::fmt::Write as _;

/// Escapes control characters except line breaks and tabs. Names, log lines and errors come from
/// workflows and may contain text from their callers.
pub(crate) fn sanitize(text: &str) -> String {
    if !text.chars().any(is_terminal_control) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.replace("\r\n", "\n").chars() {
        match is_terminal_control(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// Like [`sanitize`], for text on one line: also escapes line breaks and tabs.
pub(crate) fn sanitize_line(text: &str) -> String {
    sanitize(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Escapes control characters in JSON without changing its value. JSON itself escapes characters
/// below U+0020; the remaining ones occur only inside strings.
pub(crate) fn sanitize_json(json: String) -> String {
    let is_left = |c: char| is_terminal_control(c) && c >= ' ';
    if !json.chars().any(is_left) {
        return json;
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match is_left(c) {
            // All of them are in the basic multilingual plane, so four digits are enough.
            true => drop(write!(shown, "\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// Indents all lines after the first, so that text with line breaks cannot imitate other output
/// lines.
pub(crate) fn indent_continuation(text: &str, columns: usize) -> String {
    match text.contains('\n') {
        true => text.trim_end().replace('\n', &format!("\n{}", " ".repeat(columns))),
        false => text.to_owned(),
    }
}

// Control characters, and characters that change the text direction.
fn is_terminal_control(c: char) -> bool {
    let changes_direction =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    changes_direction || c.is_control() && !matches!(c, '\n' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, expect) in [
            ("plain, ünïcode, 日本", "plain, ünïcode, 日本"),
            ("two\nlines\tand a tab", "two\nlines\tand a tab"),
            ("two\r\nlines", "two\nlines"),
            ("\u{1b}[31mred\u{1b}[0m", "\\u{1b}[31mred\\u{1b}[0m"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("over\rwritten", "over\\rwritten"),
            ("back\u{8}space \u{7f}", "back\\u{8}space \\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\u{202e}b", "a\\u{202e}b"),
        ] {
            assert_eq!(sanitize(text), expect);
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "a": "\u{1b}[31m \u{9b}1m \u{7f} \u{202e} ü\n" });
        let shown = sanitize_json(value.to_string());
        assert!(!shown.chars().any(is_terminal_control), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn lines_after_the_first_are_indented() {
        assert_eq!(indent_continuation("one\ntwo\n", 3), "one\n   two");
        assert_eq!(indent_continuation("one", 3), "one");
    }
}
