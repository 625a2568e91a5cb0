//! The one shape of every failure: a status, a code, a message, and details where they help.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use windlass::{Error, ErrorKind};

/// What a client gets instead of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct Failure {
    /// A stable code; docs/errors.md lists them.
    #[schema(example = "INSTANCE_NOT_FOUND")]
    pub code: &'static str,
    /// Which value is wrong, and what to do.
    pub message: String,
    /// What a program may want to know beside the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub details: Option<Value>,
}

/// A failure with its HTTP status.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    failure: Failure,
    retry_after_s: Option<u32>,
    allow: Option<Box<str>>,
}

impl ApiError {
    /// A failure.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let failure = Failure { code, message: message.into(), details: None };
        Self { status, failure, retry_after_s: None, allow: None }
    }

    /// The request is wrong and stays wrong.
    pub(crate) fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// What was asked for is not there.
    pub(crate) fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// The caller is known and may not.
    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "FORBIDDEN", message)
    }

    /// Nobody said who asks.
    pub(crate) fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message)
    }

    /// The same request may be answered in so many seconds.
    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    /// The methods that the path takes.
    pub(crate) fn allow(mut self, methods: &[&str]) -> Self {
        self.allow = Some(methods.join(", ").into());
        self
    }

    /// The failure with what a program may want to know.
    pub fn with_details(mut self, details: Value) -> Self {
        self.failure.details = Some(details);
        self
    }

    /// The same failure under another code.
    pub(crate) fn coded(mut self, code: &'static str) -> Self {
        self.failure.code = code;
        self
    }

    /// The stable code.
    pub fn code(&self) -> &'static str {
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

/// The words of the HTTP API for what the engine calls by other names.
fn wire_code(code: &'static str) -> &'static str {
    match code {
        "RUN_NOT_FOUND" => "INSTANCE_NOT_FOUND",
        "RUN_EXISTS" => "INSTANCE_ID_ALREADY_EXISTS",
        "MESSAGE_EXISTS" => "EVENT_ID_ALREADY_EXISTS",
        "RUN_TERMINAL" => "INSTANCE_TERMINAL",
        "RUN_NOT_ERRORED" => "INSTANCE_NOT_ERRORED",
        "RUN_BUSY" => "INSTANCE_BUSY",
        other => other,
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let code = wire_code(error.code());
        // The code tells more than the kind, which is what the store's caller can do.
        let status = match (code, error.kind()) {
            ("INSTANCE_NOT_FOUND", _) | (_, ErrorKind::NotFound) => StatusCode::NOT_FOUND,
            (_, ErrorKind::Invalid) => StatusCode::BAD_REQUEST,
            (
                _,
                ErrorKind::Conflict | ErrorKind::Refused | ErrorKind::UserSql | ErrorKind::Failed,
            ) => StatusCode::CONFLICT,
            (_, ErrorKind::Unknown | ErrorKind::Unavailable | ErrorKind::Closed) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            (_, ErrorKind::Corrupt | ErrorKind::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        if status.is_server_error() {
            tracing::error!(%error, "a request failed");
        }
        let api = Self::new(status, code, error.message());
        if status == StatusCode::SERVICE_UNAVAILABLE { api.retry_after(1) } else { api }
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

/// What handlers answer.
pub(crate) type ApiResult<T> = Result<crate::json::Json<T>, ApiError>;
