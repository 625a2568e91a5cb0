//! Records of a step: rows, events, and the consequences of its outcome.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use windlass_engine::{DeadStep, Turn, events};
use windlass_kernel::{
    Body, Draft, Encoding, End, Error, Limits, MessageName, Op, Run, StepKey, StepStatus,
    Timestamp, Wake,
};

use super::description::{RELAY, STEP_CANCELLED, STEP_COMPLETED, STEP_FAILED, STEP_RETRIED};
use super::outcome::{RelayError, StepOutcome};
use super::program::{Open, RelayProgram, delay_max, signal_of};
use crate::kit::{self, REQUEST, micros};

/// The record of an attempt.
pub(crate) enum Verdict {
    Outcome(StepOutcome),
    Retry { name: String, message: String, errors: Vec<Value>, delay: Duration },
    Dead { name: String, message: String, errors: Vec<Value> },
}

impl Verdict {
    pub(crate) fn is_retry(&self) -> bool {
        matches!(self, Verdict::Retry { .. })
    }

    /// Whether it ends the run without a result, so that it stands whatever was to be stored beside it.
    pub(crate) fn is_final(&self) -> bool {
        use StepOutcome::{Cancel, Fail};
        matches!(self, Verdict::Dead { .. } | Verdict::Outcome(Fail { .. } | Cancel { .. }))
    }
}

/// The action after a step's commit.
pub(crate) enum After {
    /// Nothing.
    Ended,
    /// Another attempt of the same step; the turn is given back if it waits.
    Same(Open, Option<Wake>),
    /// The next step; the turn is given back if it waits.
    Next(Open, Option<Wake>),
}

/// How long a reason may be that is kept.
const REASON_CHARS_MAX: usize = 16 * 1024;

/// Bytes as they are kept: of a run that came with JSON as JSON, if they are some.
pub(crate) fn body(bytes: &Bytes, json: bool) -> Body {
    // Read as text: what is no UTF-8 is no JSON either.
    match json && serde_json::from_slice::<&RawValue>(bytes).is_ok() {
        true => Body::json(bytes.clone()),
        false => Body::bytes(bytes.clone()),
    }
}

/// Refuses an outcome that cannot be kept: a failure that no attempt can help.
pub(crate) fn check(
    outcome: StepOutcome,
    number: u32,
    run: &Run,
    limits: &Limits,
) -> Result<StepOutcome, RelayError> {
    let (what, bytes, max) = match &outcome {
        StepOutcome::Continue { payload }
        | StepOutcome::ContinueAfter { payload, .. }
        | StepOutcome::ContinueOnRequest { payload, .. }
        | StepOutcome::ContinueOnSignal { payload, .. } => {
            ("payload", payload.len(), limits.step_bytes_max)
        }
        StepOutcome::ContinueAsNew { payload } => {
            ("payload", payload.len(), limits.input_bytes_max)
        }
        StepOutcome::Succeed { result } => ("result", result.len(), limits.output_bytes_max),
        StepOutcome::Fail { .. } | StepOutcome::Cancel { .. } => ("reason", 0, 0),
    };
    if bytes > max {
        return Err(RelayError::permanent(format!(
            "the {what} of step {number} has {bytes} bytes; at most {max} are allowed"
        )));
    }
    // A parent keeps a result that is not JSON in Base64, which takes a third more and a few words.
    let parent_max = (limits.step_bytes_max / 4 * 3).saturating_sub(64);
    if let StepOutcome::Succeed { result } = &outcome
        && run.parent.is_some()
        && bytes > parent_max
        && body(result, run.input.encoding == Encoding::Json).encoding == Encoding::Bytes
    {
        return Err(RelayError::permanent(format!(
            "the result of step {number} has {bytes} bytes and is not JSON; of a child run at most \
             {parent_max} are allowed"
        )));
    }
    let goes_on = payload_len(&outcome).is_some();
    if goes_on && number as usize + 1 >= limits.steps_per_run_max {
        let max = limits.steps_per_run_max;
        return Err(RelayError::permanent(format!(
            "a run may have at most {max} steps; return StepOutcome::ContinueAsNew before that"
        ))
        .named("StepLimit"));
    }
    let longest = delay_max(limits.sleep_days_max);
    let delay = match &outcome {
        StepOutcome::ContinueAfter { delay, .. } => Some(*delay),
        StepOutcome::ContinueOnSignal { timeout, .. } => *timeout,
        _ => None,
    };
    if let Some(delay) = delay.filter(|delay| *delay > longest) {
        let days = limits.sleep_days_max;
        return Err(RelayError::permanent(format!(
            "step {number} asks to wait for {delay:?}; at most {days} days are allowed"
        )));
    }
    if let StepOutcome::ContinueOnRequest { request, .. } = &outcome {
        request.check(limits).map_err(refused)?;
        let bytes = Body::of(request).map_err(refused)?.len();
        if bytes > limits.step_bytes_max {
            let max = limits.step_bytes_max;
            return Err(RelayError::permanent(format!(
                "the request of step {number} has {bytes} bytes; at most {max} are allowed"
            )));
        }
    }
    if let StepOutcome::ContinueOnSignal { signal, .. } = &outcome {
        MessageName::with_limits(signal, limits).map_err(RelayError::permanent)?;
    }
    Ok(outcome)
}

/// A request that cannot be opened, as a failure of the step that asks.
pub(crate) fn refused(error: Error) -> RelayError {
    RelayError::permanent(error.message()).named(error.code().as_str())
}

fn payload_len(outcome: &StepOutcome) -> Option<usize> {
    match outcome {
        StepOutcome::Continue { payload }
        | StepOutcome::ContinueAfter { payload, .. }
        | StepOutcome::ContinueOnRequest { payload, .. }
        | StepOutcome::ContinueOnSignal { payload, .. } => Some(payload.len()),
        _ => None,
    }
}

/// The payload that an outcome passes on.
pub(crate) fn payload_of(outcome: StepOutcome) -> Option<Bytes> {
    match outcome {
        StepOutcome::Continue { payload }
        | StepOutcome::ContinueAfter { payload, .. }
        | StepOutcome::ContinueOnRequest { payload, .. }
        | StepOutcome::ContinueOnSignal { payload, .. } => Some(payload),
        _ => None,
    }
}

/// The key of a step's row.
pub(crate) fn key(number: u32) -> StepKey {
    StepKey::from_stored(number.to_string())
}

/// Whether the turn is given back before a step, and until when.
pub(crate) fn wake_for(open: &Open, turn: &Turn) -> Option<Wake> {
    // A cancel request that was read while the step ran comes first: no message wakes the run for it.
    if turn.control().is_some() {
        return None;
    }
    // The request is opened by the next commit of this turn.
    if open.asks.is_some() {
        return None;
    }
    if let Some(name) = open.wait_for.as_ref().filter(|_| open.signal.is_none()) {
        // One that was read already wakes nobody.
        let here = signal_of(turn, name).is_some();
        return (!here).then(|| open.due.map_or(Wake::OnMessage, Wake::At));
    }
    open.due.filter(|due| *due > turn.now()).map(Wake::At)
}

/// Writes what came of a step into a commit.
pub(crate) fn write(
    program: &RelayProgram,
    turn: &mut Turn,
    draft: &mut Draft,
    verdict: &Verdict,
    attempt: u32,
    json: bool,
) -> Result<After, Error> {
    let number = program.number;
    let stamp = turn.stamp();
    let mut row = program.row(draft, turn, stamp.at);
    row.attempt = attempt;
    let took_us = program.took.map(micros);
    match verdict {
        Verdict::Outcome(StepOutcome::Succeed { result }) => {
            // The result is the run's output: nothing is stored twice.
            row.status = StepStatus::Completed;
            let mut payload = Completed::of(number, attempt, took_us);
            payload.outcome = Some("succeed");
            draft.step(STEP_COMPLETED, &payload, row, stamp)?;
            let output = body(result, json);
            kit::complete(turn, draft, output)?;
            Ok(After::Ended)
        }
        Verdict::Outcome(StepOutcome::ContinueAsNew { payload: input }) => {
            // The payload is the input of the next generation: nothing is stored twice.
            row.status = StepStatus::Completed;
            let payload = Completed {
                outcome: Some("continue_as_new"),
                payload_bytes: Some(input.len()),
                ..Completed::of(number, attempt, took_us)
            };
            draft.step(STEP_COMPLETED, &payload, row, stamp)?;
            kit::continue_as_new(turn, draft, body(input, json))?;
            Ok(After::Ended)
        }
        Verdict::Outcome(StepOutcome::Fail { reason }) => {
            let error = error_body("Fail", reason, number, &[])?;
            row.status = StepStatus::Errored;
            row.error = Some(error.clone());
            let payload = json!({
                "step": number, "attempt": attempt, "outcome": "fail", "took_us": took_us,
            });
            draft.step(STEP_FAILED, &payload, row, stamp)?;
            kit::fail(turn, draft, "Fail", error)?;
            Ok(After::Ended)
        }
        Verdict::Outcome(StepOutcome::Cancel { reason }) => {
            let error = error_body("Cancel", reason, number, &[])?;
            row.status = StepStatus::Cancelled;
            row.error = Some(error.clone());
            let payload = json!({
                "step": number, "attempt": attempt, "outcome": "cancel", "took_us": took_us,
            });
            draft.step(STEP_CANCELLED, &payload, row, stamp)?;
            let payload = json!({ "request": "step" });
            turn.end(draft, events::WORKFLOW_TERMINATED, &payload, End::Terminated(Some(error)))?;
            Ok(After::Ended)
        }
        Verdict::Outcome(outcome) => {
            row.status = StepStatus::Completed;
            row.result = payload_of(outcome.clone()).map(|payload| body(&payload, json));
            let mut payload = Completed::of(number, attempt, took_us);
            payload.payload_bytes = payload_len(outcome);
            let open = next_open(outcome, turn.now(), &mut payload);
            draft.step(STEP_COMPLETED, &payload, row, stamp)?;
            let (open, wake) = put_next(turn, draft, number + 1, open, program)?;
            Ok(After::Next(open, wake))
        }
        Verdict::Retry { name, message, errors, delay } => {
            let due = turn.now().plus(*delay);
            row.status = StepStatus::Waiting;
            row.due_at = Some(due);
            row.error = Some(error_body(name, message, number, errors)?);
            let open = Open {
                stored: Some((row.position, row.created_at)),
                attempt,
                errors: errors.clone(),
                due: Some(due),
                wait_for: program.open.wait_for.clone(),
                signal: program.open.signal.clone(),
                outcome: program.open.outcome.clone(),
                ..Open::default()
            };
            let payload = json!({
                "step": number, "attempt": attempt, "error": { "name": name },
                "retry_in_ms": delay.as_millis() as u64, "took_us": took_us,
            });
            draft.step(STEP_RETRIED, &payload, row, stamp)?;
            let wake = wake_for(&open, turn);
            if let Some(wake) = wake {
                kit::release(turn, draft, wake);
            }
            Ok(After::Same(open, wake))
        }
        Verdict::Dead { name, message, errors } => {
            let error = error_body(name, message, number, errors)?;
            row.status = StepStatus::Errored;
            row.error = Some(error.clone());
            // A retry goes on waiting.
            row.due_at = program.open.due.filter(|_| attempt == 0);
            let dead = DeadStep {
                step_key: key(number),
                letter_name: format!("step {number}"),
                attempt,
                reason: message,
                errors,
            };
            let letter = turn.dead_letter(dead, stamp.at)?;
            draft.op(Op::DeadLetter(Box::new(letter)));
            let payload = json!({
                "step": number, "attempt": attempt, "error": { "name": name }, "took_us": took_us,
            });
            draft.step(STEP_FAILED, &payload, row, stamp)?;
            kit::fail(turn, draft, name, error)?;
            Ok(After::Ended)
        }
    }
}

// The payload of the event of a completed step. Members are in the order of their names, as the canonical
// form wants them: then it is written once and not sorted.
#[derive(Serialize)]
struct Completed<'a> {
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<&'a str>,
    step: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_us: Option<u64>,
}

impl Completed<'_> {
    fn of(step: u32, attempt: u32, took_us: Option<u64>) -> Self {
        Self {
            attempt,
            delay_ms: None,
            outcome: None,
            payload_bytes: None,
            request: None,
            signal: None,
            step,
            took_us,
        }
    }
}

// The wait of the next step.
fn next_open<'a>(outcome: &'a StepOutcome, now: Timestamp, payload: &mut Completed<'a>) -> Open {
    match outcome {
        StepOutcome::ContinueAfter { delay, .. } if !delay.is_zero() => {
            payload.delay_ms = Some(delay.as_millis() as u64);
            Open { due: Some(now.plus(*delay)), ..Open::default() }
        }
        StepOutcome::ContinueOnSignal { signal, timeout, .. } => {
            payload.signal = Some(signal.as_str());
            Open {
                due: timeout.map(|timeout| now.plus(timeout)),
                wait_for: Some(signal.as_str().into()),
                ..Open::default()
            }
        }
        StepOutcome::ContinueOnRequest { request, .. } => {
            payload.request = Some(true);
            Open {
                wait_for: Some(REQUEST.as_str().into()),
                asks: Some(request.clone()),
                ..Open::default()
            }
        }
        _ => Open::default(),
    }
}

// A step that waits has a row, which says for what; one that runs at once has none yet.
fn put_next(
    turn: &mut Turn,
    draft: &mut Draft,
    number: u32,
    mut open: Open,
    program: &RelayProgram,
) -> Result<(Open, Option<Wake>), Error> {
    if open.due.is_none() && open.wait_for.is_none() {
        return Ok((open, None));
    }
    let at = turn.stamp().at;
    let mut row = kit::new_step(&turn.run, draft, key(number), RELAY, at);
    row.status = StepStatus::Waiting;
    row.attempts_max = program.attempts_max();
    (row.due_at, row.wait_for) = (open.due, open.wait_for.clone());
    row.input = open.asks.as_ref().map(Body::of).transpose()?;
    open.stored = Some((row.position, row.created_at));
    draft.open_step(row);
    let wake = wake_for(&open, turn);
    if let Some(wake) = wake {
        kit::release(turn, draft, wake);
    }
    Ok((open, wake))
}

fn error_body(name: &str, message: &str, number: u32, errors: &[Value]) -> Result<Body, Error> {
    let message: String = message.chars().take(REASON_CHARS_MAX).collect();
    let mut error = json!({ "name": name, "message": message, "step": number.to_string() });
    if !errors.is_empty() {
        error["errors"] = errors.into();
    }
    Body::of(&error)
}

/// Counts what became of a step.
pub(crate) fn count(turn: &Turn, verdict: &Verdict) {
    match verdict {
        Verdict::Outcome(StepOutcome::Fail { .. }) => turn.count_failed_step(),
        Verdict::Dead { .. } => {
            turn.count_failed_step();
            turn.metrics().tasks_dead.add(1);
        }
        Verdict::Outcome(StepOutcome::Cancel { .. }) => turn.metrics().steps_cancelled.add(1),
        Verdict::Outcome(_) => turn.count_completed_step(),
        Verdict::Retry { .. } => turn.metrics().steps_retried.add(1),
    }
}

#[cfg(test)]
mod tests;
