//! The tree of a run, one event of a ledger by its id, and the verification of a run.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::verify::verify_one;
use windlass::kernel::{ErrorCode, EventId, EventType, Query, Run, RunKey};

use super::history::generation;
use super::timeline::GenerationParams;
use crate::app::is_internal;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Named, Params};
use crate::json::Json;
use crate::paging::{may_read, page_size};
use crate::view::{LedgerEvent, Time};

/// A run of a tree.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TreeRun {
    /// The name of the workflow.
    pub workflow_name: String,
    /// The id of the run.
    pub id: String,
    /// The key of this generation.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
    /// The generation, starting at 0.
    pub run_number: u32,
    /// The parent; none for the root.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub parent: Option<RunKey>,
    /// The branch of the parent that the run executes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fork: Option<String>,
    /// The model of the workflow.
    pub model: String,
    /// The status.
    pub status: &'static str,
    /// When it was created.
    pub created_at: Time,
    /// When it ended.
    pub completed_at: Option<Time>,
}

impl TreeRun {
    fn of(run: &Run) -> Self {
        Self {
            workflow_name: run.workflow.to_string(),
            id: run.id.to_string(),
            run_key: run.run_key,
            run_number: run.generation,
            parent: run.parent,
            fork: run.fork.as_deref().map(str::to_owned),
            model: run.model.to_string(),
            status: run.status.as_str(),
            created_at: Time(run.created_at),
            completed_at: run.ended_at.map(Time),
        }
    }
}

/// A page of a tree.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tree {
    /// The root of the tree.
    #[schema(value_type = String, format = Uuid)]
    pub root: RunKey,
    /// The runs, parents before their children.
    pub runs: Vec<TreeRun>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// The page of a tree.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct TreeParams {
    /// The generation. Default: the newest.
    run_number: Option<u32>,
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Lists the runs of the tree that a run belongs to, in the order of their creation.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/tree",
    tag = "instances", operation_id = "getTree",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), TreeParams),
    responses((status = 200, body = Tree), (status = "default", body = Failure)))]
pub(crate) async fn tree(
    call: Call,
    at: AtRun,
    Params(params): Params<TreeParams>,
) -> ApiResult<Tree> {
    let size = page_size(params.page_size)?;
    let run = generation(&call, &at, params.run_number).await?;
    let listing = format!("tree-{}", run.root);
    let after = decode_as(&listing, params.cursor.as_deref(), |key| key.parse().ok())?;
    let query = Query::Tree { root: run.root, after, limit: size + 1 };
    let mut rows = call.engine.store().list(query).await?.runs()?;
    let more = rows.len() > size as usize;
    rows.truncate(size as usize);
    let last = rows.last().filter(|_| more);
    let next_cursor = last.map(|run| cursor::encode(&listing, &run.run_key.to_string()));
    let mut runs = Vec::with_capacity(rows.len());
    for row in &rows {
        let is_visible = row.namespace == *call.engine.namespace()
            && !is_internal(row.workflow.as_str())
            && may_read(&call, row).await?;
        if is_visible {
            runs.push(TreeRun::of(row));
        }
    }
    Ok(Json(Tree { root: run.root, runs, has_next_page: next_cursor.is_some(), next_cursor }))
}

/// An event with the run that it belongs to.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventView {
    /// The name of the workflow.
    pub workflow_name: String,
    /// The id of the run.
    pub id: String,
    /// The generation of the run.
    pub run_number: u32,
    /// The event.
    pub event: LedgerEvent,
}

/// Returns one event of a ledger by its id, for example the cause of another event.
#[utoipa::path(get, path = "/events/{eventId}", tag = "runs", operation_id = "getEvent",
    params(("eventId" = String, Path, description = "The id of the event")),
    responses((status = 200, body = EventView), (status = "default", body = Failure)))]
pub(crate) async fn event(call: Call, Named(id): Named) -> ApiResult<EventView> {
    let not_found = || {
        let shown: String = id.chars().take(80).collect();
        let message = format!("unknown event {shown:?}");
        ApiError::not_found(ErrorCode::EventNotFound, message)
    };
    let event_id: EventId = id.parse().map_err(|_| not_found())?;
    let found = call.engine.store().list(Query::Event { event_id }).await?.events()?;
    let event = found.into_iter().next().ok_or_else(not_found)?;
    let overview = call.engine.store().run_overview_by_key(event.run_key).await?;
    let run = overview.map(|overview| overview.run).filter(|run| {
        run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str())
    });
    let run = run.ok_or_else(not_found)?;
    if !may_read(&call, &run).await? {
        return Err(not_found());
    }
    Ok(Json(EventView {
        workflow_name: run.workflow.to_string(),
        id: run.id.to_string(),
        run_number: run.generation,
        event: LedgerEvent::of(&event),
    }))
}

/// The result of a verification.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verified {
    /// Whether the chain, the seals and the status agree.
    pub ok: bool,
    /// The generation.
    pub run_number: u32,
    /// The number of events that were checked.
    pub events: u64,
    /// The hash of the last event.
    pub head: String,
    /// The ordinal of the first event that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordinal: Option<u64>,
    /// The problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Verifies a run: recomputes the hash chain of its ledger and the seals of its rows. Reads the whole
/// run.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/verify",
    tag = "instances", operation_id = "verifyInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), GenerationParams),
    responses((status = 200, body = Verified), (status = "default", body = Failure)))]
pub(crate) async fn verify(
    call: Call,
    at: AtRun,
    Params(params): Params<GenerationParams>,
) -> ApiResult<Verified> {
    let run = generation(&call, &at, params.run_number).await?;
    let engine = &call.engine;
    let opens_step = |run: &Run, event: &EventType| engine.description_of(run).opens_step(event);
    let store = &**engine.store();
    let report = verify_one(store, run.run_key, &[], &opens_step).await?;
    let flaw = report.flaws.first();
    let problem = flaw.map(|flaw| flaw.what.clone()).or(report.unreadable.first().cloned());
    // The run may have continued since its row was read, so the verified head is shown.
    let head = report.anchors.first().map_or(run.head.hash, |anchor| anchor.hash);
    Ok(Json(Verified {
        ok: report.is_clean(),
        run_number: run.generation,
        events: report.events,
        head: head.to_string(),
        ordinal: flaw.and_then(|flaw| flaw.ordinal),
        problem,
    }))
}
