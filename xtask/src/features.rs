//! `cargo xtask features`: compiles every crate that has features with sets of them.
//!
//! The sets come from the manifests, so a new feature is covered without a change here.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::metadata::{self, Package};
use crate::{process, workspace};

/// Checks each set without default features, even after a failure.
pub(crate) fn run(root: &Path, interrupt: &Interrupt) -> Result<ExitCode> {
    let mut failed = Vec::new();
    let mut count = 0;
    for package in metadata::members(root)?.iter().filter(|package| !package.features.is_empty()) {
        for set in sets(package) {
            interrupt.check()?;
            let features = set.join(",");
            println!("{} --no-default-features --features '{features}'", package.name);
            count += 1;
            if !check(root, &package.name, &features, interrupt)? {
                failed.push(format!("{} with '{features}'", package.name));
            }
        }
    }
    for line in &failed {
        println!("features: failed: {line}");
    }
    println!("features: {} of {count} sets compile", count - failed.len());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Uses clippy instead of `cargo check`, because it can deny warnings without `RUSTFLAGS`, which
/// would compile every dependency again.
fn check(root: &Path, package: &str, features: &str, interrupt: &Interrupt) -> Result<bool> {
    let mut cargo = workspace::cargo(root);
    // Omits tests and examples: their dependencies enable features of the library.
    cargo.args(["clippy", "--quiet", "-p", package, "--lib", "--bins", "--no-default-features"]);
    cargo.args(["--features", features, "--", "-D", "warnings"]).stdin(Stdio::null());
    Ok(process::run(&mut cargo, interrupt)?.success())
}

/// No feature, each alone, all but each one, all, and each group such as `default`. Pairs would
/// double the time.
fn sets(package: &Package) -> Vec<Vec<&str>> {
    let is_group = |name: &str| {
        name == "default"
            || package.features[name].len() > 1
                && package.features[name].iter().all(|item| package.features.contains_key(item))
    };
    let (groups, single): (Vec<&str>, Vec<&str>) =
        package.features.keys().map(String::as_str).partition(|name| is_group(name));
    let mut sets = BTreeSet::from([vec![], single.clone()]);
    for name in &single {
        sets.insert(vec![name]);
        sets.insert(single.iter().copied().filter(|other| other != name).collect());
    }
    for group in groups {
        sets.insert(vec![group]);
    }
    let mut sets: Vec<Vec<&str>> = sets.into_iter().collect();
    sets.sort_by_key(Vec::len);
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets_of(features: &[(&str, &[&str])]) -> Vec<String> {
        let own = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        let features =
            features.iter().map(|(name, items)| ((*name).to_owned(), own(items))).collect();
        let package = Package { features, ..Package::default() };
        sets(&package).iter().map(|set| set.join(",")).collect()
    }

    #[test]
    fn each_feature_is_tried_alone_and_left_out() {
        let sets = sets_of(&[
            ("default", &["a"]),
            ("a", &[]),
            ("b", &["dep:b"]),
            ("c", &["a"]),
            ("d", &[]),
            ("full", &["a", "b", "c", "d"]),
        ]);
        let expect = [
            "", "a", "b", "c", "d", "default", "full", "a,b,c", "a,b,d", "a,c,d", "b,c,d",
            "a,b,c,d",
        ];
        assert_eq!(sets, expect);
    }

    #[test]
    fn one_feature_gives_two_sets() {
        assert_eq!(sets_of(&[("webhooks", &["windlass/webhooks"])]), ["", "webhooks"]);
    }
}
