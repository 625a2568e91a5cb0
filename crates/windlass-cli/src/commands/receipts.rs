//! `windlass receipts`: what became of effects that asked for a receipt.

use serde_json::{Value, json};

use super::Api;
use super::runs::resolve;
use crate::args::{PageArgs, ReceiptsCommand, RunRef};
use crate::client::Params;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{cell, cell_ago, note};

/// The number of rows that are requested at once.
const PAGE: usize = 100;

pub(super) async fn run(api: Api, command: ReceiptsCommand) -> Outcome {
    match command {
        ReceiptsCommand::List { run, page } => list(&api, &run, page).await?,
        ReceiptsCommand::Show { task } => {
            let receipt = api.client.get(&["receipts", &task], &Params::new()).await?;
            match api.out.is_text() {
                true => print(&api, &[receipt])?,
                false => api.out.value(&receipt)?,
            }
        }
    }
    Ok(Exit::Ok)
}

async fn list(api: &Api, run: &RunRef, page: PageArgs) -> Result<(), Failure> {
    if page.limit == 0 {
        return Err(Failure::usage("--limit is 0; use 1 or more"));
    }
    let run = resolve(&api.client, run).await?;
    let number = run.number(None)?;
    let (mut rows, mut cursor): (Vec<Value>, _) = (Vec::new(), page.cursor);
    loop {
        let size = PAGE.min(page.limit - rows.len());
        let mut params: Params = vec![("pageSize", size.to_string())];
        params.extend(number.map(|number| ("runNumber", number.to_string())));
        params.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let next = api.client.get(&run.path(&["receipts"]), &params).await?;
        rows.extend(next["receipts"].as_array().cloned().unwrap_or_default());
        cursor = next["cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || rows.len() >= page.limit {
            break;
        }
    }
    if !api.out.is_text() {
        return api.out.list(&json!({ "receipts": rows, "cursor": cursor }), "receipts");
    }
    print(api, &rows)?;
    if let Some(cursor) = cursor {
        note(&format!("more receipts follow; continue with --cursor {cursor}"));
    }
    Ok(())
}

fn print(api: &Api, rows: &[Value]) -> Result<(), Failure> {
    if rows.is_empty() {
        note("no receipts");
        return Ok(());
    }
    let mut table = api.out.table(&["TASK", "EFFECT", "OUTCOME", "ATTEMPTS", "SETTLED", "ERROR"]);
    for row in rows {
        table.row([
            api.out.bold(&cell(row, "taskId")),
            cell(row, "name"),
            cell(row, "outcome"),
            cell(row, "attempts"),
            cell_ago(row, "settledAt"),
            cell(&row["error"], "message"),
        ]);
    }
    table.print()
}
