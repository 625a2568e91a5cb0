//! `cargo xtask tidy`: checks rules of this repository that no compiler or linter checks.

mod bans;
mod code;
mod docs;
mod edges;
mod errors;
mod files;
mod models;
mod tree;
mod twins;
mod ui;

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use self::tree::Tree;

type Check = fn(&Tree) -> Vec<Finding>;

/// All checks with their rules.
const CHECKS: &[(&str, Check)] = &[
    ("each crate depends on what it may know", edges::check),
    ("models do not know each other", models::check),
    ("both SQL stores have the same files", twins::check),
    ("every source file says what it is for", files::openings),
    ("no source file is too long to read", files::lengths),
    ("no file names a directory of one machine", files::private_paths),
    ("the committed dashboard was built from its sources", ui::check),
    ("what is banned is absent", bans::check),
    ("every error code has a page", errors::check),
    ("every path that docs and comments name is there", docs::check),
    ("the Rust blocks of the docs are compiled", docs::blocks),
];

/// A violation: its location, the problem, and how to fix it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    file: String,
    /// The line, starting at 1; none if the finding is about the whole file.
    line: Option<usize>,
    what: String,
    mend: String,
}

impl Finding {
    fn new(
        file: impl Into<String>,
        line: impl Into<Option<usize>>,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { file: file.into(), line: line.into(), what: what.into(), mend: mend.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}\n    {}", self.what, self.mend)
    }
}

/// Prints all findings of all checks; any finding is a failure.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let tree = Tree::read(root)?;
    let findings: Vec<Finding> = CHECKS.iter().flat_map(|(_, check)| check(&tree)).collect();
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} files, {} rules, all kept", tree.len(), CHECKS.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("tidy: {} findings", findings.len());
    Ok(ExitCode::FAILURE)
}

/// The findings of one check on a small tree, as `file:line: what` lines.
#[cfg(test)]
fn found(check: Check, files: &[(&str, &str)]) -> Vec<String> {
    let mut findings = check(&Tree::of(files));
    findings.sort();
    let shown = findings.iter().map(ToString::to_string);
    shown.map(|text| text.lines().next().unwrap_or_default().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_finding_shows_where_what_and_what_to_do() {
        let finding = Finding::new("a.rs", 3, "is wrong", "make it right");
        assert_eq!(finding.to_string(), "a.rs:3: is wrong\n    make it right");
        let finding = Finding::new("a.rs", None, "is wrong", "make it right");
        assert_eq!(finding.to_string(), "a.rs: is wrong\n    make it right");
    }

    #[test]
    fn any_finding_fails_and_none_passes() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.rs"), "//! A file that says what it is for.\n").unwrap();
        assert_eq!(run(root.path()).unwrap(), ExitCode::SUCCESS);
        fs::write(root.path().join("b.rs"), "fn undocumented() {}\n").unwrap();
        assert_eq!(run(root.path()).unwrap(), ExitCode::FAILURE);
    }
}
