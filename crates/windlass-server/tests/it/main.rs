//! The server as its clients see it: over a socket, on SQLite and on PostgreSQL.

#![allow(clippy::disallowed_methods, reason = "the tests live in the real world")]

mod auth;
mod bad_requests;
mod control;
mod durable;
mod harness;
mod instances;
mod live;
mod operations;
mod outage;
mod pages;
mod room;
mod schedules;
mod server;
mod why;
mod words;

#[path = "../../../windlass-postgres/tests/it/support.rs"]
#[allow(dead_code, reason = "most of it is for the tests of the store itself")]
mod schema;
