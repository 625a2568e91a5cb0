//! `windlass runs logs`: the durable log lines of a run, and following them.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{RunName, history, resolve, wait};
use crate::args::{LogFilter, LogsArgs};
use crate::client::{Client, Params};
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, clock, note, short_json};

/// How often new lines are asked for.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(Api { client, out }: Api, args: LogsArgs) -> Outcome {
    let run = resolve(&client, &args.run).await?;
    if args.follow {
        return follow(&client, out, &run, &args).await;
    }
    let (number, lines) = history::section(&client, &run, &args.filter, "logs").await?;
    if !out.is_text() {
        out.list(&json!({ "runNumber": number, "logs": lines }), "logs")?;
        return Ok(Exit::Ok);
    }
    if lines.is_empty() {
        note("no log lines");
    }
    lines.iter().try_for_each(|line| print(out, line, args.full))?;
    Ok(Exit::Ok)
}

// The last page has no cursor, so it is read again until it is full; its lines are known by their
// ids.
async fn follow(client: &Client, out: Out, run: &RunName, args: &LogsArgs) -> Outcome {
    let mut cursor: Option<String> = None;
    let mut seen: HashSet<String> = HashSet::new();
    loop {
        // Whether it has ended is asked before the lines are: none can come after.
        let ended = wait::is_ended(client, run, args.filter.run_number).await?;
        loop {
            let mut params = log_params(&args.filter);
            params.push(("pageSize", "100".to_owned()));
            params.extend(args.filter.run_number.map(|number| ("runNumber", number.to_string())));
            params.extend(cursor.clone().map(|cursor| ("logsCursor", cursor)));
            let page = client.get(&run.path(&["history"]), &params).await?;
            for line in page["logs"].as_array().into_iter().flatten() {
                if seen.insert(cell(line, "id")) {
                    match out.is_text() {
                        true => print(out, line, args.full)?,
                        false => out.line(&line.to_string())?,
                    }
                }
            }
            let next = page["logsCursor"].as_str().map(ToOwned::to_owned);
            match (next, page["logsHasNextPage"].as_bool()) {
                (Some(next), Some(true)) => {
                    seen.clear();
                    cursor = Some(next);
                }
                _ => break,
            }
        }
        if ended {
            return Ok(Exit::Ok);
        }
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}

/// The parameters that ask for log lines.
pub(super) fn log_params(filter: &LogFilter) -> Params {
    let mut params: Params = vec![("includeLogs", "true".to_owned())];
    params.extend(filter.log_level.map(|level| ("logLevel", level.as_str().to_owned())));
    params.extend(filter.log_category.clone().map(|category| ("logCategory", category)));
    params
}

/// One line of the log.
pub(super) fn print(out: Out, line: &Value, full: bool) -> Result<(), Failure> {
    let time = out.dim(&clock(&cell(line, "createdAt")));
    let mut text = format!("{time} {} {}", out.level(&cell(line, "level")), cell(line, "message"));
    let (category, step) = (cell(line, "category"), cell(line, "stepKey"));
    let mut about: Vec<String> = Vec::new();
    about.extend((!category.is_empty()).then_some(category));
    about.extend((!step.is_empty()).then_some(step));
    about.extend(line["attempt"].as_u64().filter(|n| *n > 1).map(|n| format!("attempt {n}")));
    about.extend(line["isReplay"].as_bool().unwrap_or(false).then(|| "replay".to_owned()));
    if !about.is_empty() {
        text += &out.dim(&format!("  [{}]", about.join(", ")));
    }
    if full && !line["data"].is_null() {
        text += &format!(" {}", short_json(&line["data"], usize::MAX));
    }
    out.line(&text)
}
