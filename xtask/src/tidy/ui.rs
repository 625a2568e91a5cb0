//! Checks that the committed output of the dashboard was built from the committed sources. Needs no Node:
//! `crates/windlass-server/ui/scripts/seal.mjs` has recorded the hash of the sources beside the output.

use sha2::{Digest, Sha256};

use super::Finding;
use super::tree::Tree;

const UI: &str = "crates/windlass-server/ui/";
const SEAL: &str = "dist/sources.sha256";
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
    let computed: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    let sealed = tree.below(UI).find(|(path, _)| *path == SEAL).map(|(_, text)| text.trim());
    if sealed == Some(computed.as_str()) {
        return Vec::new();
    }
    let what = "was not built from these sources of the dashboard";
    let mend = "run `cargo xtask ui`, and commit the output together with the sources";
    vec![Finding::new(format!("{UI}{SEAL}"), None, what, mend)]
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
    }
}
