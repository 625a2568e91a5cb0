//! `windlass why`: the chain of what a run waits for, in plain words.

use serde_json::Value;

use super::Api;
use super::runs::resolve;
use crate::args::RunRef;
use crate::exit::{Exit, Outcome};
use crate::output::{ago, cell, hanging, text};

/// What lies deeper is not moved further to the right: a terminal has an edge.
const DEPTH_SHOWN_MAX: u64 = 20;

pub(super) async fn run(Api { client, out }: Api, run: RunRef) -> Outcome {
    let run = resolve(&client, &run).await?;
    let found = client.get(&run.path(&["why"]), &Vec::new()).await?;
    if !out.is_text() {
        out.value(&found)?;
        return Ok(Exit::Ok);
    }
    let status = cell(&found, "status");
    let moving = match (found["moving"].as_bool(), status.as_str()) {
        (Some(true), "active") => "it is moving",
        (Some(true), _) => "it goes on by itself",
        _ => "it does not go on by itself",
    };
    out.line(&format!("{} is {}: {moving}", out.bold(&run.to_string()), out.status(&status)))?;
    for reason in found["reasons"].as_array().into_iter().flatten() {
        // A run may wait for many things at once; only what a child waits for lies deeper.
        let depth = reason["depth"].as_u64().unwrap_or(0).min(DEPTH_SHOWN_MAX);
        let indent = "  ".repeat(usize::try_from(depth).unwrap_or(0));
        let said = hanging(&reason_text(reason), indent.len() + 2);
        out.line(&format!("{indent}- {said}"))?;
    }
    Ok(Exit::Ok)
}

fn reason_text(reason: &Value) -> String {
    let mut said = match text(reason, "text") {
        said if said.is_empty() => cell(reason, "code"),
        said => said,
    };
    if let Some(until) = reason["until"].as_str() {
        said += &format!(" ({})", ago(until));
    }
    let child = &reason["child"];
    if child.is_object() {
        said += &format!(" [{}/{}]", cell(child, "workflow"), cell(child, "id"));
    }
    said
}
