//! What the SQLite store does beyond, and as every other store does.

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
