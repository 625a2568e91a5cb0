//! The OpenAPI document, and the page that shows it. Both are part of the binary.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use bytes::Bytes;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, ServerBuilder};

use crate::app::App;
use crate::error::ApiError;
use crate::extract::Named;

/// The page needs its own script and styles, and nothing of anybody else's.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      frame-ancestors 'none'";

/// What the document says of the API as a whole.
pub(crate) fn about(base: &str) -> OpenApi {
    let info = InfoBuilder::new()
        .title("Windlass")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Durable workflows: start runs, look at them, send them events, manage them.",
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

/// The document and the page, ready to be sent.
pub(crate) struct Docs {
    json: Bytes,
    page: Arc<utoipa_swagger_ui::Config<'static>>,
}

impl Docs {
    pub(crate) fn new(api: &OpenApi, base: &str) -> Self {
        let json = serde_json::to_vec_pretty(api).unwrap_or_default().into();
        let page = utoipa_swagger_ui::Config::from(format!("{base}/openapi.json"));
        Self { json, page: Arc::new(page) }
    }
}

pub(crate) async fn openapi(State(app): State<App>) -> Response {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (kind, app.docs.json.clone()).into_response()
}

/// The page's files lie beside it, so it must end with a slash.
pub(crate) async fn to_page(State(app): State<App>) -> Redirect {
    Redirect::permanent(&format!("{}/docs/", app.options.base))
}

pub(crate) async fn page(State(app): State<App>) -> Result<Response, ApiError> {
    file(&app, "index.html")
}

pub(crate) async fn page_file(
    State(app): State<App>,
    Named(path): Named,
) -> Result<Response, ApiError> {
    file(&app, &path)
}

fn file(app: &App, path: &str) -> Result<Response, ApiError> {
    let found = utoipa_swagger_ui::serve(path, Arc::clone(&app.docs.page)).map_err(|error| {
        tracing::error!(%error, path, "a file of the documentation cannot be served");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", "the page cannot be shown")
    })?;
    let file =
        found.ok_or_else(|| ApiError::not_found("ROUTE_NOT_FOUND", "there is no such file"))?;
    let kind = HeaderValue::try_from(file.content_type.as_str());
    let kind = kind.unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    ];
    let mut response = (headers, file.bytes.into_owned()).into_response();
    if file.gzpipped {
        let gzip = HeaderValue::from_static("gzip");
        response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
    }
    Ok(response)
}
