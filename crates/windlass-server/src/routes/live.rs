//! Live updates of a run as server-sent events. A client resumes with the id of the last event.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::sse::{Event as SseEvent, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use futures::Stream;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use windlass::kernel::{ErrorCode, Event, LogId, Query, Run, RunKey, Step, StepKey};
use windlass_engine::{Change, Changes};

use super::history::generation;
use super::instances::find;
use crate::app::{App, CredentialPermit};
use crate::auth::{Caller, Scope, Target};
use crate::cursor;
use crate::error::{ApiError, Failure};
use crate::extract::{AtRun, Call};
use crate::view::{InstanceStatus, Kinds, LedgerEvent, LogRecord, StepRecord, Time};

/// Commits of this process wake a stream. Those of other processes are found by asking the store: the interval grows
/// from the minimum to the maximum while nothing changes.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(1);
const ROWS: u32 = 100;
/// The number of buffered events. If the client reads slowly, the run is read slowly too.
const BUFFERED: usize = 64;
/// How many open steps a stream knows the place of. Others are found by reading the steps of the run.
const OPEN_STEPS_MAX: usize = 10_000;
/// Few steps have one position.
const AT_POSITION: u32 = 4;

/// The read position of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    run_number: u32,
    /// The ordinal of the next event.
    ordinal: u64,
    /// The id of the last log line.
    log: Option<LogId>,
    /// Whether the client has received the end.
    ended: bool,
}

impl Position {
    fn encode(self) -> String {
        let log = self.log.map(|id| id.to_string()).unwrap_or_default();
        let ended = if self.ended { "end" } else { "" };
        cursor::encode("live", &format!("{} {} {log} {ended}", self.run_number, self.ordinal))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        let run_number = parts.next()?.parse().ok()?;
        let ordinal = parts.next()?.parse().ok()?;
        let log = match parts.next()? {
            "" => None,
            id => Some(id.parse().ok()?),
        };
        let ended = match parts.next() {
            None | Some("") => false,
            Some("end") => true,
            Some(_) => return None,
        };
        Some(Self { run_number, ordinal, log, ended })
    }

    fn beginning(run_number: u32) -> Self {
        Self { run_number, ordinal: 0, log: None, ended: false }
    }
}

/// Streams the updates of a run as server-sent events.
///
/// The event types are `event` (the ledger), `step`, `log`, `status`, and `end` when the run has
/// ended. Without `Last-Event-ID` the stream starts at the beginning of the newest generation. If
/// `Last-Event-ID` is the id of an `end` and nothing has happened since, the response is 204, which
/// tells a browser not to reconnect.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/live",
    tag = "instances", operation_id = "live",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last received event")),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = 204, description = "The run has ended, and the client has received all its events"),
        (status = "default", body = Failure)))]
pub(crate) async fn live(call: Call, at: AtRun, parts: Parts) -> Result<Response, ApiError> {
    let last = parts.headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default());
    let position = cursor::decode_as("live", last, Position::decode).map_err(|_| {
        let message =
            "Last-Event-ID is not an id of this stream; send the last id unchanged, or none";
        ApiError::invalid(ErrorCode::InvalidCursor, message)
    })?;
    let run = generation(&call, &at, position.map(|position| position.run_number)).await?;
    if position.is_some_and(|position| position.ended) && is_over(&call, &at, &run).await? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let mut position = position.unwrap_or_else(|| Position::beginning(run.generation));
    position.ended = false;
    let permits = admit_stream(&call)?;
    let (sender, receiver) = channel(BUFFERED);
    let stopped = call.stopped();
    let credential_revoked =
        credential_revoked(call.app.clone(), Arc::clone(&call.caller), parts, &at, "live");
    let changes = call.engine.changes();
    let (last_status, open, absent) = (None, BTreeMap::new(), BTreeSet::new());
    let stream = Follower { call, at, sender, position, last_status, open, absent, changes };
    tokio::spawn(async move {
        let client = stream.sender.clone();
        tokio::select! {
            biased;
            () = stopped => {}
            () = client.closed() => {}
            () = credential_revoked => tracing::info!("closed a live stream: its credential is no longer valid"),
            result = stream.follow(run) => if let Err(error) = result {
                tracing::warn!(code = %error.code(), message = error.message(), "closed a live stream after an error");
            }
        }
        drop(permits);
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(event_stream(receiver)).keep_alive(keep_alive).into_response())
}

/// Permits for one stream: of the server, and of the caller's credential.
pub(crate) fn admit_stream(
    call: &Call,
) -> Result<(OwnedSemaphorePermit, CredentialPermit), ApiError> {
    let too_many = |message: String| {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::TooManyStreams, message)
            .retry_after(5)
    };
    let permit = call.app.streams.clone().try_acquire_owned().map_err(|_| {
        let max = call.app.options.streams_max;
        too_many(format!("too many live streams (limit {max}); close some, or retry later"))
    })?;
    let of_credential = call.app.streams_of.acquire(&call.caller).map_err(|()| {
        let max = call.app.streams_of.max();
        too_many(format!(
            "too many live streams of this credential (limit {max}); close some, or retry later"
        ))
    })?;
    Ok((permit, of_credential))
}

/// Whether this generation is the newest and has ended, so that no events can follow.
pub(crate) async fn is_over(call: &Call, at: &AtRun, run: &Run) -> Result<bool, ApiError> {
    Ok(run.status.is_ended() && find(call, at).await?.generation == run.generation)
}

/// Completes when the credential that opened the stream is no longer valid.
pub(crate) fn credential_revoked(
    app: App,
    opened_by: Arc<Caller>,
    parts: Parts,
    at: &AtRun,
    action: &'static str,
) -> impl Future<Output = ()> + Send + 'static {
    let (workflow, id) = (at.workflow.clone(), at.id.clone());
    async move {
        loop {
            tokio::time::sleep(app.options.recheck_every).await;
            let caller = match app.guard.caller(&parts).await {
                Ok(caller) => caller,
                // A store error does not mean that the credential is invalid.
                Err(error) if error.status().is_server_error() => continue,
                Err(_) => return,
            };
            let target = Target {
                workflow: Some(workflow.as_str()),
                id: Some(id.as_str()),
                action: Some(action),
                ..Target::default()
            };
            let may = caller.namespace == opened_by.namespace
                && caller.must(Scope::Read).is_ok()
                && app.guard.ask(&caller, Scope::Read, &target).await.is_ok();
            if !may {
                return;
            }
        }
    }
}

pub(crate) fn event_stream(
    receiver: Receiver<SseEvent>,
) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    futures::stream::unfold(receiver, |mut receiver| async {
        let event = receiver.recv().await?;
        Some((Ok(event), receiver))
    })
}

struct Follower {
    call: Call,
    at: AtRun,
    sender: Sender<SseEvent>,
    position: Position,
    /// The status that was sent last.
    last_status: Option<(u32, &'static str)>,
    /// Where the steps are that were sent and are not settled.
    open: BTreeMap<StepKey, u64>,
    /// Keys that events name and no step has.
    absent: BTreeSet<StepKey>,
    changes: Changes,
}

impl Follower {
    async fn follow(mut self, mut run: Run) -> Result<(), ApiError> {
        let mut interval = POLL_MIN;
        loop {
            // Reads the row before the ledger: if the row says that the run has ended, the ledger
            // is complete.
            let changed = self.send_status(&run).await?;
            let events = self.send_events(&run).await?;
            let logs = self.send_logs(run.run_key).await?;
            let progressed = changed || events > 0 || logs > 0;
            let read_all = events < ROWS as usize && logs < ROWS as usize;
            if run.status.is_ended() && read_all {
                let newest = find(&self.call, &self.at).await?;
                if newest.generation <= run.generation {
                    self.position.ended = true;
                    self.send("end", &status_of(&run)).await?;
                    return Ok(());
                }
                let next = run.generation + 1;
                run = generation(&self.call, &self.at, Some(next)).await?;
                self.position = Position::beginning(next);
                self.open.clear();
                self.absent.clear();
                continue;
            }
            if read_all {
                interval = if progressed { POLL_MIN } else { (interval * 2).min(POLL_MAX) };
                tokio::select! {
                    () = tokio::time::sleep(interval) => {}
                    () = until_changed(&mut self.changes, run.run_key) => {}
                }
            }
            run = generation(&self.call, &self.at, Some(run.generation)).await?;
        }
    }

    async fn send<T: Serialize>(&self, kind: &str, data: &T) -> Result<(), ApiError> {
        let event = SseEvent::default().event(kind).id(self.position.encode());
        let event = event.json_data(data).map_err(|_| {
            ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                ErrorCode::Internal,
                "failed to serialize an event",
            )
        })?;
        let gone = |_| {
            ApiError::new(StatusCode::GONE, ErrorCode::ClientGone, "the client closed the stream")
        };
        self.sender.send(event).await.map_err(gone)
    }

    async fn send_status(&mut self, run: &Run) -> Result<bool, ApiError> {
        let now = (run.generation, run.status.as_str());
        if self.last_status == Some(now) {
            return Ok(false);
        }
        self.last_status = Some(now);
        self.send("status", &status_of(run)).await?;
        Ok(true)
    }

    async fn send_events(&mut self, run: &Run) -> Result<usize, ApiError> {
        let (run_key, from) = (run.run_key, self.position.ordinal);
        let query = Query::Events { run_key, from, limit: ROWS };
        let events = self.call.engine.store().list(query).await?.events()?;
        let touched: BTreeSet<StepKey> = events.iter().filter_map(step_of).collect();
        // Sends steps before their events, with the previous position. If the connection breaks in
        // between, the client receives the steps again instead of missing them.
        if !touched.is_empty() {
            let last = events.last().map_or(from, |event| event.ordinal);
            self.send_steps(run, touched, from..last + 1).await?;
        }
        for event in &events {
            self.position.ordinal = event.ordinal + 1;
            self.send("event", &LedgerEvent::of(event)).await?;
        }
        Ok(events.len())
    }

    async fn send_steps(
        &mut self,
        run: &Run,
        touched: BTreeSet<StepKey>,
        events: Range<u64>,
    ) -> Result<(), ApiError> {
        for step in self.find_steps(run, touched, events).await? {
            if step.status.is_settled() || self.open.len() >= OPEN_STEPS_MAX {
                self.open.remove(&step.step_key);
            } else {
                self.open.insert(step.step_key.clone(), step.position);
            }
            let kinds = Kinds::of(&self.call.engine, run);
            self.send("step", &StepRecord::of(&step, run, kinds)).await?;
        }
        Ok(())
    }

    /// Reads the touched steps and few others. A step is at the place of its first event: steps that began in these
    /// events are among them, and the stream knows the place of those that it has sent open. Others are read once
    /// from the beginning, after a reconnect.
    async fn find_steps(
        &mut self,
        run: &Run,
        mut wanted: BTreeSet<StepKey>,
        events: Range<u64>,
    ) -> Result<Vec<Step>, ApiError> {
        let mut found = Vec::new();
        let known: Vec<u64> = wanted.iter().filter_map(|key| self.open.get(key)).copied().collect();
        for at in known {
            let at = at..at.saturating_add(1);
            self.scan(run, at, AT_POSITION, &mut wanted, &mut found).await?;
        }
        let earlier = 0..events.start;
        self.scan(run, events, ROWS, &mut wanted, &mut found).await?;
        // Not every event with a key has a step.
        let mut unknown: BTreeSet<StepKey> = wanted.difference(&self.absent).cloned().collect();
        self.scan(run, earlier, ROWS, &mut unknown, &mut found).await?;
        if self.absent.len() < OPEN_STEPS_MAX {
            self.absent.extend(unknown);
        }
        found.sort_by(|a, b| (a.position, &a.step_key).cmp(&(b.position, &b.step_key)));
        Ok(found)
    }

    /// Takes the wanted steps at these positions.
    async fn scan(
        &self,
        run: &Run,
        positions: Range<u64>,
        limit: u32,
        wanted: &mut BTreeSet<StepKey>,
        found: &mut Vec<Step>,
    ) -> Result<(), ApiError> {
        let mut after = Some((positions.start, StepKey::from_stored(String::new())));
        while !wanted.is_empty() && !positions.is_empty() {
            let query = Query::Steps { run_key: run.run_key, after, limit };
            let page = self.call.engine.store().list(query).await?.steps()?;
            let is_last = page.len() < limit as usize
                || page.last().is_some_and(|step| step.position >= positions.end);
            after = page.last().map(|step| (step.position, step.step_key.clone()));
            found.extend(page.into_iter().filter(|step| wanted.remove(&step.step_key)));
            if is_last {
                break;
            }
        }
        Ok(())
    }

    async fn send_logs(&mut self, run_key: RunKey) -> Result<usize, ApiError> {
        let (after, limit) = (self.position.log, ROWS);
        let query = Query::Logs { run_key, level_min: None, category: None, after, limit };
        let lines = self.call.engine.store().list(query).await?.logs()?;
        for line in &lines {
            self.position.log = Some(line.log_id);
            self.send("log", &LogRecord::of(line, self.position.run_number)).await?;
        }
        Ok(lines.len())
    }
}

/// Completes when this process has committed something to the run, or may have.
async fn until_changed(changes: &mut Changes, run_key: RunKey) {
    loop {
        match changes.next().await {
            Some(Change::Run(changed)) if changed != run_key => {}
            Some(_) => return,
            // The engine is gone; the interval goes on.
            None => std::future::pending().await,
        }
    }
}

fn status_of(run: &Run) -> serde_json::Value {
    json!({
        "id": run.id.as_str(),
        "runNumber": run.generation,
        "runKey": run.run_key,
        "at": Time(run.updated_at),
        "details": InstanceStatus::of(run),
    })
}

/// The key of the step that an event is about.
pub(crate) fn step_of(event: &Event) -> Option<StepKey> {
    let payload = event.payload_json().ok()?;
    match (&payload["key"], &payload["step"], &payload["memo"]) {
        (Value::String(key), ..) => Some(StepKey::from_stored(key.as_str())),
        // The key of a relay step is its number.
        (_, Value::Number(step), Value::String(memo)) => {
            Some(StepKey::from_stored(format!("{step}/{memo}")))
        }
        (_, Value::Number(step), _) => Some(StepKey::from_stored(step.to_string())),
        // A tool of an agent; its `continuation_id` is that of all tools of one response.
        (_, Value::String(step), _) => Some(StepKey::from_stored(step.as_str())),
        // A call of a model.
        _ => Some(StepKey::from_stored(payload["continuation_id"].as_str()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_can_be_decoded() {
        let log = "01912345-6789-7abc-8def-0123456789ab".parse().ok();
        for position in [
            Position::beginning(0),
            Position { run_number: 7, ordinal: 1_000_000, log, ended: false },
            Position { run_number: 7, ordinal: 3, log: None, ended: true },
        ] {
            let text = cursor::decode("live", &position.encode()).unwrap();
            assert_eq!(Position::decode(&text), Some(position));
        }
        for wrong in ["", "1", "1 2", "x 2 ", "1 2 no-uuid", "1 2  over"] {
            assert_eq!(Position::decode(wrong), None, "{wrong}");
        }
    }
}
