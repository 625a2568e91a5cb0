//! Tests of the server over HTTP, on SQLite and PostgreSQL, and for records in memory too.

#![allow(clippy::disallowed_methods, reason = "the tests need the real clock")]

mod access;
mod after_commit;
#[cfg(feature = "agents")]
mod agents;
mod auth;
mod bad_requests;
#[cfg(feature = "contracts")]
mod browser;
#[cfg(feature = "contracts")]
mod contracts;
#[cfg(feature = "contracts")]
mod contracts_hooks;
mod control;
mod dashboard;
mod dashboard_data;
mod durable;
mod harness;
mod hooks;
mod inbox;
mod instances;
mod kept;
mod keyed_events;
mod limits;
mod live;
#[cfg(feature = "agents")]
mod llm;
mod lookups;
mod mcp;
mod operations;
mod outage;
mod pages;
mod receipts;
mod records;
mod route_sets;
mod schedules;
mod server;
mod session;
#[path = "../../examples/sets/mod.rs"]
mod sets;
mod step_types;
mod store_status;
#[cfg(feature = "contracts")]
mod webdriver;
#[cfg(feature = "webhooks")]
mod webhooks;
mod why;
#[cfg(feature = "contracts")]
#[path = "../../examples/showcase/world.rs"]
mod world;

#[path = "../../../windlass-postgres/tests/it/support.rs"]
#[allow(dead_code, reason = "most of it is for the tests of the store")]
mod schema;
