//! Circuit breakers: list and reset.

use serde::Serialize;
use utoipa::ToSchema;
use windlass::kernel::{Breaker, BreakerRow, ErrorCode, LimitKey};
use windlass_engine::after_write;

use super::PageParams;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Named, Params};
use crate::json::Json;
use crate::view::Time;

/// A circuit breaker.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableBreaker {
    /// The key: what the breaker protects.
    pub key: String,
    /// `closed`, `open` or `half_open`.
    pub state: &'static str,
    /// The number of failures that count towards opening it, or that opened it.
    pub failure_count: u64,
    /// The number of consecutive successful calls since it is half open.
    pub success_count: u32,
    /// The time of the last failure that counts.
    pub last_failure_at: Option<Time>,
    /// When it last opened; null if it is closed.
    pub opened_at: Option<Time>,
    /// When it became half open, if it is.
    pub half_open_at: Option<Time>,
    /// When it allows the next call.
    pub retry_at: Option<Time>,
    /// When it last changed.
    pub updated_at: Time,
}

impl DurableBreaker {
    fn of(row: &BreakerRow) -> Result<Self, ApiError> {
        let breaker = Breaker::of(Some(row))?;
        Ok(Self {
            key: row.key.to_string(),
            state: row.status.as_str(),
            failure_count: breaker.failures() as u64,
            success_count: breaker.successes(),
            last_failure_at: breaker.last_failure().map(Time),
            opened_at: breaker.opened_at().map(Time),
            half_open_at: breaker.half_open_at().map(Time),
            retry_at: row.retry_at.map(Time),
            updated_at: Time(row.updated_at),
        })
    }
}

/// A page of circuit breakers.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableBreakers {
    /// The breakers, by key.
    pub circuit_breakers: Vec<DurableBreaker>,
    /// The total number on all pages, at most 10,000.
    pub total: u64,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Lists circuit breakers.
#[utoipa::path(get, path = "/durable/circuit-breakers", tag = "durable",
    operation_id = "durableListBreakers", params(PageParams),
    responses((status = 200, body = DurableBreakers), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    Params(params): Params<PageParams>,
) -> ApiResult<DurableBreakers> {
    let size = params.size()?;
    let after =
        decode_as("durable-breakers", params.cursor.as_deref(), |key| LimitKey::new(key).ok())?;
    let mut rows = call.engine.breakers(after, size + 1).await?;
    let more = rows.len() > size as usize;
    rows.truncate(size as usize);
    let last = rows.last().filter(|_| more);
    let cursor = last.map(|row| cursor::encode("durable-breakers", row.key.as_str()));
    let namespace_stats =
        call.engine.store().namespace_stats(call.engine.namespace().clone()).await?;
    let breakers: Result<Vec<_>, _> = rows.iter().map(DurableBreaker::of).collect();
    Ok(Json(DurableBreakers {
        circuit_breakers: breakers?,
        total: namespace_stats.breakers.count,
        cursor,
    }))
}

/// Closes a circuit breaker.
#[utoipa::path(post, path = "/durable/circuit-breakers/{key}/reset", tag = "durable",
    operation_id = "durableResetBreaker",
    params(("key" = String, Path, description = "The key of the breaker")),
    responses((status = 200, body = DurableBreaker), (status = "default", body = Failure)))]
pub(crate) async fn reset(call: Call, Named(key): Named) -> ApiResult<DurableBreaker> {
    let not_found = || {
        let shown: String = key.chars().take(80).collect();
        ApiError::not_found(
            ErrorCode::BreakerNotFound,
            format!("unknown circuit breaker {shown:?}"),
        )
    };
    let name = LimitKey::new(&key).map_err(|_| not_found())?;
    if !call.engine.reset_breaker(&name).await? {
        return Err(not_found());
    }
    let row = call.engine.store().breaker(call.engine.namespace().clone(), name).await;
    let (row, _) = row.map_err(after_write)?;
    Ok(Json(DurableBreaker::of(&row.ok_or_else(not_found)?)?))
}
