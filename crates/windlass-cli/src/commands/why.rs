//! `windlass why`: the chain of what a run waits for, in plain words.

use serde_json::Value;

use super::Api;
use super::runs::resolve;
use crate::args::RunRef;
use crate::exit::{Exit, Outcome};
use crate::output::{ago, cell};

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
    for (depth, reason) in found["reasons"].as_array().into_iter().flatten().enumerate() {
        out.line(&format!("{}- {}", "  ".repeat(depth), reason_text(reason)))?;
    }
    Ok(Exit::Ok)
}

fn reason_text(reason: &Value) -> String {
    let mut text = match cell(reason, "text") {
        text if text.is_empty() => cell(reason, "code"),
        text => text,
    };
    if let Some(until) = reason["until"].as_str() {
        text += &format!(" ({})", ago(until));
    }
    let child = &reason["child"];
    if child.is_object() {
        text += &format!(" [{}/{}]", cell(child, "workflow"), cell(child, "id"));
    }
    text
}
