//! Pages of runs, with filters and cursors. Lists only the newest generation of each run.

use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    Body, Namespace, Order, Query, Run, RunKey, RunStatus, RunsQuery, Store, WorkflowName,
};
use windlass::{ErrorCode, Timestamp};

use crate::app::is_internal;
use crate::auth::{Scope, Target};
use crate::cursor;
use crate::error::ApiError;
use crate::extract::Call;
use crate::view::{ErrorView, parse_time};

/// The default number of rows of a page.
const PAGE_ROWS: u32 = 25;
/// The maximum number of rows of a page. Each row may have an input and an output of 1 MiB.
const PAGE_ROWS_MAX: u32 = 100;
/// The maximum number of store pages that are read for one page of a response. The next page
/// continues after them.
const STORE_PAGES_MAX: usize = 20;

/// The approximate maximum size of the bodies on a page. A page has at least one row; the rest is
/// on the next page.
pub(crate) const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Truncates rows whose bodies exceed the size of a page. Returns whether it did.
pub(crate) fn cut_to_bytes<T>(rows: &mut Vec<T>, bytes_of: impl Fn(&T) -> usize) -> bool {
    let mut bytes = 0_usize;
    let fits = rows.iter().take_while(|row| {
        bytes = bytes.saturating_add(bytes_of(row));
        bytes <= PAGE_BYTES_MAX
    });
    let keep = fits.count().max(1);
    let cut = keep < rows.len();
    rows.truncate(keep);
    cut
}

/// The total size of bodies.
pub(crate) fn bytes_of<const N: usize>(bodies: [Option<&Body>; N]) -> usize {
    bodies.into_iter().flatten().map(Body::len).sum()
}

/// Validates `pageSize`.
pub(crate) fn page_size(asked: Option<u32>) -> Result<u32, ApiError> {
    sized("pageSize", asked)
}

/// Like [`page_size`], for a parameter with another name.
pub(crate) fn sized(name: &str, asked: Option<u32>) -> Result<u32, ApiError> {
    match asked {
        None => Ok(PAGE_ROWS),
        Some(size) if (1..=PAGE_ROWS_MAX).contains(&size) => Ok(size),
        Some(size) => {
            let message = format!("{name} is {size}; it must be between 1 and {PAGE_ROWS_MAX}");
            Err(ApiError::invalid(ErrorCode::InvalidPageSize, message))
        }
    }
}

/// The order of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// Oldest first.
    Asc,
    /// Newest first.
    Desc,
}

/// Parses a status.
pub(crate) fn parse_status(text: &str) -> Result<RunStatus, ApiError> {
    RunStatus::parse(text).map_err(|_| {
        let words: Vec<&str> = RunStatus::ALL.iter().map(|status| status.as_str()).collect();
        let message = format!("{text:?} is not a status; use one of {}", words.join(", "));
        ApiError::invalid(ErrorCode::InvalidStatus, message)
    })
}

/// The error for a text that is not a time.
pub(crate) fn invalid_time(name: &str, text: &str) -> ApiError {
    let pieces = jiff::fmt::temporal::Pieces::parse(text);
    let is_time = pieces.is_ok_and(|it| it.time().is_some() && it.offset().is_some());
    let message = match is_time {
        true => format!("{name} {text:?} is out of range; use a time before the year 10000"),
        false => {
            format!(
                "{name} {text:?} is not an RFC 3339 time; use a time such as 2026-03-01T12:00:00Z"
            )
        }
    };
    ApiError::invalid(ErrorCode::InvalidTime, message)
}

/// Parses `key:value`. The key ends at the first colon.
fn parse_label(text: &str) -> Result<(String, String), ApiError> {
    let label = text.split_once(':').filter(|(key, _)| !key.is_empty());
    let label = label.map(|(key, value)| (key.to_owned(), value.to_owned()));
    label.ok_or_else(|| {
        ApiError::invalid(
            ErrorCode::InvalidLabel,
            format!("{text:?} is not a label; use `label=key:value`"),
        )
    })
}

/// Rejects NUL: labels never contain it, and PostgreSQL cannot query it.
fn check_label((key, value): &(String, String)) -> Result<(), ApiError> {
    if key.contains('\0') || value.contains('\0') {
        let message = format!("the label {key:?} contains NUL, which is not allowed");
        return Err(ApiError::invalid(ErrorCode::InvalidLabel, message));
    }
    Ok(())
}

/// Filters of a listing of runs.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct RunsParams {
    /// Only runs with this status.
    pub status: Option<String>,
    /// Only runs with this label, as `key:value`. Can be repeated.
    #[serde(default)]
    pub label: Vec<String>,
    /// Only runs created at this time or later (RFC 3339).
    pub created_from: Option<String>,
    /// Only runs created before this time (RFC 3339).
    pub created_before: Option<String>,
    /// Newest first (`desc`, the default) or oldest first (`asc`).
    #[param(inline)]
    pub order: Option<Direction>,
    /// The number of rows: 1 to 100. Default 25.
    pub page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    pub cursor: Option<String>,
}

/// A parsed filter.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    query: RunsQuery,
    labels: Vec<(String, String)>,
    statuses: Option<Vec<RunStatus>>,
    refine: Refine,
}

/// Filters without an index: a page reads at most [`STORE_PAGES_MAX`] pages of the store to find its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refine {
    /// Ids that begin with this.
    pub(crate) id_prefix: Option<String>,
    /// Runs of this model.
    pub(crate) model: Option<String>,
    /// Children of this run.
    pub(crate) parent: Option<RunKey>,
    /// Runs of this tree.
    pub(crate) root: Option<RunKey>,
    /// Only runs without a parent.
    pub(crate) roots_only: bool,
    /// Failed runs whose error has this name.
    pub(crate) error_name: Option<String>,
}

impl Refine {
    fn matches(&self, run: &Run) -> bool {
        let prefix = self.id_prefix.as_deref().is_none_or(|id| run.id.as_str().starts_with(id));
        let model = self.model.as_deref().is_none_or(|name| run.model.as_str() == name);
        let parent = self.parent.is_none_or(|parent| run.parent == Some(parent));
        let root = self.root.is_none_or(|root| run.root == root);
        let is_root = !self.roots_only || run.parent.is_none();
        let named = |name: &str| run.error.as_ref().is_some_and(|e| ErrorView::of(e).name == name);
        let error = self.error_name.as_deref().is_none_or(named);
        prefix && model && parent && root && is_root && error
    }
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
        let refine = Refine::default();
        let filter = Self { query, labels: Vec::new(), statuses: None, refine };
        filter.with_labels(labels?)?.at_cursor(params.cursor.as_deref())
    }

    /// Starts at a cursor of this listing.
    pub(crate) fn at_cursor(mut self, cursor: Option<&str>) -> Result<Self, ApiError> {
        if cursor.is_some() {
            let read = |key: &str| key.parse::<RunKey>().ok();
            self.query.after = cursor::decode_as(&self.listing(), cursor, read)?;
        }
        Ok(self)
    }

    /// Also requires what no index finds.
    pub(crate) fn refined(mut self, refine: Refine) -> Self {
        self.refine = refine;
        self
    }

    /// The name of the listing in its cursors: the filter and the order, but not the page size.
    fn listing(&self) -> String {
        let mut labels = self.labels.clone();
        labels.sort();
        let asked = RunsQuery { after: None, limit: 0, label: None, ..self.query.clone() };
        if self.statuses.is_none() && self.refine == Refine::default() {
            return format!("runs-{}", cursor::digest_of(&(asked, labels)));
        }
        let (statuses, refine) = (&self.statuses, &self.refine);
        format!("runs-{}", cursor::digest_of(&(asked, labels, statuses, refine)))
    }

    /// Also requires these labels.
    pub(crate) fn with_labels(
        mut self,
        labels: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ApiError> {
        self.labels.extend(labels);
        self.labels.iter().try_for_each(check_label)?;
        self.query.label = self.labels.first().cloned();
        Ok(self)
    }

    /// Also requires creation before a time.
    pub(crate) fn created_before(mut self, time: Timestamp) -> Self {
        let before = self.query.created_before;
        self.query.created_before = Some(before.map_or(time, |before| before.min(time)));
        self
    }

    /// Also requires one of these statuses.
    pub(crate) fn with_statuses(mut self, statuses: &[RunStatus]) -> Self {
        self.statuses = Some(statuses.to_vec());
        self
    }

    /// Starts after a run.
    pub(crate) fn after(mut self, run_key: Option<RunKey>) -> Self {
        self.query.after = run_key;
        self
    }

    fn matches(&self, run: &Run) -> bool {
        let labelled = |(key, value): &(String, String)| run.labels.get(key) == Some(value);
        !is_internal(run.workflow.as_str())
            && self.labels.iter().all(labelled)
            && self.refine.matches(run)
    }

    /// The statuses to list separately: a store lists runs by status.
    fn listings(&self) -> Vec<Option<RunStatus>> {
        match (&self.statuses, self.query.status) {
            (None, status) => vec![status],
            (Some(statuses), None) => statuses.iter().copied().map(Some).collect(),
            (Some(statuses), Some(asked)) => {
                statuses.iter().copied().filter(|status| *status == asked).map(Some).collect()
            }
        }
    }
}

/// A page of runs, and the position of the next page.
pub(crate) struct Page {
    pub(crate) runs: Vec<Run>,
    pub(crate) next: Option<RunKey>,
}

impl Page {
    /// The cursor of the next page with the same filter.
    pub(crate) fn cursor(&self, filter: &Filter) -> Option<String> {
        self.next.map(|key| cursor::encode(&filter.listing(), &key.to_string()))
    }
}

/// Lists one page of runs that the caller may read. Lists only the newest generation of each run.
pub(crate) async fn list(call: &Call, filter: &Filter) -> Result<Page, ApiError> {
    let engine = &call.engine;
    let statuses = filter.listings();
    let mut query = filter.query.clone();
    let wanted = query.limit as usize - 1;
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..STORE_PAGES_MAX {
        let (rows, is_last) = merged(&**engine.store(), &query, &statuses).await?;
        query.after = rows.last().map(|run| run.run_key).or(query.after);
        let taken = rows.into_iter().filter(|run| filter.matches(run));
        let newest = try_join_all(taken.map(|run| async move {
            let fits = engine.is_newest(&run).await? && may_read(call, &run).await?;
            Ok::<_, ApiError>(fits.then_some(run))
        }));
        runs.extend(newest.await?.into_iter().flatten());
        let full = runs.len() > wanted;
        runs.truncate(wanted);
        let cut = cut_to_bytes(&mut runs, summary_bytes);
        if full || cut {
            let next = runs.last().map(|run| run.run_key);
            return Ok(Page { runs, next });
        }
        if is_last {
            return Ok(Page { runs, next: None });
        }
    }
    Ok(Page { runs, next: query.after })
}

fn summary_bytes(run: &Run) -> usize {
    bytes_of([run.output.as_ref(), run.error.as_ref()])
}

/// Whether the hook of the embedding program allows reading a run of a listing.
pub(crate) async fn may_read(call: &Call, run: &Run) -> Result<bool, ApiError> {
    let target = Target {
        workflow: Some(run.workflow.as_str()),
        id: Some(run.id.as_str()),
        action: Some("list"),
        ..Target::default()
    };
    match call.app.guard.ask(&call.caller, Scope::Read, &target).await {
        Ok(()) => Ok(true),
        Err(error) if error.status().is_client_error() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The next rows of a query over several statuses, in order, and whether they are the last. Lists
/// each status separately, because an index covers that. Ignores `query.status`.
pub(crate) async fn merged(
    store: &dyn Store,
    query: &RunsQuery,
    statuses: &[Option<RunStatus>],
) -> Result<(Vec<Run>, bool), ApiError> {
    let mut rows: Vec<Run> = Vec::new();
    let mut ends: Vec<RunKey> = Vec::new();
    // Runs change status between the queries. A run that returns to the first status after that was
    // listed would be missed, so the first status is listed again. Duplicates are removed below.
    let again = statuses.first().filter(|_| statuses.len() > 1);
    for status in statuses.iter().chain(again) {
        let query = RunsQuery { status: *status, ..query.clone() };
        let limit = query.limit as usize;
        let part = store.list(Query::Runs(query)).await?.runs()?;
        if part.len() >= limit {
            // Rows of this status may follow the last row of a full page, so later rows must wait.
            ends.extend(part.last().map(|run| run.run_key));
        }
        rows.extend(part);
    }
    match query.order {
        Order::Ascending => {
            let end = ends.iter().min();
            rows.retain(|run| end.is_none_or(|end| run.run_key <= *end));
            rows.sort_unstable_by_key(|run| run.run_key);
        }
        Order::Descending => {
            let end = ends.iter().max();
            rows.retain(|run| end.is_none_or(|end| run.run_key >= *end));
            rows.sort_unstable_by_key(|run| std::cmp::Reverse(run.run_key));
        }
    }
    rows.dedup_by_key(|run| run.run_key);
    Ok((rows, ends.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_limited_by_bytes() {
        let rows = |sizes: &[usize]| {
            let mut rows = sizes.to_vec();
            let cut = cut_to_bytes(&mut rows, |size| *size);
            (rows.len(), cut)
        };
        assert_eq!(rows(&[]), (0, false));
        assert_eq!(rows(&[1, 2, 3]), (3, false));
        assert_eq!(rows(&[PAGE_BYTES_MAX, 0, 1]), (2, true));
        assert_eq!(rows(&[PAGE_BYTES_MAX + 1, 1]), (1, true), "at least one row");
        assert_eq!(rows(&[PAGE_BYTES_MAX + 1]), (1, false));
    }
}
