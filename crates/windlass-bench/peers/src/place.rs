//! Data locations of engines: each load gets an empty directory or database.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use postgres::{Client, Config, NoTls};

use crate::peer::{Peer, Program, Store};
use crate::prepare::Builder;

/// Creates data locations.
pub(crate) struct DataLocations {
    directory: PathBuf,
    dsn: Option<String>,
    made: Cell<u32>,
}

impl DataLocations {
    /// Directories are below the build directory, which is on a disk: an in-memory file system has
    /// no fsync to measure.
    pub(crate) fn new(builder: &Builder, dsn: Option<&str>) -> anyhow::Result<Self> {
        let directory = builder.target().join("places");
        // An interrupted benchmark leaves its directories.
        if directory.exists() {
            fs::remove_dir_all(&directory).context("failed to remove old data directories")?;
        }
        Ok(Self { directory, dsn: dsn.map(str::to_owned), made: Cell::new(0) })
    }

    /// Creates an empty location.
    pub(crate) fn fresh(&self, peer: &Peer) -> anyhow::Result<DataLocation> {
        let number = self.made.replace(self.made.get() + 1);
        let name = format!("{}_{}_{number}", peer.name, std::process::id());
        match peer.store {
            Store::Postgres => {
                let dsn = self.dsn.as_deref();
                let dsn =
                    dsn.ok_or_else(|| anyhow!("this peer needs PostgreSQL: set WINDLASS_TEST_PG"))?;
                DataLocation::database(dsn, format!("peer_{name}"))
            }
            Store::Sqlite | Store::Files => {
                let directory = self.directory.join(name);
                fs::create_dir_all(&directory).context("failed to create a data directory")?;
                let address = directory.display().to_string();
                Ok(DataLocation { address, kind: Kind::Directory(directory) })
            }
        }
    }
}

/// An empty directory or database.
pub(crate) struct DataLocation {
    address: String,
    kind: Kind,
}

enum Kind {
    Directory(PathBuf),
    Database { server: String, name: String },
}

impl DataLocation {
    fn database(server: &str, name: String) -> anyhow::Result<Self> {
        connect(server)?.batch_execute(&format!("CREATE DATABASE \"{name}\""))?;
        Ok(Self {
            address: with_database(server, &name)?,
            kind: Kind::Database { server: server.to_owned(), name },
        })
    }

    /// The path of the directory, or the address of the database.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Removes the location and its contents.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        match self.kind {
            Kind::Directory(directory) => fs::remove_dir_all(directory)?,
            Kind::Database { server, name } => {
                let drop = format!("DROP DATABASE \"{name}\" WITH (FORCE)");
                connect(&server)?.batch_execute(&drop)?;
            }
        }
        Ok(())
    }
}

/// The arguments that pass a location to `windlass-bench`.
pub(crate) fn windlass_arguments(peer: &Peer, address: &str) -> Vec<String> {
    debug_assert!(matches!(peer.program, Program::Windlass(_)));
    let (store, option) = match peer.store {
        Store::Postgres => ("postgres", "--dsn"),
        Store::Sqlite | Store::Files => ("sqlite", "--path"),
    };
    let mut arguments = vec!["--store", store, option, address];
    if store == "sqlite" {
        // On two cores: one for the runtime, one for the writer thread of SQLite.
        arguments.extend(["--threads", "1"]);
    }
    arguments.into_iter().map(str::to_owned).collect()
}

fn connect(dsn: &str) -> anyhow::Result<Client> {
    let config: Config = dsn.parse().context("invalid PostgreSQL address")?;
    config.connect(NoTls).context("failed to connect to PostgreSQL")
}

/// The address of another database on the same server.
fn with_database(dsn: &str, name: &str) -> anyhow::Result<String> {
    let (address, options) = match dsn.split_once('?') {
        Some((address, options)) => (address, format!("?{options}")),
        None => (dsn, String::new()),
    };
    let rest = address.strip_prefix("postgres://").or(address.strip_prefix("postgresql://"));
    let rest = rest.ok_or_else(|| anyhow!("the PostgreSQL address is not a postgres:// URL"))?;
    let server = rest.split('/').next().unwrap_or(rest);
    Ok(format!("postgres://{server}/{name}{options}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_is_replaced() {
        for (dsn, expect) in [
            ("postgres://u@h:1/old", "postgres://u@h:1/new"),
            (
                "postgresql://u:p@h/old?application_name=a/b",
                "postgres://u:p@h/new?application_name=a/b",
            ),
            ("postgres://h", "postgres://h/new"),
        ] {
            assert_eq!(with_database(dsn, "new").unwrap(), expect);
        }
        assert!(with_database("host=h dbname=old", "new").is_err());
    }
}
