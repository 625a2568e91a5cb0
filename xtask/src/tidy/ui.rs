//! Checks that the committed output of the dashboard was built from the committed sources. Needs no Node:
//! `crates/windlass-server/ui/scripts/seal.mjs` has recorded the hash of the sources, and of each file of the output.

use sha2::{Digest, Sha256};

use super::Finding;
use super::tree::Tree;

const UI: &str = "crates/windlass-server/ui/";
const DIST: &str = "dist/";
const SEAL: &str = "dist/sources.sha256";
const OUTPUT: &str = "dist/output.sha256";
/// The sources beside `src/` and `public/`, as the script has them.
const SOURCES: [&str; 5] =
    ["index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let is_source = |path: &str| {
        SOURCES.contains(&path) || path.starts_with("src/") || path.starts_with("public/")
    };
    // The tree is sorted by path.
    let sources: Vec<(&str, &str)> = tree.below(UI).filter(|(path, _)| is_source(path)).collect();
    if sources.is_empty() {
        return Vec::new();
    }
    let mut hash = Sha256::new();
    for (path, text) in sources {
        hash.update(format!("{path}\n{}\n{text}", text.len()));
    }
    let computed = hex(hash);
    let sealed = tree.below(UI).find(|(path, _)| *path == SEAL).map(|(_, text)| text.trim());
    let mut wrong = Vec::new();
    if sealed != Some(computed.as_str()) {
        wrong.push((SEAL, "was not built from these sources of the dashboard"));
    }
    if output_of(tree).as_bytes() != tree.bytes(&format!("{UI}{OUTPUT}")).unwrap_or_default() {
        wrong.push((OUTPUT, "does not have the hashes of the committed output of the dashboard"));
    }
    let mend = "run `cargo xtask ui`, and commit the output together with the sources";
    let found = wrong.into_iter();
    found.map(|(path, what)| Finding::new(format!("{UI}{path}"), None, what, mend)).collect()
}

/// The hashes of the output, as the script writes them.
fn output_of(tree: &Tree) -> String {
    let dist = format!("{UI}{DIST}");
    let files = tree.below(&dist).filter(|(path, _)| !path.ends_with(".sha256"));
    let line = |(path, _): (&str, &str)| {
        let bytes = tree.bytes(&format!("{dist}{path}")).unwrap_or_default();
        format!("{}  {path}\n", hex(Sha256::new_with_prefix(bytes)))
    };
    files.map(line).collect()
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn output_of_other_sources_is_found() {
        let source = "crates/windlass-server/ui/src/main.tsx";
        let seal = "crates/windlass-server/ui/dist/sources.sha256";
        // The digest of "src/main.tsx\n4\ntext".
        let digest = "c46d0b67a8d7dfdf3fbcc3c8aa32d5b335c855d8de63a660501c6bdf2fda22a9\n";
        let none: [String; 0] = [];
        assert_eq!(found(check, &[("a.rs", "")]), none);
        assert_eq!(found(check, &[(source, "text"), (seal, digest)]), none);
        for files in [
            &[(source, "Text"), (seal, digest)][..],
            &[(source, "text"), (seal, "")],
            &[(source, "text")],
        ] {
            assert_eq!(found(check, files).len(), 1, "{files:?}");
        }
        // The digest of "text".
        let line = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1  a.js\n";
        let output = "crates/windlass-server/ui/dist/output.sha256";
        let file = "crates/windlass-server/ui/dist/a.js";
        let built = [(source, "text"), (seal, digest)];
        for (files, findings) in [
            (&[(file, "text"), (output, line)][..], 0),
            (&[(file, "Text"), (output, line)][..], 1),
            (&[(output, line)][..], 1),
            (&[(file, "text")][..], 1),
        ] {
            let all: Vec<_> = built.iter().chain(files).copied().collect();
            assert_eq!(found(check, &all).len(), findings, "{files:?}");
        }
    }
}
