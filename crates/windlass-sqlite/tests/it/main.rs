//! Tests of the SQLite store, beyond and including the conformance suite.

#![allow(clippy::disallowed_methods, reason = "tests start tasks of their own")]

mod callers;
mod conformance;
mod damage;
mod differential;
mod failures;
mod opening;
mod plans;
mod subject;
mod support;
mod user_sql;
