//! Whether the process is up, and whether it can do its work.

use axum::Extension;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::json::Json;
use crate::serve::Stopping;

/// The process answers.
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The store answers too, and neither the server nor the engine is on its way out.
pub(crate) async fn readyz(
    State(app): State<App>,
    stopping: Option<Extension<Stopping>>,
) -> Result<Json<Value>, ApiError> {
    let leaving = stopping.is_some_and(|Extension(stopping)| stopping.is_near());
    if leaving || app.engine.is_stopping() {
        // Not a failure of the server's: whoever asks is to send its requests elsewhere.
        let message = "this process is stopping; send requests to another";
        let status = axum::http::StatusCode::SERVICE_UNAVAILABLE;
        return Err(ApiError::new(status, "ENGINE_STOPPING", message).retry_after(1));
    }
    app.engine.store().now().await?;
    Ok(Json(json!({ "status": "ready" })))
}
