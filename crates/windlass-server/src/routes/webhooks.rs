//! Webhooks: disabled endpoints, which are those that answered 410 Gone, and deliveries.

mod deliveries;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::routes;
use windlass::ErrorCode;
use windlass::webhooks::{disabled_endpoints, enable_endpoint};

use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Payload};
use crate::json::Json;
use crate::options::Options;
use crate::routes::{MANAGE, READ};
use crate::table::Routes;
use crate::view::Time;

pub(crate) fn routes(routes: Routes, _: &Options) -> Routes {
    routes
        .add(READ, routes!(disabled))
        .add(MANAGE, routes!(enable))
        .add(READ, routes!(deliveries::deliveries))
}

/// The maximum number of listed endpoints.
const ENDPOINTS_MAX: usize = 1_000;

/// A disabled endpoint.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DisabledEndpoint {
    /// The URL.
    pub url: String,
    /// When it was disabled.
    pub since: Time,
    /// The webhook that the endpoint rejected.
    pub webhook_id: String,
}

/// The disabled endpoints.
#[derive(Serialize, ToSchema)]
pub(crate) struct DisabledEndpoints {
    /// The endpoints, at most 1,000.
    pub endpoints: Vec<DisabledEndpoint>,
    /// The total number of disabled endpoints.
    pub total: usize,
}

/// Lists disabled endpoints. An endpoint is disabled when it answers 410 Gone.
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

/// The endpoint to enable.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Enable {
    /// The URL as the list shows it, which enables all endpoints that are shown with it. A URL with
    /// a query enables only that endpoint.
    url: String,
}

impl Incoming for Enable {}

/// The result of enabling an endpoint.
#[derive(Serialize, ToSchema)]
pub(crate) struct Enabled {
    /// Always true.
    pub enabled: bool,
}

/// Enables an endpoint again. Webhooks that became dead letters meanwhile must be requeued.
#[utoipa::path(post, path = "/webhooks/enable", tag = "server", operation_id = "enableEndpoint",
    request_body = Enable,
    responses((status = 200, body = Enabled), (status = "default", body = Failure)))]
pub(crate) async fn enable(call: Call, Payload(body): Payload<Enable>) -> ApiResult<Enabled> {
    match enable_endpoint(&call.engine, &body.url).await? {
        true => Ok(Json(Enabled { enabled: true })),
        false => {
            let message =
                "no disabled endpoint has this URL; list them with `GET /webhooks/disabled`";
            Err(ApiError::not_found(ErrorCode::EndpointNotFound, message))
        }
    }
}
