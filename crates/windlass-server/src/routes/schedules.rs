//! Schedules: list, get, put, pause, resume, delete.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use windlass::admin::ScheduleState;
use windlass::kernel::{Body, ErrorCode, ModelName, OnExisting, Run, RunKey, WorkflowName};
use windlass::{Missed, Overlap};
use windlass_engine::{Schedule, StartRun, Timing};

use super::instances::{check_depth, refuse_reserved};
use crate::app::is_internal;
use crate::auth::{Scope, Target};
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Params, Payload};
use crate::json::Json;
use crate::paging::{PAGE_BYTES_MAX, page_size};
use crate::view::{Raw, Time};

/// The policy for firings that were missed while no worker served the schedule.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MissedWord {
    /// Start only the last one, late.
    #[default]
    Last,
    /// Start all of them, at most 100.
    All,
    /// Start none of them.
    Skip,
}

/// The policy for a firing while the previous run has not ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OverlapWord {
    /// Start the run anyway.
    #[default]
    Allow,
    /// Skip the firing.
    Skip,
}

/// A schedule to create or update.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SetSchedule {
    /// The workflow to run.
    workflow: String,
    /// A cron expression: five fields, or six with seconds first.
    cron: Option<String>,
    /// The interval in milliseconds, instead of `cron`: at least 1,000, at most 365 days.
    every_ms: Option<u64>,
    /// The time zone of the cron expression. Default `UTC`.
    timezone: Option<String>,
    /// The input of each run.
    #[schema(value_type = Option<Value>)]
    params: Option<Raw>,
    /// The labels of each run.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// The policy for a firing while the previous run has not ended. Default `allow`.
    #[serde(default)]
    overlap: OverlapWord,
    /// The policy for missed firings. Default `last`.
    #[serde(default)]
    missed: MissedWord,
}

impl Incoming for SetSchedule {}

/// A schedule.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ScheduleView {
    /// The name.
    pub name: String,
    /// The workflow to run.
    pub workflow: String,
    /// The cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone of the cron expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The interval in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_ms: Option<u64>,
    /// The input of each run.
    #[schema(value_type = Value)]
    pub params: Raw,
    /// The labels of each run.
    pub labels: BTreeMap<String, String>,
    /// The policy for a firing while the previous run has not ended.
    pub overlap: OverlapWord,
    /// The policy for missed firings.
    pub missed: MissedWord,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// The next firing.
    pub next_at: Option<Time>,
    /// The last firing.
    pub last_at: Option<Time>,
    /// The id of the last started run.
    pub last_run: Option<String>,
    /// Why the schedule cannot start runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
}

impl From<ScheduleState> for ScheduleView {
    fn from(state: ScheduleState) -> Self {
        let ScheduleState { name, schedule, paused, next_at, last_at, last_run, blocked } = state;
        let (cron, timezone, every_ms) = match schedule.timing {
            Timing::Cron { expression, time_zone } => (Some(expression), Some(time_zone), None),
            Timing::Every { interval_ms } => (None, None, Some(interval_ms)),
        };
        Self {
            name,
            workflow: schedule.workflow.to_string(),
            cron,
            timezone,
            every_ms,
            params: schedule.input,
            labels: schedule.labels,
            overlap: match schedule.overlap {
                Overlap::Allow => OverlapWord::Allow,
                Overlap::Skip => OverlapWord::Skip,
            },
            missed: match schedule.missed {
                Missed::Last => MissedWord::Last,
                Missed::All => MissedWord::All,
                Missed::Skip => MissedWord::Skip,
            },
            paused,
            next_at: next_at.map(Time),
            last_at: last_at.map(Time),
            last_run,
            blocked,
        }
    }
}

/// The page of the list.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A page of schedules.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Schedules {
    /// The schedules, oldest first.
    pub schedules: Vec<ScheduleView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// The maximum number of store pages that are read for one page of a response: most rows are
/// earlier generations of schedules.
const STORE_PAGES_MAX: usize = 20;

/// Lists the schedules.
#[utoipa::path(get, path = "/schedules", tag = "schedules", operation_id = "listSchedules",
    params(ListParams),
    responses((status = 200, body = Schedules), (status = "default", body = Failure)))]
pub(crate) async fn list(call: Call, Params(params): Params<ListParams>) -> ApiResult<Schedules> {
    let size = page_size(params.page_size)? as usize;
    let read = |key: &str| key.parse::<RunKey>().ok();
    let mut after = decode_as("schedules", params.cursor.as_deref(), read)?;
    let mut found: Vec<ScheduleState> = Vec::new();
    let mut bytes = 0;
    for _ in 0..STORE_PAGES_MAX {
        let page = call.engine.schedules_page(after, (size - found.len()) as u32).await?;
        bytes += page.schedules.iter().map(|state| state.schedule.input.get().len()).sum::<usize>();
        found.extend(page.schedules);
        after = page.next;
        if after.is_none() || found.len() >= size || bytes > PAGE_BYTES_MAX {
            break;
        }
    }
    let next = after.map(|key| cursor::encode("schedules", &key.to_string()));
    Ok(Json(Schedules {
        schedules: found.into_iter().map(ScheduleView::from).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}

async fn view(call: &Call, name: &str) -> ApiResult<ScheduleView> {
    let state = call.engine.schedule(name).await?;
    let state = state.ok_or_else(|| not_found(name))?;
    Ok(Json(state.into()))
}

fn not_found(name: &str) -> ApiError {
    let shown: String = name.chars().take(120).collect();
    ApiError::not_found(ErrorCode::ScheduleNotFound, format!("unknown schedule {shown:?}"))
}

/// Returns a schedule.
#[utoipa::path(get, path = "/schedules/{name}", tag = "schedules", operation_id = "getSchedule",
    params(("name" = String, Path, description = "The name of the schedule")),
    responses((status = 200, body = ScheduleView), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, Named(name): Named) -> ApiResult<ScheduleView> {
    view(&call, &known(&name)?).await
}

/// Rejects names that no schedule can have.
fn known(name: &str) -> Result<String, ApiError> {
    windlass::kernel::RunId::new(name).map(|id| id.to_string()).map_err(|_| not_found(name))
}

/// Creates or updates a schedule.
///
/// Sending the same schedule again changes nothing. A different one replaces it from now on. A
/// paused schedule stays paused until it is resumed.
#[utoipa::path(put, path = "/schedules/{name}", tag = "schedules", operation_id = "putSchedule",
    params(("name" = String, Path, description = "The name of the schedule")),
    request_body = SetSchedule,
    responses((status = 200, body = ScheduleView), (status = "default", body = Failure)))]
pub(crate) async fn put(
    call: Call,
    Named(name): Named,
    Payload(set): Payload<SetSchedule>,
) -> ApiResult<ScheduleView> {
    let limits = &call.engine.options().limits;
    let workflow = WorkflowName::with_limits(&set.workflow, limits)?;
    // A schedule creates runs, so it requires the scope `create`.
    call.caller.must(Scope::Create)?;
    let target = Target {
        workflow: Some(workflow.as_str()),
        id: None,
        action: Some("schedule"),
        ..Target::default()
    };
    call.app.guard.ask(&call.caller, Scope::Create, &target).await?;
    let timing = timing(set.cron, set.every_ms, set.timezone)?;
    let model = match is_internal(workflow.as_str()) {
        true => None,
        false => call.app.model_of(&call.engine, &workflow).await?,
    };
    let model: ModelName =
        model.ok_or_else(|| crate::extract::workflow_not_found(workflow.as_str()))?;
    let null = || RawValue::from_string("null".into()).expect("null is JSON");
    let input = set.params.unwrap_or_else(null);
    check_depth("params", input.get(), limits.json_depth_max)?;
    refuse_reserved(&set.labels)?;
    let schedule = Schedule {
        timing,
        workflow,
        model,
        input,
        labels: set.labels,
        missed: match set.missed {
            MissedWord::Last => Missed::Last,
            MissedWord::All => Missed::All,
            MissedWord::Skip => Missed::Skip,
        },
        overlap: match set.overlap {
            OverlapWord::Allow => Overlap::Allow,
            OverlapWord::Skip => Overlap::Skip,
        },
    };
    let actor = call.caller.actor.clone();
    let state = call.engine.put_schedule_as(&name, &schedule, actor).await?;
    if state.paused {
        // Waits, so that the next read of the client also shows the pause. The schedule is written,
        // whether or not that can be read.
        let _ = until_paused(&call, &name).await;
    }
    Ok(Json(state.into()))
}

// The turn of the schedule applies the pause, usually within a moment.
async fn until_paused(call: &Call, name: &str) -> ApiResult<ScheduleView> {
    for _ in 0..50 {
        let Json(state) = view(call, name).await?;
        if state.paused {
            return Ok(Json(state));
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    view(call, name).await
}

/// The result of a deletion.
#[derive(Serialize, ToSchema)]
pub(crate) struct Deleted {
    /// Always true.
    pub ok: bool,
}

/// Deletes a schedule. Runs that it started continue.
#[utoipa::path(delete, path = "/schedules/{name}", tag = "schedules",
    operation_id = "deleteSchedule",
    params(("name" = String, Path, description = "The name of the schedule")),
    responses((status = 200, body = Deleted), (status = "default", body = Failure)))]
pub(crate) async fn delete(call: Call, Named(name): Named) -> ApiResult<Deleted> {
    let run = call.engine.schedule_run(&known(&name)?).await?;
    let (reason, actor) = (Some("the schedule was deleted"), call.caller.actor.clone());
    call.engine.terminate(run.run_key, reason, actor).await?;
    Ok(Json(Deleted { ok: true }))
}

// A schedule before a request changes it, for the response if it cannot be read afterwards.
async fn existing(call: &Call, name: &str) -> Result<(Run, ScheduleView), ApiError> {
    let run = call.engine.schedule_run(name).await?;
    let Json(before) = view(call, name).await?;
    Ok((run, before))
}

/// Pauses a schedule: it starts no runs until it is resumed.
#[utoipa::path(post, path = "/schedules/{name}/pause", tag = "schedules",
    operation_id = "pauseSchedule",
    params(("name" = String, Path, description = "The name of the schedule")),
    responses((status = 200, body = ScheduleView), (status = "default", body = Failure)))]
pub(crate) async fn pause(call: Call, Named(name): Named) -> ApiResult<ScheduleView> {
    let name = known(&name)?;
    let (run, before) = existing(&call, &name).await?;
    call.engine.pause(&run, call.caller.actor.clone()).await?;
    Ok(until_paused(&call, &name).await.unwrap_or(Json(ScheduleView { paused: true, ..before })))
}

/// Resumes a paused schedule.
#[utoipa::path(post, path = "/schedules/{name}/resume", tag = "schedules",
    operation_id = "resumeSchedule",
    params(("name" = String, Path, description = "The name of the schedule")),
    responses((status = 200, body = ScheduleView), (status = "default", body = Failure)))]
pub(crate) async fn resume(call: Call, Named(name): Named) -> ApiResult<ScheduleView> {
    let name = known(&name)?;
    let (run, before) = existing(&call, &name).await?;
    call.engine.resume(&run, call.caller.actor.clone()).await?;
    Ok(view(&call, &name).await.unwrap_or(Json(ScheduleView { paused: false, ..before })))
}

/// The run that was started.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Started {
    /// The workflow.
    pub workflow_name: String,
    /// The id of the run.
    pub id: String,
}

/// Starts a run of a schedule now, with its input and labels. The schedule itself does not change: its next
/// firing stays, and its policy for overlaps does not apply.
#[utoipa::path(post, path = "/schedules/{name}/run", tag = "schedules", operation_id = "runSchedule",
    params(("name" = String, Path, description = "The name of the schedule")),
    responses((status = 200, body = Started), (status = "default", body = Failure)))]
pub(crate) async fn run(call: Call, Named(name): Named) -> ApiResult<Started> {
    let name = known(&name)?;
    let state = call.engine.schedule(&name).await?.ok_or_else(|| not_found(&name))?;
    let schedule = state.schedule;
    call.caller.must(Scope::Create)?;
    let target = Target {
        workflow: Some(schedule.workflow.as_str()),
        id: None,
        action: Some("schedule"),
        ..Target::default()
    };
    call.app.guard.ask(&call.caller, Scope::Create, &target).await?;
    let workflow = schedule.workflow.to_string();
    let input = Body::json(schedule.input.get().to_owned());
    let mut start = StartRun::new(schedule.workflow, schedule.model, input);
    start.labels = schedule.labels;
    start.on_existing = OnExisting::Refuse;
    let started = call.engine.start_run(start).await?;
    Ok(Json(Started { workflow_name: workflow, id: started.id.to_string() }))
}

/// The most firings of a preview.
const PREVIEW_MAX: u32 = 50;

/// A timing to preview.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PreviewParams {
    /// A cron expression: five fields, or six with seconds first.
    cron: Option<String>,
    /// The interval in milliseconds, instead of `cron`.
    every_ms: Option<u64>,
    /// The time zone of the cron expression. Default `UTC`.
    timezone: Option<String>,
    /// The number of firings: 1 to 50. Default 5.
    count: Option<u32>,
}

/// The next firings of a timing.
#[derive(Serialize, ToSchema)]
pub(crate) struct Preview {
    /// The firings, the next one first.
    pub firings: Vec<Time>,
}

/// Returns the next firings of a timing, without a schedule. It is not below `/schedules`, where it would
/// hide a schedule with its name.
#[utoipa::path(get, path = "/cron/preview", tag = "schedules", operation_id = "previewSchedule",
    params(PreviewParams),
    responses((status = 200, body = Preview), (status = "default", body = Failure)))]
pub(crate) async fn preview(
    call: Call,
    Params(params): Params<PreviewParams>,
) -> ApiResult<Preview> {
    let count = params.count.unwrap_or(5);
    if !(1..=PREVIEW_MAX).contains(&count) {
        let message = format!("count is {count}; use 1 to {PREVIEW_MAX}");
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    let timing = timing(params.cron, params.every_ms, params.timezone)?;
    timing.validate(&call.engine.options().limits)?;
    let now = call.engine.clock().now();
    let mut firings = Vec::new();
    let mut after = now;
    for _ in 0..count {
        match timing.next_after(after, now) {
            Ok(next) => after = next,
            // A cron expression with a year can have a last firing.
            Err(_) if !firings.is_empty() => break,
            Err(error) => return Err(error.into()),
        }
        firings.push(Time(after));
    }
    Ok(Json(Preview { firings }))
}

fn timing(
    cron: Option<String>,
    every_ms: Option<u64>,
    time_zone: Option<String>,
) -> Result<Timing, ApiError> {
    match (cron, every_ms) {
        (Some(expression), None) => {
            let time_zone = time_zone.unwrap_or_else(|| "UTC".into());
            Ok(Timing::Cron { expression, time_zone })
        }
        (None, Some(interval_ms)) if time_zone.is_none() => Ok(Timing::Every { interval_ms }),
        _ => {
            let message = "send either `cron` (with `timezone` if it is not UTC) or `everyMs`";
            Err(ApiError::invalid(ErrorCode::InvalidSchedule, message))
        }
    }
}
