//! Requests of a tool to the other routes of the server, with the credential of the caller.

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use windlass::ErrorCode;

use super::Head;
use super::rpc::Failed;
use crate::app::App;
use crate::error::ApiError;
use crate::serve::Stopping;

/// Larger responses of a route are an error of the tool. The largest body of a run is 16 MiB.
const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Calls the other routes.
pub(super) struct Inner {
    pub(super) app: App,
    api: Router,
    head: Head,
}

/// A response that is not a success.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) status: StatusCode,
    /// `{code, message, details?}`.
    pub(super) failure: Value,
}

impl Rejected {
    pub(super) fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { status, failure: json!({ "code": code, "message": message.into() }) }
    }

    /// The arguments of a tool are invalid.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument, message)
    }
}

impl From<ApiError> for Rejected {
    fn from(error: ApiError) -> Self {
        Self::new(error.status(), error.code(), error.message())
    }
}

impl From<Rejected> for Failed {
    fn from(rejected: Rejected) -> Self {
        super::RpcError::of_route(rejected.status, &rejected.failure).into()
    }
}

/// Query parameters.
pub(super) type Query = Vec<(&'static str, String)>;

impl Inner {
    pub(super) fn new(app: App, api: Router, head: Head) -> Self {
        Self { app, api, head }
    }

    pub(super) async fn get(&self, path: &[&str], query: &Query) -> Result<Value, Rejected> {
        self.send(Method::GET, path, query, None).await
    }

    pub(super) async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Rejected> {
        self.send(Method::POST, path, &Vec::new(), Some(body)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &Query,
        body: Option<&Value>,
    ) -> Result<Value, Rejected> {
        let uri = self.uri(path, query)?;
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let mut request = axum::extract::Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers();
        if let Some(stopping) = self.head.extensions.get::<Stopping>() {
            request.extensions_mut().insert(stopping.clone());
        }
        let service = TowerToHyperService::new(self.api.clone());
        let response = match service.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
        let body = body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
        let body: Value = body.ok_or_else(|| {
            let message = "the response of the route is too large or was cut off";
            Rejected::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, message)
        })?;
        match status.is_success() {
            true => Ok(body),
            false => Err(Rejected { status, failure: body }),
        }
    }

    fn uri(&self, path: &[&str], query: &Query) -> Result<Uri, Rejected> {
        let mut uri = self.app.options.base.clone();
        for segment in path {
            uri.push('/');
            push_segment(&mut uri, segment);
        }
        if !query.is_empty() {
            let query = serde_html_form::to_string(query).unwrap_or_default();
            uri.push('?');
            uri.push_str(&query);
        }
        uri.parse().map_err(|_| Rejected::invalid("the arguments are too long for a URL"))
    }

    /// The headers of the caller without those that are about the message.
    fn headers(&self) -> HeaderMap {
        let mut headers = self.head.headers.clone();
        let of_message = [
            header::ACCEPT,
            header::CONNECTION,
            header::CONTENT_ENCODING,
            header::CONTENT_LENGTH,
            header::EXPECT,
            header::TE,
            header::TRANSFER_ENCODING,
        ];
        for name in of_message {
            headers.remove(name);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers
    }
}

fn push_segment(uri: &mut String, segment: &str) {
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_stays_one_segment() {
        for (segment, expect) in [
            ("order-1", "order-1"),
            ("a/b?c#d%20", "a%2Fb%3Fc%23d%2520"),
            ("naïve id", "na%C3%AFve%20id"),
        ] {
            let mut uri = String::new();
            push_segment(&mut uri, segment);
            assert_eq!(uri, expect);
        }
    }
}
