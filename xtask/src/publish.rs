//! The stage `package` of `cargo xtask ci`: every crate that is published can be packaged.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{ExitCode, Stdio};

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::metadata::{self, Package};
use crate::{process, workspace};

/// Packages all published crates of the workspace without compiling them again. A package that compiles
/// here and not alone lacks a file, and a file is lost only if it is outside the crate's directory. (The
/// manifest of `windlass-server` excludes sources of the dashboard, which no Rust file includes.)
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
    let mut findings = incomplete(&members);
    for package in members.iter().filter(|package| package.is_published()) {
        findings.extend(outside(&root.join("crates").join(&package.name))?);
    }
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

/// The files outside a crate's directory that its sources include. Documentation and tests may: neither is
/// compiled in a program that depends on the crate.
fn outside(directory: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in sources(&directory.join("src"))? {
        let text = fs::read_to_string(&file)?;
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(&text);
        for (number, line) in (1..).zip(code.lines()) {
            if line.trim_start().starts_with(['/', '#']) {
                continue;
            }
            let included = ["include_str!(\"", "include_bytes!(\"", "include!(\""]
                .iter()
                .filter_map(|call| line.split_once(call)?.1.split('"').next());
            for included in included {
                if !resolve(&file, included).starts_with(directory) {
                    let file = file.display();
                    findings.push(format!("{file}:{number}: a package has no `{included}`"));
                }
            }
        }
    }
    Ok(findings)
}

fn sources(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(sources(&path)?),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                found.push(path)
            }
            false => {}
        }
    }
    found.sort();
    Ok(found)
}

/// The path that a source file names relative to itself.
fn resolve(file: &Path, named: &str) -> PathBuf {
    let mut path = file.parent().unwrap_or(file).to_owned();
    for part in Path::new(named).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_outside_the_crate_is_found() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a");
        let inner = directory.join("src/inner");
        fs::create_dir_all(&inner).unwrap();
        let found = |text: &str| {
            fs::write(inner.join("b.rs"), text).unwrap();
            let findings = outside(&directory).unwrap();
            findings.iter().map(|line| line.rsplit_once(": ").unwrap().1.to_owned()).next()
        };
        for (text, expect) in [
            ("const A: &str = include_str!(\"../../V1.sql\");", None),
            ("const A: &str = include_str!(\"c.sql\");", None),
            ("const A: &str = include_str!(\"../../../V1.sql\");", Some("../../../V1.sql")),
            ("f(include_bytes!(\"../../../../d\"))", Some("../../../../d")),
            ("#[doc = include_str!(\"../../../README.md\")]", None),
            ("// include_str!(\"../../../README.md\")", None),
            ("#[cfg(test)]\nmod tests {\n    f(include_str!(\"../../../x\"))\n}", None),
        ] {
            let expect = expect.map(|path| format!("a package has no `{path}`"));
            assert_eq!(found(text), expect, "{text}");
        }
    }

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
