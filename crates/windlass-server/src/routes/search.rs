//! One search for everything that has a name: workflows, runs, schedules, events.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::ErrorCode;
use windlass::kernel::{EventId, Query, RunKey};

use crate::app::is_internal;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Params};
use crate::json::Json;
use crate::paging::{self, Filter, Refine, RunsParams, may_read};
use crate::view::RunSummary;

/// The longest text: the id of a run that the engine builds.
const CHARS_MAX: usize = 400;
/// The most hits of each kind.
const HITS_MAX: usize = 10;
/// The most schedules that are read. Most rows are earlier generations.
const SCHEDULES_READ: usize = 100;

/// The text to search.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SearchParams {
    /// The beginning of a run's id, a run key, the id of an event, or a part of the name of a workflow or
    /// schedule. `workflow/id` finds runs of one workflow.
    q: String,
}

/// An event of a run.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventHit {
    /// The workflow of its run.
    pub workflow_name: String,
    /// The id of its run.
    pub id: String,
    /// The generation.
    pub run_number: u32,
    /// The type.
    #[serde(rename = "type")]
    pub event_type: String,
}

/// What was found, at most ten of each kind.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct Hits {
    /// Names of workflows.
    pub workflows: Vec<String>,
    /// Runs, newest first. Ids have no index: with many runs the search covers the newest ones, and `more`
    /// is true.
    pub runs: Vec<RunSummary>,
    /// Names of schedules.
    pub schedules: Vec<String>,
    /// The event with this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<EventHit>,
    /// Whether there may be further runs.
    pub more: bool,
}

/// Finds workflows, runs, schedules and events by a text.
#[utoipa::path(get, path = "/search", tag = "server", operation_id = "search", params(SearchParams),
    responses((status = 200, body = Hits), (status = "default", body = Failure)))]
pub(crate) async fn search(call: Call, Params(params): Params<SearchParams>) -> ApiResult<Hits> {
    let text = params.q.trim();
    if text.is_empty() || text.chars().count() > CHARS_MAX {
        let message = format!("q has {} characters; use 1 to {CHARS_MAX}", text.chars().count());
        return Err(ApiError::invalid(ErrorCode::InvalidQuery, message));
    }
    let low = text.to_lowercase();
    let mut hits = Hits { workflows: workflows(&call, &low).await?, ..Hits::default() };
    let by_key = run_by_key(&call, text).await?;
    match by_key {
        Some(run) => hits.runs.push(run),
        None => runs(&call, text, &mut hits).await?,
    }
    hits.event = event(&call, text).await?;
    let page = call.engine.schedules_page(None, SCHEDULES_READ as u32).await?;
    let names = page.schedules.into_iter().map(|state| state.name);
    hits.schedules =
        names.filter(|name| name.to_lowercase().contains(&low)).take(HITS_MAX).collect();
    Ok(Json(hits))
}

async fn workflows(call: &Call, low: &str) -> Result<Vec<String>, ApiError> {
    let stats = call.engine.store().namespace_stats(call.engine.namespace().clone()).await?;
    let known = stats.runs.iter().map(|row| row.workflow.to_string());
    let mut names: Vec<String> =
        known.chain(call.engine.workflows().iter().map(ToString::to_string)).collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| !is_internal(name) && name.to_lowercase().contains(low));
    names.truncate(HITS_MAX);
    Ok(names)
}

async fn run_by_key(call: &Call, text: &str) -> Result<Option<RunSummary>, ApiError> {
    let Ok(run_key) = text.parse::<RunKey>() else { return Ok(None) };
    let Some(overview) = call.engine.store().run_overview_by_key(run_key).await? else {
        return Ok(None);
    };
    let run = overview.run;
    let is_ours = run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str());
    Ok((is_ours && may_read(call, &run).await?).then(|| RunSummary::of(&run)))
}

async fn runs(call: &Call, text: &str, hits: &mut Hits) -> Result<(), ApiError> {
    let (workflow, id) = match text.split_once('/') {
        Some((workflow, id)) => (workflow, id),
        None => ("", text),
    };
    let limits = &call.engine.options().limits;
    let workflow = windlass::kernel::WorkflowName::with_limits(workflow, limits).ok();
    let params = RunsParams { page_size: Some(HITS_MAX as u32), ..RunsParams::default() };
    let refine = Refine { id_prefix: Some(id.to_owned()), ..Refine::default() };
    let filter = Filter::new(call.engine.namespace().clone(), workflow, &params)?.refined(refine);
    let page = paging::list(call, &filter).await?;
    hits.more = page.cursor(&filter).is_some();
    hits.runs = page.runs.iter().map(RunSummary::of).collect();
    Ok(())
}

async fn event(call: &Call, text: &str) -> Result<Option<EventHit>, ApiError> {
    let Ok(event_id) = text.parse::<EventId>() else { return Ok(None) };
    let found = call.engine.store().list(Query::Event { event_id }).await?.events()?;
    let Some(event) = found.into_iter().next() else { return Ok(None) };
    let Some(overview) = call.engine.store().run_overview_by_key(event.run_key).await? else {
        return Ok(None);
    };
    let run = overview.run;
    let is_ours = run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str());
    if !is_ours || !may_read(call, &run).await? {
        return Ok(None);
    }
    Ok(Some(EventHit {
        workflow_name: run.workflow.to_string(),
        id: run.id.to_string(),
        run_number: run.generation,
        event_type: event.event_type.to_string(),
    }))
}
