//! The export of a run: everything that the store keeps of it, as `windlass import` reads it.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use windlass::ErrorCode;
use windlass::admin::transfer::export_run;

use super::history::generation;
use crate::error::{ApiError, Failure};
use crate::extract::{AtRun, Call, Params};

/// A run with more events is exported by the command line, which reads the store itself.
const EVENTS_MAX: u64 = 50_000;

/// Selects the generation.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct ExportParams {
    /// The generation. Default: the newest.
    run_number: Option<u32>,
}

/// Exports one generation of a run as a line of JSON, with its steps, events, messages, tasks and logs. `windlass
/// import` reads the line. It has the bodies of tasks and unread messages, so it needs the scope `manage`.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/export",
    tag = "instances", operation_id = "exportRun",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), ExportParams),
    responses((status = 200, content_type = "application/x-ndjson", body = String),
        (status = "default", body = Failure)))]
pub(crate) async fn export(
    call: Call,
    at: AtRun,
    Params(params): Params<ExportParams>,
) -> Result<Response, ApiError> {
    let run = generation(&call, &at, params.run_number).await?;
    if run.head.next_ordinal > EVENTS_MAX {
        let message = format!(
            "the run has {} events, and at most {EVENTS_MAX} are exported over HTTP; use `windlass export`",
            run.head.next_ordinal
        );
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    let found = export_run(&**call.engine.store(), run.run_key).await?;
    let found =
        found.ok_or_else(|| crate::extract::run_not_found(at.workflow.as_str(), at.id.as_str()))?;
    let mut line = found.to_line()?;
    if !line.ends_with('\n') {
        line.push('\n');
    }
    // The name has only characters that need no escape.
    let name = format!("attachment; filename=\"{}.jsonl\"", run.run_key);
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson".to_owned()),
        (header::CONTENT_DISPOSITION, name),
    ];
    Ok((headers, line).into_response())
}
