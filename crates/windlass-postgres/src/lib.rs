//! The shared store of Windlass: PostgreSQL 13 or later.
//!
//! [`PostgresStore::open`] migrates the schema and returns a [`Store`](windlass_kernel::Store) that
//! many processes may share. A batch of commits is one call of one function in the database
//! (`migrations/V2__commit.sql`). A few committers send batches; all other calls use a small pool.
//! The store has its own threads, so its futures can be awaited on any executor, and user code that
//! blocks all threads of its runtime does not delay the commits of others.

#![allow(
    clippy::disallowed_methods,
    reason = "a store has a real clock, real tasks and real waits"
)]

mod apply;
mod bodies;
mod committer;
mod error;
mod health;
mod holds;
mod list;
mod load;
mod namespace_stats;
mod options;
mod records;
mod retention;
mod rows;
mod schema;
mod store;
mod supervise;
mod user_sql;
mod wake;
mod workers;

pub use options::{Options, TlsMode};
pub use store::PostgresStore;
