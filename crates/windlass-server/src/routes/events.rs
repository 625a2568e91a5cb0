//! Sending events to runs.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::kernel::{Body, MessageId, MessageName};

use super::instances::{check_depth, find};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Incoming, Payload};
use crate::json::Json;
use crate::view::{InstanceStatus, Raw};

/// An event to be sent.
#[derive(Deserialize, ToSchema)]
pub(crate) struct SendEvent {
    /// Its type, which a wait asks for.
    #[serde(rename = "type")]
    #[schema(max_length = 100, pattern = "^[a-zA-Z0-9_][a-zA-Z0-9-_]*$")]
    event_type: String,
    /// What it carries.
    #[schema(value_type = Option<Value>)]
    payload: Option<Raw>,
    /// Sent again with the same id it is the same event; the id with another type or payload is refused.
    #[schema(max_length = 200)]
    id: Option<String>,
}

impl Incoming for SendEvent {}

/// Where the run is after the event was taken.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventSent {
    /// The run's status.
    pub status: InstanceStatus,
}

/// Reads the type of an event. The engine gives messages of its own wider names, with `.` and `:`; clients
/// are held to the pattern of ids, as the specification of this route has it.
fn event_type(text: &str, limits: &windlass::Limits) -> Result<MessageName, ApiError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if text.starts_with('-') || !text.chars().all(plain) {
        let shown: String = text.chars().take(100).collect();
        let message = format!(
            "the event type {shown:?} has other characters than letters, digits, `_` and `-`, or begins with `-`"
        );
        return Err(ApiError::invalid("INVALID_EVENT_TYPE", message));
    }
    MessageName::with_limits(text, limits)
        .map_err(|error| ApiError::from(error).coded("INVALID_EVENT_TYPE"))
}

/// Sends an event to a run. It waits there until the run asks for its type.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/events",
    tag = "instances", operation_id = "sendEvent",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id")),
    request_body = SendEvent,
    responses((status = 200, body = EventSent), (status = "default", body = Failure)))]
pub(crate) async fn send(
    call: Call,
    at: AtRun,
    Payload(event): Payload<SendEvent>,
) -> ApiResult<EventSent> {
    let limits = &call.engine.options().limits;
    let name = event_type(&event.event_type, limits)?;
    let id = event.id.map(|id| MessageId::with_limits(id, limits)).transpose();
    let id = id.map_err(|error| ApiError::from(error).coded("INVALID_EVENT_ID"))?;
    let payload = event.payload.map_or_else(|| "null".to_owned(), |body| body.get().to_owned());
    check_depth("payload", &payload, limits.json_depth_max)?;
    let run = find(&call, &at).await?;
    call.may_send(&run, &name).await?;
    let sent = call.engine.send_event(run.run_key, name, Some(Body::json(payload)), id).await;
    let run = find(&call, &at).await?;
    sent.map_err(|error| match error.code() {
        // Whoever sends knows the run by its name and not by the key of a generation.
        "RUN_TERMINAL" => {
            let message =
                format!("{}/{} is {} and takes nothing more", run.workflow, run.id, run.status);
            ApiError::new(StatusCode::CONFLICT, "INSTANCE_TERMINAL", message)
        }
        _ => error.into(),
    })?;
    Ok(Json(EventSent { status: call.status_of(&run).await? }))
}
