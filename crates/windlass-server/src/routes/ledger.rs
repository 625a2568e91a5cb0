//! The ledger of a run or of its tree, and the generations of a run.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::Timestamp;
use windlass::kernel::{Event, EventId, Query};

use super::history::generation_of;
use super::instances::find;
use crate::cursor::{self, Position, decode_as, decode_position};
use crate::error::{ApiResult, Failure};
use crate::extract::{AtRun, Call, Params};
use crate::json::Json;
use crate::paging::page_size;
use crate::view::{LedgerEvent, RunSummary};

/// The scope of a ledger listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LedgerScope {
    /// The events of the run, by ordinal.
    #[default]
    Run,
    /// The events of all runs in the tree, by time.
    Root,
}

/// The scope and the page of a ledger listing.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct LedgerParams {
    /// `run` (the default) or `root` for the whole tree of parents and children.
    #[param(inline)]
    scope: Option<LedgerScope>,
    /// The generation. Default: the newest.
    run_number: Option<u32>,
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A page of a ledger.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerPage {
    /// The events.
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

/// Lists the ledger events of a run, or of its whole tree.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/ledger",
    tag = "instances", operation_id = "getLedger",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), LedgerParams),
    responses((status = 200, body = LedgerPage), (status = "default", body = Failure)))]
pub(crate) async fn ledger(
    call: Call,
    at: AtRun,
    Params(params): Params<LedgerParams>,
) -> ApiResult<LedgerPage> {
    let size = page_size(params.page_size)?;
    let cursor = params.cursor.as_deref();
    let limit = size + 1;
    let scope = params.scope.unwrap_or_default();
    let (run, query) = match scope {
        LedgerScope::Run => {
            let from: Option<Position<u64>> =
                decode_position("ledger", cursor, |at| at.parse().ok())?;
            let keys = [from.as_ref().map(|from| from.run_key)];
            let run = generation_of(&call, &at, params.run_number, keys).await?;
            let from = from.map_or(0, |from| from.at);
            let query = Query::Events { run_key: run.run_key, from, limit };
            (run, query)
        }
        LedgerScope::Root => {
            let after = decode_position("root", cursor, parse_position)?;
            let keys = [after.as_ref().map(|after| after.run_key)];
            let run = generation_of(&call, &at, params.run_number, keys).await?;
            let after = after.map(|after| after.at);
            let query = Query::RootEvents { root: run.root, after, limit };
            (run, query)
        }
    };
    let mut events = call.engine.store().list(query).await?.events()?;
    let more = events.len() > size as usize;
    events.truncate(size as usize);
    let next = events.last().filter(|_| more).map(|event| match scope {
        LedgerScope::Run => {
            cursor::encode_position("ledger", run.run_key, &(event.ordinal + 1).to_string())
        }
        LedgerScope::Root => cursor::encode_position("root", run.run_key, &position(event)),
    });
    Ok(Json(LedgerPage {
        events: events.iter().map(LedgerEvent::of).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}

fn position(event: &Event) -> String {
    format!("{} {}", event.created_at.as_micros(), event.event_id)
}

fn parse_position(text: &str) -> Option<(Timestamp, EventId)> {
    let (at, id) = text.split_once(' ')?;
    Some((Timestamp::from_micros(at.parse().ok()?), id.parse().ok()?))
}

/// The page of the generations.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct GenerationsParams {
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A page of a run's generations.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Generations {
    /// The generations, newest first.
    pub generations: Vec<RunSummary>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// Lists the generations of a run. Each restart, retry or continuation creates one.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/generations",
    tag = "instances", operation_id = "listGenerations",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), GenerationsParams),
    responses((status = 200, body = Generations), (status = "default", body = Failure)))]
pub(crate) async fn generations(
    call: Call,
    at: AtRun,
    Params(params): Params<GenerationsParams>,
) -> ApiResult<Generations> {
    let size = page_size(params.page_size)?;
    let listing = format!("generations-{}", cursor::digest_of(&(&at.workflow, &at.id)));
    let read = |number: &str| number.parse::<u32>().ok();
    let before = decode_as(&listing, params.cursor.as_deref(), read)?;
    find(&call, &at).await?;
    let query = Query::Generations {
        namespace: call.engine.namespace().clone(),
        workflow: at.workflow.clone(),
        id: at.id.clone(),
        before,
        limit: size + 1,
    };
    let mut runs = call.engine.store().list(query).await?.runs()?;
    let more = runs.len() > size as usize;
    runs.truncate(size as usize);
    let last = runs.last().filter(|_| more);
    let next = last.map(|run| cursor::encode(&listing, &run.generation.to_string()));
    Ok(Json(Generations {
        generations: runs.iter().map(RunSummary::of).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}
