//! Pages of runs: filters, cursors, and only the newest generation of each.

use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{Namespace, Order, Query, Run, RunKey, RunStatus, RunsQuery, WorkflowName};
use windlass_engine::Engine;

use crate::app::is_internal;
use crate::cursor;
use crate::error::ApiError;
use crate::view::parse_time;

/// Rows of a page, if nobody says how many.
const PAGE_ROWS: u32 = 25;
/// Rows of a page at most: each may carry an input and an output of a mebibyte.
const PAGE_ROWS_MAX: u32 = 100;
/// How many pages of the store are looked through for one page of an answer. What is not found by
/// then is on the next page.
const STORE_PAGES_MAX: usize = 20;

/// How many rows are asked for.
pub(crate) fn page_size(asked: Option<u32>) -> Result<u32, ApiError> {
    sized("pageSize", asked)
}

/// As [`page_size`], by another name.
pub(crate) fn sized(name: &str, asked: Option<u32>) -> Result<u32, ApiError> {
    match asked {
        None => Ok(PAGE_ROWS),
        Some(size) if (1..=PAGE_ROWS_MAX).contains(&size) => Ok(size),
        Some(size) => {
            let message = format!("{name} is {size}; use 1 to {PAGE_ROWS_MAX}");
            Err(ApiError::invalid("INVALID_PAGE_SIZE", message))
        }
    }
}

/// Which end a listing begins at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// Oldest first.
    Asc,
    /// Newest first.
    Desc,
}

/// Reads a status that a client sent.
pub(crate) fn parse_status(text: &str) -> Result<RunStatus, ApiError> {
    RunStatus::parse(text).map_err(|_| {
        let words: Vec<&str> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
        let message = format!("{text:?} is no status; use one of {}", words.join(", "));
        ApiError::invalid("INVALID_STATUS", message)
    })
}

/// What a text is told that is no time.
pub(crate) fn invalid_time(name: &str, text: &str) -> ApiError {
    let message =
        format!("{name} {text:?} is no RFC 3339 time; write one such as 2026-03-01T12:00:00Z");
    ApiError::invalid("INVALID_TIME", message)
}

/// Reads `key:value`.
fn parse_label(text: &str) -> Result<(String, String), ApiError> {
    let label = text.split_once(':').filter(|(key, _)| !key.is_empty());
    let label = label.map(|(key, value)| (key.to_owned(), value.to_owned()));
    label.ok_or_else(|| {
        ApiError::invalid("INVALID_LABEL", format!("{text:?} is no label; use `label=key:value`"))
    })
}

/// Which runs to list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsParams {
    /// Only runs in this status.
    pub status: Option<String>,
    /// Only runs with this label, as `key:value`; may be given several times.
    #[serde(default)]
    pub label: Vec<String>,
    /// Only runs that were created at this time or later (RFC 3339).
    pub created_from: Option<String>,
    /// Only runs that were created before this time (RFC 3339).
    pub created_before: Option<String>,
    /// Newest first (`desc`, the default) or oldest first (`asc`).
    #[param(inline)]
    pub order: Option<Direction>,
    /// Rows of the page: 1 to 100. Default 25.
    pub page_size: Option<u32>,
    /// `nextCursor` of the page before.
    pub cursor: Option<String>,
}

/// A filter that was read.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    query: RunsQuery,
    labels: Vec<(String, String)>,
    statuses: Option<Vec<RunStatus>>,
}

impl Filter {
    pub(crate) fn new(
        namespace: Namespace,
        workflow: Option<WorkflowName>,
        params: &RunsParams,
    ) -> Result<Self, ApiError> {
        let time = |name: &str, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => parse_time(text).map(Some).ok_or_else(|| invalid_time(name, text)),
        };
        let mut query = RunsQuery::all(namespace, page_size(params.page_size)? + 1);
        query.workflow = workflow;
        query.status = params.status.as_deref().map(parse_status).transpose()?;
        query.created_from = time("createdFrom", &params.created_from)?;
        query.created_before = time("createdBefore", &params.created_before)?;
        if params.order == Some(Direction::Asc) {
            query.order = Order::Ascending;
        }
        let labels: Result<Vec<_>, _> =
            params.label.iter().map(|label| parse_label(label)).collect();
        let labels = labels?;
        query.label = labels.first().cloned();
        query.after =
            cursor::decode_as("runs", params.cursor.as_deref(), |key| key.parse::<RunKey>().ok())?;
        Ok(Self { query, labels, statuses: None })
    }

    /// The filter for runs in one of several statuses.
    pub(crate) fn in_statuses(mut self, statuses: &[RunStatus]) -> Self {
        self.statuses = Some(statuses.to_vec());
        self
    }

    /// The filter for what comes after a run.
    pub(crate) fn after(mut self, run_key: Option<RunKey>) -> Self {
        self.query.after = run_key;
        self
    }

    fn takes(&self, run: &Run) -> bool {
        let labelled = |(key, value): &(String, String)| run.labels.get(key) == Some(value);
        !is_internal(run.workflow.as_str())
            && self.labels.iter().all(labelled)
            && self.statuses.as_ref().is_none_or(|statuses| statuses.contains(&run.status))
    }
}

/// A page of runs, and where the next one begins.
pub(crate) struct Page {
    pub(crate) runs: Vec<Run>,
    pub(crate) next: Option<RunKey>,
}

impl Page {
    pub(crate) fn cursor(&self) -> Option<String> {
        self.next.map(|key| cursor::encode("runs", &key.to_string()))
    }
}

/// One page of runs. Only a run's newest generation is listed.
pub(crate) async fn list(engine: &Engine, filter: &Filter) -> Result<Page, ApiError> {
    let mut query = filter.query.clone();
    let wanted = query.limit as usize - 1;
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..STORE_PAGES_MAX {
        let rows = engine.store().list(Query::Runs(query.clone())).await?.runs()?;
        let is_last = rows.len() < query.limit as usize;
        query.after = rows.last().map(|run| run.run_key);
        let taken = rows.into_iter().filter(|run| filter.takes(run));
        let newest = try_join_all(taken.map(|run| async move {
            let newest = engine.is_newest(&run).await?;
            Ok::<_, windlass::Error>(newest.then_some(run))
        }));
        runs.extend(newest.await?.into_iter().flatten());
        if runs.len() > wanted {
            runs.truncate(wanted);
            let next = runs.last().map(|run| run.run_key);
            return Ok(Page { runs, next });
        }
        if is_last {
            return Ok(Page { runs, next: None });
        }
    }
    Ok(Page { runs, next: query.after })
}
