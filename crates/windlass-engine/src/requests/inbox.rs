//! The inbox: pages of requests by person, role, status and due day.

use std::collections::BTreeMap;

use windlass_kernel::request::{REQUESTS, RequestState, RequestStatus};
use windlass_kernel::{Collection, Error, ErrorCode, ErrorKind, Query, RecordId, Subject};

use super::Requests;

/// The most requests that a listing by due time sorts.
const SORTED_MAX: usize = 2_000;

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
    /// A page of requests.
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
        let mut found = BTreeMap::new();
        // One more, to know whether there are others.
        for term in terms {
            for state in self.page(term, after.clone(), limit + 1).await? {
                found.insert(state.id.clone(), state);
            }
        }
        let mut requests: Vec<RequestState> = found.into_values().collect();
        let more = requests.len() > limit as usize;
        requests.truncate(limit as usize);
        let next = more.then(|| requests.last().map(|state| state.id.clone())).flatten();
        Ok(InboxPage { requests, next })
    }

    async fn by_due(
        &self,
        terms: &[Term],
        after: Option<RecordId>,
        limit: u32,
    ) -> Result<InboxPage, Error> {
        let mut found: BTreeMap<(bool, Option<i64>, String), RequestState> = BTreeMap::new();
        let page_max = self.core.options.limits.page_rows_max;
        for term in terms {
            let mut last = None;
            loop {
                let page = self.page(term, last, page_max).await?;
                last = page.last().map(|state| RecordId::from_stored(&*state.id));
                let is_last = page.len() < page_max as usize;
                found.extend(page.into_iter().map(|state| (due_key(&state), state)));
                if found.len() > SORTED_MAX {
                    let message = format!(
                        "more than {SORTED_MAX} requests match; list them by age, or those of one due day"
                    );
                    return Err(Error::new(ErrorKind::Invalid, ErrorCode::InvalidQuery, message));
                }
                if is_last {
                    break;
                }
            }
        }
        let from = match after {
            Some(after) => Some(due_key(&self.get(after.as_str()).await.map_err(|error| {
                let message = "the cursor names no request; begin with the first page";
                Error::new(ErrorKind::Invalid, ErrorCode::InvalidCursor, message).with_source(error)
            })?)),
            None => None,
        };
        let rest = found.into_iter().filter(|(key, _)| from.as_ref().is_none_or(|from| key > from));
        let mut requests: Vec<RequestState> = rest.map(|(_, state)| state).collect();
        let more = requests.len() > limit as usize;
        requests.truncate(limit as usize);
        let next = more.then(|| requests.last().map(|state| state.id.clone())).flatten();
        Ok(InboxPage { requests, next })
    }

    async fn page(
        &self,
        term: &Term,
        after: Option<RecordId>,
        limit: u32,
    ) -> Result<Vec<RequestState>, Error> {
        let query = Query::Records {
            namespace: self.namespace.clone(),
            collection: Collection::from_stored(REQUESTS),
            term: Some((term.0.into(), term.1.as_str().into())),
            after,
            limit: limit.min(self.core.options.limits.page_rows_max),
        };
        let records = self.core.store.list(query).await?.records()?;
        records.into_iter().filter_map(|record| record.body).map(|body| body.read()).collect()
    }
}

type Term = (&'static str, String);

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
fn due_key(state: &RequestState) -> (bool, Option<i64>, String) {
    let due = state.due_at.map(|due| due.as_micros());
    (due.is_none(), due, state.id.clone())
}
