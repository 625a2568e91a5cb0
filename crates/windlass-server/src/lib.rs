//! The HTTP API of Windlass: a [`router`] that a program merges with its own routes, and that the
//! `windlass` binary serves.
//!
//! One table lists every route with the scope that it requires. The router, the guard and the
//! OpenAPI document are built from that table. Requests to routes that are not in the table are
//! rejected.

#![allow(clippy::disallowed_methods, reason = "the server needs the real clock")]

#[cfg(doctest)]
#[doc = include_str!("../../../docs/quickstart.md")]
struct Quickstart;

mod app;
pub mod auth;
mod connections;
#[cfg(feature = "contracts")]
pub mod contracts;
mod cursor;
mod dashboard;
mod depth;
mod docs;
mod error;
mod extract;
mod guard;
mod json;
#[cfg(feature = "agents")]
pub mod llm;
mod mcp;
mod metrics;
mod options;
mod paging;
#[cfg(test)]
mod parser_tests;
mod precondition;
mod reference;
mod route_doc;
mod router;
mod routes;
mod series;
mod serve;
mod store_status;
mod table;
pub mod telemetry;
mod view;
mod write_timeout;

pub use error::{ApiError, Failure};
pub use extract::CallerEngine;
pub use options::Options;
pub use reference::reference;
pub use router::{openapi, route_list, router, router_with_status};
pub use routes::operator::SettingView;
pub use serve::{ServeOptions, serve, serve_with};
pub use store_status::StoreStatus;
pub use table::{Access, Entry, RouteSet};
