//! The inbox: pages of requests by person, role, status and due day.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use windlass_kernel::request::{REQUESTS, RequestState, RequestStatus};
use windlass_kernel::{
    Body, Collection, Error, ErrorCode, ErrorKind, Query, Record, RecordId, Subject, bodies,
};

use super::Requests;

/// The most requests that a listing by due time sorts.
const SORTED_MAX: usize = 2_000;
/// The most bytes of the requests of one page, unless one request has more.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Which requests a page has.
#[derive(Clone, Debug)]
pub enum InboxQuery {
    /// The open requests that ask a person: by name, by a role or by delegation.
    Of(Subject),
    /// The open requests that ask a role.
    Role(String),
    /// The open requests that ask a person by name or by delegation.
    Person(String),
    /// All requests with a status.
    Status(RequestStatus),
    /// The open requests that are due on a day (`2026-11-18`, UTC).
    DueOn(String),
}

/// The order of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InboxOrder {
    /// The oldest first.
    #[default]
    Opened,
    /// Those that are due next first; those without a due time last.
    Due,
}

/// A page of requests.
#[derive(Clone, Debug)]
pub struct InboxPage {
    /// The requests.
    pub requests: Vec<RequestState>,
    /// The id after which the next page begins; none if this is the last one.
    pub next: Option<String>,
}

impl Requests {
    /// A page of requests. It has fewer than `limit` if they are large.
    ///
    /// # Errors
    ///
    /// [`ErrorCode::InvalidQuery`] if too many requests would have to be sorted by due time;
    /// [`ErrorCode::InvalidCursor`] if there is no request with the id `after`.
    pub async fn inbox(
        &self,
        query: &InboxQuery,
        order: InboxOrder,
        after: Option<&str>,
        limit: u32,
    ) -> Result<InboxPage, Error> {
        let terms = terms(query);
        // A page reads one row more than it has.
        let limit = limit.min(self.core.options.limits.page_rows_max.saturating_sub(1)).max(1);
        let after = after.map(RecordId::new).transpose()?;
        match order {
            InboxOrder::Opened => self.by_age(&terms, after, limit).await,
            InboxOrder::Due => self.by_due(&terms, after, limit).await,
        }
    }

    async fn by_age(
        &self,
        terms: &[Term],
        after: Option<RecordId>,
        limit: u32,
    ) -> Result<InboxPage, Error> {
        let mut found: BTreeMap<RecordId, Record> = BTreeMap::new();
        // One more, to know whether there are others.
        for term in terms {
            let rows = self.rows(term, after.clone(), limit + 1).await?;
            found.extend(rows.into_iter().map(|row| (row.key.id.clone(), row)));
        }
        let mut rows: Vec<Record> = found.into_values().collect();
        let size = size_of_page(rows.iter().map(len), limit);
        let more = rows.len() > size;
        rows.truncate(size);
        // A request that has closed meanwhile may be left out, so the page continues after a row.
        let next = rows.last().filter(|_| more).map(|row| row.key.id.as_str().to_owned());
        let requests = self.read(rows).await?;
        Ok(InboxPage { requests, next })
    }

    async fn by_due(
        &self,
        terms: &[Term],
        after: Option<RecordId>,
        limit: u32,
    ) -> Result<InboxPage, Error> {
        let from = match after {
            Some(after) => Some(due_key(&self.get(after.as_str()).await.map_err(|error| {
                let message = "the cursor names no request; begin with the first page";
                Error::new(ErrorKind::Invalid, ErrorCode::InvalidCursor, message).with_source(error)
            })?)),
            None => None,
        };
        let mut first = Earliest::new(limit);
        let mut seen: BTreeSet<RecordId> = BTreeSet::new();
        let page_max = self.core.options.limits.page_rows_max;
        for term in terms {
            let mut last = None;
            loop {
                let rows = self.rows(term, last, page_max).await?;
                last = rows.last().map(|row| row.key.id.clone());
                let is_last = rows.len() < page_max as usize;
                let mut rows: VecDeque<Record> =
                    rows.into_iter().filter(|row| seen.insert(row.key.id.clone())).collect();
                if seen.len() > SORTED_MAX {
                    let message = format!(
                        "more than {SORTED_MAX} requests match; list them by age, or those of one due day"
                    );
                    return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidQuery, message));
                }
                while !rows.is_empty() {
                    let size = size_of_page(rows.iter().map(len), page_max);
                    for state in self.read(rows.drain(..size).collect()).await? {
                        if from.as_ref().is_none_or(|from| due_key(&state) > *from) {
                            first.add(state)?;
                        }
                    }
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(first.into_page())
    }

    // Large bodies are references.
    async fn rows(
        &self,
        term: &Term,
        after: Option<RecordId>,
        limit: u32,
    ) -> Result<Vec<Record>, Error> {
        let query = Query::Records {
            namespace: self.namespace.clone(),
            collection: Collection::from_stored(REQUESTS),
            term: Some((term.0.into(), term.1.as_str().into())),
            after,
            limit: limit.min(self.core.options.limits.page_rows_max),
        };
        self.core.store.list(query).await?.records()
    }

    async fn read(&self, rows: Vec<Record>) -> Result<Vec<RequestState>, Error> {
        let records = bodies::fill_records(&*self.core.store, rows).await?;
        records.into_iter().filter_map(|record| record.body).map(|body| body.read()).collect()
    }
}

fn len(row: &Record) -> usize {
    row.body.as_ref().map_or(0, Body::len)
}

// How many of the rows belong to one page: at most `limit`, fewer if they are large, at least one.
fn size_of_page(bytes: impl Iterator<Item = usize>, limit: u32) -> usize {
    let mut sum = 0;
    let fits = |(index, bytes): &(usize, usize)| {
        sum += bytes;
        *index == 0 || sum <= PAGE_BYTES_MAX
    };
    bytes.take(limit as usize).enumerate().take_while(fits).count()
}

/// The requests of a page by due time. Those that come later are not kept while others are read.
struct Earliest {
    limit: u32,
    found: BTreeMap<DueKey, (usize, RequestState)>,
    bytes: usize,
    /// The page ends before this one.
    end: Option<DueKey>,
}

impl Earliest {
    fn new(limit: u32) -> Self {
        Self { limit, found: BTreeMap::new(), bytes: 0, end: None }
    }

    fn add(&mut self, state: RequestState) -> Result<(), Error> {
        let key = due_key(&state);
        if self.end.as_ref().is_some_and(|end| key >= *end) {
            return Ok(());
        }
        let bytes = Body::of(&state)?.len();
        self.bytes += bytes;
        self.found.insert(key, (bytes, state));
        while self.found.len() > self.limit as usize
            || (self.bytes > PAGE_BYTES_MAX && self.found.len() > 1)
        {
            let Some((key, (bytes, _))) = self.found.pop_last() else { break };
            self.bytes -= bytes;
            self.end = Some(key);
        }
        Ok(())
    }

    fn into_page(self) -> InboxPage {
        let requests: Vec<RequestState> =
            self.found.into_values().map(|(_, state)| state).collect();
        let next = requests.last().filter(|_| self.end.is_some()).map(|state| state.id.clone());
        InboxPage { requests, next }
    }
}

type Term = (&'static str, String);
type DueKey = (bool, Option<i64>, String);

fn terms(query: &InboxQuery) -> Vec<Term> {
    match query {
        InboxQuery::Of(subject) => {
            let roles = subject.roles().iter().map(|role| ("role", role.clone()));
            std::iter::once(("assignee", subject.id().to_owned())).chain(roles).collect()
        }
        InboxQuery::Role(role) => vec![("role", role.clone())],
        InboxQuery::Person(id) => vec![("assignee", id.clone())],
        InboxQuery::Status(status) => vec![("status", status.as_str().to_owned())],
        InboxQuery::DueOn(day) => vec![("due", day.clone())],
    }
}

// Requests without a due time come last.
fn due_key(state: &RequestState) -> DueKey {
    let due = state.due_at.map(|due| due.as_micros());
    (due.is_none(), due, state.id.clone())
}
