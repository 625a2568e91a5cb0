//! Data for operators: tenants, the settings of the process, and the limits that they change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::ErrorCode;
use windlass::kernel::{LimitKey, Query};

use super::queues::LimitView;
use crate::app::is_internal;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Payload};
use crate::json::Json;

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
