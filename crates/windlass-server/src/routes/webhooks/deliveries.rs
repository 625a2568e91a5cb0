//! Deliveries of webhooks that are not settled: those that wait or are in progress, and those that were given up.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    Body, DeadLetter, ErrorCode, Query, QueueName, RouteName, RunKey, Task, TaskId, TasksQuery,
};
use windlass::webhooks::{WEBHOOK_EFFECT, display_url};
use windlass_engine::{EFFECTS_QUEUE, TaskBody};

use crate::auth::Scope;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Params};
use crate::json::Json;
use crate::paging::page_size;
use crate::routes::durable::RunsAllowed;
use crate::view::Time;

/// The effects that are webhooks: of programs, and of nodes of documents.
const EFFECTS: &[&str] = &[
    WEBHOOK_EFFECT,
    #[cfg(feature = "contracts")]
    windlass::contracts::WEBHOOK_EFFECT,
];
/// The most store pages that are read for one page of dead letters.
const STORE_PAGES_MAX: usize = 20;

/// Which deliveries are listed, and the page of them.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeliveriesParams {
    /// `pending` (waiting or in progress) or `dead` (given up). Default `pending`.
    state: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A webhook that is not delivered.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Delivery {
    /// The id of its task.
    #[schema(value_type = String, format = Uuid)]
    pub task_id: TaskId,
    /// The run that sent it.
    #[schema(value_type = Option<String>, format = Uuid)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_key: Option<RunKey>,
    /// The endpoint without its query and credentials; absent if the task cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The type of its event. Webhooks of documents have that of the document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// `pending`, `sending`, `dead`, or `requeued`: given up once, and tried again.
    pub state: &'static str,
    /// The number of failed attempts.
    pub attempts: u32,
    /// The error of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Time>,
    /// When it was enqueued, or given up.
    pub since: Time,
}

/// What all webhooks have in their input.
#[derive(Deserialize)]
struct Input {
    url: String,
    #[serde(rename = "type")]
    event_type: Option<String>,
}

impl Input {
    fn of(body: Option<&Body>) -> Option<Self> {
        let body = body?;
        match body.read::<TaskBody>() {
            Ok(task) => serde_json::from_str(task.input.get()).ok(),
            Err(_) => body.read().ok(),
        }
    }
}

impl Delivery {
    fn of_task(task: &Task) -> Self {
        let input = Input::of(task.body.as_ref());
        let errors: Option<Vec<Value>> = task.errors.as_ref().and_then(|body| body.read().ok());
        let last = errors.as_ref().and_then(|errors| errors.last()?["message"].as_str());
        Self {
            task_id: task.task_id,
            run_key: task.run_key,
            url: input.as_ref().map(|input| display_url(&input.url)),
            event_type: input.and_then(|input| input.event_type),
            state: if task.worker.is_some() { "sending" } else { "pending" },
            attempts: task.attempt,
            last_error: last.map(str::to_owned),
            due_at: task.due_at.filter(|_| task.worker.is_none()).map(Time),
            since: Time(task.created_at),
        }
    }

    fn of_letter(letter: &DeadLetter) -> Self {
        let input = Input::of(letter.body.as_ref());
        Self {
            task_id: letter.task_id,
            run_key: letter.run_key,
            url: input.as_ref().map(|input| display_url(&input.url)),
            event_type: input.and_then(|input| input.event_type),
            state: if letter.requeued_at.is_some() { "requeued" } else { "dead" },
            attempts: letter.attempt,
            last_error: Some(letter.reason.to_string()),
            due_at: None,
            since: Time(letter.dead_at),
        }
    }
}

/// A page of deliveries.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Deliveries {
    /// The deliveries, oldest first.
    pub deliveries: Vec<Delivery>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// Lists webhooks that are not delivered: those that wait or are in progress, or those that were given up. A delivered
/// one is listed nowhere; its run has a receipt if the program asked for one.
#[utoipa::path(get, path = "/webhooks/deliveries", tag = "server",
    operation_id = "listWebhookDeliveries", params(DeliveriesParams),
    responses((status = 200, body = Deliveries), (status = "default", body = Failure)))]
pub(crate) async fn deliveries(
    call: Call,
    Params(params): Params<DeliveriesParams>,
) -> ApiResult<Deliveries> {
    let size = page_size(params.page_size)? as usize;
    let state = params.state.as_deref().unwrap_or("pending");
    // A cursor belongs to one state.
    let listing = format!("deliveries-{state}");
    let after = decode_as(&listing, params.cursor.as_deref(), |id| id.parse::<TaskId>().ok())?;
    let (rows, next) = match state {
        "pending" => pending(&call, after, size).await?,
        "dead" => dead(&call, after, size).await?,
        other => {
            let shown: String = other.chars().take(80).collect();
            let message = format!("state is {shown:?}; use pending or dead");
            return Err(ApiError::invalid(ErrorCode::InvalidQuery, message));
        }
    };
    let mut allowed = RunsAllowed::new(&call, Scope::Read, "webhooks");
    let mut shown = Vec::new();
    for row in rows {
        if allowed.allows(row.run_key).await? {
            shown.push(row);
        }
    }
    let next = next.map(|id| cursor::encode(&listing, &id.to_string()));
    Ok(Json(Deliveries { deliveries: shown, has_next_page: next.is_some(), next_cursor: next }))
}

type Page = (Vec<Delivery>, Option<TaskId>);

async fn pending(call: &Call, after: Option<TaskId>, size: usize) -> Result<Page, ApiError> {
    let mut tasks: Vec<Task> = Vec::new();
    for name in EFFECTS {
        let name = Some(RouteName::new(*name)?);
        let all = TasksQuery::all(call.engine.namespace().clone(), size as u32 + 1);
        let query = Query::Tasks(TasksQuery { name, after, ..all });
        tasks.extend(call.engine.store().list(query).await?.tasks()?);
    }
    tasks.sort_unstable_by_key(|task| task.task_id);
    let more = tasks.len() > size;
    tasks.truncate(size);
    let next = tasks.last().filter(|_| more).map(|task| task.task_id);
    Ok((tasks.iter().map(Delivery::of_task).collect(), next))
}

async fn dead(call: &Call, mut after: Option<TaskId>, size: usize) -> Result<Page, ApiError> {
    let queue = Some(QueueName::from_stored(EFFECTS_QUEUE));
    let mut letters: Vec<DeadLetter> = Vec::new();
    for _ in 0..STORE_PAGES_MAX {
        let page = call.engine.dead_letters(queue.clone(), after, size as u32 + 1).await?;
        let is_last = page.len() <= size;
        after = page.last().map(|letter| letter.task_id).filter(|_| !is_last);
        letters.extend(page.into_iter().filter(|letter| EFFECTS.contains(&letter.name.as_str())));
        if letters.len() > size {
            letters.truncate(size);
            after = letters.last().map(|letter| letter.task_id);
        }
        if is_last || letters.len() == size {
            break;
        }
    }
    Ok((letters.iter().map(Delivery::of_letter).collect(), after))
}
