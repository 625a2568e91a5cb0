//! Opens the store that an address names.

use std::sync::Arc;

#[cfg(not(all(feature = "sqlite", feature = "postgres")))]
use windlass_kernel::ErrorKind;
use windlass_kernel::{Error, Limits, MemoryStore, Store};

use crate::Address;
use crate::address;

/// Opens the store that an address names, with default limits.
///
/// | address | store |
/// |---|---|
/// | `sqlite://app.db`, `sqlite:app.db` | the file `app.db`; its folder is created if it is missing |
/// | `sqlite:///var/lib/app.db` | a file by its absolute path |
/// | `postgres://user@host/database?…` | PostgreSQL, schema `windlass` |
/// | `memory:` | nothing is kept when the process ends |
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = windlass::admin::open_store("memory:").await?;
/// store.close().await?;
/// # Ok::<(), windlass::Error>(()) }).unwrap();
/// ```
///
/// # Errors
///
/// The address is not valid, its feature is not enabled, or the store cannot be opened.
pub async fn open_store(address: &str) -> Result<Arc<dyn Store>, Error> {
    open(address, &Limits::DEFAULT, Connections::default(), false).await
}

/// As [`open_store`], with other limits.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use windlass::kernel::Limits;
///
/// let limits = Limits::DEFAULT.with_body_bytes_max(4 << 20);
/// let store = windlass::admin::open_store_with_limits("memory:", &limits).await?;
/// store.close().await?;
/// # Ok::<(), windlass::Error>(()) }).unwrap();
/// ```
///
/// # Errors
///
/// As [`open_store`].
pub async fn open_store_with_limits(
    address: &str,
    limits: &Limits,
) -> Result<Arc<dyn Store>, Error> {
    open(address, limits, Connections::default(), false).await
}

/// Opens a store to read it: nothing is created, migrated or released.
///
/// ```
/// # async fn example() -> windlass::Result<()> {
/// let store = windlass::admin::inspect_store("sqlite://app.db").await?;
/// for problem in store.check().await? {
///     println!("{problem:?}");
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`StoreNotFound`](crate::ErrorCode::StoreNotFound) if there is no store, [`StoreOlder`](crate::ErrorCode::StoreOlder) if [`open_store`] would migrate
/// it. [`Store::check`] reports what its schema lacks.
pub async fn inspect_store(address: &str) -> Result<Arc<dyn Store>, Error> {
    open(address, &Limits::DEFAULT, Connections::default(), true).await
}

/// How many connections a store opens to PostgreSQL. Other stores ignore it.
///
/// A process has at most [`Connections::total`] connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// The most connections for claims, loads and listings. Default 8.
    pub pool_size_max: usize,
    /// The most connections for lease renewals and heartbeats. Default 2.
    pub lease_pool_size_max: usize,
    /// The committers, each with its own connection. Default 2.
    pub committers: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self { pool_size_max: 8, lease_pool_size_max: 2, committers: 2 }
    }
}

impl Connections {
    /// The most connections of a process: both pools, the committers, and the one that listens for
    /// wake-ups. Default 13.
    pub fn total(&self) -> usize {
        self.pool_size_max + self.lease_pool_size_max + self.committers + 1
    }
}

#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    expect(clippy::unused_async, reason = "the memory store needs no I/O")
)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(unused_variables, reason = "only PostgreSQL has connections")
)]
pub(crate) async fn open(
    address: &str,
    limits: &Limits,
    connections: Connections,
    inspect: bool,
) -> Result<Arc<dyn Store>, Error> {
    match address.parse()? {
        Address::Memory => {
            Ok(Arc::new(MemoryStore::new(Arc::new(address::system_clock), limits.clone())))
        }
        #[cfg(feature = "sqlite")]
        Address::Sqlite(path) => {
            if !inspect {
                address::make_folder_of(&path)?;
            }
            let limits = limits.clone();
            let options = windlass_sqlite::Options { inspect, limits, ..Default::default() };
            Ok(windlass_sqlite::SqliteStore::open(path, options)?)
        }
        #[cfg(feature = "postgres")]
        Address::Postgres(dsn) => {
            let limits = limits.clone();
            let Connections { pool_size_max, lease_pool_size_max, committers } = connections;
            let options = windlass_postgres::Options {
                inspect,
                limits,
                pool_size_max,
                lease_pool_size_max,
                committers,
                ..Default::default()
            };
            Ok(windlass_postgres::PostgresStore::open(&dsn, options).await?)
        }
        #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
        other => {
            let message = format!("this build has no store for {other}; enable its feature");
            Err(Error::new(ErrorKind::Invalid, crate::ErrorCode::InvalidStoreUrl, message))
        }
    }
}
