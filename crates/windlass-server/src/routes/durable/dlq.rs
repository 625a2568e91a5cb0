//! Dead letters: tasks that failed permanently.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use utoipa::{IntoParams, ToSchema};
use windlass::kernel::{
    DeadLetter, ErrorCode, QueueName, RouteName, RunKey, TaskId, Timestamp, parse_duration,
};
use windlass_engine::Requeued;

use super::tasks::input_of;
use super::{RunsAllowed, ask, bounded, task_id};
use crate::auth::Scope;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Incoming, Named, Params, Payload};
use crate::json::Json;
use crate::paging::{bytes_of, cut_to_bytes, sized};
use crate::view::{Raw, Time, parse_time, raw};

/// The maximum number of store pages that are read for one page of a response.
const STORE_PAGES_MAX: usize = 20;

/// A dead letter: a task that failed permanently.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableLetter {
    /// The id.
    #[schema(value_type = String, format = Uuid)]
    pub id: TaskId,
    /// The id of the task; same as `id`.
    #[schema(value_type = String, format = Uuid)]
    pub original_task_id: TaskId,
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
    /// The number of attempts.
    pub attempts: u32,
    /// The last error.
    pub last_error: String,
    /// The errors of the last 20 attempts.
    #[schema(value_type = Value)]
    pub error_history: Raw,
    /// When the task failed permanently.
    pub dead_at: Time,
    /// When it was requeued, if it has not failed again since.
    pub requeued_at: Option<Time>,
    /// The number of requeues.
    pub requeue_count: u32,
}

impl DurableLetter {
    fn of(letter: &DeadLetter) -> Result<Self, ApiError> {
        let none = || to_raw_value(&json!([]));
        let errors = letter.errors.as_ref().map_or_else(none, |errors| Ok(raw(errors)));
        let errors = errors.map_err(|error| {
            windlass::Error::new(
                windlass::ErrorKind::Internal,
                ErrorCode::Internal,
                error.to_string(),
            )
        })?;
        Ok(Self {
            id: letter.task_id,
            original_task_id: letter.task_id,
            workflow_id: letter.run_key,
            activity_id: letter.step_key.as_ref().map(ToString::to_string),
            activity_type: letter.name.to_string(),
            queue: letter.queue.to_string(),
            input: input_of(letter.body.as_ref()),
            attempts: letter.attempt,
            last_error: letter.reason.to_string(),
            error_history: errors,
            dead_at: Time(letter.dead_at),
            requeued_at: letter.requeued_at.map(Time),
            requeue_count: letter.requeues,
        })
    }
}

/// A page of dead letters.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableLetters {
    /// The dead letters, oldest task first. A requeued entry stays until it is deleted.
    pub entries: Vec<DurableLetter>,
    /// The number of matching entries on all pages, at most 10,000. The filter by run does not count.
    pub total: u64,
    /// The open entries of this page by activity type and error, the largest group first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<LetterGroup>>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Dead letters with the same error.
#[derive(Serialize, ToSchema)]
pub(crate) struct LetterGroup {
    /// The activity or effect type.
    pub activity_type: String,
    /// The error, with `#` for numbers. `POST /durable/dlq/requeue` takes it.
    pub error: String,
    /// The number of entries.
    pub count: usize,
}

/// Filters and page of the listing.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LettersParams {
    /// Only entries of this activity type.
    activity_type: Option<String>,
    /// Only entries of this queue.
    queue: Option<String>,
    /// Only entries of the run with this run key.
    workflow_id: Option<String>,
    /// `error`: the response also has the entries of this page by activity type and error. Numbers in the
    /// errors do not count.
    group: Option<String>,
    /// The number of rows: 1 to 100. Default 25.
    limit: Option<u32>,
    /// `cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists dead letters.
#[utoipa::path(get, path = "/durable/dlq", tag = "durable", operation_id = "durableListDlq",
    params(LettersParams),
    responses((status = 200, body = DurableLetters), (status = "default", body = Failure)))]
pub(crate) async fn list(
    call: Call,
    Params(params): Params<LettersParams>,
) -> ApiResult<DurableLetters> {
    let size = sized("limit", params.limit)? as usize;
    let limits = &call.engine.options().limits;
    let queue = params.queue.map(|name| QueueName::with_limits(name, limits)).transpose()?;
    let name = params.activity_type.map(|name| RouteName::with_limits(name, limits)).transpose()?;
    let wanted = Wanted { name, run_key: run_key(params.workflow_id.as_deref())?, error: None };
    let by_error = by_error(params.group.as_deref())?;
    let mut after = decode_as("durable-dlq", params.cursor.as_deref(), task_id)?;
    let namespace_stats =
        call.engine.store().namespace_stats(call.engine.namespace().clone()).await?;
    let kinds = namespace_stats.letters.iter().filter(|kind| {
        queue.as_ref().is_none_or(|queue| kind.queue == *queue)
            && wanted.name.as_ref().is_none_or(|name| kind.name == *name)
    });
    let total = bounded(kinds.map(|kind| kind.count).sum());
    let mut letters: Vec<DeadLetter> = Vec::new();
    let mut next = None;
    for _ in 0..STORE_PAGES_MAX {
        let page = call.engine.dead_letters(queue.clone(), after, size as u32 + 1).await?;
        let is_last = page.len() <= size;
        after = page.last().map(|letter| letter.task_id);
        letters.extend(page.into_iter().filter(|letter| wanted.has(letter)));
        next = after.filter(|_| !is_last);
        if letters.len() > size {
            letters.truncate(size);
            next = letters.last().map(|letter| letter.task_id);
        }
        let bytes = |letter: &DeadLetter| bytes_of([letter.body.as_ref(), letter.errors.as_ref()]);
        let cut = cut_to_bytes(&mut letters, bytes);
        if cut {
            next = letters.last().map(|letter| letter.task_id);
        }
        if cut || is_last || letters.len() == size {
            break;
        }
    }
    let mut allowed = RunsAllowed::new(&call, Scope::Read, "dlq");
    let mut entries = Vec::new();
    for letter in &letters {
        if allowed.allows(letter.run_key).await? {
            entries.push(DurableLetter::of(letter)?);
        }
    }
    let cursor = next.map(|id| cursor::encode("durable-dlq", &id.to_string()));
    let groups = by_error.then(|| groups(&entries));
    Ok(Json(DurableLetters { entries, total, groups, cursor }))
}

// Which letters a listing or a bulk action selects, besides the queue.
struct Wanted {
    name: Option<RouteName>,
    run_key: Option<RunKey>,
    error: Option<String>,
}

impl Wanted {
    fn has(&self, letter: &DeadLetter) -> bool {
        self.name.as_ref().is_none_or(|name| letter.name == *name)
            && self.run_key.is_none_or(|run_key| letter.run_key == Some(run_key))
            && self.error.as_ref().is_none_or(|error| error_kind(&letter.reason) == *error)
    }
}

fn run_key(text: Option<&str>) -> Result<Option<RunKey>, ApiError> {
    let parse = |text: &str| {
        text.parse().map_err(|_| {
            let shown: String = text.chars().take(80).collect();
            let message = format!("workflow_id {shown:?} is not a run key");
            ApiError::invalid(ErrorCode::InvalidQuery, message)
        })
    };
    text.map(parse).transpose()
}

fn by_error(group: Option<&str>) -> Result<bool, ApiError> {
    match group {
        None => Ok(false),
        Some("error") => Ok(true),
        Some(other) => {
            let shown: String = other.chars().take(80).collect();
            let message = format!("group is {shown:?}; use error");
            Err(ApiError::invalid(ErrorCode::InvalidQuery, message))
        }
    }
}

/// The longest text of a group.
const ERROR_CHARS_MAX: usize = 300;

/// An error without what differs from task to task: runs of digits become `#`.
fn error_kind(error: &str) -> String {
    let mut kind = String::new();
    let mut count = 0;
    let mut in_number = false;
    for c in error.chars() {
        let is_digit = c.is_ascii_digit();
        if !(is_digit && in_number) {
            if count == ERROR_CHARS_MAX {
                break;
            }
            kind.push(if is_digit { '#' } else { c });
            count += 1;
        }
        in_number = is_digit;
    }
    kind
}

fn groups(entries: &[DurableLetter]) -> Vec<LetterGroup> {
    let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.requeued_at.is_none()) {
        *counts.entry((&entry.activity_type, error_kind(&entry.last_error))).or_default() += 1;
    }
    let group = |((name, error), count): ((&str, String), usize)| LetterGroup {
        activity_type: name.to_owned(),
        error,
        count,
    };
    let mut groups: Vec<LetterGroup> = counts.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.count));
    groups
}

fn not_found(key: &str) -> ApiError {
    let shown: String = key.chars().take(80).collect();
    ApiError::not_found(ErrorCode::DeadLetterNotFound, format!("unknown dead letter {shown:?}"))
}

// The dead letter in the path, if the hook allows managing its run.
async fn find(call: &Call, key: &str, action: &str) -> Result<DeadLetter, ApiError> {
    let id = task_id(key).ok_or_else(|| not_found(key))?;
    let letter = call.engine.dead_letter(id).await?;
    if let Some(run_key) = letter.run_key
        && let Some(overview) = call.engine.store().run_overview_by_key(run_key).await?
    {
        ask(call, &overview.run, Scope::Manage, action).await?;
    }
    Ok(letter)
}

/// The result of a requeue.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableRequeued {
    /// Always true.
    pub requeued: bool,
    /// The queued task, if the dead letter was an effect.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub task_id: Option<TaskId>,
    /// The new generation of the run, if its run had failed.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub workflow_id: Option<RunKey>,
}

/// Retries a dead letter: an effect is queued again, any other task retries its failed run.
#[utoipa::path(post, path = "/durable/dlq/{id}/requeue", tag = "durable",
    operation_id = "durableRequeue",
    params(("id" = String, Path, description = "The id of the dead letter")),
    responses((status = 200, body = DurableRequeued), (status = "default", body = Failure)))]
pub(crate) async fn requeue(call: Call, Named(key): Named) -> ApiResult<DurableRequeued> {
    let letter = find(&call, &key, "requeue").await?;
    let requeued = call.engine.requeue(letter.task_id, call.caller.actor.clone()).await?;
    let (task_id, workflow_id) = match requeued {
        Requeued::Task(task_id) => (Some(task_id), None),
        Requeued::Run(run_key) => (None, Some(run_key)),
    };
    Ok(Json(DurableRequeued { requeued: true, task_id, workflow_id }))
}

/// Selects dead letters to requeue.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequeueFilter {
    /// Only entries of this activity type.
    activity_type: Option<String>,
    /// Only entries of this queue.
    queue: Option<String>,
    /// Only entries of the run with this run key.
    workflow_id: Option<String>,
    /// Only entries with this error, as a group of the listing has it: with `#` for numbers.
    error: Option<String>,
}

/// A requeue of many dead letters.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequeueMany {
    /// The entries. Those that were requeued already are left out.
    filter: RequeueFilter,
    /// Only count the entries.
    #[serde(default)]
    dry_run: bool,
    /// The maximum number of entries: 1 to 1,000. Default 1,000.
    limit: Option<u32>,
}

impl Incoming for RequeueMany {}

/// An entry that could not be requeued.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequeueFailure {
    /// The id of the dead letter.
    #[schema(value_type = String, format = Uuid)]
    pub id: TaskId,
    /// A stable code.
    #[schema(value_type = String)]
    pub code: ErrorCode,
    /// The reason.
    pub message: String,
}

/// The result of a requeue of many dead letters.
#[derive(Serialize, ToSchema)]
pub(crate) struct RequeuedMany {
    /// Whether the entries were only counted.
    pub dry_run: bool,
    /// The number of matching entries, up to the limit.
    pub matched: u64,
    /// The number of requeued entries.
    pub done: u64,
    /// The entries that could not be requeued. A run that failed with several tasks is retried once.
    pub failed: Vec<RequeueFailure>,
    /// Whether further entries may match because a limit was reached. Send the request again to continue.
    pub more: bool,
}

const REQUEUE_MAX: u32 = 1_000;
const REQUEUE_PAGE: u32 = 100;
/// The time limit of one request.
const REQUEUE_TIME_MAX: Duration = Duration::from_secs(10);

/// Retries all dead letters that match a filter, or counts them.
#[utoipa::path(post, path = "/durable/dlq/requeue", tag = "durable",
    operation_id = "durableRequeueMany", request_body = RequeueMany,
    responses((status = 200, body = RequeuedMany), (status = "default", body = Failure)))]
pub(crate) async fn requeue_many(
    call: Call,
    Payload(body): Payload<RequeueMany>,
) -> ApiResult<RequeuedMany> {
    let limit = body.limit.unwrap_or(REQUEUE_MAX);
    if !(1..=REQUEUE_MAX).contains(&limit) {
        let message = format!("limit is {limit}; use 1 to {REQUEUE_MAX}");
        return Err(ApiError::invalid(ErrorCode::InvalidSize, message));
    }
    let limits = &call.engine.options().limits;
    let RequeueFilter { activity_type, queue, workflow_id, error } = body.filter;
    let queue = queue.map(|name| QueueName::with_limits(name, limits)).transpose()?;
    let name = activity_type.map(|name| RouteName::with_limits(name, limits)).transpose()?;
    let wanted = Wanted { name, run_key: run_key(workflow_id.as_deref())?, error };
    let until = Instant::now() + REQUEUE_TIME_MAX.min(call.app.options.request_timeout / 2);
    let mut allowed = RunsAllowed::new(&call, Scope::Manage, "requeue");
    let mut result = RequeuedMany {
        dry_run: body.dry_run,
        matched: 0,
        done: 0,
        failed: Vec::new(),
        more: false,
    };
    let mut after = None;
    loop {
        let page = match call.engine.dead_letters(queue.clone(), after, REQUEUE_PAGE).await {
            // Some entries were requeued, so the response must say so.
            Err(_) if result.done > 0 => {
                result.more = true;
                return Ok(Json(result));
            }
            page => page?,
        };
        after = page.last().map(|letter| letter.task_id);
        let is_last = page.len() < REQUEUE_PAGE as usize;
        for letter in page.iter().filter(|one| one.requeued_at.is_none() && wanted.has(one)) {
            if !allowed.allows(letter.run_key).await? {
                continue;
            }
            if result.matched == u64::from(limit) || Instant::now() > until {
                result.more = true;
                return Ok(Json(result));
            }
            result.matched += 1;
            if !body.dry_run {
                requeue_one(&call, letter, &mut result).await;
            }
        }
        if is_last {
            return Ok(Json(result));
        }
    }
}

async fn requeue_one(call: &Call, letter: &DeadLetter, result: &mut RequeuedMany) {
    match call.engine.requeue(letter.task_id, call.caller.actor.clone()).await {
        Ok(_) => result.done += 1,
        Err(error) => result.failed.push(RequeueFailure {
            id: letter.task_id,
            code: error.code(),
            message: error.message().to_owned(),
        }),
    }
}

/// The result of a deletion.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableDeleted {
    /// Always true.
    pub deleted: bool,
}

/// Deletes a dead letter. Its run does not change.
#[utoipa::path(delete, path = "/durable/dlq/{id}", tag = "durable",
    operation_id = "durableDeleteLetter",
    params(("id" = String, Path, description = "The id of the dead letter")),
    responses((status = 200, body = DurableDeleted), (status = "default", body = Failure)))]
pub(crate) async fn delete(call: Call, Named(key): Named) -> ApiResult<DurableDeleted> {
    let letter = find(&call, &key, "delete").await?;
    match call.engine.delete_dead_letters(vec![letter.task_id]).await? {
        0 => Err(not_found(&key)),
        _ => Ok(Json(DurableDeleted { deleted: true })),
    }
}

/// Selects dead letters to delete.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Purge {
    /// The minimum age, as a duration such as `7 days` or a number of seconds; or the time (RFC
    /// 3339) before which the tasks failed.
    #[schema(value_type = Value)]
    older_than: Value,
    /// Only entries of this queue.
    queue: Option<String>,
}

impl Incoming for Purge {}

/// The result of a purge.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurablePurged {
    /// The number of deleted entries.
    pub purged: u64,
}

/// Deletes all dead letters that are older than a given time, requeued or not.
#[utoipa::path(post, path = "/durable/dlq/purge", tag = "durable", operation_id = "durablePurge",
    request_body = Purge,
    responses((status = 200, body = DurablePurged), (status = "default", body = Failure)))]
pub(crate) async fn purge(call: Call, Payload(body): Payload<Purge>) -> ApiResult<DurablePurged> {
    let now = call.engine.store().now().await?;
    let before = before(&body.older_than, now)?;
    let limits = &call.engine.options().limits;
    let queue = body.queue.map(|name| QueueName::with_limits(name, limits)).transpose()?;
    let purged = match call.app.guard.hooks.is_some() {
        true => purge_allowed(&call, queue, before).await?,
        false => call.engine.purge_dead_letters_before(queue, before).await?,
    };
    Ok(Json(DurablePurged { purged }))
}

// Deletes the letters of the runs that the hook allows to manage.
async fn purge_allowed(
    call: &Call,
    queue: Option<QueueName>,
    before: Timestamp,
) -> Result<u64, ApiError> {
    let limit = call.engine.options().limits.page_rows_max;
    let mut allowed = RunsAllowed::new(call, Scope::Manage, "purge");
    let (mut purged, mut after) = (0, None);
    loop {
        let page = call.engine.dead_letters(queue.clone(), after, limit).await;
        let page = match page {
            Err(error) if purged > 0 => return Err(windlass_engine::after_write(error).into()),
            page => page?,
        };
        after = page.last().map(|letter| letter.task_id);
        let is_last = page.len() < limit as usize;
        let mut old = Vec::new();
        for letter in page.into_iter().filter(|letter| letter.dead_at < before) {
            if allowed.allows(letter.run_key).await? {
                old.push(letter.task_id);
            }
        }
        if !old.is_empty() {
            purged += call.engine.delete_dead_letters(old).await?;
        }
        if is_last {
            return Ok(purged);
        }
    }
}

fn before(text: &Value, now: Timestamp) -> Result<Timestamp, ApiError> {
    let span = match text {
        Value::Number(number) => {
            let seconds = number.as_f64().filter(|seconds| *seconds >= 0.0);
            seconds.and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok())
        }
        Value::String(text) => {
            if let Some(time) = parse_time(text) {
                return Ok(time);
            }
            parse_duration(text).ok()
        }
        _ => None,
    };
    span.map(|span| now.minus(span)).ok_or_else(|| {
        let message = format!(
            "older_than {text} is not one of: a duration such as \"7 days\", a number of seconds such as \
             604800, an RFC 3339 time such as \"2026-03-01T12:00:00Z\""
        );
        ApiError::invalid(ErrorCode::InvalidDuration, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_grouped_without_their_numbers() {
        assert_eq!(error_kind("order 4711 of 2026: HTTP 503"), "order # of #: HTTP #");
        assert_eq!(error_kind(""), "");
        let long = "ab".repeat(500);
        assert_eq!(error_kind(&long).len(), ERROR_CHARS_MAX);
        assert_eq!(error_kind(&format!("{}{}", "9".repeat(500), "x")), "#x");
    }

    #[test]
    fn ages_are_durations_seconds_or_times() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let at = |value: Value| before(&value, now).map(|at| now.since(at).as_millis());
        assert_eq!(at(json!("1 hour")).unwrap(), 3_600_000);
        assert_eq!(at(json!(1.5)).unwrap(), 1_500);
        assert_eq!(at(json!(0)).unwrap(), 0);
        assert_eq!(at(json!("2023-11-14T22:13:19Z")).unwrap(), 1_000);
        for wrong in [json!("soon"), json!(-1), json!(null), json!([]), json!(1e300)] {
            let error = at(wrong).unwrap_err();
            assert_eq!(error.code(), "INVALID_DURATION");
            assert!(error.message().contains("RFC 3339"), "{}", error.message());
        }
    }
}
