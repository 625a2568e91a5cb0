//! Checks that all paths in the docs and in source comments exist, and that the Rust blocks of the docs are
//! compiled.

use super::Finding;
use super::tree::Tree;

/// Prefixes of words in code that are paths of this repository.
const ROOTS: &[&str] = &["crates/", "docs/", "xtask/", ".ci/", ".cargo/"];
/// A path with one of these characters is a pattern with a placeholder.
const HOLES: &[&str] = &["<", "{", "…", "...", "$"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let pages = tree.files().filter(|(path, _)| is_page(path));
    let in_pages = pages.flat_map(|(path, text)| check_page(tree, path, text));
    in_pages.chain(tree.sources().flat_map(|(path, text)| check_source(tree, path, text))).collect()
}

/// The guides with Rust blocks that no crate compiles as doc tests. Pages of errors and decisions show
/// fragments.
pub(super) fn blocks(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_guide = |path: &str| is_page(path) && path.matches('/').count() <= 1;
    for (page, text) in tree.files().filter(|(path, _)| is_guide(path)) {
        let is_block = |line: &str| {
            let tag = line.trim_start().strip_prefix("```").unwrap_or_default();
            tag.split(',').any(|word| word.trim() == "rust")
        };
        let Some(line) = text.lines().position(is_block) else { continue };
        let included = format!("#[doc = include_str!(\"../../../{page}\")]");
        if !tree.below("crates/").any(|(_, source)| source.contains(&included)) {
            let what = "has Rust blocks that no doc test compiles";
            let mend = "include the page in crates/windlass/src/documents.rs";
            findings.push(Finding::new(page, line + 1, what, mend));
        }
    }
    findings
}

fn is_page(path: &str) -> bool {
    path.ends_with(".md") && (path.starts_with("docs/") || !path.contains('/'))
}

fn check_page(tree: &Tree, page: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let (prose, code) = if fenced { (String::new(), line.to_owned()) } else { split(line) };
        let missing_in_code = code_paths(&code)
            .filter(|path| !tree.has(path) && !tree.has(&resolve(page, path)))
            .map(|path| missing(page, number, "names", path));
        let missing_links = links(&prose)
            .filter(|link| !tree.has(&resolve(page, link)))
            .map(|link| missing(page, number, "links to", link));
        findings.extend(missing_in_code.chain(missing_links));
    }
    findings
}

fn check_source(tree: &Tree, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let comment = comment.replace('`', " ");
        let named = code_paths(&comment).filter(|named| !tree.has(named));
        findings.extend(named.map(|named| missing(path, number, "names", named)));
    }
    findings
}

fn missing(file: &str, line: usize, verb: &str, path: &str) -> Finding {
    let what = format!("{verb} `{path}`, which is not there");
    Finding::new(file, line, what, "name what is there, or nothing")
}

/// Splits a line into its prose and its code between backticks.
fn split(line: &str) -> (String, String) {
    let mut halves = (String::new(), String::new());
    for (index, piece) in line.split('`').enumerate() {
        let half = if index % 2 == 0 { &mut halves.0 } else { &mut halves.1 };
        half.push_str(piece);
        // Keeps words on both sides of a piece apart; the text of a link needs no separator.
        half.push(' ');
    }
    halves
}

/// The words that look like paths of this repository.
fn code_paths(code: &str) -> impl Iterator<Item = &str> {
    code.split_whitespace().map(bare).filter(|word| looks_like_path(word))
}

/// Removes quotes, commas, anchors and line numbers around a path.
fn bare(word: &str) -> &str {
    let word = word.trim_start_matches("./");
    let word = word.trim_matches(|c| matches!(c, '"' | '\'' | '(' | ')' | ',' | ';' | ':' | '!'));
    let word = word.split(['#', ':']).next().unwrap_or_default();
    word.trim_end_matches('.')
}

fn looks_like_path(word: &str) -> bool {
    let page = word.len() > ".md".len() && word.ends_with(".md") && !word.contains('/');
    (page || ROOTS.iter().any(|root| word.starts_with(root)))
        && !HOLES.iter().any(|hole| word.contains(hole))
}

/// The targets of links to files: `[text](target)` and `[name]: target`.
fn links(prose: &str) -> impl Iterator<Item = &str> {
    let inline = prose.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let named = prose.strip_prefix('[').and_then(|rest| Some(rest.split_once("]: ")?.1.trim()));
    inline
        .chain(named)
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains(':'))
}

/// The target of a link as a path from the root of the repository.
fn resolve(doc: &str, link: &str) -> String {
    let directory =
        if link.starts_with('/') { "" } else { doc.rsplit_once('/').map_or("", |(dir, _)| dir) };
    let mut parts: Vec<&str> = Vec::new();
    for part in directory.split('/').chain(link.split('/')) {
        match part {
            "" | "." => {}
            // Outside the repository: no file has this name.
            ".." if parts.is_empty() => parts.push(".."),
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    const FILES: &[(&str, &str)] = &[
        ("LICENSE", ""),
        ("docs/guide.md", ""),
        ("docs/decisions/0001-a.md", ""),
        ("crates/a/src/lib.rs", ""),
    ];

    fn findings(doc: &str, text: &str) -> Vec<String> {
        found(check, &[FILES, &[(doc, text)]].concat())
    }

    #[test]
    fn what_is_not_there_is_found() {
        for (text, missing) in [
            ("see `crates/b/src/lib.rs`", "names `crates/b/src/lib.rs`"),
            ("see `crates/b/src/lib.rs:12`.", "names `crates/b/src/lib.rs`"),
            ("run `cat crates/a/gone.rs` now", "names `crates/a/gone.rs`"),
            ("see `docs/decisions/*-b.md`", "names `docs/decisions/*-b.md`"),
            ("see `GONE.md`", "names `GONE.md`"),
            ("[a page](docs/gone.md)", "links to `docs/gone.md`"),
            ("[`code`](docs/gone.md#part)", "links to `docs/gone.md`"),
            ("[page]: docs/gone.md", "links to `docs/gone.md`"),
            ("[out](../guide.md)", "links to `../guide.md`"),
            ("[one](LICENSE) [two](gone)", "links to `gone`"),
            ("```\ncat crates/gone\n```", "names `crates/gone`"),
        ] {
            let line = if text.starts_with("```") { 2 } else { 1 };
            let expect = format!("PAGE.md:{line}: {missing}, which is not there");
            assert_eq!(findings("PAGE.md", text), [expect], "{text}");
        }
    }

    #[test]
    fn what_is_there_or_no_path_is_free() {
        for text in [
            "see `crates/a/src/lib.rs`, `crates/a/`, `crates/*/src/lib.rs:3` and `docs/guide.md#x`",
            "`PAGE.md` and `cargo run -p crates` and `docs/decisions/<number>-<name>.md`",
            "[a](LICENSE) [b](docs/guide.md#part) [c](#here) [d](https://example.org/docs/gone.md)",
            "[page]: docs/guide.md",
            "crates/gone in prose is no path",
            "`[not a link](docs/gone)` but code",
            "```\nls crates/a\n```\n[a](LICENSE)",
        ] {
            assert_eq!(findings("PAGE.md", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn links_start_where_the_page_is() {
        for (link, there) in [
            ("../LICENSE", true),
            ("/LICENSE", true),
            ("decisions/0001-a.md", true),
            ("./decisions/", true),
            ("LICENSE", false),
            ("../../LICENSE", false),
        ] {
            let text = format!("[text]({link})");
            assert_eq!(findings("docs/page.md", &text).is_empty(), there, "{link}");
        }
    }

    #[test]
    fn a_page_with_rust_is_compiled() {
        let source = "#[doc = include_str!(\"../../../docs/a.md\")]\nstruct A;";
        for (page, text, line) in [
            ("docs/a.md", "```rust\n```", None),
            ("docs/b.md", "```sh\n```", None),
            ("docs/b.md", "`rust`\n```rust\n```", Some(2)),
            ("docs/b.md", "```rust,no_run\n```", Some(1)),
            ("README.md", "```rust\n```", Some(1)),
            ("docs/errors/A.md", "```rust\n```", None),
        ] {
            let found = found(blocks, &[("crates/a/src/lib.rs", source), (page, text)]);
            let expect = line
                .map(|line| format!("{page}:{line}: has Rust blocks that no doc test compiles"));
            assert_eq!(found, Vec::from_iter(expect), "{page} {text}");
        }
    }

    #[test]
    fn comments_are_checked_and_code_is_not() {
        let text = "//! See docs/gone.md.\n/// As `docs/guide.md` says.\nf(\"docs/gone.md\");";
        assert_eq!(
            findings("crates/a/src/a.rs", text),
            ["crates/a/src/a.rs:1: names `docs/gone.md`, which is not there"]
        );
    }

    #[test]
    fn only_pages_for_readers_are_checked() {
        assert_eq!(findings("crates/a/notes.md", "`crates/gone`"), [""; 0]);
        assert_eq!(findings("docs/deep/page.md", "`crates/gone`").len(), 1);
    }
}
