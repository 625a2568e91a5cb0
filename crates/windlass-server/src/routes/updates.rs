//! One stream of hints for a whole page: which of the things that it shows have changed. The page reads
//! what it shows again; the stream carries no data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::response::sse::{Event as SseEvent, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Sender, channel};
use utoipa::IntoParams;
use windlass::kernel::{ErrorCode, RunKey};
use windlass_engine::Change;

use super::live::{admit_stream, event_stream};
use crate::app::{App, is_internal};
use crate::auth::{Caller, Scope};
use crate::error::{ApiError, Failure};
use crate::extract::{Call, Params};
use crate::paging::may_read;

/// The most runs that one stream follows.
const RUNS_MAX: usize = 64;
/// Changes within this time become one hint.
const COALESCE: Duration = Duration::from_millis(100);
/// Commits of other processes reach this one by asking the store.
const POLL_RUNS: Duration = Duration::from_secs(1);
/// A page reads its lists again at least this often.
const REFRESH: Duration = Duration::from_secs(5);
const BUFFERED: usize = 16;

/// The runs to follow.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(crate) struct UpdatesParams {
    /// The run keys of runs to follow, at most 64. Can be repeated. With `@` and the `eventCount` that the client has
    /// read, the stream says at once if the run has changed since.
    #[serde(default)]
    run: Vec<String>,
}

/// The data of an event.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hint<'a> {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    runs: &'a BTreeSet<RunKey>,
}

/// Streams hints as server-sent events: `run` names followed runs that have changed, and `lists` says
/// that lists and counts may have changed. The events have no bodies; read the routes that you show.
///
/// Commits of this process are reported at once, those of other processes within a second.
#[utoipa::path(get, path = "/live", tag = "server", operation_id = "liveUpdates",
    params(UpdatesParams),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = "default", body = Failure)))]
pub(crate) async fn updates(
    call: Call,
    Params(params): Params<UpdatesParams>,
    parts: Parts,
) -> Result<Response, ApiError> {
    if params.run.len() > RUNS_MAX {
        let message = format!("{} runs; at most {RUNS_MAX} can be followed", params.run.len());
        return Err(ApiError::invalid(ErrorCode::InvalidQuery, message));
    }
    let (mut followed, mut changed) = (BTreeMap::new(), BTreeSet::new());
    for text in &params.run {
        let (run_key, seen) = followed_run(text)?;
        if let Some(head) = head_of(&call, run_key).await? {
            if seen.is_some_and(|seen| seen != head.0) {
                changed.insert(run_key);
            }
            followed.insert(run_key, head);
        }
    }
    let permits = admit_stream(&call)?;
    let (sender, receiver) = channel(BUFFERED);
    let stopped = call.stopped();
    let revoked = credential_revoked(call.app.clone(), Arc::clone(&call.caller), parts);
    tokio::spawn(async move {
        let client = sender.clone();
        tokio::select! {
            biased;
            () = stopped => {}
            () = client.closed() => {}
            () = revoked => tracing::info!("closed a live stream: its credential is no longer valid"),
            () = follow(&call, followed, changed, &sender) => {}
        }
        drop(permits);
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(event_stream(receiver)).keep_alive(keep_alive).into_response())
}

/// A run key, and the number of events that the client has read.
fn followed_run(text: &str) -> Result<(RunKey, Option<u64>), ApiError> {
    let (key, seen) = match text.split_once('@') {
        Some((key, seen)) => (key, seen.parse().ok().map(Some)),
        None => (text, Some(None)),
    };
    match (key.parse(), seen) {
        (Ok(run_key), Some(seen)) => Ok((run_key, seen)),
        _ => {
            let shown: String = text.chars().take(80).collect();
            let message = format!("{shown:?} is not a run key, alone or with `@` and a number");
            Err(ApiError::invalid(ErrorCode::InvalidQuery, message))
        }
    }
}

/// The end of the ledger and the time of the last change; none if the caller may not see the run.
async fn head_of(call: &Call, run_key: RunKey) -> Result<Option<(u64, i64)>, ApiError> {
    let Some(overview) = call.engine.store().run_overview_by_key(run_key).await? else {
        return Ok(None);
    };
    let run = overview.run;
    let is_visible =
        run.namespace == *call.engine.namespace() && !is_internal(run.workflow.as_str());
    if !is_visible || !may_read(call, &run).await? {
        return Ok(None);
    }
    Ok(Some((run.head.next_ordinal, run.updated_at.as_micros())))
}

async fn follow(
    call: &Call,
    mut followed: BTreeMap<RunKey, (u64, i64)>,
    changed: BTreeSet<RunKey>,
    sender: &Sender<SseEvent>,
) {
    let mut changes = call.engine.changes();
    if !changed.is_empty() && !send(sender, "run", &changed).await {
        return;
    }
    // The first tick comes at once: it finds what has changed since the heads were read.
    let mut polled = tokio::time::interval(POLL_RUNS);
    let mut refreshed = tokio::time::interval_at(tokio::time::Instant::now() + REFRESH, REFRESH);
    loop {
        let (mut changed, mut lists) = (BTreeSet::new(), false);
        tokio::select! {
            change = changes.next() => {
                let Some(change) = change else { return };
                add(change, &followed, &mut changed);
                lists = true;
                collect(&mut changes, &followed, &mut changed).await;
            }
            _ = polled.tick() => poll(call, &mut followed, &mut changed).await,
            _ = refreshed.tick() => lists = true,
        }
        if !changed.is_empty() && !send(sender, "run", &changed).await {
            return;
        }
        if lists && !send(sender, "lists", &BTreeSet::new()).await {
            return;
        }
    }
}

/// Collects further changes for a moment, so that a busy engine does not send a hint for each commit.
async fn collect(
    changes: &mut windlass_engine::Changes,
    followed: &BTreeMap<RunKey, (u64, i64)>,
    changed: &mut BTreeSet<RunKey>,
) {
    let until = tokio::time::Instant::now() + COALESCE;
    while let Ok(Some(change)) = tokio::time::timeout_at(until, changes.next()).await {
        add(change, followed, changed);
    }
}

fn add(change: Change, followed: &BTreeMap<RunKey, (u64, i64)>, changed: &mut BTreeSet<RunKey>) {
    match change {
        Change::Run(run_key) if followed.contains_key(&run_key) => drop(changed.insert(run_key)),
        Change::Run(_) => {}
        Change::Missed => changed.extend(followed.keys().copied()),
    }
}

async fn poll(
    call: &Call,
    followed: &mut BTreeMap<RunKey, (u64, i64)>,
    changed: &mut BTreeSet<RunKey>,
) {
    for (run_key, known) in followed.iter_mut() {
        // A failed read is tried again at the next poll.
        if let Ok(Some(head)) = head_of(call, *run_key).await
            && head != *known
        {
            *known = head;
            changed.insert(*run_key);
        }
    }
}

async fn send(sender: &Sender<SseEvent>, kind: &str, runs: &BTreeSet<RunKey>) -> bool {
    match SseEvent::default().event(kind).json_data(Hint { runs }) {
        Ok(event) => sender.send(event).await.is_ok(),
        Err(_) => false,
    }
}

/// Completes when the credential that opened the stream is no longer valid.
async fn credential_revoked(app: App, opened_by: Arc<Caller>, parts: Parts) {
    loop {
        tokio::time::sleep(app.options.recheck_every).await;
        match app.guard.caller(&parts).await {
            Ok(caller)
                if caller.namespace == opened_by.namespace && caller.must(Scope::Read).is_ok() => {}
            // A store error does not mean that the credential is invalid.
            Err(error) if error.status().is_server_error() => {}
            _ => return,
        }
    }
}
