//! The index of the API.

use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::app::App;
use crate::error::{ApiResult, Failure};
use crate::json::Json;

/// The server and its main routes.
#[derive(Serialize, ToSchema)]
pub(crate) struct Index {
    /// `windlass`.
    pub name: &'static str,
    /// The version of the server.
    pub version: &'static str,
    /// The main routes.
    #[schema(value_type = Value)]
    pub links: Value,
}

/// Returns the version of the server and links to its main routes.
#[utoipa::path(get, path = "/", tag = "server", operation_id = "index",
    responses((status = 200, body = Index), (status = "default", body = Failure)))]
pub(crate) async fn index(State(app): State<App>) -> ApiResult<Index> {
    let base = &app.options.base;
    let links = json!({
        "workflows": format!("{base}/workflows"),
        "runs": format!("{base}/runs"),
        "schedules": format!("{base}/schedules"),
        "queues": format!("{base}/queues"),
        "workers": format!("{base}/workers"),
        "openapi": format!("{base}/openapi.json"),
        "docs": format!("{base}/docs"),
        "health": "/healthz",
        "metrics": "/metrics",
    });
    Ok(Json(Index { name: "windlass", version: env!("CARGO_PKG_VERSION"), links }))
}
