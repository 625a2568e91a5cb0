//! `windlass runs logs`: prints or follows the durable log of a run.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};

use super::{RunName, history, resolve, wait};
use crate::args::{LogFilter, LogsArgs};
use crate::client::{Client, Params};
use crate::commands::Api;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, clock, indent_continuation, note, short_json, text};
use crate::retrier::Retrier;

/// The poll interval of `--follow`.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(500);

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
    let (number, cursor, seen) = (None, None, HashSet::new());
    let mut follower = Follower { client, out, run, args, number, cursor, seen };
    let mut retrier = Retrier::new(None);
    loop {
        match follower.print_new_lines().await {
            Ok(true) => return Ok(Exit::Ok),
            Ok(false) => {
                retrier.reset();
                tokio::time::sleep(FOLLOW_INTERVAL).await;
            }
            Err(failure) => retrier.wait_and_warn(failure).await?,
        }
    }
}

/// The read position of `--follow`. The last page has no cursor, so it is read again until it is
/// full; `seen` has the ids of its printed lines.
struct Follower<'a> {
    client: &'a Client,
    out: Out,
    run: &'a RunName,
    args: &'a LogsArgs,
    /// The generation that is read.
    number: Option<u32>,
    cursor: Option<String>,
    seen: HashSet<String>,
}

impl Follower<'_> {
    // Prints new lines. Returns whether the run has ended, so that no more lines can follow.
    async fn print_new_lines(&mut self) -> Result<bool, Failure> {
        let asked = self.args.filter.run_number;
        // Check for the end before reading the lines: a line written before the end is then never
        // missed.
        let (newest, ended) = wait::newest(self.client, self.run).await?;
        let last = asked.unwrap_or(newest);
        let mut number = *self.number.get_or_insert(last);
        self.print_generation(number).await?;
        while number < last {
            // The run was restarted: a cursor belongs to one generation.
            number += 1;
            self.number = Some(number);
            self.cursor = None;
            self.seen.clear();
            self.print_generation(number).await?;
        }
        Ok(ended || last < newest)
    }

    async fn print_generation(&mut self, number: u32) -> Result<(), Failure> {
        loop {
            let mut params = log_params(&self.args.filter);
            params.push(("pageSize", "100".to_owned()));
            params.push(("runNumber", number.to_string()));
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
                _ => return Ok(()),
            }
        }
    }
}

/// The query parameters for log lines.
pub(super) fn log_params(filter: &LogFilter) -> Params {
    let mut params: Params = vec![("includeLogs", "true".to_owned())];
    params.extend(filter.log_level.map(|level| ("logLevel", level.as_str().to_owned())));
    params.extend(filter.log_category.clone().map(|category| ("logCategory", category)));
    params
}

/// Prints one log line with its time.
pub(super) fn print(out: Out, line: &Value, full: bool) -> Result<(), Failure> {
    let time = clock(&cell(line, "createdAt"));
    // Indents further lines of the message.
    let text = indent_continuation(&self::line(out, line, full), time.chars().count() + 7);
    out.line(&format!("{} {text}", out.dim(&time)))
}

/// Formats one log line: level, message and origin.
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
