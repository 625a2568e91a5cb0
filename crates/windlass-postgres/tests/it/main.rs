//! Tests of the PostgreSQL store against the server that `WINDLASS_TEST_PG` names.

#![allow(clippy::disallowed_methods, reason = "a real server has a real clock")]

mod batches;
mod conformance;
mod differential;
mod interleave;
mod listen;
mod lost;
mod migrate;
mod operators;
mod pools;
mod proxy;
mod readers;
mod statements;
mod support;
mod user_sql;
