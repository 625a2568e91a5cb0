//! Lists of documents and approvals, without the rows that the hooks of the embedding program deny.

use windlass::contracts::{Approval, Contracts, Document, Stuck};
use windlass::kernel::Subject;

use super::Page;
use crate::auth::{Scope, Target};
use crate::error::ApiError;
use crate::extract::RowHooks;

fn document<'a>(entity_type: &'a str, id: &'a str, action: &'a str) -> Target<'a> {
    let (collection, id, action) = (Some(entity_type), Some(id), Some(action));
    Target { collection, is_document: true, id, action, ..Target::default() }
}

/// Refuses a document to create whose id the hook refuses. The path does not name it.
pub(super) async fn may_create(
    rows: &RowHooks,
    entity_type: &str,
    id: &str,
) -> Result<(), ApiError> {
    rows.ask(Scope::Records, &document(entity_type, id, "create")).await
}

/// A page of documents. It reads on until the page is full, because a shorter page is the last.
pub(super) async fn documents(
    rows: &RowHooks,
    contracts: &Contracts,
    entity_type: &str,
    mut page: Page,
) -> Result<Vec<Document>, ApiError> {
    let (limit, mut shown) = (page.limit() as usize, Vec::new());
    loop {
        let (state, after) = (page.state.as_deref(), page.after.as_deref());
        let asked = limit - shown.len();
        let found = contracts.documents(entity_type, state, after, asked as u32).await?;
        let is_last = found.len() < asked;
        page.after = found.last().map(|document| document.row.id.clone());
        for one in found {
            let target = document(entity_type, &one.row.id, "list");
            if rows.may_list(Scope::Records, &target).await? {
                shown.push(one);
            }
        }
        if is_last || shown.len() >= limit {
            return Ok(shown);
        }
    }
}

/// A page of the approvals that a person is asked for.
pub(super) async fn inbox(
    rows: &RowHooks,
    contracts: &Contracts,
    person: &Subject,
    mut page: Page,
) -> Result<Vec<Approval>, ApiError> {
    let (limit, mut shown) = (page.limit() as usize, Vec::new());
    loop {
        let asked = limit - shown.len();
        let found = contracts.inbox(person, page.after.as_deref(), asked as u32).await?;
        let is_last = found.len() < asked;
        page.after = found.last().map(|approval| approval.id.clone());
        for one in found {
            let (id, action) = (Some(one.id.as_str()), Some("list"));
            let target = Target { id, action, ..Target::default() };
            if rows.may_list(Scope::Decide, &target).await? {
                shown.push(one);
            }
        }
        if is_last || shown.len() >= limit {
            return Ok(shown);
        }
    }
}

/// The stuck documents that a caller may read.
pub(super) async fn stuck(rows: &RowHooks, found: Vec<Stuck>) -> Result<Vec<Stuck>, ApiError> {
    let mut shown = Vec::new();
    for one in found {
        if rows.may_list(Scope::Read, &document(&one.entity_type, &one.id, "list")).await? {
            shown.push(one);
        }
    }
    Ok(shown)
}
