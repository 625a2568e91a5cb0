//! Runs of every model: list, look at one, signal, cancel.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    Body, Census, MessageId, MessageName, Order, Run, RunKey, RunStatus, RunsQuery, WorkflowName,
};

use super::{find, status_word};
use crate::app::is_internal;
use crate::auth::Scope;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, MaybePayload, Named, Params, Payload};
use crate::json::Json;
use crate::paging::{bytes_of, cut_to_bytes, may_read, merged, sized};
use crate::routes::control::check_reason;
use crate::routes::instances::check_depth;
use crate::view::{Raw, Time, raw};

/// How long the answer to a cancellation waits to be able to say `cancelled`.
const CANCEL_SEEN_WITHIN: Duration = Duration::from_secs(2);
/// How many pages of the store are looked through for one page of an answer.
const STORE_PAGES_MAX: usize = 20;

/// A generation of a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableWorkflow {
    /// Names this generation: the run key.
    #[schema(value_type = String, format = Uuid)]
    pub id: RunKey,
    /// The workflow.
    pub workflow_type: String,
    /// `pending`, `running`, `completed`, `failed` or `cancelled`.
    pub status: &'static str,
    /// What it was started with.
    #[schema(value_type = Value)]
    pub input: Raw,
    /// What it ended with.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Raw>,
    /// Why it failed or was cancelled.
    #[schema(value_type = Option<Value>)]
    pub error: Option<Raw>,
    /// When it was created.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
    /// When its first turn was taken.
    pub started_at: Option<Time>,
    /// When it ended.
    pub completed_at: Option<Time>,
    /// The trace it was started in.
    pub trace_id: Option<String>,
    /// The span it was started in.
    pub span_id: Option<String>,
    /// The user's name for the run, which its generations share.
    pub run_id: String,
    /// Which generation it is, from 0.
    pub generation: u32,
    /// The model that runs it.
    pub model: String,
    /// The run that started it as a child.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub parent_id: Option<RunKey>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether an operator stopped it.
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

/// A page of runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableWorkflows {
    /// The runs, newest first.
    pub workflows: Vec<DurableWorkflow>,
    /// How many fit the filter, on all pages. Of `pending` runs at most 10,000 are counted.
    pub total: u64,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which runs.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WorkflowsParams {
    /// Only runs in this status: `pending`, `running`, `completed`, `failed`, `cancelled`.
    status: Option<String>,
    /// Only runs of this workflow.
    #[serde(rename = "type", alias = "workflow_type")]
    #[param(rename = "type")]
    workflow_type: Option<String>,
    /// Rows of the page: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `cursor` of the page before.
    cursor: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Pending,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl Word {
    fn parse(text: &str) -> Result<Self, ApiError> {
        Ok(match text {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "cancelled" => Self::Cancelled,
            _ => {
                let message = format!(
                    "{text:?} is no status; use one of pending, running, completed, failed, cancelled"
                );
                return Err(ApiError::invalid("INVALID_STATUS", message));
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

    fn takes(self, run: &Run) -> bool {
        match self {
            Self::Pending => run.started_at.is_none(),
            Self::Running => run.status != RunStatus::Active || run.started_at.is_some(),
            _ => true,
        }
    }
}

/// Lists runs of all models, each generation by itself, newest first.
#[utoipa::path(get, path = "/durable/workflows", tag = "durable",
    operation_id = "durableListWorkflows", params(WorkflowsParams),
    responses((status = 200, body = DurableWorkflows), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    Params(params): Params<WorkflowsParams>,
) -> ApiResult<DurableWorkflows> {
    let size = sized("limit", params.limit)?;
    let word = params.status.as_deref().map(Word::parse).transpose()?;
    let limits = &call.engine.options().limits;
    let workflow =
        params.workflow_type.map(|name| WorkflowName::with_limits(name, limits)).transpose()?;
    let after = decode_as("durable", params.cursor.as_deref(), |key| key.parse::<RunKey>().ok())?;
    let census = call.engine.store().census(call.engine.namespace().clone()).await?;
    let total = total(&census, word, workflow.as_ref());
    let query = RunsQuery { workflow, after, ..RunsQuery::all(call.engine.namespace().clone(), 1) };
    let (runs, next) = page(&call, query, word, size).await?;
    let cursor = next.map(|key| cursor::encode("durable", &key.to_string()));
    let workflows = runs.iter().map(DurableWorkflow::of).collect();
    Ok(Json(DurableWorkflows { workflows, total, cursor }))
}

/// How many runs there are in a status, of one workflow or all but the engine's own.
pub(crate) fn counted(
    census: &Census,
    statuses: &[RunStatus],
    workflow: Option<&WorkflowName>,
) -> u64 {
    let of = |name: &WorkflowName| match workflow {
        Some(asked) => name == asked,
        None => true,
    };
    let counts = census.runs.iter().filter(|row| {
        of(&row.workflow) && !is_internal(row.workflow.as_str()) && statuses.contains(&row.status)
    });
    counts.map(|row| row.count).sum()
}

/// How many runs nobody has begun.
pub(crate) fn counted_new(census: &Census, workflow: Option<&WorkflowName>) -> u64 {
    let of = census.runs_new.iter().filter(|(name, _)| {
        workflow.is_none_or(|asked| name == asked) && !is_internal(name.as_str())
    });
    super::bounded(of.map(|(_, count)| count).sum())
}

fn total(census: &Census, word: Option<Word>, workflow: Option<&WorkflowName>) -> u64 {
    match word {
        None => counted(census, RunStatus::ALL, workflow),
        Some(Word::Pending) => counted_new(census, workflow),
        Some(Word::Running) => counted(census, Word::Running.statuses(), workflow)
            .saturating_sub(counted_new(census, workflow)),
        Some(word) => counted(census, word.statuses(), workflow),
    }
}

// One page, newest first, merged from one listing a status; and where the next one begins.
async fn page(
    call: &Call,
    query: RunsQuery,
    word: Option<Word>,
    size: u32,
) -> Result<(Vec<Run>, Option<RunKey>), ApiError> {
    let statuses: Vec<Option<RunStatus>> = match word {
        None => vec![None],
        Some(word) => word.statuses().iter().copied().map(Some).collect(),
    };
    let mut query = RunsQuery { order: Order::Descending, limit: size + 1, ..query };
    let mut found: Vec<Run> = Vec::new();
    for _ in 0..STORE_PAGES_MAX {
        let (rows, is_last) = merged(&**call.engine.store(), &query, &statuses).await?;
        query.after = rows.last().map(|run| run.run_key).or(query.after);
        for run in rows {
            let fits =
                !is_internal(run.workflow.as_str()) && word.is_none_or(|word| word.takes(&run));
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

/// Looks at a generation of a run.
#[utoipa::path(get, path = "/durable/workflows/{runKey}", tag = "durable",
    operation_id = "durableGetWorkflow",
    params(("runKey" = String, Path, description = "The key of a generation")),
    responses((status = 200, body = DurableWorkflow), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, Named(key): Named) -> ApiResult<DurableWorkflow> {
    let loaded = find(&call, &key, Scope::Read, "workflows").await?;
    Ok(Json(DurableWorkflow::of(&loaded.run)))
}

/// A signal to be sent.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendSignal {
    /// Its type.
    #[schema(max_length = 100)]
    signal_type: String,
    /// What it carries.
    #[schema(value_type = Option<Value>)]
    payload: Option<Raw>,
    /// Sent again with the same id it is the same signal.
    #[schema(max_length = 200)]
    id: Option<String>,
}

impl Incoming for SendSignal {}

/// Sends a signal to a run, or to its newest generation if it was restarted since. Runs of other models
/// than `machines` get it as an event of that type.
#[utoipa::path(post, path = "/durable/workflows/{runKey}/signal", tag = "durable",
    operation_id = "durableSignal",
    params(("runKey" = String, Path, description = "The key of a generation")),
    request_body = SendSignal,
    responses((status = 200, body = DurableWorkflow), (status = "default", body = Failure)))]
pub(crate) async fn signal(
    call: Call,
    Named(key): Named,
    Payload(signal): Payload<SendSignal>,
) -> ApiResult<DurableWorkflow> {
    let limits = &call.engine.options().limits;
    let name = MessageName::with_limits(&signal.signal_type, limits)
        .map_err(|error| ApiError::from(error).coded("INVALID_EVENT_TYPE"))?;
    let id = signal.id.map(|id| MessageId::with_limits(id, limits)).transpose();
    let id = id.map_err(|error| ApiError::from(error).coded("INVALID_EVENT_ID"))?;
    let payload = signal.payload.map_or_else(|| "null".to_owned(), |body| body.get().to_owned());
    check_depth("payload", &payload, limits.json_depth_max)?;
    let run = find(&call, &key, Scope::SendEvent, "signal").await?.run;
    call.may_send(&run, &name).await?;
    call.engine.send_event(run.run_key, name, Some(Body::json(payload)), id).await?;
    Ok(Json(DurableWorkflow::of(&call.engine.current(run.run_key).await?)))
}

/// Why a run is cancelled.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    /// For those who look at it later. At most 1,000 characters.
    reason: Option<String>,
}

impl Incoming for Cancel {}

/// Asks a run to end. One whose model has a message for it, such as a state machine, is told and has its grace period; any other ends as soon as what
/// it is doing is over. The answer comes when it has ended, or after two seconds.
#[utoipa::path(post, path = "/durable/workflows/{runKey}/cancel", tag = "durable",
    operation_id = "durableCancel",
    params(("runKey" = String, Path, description = "The key of a generation")),
    request_body = Option<Cancel>,
    responses((status = 200, body = DurableWorkflow), (status = "default", body = Failure)))]
pub(crate) async fn cancel(
    call: Call,
    Named(key): Named,
    MaybePayload(body): MaybePayload<Cancel>,
) -> ApiResult<DurableWorkflow> {
    let reason = body.reason.as_deref().map(check_reason).transpose()?;
    let run = find(&call, &key, Scope::Manage, "cancel").await?.run;
    if run.status.is_ended() {
        let message = format!("run {:?} is {} and cannot be cancelled", run.id, status_word(&run));
        let status = axum::http::StatusCode::CONFLICT;
        return Err(ApiError::new(status, "INSTANCE_TERMINAL", message));
    }
    let (engine, run_key) = (call.engine.clone(), run.run_key);
    if let Some(name) = call.manners(&run).cancel {
        let name = MessageName::new(name)?;
        let mut body = json!({ "reason": reason.unwrap_or("cancelled") });
        if let Some(actor) = &call.caller.actor {
            body["actor"] = json!(actor);
        }
        let body = Body::of(&body)?;
        engine.send_event(run_key, name, Some(body), None).await?;
        let _ = tokio::time::timeout(CANCEL_SEEN_WITHIN, engine.wait(run_key)).await;
    } else {
        // What was asked for stays asked for when nobody waits for it any more.
        let (asked, reason) = (engine.clone(), reason.map(str::to_owned));
        let actor = call.caller.actor.clone();
        let cancelled =
            tokio::spawn(async move { asked.cancel(run_key, reason.as_deref(), actor).await });
        if let Ok(Ok(answer)) = tokio::time::timeout(CANCEL_SEEN_WITHIN, cancelled).await {
            answer?;
        }
    }
    Ok(Json(DurableWorkflow::of(&engine.current(run_key).await?)))
}
