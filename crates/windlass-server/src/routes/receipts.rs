//! Receipts of effects.

use axum::extract::Path;
use serde::Serialize;
use utoipa::ToSchema;
use windlass::kernel::{ErrorCode, TaskId};
use windlass_engine::{Receipt, ReceiptOutcome};

use crate::auth::{Scope, Target};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, bad_path};
use crate::json::Json;
use crate::view::Time;

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
