//! Where engines keep their data: each load gets an empty directory or an empty database.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use postgres::{Client, Config, NoTls};

use crate::peer::{Peer, Program, Store};
use crate::prepare::Workshop;

/// Makes places.
pub(crate) struct Places {
    directory: PathBuf,
    dsn: Option<String>,
    made: Cell<u32>,
}

impl Places {
    /// Directories go below the build's, which is on a disk: a file system in memory has no sync to
    /// measure.
    pub(crate) fn new(workshop: &Workshop, dsn: Option<&str>) -> anyhow::Result<Self> {
        let directory = workshop.target().join("places");
        // What an earlier call left when it was stopped.
        if directory.exists() {
            fs::remove_dir_all(&directory).context("old places do not go")?;
        }
        Ok(Self { directory, dsn: dsn.map(str::to_owned), made: Cell::new(0) })
    }

    /// A place that nobody has used.
    pub(crate) fn fresh(&self, peer: &Peer) -> anyhow::Result<Place> {
        let number = self.made.replace(self.made.get() + 1);
        let name = format!("{}_{}_{number}", peer.name, std::process::id());
        match peer.store {
            Store::Postgres => {
                let dsn = self.dsn.as_deref();
                let dsn =
                    dsn.ok_or_else(|| anyhow!("no PostgreSQL: WINDLASS_TEST_PG is not set"))?;
                Place::database(dsn, format!("peer_{name}"))
            }
            Store::Sqlite | Store::Files => {
                let directory = self.directory.join(name);
                fs::create_dir_all(&directory).context("no directory")?;
                let address = directory.display().to_string();
                Ok(Place { address, kind: Kind::Directory(directory) })
            }
        }
    }
}

/// An empty directory or database.
pub(crate) struct Place {
    address: String,
    kind: Kind,
}

enum Kind {
    Directory(PathBuf),
    Database { server: String, name: String },
}

impl Place {
    fn database(server: &str, name: String) -> anyhow::Result<Self> {
        connect(server)?.batch_execute(&format!("CREATE DATABASE \"{name}\""))?;
        Ok(Self {
            address: beside(server, &name)?,
            kind: Kind::Database { server: server.to_owned(), name },
        })
    }

    /// The path of the directory, or the address of the database.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Removes it with all that is in it.
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

/// How Windlass is told of a place: it takes a store's name beside it.
pub(crate) fn windlass_arguments(peer: &Peer, address: &str) -> Vec<String> {
    debug_assert!(matches!(peer.program, Program::Windlass(_)));
    let (store, option) = match peer.store {
        Store::Postgres => ("postgres", "--dsn"),
        Store::Sqlite | Store::Files => ("sqlite", "--path"),
    };
    let mut arguments = vec!["--store", store, option, address];
    if store == "sqlite" {
        // Two cores: one for the runtime, one for the thread that writes.
        arguments.extend(["--threads", "1"]);
    }
    arguments.into_iter().map(str::to_owned).collect()
}

fn connect(dsn: &str) -> anyhow::Result<Client> {
    let config: Config = dsn.parse().context("the address of PostgreSQL is none")?;
    config.connect(NoTls).context("PostgreSQL does not answer")
}

/// The address of another database of the same server.
fn beside(dsn: &str, name: &str) -> anyhow::Result<String> {
    let (address, options) = match dsn.split_once('?') {
        Some((address, options)) => (address, format!("?{options}")),
        None => (dsn, String::new()),
    };
    let rest = address.strip_prefix("postgres://").or(address.strip_prefix("postgresql://"));
    let rest = rest.ok_or_else(|| anyhow!("the address of PostgreSQL is no postgres:// URL"))?;
    let server = rest.split('/').next().unwrap_or(rest);
    Ok(format!("postgres://{server}/{name}{options}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_an_address_changes() {
        for (dsn, expect) in [
            ("postgres://u@h:1/old", "postgres://u@h:1/new"),
            (
                "postgresql://u:p@h/old?application_name=a/b",
                "postgres://u:p@h/new?application_name=a/b",
            ),
            ("postgres://h", "postgres://h/new"),
        ] {
            assert_eq!(beside(dsn, "new").unwrap(), expect);
        }
        assert!(beside("host=h dbname=old", "new").is_err());
    }
}
