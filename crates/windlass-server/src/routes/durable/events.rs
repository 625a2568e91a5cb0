//! The ledger of a run with the event names of the admin API. The ledger has only summaries; the
//! bodies come from the run, its steps and its messages.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use utoipa::ToSchema;
use windlass::kernel::{
    Body, ErrorCode, Event, EventType, Message, Query, Run, RunKey, Step, bodies,
};
use windlass_engine::ModelDescription;
use windlass_engine::description::{ActivityArguments, EventMeaning};

use super::{PageParams, find};
use crate::auth::Scope;
use crate::cursor::{self, decode_as};
use crate::error::{ApiError, ApiResult, Failure};
use crate::extract::{Call, Named, Params};
use crate::json::Json;
use crate::paging::cut_to_bytes;
use crate::view::{Raw, Time, raw};

/// The number of rows of one store query.
const STORE_ROWS: u32 = 200;

/// An event of a run.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableEvent {
    /// The id.
    pub id: String,
    /// The run key of the generation.
    #[schema(value_type = String, format = Uuid)]
    pub workflow_id: RunKey,
    /// The position in the ledger, starting at 0.
    pub sequence_num: u64,
    /// The event type, such as `ActivityCompleted`. Events without such a name keep their ledger
    /// type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The data of the event.
    #[schema(value_type = Value)]
    pub data: Raw,
    /// When it happened.
    pub created_at: Time,
}

/// A page of events.
#[derive(Serialize, ToSchema)]
pub(crate) struct DurableEvents {
    /// The events, oldest first.
    pub events: Vec<DurableEvent>,
    /// The total number of events.
    pub total: u64,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Lists the events of a run, oldest first.
#[utoipa::path(get, path = "/durable/workflows/{runKey}/events", tag = "durable",
    operation_id = "durableEvents",
    params(("runKey" = String, Path, description = "The run key"), PageParams),
    responses((status = 200, body = DurableEvents), (status = "default", body = Failure)))]
pub(crate) async fn events(
    call: Call,
    Named(key): Named,
    Params(params): Params<PageParams>,
) -> ApiResult<DurableEvents> {
    let size = params.size()?;
    let from = decode_as("durable-events", params.cursor.as_deref(), |key| key.parse().ok())?;
    let from: u64 = from.unwrap_or(0);
    let run = find(&call, &key, Scope::Read, "events").await?;
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

/// The bodies that the summaries of a page omit.
struct Bodies<'a> {
    run: &'a Run,
    model: &'static ModelDescription,
    steps: BTreeMap<String, Step>,
    messages: BTreeMap<u64, Message>,
}

impl<'a> Bodies<'a> {
    async fn of(call: &Call, run: &'a Run, events: &[Event]) -> Result<Self, ApiError> {
        let summaries: Vec<Value> =
            (events.iter()).map(|event| event.payload_json().unwrap_or(Value::Null)).collect();
        let keys: BTreeSet<String> = summaries.iter().filter_map(step_key).collect();
        let model = call.engine.description_of(run);
        let is_signal =
            |event: &Event| model.meaning(&event.event_type) == EventMeaning::SignalReceived;
        let sent: BTreeSet<u64> = (events.iter().zip(&summaries))
            .filter(|(event, _)| is_signal(event))
            .filter_map(|(_, summary)| summary["message"].as_u64())
            .collect();
        let steps = steps(call, run.run_key, &keys).await?;
        let mut messages = BTreeMap::new();
        for seq in sent {
            let query = Query::Messages { run_key: run.run_key, after: seq - 1, limit: 1 };
            let mut found = call.engine.store().list(query).await?.messages()?;
            bodies::fill(&**call.engine.store(), bodies::of_messages(&mut found)).await?;
            messages.extend(found.into_iter().map(|message| (message.seq, message)));
        }
        Ok(Self { run, model, steps, messages })
    }

    fn render(&self, event: &Event) -> Result<DurableEvent, ApiError> {
        let summary = event.payload_json().unwrap_or(Value::Null);
        let key = step_key(&summary).unwrap_or_default();
        let step = self.steps.get(&key);
        let (word, data) = self.to_api_event(&event.event_type, &summary, &key, step);
        let data = to_raw_value(&data).map_err(|error| {
            let message = format!("failed to serialize an event: {error}");
            windlass::Error::new(windlass::ErrorKind::Internal, ErrorCode::Internal, message)
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

    fn to_api_event<'e>(
        &self,
        event_type: &'e EventType,
        summary: &Value,
        key: &str,
        step: Option<&Step>,
    ) -> (&'e str, Value) {
        let id = (self.model.step_id)(key);
        let result = || body_json(step.and_then(|step| step.result.as_ref()));
        let error = || match step.and_then(|step| step.error.as_ref()) {
            Some(error) => body_json(Some(error)),
            None => summary["error"].clone(),
        };
        let (run, child) = (self.run, &summary["run_key"]);
        let data = match self.model.meaning(event_type) {
            EventMeaning::WorkflowStarted => json!({ "input": body_json(Some(&run.input)) }),
            EventMeaning::WorkflowCompleted => json!({ "result": body_json(run.output.as_ref()) }),
            EventMeaning::WorkflowFailed => json!({ "error": body_json(run.error.as_ref()) }),
            EventMeaning::WorkflowCancelled => json!({ "reason": self.reason(summary) }),
            EventMeaning::ActivityScheduled => self.scheduled(id, summary, step),
            EventMeaning::ActivityStarted => {
                let (attempt, worker) = (&summary["attempt"], &summary["worker"]);
                json!({ "activity_id": id, "attempt": attempt, "worker_id": worker })
            }
            EventMeaning::ActivityCompleted => json!({ "activity_id": id, "result": result() }),
            EventMeaning::ActivityFailed => {
                json!({ "activity_id": id, "error": error(), "will_retry": false })
            }
            // The step's row has the error of its last attempt; this was an earlier one.
            EventMeaning::ActivityRetried => {
                json!({ "activity_id": id, "error": summary["error"], "will_retry": true })
            }
            EventMeaning::ActivityTimedOut => {
                json!({ "activity_id": id, "timeout_type": summary["timeout_type"] })
            }
            EventMeaning::ActivityCancelled => {
                json!({ "activity_id": id, "reason": error()["message"] })
            }
            EventMeaning::TimerStarted => {
                json!({ "timer_id": id, "duration_ms": duration_ms(step) })
            }
            EventMeaning::TimerFired | EventMeaning::TimerCancelled => json!({ "timer_id": id }),
            EventMeaning::SignalReceived => json!({ "signal": self.signal(summary) }),
            EventMeaning::ChildStarted => {
                json!({ "workflow_id": child, "workflow_type": summary["workflow"] })
            }
            EventMeaning::ChildCompleted => json!({ "workflow_id": child, "result": result() }),
            EventMeaning::ChildFailed => json!({ "workflow_id": child, "error": error() }),
            EventMeaning::Other => return (event_type.as_str(), summary.clone()),
        };
        (self.model.meaning(event_type).as_str(), data)
    }

    fn signal(&self, summary: &Value) -> Value {
        let seq = summary["message"].as_u64().unwrap_or(0);
        let message = self.messages.get(&seq);
        let signal_type = message.map(|message| message.name.to_string());
        let payload = body_json(message.and_then(|message| message.body.as_ref()));
        let sent_at = message.map(|message| Time(message.sent_at));
        json!({ "signal_type": signal_type, "payload": payload, "sent_at": sent_at })
    }

    fn scheduled(&self, id: &str, summary: &Value, step: Option<&Step>) -> Value {
        let given = body_json(step.and_then(|step| step.input.as_ref()));
        let ActivityArguments { input, options } = (self.model.activity_arguments)(given);
        let options = options.unwrap_or_else(|| json!({ "queue": summary["queue"] }));
        json!({
            "activity_id": id, "activity_type": summary["activity"], "input": input,
            "options": options,
        })
    }

    fn reason(&self, summary: &Value) -> Value {
        let error = body_json(self.run.error.as_ref());
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
        let mut wanted: Vec<Step> =
            page.into_iter().filter(|step| keys.contains(step.step_key.as_str())).collect();
        bodies::fill(&**call.engine.store(), bodies::of_steps(&mut wanted)).await?;
        found.extend(wanted.into_iter().map(|step| (step.step_key.to_string(), step)));
        if is_last {
            break;
        }
    }
    Ok(found)
}

// Relay steps have a number, all others a key.
fn step_key(summary: &Value) -> Option<String> {
    match (&summary["key"], &summary["step"]) {
        (Value::String(key), _) => Some(key.clone()),
        (_, Value::Number(number)) => Some(number.to_string()),
        _ => None,
    }
}

fn body_json(body: Option<&Body>) -> Value {
    body.and_then(|body| serde_json::from_str(raw(body).get()).ok()).unwrap_or(Value::Null)
}

fn duration_ms(step: Option<&Step>) -> Option<u64> {
    let step = step?;
    let span = step.timeout.or_else(|| Some(step.due_at?.since(step.created_at)))?;
    u64::try_from(span.as_millis()).ok()
}
