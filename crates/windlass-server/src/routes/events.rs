//! Sends events to runs.

use axum::extract::Path;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::kernel::{Body, ErrorCode, MessageId, MessageName};

use super::instances::{check_depth, find};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Incoming, MaybePayload, Payload, bad_path};
use crate::json::Json;
use crate::view::{InstanceStatus, Raw, Time};

/// An event to send.
#[derive(Deserialize, ToSchema)]
pub(crate) struct SendEvent {
    /// The type of the event. A run waits for events by type.
    #[serde(rename = "type")]
    #[schema(max_length = 100, pattern = "^[a-zA-Z0-9_][a-zA-Z0-9-_]*$")]
    event_type: String,
    /// The payload.
    #[schema(value_type = Option<Value>)]
    payload: Option<Raw>,
    /// An id for deduplication. A second event with the same id is ignored if its type and payload
    /// are the same, and is rejected otherwise.
    #[schema(max_length = 200)]
    id: Option<String>,
}

impl Incoming for SendEvent {}

/// The status of the run after it received the event.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventSent {
    /// The status of the run.
    pub status: InstanceStatus,
}

/// Parses the type of an event. The engine's own messages may also contain `.` and `:`; clients are
/// limited to the pattern of ids, as the API specifies.
fn event_type(text: &str, limits: &windlass::Limits) -> Result<MessageName, ApiError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if text.starts_with('-') || !text.chars().all(plain) {
        let shown: String = text.chars().take(100).collect();
        let message = format!(
            "the event type {shown:?} contains characters other than letters, digits, `_` and `-`, or starts with `-`"
        );
        return Err(ApiError::invalid(ErrorCode::InvalidEventType, message));
    }
    MessageName::with_limits(text, limits)
        .map_err(|error| ApiError::from(error).coded(ErrorCode::InvalidEventType))
}

/// Sends an event to a run. The run keeps the event until it waits for this type.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/{instanceId}/events",
    tag = "instances", operation_id = "sendEvent",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run")),
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
    let id = id.map_err(|error| ApiError::from(error).coded(ErrorCode::InvalidEventId))?;
    let payload = event.payload.map_or_else(|| "null".to_owned(), |body| body.get().to_owned());
    check_depth("payload", &payload, limits.json_depth_max)?;
    let run = find(&call, &at).await?;
    call.may_send(&run, &name).await?;
    let sent = call.engine.send_event(run.run_key, name, Some(Body::json(payload)), id).await;
    // The event may be written: a failed read must not turn the response into an error.
    let run = find(&call, &at).await.unwrap_or(run);
    sent.map_err(|error| match error.code() {
        // The sender knows the run by name, not by the run key of a generation.
        ErrorCode::RunTerminal => {
            let message =
                format!("{}/{} is {} and accepts no events", run.workflow, run.id, run.status);
            ApiError::new(StatusCode::CONFLICT, ErrorCode::InstanceTerminal, message)
        }
        _ => error.into(),
    })?;
    Ok(Json(EventSent { status: call.status_after_write(&run).await }))
}

/// An event to send to a key.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
pub(crate) struct SendEventByKey {
    /// The payload.
    #[schema(value_type = Option<Value>)]
    payload: Option<Raw>,
    /// An id for deduplication. While the key keeps the event, a second event with the same id is
    /// ignored if its payload is the same, and is rejected otherwise.
    #[schema(max_length = 100)]
    id: Option<String>,
    /// How long the key keeps the event for runs that begin to wait later, such as `2 days`.
    /// Default: the setting `event_ttl` of the server.
    ttl: Option<String>,
}

impl Incoming for SendEventByKey {}

/// An event that was sent to a key.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventSentByKey {
    /// The id of the event.
    pub id: String,
    /// How many runs got the event with this request. Others get it when they begin to wait.
    pub delivered: usize,
    /// Whether the key had the event already.
    pub repeated: bool,
    /// Until when runs that begin to wait get the event.
    pub expires_at: Time,
}

/// Sends an event to a key instead of a run. Every run that waits for this type and key gets it once: runs
/// that wait now, and runs that begin to wait before it expires.
#[utoipa::path(post, path = "/events/{eventType}/{eventKey}",
    tag = "events", operation_id = "sendEventByKey",
    params(("eventType" = String, Path, description = "The type of the event"),
        ("eventKey" = String, Path, description = "The key")),
    request_body = Option<SendEventByKey>,
    responses((status = 200, body = EventSentByKey), (status = "default", body = Failure)))]
pub(crate) async fn send_by_key(
    call: Call,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
    MaybePayload(event): MaybePayload<SendEventByKey>,
) -> ApiResult<EventSentByKey> {
    let Path((name, key)) = path.map_err(|error| bad_path(&error))?;
    let limits = &call.engine.options().limits;
    let name = event_type(&name, limits)?;
    let payload = event.payload.map_or_else(|| "null".to_owned(), |body| body.get().to_owned());
    check_depth("payload", &payload, limits.json_depth_max)?;
    let mut send = call.engine.send_by_key(&name, key, Ok(Body::json(payload)));
    if let Some(id) = event.id {
        send = send.id(id);
    }
    if let Some(ttl) = &event.ttl {
        send = send.ttl(ttl.as_str());
    }
    let sent = send.await?;
    let expires_at = Time(sent.expires_at);
    let (id, delivered, repeated) = (sent.id, sent.delivered, sent.repeated);
    Ok(Json(EventSentByKey { id, delivered, repeated, expires_at }))
}
