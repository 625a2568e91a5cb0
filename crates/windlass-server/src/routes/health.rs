//! Whether the process is up, and whether it can do its work.

use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::json::Json;

/// The process answers.
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// The store answers too, and the engine is not on its way out.
pub(crate) async fn readyz(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    if app.engine.is_stopping() {
        let message = "the engine is stopping";
        let error =
            windlass::Error::new(windlass::ErrorKind::Unavailable, "ENGINE_STOPPING", message);
        return Err(error.into());
    }
    app.engine.store().now().await?;
    Ok(Json(json!({ "status": "ready" })))
}
