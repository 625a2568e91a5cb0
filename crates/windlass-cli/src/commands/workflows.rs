//! `windlass workflows`: lists workflows.

use serde_json::Value;

use super::Api;
use crate::args::WorkflowsCommand;
use crate::exit::{Exit, Outcome};
use crate::output::{cell, note};

pub(super) async fn run(api: Api, command: WorkflowsCommand) -> Outcome {
    match command {
        WorkflowsCommand::List => list(api).await,
    }
}

async fn list(Api { client, out }: Api) -> Outcome {
    let found = client.get(&["workflows"], &Vec::new()).await?;
    if !out.is_text() {
        out.list(&found, "workflows")?;
        return Ok(Exit::Ok);
    }
    let rows = found["workflows"].as_array().cloned().unwrap_or_default();
    let mut columns = vec!["WORKFLOW", "MODEL", "SERVED"];
    columns.extend(COUNTED_STATUSES.iter().map(|(_, column)| column));
    let mut table = out.table(&columns);
    for row in &rows {
        let served = match row["served"].as_bool() {
            Some(true) => "yes".to_owned(),
            Some(false) => "no live worker".to_owned(),
            None => String::new(),
        };
        let mut cells = vec![out.bold(&cell(row, "name")), cell(row, "model"), served];
        cells.extend(COUNTED_STATUSES.iter().map(|(status, _)| count(&row["counts"][*status])));
        table.row(cells);
    }
    if table.is_empty() {
        note("no workflows; register one in a program, or run the samples of `windlass dev`");
        return Ok(Exit::Ok);
    }
    table.print()?;
    Ok(Exit::Ok)
}

const COUNTED_STATUSES: [(&str, &str); 6] = [
    ("active", "ACTIVE"),
    ("waiting", "WAITING"),
    ("paused", "PAUSED"),
    ("complete", "COMPLETE"),
    ("errored", "ERRORED"),
    ("terminated", "TERMINATED"),
];

fn count(value: &Value) -> String {
    value.as_u64().filter(|count| *count > 0).map(|count| count.to_string()).unwrap_or_default()
}
