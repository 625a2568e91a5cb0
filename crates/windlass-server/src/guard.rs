//! The middleware of every route: request id, limits, authentication, timeout, panics.

mod named;

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;
use windlass::ErrorCode;

use crate::app::App;
use crate::auth::{Caller, Scope};
use crate::error::ApiError;
use crate::extract::{CallerEngine, RowHooks, receive_body};
use crate::metrics::Labels;
use crate::table::{Access, Entry, Pace};
use crate::telemetry;

use self::named::Named;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const REQUEST_ID_CHARS_MAX: usize = 128;
/// Additional time for a handler to respond after a wait.
const WAIT_GRACE: Duration = Duration::from_secs(5);

pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(&app, &request);
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let path = path.as_ref().map_or("", MatchedPath::as_str);
    let span = tracing::info_span!("http", %method, route = path, request_id = ?id);
    telemetry::continue_from(&span, telemetry::traceparent(request.headers()).as_deref());
    let entry = app.table.find(&method, path);
    let answered = AssertUnwindSafe(handle(&app, entry, path, request, next).instrument(span));
    let answered = answered.catch_unwind().await;
    let mut response = match answered {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => error.into_response(),
        Err(panic) => {
            let what = windlass_engine::panic_text(&*panic);
            tracing::error!(request_id = ?id, path, what, "an HTTP handler panicked");
            let message = "internal error; the server log has details under the request id";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, message)
                .into_response()
        }
    };
    let headers = response.headers_mut();
    headers.reserve(4);
    headers.insert(REQUEST_ID, id);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    let labels = match entry {
        Some(entry) => Cow::Borrowed(&entry.labels),
        None => Cow::Owned(Labels::new(&method, path)),
    };
    app.metrics.answered(&labels, response.status(), started.elapsed());
    response
}

async fn handle(
    app: &App,
    entry: Option<&Entry>,
    path: &str,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let timeout = app.options.request_timeout;
    let until = tokio::time::Instant::now() + timeout;
    let timed_out = |_| {
        let message = format!("the request timed out after {} s", timeout.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::RequestTimeout, message)
    };
    let waits = entry.is_some_and(|entry| entry.pace == Pace::Waits) && asks_to_wait(&request);
    let prepared = tokio::time::timeout_at(until, prepare(app, entry, path, request)).await;
    let (mut request, _body_permit) = prepared.map_err(timed_out)??;
    let waiting = if waits { Some(app.admit_waiting()?) } else { None };
    let is_free = entry.is_some_and(|entry| matches!(entry.pace, Pace::Always | Pace::Relays));
    let _permit = if waits || is_free { None } else { Some(app.admit()?) };
    let caller = request.extensions().get::<Arc<Caller>>();
    let _of_credential = match caller.filter(|_| waits) {
        Some(caller) => Some(app.waits_of.acquire(caller).map_err(|()| too_many_waits(app))?),
        None => None,
    };
    let waiting = waiting.as_ref().map(|(_, waiting)| waiting);
    if let Some(waiting) = waiting {
        request.extensions_mut().insert(Arc::clone(waiting));
    }
    let mut answer = std::pin::pin!(next.run(request));
    let mut answered = tokio::time::timeout_at(until, answer.as_mut()).await;
    // Only the wait itself may exceed the request timeout.
    if answered.is_err() && waiting.is_some_and(|waiting| waiting.has_begun()) {
        answered = tokio::time::timeout(app.options.wait_max + WAIT_GRACE, answer).await;
    }
    answered.map_err(timed_out)
}

fn too_many_waits(app: &App) -> ApiError {
    let max = app.waits_of.max();
    let message = format!(
        "too many waiting requests of this credential (limit {max}); retry later or omit `waitMs`"
    );
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::TooManyWaits, message).retry_after(1)
}

// Authenticates a request and receives its body. A client that sends its body slowly holds no permit
// of a request meanwhile, so that it does not lock others out.
async fn prepare(
    app: &App,
    entry: Option<&Entry>,
    path: &str,
    request: Request,
) -> Result<(Request, Option<OwnedSemaphorePermit>), ApiError> {
    let is_probe = entry.is_some_and(|entry| entry.pace == Pace::Always);
    let permit = if is_probe { None } else { Some(app.admit()?) };
    let request = match entry.map(|entry| entry.access) {
        Some(Access::Public) => request,
        Some(Access::Credential) => authenticate(app, path, request, None).await?,
        Some(Access::Scope(scope)) => authenticate(app, path, request, Some(scope)).await?,
        Some(Access::Operator) => {
            let request = authenticate(app, path, request, Some(Scope::Admin)).await?;
            let caller = request.extensions().get::<Arc<Caller>>();
            let own = &app.engine.options().namespace;
            if caller.is_none_or(|caller| !caller.is_operator(own)) {
                let message = "this route shows all namespaces; it requires `admin` in the server's own namespace";
                return Err(ApiError::forbidden(message));
            }
            request
        }
        // Unauthenticated callers must not learn which routes exist.
        None => {
            let request = authenticate(app, path, request, None).await?;
            return Err(route_error(app, path, &request));
        }
    };
    drop(permit);
    // A handler from outside reads its body itself.
    if entry.is_some_and(|entry| entry.is_brought) {
        return Ok((with_engine(app, request), None));
    }
    receive_body(app, request, body_bytes_max(app, path)).await
}

fn body_bytes_max(app: &App, path: &str) -> usize {
    let options = &app.options;
    let path = path.strip_prefix(&*options.base).unwrap_or(path);
    if path.starts_with("/records/") {
        return app.engine.options().limits.record_bytes_max;
    }
    let is_batch = path.trim_end_matches('/').ends_with("/batch");
    if is_batch { options.batch_bytes_max } else { options.body_bytes_max }
}

async fn authenticate(
    app: &App,
    path: &str,
    request: Request,
    scope: Option<Scope>,
) -> Result<Request, ApiError> {
    let (mut parts, body) = request.into_parts();
    let caller: Arc<Caller> = app.guard.caller(&parts).await?;
    if let Some(scope) = scope {
        caller.must(scope)?;
        if app.guard.hooks.is_some() {
            let params = axum::RequestPartsExt::extract::<RawPathParams>(&mut parts).await.ok();
            let param = |name: &str| {
                let found = params.as_ref()?.iter().find(|(key, _)| *key == name)?;
                Some(found.1.to_owned())
            };
            let route = path.strip_prefix(&*app.options.base).unwrap_or(path);
            let uri = parts.uri.path();
            let named = Named::of(&parts.method, route, uri, scope, param);
            app.guard.ask(&caller, scope, &named.target()).await?;
        }
    }
    parts.extensions.insert(caller);
    Ok(Request::from_parts(parts, body))
}

// A handler from outside has no access to the server's own state.
fn with_engine(app: &App, mut request: Request) -> Request {
    let caller = request.extensions().get::<Arc<Caller>>().cloned();
    if let Some(caller) = caller {
        let engine = app.engine.in_namespace(caller.namespace.clone());
        request.extensions_mut().insert(CallerEngine(engine));
        request.extensions_mut().insert(RowHooks::new(app, &caller));
    }
    request
}

fn route_error(app: &App, path: &str, request: &Request) -> ApiError {
    let methods = app.table.methods(path);
    if methods.is_empty() {
        let shown: String = request.uri().path().chars().take(200).collect();
        return ApiError::not_found(ErrorCode::RouteNotFound, format!("unknown route {shown:?}"));
    }
    let mut allowed: Vec<&str> = methods.iter().map(|method| method.as_str()).collect();
    if allowed.contains(&"GET") {
        allowed.push("HEAD");
    }
    let message = format!("method {} is not allowed; use {}", request.method(), allowed.join(", "));
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed, message)
        .allow(&allowed)
}

// Parses the query like the handler, because the name may be percent-encoded.
fn asks_to_wait(request: &Request) -> bool {
    let asks = |query: &str| {
        let pairs: Result<Vec<(String, String)>, _> = serde_html_form::from_str(query);
        pairs.is_ok_and(|pairs| pairs.iter().any(|(name, _)| name == "waitMs"))
    };
    request.method() != Method::HEAD && request.uri().query().is_some_and(asks)
}

/// The request id of the client if it is printable, else a new one.
fn request_id(app: &App, request: &Request) -> HeaderValue {
    let sent = request.headers().get(REQUEST_ID).filter(|id| {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte);
        (1..=REQUEST_ID_CHARS_MAX).contains(&id.len()) && id.as_bytes().iter().all(plain)
    });
    sent.cloned().unwrap_or_else(|| {
        let id =
            windlass_engine::new_uuid(&**app.engine.env(), app.engine.clock().now()).to_string();
        HeaderValue::try_from(id).expect("a UUID is a valid header value")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ms_is_recognized_when_escaped() {
        for (query, waits) in [
            ("waitMs=1", true),
            ("wait%4Ds=1", true),
            ("a=b&%77aitMs=1", true),
            ("waitMs", true),
            ("a=waitMs", false),
            ("waitMsx=1", false),
            ("", false),
        ] {
            let uri = format!("/api/x?{query}");
            let request = Request::builder().uri(&uri).body(axum::body::Body::empty()).unwrap();
            assert_eq!(asks_to_wait(&request), waits, "{query}");
        }
    }
}
