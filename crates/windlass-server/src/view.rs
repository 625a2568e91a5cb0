//! API representations of rows: camelCase, RFC 3339 times, bodies as JSON.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;
use windlass::Timestamp;
use windlass::kernel::{
    Body, BodyRef, CausalRef, Encoding, Event, LogLine, Message, Run, RunKey, RunStatus, Step,
    StepStatus,
};
use windlass_engine::description::StepRole;
use windlass_engine::{Engine, ModelDescription};

/// A time in UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-01-31T12:00:00.000Z")]
pub(crate) struct Time(pub Timestamp);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0.as_micros()) {
            Ok(time) => write!(f, "{time:.3}"),
            // Clamps unrepresentable times, because clients parse the text as a time.
            Err(_) if self.0 < Timestamp::ZERO => f.write_str("0000-01-01T00:00:00.000Z"),
            Err(_) => write!(f, "{:.3}", jiff::Timestamp::MAX),
        }
    }
}

impl Time {
    /// Formats a year with four digits without allocation. Every response has several times, and
    /// the general formatting costs more than reading the row.
    fn digits(self) -> Option<[u8; 24]> {
        let time = jiff::Timestamp::from_microsecond(self.0.as_micros()).ok()?;
        let time = jiff::tz::Offset::UTC.to_datetime(time);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let parts = [
            (3, i64::from(time.year())),
            (6, i64::from(time.month())),
            (9, i64::from(time.day())),
            (12, i64::from(time.hour())),
            (15, i64::from(time.minute())),
            (18, i64::from(time.second())),
            (22, i64::from(time.millisecond())),
        ];
        for (last, part) in parts {
            let mut rest = u64::try_from(part).ok()?;
            for digit in text[..=last].iter_mut().rev() {
                if rest == 0 {
                    break;
                }
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        Some(text)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits = self.digits();
        match digits.as_ref().map(|text| std::str::from_utf8(text)) {
            Some(Ok(text)) => serializer.serialize_str(text),
            _ => serializer.collect_str(self),
        }
    }
}

/// Parses an RFC 3339 time.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_micros(time.as_microsecond()))
}

/// JSON that is passed through without parsing.
pub(crate) type Raw = Box<RawValue>;

/// Converts a body to JSON: unchanged if it is JSON, else as base64. A listing does not read large bodies,
/// and shows their digest and size.
pub(crate) fn raw(body: &Body) -> Raw {
    if let Some(BodyRef { digest, len }) = body.reference() {
        let shown = json!({ "encoding": "reference", "digest": digest, "bytes": len });
        return RawValue::from_string(shown.to_string()).expect("a serialized value is valid JSON");
    }
    let text = match body.encoding {
        Encoding::Json => String::from_utf8(body.bytes.to_vec()).ok(),
        Encoding::Bytes => None,
    };
    let text = text.and_then(|text| RawValue::from_string(text).ok());
    text.unwrap_or_else(|| {
        let bytes = json!({ "encoding": "base64", "bytes": STANDARD.encode(&body.bytes) });
        RawValue::from_string(bytes.to_string()).expect("a serialized value is valid JSON")
    })
}

/// An error of a run or step.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorView {
    /// The name of the error.
    pub name: String,
    /// The message.
    pub message: String,
}

impl ErrorView {
    pub(crate) fn of(body: &Body) -> Self {
        let value: Value = body.read().unwrap_or(Value::Null);
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        Self {
            name: text("name").unwrap_or_else(|| "Error".to_owned()),
            message: text("message").unwrap_or_else(|| value.to_string()),
        }
    }
}

/// The status of a run.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InstanceStatus {
    /// `active`, `paused`, `errored`, `terminated`, `complete` or `waiting`.
    #[schema(example = "waiting")]
    pub status: &'static str,
    /// Whether a cancellation was requested and the run has not ended. Only in responses about a
    /// single run, not in lists.
    #[serde(skip_serializing_if = "is_false")]
    pub cancelling: bool,
    /// The error, if the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// The output, if the run completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub output: Option<Raw>,
}

impl InstanceStatus {
    pub(crate) fn of(run: &Run) -> Self {
        Self::new(run.status, run.error.as_ref(), run.output.as_ref())
    }

    pub(crate) fn new(status: RunStatus, error: Option<&Body>, output: Option<&Body>) -> Self {
        Self {
            status: status.as_str(),
            cancelling: false,
            error: error.map(ErrorView::of),
            output: output.map(raw),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A run in a list.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunSummary {
    /// The name of the workflow.
    pub workflow_name: String,
    /// The id of the run.
    pub id: String,
    /// The key of this generation.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
    /// The generation, starting at 0.
    pub run_number: u32,
    /// The model of the workflow.
    pub model: String,
    /// The parent, if this run is a child.
    #[schema(value_type = Option<String>, format = Uuid)]
    pub parent: Option<RunKey>,
    /// Where it is.
    pub details: InstanceStatus,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// When it was created.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
    /// When it ended.
    pub completed_at: Option<Time>,
}

impl RunSummary {
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            workflow_name: run.workflow.to_string(),
            id: run.id.to_string(),
            run_key: run.run_key,
            run_number: run.generation,
            model: run.model.to_string(),
            parent: run.parent,
            details: InstanceStatus::of(run),
            labels: run.labels.clone(),
            created_at: Time(run.created_at),
            updated_at: Time(run.updated_at),
            completed_at: run.ended_at.map(Time),
        }
    }
}

/// A step.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepView {
    /// The key, unique within the run.
    pub step_key: String,
    /// The display name.
    pub name: String,
    /// The type in the API: `do`, `sleep` or `waitForEvent`.
    #[serde(rename = "type")]
    #[schema(example = "do")]
    pub step_type: &'static str,
    /// The status in the API: `pending`, `waiting`, `completed` or `errored`.
    #[schema(example = "waiting")]
    pub status: &'static str,
    /// The kind in the model, more specific than `type`, such as `child`.
    #[schema(example = "activity")]
    pub kind: String,
    /// The state in the engine, more specific than `status`: also `running`, `skipped`,
    /// `cancelled`.
    #[schema(example = "running")]
    pub state: &'static str,
    /// The number of attempts.
    pub attempts: u32,
    /// The maximum number of attempts: 1 if it is never retried, 2,147,483,647 if unlimited.
    pub max_attempts: u32,
    /// The time limit of an attempt.
    pub timeout_ms: Option<u64>,
    /// When the next attempt is due.
    pub next_retry_at: Option<Time>,
    /// When a sleep ends, or a wait times out.
    pub wake_at: Option<Time>,
    /// The type of the event, or the name of the signal, that the step waits for.
    pub wait_event_type: Option<String>,
    /// The error of the last failed attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
}

impl StepView {
    pub(crate) fn of(step: &Step, run: &Run, kinds: Kinds<'_>) -> Self {
        let kind = kinds.model.step(&step.kind);
        let executing = kind.is_executing(run, step, kinds.now);
        let state = if executing { StepStatus::Running } else { step.status };
        let open_until = step.due_at.filter(|_| !state.is_settled() && !executing).map(Time);
        // A step that was not tried yet waits for a time or for a signal.
        let untried = kind.role == StepRole::Work && step.attempt == 0;
        let (retry, wake) = match kind.role {
            StepRole::Work if untried => (None, open_until),
            StepRole::Work | StepRole::Record | StepRole::Child | StepRole::Activity => {
                (open_until, None)
            }
            // A settled sleep or wait keeps the time that it was due at.
            StepRole::Sleep | StepRole::Event | StepRole::Request => (None, step.due_at.map(Time)),
        };
        let waits_for_event =
            kind.role == StepRole::Event || untried && step.status == StepStatus::Waiting;
        Self {
            step_key: step.step_key.to_string(),
            name: step.name.to_string(),
            step_type: kind.role.api_type(),
            status: status_word(state),
            kind: step.kind.to_string(),
            state: state.as_str(),
            attempts: step.attempt,
            max_attempts: step.attempts_max.unwrap_or_else(|| kind.role.attempts_default()),
            timeout_ms: step.timeout.and_then(|span| u64::try_from(span.as_millis()).ok()),
            next_retry_at: retry,
            wake_at: wake,
            wait_event_type: step
                .wait_for
                .as_ref()
                .filter(|_| waits_for_event)
                .map(|to| to.to_string()),
            error: step.error.as_ref().map(ErrorView::of),
        }
    }
}

/// The data for describing the steps of a run.
#[derive(Clone, Copy)]
pub(crate) struct Kinds<'a> {
    pub model: &'a ModelDescription,
    pub now: Timestamp,
}

impl Kinds<'_> {
    pub(crate) fn of(engine: &Engine, run: &Run) -> Self {
        Self { model: engine.description_of(run), now: engine.clock().now() }
    }
}

/// Maps the status of a step to one of the four API statuses.
fn status_word(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Pending | StepStatus::Running => "pending",
        StepStatus::Waiting => "waiting",
        StepStatus::Completed => "completed",
        StepStatus::Errored | StepStatus::Skipped | StepStatus::Cancelled => "errored",
    }
}

/// The current step of a run: the open step that changed last. One that lost a race is `pending`, and
/// is current only if there is no other.
pub(crate) fn current_step(steps: &[Step]) -> Option<&Step> {
    let open = |step: &&Step| !step.status.is_settled();
    steps.iter().filter(open).max_by_key(|step| {
        let (running, pending) =
            (step.status == StepStatus::Running, step.status == StepStatus::Pending);
        (running, !pending, step.updated_at)
    })
}

/// A step with its result, in the history of a run.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepRecord {
    /// The step.
    #[serde(flatten)]
    pub step: StepView,
    /// The generation of the run.
    pub run_number: u32,
    /// The result.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Raw>,
    /// The name of its error.
    pub error_name: Option<String>,
    /// The message of its error.
    pub error_message: Option<String>,
    /// When it was first recorded.
    pub created_at: Time,
    /// When it last changed.
    pub updated_at: Time,
}

impl StepRecord {
    pub(crate) fn of(step: &Step, run: &Run, kinds: Kinds<'_>) -> Self {
        let error = step.error.as_ref().map(ErrorView::of);
        Self {
            step: StepView::of(step, run, kinds),
            run_number: run.generation,
            result: step.result.as_ref().map(raw),
            error_name: error.as_ref().map(|error| error.name.clone()),
            error_message: error.map(|error| error.message),
            created_at: Time(step.created_at),
            updated_at: Time(step.updated_at),
        }
    }
}

/// An event that a run received.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventRecord {
    /// The id, from the sender or generated.
    pub id: String,
    /// The generation of the run.
    pub run_number: u32,
    /// The type of the event.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The payload.
    #[schema(value_type = Option<Value>)]
    pub payload: Option<Raw>,
    /// When it was sent.
    pub created_at: Time,
    /// When a step consumed it.
    pub delivered_at: Option<Time>,
    /// The step that consumed it.
    pub consumed_by_step_key: Option<String>,
}

impl EventRecord {
    pub(crate) fn of(message: &Message, run_number: u32) -> Self {
        let consumed = message.consumed.as_ref();
        Self {
            id: message.message_id.to_string(),
            run_number,
            event_type: message.name.to_string(),
            payload: message.body.as_ref().map(raw),
            created_at: Time(message.sent_at),
            delivered_at: consumed.map(|consumed| Time(consumed.at)),
            consumed_by_step_key: consumed.map(|consumed| consumed.by.to_string()),
        }
    }
}

/// A durable log line.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LogRecord {
    /// The id.
    pub id: String,
    /// The generation of the run that wrote it.
    pub run_number: u32,
    /// The step that wrote it.
    pub step_key: Option<String>,
    /// The attempt that wrote it.
    pub attempt: Option<u32>,
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// The category; the engine uses `system`.
    pub category: String,
    /// The text.
    pub message: String,
    /// Additional data.
    #[schema(value_type = Option<Value>)]
    pub data: Option<Raw>,
    /// Whether it was written during replay.
    pub is_replay: bool,
    /// When it was written.
    pub created_at: Time,
}

impl LogRecord {
    pub(crate) fn of(line: &LogLine, run_number: u32) -> Self {
        Self {
            id: line.log_id.to_string(),
            run_number,
            step_key: line.step_key.as_ref().map(ToString::to_string),
            attempt: line.attempt,
            level: line.level.as_str(),
            category: line.category.to_string(),
            message: line.message.to_string(),
            data: line.data.as_ref().map(raw),
            is_replay: line.replay,
            created_at: Time(line.created_at),
        }
    }
}

/// A ledger event.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerEvent {
    /// The position in the ledger of the run, starting at 0.
    pub ordinal: u64,
    /// The id.
    pub event_id: String,
    /// The run key of the generation.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
    /// The event type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The version of the format of the summary.
    pub version: u16,
    /// The cause: an event or a run.
    #[schema(value_type = Value)]
    pub cause: CausalRef,
    /// When it happened.
    pub at: Time,
    /// A summary without bodies.
    #[schema(value_type = Value)]
    pub summary: Value,
    /// The hash of this event and of the previous hash.
    pub hash: String,
}

impl LedgerEvent {
    pub(crate) fn of(event: &Event) -> Self {
        Self {
            ordinal: event.ordinal,
            event_id: event.event_id.to_string(),
            run_key: event.run_key,
            event_type: event.event_type.as_str().to_owned(),
            version: event.version,
            cause: event.caused_by,
            at: Time(event.created_at),
            summary: event.payload_json().unwrap_or(Value::Null),
            hash: event.hash.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_map_to_api_statuses() {
        let words = StepStatus::ALL.iter().map(|status| (status.as_str(), status_word(*status)));
        for (state, status) in words {
            let known = ["pending", "waiting", "completed", "errored"];
            assert!(known.contains(&status), "{state}");
            assert!(!known.contains(&state) || state == status, "{state} is mapped to {status}");
        }
    }

    #[test]
    fn serialized_times_equal_displayed_times() {
        let ms = |ms| Time(Timestamp::from_millis(ms));
        for at in [0, 1, 999, 59_999, 951_827_696_789, 1_709_251_199_999, 253_402_207_200_000, -1] {
            let written = serde_json::to_string(&ms(at)).unwrap();
            assert_eq!(written, format!("\"{}\"", ms(at)), "{at}");
        }
    }

    #[test]
    fn unrepresentable_times_are_clamped() {
        for at in [i64::MAX, i64::MIN] {
            let time = Time(Timestamp::from_micros(at));
            let text = serde_json::to_string(&time).unwrap();
            assert!(parse_time(text.trim_matches('"')).is_some(), "{text}");
        }
    }

    #[test]
    fn times_have_milliseconds_and_can_be_parsed() {
        let at = Timestamp::from_micros(1_700_000_000_123_456);
        assert_eq!(Time(at).to_string(), "2023-11-14T22:13:20.123Z");
        assert_eq!(Time(Timestamp::from_millis(0)).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(
            parse_time("2023-11-14T22:13:20.123Z"),
            Some(Timestamp::from_millis(1_700_000_000_123))
        );
        assert_eq!(
            parse_time("2023-11-14T23:13:20+01:00"),
            Some(Timestamp::from_millis(1_700_000_000_000))
        );
        assert_eq!(parse_time("yesterday"), None);
    }

    #[test]
    fn bodies_are_passed_through() {
        assert_eq!(raw(&Body::json("{\"a\": 1.50}")).get(), "{\"a\": 1.50}");
        assert_eq!(
            raw(&Body::bytes(vec![255, 0])).get(),
            r#"{"bytes":"/wA=","encoding":"base64"}"#
        );
        let error =
            ErrorView::of(&Body::json(r#"{"name":"Declined","message":"no","retryable":false}"#));
        assert_eq!((error.name.as_str(), error.message.as_str()), ("Declined", "no"));
        assert_eq!(ErrorView::of(&Body::json("7")).message, "7");
    }
}
