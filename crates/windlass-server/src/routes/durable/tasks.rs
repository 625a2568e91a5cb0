//! Pending and running tasks: activities and effects.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    Body, ErrorCode, Query, QueueName, RouteName, RunKey, Task, TaskCount, TaskId, TaskState,
    TasksQuery, WorkerKey,
};
use windlass_engine::TaskBody;

use super::{RunsAllowed, bounded};
use crate::app::is_internal;
use crate::auth::Scope;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Params};
use crate::json::Json;
use crate::paging::{bytes_of, cut_to_bytes, sized};
use crate::view::{Raw, Time, raw};

/// A task.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableTask {
    /// The id.
    #[schema(value_type = String, format = Uuid)]
    pub id: TaskId,
    /// The run of the task.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub workflow_id: Option<RunKey>,
    /// The step of the task.
    pub activity_id: Option<String>,
    /// The activity or effect type.
    pub activity_type: String,
    /// The queue of the task.
    pub queue: String,
    /// The input of the task.
    #[schema(value_type = Option<Value>)]
    pub input: Option<Raw>,
    /// `pending` or `claimed`.
    pub status: &'static str,
    /// The priority; higher runs first.
    pub priority: i16,
    /// When it was enqueued.
    pub scheduled_at: Time,
    /// When it is due.
    pub visible_at: Option<Time>,
    /// The worker that holds it.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub claimed_by: Option<WorkerKey>,
    /// When the worker claimed it.
    pub claimed_at: Option<Time>,
    /// The last heartbeat of the attempt.
    pub heartbeat_at: Option<Time>,
    /// The number of failed attempts.
    pub attempt: u32,
    /// The maximum number of attempts; null if unlimited.
    pub max_attempts: Option<u32>,
    /// The error of the last attempt.
    pub last_error: Option<String>,
    /// The time limit of an attempt.
    pub start_to_close_timeout_ms: Option<u64>,
    /// The maximum time between heartbeats.
    pub heartbeat_timeout_ms: Option<u64>,
}

impl DurableTask {
    fn of(task: &Task) -> Self {
        let body: Option<TaskBody> = task.body.as_ref().and_then(|body| body.read().ok());
        Self {
            id: task.task_id,
            workflow_id: task.run_key,
            activity_id: task.step_key.as_ref().map(ToString::to_string),
            activity_type: task.name.to_string(),
            queue: task.queue.to_string(),
            input: input_of(task.body.as_ref()),
            status: if task.worker.is_some() { "claimed" } else { "pending" },
            priority: task.priority,
            scheduled_at: Time(task.created_at),
            visible_at: task.due_at.map(Time),
            claimed_by: task.worker,
            claimed_at: task.claimed_at.map(Time),
            heartbeat_at: task.heartbeat_at.map(Time),
            attempt: task.attempt,
            max_attempts: body.as_ref().and_then(|body| body.retry.attempts_max()),
            last_error: last_error(task.errors.as_ref()),
            start_to_close_timeout_ms: body.as_ref().and_then(|body| body.start_to_close_ms),
            heartbeat_timeout_ms: body.and_then(|body| body.heartbeat_ms),
        }
    }
}

/// The input of a task: a field of its body, or the whole body.
pub(crate) fn input_of(body: Option<&Body>) -> Option<Raw> {
    let body = body?;
    match body.read::<TaskBody>() {
        Ok(task) => Some(task.input),
        Err(_) => Some(raw(body)),
    }
}

fn last_error(errors: Option<&Body>) -> Option<String> {
    let errors: Vec<Value> = errors?.read().ok()?;
    errors.last()?["message"].as_str().map(str::to_owned)
}

/// A page of tasks.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableTasks {
    /// The tasks, oldest first.
    pub tasks: Vec<DurableTask>,
    /// The number of matching tasks on all pages, at most 10,000 per status.
    pub total: u64,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Filters and page of the listing.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct TasksParams {
    /// Only tasks in this state: `pending`, `claimed`, `ready` or `scheduled`. `pending` includes
    /// `ready` and `scheduled`.
    #[serde(alias = "status")]
    state: Option<String>,
    /// Only tasks of this activity type.
    activity_type: Option<String>,
    /// Only tasks of this queue.
    queue: Option<String>,
    /// Only tasks of this run.
    workflow_id: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `cursor` of the previous page.
    cursor: Option<String>,
}

fn states(text: Option<&str>) -> Result<&'static [TaskState], ApiError> {
    use TaskState::{Held, Ready, Scheduled};
    Ok(match text {
        None => &[Ready, Scheduled, Held],
        Some("pending") => &[Ready, Scheduled],
        Some("ready") => &[Ready],
        Some("scheduled") => &[Scheduled],
        Some("claimed") => &[Held],
        Some(other) => {
            let message = format!(
                "{other:?} is not a task state; use one of pending, claimed, ready, scheduled"
            );
            return Err(ApiError::invalid(ErrorCode::InvalidStatus, message));
        }
    })
}

/// Lists tasks, oldest first.
#[utoipa::path(get, path = "/durable/tasks", tag = "durable", operation_id = "durableListTasks",
    params(TasksParams),
    responses((status = 200, body = DurableTasks), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    Params(params): Params<TasksParams>,
) -> ApiResult<DurableTasks> {
    let size = sized("limit", params.limit)?;
    let states = states(params.state.as_deref())?;
    let limits = &call.engine.options().limits;
    let queue = params.queue.map(|name| QueueName::with_limits(name, limits)).transpose()?;
    let name = params.activity_type.map(|name| RouteName::with_limits(name, limits)).transpose()?;
    let run_key = match params.workflow_id.as_deref() {
        Some(key) => Some(super::find(&call, key, Scope::Read, "tasks").await?.run_key),
        None => None,
    };
    let after = decode_as("durable-tasks", params.cursor.as_deref(), super::task_id)?;
    let query = TasksQuery {
        run_key,
        queue: queue.clone(),
        name: name.clone(),
        state: None,
        after,
        ..TasksQuery::all(call.engine.namespace().clone(), size + 1)
    };
    let mut tasks: Vec<Task> = Vec::new();
    for state in states {
        let query = TasksQuery { state: Some(*state), ..query.clone() };
        tasks.extend(call.engine.store().list(Query::Tasks(query)).await?.tasks()?);
    }
    tasks.sort_unstable_by_key(|task| task.task_id);
    let full = tasks.len() > size as usize;
    tasks.truncate(size as usize);
    let cut = cut_to_bytes(&mut tasks, |task| bytes_of([task.body.as_ref()]));
    let more = full || cut;
    let cursor = tasks.last().filter(|_| more).map(|task| task.task_id);
    let total = match run_key {
        // A run has few tasks, so counting them is cheap.
        Some(_) => total_of_run(&call, TasksQuery { after: None, ..query }, states).await?,
        None => {
            let namespace_stats =
                call.engine.store().namespace_stats(call.engine.namespace().clone()).await?;
            let kinds = namespace_stats.tasks.iter().filter(|kind| {
                queue.as_ref().is_none_or(|queue| kind.queue == *queue)
                    && name.as_ref().is_none_or(|name| kind.name == *name)
            });
            total(kinds.filter(|kind| is_user_task(kind)), states)
        }
    };
    let mut allowed = RunsAllowed::new(&call, Scope::Read, "tasks");
    let mut shown = Vec::new();
    for task in tasks.iter().filter(|task| !is_internal(task.queue.as_str())) {
        if allowed.allows(task.run_key).await? {
            shown.push(DurableTask::of(task));
        }
    }
    Ok(Json(DurableTasks {
        tasks: shown,
        total,
        cursor: cursor.map(|id| cursor::encode("durable-tasks", &id.to_string())),
    }))
}

/// Whether tasks belong to users and not to the engine itself.
pub(crate) fn is_user_task(kind: &TaskCount) -> bool {
    !is_internal(kind.queue.as_str())
}

fn total<'a>(kinds: impl Iterator<Item = &'a TaskCount> + Clone, states: &[TaskState]) -> u64 {
    let of = |state: &TaskState| {
        let count = |kind: &TaskCount| match state {
            TaskState::Ready => kind.ready,
            TaskState::Scheduled => kind.scheduled,
            TaskState::Held => kind.held,
        };
        bounded(kinds.clone().map(count).sum())
    };
    states.iter().map(of).sum()
}

async fn total_of_run(
    call: &Call,
    query: TasksQuery,
    states: &[TaskState],
) -> Result<u64, ApiError> {
    let limit = call.engine.options().limits.page_rows_max;
    let mut total = 0;
    for state in states {
        let query = TasksQuery { state: Some(*state), limit, ..query.clone() };
        total += call.engine.store().list(Query::Tasks(query)).await?.tasks()?.len();
    }
    Ok(total as u64)
}
