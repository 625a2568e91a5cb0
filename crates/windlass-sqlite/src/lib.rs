//! The embedded store of Windlass: one SQLite file, one process, group commit.
//!
//! One thread owns the write connection ([`SqliteStore::open`] starts it). Write calls go into its
//! queue. The thread takes all calls that arrived while it wrote the previous batch, writes them in
//! one transaction, and answers each caller after the data is durable. Reads use a few read-only
//! connections with their own threads. The crate needs no async runtime.
//!
//! | file | contents |
//! |---|---|
//! | `options.rs` | options |
//! | `store.rs` | the `Store` trait, one line per call |
//! | `schema.rs` | opening: lock, checks, migrations |
//! | `clock.rs` | the store's clock |
//! | `committer.rs` | the writer thread: batches, failures, checkpoints |
//! | `apply.rs` | one commit: guards, refusals, rows |
//! | `holds.rs`, `workers.rs` | claims and holds; worker leases |
//! | `load.rs`, `list.rs`, `health.rs` | reads |
//! | `bodies.rs`, `records.rs` | large bodies; records |
//! | `rows.rs` | conversion between columns and kernel rows |
//! | `user_sql.rs` | user SQL and its restrictions |
//! | `wake.rs` | wake-ups, outside the writer thread |
//! | `error.rs` | conversion of SQLite errors |

mod apply;
mod bodies;
mod clock;
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
mod user_sql;
mod wake;
mod workers;

pub use options::{Fault, Options};
pub use store::SqliteStore;
