//! `windlass runs watch`: a run as it happens, from the server's live stream.

use std::time::{Duration, Instant};

use eventsource_stream::{Event, Eventsource as _};
use futures::StreamExt as _;
use serde_json::Value;

use super::get::step_text;
use super::ledger::summary;
use super::{RunName, logs, resolve, wait};
use crate::args::WatchArgs;
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, note};

/// How long a server may be away before watching is given up.
const AWAY_MAX: Duration = Duration::from_secs(60);

pub(super) async fn run(api: Api, args: WatchArgs) -> Outcome {
    let run = resolve(&api.client, &args.run).await?;
    let started = Instant::now();
    let watching = watch(&api, &run);
    match args.timeout {
        None => watching.await,
        Some(max) => match tokio::time::timeout(max, watching).await {
            Ok(outcome) => outcome,
            Err(_) => Err(wait::too_long(&run, started.elapsed())),
        },
    }
}

// The stream is opened again where it broke, by the id of the last event that arrived.
async fn watch(api: &Api, run: &RunName) -> Outcome {
    let mut last_id: Option<String> = None;
    let mut last_event = Instant::now();
    loop {
        match api.client.stream(&run.path(&["live"]), last_id.as_deref()).await {
            Ok(response) => {
                let mut events = response.bytes_stream().eventsource();
                while let Some(Ok(event)) = events.next().await {
                    last_event = Instant::now();
                    if !event.id.is_empty() {
                        last_id = Some(event.id.clone());
                    }
                    if let Some(exit) = show(api.out, run, &event)? {
                        return Ok(exit);
                    }
                }
            }
            Err(failure) if failure.transient && last_event.elapsed() < AWAY_MAX => {}
            Err(failure) => return Err(failure),
        }
        if last_event.elapsed() >= AWAY_MAX {
            let message = format!("the live stream of {run} keeps breaking");
            return Err(Failure::error(message));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

// The exit code if this was the end.
fn show(out: Out, run: &RunName, event: &Event) -> Result<Option<Exit>, Failure> {
    let Ok(data) = serde_json::from_str::<Value>(&event.data) else { return Ok(None) };
    let ends = event.event == "end";
    if !out.is_text() {
        let mut line = serde_json::json!({ "event": event.event, "data": data });
        if !event.id.is_empty() {
            line["id"] = event.id.as_str().into();
        }
        out.line(&line.to_string())?;
        return Ok(ends.then(|| exit_of(&data)));
    }
    match event.event.as_str() {
        "status" => {
            let details = if data["details"].is_object() { &data["details"] } else { &data };
            out.line(&format!("{} {}", out.dim("status"), out.status(&cell(details, "status"))))?;
        }
        "step" => {
            let step = if data["step"].is_object() { &data["step"] } else { &data };
            out.line(&format!("{}   {}", out.dim("step"), step_text(step)))?;
        }
        "log" => {
            logs::print(out, if data["log"].is_object() { &data["log"] } else { &data }, true)?
        }
        "event" => {
            let summary = summary(&data["summary"], false);
            out.line(&format!("{}  {} {summary}", out.dim("event"), cell(&data, "type")))?;
        }
        "end" => return wait::end(out, run, &normalised(&data)).map(Some),
        other => note(&format!("{other}: {}", event.data)),
    }
    Ok(None)
}

fn normalised(data: &Value) -> Value {
    match data["details"].is_object() {
        true => data.clone(),
        false => serde_json::json!({ "details": data }),
    }
}

fn exit_of(data: &Value) -> Exit {
    let data = normalised(data);
    match data["details"]["status"] == "complete" {
        true => Exit::Ok,
        false => Exit::RunFailed,
    }
}
