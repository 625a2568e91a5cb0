//! The stage `package` of `cargo xtask ci`: every crate that is published can be packaged.

use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::metadata::{self, Package};
use crate::{process, workspace};

/// Packages all published crates of the workspace without compiling them again.
pub(crate) fn run(root: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    let members = metadata::members(root)?;
    let mut cargo = workspace::cargo(root);
    // The working tree of a contributor has changes that are not committed yet. Earlier stages have
    // downloaded everything; cargo would ask the registry for our own crates, which are not there.
    cargo.args(["package", "--quiet", "--no-verify", "--allow-dirty", "--locked", "--offline"]);
    cargo.arg("--workspace");
    for package in members.iter().filter(|package| !package.is_published()) {
        cargo.args(["--exclude", &package.name]);
    }
    cargo.stdin(Stdio::null());
    let packaged = process::run(&mut cargo, interrupt)?.success();
    let findings = incomplete(&members);
    for finding in &findings {
        println!("{finding}");
    }
    Ok(if packaged && findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The fields that crates.io shows and that cargo does not ask for.
fn incomplete(members: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in members.iter().filter(|package| package.is_published()) {
        for (field, is_missing) in [
            ("description", package.description.is_none()),
            ("license", package.license.is_none()),
            ("readme", package.readme.is_none()),
            ("keywords", package.keywords.is_empty()),
            ("categories", package.categories.is_empty()),
        ] {
            if is_missing {
                findings.push(format!("{} has no `{field}` in its manifest", package.name));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_published_crate_describes_itself() {
        let bare = Package { name: "a".to_owned(), ..Package::default() };
        let private = Package { name: "b".to_owned(), publish: Some(vec![]), ..Package::default() };
        let full = Package {
            name: "c".to_owned(),
            description: Some("C".to_owned()),
            license: Some("MIT".to_owned()),
            readme: Some("README.md".to_owned()),
            keywords: vec!["c".to_owned()],
            categories: vec!["c".to_owned()],
            ..Package::default()
        };
        let found = incomplete(&[bare, private, full]);
        assert_eq!(found.len(), 5, "{found:?}");
        assert_eq!(found[0], "a has no `description` in its manifest");
    }
}
