//! Tests of the PostgreSQL store against the server that `WINDLASS_TEST_PG` names.

mod conformance;
mod support;
