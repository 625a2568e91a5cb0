//! What handlers take from a request: the caller's engine, path, query and body, each with errors
//! of the one shape.

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
use windlass::Manners;
use windlass::kernel::{MessageName, Run, RunId, WorkflowName};
use windlass_engine::Engine;

use crate::app::{App, Waiting, is_internal};
use crate::auth::{Caller, Scope, Target};
use crate::depth::is_deeper_than;
use crate::error::ApiError;
use crate::paging::may_read;
use crate::serve::Stopping;
use crate::view::InstanceStatus;

/// Who asks, and the engine that speaks for their namespace.
pub(crate) struct Call {
    pub(crate) app: App,
    pub(crate) engine: Engine,
    pub(crate) caller: Arc<Caller>,
    stopping: Option<Stopping>,
    waiting: Option<Arc<Waiting>>,
}

impl Call {
    /// From here on the request only waits for a run.
    pub(crate) fn begin_waiting(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.begin();
        }
    }

    /// Ends when the server stops: an answer that waits is given then.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let stopping = self.stopping.clone();
        async move {
            match stopping {
                Some(stopping) => stopping.wait().await,
                // Served by somebody who does not say.
                None => std::future::pending().await,
            }
        }
    }
}

impl Call {
    /// Whether what is of all namespaces may be shown.
    pub(crate) fn is_operator(&self) -> bool {
        self.caller.is_operator(&self.app.engine.options().namespace)
    }

    /// Where a run is, without what it ended with unless the caller may read that too.
    pub(crate) async fn status_of(&self, run: &Run) -> Result<InstanceStatus, ApiError> {
        if self.caller.scopes.allow(Scope::Read) && may_read(self, run).await? {
            return Ok(InstanceStatus::of(run));
        }
        Ok(InstanceStatus::new(run.status, None, None))
    }

    /// How a run is asked to end, as its model says.
    pub(crate) fn manners(&self, run: &Run) -> Manners {
        self.engine.manners_of(run)
    }

    /// Whether the caller may send a run a message of this name. One that ends the run takes more than the
    /// right to send events.
    pub(crate) async fn may_send(&self, run: &Run, name: &MessageName) -> Result<(), ApiError> {
        let name = name.as_str();
        if !self.manners(run).controls.contains(&name) {
            return Ok(());
        }
        self.caller.must(Scope::Manage)?;
        let (workflow, id) = (Some(run.workflow.as_str()), Some(run.id.as_str()));
        let target = Target { workflow, id, action: Some(name) };
        self.app.guard.ask(&self.caller, Scope::Manage, &target).await
    }
}

impl FromRequestParts<App> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        // A route that the guard has not passed has no caller, and so no engine.
        let caller = parts.extensions.get::<Arc<Caller>>().cloned();
        let caller = caller.ok_or_else(|| ApiError::unauthenticated("nobody said who asks"))?;
        let engine = app.engine.in_namespace(caller.namespace.clone());
        let stopping = parts.extensions.get::<Stopping>().cloned();
        let waiting = parts.extensions.get::<Arc<Waiting>>().cloned();
        Ok(Self { app: app.clone(), engine, caller, stopping, waiting })
    }
}

fn bad_path(rejection: &PathRejection) -> ApiError {
    ApiError::invalid("INVALID_PATH", rejection.body_text())
}

/// The workflow in a path.
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
    let message = format!("no worker serves a workflow {shown:?}, and it has no runs");
    ApiError::not_found("WORKFLOW_NOT_FOUND", message)
}

/// The run that a path names. Whether it exists is for the handler to find out.
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
        // Runs that the engine named itself have a colon in their ids.
        match (named, RunId::composed(&id)) {
            (Some(workflow), Ok(id)) => Ok(Self { workflow, id }),
            _ => Err(run_not_found(&workflow, &id)),
        }
    }
}

pub(crate) fn run_not_found(workflow: &str, id: &str) -> ApiError {
    let short = |text: &str| text.chars().take(120).collect::<String>();
    let message = format!("workflow {:?} has no instance {:?}", short(workflow), short(id));
    ApiError::not_found("INSTANCE_NOT_FOUND", message)
}

/// One name in a path.
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

/// The query of a request.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        serde_html_form::from_str(query).map(Self).map_err(|error| {
            let message = match misread::<T>(query) {
                Some(name) => format!("the parameter `{name}` does not read: {error}"),
                None => format!("the query does not read: {error}"),
            };
            ApiError::invalid("INVALID_QUERY", message)
        })
    }
}

/// The first parameter that does not read by itself: the error of a query does not say which it is about.
fn misread<T: DeserializeOwned>(query: &str) -> Option<String> {
    let pairs: Vec<(String, String)> = serde_html_form::from_str(query).ok()?;
    let reads = |pair: &(String, String)| {
        let alone = serde_html_form::to_string(std::slice::from_ref(pair));
        alone.is_ok_and(|alone| serde_html_form::from_str::<T>(&alone).is_ok())
    };
    pairs.into_iter().find(|pair| !reads(pair)).map(|(name, _)| name)
}

/// A body that a handler takes.
pub(crate) trait Incoming: DeserializeOwned {
    /// How many bytes it may have.
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
        read(app, &bytes).map(Self)
    }
}

/// A JSON body, or its default if there is none.
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
        read(app, &bytes).map(Self)
    }
}

async fn json_bytes(request: Request, max: usize) -> Result<Bytes, ApiError> {
    let (parts, mut body) = request.into_parts();
    let too_large = || {
        let message = format!("the body is larger than {max} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", message)
    };
    use hyper::body::Body as _;
    // A length that is too large is refused before a byte of it is kept.
    if body.size_hint().lower() > max as u64 {
        read_away(body).await;
        return Err(too_large());
    }
    let bytes = match Limited::new(&mut body, max).collect().await {
        Ok(bytes) => bytes.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            read_away(body).await;
            return Err(too_large());
        }
        Err(_) => {
            let message = "the body ended before it was complete";
            return Err(ApiError::invalid("INVALID_BODY", message));
        }
    };
    // A page of another site can send a form or plain text unasked, but not this.
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
            "UNSUPPORTED_MEDIA_TYPE",
            message,
        ));
    }
    Ok(bytes)
}

/// How much of a refused body is read away, and for how long.
const REFUSED_BYTES_MAX: u64 = 16 * 1024 * 1024;
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Takes what is still coming of a body that is refused. A client that writes into a closed
/// connection loses the answer that says why.
async fn read_away(mut body: Body) {
    use hyper::body::Body as _;
    if body.size_hint().lower() > REFUSED_BYTES_MAX {
        return;
    }
    let mut left = REFUSED_BYTES_MAX;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // However it ends, the request is refused.
    let _ = tokio::time::timeout(REFUSED_FOR, reading).await;
}

fn read<T: DeserializeOwned>(app: &App, bytes: &[u8]) -> Result<T, ApiError> {
    // What users nest may be as deep as the limit; what is around it nests a little more.
    let max = app.engine.options().limits.json_depth_max + 4;
    if is_deeper_than(bytes, max) {
        let message = format!("the body is nested deeper than {max}");
        return Err(ApiError::invalid("INVALID_DEPTH", message));
    }
    // A list would be taken for the fields in their order, which nobody has promised.
    let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
    if first.is_some_and(|first| *first == b'[') {
        let message = "the body is a list; send an object, `{…}`";
        return Err(ApiError::invalid("INVALID_BODY", message));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::invalid("INVALID_BODY", format!("the body does not read: {error}"))
    })
}
