//! The common shape of all errors: a status, a code, a message, and optional details.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use windlass::{Error, ErrorCode, ErrorKind};

/// The body of an error response.
#[derive(Debug, Serialize, ToSchema)]
pub struct Failure {
    /// A stable code; see docs/errors.md.
    #[schema(value_type = String, example = "INSTANCE_NOT_FOUND")]
    pub code: ErrorCode,
    /// The problem, and how to fix it.
    pub message: String,
    /// Additional data for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub details: Option<Value>,
}

/// An error with its HTTP status.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    failure: Failure,
    retry_after_s: Option<u32>,
    allow: Option<Box<str>>,
}

impl ApiError {
    /// Creates an error.
    pub fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        let failure = Failure { code, message: message.into(), details: None };
        Self { status, failure, retry_after_s: None, allow: None }
    }

    /// 400: the request is invalid.
    pub(crate) fn invalid(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// 404: the object does not exist.
    pub(crate) fn not_found(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// 403: the caller lacks permission.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, message)
    }

    /// 401: the request is not authenticated.
    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthenticated, message)
    }

    /// Sets `Retry-After`.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// Sets `Allow`: the methods of the path.
    pub(crate) fn allow(mut self, methods: &[&str]) -> Self {
        self.allow = Some(methods.join(", ").into());
        self
    }

    /// Sets additional data for programs.
    pub fn with_details(mut self, details: Value) -> Self {
        self.failure.details = Some(details);
        self
    }

    /// Replaces the code.
    pub(crate) fn coded(mut self, code: ErrorCode) -> Self {
        self.failure.code = code;
        self
    }

    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        self.failure.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.failure.message
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

/// Maps an engine code to its name in the HTTP API.
fn wire_code(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::RunNotFound => ErrorCode::InstanceNotFound,
        ErrorCode::RunExists => ErrorCode::InstanceIdAlreadyExists,
        ErrorCode::MessageExists => ErrorCode::EventIdAlreadyExists,
        ErrorCode::RunTerminal => ErrorCode::InstanceTerminal,
        ErrorCode::RunNotErrored => ErrorCode::InstanceNotErrored,
        ErrorCode::RunBusy => ErrorCode::InstanceBusy,
        other => other,
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let code = wire_code(error.code());
        // The code is more specific than the kind, which only says how a caller of the store can
        // react.
        let status = match (code, error.kind()) {
            (ErrorCode::InstanceNotFound, _) | (_, ErrorKind::NotFound) => StatusCode::NOT_FOUND,
            // The client is asked to slow down; the server itself can go on.
            (ErrorCode::MessagesLimit | ErrorCode::EventKeyFull | ErrorCode::Overloaded, _) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            (ErrorCode::NotAssigned | ErrorCode::DeciderExcluded, _) => StatusCode::FORBIDDEN,
            (ErrorCode::RecordConflict | ErrorCode::DocumentConflict, _) => {
                StatusCode::PRECONDITION_FAILED
            }
            (_, ErrorKind::Invalid) => StatusCode::BAD_REQUEST,
            (
                _,
                ErrorKind::Conflict | ErrorKind::Refused | ErrorKind::UserSql | ErrorKind::Failed,
            ) => StatusCode::CONFLICT,
            (_, ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::Closed) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::error!(%error, "request failed");
        }
        let api = Self::new(status, code, error.message());
        match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => api.retry_after(1),
            _ => api,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.failure).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(methods) = self.allow.and_then(|text| HeaderValue::try_from(&*text).ok()) {
            headers.insert(header::ALLOW, methods);
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The result of a handler.
pub(crate) type ApiResult<T> = Result<crate::json::Json<T>, ApiError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_mailbox_asks_the_sender_to_wait() {
        let error = Error::new(ErrorKind::Refused, ErrorCode::MessagesLimit, "too many");
        let answer = ApiError::from(error).into_response();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[header::RETRY_AFTER], "1");
    }
}
