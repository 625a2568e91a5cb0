//! Receipts of effects.

use axum::extract::Path;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{ErrorCode, TaskId};
use windlass_engine::{Receipt, ReceiptOutcome};

use super::history::generation_of;
use crate::auth::{Scope, Target};
use crate::cursor::{self, Position, decode_position};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Params, bad_path};
use crate::json::Json;
use crate::paging::page_size;
use crate::view::Time;

/// The generation and the page of a listing.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// The generation. Default: the newest.
    run_number: Option<u32>,
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// A page of receipts.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReceiptList {
    /// The receipts, by the id of their task.
    pub receipts: Vec<ReceiptView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Same as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// The outcome of an effect.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReceiptView {
    /// The id of the effect's task.
    pub task_id: String,
    /// The type of the effect.
    pub name: String,
    /// The key of the run that enqueued it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_key: Option<String>,
    /// `delivered`, `dead`, or `requeued` (given up, and tried again).
    #[schema(value_type = String)]
    pub outcome: ReceiptOutcome,
    /// The number of attempts, those before a requeue included.
    pub attempts: u32,
    /// How often it was requeued.
    pub requeues: u32,
    /// When it was enqueued.
    pub enqueued_at: Time,
    /// When the outcome was written.
    pub settled_at: Time,
    /// The error of the last attempt of a dead effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ReceiptErrorView>,
}

/// The error of an attempt.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReceiptErrorView {
    /// Its name.
    pub name: String,
    /// Its message.
    pub message: String,
}

impl From<Receipt> for ReceiptView {
    fn from(receipt: Receipt) -> Self {
        Self {
            task_id: receipt.task_id.to_string(),
            name: receipt.name,
            run_key: receipt.run_key.map(|run_key| run_key.to_string()),
            outcome: receipt.outcome,
            attempts: receipt.attempts,
            requeues: receipt.requeues,
            enqueued_at: Time(receipt.enqueued_at),
            settled_at: Time(receipt.settled_at),
            error: receipt
                .error
                .map(|error| ReceiptErrorView { name: error.name, message: error.message }),
        }
    }
}

/// Returns the receipt of an effect that asked for one.
#[utoipa::path(get, path = "/receipts/{taskId}", tag = "effects", operation_id = "getReceipt",
    params(("taskId" = String, Path, description = "The id of the effect's task")),
    responses((status = 200, body = ReceiptView), (status = "default", body = Failure)))]
pub(crate) async fn get(
    call: Call,
    path: Result<Path<String>, axum::extract::rejection::PathRejection>,
) -> ApiResult<ReceiptView> {
    let Path(text) = path.map_err(|error| bad_path(&error))?;
    let not_found = || {
        let shown: String = text.chars().take(40).collect();
        let message = format!("there is no receipt of task {shown:?}");
        ApiError::not_found(ErrorCode::RecordNotFound, message)
    };
    let task_id: TaskId = text.parse().map_err(|_| not_found())?;
    let receipt = call.engine.receipt(task_id).await?.ok_or_else(not_found)?;
    // The hook decides by the run, which the path does not name.
    if let Some(run_key) = receipt.run_key
        && let Some(overview) = call.engine.store().run_overview_by_key(run_key).await?
    {
        let (workflow, id) = (overview.run.workflow.as_str(), overview.run.id.as_str());
        let action = Some("receipt");
        let target = Target { workflow: Some(workflow), id: Some(id), action, ..Target::default() };
        call.app.guard.ask(&call.caller, Scope::Read, &target).await?;
    }
    Ok(Json(receipt.into()))
}

/// Lists the receipts of a run's effects. An effect has one if it asked for it and is settled.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/receipts",
    tag = "effects", operation_id = "listReceipts",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), ListParams),
    responses((status = 200, body = ReceiptList), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    at: AtRun,
    Params(params): Params<ListParams>,
) -> ApiResult<ReceiptList> {
    let size = page_size(params.page_size)?;
    let cursor = params.cursor.as_deref();
    let after: Option<Position<TaskId>> =
        decode_position("receipts", cursor, |id| id.parse().ok())?;
    let keys = [after.as_ref().map(|after| after.run_key)];
    let run = generation_of(&call, &at, params.run_number, keys).await?;
    let after = after.map(|after| after.at);
    let mut receipts = call.engine.receipts(run.run_key, after, size + 1).await?;
    let more = receipts.len() > size as usize;
    receipts.truncate(size as usize);
    let last = receipts.last().filter(|_| more);
    let next = last
        .map(|last| cursor::encode_position("receipts", run.run_key, &last.task_id.to_string()));
    Ok(Json(ReceiptList {
        receipts: receipts.into_iter().map(ReceiptView::from).collect(),
        has_next_page: next.is_some(),
        next_cursor: next.clone(),
        cursor: next,
    }))
}
