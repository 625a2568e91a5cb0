//! The OpenAPI document and the page that displays it. Both are embedded in the binary.

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, ServerBuilder};
use windlass::ErrorCode;

use crate::app::App;
use crate::error::ApiError;
use crate::extract::Named;

/// Allows only the page's own scripts and styles.
const POLICY: &str = "default-src 'self'; frame-ancestors 'none'";

/// The general part of the document.
pub(crate) fn about(base: &str) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Windlass")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Durable workflows: start, inspect and manage runs, and send events to them.",
        ))
        .build();
    let base = if base.is_empty() { "/" } else { base };
    let mut api = OpenApiBuilder::new()
        .info(info)
        .servers(Some([ServerBuilder::new().url(base).build()]))
        .security(Some([SecurityRequirement::new("bearer", [""; 0])]))
        .build();
    let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    api.components.get_or_insert_default().add_security_scheme("bearer", bearer);
    api
}

/// The files of the page: path, content type, text.
const FILES: [(&str, &str, &str); 3] = [
    ("index.html", "text/html; charset=utf-8", include_str!("docs/index.html")),
    ("docs.css", "text/css; charset=utf-8", include_str!("docs/docs.css")),
    ("docs.js", "text/javascript; charset=utf-8", include_str!("docs/docs.js")),
];

/// The serialized document.
pub(crate) struct Docs {
    json: Bytes,
}

impl Docs {
    pub(crate) fn new(api: &OpenApi) -> Self {
        Self { json: serde_json::to_vec_pretty(api).unwrap_or_default().into() }
    }
}

pub(crate) async fn openapi(State(app): State<App>) -> Response {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (kind, app.docs.json.clone()).into_response()
}

/// The page refers to its files with relative paths, so its URL must end with a slash.
pub(crate) async fn to_page(State(app): State<App>) -> Redirect {
    Redirect::permanent(&format!("{}/docs/", app.options.base))
}

pub(crate) async fn page() -> Result<Response, ApiError> {
    file("index.html")
}

pub(crate) async fn page_file(Named(path): Named) -> Result<Response, ApiError> {
    file(&path)
}

fn file(path: &str) -> Result<Response, ApiError> {
    let (_, kind, text) = FILES
        .iter()
        .find(|(name, ..)| *name == path)
        .ok_or_else(|| ApiError::not_found(ErrorCode::RouteNotFound, "unknown file"))?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    ];
    Ok((headers, *text).into_response())
}
