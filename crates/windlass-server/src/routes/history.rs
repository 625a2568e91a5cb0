//! The history of a run: its steps, received events, and log lines.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    ErrorCode, LogId, LogLevel, LogLine, Message, MessageKind, Query, Run, RunKey, Step, StepKey,
    bodies,
};

use super::instances::find;
use crate::cursor::{self, Position, decode_position, encode_position};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Params, run_not_found};
use crate::json::Json;
use crate::paging::{Direction, PAGE_BYTES_MAX, bytes_of, cut_to_bytes, page_size};
use crate::view::{EventRecord, Kinds, LogRecord, StepRecord};

/// The number of rows of one store query.
const STORE_ROWS: u32 = 200;
/// The initial number of messages of one store query.
const EVENT_ROWS: u32 = 16;

/// Pages and filters of the history.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryParams {
    /// The generation. Default: the newest.
    run_number: Option<u32>,
    /// The number of rows of each list: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `stepsCursor` of the previous page.
    steps_cursor: Option<String>,
    /// `eventsCursor` of the previous page.
    events_cursor: Option<String>,
    /// Oldest first (`asc`, the default) or newest first (`desc`).
    #[param(inline)]
    order: Option<Direction>,
    /// Whether to include log lines.
    include_logs: Option<bool>,
    /// `logsCursor` of the previous page.
    logs_cursor: Option<String>,
    /// Only log lines of this level or higher: `debug`, `info`, `warn`, `error`.
    log_level: Option<String>,
    /// Only log lines of this category.
    log_category: Option<String>,
}

/// One page each of steps, events and log lines.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct History {
    /// The generation.
    pub run_number: u32,
    /// The steps.
    pub steps: Vec<StepRecord>,
    /// The events that the run received.
    pub events: Vec<EventRecord>,
    /// The cursor of the next page of steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_cursor: Option<String>,
    /// Whether there is a next page of steps.
    pub steps_has_next_page: bool,
    /// The cursor of the next page of events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_cursor: Option<String>,
    /// Whether there is a next page of events.
    pub events_has_next_page: bool,
    /// The log lines, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<LogRecord>>,
    /// The cursor of the next page of log lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs_cursor: Option<String>,
    /// Whether there is a next page of log lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs_has_next_page: Option<bool>,
}

/// Returns the history of a run: its steps, received events, and log lines.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/history",
    tag = "instances", operation_id = "getHistory",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"), HistoryParams),
    responses((status = 200, body = History), (status = "default", body = Failure)))]
pub(crate) async fn history(
    call: Call,
    at: AtRun,
    Params(params): Params<HistoryParams>,
) -> ApiResult<History> {
    let size = page_size(params.page_size)? as usize;
    let newest_first = params.order == Some(Direction::Desc);
    let level = params.log_level.as_deref().map(parse_level).transpose()?;
    if params.log_category.as_ref().is_some_and(|category| category.contains('\0')) {
        let message = "logCategory contains NUL, which is not allowed";
        return Err(ApiError::invalid(ErrorCode::InvalidText, message));
    }
    let order = if newest_first { "desc" } else { "asc" };
    let (steps_listing, events_listing) = (format!("steps-{order}"), format!("events-{order}"));
    let logs_listing =
        format!("logs-{order}-{}", cursor::digest_of(&(level, params.log_category.as_ref())));
    let steps_after =
        decode_position(&steps_listing, params.steps_cursor.as_deref(), parse_step_cursor)?;
    let events_after: Option<Position<u64>> =
        decode_position(&events_listing, params.events_cursor.as_deref(), |seq| seq.parse().ok())?;
    let logs_after: Option<Position<LogId>> =
        decode_position(&logs_listing, params.logs_cursor.as_deref(), |id| id.parse().ok())?;
    let keys = [
        steps_after.as_ref().map(|position| position.run_key),
        events_after.as_ref().map(|position| position.run_key),
        logs_after.as_ref().map(|position| position.run_key),
    ];
    let run = generation_of(&call, &at, params.run_number, keys).await?;
    let (number, kinds) = (run.generation, Kinds::of(&call.engine, &run));
    let wanted = PageSpec { size, newest_first };
    let steps_after = steps_after.map(|position| position.at);
    let (mut steps, more_steps) = steps(&call, run.run_key, steps_after, wanted).await?;
    bodies::fill(&**call.engine.store(), bodies::of_steps(&mut steps)).await?;
    let (mut events, more_events) =
        events(&call, &run, events_after.map(|position| position.at), wanted).await?;
    bodies::fill(&**call.engine.store(), bodies::of_messages(&mut events)).await?;
    let logs = match params.include_logs {
        Some(true) => {
            let filter = (level, params.log_category.map(Into::into));
            let after = logs_after.map(|position| position.at);
            Some(logs(&call, run.run_key, filter, after, wanted).await?)
        }
        _ => None,
    };
    let key = run.run_key;
    let last_step = steps.last().filter(|_| more_steps);
    let last_event = events.last().filter(|_| more_events);
    let last_log = logs.as_ref().and_then(|(lines, more)| lines.last().filter(|_| *more));
    Ok(Json(History {
        run_number: number,
        steps_cursor: last_step.map(|step| {
            encode_position(&steps_listing, key, &format!("{} {}", step.position, step.step_key))
        }),
        steps_has_next_page: more_steps,
        events_cursor: last_event
            .map(|event| encode_position(&events_listing, key, &event.seq.to_string())),
        events_has_next_page: more_events,
        logs_cursor: last_log
            .map(|line| encode_position(&logs_listing, key, &line.log_id.to_string())),
        logs_has_next_page: logs.as_ref().map(|(_, more)| *more),
        steps: steps.iter().map(|step| StepRecord::of(step, &run, kinds)).collect(),
        events: events.iter().map(|event| EventRecord::of(event, number)).collect(),
        logs: logs.map(|(lines, _)| lines.iter().map(|line| LogRecord::of(line, number)).collect()),
    }))
}

fn parse_step_cursor(text: &str) -> Option<(u64, StepKey)> {
    let (position, key) = text.split_once(' ')?;
    Some((position.parse().ok()?, StepKey::new(key).ok()?))
}

fn parse_level(text: &str) -> Result<LogLevel, ApiError> {
    LogLevel::parse(text).map_err(|_| {
        let message = format!("{text:?} is not a level; use debug, info, warn or error");
        ApiError::invalid(ErrorCode::InvalidLogLevel, message)
    })
}

/// A generation of the run in the path. Default: the newest.
pub(crate) async fn generation(
    call: &Call,
    at: &AtRun,
    number: Option<u32>,
) -> Result<Run, ApiError> {
    let Some(number) = number else { return find(call, at).await };
    let query = Query::Generations {
        namespace: call.engine.namespace().clone(),
        workflow: at.workflow.clone(),
        id: at.id.clone(),
        before: number.checked_add(1),
        limit: 1,
    };
    let found = call.engine.store().list(query).await?.runs()?.into_iter().next();
    found
        .filter(|run| run.generation == number)
        .ok_or_else(|| run_not_found(at.workflow.as_str(), &format!("{} run {number}", at.id)))
}

/// Like [`generation`], but defaults to the generation of a cursor: paging continues in the
/// generation in which it started, even if newer ones exist.
pub(crate) async fn generation_of<const N: usize>(
    call: &Call,
    at: &AtRun,
    number: Option<u32>,
    cursors: [Option<RunKey>; N],
) -> Result<Run, ApiError> {
    let mut keys = cursors.into_iter().flatten();
    let Some(key) = keys.next() else { return generation(call, at, number).await };
    let overview = call.engine.store().run_overview_by_key(key).await?.map(|overview| overview.run);
    let run = overview.filter(|run| {
        let named = (&run.namespace, &run.workflow, &run.id);
        named == (call.engine.namespace(), &at.workflow, &at.id)
            && number.is_none_or(|number| number == run.generation)
    });
    run.filter(|_| keys.all(|other| other == key)).ok_or_else(cursor::wrong_listing)
}

#[derive(Clone, Copy)]
struct PageSpec {
    size: usize,
    newest_first: bool,
}

impl PageSpec {
    /// The number of rows to query: one more than a page, to detect a next page.
    fn rows(self) -> u32 {
        if self.newest_first { STORE_ROWS } else { self.size as u32 + 1 }
    }
}

/// The last rows of a stream, newest first, and whether earlier rows exist. The store lists oldest
/// first, so all rows are read, but at most one page is kept.
struct Tail<T> {
    kept: VecDeque<T>,
    wanted: PageSpec,
    more: bool,
}

impl<T> Tail<T> {
    fn new(wanted: PageSpec) -> Self {
        Self { kept: VecDeque::new(), wanted, more: false }
    }

    fn push(&mut self, row: T) {
        self.kept.push_back(row);
        if self.kept.len() > self.wanted.size {
            self.kept.pop_front();
            self.more = true;
        }
    }

    fn finish(self, bytes_of: impl Fn(&T) -> usize) -> (Vec<T>, bool) {
        let mut rows: Vec<T> = self.kept.into_iter().rev().collect();
        let cut = cut_to_bytes(&mut rows, bytes_of);
        (rows, cut || self.more)
    }
}

fn cut<T>(mut rows: Vec<T>, wanted: PageSpec, bytes_of: impl Fn(&T) -> usize) -> (Vec<T>, bool) {
    let more = rows.len() > wanted.size;
    rows.truncate(wanted.size);
    let cut = cut_to_bytes(&mut rows, bytes_of);
    (rows, cut || more)
}

fn step_bytes(step: &Step) -> usize {
    bytes_of([step.result.as_ref(), step.error.as_ref()])
}

fn event_bytes(event: &Message) -> usize {
    bytes_of([event.body.as_ref()])
}

fn line_bytes(line: &LogLine) -> usize {
    line.message.len() + bytes_of([line.data.as_ref()])
}

async fn steps(
    call: &Call,
    run_key: RunKey,
    cursor: Option<(u64, StepKey)>,
    wanted: PageSpec,
) -> Result<(Vec<Step>, bool), ApiError> {
    let limit = wanted.rows();
    let list = async |after| {
        let query = Query::Steps { run_key, after, limit };
        call.engine.store().list(query).await?.steps()
    };
    if !wanted.newest_first {
        return Ok(cut(list(cursor).await?, wanted, step_bytes));
    }
    let mut tail = Tail::new(wanted);
    let mut after = None;
    loop {
        let page = list(after).await?;
        let is_last = page.len() < limit as usize;
        after = page.last().map(|step| (step.position, step.step_key.clone()));
        for step in page {
            let key = (step.position, step.step_key.clone());
            if cursor.as_ref().is_some_and(|before| key >= *before) {
                return Ok(tail.finish(step_bytes));
            }
            tail.push(step);
        }
        if is_last {
            return Ok(tail.finish(step_bytes));
        }
    }
}

async fn events(
    call: &Call,
    run: &Run,
    cursor: Option<u64>,
    wanted: PageSpec,
) -> Result<(Vec<Message>, bool), ApiError> {
    let list = async |after, limit| {
        let query = Query::Messages { run_key: run.run_key, after, limit };
        call.engine.store().list(query).await?.messages()
    };
    let is_event = |message: &Message| message.kind == MessageKind::Event;
    let mut found: Vec<Message> = Vec::new();
    let full = |found: &Vec<Message>| {
        let bytes: usize = found.iter().map(event_bytes).sum();
        found.len() > wanted.size || bytes > PAGE_BYTES_MAX
    };
    // Each message may be 1 MiB, so few are read at a time. If none of them is an event, the page
    // grows.
    let mut limit = (wanted.size as u32 + 1).min(EVENT_ROWS);
    let next_limit = |limit: u32, events: usize| match events {
        0 => (limit * 2).min(STORE_ROWS),
        _ => limit,
    };
    if wanted.newest_first {
        // Message numbers have no gaps, so the rows before a number can be queried.
        let mut before = cursor.unwrap_or(u64::MAX).min(run.accepted + 1);
        while before > 1 && !full(&found) {
            let after = (before - 1).saturating_sub(u64::from(limit));
            let page = list(after, limit).await?;
            let older = page.into_iter().filter(|message| message.seq < before);
            let events: Vec<Message> = older.rev().filter(is_event).collect();
            limit = next_limit(limit, events.len());
            found.extend(events);
            before = after + 1;
        }
        return Ok(cut(found, wanted, event_bytes));
    }
    let mut after = cursor.unwrap_or(0);
    loop {
        let page = list(after, limit).await?;
        let is_last = page.len() < limit as usize;
        after = page.last().map_or(after, |message| message.seq);
        let events: Vec<Message> = page.into_iter().filter(is_event).collect();
        limit = next_limit(limit, events.len());
        found.extend(events);
        if is_last || full(&found) {
            return Ok(cut(found, wanted, event_bytes));
        }
    }
}

async fn logs(
    call: &Call,
    run_key: RunKey,
    (level_min, category): (Option<LogLevel>, Option<std::sync::Arc<str>>),
    cursor: Option<LogId>,
    wanted: PageSpec,
) -> Result<(Vec<LogLine>, bool), ApiError> {
    let limit = wanted.rows();
    let list = async |after| {
        let category = category.clone();
        let query = Query::Logs { run_key, level_min, category, after, limit };
        call.engine.store().list(query).await?.logs()
    };
    if !wanted.newest_first {
        return Ok(cut(list(cursor).await?, wanted, line_bytes));
    }
    let mut tail = Tail::new(wanted);
    let mut after = None;
    loop {
        let page = list(after).await?;
        let is_last = page.len() < limit as usize;
        after = page.last().map(|line| line.log_id);
        for line in page {
            if cursor.is_some_and(|before| line.log_id >= before) {
                return Ok(tail.finish(line_bytes));
            }
            tail.push(line);
        }
        if is_last {
            return Ok(tail.finish(line_bytes));
        }
    }
}
