//! Endpoints of webhooks that said that they are gone, and are left alone until somebody says otherwise.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use windlass::webhooks::{disabled_endpoints, enable_endpoint};

use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Payload};
use crate::json::Json;
use crate::view::Time;

/// How many endpoints are shown.
const ENDPOINTS_MAX: usize = 1_000;

/// An endpoint that nothing is sent to.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DisabledEndpoint {
    /// Its URL.
    pub url: String,
    /// Since when.
    pub since: Time,
    /// Which webhook it refused.
    pub webhook_id: String,
}

/// The endpoints that nothing is sent to.
#[derive(Serialize, ToSchema)]
pub(crate) struct DisabledEndpoints {
    /// The endpoints, at most 1,000.
    pub endpoints: Vec<DisabledEndpoint>,
    /// How many there are.
    pub total: usize,
}

/// Lists the endpoints that nothing is sent to, because they answered 410.
#[utoipa::path(get, path = "/webhooks/disabled", tag = "server",
    operation_id = "listDisabledEndpoints",
    responses((status = 200, body = DisabledEndpoints), (status = "default", body = Failure)))]
pub(crate) async fn disabled(call: Call) -> ApiResult<DisabledEndpoints> {
    let found = disabled_endpoints(&call.engine).await?;
    let total = found.len();
    let endpoints = found.into_iter().take(ENDPOINTS_MAX).map(|endpoint| DisabledEndpoint {
        url: endpoint.url,
        since: Time(endpoint.since),
        webhook_id: endpoint.webhook_id,
    });
    Ok(Json(DisabledEndpoints { endpoints: endpoints.collect(), total }))
}

/// Which endpoint to send to again.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Enable {
    /// Its URL, as the list shows it: all endpoints that are shown so. With a query, that one alone.
    url: String,
}

impl Incoming for Enable {}

/// That an endpoint is sent to again.
#[derive(Serialize, ToSchema)]
pub(crate) struct Enabled {
    /// Always true.
    pub enabled: bool,
}

/// Sends to an endpoint again. What became a dead letter meanwhile stays one until it is requeued.
#[utoipa::path(post, path = "/webhooks/enable", tag = "server", operation_id = "enableEndpoint",
    request_body = Enable,
    responses((status = 200, body = Enabled), (status = "default", body = Failure)))]
pub(crate) async fn enable(call: Call, Payload(body): Payload<Enable>) -> ApiResult<Enabled> {
    match enable_endpoint(&call.engine, &body.url).await? {
        true => Ok(Json(Enabled { enabled: true })),
        false => {
            let message = "no endpoint with this URL is disabled; the list shows those that are";
            Err(ApiError::not_found("ENDPOINT_NOT_FOUND", message))
        }
    }
}
