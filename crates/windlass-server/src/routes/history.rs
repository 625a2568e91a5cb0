//! What a run did: its steps, the events that were sent to it, its log lines.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    LogId, LogLevel, LogLine, Message, MessageKind, Query, Run, RunKey, Step, StepKey,
};

use super::instances::find;
use crate::cursor::{self, Place, decode_place, encode_place};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{AtRun, Call, Params, run_not_found};
use crate::json::Json;
use crate::paging::{Direction, PAGE_BYTES_MAX, bytes_of, cut_to_bytes, page_size};
use crate::view::{EventRecord, LogRecord, StepRecord};

/// Rows that are read from the store at a time.
const STORE_ROWS: u32 = 200;
/// Messages that are read at a time at first.
const EVENT_ROWS: u32 = 16;

/// Which part of the history.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryParams {
    /// Which generation; the newest if there is none.
    run_number: Option<u32>,
    /// Rows of each page: 1 to 100. Default 25.
    page_size: Option<u32>,
    /// `stepsCursor` of the page before.
    steps_cursor: Option<String>,
    /// `eventsCursor` of the page before.
    events_cursor: Option<String>,
    /// Oldest first (`asc`, the default) or newest first (`desc`).
    #[param(inline)]
    order: Option<Direction>,
    /// Whether log lines are wanted too.
    include_logs: Option<bool>,
    /// `logsCursor` of the page before.
    logs_cursor: Option<String>,
    /// Only log lines of this level or above: `debug`, `info`, `warn`, `error`.
    log_level: Option<String>,
    /// Only log lines of this category.
    log_category: Option<String>,
}

/// A page of each.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct History {
    /// Which generation it is.
    pub run_number: u32,
    /// Its steps.
    pub steps: Vec<StepRecord>,
    /// The events that were sent to it.
    pub events: Vec<EventRecord>,
    /// Where the next page of steps begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_cursor: Option<String>,
    /// Whether there is one.
    pub steps_has_next_page: bool,
    /// Where the next page of events begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events_cursor: Option<String>,
    /// Whether there is one.
    pub events_has_next_page: bool,
    /// Its log lines, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<LogRecord>>,
    /// Where the next page of log lines begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs_cursor: Option<String>,
    /// Whether there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs_has_next_page: Option<bool>,
}

/// Tells what a run did.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/history",
    tag = "instances", operation_id = "getHistory",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id"), HistoryParams),
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
        let message = "logCategory contains NUL; no category does";
        return Err(ApiError::invalid("INVALID_TEXT", message));
    }
    let order = if newest_first { "desc" } else { "asc" };
    let (of_steps, of_events) = (format!("steps-{order}"), format!("events-{order}"));
    let of_logs =
        format!("logs-{order}-{}", cursor::digest_of(&(level, params.log_category.as_ref())));
    let steps_after = decode_place(&of_steps, params.steps_cursor.as_deref(), parse_step_cursor)?;
    let events_after: Option<Place<u64>> =
        decode_place(&of_events, params.events_cursor.as_deref(), |seq| seq.parse().ok())?;
    let logs_after: Option<Place<LogId>> =
        decode_place(&of_logs, params.logs_cursor.as_deref(), |id| id.parse().ok())?;
    let keys = [
        steps_after.as_ref().map(|place| place.run_key),
        events_after.as_ref().map(|place| place.run_key),
        logs_after.as_ref().map(|place| place.run_key),
    ];
    let run = generation_of(&call, &at, params.run_number, keys).await?;
    let (number, now) = (run.generation, call.engine.clock().now());
    let wanted = Wanted { size, newest_first };
    let steps_after = steps_after.map(|place| place.at);
    let (steps, more_steps) = steps(&call, run.run_key, steps_after, wanted).await?;
    let (events, more_events) =
        events(&call, &run, events_after.map(|place| place.at), wanted).await?;
    let logs = match params.include_logs {
        Some(true) => {
            let filter = (level, params.log_category.map(Into::into));
            let after = logs_after.map(|place| place.at);
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
            encode_place(&of_steps, key, &format!("{} {}", step.position, step.step_key))
        }),
        steps_has_next_page: more_steps,
        events_cursor: last_event
            .map(|event| encode_place(&of_events, key, &event.seq.to_string())),
        events_has_next_page: more_events,
        logs_cursor: last_log.map(|line| encode_place(&of_logs, key, &line.log_id.to_string())),
        logs_has_next_page: logs.as_ref().map(|(_, more)| *more),
        steps: steps.iter().map(|step| StepRecord::of(step, &run, now)).collect(),
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
        let message = format!("{text:?} is no level; use debug, info, warn or error");
        ApiError::invalid("INVALID_LOG_LEVEL", message)
    })
}

/// A generation of the run that a path names; the newest if none is asked for.
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

/// As [`generation`], if none is asked for the one that a cursor is of: what began in a generation goes on
/// there, whatever came after it.
pub(crate) async fn generation_of<const N: usize>(
    call: &Call,
    at: &AtRun,
    number: Option<u32>,
    cursors: [Option<RunKey>; N],
) -> Result<Run, ApiError> {
    let mut keys = cursors.into_iter().flatten();
    let Some(key) = keys.next() else { return generation(call, at, number).await };
    let looked = call.engine.store().look_at(key).await?.map(|looked| looked.run);
    let run = looked.filter(|run| {
        let named = (&run.namespace, &run.workflow, &run.id);
        named == (call.engine.namespace(), &at.workflow, &at.id)
            && number.is_none_or(|number| number == run.generation)
    });
    run.filter(|_| keys.all(|other| other == key)).ok_or_else(cursor::of_another)
}

#[derive(Clone, Copy)]
struct Wanted {
    size: usize,
    newest_first: bool,
}

impl Wanted {
    /// How many rows to ask the store for: one more than a page, to know whether there is another.
    fn rows(self) -> u32 {
        if self.newest_first { STORE_ROWS } else { self.size as u32 + 1 }
    }
}

/// The last rows of a stream, newest first, and whether there are more before them. The store lists
/// oldest first, so the newest are found by going through all; no more than a page is kept.
struct Tail<T> {
    kept: VecDeque<T>,
    wanted: Wanted,
    more: bool,
}

impl<T> Tail<T> {
    fn new(wanted: Wanted) -> Self {
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

fn cut<T>(mut rows: Vec<T>, wanted: Wanted, bytes_of: impl Fn(&T) -> usize) -> (Vec<T>, bool) {
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
    wanted: Wanted,
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
    wanted: Wanted,
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
    // Each may carry a mebibyte. Where few of them are events, more are looked through at a time.
    let mut limit = (wanted.size as u32 + 1).min(EVENT_ROWS);
    let next_limit = |limit: u32, events: usize| match events {
        0 => (limit * 2).min(STORE_ROWS),
        _ => limit,
    };
    if wanted.newest_first {
        // Messages are numbered without gaps, so the rows before a number can be asked for.
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
    wanted: Wanted,
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
