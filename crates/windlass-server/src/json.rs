//! JSON responses with a larger initial buffer than those of axum.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use windlass::ErrorCode;

use crate::error::ApiError;

/// The initial capacity, which avoids a reallocation for most responses.
const INITIAL_CAPACITY: usize = 1024;

/// A JSON response. Like axum's, but with a larger initial buffer.
pub(crate) struct Json<T>(pub(crate) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut body = Vec::with_capacity(INITIAL_CAPACITY);
        if let Err(error) = serde_json::to_writer(&mut body, &self.0) {
            let message = format!("failed to serialize the response: {error}");
            return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, message)
                .into_response();
        }
        let kind = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, kind)], body).into_response()
    }
}
