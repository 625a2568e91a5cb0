//! Figures by minute, for charts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::WorkflowName;
use windlass::{ErrorCode, Timestamp};

use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Params};
use crate::json::Json;
use crate::series::{MINUTES_MAX, NAMES, WORKFLOW_NAMES, minute_of};
use crate::view::Time;

/// The range of the series.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct SeriesParams {
    /// The number of minutes up to now: 1 to 1,440. Default 60.
    minutes: Option<u32>,
    /// Only the figures of this workflow, without those of tasks. A process counts its first 40 workflows.
    workflow: Option<String>,
}

/// Figures by minute.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeriesView {
    /// When this process began to count.
    pub since: Time,
    /// The worker whose figures these are.
    pub worker: String,
    /// Whether this process counts the workflow. It counts its first 40; the values of others are 0.
    pub counted: bool,
    /// The beginning of the first minute.
    pub from: Time,
    /// The number of minutes.
    pub minutes: u32,
    /// The values by name, one for each minute, oldest first. Those of a workflow have no tasks.
    pub values: BTreeMap<&'static str, Vec<u64>>,
}

/// Returns how many runs, steps and tasks this process started, completed and failed in each minute of up to a
/// day: in all namespaces, or those of one workflow of the caller's namespace. Other processes have figures of their own; a restart begins anew.
#[utoipa::path(get, path = "/stats/series", tag = "server", operation_id = "getSeries",
    params(SeriesParams),
    responses((status = 200, body = SeriesView), (status = "default", body = Failure)))]
pub(crate) async fn series(
    call: Call,
    Params(params): Params<SeriesParams>,
) -> ApiResult<SeriesView> {
    let minutes = params.minutes.unwrap_or(60);
    if !(1..=MINUTES_MAX as u32).contains(&minutes) {
        let message = format!("minutes is {minutes}; use 1 to {MINUTES_MAX}");
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    let engine = &call.app.engine;
    let first = minute_of(engine.clock().now()) + 1 - i64::from(minutes);
    let of = match &params.workflow {
        None => None,
        Some(name) => {
            let name = WorkflowName::with_limits(name, &engine.options().limits)?;
            Some((call.engine.namespace().clone(), name))
        }
    };
    let kept = call.app.series.from(engine, first, of.as_ref());
    let names = if of.is_some() { &NAMES[..WORKFLOW_NAMES] } else { &NAMES[..] };
    let mut values: BTreeMap<&'static str, Vec<u64>> =
        names.iter().map(|name| (*name, vec![0; minutes as usize])).collect();
    for minute in kept {
        let Some(index) = usize::try_from(minute.minute - first).ok() else { continue };
        for (name, value) in names.iter().zip(minute.values) {
            let list = values.get_mut(name).and_then(|list| list.get_mut(index));
            if let Some(place) = list {
                *place = value;
            }
        }
    }
    Ok(Json(SeriesView {
        since: Time(call.app.series.since),
        worker: engine.worker().to_string(),
        counted: of.as_ref().is_none_or(|name| call.app.series.counts(name)),
        from: Time(Timestamp::from_micros(first * 60_000_000)),
        minutes,
        values,
    }))
}
