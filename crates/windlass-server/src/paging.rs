//! Pages of runs: filters, cursors, and only the newest generation of each.

use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::Timestamp;
use windlass::kernel::{
    Body, Namespace, Order, Query, Run, RunKey, RunStatus, RunsQuery, Store, WorkflowName,
};

use crate::app::is_internal;
use crate::auth::{Scope, Target};
use crate::cursor;
use crate::error::ApiError;
use crate::extract::Call;
use crate::view::parse_time;

/// Rows of a page, if nobody says how many.
const PAGE_ROWS: u32 = 25;
/// Rows of a page at most: each may carry an input and an output of a mebibyte.
const PAGE_ROWS_MAX: u32 = 100;
/// How many pages of the store are looked through for one page of an answer. What is not found by
/// then is on the next page.
const STORE_PAGES_MAX: usize = 20;

/// About how many bytes of bodies a page has at most; it has one row at least. What does not fit is on the
/// next page.
pub(crate) const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Cuts rows off where the bodies of those before fill a page; `true` if it did.
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

/// The bytes of bodies that a row may or may not have.
pub(crate) fn bytes_of<const N: usize>(bodies: [Option<&Body>; N]) -> usize {
    bodies.into_iter().flatten().map(Body::len).sum()
}

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
    let pieces = jiff::fmt::temporal::Pieces::parse(text);
    let is_time = pieces.is_ok_and(|it| it.time().is_some() && it.offset().is_some());
    let message = match is_time {
        true => format!("{name} {text:?} is out of range; use one before the end of the year 9999"),
        false => {
            format!("{name} {text:?} is no RFC 3339 time; write one such as 2026-03-01T12:00:00Z")
        }
    };
    ApiError::invalid("INVALID_TIME", message)
}

/// Reads `key:value`. The key ends at the first colon.
fn parse_label(text: &str) -> Result<(String, String), ApiError> {
    let label = text.split_once(':').filter(|(key, _)| !key.is_empty());
    let label = label.map(|(key, value)| (key.to_owned(), value.to_owned()));
    label.ok_or_else(|| {
        ApiError::invalid("INVALID_LABEL", format!("{text:?} is no label; use `label=key:value`"))
    })
}

/// No run has such a label, and not every store can be asked for one.
fn check_label((key, value): &(String, String)) -> Result<(), ApiError> {
    if key.contains('\0') || value.contains('\0') {
        let message = format!("the label {key:?} contains NUL; no label does");
        return Err(ApiError::invalid("INVALID_LABEL", message));
    }
    Ok(())
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
        let mut filter = Self { query, labels: Vec::new(), statuses: None }.labelled(labels?)?;
        if let Some(cursor) = params.cursor.as_deref() {
            let read = |key: &str| key.parse::<RunKey>().ok();
            filter.query.after = cursor::decode_as(&filter.listing(), Some(cursor), read)?;
        }
        Ok(filter)
    }

    /// Names the listing in its cursors: what is asked for, and in which order, but not how much of it.
    fn listing(&self) -> String {
        let mut labels = self.labels.clone();
        labels.sort();
        let asked = RunsQuery { after: None, limit: 0, label: None, ..self.query.clone() };
        format!("runs-{}", cursor::digest_of(&(asked, labels)))
    }

    /// The filter for runs that have all of these labels too.
    pub(crate) fn labelled(
        mut self,
        labels: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ApiError> {
        self.labels.extend(labels);
        self.labels.iter().try_for_each(check_label)?;
        self.query.label = self.labels.first().cloned();
        Ok(self)
    }

    /// The filter for runs that were created before a time, whatever it allowed before.
    pub(crate) fn created_before(mut self, time: Timestamp) -> Self {
        let before = self.query.created_before;
        self.query.created_before = Some(before.map_or(time, |before| before.min(time)));
        self
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
        !is_internal(run.workflow.as_str()) && self.labels.iter().all(labelled)
    }

    /// One listing for each of these: a store has its runs in order of status.
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

/// A page of runs, and where the next one begins.
pub(crate) struct Page {
    pub(crate) runs: Vec<Run>,
    pub(crate) next: Option<RunKey>,
}

impl Page {
    /// Where the next page of the same filter begins.
    pub(crate) fn cursor(&self, filter: &Filter) -> Option<String> {
        self.next.map(|key| cursor::encode(&filter.listing(), &key.to_string()))
    }
}

/// One page of runs that the caller may look at. Only a run's newest generation is listed.
pub(crate) async fn list(call: &Call, filter: &Filter) -> Result<Page, ApiError> {
    let engine = &call.engine;
    let statuses = filter.listings();
    let mut query = filter.query.clone();
    let wanted = query.limit as usize - 1;
    let mut runs: Vec<Run> = Vec::new();
    for _ in 0..STORE_PAGES_MAX {
        let (rows, is_last) = merged(&**engine.store(), &query, &statuses).await?;
        query.after = rows.last().map(|run| run.run_key).or(query.after);
        let taken = rows.into_iter().filter(|run| filter.takes(run));
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

/// Whether the embedding program lets the caller look at a run of a listing, whose path names none.
pub(crate) async fn may_read(call: &Call, run: &Run) -> Result<bool, ApiError> {
    let target = Target {
        workflow: Some(run.workflow.as_str()),
        id: Some(run.id.as_str()),
        action: Some("list"),
    };
    match call.app.guard.ask(&call.caller, Scope::Read, &target).await {
        Ok(()) => Ok(true),
        Err(error) if error.status().is_client_error() => Ok(false),
        Err(error) => Err(error),
    }
}

/// The next rows of a query over several statuses, in its order, and whether they are the last. Each status
/// is a listing of its own, which an index answers; `query.status` does not count.
pub(crate) async fn merged(
    store: &dyn Store,
    query: &RunsQuery,
    statuses: &[Option<RunStatus>],
) -> Result<(Vec<Run>, bool), ApiError> {
    let mut rows: Vec<Run> = Vec::new();
    let mut ends: Vec<RunKey> = Vec::new();
    // Runs go from status to status meanwhile. One that went back to the first when that was listed already
    // would be missed, so it is listed again; one that is found twice counts once.
    let again = statuses.first().filter(|_| statuses.len() > 1);
    for status in statuses.iter().chain(again) {
        let query = RunsQuery { status: *status, ..query.clone() };
        let limit = query.limit as usize;
        let part = store.list(Query::Runs(query)).await?.runs()?;
        if part.len() >= limit {
            // Beyond the last of a full part there may be some that were not listed.
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
    fn a_page_ends_where_its_bodies_fill_it() {
        let rows = |sizes: &[usize]| {
            let mut rows = sizes.to_vec();
            let cut = cut_to_bytes(&mut rows, |size| *size);
            (rows.len(), cut)
        };
        assert_eq!(rows(&[]), (0, false));
        assert_eq!(rows(&[1, 2, 3]), (3, false));
        assert_eq!(rows(&[PAGE_BYTES_MAX, 0, 1]), (2, true));
        assert_eq!(rows(&[PAGE_BYTES_MAX + 1, 1]), (1, true), "one row at least");
        assert_eq!(rows(&[PAGE_BYTES_MAX + 1]), (1, false));
    }
}
