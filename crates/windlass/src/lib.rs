//! Windlass: durable workflows in Rust. One SQLite file, or PostgreSQL for many machines.
//!
//! A workflow is an async function. What it does in steps is recorded; when the process ends in the
//! middle, the next one goes on where the record ends. See [`Engine`] for the first fifteen lines.

mod address;
mod archive;
mod engine;
#[cfg(feature = "webhooks")]
pub mod outbound;
#[cfg(feature = "relays")]
pub mod relays;
pub mod transfer;
#[cfg(feature = "webhooks")]
pub mod webhooks;

use std::sync::Arc;

pub use address::Address;
pub use archive::FileArchive;
pub use engine::{Builder, Engine};
pub use windlass_engine::{
    Admission, Archive, BackpressureConfig, EnqueuedReason, Env, Explanation, Lane, Manners,
    Missed, Options, Overlap, Reason, Retention, ScheduleState, Swept, TaskContext, TaskFailure,
    TaskHandler, TaskResult, TokioEnv, Usage, Why, is_being_done,
};
pub use windlass_kernel as kernel;
pub use windlass_kernel::{
    Backoff, Error, ErrorKind, IntoDuration, Limits, LogLevel, RetryPolicy, RunKey, RunStatus,
    SqlValue, Store, Timestamp,
};
#[cfg(feature = "machines")]
pub use windlass_models::machines;
pub use windlass_models::steps;
pub use windlass_models::steps::{
    Attempt, BoxError, Ctx, NonRetryable, Retries, StepError, StepTx, WorkflowRef,
};
pub use windlass_models::{RunHandle, Status};

/// What a workflow returns; `?` takes any error.
pub type Result<T, E = BoxError> = std::result::Result<T, E>;

/// Opens the store that an address names.
///
/// | address | store |
/// |---|---|
/// | `sqlite://app.db`, `sqlite:app.db` | the file `app.db`; its folder is made if it is missing |
/// | `sqlite:///var/lib/app.db` | a file by its absolute path |
/// | `postgres://user@host/database?…` | PostgreSQL, schema `windlass` |
/// | `memory:` | nothing is kept when the process ends |
pub async fn open_store(address: &str) -> std::result::Result<Arc<dyn Store>, Error> {
    open(address, false).await
}

/// Opens a store only to look at it: nothing is made, migrated or freed. A store that is not there is
/// `STORE_NOT_FOUND`, one that `open_store` would migrate is `STORE_OLDER`, and what its schema lacks is
/// told by [`Store::check`].
pub async fn inspect_store(address: &str) -> std::result::Result<Arc<dyn Store>, Error> {
    open(address, true).await
}

async fn open(address: &str, inspect: bool) -> std::result::Result<Arc<dyn Store>, Error> {
    match address.parse()? {
        Address::Memory => {
            Ok(Arc::new(kernel::MemoryStore::new(Arc::new(address::system_clock), Limits::DEFAULT)))
        }
        #[cfg(feature = "sqlite")]
        Address::Sqlite(path) => {
            if !inspect {
                address::make_folder_of(&path)?;
            }
            let options = windlass_sqlite::Options { inspect, ..Default::default() };
            Ok(windlass_sqlite::SqliteStore::open(path, options)?)
        }
        #[cfg(feature = "postgres")]
        Address::Postgres(dsn) => {
            let options = windlass_postgres::Options { inspect, ..Default::default() };
            Ok(windlass_postgres::PostgresStore::open(&dsn, options).await?)
        }
        #[allow(unreachable_patterns, reason = "reached when a store is left out by its feature")]
        other => {
            let message = format!("this build has no store for {other}; enable its feature");
            Err(Error::new(ErrorKind::Invalid, "INVALID_STORE_URL", message))
        }
    }
}
