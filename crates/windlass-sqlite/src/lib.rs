//! The embedded store of Windlass: one SQLite file, one process, group commit.
//!
//! One thread owns the connection that writes ([`SqliteStore::open`] starts it). Calls that write
//! queue up; the thread takes all that arrived while its last batch was on its way, writes them in
//! one transaction and answers each caller after the data is durable. Reads go to a few read-only
//! connections with threads of their own. There is no async runtime in here.
//!
//! | file | what |
//! |---|---|
//! | `options.rs` | what can be set |
//! | `store.rs` | the `Store` trait, one line a call |
//! | `schema.rs` | opening: lock, checks, migrations |
//! | `committer.rs` | the writer thread: batches, failures, checkpoints |
//! | `apply.rs` | one commit: guards, refusals, rows |
//! | `holds.rs`, `workers.rs` | who holds what; who lives |
//! | `load.rs`, `list.rs`, `health.rs` | reading |
//! | `rows.rs` | columns to kernel rows and back |
//! | `user_sql.rs` | the user's own statements, fenced in |
//! | `wake.rs` | wake-ups, off the writer's path |
//! | `error.rs` | what SQLite's errors mean to a caller |

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

pub use options::{Fault, Options};
pub use store::SqliteStore;
