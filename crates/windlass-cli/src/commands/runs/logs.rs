//! `windlass runs logs`: the durable log lines of a run, and following them.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{RunName, history, resolve, wait};
use crate::args::{LogFilter, LogsArgs};
use crate::client::{Client, Params};
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, clock, hanging, note, short_json, text};
use crate::patience::Patience;

/// How often new lines are asked for.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(Api { client, out }: Api, mut args: LogsArgs) -> Outcome {
    let run = resolve(&client, &args.run).await?;
    args.filter.run_number = run.number(args.filter.run_number)?;
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

async fn follow(client: &Client, out: Out, run: &RunName, args: &LogsArgs) -> Outcome {
    let mut follower = Follower { client, out, run, args, cursor: None, seen: HashSet::new() };
    let mut patience = Patience::new(None);
    loop {
        match follower.look().await {
            Ok(true) => return Ok(Exit::Ok),
            Ok(false) => {
                patience.answered();
                tokio::time::sleep(FOLLOW_EVERY).await;
            }
            Err(failure) => patience.bear_aloud(failure).await?,
        }
    }
}

/// How far the log has been read. The last page has no cursor, so it is read again until it is full;
/// its lines are known by their ids.
struct Follower<'a> {
    client: &'a Client,
    out: Out,
    run: &'a RunName,
    args: &'a LogsArgs,
    cursor: Option<String>,
    seen: HashSet<String>,
}

impl Follower<'_> {
    // Prints what is new; whether there can be no more.
    async fn look(&mut self) -> Result<bool, Failure> {
        let filter = &self.args.filter;
        // Whether it has ended is asked before the lines are: none can come after.
        let ended = wait::is_ended(self.client, self.run, filter.run_number).await?;
        loop {
            let mut params = log_params(filter);
            params.push(("pageSize", "100".to_owned()));
            params.extend(filter.run_number.map(|number| ("runNumber", number.to_string())));
            params.extend(self.cursor.clone().map(|cursor| ("logsCursor", cursor)));
            let page = self.client.get(&self.run.path(&["history"]), &params).await?;
            for line in page["logs"].as_array().into_iter().flatten() {
                if self.seen.insert(cell(line, "id")) {
                    match self.out.is_text() {
                        true => print(self.out, line, self.args.full)?,
                        false => self.out.record(line)?,
                    }
                }
            }
            let next = page["logsCursor"].as_str().map(ToOwned::to_owned);
            match (next, page["logsHasNextPage"].as_bool()) {
                (Some(next), Some(true)) => {
                    self.seen.clear();
                    self.cursor = Some(next);
                }
                _ => return Ok(ended),
            }
        }
    }
}

/// The parameters that ask for log lines.
pub(super) fn log_params(filter: &LogFilter) -> Params {
    let mut params: Params = vec![("includeLogs", "true".to_owned())];
    params.extend(filter.log_level.map(|level| ("logLevel", level.as_str().to_owned())));
    params.extend(filter.log_category.clone().map(|category| ("logCategory", category)));
    params
}

/// Prints one line of the log with its time.
pub(super) fn print(out: Out, line: &Value, full: bool) -> Result<(), Failure> {
    let time = clock(&cell(line, "createdAt"));
    // Further lines of a message stand under its first.
    let said = hanging(&self::line(out, line, full), time.chars().count() + 7);
    out.line(&format!("{} {said}", out.dim(&time)))
}

/// One line of the log: its level, what it says, and where it is from.
pub(super) fn line(out: Out, line: &Value, full: bool) -> String {
    let message = text(line, "message");
    let mut text = format!("{} {}", out.level(&cell(line, "level")), message.trim_end());
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
    text
}
