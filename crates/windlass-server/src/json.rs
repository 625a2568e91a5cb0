//! Answers in JSON.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::error::ApiError;

/// So many bytes take most answers without being moved.
const USUAL_BYTES: usize = 1024;

/// What a handler answers. As axum's, but written into room that is large enough.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(USUAL_BYTES);
        if let Err(error) = serde_json::to_writer(&mut body, &self.0) {
            let message = format!("an answer cannot be written: {error}");
            return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", message)
                .into_response();
        }
        let kind = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, kind)], body).into_response()
    }
}
