//! The revision of a record that a person approved last, so that the next request can show what has changed since.

use windlass_kernel::request::{About, DECISIONS, Decision, RecordRef, RequestState, Verdict};
use windlass_kernel::{
    Collection, Error, ErrorCode, Query, RecordId, Sha256Digest, Terms, Timestamp, bodies,
};

use super::Requests;

/// The term of an approval: the person and the record.
const APPROVED: &str = "approved";
/// The most approvals of one record by one person that are looked at.
const APPROVALS_MAX: usize = 1_000;

/// An approval of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approved {
    /// The request.
    pub request: String,
    /// The revision of the record.
    pub revision: u64,
    /// When.
    pub at: Timestamp,
}

impl Requests {
    /// The approval of a record by a person that is about the highest revision below that of `record`. Approvals of
    /// withdrawn and stale requests count too: the person has seen that revision. Requests that retention has
    /// deleted do not.
    ///
    /// # Errors
    ///
    /// The store does not answer.
    pub async fn last_approved(
        &self,
        by: &str,
        record: &RecordRef,
    ) -> Result<Option<Approved>, Error> {
        let (mut newest, mut after): (Option<Approved>, Option<RecordId>) = (None, None);
        let (limit, mut seen) = (self.core.options.limits.page_rows_max, 0);
        loop {
            let query = Query::Records {
                namespace: self.namespace.clone(),
                collection: Collection::from_stored(DECISIONS),
                term: Some((APPROVED.into(), term(by, record).into())),
                after,
                limit,
            };
            let page = self.core.store.list(query).await?.records()?;
            seen += page.len();
            let is_last = page.len() < limit as usize || seen >= APPROVALS_MAX;
            after = page.last().map(|record| record.key.id.clone());
            for row in page {
                // One at a time: an answer may be large.
                let filled = bodies::fill_records(&*self.core.store, vec![row]).await?;
                let body = filled.into_iter().next().and_then(|record| record.body);
                let Some(body) = body else { continue };
                let decision: Decision = body.read()?;
                let Some(revision) = self.revision_of(&decision.request, record).await? else {
                    continue;
                };
                let is_newer = newest.as_ref().is_none_or(|known| known.revision < revision);
                if revision < record.revision && is_newer {
                    let Decision { request, at, .. } = decision;
                    newest = Some(Approved { request, revision, at });
                }
            }
            if is_last {
                return Ok(newest);
            }
        }
    }

    async fn revision_of(&self, request: &str, record: &RecordRef) -> Result<Option<u64>, Error> {
        match self.get(request).await {
            Ok(state) => Ok(about(&state)
                .filter(|about| about.collection == record.collection && about.id == record.id)
                .map(|about| about.revision)),
            Err(error) if error.code() == ErrorCode::RequestNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn about(state: &RequestState) -> Option<&RecordRef> {
    match &state.about {
        Some(About::Record(record)) => Some(record),
        _ => None,
    }
}

// A digest, because terms are shorter than ids of records.
fn term(by: &str, record: &RecordRef) -> String {
    let parts = [by, record.collection.as_str(), record.id.as_str()].map(str::as_bytes);
    Sha256Digest::of_parts(&parts).to_string()
}

/// Adds the term by which [`Requests::last_approved`] finds a decision.
pub(super) fn add_term(
    terms: &mut Terms,
    state: &RequestState,
    decision: &Decision,
) -> Result<(), Error> {
    match about(state) {
        Some(record) if decision.verdict == Verdict::Approve => {
            terms.add(APPROVED, term(&decision.by, record))
        }
        _ => Ok(()),
    }
}
