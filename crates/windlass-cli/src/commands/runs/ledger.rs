//! `windlass runs events`: the ledger of a run, or of its whole tree.

use serde_json::{Value, json};

use super::{RunName, resolve};
use crate::args::EventsArgs;
use crate::client::{Client, Params};
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, clock, note, sanitize_line, short_json};

/// The maximum number of pages.
const PAGES_MAX: usize = 1_000;

pub(super) async fn run(Api { client, out }: Api, args: EventsArgs) -> Outcome {
    let run = resolve(&client, &args.run).await?;
    let number = run.number(args.run_number)?;
    let (rows, cursor) = fetch_ledger(&client, &run, number, args.root, args.cursor).await?;
    if cursor.is_some() {
        note(&format!("showing only the first {} events", rows.len()));
    }
    print_ledger(out, rows, cursor, args.full)?;
    Ok(Exit::Ok)
}

/// The events of a run or of its tree, and the cursor of the rest if there are too many.
pub(in crate::commands) async fn fetch_ledger(
    client: &Client,
    run: &RunName,
    number: Option<u32>,
    root: bool,
    mut cursor: Option<String>,
) -> Result<(Vec<Value>, Option<String>), Failure> {
    let mut rows: Vec<Value> = Vec::new();
    for _ in 0..PAGES_MAX {
        let scope = if root { "root" } else { "run" };
        let mut params: Params = vec![("scope", scope.to_owned()), ("pageSize", "100".to_owned())];
        params.extend(number.map(|number| ("runNumber", number.to_string())));
        params.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let mut page = client.get(&run.path(&["ledger"]), &params).await?;
        rows.extend(page["events"].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = page["cursor"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok((rows, cursor))
}

/// Prints events.
pub(in crate::commands) fn print_ledger(
    out: Out,
    rows: Vec<Value>,
    cursor: Option<String>,
    full: bool,
) -> Result<(), Failure> {
    if !out.is_text() {
        let mut page = json!({ "events": rows, "hasNextPage": cursor.is_some() });
        if let Some(cursor) = cursor {
            page["cursor"] = cursor.into();
        }
        return out.list(&page, "events");
    }
    let columns = match full {
        true => ["#", "TIME", "TYPE", "SUMMARY", "CAUSE", "HASH", "RUN KEY"].as_slice(),
        false => &["#", "TIME", "TYPE", "SUMMARY"],
    };
    let mut table = out.table(columns);
    for event in &rows {
        let mut cells = vec![
            cell(event, "ordinal"),
            clock(&cell(event, "at")),
            out.bold(&cell(event, "type")),
            summary(&event["summary"], full),
        ];
        if full {
            let cause = short_json(&event["cause"], usize::MAX);
            cells.extend([cause, cell(event, "hash"), cell(event, "runKey")]);
        }
        table.row(cells);
    }
    table.print()
}

/// Formats the summary of an event, without digests unless `full`.
pub(in crate::commands) fn summary(value: &Value, full: bool) -> String {
    let chars_max = if full { usize::MAX } else { 100 };
    let Some(members) = value.as_object().filter(|_| !full) else {
        return match value {
            Value::String(text) => sanitize_line(text),
            other => short_json(other, chars_max),
        };
    };
    let fields = members.iter().filter(|(key, value)| *key != "seals" && !is_digest(value));
    let word = |(key, value): (&String, &Value)| match value {
        Value::String(text) => format!("{key}={text}"),
        other => format!("{key}={}", short_json(other, 60)),
    };
    let text = fields.map(word).collect::<Vec<_>>().join(" ");
    cut(&sanitize_line(&text), chars_max)
}

fn is_digest(value: &Value) -> bool {
    value.is_null() || value.get("digest").is_some()
}

fn cut(text: &str, chars_max: usize) -> String {
    match text.chars().count() <= chars_max {
        true => text.to_owned(),
        false => text.chars().take(chars_max - 1).chain(['…']).collect(),
    }
}
