//! The attempts of steps, from the events of their run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use windlass::Timestamp;
use windlass::kernel::{Event, Query, Run, StepKey};

use super::live::step_of;
use crate::error::ApiError;
use crate::extract::Call;
use crate::view::{Time, parse_time};

/// The most events that one page reads for the attempts of its steps.
const EVENTS_MAX: usize = 20_000;
const EVENT_ROWS: u32 = 1_000;

/// One attempt of a step.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttemptView {
    /// Its number, from 1.
    pub attempt: u32,
    /// When it began, if the ledger says so.
    pub began_at: Option<Time>,
    /// When it ended; none while it runs.
    pub ended_at: Option<Time>,
    /// The name of its error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The worker that ran it, if the ledger says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
}

pub(crate) type Tries = BTreeMap<StepKey, Vec<AttemptView>>;

/// The attempts of the steps that were recorded at a position or later, from the events of the run.
pub(crate) async fn tries(call: &Call, run: &Run, first: u64) -> Result<(Tries, bool), ApiError> {
    let mut tries = Tries::new();
    let (mut from, mut read) = (first, 0);
    loop {
        let query = Query::Events { run_key: run.run_key, from, limit: EVENT_ROWS };
        let events = call.engine.store().list(query).await?.events()?;
        for event in &events {
            add_attempt(&mut tries, event);
        }
        read += events.len();
        match events.last() {
            Some(last) if events.len() == EVENT_ROWS as usize && read < EVENTS_MAX => {
                from = last.ordinal + 1;
            }
            _ => return Ok((tries, read >= EVENTS_MAX)),
        }
    }
}

/// Adds what an event says about an attempt.
fn add_attempt(tries: &mut Tries, event: &Event) {
    let Ok(payload) = event.payload_json() else { return };
    let Some(key) = step_of(event).filter(|_| payload["memo"].is_null()) else { return };
    let attempt = payload["attempt"].as_u64().and_then(|n| u32::try_from(n).ok());
    match payload["continuation_id"].is_string() {
        true => add_call(tries.entry(key).or_default(), event, &payload, attempt),
        false => match attempt {
            Some(attempt) if attempt > 0 => {
                add_step(at(tries.entry(key).or_default(), attempt), event, &payload);
            }
            _ => {}
        },
    }
}

/// The attempt with a number.
fn at(of_step: &mut Vec<AttemptView>, attempt: u32) -> &mut AttemptView {
    let index = match of_step.iter().position(|known| known.attempt == attempt) {
        Some(index) => index,
        None => {
            of_step.push(AttemptView { attempt, ..AttemptView::default() });
            of_step.len() - 1
        }
    };
    &mut of_step[index]
}

/// An event of a step. Models write the same members: `attempt`, and one of `took_us`, `started_at`, `failed_at`.
fn add_step(view: &mut AttemptView, event: &Event, payload: &Value) {
    let time = |name: &str| payload[name].as_str().and_then(parse_time);
    let took = payload["took_us"].as_u64().map(Duration::from_micros);
    let ended = time("failed_at").unwrap_or(event.created_at);
    let is_start = payload.get("started_at").is_some() && payload.get("error").is_none();
    if let Some(started) = time("started_at") {
        view.began_at = Some(Time(started));
    } else if let Some(took) = took {
        view.began_at = Some(Time(before(ended, took)));
    }
    if let Value::String(worker) = &payload["worker"] {
        view.worker = Some(worker.clone());
    }
    if let Value::String(error) = &payload["error"]["name"] {
        view.error = Some(error.clone());
    }
    // The event of a start has no end, and another one follows.
    if !is_start || view.ended_at.is_none() {
        view.ended_at = Some(Time(ended));
    }
}

/// An event of a call of an agent. The first event has no attempt and a request; a retry has the number of the next
/// attempt, its time, and the kind of the error before; a later generation has `retry_of`.
fn add_call(of_step: &mut Vec<AttemptView>, event: &Event, payload: &Value, attempt: Option<u32>) {
    let has_request = payload["request_digest"].is_string();
    let now = Time(event.created_at);
    match attempt {
        None if has_request => at(of_step, 1).began_at = Some(now),
        None | Some(0) => {}
        Some(attempt) if has_request => at(of_step, attempt).began_at = Some(now),
        Some(attempt) if payload["error"].is_null() && payload["kind"].is_string() => {
            if attempt > 1 {
                let failed = at(of_step, attempt - 1);
                failed.ended_at = Some(now);
                failed.error = payload["kind"].as_str().map(str::to_owned);
            }
            let due = payload["retry_at"].as_str().and_then(parse_time);
            at(of_step, attempt).began_at = Some(due.map_or(now, Time));
        }
        Some(attempt) => {
            let view = at(of_step, attempt);
            let name = payload["error"]["name"].as_str().or(payload["error"].as_str());
            if let Some(name) = name {
                view.error = Some(name.to_owned());
            }
            // Otherwise a batch was submitted, and its result comes later.
            if name.is_some() || payload["response_digest"].is_string() {
                view.ended_at = Some(now);
            }
        }
    }
}

fn before(at: Timestamp, span: Duration) -> Timestamp {
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Timestamp::from_micros(at.as_micros().saturating_sub(micros))
}
