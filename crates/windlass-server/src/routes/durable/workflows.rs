//! The runs of every model: list, get, signal, cancel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    Body, ErrorCode, MessageId, MessageName, NamespaceStats, Order, Run, RunKey, RunStatus,
    RunsQuery, WorkflowName,
};

use super::{find, status_word};
use crate::app::{CANCELS_MAX, is_internal};
use crate::auth::Scope;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, MaybePayload, Named, Params, Payload};
use crate::json::Json;
use crate::paging::{bytes_of, cut_to_bytes, may_read, merged, sized};
use crate::routes::control::check_reason;
use crate::routes::instances::check_depth;
use crate::view::{Raw, Time, raw};

/// How long the response of `cancel` waits for the run to end.
const CANCEL_WAIT_MAX: Duration = Duration::from_secs(2);
/// The maximum number of store pages that are read for one page of a response.
const STORE_PAGES_MAX: usize = 20;

/// A generation of a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableWorkflow {
    /// The run key of this generation.
    #[schema(value_type = String, format = Uuid)]
    pub id: RunKey,
    /// The name of the workflow.
    pub workflow_type: String,
    /// `pending`, `running`, `completed`, `failed` or `cancelled`.
    pub status: &'static str,
    /// The input.
    #[schema(value_type = Value)]
    pub input: Raw,
    /// The output.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Raw>,
    /// The error, if the run failed or was cancelled.
    #[schema(value_type = Option<Value>)]
    pub error: Option<Raw>,
    /// When it was created.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
    /// When its first turn started.
    pub started_at: Option<Time>,
    /// When it ended.
    pub completed_at: Option<Time>,
    /// The id of the trace that started it.
    pub trace_id: Option<String>,
    /// The id of the span that started it.
    pub span_id: Option<String>,
    /// The id of the run, which all its generations share.
    pub run_id: String,
    /// The generation, starting at 0.
    pub generation: u32,
    /// The model of the workflow.
    pub model: String,
    /// The parent, if this run is a child.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub parent_id: Option<RunKey>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// Whether the run is paused.
    pub paused: bool,
}

impl DurableWorkflow {
    pub(crate) fn of(run: &Run) -> Self {
        // version-trace-span-flags
        let trace: Vec<&str> = run.trace.iter().flat_map(|trace| trace.split('-')).collect();
        let part = |at: usize| (trace.len() == 4).then(|| trace[at].to_owned());
        Self {
            id: run.run_key,
            workflow_type: run.workflow.to_string(),
            status: status_word(run),
            input: raw(&run.input),
            result: run.output.as_ref().map(raw),
            error: run.error.as_ref().map(raw),
            created_at: Time(run.created_at),
            updated_at: Time(run.updated_at),
            started_at: run.started_at.map(Time),
            completed_at: run.ended_at.map(Time),
            trace_id: part(1),
            span_id: part(2),
            run_id: run.id.to_string(),
            generation: run.generation,
            model: run.model.to_string(),
            parent_id: run.parent,
            labels: run.labels.clone(),
            paused: run.status == RunStatus::Paused,
        }
    }
}

impl DurableWorkflow {
    /// The run without its data, for callers that may not read it.
    fn without_data(run: &Run) -> Self {
        let null = Body::json("null".to_owned());
        Self {
            input: raw(&null),
            result: None,
            error: None,
            trace_id: None,
            span_id: None,
            labels: BTreeMap::new(),
            ..Self::of(run)
        }
    }
}

/// A page of runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableWorkflows {
    /// The runs, newest first.
    pub workflows: Vec<DurableWorkflow>,
    /// The number of matching runs on all pages. Counts at most 10,000 `pending` runs.
    pub total: u64,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Filters and page of the listing.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WorkflowsParams {
    /// Only runs with this status: `pending`, `running`, `completed`, `failed`, `cancelled`.
    status: Option<String>,
    /// Only runs of this workflow.
    #[serde(rename = "type", alias = "workflow_type")]
    #[param(rename = "type")]
    workflow_type: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `cursor` of the previous page.
    cursor: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StatusFilter {
    Pending,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl StatusFilter {
    fn parse(text: &str) -> Result<Self, ApiError> {
        Ok(match text {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => {
                let message = format!(
                    "{text:?} is not a status; use one of pending, running, completed, failed, cancelled"
                );
                return Err(ApiError::invalid(ErrorCode::InvalidStatus, message));
            }
        })
    }

    fn statuses(self) -> &'static [RunStatus] {
        match self {
            Self::Pending => &[RunStatus::Active],
            Self::Running => &[RunStatus::Active, RunStatus::Waiting, RunStatus::Paused],
            Self::Completed => &[RunStatus::Complete],
            Self::Failed => &[RunStatus::Errored],
            Self::Cancelled => &[RunStatus::Terminated],
        }
    }

    fn matches(self, run: &Run) -> bool {
        match self {
            Self::Pending => run.started_at.is_none(),
            Self::Running => run.status != RunStatus::Active || run.started_at.is_some(),
            _ => true,
        }
    }
}

/// Lists the runs of all models, newest first. Each generation is a separate entry.
#[utoipa::path(get, path = "/durable/workflows", tag = "durable",
    operation_id = "durableListWorkflows", params(WorkflowsParams),
    responses((status = 200, body = DurableWorkflows), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    Params(params): Params<WorkflowsParams>,
) -> ApiResult<DurableWorkflows> {
    let size = sized("limit", params.limit)?;
    let filter = params.status.as_deref().map(StatusFilter::parse).transpose()?;
    let limits = &call.engine.options().limits;
    let workflow =
        params.workflow_type.map(|name| WorkflowName::with_limits(name, limits)).transpose()?;
    let after = decode_as("durable", params.cursor.as_deref(), |key| key.parse::<RunKey>().ok())?;
    let namespace_stats =
        call.engine.store().namespace_stats(call.engine.namespace().clone()).await?;
    let total = total(&namespace_stats, filter, workflow.as_ref());
    let query = RunsQuery { workflow, after, ..RunsQuery::all(call.engine.namespace().clone(), 1) };
    let (runs, next) = page(&call, query, filter, size).await?;
    let cursor = next.map(|key| cursor::encode("durable", &key.to_string()));
    let workflows = runs.iter().map(DurableWorkflow::of).collect();
    Ok(Json(DurableWorkflows { workflows, total, cursor }))
}

/// The number of runs with these statuses, of one workflow or of all user workflows.
pub(crate) fn counted(
    namespace_stats: &NamespaceStats,
    statuses: &[RunStatus],
    workflow: Option<&WorkflowName>,
) -> u64 {
    let of = |name: &WorkflowName| match workflow {
        Some(asked) => name == asked,
        None => true,
    };
    let counts = namespace_stats.runs.iter().filter(|row| {
        of(&row.workflow) && !is_internal(row.workflow.as_str()) && statuses.contains(&row.status)
    });
    counts.map(|row| row.count).sum()
}

/// The number of runs that have not started.
pub(crate) fn counted_new(
    namespace_stats: &NamespaceStats,
    workflow: Option<&WorkflowName>,
) -> u64 {
    let of = namespace_stats.runs_new.iter().filter(|(name, _)| {
        workflow.is_none_or(|asked| name == asked) && !is_internal(name.as_str())
    });
    super::bounded(of.map(|(_, count)| count).sum())
}

fn total(
    namespace_stats: &NamespaceStats,
    filter: Option<StatusFilter>,
    workflow: Option<&WorkflowName>,
) -> u64 {
    match filter {
        None => counted(namespace_stats, RunStatus::ALL, workflow),
        Some(StatusFilter::Pending) => counted_new(namespace_stats, workflow),
        Some(StatusFilter::Running) => {
            counted(namespace_stats, StatusFilter::Running.statuses(), workflow)
                .saturating_sub(counted_new(namespace_stats, workflow))
        }
        Some(filter) => counted(namespace_stats, filter.statuses(), workflow),
    }
}

// One page, newest first, merged from one listing per status, and the position of the next page.
async fn page(
    call: &Call,
    query: RunsQuery,
    filter: Option<StatusFilter>,
    size: u32,
) -> Result<(Vec<Run>, Option<RunKey>), ApiError> {
    let statuses: Vec<Option<RunStatus>> = match filter {
        None => vec![None],
        Some(filter) => filter.statuses().iter().copied().map(Some).collect(),
    };
    let mut query = RunsQuery { order: Order::Descending, limit: size + 1, ..query };
    let mut found: Vec<Run> = Vec::new();
    for _ in 0..STORE_PAGES_MAX {
        let (rows, is_last) = merged(&**call.engine.store(), &query, &statuses).await?;
        query.after = rows.last().map(|run| run.run_key).or(query.after);
        for run in rows {
            let fits = !is_internal(run.workflow.as_str())
                && filter.is_none_or(|filter| filter.matches(&run));
            if fits && may_read(call, &run).await? {
                found.push(run);
            }
        }
        let full = found.len() > size as usize;
        found.truncate(size as usize);
        let cut = cut_to_bytes(&mut found, |run| {
            bytes_of([Some(&run.input), run.output.as_ref(), run.error.as_ref()])
        });
        if full || cut {
            let next = found.last().map(|run| run.run_key);
            return Ok((found, next));
        }
        if is_last {
            return Ok((found, None));
        }
    }
    Ok((found, query.after))
}

/// Returns a generation of a run.
#[utoipa::path(get, path = "/durable/workflows/{runKey}", tag = "durable",
    operation_id = "durableGetWorkflow",
    params(("runKey" = String, Path, description = "The run key")),
    responses((status = 200, body = DurableWorkflow), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, Named(key): Named) -> ApiResult<DurableWorkflow> {
    let run = find(&call, &key, Scope::Read, "workflows").await?;
    Ok(Json(DurableWorkflow::of(&run)))
}

/// A signal to send.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendSignal {
    /// The type of the signal.
    #[schema(max_length = 100)]
    signal_type: String,
    /// The payload.
    #[schema(value_type = Option<Value>)]
    payload: Option<Raw>,
    /// An id for deduplication: a second signal with the same id is ignored.
    #[schema(max_length = 200)]
    id: Option<String>,
}

impl Incoming for SendSignal {}

/// Sends a signal to a run, or to its newest generation if it was restarted.
///
/// Runs of models other than `machines` receive it as an event of that type.
#[utoipa::path(post, path = "/durable/workflows/{runKey}/signal", tag = "durable",
    operation_id = "durableSignal",
    params(("runKey" = String, Path, description = "The run key")),
    request_body = SendSignal,
    responses((status = 200, body = DurableWorkflow), (status = "default", body = Failure)))]
pub(crate) async fn signal(
    call: Call,
    Named(key): Named,
    Payload(signal): Payload<SendSignal>,
) -> ApiResult<DurableWorkflow> {
    let limits = &call.engine.options().limits;
    let name = MessageName::with_limits(&signal.signal_type, limits)
        .map_err(|error| ApiError::from(error).coded(ErrorCode::InvalidEventType))?;
    let id = signal.id.map(|id| MessageId::with_limits(id, limits)).transpose();
    let id = id.map_err(|error| ApiError::from(error).coded(ErrorCode::InvalidEventId))?;
    let payload = signal.payload.map_or_else(|| "null".to_owned(), |body| body.get().to_owned());
    check_depth("payload", &payload, limits.json_depth_max)?;
    let run = find(&call, &key, Scope::SendEvent, "signal").await?;
    call.may_send(&run, &name).await?;
    call.engine.send_event(run.run_key, name, Some(Body::json(payload)), id).await?;
    Ok(Json(after_write(&call, run).await))
}

/// The reason for a cancellation.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// The reason, which the ledger records. At most 1,000 characters.
    reason: Option<String>,
}

impl Incoming for Cancel {}

/// Requests the cancellation of a run.
///
/// If the model of the run has a cancel message, as state machines do, the run receives it and has
/// a grace period. Any other run ends as soon as its current work is done. The response is sent
/// when the run has ended, or after two seconds.
#[utoipa::path(post, path = "/durable/workflows/{runKey}/cancel", tag = "durable",
    operation_id = "durableCancel",
    params(("runKey" = String, Path, description = "The run key")),
    request_body = Option<Cancel>,
    responses((status = 200, body = DurableWorkflow), (status = "default", body = Failure)))]
pub(crate) async fn cancel(
    call: Call,
    Named(key): Named,
    MaybePayload(body): MaybePayload<Cancel>,
) -> ApiResult<DurableWorkflow> {
    let reason = body.reason.as_deref().map(check_reason).transpose()?;
    let run = find(&call, &key, Scope::Manage, "cancel").await?;
    if run.status.is_ended() {
        let message = format!("run {:?} is {} and cannot be cancelled", run.id, status_word(&run));
        let status = axum::http::StatusCode::CONFLICT;
        return Err(ApiError::new(status, ErrorCode::InstanceTerminal, message));
    }
    request_cancel(&call, &run, reason, CANCEL_WAIT_MAX).await?;
    Ok(Json(after_write(&call, run).await))
}

/// Asks a run to end, and waits for at most this time until it has ended.
pub(crate) async fn request_cancel(
    call: &Call,
    run: &Run,
    reason: Option<&str>,
    wait_max: Duration,
) -> Result<(), ApiError> {
    let (engine, run_key) = (call.engine.clone(), run.run_key);
    if let Some(name) = call.cancel_policy(run).message.clone() {
        let mut body = json!({ "reason": reason.unwrap_or("cancelled") });
        if let Some(actor) = &call.caller.actor {
            body["actor"] = json!(actor);
        }
        let body = Body::of(&body)?;
        engine.send_event(run_key, name, Some(body), None).await?;
        let _ = tokio::time::timeout(wait_max, engine.wait(run_key)).await;
    } else {
        // The cancellation continues if the client disconnects.
        let (asked, reason) = (engine.clone(), reason.map(str::to_owned));
        let actor = call.caller.actor.clone();
        let permit = Arc::clone(&call.app.cancels).try_acquire_owned().map_err(|_| {
            let message =
                format!("too many cancellations in progress (limit {CANCELS_MAX}); retry later");
            let status = axum::http::StatusCode::TOO_MANY_REQUESTS;
            ApiError::new(status, ErrorCode::TooManyRequests, message).retry_after(1)
        })?;
        let cancelled = tokio::spawn(async move {
            let _permit = permit;
            asked.cancel(run_key, reason.as_deref(), actor).await
        });
        if let Ok(Ok(answer)) = tokio::time::timeout(wait_max, cancelled).await {
            answer?;
        }
    }
    Ok(())
}

// The response of a request that has written. If the run cannot be read, it is the run as it was
// before: the request has succeeded.
async fn after_write(call: &Call, run: Run) -> DurableWorkflow {
    let run = call.engine.current(run.run_key).await.unwrap_or(run);
    let readable =
        call.caller.scopes.allow(Scope::Read) && may_read(call, &run).await.unwrap_or(false);
    if readable { DurableWorkflow::of(&run) } else { DurableWorkflow::without_data(&run) }
}
