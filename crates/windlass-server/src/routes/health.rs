//! Liveness and readiness probes.

use axum::Extension;
use axum::extract::State;
use serde_json::{Value, json};
use windlass::ErrorCode;

use crate::app::App;
use crate::error::ApiError;
use crate::json::Json;
use crate::serve::Stopping;

/// Liveness: the process responds.
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Readiness: the store accepted the last write of the probe, and neither the server nor the engine is stopping.
pub(crate) async fn readyz(
    State(app): State<App>,
    stopping: Option<Extension<Stopping>>,
) -> Result<Json<Value>, ApiError> {
    let leaving = stopping.is_some_and(|Extension(stopping)| stopping.has_begun());
    if leaving || app.engine.is_stopping() {
        // Not logged as a server error: a load balancer should use another process.
        let message = "this process is stopping; send requests to another process";
        let status = axum::http::StatusCode::SERVICE_UNAVAILABLE;
        return Err(ApiError::new(status, ErrorCode::EngineStopping, message).retry_after(1));
    }
    app.store_status.check().await?;
    Ok(Json(json!({ "status": "ready" })))
}
