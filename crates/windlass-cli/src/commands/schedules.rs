//! `windlass schedules`: start runs at recurring times.

use serde_json::{Value, json};
use windlass::kernel::format_duration;

use super::{Api, labels_to_json, read_json};
use crate::args::{PutArgs, SchedulesCommand};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, cell_ago, note, sanitize_line, short_json};

pub(super) async fn run(Api { client, out }: Api, command: SchedulesCommand) -> Outcome {
    match command {
        SchedulesCommand::List => {
            let found = client.get_all(&["schedules"], "schedules").await?;
            list(out, &found)?;
        }
        SchedulesCommand::Get { name } => {
            let found = client.get(&["schedules", &name], &Vec::new()).await?;
            print_details(out, &name, &found)?;
        }
        SchedulesCommand::Put(args) => {
            let found = client.put(&["schedules", &args.name], &body(&args)?).await?;
            print_details(out, &args.name, &found)?;
        }
        SchedulesCommand::Create { .. } => {
            return Err(Failure::usage("use `schedules put` to create or update a schedule")
                .with_hint(
                    "for example: windlass schedules put nightly --workflow report --cron '0 3 * * *'",
                ));
        }
        SchedulesCommand::Delete { name } => {
            let answer = client.delete(&["schedules", &name]).await?;
            print_done(out, &answer, &format!("{name} is deleted"))?;
        }
        SchedulesCommand::Pause { name } => {
            let answer = client.post(&["schedules", &name, "pause"], &json!({})).await?;
            print_done(out, &answer, &format!("{name} is paused"))?;
        }
        SchedulesCommand::Resume { name } => {
            let answer = client.post(&["schedules", &name, "resume"], &json!({})).await?;
            print_done(out, &answer, &format!("{name} is resumed"))?;
        }
    }
    Ok(Exit::Ok)
}

fn print_done(out: Out, answer: &Value, text: &str) -> Result<(), Failure> {
    match out.is_text() {
        true => out.line(text),
        false => out.value(answer),
    }
}

fn list(out: Out, found: &Value) -> Result<(), Failure> {
    if !out.is_text() {
        return out.list(found, "schedules");
    }
    let mut table = out.table(&["SCHEDULE", "WORKFLOW", "WHEN", "NEXT", "LAST", "STATE"]);
    for row in found["schedules"].as_array().into_iter().flatten() {
        let state = match (&row["paused"], &row["blocked"]) {
            (Value::Bool(true), _) => out.status("paused"),
            (_, Value::String(_)) => out.status("blocked"),
            _ => String::new(),
        };
        let (next, last) = (cell_ago(row, "nextAt"), cell_ago(row, "lastAt"));
        table.row([
            out.bold(&cell(row, "name")),
            cell(row, "workflow"),
            when(row),
            next,
            last,
            state,
        ]);
    }
    if table.is_empty() {
        note("no schedules");
        return Ok(());
    }
    table.print()
}

fn when(row: &Value) -> String {
    let zone = match cell(row, "timezone") {
        zone if zone.is_empty() => String::new(),
        zone => format!(" {zone}"),
    };
    match row["everyMs"].as_u64() {
        Some(ms) => format!("every {}", format_duration(std::time::Duration::from_millis(ms))),
        None => format!("{}{zone}", cell(row, "cron")),
    }
}

fn print_details(out: Out, name: &str, found: &Value) -> Result<(), Failure> {
    if !out.is_text() {
        return out.value(found);
    }
    out.line(&format!("{} starts {} {}", out.bold(name), cell(found, "workflow"), when(found)))?;
    for (key, value) in found.as_object().into_iter().flatten() {
        let shown = ["name", "workflow", "cron", "everyMs", "timezone"].contains(&key.as_str());
        if !shown && !value.is_null() {
            let text = value.as_str().map_or_else(|| short_json(value, 200), sanitize_line);
            out.line(&format!("{} {text}", out.dim(&format!("{key:<10}"))))?;
        }
    }
    Ok(())
}

fn body(args: &PutArgs) -> Result<Value, Failure> {
    let mut body = json!({ "workflow": args.workflow });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[key] = value;
        }
    };
    set("cron", args.cron.clone().map(Value::from));
    let millis = |every: std::time::Duration| u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
    set("everyMs", args.every.map(|every| millis(every).into()));
    set("timezone", args.timezone.clone().map(Value::from));
    set("overlap", args.overlap.clone().map(Value::from));
    set("missed", args.missed.clone().map(Value::from));
    set("labels", (!args.labels.is_empty()).then(|| labels_to_json(&args.labels)));
    if let Some(params) = &args.params {
        set("params", Some(read_json("--params", params)?));
    }
    Ok(body)
}
