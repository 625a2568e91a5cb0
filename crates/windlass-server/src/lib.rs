//! The HTTP API of Windlass: a [`router`] that a program mounts beside its own routes, and that the
//! binary serves alone.
//!
//! Every route is in one list with the scope that it needs; the router, the guard and the OpenAPI
//! document are made from that list. What is not in it is refused.

#![allow(clippy::disallowed_methods, reason = "the server is the edge: it lives in real time")]

mod app;
pub mod auth;
mod cursor;
mod depth;
mod docs;
mod error;
mod extract;
mod guard;
mod json;
mod metrics;
mod options;
mod paging;
mod patient;
mod reference;
mod router;
mod routes;
mod serve;
mod table;
pub mod telemetry;
mod view;

pub use error::{ApiError, Failure};
pub use options::Options;
pub use reference::reference;
pub use router::{openapi, route_list, router};
pub use serve::{ServeOptions, serve, serve_with};
pub use table::{Access, Entry};
