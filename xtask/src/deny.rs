//! `cargo xtask deny`: checks every dependency against `deny.toml` without a network.
//!
//! This is the part of `cargo deny check` that needs only the lock file and the manifests:
//! licences, bans, duplicate versions, wildcards and sources. Known vulnerabilities and yanked
//! versions need the advisory database, so `cargo deny check advisories` stays a command for a
//! machine with a network. It also limits the number of crates that an embedding program compiles.

mod embedded;
mod licence;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::metadata::{self, Package};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The fields of `deny.toml` that this check reads; cargo-deny reads the rest.
#[derive(Deserialize)]
struct Policy {
    licenses: Licences,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Bans {
    multiple_versions: String,
    deny: Vec<Entry>,
    /// Versions that may be duplicates of another version of the same crate.
    #[serde(default)]
    skip: Vec<Entry>,
}

/// A crate that `deny.toml` names, as `name` or `name@version`.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

impl Entry {
    fn matches(&self, package: &Locked) -> bool {
        match self.name.split_once('@') {
            Some((name, version)) => name == package.name && version == package.version,
            None => self.name == package.name,
        }
    }
}

/// `Cargo.lock`: the packages of all platforms.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    source: Option<String>,
}

/// Prints all violations of the policy; each one except warnings is a failure.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let policy: Policy = read(&root.join("deny.toml"))?;
    let lock: Lock = read(&root.join("Cargo.lock"))?;
    let graph = metadata::graph(root)?;
    let mut findings: Vec<String> =
        [licences(&policy, &graph), bans(&policy, &lock), wildcards(&graph), sources(&lock)]
            .concat();
    findings.extend(embedded::check(root)?);
    let mut warnings = unused_skips(&policy, &lock);
    match policy.bans.multiple_versions.as_str() {
        "deny" => findings.extend(duplicates(&policy, &graph)),
        "warn" => warnings.extend(duplicates(&policy, &graph)),
        _ => {}
    }
    for warning in &warnings {
        println!("warning: {warning}");
    }
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        println!("deny: {} packages, nothing breaks deny.toml", graph.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("deny: {} findings", findings.len());
    Ok(ExitCode::FAILURE)
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text =
        fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("could not parse {}", path.display()))
}

fn licences(policy: &Policy, graph: &[Package]) -> Vec<String> {
    let is_allowed = |name: &str| policy.licenses.allow.iter().any(|allowed| allowed == name);
    let finding = |package: &Package| {
        let Some(expression) = &package.license else {
            return Some("has no licence expression".to_owned());
        };
        match licence::is_satisfied(expression, &is_allowed) {
            Ok(true) => None,
            Ok(false) => Some(format!("is under `{expression}`, which [licenses] does not allow")),
            Err(error) => Some(error.to_string()),
        }
    };
    let line =
        |package: &Package| Some(format!("{} {}", display_package(package), finding(package)?));
    graph.iter().filter_map(line).collect()
}

fn bans(policy: &Policy, lock: &Lock) -> Vec<String> {
    let mut findings = Vec::new();
    for package in &lock.package {
        for entry in policy.bans.deny.iter().filter(|entry| entry.matches(package)) {
            findings
                .push(format!("{} {} is banned: {}", package.name, package.version, entry.reason));
        }
    }
    findings
}

/// Duplicate versions of crates that this host compiles. Other platforms may have more.
fn duplicates(policy: &Policy, graph: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in graph {
        let locked =
            Locked { name: package.name.clone(), version: package.version.clone(), source: None };
        if !policy.bans.skip.iter().any(|entry| entry.matches(&locked)) {
            versions.entry(&package.name).or_default().insert(&package.version);
        }
    }
    let many = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    let line = |(name, versions): (&str, BTreeSet<&str>)| {
        let versions: Vec<&str> = versions.into_iter().collect();
        format!(
            "{name} is compiled in {} versions ({}): use one (`cargo tree -d -e normal` shows who \
             needs which), or name the older ones in [bans] skip with a reason",
            versions.len(),
            versions.join(", ")
        )
    };
    many.map(line).collect()
}

fn unused_skips(policy: &Policy, lock: &Lock) -> Vec<String> {
    let unused = |entry: &&Entry| !lock.package.iter().any(|package| entry.matches(package));
    let line = |entry: &Entry| format!("[bans] skip names {}, which is not in use", entry.name);
    policy.bans.skip.iter().filter(unused).map(line).collect()
}

fn wildcards(graph: &[Package]) -> Vec<String> {
    let mut findings = Vec::new();
    for package in graph.iter().filter(|package| package.source.is_none()) {
        for dependency in &package.dependencies {
            if dependency.req == "*" && dependency.path.is_none() {
                findings.push(format!(
                    "{} accepts any version of {}: name one",
                    package.name, dependency.name
                ));
            }
        }
    }
    findings
}

fn sources(lock: &Lock) -> Vec<String> {
    let line = |package: &Locked| {
        let source = package.source.as_deref().filter(|source| *source != CRATES_IO)?;
        Some(format!(
            "{} {} comes from {source}, not from crates.io",
            package.name, package.version
        ))
    };
    lock.package.iter().filter_map(line).collect()
}

fn display_package(package: &Package) -> String {
    format!("{} {}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    fn policy(bans: &str) -> Policy {
        let text = format!("[licenses]\nallow = [\"MIT\"]\n[bans]\n{bans}\n");
        toml::from_str(&text).unwrap()
    }

    fn package(name: &str, version: &str, license: Option<&str>) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            license: license.map(str::to_owned),
            source: Some(CRATES_IO.to_owned()),
            ..Package::default()
        }
    }

    fn lock(packages: &[(&str, &str, Option<&str>)]) -> Lock {
        let locked = |(name, version, source): &(&str, &str, Option<&str>)| Locked {
            name: (*name).to_owned(),
            version: (*version).to_owned(),
            source: source.map(str::to_owned),
        };
        Lock { package: packages.iter().map(locked).collect() }
    }

    const PLAIN: &str = "multiple-versions = \"deny\"\ndeny = []";

    #[test]
    fn a_licence_must_be_on_the_list() {
        for (license, expect) in [
            (Some("MIT"), None),
            (Some("MIT OR GPL-3.0"), None),
            (Some("GPL-3.0"), Some("a 1.0.0 is under `GPL-3.0`, which [licenses] does not allow")),
            (None, Some("a 1.0.0 has no licence expression")),
        ] {
            let found = licences(&policy(PLAIN), &[package("a", "1.0.0", license)]);
            assert_eq!(found.first().map(String::as_str), expect, "{license:?}");
        }
    }

    #[test]
    fn a_banned_crate_is_found_on_every_platform() {
        let bans_text = "multiple-versions = \"deny\"\n\
                         deny = [{ crate = \"openssl\", reason = \"TLS is rustls\" }]";
        let lock = lock(&[("openssl", "0.10.1", None), ("rustls", "0.23.0", None)]);
        let found = bans(&policy(bans_text), &lock);
        assert_eq!(found, ["openssl 0.10.1 is banned: TLS is rustls"]);
    }

    #[test]
    fn two_versions_need_a_reason() {
        let graph =
            [package("a", "1.0.0", None), package("a", "2.0.0", None), package("b", "1.0.0", None)];
        let skip = "multiple-versions = \"deny\"\ndeny = []\n\
                    skip = [{ crate = \"a@1.0.0\", reason = \"c needs it\" }]";
        for (bans, expect) in [(PLAIN, 1), (skip, 0)] {
            assert_eq!(duplicates(&policy(bans), &graph).len(), expect, "{bans}");
        }
        let unused = unused_skips(&policy(skip), &lock(&[("a", "1.1.0", None)]));
        assert_eq!(unused, ["[bans] skip names a@1.0.0, which is not in use"]);
        assert!(unused_skips(&policy(skip), &lock(&[("a", "1.0.0", None)])).is_empty());
    }

    #[test]
    fn a_wildcard_is_for_our_own_directories_only() {
        for (path, source, expect) in
            [(None, None, 1), (Some("../b"), None, 0), (None, Some(CRATES_IO), 0)]
        {
            let dependency = Dependency {
                name: "b".to_owned(),
                req: "*".to_owned(),
                path: path.map(str::to_owned),
            };
            let package = Package {
                source: source.map(str::to_owned),
                dependencies: vec![dependency],
                ..package("a", "1.0.0", None)
            };
            assert_eq!(wildcards(&[package]).len(), expect, "{path:?} {source:?}");
        }
    }

    #[test]
    fn everything_comes_from_crates_io() {
        let lock = lock(&[
            ("ours", "0.1.0", None),
            ("a", "1.0.0", Some(CRATES_IO)),
            ("b", "1.0.0", Some("git+https://example.org/b#0123")),
        ]);
        assert_eq!(
            sources(&lock),
            ["b 1.0.0 comes from git+https://example.org/b#0123, not from crates.io"]
        );
    }
}
