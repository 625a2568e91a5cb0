//! Checks that each error code of the kernel and each error name has a page below docs/errors and a
//! row in docs/errors.md, and that no source compares a code with a string.

use std::collections::BTreeMap;

use super::Finding;
use super::code::{Literal, strings};
use super::tree::Tree;

const INDEX: &str = "docs/errors.md";
const PAGES: &str = "docs/errors/";
/// The table of all codes.
const TABLE: &str = "crates/windlass-kernel/src/error/code.rs";

/// Crates that only test others: users do not see their codes.
const TESTS: &[&str] = &["crates/windlass-bench/", "crates/windlass-testkit/"];
/// Exceptions: files that users call in their own tests.
const FOR_USERS: &[&str] = &["crates/windlass-testkit/src/replay.rs"];
/// Prefixes of words in capitals that are environment variables instead of codes.
const NOT_CODES: &[&str] = &[
    "ANTHROPIC_",
    "CARGO_",
    "ENABLE_API_ARMOR",
    "NO_COLOR",
    "OPENAI_",
    "OTEL_",
    "OUT_DIR",
    "WINDLASS_",
];
/// Calls whose argument is an error name that users see, such as `Timeout`.
const NAMED: &[&str] = &["Failure::new(", "failure("];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let given = given(tree);
    let mut findings = compared_with_text(tree);
    let index = tree.files().find(|(path, _)| *path == INDEX).map_or("", |(_, text)| text);
    for (code, Place { path, line, must }) in &given {
        // The page of EVENT_TIMEOUT covers `EventTimeout`.
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

/// The first occurrence of a word.
struct Place<'a> {
    path: &'a str,
    line: usize,
    /// Whether it must have a page. Other words may have one.
    must: bool,
}

/// The codes in the sources, and all other words that may be error names.
fn given(tree: &Tree) -> BTreeMap<&str, Place<'_>> {
    let mut given: BTreeMap<&str, Place<'_>> = BTreeMap::new();
    for (path, text) in tree.sources().filter(|(path, _)| is_given(path)) {
        let tests = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
        for literal in strings(&text[..tests]) {
            let must = is_code(path, &literal) || is_name(&literal);
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

/// Whether a word has the form of a code: capitals with `_` between words. A single word is a code
/// only in the table of codes.
fn is_code(path: &str, literal: &Literal<'_>) -> bool {
    let code = literal.text;
    let part = |part: &str| part.starts_with(|c: char| c.is_ascii_uppercase());
    let capitals = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    code.chars().all(capitals)
        && code.split('_').all(part)
        && (code.contains('_') || path == TABLE)
        && !NOT_CODES.iter().any(|prefix| code.starts_with(prefix))
}

/// Finds comparisons of a code with a string: a misspelled string compiles and never matches.
fn compared_with_text(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.sources().filter(|(path, _)| is_given(path)) {
        let tests = text.find("\n#[cfg(test)]\nmod ").unwrap_or(text.len());
        let compared = strings(&text[..tests]).into_iter().filter(|literal| {
            let before = &literal.before;
            before.ends_with(".code()==") || before.ends_with(".code()!=")
        });
        for literal in compared {
            let what = format!("compares an error's code with the text {:?}", literal.text);
            let mend = "compare it with a variant of `ErrorCode`";
            findings.push(Finding::new(path, literal.line, what, mend));
        }
    }
    findings
}

/// Whether a word has the form of an error name: CamelCase.
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
    fn a_single_word_is_a_code_in_the_table() {
        let found = found(check, &[(TABLE, "Gone = \"GONE\",")]);
        let no_page = format!("{TABLE}:1: `GONE` has no page");
        assert_eq!(found, [&*no_page, "docs/errors.md: has no row for `GONE`"]);
    }

    #[test]
    fn a_code_is_not_compared_with_a_text() {
        let expect = "crates/a/src/lib.rs:1: compares an error's code with the text \"Gone\"";
        assert_eq!(of("if error.code() == \"Gone\" {}"), [expect]);
        assert_eq!(of("if error.code() == ErrorCode::Gone {}"), [""; 0]);
        assert_eq!(of("f();\n\n#[cfg(test)]\nmod tests {\n error.code() == \"Gone\" }"), [""; 0]);
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
