//! `windlass ledger --kept`: ledgers that stayed when retention deleted their runs.

use serde_json::{Value, json};

use crate::args::{LedgerArgs, RunTarget};
use crate::client::Params;
use crate::commands::Api;
use crate::commands::runs::print_ledger;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, cell_ago, note};

/// The most pages that are read.
const PAGES_MAX: usize = 1_000;

pub(super) async fn run(api: Api, args: LedgerArgs) -> Outcome {
    let hint = "use --kept alone, with the key of a run, or with --root and the key of a root";
    let usage = |message: String| Failure::usage(message).with_hint(hint);
    match (args.run.target().map_err(usage)?, args.root) {
        (RunTarget::Nothing, false) => list(&api, None, args.cursor).await?,
        (RunTarget::Word(root), true) => list(&api, Some(root), args.cursor).await?,
        (RunTarget::Word(run_key), false) => show(api, &run_key, args.cursor, args.full).await?,
        _ => return Err(usage("a kept ledger is found by the key of its run".to_owned())),
    }
    Ok(Exit::Ok)
}

async fn list(api: &Api, root: Option<String>, cursor: Option<String>) -> Result<(), Failure> {
    let root: Params = root.into_iter().map(|root| ("root", root)).collect();
    let (_, rows, cursor) = read(api, &["ledgers"], root, cursor, "ledgers").await?;
    if !api.out.is_text() {
        return api.out.list(&json!({ "ledgers": rows, "cursor": cursor }), "ledgers");
    }
    if rows.is_empty() {
        note("no kept ledgers");
        return Ok(());
    }
    let columns = ["RUN KEY", "RUN", "GENERATION", "STATUS", "EVENTS", "ENDED", "ROOT"];
    let mut table = api.out.table(&columns);
    for row in &rows {
        table.row([
            api.out.bold(&cell(row, "runKey")),
            format!("{}/{}", cell(row, "workflowName"), cell(row, "id")),
            cell(row, "runNumber"),
            api.out.status(&cell(row, "status")),
            cell(row, "events"),
            cell_ago(row, "endedAt"),
            cell(row, "root"),
        ]);
    }
    table.print()?;
    if let Some(cursor) = cursor {
        note(&format!("more ledgers follow; continue with --cursor {cursor}"));
    }
    Ok(())
}

async fn show(api: Api, run_key: &str, cursor: Option<String>, full: bool) -> Result<(), Failure> {
    let path = ["ledgers", run_key];
    let (kept, events, cursor) = read(&api, &path, Params::new(), cursor, "events").await?;
    if cursor.is_some() {
        note(&format!("showing only the first {} events", events.len()));
    }
    if api.out.is_text() {
        let kept = &kept["ledger"];
        let (workflow, id) = (cell(kept, "workflowName"), cell(kept, "id"));
        let (number, status) = (cell(kept, "runNumber"), cell(kept, "status"));
        note(&format!("{workflow}/{id}, generation {number}, {status}; retention deleted the run"));
    }
    print_ledger(api.out, events, cursor, full)
}

// All pages of a listing: the last one, the rows, and the cursor of the rest if there are too many.
async fn read(
    api: &Api,
    path: &[&str],
    params: Params,
    mut cursor: Option<String>,
    rows: &str,
) -> Result<(Value, Vec<Value>, Option<String>), Failure> {
    let (mut last, mut found) = (Value::Null, Vec::new());
    for _ in 0..PAGES_MAX {
        let mut params = params.clone();
        params.push(("pageSize", "100".to_owned()));
        params.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        last = api.client.get(path, &params).await?;
        found.extend(last[rows].as_array_mut().map(std::mem::take).unwrap_or_default());
        cursor = last["cursor"].as_str().map(ToOwned::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    Ok((last, found, cursor))
}
