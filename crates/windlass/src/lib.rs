//! Windlass: durable workflows in Rust. One SQLite file, or PostgreSQL for many machines.
//!
//! So far this crate opens stores; programs that run on them come with the engine.
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let store = windlass::open_store("memory:").await?;
//! assert!(store.health().await?.runs.is_empty());
//! # Ok::<(), windlass::Error>(()) }).unwrap();
//! ```

mod address;

use std::sync::Arc;

pub use address::Address;
pub use windlass_kernel as kernel;
pub use windlass_kernel::{Error, ErrorKind, Limits, Store};

/// Opens the store that an address names.
///
/// | address | store |
/// |---|---|
/// | `sqlite://app.db`, `sqlite:app.db` | the file `app.db`; its folder is made if it is missing |
/// | `sqlite:///var/lib/app.db` | a file by its absolute path |
/// | `postgres://user@host/database?…` | PostgreSQL, schema `windlass` |
/// | `memory:` | nothing is kept when the process ends |
pub async fn open_store(address: &str) -> Result<Arc<dyn Store>, Error> {
    match address.parse()? {
        Address::Memory => {
            Ok(Arc::new(kernel::MemoryStore::new(Arc::new(address::system_clock), Limits::DEFAULT)))
        }
        #[cfg(feature = "sqlite")]
        Address::Sqlite(path) => {
            address::make_folder_of(&path)?;
            let options = windlass_sqlite::Options::default();
            Ok(windlass_sqlite::SqliteStore::open(path, options)?)
        }
        #[cfg(feature = "postgres")]
        Address::Postgres(dsn) => {
            let options = windlass_postgres::Options::default();
            Ok(windlass_postgres::PostgresStore::open(&dsn, options).await?)
        }
        #[allow(unreachable_patterns, reason = "reached when a store is left out by its feature")]
        other => {
            let message = format!("this build has no store for {other}; enable its feature");
            Err(Error::new(ErrorKind::Invalid, "INVALID_STORE_URL", message))
        }
    }
}
