//! Checks of every file: a first sentence, a maximum length, and no machine-specific paths.

use super::Finding;
use super::tree::Tree;

const LINES_MAX: usize = 800;
/// The minimum length of the first sentence, which excludes `//! TBD`.
const OPENING_WORDS_MIN: usize = 3;
/// Root directories that contain private files of users and tools.
const PRIVATE: &[&str] = &["home", "root", "Users", "work"];

/// Every source file starts with a sentence about its purpose.
pub(super) fn openings(tree: &Tree) -> Vec<Finding> {
    let opens = |text: &str| {
        let sentence = text.lines().next().and_then(|line| line.strip_prefix("//!"));
        sentence.is_some_and(|words| words.split_whitespace().count() >= OPENING_WORDS_MIN)
    };
    tree.sources()
        .filter(|(_, text)| !opens(text))
        .map(|(path, _)| {
            let mend = "say in its first line what the file is for: `//! …`";
            Finding::new(path, 1, "does not open with a sentence", mend)
        })
        .collect()
}

/// No source file is too long.
pub(super) fn lengths(tree: &Tree) -> Vec<Finding> {
    tree.sources()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| {
            let what = format!("has {lines} lines, more than {LINES_MAX}");
            Finding::new(path, None, what, "split it by meaning")
        })
        .collect()
}

/// No file contains a path that exists on only one machine.
pub(super) fn private_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files() {
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(directory) = PRIVATE.iter().find(|directory| names(line, directory)) {
                let what = format!("names a path below /{directory} of one machine");
                findings.push(Finding::new(path, number, what, "make it relative, or take it out"));
            }
        }
    }
    findings
}

/// Whether the line contains an absolute path into this directory.
fn names(line: &str, directory: &str) -> bool {
    let start = format!("/{directory}/");
    let before_path = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '}');
    line.match_indices(&start).any(|(at, _)| {
        let is_start = !line[..at].chars().next_back().is_some_and(before_path);
        let goes_on =
            line[at + start.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '.');
        is_start && goes_on
    })
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn a_file_without_an_opening_is_found() {
        for (text, expect) in [
            ("//! What the file is for.\n", true),
            ("//! TBD\n", false),
            ("fn f() {}\n", false),
            ("\n//! What the file is for.\n", false),
            ("// What the file is for.\n", false),
            ("", false),
        ] {
            assert_eq!(found(openings, &[("a.rs", text)]).is_empty(), expect, "{text:?}");
        }
        assert_eq!(found(openings, &[("a.rs", "")]), ["a.rs:1: does not open with a sentence"]);
        assert_eq!(found(openings, &[("a.md", "")]), [""; 0]);
    }

    #[test]
    fn a_long_file_is_found() {
        let long = "\n".repeat(801);
        assert_eq!(found(lengths, &[("a.rs", &long)]), ["a.rs: has 801 lines, more than 800"]);
        assert_eq!(found(lengths, &[("a.rs", &long[1..]), ("a.md", &long)]), [""; 0]);
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        for directory in PRIVATE {
            for (line, expect) in [
                ("open(\"/{}/me/file\")", true),
                ("/{}/me", true),
                ("see `/{}/.cache`", true),
                ("docs/{}/me", false),
                ("../{}/me", false),
                ("https://host/{}/me", false),
                ("format!(\"{root}/{}/me\")", false),
                ("/{}", false),
                ("/{}/", false),
                ("the /{}/ directory", false),
            ] {
                // Formatted at run time, because the check would find a literal path in this test.
                let text = line.replace("{}", directory);
                assert_eq!(!found(private_paths, &[("a.md", &text)]).is_empty(), expect, "{text}");
            }
        }
    }
}
