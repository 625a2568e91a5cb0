//! The Prometheus endpoint.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::app::App;
use crate::error::ApiError;

/// Metrics of this process and of the store.
pub(crate) async fn metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(([(header::CONTENT_TYPE, kind)], app.metrics.text().await?).into_response())
}
