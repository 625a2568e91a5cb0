//! What operators look up: tenants, the settings of the process, and the limits that they change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::ErrorCode;
use windlass::kernel::{LimitKey, Query};

use super::queues::LimitView;
use crate::app::is_internal;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Params, Payload};
use crate::json::Json;
use crate::paging::page_size;
use crate::view::Time;

/// The most slots of a limit that can be set over HTTP.
const SLOTS_MAX: u32 = 1_000_000;

/// A tenant with its runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct NamespaceView {
    /// The name.
    pub name: String,
    /// The number of runs in each status.
    pub counts: BTreeMap<&'static str, u64>,
}

/// All tenants that have runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct Namespaces {
    /// The tenants, by name.
    pub namespaces: Vec<NamespaceView>,
}

/// Lists the namespaces that have runs.
#[utoipa::path(get, path = "/namespaces", tag = "server", operation_id = "listNamespaces",
    responses((status = 200, body = Namespaces), (status = "default", body = Failure)))]
pub(crate) async fn namespaces(call: Call) -> ApiResult<Namespaces> {
    let mut counts: BTreeMap<String, BTreeMap<&'static str, u64>> = BTreeMap::new();
    counts.entry(call.engine.namespace().to_string()).or_default();
    for row in call.engine.store().health().await?.runs {
        if !is_internal(row.workflow.as_str()) {
            let of_namespace = counts.entry(row.namespace.to_string()).or_default();
            *of_namespace.entry(row.status.as_str()).or_default() += row.count;
        }
    }
    let namespaces = counts.into_iter().map(|(name, counts)| NamespaceView { name, counts });
    Ok(Json(Namespaces { namespaces: namespaces.collect() }))
}

/// A setting of the program that serves the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SettingView {
    /// The name.
    pub name: String,
    /// The value. The program leaves secrets out.
    pub value: String,
    /// Where the value comes from, such as a file or an environment variable.
    pub from: String,
}

/// The configuration of the process.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Config {
    /// The version of the server.
    pub version: &'static str,
    /// The namespace of the server.
    pub namespace: String,
    /// The path below which the API is.
    pub base: String,
    /// The names of the sets of routes that the program has added.
    pub route_sets: Vec<&'static str>,
    /// The settings that the program shows, with their origins.
    pub settings: Vec<SettingView>,
}

/// Returns the configuration of the process with the origin of each setting.
#[utoipa::path(get, path = "/config", tag = "server", operation_id = "getConfig",
    responses((status = 200, body = Config), (status = "default", body = Failure)))]
pub(crate) async fn config(call: Call) -> ApiResult<Config> {
    let options = &call.app.options;
    Ok(Json(Config {
        version: env!("CARGO_PKG_VERSION"),
        namespace: call.app.engine.options().namespace.to_string(),
        base: options.base.clone(),
        route_sets: options.routes.iter().map(crate::RouteSet::name).collect(),
        settings: options.settings.clone(),
    }))
}

/// A limit to set.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetLimit {
    /// The maximum number of concurrent holders: 1 to 1,000,000. `null` removes the limit.
    #[schema(required)]
    #[serde(deserialize_with = "Option::deserialize")]
    slots: Option<u32>,
}

impl Incoming for SetLimit {}

/// Sets a concurrency limit of the caller's namespace, or removes it.
#[utoipa::path(put, path = "/limits/{key}", tag = "server", operation_id = "setLimit",
    params(("key" = String, Path, description = "The key of the limit")), request_body = SetLimit,
    responses((status = 200, body = LimitView), (status = "default", body = Failure)))]
pub(crate) async fn set_limit(
    call: Call,
    Named(key): Named,
    Payload(SetLimit { slots }): Payload<SetLimit>,
) -> ApiResult<LimitView> {
    if let Some(slots) = slots.filter(|slots| !(1..=SLOTS_MAX).contains(slots)) {
        let message =
            format!("slots is {slots}; use 1 to {SLOTS_MAX}, or null to remove the limit");
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    let key = LimitKey::with_limits(key, &call.engine.options().limits)?;
    call.engine.set_limit(key.as_str(), slots).await?;
    let found = match slots {
        None => None,
        Some(_) => limit(&call, &key).await,
    };
    // The limit is written; only its use could not be read.
    Ok(Json(found.unwrap_or(LimitView {
        key: key.to_string(),
        slots: slots.unwrap_or(0),
        held: 0,
        waiting: super::queues::Count { count: 0, more: false },
    })))
}

const PAGE: u32 = 200;

async fn limit(call: &Call, key: &LimitKey) -> Option<LimitView> {
    let namespace = call.engine.namespace().clone();
    let mut after = None;
    loop {
        let query = Query::Limits { namespace: namespace.clone(), after, limit: PAGE };
        let page = call.engine.store().list(query).await.ok()?.limits().ok()?;
        let is_last = page.len() < PAGE as usize;
        after = page.last().map(|limit| limit.key.clone());
        if let Some(found) = page.into_iter().find(|limit| limit.key == *key) {
            return Some(found.into());
        }
        if is_last {
            return None;
        }
    }
}

/// The page of the rates.
#[derive(Deserialize, utoipa::IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct RatesParams {
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// How often attempts with a key may begin, over all processes.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateView {
    /// The key: one of tasks, `queue:<name>`, or `activity:<type>`.
    pub key: String,
    /// The time between two beginnings in microseconds; null if attempts are only held back for a while.
    pub interval_us: Option<u64>,
    /// How many attempts may begin at once after a pause.
    pub burst: u32,
    /// Attempts that have begun use the rate up to this time.
    pub spent_until: Time,
    /// Beginnings are reserved for waiting attempts up to this time; none if none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_until: Option<Time>,
}

/// A page of rates.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rates {
    /// The rates, by key.
    pub rates: Vec<RateView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// Lists the rates of attempts at tasks.
#[utoipa::path(get, path = "/rates", tag = "server", operation_id = "listRates",
    params(RatesParams),
    responses((status = 200, body = Rates), (status = "default", body = Failure)))]
pub(crate) async fn rates(call: Call, Params(params): Params<RatesParams>) -> ApiResult<Rates> {
    let size = page_size(params.page_size)?;
    let after = decode_as("rates", params.cursor.as_deref(), |key| LimitKey::new(key).ok())?;
    let mut rows = call.engine.rates(after, size + 1).await?;
    let more = rows.len() > size as usize;
    rows.truncate(size as usize);
    let next = rows.last().filter(|_| more).map(|row| cursor::encode("rates", row.key.as_str()));
    let now = call.engine.clock().now();
    let view = |row: windlass::kernel::RateRow| RateView {
        key: row.key.to_string(),
        interval_us: Some(row.interval_us).filter(|interval| *interval > 0),
        burst: row.burst,
        spent_until: Time(row.spent_until),
        queued_until: Some(Time(row.queued_until)).filter(|until| until.0 > now),
    };
    Ok(Json(Rates {
        rates: rows.into_iter().map(view).collect(),
        has_next_page: next.is_some(),
        next_cursor: next,
    }))
}
