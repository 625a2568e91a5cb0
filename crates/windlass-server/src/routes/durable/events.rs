//! A run's ledger in the words of state machines. The ledger has summaries; the bodies beside them come
//! from the run, its steps and its messages.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use utoipa::ToSchema;
use windlass::kernel::{Body, Event, Message, Query, Run, RunKey, Step};

use super::{PageParams, find};
use crate::auth::Scope;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Named, Params};
use crate::json::Json;
use crate::paging::cut_to_bytes;
use crate::view::{Raw, Time, raw};

/// Rows that are read from the store at a time.
const STORE_ROWS: u32 = 200;

/// Something that happened to a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableEvent {
    /// Names it.
    pub id: String,
    /// The generation that it happened to.
    #[schema(value_type = String, format = Uuid)]
    pub workflow_id: RunKey,
    /// Its place in the run's ledger, from 0.
    pub sequence_num: u64,
    /// What happened, such as `ActivityCompleted`; what has no such word keeps its name in the ledger.
    #[serde(rename = "type")]
    pub event_type: String,
    /// What belongs to it.
    #[schema(value_type = Value)]
    pub data: Raw,
    /// When it happened.
    pub created_at: Time,
}

/// A page of what happened to a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableEvents {
    /// What happened, oldest first.
    pub events: Vec<DurableEvent>,
    /// How many there are.
    pub total: u64,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Tells what happened to a run, oldest first.
#[utoipa::path(get, path = "/durable/workflows/{runKey}/events", tag = "durable",
    operation_id = "durableEvents",
    params(("runKey" = String, Path, description = "The key of a generation"), PageParams),
    responses((status = 200, body = DurableEvents), (status = "default", body = Failure)))]
pub(crate) async fn events(
    call: Call,
    Named(key): Named,
    Params(params): Params<PageParams>,
) -> ApiResult<DurableEvents> {
    let size = params.size()?;
    let from = decode_as("durable-events", params.cursor.as_deref(), |key| key.parse().ok())?;
    let from: u64 = from.unwrap_or(0);
    let run = find(&call, &key, Scope::Read, "events").await?.run;
    let query = Query::Events { run_key: run.run_key, from, limit: size };
    let events = call.engine.store().list(query).await?.events()?;
    let bodies = Bodies::of(&call, &run, &events).await?;
    let events: Result<Vec<_>, _> = events.iter().map(|event| bodies.render(event)).collect();
    let mut events = events?;
    cut_to_bytes(&mut events, |event| event.data.get().len());
    let next = from + events.len() as u64;
    let more = next < run.head.next_ordinal;
    let cursor = more.then(|| cursor::encode("durable-events", &next.to_string()));
    Ok(Json(DurableEvents { events, total: run.head.next_ordinal, cursor }))
}

/// What the summaries of a page leave out.
struct Bodies<'a> {
    run: &'a Run,
    steps: BTreeMap<String, Step>,
    messages: BTreeMap<u64, Message>,
}

impl<'a> Bodies<'a> {
    async fn of(call: &Call, run: &'a Run, events: &[Event]) -> Result<Self, ApiError> {
        let summaries: Vec<Value> =
            (events.iter()).map(|event| event.payload_json().unwrap_or(Value::Null)).collect();
        let keys: BTreeSet<String> = summaries.iter().filter_map(step_key).collect();
        let sent: BTreeSet<u64> = (events.iter().zip(&summaries))
            .filter(|(event, _)| {
                matches!(event.event_type.as_str(), "signal.received" | "event.consumed")
            })
            .filter_map(|(_, summary)| summary["message"].as_u64())
            .collect();
        let steps = steps(call, run.run_key, &keys).await?;
        let mut messages = BTreeMap::new();
        for seq in sent {
            let query = Query::Messages { run_key: run.run_key, after: seq - 1, limit: 1 };
            let found = call.engine.store().list(query).await?.messages()?;
            messages.extend(found.into_iter().map(|message| (message.seq, message)));
        }
        Ok(Self { run, steps, messages })
    }

    fn render(&self, event: &Event) -> Result<DurableEvent, ApiError> {
        let summary = event.payload_json().unwrap_or(Value::Null);
        let key = step_key(&summary).unwrap_or_default();
        let step = self.steps.get(&key);
        let (word, data) = self.words(event.event_type.as_str(), &summary, &key, step);
        let data = to_raw_value(&data).map_err(|error| {
            let message = format!("an event cannot be shown: {error}");
            windlass::Error::new(windlass::ErrorKind::Internal, "INTERNAL", message)
        })?;
        Ok(DurableEvent {
            id: event.event_id.to_string(),
            workflow_id: event.run_key,
            sequence_num: event.ordinal,
            event_type: word.to_owned(),
            data,
            created_at: Time(event.created_at),
        })
    }

    fn words<'e>(
        &self,
        name: &'e str,
        summary: &Value,
        key: &str,
        step: Option<&Step>,
    ) -> (&'e str, Value) {
        let id = name_of(key);
        let result = || shown(step.and_then(|step| step.result.as_ref()));
        let error = || match step.and_then(|step| step.error.as_ref()) {
            Some(error) => shown(Some(error)),
            None => summary["error"].clone(),
        };
        match name {
            "workflow.enqueued" => {
                ("WorkflowStarted", json!({ "input": shown(Some(&self.run.input)) }))
            }
            "workflow.completed" => {
                ("WorkflowCompleted", json!({ "result": shown(self.run.output.as_ref()) }))
            }
            "workflow.failed" => {
                ("WorkflowFailed", json!({ "error": shown(self.run.error.as_ref()) }))
            }
            "workflow.terminated" => {
                ("WorkflowCancelled", json!({ "reason": self.reason(summary) }))
            }
            "activity.scheduled" => ("ActivityScheduled", scheduled(id, summary, step)),
            "activity.started" => {
                let (attempt, worker) = (&summary["attempt"], &summary["worker"]);
                let data = json!({ "activity_id": id, "attempt": attempt, "worker_id": worker });
                ("ActivityStarted", data)
            }
            "activity.completed" | "step.completed" | "relay.step_completed" => {
                ("ActivityCompleted", json!({ "activity_id": id, "result": result() }))
            }
            "activity.failed" | "step.failed" | "relay.step_failed" => {
                let data = json!({ "activity_id": id, "error": error(), "will_retry": false });
                ("ActivityFailed", data)
            }
            "step.retried" | "relay.step_retried" => {
                // The step's row has what its last attempt left behind; this was an earlier one.
                let data = json!({
                    "activity_id": id, "error": summary["error"], "will_retry": true,
                });
                ("ActivityFailed", data)
            }
            "activity.timed_out" => {
                let data = json!({ "activity_id": id, "timeout_type": summary["timeout_type"] });
                ("ActivityTimedOut", data)
            }
            "activity.cancelled" | "relay.step_cancelled" => {
                let reason = error()["message"].clone();
                ("ActivityCancelled", json!({ "activity_id": id, "reason": reason }))
            }
            "timer.started" | "sleep.started" => {
                let data = json!({ "timer_id": id, "duration_ms": duration_ms(step) });
                ("TimerStarted", data)
            }
            "timer.fired" | "sleep.elapsed" => ("TimerFired", json!({ "timer_id": id })),
            "timer.cancelled" => ("TimerCancelled", json!({ "timer_id": id })),
            "signal.received" | "event.consumed" => {
                let seq = summary["message"].as_u64().unwrap_or(0);
                let message = self.messages.get(&seq);
                let signal_type = message.map(|message| message.name.to_string());
                let payload = shown(message.and_then(|message| message.body.as_ref()));
                let sent_at = message.map(|message| Time(message.sent_at));
                let signal = json!({
                    "signal_type": signal_type, "payload": payload, "sent_at": sent_at,
                });
                ("SignalReceived", json!({ "signal": signal }))
            }
            "child.started" => {
                let (run, workflow) = (&summary["run_key"], &summary["workflow"]);
                ("ChildWorkflowStarted", json!({ "workflow_id": run, "workflow_type": workflow }))
            }
            "child.completed" => {
                let data = json!({ "workflow_id": summary["run_key"], "result": result() });
                ("ChildWorkflowCompleted", data)
            }
            "child.failed" => {
                let data = json!({ "workflow_id": summary["run_key"], "error": error() });
                ("ChildWorkflowFailed", data)
            }
            // What the words above do not cover is told as the ledger tells it.
            other => (other, summary.clone()),
        }
    }

    fn reason(&self, summary: &Value) -> Value {
        let error = shown(self.run.error.as_ref());
        [&summary["reason"], &error["message"], &summary["request"]]
            .into_iter()
            .find(|text| text.is_string())
            .cloned()
            .unwrap_or_else(|| "cancelled".into())
    }
}

async fn steps(
    call: &Call,
    run_key: RunKey,
    keys: &BTreeSet<String>,
) -> Result<BTreeMap<String, Step>, ApiError> {
    let mut found = BTreeMap::new();
    let mut after = None;
    while found.len() < keys.len() {
        let query = Query::Steps { run_key, after, limit: STORE_ROWS };
        let page = call.engine.store().list(query).await?.steps()?;
        let is_last = page.len() < STORE_ROWS as usize;
        after = page.last().map(|step| (step.position, step.step_key.clone()));
        let named = page.into_iter().map(|step| (step.step_key.to_string(), step));
        found.extend(named.filter(|(key, _)| keys.contains(key)));
        if is_last {
            break;
        }
    }
    Ok(found)
}

// Relays number their steps; everything else has a key.
fn step_key(summary: &Value) -> Option<String> {
    match (&summary["key"], &summary["step"]) {
        (Value::String(key), _) => Some(key.clone()),
        (_, Value::Number(number)) => Some(number.to_string()),
        _ => None,
    }
}

// A machine's own name for what a step's key stands for.
fn name_of(key: &str) -> &str {
    let bare = ["timer/", "child/", "effect/"].iter().find_map(|prefix| key.strip_prefix(prefix));
    let bare = bare.unwrap_or(key);
    bare.split('#').next().unwrap_or(bare)
}

fn shown(body: Option<&Body>) -> Value {
    body.and_then(|body| serde_json::from_str(raw(body).get()).ok()).unwrap_or(Value::Null)
}

fn scheduled(id: &str, summary: &Value, step: Option<&Step>) -> Value {
    // A machine keeps its activity's input and options together; other models the input alone.
    let given = shown(step.and_then(|step| step.input.as_ref()));
    let whole = given.get("type").is_some() && given.get("input").is_some();
    let input = if whole { given["input"].clone() } else { given.clone() };
    let options = match given.get("options").filter(|_| whole) {
        Some(options) => options.clone(),
        None => json!({ "queue": summary["queue"] }),
    };
    json!({
        "activity_id": id, "activity_type": summary["activity"], "input": input,
        "options": options,
    })
}

fn duration_ms(step: Option<&Step>) -> Option<u64> {
    let step = step?;
    let span = step.timeout.or_else(|| Some(step.due_at?.since(step.created_at)))?;
    u64::try_from(span.as_millis()).ok()
}
