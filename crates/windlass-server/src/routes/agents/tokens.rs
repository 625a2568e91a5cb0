//! The provider calls of a run as server-sent events: parts while a call runs in this process, and the
//! response of every call when it is recorded.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::sse::{Event as SseEvent, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Sender, channel};
use windlass::agents::{self, CallParts, CallWatch, Usage};
use windlass::kernel::{ErrorCode, Event, LoadSteps, Query, Run, StepKey, StepStatus};

use crate::cursor;
use crate::error::{ApiError, Failure};
use crate::extract::{AtRun, Call};
use crate::routes::history::generation;
use crate::routes::live::{admit_stream, credential_revoked, event_stream, is_over};

/// The poll interval grows from the minimum to the maximum while nothing changes.
const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_secs(1);
const ROWS: u32 = 100;
const BUFFERED: usize = 64;

/// The read position of a client: what is recorded before it was sent. Parts have no position, because they
/// are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    run_number: u32,
    /// The ordinal of the next event.
    ordinal: u64,
    ended: bool,
}

impl Position {
    fn encode(self) -> String {
        let ended = if self.ended { "end" } else { "" };
        cursor::encode("tokens", &format!("{} {} {ended}", self.run_number, self.ordinal))
    }

    fn decode(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let run_number = parts.next()?.parse().ok()?;
        let ordinal = parts.next()?.parse().ok()?;
        let ended = match parts.next()? {
            "" => false,
            "end" => true,
            _ => return None,
        };
        Some(Self { run_number, ordinal, ended })
    }
}

/// Streams the provider calls of a run of an agent as server-sent events.
///
/// The event types are `call` (an attempt begins in this process; parts of an attempt before it are
/// void), `part` (`text`, `thinking`, `toolUse` or `toolInput`), `response` (the recorded response of a call),
/// `elsewhere` (code `STREAM_ELSEWHERE`: another process runs the call, so its parts are not here) and
/// `end`. Parts are not recorded: after a reconnect with `Last-Event-ID` the parts of the running call come
/// again.
#[utoipa::path(get, path = "/workflows/{workflowName}/instances/{instanceId}/tokens",
    tag = "agents", operation_id = "streamTokens",
    params(("workflowName" = String, Path, description = "The name of the workflow"),
        ("instanceId" = String, Path, description = "The id of the run"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last received event")),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = 204, description = "The run has ended, and the client has received all its events"),
        (status = "default", body = Failure)))]
pub(crate) async fn tokens(call: Call, at: AtRun, parts: Parts) -> Result<Response, ApiError> {
    let last = parts.headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default());
    let position = cursor::decode_as("tokens", last, Position::decode).map_err(|_| {
        let message =
            "Last-Event-ID is not an id of this stream; send the last id unchanged, or none";
        ApiError::invalid(ErrorCode::InvalidCursor, message)
    })?;
    let run = generation(&call, &at, position.map(|position| position.run_number)).await?;
    if run.model != agents::DESCRIPTION.name {
        let message = format!("{}/{} is no run of an agent", run.workflow, run.id);
        return Err(ApiError::not_found(ErrorCode::TranscriptNotFound, message));
    }
    if position.is_some_and(|position| position.ended) && is_over(&call, &at, &run).await? {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let beginning = Position { run_number: run.generation, ordinal: 0, ended: false };
    let mut position = position.unwrap_or(beginning);
    position.ended = false;
    let permits = admit_stream(&call)?;
    let (sender, receiver) = channel(BUFFERED);
    let stopped = call.stopped();
    let revoked =
        credential_revoked(call.app.clone(), Arc::clone(&call.caller), parts, &at, "tokens");
    let follower =
        Follower { call, at, sender, position, watch: None, seen: None, elsewhere: None };
    tokio::spawn(async move {
        let client = follower.sender.clone();
        tokio::select! {
            biased;
            () = stopped => {}
            () = client.closed() => {}
            () = revoked => tracing::info!("closed a stream of tokens: its credential is no longer valid"),
            result = follower.follow(run) => if let Err(error) = result {
                tracing::warn!(code = %error.code(), message = error.message(), "closed a stream of tokens after an error");
            }
        }
        drop(permits);
    });
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    Ok(Sse::new(event_stream(receiver)).keep_alive(keep_alive).into_response())
}

struct Follower {
    call: Call,
    at: AtRun,
    sender: Sender<SseEvent>,
    position: Position,
    watch: Option<CallWatch>,
    /// The attempt whose parts were sent last.
    seen: Option<(String, u32)>,
    /// The call about which the client knows that it runs elsewhere.
    elsewhere: Option<StepKey>,
}

impl Follower {
    async fn follow(mut self, mut run: Run) -> Result<(), ApiError> {
        let mut interval = POLL_MIN;
        self.watch = agents::watch(&self.call.engine, &run.workflow, run.run_key);
        loop {
            let events = self.send_responses(&run).await?;
            let read_all = events < ROWS as usize;
            if run.status.is_ended() && read_all {
                self.position.ended = true;
                let data = json!({ "runNumber": run.generation, "status": run.status.as_str() });
                return self.send("end", &data).await;
            }
            let mut progressed = events > 0;
            if read_all {
                progressed |= self.send_running(&run).await?;
                interval = if progressed { POLL_MIN } else { (interval * 2).min(POLL_MAX) };
                self.wait(interval).await;
            }
            run = generation(&self.call, &self.at, Some(run.generation)).await?;
        }
    }

    // A call that begins in this process ends the wait early.
    async fn wait(&self, interval: Duration) {
        let until = tokio::time::Instant::now() + interval;
        while tokio::time::Instant::now() < until {
            let current = self.watch.as_ref().and_then(CallWatch::current);
            if current.is_some_and(|parts| !self.has_seen(&parts)) {
                return;
            }
            tokio::time::sleep(POLL_MIN).await;
        }
    }

    fn has_seen(&self, parts: &CallParts) -> bool {
        let seen = self.seen.as_ref();
        seen.is_some_and(|(call, attempt)| {
            (call.as_str(), *attempt) == (parts.call(), parts.attempt())
        })
    }

    async fn send<T: Serialize>(&self, kind: &str, data: &T) -> Result<(), ApiError> {
        let event = SseEvent::default().event(kind).id(self.position.encode());
        let event = event.json_data(data).map_err(|_| {
            let message = "failed to serialize an event";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, message)
        })?;
        self.sender.send(event).await.map_err(|_| {
            ApiError::new(StatusCode::GONE, ErrorCode::ClientGone, "the client closed the stream")
        })
    }

    /// Sends the responses that were recorded since the last time.
    async fn send_responses(&mut self, run: &Run) -> Result<usize, ApiError> {
        let (run_key, from) = (run.run_key, self.position.ordinal);
        let query = Query::Events { run_key, from, limit: ROWS };
        let events = self.call.engine.store().list(query).await?.events()?;
        for event in &events {
            self.position.ordinal = event.ordinal + 1;
            if let Some((call, step)) = response_of(event) {
                let data = self.response(run, event, &call, step).await?;
                self.elsewhere = None;
                self.send("response", &data).await?;
            }
        }
        Ok(events.len())
    }

    async fn response(
        &self,
        run: &Run,
        event: &Event,
        call: &str,
        step: StepKey,
    ) -> Result<Value, ApiError> {
        let payload = event.payload_json().unwrap_or_default();
        // The event leaves out counts of zero.
        let usage: Usage = serde_json::from_value(payload["usage"].clone()).unwrap_or_default();
        let response =
            agents::response_at(&self.call.engine, run.run_key, event.ordinal, &step).await?;
        Ok(json!({
            "call": call, "attempt": payload["attempt"], "text": response.text()?,
            "toolUses": response.tool_uses()?, "stopReason": payload["stop_reason"],
            "usage": usage,
        }))
    }

    /// Sends the parts of the call that runs now, until its attempt has ended.
    async fn send_running(&mut self, run: &Run) -> Result<bool, ApiError> {
        if let Some(parts) = self.watch.as_ref().and_then(CallWatch::current)
            && !self.has_seen(&parts)
        {
            self.seen = Some((parts.call().to_owned(), parts.attempt()));
            let begun = json!({ "call": parts.call(), "attempt": parts.attempt() });
            self.send("call", &begun).await?;
            let mut position = 0;
            loop {
                let more = parts.from(position).await;
                if more.is_empty() {
                    return Ok(true);
                }
                position += more.len();
                for part in &more {
                    self.send("part", part).await?;
                }
            }
        }
        self.send_elsewhere(run).await
    }

    async fn send_elsewhere(&mut self, run: &Run) -> Result<bool, ApiError> {
        let engine = &self.call.engine;
        if run.turn.worker.is_none_or(|worker| worker == engine.worker()) {
            return Ok(false);
        }
        let loaded = engine.store().load_with(vec![run.run_key], LoadSteps::Open).await?;
        let steps = loaded.into_iter().flat_map(|loaded| loaded.steps);
        let mut calls = steps.filter(|step| step.kind == agents::LLM);
        let running = calls.find(|step| step.status == StepStatus::Running);
        let Some(step) = running.filter(|step| self.elsewhere.as_ref() != Some(&step.step_key))
        else {
            return Ok(false);
        };
        let message = "another process runs this call; its text comes with its response";
        let data = json!({
            "code": ErrorCode::StreamElsewhere.as_str(), "message": message,
            "call": step.step_key.as_str(),
        });
        self.elsewhere = Some(step.step_key);
        self.send("elsewhere", &data).await?;
        Ok(true)
    }
}

/// The call that an event completed, and the step with its response.
fn response_of(event: &Event) -> Option<(String, StepKey)> {
    if !event.event_type.as_str().ends_with(".completed") {
        return None;
    }
    let payload = event.payload_json().ok()?;
    let call = payload["continuation_id"].as_str().filter(|call| call.starts_with("llm:"))?;
    let step = payload["response_ref"]["step_key"].as_str()?;
    Some((call.to_owned(), StepKey::from_stored(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_can_be_decoded() {
        for position in [
            Position { run_number: 0, ordinal: 0, ended: false },
            Position { run_number: 7, ordinal: 1_000_000, ended: true },
        ] {
            let text = cursor::decode("tokens", &position.encode()).unwrap();
            assert_eq!(Position::decode(&text), Some(position));
        }
        for wrong in ["", "1", "1 2", "x 2 ", "1 2 over"] {
            assert_eq!(Position::decode(wrong), None, "{wrong}");
        }
    }
}
