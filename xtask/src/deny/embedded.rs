//! A program with the default features of `windlass` compiles few crates, so that its first build is short.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// The most crates that such a program compiles, with those of `windlass` and of build scripts.
const CRATES_MAX: usize = 130;

/// A finding if there are more crates.
pub(super) fn check(root: &Path) -> Result<Option<String>> {
    let mut cargo = workspace::cargo(root);
    cargo.args(["tree", "--locked", "-p", "windlass", "-e", "normal,build", "--prefix", "none"]);
    let output = cargo.output().context("could not run cargo tree")?;
    ensure!(
        output.status.success(),
        "cargo tree failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(finding(&String::from_utf8_lossy(&output.stdout), CRATES_MAX))
}

fn finding(tree: &str, crates_max: usize) -> Option<String> {
    // Cargo marks a crate that it has printed before.
    let crates: BTreeSet<&str> = tree
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .collect();
    (crates.len() > crates_max).then(|| {
        format!(
            "a program with the default features of windlass compiles {} crates, the limit is \
             {crates_max}: put the new dependency behind a feature (`cargo tree -p windlass`)",
            crates.len()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_counts_once() {
        let tree = "windlass v0.1.0\nserde v1.0.0\nserde_json v1.0.0\nserde v1.0.0 (*)\n";
        assert_eq!(finding(tree, 3), None);
        let found = finding(tree, 2).unwrap();
        assert!(found.contains("compiles 3 crates, the limit is 2"), "{found}");
    }
}
