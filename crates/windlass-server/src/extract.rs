//! Extractors: the caller's engine, path, query and body. All of them reject with [`ApiError`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use windlass::ErrorCode;
use windlass::kernel::{MessageName, Run, RunId, WorkflowName};
use windlass_engine::{CancelPolicy, Engine};

use crate::app::{App, BODY_UNIT, WaitPermit, is_internal};
use crate::auth::{Caller, Scope, Target};
use crate::depth::is_deeper_than;
use crate::error::ApiError;
use crate::paging::may_read;
use crate::serve::Stopping;
use crate::view::InstanceStatus;

/// The caller and an engine in the caller's namespace.
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) engine: Engine,
    pub(crate) caller: Arc<Caller>,
    stopping: Option<Stopping>,
    waiting: Option<Arc<WaitPermit>>,
}

impl Call {
    /// Marks that the request only waits from now on, which releases its permit.
    pub(crate) fn begin_waiting(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.begin();
        }
    }

    /// Completes when the server stops, so that a waiting handler can respond.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let stopping = self.stopping.clone();
        async move {
            match stopping {
                Some(stopping) => stopping.wait().await,
                // The server that embeds this router has no shutdown signal.
                None => std::future::pending().await,
            }
        }
    }
}

impl Call {
    /// Whether the caller may see all namespaces.
    pub(crate) fn is_operator(&self) -> bool {
        self.caller.is_operator(&self.app.engine.options().namespace)
    }

    /// The status of a run, without output and error if the caller may not read them.
    pub(crate) async fn status_of(&self, run: &Run) -> Result<InstanceStatus, ApiError> {
        if self.caller.scopes.allow(Scope::Read) && may_read(self, run).await? {
            return Ok(InstanceStatus::of(run));
        }
        Ok(InstanceStatus::new(run.status, None, None))
    }

    /// Like [`Call::status_of`], for the response of a request that has written: a failed read
    /// leaves output and error out, because the request has succeeded.
    pub(crate) async fn status_after_write(&self, run: &Run) -> InstanceStatus {
        let status = self.status_of(run).await;
        status.unwrap_or_else(|_| InstanceStatus::new(run.status, None, None))
    }

    /// How a run is asked to end, as its model says.
    pub(crate) fn cancel_policy(&self, run: &Run) -> &'static CancelPolicy {
        self.engine.description_of(run).cancel
    }

    /// Whether the caller may send this message to a run. A message that cancels the run requires
    /// the scope `manage` in addition.
    pub(crate) async fn may_send(&self, run: &Run, name: &MessageName) -> Result<(), ApiError> {
        if !self.cancel_policy(run).controls.contains(name) {
            return Ok(());
        }
        self.caller.must(Scope::Manage)?;
        let (workflow, id) = (Some(run.workflow.as_str()), Some(run.id.as_str()));
        let target = Target { workflow, id, action: Some(name.as_str()), ..Target::default() };
        self.app.guard.ask(&self.caller, Scope::Manage, &target).await
    }
}

impl FromRequestParts<App> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        // The guard adds the caller; without it the request has not passed the guard.
        let caller = parts.extensions.get::<Arc<Caller>>().cloned();
        let caller =
            caller.ok_or_else(|| ApiError::unauthenticated("the request is not authenticated"))?;
        let engine = app.engine.in_namespace(caller.namespace.clone());
        let stopping = parts.extensions.get::<Stopping>().cloned();
        let waiting = parts.extensions.get::<Arc<WaitPermit>>().cloned();
        Ok(Self { app: app.clone(), engine, caller, stopping, waiting })
    }
}

/// The engine in the namespace of the caller, for handlers of a [`crate::RouteSet`].
#[derive(Clone)]
pub struct CallerEngine(pub Engine);

impl<S: Sync> FromRequestParts<S> for CallerEngine {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let found = parts.extensions.get::<Self>().cloned();
        found.ok_or_else(|| ApiError::unauthenticated("the route needs no credential"))
    }
}

/// Asks the hooks about the rows of a list, for handlers of the server's own [`crate::RouteSet`]s.
#[derive(Clone)]
pub(crate) struct RowHooks {
    app: App,
    caller: Arc<Caller>,
}

#[cfg_attr(not(feature = "contracts"), allow(dead_code, reason = "only contracts have such lists"))]
impl RowHooks {
    pub(crate) fn new(app: &App, caller: &Arc<Caller>) -> Self {
        Self { app: app.clone(), caller: Arc::clone(caller) }
    }

    /// Refuses what the hook refuses.
    pub(crate) async fn ask(&self, scope: Scope, target: &Target<'_>) -> Result<(), ApiError> {
        self.app.guard.ask(&self.caller, scope, target).await
    }

    /// Whether a list may show a row.
    pub(crate) async fn may_list(
        &self,
        scope: Scope,
        target: &Target<'_>,
    ) -> Result<bool, ApiError> {
        match self.ask(scope, target).await {
            Ok(()) => Ok(true),
            Err(error) if error.status().is_client_error() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

pub(crate) fn bad_path(rejection: &PathRejection) -> ApiError {
    ApiError::invalid(ErrorCode::InvalidPath, rejection.body_text())
}

/// The workflow in the path.
pub(crate) struct InWorkflow(pub(crate) WorkflowName);

impl FromRequestParts<App> for InWorkflow {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path(name) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|error| bad_path(&error))?;
        let limits = &app.engine.options().limits;
        match WorkflowName::with_limits(&name, limits) {
            Ok(workflow) if !is_internal(&name) => Ok(Self(workflow)),
            _ => Err(workflow_not_found(&name)),
        }
    }
}

pub(crate) fn workflow_not_found(name: &str) -> ApiError {
    let shown: String = name.chars().take(80).collect();
    let message = format!("unknown workflow {shown:?}: no worker serves it, and it has no runs");
    ApiError::not_found(ErrorCode::WorkflowNotFound, message)
}

/// The run in the path. The handler checks whether it exists.
pub(crate) struct AtRun {
    pub(crate) workflow: WorkflowName,
    pub(crate) id: RunId,
}

impl FromRequestParts<App> for AtRun {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path((workflow, id)) = Path::<(String, String)>::from_request_parts(parts, app)
            .await
            .map_err(|error| bad_path(&error))?;
        let limits = &app.engine.options().limits;
        let named = WorkflowName::with_limits(&workflow, limits).ok();
        let named = named.filter(|_| !is_internal(&workflow));
        // Ids that the engine creates contain a colon.
        match (named, RunId::composed(&id)) {
            (Some(workflow), Ok(id)) => Ok(Self { workflow, id }),
            _ => Err(run_not_found(&workflow, &id)),
        }
    }
}

pub(crate) fn run_not_found(workflow: &str, id: &str) -> ApiError {
    let short = |text: &str| text.chars().take(120).collect::<String>();
    let message = format!("workflow {:?} has no instance {:?}", short(workflow), short(id));
    ApiError::not_found(ErrorCode::InstanceNotFound, message)
}

/// One name in the path.
pub(crate) struct Named(pub(crate) String);

impl FromRequestParts<App> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path(name) = Path::<String>::from_request_parts(parts, app)
            .await
            .map_err(|error| bad_path(&error))?;
        Ok(Self(name))
    }
}

/// The query parameters.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        serde_html_form::from_str(query).map(Self).map_err(|error| {
            let message = match invalid_param::<T>(query) {
                Some(name) => format!("invalid parameter `{name}`: {error}"),
                None => format!("invalid query: {error}"),
            };
            ApiError::invalid(ErrorCode::InvalidQuery, message)
        })
    }
}

/// The first parameter that cannot be parsed alone. The error of the whole query does not name it.
fn invalid_param<T: DeserializeOwned>(query: &str) -> Option<String> {
    let pairs: Vec<(String, String)> = serde_html_form::from_str(query).ok()?;
    let reads = |pair: &(String, String)| {
        let alone = serde_html_form::to_string(std::slice::from_ref(pair));
        alone.is_ok_and(|alone| serde_html_form::from_str::<T>(&alone).is_ok())
    };
    pairs.into_iter().find(|pair| !reads(pair)).map(|(name, _)| name)
}

/// The body of a request.
pub(crate) trait Incoming: DeserializeOwned {
    /// The maximum size in bytes.
    fn bytes_max(app: &App) -> usize {
        app.options.body_bytes_max
    }
}

/// A JSON body.
pub(crate) struct Payload<T>(pub(crate) T);

impl<T: Incoming> FromRequest<App> for Payload<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let bytes = json_bytes(request, T::bytes_max(app)).await?;
        parse_body(app, &bytes).map(Self)
    }
}

/// A JSON body, or the default value if the body is empty.
pub(crate) struct MaybePayload<T>(pub(crate) T);

impl<T: Incoming + Default> FromRequest<App> for MaybePayload<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        use hyper::body::Body as _;
        if request.body().is_end_stream() {
            return Ok(Self(T::default()));
        }
        let bytes = json_bytes(request, T::bytes_max(app)).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        parse_body(app, &bytes).map(Self)
    }
}

/// Receives the body of a request into memory, within the limit on the bytes of all bodies. Leaves a
/// body that is too large to the handler, which names the limit of its route.
pub(crate) async fn receive_body(
    app: &App,
    request: Request,
    max: usize,
) -> Result<(Request, Option<OwnedSemaphorePermit>), ApiError> {
    use hyper::body::Body as _;
    let (parts, mut body) = request.into_parts();
    if body.is_end_stream() || body.size_hint().lower() > max as u64 {
        return Ok((Request::from_parts(parts, body), None));
    }
    let mut received: Vec<u8> = Vec::new();
    let mut permit: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            let message = "the body ended before it was complete";
            ApiError::invalid(ErrorCode::InvalidBody, message)
        })?;
        let Ok(data) = frame.into_data() else { continue };
        if received.len() + data.len() > max {
            drain_body(body).await;
            return Err(too_large(max));
        }
        received.extend_from_slice(&data);
        let needed = received.len().div_ceil(BODY_UNIT);
        let held = permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(needed.saturating_sub(held)).unwrap_or(u32::MAX);
        let more = Arc::clone(&app.bodies).try_acquire_many_owned(more).map_err(|_| {
            let limit = app.options.bodies_bytes_max;
            let message = format!(
                "too many bytes of request bodies in progress (limit {limit}); retry later"
            );
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::TooManyRequests, message)
                .retry_after(1)
        })?;
        match &mut permit {
            Some(permit) => permit.merge(more),
            None => permit = Some(more),
        }
    }
    Ok((Request::from_parts(parts, Body::from(received)), permit))
}

fn too_large(max: usize) -> ApiError {
    let message = format!("the body is larger than {max} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::BodyTooLarge, message)
}

pub(crate) async fn json_bytes(request: Request, max: usize) -> Result<Bytes, ApiError> {
    let (parts, mut body) = request.into_parts();
    use hyper::body::Body as _;
    // Rejects a too large `Content-Length` before reading the body.
    if body.size_hint().lower() > max as u64 {
        drain_body(body).await;
        return Err(too_large(max));
    }
    let bytes = match Limited::new(&mut body, max).collect().await {
        Ok(bytes) => bytes.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            drain_body(body).await;
            return Err(too_large(max));
        }
        Err(_) => {
            let message = "the body ended before it was complete";
            return Err(ApiError::invalid(ErrorCode::InvalidBody, message));
        }
    };
    // Requiring JSON prevents CSRF: pages of other sites can send forms or plain text, but not
    // JSON.
    let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let is_json = kind.is_some_and(|kind| {
        kind.eq_ignore_ascii_case("application/json")
            || kind.to_ascii_lowercase().ends_with("+json")
    });
    if !is_json && !bytes.is_empty() {
        let message = "send the body as `content-type: application/json`";
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ErrorCode::UnsupportedMediaType,
            message,
        ));
    }
    Ok(bytes)
}

/// Limits for draining a rejected body.
const DRAIN_BYTES_MAX: u64 = 16 * 1024 * 1024;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);

/// Reads and discards the rest of a rejected body. A client that writes into a closed connection
/// may not receive the error response.
async fn drain_body(mut body: Body) {
    use hyper::body::Body as _;
    if body.size_hint().lower() > DRAIN_BYTES_MAX {
        return;
    }
    let mut left = DRAIN_BYTES_MAX;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // The request is rejected in any case.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, reading).await;
}

fn parse_body<T: DeserializeOwned>(app: &App, bytes: &[u8]) -> Result<T, ApiError> {
    // The limit applies to user data; the enclosing objects add a few levels.
    let max = app.engine.options().limits.json_depth_max + 4;
    if is_deeper_than(bytes, max) {
        let message = format!("the body is nested deeper than {max}");
        return Err(ApiError::invalid(ErrorCode::InvalidDepth, message));
    }
    // Serde would accept a list as the fields in order, which is not part of the API.
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first.is_some_and(|first| *first == b'[') {
        let message = "the body is a list; expected an object";
        return Err(ApiError::invalid(ErrorCode::InvalidBody, message));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::invalid(ErrorCode::InvalidBody, format!("invalid body: {error}"))
    })
}
