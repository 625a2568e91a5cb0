//! `windlass why`: the chain of what a run waits for, in plain words.

use serde_json::Value;

use super::Api;
use super::runs::resolve;
use crate::args::RunRef;
use crate::exit::{Exit, Outcome};
use crate::output::{cell, hanging, left, text};

/// What lies deeper is not moved further to the right: a terminal has an edge.
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
    let moving = moving(&found, &status, reasons);
    out.line(&format!("{} is {}: {moving}", out.bold(&run.to_string()), out.status(&status)))?;
    // That it has ended is said by then.
    for reason in reasons.iter().filter(|reason| !is_end(reason)) {
        // A run may wait for many things at once; only what a child waits for lies deeper.
        let depth = reason["depth"].as_u64().unwrap_or(0).min(DEPTH_SHOWN_MAX);
        let indent = "  ".repeat(usize::try_from(depth).unwrap_or(0));
        let said = hanging(&reason_text(reason), indent.len() + 2);
        out.line(&format!("{indent}- {said}"))?;
    }
    Ok(Exit::Ok)
}

/// What a run waits for first, in words.
pub(super) fn first_reason(found: &Value) -> Option<String> {
    found["reasons"].as_array()?.first().map(reason_text)
}

fn is_end(reason: &Value) -> bool {
    reason["code"] == "ended" && reason["depth"].as_u64().unwrap_or(0) == 0
}

fn moving(found: &Value, status: &str, reasons: &[Value]) -> &'static str {
    let any = |code: &str| reasons.iter().any(|reason| reason["code"] == code);
    if reasons.iter().any(is_end) {
        return match status {
            "errored" => "it has ended; `windlass runs retry` carries it on",
            _ => "it has ended",
        };
    }
    if found["moving"] != true {
        return "it does not go on by itself";
    }
    // It would go on when the time for the event is over: that is not what anybody hopes for.
    if any("awaiting_event") {
        return "it waits to be sent an event";
    }
    match status {
        "active" if !any("starts_later") => "it is moving",
        _ => "it goes on by itself",
    }
}

fn reason_text(reason: &Value) -> String {
    let mut said = match text(reason, "text") {
        said if said.is_empty() => cell(reason, "code"),
        said => said,
    };
    // What is due already is about to be done.
    let left = reason["until"].as_str().map(|until| left(until).unwrap_or("now".to_owned()));
    match (left, reason["code"].as_str()) {
        (Some(left), Some("blocked")) => said += &format!("; it is tried again {left}"),
        (Some(left), _) => said += &format!(" ({left})"),
        (None, _) => {}
    }
    let child = &reason["child"];
    if child.is_object() {
        said += &format!(" [{}/{}]", cell(child, "workflow"), cell(child, "id"));
    }
    said
}
