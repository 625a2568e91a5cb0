//! The stores that are measured: each database is a fresh one and is removed afterwards.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use tempfile::TempDir;
use tokio_postgres::NoTls;
use windlass_kernel::{Limits, MemoryStore, Store};
use windlass_postgres::PostgresStore;
use windlass_sqlite::SqliteStore;

use crate::script::now;

/// Which store, and where.
#[derive(Clone, clap::Args)]
pub(crate) struct Target {
    /// Which store.
    #[arg(long)]
    store: Kind,
    /// The address of a PostgreSQL database, without TLS; else WINDLASS_TEST_PG or WINDLASS_DSN.
    #[arg(long)]
    dsn: Option<String>,
    /// The directory for SQLite's files, on the disk that is to be measured; else `target`.
    #[arg(long)]
    path: Option<PathBuf>,
}

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// One file.
    Sqlite,
    /// A server.
    Postgres,
    /// The reference store.
    Memory,
}

impl Target {
    /// A store in its usual place.
    #[cfg(test)]
    pub(crate) fn of(store: Kind) -> Self {
        Self { store, dsn: None, path: None }
    }

    /// The directory that was asked for.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What the store is called.
    pub(crate) fn name(&self) -> &'static str {
        match self.store {
            Kind::Sqlite => "sqlite",
            Kind::Postgres => "postgres",
            Kind::Memory => "memory",
        }
    }
}

/// Where the databases of one benchmark live: a directory, or schemas with a prefix of our own.
pub(crate) enum Place {
    /// Files in a directory that goes when this does.
    Sqlite(TempDir),
    /// Schemas that [`Place::remove`] drops.
    Postgres {
        /// The address.
        dsn: String,
        /// What our schemas begin with.
        prefix: String,
    },
    /// Nowhere.
    Memory,
}

impl Place {
    /// A place with nothing in it.
    pub(crate) fn new(target: &Target) -> anyhow::Result<Self> {
        Ok(match target.store {
            Kind::Sqlite => Self::Sqlite(directory(target.path.as_deref())?),
            Kind::Postgres => {
                let given = target.dsn.clone();
                let dsn = given
                    .or_else(|| env::var("WINDLASS_TEST_PG").ok())
                    .or_else(|| env::var("WINDLASS_DSN").ok())
                    .ok_or_else(|| anyhow!("say where PostgreSQL is: --dsn or WINDLASS_DSN"))?;
                let prefix = format!("windlass_bench_{}", std::process::id());
                Self::Postgres { dsn, prefix }
            }
            Kind::Memory => Self::Memory,
        })
    }

    /// Opens the store of this name, which is made if there is none.
    pub(crate) async fn open(&self, name: &str) -> anyhow::Result<Opened> {
        Ok(match self {
            Self::Sqlite(_) => {
                let options = windlass_sqlite::Options::default();
                Opened::Sqlite(SqliteStore::open(self.file(name)?, options)?)
            }
            Self::Postgres { dsn, .. } => {
                let options = windlass_postgres::Options {
                    schema: self.schema(name)?,
                    ..windlass_postgres::Options::default()
                };
                Opened::Postgres(PostgresStore::open(dsn, options).await?)
            }
            Self::Memory => {
                Opened::Memory(Arc::new(MemoryStore::new(Arc::new(now), Limits::DEFAULT)))
            }
        })
    }

    /// The file of a store's database.
    pub(crate) fn file(&self, name: &str) -> anyhow::Result<PathBuf> {
        match self {
            Self::Sqlite(directory) => Ok(directory.path().join(format!("{name}.db"))),
            _ => Err(anyhow!("only SQLite has files")),
        }
    }

    /// The schema of a store's database.
    pub(crate) fn schema(&self, name: &str) -> anyhow::Result<String> {
        match self {
            Self::Postgres { prefix, .. } => Ok(format!("{prefix}_{name}")),
            _ => Err(anyhow!("only PostgreSQL has schemas")),
        }
    }

    /// A connection of our own, past the store.
    pub(crate) async fn connect(&self) -> anyhow::Result<tokio_postgres::Client> {
        let Self::Postgres { dsn, .. } = self else {
            return Err(anyhow!("only PostgreSQL has connections"));
        };
        let (client, connection) =
            tokio_postgres::connect(dsn, NoTls).await.context("PostgreSQL does not answer")?;
        // It ends with the client; what goes wrong on it is told to whoever waits for an answer.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Removes everything.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        if let Self::Postgres { prefix, .. } = &self {
            let client = self.connect().await?;
            let ours = "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, $1)";
            for row in client.query(ours, &[prefix]).await? {
                let schema: String = row.get(0);
                client.batch_execute(&format!("DROP SCHEMA \"{schema}\" CASCADE")).await?;
            }
        }
        Ok(())
    }
}

/// An open store.
pub(crate) enum Opened {
    /// The embedded one.
    Sqlite(Arc<SqliteStore>),
    /// The shared one.
    Postgres(Arc<PostgresStore>),
    /// The reference.
    Memory(Arc<MemoryStore>),
}

impl Opened {
    /// A store in a file that somebody else made and removes.
    pub(crate) fn file(file: &Path) -> anyhow::Result<Self> {
        Ok(Self::Sqlite(SqliteStore::open(file, windlass_sqlite::Options::default())?))
    }

    /// A store in a schema that somebody else drops.
    pub(crate) async fn schema(dsn: &str, schema: &str) -> anyhow::Result<Self> {
        let schema = schema.to_owned();
        let options = windlass_postgres::Options { schema, ..Default::default() };
        Ok(Self::Postgres(PostgresStore::open(dsn, options).await?))
    }

    /// Whether other processes may have it open too.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    /// The store.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => store.clone(),
            Self::Postgres(store) => store.clone(),
            Self::Memory(store) => store.clone(),
        }
    }
}

/// A new directory on the disk of `target`: a file system in memory has no fsync to measure.
pub(crate) fn directory(given: Option<&Path>) -> anyhow::Result<TempDir> {
    let program = env::current_exe().context("the program has no path")?;
    let target = program.ancestors().find(|path| path.ends_with("target"));
    let parent = match (given, target) {
        (Some(given), _) => given.to_owned(),
        (None, Some(target)) => target.join("bench"),
        (None, None) => env::current_dir().context("there is no current directory")?,
    };
    std::fs::create_dir_all(&parent).context("the directory cannot be made")?;
    let directory = tempfile::Builder::new().prefix("windlass-bench-").tempdir_in(&parent);
    directory.with_context(|| format!("no directory can be made in {}", parent.display()))
}
