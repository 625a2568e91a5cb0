//! Routes of the model `agents`: conversations, live calls, and runs that this build cannot resume.

pub(crate) mod tokens;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;
use windlass::agents::{self, CheckPosition, Conversation};
use windlass::kernel::{ErrorCode, RunKey, RunStatus, WorkflowName};

use super::READ;
use super::history::generation_of;
use crate::cursor::{self, Position, decode_as, decode_position};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, InWorkflow, Params};
use crate::json::Json;
use crate::options::Options;
use crate::paging::{cut_to_bytes, may_read, page_size};
use crate::table::Routes;

pub(crate) fn routes(routes: Routes, _: &Options) -> Routes {
    routes
        .add(READ, routes!(transcript))
        .add(READ, routes!(tokens::tokens))
        .add(READ, routes!(list))
        .add(READ, routes!(check))
}

/// A conversation of a run.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TranscriptInfo {
    /// The name.
    pub name: String,
    /// The format of its items: `anthropic_messages` or `openai_responses`; none before the first response.
    #[schema(value_type = Option<String>)]
    pub format: Option<agents::WireFormat>,
    /// The number of items that the next request sends.
    pub items: usize,
}

/// A page of a conversation.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TranscriptPage {
    /// The generation.
    pub run_number: u32,
    /// All conversations of the run.
    pub transcripts: Vec<TranscriptInfo>,
    /// The conversation of this page; none if the run has none.
    pub name: Option<String>,
    /// Its items in the provider's own JSON, oldest first.
    #[schema(value_type = Vec<serde_json::Value>)]
    pub items: Vec<Box<RawValue>>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// The conversation and the page of it.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct TranscriptParams {
    /// The name of the conversation. Default: the first one by name.
    name: Option<String>,
    /// The generation. Default: the newest.
    run_number: Option<u32>,
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Lists the items of a conversation of an agent, as its next request would send them.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/transcript",
    tag = "agents", operation_id = "getTranscript",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), TranscriptParams),
    responses((status = 200, body = TranscriptPage), (status = "default", body = Failure)))]
pub(crate) async fn transcript(
    call: Call,
    at: AtRun,
    Params(params): Params<TranscriptParams>,
) -> ApiResult<TranscriptPage> {
    let size = page_size(params.page_size)? as usize;
    let listing = format!("transcript-{}", cursor::digest_of(&params.name));
    let from: Option<Position<usize>> =
        decode_position(&listing, params.cursor.as_deref(), |at| at.parse().ok())?;
    let keys = [from.as_ref().map(|from| from.run_key)];
    let run = generation_of(&call, &at, params.run_number, keys).await?;
    let from = from.map_or(0, |from| from.at);
    let is_agent = run.model == agents::DESCRIPTION.name;
    let found = match is_agent {
        true => agents::conversations(&call.engine, run.run_key).await?,
        false => Vec::new(),
    };
    let info = |it: &Conversation| TranscriptInfo {
        name: it.name.clone(),
        format: it.format,
        items: it.items.len(),
    };
    let transcripts: Vec<_> = found.iter().map(info).collect();
    let missing = || {
        let name = params.name.as_deref().unwrap_or_default();
        let message = match is_agent {
            true => format!("{}/{} has no transcript {name:?}", run.workflow, run.id),
            false => format!("{}/{} is no run of an agent", run.workflow, run.id),
        };
        ApiError::not_found(ErrorCode::TranscriptNotFound, message)
    };
    let wanted =
        found.into_iter().find(|it| params.name.as_deref().is_none_or(|name| it.name == name));
    if wanted.is_none() && (params.name.is_some() || !is_agent) {
        return Err(missing());
    }
    let name = wanted.as_ref().map(|it| it.name.clone());
    let items = wanted.map(|it| it.items).unwrap_or_default();
    let more = items.len() > from.saturating_add(size);
    let mut items: Vec<_> = items.into_iter().skip(from).take(size).collect();
    let cut = cut_to_bytes(&mut items, |item| item.get().len());
    let next = (more || cut).then(|| (from + items.len()).to_string());
    let next_cursor = next.map(|next| cursor::encode_position(&listing, run.run_key, &next));
    Ok(Json(TranscriptPage {
        run_number: run.generation,
        transcripts,
        name,
        items,
        has_next_page: next_cursor.is_some(),
        next_cursor,
    }))
}

/// An agent that this process serves.
#[derive(Serialize, ToSchema)]
pub(crate) struct ServedAgent {
    /// The name of its workflow.
    pub name: String,
}

/// The agents that this process serves.
#[derive(Serialize, ToSchema)]
pub(crate) struct ServedAgents {
    /// The agents, by name.
    pub agents: Vec<ServedAgent>,
}

/// Lists the agents that this process serves.
#[utoipa::path(get, path = "/agents", tag = "agents", operation_id = "listAgents",
    responses((status = 200, body = ServedAgents), (status = "default", body = Failure)))]
pub(crate) async fn list(call: Call) -> ApiResult<ServedAgents> {
    let names = call.engine.workflows().into_iter();
    let agents = names.filter(|name| agents::served(&call.engine, name).is_some());
    let agents = agents.map(|name| ServedAgent { name: name.to_string() }).collect();
    Ok(Json(ServedAgents { agents }))
}

/// A live run that this build cannot resume.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnfitRun {
    /// The id of the run.
    pub id: String,
    /// The key of its generation.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
    /// The code of the error.
    pub code: String,
    /// The reason.
    pub message: String,
}

/// A page of a check.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckPage {
    /// The number of live runs that were checked.
    pub checked: usize,
    /// Those that this build cannot resume.
    pub unfit: Vec<UnfitRun>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Whether there is a next page.
    pub has_next_page: bool,
}

/// The page of a check.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct CheckParams {
    /// The number of rows: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `nextCursor` of the previous page.
    cursor: Option<String>,
}

/// Loads the snapshots of the live runs of an agent with the build of this process, and lists those
/// that it cannot resume. Nothing runs and nothing is written.
#[utoipa::path(get, path = "/agents/{workflowName}/check", tag = "agents", operation_id = "checkAgent",
    params(("workflowName" = String, Path, description = "The name of the agent"), CheckParams),
    responses((status = 200, body = CheckPage), (status = "default", body = Failure)))]
pub(crate) async fn check(
    call: Call,
    InWorkflow(workflow): InWorkflow,
    Params(params): Params<CheckParams>,
) -> ApiResult<CheckPage> {
    let size = page_size(params.page_size)?;
    let listing = format!("check-{}", cursor::digest_of(&workflow));
    let after = decode_as(&listing, params.cursor.as_deref(), parse_position)?;
    let agent = served(&call, &workflow)?;
    let page = agents::check_page(&call.engine, &agent, after, size).await?;
    let mut unfit = Vec::new();
    for found in page.unfit {
        let overview = call.engine.store().run_overview_by_key(found.run_key).await?;
        let Some(run) = overview.map(|overview| overview.run) else { continue };
        if may_read(&call, &run).await? {
            unfit.push(UnfitRun {
                id: found.id,
                run_key: found.run_key,
                code: found.error.code().as_str().to_owned(),
                message: found.error.message().to_owned(),
            });
        }
    }
    let next_cursor = page.next.map(|next| cursor::encode(&listing, &position_text(next)));
    Ok(Json(CheckPage {
        checked: page.checked,
        unfit,
        has_next_page: next_cursor.is_some(),
        next_cursor,
    }))
}

fn served(call: &Call, workflow: &WorkflowName) -> Result<std::sync::Arc<agents::Agent>, ApiError> {
    agents::served(&call.engine, workflow).ok_or_else(|| {
        let message = format!("this process serves no agent {workflow:?}");
        ApiError::not_found(ErrorCode::AgentNotServed, message)
    })
}

fn position_text(CheckPosition { status, run_key }: CheckPosition) -> String {
    let key = run_key.map(|key| key.to_string()).unwrap_or_default();
    format!("{} {key}", status.as_str())
}

fn parse_position(text: &str) -> Option<CheckPosition> {
    let (status, key) = text.split_once(' ')?;
    let run_key = match key {
        "" => None,
        key => Some(key.parse().ok()?),
    };
    Some(CheckPosition { status: RunStatus::parse(status).ok()?, run_key })
}
