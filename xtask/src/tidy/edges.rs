//! Checks the allowed dependencies between crates, as ARCHITECTURE.md defines them.

use toml::{Table, Value};

use super::Finding;
use super::tree::Tree;

/// The allowed workspace dependencies and the forbidden external dependencies of a crate.
struct Edges {
    name: &'static str,
    /// Allowed workspace crates, without the prefix `windlass-`.
    may: &'static [&'static str],
    /// Additional workspace crates that are allowed in tests.
    may_in_tests: &'static [&'static str],
    /// External crates that are forbidden outside tests.
    never: &'static [&'static str],
}

/// Crates for clocks, randomness and I/O, which the kernel must not use.
const OUTSIDE: &[&str] = &[
    "async-std",
    "deadpool-postgres",
    "fastrand",
    "getrandom",
    "postgres-types",
    "rand",
    "refinery",
    "reqwest",
    "rusqlite",
    "tokio",
    "tokio-postgres",
];
/// Database drivers: only the store of a database may use them.
const DRIVERS: &[&str] =
    &["deadpool-postgres", "postgres-types", "refinery", "rusqlite", "tokio-postgres"];
const SQLITE_DRIVERS: &[&str] = &["rusqlite"];
const POSTGRES_DRIVERS: &[&str] = &["deadpool-postgres", "postgres-types", "tokio-postgres"];

const EDGES: &[Edges] = &[
    Edges { name: "windlass-kernel", may: &[], may_in_tests: &[], never: OUTSIDE },
    Edges {
        name: "windlass-sqlite",
        may: &["kernel"],
        may_in_tests: &["testkit"],
        never: POSTGRES_DRIVERS,
    },
    Edges {
        name: "windlass-postgres",
        may: &["kernel"],
        may_in_tests: &["testkit"],
        never: SQLITE_DRIVERS,
    },
    Edges { name: "windlass-contracts", may: &["kernel"], may_in_tests: &[], never: OUTSIDE },
    Edges {
        name: "windlass-contracts-fuzz",
        may: &["contracts"],
        may_in_tests: &[],
        never: OUTSIDE,
    },
    // It stands in for the crate of that name when the targets run without a download.
    Edges { name: "libfuzzer-sys", may: &[], may_in_tests: &[], never: OUTSIDE },
    Edges { name: "windlass-engine", may: &["kernel"], may_in_tests: &["testkit"], never: DRIVERS },
    Edges {
        name: "windlass-models",
        may: &["contracts", "engine", "kernel"],
        // The examples in its documentation use the public crate.
        may_in_tests: &["testkit", "windlass"],
        never: DRIVERS,
    },
    Edges {
        name: "windlass",
        may: &["engine", "kernel", "models", "postgres", "sqlite"],
        // Its own tests and examples use all of its features.
        may_in_tests: &["testkit", "windlass"],
        never: DRIVERS,
    },
    Edges {
        name: "windlass-server",
        may: &["windlass", "engine", "models"],
        may_in_tests: &["kernel", "postgres", "testkit"],
        never: DRIVERS,
    },
    Edges {
        name: "windlass-cli",
        // `windlass dev` starts the scripted provider of the test kit.
        may: &["windlass", "contracts", "engine", "models", "server", "testkit"],
        may_in_tests: &[],
        never: DRIVERS,
    },
    Edges {
        name: "windlass-testkit",
        may: &["windlass", "engine", "kernel", "models", "sqlite"],
        may_in_tests: &["postgres"],
        never: DRIVERS,
    },
    Edges {
        name: "windlass-bench",
        may: &["windlass", "engine", "kernel", "models", "postgres", "sqlite", "testkit"],
        may_in_tests: &[],
        never: &[],
    },
    Edges { name: "xtask", may: &[], may_in_tests: &[], never: &[] },
];

/// Separate workspaces that benchmark other engines and must not depend on our crates.
const PEERS: &str = "crates/windlass-bench/peers/";
const PEERS_EDGES: &Edges = &Edges { name: "peers", may: &[], may_in_tests: &[], never: &[] };

const HERE: &str = "`EDGES` in xtask/src/tidy/edges.rs";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files()
        .filter(|(path, _)| path.ends_with("/Cargo.toml"))
        .flat_map(|(path, text)| check_manifest(path, text))
        .collect()
}

fn check_manifest(path: &str, text: &str) -> Vec<Finding> {
    let Ok(manifest) = text.parse::<Table>() else {
        return vec![Finding::new(path, None, "is not TOML", "see what `cargo metadata` says")];
    };
    let Some(name) = manifest.get("package").and_then(|package| package.get("name")?.as_str())
    else {
        return Vec::new();
    };
    let peers = path.starts_with(PEERS).then_some(PEERS_EDGES);
    let Some(edges) = peers.or_else(|| EDGES.iter().find(|edges| edges.name == name)) else {
        let mend = format!("say in {HERE} what it may depend on");
        return vec![Finding::new(
            path,
            None,
            format!("`{name}` is a crate without a place"),
            mend,
        )];
    };
    dependencies(&manifest)
        .filter_map(|dependency| Some((edges.objection(&dependency)?, dependency)))
        .map(|(mend, dependency)| {
            let what = format!("`{name}` depends on `{}`", dependency.package);
            Finding::new(path, line_of(text, &dependency.key), what, mend)
        })
        .collect()
}

struct Dependency {
    /// The name in the manifest.
    key: String,
    /// The name of the crate.
    package: String,
    in_tests: bool,
}

impl Edges {
    /// The reason why this dependency is forbidden, if it is.
    fn objection(&self, dependency: &Dependency) -> Option<String> {
        let package = dependency.package.as_str();
        let in_tests = dependency.in_tests;
        let ours = package.strip_prefix("windlass-").or((package == "windlass").then_some(package));
        match ours {
            Some(ours) if self.may.contains(&ours) => None,
            Some(ours) if in_tests && self.may_in_tests.contains(&ours) => None,
            Some(_) => Some(format!("turn it around or go through one of {HERE}: {:?}", self.may)),
            None if !in_tests && self.never.contains(&package) => {
                Some("leave it to a crate further out; ARCHITECTURE.md says which".to_owned())
            }
            None => None,
        }
    }
}

/// All dependencies, including those of single targets.
fn dependencies(manifest: &Table) -> impl Iterator<Item = Dependency> {
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables = std::iter::once(manifest).chain(
        targets.into_iter().flat_map(|targets| targets.values().filter_map(Value::as_table)),
    );
    tables.flat_map(|table| {
        [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
            .into_iter()
            .filter_map(|(section, in_tests)| Some((table.get(section)?.as_table()?, in_tests)))
            .flat_map(|(section, in_tests)| {
                section.iter().map(move |(key, value)| {
                    let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                    Dependency { key: key.clone(), package: package.to_owned(), in_tests }
                })
            })
    })
}

/// The first line that assigns the key, or starts its table.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let gives = |line: &str| {
        let left = line.split(['=', '.']).next().unwrap_or_default();
        left.trim().trim_matches('"') == key || line.trim_end().ends_with(&format!(".{key}]"))
    };
    text.lines().position(gives).map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    fn findings(name: &str, rest: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"{name}\"\n{rest}\n");
        found(check, &[("crates/x/Cargo.toml", &manifest)])
    }

    #[test]
    fn an_edge_against_the_arrows_is_found() {
        for (name, dependency) in [
            ("windlass-kernel", "windlass-sqlite"),
            ("windlass-kernel", "windlass"),
            ("windlass-kernel", "tokio"),
            ("windlass-kernel", "rand"),
            ("windlass-kernel", "rusqlite"),
            ("windlass-kernel", "tokio-postgres"),
            ("windlass-sqlite", "windlass-postgres"),
            ("windlass-sqlite", "windlass-testkit"),
            ("windlass-sqlite", "tokio-postgres"),
            ("windlass-postgres", "windlass-engine"),
            ("windlass-engine", "windlass-models"),
            ("windlass-engine", "windlass-sqlite"),
            ("windlass-models", "windlass-postgres"),
            ("windlass-models", "rusqlite"),
            ("windlass-server", "windlass-sqlite"),
            ("windlass-cli", "windlass-postgres"),
            ("windlass-testkit", "windlass-postgres"),
            ("xtask", "windlass-kernel"),
        ] {
            let expect = [format!("crates/x/Cargo.toml:4: `{name}` depends on `{dependency}`")];
            let rest = format!("[dependencies]\n{dependency}.workspace = true");
            assert_eq!(findings(name, &rest), expect);
        }
    }

    #[test]
    fn edges_along_the_arrows_are_free() {
        for (name, section, dependency) in [
            ("windlass-kernel", "dependencies", "serde"),
            ("windlass-kernel", "dev-dependencies", "tokio"),
            ("windlass-sqlite", "dependencies", "windlass-kernel"),
            ("windlass-sqlite", "dependencies", "rusqlite"),
            ("windlass-sqlite", "dev-dependencies", "windlass-testkit"),
            ("windlass-models", "dependencies", "windlass-engine"),
            ("windlass", "dependencies", "windlass-postgres"),
            ("windlass-cli", "dependencies", "windlass"),
            ("windlass-testkit", "dev-dependencies", "windlass-sqlite"),
            ("windlass-bench", "dependencies", "windlass-sqlite"),
        ] {
            let rest = format!("[{section}]\n{dependency}.workspace = true");
            assert_eq!(findings(name, &rest), [""; 0], "{name} {dependency}");
        }
    }

    #[test]
    fn no_spelling_hides_an_edge() {
        for (rest, line) in [
            ("[dependencies]\nwindlass-sqlite = { path = \"../s\" }", 4),
            ("[dependencies]\nstore = { package = \"windlass-sqlite\", path = \"../s\" }", 4),
            ("[dependencies.windlass-sqlite]\npath = \"../s\"", 3),
            ("[build-dependencies]\nwindlass-sqlite = \"1\"", 4),
            ("[dev-dependencies]\nwindlass-sqlite = \"1\"", 4),
            ("[target.'cfg(unix)'.dependencies]\nwindlass-sqlite = \"1\"", 4),
        ] {
            let expect = format!(
                "crates/x/Cargo.toml:{line}: `windlass-engine` depends on `windlass-sqlite`"
            );
            assert_eq!(findings("windlass-engine", rest), [expect], "{rest}");
        }
    }

    #[test]
    fn peers_know_none_of_ours() {
        let path = "crates/windlass-bench/peers/new/Cargo.toml";
        for (dependency, expect) in [
            ("sqlx", vec![]),
            ("windlass", vec![format!("{path}:4: `peer-new` depends on `windlass`")]),
        ] {
            let manifest =
                format!("[package]\nname = \"peer-new\"\n[dependencies]\n{dependency} = \"1\"\n");
            assert_eq!(found(check, &[(path, &manifest)]), expect);
        }
    }

    #[test]
    fn a_crate_without_a_place_and_a_broken_manifest_are_found() {
        assert_eq!(
            findings("windlass-new", ""),
            ["crates/x/Cargo.toml: `windlass-new` is a crate without a place"]
        );
        assert_eq!(
            found(check, &[("crates/x/Cargo.toml", "[package")]),
            ["crates/x/Cargo.toml: is not TOML"]
        );
    }
}
