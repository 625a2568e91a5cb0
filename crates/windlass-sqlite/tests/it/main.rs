//! What the SQLite store does beyond, and as every other store does.

mod callers;
mod conformance;
mod differential;
mod failures;
mod opening;
mod plans;
mod subject;
mod support;
mod user_sql;
