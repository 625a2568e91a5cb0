//! `windlass ledger`: the ledger of a run or of its tree, as text or as one HTML page, and kept ledgers.

mod kept;
mod page;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use windlass::agents;

use self::page::{Page, PageRun};
use super::Api;
use super::runs::{RunName, fetch_ledger, print_ledger, resolve, summary};
use super::transcript::conversations;
use crate::args::LedgerArgs;
use crate::client::{Client, Params};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Out, cell, clock, note, sanitize_line};

/// The most runs of a tree that are shown.
const RUNS_MAX: usize = 10_000;

pub(super) async fn run(api: Api, args: LedgerArgs) -> Outcome {
    if args.kept {
        return kept::run(api, args).await;
    }
    let run = resolve(&api.client, &args.run).await?;
    let number = run.number(args.run_number)?;
    let whole = args.root || args.tree || args.html.is_some();
    let (events, cursor) = fetch_ledger(&api.client, &run, number, whole, args.cursor).await?;
    if cursor.is_some() {
        note(&format!("showing only the first {} events", events.len()));
    }
    let Api { client, out } = api;
    if let Some(file) = &args.html {
        let runs = tree(&client, &run, number).await?;
        let page = html(&client, &runs, &events, args.break_glass, &run).await?;
        return write(file, &page, args.break_glass);
    }
    if !args.tree || !out.is_text() {
        print_ledger(out, events, cursor, args.full)?;
        return Ok(Exit::Ok);
    }
    let runs = tree(&client, &run, number).await?;
    Tree::new(&runs, &events).print(out, args.full)?;
    Ok(Exit::Ok)
}

async fn tree(client: &Client, run: &RunName, number: Option<u32>) -> Result<Vec<Value>, Failure> {
    let (mut runs, mut cursor): (Vec<Value>, Option<String>) = (Vec::new(), None);
    loop {
        let mut params: Params = vec![("pageSize", "100".to_owned())];
        params.extend(number.map(|number| ("runNumber", number.to_string())));
        params.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let mut page = client.get(&run.path(&["tree"]), &params).await?;
        runs.extend(page["runs"].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = page["nextCursor"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() || runs.len() >= RUNS_MAX {
            return Ok(runs);
        }
    }
}

/// The events of a tree: those of a run below the event that started it.
struct Tree<'a> {
    names: BTreeMap<String, String>,
    events: BTreeMap<String, Vec<&'a Value>>,
    /// Runs by the event that caused their first event.
    started: BTreeMap<String, Vec<String>>,
    tops: Vec<String>,
}

impl<'a> Tree<'a> {
    fn new(runs: &[Value], events: &'a [Value]) -> Self {
        let mut by_run: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
        for event in events {
            by_run.entry(cell(event, "runKey")).or_default().push(event);
        }
        for events in by_run.values_mut() {
            events.sort_by_key(|event| event["ordinal"].as_u64());
        }
        let known: BTreeMap<String, String> =
            events.iter().map(|event| (cell(event, "eventId"), cell(event, "runKey"))).collect();
        let (mut started, mut tops) = (BTreeMap::<_, Vec<String>>::new(), Vec::new());
        for (run, events) in &by_run {
            let cause = cell(&events[0]["cause"], "event_id");
            match known.get(&cause).filter(|of| *of != run) {
                Some(_) => started.entry(cause).or_default().push(run.clone()),
                None => tops.push(run.clone()),
            }
        }
        let name = |run: &Value| {
            let fork = run["fork"].as_str().map(|fork| format!(" [{fork}]")).unwrap_or_default();
            let name = format!("{}/{}{fork}", cell(run, "workflowName"), cell(run, "id"));
            (cell(run, "runKey"), name)
        };
        Self { names: runs.iter().map(name).collect(), events: by_run, started, tops }
    }

    fn print(&self, out: Out, full: bool) -> Result<(), Failure> {
        // A stack and not a recursion: a chain of children may be long.
        let mut stack: Vec<(usize, Entry<'_>)> = Vec::new();
        stack.extend(self.tops.iter().rev().map(|run| (0, Entry::Run(run))));
        while let Some((depth, entry)) = stack.pop() {
            let indent = "  ".repeat(depth.min(30));
            match entry {
                Entry::Run(run) => {
                    let name = self.names.get(run).map_or(run, |name| name);
                    out.line(&format!("{indent}{}", out.bold(&sanitize_line(name))))?;
                    let events = self.events.get(run).into_iter().flatten();
                    stack.extend(events.rev().map(|event| (depth + 1, Entry::Event(event))));
                }
                Entry::Event(event) => {
                    let (number, at) = (cell(event, "ordinal"), clock(&cell(event, "at")));
                    let text = summary(&event["summary"], full);
                    let kind = sanitize_line(&cell(event, "type"));
                    let number = out.dim(&format!("#{number} {at}"));
                    out.line(&format!("{indent}{number} {kind} {text}"))?;
                    let children = self.started.get(&cell(event, "eventId")).into_iter().flatten();
                    stack.extend(children.rev().map(|run| (depth + 1, Entry::Run(run))));
                }
            }
        }
        Ok(())
    }
}

enum Entry<'a> {
    Run(&'a str),
    Event(&'a Value),
}

async fn html(
    client: &Client,
    runs: &[Value],
    events: &[Value],
    break_glass: bool,
    run: &RunName,
) -> Result<String, Failure> {
    let mut shown = Vec::new();
    for row in runs {
        let name = RunName::new(cell(row, "workflowName"), cell(row, "id"));
        let number = row["runNumber"].as_u64().and_then(|n| u32::try_from(n).ok());
        let is_agent = row["model"] == agents::DESCRIPTION.name.as_str();
        let spoken = match break_glass && is_agent {
            true => conversations(client, &name, number, None).await?,
            false => Vec::new(),
        };
        shown.push(PageRun { row: row.clone(), conversations: spoken });
    }
    let page = Page { title: run.to_string(), runs: &shown, events, break_glass };
    Ok(page.to_html())
}

fn write(file: &Path, page: &str, is_secret: bool) -> Outcome {
    if file.as_os_str() == "-" {
        std::io::stdout().write_all(page.as_bytes())?;
        return Ok(Exit::Ok);
    }
    let failed = |error: std::io::Error| {
        Failure::error(format!("failed to write {}: {error}", file.display()))
    };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    if is_secret {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    let mut opened = options.open(file).map_err(failed)?;
    opened.write_all(page.as_bytes()).map_err(failed)?;
    Ok(Exit::Ok)
}

/// The shape of a payload that is not shown: member names and sizes.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            members.iter().map(|(key, value)| (key.clone(), shape(value))).collect()
        }
        Value::Array(items) => json!(format!("array of {}", items.len())),
        Value::String(text) => json!(format!("text of {} bytes", text.len())),
        Value::Number(_) => json!("number"),
        Value::Bool(_) => json!("bool"),
        Value::Null => Value::Null,
    }
}
