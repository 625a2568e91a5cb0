//! Queues, concurrency limits and workers.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{Capped, LimitKey, LimitState, Query, QueueHealth, Worker, WorkerKey};

use crate::app::is_internal;
use crate::cursor::{self, decode_as};
use crate::error::{ApiResult, Failure};
use crate::extract::{Call, Params};
use crate::json::Json;
use crate::paging::page_size;
use crate::view::Time;

/// A count up to 10,000.
#[derive(Serialize, ToSchema)]
pub(crate) struct Count {
    /// The count, at most 10,000.
    pub count: u64,
    /// Whether the real number is higher.
    pub more: bool,
}

impl From<Capped> for Count {
    fn from(capped: Capped) -> Self {
        Self { count: capped.count, more: capped.more }
    }
}

/// The queue of turns or of tasks.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Waiting {
    /// Items that can be claimed.
    pub ready: Count,
    /// When the oldest of them became due.
    pub ready_oldest_at: Option<Time>,
    /// Items that are due later.
    pub scheduled: Count,
    /// When the next of them is due.
    pub scheduled_next_at: Option<Time>,
    /// Items that a worker holds.
    pub held: Count,
}

impl From<QueueHealth> for Waiting {
    fn from(health: QueueHealth) -> Self {
        Self {
            ready: health.ready.into(),
            ready_oldest_at: health.ready_oldest.map(Time),
            scheduled: health.scheduled.into(),
            scheduled_next_at: health.scheduled_next.map(Time),
            held: health.held.into(),
        }
    }
}

/// A concurrency limit of the caller's namespace.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitView {
    /// The key of the limit.
    pub key: String,
    /// The maximum number of concurrent holders.
    pub slots: u32,
    /// The current number of holders.
    pub held: u32,
    /// The number of turns and tasks that wait for the limit.
    pub waiting: Count,
}

impl From<LimitState> for LimitView {
    fn from(limit: LimitState) -> Self {
        Self {
            key: limit.key.to_string(),
            slots: limit.slots,
            held: limit.held,
            waiting: limit.waiting.into(),
        }
    }
}

/// The limits of the caller's namespace. Admins of the server's own namespace also see the queues
/// of all namespaces.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queues {
    /// Turns of runs, in all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<Waiting>,
    /// Activities and effects, in all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Waiting>,
    /// Dead letters, in all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<Count>,
    /// The number of live workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers_live: Option<u64>,
    /// The limits, by key.
    pub limits: Vec<LimitView>,
    /// The cursor of the next page of limits, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// The page of the listing.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Returns the concurrency limits and their use. Admins of the server's own namespace also see the
/// queues of all namespaces.
#[utoipa::path(get, path = "/queues", tag = "server", operation_id = "getQueues",
    params(PageParams),
    responses((status = 200, body = Queues), (status = "default", body = Failure)))]
pub(crate) async fn queues(call: Call, Params(params): Params<PageParams>) -> ApiResult<Queues> {
    let size = page_size(params.page_size)?;
    let after = decode_as("limits", params.cursor.as_deref(), |key| LimitKey::new(key).ok())?;
    let query =
        Query::Limits { namespace: call.engine.namespace().clone(), after, limit: size + 1 };
    let mut limits = call.engine.store().list(query).await?.limits()?;
    let more = limits.len() > size as usize;
    limits.truncate(size as usize);
    let last = limits.last().filter(|_| more);
    let next = last.map(|limit| cursor::encode("limits", limit.key.as_str()));
    // The load of other namespaces is confidential.
    let health = match call.is_operator() {
        true => Some(call.engine.store().health().await?),
        false => None,
    };
    let limits = limits.into_iter().map(LimitView::from);
    Ok(Json(Queues {
        workers_live: health.as_ref().map(|health| health.workers_live),
        dead_letters: health.as_ref().map(|health| health.dead_letters.into()),
        turns: health.as_ref().map(|health| health.turns.into()),
        tasks: health.map(|health| health.tasks.into()),
        limits: limits.collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}

/// A workflow or activity that a worker serves.
#[derive(Serialize, ToSchema)]
pub(crate) struct RouteView {
    /// The queue.
    pub queue: String,
    /// The name of the workflow or activity.
    pub name: String,
}

/// A worker: one start of one process.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WorkerView {
    /// The id. Each start of a process has a new one.
    #[schema(value_type = String, format = Uuid)]
    pub id: WorkerKey,
    /// The display name.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// `active`, `draining` or `stopped`.
    pub status: &'static str,
    /// Whether its lease is valid.
    pub live: bool,
    /// When it first renewed its lease.
    pub started_at: Time,
    /// When it last renewed its lease.
    pub renewed_at: Time,
    /// The workflows that it serves.
    pub workflows: Vec<String>,
    /// The activities that it serves.
    pub activities: Vec<RouteView>,
    /// The maximum number of concurrent turns.
    pub slots: u32,
}

/// A page of workers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Workers {
    /// The workers, by start time.
    pub workers: Vec<WorkerView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// Lists the workers of the store.
#[utoipa::path(get, path = "/workers", tag = "server", operation_id = "listWorkers",
    params(PageParams),
    responses((status = 200, body = Workers), (status = "default", body = Failure)))]
pub(crate) async fn workers(call: Call, Params(params): Params<PageParams>) -> ApiResult<Workers> {
    let size = page_size(params.page_size)?;
    let after =
        decode_as("workers", params.cursor.as_deref(), |key| key.parse::<WorkerKey>().ok())?;
    let query = Query::Workers { after, limit: size + 1 };
    let mut workers = call.engine.store().list(query).await?.workers()?;
    call.engine.refresh(&mut workers);
    let more = workers.len() > size as usize;
    workers.truncate(size as usize);
    let last = workers.last().filter(|_| more);
    let next = last.map(|worker| cursor::encode("workers", &worker.info.worker.to_string()));
    let now = call.engine.clock().now();
    let view = |worker: &Worker| WorkerView {
        id: worker.info.worker,
        name: worker.info.name.to_string(),
        version: worker.info.version.to_string(),
        status: worker.info.status.as_str(),
        live: worker.is_live(now),
        started_at: Time(worker.started_at),
        renewed_at: Time(worker.renewed_at),
        workflows: (worker.info.turns.iter().map(|route| route.name.to_string()))
            .filter(|name| !is_internal(name))
            .collect(),
        activities: (worker.info.tasks.iter())
            .filter(|route| !is_internal(route.name.as_str()))
            .map(|route| RouteView { queue: route.queue.to_string(), name: route.name.to_string() })
            .collect(),
        slots: worker.info.slots,
    };
    Ok(Json(Workers {
        workers: workers.iter().map(view).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}
