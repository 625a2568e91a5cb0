//! The packages of the workspace and of its dependency graph, as `cargo metadata` reports them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::{process, workspace};

/// One package of the graph.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) description: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) readme: Option<String>,
    #[serde(default)]
    pub(crate) keywords: Vec<String>,
    #[serde(default)]
    pub(crate) categories: Vec<String>,
    /// The registry or repository it comes from; none for a package of this workspace.
    pub(crate) source: Option<String>,
    /// The registries it may be published to: none means all, an empty list means nowhere.
    pub(crate) publish: Option<Vec<String>>,
    /// Every feature, with the features and dependencies that it enables.
    #[serde(default)]
    pub(crate) features: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a manifest's dependency sections.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The version requirement; `*` if the manifest has none.
    pub(crate) req: String,
    /// The directory of a dependency of this workspace.
    pub(crate) path: Option<String>,
}

impl Package {
    /// Whether this package may be published.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// The packages of this workspace.
pub(crate) fn members(root: &Path) -> Result<Vec<Package>> {
    read(root, &["--no-deps"])
}

/// The packages of this workspace and everything they compile on this host, with all features.
pub(crate) fn graph(root: &Path) -> Result<Vec<Package>> {
    let version = process::capture(workspace::cargo(root).arg("-vV"))?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("`cargo -vV` printed no line `host: …`")?;
    // Without a platform, cargo downloads the packages of all platforms.
    read(root, &["--all-features", "--filter-platform", host])
}

fn read(root: &Path, args: &[&str]) -> Result<Vec<Package>> {
    let mut cargo = workspace::cargo(root);
    cargo.args(["metadata", "--format-version", "1", "--locked"]).args(args);
    let text = process::capture(&mut cargo)?;
    let metadata: Metadata =
        serde_json::from_str(&text).context("could not read the output of `cargo metadata`")?;
    Ok(metadata.packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_of_registries_forbids_publishing() {
        for (publish, expect) in
            [(None, true), (Some(vec![]), false), (Some(vec!["crates-io".to_owned()]), true)]
        {
            let package = Package { publish, ..Package::default() };
            assert_eq!(package.is_published(), expect, "{:?}", package.publish);
        }
    }

    #[test]
    fn this_crate_is_a_member_and_stays_unpublished() {
        let members = members(&workspace::root().unwrap()).unwrap();
        let xtask = members.iter().find(|package| package.name == "xtask").unwrap();
        assert!(!xtask.is_published());
        assert_eq!(xtask.source, None);
    }
}
