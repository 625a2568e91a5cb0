//! Items that need an operator: failed runs, workflows without a worker, dead letters, open breakers, a late
//! queue, a store that refuses writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;
use windlass::RunStatus;
use windlass::kernel::{Query, RunsQuery};

use super::durable::tasks::is_user_task;
use super::queues::Count;
use crate::app::is_internal;
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::Call;
use crate::json::Json;
use crate::view::Time;

/// Failed runs are shown if they were created within this time.
const ERRORED_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// The most failed runs that are counted.
const ERRORED_MAX: u32 = 200;
/// A task that has been due for longer is late.
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
    /// Failed runs are listed if they were created at this time or later.
    pub errored_from: Time,
}

/// Lists what needs an operator. The cost does not depend on the number of ended or sleeping runs.
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
    add_unserved(&call, open_runs, &mut items).await?;
    let errored_from = add_errored(&call, &mut items).await?;
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
    Ok(Json(Attention { items, errored_from }))
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
) -> Result<(), ApiError> {
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
    for (workflow, count) in open_runs {
        if served.contains(&workflow) {
            continue;
        }
        let count = Count { count, more: false };
        let runs = counted(&count, "open run");
        let text = format!("No live worker serves {workflow:?}, which has {runs}.");
        let mut item = AttentionItem::new(Finding::Unserved, "error", text);
        (item.count, item.workflow_name) = (Some(count), Some(workflow));
        items.push(item);
    }
    Ok(())
}

async fn add_errored(call: &Call, items: &mut Vec<AttentionItem>) -> Result<Time, ApiError> {
    let now = call.engine.clock().now();
    let from = windlass::Timestamp::from_micros(
        now.as_micros() - i64::try_from(ERRORED_WITHIN.as_micros()).unwrap_or(0),
    );
    let mut query = RunsQuery::all(call.engine.namespace().clone(), ERRORED_MAX);
    query.status = Some(RunStatus::Errored);
    query.created_from = Some(from);
    let runs = call.engine.store().list(Query::Runs(query)).await?.runs()?;
    let more = runs.len() == ERRORED_MAX as usize;
    let mut by_workflow: BTreeMap<String, (u64, Time)> = BTreeMap::new();
    for run in runs.iter().filter(|run| !is_internal(run.workflow.as_str())) {
        // A run that was retried is not the newest generation, and nobody needs to look at it.
        if !call.engine.is_newest(run).await? {
            continue;
        }
        let ended = Time(run.ended_at.unwrap_or(run.updated_at));
        let entry = by_workflow.entry(run.workflow.to_string()).or_insert((0, ended));
        entry.0 += 1;
        entry.1 = Time(entry.1.0.max(ended.0));
    }
    for (workflow, (count, last)) in by_workflow {
        let count = Count { count, more };
        let text =
            format!("{} of {workflow:?} failed in the last 24 hours.", counted(&count, "run"));
        let mut item = AttentionItem::new(Finding::Errored, "error", text);
        (item.count, item.workflow_name, item.since) = (Some(count), Some(workflow), Some(last));
        items.push(item);
    }
    Ok(Time(from))
}
