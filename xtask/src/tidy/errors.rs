//! Error codes: each that a crate can give has a page below docs/errors and a row in docs/errors.md.

use std::collections::BTreeMap;

use super::Finding;
use super::code::{Literal, strings};
use super::tree::Tree;

const INDEX: &str = "docs/errors.md";
const PAGES: &str = "docs/errors/";

/// Crates that test the others: their codes are nobody's.
const TESTS: &[&str] = &["crates/windlass-bench/", "crates/windlass-testkit/"];
/// What of them users call in tests of their own.
const FOR_USERS: &[&str] = &["crates/windlass-testkit/src/replay.rs"];
/// Words in capitals that are no codes: variables of the environment.
const NOT_CODES: &[&str] = &["WINDLASS_", "OTEL_", "CARGO_", "NO_COLOR"];
/// A name in these calls is what users see an error called, such as `Timeout`.
const NAMED: &[&str] = &["Failure::new(", "failure("];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let given = given(tree);
    let index = tree.files().find(|(path, _)| *path == INDEX).map_or("", |(_, text)| text);
    let mut findings = Vec::new();
    for (code, Place { path, line, must }) in &given {
        // `EventTimeout` is on the page of EVENT_TIMEOUT.
        let is_same =
            |other: &&str| is_word(code) && other.replace('_', "").eq_ignore_ascii_case(code);
        if !must || given.keys().any(|other| other != code && is_same(other)) {
            continue;
        }
        if !tree.has(&format!("{PAGES}{code}.md")) {
            let mend = format!(
                "write {PAGES}{code}.md, as {INDEX} says; if it is no error code, name it in NOT_CODES \
                 of xtask/src/tidy/errors.rs"
            );
            findings.push(Finding::new(*path, *line, format!("`{code}` has no page"), mend));
        }
        let link = format!("(errors/{code}.md)");
        if !index.lines().any(|row| row.starts_with('|') && row.contains(&link)) {
            let mend = format!("add a row that begins with | [`{code}`]{link} |");
            findings.push(Finding::new(INDEX, None, format!("has no row for `{code}`"), mend));
        }
    }
    let pages =
        tree.below(PAGES).filter_map(|(page, text)| Some((page.strip_suffix(".md")?, text)));
    for (code, text) in pages {
        let page = format!("{PAGES}{code}.md");
        if !given.contains_key(code) {
            let what = format!("no source gives `{code}`");
            let mend = "mend its name, or take it and its row out";
            findings.push(Finding::new(&page, None, what, mend));
        }
        let title = format!("# {code}");
        if text.lines().next() != Some(title.as_str()) {
            let mend = format!("begin with `{title}`");
            findings.push(Finding::new(&page, 1, "does not begin with its code", mend));
        }
    }
    findings
}

/// Where a word was first met.
struct Place<'a> {
    path: &'a str,
    line: usize,
    /// Whether it must have a page; other words only may.
    must: bool,
}

/// What the sources can give: the codes, and all other words that an error may be called by.
fn given(tree: &Tree) -> BTreeMap<&str, Place<'_>> {
    let mut given: BTreeMap<&str, Place<'_>> = BTreeMap::new();
    for (path, text) in tree.sources().filter(|(path, _)| is_given(path)) {
        let tests = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
        for literal in strings(&text[..tests]) {
            let must = is_code(&literal) || is_name(&literal);
            if !must && !is_word(literal.text) {
                continue;
            }
            let place = Place { path, line: literal.line, must };
            let known = given.entry(literal.text).or_insert(place);
            if must && !known.must {
                *known = Place { path, line: literal.line, must };
            }
        }
    }
    given
}

fn is_given(path: &str) -> bool {
    let source = path.starts_with("crates/") && path.contains("/src/");
    let test = path.ends_with("/tests.rs") || path.contains("/tests/");
    source
        && !test
        && (FOR_USERS.contains(&path) || !TESTS.iter().any(|tests| path.starts_with(tests)))
}

/// In capitals, with `_` between words; a single word is a code where an error's code stands.
fn is_code(literal: &Literal<'_>) -> bool {
    let code = literal.text;
    let part = |part: &str| part.starts_with(|c: char| c.is_ascii_uppercase());
    let capitals = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    code.chars().all(capitals)
        && code.split('_').all(part)
        && (code.contains('_') || follows_kind(&literal.before))
        && !NOT_CODES.iter().any(|prefix| code.starts_with(prefix))
}

/// Whether an `ErrorKind::…,` or a `StatusCode::…,` is right before.
fn follows_kind(before: &str) -> bool {
    let last = before.strip_suffix(',').and_then(|before| before.rsplit(['(', ',']).next());
    last.is_some_and(|last| last.contains("ErrorKind::") || last.contains("StatusCode::"))
}

/// In the manner of types, where an error gets its name.
fn is_name(literal: &Literal<'_>) -> bool {
    is_word(literal.text) && NAMED.iter().any(|call| literal.before.ends_with(call))
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    const SOURCE: &str = "crates/a/src/lib.rs";

    fn of(source: &str) -> Vec<String> {
        found(check, &[(SOURCE, source)])
    }

    #[test]
    fn a_code_needs_a_page_and_a_row() {
        let source = "f(\"ok\");\nError::new(kind, \"RUN_GONE\", text);\n";
        let no_page = "crates/a/src/lib.rs:2: `RUN_GONE` has no page";
        let no_row = "docs/errors.md: has no row for `RUN_GONE`";
        assert_eq!(of(source), [no_page, no_row]);
        let page = ("docs/errors/RUN_GONE.md", "# RUN_GONE\n");
        assert_eq!(found(check, &[(SOURCE, source), page]), [no_row]);
        let row = ("docs/errors.md", "| [`RUN_GONE`](errors/RUN_GONE.md) | refused |\n");
        assert_eq!(found(check, &[(SOURCE, source), row]), [no_page]);
        assert_eq!(found(check, &[(SOURCE, source), page, row]), [""; 0]);
        let old = ("docs/errors.md", "| `RUN_GONE` | refused |\n");
        assert_eq!(found(check, &[(SOURCE, source), page, old]), [no_row]);
    }

    #[test]
    fn what_is_a_code() {
        for (source, expect) in [
            ("ApiError::invalid(\"INVALID_X\", text)", true),
            ("Self::Do => \"STEP_FAILED\"", true),
            ("Error::new(ErrorKind::Internal, \"INTERNAL\", text)", true),
            ("ApiError::new(\n    StatusCode::GONE,\n    \"GONE\",\n    text)", true),
            ("Failure::new(\"Timeout\", text)", true),
            ("failure(\"Panic\", text)", true),
            ("table(&[\"GONE\"])", false),
            ("env(\"WINDLASS_STORE\")", false),
            ("own(key, \"SetRun\")", false),
            ("// as RUN_GONE or \"RUN_GONE\"", false),
            ("\"a RUN_GONE b\"", false),
            ("f();\n\n#[cfg(test)]\nmod tests {\n f(\"RUN_GONE\") }", false),
        ] {
            assert_eq!(!of(source).is_empty(), expect, "{source}");
        }
    }

    #[test]
    fn a_name_is_on_the_page_of_the_code_that_sounds_alike() {
        let source = "f(\"EVENT_LATE\"); failure(\"EventLate\", text)";
        let page = ("docs/errors/EVENT_LATE.md", "# EVENT_LATE\n");
        let row = ("docs/errors.md", "| [`EVENT_LATE`](errors/EVENT_LATE.md) |\n");
        assert_eq!(found(check, &[(SOURCE, source), page, row]), [""; 0]);
    }

    #[test]
    fn codes_of_tests_do_not_count() {
        let source = "f(\"RUN_GONE\")";
        for (path, expect) in [
            ("crates/a/src/deep/b.rs", true),
            ("crates/windlass-testkit/src/replay.rs", true),
            ("crates/windlass-testkit/src/sim/store.rs", false),
            ("crates/windlass-bench/src/main.rs", false),
            ("crates/a/tests/it/main.rs", false),
            ("crates/a/src/b/tests.rs", false),
            ("xtask/src/a.rs", false),
        ] {
            assert_eq!(!found(check, &[(path, source)]).is_empty(), expect, "{path}");
        }
    }

    #[test]
    fn a_page_needs_a_code_and_begins_with_it() {
        let source = (SOURCE, "let name = \"SqlError\";");
        for (path, text, expect) in [
            ("docs/errors/SqlError.md", "# SqlError\n", None),
            ("docs/errors/SqlError.md", "# SQL\n", Some(":1: does not begin with its code")),
            ("docs/errors/RUN_GONE.md", "# RUN_GONE\n", Some(": no source gives `RUN_GONE`")),
        ] {
            let expect = expect.map(|what| format!("{path}{what}"));
            assert_eq!(found(check, &[source, (path, text)]), Vec::from_iter(expect), "{path}");
        }
    }
}
