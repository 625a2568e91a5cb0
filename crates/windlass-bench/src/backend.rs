//! The measured stores. Each benchmark creates its own database and removes it afterwards.

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

use crate::generator::now;

/// The store and its location.
#[derive(Clone, clap::Args)]
pub(crate) struct Target {
    /// The kind of store.
    #[arg(long)]
    store: Kind,
    /// The address of a PostgreSQL database without TLS. Default: WINDLASS_TEST_PG or WINDLASS_DSN.
    #[arg(long)]
    dsn: Option<String>,
    /// The directory for SQLite files, on the disk to measure. Default: `target`.
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
    /// A store at its default location.
    #[cfg(test)]
    pub(crate) fn of(store: Kind) -> Self {
        Self { store, dsn: None, path: None }
    }

    /// The directory on the command line.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The name of the store.
    pub(crate) fn name(&self) -> &'static str {
        match self.store {
            Kind::Sqlite => "sqlite",
            Kind::Postgres => "postgres",
            Kind::Memory => "memory",
        }
    }
}

/// The databases of one benchmark: a directory, or schemas with a prefix.
pub(crate) enum Databases {
    /// Files in a directory that is removed on drop.
    Sqlite(TempDir),
    /// Schemas that [`Databases::remove`] drops.
    Postgres {
        /// The address.
        dsn: String,
        /// The prefix of the schemas.
        prefix: String,
    },
    Memory,
}

impl Databases {
    /// Runs a benchmark in an empty location, and removes the location even if the benchmark fails.
    pub(crate) async fn with<T>(
        target: &Target,
        measure: impl AsyncFnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let place = Self::new(target)?;
        let result = measure(&place).await;
        place.remove().await?;
        result
    }

    /// Creates an empty location.
    pub(crate) fn new(target: &Target) -> anyhow::Result<Self> {
        Ok(match target.store {
            Kind::Sqlite => Self::Sqlite(directory(target.path.as_deref())?),
            Kind::Postgres => {
                let given = target.dsn.clone();
                let dsn = given
                    .or_else(|| env::var("WINDLASS_TEST_PG").ok())
                    .or_else(|| env::var("WINDLASS_DSN").ok())
                    .ok_or_else(|| {
                        anyhow!("the PostgreSQL address is missing: set --dsn or WINDLASS_DSN")
                    })?;
                let prefix = format!("windlass_bench_{}", std::process::id());
                Self::Postgres { dsn, prefix }
            }
            Kind::Memory => Self::Memory,
        })
    }

    /// Opens the store with this name; creates it if it does not exist.
    pub(crate) async fn open(&self, name: &str) -> anyhow::Result<OpenStore> {
        Ok(match self {
            Self::Sqlite(_) => {
                let options = windlass_sqlite::Options::default();
                OpenStore::Sqlite(SqliteStore::open(self.file(name)?, options)?)
            }
            Self::Postgres { dsn, .. } => {
                let options = windlass_postgres::Options {
                    schema: self.schema(name)?,
                    ..windlass_postgres::Options::default()
                };
                OpenStore::Postgres(PostgresStore::open(dsn, options).await?)
            }
            Self::Memory => {
                OpenStore::Memory(Arc::new(MemoryStore::new(Arc::new(now), Limits::DEFAULT)))
            }
        })
    }

    /// The file of a SQLite store.
    pub(crate) fn file(&self, name: &str) -> anyhow::Result<PathBuf> {
        match self {
            Self::Sqlite(directory) => Ok(directory.path().join(format!("{name}.db"))),
            _ => Err(anyhow!("only SQLite has files")),
        }
    }

    /// The schema of a PostgreSQL store.
    pub(crate) fn schema(&self, name: &str) -> anyhow::Result<String> {
        match self {
            Self::Postgres { prefix, .. } => Ok(format!("{prefix}_{name}")),
            _ => Err(anyhow!("only PostgreSQL has schemas")),
        }
    }

    /// Opens a separate connection to PostgreSQL.
    pub(crate) async fn connect(&self) -> anyhow::Result<tokio_postgres::Client> {
        let Self::Postgres { dsn, .. } = self else {
            return Err(anyhow!("only PostgreSQL has connections"));
        };
        let (client, connection) =
            tokio_postgres::connect(dsn, NoTls).await.context("failed to connect to PostgreSQL")?;
        // Ends with the client. Errors are returned to the pending queries.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Removes all databases.
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
pub(crate) enum OpenStore {
    /// The embedded one.
    Sqlite(Arc<SqliteStore>),
    /// The shared one.
    Postgres(Arc<PostgresStore>),
    /// The reference.
    Memory(Arc<MemoryStore>),
}

impl OpenStore {
    /// Opens a store in a file of another process.
    pub(crate) fn file(file: &Path) -> anyhow::Result<Self> {
        Ok(Self::Sqlite(SqliteStore::open(file, windlass_sqlite::Options::default())?))
    }

    /// Opens a store in a schema of another process.
    pub(crate) async fn schema(dsn: &str, schema: &str) -> anyhow::Result<Self> {
        let schema = schema.to_owned();
        let options = windlass_postgres::Options { schema, ..Default::default() };
        Ok(Self::Postgres(PostgresStore::open(dsn, options).await?))
    }

    /// Whether other processes can open it at the same time.
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

/// Creates a directory on the disk of `target`: an in-memory file system has no fsync to measure.
pub(crate) fn directory(given: Option<&Path>) -> anyhow::Result<TempDir> {
    let program = env::current_exe().context("failed to get the path of this program")?;
    let target = program.ancestors().find(|path| path.ends_with("target"));
    let parent = match (given, target) {
        (Some(given), _) => given.to_owned(),
        (None, Some(target)) => target.join("bench"),
        (None, None) => env::current_dir().context("failed to get the current directory")?,
    };
    std::fs::create_dir_all(&parent).context("failed to create the directory")?;
    let directory = tempfile::Builder::new().prefix("windlass-bench-").tempdir_in(&parent);
    directory.with_context(|| format!("failed to create a directory in {}", parent.display()))
}

/// The number of bytes that this process has read with system calls.
pub(crate) fn bytes_read() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io").context("failed to read /proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    let count = line.ok_or_else(|| anyhow!("/proc/self/io has no rchar"))?;
    Ok(count.trim().parse()?)
}
