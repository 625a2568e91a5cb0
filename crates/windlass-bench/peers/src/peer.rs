//! The measured engines: names, versions, stores and programs.

use std::fmt;

/// One engine on one store.
pub(crate) struct Peer {
    /// The name in the table.
    pub(crate) name: &'static str,
    /// The version, pinned in its manifest.
    pub(crate) version: &'static str,
    /// Where it stores its data.
    pub(crate) store: Store,
    /// The program to run.
    pub(crate) program: Program,
}

/// Where an engine stores its data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// A SQLite file.
    Sqlite,
    /// A database on the shared PostgreSQL server.
    Postgres,
    /// Files of its own format.
    Files,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::Files => "files",
        })
    }
}

/// The program of an engine, relative to this workspace.
pub(crate) enum Program {
    /// `windlass-bench` of the parent workspace, with this load.
    Windlass(Load),
    /// The program of the Cargo workspace in a directory.
    Cargo {
        /// The directory.
        folder: &'static str,
        /// Whether it starts a server from an npm package.
        packages: bool,
        /// Whether it runs without fsync.
        unsynced: bool,
    },
    /// A script in the directory `node`.
    Node(&'static str),
}

/// The model of Windlass that executes the runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// A workflow of three steps.
    Steps,
    /// A relay of three steps.
    Relays,
}

/// The name of Windlass's relays in the table. Other relay engines are compared with them.
pub(crate) const RELAYS: &str = "windlass-relays";

/// Windlass first, then its peers.
pub(crate) const PEERS: &[Peer] = &[
    windlass("windlass", Store::Sqlite, Load::Steps),
    windlass("windlass", Store::Postgres, Load::Steps),
    windlass(RELAYS, Store::Sqlite, Load::Relays),
    cargo("duroxide", "0.1.32", Store::Sqlite, "duroxide"),
    cargo("underway", "0.2.0", Store::Postgres, "underway"),
    node("dbos", "5.3.0", "dbos.mjs"),
    node("openworkflow", "0.10.1", "openworkflow.mjs"),
    cargo("taquba-workflow", "0.15.0", Store::Files, "taquba"),
    Peer {
        name: "taquba-workflow-unsynced",
        version: "0.15.0",
        store: Store::Files,
        program: Program::Cargo { folder: "taquba", packages: false, unsynced: true },
    },
    cargo("everruns-durable", "0.50.1", Store::Postgres, "everruns"),
    Peer {
        name: "restate",
        version: "1.7.12",
        store: Store::Files,
        program: Program::Cargo { folder: "restate", packages: true, unsynced: false },
    },
];

const fn windlass(name: &'static str, store: Store, load: Load) -> Peer {
    Peer { name, version: "", store, program: Program::Windlass(load) }
}

const fn cargo(
    name: &'static str,
    version: &'static str,
    store: Store,
    folder: &'static str,
) -> Peer {
    let program = Program::Cargo { folder, packages: false, unsynced: false };
    Peer { name, version, store, program }
}

const fn node(name: &'static str, version: &'static str, script: &'static str) -> Peer {
    Peer { name, version, store: Store::Postgres, program: Program::Node(script) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn versions_match_the_manifests() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let packages = fs::read_to_string(home.join("node/package.json")).unwrap();
        for peer in PEERS.iter().chain(&crate::tasks::PEERS) {
            let manifest = match peer.program {
                Program::Windlass(_) => continue,
                Program::Cargo { folder, packages: false, .. } => {
                    fs::read_to_string(home.join(folder).join("Cargo.toml")).unwrap()
                }
                Program::Cargo { packages: true, .. } | Program::Node(_) => packages.clone(),
            };
            let name = peer.name.trim_end_matches("-unsynced");
            let pinned = |line: &str| line.contains(name) && line.contains(peer.version);
            assert!(manifest.lines().any(pinned), "{} {}", peer.name, peer.version);
        }
    }
}
