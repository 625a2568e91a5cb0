//! The timeline of a run: its steps as compact rows with attempts, without bodies; one step with its
//! bodies; and the snapshot of the run's model.

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{ErrorCode, Query, Run, RunId, RunKey, Step, StepKey, WorkflowName};
use windlass_engine::description::StepRole;
use windlass_engine::explain::ChildRef;

use super::history::{generation, generation_of};
use super::tries::{AttemptView, Tries, tries};
use crate::app::{App, is_internal};
use crate::cursor::{Position, decode_position, encode_position};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Params, bad_path, run_not_found};
use crate::json::Json;
use crate::view::{ErrorView, Kinds, Raw, StepView, Time, raw};

/// The most rows of a page.
const ROWS_MAX: u32 = 1_000;
/// The number of rows of one store query. Rows have bodies, which are read and not sent.
const STORE_ROWS: u32 = 200;

/// The page of a timeline.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct TimelineParams {
    /// The generation. Default: the newest.
    run_number: Option<u32>,
    /// The number of rows: 1 to 1,000. Default 1,000.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// The child run that a step waits for.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChildLink {
    /// Its workflow.
    pub workflow_name: String,
    /// Its id.
    pub id: String,
    /// The generation that was started.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
}

impl ChildLink {
    fn of(step: &Step, role: StepRole) -> Option<Self> {
        let child = ChildRef::of(step).filter(|_| role == StepRole::Child)?;
        Some(Self {
            workflow_name: child.workflow.to_string(),
            id: child.id,
            run_key: child.run_key,
        })
    }
}

/// A step of the timeline.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TimelineRow {
    /// The key, unique within the run.
    pub step_key: String,
    /// The display name.
    pub name: String,
    /// The kind in the model, such as `activity` or `child`.
    pub kind: String,
    /// What it does: `work`, `record`, `sleep`, `event`, `child` or `activity`.
    pub role: &'static str,
    /// The state: `pending`, `running`, `waiting`, `completed`, `errored`, `skipped` or `cancelled`.
    pub state: &'static str,
    /// The ordinal of the event that first recorded it; rows have this order.
    pub position: u64,
    /// When it began: its first attempt, or when it was first recorded.
    pub began_at: Time,
    /// When it was settled.
    pub ended_at: Option<Time>,
    /// The number of attempts.
    pub attempts: u32,
    /// The maximum number of attempts; 2,147,483,647 if unlimited.
    pub max_attempts: u32,
    /// The attempts that the ledger names, oldest first.
    pub tries: Vec<AttemptView>,
    /// When the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Time>,
    /// When a sleep ends, or a wait times out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Time>,
    /// The event that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_event_type: Option<String>,
    /// The child run that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<ChildLink>,
    /// The name of the error of the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A page of a timeline.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timeline {
    /// The generation.
    pub run_number: u32,
    /// The steps, in the order in which they were first recorded.
    pub rows: Vec<TimelineRow>,
    /// Whether attempts are missing because the ledger has too many events.
    pub tries_cut: bool,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

const fn role_word(role: StepRole) -> &'static str {
    match role {
        StepRole::Work => "work",
        StepRole::Record => "record",
        StepRole::Sleep => "sleep",
        StepRole::Event => "event",
        StepRole::Child => "child",
        StepRole::Activity => "activity",
        StepRole::Request => "request",
    }
}

/// Returns the steps of a run as compact rows with their attempts, without bodies.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/timeline",
    tag = "instances", operation_id = "getTimeline",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), TimelineParams),
    responses((status = 200, body = Timeline), (status = "default", body = Failure)))]
pub(crate) async fn timeline(
    call: Call,
    at: AtRun,
    Params(params): Params<TimelineParams>,
) -> ApiResult<Timeline> {
    let size = match params.page_size {
        None => ROWS_MAX,
        Some(size) if (1..=ROWS_MAX).contains(&size) => size,
        Some(size) => {
            let message = format!("pageSize is {size}; it must be between 1 and {ROWS_MAX}");
            return Err(ApiError::invalid(ErrorCode::InvalidPageSize, message));
        }
    } as usize;
    let after: Option<Position<(u64, StepKey)>> =
        decode_position("timeline", params.cursor.as_deref(), |text| {
            let (position, key) = text.split_once(' ')?;
            Some((position.parse().ok()?, StepKey::new(key).ok()?))
        })?;
    let keys = [after.as_ref().map(|position| position.run_key)];
    let run = generation_of(&call, &at, params.run_number, keys).await?;
    let mut after = after.map(|position| position.at);
    let mut steps: Vec<Step> = Vec::new();
    let mut more = false;
    while steps.len() <= size {
        let query = Query::Steps { run_key: run.run_key, after, limit: STORE_ROWS };
        let page = call.engine.store().list(query).await?.steps()?;
        let is_last = page.len() < STORE_ROWS as usize;
        after = page.last().map(|step| (step.position, step.step_key.clone()));
        steps.extend(page.into_iter().map(without_bodies));
        more = steps.len() > size;
        if is_last {
            break;
        }
    }
    steps.truncate(size);
    let first = steps.first().map(|step| step.position);
    let (tries, tries_cut) = match first {
        Some(first) => tries(&call, &run, first).await?,
        None => (BTreeMap::new(), false),
    };
    let last = steps.last().filter(|_| more);
    let next_cursor = last.map(|step| {
        encode_position("timeline", run.run_key, &format!("{} {}", step.position, step.step_key))
    });
    let kinds = Kinds::of(&call.engine, &run);
    Ok(Json(Timeline {
        run_number: run.generation,
        rows: steps.iter().map(|step| row(step, &run, kinds, &tries)).collect(),
        tries_cut,
        has_next_page: next_cursor.is_some(),
        next_cursor,
    }))
}

// Keeps the input, because that of a child names the child and is small.
fn without_bodies(mut step: Step) -> Step {
    step.result = None;
    step
}

fn row(step: &Step, run: &Run, kinds: Kinds<'_>, tries: &Tries) -> TimelineRow {
    let role = kinds.model.step(&step.kind).role;
    let view = StepView::of(step, run, kinds);
    let tries = tries.get(&step.step_key).cloned().unwrap_or_default();
    let began = tries.iter().find_map(|attempt| attempt.began_at).map(|time| time.0);
    // A step that waited first, for example for a retry, began when it was recorded.
    let began = began.map_or(step.created_at, |began| began.min(step.created_at));
    TimelineRow {
        role: role_word(role),
        position: step.position,
        began_at: Time(began),
        ended_at: step.status.is_settled().then_some(Time(step.updated_at)),
        tries,
        child: ChildLink::of(step, role),
        error: view.error.map(|error| error.name),
        step_key: view.step_key,
        name: view.name,
        kind: view.kind,
        state: view.state,
        attempts: view.attempts,
        max_attempts: view.max_attempts,
        next_retry_at: view.next_retry_at,
        wake_at: view.wake_at,
        wait_event_type: view.wait_event_type,
    }
}

/// The step in the path.
pub(crate) struct AtStep {
    run: AtRun,
    key: String,
}

impl FromRequestParts<App> for AtStep {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let Path((workflow, id, key)) =
            Path::<(String, String, String)>::from_request_parts(parts, app)
                .await
                .map_err(|error| bad_path(&error))?;
        let named = WorkflowName::with_limits(&workflow, &app.engine.options().limits).ok();
        let named = named.filter(|_| !is_internal(&workflow));
        match (named, RunId::composed(&id)) {
            (Some(workflow), Ok(id)) => Ok(Self { run: AtRun { workflow, id }, key }),
            _ => Err(run_not_found(&workflow, &id)),
        }
    }
}

/// Selects the generation, and where the step is.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct StepParams {
    /// The generation. Default: the newest.
    run_number: Option<u32>,
    /// `position` of the step in the timeline. With it the server reads one row; without it, it reads the
    /// steps of the run until it finds the key.
    position: Option<u64>,
}

/// A step with its bodies.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepDetail {
    /// The step.
    #[serde(flatten)]
    pub step: StepView,
    /// The generation of the run.
    pub run_number: u32,
    /// The input, if the step keeps one.
    #[schema(value_type = Option<Value>)]
    pub input: Option<Raw>,
    /// The result.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Raw>,
    /// The error as it was stored.
    #[schema(value_type = Option<Value>)]
    pub error_body: Option<Raw>,
    /// The child run that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<ChildLink>,
    /// When it was first recorded.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
}

/// Returns one step with its input, result and error.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/steps/{stepKey}",
    tag = "instances", operation_id = "getStep",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"),
        ("stepKey" = String, Path, description = "The key of the step"), StepParams),
    responses((status = 200, body = StepDetail), (status = "default", body = Failure)))]
pub(crate) async fn step(
    call: Call,
    at: AtStep,
    Params(params): Params<StepParams>,
) -> ApiResult<StepDetail> {
    let run = generation(&call, &at.run, params.run_number).await?;
    // Lists after the position before, so that the step itself is the first row.
    let mut after = params.position.map(|position| (position, StepKey::from_stored(String::new())));
    let step = loop {
        let query = Query::Steps { run_key: run.run_key, after, limit: STORE_ROWS };
        let page = call.engine.store().list(query).await?.steps()?;
        let is_last = page.len() < STORE_ROWS as usize;
        after = page.last().map(|step| (step.position, step.step_key.clone()));
        if let Some(found) = page.into_iter().find(|step| step.step_key.as_str() == at.key) {
            break found;
        }
        if is_last {
            return Err(step_not_found(&at));
        }
    };
    let kinds = Kinds::of(&call.engine, &run);
    let role = kinds.model.step(&step.kind).role;
    Ok(Json(StepDetail {
        step: StepView::of(&step, &run, kinds),
        run_number: run.generation,
        input: step.input.as_ref().map(raw),
        result: step.result.as_ref().map(raw),
        error_body: step.error.as_ref().map(raw),
        child: ChildLink::of(&step, role),
        created_at: Time(step.created_at),
        updated_at: Time(step.updated_at),
    }))
}

fn step_not_found(at: &AtStep) -> ApiError {
    let shown: String = at.key.chars().take(120).collect();
    let message = format!("run {:?} has no step {shown:?}", at.run.id.as_str());
    ApiError::not_found(ErrorCode::StepNotFound, message)
}

/// Selects the generation.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct GenerationParams {
    /// The generation. Default: the newest.
    pub(crate) run_number: Option<u32>,
}

/// The snapshot of a run.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StateView {
    /// The generation.
    pub run_number: u32,
    /// The model that wrote the snapshot.
    pub model: String,
    /// The snapshot; null if the model keeps none.
    #[schema(value_type = Option<Value>)]
    pub state: Option<Raw>,
    /// The headers of the run.
    #[schema(value_type = Option<Value>)]
    pub headers: Option<Raw>,
    /// The stored error of the run.
    #[schema(value_type = Option<Value>)]
    pub error: Option<Raw>,
    /// The error, if the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<ErrorView>,
}

/// Returns the snapshot that the model of a run keeps, such as the variables of a machine.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/state",
    tag = "instances", operation_id = "getState",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), GenerationParams),
    responses((status = 200, body = StateView), (status = "default", body = Failure)))]
pub(crate) async fn state(
    call: Call,
    at: AtRun,
    Params(params): Params<GenerationParams>,
) -> ApiResult<StateView> {
    let run = generation(&call, &at, params.run_number).await?;
    let headers = run.headers.as_ref().map(|text| windlass::kernel::Body::json(text.to_string()));
    Ok(Json(StateView {
        run_number: run.generation,
        model: run.model.to_string(),
        state: run.state.as_ref().map(raw),
        headers: headers.as_ref().map(raw),
        error: run.error.as_ref().map(raw),
        failure: run.error.as_ref().map(ErrorView::of),
    }))
}
