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
    open(address, &Limits::DEFAULT, false).await
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
    open(address, &Limits::DEFAULT, true).await
}

#[cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    expect(unused_variables, clippy::unused_async, reason = "the memory store needs neither")
)]
pub(crate) async fn open(
    address: &str,
    limits: &Limits,
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
            let options = windlass_postgres::Options { inspect, limits, ..Default::default() };
            Ok(windlass_postgres::PostgresStore::open(&dsn, options).await?)
        }
        #[cfg(not(all(feature = "sqlite", feature = "postgres")))]
        other => {
            let message = format!("this build has no store for {other}; enable its feature");
            Err(Error::new(ErrorKind::Invalid, crate::ErrorCode::InvalidStoreUrl, message))
        }
    }
}
