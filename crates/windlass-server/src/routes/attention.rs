//! Items that need an operator: failed runs, blocked and stuck runs, workflows without a worker, dead letters,
//! open breakers, a late queue, a store that refuses writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join_all;
use serde::Serialize;
use utoipa::ToSchema;
use windlass::RunStatus;
use windlass::kernel::{Order, Query, Run, RunsQuery, Timestamp, Turn};

use super::durable::tasks::is_user_task;
use super::queues::Count;
use crate::app::is_internal;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::Call;
use crate::json::Json;
use crate::paging::may_read;
use crate::view::Time;

/// Failed runs are shown if they failed within this time.
const ERRORED_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// The most failed runs that are counted.
const ERRORED_MAX: usize = 200;
/// Runs are read in pages of this size.
const PAGE: u32 = 200;
/// The most pages of failed runs that are read. No index has the time of the failure, so the newest runs are
/// searched.
const ERRORED_PAGES_MAX: usize = 5;
/// The most runs whose last event is read.
const BLOCKED_MAX: usize = 50;
/// The times of one commit differ by less.
const SAME_COMMIT: Duration = Duration::from_secs(5);
/// A task or turn that has been due for longer is late.
const LATE_AFTER: Duration = Duration::from_secs(60);

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Finding {
    /// The store refuses writes.
    StoreRefusesWrites,
    /// No live worker accepts work.
    NoWorker,
    /// A workflow has open runs, and no live worker serves it.
    Unserved,
    /// Runs of a workflow failed.
    Errored,
    /// The code that is deployed cannot continue runs of a workflow.
    Blocked,
    /// Runs of a workflow have been due for more than a minute, and no worker took them.
    Stuck,
    /// Tasks were given up.
    DeadLetters,
    /// A circuit breaker is open.
    BreakerOpen,
    /// The oldest ready task has been due for more than a minute.
    LateTasks,
}

/// One finding.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttentionItem {
    /// The kind.
    pub kind: Finding,
    /// `error` or `warning`.
    pub severity: &'static str,
    /// A sentence about it.
    pub text: String,
    /// How many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Count>,
    /// The workflow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow_name: Option<String>,
    /// The key of the circuit breaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

impl AttentionItem {
    fn new(kind: Finding, severity: &'static str, text: String) -> Self {
        let (count, workflow_name, key, since) = (None, None, None, None);
        Self { kind, severity, text, count, workflow_name, key, since }
    }
}

/// Everything that needs an operator.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attention {
    /// The findings, the most urgent first.
    pub items: Vec<AttentionItem>,
    /// Failed runs are listed if they failed at this time or later.
    pub errored_from: Time,
}

/// Lists what needs an operator. The cost does not depend on the number of runs: failed runs are searched among
/// the 1,000 newest, blocked and stuck ones among the 200 oldest and the 200 newest open runs of each status.
#[utoipa::path(get, path = "/attention", tag = "server", operation_id = "attention",
    responses((status = 200, body = Attention), (status = "default", body = Failure)))]
pub(crate) async fn attention(call: Call) -> ApiResult<Attention> {
    let namespace = call.engine.namespace().clone();
    let stats = call.engine.store().namespace_stats(namespace.clone()).await?;
    let mut items = Vec::new();
    if !call.app.store_status.is_writable() {
        let text = "The store refuses writes; no run can make progress.".to_owned();
        items.push(AttentionItem::new(Finding::StoreRefusesWrites, "error", text));
    }
    let open = [RunStatus::Active, RunStatus::Waiting];
    let mut open_runs: BTreeMap<String, u64> = BTreeMap::new();
    for row in stats.runs.iter().filter(|row| open.contains(&row.status)) {
        if !is_internal(row.workflow.as_str()) {
            *open_runs.entry(row.workflow.to_string()).or_default() += row.count;
        }
    }
    let unserved = add_unserved(&call, open_runs, &mut items).await?;
    let errored_from = add_errored(&call, stats.now, &mut items).await?;
    add_open(&call, stats.now, &unserved, &mut items).await?;
    if stats.letters_open.count > 0 {
        let count = Count::from(stats.letters_open);
        let text = format!("{} were given up after their last attempt.", counted(&count, "task"));
        let mut item = AttentionItem::new(Finding::DeadLetters, "error", text);
        item.count = Some(count);
        items.push(item);
    }
    for key in stats.breakers_open.iter().take(20) {
        let text = format!("The circuit breaker {key:?} is not closed.", key = key.as_str());
        let mut item = AttentionItem::new(Finding::BreakerOpen, "warning", text);
        item.key = Some(key.to_string());
        items.push(item);
    }
    let ready = stats.tasks.iter().filter(|kind| is_user_task(kind));
    let oldest = ready.filter_map(|kind| kind.ready_oldest).min();
    if let Some(oldest) = oldest.filter(|oldest| stats.now.since(*oldest) > LATE_AFTER) {
        let text = "A task has been due for more than a minute; its workers are busy or missing.";
        let mut item = AttentionItem::new(Finding::LateTasks, "warning", text.to_owned());
        item.since = Some(Time(oldest));
        items.push(item);
    }
    items.sort_by_key(|item| (item.severity != "error", item.kind));
    Ok(Json(Attention { items, errored_from: Time(errored_from) }))
}

fn counted(count: &Count, noun: &str) -> String {
    let more = if count.more { "more than " } else { "" };
    let ending = if count.count == 1 { "" } else { "s" };
    format!("{more}{} {noun}{ending}", count.count)
}

async fn add_unserved(
    call: &Call,
    open_runs: BTreeMap<String, u64>,
    items: &mut Vec<AttentionItem>,
) -> Result<BTreeSet<String>, ApiError> {
    let now = call.engine.clock().now();
    let workers = call.app.workers().await?;
    let live = || workers.iter().filter(|worker| worker.is_live(now));
    if live().next().is_none() {
        let text = "No live worker is connected to this store.".to_owned();
        items.push(AttentionItem::new(Finding::NoWorker, "error", text));
    }
    let mut served: BTreeSet<String> =
        live().flat_map(|worker| &worker.info.turns).map(|route| route.name.to_string()).collect();
    served.extend(call.engine.workflows().iter().map(ToString::to_string));
    let mut unserved = BTreeSet::new();
    for (workflow, count) in open_runs {
        if served.contains(&workflow) {
            continue;
        }
        let count = Count { count, more: false };
        let runs = counted(&count, "open run");
        let text = format!("No live worker serves {workflow:?}, which has {runs}.");
        let mut item = AttentionItem::new(Finding::Unserved, "error", text);
        (item.count, item.workflow_name) = (Some(count), Some(workflow.clone()));
        items.push(item);
        unserved.insert(workflow);
    }
    Ok(unserved)
}

async fn add_errored(
    call: &Call,
    now: Timestamp,
    items: &mut Vec<AttentionItem>,
) -> Result<Timestamp, ApiError> {
    let from = now.minus(ERRORED_WITHIN);
    let (runs, more) = errored_since(call, from).await?;
    let mut by_workflow: BTreeMap<String, (u64, Timestamp)> = BTreeMap::new();
    for run in runs {
        let ended = run.ended_at.unwrap_or(run.updated_at);
        let entry = by_workflow.entry(run.workflow.to_string()).or_insert((0, ended));
        entry.0 += 1;
        entry.1 = entry.1.max(ended);
    }
    for (workflow, (count, last)) in by_workflow {
        let count = Count { count, more };
        let runs = at_least(&count, "run");
        let text = format!("{runs} of {workflow:?} failed in the last 24 hours.");
        let mut item = AttentionItem::new(Finding::Errored, "error", text);
        (item.count, item.workflow_name) = (Some(count), Some(workflow));
        item.since = Some(Time(last));
        items.push(item);
    }
    Ok(from)
}

/// The runs that failed since a time, and whether there may be more of them. A run that was retried is not
/// among them: nobody needs to look at it.
async fn errored_since(call: &Call, from: Timestamp) -> Result<(Vec<Run>, bool), ApiError> {
    let mut query = RunsQuery::all(call.engine.namespace().clone(), PAGE);
    query.status = Some(RunStatus::Errored);
    let mut found: Vec<Run> = Vec::new();
    for _ in 0..ERRORED_PAGES_MAX {
        let page = call.engine.store().list(Query::Runs(query.clone())).await?.runs()?;
        let is_last = page.len() < PAGE as usize;
        query.after = page.last().map(|run| run.run_key);
        let recent = page.into_iter().filter(|run| {
            !is_internal(run.workflow.as_str()) && run.ended_at.unwrap_or(run.updated_at) >= from
        });
        let newest = try_join_all(recent.map(|run| async move {
            let shown = call.engine.is_newest(&run).await? && may_read(call, &run).await?;
            Ok::<_, ApiError>(shown.then_some(run))
        }));
        found.extend(newest.await?.into_iter().flatten());
        if found.len() > ERRORED_MAX {
            found.truncate(ERRORED_MAX);
            return Ok((found, true));
        }
        if is_last {
            return Ok((found, false));
        }
    }
    Ok((found, true))
}

fn at_least(count: &Count, noun: &str) -> String {
    let known = counted(&Count { count: count.count, more: false }, noun);
    if count.more { format!("at least {known}") } else { known }
}

/// Adds blocked and stuck runs. A stuck run has workers, other than one that is not served.
async fn add_open(
    call: &Call,
    now: Timestamp,
    unserved: &BTreeSet<String>,
    items: &mut Vec<AttentionItem>,
) -> Result<(), ApiError> {
    let (runs, more) = open_runs(call).await?;
    let retry = call.engine.options().blocked_retry;
    let mut blocked: BTreeMap<(String, String), (u64, Timestamp)> = BTreeMap::new();
    let mut stuck: BTreeMap<String, (u64, Timestamp)> = BTreeMap::new();
    let mut read = 0;
    for run in &runs {
        let workflow = run.workflow.to_string();
        if is_stuck(&run.turn, now) && !unserved.contains(&workflow) {
            let due = run.turn.due_at.unwrap_or(run.updated_at);
            let entry = stuck.entry(workflow).or_insert((0, due));
            *entry = (entry.0 + 1, entry.1.min(due));
        } else if may_be_blocked(&run.turn, run.updated_at, retry) && read < BLOCKED_MAX {
            read += 1;
            if let Some(found) = call.engine.blocked(run).await? {
                let entry = blocked.entry((workflow, found.code)).or_insert((0, run.updated_at));
                *entry = (entry.0 + 1, entry.1.min(run.updated_at));
            }
        }
    }
    let blocked_more = more || read == BLOCKED_MAX;
    for ((workflow, code), (count, _)) in blocked {
        let count = Count { count, more: blocked_more };
        let runs = at_least(&count, "run");
        let text = format!("The deployed code cannot continue {runs} of {workflow:?}: {code}.");
        let mut item = AttentionItem::new(Finding::Blocked, "error", text);
        (item.count, item.workflow_name) = (Some(count), Some(workflow));
        item.key = Some(code);
        items.push(item);
    }
    for (workflow, (count, since)) in stuck {
        let count = Count { count, more };
        let runs = at_least(&count, "run");
        let text = format!("No worker has taken {runs} of {workflow:?} for more than a minute.");
        let mut item = AttentionItem::new(Finding::Stuck, "warning", text);
        (item.count, item.workflow_name) = (Some(count), Some(workflow));
        item.since = Some(Time(since));
        items.push(item);
    }
    Ok(())
}

/// The oldest and the newest open runs, and whether there are others.
async fn open_runs(call: &Call) -> Result<(Vec<Run>, bool), ApiError> {
    let (mut runs, mut more): (BTreeMap<_, Run>, bool) = (BTreeMap::new(), false);
    for status in [RunStatus::Active, RunStatus::Waiting] {
        for order in [Order::Ascending, Order::Descending] {
            let mut query = RunsQuery::all(call.engine.namespace().clone(), PAGE);
            (query.status, query.order) = (Some(status), order);
            let page = call.engine.store().list(Query::Runs(query)).await?.runs()?;
            let is_all = page.len() < PAGE as usize;
            for run in page {
                if !is_internal(run.workflow.as_str()) && may_read(call, &run).await? {
                    runs.insert(run.run_key, run);
                }
            }
            if is_all {
                break;
            }
            more = true;
        }
    }
    Ok((runs.into_values().collect(), more))
}

/// Whether a turn has been due for too long, and nobody has it.
fn is_stuck(turn: &Turn, now: Timestamp) -> bool {
    let due = turn.due_at.is_some_and(|due| now.since(due) > LATE_AFTER);
    turn.ready && turn.worker.is_none() && due
}

/// Whether a run could be blocked: the commit that says so also delays the turn by a known time. This saves
/// reading the last event of each run.
fn may_be_blocked(turn: &Turn, updated_at: Timestamp, retry: Duration) -> bool {
    let expected = updated_at.plus(retry);
    turn.due_at.is_some_and(|due| due.since(expected).max(expected.since(due)) <= SAME_COMMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(1_770_000_000_000_000 + seconds * 1_000_000)
    }

    #[test]
    fn a_turn_that_nobody_takes_is_stuck() {
        let ready = |due| Turn { due_at: Some(at(due)), ..Turn::ready() };
        assert!(is_stuck(&ready(0), at(61)));
        assert!(!is_stuck(&ready(0), at(60)), "a minute is allowed");
        let sleeps = Turn { ready: false, ..ready(0) };
        assert!(!is_stuck(&sleeps, at(61)));
        let worker = "00000000-0000-7000-8000-000000000000".parse().unwrap();
        assert!(!is_stuck(&Turn { worker: Some(worker), ..ready(0) }, at(61)));
    }

    #[test]
    fn a_blocked_run_is_tried_again_after_a_known_time() {
        let retry = Duration::from_secs(60);
        for (due, expect) in [(60, true), (63, true), (57, true), (70, false), (0, false)] {
            let turn = Turn { ready: false, due_at: Some(at(due)), ..Turn::ready() };
            assert_eq!(may_be_blocked(&turn, at(0), retry), expect, "{due}");
        }
        let no_due = Turn { ready: false, due_at: None, ..Turn::ready() };
        assert!(!may_be_blocked(&no_due, at(0), retry));
    }
}
