//! Ledgers that stay after retention has deleted their runs.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::kept::{KeptLedger, LEDGERS, ROOT_TERM};
use windlass::kernel::{Collection, ErrorCode, Query, RecordId, RunKey};

use crate::auth::{Scope, Target};
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Params, bad_path};
use crate::json::Json;
use crate::paging::page_size;
use crate::view::{LedgerEvent, Time};

/// The filter and the page of a listing.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Only the ledgers of the tree with this root.
    root: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// The page of a listing.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A run that was deleted and whose ledger is kept.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeptLedgerView {
    /// The key of the run.
    pub run_key: String,
    /// The workflow.
    pub workflow_name: String,
    /// The id of the run.
    pub id: String,
    /// The generation.
    pub run_number: u32,
    /// The root of its tree.
    pub root: String,
    /// Its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// How it ended.
    pub status: String,
    /// The number of events.
    pub events: u64,
    /// The hash of the last event.
    pub hash: String,
    /// When it was created.
    pub created_at: Time,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
}

impl From<&KeptLedger> for KeptLedgerView {
    fn from(kept: &KeptLedger) -> Self {
        Self {
            run_key: kept.run_key.to_string(),
            workflow_name: kept.workflow.clone(),
            id: kept.id.clone(),
            run_number: kept.generation,
            root: kept.root.to_string(),
            parent: kept.parent.map(|parent| parent.to_string()),
            status: kept.status.clone(),
            events: kept.events,
            hash: kept.hash.to_string(),
            created_at: Time(kept.created_at),
            ended_at: kept.ended_at.map(Time),
        }
    }
}

/// A page of kept ledgers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeptLedgerList {
    /// The ledgers, by run key.
    pub ledgers: Vec<KeptLedgerView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// A kept ledger and a page of its events.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeptLedgerPage {
    /// The run.
    pub ledger: KeptLedgerView,
    /// The events, by ordinal.
    pub events: Vec<LedgerEvent>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

// Whether the run is deleted, and the hook of the embedding program shows it to the caller.
async fn is_shown(call: &Call, kept: &KeptLedger) -> Result<bool, ApiError> {
    if call.engine.store().run_overview_by_key(kept.run_key).await?.is_some() {
        return Ok(false);
    }
    let target = Target {
        workflow: Some(&kept.workflow),
        id: Some(&kept.id),
        action: Some("ledger"),
        ..Target::default()
    };
    match call.app.guard.ask(&call.caller, Scope::Read, &target).await {
        Ok(()) => Ok(true),
        Err(error) if error.status().is_client_error() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lists ledgers that were kept when retention deleted their runs.
#[utoipa::path(get, path = "/ledgers", tag = "instances", operation_id = "listKeptLedgers",
    params(ListParams),
    responses((status = 200, body = KeptLedgerList), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    Params(params): Params<ListParams>,
) -> ApiResult<KeptLedgerList> {
    let size = page_size(params.page_size)? as usize;
    let root: Option<RunKey> =
        params.root.as_deref().map(str::parse).transpose().map_err(|_| {
            ApiError::invalid(ErrorCode::InvalidQuery, "`root` is not the key of a run")
        })?;
    let listing = format!("kept-{}", cursor::digest_of(&params.root));
    let cursor = params.cursor.as_deref();
    let mut after = decode_as(&listing, cursor, |id| RecordId::new(id).ok())?;
    let (mut ledgers, mut last): (Vec<KeptLedgerView>, Option<String>) = (Vec::new(), None);
    let next = loop {
        let query = Query::Records {
            namespace: call.engine.namespace().clone(),
            collection: Collection::new(LEDGERS)?,
            term: root.map(|root| (ROOT_TERM.into(), root.to_string().into())),
            after: after.clone(),
            limit: size as u32 + 1,
        };
        let page = call.engine.store().list(query).await?.records()?;
        let is_last = page.len() <= size;
        let mut more = None;
        for record in page {
            after = Some(record.key.id);
            let Some(body) = record.body else { continue };
            let kept: KeptLedger = body.read()?;
            if !is_shown(&call, &kept).await? {
                continue;
            }
            if ledgers.len() == size {
                more = last.take();
                break;
            }
            last = Some(kept.run_key.to_string());
            ledgers.push(KeptLedgerView::from(&kept));
        }
        if more.is_some() || is_last {
            break more;
        }
    };
    let next = next.map(|id| cursor::encode(&listing, &id));
    let has_next_page = next.is_some();
    Ok(Json(KeptLedgerList { ledgers, has_next_page, next_cursor: next.clone(), cursor: next }))
}

/// Reads a ledger that was kept when retention deleted its run. `windlass verify` recomputes its hashes.
#[utoipa::path(get, path = "/ledgers/{runKey}", tag = "instances", operation_id = "getKeptLedger",
    params(("runKey" = String, Path, description = "The key of the run"), PageParams),
    responses((status = 200, body = KeptLedgerPage), (status = "default", body = Failure)))]
pub(crate) async fn get(
    call: Call,
    path: Result<Path<String>, PathRejection>,
    Params(params): Params<PageParams>,
) -> ApiResult<KeptLedgerPage> {
    let Path(text) = path.map_err(|error| bad_path(&error))?;
    let size = page_size(params.page_size)?;
    let not_found = || {
        let shown: String = text.chars().take(40).collect();
        let message = format!("no ledger of a deleted run {shown:?} is kept");
        ApiError::not_found(ErrorCode::RunNotFound, message)
    };
    let run_key: RunKey = text.parse().map_err(|_| not_found())?;
    let listing = format!("kept-{run_key}");
    let from = decode_as(&listing, params.cursor.as_deref(), |at| at.parse().ok())?.unwrap_or(0);
    let key = KeptLedger::key(call.engine.namespace(), run_key);
    let record = call.engine.store().records(vec![key]).await?.pop().flatten();
    let body = record.and_then(|record| record.body).ok_or_else(not_found)?;
    let kept: KeptLedger = body.read()?;
    if !is_shown(&call, &kept).await? {
        return Err(not_found());
    }
    let query = Query::Events { run_key, from, limit: size + 1 };
    let mut events = call.engine.store().list(query).await?.events()?;
    let more = events.len() > size as usize;
    events.truncate(size as usize);
    let last = events.last().filter(|_| more);
    let next = last.map(|last| cursor::encode(&listing, &(last.ordinal + 1).to_string()));
    Ok(Json(KeptLedgerPage {
        ledger: KeptLedgerView::from(&kept),
        events: events.iter().map(LedgerEvent::of).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}
