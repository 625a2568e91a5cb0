//! `windlass runs history`: the steps of a run and the events that it received.

use serde_json::{Value, json};

use super::get::kind_and_status;
use super::logs::{self, log_params};
use super::{RunName, resolve, wait};
use crate::args::{HistoryArgs, LogFilter};
use crate::client::{Client, Params};
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, cell_ago, error_text, note, short_json};

const PAGE: &str = "100";
/// The maximum number of pages of one section.
const PAGES_MAX: usize = 1_000;

pub(super) async fn run(Api { client, out }: Api, mut args: HistoryArgs) -> Outcome {
    let run = resolve(&client, &args.run).await?;
    args.filter.run_number = run.number(args.filter.run_number)?;
    let (number, steps) = section(&client, &run, &args.filter, "steps").await?;
    let (_, events) = section(&client, &run, &args.filter, "events").await?;
    let logs = match args.include_logs {
        true => Some(section(&client, &run, &args.filter, "logs").await?.1),
        false => None,
    };
    if !out.is_text() {
        let mut value = json!({ "runNumber": number, "steps": steps, "events": events });
        if let Some(logs) = logs {
            value["logs"] = logs.into();
        }
        out.value(&value)?;
        return Ok(Exit::Ok);
    }
    let ended = wait::is_ended(&client, &run, args.filter.run_number).await?;
    print_steps(out, &steps, args.full, ended)?;
    print_events(out, &events, args.full)?;
    for line in logs.iter().flatten() {
        logs::print(out, line, args.full)?;
    }
    Ok(Exit::Ok)
}

/// Reads all pages of one section of the history.
pub(super) async fn section(
    client: &Client,
    run: &RunName,
    filter: &LogFilter,
    name: &'static str,
) -> Result<(Value, Vec<Value>), Failure> {
    let (cursor_key, more_key) = match name {
        "steps" => ("stepsCursor", "stepsHasNextPage"),
        "events" => ("eventsCursor", "eventsHasNextPage"),
        _ => ("logsCursor", "logsHasNextPage"),
    };
    let mut rows = Vec::new();
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES_MAX {
        let mut params: Params = vec![("pageSize", PAGE.to_owned())];
        params.extend(filter.run_number.map(|number| ("runNumber", number.to_string())));
        if name == "logs" {
            params.extend(log_params(filter));
        }
        params.extend(cursor.take().map(|cursor| (cursor_key, cursor)));
        let mut page = client.get(&run.path(&["history"]), &params).await?;
        rows.extend(page[name].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = page[cursor_key].as_str().map(ToOwned::to_owned);
        if cursor.is_none() || !page[more_key].as_bool().unwrap_or(false) {
            return Ok((page["runNumber"].take(), rows));
        }
    }
    note(&format!("{name}: showing only the first {}", rows.len()));
    Ok((Value::Null, rows))
}

fn print_steps(out: Out, steps: &[Value], full: bool, ended: bool) -> Result<(), Failure> {
    let mut table =
        out.table(&["STEP", "TYPE", "STATUS", "ATTEMPTS", "UPDATED", "WAITS FOR", "RESULT"]);
    for step in steps {
        let error = match &step["error"] {
            Value::Null => json!({ "name": step["errorName"], "message": step["errorMessage"] }),
            error => error.clone(),
        };
        let mut result = error_text(&error);
        if result.is_empty() {
            result = short_json(&step["result"], if full { usize::MAX } else { 60 });
        }
        let mut waits = Vec::new();
        if !ended && step["status"] != "completed" {
            let event = cell(step, "waitEventType");
            waits.extend((!event.is_empty()).then_some(event));
            for (key, word) in [("nextRetryAt", "retries"), ("wakeAt", "wakes")] {
                let at = cell_ago(step, key);
                waits.extend((!at.is_empty()).then(|| format!("{word} {at}")));
            }
        }
        let (kind, state) = kind_and_status(step);
        let status = out.status(&state);
        // Sleeps and waits have no attempts.
        let tries = step["attempts"].as_u64().filter(|tries| *tries > 0);
        let tries = tries.map(|tries| tries.to_string()).unwrap_or_default();
        let updated = cell_ago(step, "updatedAt");
        table.row([cell(step, "name"), kind, status, tries, updated, waits.join(", "), result]);
    }
    if table.is_empty() {
        return out.line("no steps yet");
    }
    table.print()
}

fn print_events(out: Out, events: &[Value], full: bool) -> Result<(), Failure> {
    if events.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let mut table = out.table(&["EVENT", "SENT", "CONSUMED BY", "PAYLOAD"]);
    for event in events {
        let payload = short_json(&event["payload"], if full { usize::MAX } else { 60 });
        let by = cell(event, "consumedByStepKey");
        table.row([cell(event, "type"), cell_ago(event, "createdAt"), by, payload]);
    }
    table.print()
}
