//! `windlass why`: explains what a run waits for.

use serde_json::Value;

use super::Api;
use super::runs::resolve;
use crate::args::RunRef;
use crate::exit::{Exit, Outcome};
use crate::output::{cell, indent_continuation, text, time_until};

/// The maximum indentation, so that deep chains fit the terminal.
const DEPTH_SHOWN_MAX: u64 = 20;

pub(super) async fn run(Api { client, out }: Api, run: RunRef) -> Outcome {
    let run = resolve(&client, &run).await?;
    let number = run.number(None)?.map(|number| ("runNumber", number.to_string()));
    let found = client.get(&run.path(&["why"]), &number.into_iter().collect()).await?;
    if !out.is_text() {
        out.value(&found)?;
        return Ok(Exit::Ok);
    }
    let status = cell(&found, "status");
    let reasons: &[Value] = found["reasons"].as_array().map_or(&[], Vec::as_slice);
    let summary = progress_summary(&found, &status, reasons);
    out.line(&format!("{} is {}: {summary}", out.bold(&run.to_string()), out.status(&status)))?;
    // The first line already says that the run has ended.
    for reason in reasons.iter().filter(|reason| !is_end(reason)) {
        // Reasons of the same depth are concurrent; those of a child are one level deeper.
        let depth = reason["depth"].as_u64().unwrap_or(0).min(DEPTH_SHOWN_MAX);
        let indent = "  ".repeat(usize::try_from(depth).unwrap_or(0));
        let text = indent_continuation(&reason_text(reason), indent.len() + 2);
        out.line(&format!("{indent}- {text}"))?;
    }
    Ok(Exit::Ok)
}

/// The text of the first reason.
pub(super) fn first_reason(found: &Value) -> Option<String> {
    found["reasons"].as_array()?.first().map(reason_text)
}

fn is_end(reason: &Value) -> bool {
    reason["code"] == "ended" && reason["depth"].as_u64().unwrap_or(0) == 0
}

fn progress_summary(found: &Value, status: &str, reasons: &[Value]) -> &'static str {
    let any = |code: &str| reasons.iter().any(|reason| reason["code"] == code);
    if reasons.iter().any(is_end) {
        return match status {
            "errored" => "it has ended; `windlass runs retry` retries it from the failed step",
            _ => "it has ended",
        };
    }
    if found["moving"] != true {
        return "it needs an action to continue";
    }
    // The timeout of the wait would also wake the run, but the user wants to know about the event.
    if any("awaiting_event") {
        return "it waits for an event";
    }
    match status {
        "active" if !any("starts_later") => "it is running",
        _ => "it continues by itself",
    }
}

fn reason_text(reason: &Value) -> String {
    let mut text = match text(reason, "text") {
        text if text.is_empty() => cell(reason, "code"),
        text => text,
    };
    // A due time that has passed means that the engine is about to act.
    let left = reason["until"].as_str().map(|until| time_until(until).unwrap_or("now".to_owned()));
    match (left, reason["code"].as_str()) {
        (Some(left), Some("blocked")) => text += &format!("; the next attempt is {left}"),
        (Some(left), _) => text += &format!(" ({left})"),
        (None, _) => {}
    }
    let child = &reason["child"];
    if child.is_object() {
        text += &format!(" [{}/{}]", cell(child, "workflow"), cell(child, "id"));
    }
    text
}
