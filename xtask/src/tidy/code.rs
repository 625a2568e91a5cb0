//! A simple lexer for Rust: code without comments and literals, string literals, and word search.

/// Replaces comments, strings and character literals with blanks. Line numbers do not change.
pub(super) fn code_only(text: &str) -> String {
    let blank = |c| if c == '\n' { '\n' } else { ' ' };
    let mut code = String::with_capacity(text.len());
    for (kind, piece) in pieces(text) {
        match kind {
            Kind::Code => code.push_str(piece),
            _ => code.extend(piece.chars().map(blank)),
        }
    }
    code
}

/// A string literal, and the code between the previous one and it.
pub(super) struct Literal<'a> {
    /// The line, starting at 1.
    pub(super) line: usize,
    /// The code since the previous literal, without comments and spaces.
    pub(super) before: String,
    /// The contents of a plain string; other kinds with their prefix and quotes.
    pub(super) text: &'a str,
}

/// All string literals outside comments.
pub(super) fn strings(text: &str) -> Vec<Literal<'_>> {
    let mut found = Vec::new();
    let (mut line, mut before) = (1, String::new());
    for (kind, piece) in pieces(text) {
        match kind {
            Kind::Code => before.extend(piece.chars().filter(|c| !c.is_whitespace())),
            Kind::Text => {
                let plain = piece.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
                let before = std::mem::take(&mut before);
                found.push(Literal { line, before, text: plain.unwrap_or(piece) });
            }
            Kind::Other => {}
        }
        line += piece.matches('\n').count();
    }
    found
}

/// The lines, starting at 1, that contain a whole word.
pub(super) fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let has_word = |line: &str| line.match_indices(word).any(|(at, _)| is_whole(line, at, word));
    (1..).zip(code.lines()).filter(|(_, line)| has_word(line)).map(|(number, _)| number).collect()
}

pub(super) fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_whole(line: &str, at: usize, word: &str) -> bool {
    let before = line[..at].chars().next_back();
    let after = line[at + word.len()..].chars().next();
    let joins = |outer: Option<char>, inner: Option<char>| {
        outer.is_some_and(is_word_character) && inner.is_some_and(is_word_character)
    };
    !joins(before, word.chars().next()) && !joins(after, word.chars().next_back())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Text,
    /// A comment or a character literal.
    Other,
}

fn pieces(text: &str) -> Pieces<'_> {
    Pieces { rest: text, in_word: false }
}

struct Pieces<'a> {
    rest: &'a str,
    /// Whether the previous piece is part of a word: then an `r` before `"` is not the prefix of a
    /// raw string.
    in_word: bool,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = (Kind, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.rest.chars().next()?;
        let joined = self.in_word && is_word_character(first);
        let (kind, length) = if self.rest.starts_with("//") {
            (Kind::Other, self.rest.find('\n').unwrap_or(self.rest.len()))
        } else if self.rest.starts_with("/*") {
            (Kind::Other, block_comment_len(self.rest))
        } else if let Some(length) = string_len(self.rest).filter(|_| !joined) {
            (Kind::Text, length)
        } else if let Some(length) = character_len(self.rest) {
            (Kind::Other, length)
        } else {
            (Kind::Code, first.len_utf8())
        };
        self.in_word = kind == Kind::Code && is_word_character(first);
        let (piece, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some((kind, piece))
    }
}

/// Block comments nest.
fn block_comment_len(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string literal of any kind that starts here.
fn string_len(text: &str) -> Option<usize> {
    let after_prefix = text.strip_prefix(['b', 'c']).unwrap_or(text);
    if after_prefix.starts_with('"') {
        return Some(text.len() - after_prefix.len() + quoted_len(after_prefix, '"'));
    }
    let hashes_on = after_prefix.strip_prefix('r')?;
    let quote_on = hashes_on.trim_start_matches('#');
    if !quote_on.starts_with('"') {
        return None;
    }
    let end = format!("\"{}", &hashes_on[..hashes_on.len() - quote_on.len()]);
    let opening = text.len() - quote_on.len() + 1;
    let length = text[opening..].find(&end).map(|at| opening + at + end.len());
    Some(length.unwrap_or(text.len()))
}

/// The length of the character literal that starts here; none for a lifetime.
fn character_len(text: &str) -> Option<usize> {
    let mut inner = text.strip_prefix('\'')?.chars();
    let first = inner.next()?;
    if first == '\\' || inner.next() == Some('\'') {
        return Some(quoted_len(text, '\''));
    }
    None
}

/// The length including the closing quote; skips escaped quotes.
fn quoted_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        for (text, expect) in [
            ("a // b", "a"),
            ("a /* b /* c */ d */ e", "a e"),
            ("a \"b // c\" d", "a d"),
            ("a \"b \\\" c\" d", "a d"),
            ("a r#\"b \" c\"# d", "a d"),
            ("a br\"b\" c\"d\" e", "a e"),
            ("a '\"' b", "a b"),
            ("a '\\'' b", "a b"),
            ("a 'ü' b", "a b"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("r#type", "r#type"),
            ("bar(\"x\")", "bar( )"),
            ("a \"never closed", "a"),
            ("a /* never closed", "a"),
        ] {
            let code = code_only(text);
            let words: Vec<&str> = code.split_whitespace().collect();
            assert_eq!(words.join(" "), expect, "{text}");
        }
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "a\n/* b\nc */ d\n\"e\nf\" g\n";
        let code = code_only(text);
        let lines: Vec<&str> = code.lines().map(str::trim).collect();
        assert_eq!(lines, ["a", "", "d", "", "g"]);
    }

    #[test]
    fn strings_are_found_with_what_is_before_them() {
        let text = "f(A, // \"no\"\n \"b\");\ng('\"', r\"c\", \"d\\\"e\")";
        let found: Vec<_> =
            strings(text).into_iter().map(|found| (found.line, found.before, found.text)).collect();
        let expect = [(2, "f(A,", "b"), (3, ");g(,", "r\"c\""), (3, ",", "d\\\"e")];
        assert_eq!(found, expect.map(|(line, before, text)| (line, before.to_owned(), text)));
    }

    #[test]
    fn a_word_is_not_a_part_of_one() {
        let code = "tokio\ntokio::spawn\ntokio_util\nmy_tokio\nuse tokio;";
        assert_eq!(lines_with_word(code, "tokio"), [1, 2, 5]);
        assert_eq!(lines_with_word("my_todo!()\ntodo!()", "todo!"), [2]);
    }
}
