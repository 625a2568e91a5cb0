//! The runs of a workflow: list, create, create in a batch, get.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use windlass::RunStatus;
use windlass::kernel::{
    Body, ErrorCode, OnExisting, Run, RunId, RunKey, RunOverview, Step, WorkflowName, bodies,
};
use windlass_engine::StartRun;

use super::result::{Wait, wait_for_end};
use crate::app::App;
use crate::auth::{Scope, Target};
use crate::depth::is_deeper_than;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{
    AtRun, Call, InWorkflow, Incoming, MaybePayload, Params, Payload, run_not_found,
    workflow_not_found,
};
use crate::json::Json;
use crate::paging::{self, Filter, RunsParams, invalid_time};
use crate::telemetry;
use crate::view::{
    InstanceStatus, Kinds, Raw, RunSummary, StepView, Time, current_step, parse_time, raw,
};

/// A created run.
#[derive(Serialize, ToSchema)]
pub(crate) struct Instance {
    /// The id.
    pub id: String,
    /// The status.
    pub details: InstanceStatus,
}

/// A page of runs.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instances {
    /// The runs.
    pub instances: Vec<RunSummary>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// Lists the runs of a workflow.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances", tag = "instances",
    operation_id = "listInstances",
    params(("workflowName" = String, Path, description = "The name of the workflow"), RunsParams),
    responses((status = 200, body = Instances), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    InWorkflow(workflow): InWorkflow,
    Params(params): Params<RunsParams>,
) -> ApiResult<Instances> {
    let namespace = call.engine.namespace().clone();
    let filter = Filter::new(namespace, Some(workflow.clone()), &params)?;
    let page = paging::list(&call, &filter).await?;
    if page.runs.is_empty() && params.cursor.is_none() {
        known_model(&call, &workflow).await?;
    }
    let cursor = page.cursor(&filter);
    Ok(Json(Instances {
        instances: page.runs.iter().map(RunSummary::of).collect(),
        has_next_page: cursor.is_some(),
        next_cursor: cursor.clone(),
        cursor,
    }))
}

/// The model of a workflow. Fails if the workflow is unknown.
pub(crate) async fn known_model(
    call: &Call,
    workflow: &WorkflowName,
) -> Result<windlass::kernel::ModelName, ApiError> {
    let model = call.app.model_of(&call.engine, workflow).await?;
    model.ok_or_else(|| workflow_not_found(workflow.as_str()))
}

/// A run to create.
#[derive(Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreateInstance {
    /// The id. Default: the run key, a new UUID.
    #[schema(max_length = 100, pattern = "^[a-zA-Z0-9_][a-zA-Z0-9-_]*$")]
    id: Option<String>,
    /// The input.
    #[schema(value_type = Option<Value>)]
    params: Option<Raw>,
    /// Labels, which can be used in filters.
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    /// Headers that all steps and the terminal hook of a relay receive, such as `callback_url`.
    headers: Option<BTreeMap<String, String>>,
    /// The priority; higher runs first. Default 0.
    priority: Option<i16>,
    /// Start after this delay, in milliseconds.
    delay_ms: Option<u64>,
    /// Start at this time (RFC 3339).
    start_at: Option<String>,
}

impl Incoming for CreateInstance {}

/// Runs to create.
#[derive(Deserialize, ToSchema)]
pub(crate) struct CreateInstances {
    /// The runs. Each needs an id. At most 100.
    instances: Vec<CreateInstance>,
}

impl Incoming for CreateInstances {
    fn bytes_max(app: &App) -> usize {
        app.options.batch_bytes_max
    }
}

/// Options of the creation.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct CreateParams {
    /// Respond when the run has ended, or after this time in milliseconds. At most 60,000.
    wait_ms: Option<u64>,
}

impl CreateInstance {
    fn start(
        self,
        call: &Call,
        workflow: WorkflowName,
        model: windlass::kernel::ModelName,
    ) -> Result<StartRun, ApiError> {
        let limits = &call.engine.options().limits;
        let params =
            self.params.map_or_else(|| "null".to_owned(), |params| params.get().to_owned());
        check_depth("params", &params, limits.json_depth_max)?;
        let mut start = StartRun::new(workflow, model, Body::json(params));
        start.id = self.id.map(|id| run_id(&id, limits)).transpose()?;
        start.labels = self.labels.unwrap_or_default();
        refuse_reserved(&start.labels)?;
        let headers = self.headers.filter(|headers| !headers.is_empty());
        start.headers = headers.map(|headers| json!(headers).to_string().into());
        start.priority = priority(call, self.priority)?;
        start.on_existing = OnExisting::Refuse;
        start.due_at = match (self.delay_ms, self.start_at) {
            (None, None) => None,
            (Some(delay), None) => {
                let longest = start_ahead_max(call).as_millis();
                if u128::from(delay) > longest {
                    let message = format!("delayMs is {delay}; the maximum is {longest}");
                    return Err(ApiError::invalid(ErrorCode::InvalidDuration, message));
                }
                Some(call.engine.clock().now().plus(Duration::from_millis(delay)))
            }
            (None, Some(at)) => {
                let time = parse_time(&at).ok_or_else(|| invalid_time("startAt", &at))?;
                let (now, longest) = (call.engine.clock().now(), start_ahead_max(call));
                if time > now.plus(longest) {
                    let days = longest.as_secs() / 86_400;
                    let message = format!("startAt is {at}; the maximum is {days} days ahead");
                    return Err(ApiError::invalid(ErrorCode::InvalidTime, message));
                }
                // Ready runs start oldest first: a time in the past must not overtake others.
                Some(time.max(now))
            }
            (Some(_), Some(_)) => {
                let message = "delayMs and startAt are mutually exclusive; send only one";
                return Err(ApiError::invalid(ErrorCode::InvalidBody, message));
            }
        };
        Ok(start)
    }
}

fn priority(call: &Call, priority: Option<i16>) -> Result<i16, ApiError> {
    let (priority, max) = (priority.unwrap_or_default(), call.app.options.priority_max);
    if (-max..=max).contains(&priority) {
        return Ok(priority);
    }
    let message = format!("priority is {priority}; use {} to {max}", -max);
    Err(ApiError::invalid(ErrorCode::InvalidSize, message))
}

fn start_ahead_max(call: &Call) -> Duration {
    let days = u64::from(call.engine.options().limits.sleep_days_max);
    call.app.options.start_ahead_max.min(Duration::from_secs(days * 86_400))
}

fn run_id(id: &str, limits: &windlass::Limits) -> Result<RunId, ApiError> {
    RunId::with_limits(id, limits)
        .map_err(|error| ApiError::from(error).coded(ErrorCode::InvalidInstanceId))
}

/// Rejects labels that are reserved for the engine.
pub(crate) fn refuse_reserved(labels: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let Some(label) = labels.keys().find(|label| label.starts_with("workflow.")) else {
        return Ok(());
    };
    let message = format!("the label {label:?} starts with \"workflow.\", which is reserved");
    Err(ApiError::invalid(ErrorCode::ReservedHeader, message))
}

pub(crate) fn check_depth(what: &str, text: &str, max: usize) -> Result<(), ApiError> {
    if !is_deeper_than(text.as_bytes(), max) {
        return Ok(());
    }
    let message = format!("{what} is nested deeper than {max}");
    Err(ApiError::invalid(ErrorCode::InvalidDepth, message))
}

// Calls the hook again, because the path names neither the id nor the input.
async fn ask_create(call: &Call, start: &StartRun) -> Result<(), ApiError> {
    if call.app.guard.hooks.is_none() {
        return Ok(());
    }
    let target = Target {
        workflow: Some(start.workflow.as_str()),
        id: start.id.as_ref().map(RunId::as_str),
        action: Some("create"),
        params: std::str::from_utf8(&start.input.bytes).ok(),
        ..Target::default()
    };
    call.app.guard.ask(&call.caller, Scope::Create, &target).await
}

/// Creates a run.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances", tag = "instances",
    operation_id = "createInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"), CreateParams),
    request_body = Option<CreateInstance>,
    responses((status = 200, body = Instance), (status = "default", body = Failure)))]
pub(crate) async fn create(
    call: Call,
    InWorkflow(workflow): InWorkflow,
    Params(params): Params<CreateParams>,
    headers: HeaderMap,
    MaybePayload(body): MaybePayload<CreateInstance>,
) -> ApiResult<Instance> {
    let wait = Wait::new(&call.app, params.wait_ms)?;
    let model = known_model(&call, &workflow).await?;
    let mut start = body.start(&call, workflow.clone(), model)?;
    start.trace = telemetry::trace(&headers);
    ask_create(&call, &start).await?;
    let started = call.engine.start_run(start).await?;
    // The run is created, so a failed wait answers like a request that does not wait.
    let ended = match wait {
        Some(wait) => wait_for_end(&call, &workflow, &started.id, wait).await.ok(),
        None => None,
    };
    let details = match ended {
        Some(run) => call.status_after_write(&run).await,
        None => InstanceStatus::new(RunStatus::Active, None, None),
    };
    Ok(Json(Instance { id: started.id.to_string(), details }))
}

/// The created runs.
#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedInstances {
    /// The created runs, without those whose ids already existed.
    pub instances: Vec<Instance>,
}

/// Creates many runs. Runs whose ids already exist do not change and are omitted from the response.
#[utoipa::path(post, path = "/workflows/{workflowName}/instances/batch", tag = "instances",
    operation_id = "createInstances",
    params(("workflowName" = String, Path, description = "The name of the workflow")),
    request_body = CreateInstances,
    responses((status = 200, body = CreatedInstances), (status = "default", body = Failure)))]
pub(crate) async fn batch(
    call: Call,
    InWorkflow(workflow): InWorkflow,
    headers: HeaderMap,
    Payload(body): Payload<CreateInstances>,
) -> ApiResult<CreatedInstances> {
    let max = call.app.options.batch_runs_max;
    if body.instances.len() > max {
        let message =
            format!("the batch has {} instances; the maximum is {max}", body.instances.len());
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    let model = known_model(&call, &workflow).await?;
    let trace = telemetry::trace(&headers);
    let mut starts = Vec::with_capacity(body.instances.len());
    for instance in body.instances {
        if instance.id.is_none() {
            let message = "every instance of a batch needs an id";
            return Err(ApiError::invalid(ErrorCode::InvalidInstanceId, message));
        }
        let mut start = instance.start(&call, workflow.clone(), model.clone())?;
        start.trace.clone_from(&trace);
        ask_create(&call, &start).await?;
        starts.push(start);
    }
    let started = call.engine.start_runs(starts).await?;
    let instances = started.into_iter().map(|started| Instance {
        id: started.id.to_string(),
        details: InstanceStatus::new(RunStatus::Active, None, None),
    });
    Ok(Json(CreatedInstances { instances: instances.collect() }))
}

/// Why no worker could continue a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct BlockedView {
    /// A stable code.
    #[schema(example = "NON_DETERMINISM")]
    pub code: String,
    /// The reason.
    pub message: String,
}

/// Metadata of a run.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceMeta {
    /// The name of the workflow.
    pub workflow_name: String,
    /// The generation, starting at 0.
    pub run_number: u32,
    /// The input.
    #[schema(value_type = Value)]
    pub params: Raw,
    /// When it was created.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
    /// The number of events of its ledger. `GET /live` takes it.
    pub event_count: u64,
    /// When its first turn was committed.
    pub started_at: Option<Time>,
    /// When it ended.
    pub completed_at: Option<Time>,
    /// The current step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_step: Option<StepView>,
    /// The key of this generation.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
    /// The model of the workflow.
    pub model: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The priority; higher runs first.
    pub priority: i16,
    /// The parent, if this run is a child.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub parent: Option<RunKey>,
    /// The root of the tree of parents and children.
    #[schema(value_type = String, format = Uuid)]
    pub root: RunKey,
    /// When the next turn is due, if it has a due time.
    pub next_turn_at: Option<Time>,
    /// The worker that holds the current turn.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub held_by: Option<windlass::kernel::WorkerKey>,
    /// Why the run is blocked, if no worker could continue it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockedView>,
}

/// A run.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceView {
    /// The id.
    pub id: String,
    /// The name of the workflow.
    pub workflow_name: String,
    /// The status.
    pub details: InstanceStatus,
    /// The metadata.
    pub meta: InstanceMeta,
}

impl InstanceView {
    /// Creates the view of a run, including what blocks it and whether it is being cancelled.
    pub(crate) async fn read(call: &Call, run: &Run, steps: &[Step]) -> Result<Self, ApiError> {
        let mut view = Self::of(run, steps, Kinds::of(&call.engine, run));
        view.details.cancelling = call.engine.is_cancelling(run).await?;
        if may_be_blocked(run, steps) {
            let blocked = call.engine.blocked(run).await?;
            view.meta.blocked =
                blocked.map(|found| BlockedView { code: found.code, message: found.reason });
        }
        Ok(view)
    }

    fn of(run: &Run, steps: &[Step], kinds: Kinds<'_>) -> Self {
        let step = current_step(steps).map(|step| StepView::of(step, run, kinds));
        let meta = InstanceMeta {
            workflow_name: run.workflow.to_string(),
            run_number: run.generation,
            params: raw(&run.input),
            created_at: Time(run.created_at),
            updated_at: Time(run.updated_at),
            event_count: run.head.next_ordinal,
            started_at: run.started_at.map(Time),
            completed_at: run.ended_at.map(Time),
            current_step: step,
            run_key: run.run_key,
            model: run.model.to_string(),
            labels: run.labels.clone(),
            priority: run.turn.priority,
            parent: run.parent,
            root: run.root,
            next_turn_at: run.turn.due_at.filter(|_| !run.status.is_ended()).map(Time),
            held_by: run.turn.worker,
            blocked: None,
        };
        Self {
            id: run.id.to_string(),
            workflow_name: run.workflow.to_string(),
            details: InstanceStatus::of(run),
            meta,
        }
    }
}

// The reason of a block is in the last event, which costs a query. Avoids it for most runs: a
// waiting run is due when one of its steps is, or never, but a blocked run is due at its next
// attempt.
fn may_be_blocked(run: &Run, steps: &[Step]) -> bool {
    let is_tried_again = |due| !steps.iter().any(|step| step.due_at == Some(due));
    !run.status.is_ended()
        && run.started_at.is_some()
        && run.turn.due_at.is_some_and(is_tried_again)
}

/// The newest generation of the run in the path.
pub(crate) async fn find(call: &Call, at: &AtRun) -> Result<Run, ApiError> {
    let found = call.engine.find_run(&at.workflow, &at.id).await?;
    found.ok_or_else(|| run_not_found(at.workflow.as_str(), at.id.as_str()))
}

/// Returns the run with the id `batch`, whose path is also that of a batch request.
pub(crate) async fn get_batch(
    call: Call,
    InWorkflow(workflow): InWorkflow,
) -> ApiResult<InstanceView> {
    let at = AtRun { workflow, id: RunId::new("batch")? };
    let target = Target {
        workflow: Some(at.workflow.as_str()),
        id: Some(at.id.as_str()),
        ..Target::default()
    };
    call.app.guard.ask(&call.caller, Scope::Read, &target).await?;
    get(call, at).await
}

/// Reads the large bodies of one run, for a response about this run alone.
pub(crate) async fn fill_overview(call: &Call, overview: &mut RunOverview) -> Result<(), ApiError> {
    let RunOverview { run, open_steps } = overview;
    let places = bodies::of_run(run).chain(bodies::of_steps(open_steps));
    Ok(bodies::fill(&**call.engine.store(), places).await?)
}

/// Returns a run.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}", tag = "instances",
    operation_id = "getInstance",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run")),
    responses((status = 200, body = InstanceView), (status = "default", body = Failure)))]
pub(crate) async fn get(call: Call, at: AtRun) -> ApiResult<InstanceView> {
    let namespace = call.engine.namespace().clone();
    let overview =
        call.engine.store().run_overview(namespace, at.workflow.clone(), at.id.clone()).await?;
    let mut overview =
        overview.ok_or_else(|| run_not_found(at.workflow.as_str(), at.id.as_str()))?;
    fill_overview(&call, &mut overview).await?;
    InstanceView::read(&call, &overview.run, &overview.open_steps).await.map(Json)
}
