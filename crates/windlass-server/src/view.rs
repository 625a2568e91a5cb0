//! Rows as clients see them: camelCase, times in RFC 3339, bodies as the JSON that they are.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;
use windlass::kernel::{
    Body, CausalRef, Encoding, Event, LogLine, Message, Run, RunKey, RunStatus, Step, StepStatus,
};
use windlass::{Timestamp, is_being_done};

/// A point in time, in UTC, to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-01-31T12:00:00.000Z")]
pub(crate) struct Time(pub Timestamp);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0.as_micros()) {
            Ok(time) => write!(f, "{time:.3}"),
            // What lies beyond is told as the end of what can be: clients read it as a time.
            Err(_) if self.0 < Timestamp::ZERO => f.write_str("0000-01-01T00:00:00.000Z"),
            Err(_) => write!(f, "{:.3}", jiff::Timestamp::MAX),
        }
    }
}

impl Time {
    /// The same text, of a year with four digits. Every answer has several, and formatting takes longer
    /// than reading the row that they are from.
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

/// Reads a time that a client sent.
pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_micros(time.as_microsecond()))
}

/// JSON that is handed on without being taken apart.
pub(crate) type Raw = Box<RawValue>;

/// A body as JSON: what it is if it is JSON, else its bytes.
pub(crate) fn raw(body: &Body) -> Raw {
    let text = match body.encoding {
        Encoding::Json => String::from_utf8(body.bytes.to_vec()).ok(),
        Encoding::Bytes => None,
    };
    let text = text.and_then(|text| RawValue::from_string(text).ok());
    text.unwrap_or_else(|| {
        let bytes = json!({ "encoding": "base64", "bytes": STANDARD.encode(&body.bytes) });
        RawValue::from_string(bytes.to_string()).expect("a value is JSON")
    })
}

/// An error: its name and what it said.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ErrorView {
    /// The error's name.
    pub name: String,
    /// What it said.
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

/// Where a run is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct InstanceStatus {
    /// `active`, `paused`, `errored`, `terminated`, `complete` or `waiting`.
    #[schema(example = "waiting")]
    pub status: &'static str,
    /// Whether somebody has asked for it to be cancelled and it has not ended yet. Told of one run that is
    /// looked at, not in lists.
    #[serde(skip_serializing_if = "is_false")]
    pub cancelling: bool,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
    /// What it ended with.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A run in a list.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunSummary {
    /// The workflow.
    pub workflow_name: String,
    /// The run's id.
    pub id: String,
    /// Names this generation of it.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
    /// Which generation it is, from 0.
    pub run_number: u32,
    /// Where it is.
    pub details: InstanceStatus,
    /// Its labels.
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
            details: InstanceStatus::of(run),
            labels: run.labels.clone(),
            created_at: Time(run.created_at),
            updated_at: Time(run.updated_at),
            completed_at: run.ended_at.map(Time),
        }
    }
}

/// A step, as the API tells it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepView {
    /// Its key in the run.
    pub step_key: String,
    /// What people call it.
    pub name: String,
    /// `do`, `sleep` or `waitForEvent`: the words that clients of this API know.
    #[serde(rename = "type")]
    #[schema(example = "do")]
    pub step_type: &'static str,
    /// `pending`, `waiting`, `completed` or `errored`.
    #[schema(example = "waiting")]
    pub status: &'static str,
    /// The engine's own word for what it is, which tells more than `type`: also `event`, `child`,
    /// `activity`, `timer`, `relay`, `memo`.
    #[schema(example = "activity")]
    pub kind: String,
    /// The engine's own word for where it is, which tells more than `status`: also `running`,
    /// `skipped`, `cancelled`.
    #[schema(example = "running")]
    pub state: &'static str,
    /// How often it was tried.
    pub attempts: u32,
    /// How often it may be tried: 1 for what is never tried again, 2,147,483,647 if there is no bound.
    pub max_attempts: u32,
    /// How long an attempt may take.
    pub timeout_ms: Option<u64>,
    /// When it is tried again.
    pub next_retry_at: Option<Time>,
    /// When it wakes, or gives up waiting.
    pub wake_at: Option<Time>,
    /// The type of the event, or the name of the signal, that it waits for.
    pub wait_event_type: Option<String>,
    /// Why it failed, or failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorView>,
}

impl StepView {
    pub(crate) fn of(step: &Step, run: &Run, now: Timestamp) -> Self {
        let step_type = type_word(&step.kind);
        let being_done = is_being_done(run, step, now);
        let state = if being_done { StepStatus::Running } else { step.status };
        let open_until = step.due_at.filter(|_| !state.is_settled() && !being_done).map(Time);
        // A step of a relay waits before it is tried for the first time: for a time, or for a signal.
        let untried = &*step.kind == "relay" && step.attempt == 0;
        let (retry, wake) = match step_type {
            "do" if untried => (None, open_until),
            "do" => (open_until, None),
            // What a settled sleep or wait was due at is worth knowing.
            _ => (None, step.due_at.map(Time)),
        };
        let waits_for_event =
            step_type == "waitForEvent" || untried && step.status == StepStatus::Waiting;
        Self {
            step_key: step.step_key.to_string(),
            name: step.name.to_string(),
            step_type,
            status: status_word(state),
            kind: step.kind.to_string(),
            state: state.as_str(),
            attempts: step.attempt,
            max_attempts: step.attempts_max.unwrap_or_else(|| attempts_unbound(&step.kind)),
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

/// What is told of a step that says nothing of how often it is tried. The specification has a number.
fn attempts_unbound(kind: &str) -> u32 {
    match kind {
        "do" | "activity" | "relay" => i32::MAX as u32,
        // A sleep, a wait or a child is one attempt.
        _ => 1,
    }
}

/// The word for a step's kind among the three that clients of this API know.
fn type_word(kind: &str) -> &'static str {
    match kind {
        "sleep" | "timer" => "sleep",
        "event" => "waitForEvent",
        // Whatever else there is does something.
        _ => "do",
    }
}

/// The word for a step's status among the four that clients of this API know.
fn status_word(status: StepStatus) -> &'static str {
    match status {
        StepStatus::Pending | StepStatus::Running => "pending",
        StepStatus::Waiting => "waiting",
        StepStatus::Completed => "completed",
        StepStatus::Errored | StepStatus::Skipped | StepStatus::Cancelled => "errored",
    }
}

/// The step that a run is at: of those that are open, the one that was touched last.
pub(crate) fn current_step(steps: &[Step]) -> Option<&Step> {
    let open = |step: &&Step| !step.status.is_settled();
    steps
        .iter()
        .filter(open)
        .max_by_key(|step| (step.status == StepStatus::Running, step.updated_at))
}

/// A step with what it gave, in a run's history.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepRecord {
    /// The step.
    #[serde(flatten)]
    pub step: StepView,
    /// Which generation of the run it is of.
    pub run_number: u32,
    /// What it gave.
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
    pub(crate) fn of(step: &Step, run: &Run, now: Timestamp) -> Self {
        let error = step.error.as_ref().map(ErrorView::of);
        Self {
            step: StepView::of(step, run, now),
            run_number: run.generation,
            result: step.result.as_ref().map(raw),
            error_name: error.as_ref().map(|error| error.name.clone()),
            error_message: error.map(|error| error.message),
            created_at: Time(step.created_at),
            updated_at: Time(step.updated_at),
        }
    }
}

/// An event that was sent to a run.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventRecord {
    /// The sender's id for it, or one that was made.
    pub id: String,
    /// Which generation of the run it is of.
    pub run_number: u32,
    /// Its type.
    #[serde(rename = "type")]
    pub event_type: String,
    /// What it carries.
    #[schema(value_type = Option<Value>)]
    pub payload: Option<Raw>,
    /// When it was sent.
    pub created_at: Time,
    /// When a step took it.
    pub delivered_at: Option<Time>,
    /// The step that took it.
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
    /// Names it.
    pub id: String,
    /// Which generation of the run wrote it.
    pub run_number: u32,
    /// The step that wrote it.
    pub step_key: Option<String>,
    /// The attempt that wrote it.
    pub attempt: Option<u32>,
    /// `debug`, `info`, `warn` or `error`.
    pub level: &'static str,
    /// The author's category; `system` is the engine's.
    pub category: String,
    /// The text.
    pub message: String,
    /// Data beside the text.
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

/// An event of a run's ledger.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LedgerEvent {
    /// Its place in its run's ledger, from 0.
    pub ordinal: u64,
    /// Names it.
    pub event_id: String,
    /// The generation whose ledger it is in.
    #[schema(value_type = String, format = Uuid)]
    pub run_key: RunKey,
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The version of the summary's shape.
    pub version: u16,
    /// What caused it: an event or a run.
    #[schema(value_type = Value)]
    pub cause: CausalRef,
    /// When it happened.
    pub at: Time,
    /// A summary; never a body.
    #[schema(value_type = Value)]
    pub summary: Value,
    /// Covers it and its predecessor's hash.
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
    fn steps_have_the_words_that_clients_know() {
        for (kind, word) in [
            ("do", "do"),
            ("sleep", "sleep"),
            ("event", "waitForEvent"),
            ("child", "do"),
            ("activity", "do"),
            ("timer", "sleep"),
            ("relay", "do"),
            ("memo", "do"),
        ] {
            assert_eq!(type_word(kind), word, "{kind}");
        }
        let words = StepStatus::ALL.iter().map(|status| (status.as_str(), status_word(*status)));
        for (state, status) in words {
            let known = ["pending", "waiting", "completed", "errored"];
            assert!(known.contains(&status), "{state}");
            assert!(!known.contains(&state) || state == status, "{state} is told as {status}");
        }
    }

    #[test]
    fn times_are_written_as_they_are_shown() {
        let ms = |ms| Time(Timestamp::from_millis(ms));
        for at in [0, 1, 999, 59_999, 951_827_696_789, 1_709_251_199_999, 253_402_207_200_000, -1] {
            let written = serde_json::to_string(&ms(at)).unwrap();
            assert_eq!(written, format!("\"{}\"", ms(at)), "{at}");
        }
    }

    #[test]
    fn times_beyond_all_calendars_are_still_times() {
        for at in [i64::MAX, i64::MIN] {
            let time = Time(Timestamp::from_micros(at));
            let text = serde_json::to_string(&time).unwrap();
            assert!(parse_time(text.trim_matches('"')).is_some(), "{text}");
        }
    }

    #[test]
    fn times_have_milliseconds_and_read_back() {
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
    fn bodies_keep_their_text() {
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
