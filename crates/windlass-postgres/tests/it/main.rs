//! Tests of the PostgreSQL store against the server that `WINDLASS_TEST_PG` names.

mod batches;
mod conformance;
mod interleave;
mod listen;
mod lost;
mod migrate;
mod proxy;
mod statements;
mod support;
mod user_sql;
