//! The shared store of Windlass: PostgreSQL 13 or later.
//!
//! [`PostgresStore::open`] migrates the schema and gives a
//! [`Store`](windlass_kernel::Store) that many processes may share. A batch of commits is one call
//! of one function in the database (`migrations/V2__commit.sql`); a few committers send them, and
//! everything else goes through a small pool. The store has threads of its own, so its futures can
//! be awaited on any executor, and user code that blocks every thread of its own runtime delays
//! no commit of others.

#![allow(
    clippy::disallowed_methods,
    reason = "a store has a real clock, real tasks and real waits"
)]

mod apply;
mod census;
mod committer;
mod error;
mod health;
mod holds;
mod list;
mod load;
mod options;
mod retention;
mod rows;
mod schema;
mod store;
mod user_sql;
mod wake;
mod workers;

pub use options::{Options, TlsMode};
pub use store::PostgresStore;
