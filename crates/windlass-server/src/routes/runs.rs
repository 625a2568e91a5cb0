//! The runs of all workflows: search, get by run key, bulk actions.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{ErrorCode, Run, RunId, RunKey, RunStatus, WorkflowName};

use super::control::Action;
use super::instances::{InstanceView, fill_overview, known_model};
use crate::app::is_internal;
use crate::auth::{Scope, Target};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Params, Payload};
use crate::json::Json;
use crate::paging::{self, Direction, Filter, Refine, RunsParams};
use crate::view::RunSummary;

/// Filters of the search.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchParams {
    /// Only runs of this workflow.
    workflow: Option<String>,
    /// Only runs with one of these statuses. Can be repeated.
    #[serde(default)]
    status: Vec<String>,
    /// Only runs with this label, as `key:value`. Can be repeated.
    #[serde(default)]
    label: Vec<String>,
    /// Only runs created at this time or later (RFC 3339).
    created_from: Option<String>,
    /// Only runs created before this time (RFC 3339).
    created_before: Option<String>,
    /// Only runs whose id begins with this. This filter and those below have no index: a page may have
    /// fewer rows than asked for, and `nextCursor` continues the search.
    id_prefix: Option<String>,
    /// Only runs of this model.
    model: Option<String>,
    /// Only children of the run with this run key.
    parent: Option<String>,
    /// Only runs of the tree whose root has this run key.
    root: Option<String>,
    /// Only runs without a parent.
    roots_only: Option<bool>,
    /// Only failed runs whose error has this name.
    error_code: Option<String>,
    /// Newest first (`desc`, the default) or oldest first (`asc`).
    #[param(inline)]
    order: Option<Direction>,
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A page of runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunsPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

fn workflow_name(call: &Call, name: &str) -> Result<WorkflowName, ApiError> {
    let name = WorkflowName::with_limits(name, &call.engine.options().limits)?;
    if is_internal(name.as_str()) {
        return Err(ApiError::invalid(
            ErrorCode::InvalidName,
            format!("{name:?} is an internal workflow of the engine"),
        ));
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
    let statuses: Result<Vec<_>, _> =
        params.status.iter().map(|status| paging::parse_status(status)).collect();
    let statuses = statuses?;
    let refine = Refine {
        id_prefix: params.id_prefix,
        model: params.model,
        parent: params.parent.as_deref().map(|key| parse_run_key("parent", key)).transpose()?,
        root: params.root.as_deref().map(|key| parse_run_key("root", key)).transpose()?,
        roots_only: params.roots_only.unwrap_or(false),
        error_name: params.error_code,
    };
    let cursor = params.cursor;
    let filter = RunsParams {
        status: params.status.first().filter(|_| statuses.len() == 1).cloned(),
        label: params.label,
        created_from: params.created_from,
        created_before: params.created_before,
        order: params.order,
        page_size: params.page_size,
        cursor: None,
    };
    let filter = Filter::new(call.engine.namespace().clone(), workflow, &filter)?.refined(refine);
    let filter = match statuses.len() {
        0 | 1 => filter,
        _ => filter.with_statuses(&distinct(statuses)),
    };
    let filter = filter.at_cursor(cursor.as_deref())?;
    let page = paging::list(&call, &filter).await?;
    let next = page.cursor(&filter);
    Ok(Json(RunsPage {
        runs: page.runs.iter().map(RunSummary::of).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}

fn parse_run_key(name: &str, text: &str) -> Result<RunKey, ApiError> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(80).collect();
        let message = format!("{name} {shown:?} is not a run key");
        ApiError::invalid(ErrorCode::InvalidQuery, message)
    })
}

fn distinct(statuses: Vec<RunStatus>) -> Vec<RunStatus> {
    RunStatus::ALL.iter().copied().filter(|status| statuses.contains(status)).collect()
}

/// Returns one generation of a run, by its run key.
#[utoipa::path(get, path = "/runs/{runKey}", tag = "runs", operation_id = "getRun",
    params(("runKey" = String, Path, description = "The run key")),
    responses((status = 200, body = InstanceView), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, Named(key): Named) -> ApiResult<InstanceView> {
    let not_found = || {
        let shown: String = key.chars().take(80).collect();
        ApiError::not_found(ErrorCode::InstanceNotFound, format!("unknown run {shown:?}"))
    };
    let run_key: RunKey = key.parse().map_err(|_| not_found())?;
    let overview = call.engine.store().run_overview_by_key(run_key).await?;
    // Runs of other namespaces must be indistinguishable from runs that do not exist.
    let visible = |run: &Run| {
        run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str())
    };
    let mut overview = overview.filter(|overview| visible(&overview.run)).ok_or_else(not_found)?;
    ask(&call, Scope::Read, &overview.run, "runs").await?;
    fill_overview(&call, &mut overview).await?;
    InstanceView::read(&call, &overview.run, &overview.open_steps).await.map(Json)
}

/// Selects the runs of a bulk action.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BulkFilter {
    /// Only runs of this workflow.
    workflow: Option<String>,
    /// Only runs with this status.
    status: Option<String>,
    /// Only runs with all these labels.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Only runs created at this time or later (RFC 3339).
    created_from: Option<String>,
    /// Only runs created before this time (RFC 3339).
    created_before: Option<String>,
    /// Only runs whose id begins with this.
    id_prefix: Option<String>,
    /// Only runs of this model.
    model: Option<String>,
    /// Only failed runs whose error has this name.
    error_code: Option<String>,
    /// Only runs without a parent.
    #[serde(default)]
    roots_only: bool,
}

/// A bulk action.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct BulkRequest {
    /// The action.
    action: Action,
    /// The runs. Only runs whose status accepts the action are selected.
    filter: BulkFilter,
    /// Only count the runs.
    #[serde(default)]
    dry_run: bool,
    /// The maximum number of runs: 1 to 1,000. Default 1,000. Without a limit, a dry run counts all
    /// runs.
    limit: Option<u32>,
    /// The reason, for `terminate` and `cancel`.
    reason: Option<String>,
}

impl Incoming for BulkRequest {}

const BULK_MAX: u32 = 1_000;
/// The time limit of one bulk request; the client continues with another request.
const BULK_TIME_MAX: Duration = Duration::from_secs(10);

/// A run for which the action failed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BulkFailure {
    /// The name of the workflow.
    pub workflow_name: String,
    /// The id of the run.
    pub id: String,
    /// A stable code.
    #[schema(value_type = String)]
    pub code: ErrorCode,
    /// The reason.
    pub message: String,
}

/// The result of a bulk action.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BulkResult {
    /// The action.
    pub action: Action,
    /// Whether the runs were only counted.
    pub dry_run: bool,
    /// The number of matching runs, up to the limit. If `more` is true, further runs match.
    pub matched: u64,
    /// The number of runs for which the action succeeded.
    pub done: u64,
    /// Runs for which the action failed, at most 1,000. Includes children whose failure their
    /// parent has already handled; `matched` does not count those.
    pub failed: Vec<BulkFailure>,
    /// Whether further runs may match because the limit or the time limit was reached. Send the
    /// request again to continue. To continue a `restart`, send `createdBefore` with it: a restarted run
    /// can end and match again.
    pub more: bool,
}

/// Applies an action to all runs that match a filter, or counts them.
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
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    let reason = request.reason.as_deref().map(super::control::check_reason).transpose()?;
    let BulkFilter { labels, created_from, created_before, .. } = request.filter;
    let BulkFilter { workflow, status, id_prefix, model, error_code, roots_only, .. } =
        request.filter;
    let refine =
        Refine { id_prefix, model, error_name: error_code, roots_only, ..Refine::default() };
    let workflow = workflow.as_deref().map(|name| workflow_name(&call, name)).transpose()?;
    if let Some(workflow) = &workflow {
        // Distinguishes a misspelled workflow from a workflow without matching runs.
        known_model(&call, workflow).await?;
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
    let filter = Filter::new(call.engine.namespace().clone(), workflow, &params)?.refined(refine);
    let filter = filter.with_labels(labels)?.with_statuses(request.action.accepted_statuses());
    // A retry creates a generation with a later run key, which may fail again before the listing
    // reaches it. Run keys have millisecond precision, so runs of the current millisecond are
    // included.
    let began = call.engine.clock().now().plus(Duration::from_millis(1));
    let mut filter = filter.created_before(began);
    let until = Instant::now() + BULK_TIME_MAX.min(call.app.options.request_timeout / 2);
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
        let page = match paging::list(&call, &filter).await {
            Ok(page) => page,
            // Some runs have changed, so the response must list them.
            Err(_) if result.done > 0 => {
                result.more = true;
                return Ok(Json(result));
            }
            Err(error) => return Err(error),
        };
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
            match apply(&call, request.action, run, reason).await {
                Ok(()) => result.done += 1,
                Err(error) => {
                    // This error is permanent. If it counted, repeated requests would never get
                    // past these runs.
                    if error.code() == ErrorCode::FailureConsumed {
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

/// Calls the hook for each run, because the path of the request does not name them.
async fn apply(
    call: &Call,
    action: Action,
    run: &Run,
    reason: Option<&str>,
) -> Result<(), ApiError> {
    let word = match action {
        Action::Pause => "pause",
        Action::Resume => "resume",
        Action::Terminate => "terminate",
        Action::Retry => "retry",
        Action::Cancel => "cancel",
        Action::Restart => "restart",
    };
    ask(call, Scope::Manage, run, word).await?;
    action.apply(call, run, reason).await
}

/// Calls the hook for a run that the path does not name.
async fn ask(call: &Call, scope: Scope, run: &Run, word: &str) -> Result<(), ApiError> {
    let target = Target {
        workflow: Some(run.workflow.as_str()),
        id: Some(run.id.as_str()),
        action: Some(word),
        ..Target::default()
    };
    call.app.guard.ask(&call.caller, scope, &target).await
}
