//! Text of others as a terminal may show it: what would steer the terminal is spelled out.

use std::fmt::Write as _;

/// The text with its control characters spelled out, but for line ends and tabs. Names, log lines and
/// errors are written by workflows, and may hold what callers sent to them.
pub(crate) fn plain(text: &str) -> String {
    if !text.chars().any(steers) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.replace("\r\n", "\n").chars() {
        match steers(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

/// As [`plain`], for what stands on one line: a name, a type, a time.
pub(crate) fn plain_line(text: &str) -> String {
    plain(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// JSON whose strings hold nothing that steers a terminal, and mean the same. The characters below
/// U+0020 are escaped in any JSON; what is left can stand in strings only.
pub(crate) fn plain_json(json: String) -> String {
    let is_left = |c: char| steers(c) && c >= ' ';
    if !json.chars().any(is_left) {
        return json;
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match is_left(c) {
            // None of them lies beyond what four digits can say.
            true => drop(write!(shown, "\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// Text of several lines, those after the first moved to the right: none of them can pass for a line
/// of its own.
pub(crate) fn hanging(text: &str, columns: usize) -> String {
    match text.contains('\n') {
        true => text.trim_end().replace('\n', &format!("\n{}", " ".repeat(columns))),
        false => text.to_owned(),
    }
}

// Control characters, and those that change the direction in which the rest of a line is read.
fn steers(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
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
            assert_eq!(plain(text), expect);
        }
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({ "a": "\u{1b}[31m \u{9b}1m \u{7f} \u{202e} ü\n" });
        let shown = plain_json(value.to_string());
        assert!(!shown.chars().any(steers), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn lines_after_the_first_stand_apart() {
        assert_eq!(hanging("one\ntwo\n", 3), "one\n   two");
        assert_eq!(hanging("one", 3), "one");
    }
}
