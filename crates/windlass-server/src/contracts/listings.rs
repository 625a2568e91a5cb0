//! Lists of versions and chains, and the notifications of the caller.

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use serde_json::json;
use windlass::ErrorCode;
use windlass::contracts::Contracts;

use super::{Answer, PAGE_DEFAULT, PAGE_MAX, Page, Who, of, ok, subject};
use crate::error::ApiError;
use crate::extract::CallerEngine;

/// A page of numbered versions.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Versions {
    before: Option<u32>,
    limit: Option<u32>,
}

impl Versions {
    fn of(uri: &Uri) -> Result<Self, ApiError> {
        let invalid = |message: String| ApiError::invalid(ErrorCode::InvalidQuery, message);
        let found: Self = serde_html_form::from_str(uri.query().unwrap_or_default())
            .map_err(|error| invalid(error.to_string()))?;
        match found.limit {
            Some(limit) if !(1..=PAGE_MAX).contains(&limit) => {
                Err(invalid(format!("`limit` is {limit}; use 1 to {PAGE_MAX}")))
            }
            _ => Ok(found),
        }
    }

    fn limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE_DEFAULT)
    }
}

pub(super) async fn type_versions(
    State(contracts): State<Contracts>,
    Path(name): Path<String>,
    uri: Uri,
) -> Answer {
    let page = Versions::of(&uri)?;
    let found = contracts.contract_versions(&name, page.before, page.limit()).await?;
    ok(&json!({"versions": found}))
}

pub(super) async fn type_version(
    State(contracts): State<Contracts>,
    Path((name, version)): Path<(String, u32)>,
) -> Answer {
    ok(&contracts.contract(&name, Some(version)).await?)
}

pub(super) async fn archive_type(
    State(contracts): State<Contracts>,
    Path(name): Path<String>,
) -> Answer {
    ok(&contracts.archive_type(&name).await?)
}

pub(super) async fn definition_versions(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    Path(name): Path<String>,
    uri: Uri,
) -> Answer {
    let page = Versions::of(&uri)?;
    let contracts = of(&contracts, &engine);
    let found = contracts.definition_versions(&name, page.before, page.limit()).await?;
    ok(&json!({"versions": found}))
}

pub(super) async fn chains(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    uri: Uri,
) -> Answer {
    let page = Page::of(uri.query())?;
    let found = of(&contracts, &engine).chains(page.after.as_deref(), page.limit()).await?;
    ok(&json!({"chains": found}))
}

pub(super) async fn notifications(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    uri: Uri,
) -> Answer {
    let page = Page::of(uri.query())?;
    let contracts = of(&contracts, &engine);
    let (person, after) = (subject(&who)?, page.after.as_deref());
    let found = contracts.notifications(person, after, page.limit()).await?;
    ok(&json!({"notifications": found}))
}

pub(super) async fn dismiss(
    State(contracts): State<Contracts>,
    engine: CallerEngine,
    who: Who,
    Path(id): Path<String>,
) -> Answer {
    of(&contracts, &engine).dismiss_notification(&id, subject(&who)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
