//! Runs of all workflows: search, look at one by its key, act on many.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{Run, RunId, RunKey, WorkflowName};

use super::control::Action;
use super::instances::{InstanceView, known};
use crate::app::is_internal;
use crate::auth::{Scope, Target};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Params, Payload};
use crate::json::Json;
use crate::paging::{self, Direction, Filter, RunsParams};
use crate::view::RunSummary;

/// Which runs.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchParams {
    /// Only runs of this workflow.
    workflow: Option<String>,
    /// Only runs in this status.
    status: Option<String>,
    /// Only runs with this label, as `key:value`; may be given several times.
    #[serde(default)]
    label: Vec<String>,
    /// Only runs that were created at this time or later (RFC 3339).
    created_from: Option<String>,
    /// Only runs that were created before this time (RFC 3339).
    created_before: Option<String>,
    /// Newest first (`desc`, the default) or oldest first (`asc`).
    #[param(inline)]
    order: Option<Direction>,
    /// Rows of the page: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the page before.
    cursor: Option<String>,
}

/// A page of runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunsPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The same again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is one.
    pub has_next_page: bool,
}

fn workflow_name(call: &Call, name: &str) -> Result<WorkflowName, ApiError> {
    let name = WorkflowName::with_limits(name, &call.engine.options().limits)?;
    if is_internal(name.as_str()) {
        return Err(ApiError::invalid("INVALID_NAME", format!("{name:?} is the engine's own")));
    }
    Ok(name)
}

/// Searches the runs of all workflows.
#[utoipa::path(get, path = "/runs", tag = "runs", operation_id = "searchRuns",
    params(SearchParams),
    responses((status = 200, body = RunsPage), (status = "default", body = Failure)))]
pub(crate) async fn search(
    call: Call,
    Params(params): Params<SearchParams>,
) -> ApiResult<RunsPage> {
    let workflow = params.workflow.as_deref().map(|name| workflow_name(&call, name)).transpose()?;
    let filter = RunsParams {
        status: params.status,
        label: params.label,
        created_from: params.created_from,
        created_before: params.created_before,
        order: params.order,
        page_size: params.page_size,
        cursor: params.cursor,
    };
    let filter = Filter::new(call.engine.namespace().clone(), workflow, &filter)?;
    let page = paging::list(&call, &filter).await?;
    let next = page.cursor(&filter);
    Ok(Json(RunsPage {
        runs: page.runs.iter().map(RunSummary::of).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}

/// Looks at one generation of a run by its key.
#[utoipa::path(get, path = "/runs/{runKey}", tag = "runs", operation_id = "getRun",
    params(("runKey" = String, Path, description = "The key of a generation")),
    responses((status = 200, body = InstanceView), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, Named(key): Named) -> ApiResult<InstanceView> {
    let not_found = || {
        let shown: String = key.chars().take(80).collect();
        ApiError::not_found("INSTANCE_NOT_FOUND", format!("there is no run {shown:?}"))
    };
    let run_key: RunKey = key.parse().map_err(|_| not_found())?;
    let looked = call.engine.store().look_at(run_key).await?;
    // A key of another tenant is as unknown as one that was never made.
    let visible = |run: &Run| {
        run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str())
    };
    let looked = looked.filter(|looked| visible(&looked.run)).ok_or_else(not_found)?;
    ask(&call, Scope::Read, &looked.run, "runs").await?;
    InstanceView::read(&call, &looked.run, &looked.open_steps).await.map(Json)
}

/// Which runs to act on.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BulkFilter {
    /// Only runs of this workflow.
    workflow: Option<String>,
    /// Only runs in this status.
    status: Option<String>,
    /// Only runs with all of these labels.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Only runs that were created at this time or later (RFC 3339).
    created_from: Option<String>,
    /// Only runs that were created before this time (RFC 3339).
    created_before: Option<String>,
}

/// What to do to which runs.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BulkRequest {
    /// What to do.
    action: Action,
    /// To which runs; only those that the action can be asked of count.
    filter: BulkFilter,
    /// Only counts.
    #[serde(default)]
    dry_run: bool,
    /// How many runs at most: 1 to 1,000. Default 1,000. A count has no limit unless one is given.
    limit: Option<u32>,
    /// Why, for runs that are terminated.
    reason: Option<String>,
}

impl Incoming for BulkRequest {}

const BULK_MAX: u32 = 1_000;
/// How long a request goes on to the next run: what is left is for the next request.
const BULK_FOR_MAX: Duration = Duration::from_secs(10);

/// A run that could not be acted on.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BulkFailure {
    /// The workflow.
    pub workflow_name: String,
    /// The run's id.
    pub id: String,
    /// A stable code.
    pub code: &'static str,
    /// What went wrong.
    pub message: String,
}

/// What was done.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BulkResult {
    /// What was asked for.
    pub action: Action,
    /// Whether it was only counted.
    pub dry_run: bool,
    /// How many runs fit the filter, up to the limit; at least, if there are more.
    pub matched: u64,
    /// To how many it was done.
    pub done: u64,
    /// Those to which it could not be done, up to 1,000. Children whose failure their parent has consumed
    /// are told here and count for nothing else.
    pub failed: Vec<BulkFailure>,
    /// Whether there may be more runs that fit the filter than the limit allows, or than there was time
    /// for: ask again.
    pub more: bool,
}

/// Does something to all runs that fit a filter, or counts them.
#[utoipa::path(post, path = "/runs/bulk", tag = "runs", operation_id = "bulk",
    request_body = BulkRequest,
    responses((status = 200, body = BulkResult), (status = "default", body = Failure)))]
pub(crate) async fn bulk(
    call: Call,
    Payload(request): Payload<BulkRequest>,
) -> ApiResult<BulkResult> {
    let limit = request.limit.unwrap_or(BULK_MAX);
    if !(1..=BULK_MAX).contains(&limit) {
        let message = format!("limit is {limit}; use 1 to {BULK_MAX}");
        return Err(ApiError::invalid("INVALID_SIZE", message));
    }
    let reason = request.reason.as_deref().map(super::control::check_reason).transpose()?;
    let BulkFilter { workflow, status, labels, created_from, created_before } = request.filter;
    let workflow = workflow.as_deref().map(|name| workflow_name(&call, name)).transpose()?;
    if let Some(workflow) = &workflow {
        // A name that is mistyped is not a workflow of which no run matches.
        known(&call, workflow).await?;
    }
    let params = RunsParams {
        status,
        label: Vec::new(),
        created_from,
        created_before,
        order: Some(Direction::Asc),
        page_size: Some(100),
        cursor: None,
    };
    let filter = Filter::new(call.engine.namespace().clone(), workflow, &params)?;
    let filter = filter.labelled(labels)?.in_statuses(request.action.takes());
    // A retry makes a run with a later key, which may fail again before the walk gets there. Keys are made
    // by the millisecond, so those of this one count.
    let began = call.engine.clock().now().plus(Duration::from_millis(1));
    let mut filter = filter.created_before(began);
    let until = Instant::now() + BULK_FOR_MAX.min(call.app.options.request_timeout / 2);
    let limit = if request.dry_run { request.limit.map(u64::from) } else { Some(limit.into()) };
    let mut seen: HashSet<(WorkflowName, RunId)> = HashSet::new();
    let mut result = BulkResult {
        action: request.action,
        dry_run: request.dry_run,
        matched: 0,
        done: 0,
        failed: Vec::new(),
        more: false,
    };
    loop {
        let page = paging::list(&call, &filter).await?;
        for run in &page.runs {
            if limit == Some(result.matched) || Instant::now() > until {
                result.more = true;
                return Ok(Json(result));
            }
            if request.dry_run {
                result.matched += 1;
                continue;
            }
            if !seen.insert((run.workflow.clone(), run.id.clone())) {
                continue;
            }
            result.matched += 1;
            match act(&call, request.action, run, reason).await {
                Ok(()) => result.done += 1,
                Err(error) => {
                    // That it stays so is no reason for the next request to get no further than this one.
                    if error.code() == "FAILURE_CONSUMED" {
                        result.matched -= 1;
                    }
                    if result.failed.len() < BULK_MAX as usize {
                        result.failed.push(BulkFailure {
                            workflow_name: run.workflow.to_string(),
                            id: run.id.to_string(),
                            code: error.code(),
                            message: error.message().to_owned(),
                        });
                    }
                }
            }
        }
        match page.next {
            Some(next) if Instant::now() < until => filter = filter.after(Some(next)),
            next => {
                result.more = next.is_some();
                return Ok(Json(result));
            }
        }
    }
}

/// Asks the embedding program about each run: the request's path names none of them.
async fn act(call: &Call, action: Action, run: &Run, reason: Option<&str>) -> Result<(), ApiError> {
    let word = match action {
        Action::Pause => "pause",
        Action::Resume => "resume",
        Action::Terminate => "terminate",
        Action::Retry => "retry",
    };
    ask(call, Scope::Manage, run, word).await?;
    action.act(call, run, reason).await
}

/// Asks the embedding program about a run that the path does not name.
async fn ask(call: &Call, scope: Scope, run: &Run, word: &str) -> Result<(), ApiError> {
    let target = Target {
        workflow: Some(run.workflow.as_str()),
        id: Some(run.id.as_str()),
        action: Some(word),
    };
    call.app.guard.ask(&call.caller, scope, &target).await
}
