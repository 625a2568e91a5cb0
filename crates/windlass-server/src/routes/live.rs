//! Live updates of a run as server-sent events, resumable by the id of the last one.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::sse::{Event as SseEvent, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use futures::Stream;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use windlass::kernel::{Event, LogId, Query, Run, RunKey, StepKey};

use super::history::generation;
use super::instances::find;
use crate::app::App;
use crate::auth::{Caller, Scope, Target};
use crate::cursor;
use crate::error::{ApiError, Failure};
use crate::extract::{AtRun, Call};
use crate::view::{InstanceStatus, LedgerEvent, LogRecord, StepRecord, Time};

/// How often a run that does not move is looked at: soon after a change, then less and less.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_secs(1);
const ROWS: u32 = 100;
/// Events that wait for a slow reader; beyond them the run is read more slowly.
const BUFFERED: usize = 64;

/// How far a client has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    run_number: u32,
    /// The ordinal of the next event.
    ordinal: u64,
    /// The last log line.
    log: Option<LogId>,
    /// Whether the client was told the end.
    ended: bool,
}

impl Place {
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

/// Streams what a run does: `event` (its ledger), `step`, `log`, `status`, and `end` when it has
/// ended. Without `Last-Event-ID` it begins at the beginning of the newest generation; with the id of
/// an `end` after which nothing happened the answer is 204, which tells a browser not to come back.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/live",
    tag = "instances", operation_id = "live",
    params(("workflowName" = String, Path, description = "The workflow"),
        ("instanceId" = String, Path, description = "The run's id"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was read")),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = 204, description = "The run has ended, and all of it was told"),
        (status = "default", body = Failure)))]
pub(crate) async fn live(call: Call, at: AtRun, parts: Parts) -> Result<Response, ApiError> {
    let last = parts.headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default());
    let place = cursor::decode_as("live", last, Place::decode).map_err(|_| {
        let message =
            "Last-Event-ID is not an id of this stream; send the last one unchanged, or none";
        ApiError::invalid("INVALID_CURSOR", message)
    })?;
    let run = generation(&call, &at, place.map(|place| place.run_number)).await?;
    if place.is_some_and(|place| place.ended) && is_over(&call, &at, &run).await? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let mut place = place.unwrap_or_else(|| Place::beginning(run.generation));
    place.ended = false;
    let room = call.app.streams.clone().try_acquire_owned().map_err(|_| {
        let message = "as many live streams are open as may be; close some, or ask again";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_STREAMS", message).retry_after(5)
    })?;
    let (sender, receiver) = channel(BUFFERED);
    let stopped = call.stopped();
    let refused = refused(call.app.clone(), Arc::clone(&call.caller), parts, &at);
    let stream = Follower { call, at, sender, place, told: None };
    tokio::spawn(async move {
        let gone = stream.sender.clone();
        tokio::select! {
            biased;
            () = stopped => {}
            () = gone.closed() => {}
            () = refused => tracing::info!("a live stream ends: its credential is no longer taken"),
            result = stream.follow(run) => if let Err(error) = result {
                tracing::warn!(code = error.code(), message = error.message(), "a live stream ends");
            }
        }
        drop(room);
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(received(receiver)).keep_alive(keep_alive).into_response())
}

/// Whether a generation is the last and has ended: nothing can follow what was told of its end.
async fn is_over(call: &Call, at: &AtRun, run: &Run) -> Result<bool, ApiError> {
    Ok(run.status.is_ended() && find(call, at).await?.generation == run.generation)
}

/// Ends when whoever opened a stream could not open it any more.
fn refused(
    app: App,
    opened_by: Arc<Caller>,
    parts: Parts,
    at: &AtRun,
) -> impl Future<Output = ()> + Send + 'static {
    let (workflow, id) = (at.workflow.clone(), at.id.clone());
    async move {
        loop {
            tokio::time::sleep(app.options.recheck_every).await;
            let caller = match app.guard.caller(&parts).await {
                Ok(caller) => caller,
                // A store that does not answer says nothing about the credential.
                Err(error) if error.status().is_server_error() => continue,
                Err(_) => return,
            };
            let target = Target {
                workflow: Some(workflow.as_str()),
                id: Some(id.as_str()),
                action: Some("live"),
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

fn received(receiver: Receiver<SseEvent>) -> impl Stream<Item = Result<SseEvent, Infallible>> {
    futures::stream::unfold(receiver, |mut receiver| async {
        let event = receiver.recv().await?;
        Some((Ok(event), receiver))
    })
}

struct Follower {
    call: Call,
    at: AtRun,
    sender: Sender<SseEvent>,
    place: Place,
    /// The status that was told last.
    told: Option<(u32, &'static str)>,
}

impl Follower {
    async fn follow(mut self, mut run: Run) -> Result<(), ApiError> {
        let mut look = LOOK_MIN;
        loop {
            // The row is read before the ledger: a run that has ended by then has no later events.
            let told = self.tell_status(&run).await?;
            let events = self.tell_events(&run).await?;
            let logs = self.tell_logs(run.run_key).await?;
            let moved = told || events > 0 || logs > 0;
            let read_all = events < ROWS as usize && logs < ROWS as usize;
            if run.status.is_ended() && read_all {
                let newest = find(&self.call, &self.at).await?;
                if newest.generation <= run.generation {
                    self.place.ended = true;
                    self.send("end", &status_of(&run)).await?;
                    return Ok(());
                }
                let next = run.generation + 1;
                run = generation(&self.call, &self.at, Some(next)).await?;
                self.place = Place::beginning(next);
                continue;
            }
            if read_all {
                look = if moved { LOOK_MIN } else { (look * 2).min(LOOK_MAX) };
                tokio::time::sleep(look).await;
            }
            run = generation(&self.call, &self.at, Some(run.generation)).await?;
        }
    }

    async fn send<T: Serialize>(&self, kind: &str, data: &T) -> Result<(), ApiError> {
        let event = SseEvent::default().event(kind).id(self.place.encode());
        let event = event.json_data(data).map_err(|_| {
            ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "INTERNAL",
                "an event cannot be written",
            )
        })?;
        let gone = |_| ApiError::new(StatusCode::GONE, "CLIENT_GONE", "nobody reads the stream");
        self.sender.send(event).await.map_err(gone)
    }

    async fn tell_status(&mut self, run: &Run) -> Result<bool, ApiError> {
        let now = (run.generation, run.status.as_str());
        if self.told == Some(now) {
            return Ok(false);
        }
        self.told = Some(now);
        self.send("status", &status_of(run)).await?;
        Ok(true)
    }

    async fn tell_events(&mut self, run: &Run) -> Result<usize, ApiError> {
        let (run_key, from) = (run.run_key, self.place.ordinal);
        let query = Query::Events { run_key, from, limit: ROWS };
        let events = self.call.engine.store().list(query).await?.events()?;
        let touched: BTreeSet<StepKey> = events.iter().filter_map(step_of).collect();
        // Steps go first, under the place before their events: whoever is cut off in between gets
        // them again rather than never.
        if !touched.is_empty() {
            self.tell_steps(run, &touched).await?;
        }
        for event in &events {
            self.place.ordinal = event.ordinal + 1;
            self.send("event", &LedgerEvent::of(event)).await?;
        }
        Ok(events.len())
    }

    async fn tell_steps(&self, run: &Run, touched: &BTreeSet<StepKey>) -> Result<(), ApiError> {
        let mut after = None;
        loop {
            let query = Query::Steps { run_key: run.run_key, after, limit: ROWS };
            let steps = self.call.engine.store().list(query).await?.steps()?;
            after = steps.last().map(|step| (step.position, step.step_key.clone()));
            for step in steps.iter().filter(|step| touched.contains(&step.step_key)) {
                let now = self.call.engine.clock().now();
                self.send("step", &StepRecord::of(step, run, now)).await?;
            }
            if steps.len() < ROWS as usize {
                return Ok(());
            }
        }
    }

    async fn tell_logs(&mut self, run_key: RunKey) -> Result<usize, ApiError> {
        let (after, limit) = (self.place.log, ROWS);
        let query = Query::Logs { run_key, level_min: None, category: None, after, limit };
        let lines = self.call.engine.store().list(query).await?.logs()?;
        for line in &lines {
            self.place.log = Some(line.log_id);
            self.send("log", &LogRecord::of(line, self.place.run_number)).await?;
        }
        Ok(lines.len())
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

fn step_of(event: &Event) -> Option<StepKey> {
    let payload = event.payload_json().ok()?;
    match (&payload["key"], &payload["step"], &payload["memo"]) {
        (Value::String(key), ..) => Some(StepKey::from_stored(key.as_str())),
        // A relay's steps are numbered, and the number is the key.
        (_, Value::Number(step), Value::String(memo)) => {
            Some(StepKey::from_stored(format!("{step}/{memo}")))
        }
        (_, Value::Number(step), _) => Some(StepKey::from_stored(step.to_string())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back() {
        let log = "01912345-6789-7abc-8def-0123456789ab".parse().ok();
        for place in [
            Place::beginning(0),
            Place { run_number: 7, ordinal: 1_000_000, log, ended: false },
            Place { run_number: 7, ordinal: 3, log: None, ended: true },
        ] {
            let text = cursor::decode("live", &place.encode()).unwrap();
            assert_eq!(Place::decode(&text), Some(place));
        }
        for wrong in ["", "1", "1 2", "x 2 ", "1 2 no-uuid", "1 2  over"] {
            assert_eq!(Place::decode(wrong), None, "{wrong}");
        }
    }
}
