//! `windlass runs get`: the status of a run.

use serde_json::Value;

use super::wait::{blocked_text, is_final};
use super::{RunName, resolve};
use crate::args::GetArgs;
use crate::client::{Client, Params};
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{
    Out, ago, cell, error_text, indent_continuation, labels_text, pretty, sanitize_line, short_json,
};

pub(super) async fn run(Api { client, out }: Api, args: GetArgs) -> Outcome {
    let run = resolve(&client, &args.run).await?;
    let found = match run.number(args.run_number)? {
        Some(number) => generation(&client, &run, number).await?,
        None => client.get(&run.view(), &Vec::new()).await?,
    };
    if !out.is_text() {
        out.value(&found)?;
        return Ok(Exit::Ok);
    }
    let (details, meta) = (&found["details"], &found["meta"]);
    let line = |name: &str, text: String| match text.is_empty() {
        true => Ok(()),
        false => out.line(&format!(
            "{} {}",
            out.dim(&format!("{name:<10}")),
            indent_continuation(&text, 11)
        )),
    };
    line("run", out.bold(&run.to_string()))?;
    let cancelling = if details["cancelling"] == true { ", cancelling" } else { "" };
    line("status", out.status(&cell(details, "status")) + cancelling)?;
    line("error", error_text(&details["error"]))?;
    line("blocked", blocked_text(&meta["blocked"]))?;
    current_step(out, &meta["currentStep"], is_final(&cell(details, "status")))?;
    line("generation", cell(meta, "runNumber"))?;
    line("labels", labels_text(&meta["labels"]))?;
    for (name, key) in [
        ("created", "createdAt"),
        ("started", "startedAt"),
        ("updated", "updatedAt"),
        ("ended", "completedAt"),
    ] {
        line(name, time(&meta[key]))?;
    }
    if !args.full {
        if details["output"] != Value::Null {
            line("output", short_json(&details["output"], 200))?;
        }
        return Ok(Exit::Ok);
    }
    full(out, details, meta)?;
    Ok(Exit::Ok)
}

// The view of a generation by its number: the API has it by its run key.
async fn generation(client: &Client, run: &RunName, number: u32) -> Result<Value, Failure> {
    let mut cursor: Option<String> = None;
    loop {
        let mut params: Params = vec![("pageSize", "100".to_owned())];
        params.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let page = client.get(&run.path(&["generations"]), &params).await?;
        let generations = page["generations"].as_array().into_iter().flatten();
        let mut keys = generations.filter(|row| row["runNumber"] == number);
        if let Some(key) = keys.find_map(|row| row["runKey"].as_str()) {
            return client.get(&["runs", key], &Vec::new()).await;
        }
        cursor = page["nextCursor"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() {
            let message = format!("{run} has no generation {number}");
            return Err(Failure::new(Exit::NotFound, message));
        }
    }
}

fn time(value: &Value) -> String {
    value
        .as_str()
        .map(|text| format!("{} ({})", sanitize_line(text), ago(text)))
        .unwrap_or_default()
}

fn current_step(out: Out, step: &Value, ended: bool) -> Result<(), Failure> {
    if step.is_null() {
        return Ok(());
    }
    out.line(&format!(
        "{} {}",
        out.dim("step      "),
        indent_continuation(&step_text(step, ended), 11)
    ))
}

/// The kind and state of a step. Prefers the engine's terms, which are more precise than the `type`
/// and `status` of the wire protocol.
pub(super) fn kind_and_status(step: &Value) -> (String, String) {
    let word = |own: &str, known: &str| match step[own].is_string() {
        true => cell(step, own),
        false => cell(step, known),
    };
    (word("kind", "type"), word("state", "status"))
}

/// Describes a step on one line, with what it waits for unless its run has ended.
pub(super) fn step_text(step: &Value, ended: bool) -> String {
    let (kind, state) = kind_and_status(step);
    let mut text = format!("{:?} ({kind}, {state})", cell(step, "name"));
    if let Some(attempts) = step["attempts"].as_u64().filter(|attempts| *attempts > 0) {
        let max = step["maxAttempts"].as_u64().map(|max| format!(" of {max}")).unwrap_or_default();
        text += &format!(", attempt {attempts}{max}");
    }
    let settled = ended || matches!(step["status"].as_str(), Some("completed" | "errored"));
    if let Some(event) = step["waitEventType"].as_str() {
        let waits = if settled { "waited" } else { "waits" };
        text += &format!(", {waits} for an event of type {event:?}");
    }
    for (key, word) in [("nextRetryAt", "retries"), ("wakeAt", "wakes")] {
        if let Some(at) = step[key].as_str().filter(|_| !settled) {
            text += &format!(", {word} {}", ago(at));
        }
    }
    let error = error_text(&step["error"]);
    if !error.is_empty() {
        text += &format!(", last error {error}");
    }
    text
}

fn full(out: Out, details: &Value, meta: &Value) -> Result<(), Failure> {
    for (name, value) in [("params", &meta["params"]), ("output", &details["output"])] {
        if !value.is_null() {
            out.line(&out.dim(name))?;
            out.line(&pretty(value))?;
        }
    }
    let shown = [
        "params",
        "currentStep",
        "labels",
        "createdAt",
        "startedAt",
        "updatedAt",
        "completedAt",
        "runNumber",
        "workflowName",
        "blocked",
    ];
    for (key, value) in meta.as_object().into_iter().flatten() {
        if !shown.contains(&key.as_str()) && !value.is_null() {
            let text = value.as_str().map_or_else(|| short_json(value, 400), sanitize_line);
            out.line(&format!("{} {text}", out.dim(&format!("{:<10}", sanitize_line(key)))))?;
        }
    }
    Ok(())
}
